"""The write strategies, in one table. ``strategy=`` takes a name of the table, or a ``Strategy`` of one's own.

Strategy ``append``: what a shard holds stays where it is, new chunks and a new index go behind it.

::

    in place:   | old shard, its index too | padding | new chunks | index |
    elsewhere:  | old shard to its index   | new chunks           | index |

The storage keeps its own notes in the padding. Bytes are dead if no index refers to them any more: replaced chunks, padding, and, in
place, the old index. Past a bound the shard is rewritten instead.

While bytes are appended in place, other processes may see the file with any length that is a whole number of pages. A chunk that is itself
a shard has an index at its end; so no chunk may end at such a length.

Strategy ``keep``: a new object each time, in which every chunk of the version that it replaces lies where it lay, those too that the
commit replaces or erases. So the index of that version finds in the new object what it found in the old one.

::

    at first:         | old shard to its index                       | new chunks | index |
    past the bound:   | chunk | new chunk, over dead bytes | chunk | dead bytes | index |

With the index at the start, which has the same length in every version, it is replaced there.
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
    Ints,
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


@dataclass(frozen=True)
class KeepOffsets(Strategy):
    """Chunks of the version that is replaced keep their places in the new object, those too that are replaced or erased."""

    name: str = "keep"
    dead_bytes_kept: int = DEAD_BYTES_KEPT
    plans_from_old: ClassVar[bool] = True

    def plan(self, commit: Commit) -> CommitPlan:
        if commit.old is None:
            return plan_rewrite(commit.index_format, None, 0, commit.updates, commit.order)
        return plan_keep(commit, commit.old, self.dead_bytes_kept)


def plan_keep(commit: Commit, old: ShardIndex, dead_bytes_kept: int = DEAD_BYTES_KEPT) -> CommitPlan:
    """Plan a commit that moves no chunk of ``old``, not even one that it replaces or erases.

    New chunks go behind everything. If more bytes would be dead then than the bound allows, they go where bytes are dead, and only those
    that fit nowhere go behind; dead bytes behind the last chunk are cut off as far as they are too many.

    Raises:
        Corruption: an entry that would have to be kept cannot be right; a write of that chunk itself goes through.
    """
    index_format, old_nbytes = commit.index_format, commit.old_nbytes
    kept = kept_slots(index_format, old, old_nbytes, commit.updates)
    if isinstance(kept, DeleteShard | NothingToDo):
        return kept
    is_first = index_format.location == "start"
    readable = old.present() & ~old.invalid(old_nbytes)
    if not readable.any() or (is_first and (readable & index_format.on_index(old, old_nbytes)).any()):
        return write_anew(index_format, old, kept, commit.updates, commit.order)  # nothing has a place that can be kept
    start, tail_nbytes = (index_format.nbytes, 0) if is_first else (0, index_format.nbytes)
    held = old.flat[readable].astype(np.int64)
    held_end = int(held.sum(axis=1).max())
    end = max(index_format.chunks_end(old_nbytes), held_end)
    new = {slot: value for slot, value in sorted(commit.updates.items()) if value is not None}
    sizes = np.fromiter(map(len, new.values()), dtype=np.int64, count=len(new))
    stay = old.flat[kept].astype(np.int64)
    live_nbytes = covered_nbytes(stay[:, 0], stay[:, 1]) + int(sizes.sum()) + index_format.nbytes
    most_nbytes = max(live_nbytes + dead_bytes_kept, int(live_nbytes / (1 - commit.max_dead_fraction)))
    if end + int(sizes.sum()) + tail_nbytes <= most_nbytes:
        offsets = end + np.cumsum(sizes) - sizes
    else:
        replaced_end = int(held[~kept[readable]].sum(axis=1).max(initial=start))
        offsets = _placed(sizes, _dead(held, start, end, replaced_end), end)
        end = max(held_end, min(end, most_nbytes - tail_nbytes))
    entries = old.flat.copy()
    entries[list(commit.updates)] = EMPTY
    entries[list(new), 0], entries[list(new), 1] = offsets, sizes
    placed = sorted(zip(offsets.tolist(), new.values(), strict=True), key=lambda one: (one[0], len(one[1])))  # empty ones first
    segments = _between(placed, start, end)
    index = index_format.index(entries)
    encoded = NewBytes(index_format.encode(index))
    nbytes = encoded.nbytes + sum(segment.nbytes for segment in segments)
    return WriteShard((encoded, *segments) if is_first else (*segments, encoded), nbytes, index)


def _dead(held: Ints, start: int, end: int, after: int) -> list[list[int]]:
    """Return the ranges of ``[start, end)``, as starts and ends, in which no chunk of ``held`` lies, ``(n, 2)`` offsets and lengths.

    They begin behind ``after``, where the chunks lie that are replaced, and go around: so what died first is taken first, and indices that
    are some versions old go on finding most of their chunks.
    """
    by_offset = held[np.argsort(held[:, 0], kind="stable")]
    reached = np.maximum.accumulate(np.append(start, by_offset.sum(axis=1)))
    begins = np.append(by_offset[:, 0], end)
    is_dead = begins > reached
    ranges = np.column_stack([reached[is_dead], begins[is_dead]])
    return np.roll(ranges, -int(np.searchsorted(ranges[:, 0], after)), axis=0).tolist()  # type: ignore[no-any-return]


def _placed(sizes: Ints, ranges: list[list[int]], behind: int) -> Ints:
    """Return an offset for each of so many bytes: in ``ranges``, which are tried one after the other, or else from ``behind`` on.

    What is left of a range, and one that is too short, is not tried again. So nothing goes behind unless each range is shorter than the
    longest of them, and an object has at most so many dead bytes for each chunk.
    """
    offsets = np.empty_like(sizes)
    left = iter([*ranges, [behind, 2**63 - 1]])
    at, until = next(left)
    for i, nbytes in enumerate(sizes.tolist()):
        while until - at < nbytes:
            at, until = next(left)
        offsets[i] = at
        at += nbytes
    return offsets


def _between(new: list[tuple[int, BytesLike]], start: int, end: int) -> list[Segment]:
    """Return what lies from ``start`` on: bytes at their new offsets, ascending, and what lay there before between them and to ``end``."""
    segments: list[Segment] = []
    for offset, value in new:
        if offset > start:
            segments.append(CopiedRange(start, offset - start))
        segments.append(NewBytes(value))
        start = offset + len(value)
    return [*segments, CopiedRange(start, end - start)] if end > start else segments


STRATEGIES: dict[str, Strategy] = {strategy.name: strategy for strategy in (Rewrite(), Append(), KeepOffsets())}


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
