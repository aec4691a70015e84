"""Prefixes: the plan finds what a plain filter over all keys finds."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardstore.format.chunk_keys import ChunkKeyEncoding
from shardstore.format.metadata_v3 import ArrayLayout
from shardstore.format.shard_index import EMPTY, IndexFormat, ShardIndex
from shardstore.model.chunks import ChunkCoords
from shardstore.plan.prefixes import chunk_keys_of, chunks_of, plan_prefix

encodings = st.builds(ChunkKeyEncoding, st.sampled_from(["default", "v2"]), st.sampled_from(["/", "."]))


@given(encodings, st.lists(st.tuples(st.integers(1, 13), st.integers(1, 4)), max_size=3), st.data())
def test_shards_below_the_stored_prefix_hold_every_match(
    encoding: ChunkKeyEncoding, dims: list[tuple[int, int]], data: st.DataObject
) -> None:
    grid, per_shard = tuple(d[0] for d in dims), tuple(d[1] for d in dims)
    layout = ArrayLayout(grid, (1,) * len(grid), encoding, IndexFormat(per_shard))
    chunks: list[ChunkCoords] = list(product(*(range(-(-g // n) * n) for g, n in dims)))  # all that the shards have a slot for
    key = encoding.encode(data.draw(st.sampled_from(chunks)))
    prefix = key[: data.draw(st.integers(0, len(key)))] + data.draw(st.sampled_from(["", encoding.separator]))
    matching = {c for c in chunks if encoding.encode(c).startswith(prefix)}
    plan = plan_prefix(layout, prefix)
    full = ShardIndex(np.zeros((*per_shard, 2), dtype=np.uint64))
    found: set[ChunkCoords] = set()
    for shard in {layout.grid.shard_of(c) for c in chunks}:
        if not encoding.encode(shard).startswith(plan.stored_prefix):
            continue
        here = chunks_of(layout, shard, full, plan.leading)
        if plan.covers_whole_shards:
            assert set(here) == set(chunks_of(layout, shard, full)) <= matching
        found.update(c for c in here if encoding.encode(c).startswith(prefix))
    assert found == matching


@given(encodings, st.lists(st.tuples(st.integers(1, 30), st.integers(1, 13)), max_size=3), st.data())
def test_keys_are_those_of_the_chunks(encoding: ChunkKeyEncoding, dims: list[tuple[int, int]], data: st.DataObject) -> None:
    grid, per_shard = tuple(d[0] for d in dims), tuple(d[1] for d in dims)
    layout = ArrayLayout(grid, (1,) * len(grid), encoding, IndexFormat(per_shard))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    entries = rng.integers(0, 1000, (*per_shard, 2)).astype(np.uint64)
    entries[rng.random(per_shard) < data.draw(st.sampled_from([0.0, 0.3, 1.0]))] = EMPTY
    index = ShardIndex(entries)
    shard = tuple(data.draw(st.integers(0, g // n)) for g, n in dims)
    chunk = tuple(s * n + data.draw(st.integers(0, n - 1)) for s, n in zip(shard, per_shard, strict=True))
    leading = chunk[: data.draw(st.integers(0, len(chunk)))]
    expected = {
        "a/" + encoding.encode(coords): int(index.flat[layout.grid.slot_of(coords), 1])
        for coords in chunks_of(layout, shard, index, leading)
    }
    keys, nbytes = chunk_keys_of(layout, shard, index, leading, "a/")
    assert len(keys) == len(nbytes) == len(expected)
    assert dict(zip(keys, nbytes, strict=True)) == expected


@pytest.mark.parametrize("shard", [0, 1, 10**18, 10**30])
def test_entries_outside_the_array_are_listed(shard: int) -> None:
    """As a store lists every key that it has a value for: a resize may have left them."""
    layout = ArrayLayout((5,), (2,), ChunkKeyEncoding(), IndexFormat((4,)))
    full = ShardIndex(np.zeros((4, 2), dtype=np.uint64))
    expected = [4 * shard + i for i in range(4)]
    assert chunks_of(layout, (shard,), full) == [(i,) for i in expected]
    assert chunks_of(layout, (shard,), full, (expected[1],)) == [(expected[1],)]
    assert chunks_of(layout, (shard,), full, (expected[0] - 1,)) == []
    assert chunk_keys_of(layout, (shard,), full) == ([f"c/{i}" for i in expected], [0] * 4)


@pytest.mark.parametrize(("per_shard", "whole"), [((1, 2), True), ((2, 2), False)])
def test_a_row_of_shards_can_be_removed_unread(per_shard: tuple[int, int], whole: bool) -> None:
    layout = ArrayLayout((8, 8), (1, 1), ChunkKeyEncoding(), IndexFormat(per_shard))
    assert plan_prefix(layout, "c/5/").covers_whole_shards is whole
    assert plan_prefix(layout, "c/").covers_whole_shards
    assert plan_prefix(layout, "").covers_whole_shards
    assert not plan_prefix(layout, "c/5").covers_whole_shards
