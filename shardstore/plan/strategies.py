"""The write strategies, in one table. ``strategy=`` takes a name of the table, or a ``Strategy`` of one's own.

Strategy ``append``: what a shard holds stays where it is, new chunks and a new index go behind it.

::

    in place:   | old shard, its index too | padding | new chunks | index |
    elsewhere:  | old shard to its index   | new chunks           | index |

The storage keeps its own notes in the padding. Bytes are dead if no index refers to them any more: replaced chunks, padding, and, in
place, the old index. Past a bound the shard is rewritten instead.

While bytes are appended in place, other processes may see the file with any length that is a whole number of pages. A chunk that is itself
a shard has an index at its end; so no chunk may end at such a length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from shardstore.errors import InvalidInput
from shardstore.format.shard_index import EMPTY, IndexFormat, ShardIndex
from shardstore.model.chunk_orders import ChunkOrder
from shardstore.model.ranges import APPEND_PADDING_NBYTES, BytesLike, CopiedRange, NewBytes, Padding, Segment
from shardstore.plan.commits import (
    Commit,
    CommitPlan,
    DeleteShard,
    NothingToDo,
    Rewrite,
    Strategy,
    WriteShard,
    covered_nbytes,
    kept_slots,
    plan_rewrite,
    write_anew,
)

PAGE_BYTES = 4096  # the least that there is: larger ones are multiples of it
DEAD_BYTES_KEPT = 1 << 20
"""A shard with at most so many dead bytes is not rewritten."""


@dataclass(frozen=True)
class Append(Strategy):
    """New chunks and a new index go behind what is there, which the storage copies or leaves in place."""

    name: str = "append"
    dead_bytes_kept: int = DEAD_BYTES_KEPT
    needs: ClassVar[Mapping[str, str]] = {"compose": "copy a part of an object into its new version"}

    def unsuited(self, index_format: IndexFormat) -> str | None:
        if index_format.location == "end" and index_format.codecs.checksum:
            return None
        return "an index with a checksum at the end of the shard, so that a reader can recognise a shard that is half written"

    def plan(self, commit: Commit) -> CommitPlan:
        if commit.old is None or not commit.capabilities.compose or commit.old_nbytes < commit.capabilities.copy_pays_nbytes:
            return plan_rewrite(commit.index_format, commit.old, commit.old_nbytes, commit.updates, commit.order)
        padding = APPEND_PADDING_NBYTES if commit.capabilities.appends_in_place else None
        return plan_append(
            commit.index_format,
            commit.old,
            commit.old_nbytes,
            commit.updates,
            commit.order,
            commit.max_dead_fraction,
            padding,
            self.dead_bytes_kept,
        )


def plan_append(
    index_format: IndexFormat,
    old: ShardIndex,
    old_nbytes: int,
    updates: Mapping[int, BytesLike | None],
    order: ChunkOrder,
    max_dead_fraction: float,
    padding_nbytes: int | None,
    dead_bytes_kept: int = DEAD_BYTES_KEPT,
) -> CommitPlan:
    """Plan a commit of ``updates`` (slot to new bytes, or ``None`` to erase) onto ``old``.

    With ``padding_nbytes``, the append is in place, with so many bytes of padding. If no chunk stays, or more than ``max_dead_fraction`` of
    the object would be dead, the plan is that of ``plan_rewrite``.

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
    kept_nbytes = old_nbytes if padding_nbytes is not None else _end_of_chunks(index_format, entries[kept], old_nbytes)
    segments: list[Segment] = [CopiedRange(0, kept_nbytes)]
    if padding_nbytes is not None:
        segments.append(Padding(padding_nbytes))
    position = sum(segment.nbytes for segment in segments)
    for slot, value in chunks:
        if value is not None:
            entries[slot] = position, len(value)
            segments.append(NewBytes(value))
            position += len(value)
            live_nbytes += len(value)
            if padding_nbytes is not None and position % PAGE_BYTES == 0:
                segments.append(Padding(1))
                position += 1
    nbytes = position + index_format.nbytes
    if nbytes - live_nbytes > max(dead_bytes_kept, max_dead_fraction * nbytes):
        return write_anew(index_format, old, kept, updates, order)
    index = index_format.index(entries)
    return WriteShard((*segments, NewBytes(index_format.encode(index))), nbytes, index)


def _end_of_chunks(index_format: IndexFormat, kept: npt.NDArray[np.uint64], old_nbytes: int) -> int:
    """Return where what has to be kept ends: with the index, unless a chunk lies on it."""
    return max(old_nbytes - index_format.nbytes, int((kept[:, 0] + kept[:, 1]).max()))


STRATEGIES: dict[str, Strategy] = {strategy.name: strategy for strategy in (Rewrite(), Append())}


def strategy_of(named: object) -> Strategy:
    """Return the strategy that an option names, or is.

    Raises:
        InvalidInput: there is none of that name.
    """
    if isinstance(named, Strategy):
        return named
    if not isinstance(named, str) or named not in STRATEGIES:
        raise InvalidInput(f"strategy {named!r} is not known: there are {', '.join(map(repr, STRATEGIES))}")
    return STRATEGIES[named]
