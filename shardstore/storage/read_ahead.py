"""Read-ahead and a block cache for shards whose values may be cached: the chunks that a viewer asks for next are in memory then.

Only for data at rest, by the user's word (``serve --max-age``) or by nature (a snapshot): elsewhere each answer has to be of a version that
was the current one while it was asked for, and to find that out takes a request anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from shardstore.model.containers import Lru
from shardstore.model.ranges import ByteRange
from shardstore.storage.base import Found, Read, ReadOutcome, ReadsOnly, Storage
from shardstore.storage.wrappers import StorageWrapper

BLOCK_NBYTES = 4 * 2**20
"""Shards are read ahead in blocks that begin at multiples of this."""
KEPT_NBYTES = 64 * 2**20

_MOST_ASKED = 256  # objects
_AGAIN_SECONDS = 2.0  # a client that asks twice within this time for parts of one object will ask for more


class ReadAhead(ReadsOnly, StorageWrapper):
    """Forward reads to ``inner``, and keep blocks of the objects that were read.

    A block is used for the version of the object that it was read from, for no other, and for ``keep_seconds`` at most.
    """

    def __init__(self, inner: Storage, keep_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(inner)
        self._asked: Lru[str, bool] = Lru(_MOST_ASKED, seconds=_AGAIN_SECONDS, clock=clock)  # by key; parts of these were asked for
        self._blocks: Lru[tuple[str, str, int], tuple[int, memoryview]] = Lru(  # by key, version and start; the object's size, the bytes
            KEPT_NBYTES, lambda block: len(block[1]), seconds=keep_seconds, clock=clock
        )

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
        """Return the starts of the blocks to be read for ``read``; none if it is to be read unchanged."""
        if not _is_plain(read):
            return []
        was_asked = self._asked.peek(read.key)
        self._asked.put(read.key, True)
        return _starts(read) if was_asked else []

    def _kept(self, read: Read) -> Found | None:
        if not _is_plain(read):
            return None
        pieces: dict[int, memoryview] = {}
        nbytes = 0
        for start in _starts(read):
            kept = self._blocks.get((read.key, _token(read), start))
            if kept is None:
                return None
            nbytes, pieces[start] = kept
        return _cut(read, pieces, nbytes)

    def _keep(self, read: Read, starts: Sequence[int], found: Found) -> None:
        for start, piece in zip(starts, found.buffers, strict=True):
            self._blocks.put((read.key, _token(read), start), (found.nbytes, piece))


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
