"""The orders of chunks in a shard, by hand and by their properties."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardstore.model.chunk_orders import CHUNK_ORDERS, ChunkOrder, slot_order

shapes = st.lists(st.integers(1, 5), max_size=4).map(tuple)
orders = st.sampled_from(sorted(CHUNK_ORDERS))


@pytest.mark.parametrize(
    ("order", "shape", "slots"),
    [
        ("C", (4, 4), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
        ("F", (4, 4), [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15]),
        ("morton", (4, 4), [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]),
        ("F", (2, 3), [0, 3, 1, 4, 2, 5]),
        ("morton", (2, 3), [0, 1, 3, 4, 2, 5]),
        ("C", (2, 3, 2), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
        ("F", (2, 3, 2), [0, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11]),
        ("morton", (2, 3, 2), [0, 1, 2, 3, 6, 7, 8, 9, 4, 5, 10, 11]),
    ],
)
def test_the_order_of_full_shards(order: ChunkOrder, shape: tuple[int, ...], slots: list[int]) -> None:
    assert slot_order(shape, order, np.ones(prod(shape), dtype=bool)).tolist() == slots


@given(shapes, orders, st.data())
def test_an_order_holds_each_present_slot_once_and_is_that_of_the_full_shard(
    shape: tuple[int, ...], order: ChunkOrder, data: st.DataObject
) -> None:
    nslots = prod(shape)
    present = np.array(data.draw(st.lists(st.booleans(), min_size=nslots, max_size=nslots)), dtype=np.bool_)
    everything = slot_order(shape, order, np.ones(nslots, dtype=np.bool_))
    assert sorted(everything) == list(range(nslots))
    assert slot_order(shape, order, present).tolist() == [slot for slot in everything if present[slot]]


@given(shapes)
def test_column_major_order_is_row_major_order_of_the_reversed_dimensions(shape: tuple[int, ...]) -> None:
    everything = np.ones(prod(shape), dtype=np.bool_)
    row_major_of_reversed = np.unravel_index(slot_order(shape[::-1], "C", everything), shape[::-1]) if shape else ()
    column_major = np.unravel_index(slot_order(shape, "F", everything), shape) if shape else ()
    assert [coords.tolist() for coords in column_major] == [coords.tolist() for coords in row_major_of_reversed[::-1]]
