"""Diagnose one shard, and plan its repair from what can be proved; the rest is left out.

This runs in a thread of its own, which searches and computes; only requests run on the IO loop. Nothing is written here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from shardstore._sync import run_sync
from shardstore.engine.writing.committer import Shard
from shardstore.engine.writing.plan_writer import PlanWriter
from shardstore.errors import Corruption
from shardstore.format.codecs import CRC32C_NBYTES, crc32c
from shardstore.format.crc_algebra import BEGUN, first_checked_end
from shardstore.format.index_proofs import (
    agreeing,
    claims,
    contiguous,
    continues,
    corrected,
    erases_only,
    have_unique_length,
    is_sound,
    last_chunk_end,
    last_index,
    names_missing_bytes,
    only,
    restored,
    without_checksum,
)
from shardstore.format.shard_index import IndexFormat, ShardIndex
from shardstore.maintenance.execution import in_windows
from shardstore.maintenance.shards import LookedAt, slots_inside
from shardstore.model.chunk_orders import CHUNK_ORDERS, slot_order
from shardstore.model.ranges import APPEND_PADDING_NBYTES, ByteRange, CopiedRange, NewBytes
from shardstore.plan.commits import NONCE_NBYTES, DeleteShard, WriteShard
from shardstore.plan.strategies import PAGE_BYTES

_AHEAD_BYTES = 2**22  # that are read at once where chunks are looked for one behind the other
_FIRST_WINDOW_BYTES = 2**13  # in which the end of a chunk is looked for, then in four times as many; it takes 15 times the memory
_LONGEST_CHUNK_BYTES = 2**28  # of those whose end is looked for
_RESTORED = "the wrong bytes of its index are put right: it has the checksum that the index had"

Remedy = Literal["cut", "corrected", "dropped", "rebuilt", "deleted", "emptied", "left", "pinned"]
"""The remedy for a shard:

- ``cut``: the bytes behind its last valid index are removed. Its chunks are those of that index: reverted, unless the newest index is
  the same. Only if that was allowed.
- ``corrected``: the wrong bytes of its index are corrected, as the checksum of the index proves.
- ``dropped``: entries that cannot be right are removed from its index. Where they name bytes that are missing, other chunks may not be in
  their places either, and those whose own checksums are wrong are removed, too.
- ``rebuilt``: a new index of the chunks that can be proved; the rest is left out.
- ``deleted``: nothing can be proved, so the shard is removed.
- ``emptied``: it holds no chunk, and is removed.
- ``left``: nothing is done: it could be cut, but that was not allowed.
- ``pinned``: it stays unchanged, because offsets into it are held elsewhere.
"""


@dataclass(frozen=True, slots=True)
class InnerCodecs:
    """The proofs that the codecs of an array's chunks allow."""

    ends_with_checksum: bool
    """True if each chunk ends with the ``crc32c`` of its other bytes."""
    is_sharded: bool
    """True if chunks are shards themselves, with indices of their own."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The fault of a version of a shard, and its replacement."""

    what: str
    remedy: Remedy
    how: str
    plan: WriteShard | DeleteShard | None
    """The plan to write or delete the shard; ``None``: nothing is done."""
    kept: int
    """The number of chunks after the repair."""
    lost: tuple[int, ...] = ()
    """Slots that held a chunk, or may have held one, and have none after the repair."""
    reverted: tuple[int, ...] = ()
    """Slots with the state of an older index, with a chunk or without; they may have been written or erased since."""
    uncertain: tuple[int, ...] = ()
    """Slots whose state after the repair, a chunk or none, is not proved to be right."""
    last_index_end: int | None = None
    """The end of the last valid index of the object, at which the shard is cut, or could be."""


@dataclass(frozen=True, slots=True, eq=False)
class _Chain:
    """Chunks that follow each other without gaps."""

    ranges: npt.NDArray[np.uint64]
    """Offset and length of each chunk: ``(k, 2)``."""
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class _Proved:
    """An index that its own checksum proves, and how many bytes of the object belong to its chunks."""

    index: ShardIndex
    body_nbytes: int
    how: str


def wrong_entries(index_format: IndexFormat, index: ShardIndex, object_nbytes: int) -> npt.NDArray[np.bool_]:
    """Return ``(nslots,)``: true for entries that cannot be right, those included that name bytes of the index itself."""
    return index.invalid(object_nbytes) | index_format.on_index(index, object_nbytes)


class Diagnosing:
    """One version of one shard that is being diagnosed."""

    window_bytes = 2**20
    """So many bytes of the shard are held at once, where it is searched."""

    def __init__(
        self, plans: PlanWriter, shard: Shard, codecs: InnerCodecs, seen: LookedAt, *, can_delete: bool, allow_reverting: bool
    ) -> None:
        self._plans = plans
        self._key = shard.key
        self._layout = shard.layout
        self._format: IndexFormat = shard.layout.index_format
        self._inside = slots_inside(shard.layout, shard.coords)
        self._codecs = codecs
        self._seen = seen
        self._nbytes = seen.nbytes
        self._can_delete = can_delete
        self._allow_reverting = allow_reverting
        self._search_bytes = _FIRST_WINDOW_BYTES
        self._held = (0, b"")

    def diagnose(self) -> Diagnosis | None:
        """Diagnose the shard; return ``None`` if nothing is wrong.

        Raises:
            ConditionFailed: the shard is another version now.
            StorageError: a request failed.
        """
        index = self._seen.index
        if isinstance(index, Corruption):
            return self._without_index(str(index))
        present, wrong = index.present(), wrong_entries(self._format, index, self._nbytes)
        # A shard whose chunks were erased on S3 holds a nonce and its index; other bytes may have been chunks.
        as_emptied = self._nbytes in (self._format.nbytes, self._format.nbytes + NONCE_NBYTES)
        if not present.any() and not self._format.codecs.checksum and not as_emptied:
            return self._without_index("it names no chunk of an object that has more bytes, and no checksum says that it is an index")
        if not present.any():
            return Diagnosis("it holds no chunk", "emptied", "it is removed", DeleteShard(), 0) if self._can_delete else None
        if not wrong.any():
            return None
        what = f"{int(wrong.sum())} of the {int(present.sum())} entries of its index cannot be right"
        rest = only(index, ~wrong)
        how = "these entries are taken out of the index"
        if self._format.codecs.checksum and names_missing_bytes(self._format, index, self._nbytes):
            what += ", and bytes are missing, perhaps in front of other chunks"
            rest, certain = self._in_place(index, rest)
            if self._codecs.ends_with_checksum:
                how = "these entries, and those of chunks whose own checksums are wrong, are taken out of the index"
            return self._with_index(what, "dropped", how, rest, index, certain)
        if self._format.codecs.checksum:
            return self._with_index(what, "dropped", how, rest, index, self._everything())
        # Where no checksum says that the index is one, most of it has to make sense, and to name bytes that no other entry names.
        if 2 * int(wrong.sum()) < int(present.sum()) and is_sound(self._format, rest, self._nbytes):
            return self._with_index(what, "dropped", how, rest, index, self._nothing())
        return self._without_index(f"{what}, and no checksum says that it is an index")

    # -- an index that cannot be believed ------------------------------------------------------------------------------

    def _without_index(self, what: str) -> Diagnosis:
        what = f"its index is damaged: {what}"
        encoded = self._encoded()
        damaged = without_checksum(self._format, encoded) if len(encoded) == self._format.nbytes else None
        found = None
        if damaged is not None and (right := corrected(self._format, encoded, self._nbytes)) is not None:
            how = "the one wrong byte of its index is put right, as the checksum shows"
            found = _Proved(right, self._nbytes - self._format.nbytes, how)
        is_newest = found is not None and self._is_newest(found)
        last = None if is_newest else self._last_index()
        if found is None and (found := self._restored(last)) is not None:
            is_newest = self._is_newest(found)
        if found is not None and (is_newest or last is None):
            return self._corrected(what, found, is_newest)
        if last is not None:  # an index that is proved and not the newest one is an older one, over it
            return self._behind(what, damaged if found is None else None, *last)
        return self._from_chunks(what, damaged)

    def _from_chunks(self, what: str, damaged: ShardIndex | None) -> Diagnosis:
        """Diagnose a shard of which no index is proved: chunks stay that are proved by themselves."""
        if damaged is not None and self._codecs.ends_with_checksum and (proved := self._proved(damaged)).present().any():
            return self._with_index(what, "rebuilt", "chunks whose own checksums are right stay", proved, damaged, self._nothing())
        if (index := self._contiguous()) is not None:
            # Places are not proved: where as many bytes were added as chunks are missing, entries of neighbours agree with the order.
            how = "all chunks are there, of one size and behind each other, and the index is made again"
            assert self._layout.encoded_chunk_nbytes is not None
            plan = self._planned(index, self._layout.encoded_chunk_nbytes * self._layout.grid.nslots)
            return Diagnosis(what, "rebuilt", how, plan, self._layout.grid.nslots, uncertain=_slots(self._everything()))
        how = "nothing of it can be proved, so it is removed"
        said = self._nothing() if damaged is None else damaged.present() & ~damaged.invalid(self._nbytes)
        return Diagnosis(what, "deleted", how, DeleteShard(), 0, lost=_slots(said | self._inside))

    def _corrected(self, what: str, found: _Proved, is_newest: bool) -> Diagnosis:
        """Return the diagnosis for an index that its checksum proves: it is the newest one, or there is no other one in the object."""
        how, index, certain = found.how, found.index, self._everything()
        if found.body_nbytes + self._format.nbytes > self._nbytes:
            how += ", of which the end is missing: that nothing followed on it is not proved"
            certain = self._nothing()
        elif not is_newest:
            how += "; but bytes lie behind the last chunk: some may have come in front of chunks, or be of chunks of a newer index"
            index, certain = self._in_place(found.index, found.index)[0], self._nothing()
        return self._with_index(what, "corrected", how, index, found.index, certain, found.body_nbytes)

    def _is_newest(self, found: _Proved) -> bool:
        """Return whether an index that its checksum proves is the newest one, and its chunks are where it says.

        If so, the last chunk ends where the bytes of chunks end. Bytes that went missing or came would have moved that end, and the bytes
        of newer chunks would lie behind. A commit to a local file that only erases chunks leaves nothing behind the index before, either.
        """
        index, end = found.index, found.body_nbytes + (self._format.nbytes if self._format.location == "start" else 0)
        while not self._ends_with_a_chunk(index, end):
            before = self._index_before(end)
            if before is None or not erases_only(index, before[1]):
                return False
            end, index = before
        return True

    def _ends_with_a_chunk(self, index: ShardIndex, end: int) -> bool:
        """Return whether the last chunk ends there; in a local file with an older index perhaps with a page, and one more byte follows."""
        chunk_end = last_chunk_end(self._format, index)
        return chunk_end == end or (chunk_end == end - 1 and not chunk_end % PAGE_BYTES and self._last_index() is not None)

    def _index_before(self, end: int) -> tuple[int, ShardIndex] | None:
        """Return the valid index that ends there, or there in front of the padding of an append, and its offset."""
        if self._format.location != "end" or self._codecs.is_sharded:
            return None
        for index_end in (end, end - APPEND_PADDING_NBYTES):
            start = index_end - self._format.nbytes
            if start >= 0 and (found := last_index(self._format, self._bytes(start, index_end), start)) is not None:
                return found
        return None

    def _in_place(self, index: ShardIndex, rest: ShardIndex) -> tuple[ShardIndex, npt.NDArray[np.bool_]]:
        """Return ``rest``, entries of an index that does not fit its object, without those that are refuted, and ``(nslots,)`` the chunks
        whose places are proved.

        A chunk's checksum refutes a place. It proves one where nothing else in the shard could have come there.
        """
        if not self._codecs.ends_with_checksum:
            return rest, self._nothing()
        rest = self._with_right_checksums(rest)
        return rest, rest.present() & have_unique_length(self._format, index)

    def _behind(self, what: str, damaged: ShardIndex | None, last_at: int, last: ShardIndex) -> Diagnosis:
        """Diagnose a shard with a valid index before its end: a finished append that is damaged, or an unfinished one.

        The bytes do not show which: a dying writer leaves the beginning of what a finished one leaves. (Where the storage knows that an
        append was not finished, it shows the shard as it was before, and nothing is damaged.)
        """
        end = last_at + self._format.nbytes
        if damaged is not None and continues(damaged, last, end, self._nbytes - self._format.nbytes):
            kept, how = agreeing(damaged, last), "chunks stay whose entries stand in an older index of the same object too"
            if self._codecs.ends_with_checksum:
                kept, how = self._proved(damaged), "chunks whose own checksums are right stay"
            if kept.present().any():  # what the older index says too may be of bytes of that index, over those of this one
                return self._with_index(what, "rebuilt", how, kept, damaged, self._nothing())
        what = f"{self._nbytes - end} bytes follow its last valid index: of an append that did not finish, or that is damaged"
        reverted = _slots(self._inside | last.present())
        count = int(last.present().sum())
        if not self._allow_reverting:
            how = "nothing is done: removing them may bring old values back, and needs --allow-reverting (allow_reverting=True)"
            return Diagnosis(what, "left", how, None, count, reverted=reverted, last_index_end=end)
        how = "they are removed: its chunks are those of that index again, and what was written since is lost"
        plan = WriteShard((CopiedRange(0, end),), end, last)
        return Diagnosis(what, "cut", how, plan, count, reverted=reverted, last_index_end=end)

    def _encoded(self) -> bytes:
        """Return the bytes in the place of the index; fewer if the object is too short."""
        length = min(self._format.nbytes, self._nbytes)
        start = 0 if self._format.location == "start" else self._nbytes - length
        return self._bytes(start, start + length)

    def _bytes(self, start: int, end: int) -> bytes:
        if start >= end:
            return b""
        (data,) = run_sync(self._plans.read_pinned(self._key, [ByteRange(start, end)], self._seen.generation))
        return bytes(data)

    def _last_index(self) -> tuple[int, ShardIndex] | None:
        """Return the last valid index of the object, and its offset; it is searched for from the end, a window at a time."""
        if self._format.location != "end" or not self._format.codecs.checksum or self._codecs.is_sharded:
            return None  # the indices of chunks that are shards would be taken for that of the shard
        end = self._nbytes
        while end >= self._format.nbytes:
            start = max(0, end - self._format.nbytes - self.window_bytes)
            if (found := last_index(self._format, self._bytes(start, end), start)) is not None:
                return found
            if not start:
                break
            end = start + self._format.nbytes - 1
        return None

    def _restored(self, last: tuple[int, ShardIndex] | None) -> _Proved | None:
        """Return the index in its place, where the places of its chunks can be found and its own checksum proves it."""
        if not self._format.codecs.checksum or self._codecs.is_sharded:
            return None
        if self._format.location == "start":
            left, places = self._encoded(), self._chunks_from(self._format.nbytes, is_in_place=False)
            index = restored(self._format, left, places.ranges, None, self._orders())
            return None if index is None else _Proved(index, self._nbytes - self._format.nbytes, _RESTORED)
        at, older = (0, None) if last is None else (last[0] + self._format.nbytes, last[1])
        orders = self._orders() if older is None else self._orders()[:1]
        starts = [(at, False)] if older is None else [(at, False), (at + APPEND_PADDING_NBYTES, True)]
        for start, is_in_place in starts:
            places = self._chunks_from(start, is_in_place=is_in_place)
            for end in {places.end, self._nbytes - self._format.nbytes}:
                if end < places.end or end + self._format.nbytes < self._nbytes:
                    continue  # there is more behind it than an index
                left = self._bytes(end, min(end + self._format.nbytes, self._nbytes))
                index = restored(self._format, left, places.ranges, older, orders)
                if index is not None and not index.invalid(end).any():
                    return _Proved(index, end, _RESTORED)
        return None

    def _chunks_from(self, start: int, *, is_in_place: bool) -> _Chain:
        """Return the chain of chunks from ``start`` on, as far as their lengths or their checksums show it.

        ``is_in_place``: the chunks were appended to a local file in place, where one more byte follows a chunk that would end with a
        page.
        """
        limit = self._nbytes if self._format.location == "start" or self._codecs.ends_with_checksum else self._nbytes - self._format.nbytes
        found: list[tuple[int, int]] = []
        position = start
        while len(found) < self._layout.grid.nslots and (nbytes := self._chunk_nbytes_at(position, limit)) is not None:
            found.append((position, nbytes))
            position += nbytes
            if is_in_place and position % PAGE_BYTES == 0:
                position += 1
        return _Chain(np.array(found, dtype=np.uint64).reshape(-1, 2), position)

    def _chunk_nbytes_at(self, position: int, limit: int) -> int | None:
        """Return the length of the chunk that begins there, and ends before ``limit``."""
        nbytes = self._layout.encoded_chunk_nbytes
        if nbytes is not None:
            if position + nbytes > limit:
                return None
            is_chunk = not self._codecs.ends_with_checksum or self._is_chunk(memoryview(self._ahead(position, position + nbytes)))
            return nbytes if is_chunk else None
        if not self._codecs.ends_with_checksum:
            return None
        register, done = BEGUN, 0
        window = self._search_bytes
        while position + done < limit and done < _LONGEST_CHUNK_BYTES:
            data = np.frombuffer(self._ahead(position + done, min(position + done + window, limit)), dtype=np.uint8)
            end, register = first_checked_end(data, register)
            if end is not None:
                self._search_bytes = min(max(_FIRST_WINDOW_BYTES, 2 * (done + end)), self.window_bytes)
                return done + end
            done += len(data)
            window = min(4 * window, self.window_bytes)
        return None

    def _ahead(self, start: int, end: int) -> bytes:
        """Return bytes of the object; more are read at once than are asked for."""
        at, held = self._held
        if not at <= start <= end <= at + len(held):
            at, held = self._held = start, self._bytes(start, min(max(end, start + _AHEAD_BYTES), self._nbytes))
        return held[start - at : end - at]

    def _proved(self, damaged: ShardIndex) -> ShardIndex:
        """Return an index with the entries of a damaged one whose bytes are a chunk, as its own checksum proves."""
        return self._with_right_checksums(claims(self._format, damaged, self._nbytes))

    def _with_right_checksums(self, index: ShardIndex) -> ShardIndex:
        """Return an index with the entries of this one whose bytes, which are in the object, are a chunk, as its own checksum says."""
        slots = np.zeros(len(index.flat), dtype=np.bool_)
        for some in in_windows(_slots(index.present()), lambda slot: int(index.flat[slot, 1]), self.window_bytes):
            ranges = [ByteRange(int(o), int(o) + int(n)) for o, n in (index.flat[slot].tolist() for slot in some)]
            found = run_sync(self._plans.read_pinned(self._key, ranges, self._seen.generation))
            for slot, data in zip(some, found, strict=True):
                slots[slot] = self._is_chunk(data)
        return only(index, slots)

    def _is_chunk(self, data: memoryview) -> bool:
        expected = self._layout.encoded_chunk_nbytes
        if len(data) <= CRC32C_NBYTES or (expected is not None and len(data) != expected):
            return False
        return crc32c(data[:-CRC32C_NBYTES]) == bytes(data[-CRC32C_NBYTES:])

    def _contiguous(self) -> ShardIndex | None:
        """Return the index of a full shard of chunks of one known size, in an order that the rest of its index shows."""
        chunk_nbytes, nslots = self._layout.encoded_chunk_nbytes, self._layout.grid.nslots
        if chunk_nbytes is None:
            return None
        body = chunk_nbytes * nslots
        is_exact = self._nbytes == body + self._format.nbytes
        if not (is_exact or (self._format.location == "end" and body < self._nbytes < body + self._format.nbytes)):
            return None
        left = self._encoded() if is_exact else self._bytes(body, self._nbytes)
        return contiguous(self._format, chunk_nbytes, left, self._orders())

    def _orders(self) -> list[npt.NDArray[np.intp]]:
        """Return orders of slots in which the chunks of a shard that was written at once may follow each other."""
        everything = np.ones(self._layout.grid.nslots, dtype=np.bool_)
        orders = [slot_order(self._format.chunks_per_shard, order, everything) for order in CHUNK_ORDERS]
        if self._format.axes is not None:
            orders.append(self._format.stored_slots)  # as other writers order them
        return orders

    # -- what takes its place ------------------------------------------------------------------------------------------

    def _with_index(
        self,
        what: str,
        remedy: Remedy,
        how: str,
        index: ShardIndex,
        said: ShardIndex,
        certain: npt.NDArray[np.bool_],
        body_nbytes: int | None = None,
    ) -> Diagnosis:
        """Return the diagnosis that keeps the object except for its index, or ``body_nbytes`` of it; ``said`` is the content of the old
        index, ``certain`` the proved slots, ``(nslots,)``.
        """
        is_lost = said.present() & ~index.present()
        if not index.present().any():
            is_lost |= self._inside & ~certain
            return Diagnosis(what, "deleted", f"{how}, and none is left, so it is removed", DeleteShard(), 0, lost=_slots(is_lost))
        plan = self._planned(index, self._nbytes - self._format.nbytes if body_nbytes is None else body_nbytes)
        uncertain = (self._inside | index.present()) & ~is_lost & ~certain
        return Diagnosis(what, remedy, how, plan, int(index.present().sum()), lost=_slots(is_lost), uncertain=_slots(uncertain))

    def _everything(self) -> npt.NDArray[np.bool_]:
        return np.ones(self._layout.grid.nslots, dtype=np.bool_)

    def _nothing(self) -> npt.NDArray[np.bool_]:
        return np.zeros(self._layout.grid.nslots, dtype=np.bool_)

    def _planned(self, index: ShardIndex, body_nbytes: int) -> WriteShard:
        """Return the plan to write ``index``, and keep so many bytes of the object in their place."""
        encoded = NewBytes(self._format.encode(index))
        if self._format.location == "start":
            return WriteShard((encoded, *_copy(encoded.nbytes, body_nbytes)), encoded.nbytes + body_nbytes, index)
        return WriteShard((*_copy(0, body_nbytes), encoded), body_nbytes + encoded.nbytes, index)


def _copy(offset: int, nbytes: int) -> tuple[CopiedRange, ...]:
    return (CopiedRange(offset, nbytes),) if nbytes else ()


def _slots(where: npt.NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(np.flatnonzero(where).tolist())
