"""Many chunks, divided into parts; each part is read by the thread that decodes it, just before it decodes it.

A batch lies in memory all at once: the memory has to be allocated, and is out of the processor's cache when it is decoded. A part is short,
and reuses the memory of the part before. This works with storages that can read in any thread, such as local files, and with shards whose
indices are known and verified. A single chunk in the page cache is read in the thread that asks. Everything else is left to the reader.

Called from any thread, while the IO loop runs: it only looks at values that are replaced as a whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardstore.engine.index_cache import CachedIndex, IndexCache
from shardstore.engine.metadata.hierarchy import Hierarchy, LocatedChunks
from shardstore.engine.reading.reader import Reader
from shardstore.engine.reading.shard_chunks import group_located
from shardstore.errors import Corruption, ShardStoreError
from shardstore.format.shard_index import Places, places_in
from shardstore.model.coalescing import ReadLimits, coalesce_all
from shardstore.model.generation import Generation
from shardstore.model.ranges import EVERYTHING, ByteRange, ByteRequest, resolve
from shardstore.storage.abilities import BlockingReads, DirectAccess
from shardstore.storage.base import Found, Read, ReadOutcome
from shardstore.storage.wrappers import Counters

Ints = npt.NDArray[np.int64]

_PARTS_A_THREAD = 4  # so that threads end at about the same time
_STRIDE = 2**44  # between the bytes of one shard and of the next, where they are numbered together
MOST_OBJECT_BYTES = _STRIDE // 2
MOST_OBJECTS = 2**18

_Index = tuple[CachedIndex | ShardStoreError | None, bool]
"""The index of a shard, and whether it was read just now."""


class ChunkSource(DirectAccess, ABC):
    """A storage of chunks that is not asked by the key: it finds many at once by itself, and each is an object to it, not a shard."""

    @abstractmethod
    def divides_chunks(self) -> bool:
        """Return whether ``chunk_parts`` is worth asking."""

    @abstractmethod
    async def chunk_parts(self, keys: Sequence[str], threads: int, counters: Counters) -> ChunkParts | None:
        """Return whole chunks in parts for so many threads; ``None`` if the engine has to be asked for all."""

    @abstractmethod
    async def chunk_values(self, keys: Sequence[str]) -> list[memoryview | ShardStoreError | None] | None:
        """Return whole chunks of one array, ``None`` for one that is not there; no list if the keys are not of one array."""


@dataclass(frozen=True, slots=True)
class ShardPart:
    """Some chunks of one version of a shard."""

    shard: int
    """Its number in ``ChunkParts.shards``."""
    numbers: list[int]
    """The numbers of the chunks in the batch."""
    read: Read
    places: list[tuple[int, int, int]]
    """For each chunk: the range of the read that it lies in, and its first and last byte there, the last one exclusive."""
    ranges: tuple[ByteRange, ...]
    """The ranges of the read."""
    nbytes: int
    """The bytes of all ranges together."""


@dataclass(frozen=True, slots=True)
class ChunkParts:
    """A batch of whole chunks. Nothing has been read yet but indices."""

    storage: BlockingReads
    counters: Counters
    parts: list[ShardPart]
    shards: list[Ints]
    """The numbers of all that is wanted of each shard. If one of its parts is not read, none of it counts: it may be of another version."""
    missing: list[int]
    """The numbers of chunks that do not exist, if the parts of their shard are read."""
    rest: list[int]
    """The numbers of what the engine has to be asked for."""

    def in_memory(self, part: ShardPart) -> list[memoryview] | None:
        """Return the chunks of a part, or ``None`` if they have to be waited for: then call ``wait_for`` later. From any thread."""
        return self._cut(part, self.storage.read_in_memory(part.read))

    def wait_for(self, part: ShardPart) -> list[memoryview] | None:
        """Return the chunks of a part; ``None`` if the engine has to be asked for all of its shard. From any thread."""
        (outcome,) = self.storage.read_blocking([part.read])
        return self._cut(part, outcome)

    def _cut(self, part: ShardPart, outcome: ReadOutcome | None) -> list[memoryview] | None:
        if not isinstance(outcome, Found):
            return None
        buffers = outcome.buffers
        if any(len(buffer) != asked.end - asked.start for buffer, asked in zip(buffers, part.ranges, strict=True)):
            return None  # the object is cut off
        self.counters.add(requests=len(buffers), bytes_read=sum(map(len, buffers)), chunks_read=len(part.numbers))
        return [buffers[at][first:last] for at, first, last in part.places]


@dataclass(frozen=True, slots=True)
class _Indexed:
    """The wanted chunks of a shard that exists, with its index."""

    key: str
    numbers: Ints
    slots: Ints
    index: CachedIndex
    is_current: bool
    """The index was read just now; else reading a part confirms it."""


@dataclass(frozen=True, slots=True)
class PartLimits:
    """The size of a part, which depends on what each thread gets. A single chunk is never split."""

    least_bytes: int = 2**16
    most_bytes: int = 2**20
    """The allocator keeps as many bytes for the next part."""


PART_LIMITS = PartLimits()


class PartReads:
    """The batches of one store."""

    def __init__(
        self, storage: BlockingReads, hierarchy: Hierarchy, indices: IndexCache, reader: Reader, limits: ReadLimits, counters: Counters
    ) -> None:
        self._storage = storage
        self._hierarchy = hierarchy
        self._indices = indices
        self._reader = reader
        self._gap_bytes = limits.gap_bytes
        self.part_limits = PART_LIMITS
        self._counters = counters
        self.is_of_use = True
        """False once it was found out that the storage is better read in another way."""

    def known(self, keys: Sequence[str], threads: int) -> ChunkParts | LocatedChunks | None:
        """Return what ``find`` returns, if the array is fresh and all indices are cached; from any thread.

        If only indices are missing, return where the chunks are, for ``find``.
        """
        located = self._hierarchy.fresh_together(keys)
        if located is None:
            return None
        index_format = located.layout.index_format
        trusts = self._hierarchy.never_checks
        indices: list[_Index] = []
        for key in located.shard_keys:
            index = self._indices.peek(key, index_format, unverified=trusts)
            if index is None:
                return located
            indices.append((index, False))
        self._counters.add(index_hits=len(indices))
        return self._divided(located, indices, threads)

    async def find(self, keys: Sequence[str], threads: int, located: LocatedChunks | None = None) -> ChunkParts | None:
        """Return whole chunks in parts for so many threads; ``None`` if the engine has to be asked for all. ``known`` found ``located``."""
        try:
            if located is None:
                located = await self._hierarchy.locate_together(keys, for_write=False)
            if located is None or located.node.is_uncommitted or located.node.path in self._hierarchy.deep_arrays:
                return None
            indices = await self._reader.verified_indices(group_located(located, [EVERYTHING] * len(keys)))
        except ShardStoreError:  # the reader meets it too, and says more
            return None
        return None if indices is None else self._divided(located, indices, threads)

    def _divided(self, located: LocatedChunks, indices: Sequence[_Index], threads: int) -> ChunkParts | None:
        self.is_of_use = self._storage.reads_in_threads()
        if not self.is_of_use:
            return None
        divided = ChunkParts(self._storage, self._counters, [], [], [], [])
        shards: list[_Indexed] = []
        for key, numbers, (index, is_current) in zip(located.shard_keys, located.numbers(), indices, strict=True):
            if index is None:
                divided.missing.extend(numbers.tolist())
            elif isinstance(index, ShardStoreError) or index.object_nbytes > MOST_OBJECT_BYTES:
                divided.rest.extend(numbers.tolist())
            else:
                shards.append(_Indexed(key, numbers, located.slots[numbers], index, is_current))
        if shards and len(shards) <= MOST_OBJECTS:
            _add_parts(divided, shards, self._gap_bytes, self.part_limits, threads)
        elif shards:
            return None
        return divided


def _add_parts(divided: ChunkParts, shards: list[_Indexed], gap_bytes: int, limits: PartLimits, threads: int) -> None:
    """Add the parts of all shards at once: bytes of shard i are counted from i times ``_STRIDE``."""
    numbers = np.concatenate([shard.numbers for shard in shards])
    places = places_in([(shard.index.index, shard.index.object_nbytes, shard.slots) for shard in shards])
    of_shard = np.repeat(np.arange(len(shards)), [len(shard.numbers) for shard in shards])
    starts, nbytes = places.offsets, places.nbytes
    if not places.exists.all() or not nbytes.all():
        keep = _readable_mask(shards, of_shard, places)
        for shard, is_kept in zip(shards, keep.tolist(), strict=True):
            if not is_kept:
                divided.rest.extend(shard.numbers.tolist())
        divided.missing.extend(numbers[keep[of_shard] & ~places.exists].tolist())
        there = keep[of_shard] & places.exists
        numbers, of_shard, starts, nbytes = numbers[there], of_shard[there], starts[there], nbytes[there]
    divided.shards.extend(shard.numbers for shard in shards)
    if len(numbers):
        objects = [(shard.key, shard.index.generation) for shard in shards]
        divide(divided, objects, numbers, of_shard, starts, nbytes, gap_bytes, threads, limits)


def divide(
    divided: ChunkParts,
    objects: Sequence[tuple[str, Generation | None]],
    numbers: Ints,
    of_object: Ints,
    starts: Ints,
    nbytes: Ints,
    gap_bytes: int,
    threads: int,
    limits: PartLimits = PART_LIMITS,
) -> None:
    """Add parts with chunks of these numbers, at least one; each lies somewhere in one of ``objects``, given by key and version.

    Objects are shorter than ``MOST_OBJECT_BYTES``.
    """
    part_nbytes = min(limits.most_bytes, max(limits.least_bytes, int(nbytes.sum()) // (_PARTS_A_THREAD * threads)))
    starts = starts + of_object * _STRIDE
    coalesced = coalesce_all(starts, starts + nbytes, ReadLimits(gap_bytes, part_nbytes))
    requests, of_request = coalesced.requests, coalesced.of_request
    bases = np.array([request.start for request in requests], dtype=np.int64)
    lengths = np.array([request.end for request in requests], dtype=np.int64) - bases
    # Several requests of a shard are one part where they are as short together as one may be, about.
    of_part = (bases // _STRIDE) * MOST_OBJECT_BYTES + (np.cumsum(lengths) - lengths) // part_nbytes
    in_order = np.argsort(of_request, kind="stable")
    of_request = of_request[in_order]
    firsts = coalesced.offsets()[in_order]
    lasts = (firsts + nbytes[in_order]).tolist()
    which, whose, froms = numbers[in_order].tolist(), of_request.tolist(), firsts.tolist()
    begins = np.flatnonzero(np.diff(of_part[of_request], prepend=-1)).tolist()
    for begin, end in zip(begins, [*begins[1:], len(which)], strict=True):
        low, high = whose[begin], whose[end - 1]
        number = requests[low].start // _STRIDE
        base, (key, generation) = number * _STRIDE, objects[number]
        ranges = tuple([ByteRange(request.start - base, request.end - base) for request in requests[low : high + 1]])
        within = [(at - low, first, last) for at, first, last in zip(whose[begin:end], froms[begin:end], lasts[begin:end], strict=True)]
        nbytes_read = sum([part.end - part.start for part in ranges])
        divided.parts.append(ShardPart(number, which[begin:end], Read(key, ranges, generation), within, ranges, nbytes_read))


def _readable_mask(shards: Sequence[_Indexed], of_shard: Ints, places: Places) -> npt.NDArray[np.bool_]:
    """Return ``(shards,)``: true for shards that are read in parts. Of the rest an entry is damaged, or no read would confirm the index."""
    asked = np.bincount(of_shard, places.exists & (places.nbytes > 0), len(shards)) > 0
    is_current = np.array([shard.is_current for shard in shards])
    kept: npt.NDArray[np.bool_] = (asked | is_current) & (np.bincount(of_shard, places.is_damaged, len(shards)) == 0)
    return kept


class PageCacheReader:
    """Reads single chunks of local files in the page cache: at once, in the calling thread, without a hop to the IO loop and back.

    That is possible if the array's document is fresh, the shard's index is known and verified, and the storage holds the bytes in memory.
    It is the reader's second round for one chunk, with the same checks.
    """

    def __init__(self, storage: BlockingReads, hierarchy: Hierarchy, indices: IndexCache, counters: Counters) -> None:
        self._storage = storage
        self._hierarchy = hierarchy
        self._indices = indices
        self._counters = counters

    def get(self, key: str, request: ByteRequest) -> memoryview | None:
        """Return the bytes that ``request`` asks for, of a chunk that exists; ``None`` means: ask the engine."""
        target = self._hierarchy.fresh_chunk(key)
        if target is None:
            return None
        cached = self._indices.peek(target.shard_key, target.layout.index_format, unverified=self._hierarchy.never_checks)
        if cached is None:
            return None
        try:
            where = cached.index.location(target.slot, cached.object_nbytes)
        except Corruption:
            return None
        if where is None:
            return None
        inside = resolve(request, where.nbytes)
        if inside.start >= inside.end:
            return None
        wanted = ByteRange(where.offset + inside.start, where.offset + inside.end)
        found = self._storage.read_page_cache(Read(target.shard_key, (wanted,), cached.generation))
        if found is None:
            return None
        (data,) = found.buffers
        self._counters.add(requests=1, bytes_read=len(data), chunks_read=1, index_hits=1)
        return data
