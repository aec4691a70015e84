"""What is wrong with one shard, and the plan that mends it: from what can be proved, the rest left out.

Runs in a thread of its own, which searches and computes; only requests run on the IO loop. Nothing is written here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from shardstore._sync import run_sync
from shardstore.engine.committer import Shard
from shardstore.engine.plan_writer import PlanWriter
from shardstore.errors import Corruption
from shardstore.format.checksums import CRC32C_NBYTES, crc32c
from shardstore.format.index_proofs import agreeing, claims, contiguous, continues, corrected, is_sound, only, without_checksum
from shardstore.format.index_search import last_index
from shardstore.format.shard_index import IndexFormat, ShardIndex
from shardstore.maintenance.object_tasks import in_windows
from shardstore.maintenance.stored_shards import LookedAt
from shardstore.model.ranges import ByteRange
from shardstore.plan.commits import CopyOld, DeleteShard, NewBytes, WriteShard, slot_order

_WINDOW_BYTES = 2**20

Remedy = Literal["cut", "corrected", "dropped", "rebuilt", "deleted", "emptied"]
"""What mends a shard:

- ``cut``: the bytes behind its last valid index are taken off, which an append left that was never finished.
- ``corrected``: the one wrong byte of its index is put right.
- ``dropped``: entries that cannot be right are taken out of its index.
- ``rebuilt``: a new index of the chunks that can be proved; the rest is left out.
- ``deleted``: nothing can be proved, so the shard is removed.
- ``emptied``: it holds no chunk, and is removed.
"""


@dataclass(frozen=True, slots=True)
class InnerCodecs:
    """What the codecs of an array's chunks prove."""

    ends_with_checksum: bool
    """Each chunk ends with the ``crc32c`` of its other bytes."""
    is_sharded: bool
    """Chunks are shards themselves, with indices of their own."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong with a version of a shard, and what to put in its place."""

    what: str
    remedy: Remedy
    how: str
    plan: WriteShard | DeleteShard
    kept: int
    """Chunks that are there afterwards."""
    lost: tuple[int, ...]
    """Slots whose entries said something, and have no chunk afterwards."""


class Diagnosing:
    """One version of one shard while it is looked at."""

    def __init__(self, plans: PlanWriter, shard: Shard, codecs: InnerCodecs, seen: LookedAt) -> None:
        self._plans = plans
        self._key = shard.key
        self._layout = shard.layout
        self._format: IndexFormat = shard.layout.index_format
        self._codecs = codecs
        self._seen = seen
        self._nbytes = seen.nbytes

    def diagnose(self, *, can_delete: bool) -> Diagnosis | None:
        """``None`` where nothing is wrong. ``can_delete``: whether a shard without chunks is to be removed.

        Raises:
            ConditionFailed: the shard is another version now.
            StorageError: a request failed.
        """
        index = self._seen.index
        if isinstance(index, Corruption):
            return self._without_index(str(index))
        present, wrong = index.present(), index.invalid(self._nbytes)
        if not present.any():
            return Diagnosis("it holds no chunk", "emptied", "it is removed", DeleteShard(), 0, ()) if can_delete else None
        if not wrong.any():
            return None
        what = f"{int(wrong.sum())} of the {int(present.sum())} entries of its index cannot be right"
        rest = only(index, ~wrong)
        # Where no checksum says that the index is one, most of it has to make sense, and to name bytes that no other entry names.
        if self._format.codecs.checksum or (2 * int(wrong.sum()) < int(present.sum()) and is_sound(self._format, rest, self._nbytes)):
            return self._with_index(what, "dropped", "these entries are taken out of the index", rest, index)
        return self._without_index(f"{what}, and no checksum says that it is an index")

    # -- an index that cannot be believed ------------------------------------------------------------------------------

    def _without_index(self, what: str) -> Diagnosis:
        what = f"its index is damaged: {what}"
        encoded = self._encoded()
        damaged = without_checksum(self._format, encoded) if len(encoded) == self._format.nbytes else None
        if damaged is not None and (right := corrected(self._format, encoded, self._nbytes)) is not None:
            return self._with_index(
                what, "corrected", "the one wrong byte of its index is put right, as the checksum tells it", right, right
            )
        older = self._last_index()
        if older is not None:
            end = older[0] + self._format.nbytes
            if damaged is None or not continues(damaged, older[1], end, self._nbytes - self._format.nbytes):
                what = f"behind its last valid index there are {self._nbytes - end} bytes, as of an append that was never finished"
                plan = WriteShard((CopyOld(0, end),), end, older[1])
                how = "it is cut behind that index, with which all chunks come back that were there then"
                return Diagnosis(what, "cut", how, plan, int(older[1].present().sum()), ())
        if damaged is not None and self._codecs.ends_with_checksum and (proved := self._proved(damaged)).present().any():
            return self._with_index(what, "rebuilt", "chunks whose own checksums are right stay", proved, damaged)
        if (found := self._contiguous()) is not None:
            return self._full(what, found)
        if damaged is not None and older is not None and (same := agreeing(damaged, older[1])).present().any():
            how = "chunks stay whose entries stand in an older index of the same object too"
            return self._with_index(what, "rebuilt", how, same, damaged)
        lost = () if damaged is None else _slots(damaged.present() & ~damaged.invalid(self._nbytes))
        return Diagnosis(what, "deleted", "nothing of it can be proved, so it is removed", DeleteShard(), 0, lost)

    def _encoded(self) -> bytes:
        """The bytes in the place of the index; fewer where the object is too short."""
        length = min(self._format.nbytes, self._nbytes)
        start = 0 if self._format.location == "start" else self._nbytes - length
        return self._bytes(start, start + length)

    def _bytes(self, start: int, end: int) -> bytes:
        if start >= end:
            return b""
        (data,) = run_sync(self._plans.read_pinned(self._key, [ByteRange(start, end)], self._seen.generation))
        return bytes(data)

    def _last_index(self) -> tuple[int, ShardIndex] | None:
        """The last valid index of the object, and its offset; searched for from the end, a window at a time."""
        if self._format.location != "end" or not self._format.codecs.checksum or self._codecs.is_sharded:
            return None  # the indices of chunks that are shards would be taken for that of the shard
        end = self._nbytes
        while end >= self._format.nbytes:
            start = max(0, end - self._format.nbytes - _WINDOW_BYTES)
            if (found := last_index(self._format, self._bytes(start, end), start)) is not None:
                return found
            if not start:
                break
            end = start + self._format.nbytes - 1
        return None

    def _proved(self, damaged: ShardIndex) -> ShardIndex:
        """The entries of a damaged index whose bytes are a chunk, by its own checksum."""
        claimed = claims(self._format, damaged, self._nbytes)
        slots = np.zeros(len(claimed.flat), dtype=np.bool_)
        for some in in_windows(_slots(claimed.present()), lambda slot: int(claimed.flat[slot, 1]), _WINDOW_BYTES):
            ranges = [ByteRange(int(o), int(o) + int(n)) for o, n in (claimed.flat[slot].tolist() for slot in some)]
            found = run_sync(self._plans.read_pinned(self._key, ranges, self._seen.generation))
            for slot, data in zip(some, found, strict=True):
                slots[slot] = self._is_chunk(data)
        return only(damaged, slots)

    def _is_chunk(self, data: memoryview) -> bool:
        expected = self._layout.encoded_chunk_nbytes
        if len(data) <= CRC32C_NBYTES or (expected is not None and len(data) != expected):
            return False
        return crc32c(data[:-CRC32C_NBYTES]) == bytes(data[-CRC32C_NBYTES:])

    def _contiguous(self) -> ShardIndex | None:
        """The index of a full shard of chunks of one known size, in an order that what is left of its index tells."""
        chunk_nbytes, nslots = self._layout.encoded_chunk_nbytes, self._layout.grid.nslots
        if chunk_nbytes is None:
            return None
        body = chunk_nbytes * nslots
        is_exact = self._nbytes == body + self._format.nbytes
        if not (is_exact or (self._format.location == "end" and body < self._nbytes < body + self._format.nbytes)):
            return None
        left = self._encoded() if is_exact else self._bytes(body, self._nbytes)
        everything = np.ones(nslots, dtype=np.bool_)
        orders = [slot_order(self._format.chunks_per_shard, order, everything) for order in ("C", "morton")]
        if self._format.axes is not None:
            orders.append(self._format.stored_slots)  # as others write them
        return contiguous(self._format, chunk_nbytes, left, orders)

    # -- what takes its place ------------------------------------------------------------------------------------------

    def _with_index(self, what: str, remedy: Remedy, how: str, index: ShardIndex, said: ShardIndex) -> Diagnosis:
        """The object as it is but for its index; ``said`` is what the old one says."""
        lost = _slots(said.present() & ~index.present())
        if not index.present().any():
            return Diagnosis(what, "deleted", f"{how}, and none is left, so it is removed", DeleteShard(), 0, lost)
        plan = self._planned(index, self._nbytes - self._format.nbytes)
        return Diagnosis(what, remedy, how, plan, int(index.present().sum()), lost)

    def _full(self, what: str, index: ShardIndex) -> Diagnosis:
        """All chunks of one size behind each other, and their index."""
        how = "all chunks are there, of one size and behind each other, and the index is made anew"
        assert self._layout.encoded_chunk_nbytes is not None
        plan = self._planned(index, self._layout.encoded_chunk_nbytes * self._layout.grid.nslots)
        return Diagnosis(what, "rebuilt", how, plan, self._layout.grid.nslots, ())

    def _planned(self, index: ShardIndex, body_nbytes: int) -> WriteShard:
        """``index``, and so many bytes of the object where they are."""
        encoded = NewBytes(self._format.encode(index))
        if self._format.location == "start":
            return WriteShard((encoded, *_copy(encoded.nbytes, body_nbytes)), encoded.nbytes + body_nbytes, index)
        return WriteShard((*_copy(0, body_nbytes), encoded), body_nbytes + encoded.nbytes, index)


def _copy(offset: int, nbytes: int) -> tuple[CopyOld, ...]:
    return (CopyOld(offset, nbytes),) if nbytes else ()


def _slots(where: npt.NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(np.flatnonzero(where).tolist())
