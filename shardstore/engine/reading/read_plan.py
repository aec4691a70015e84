"""The plan of a read: where the bytes of each wanted chunk lie, as arrays.

If the arrays' documents are fresh, and the indices of the shards are cached and verified, ``Planner.known`` makes a plan without a request;
``Planner.find`` reads missing indices first. Whatever cannot be planned is left to the reader, which asks the storage.

The caller chooses who carries out a plan. If the bytes are in the page cache, this can be the calling thread. Otherwise several threads do
it: each reads one part, then decodes that part. Parts are short, because a whole batch needs new memory, and no longer fits the processor's
cache when it is decoded.

A plan is made and carried out in any thread, while the IO loop runs. This needs no lock: the values that it looks at are never changed,
only replaced. If the read of the version that the plan names succeeds, the index that was used for the plan was right.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardstore.engine.index_cache import CachedIndex, IndexCache
from shardstore.engine.metadata.hierarchy import MANY_KEYS, ChunkTarget, Hierarchy, LocatedChunks, Node
from shardstore.engine.reading.reader import Reader
from shardstore.engine.reading.shard_chunks import group_located
from shardstore.errors import Corruption, ShardStoreError
from shardstore.format.metadata_v3 import ArrayLayout, PlainArray
from shardstore.format.shard_index import IndexFormat, ShardIndex, places_in
from shardstore.format.store_keys import metadata_key
from shardstore.model.chunks import ChunkCoords
from shardstore.model.coalescing import ReadLimits, coalesce_all
from shardstore.model.generation import Generation
from shardstore.model.ranges import EVERYTHING, ByteRange, ByteRequest, resolve
from shardstore.storage.abilities import BlockingReads, DirectAccess
from shardstore.storage.base import ABSENT, Absent, Found, Read, ReadOutcome
from shardstore.storage.wrappers import Counters

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_PARTS_A_THREAD = 4  # so that threads end at about the same time
_SHORT_DOCUMENT_NBYTES = 64 << 10  # read and translated in about a millisecond
_LEFT_AFTER_MISS = 9  # zarr asks for ten at a time
_MOST_NUMBERED = 2**62  # bytes of all objects together


@dataclass(frozen=True, slots=True)
class PartLimits:
    """The size of a part, which depends on what each thread gets. A single chunk is never split."""

    least_bytes: int = 2**16
    most_bytes: int = 2**20
    """The allocator keeps as many bytes for the next part."""


class PlannedObject(NamedTuple):
    """One version of a stored object, of which chunks are wanted."""

    key: str
    version: Generation | None
    """``None`` if the object is never replaced."""
    numbers: Ints
    """The numbers of all that is wanted of it. If one of its parts is not read, none of it counts: it may be of another version."""


class ReadPart(NamedTuple):
    """Some chunks of one object, which are read together."""

    at: int
    """The number of the object in the plan."""
    numbers: list[int]
    """The numbers of the chunks in the batch."""
    read: Read
    places: list[tuple[int, int, int]]
    """For each chunk: the range of the read that it lies in, and its first and last byte there, the last one exclusive."""
    nbytes: int
    """The bytes of all ranges together."""

    def cut(self, buffers: Sequence[memoryview]) -> list[memoryview]:
        """Return the bytes of each chunk out of those of the ranges; fewer bytes where there are not as many."""
        return [buffers[at][first:last] for at, first, last in self.places]


def read_parts(
    objects: Sequence[PlannedObject], numbers: Ints, of_object: Ints, offsets: Ints, nbytes: Ints, gap_bytes: int, part_nbytes: int
) -> list[ReadPart]:
    """Return the parts of about ``part_nbytes`` in which chunks are read: those of an object that are neighbours share a range.

    The chunks are given as the arrays of a ``ReadPlan``.
    """
    if not len(numbers):
        return []
    # Parts of all objects are made at once: bytes of object i are counted from i times the stride.
    stride = int((offsets + nbytes).max()) + gap_bytes + 1
    if stride * len(objects) > _MOST_NUMBERED and len(objects) > 1:
        each = (np.flatnonzero(of_object == at) for at in range(len(objects)))
        alone = [
            read_parts([objects[at]], numbers[mine], of_object[mine] * 0, offsets[mine], nbytes[mine], gap_bytes, part_nbytes)
            for at, mine in enumerate(each)
        ]
        return [part._replace(at=at) for at, parts in enumerate(alone) for part in parts]
    starts = offsets + of_object * stride
    coalesced = coalesce_all(starts, starts + nbytes, ReadLimits(gap_bytes, part_nbytes))
    requests, of_request = coalesced.requests, coalesced.of_request
    bases = np.array([request.start for request in requests], dtype=np.int64)
    lengths = np.array([request.end for request in requests], dtype=np.int64) - bases
    # Several requests of an object are one part where they are as short together as one may be, about.
    shares = (np.cumsum(lengths) - lengths) // max(1, part_nbytes)
    of_part = bases // stride * (shares[-1] + 1) + shares
    in_order = np.argsort(of_request, kind="stable")
    of_request = of_request[in_order]
    firsts = coalesced.offsets()[in_order]
    lasts = (firsts + nbytes[in_order]).tolist()
    which, whose, froms = numbers[in_order].tolist(), of_request.tolist(), firsts.tolist()
    begins = np.flatnonzero(np.diff(of_part[of_request], prepend=-1)).tolist()
    parts: list[ReadPart] = []
    for begin, end in zip(begins, [*begins[1:], len(which)], strict=True):
        low, high = whose[begin], whose[end - 1]
        at = requests[low].start // stride
        base = at * stride
        ranges = tuple([ByteRange(request.start - base, request.end - base) for request in requests[low : high + 1]])
        within = [(n - low, first, last) for n, first, last in zip(whose[begin:end], froms[begin:end], lasts[begin:end], strict=True)]
        read = Read(objects[at].key, ranges, objects[at].version)
        parts.append(ReadPart(at, which[begin:end], read, within, sum([one.end - one.start for one in ranges])))
    return parts


@dataclass(frozen=True, slots=True)
class Carrier:
    """The means to carry out plans: the storage, whose answers are counted, and the limits of a part."""

    storage: BlockingReads
    counters: Counters
    gap_bytes: int
    limits: PartLimits = PartLimits()


@dataclass(frozen=True, slots=True, eq=False)
class ReadPlan:
    """The places of the wanted bytes of a batch of chunks, ``(n,)`` each. Nothing has been read yet but indices."""

    carrier: Carrier
    objects: Sequence[PlannedObject]
    numbers: Ints
    """The number of the chunk in the batch: where its value goes."""
    of_object: Ints
    """The number of the object that it lies in."""
    offsets: Ints
    nbytes: Ints
    missing: Sequence[int] = ()
    """The numbers of chunks that do not exist, if the parts of their objects are read."""
    rest: Sequence[int] = ()
    """The numbers of what the engine has to be asked for."""
    index_hits: int = 0
    """The number of indices that were cached; counted when the plan was carried out."""

    def parts(self, threads: int) -> list[ReadPart]:
        """Return the parts that so many threads read. One thread needs none that are short."""
        limits = self.carrier.limits
        share = limits.most_bytes if threads == 1 else int(self.nbytes.sum()) // (_PARTS_A_THREAD * threads)
        part_nbytes = min(limits.most_bytes, max(limits.least_bytes, share))
        return read_parts(self.objects, self.numbers, self.of_object, self.offsets, self.nbytes, self.carrier.gap_bytes, part_nbytes)

    def count_hits(self, failed: int) -> None:
        """Count the cached indices, but those of objects that could not be read by them: the engine asks for these again."""
        self.carrier.counters.add(index_hits=max(0, self.index_hits - failed))

    def in_memory(self, part: ReadPart) -> list[memoryview] | None:
        """Return the chunks of a part, or ``None`` if they have to be waited for: then call ``wait_for`` later. From any thread."""
        return self._cut(part, self.carrier.storage.read_in_memory(part.read))

    def wait_for(self, part: ReadPart) -> list[memoryview] | None:
        """Return the chunks of a part; ``None`` if the engine has to be asked for all of its object. From any thread."""
        (outcome,) = self.carrier.storage.read_blocking([part.read])
        return self._cut(part, outcome)

    def _cut(self, part: ReadPart, outcome: ReadOutcome | None) -> list[memoryview] | None:
        if not isinstance(outcome, Found):
            return None
        buffers = outcome.buffers
        if sum(map(len, buffers)) != part.nbytes:
            return None  # the object is cut off: no answer is longer than what was asked for
        self.carrier.counters.add(requests=len(buffers), bytes_read=part.nbytes, chunks_read=len(part.numbers))
        return part.cut(buffers)


class ChunkPlace(NamedTuple):
    """The place of one chunk: bytes of one version of a shard."""

    shard_key: str
    version: Generation
    offset: int
    nbytes: int


class ChunkSource(DirectAccess, ABC):
    """A storage of chunks that is not asked by the key: it finds many at once by itself, and each is an object to it, not a shard."""

    @abstractmethod
    def plans_reads(self) -> bool:
        """Return whether ``plan_read`` is worth asking."""

    @abstractmethod
    async def plan_read(self, keys: Sequence[str], counters: Counters) -> ReadPlan | None:
        """Return the plan of a read of whole chunks; ``None`` if the engine has to be asked for all."""

    @abstractmethod
    async def chunk_values(self, keys: Sequence[str]) -> list[memoryview | ShardStoreError | None] | None:
        """Return whole chunks of one array, ``None`` for one that is not there; no list if the keys are not of one array."""


@dataclass(frozen=True, slots=True)
class _IndexedShard:
    """The wanted chunks of a shard that exists, with its index."""

    key: str
    numbers: Ints
    slots: Ints
    index: CachedIndex
    is_current: bool
    """The index was read just now; else a read of a chunk confirms it."""


_Index = tuple[CachedIndex | ShardStoreError | None, bool]
"""The index of a shard, and whether it was read just now."""


class Planner:
    """Plans the reads of one store."""

    def __init__(
        self, storage: BlockingReads, hierarchy: Hierarchy, indices: IndexCache, reader: Reader, limits: ReadLimits, counters: Counters
    ) -> None:
        self._hierarchy = hierarchy
        self._indices = indices
        self._reader = reader
        self.carrier = Carrier(storage, counters, limits.gap_bytes)
        self._looked: dict[str, tuple[Node, float]] = {}
        """By path of array: the node whose document was seen to be unchanged in the calling thread, and when."""
        self._documents_left = 0
        self.is_of_use = True
        """False once it was found out that the storage is better read in another way."""

    def array(self, path: str) -> Node | None:
        """Return an array whose document is fresh, of a local file if only after a look at its version. From any thread."""
        node = self._hierarchy.known(path)
        if node is None or self._hierarchy.stored_array(node) is None:
            return None
        if self._hierarchy.is_fresh(node):
            return node
        looked = self._looked.get(path)
        if looked is None or looked[0] is not node or not self._hierarchy.is_recent(looked[1]):
            now = self._hierarchy.now()
            if not self.reads_in_threads() or not self._is_document_of(node):
                return None
            self._looked[path] = node, now  # not in the hierarchy: only the IO loop writes there
        return node

    def place(self, node: Node, layout: ArrayLayout, coords: ChunkCoords) -> ChunkPlace | Absent | None:
        """Return where a chunk of an array that ``array`` has given lies; ``None``: ask the engine. In the calling thread, which may wait:
        that a chunk is absent is confirmed here, and where it lies by the read.
        """
        target = ChunkTarget.of("", node, layout, coords)
        index = self._index(target.shard_key, layout)
        try:
            where = None if index is None else index.index.location(target.slot, index.object_nbytes)
        except Corruption:  # the reader meets it too, and says more
            return None
        if index is not None and where is not None:
            return ChunkPlace(target.shard_key, index.generation, where.offset, where.nbytes) if where.nbytes else None
        if not self.reads_in_threads():
            return None  # over a network, the engine asks for this with more
        if index is None:
            return ABSENT if self._is_absent(target.shard_key) and self._is_document_of(node) else None
        return ABSENT if isinstance(self._wait_for(Read(target.shard_key, (), index.generation)), Found) else None

    def read_chunk(self, place: ChunkPlace) -> memoryview | None:
        """Return the bytes of one chunk, in the calling thread, which waits for them; ``None``: ask the engine."""
        wanted = ByteRange(place.offset, place.offset + place.nbytes)
        outcome = self._wait_for(Read(place.shard_key, (wanted,), place.version))
        if not isinstance(outcome, Found) or len(outcome.buffers[0]) != place.nbytes:
            return None
        self.count_chunk(place.nbytes)
        return outcome.buffers[0]

    def count_chunk(self, nbytes: int) -> None:
        """Count a read of one chunk by a known index."""
        self.carrier.counters.add(requests=1, bytes_read=nbytes, chunks_read=1, index_hits=1)

    def _wait_for(self, read: Read) -> ReadOutcome:
        (outcome,) = self.carrier.storage.read_blocking([read])
        return outcome

    def _index(self, shard_key: str, layout: ArrayLayout) -> CachedIndex | None:
        """Return the index of a shard if it is known to be of this layout, or need not be; a read of its version confirms it."""
        return self._indices.peek(shard_key, layout.index_format, unverified=self._hierarchy.never_checks)

    def known(self, keys: Sequence[str]) -> ReadPlan | LocatedChunks | None:
        """Return the plan of a read of whole chunks, if all is known without a request; from any thread.

        If only indices of many chunks are missing, return where the chunks are, for ``find``.
        """
        if len(keys) < MANY_KEYS:
            return self._of_few(keys)
        located = self._hierarchy.fresh_together(keys)
        return located if located is None or not self.reads_in_threads() else self.known_chunks(located) or located

    def known_chunks(self, located: LocatedChunks, *, may_wait: bool = False) -> ReadPlan | None:
        """Return the plan as ``known`` does for chunks of a fresh array. With ``may_wait``, the calling thread may look for files: shards
        that are not there need no index, and those of which no chunk is read are confirmed.
        """
        indices = self.known_indices(located.node, located.layout, located.shard_keys, may_wait=may_wait)
        if indices is None:
            return None
        hits = sum(index is not None for index in indices)
        return self._planned(located, [(index, False) for index in indices], hits=hits, may_wait=may_wait)

    def known_indices(
        self, node: Node, layout: ArrayLayout, shard_keys: Sequence[str], *, may_wait: bool = False
    ) -> list[CachedIndex | None] | None:
        """Return the indices of shards of a fresh array, if all are known; a read of their versions confirms them. With ``may_wait``, the
        calling thread may look for files: ``None`` in place of the index of a shard that is not there.
        """
        indices: list[CachedIndex | None] = []
        for key in shard_keys:
            index = self._index(key, layout)
            if index is None and not (may_wait and self._is_absent(key)):
                return None
            indices.append(index)
        return None if None in indices and not self._is_document_of(node) else indices

    def whole_objects(self, node: Node, array: PlainArray, keys: Sequence[str]) -> list[CachedIndex | None] | None:
        """Return the chunks of a fresh array without shards as they are now, each as a shard of one chunk that has no index; ``None`` in
        place of one that is not there. In the calling thread, which looks for the files; ``None``: ask the engine.
        """
        one = IndexFormat((1,) * array.ndim)
        found: list[CachedIndex | None] = []
        for outcome in self.carrier.storage.read_blocking([Read(key, ()) for key in keys]):
            if isinstance(outcome, Found):
                entries = np.array([(0, outcome.nbytes)], dtype=np.uint64)
                found.append(CachedIndex(one, outcome.generation, outcome.nbytes, ShardIndex(entries)))
            elif isinstance(outcome, Absent) and not outcome.is_directory:
                found.append(None)
            else:
                return None
        return None if None in found and not self._is_document_of(node) else found

    def _is_document_of(self, node: Node) -> bool:
        """Look whether the document of an array is unchanged. What is absent proves no layout: the document is looked at after it."""
        return self._hierarchy.never_checks or isinstance(self._wait_for(Read(metadata_key(node.path), (), node.generation)), Found)

    def _is_absent(self, shard_key: str) -> bool:
        outcome = self._wait_for(Read(shard_key, ()))
        return isinstance(outcome, Absent) and not outcome.is_directory

    async def find(self, keys: Sequence[str], located: LocatedChunks | None = None) -> ReadPlan | None:
        """Return the plan of a read of whole chunks; ``None`` if the engine has to be asked for all. ``known`` found ``located``."""
        try:
            located = located or await self._hierarchy.locate_together(keys, for_write=False)
        except ShardStoreError:  # the reader meets it too, and says more
            return None
        return None if located is None or self._hierarchy.stored_layout(located.node) is None else await self.find_chunks(located)

    async def find_chunks(self, located: LocatedChunks) -> ReadPlan | None:
        """Return the plan as ``find`` does for chunks of one array."""
        indices = await self.find_indices(located)
        if indices is None or not self.reads_in_threads():
            return None
        return self._planned(located, indices, hits=0)  # the reader has counted them

    async def find_indices(self, located: LocatedChunks) -> list[_Index] | None:
        """Return the indices of the shards of some chunks of one array; ``None`` if the engine has to be asked for all."""
        try:
            return await self._reader.verified_indices(group_located(located, [EVERYTHING] * len(located.slots)))
        except ShardStoreError:  # the reader meets it too, and says more
            return None

    def short_value(self, key: str, request: ByteRequest) -> memoryview | None:
        """Return the bytes that ``request`` asks for of a chunk, if they are few and in the page cache; ``None`` means: ask the engine."""
        if (place := self._place(key, request)) is None:
            return None
        shard_key, index, wanted = place
        found = self.carrier.storage.read_page_cache(Read(shard_key, (wanted,), index.generation))
        if found is None:
            return None
        (data,) = found.buffers
        self.carrier.counters.add(requests=1, bytes_read=len(data), chunks_read=1, index_hits=1)
        return data

    def document(self, path: str) -> Found | None:
        """Return the stored document of a node, if it is short and in memory; ``None`` means: ask the engine. In the calling thread.

        The engine reads many at once, which is faster from a disk: so it gets some after one that is not in memory.
        """
        if self._documents_left:
            self._documents_left -= 1
            return None
        storage = self.carrier.storage
        if not storage.reads_in_threads():
            return None
        found = storage.read_in_memory(Read(metadata_key(path), (EVERYTHING,), most_nbytes=_SHORT_DOCUMENT_NBYTES))
        if found is None:
            self._documents_left = _LEFT_AFTER_MISS
        else:
            self.carrier.counters.add(requests=1, bytes_read=found.nbytes)
        return found

    def _place(self, key: str, request: ByteRequest) -> tuple[str, CachedIndex, ByteRange] | None:
        """Return the shard of a chunk, its index, and where the wanted bytes lie; ``None`` if that is not known, or there are none."""
        target = self._hierarchy.fresh_chunk(key)
        if target is None:
            return None
        if (index := self._index(target.shard_key, target.layout)) is None:
            return None
        try:
            where = index.index.location(target.slot, index.object_nbytes)
        except Corruption:  # the reader meets it too, and says more
            return None
        if where is None:
            return None
        inside = resolve(request, where.nbytes)
        wanted = ByteRange(where.offset + inside.start, where.offset + inside.end)
        return (target.shard_key, index, wanted) if wanted.start < wanted.end else None

    def _of_few(self, keys: Sequence[str]) -> ReadPlan | None:
        """Return the plan for few chunks, located one by one, since arrays take longer; ``None`` also if one of them is missing."""
        shards: dict[str, tuple[int, CachedIndex, list[int]]] = {}
        of_object, offsets, lengths = [], [], []
        for number, key in enumerate(keys):
            if (place := self._place(key, EVERYTHING)) is None:
                return None
            shard_key, index, wanted = place
            at, first, numbers = shards.setdefault(shard_key, (len(shards), index, []))
            if index is not first:
                return None  # the loop has just replaced it
            numbers.append(number)
            of_object.append(at)
            offsets.append(wanted.start)
            lengths.append(wanted.end - wanted.start)
        if not shards or not self.reads_in_threads():
            return None
        objects = [PlannedObject(key, index.generation, np.array(numbers)) for key, (_, index, numbers) in shards.items()]
        order, of, begins, sizes = np.array([list(range(len(keys))), of_object, offsets, lengths], dtype=np.int64)
        return ReadPlan(self.carrier, objects, order, of, begins, sizes, index_hits=len(shards))

    def reads_in_threads(self) -> bool:
        """Return whether the storage reads best in any thread. It is asked after its first use, which may mount the place."""
        self.is_of_use = self.carrier.storage.reads_in_threads()
        return self.is_of_use

    def _planned(self, located: LocatedChunks, indices: Sequence[_Index], *, hits: int, may_wait: bool = False) -> ReadPlan | None:
        missing: list[int] = []
        rest: list[int] = []
        shards: list[_IndexedShard] = []
        for key, numbers, (index, is_current) in zip(located.shard_keys, located.numbers(), indices, strict=True):
            if index is None:
                missing.extend(numbers.tolist())
            elif isinstance(index, ShardStoreError):
                rest.extend(numbers.tolist())
            else:
                shards.append(_IndexedShard(key, numbers, located.slots[numbers], index, is_current))
        if not shards:
            nothing = np.empty(0, dtype=np.int64)
            return ReadPlan(self.carrier, (), nothing, nothing, nothing, nothing, missing, rest, hits)
        objects = [PlannedObject(shard.key, shard.index.generation, shard.numbers) for shard in shards]
        numbers = np.concatenate([shard.numbers for shard in shards])
        places = places_in([(shard.index.index, shard.index.object_nbytes, shard.slots) for shard in shards])
        of_shard = np.repeat(np.arange(len(shards)), [len(shard.numbers) for shard in shards])
        offsets, nbytes = places.offsets, places.nbytes
        if not places.exists.all() or not nbytes.all():
            # A shard is planned if no entry is damaged, and if its index was read just now, or a read confirms it.
            asked = np.bincount(of_shard, places.exists & (places.nbytes > 0), len(shards)) > 0
            are_current = np.array([shard.is_current for shard in shards])
            for at in np.flatnonzero(~(asked | are_current)).tolist() if may_wait else ():
                are_current[at] = isinstance(self._wait_for(Read(shards[at].key, (), shards[at].index.generation)), Found)
            keep: Bools = (asked | are_current) & (np.bincount(of_shard, places.is_damaged, len(shards)) == 0)
            rest.extend(numbers[~keep[of_shard]].tolist())
            missing.extend(numbers[keep[of_shard] & ~places.exists].tolist())
            there = keep[of_shard] & places.exists
            numbers, of_shard, offsets, nbytes = numbers[there], of_shard[there], offsets[there], nbytes[there]
        return ReadPlan(self.carrier, objects, numbers, of_shard, offsets, nbytes, missing, rest, hits)
