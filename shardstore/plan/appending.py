"""Strategy ``append``: what a shard holds stays where it is, new chunks and a new index go behind it.

::

    in place:   | old shard, its index too | room | new chunks | index |
    elsewhere:  | old shard to its index   | new chunks               | index |

The room is the storage's own. What is no longer referred to is dead: replaced chunks, room, in place the old index. Past a bound the
shard is rewritten instead.

In place, others may find the file of any length that is a whole number of pages meanwhile. A chunk that is a shard itself has an index at
its end; so no chunk ends there.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from shardstore.format.shard_index import EMPTY, IndexFormat, ShardIndex
from shardstore.model.ranges import BytesLike
from shardstore.model.segments import CopiedRange, NewBytes, Padding, Segment
from shardstore.plan.commits import ChunkOrder, CommitPlan, DeleteShard, NothingToDo, WriteShard, kept_slots, write_anew
from shardstore.plan.pieces import covered_nbytes

PAGE_BYTES = 4096  # the least that there is: larger ones are multiples of it
_DEAD_BYTES_ALWAYS_KEPT = 1 << 20
"""Of fewer dead bytes nobody is rid by writing the rest again."""


def can_append(index_format: IndexFormat) -> bool:
    """Whether a reader that meets a shard half appended to can tell: its index is at the end and carries a checksum."""
    return index_format.location == "end" and index_format.codecs.checksum


def plan_append(
    index_format: IndexFormat,
    old: ShardIndex,
    old_nbytes: int,
    updates: Mapping[int, BytesLike | None],
    order: ChunkOrder,
    max_dead_fraction: float,
    room_nbytes: int | None,
) -> CommitPlan:
    """Plan a commit of ``updates`` (slot to new bytes, or ``None`` to erase) onto ``old``; ``room_nbytes``: in place, with so much room.

    As ``plan_rewrite`` plans it where no chunk stays, or more than ``max_dead_fraction`` of the object would be dead.

    Raises:
        Corruption: an entry that would have to be kept cannot be right; a write of that chunk itself goes through.
    """
    kept = kept_slots(index_format, old, old_nbytes, updates)
    if isinstance(kept, DeleteShard | NothingToDo):
        return kept
    if not kept.any():
        return write_anew(index_format, old, kept, updates, order)
    chunks = [(slot, updates[slot]) for slot in sorted(updates)]
    stay = old.flat[kept].astype(np.int64)
    live_nbytes = covered_nbytes(stay[:, 0], stay[:, 1]) + index_format.nbytes
    entries = old.flat.copy()
    entries[[slot for slot, _ in chunks]] = EMPTY
    kept_nbytes = old_nbytes if room_nbytes is not None else _end_of_chunks(index_format, entries[kept], old_nbytes)
    segments: list[Segment] = [CopiedRange(0, kept_nbytes)]
    if room_nbytes is not None:
        segments.append(Padding(room_nbytes))
    position = sum(segment.nbytes for segment in segments)
    for slot, value in chunks:
        if value is not None:
            entries[slot] = position, len(value)
            segments.append(NewBytes(value))
            position += len(value)
            live_nbytes += len(value)
            if room_nbytes is not None and position % PAGE_BYTES == 0:
                segments.append(Padding(1))
                position += 1
    nbytes = position + index_format.nbytes
    if nbytes - live_nbytes > max(_DEAD_BYTES_ALWAYS_KEPT, max_dead_fraction * nbytes):
        return write_anew(index_format, old, kept, updates, order)
    index = index_format.index(entries)
    return WriteShard((*segments, NewBytes(index_format.encode(index))), nbytes, index)


def _end_of_chunks(index_format: IndexFormat, kept: npt.NDArray[np.uint64], old_nbytes: int) -> int:
    """Where what has to be kept ends: with the index, unless a chunk lies on it."""
    return max(old_nbytes - index_format.nbytes, int((kept[:, 0] + kept[:, 1]).max()))
