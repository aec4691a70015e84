"""Read-ahead and a block cache for shards whose values may be cached: the chunks that a viewer asks for next are in memory then.

Only for data at rest, by the user's word (``--max-age``) or by nature (a snapshot): elsewhere each answer has to be of a version that was
the current one while it was asked for, and to find that out takes a request anyway.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence

from shardstore.model.ranges import ByteRange
from shardstore.storage.base import DirListing, Found, ObjectInfo, Read, ReadOutcome, Storage
from shardstore.storage.fallbacks import ReadsOnly
from shardstore.storage.wrappers import StorageWrapper

BLOCK_NBYTES = 4 * 2**20
"""Shards are read ahead in blocks that begin at multiples of this."""
KEPT_NBYTES = 64 * 2**20

_MOST_ASKED = 256  # objects of which is known when they were asked for
_AGAIN_SECONDS = 2.0  # who asks twice within this time for parts of one object will ask for more


class ReadAhead(ReadsOnly, StorageWrapper):
    """Forward reads to ``inner``, and keep blocks of the objects that were read.

    A block is used for the version of the object that it was read from, for no other, and for ``keep_seconds`` at most.
    """

    def __init__(self, inner: Storage, keep_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(inner)
        self._keep_seconds = keep_seconds
        self._clock = clock
        self._asked: OrderedDict[str, float] = OrderedDict()  # key -> when parts of it were asked for last
        self._blocks: OrderedDict[tuple[str, str, int], tuple[float, int, memoryview]] = OrderedDict()  # when, object's size, bytes
        self._nbytes = 0

    def __repr__(self) -> str:
        return f"ReadAhead({self.inner!r})"

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        outcomes: list[ReadOutcome | None] = [self._kept(read) for read in reads]
        missing = [i for i, outcome in enumerate(outcomes) if outcome is None]
        blocks = {i: self._blocks_of(reads[i]) for i in missing}
        wanted = [_of_blocks(reads[i], blocks[i]) if blocks[i] else reads[i] for i in missing]
        for i, outcome in zip(missing, await self.inner.read(wanted) if wanted else [], strict=True):
            if blocks[i] and isinstance(outcome, Found):
                self._keep(reads[i], blocks[i], outcome)
                outcomes[i] = _cut(reads[i], dict(zip(blocks[i], outcome.buffers, strict=True)), outcome.nbytes)
            else:
                outcomes[i] = outcome
        return [outcome for outcome in outcomes if outcome is not None]

    def _blocks_of(self, read: Read) -> list[int]:
        """Return the starts of the blocks to be read for ``read``; none if it is to be read as it is."""
        if not _is_plain(read):
            return []
        now = self._clock()
        before = self._asked.pop(read.key, None)
        self._asked[read.key] = now
        if len(self._asked) > _MOST_ASKED:
            self._asked.popitem(last=False)
        return _starts(read) if before is not None and now - before <= _AGAIN_SECONDS else []

    def _kept(self, read: Read) -> Found | None:
        if not _is_plain(read):
            return None
        now = self._clock()
        pieces: dict[int, memoryview] = {}
        nbytes = 0
        for start in _starts(read):
            place = read.key, _token(read), start
            kept = self._blocks.get(place)
            if kept is None or now - kept[0] > self._keep_seconds:
                return None
            self._blocks.move_to_end(place)
            _, nbytes, pieces[start] = kept
        return _cut(read, pieces, nbytes)

    def _keep(self, read: Read, starts: Sequence[int], found: Found) -> None:
        now = self._clock()
        for start, piece in zip(starts, found.buffers, strict=True):
            place = read.key, _token(read), start
            if (old := self._blocks.pop(place, None)) is not None:
                self._nbytes -= len(old[2])
            self._blocks[place] = now, found.nbytes, piece
            self._nbytes += len(piece)
        while self._nbytes > KEPT_NBYTES:
            _, (_, _, piece) = self._blocks.popitem(last=False)
            self._nbytes -= len(piece)

    # -- everything else -----------------------------------------------------------------------------------------------

    async def stat(self, key: str) -> ObjectInfo | None:
        return await self.inner.stat(key)

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        return self.inner.list(prefix)

    async def list_dir(self, prefix: str) -> DirListing:
        return await self.inner.list_dir(prefix)


def _is_plain(read: Read) -> bool:
    """Return whether parts of one version are asked for, and nothing else."""
    is_pinned = read.generation is not None and read.guard is None and bool(read.ranges)
    return is_pinned and all(isinstance(part, ByteRange) and part.end > part.start for part in read.ranges)


def _token(read: Read) -> str:
    assert read.generation is not None
    return read.generation.token


def _starts(read: Read) -> list[int]:
    starts: set[int] = set()
    for part in read.ranges:
        assert isinstance(part, ByteRange)
        starts.update(range(part.start - part.start % BLOCK_NBYTES, part.end, BLOCK_NBYTES))
    return sorted(starts)


def _of_blocks(read: Read, starts: Sequence[int]) -> Read:
    return Read(read.key, tuple(ByteRange(start, start + BLOCK_NBYTES) for start in starts), read.generation)


def _cut(read: Read, blocks: dict[int, memoryview], nbytes: int) -> Found:
    assert read.generation is not None
    buffers: list[memoryview] = []
    for part in read.ranges:
        assert isinstance(part, ByteRange)
        first = part.start - part.start % BLOCK_NBYTES
        if part.end <= first + BLOCK_NBYTES:
            buffers.append(blocks[first][part.start - first : part.end - first])
        else:
            whole = b"".join(blocks[start] for start in range(first, part.end, BLOCK_NBYTES))
            buffers.append(memoryview(whole)[part.start - first : part.end - first])
    return Found(read.generation, nbytes, tuple(buffers))
