"""Commit plans: the contents of a shard after a commit, as segments of the old version and new bytes, and the new index.

Strategies plan commits. ``rewrite`` is here, and compaction with it: a new object that holds the chunks in one of ``CHUNK_ORDERS``, and
nothing else. ``strategies`` has the other ones, and the table of them.

Entries of an index may overlap, and may name the same bytes: that is valid. Bytes that several chunks share are copied once, as one piece,
and shared again: a shard without updates is never longer than the shard it was made from, unless a chunk lay on the index.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from shardstore.errors import Corruption
from shardstore.format.shard_index import IndexFormat, ShardIndex
from shardstore.model.capabilities import Capabilities
from shardstore.model.chunk_orders import ChunkOrder, slot_order
from shardstore.model.ranges import BytesLike, CopiedRange, NewBytes, Segment

__all__ = ["Commit", "CommitPlan", "DeleteShard", "NothingToDo", "Strategy", "WriteShard"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WriteShard:
    """Store ``segments`` one behind the other, ``nbytes`` in all; ``index`` is what they contain, for the cache."""

    segments: tuple[Segment, ...]
    nbytes: int
    index: ShardIndex


@dataclass(frozen=True, slots=True)
class DeleteShard:
    """No chunk is left: remove the object."""


@dataclass(frozen=True, slots=True)
class NothingToDo:
    """The shard already is what was asked for."""


CommitPlan = WriteShard | DeleteShard | NothingToDo
"""What a commit does to one shard."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The input for the plan of one commit of one shard."""

    index_format: IndexFormat
    old: ShardIndex | None
    """The index of the present shard; ``None`` where there is none."""
    old_nbytes: int
    """The size of the whole object, its index included."""
    updates: Mapping[int, BytesLike | None]
    """Slots to new bytes, or to ``None`` to erase the chunk."""
    order: ChunkOrder
    max_dead_fraction: float
    capabilities: Capabilities
    """The capabilities of the storage."""


class Strategy(ABC):
    """A way to update shards. A strategy is a frozen value without state: what it needs, and how it plans a commit.

    The rule for all of them: no byte to which a live index refers is overwritten.
    """

    name: str
    """The value of the option ``strategy``."""

    needs: ClassVar[Mapping[str, str]] = {}
    """The ``Capabilities`` that it needs, by name, each with the end of the sentence "the storage cannot ..."."""

    plans_from_old: ClassVar[bool] = False
    """True if the old index matters, too, for a commit that brings all chunks of a shard."""

    def unsuited(self, index_format: IndexFormat) -> str | None:
        """Return the end of the sentence "the strategy needs ..." if it cannot update shards with this index format, else ``None``."""
        return None

    @abstractmethod
    def plan(self, commit: Commit) -> CommitPlan:
        """Plan one commit.

        Raises:
            Corruption: an entry that would have to be kept cannot be right; a write of that chunk itself goes through.
        """


def kept_slots(
    index_format: IndexFormat, old: ShardIndex | None, old_nbytes: int, updates: Mapping[int, BytesLike | None]
) -> npt.NDArray[np.bool_] | DeleteShard | NothingToDo:
    """Return ``(nslots,)``: true for the chunks of ``old`` that stay. If no shard has to be written, return the plan instead.

    Raises:
        Corruption: an entry that would have to be kept cannot be right.
    """
    present = old.present() if old is not None else np.zeros(prod(index_format.chunks_per_shard), dtype=np.bool_)
    kept = present.copy()
    kept[np.fromiter(updates, dtype=np.intp, count=len(updates))] = False
    if not kept.any() and all(value is None for value in updates.values()):
        return DeleteShard() if old is not None else NothingToDo()
    if all(value is None and not present[slot] for slot, value in updates.items()):
        return NothingToDo()
    if old is not None:
        check_kept(old, old_nbytes, kept)
    return kept


def check_kept(old: ShardIndex, old_nbytes: int, kept: npt.NDArray[np.bool_]) -> None:
    """Check the entries of the chunks that stay; ``kept``: ``(nslots,)``.

    Raises:
        Corruption: an entry that is to be kept cannot be right.
    """
    damaged = old.invalid(old_nbytes, kept)
    if damaged.any():
        slot = int(np.flatnonzero(damaged)[0])
        old.location(slot, old_nbytes)  # raises, naming the entry
        raise Corruption(f"index entry {slot} cannot be kept")


def plan_empty(index_format: IndexFormat) -> WriteShard:
    """Plan a shard that holds no chunk: nothing but its index."""
    index = index_format.empty()
    encoded = NewBytes(index_format.encode(index))
    return WriteShard((encoded,), encoded.nbytes, index)


NONCE_NBYTES = 16


def with_nonce(plan: WriteShard, index_format: IndexFormat, nonce: bytes) -> WriteShard:
    """Return the plan of a shard of the same chunks that holds ``nonce`` too: ``NONCE_NBYTES`` random bytes that belong to no chunk, by
    which this version differs from every other. A plan that copies an index at the end has no place for it, and is returned unchanged.
    """
    segments = plan.segments
    if index_format.location == "start":
        segments = (*segments, NewBytes(nonce))
    elif isinstance(segments[-1], NewBytes):
        segments = (*segments[:-1], NewBytes(nonce), segments[-1])
    else:
        return plan
    return WriteShard(segments, plan.nbytes + len(nonce), plan.index)


def write_anew(
    index_format: IndexFormat,
    old: ShardIndex,
    kept: npt.NDArray[np.bool_],
    updates: Mapping[int, BytesLike | None],
    order: ChunkOrder,
) -> WriteShard:
    """Plan the shard of the chunks of ``old`` in the slots that are ``kept``, and of the updates."""
    given = {slot: len(value) for slot, value in updates.items() if value is not None}
    new = np.fromiter(given, dtype=np.intp, count=len(given))
    is_new = np.zeros_like(kept)
    is_new[new] = True
    slots = slot_order(index_format.chunks_per_shard, order, kept | is_new)
    is_new = is_new[slots]
    sizes = old.flat[slots, 1].astype(np.int64)
    sizes[is_new] = [given[slot] for slot in slots[is_new].tolist()]
    stored = _stored(old.flat[slots, 0].astype(np.int64), sizes, is_new)
    index = index_format.index_of_new(slots, stored.positions, sizes)
    encoded = NewBytes(index_format.encode(index))
    segments = _segments(slots, is_new, stored, updates)
    nbytes = int(stored.sizes.sum()) + encoded.nbytes
    if index_format.location == "start":
        return WriteShard((encoded, *segments), nbytes, index)
    return WriteShard((*segments, encoded), nbytes, index)


@dataclass(frozen=True, slots=True, eq=False)
class _Stored:
    """The bytes that are stored for ``n`` chunks, once for chunks that share their bytes."""

    positions: npt.NDArray[np.int64]
    """``(n,)``: where each chunk begins, from the first byte that is stored for any."""
    brought_by: npt.NDArray[np.intp] | slice
    """The chunks for which something is stored, the first of those that share it; ``(k,)`` like the rest."""
    offsets: npt.NDArray[np.int64]
    """The offset of those bytes in the old object, if they are kept."""
    sizes: npt.NDArray[np.int64]


def _stored(offsets: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], is_new: npt.NDArray[np.bool_]) -> _Stored:
    """Return the places of chunks in the order in which they are stored: ``offsets`` are in the old object, where they are not new."""
    kept = np.flatnonzero(~is_new)
    pieces = shared_pieces(offsets[kept], sizes[kept])
    if pieces is None:
        return _Stored(np.cumsum(sizes) - sizes, slice(None), offsets, sizes)
    firsts = kept[pieces.firsts]
    brings = is_new.copy()
    brings[firsts] = True
    sizes, begins = sizes.copy(), offsets.copy()
    sizes[firsts], begins[firsts] = pieces.ends - pieces.starts, pieces.starts
    brought_by = np.flatnonzero(brings)
    brought = sizes[brought_by]
    positions = np.empty_like(offsets)
    positions[brought_by] = np.cumsum(brought) - brought
    positions[kept] = positions[firsts][pieces.of_chunk] + offsets[kept] - pieces.starts[pieces.of_chunk]
    return _Stored(positions, brought_by, begins[brought_by], brought)


def _segments(
    slots: npt.NDArray[np.intp], is_new: npt.NDArray[np.bool_], stored: _Stored, updates: Mapping[int, BytesLike | None]
) -> list[Segment]:
    """Return what is written for chunks that are stored in this order: kept ones that follow on each other are one copy."""
    if not len(slots):
        return []
    slots, is_new, offsets, sizes = slots[stored.brought_by], is_new[stored.brought_by], stored.offsets, stored.sizes
    begins = np.ones(len(slots), dtype=np.bool_)
    begins[1:] = is_new[1:] | is_new[:-1] | (offsets[1:] != offsets[:-1] + sizes[:-1])
    firsts = np.flatnonzero(begins)
    nbytes = np.add.reduceat(sizes, firsts)
    segments: list[Segment] = []
    for slot, brings, offset, size in zip(
        slots[firsts].tolist(), is_new[firsts].tolist(), offsets[firsts].tolist(), nbytes.tolist(), strict=True
    ):
        value = updates[slot] if brings else None
        if value is not None:
            segments.append(NewBytes(value))
        elif size:
            segments.append(CopiedRange(offset, size))
    return segments


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """The pieces that some chunks lie in, in the order of the first chunk of each. All fields but ``of_chunk`` are ``(npieces,)``.

    A *piece* is all the bytes of chunks that overlap one another; elsewhere it is one chunk. Pieces do not overlap, so all of them together
    are never longer than the object::

        chunks      | a          |     | c   |        a, b and c: two pieces, {a, b} and {c}
                           | b       |
        pieces      | 0              | | 1   |
    """

    starts: Ints
    """Bytes of the object, as ``ends`` (exclusive)."""
    ends: Ints
    firsts: npt.NDArray[np.intp]
    """The number of the first chunk of each piece, ascending."""
    of_chunk: npt.NDArray[np.intp]
    """``(nchunks,)``: the piece that each chunk lies in."""

    @property
    def nbytes(self) -> int:
        return int((self.ends - self.starts).sum())


def shared_pieces(offsets: Ints, lengths: Ints) -> Pieces | None:
    """Return the pieces of chunks, which are given by their places, in any order; ``None`` if each is a piece of its own."""
    ends = offsets + lengths
    if bool((offsets[1:] >= ends[:-1]).all()):
        return None  # as a rewritten shard has them: one behind the other
    by_offset = np.argsort(offsets, kind="stable")
    starts, reached = offsets[by_offset], np.maximum.accumulate(ends[by_offset])
    begins = np.ones(len(offsets), dtype=np.bool_)
    begins[1:] = starts[1:] >= reached[:-1]
    if begins.all():
        return None
    lowest = np.flatnonzero(begins)
    highest = np.append(lowest[1:], len(offsets)) - 1
    of_chunk = np.empty(len(offsets), dtype=np.intp)
    of_chunk[by_offset] = np.cumsum(begins) - 1
    # From the order of their bytes to that of their first chunks.
    _, first = np.unique(of_chunk, return_index=True)
    order = np.argsort(first)
    rank = np.empty(len(order), dtype=np.intp)
    rank[order] = np.arange(len(order))
    return Pieces(starts[lowest][order], reached[highest][order], first[order], rank[of_chunk])


def covered_nbytes(offsets: Ints, lengths: Ints) -> int:
    """Return the bytes that are at least one chunk's."""
    pieces = shared_pieces(offsets, lengths)
    return int(lengths.sum()) if pieces is None else pieces.nbytes


# -- the strategy ``rewrite`` ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rewrite(Strategy):
    """Every commit makes a new object without dead bytes. It needs nothing of the storage or the shards."""

    name: str = "rewrite"

    def plan(self, commit: Commit) -> CommitPlan:
        return plan_rewrite(commit.index_format, commit.old, commit.old_nbytes, commit.updates, commit.order)


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
    kept = kept_slots(index_format, old, old_nbytes, updates)
    if isinstance(kept, DeleteShard | NothingToDo):
        return kept
    return write_anew(index_format, old if old is not None else index_format.empty(), kept, updates, order)


def plan_compaction(index_format: IndexFormat, old: ShardIndex, old_nbytes: int, order: ChunkOrder = "C") -> WriteShard | DeleteShard:
    """Plan a shard with the chunks of ``old`` and nothing else; pieces are in the order of the first of their chunks.

    Raises:
        Corruption: an entry cannot be right.
    """
    present = old.present()
    if not present.any():
        return DeleteShard()
    check_kept(old, old_nbytes, present)
    return write_anew(index_format, old, present, {}, order)
