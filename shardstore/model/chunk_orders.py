"""The orders in which the chunks of a shard can be stored, in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from shardstore.errors import InvalidInput

Slots = npt.NDArray[np.intp]
ChunkOrder = Literal["C", "F", "morton"]
"""The orders of chunks in a shard that ZEP 2 names: row-major, column-major and Morton order, of the chunks' coordinates in the shard."""


def check_chunk_order(order: object, option: str) -> None:
    """Check the value of ``option``.

    Raises:
        InvalidInput: there is no such order.
    """
    if not isinstance(order, str) or order not in CHUNK_ORDERS:
        raise InvalidInput(f"{option} {order!r} is not known: there are {', '.join(map(repr, CHUNK_ORDERS))}")


def slot_order(chunks_per_shard: tuple[int, ...], order: ChunkOrder, present: npt.NDArray[np.bool_]) -> Slots:
    """Return the slots where ``present``, in the order in which their chunks are stored."""
    slots = np.flatnonzero(present)
    return CHUNK_ORDERS[order](slots, chunks_per_shard) if len(chunks_per_shard) > 1 else slots


def _row_major(slots: Slots, shape: tuple[int, ...]) -> Slots:
    return slots


def _column_major(slots: Slots, shape: tuple[int, ...]) -> Slots:
    return slots[np.lexsort(np.unravel_index(slots, shape))]  # the last key, the last dimension, counts most


def _morton(slots: Slots, shape: tuple[int, ...]) -> Slots:
    return slots[np.argsort(_morton_codes(slots, shape), kind="stable")]


CHUNK_ORDERS: Mapping[ChunkOrder, Callable[[Slots, tuple[int, ...]], Slots]] = {"C": _row_major, "F": _column_major, "morton": _morton}
"""Each order sorts slots, which come ascending, of a shard of two dimensions at least; with fewer, all orders are the same."""


def _morton_codes(slots: Slots, shape: tuple[int, ...]) -> npt.NDArray[np.uint64]:
    """Return the Z-order code of each slot: the bits of its coordinates interleaved, the last dimension least significant.

    Dimensions that have run out of bits are passed over, so the code needs no more bits than the slot number has.
    """
    codes = np.zeros(slots.shape, dtype=np.uint64)
    coords = np.unravel_index(slots, shape)
    position = 0
    for bit in range(max(shape).bit_length()):
        for axis in reversed(range(len(shape))):
            if (shape[axis] - 1) >> bit:
                codes |= ((coords[axis].astype(np.uint64) >> np.uint64(bit)) & np.uint64(1)) << np.uint64(position)
                position += 1
    return codes
