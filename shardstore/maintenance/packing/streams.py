"""Streams of the source's chunks, in the wanted order, through bounded memory.

::

    wanted, in order   | c c c c c c | c c c | c … c |    cut into windows: so many bytes, or so many chunks
                           fetched       fetched  …       several at once, each of one round of requests
                              └──────► reorder ◄──┘       handed on in order; what waits for its turn holds its memory

Memory is granted in the order in which it is asked for, and each stream asks for its windows in their order; so the first window that a
stream waits for always has the memory that it needs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardstore.errors import Corruption, ShardStoreError
from shardstore.maintenance.execution import check_running
from shardstore.maintenance.packing.listing import version_digest
from shardstore.model.coalescing import CoalescedReads, ReadLimits, coalesce
from shardstore.model.generation import Generation
from shardstore.model.ranges import EVERYTHING, ByteRange
from shardstore.plan.commits import shared_pieces
from shardstore.storage.base import Absent, Changed, Found, Read, ReadOutcome, Storage, unless_failed
from shardstore.storage.local.storage import LocalStorage
from shardstore.tasks import MemoryBudget

_CHUNKS_A_WINDOW = 256
_WINDOWS_AT_ONCE = 8
_LOCAL_WINDOW_BYTES = 512 << 10


class SourceChanged(ShardStoreError):
    """An object of the source differs from the listing: the next run lists again, and repeats the units that it concerns."""


class SourceObject(NamedTuple):
    """An object to read from. ``version`` is ``version_digest`` of the listing, 0 if it gave none."""

    key: str
    nbytes: int
    version: int
    generation: Generation | None = None
    """The version that its index was read from, if it was read."""


_STRIDE = 2**44  # longer than an object
_MOST_OBJECTS = 2**18


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """Chunks in the wanted order: the bytes ``[start, start + nbytes)`` of ``objects[of_object]``, ``(n,)`` each."""

    objects: Sequence[SourceObject]
    of_object: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.nbytes)

    def without_shared(self) -> tuple[Chunks, npt.NDArray[np.int64]]:
        """Return the bytes of these chunks that have to be moved, with shared bytes only once, and where each chunk begins in them,
        ``(n,)``.
        """
        if len(self.objects) > _MOST_OBJECTS or any(found.nbytes >= _STRIDE for found in self.objects):
            pieces = None
        else:  # the bytes of all objects are numbered together
            pieces = shared_pieces(self.start + self.of_object * _STRIDE, self.nbytes)
        if pieces is None:
            return self, np.cumsum(self.nbytes) - self.nbytes
        starts, sizes = pieces.starts % _STRIDE, pieces.ends - pieces.starts
        begins = np.cumsum(sizes) - sizes
        moved = Chunks(self.objects, self.of_object[pieces.firsts], starts, sizes)
        return moved, begins[pieces.of_chunk] + self.start - starts[pieces.of_chunk]


@dataclass(frozen=True, slots=True)
class ChunkWindow:
    """The chunks ``[first, last)``; for a single one that is too long for a window, its bytes ``[begin, end)``."""

    first: int
    last: int
    begin: int
    end: int
    nbytes: int
    is_split: bool = False


def windows(chunks: Chunks, window_bytes: int) -> Iterator[ChunkWindow]:
    """Yield windows of at most ``window_bytes``, in order; a longer chunk is cut into several."""
    first = held = 0
    for i, nbytes in enumerate(chunks.nbytes.tolist()):
        if i > first and (held + nbytes > window_bytes or i - first >= _CHUNKS_A_WINDOW):
            yield ChunkWindow(first, i, 0, 0, held)
            first, held = i, 0
        if nbytes > window_bytes:
            for begin in range(0, nbytes, window_bytes):
                end = min(nbytes, begin + window_bytes)
                yield ChunkWindow(i, i + 1, begin, end, end - begin, is_split=True)
            first = i + 1
        else:
            held += nbytes
    if first < len(chunks):
        yield ChunkWindow(first, len(chunks), 0, 0, held)


@dataclass(frozen=True, slots=True, eq=False)
class Fetch:
    """The reads for one window, in one round."""

    window: ChunkWindow
    reads: tuple[Read, ...]
    numbers: tuple[int, ...]
    """The number of the source's object of each read."""
    coalesced: tuple[CoalescedReads, ...]
    """The coalesced ranges of each read, unless it is of a whole object."""


@dataclass(frozen=True, slots=True, eq=False)
class Fetching:
    """The reads for ``chunks``, and their results."""

    chunks: Chunks
    limits: ReadLimits
    url: str
    """The URL of the source, for messages."""

    def fetch(self, window: ChunkWindow) -> Fetch:
        mine = slice(window.first, window.last)
        numbers = self.chunks.of_object[mine].tolist()
        starts, sizes = self.chunks.start[mine].tolist(), self.chunks.nbytes[mine].tolist()
        objects = [self.chunks.objects[number] for number in numbers]
        if window.is_split:
            wanted = ByteRange(starts[0] + window.begin, starts[0] + window.end)
            return Fetch(window, (Read(objects[0].key, (wanted,), objects[0].generation),), tuple(numbers), ())
        if all(found.generation is None and n == found.nbytes for n, found in zip(sizes, objects, strict=True)):
            return Fetch(window, tuple(Read(found.key, (EVERYTHING,)) for found in objects), tuple(numbers), ())
        by_object: dict[int, list[ByteRange]] = {}
        for number, start, nbytes in zip(numbers, starts, sizes, strict=True):
            by_object.setdefault(number, []).append(ByteRange(start, start + nbytes))
        plans = {number: coalesce(ranges, self.limits) for number, ranges in by_object.items()}
        reads = tuple(Read(self.chunks.objects[n].key, plan.requests, self.chunks.objects[n].generation) for n, plan in plans.items())
        return Fetch(window, reads, tuple(plans), tuple(plans.values()))

    def buffers(self, fetch: Fetch, outcomes: Sequence[ReadOutcome]) -> list[memoryview]:
        """Return the bytes of the window's chunks, in order.

        Raises:
            SourceChanged: an object is not the version that was listed.
            Corruption: a read gave fewer bytes than the object has.
            StorageError: a read failed.
        """
        found = [checked(self.chunks.objects[number], outcome, self.url) for number, outcome in zip(fetch.numbers, outcomes, strict=True)]
        window = fetch.window
        if not fetch.coalesced:
            buffers = [one.buffers[0] for one in found]
        else:
            cut = zip(fetch.numbers, fetch.coalesced, found, strict=True)
            pieces = {number: iter(plan.cut(one.buffers)) for number, plan, one in cut}
            buffers = [next(pieces[number]) for number in self.chunks.of_object[window.first : window.last].tolist()]
        given, wanted = sum(map(len, buffers)), window.nbytes
        if given != wanted:
            keys = ", ".join(repr(read.key) for read in fetch.reads[:3])
            raise Corruption(f"{wanted} bytes were to be read from {keys} in {self.url}, {given} came")
        return buffers


@dataclass(frozen=True, slots=True, eq=False)
class ChunkStream:
    """The bytes of chunks of ``storage``, window by window; iterated over on the IO loop."""

    storage: Storage
    fetching: Fetching
    budget: MemoryBudget
    window_bytes: int
    run: str

    async def __aiter__(self) -> AsyncIterator[tuple[ChunkWindow, list[memoryview]]]:
        """Yield each window with the bytes of its chunks; they are released when the next one is asked for."""
        waiting: deque[asyncio.Task[tuple[ChunkWindow, list[memoryview], AsyncExitStack]]] = deque()
        cut = windows(self.fetching.chunks, self.window_bytes)
        try:
            while True:
                while len(waiting) < _WINDOWS_AT_ONCE and (window := next(cut, None)) is not None:
                    waiting.append(asyncio.create_task(self._held(window)))
                if not waiting:
                    return
                check_running(self.run)
                window, buffers, held = await waiting[0]
                waiting.popleft()
                async with held:
                    yield window, buffers
                del buffers
        finally:
            for task in waiting:
                task.cancel()
            for outcome in await asyncio.gather(*waiting, return_exceptions=True):
                if not isinstance(outcome, BaseException):
                    await outcome[2].aclose()

    async def _held(self, window: ChunkWindow) -> tuple[ChunkWindow, list[memoryview], AsyncExitStack]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.budget.hold(window.nbytes))
            fetch = self.fetching.fetch(window)
            buffers = self.fetching.buffers(fetch, await self.storage.read(fetch.reads))
            return window, buffers, stack.pop_all()


def stream_here(storage: LocalStorage, fetching: Fetching, window_bytes: int, run: str) -> Iterator[tuple[ChunkWindow, list[memoryview]]]:
    """Yield as ``ChunkStream`` does, from files, in the calling thread and one window after the other."""
    for window in windows(fetching.chunks, min(window_bytes, _LOCAL_WINDOW_BYTES)):
        check_running(run)
        fetch = fetching.fetch(window)
        yield window, fetching.buffers(fetch, storage.read_blocking(fetch.reads))


def checked(source: SourceObject, outcome: ReadOutcome, url: str) -> Found:
    """Return what was read, if it has the version that was listed.

    Raises:
        SourceChanged: it has another version, or the object is gone.
        StorageError: the read failed.
    """
    outcome = unless_failed(outcome)
    if isinstance(outcome, Found) and outcome.nbytes == source.nbytes:
        version = version_digest(outcome.generation)
        if 0 in (source.version, version) or version == source.version:
            return outcome
    what = (
        "is gone" if isinstance(outcome, Absent) else "was replaced while it was read" if isinstance(outcome, Changed) else "was replaced"
    )
    raise SourceChanged(
        f"{source.key!r} in {url} {what} since it was listed: stop all writers of the source, and run it again (if none "
        "writes, one has died there, which shardstore verify shows, and shardstore repair repairs)"
    )
