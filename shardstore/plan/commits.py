"""What a shard consists of after a commit: segments of the old version and new bytes, and the new index.

Strategy ``rewrite``: a new object that holds the chunks in C or Morton order and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from shardstore.errors import Corruption
from shardstore.format.shard_index import EMPTY, IndexFormat, ShardIndex
from shardstore.model.ranges import BytesLike

ChunkOrder = Literal["C", "morton"]


@dataclass(frozen=True, slots=True)
class CopyOld:
    """``nbytes`` bytes from ``offset`` of the version that the plan was made from."""

    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class NewBytes:
    data: BytesLike

    @property
    def nbytes(self) -> int:
        return len(self.data)


PlannedSegment = CopyOld | NewBytes


@dataclass(frozen=True, slots=True)
class WriteShard:
    """Store ``segments`` one behind the other, ``nbytes`` in all; ``index`` is what they contain, for the cache."""

    segments: tuple[PlannedSegment, ...]
    nbytes: int
    index: ShardIndex


@dataclass(frozen=True, slots=True)
class DeleteShard:
    """No chunk is left: remove the object."""


@dataclass(frozen=True, slots=True)
class NothingToDo:
    """The shard already is what was asked for."""


CommitPlan = WriteShard | DeleteShard | NothingToDo


def plan_rewrite(
    index_format: IndexFormat,
    old: ShardIndex | None,
    old_nbytes: int,
    updates: Mapping[int, BytesLike | None],
    order: ChunkOrder = "C",
) -> CommitPlan:
    """Plan a commit of ``updates`` (slot to new bytes, or ``None`` to erase) onto ``old`` (``None``: no object).

    Raises:
        Corruption: an entry that would have to be kept cannot be right; a write of that chunk itself goes through.
    """
    slots = np.fromiter(updates, dtype=np.intp, count=len(updates))
    if old is None:
        old = ShardIndex.empty(index_format.chunks_per_shard)
        existed = False
    else:
        existed = True
    present = old.present()
    kept = present.copy()
    kept[slots] = False
    if not kept.any() and all(value is None for value in updates.values()):
        return DeleteShard() if existed else NothingToDo()
    if all(value is None and not present[slot] for slot, value in updates.items()):
        return NothingToDo()
    damaged = kept & old.invalid(old_nbytes)
    if damaged.any():
        slot = int(np.flatnonzero(damaged)[0])
        old.location(slot, old_nbytes)  # raises, naming the entry
        raise Corruption(f"index entry {slot} cannot be kept")
    return _write(index_format, old, kept, updates, order)


def plan_empty(index_format: IndexFormat) -> WriteShard:
    """A shard that holds no chunk: nothing but its index."""
    index = ShardIndex.empty(index_format.chunks_per_shard)
    encoded = NewBytes(index_format.encode(index))
    return WriteShard((encoded,), encoded.nbytes, index)


def _write(
    index_format: IndexFormat,
    old: ShardIndex,
    kept: npt.NDArray[np.bool_],
    updates: Mapping[int, BytesLike | None],
    order: ChunkOrder,
) -> WriteShard:
    flat = old.flat
    entries = np.full_like(flat, EMPTY)
    header = index_format.nbytes if index_format.location == "start" else 0
    position = header
    segments: list[PlannedSegment] = []
    run: CopyOld | None = None
    present = kept.copy()
    for slot, value in updates.items():
        present[slot] = value is not None
    for slot in slot_order(index_format.chunks_per_shard, order, present):
        value = updates.get(slot)
        if value is not None:
            nbytes = len(value)
            if run is not None:
                segments.append(run)
                run = None
            segments.append(NewBytes(value))
        else:
            offset, nbytes = int(flat[slot, 0]), int(flat[slot, 1])
            if run is not None and run.offset + run.nbytes == offset:
                run = CopyOld(run.offset, run.nbytes + nbytes)
            else:
                if run is not None:
                    segments.append(run)
                run = CopyOld(offset, nbytes)
        entries[slot] = position, nbytes
        position += nbytes
    if run is not None:
        segments.append(run)
    entries.flags.writeable = False
    index = ShardIndex(entries.reshape(old.entries.shape))
    encoded = NewBytes(index_format.encode(index))
    if index_format.location == "start":
        return WriteShard((encoded, *segments), position, index)
    return WriteShard((*segments, encoded), position + encoded.nbytes, index)


def slot_order(chunks_per_shard: tuple[int, ...], order: ChunkOrder, present: npt.NDArray[np.bool_]) -> list[int]:
    """The slots where ``present``, in the order in which their chunks are stored."""
    slots = np.flatnonzero(present)
    if order == "morton" and len(chunks_per_shard) > 1:
        slots = slots[np.argsort(_morton_codes(slots, chunks_per_shard), kind="stable")]
    ordered: list[int] = slots.tolist()
    return ordered


def _morton_codes(slots: npt.NDArray[np.intp], shape: tuple[int, ...]) -> npt.NDArray[np.uint64]:
    """Z-order code of each slot: the bits of its coordinates interleaved, the last dimension least significant.

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
