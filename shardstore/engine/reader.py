"""Reading chunks out of shards: indices, then chunks; two rounds for any batch, one where the indices are cached.

Index and chunks of a shard come from one generation. Where it changes in between, the shard is read again; after some
tries a single request that holds both its index and its chunks settles the matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shardstore.engine.counters import Counters
from shardstore.engine.hierarchy import ChunkTarget, Hierarchy, Node
from shardstore.engine.index_cache import CachedIndex, IndexCache
from shardstore.engine.keys import metadata_key
from shardstore.errors import Corruption, ShardStoreError
from shardstore.format.metadata_v3 import ArrayLayout
from shardstore.model.chunks import ChunkCoords, ChunkLocation
from shardstore.model.generation import Generation
from shardstore.model.ranges import EVERYTHING, ByteRange, ByteRequest, resolve
from shardstore.plan.reads import CoalescedReads, ReadLimits, coalesce
from shardstore.storage.base import Absent, Changed, Failed, Found, Read, ReadOutcome, Storage

_PINNED_TRIES = 4

Value = memoryview | None | ShardStoreError
"""What became of one request: its bytes, ``None`` for a chunk that does not exist, or the error."""


class StaleLayout(Exception):
    """The array's metadata changed since its layout was looked up: the keys have to be located again."""


@dataclass(slots=True)
class ShardRead:
    """The requests of one batch to one shard: ``(number in the batch, slot, which bytes of the chunk)``."""

    node: Node
    layout: ArrayLayout
    coords: ChunkCoords
    key: str
    wanted: list[tuple[int, int, ByteRequest]] = field(default_factory=list)

    @property
    def wants_everything(self) -> bool:
        """Whether every chunk that the array has in this shard is wanted, whole."""
        per_shard, grid = self.layout.grid.chunks_per_shard, self.layout.chunk_grid_shape
        here = 1
        for s, n, g in zip(self.coords, per_shard, grid, strict=True):
            here *= max(0, min(n, g - s * n))
        if here == 0 or len(self.wanted) < here:
            return False
        return len({slot for _, slot, request in self.wanted if request == EVERYTHING}) >= here


def group_by_shard(targets: Iterable[tuple[int, ChunkTarget, ByteRequest]]) -> list[ShardRead]:
    groups: dict[str, ShardRead] = {}
    for i, target, request in targets:
        coords = target.layout.grid.shard_of(target.coords)
        key = target.shard_key
        group = groups.get(key)
        if group is None:
            group = groups[key] = ShardRead(target.node, target.layout, coords, key)
        group.wanted.append((i, target.slot, request))
    return list(groups.values())


class Reader:
    """Reads of sharded chunks for one store."""

    def __init__(self, storage: Storage, hierarchy: Hierarchy, indices: IndexCache, limits: ReadLimits, counters: Counters) -> None:
        self._storage = storage
        self._hierarchy = hierarchy
        self._indices = indices
        self._limits = limits
        self._counters = counters

    # -- indices ---------------------------------------------------------------------------------------------------

    async def load_indices(self, shards: Sequence[ShardRead]) -> list[CachedIndex | ShardStoreError | None]:
        """The current index of each shard, one request a shard; ``None`` where there is no shard.

        Raises:
            StaleLayout: an array turned out to be laid out otherwise.
        """
        outcomes = await self._read_with_metadata(shards, [Read(s.key, (s.layout.index_format.request(),)) for s in shards])
        return [self.decode_index(shard, outcome) for shard, outcome in zip(shards, outcomes, strict=True)]

    async def chunk_nbytes(self, shard: ShardRead) -> int | None:
        """The encoded size of the one chunk that is wanted of a shard; ``None``: there is none. Raises as ``chunk_place``."""
        found = await self.chunk_place(shard)
        return None if found is None else found[1].nbytes

    async def chunk_place(self, shard: ShardRead) -> tuple[Generation, ChunkLocation] | None:
        """Where the one chunk that is wanted of a shard lies, as the shard's index has it now; ``None``: there is none.

        Raises:
            Corruption: the index is damaged, or the chunk's entry in it.
            StaleLayout: the array turned out to be laid out otherwise.
        """
        (index,) = await self.load_indices([shard])
        if isinstance(index, ShardStoreError):
            await self._confirm_layouts([shard])
            raise index
        ((_, slot, _),) = shard.wanted
        where = None if index is None else self._where(shard, index, slot)
        if isinstance(where, ShardStoreError):
            raise where
        return None if where is None or index is None else (index.generation, where)

    def decode_index(self, shard: ShardRead, outcome: ReadOutcome) -> CachedIndex | ShardStoreError | None:
        """The index that a read of it gave; remembered."""
        match outcome:
            case Failed(error):
                return error
            case Found(_, _, (data,)):
                return self._remember(shard, generation_of=outcome, data=data)
            case _:
                self._indices.drop(shard.key)
                return None

    def _remember(self, shard: ShardRead, generation_of: Found, data: memoryview) -> CachedIndex | ShardStoreError:
        index_format = shard.layout.index_format
        try:
            index = index_format.decode(index_format.slice_from(data, generation_of.nbytes))
        except Corruption as exc:
            self._indices.drop(shard.key)
            return self._index_error(shard, exc)
        cached = CachedIndex(index_format, generation_of.generation, generation_of.nbytes, index)
        self._indices.put(shard.key, cached)
        return cached

    def _index_error(self, shard: ShardRead, cause: Corruption) -> Corruption:
        error = Corruption(
            f"the index of shard {shard.key!r} of array {shard.node.path!r} is damaged: {cause}. Write or erase all "
            f"{shard.layout.grid.nslots} chunks of the shard, or restore the object"
        )
        error.__cause__ = cause
        return error

    async def _read_with_metadata(self, shards: Sequence[ShardRead], reads: Sequence[Read]) -> list[ReadOutcome]:
        """One round; beside it the metadata of arrays that was not checked for a while is checked again."""
        stale = {s.node.path: s.node for s in shards if not self._fresh(s.node)}
        documents = [Read(metadata_key(path), (EVERYTHING,)) for path in stale]
        outcomes = await self._storage.read([*reads, *documents])
        self._check_layouts(stale, outcomes[len(reads) :])
        return outcomes[: len(reads)]

    def _fresh(self, node: Node) -> bool:
        known = self._hierarchy.known(node.path)
        return known is not None and known.layout == node.layout and self._hierarchy.is_fresh(known)

    def _check_layouts(self, expected: dict[str, Node], outcomes: Sequence[ReadOutcome]) -> None:
        changed = False
        for (path, before), outcome in zip(expected.items(), outcomes, strict=True):
            now = self._hierarchy.learn(path, outcome)
            if now is None or now.layout is None or not same_shards(now.layout, before.layout):
                self._indices.drop_prefix(path + "/" if path else "")
                changed = True
        if changed:
            raise StaleLayout

    async def _confirm_layouts(self, shards: Sequence[ShardRead]) -> None:
        """Before damage is reported: was it the layout that was out of date?"""
        nodes = {s.node.path: s.node for s in shards}
        outcomes = await self._storage.read([Read(metadata_key(path), (EVERYTHING,)) for path in nodes])
        self._check_layouts(nodes, outcomes)

    # -- chunks ----------------------------------------------------------------------------------------------------

    async def read(self, shards: Sequence[ShardRead], count: int) -> list[Value]:
        """The values of ``count`` requests that are spread over ``shards``.

        Raises:
            StaleLayout: an array turned out to be laid out otherwise; nothing was returned from it.
        """
        values: list[Value] = [None] * count
        pending = list(shards)
        tries = 0
        while pending:
            tries += 1
            if tries > _PINNED_TRIES:
                await self._settle(pending, values)
                break
            pending = await self._try(pending, values)
            self._counters.retried_reads += len(pending)
        damaged = [s for s in shards if any(isinstance(values[i], Corruption) for i, _, _ in s.wanted)]
        if damaged:
            await self._confirm_layouts(damaged)
        return values

    async def _try(self, shards: Sequence[ShardRead], values: list[Value]) -> list[ShardRead]:
        """One attempt of two rounds; the shards that changed meanwhile are left."""
        ready: list[tuple[ShardRead, CachedIndex]] = []
        first: list[ShardRead] = []
        for shard in shards:
            cached = self._indices.get(shard.key, shard.layout.index_format)
            # Whether a chunk is missing can only be believed of an index that a read confirms.
            if cached is None or shard.wants_everything or not any(_locate(cached, slot, r) for _, slot, r in shard.wanted):
                first.append(shard)
            else:
                ready.append((shard, cached))
        self._counters.index_hits += len(ready)
        if first:
            self._counters.index_misses += len(first)
            ready += await self._first_round(first, values)
        return await self._second_round(ready, values) if ready else []

    async def _first_round(self, shards: list[ShardRead], values: list[Value]) -> list[tuple[ShardRead, CachedIndex]]:
        reads = [Read(s.key, (EVERYTHING if s.wants_everything else s.layout.index_format.request(),)) for s in shards]
        outcomes = await self._read_with_metadata(shards, reads)
        ready: list[tuple[ShardRead, CachedIndex]] = []
        for shard, read, outcome in zip(shards, reads, outcomes, strict=True):
            index = self.decode_index(shard, outcome)
            if not isinstance(index, CachedIndex):
                for i, _, _ in shard.wanted:
                    values[i] = index
            elif isinstance(outcome, Found) and read.ranges[0] == EVERYTHING:
                self._cut(shard, index, outcome.buffers[0], 0, values)
            else:
                ready.append((shard, index))
        return ready

    async def _second_round(self, shards: Sequence[tuple[ShardRead, CachedIndex]], values: list[Value]) -> list[ShardRead]:
        reads: list[Read] = []
        plans: list[tuple[ShardRead, list[tuple[int, int, ByteRange]], CoalescedReads]] = []
        for shard, cached in shards:
            wanted: list[tuple[int, int, ByteRange]] = []
            for i, slot, request in shard.wanted:
                where = self._where(shard, cached, slot)
                if isinstance(where, ChunkLocation):
                    inside = resolve(request, where.nbytes)
                    wanted.append((i, slot, ByteRange(where.offset + inside.start, where.offset + inside.end)))
                else:
                    values[i] = where
            if wanted:
                coalesced = coalesce([r for _, _, r in wanted], self._limits)
                reads.append(Read(shard.key, coalesced.requests, cached.generation))
                plans.append((shard, wanted, coalesced))
        outcomes = await self._read_with_metadata([shard for shard, *_ in plans], reads) if reads else []
        changed: list[ShardRead] = []
        for (shard, wanted, coalesced), outcome in zip(plans, outcomes, strict=True):
            match outcome:
                case Failed(error):
                    for i, _, _ in wanted:
                        values[i] = error
                case Absent() | Changed():
                    # Rewritten, or perhaps of another array by now: its layout is checked again beside its new index.
                    self._indices.drop(shard.key)
                    self._hierarchy.distrust(shard.node.path)
                    changed.append(shard)
                case Found():
                    for (i, slot, wanted_range), number in zip(wanted, coalesced.of_request.tolist(), strict=True):
                        start = coalesced.requests[number].start
                        values[i] = self._slice(shard, slot, outcome.buffers[number], start, wanted_range)
        return changed

    async def _settle(self, shards: Sequence[ShardRead], values: list[Value]) -> None:
        """One request a shard from its first wanted chunk to its end: chunks and index of whichever version is there."""
        indices = await self.load_indices(shards)
        starts = [self._first_offset(shard, index) for shard, index in zip(shards, indices, strict=True)]
        behind: list[ShardRead] = []
        for requests in (starts, None):
            now = shards if requests is not None else behind
            offsets = requests if requests is not None else [0] * len(behind)
            reads = [Read(s.key, (s.layout.index_format.request_from(o),)) for s, o in zip(now, offsets, strict=True)]
            for shard, outcome in zip(now, await self._read_with_metadata(now, reads) if reads else [], strict=True):
                index = self.decode_index(shard, outcome)
                if not isinstance(index, CachedIndex) or not isinstance(outcome, Found):
                    for i, _, _ in shard.wanted:
                        values[i] = index if isinstance(index, ShardStoreError) else None
                    continue
                start = outcome.nbytes - len(outcome.buffers[0])
                if self._first_offset(shard, index) < start:
                    behind.append(shard)  # it moved towards the beginning meanwhile: then the whole object
                else:
                    self._cut(shard, index, outcome.buffers[0], start, values)

    def _first_offset(self, shard: ShardRead, index: CachedIndex | ShardStoreError | None) -> int:
        if not isinstance(index, CachedIndex):
            return 0
        places = [self._where(shard, index, slot) for _, slot, _ in shard.wanted]
        return min((p.offset for p in places if isinstance(p, ChunkLocation)), default=index.object_nbytes)

    def _cut(self, shard: ShardRead, cached: CachedIndex, data: memoryview, start: int, values: list[Value]) -> None:
        """Slices out of ``data``, which begins at byte ``start`` of the object."""
        for i, slot, request in shard.wanted:
            where = self._where(shard, cached, slot)
            if isinstance(where, ChunkLocation):
                inside = resolve(request, where.nbytes)
                wanted = ByteRange(where.offset + inside.start, where.offset + inside.end)
                values[i] = self._slice(shard, slot, data, start, wanted)
            else:
                values[i] = where

    def _where(self, shard: ShardRead, cached: CachedIndex, slot: int) -> ChunkLocation | Corruption | None:
        try:
            return cached.index.location(slot, cached.object_nbytes)
        except Corruption as exc:
            return self._chunk_error(shard, slot, str(exc), exc)

    def _slice(self, shard: ShardRead, slot: int, data: memoryview, start: int, wanted: ByteRange) -> Value:
        piece = data[wanted.start - start : wanted.end - start]
        if len(piece) != wanted.end - wanted.start:
            return self._chunk_error(shard, slot, f"bytes [{wanted.start}, {wanted.end}) were asked for, {len(piece)} came", None)
        self._counters.chunks_read += 1
        return piece

    def _chunk_error(self, shard: ShardRead, slot: int, what: str, cause: Exception | None) -> Corruption:
        encoded = shard.layout.key_encoding.encode(shard.layout.grid.coords_of(shard.coords, slot))
        error = Corruption(
            f"chunk {encoded!r} of array {shard.node.path!r} in shard {shard.key!r} is damaged: {what}. Write the chunk again, or "
            "restore the shard; the other chunks of the shard are not affected"
        )
        error.__cause__ = cause
        return error


def _locate(cached: CachedIndex, slot: int, request: ByteRequest) -> bool:
    """Whether reading this of a cached index makes a request, which confirms that the index still holds."""
    offset, nbytes = (int(v) for v in cached.index.flat[slot])
    if offset + nbytes > cached.object_nbytes:
        return False  # empty, or damaged: either way to be confirmed
    inside = resolve(request, nbytes)
    return inside.end > inside.start


def same_shards(now: ArrayLayout, before: ArrayLayout | None) -> bool:
    """Whether chunks lie where they lay; the array's shape may have changed."""
    return before is not None and (now.chunk_shape, now.key_encoding, now.index_format) == (
        before.chunk_shape,
        before.key_encoding,
        before.index_format,
    )
