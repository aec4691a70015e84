"""Listing and sizes at the level of chunks: one listing of the storage, and one index request a shard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress

from shardstore.engine.index_cache import CachedIndex, StaleLayout, with_fresh_layout
from shardstore.engine.metadata.hierarchy import Hierarchy, Node
from shardstore.engine.reading.reader import Reader
from shardstore.engine.reading.shard_chunks import ShardRead
from shardstore.errors import ShardStoreError
from shardstore.format.chunk_keys import ChunkKeyEncoding, looks_like_chunk_prefix
from shardstore.format.store_keys import ancestors, join, metadata_path, possible_owners
from shardstore.model.chunks import ChunkCoords, ChunkLocation
from shardstore.model.containers import gathered
from shardstore.model.generation import Generation
from shardstore.plan.prefixes import chunk_keys_of, plan_prefix, rows_of, slots_of
from shardstore.storage.base import UNKNOWN_NBYTES, DirListing, ObjectInfo, Storage

_INDICES_AT_FIRST = 4  # a caller that only asks whether anything is there should not wait for many
_INDICES_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class ListedValue:
    """A presented key and the size of its value in bytes; ``None`` if the size is not known yet, as that of most documents. With the
    version, if that was asked for and the listing has it.
    """

    key: str
    nbytes: int | None
    version: Generation | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ListedBatch:
    """Some presented keys, each with the size of its value, as ``ListedValue`` has them."""

    keys: list[str]
    nbytes: list[int | None] | list[int]
    versions: Callable[[], Sequence[Generation | None]] | None = field(default=None, compare=False, repr=False)
    """Makes the versions of the values, if the listing has them; most callers do not need them."""

    def values(self, *, versions: bool = False) -> Iterator[ListedValue]:
        """Yield the values one by one, with their versions if these are asked for."""
        if versions and self.versions is not None:
            return map(ListedValue, self.keys, self.nbytes, self.versions())
        return map(ListedValue, self.keys, self.nbytes)

    def subset(self, kept: Sequence[bool]) -> ListedBatch:
        """Return the values that are kept: one truth value for each."""
        versions = self.versions
        return ListedBatch(
            list(compress(self.keys, kept)),
            list(compress(self.nbytes, kept)),
            None if versions is None else lambda: list(compress(versions(), kept)),
        )


@dataclass(frozen=True, slots=True)
class ListedDir:
    """Values with their full keys, and prefixes ending in ``/``, directly below a prefix."""

    values: tuple[ListedValue, ...]
    prefixes: tuple[str, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(value.key for value in self.values)


@dataclass(frozen=True, slots=True)
class ArrayPrefix:
    """A prefix that reaches into the chunk keys of a sharded array; ``rest`` is relative to the array."""

    node: Node
    rest: str


class Listing:
    """Lists one store as presented."""

    def __init__(self, storage: Storage, hierarchy: Hierarchy, reader: Reader) -> None:
        self._storage = storage
        self._hierarchy = hierarchy
        self._reader = reader

    async def array_prefix(self, prefix: str, *, even_damaged: bool = False) -> ArrayPrefix | None:
        """Return the sharded array into whose chunk keys ``prefix`` reaches, as the storage has it now.

        Raises:
            Corruption: the document of an array that was sharded is no longer one, unless ``even_damaged``.
        """
        cuts = _cuts(prefix)
        if not cuts:
            return None
        nodes = await self._hierarchy.load((path for path, _ in cuts), even_damaged=even_damaged)
        for path, rest in cuts:
            node = nodes[path]
            if node is not None and node.layout is not None:
                return ArrayPrefix(node, rest)
        return None

    async def values(self, prefix: str) -> AsyncIterator[ListedValue]:
        """Return what ``batches`` gives, one by one, with versions."""
        async for batch in self.batches(prefix):
            for value in batch.values(versions=True):
                yield value

    async def batches(self, prefix: str) -> AsyncIterator[ListedBatch]:
        """Yield every presented key that starts with ``prefix``, with its size, in no particular order, at most a shard's at once.

        Raises:
            Corruption: the index of a shard that may hold such keys is damaged.
        """
        within = await self.array_prefix(prefix)
        stored_prefix = prefix
        leading: ChunkCoords = ()
        if within is not None and within.node.layout is not None:
            plan = plan_prefix(within.node.layout, within.rest)
            # Other objects below the array are named by the prefix itself: list what covers both, or both.
            if plan.leading:
                stored_prefix = join(within.node.path, plan.stored_prefix)
                leading = plan.leading
            else:
                stored_prefix = prefix[: len(prefix) - len(within.rest)] + _common(plan.stored_prefix, within.rest)
        shards: list[ShardRead] = []
        at_once = _INDICES_AT_FIRST
        if not prefix.startswith(stored_prefix):
            async for found, shard in self.stored(prefix):
                if shard is None:
                    yield _batch([found])
        plain: list[ObjectInfo] = []
        async for found, shard in self.stored(stored_prefix):
            if shard is not None:
                shards.append(shard)
            elif found.key.startswith(prefix):
                plain.append(found)
            if max(len(plain), len(shards)) >= at_once:
                for batch in await self._expand(plain, shards, prefix, leading):
                    yield batch
                plain, shards = [], []
                at_once = min(4 * at_once, _INDICES_AT_ONCE)
        for batch in await self._expand(plain, shards, prefix, leading):
            yield batch

    async def stored(self, prefix: str) -> AsyncIterator[tuple[ObjectInfo, ShardRead | None]]:
        """Yield the stored objects whose own keys start with ``prefix``, each with the shard that it is, if it is one."""
        async for found in self._storage.list(prefix):
            yield found, await self._as_shard(found)

    async def _as_shard(self, found: ObjectInfo) -> ShardRead | None:
        """Return the shard that a stored object is, or ``None``."""
        owners = possible_owners(found.key)
        if not owners or metadata_path(found.key) is not None:
            return None
        owner = self._hierarchy.owner(owners, fresh=True)
        if owner is None:
            unknown = [p for p, _ in owners if (n := self._hierarchy.known(p)) is None or not self._hierarchy.is_fresh(n)]
            await self._hierarchy.load(p for p in unknown if not self._hierarchy.recently_absent(p))
            owner = self._hierarchy.owner(owners)
        if owner is None:
            return None
        node, coords = owner
        return None if node.layout is None else ShardRead(node, node.layout, coords, found.key)

    async def _expand(self, plain: list[ObjectInfo], shards: list[ShardRead], prefix: str, leading: ChunkCoords) -> Iterator[ListedBatch]:
        """Return the objects unchanged, and the chunks of each shard."""
        current: list[tuple[ShardRead, CachedIndex]] = []
        for shard, index in await self._current_indices(shards) if shards else ():
            if isinstance(index, ShardStoreError):
                raise index
            if index is not None:
                current.append((shard, index))
        return chain([_batch(plain)] if plain else [], (self._chunks(shard, index, prefix, leading) for shard, index in current))

    async def _current_indices(self, shards: list[ShardRead]) -> list[tuple[ShardRead, CachedIndex | ShardStoreError | None]]:
        """Return each shard with its index, without the shards of arrays that have become something else since they were listed."""

        async def attempt() -> list[tuple[ShardRead, CachedIndex | ShardStoreError | None]]:
            nonlocal shards
            try:
                return list(zip(shards, await self._reader.load_indices(shards), strict=True))
            except StaleLayout:
                nodes = await self._hierarchy.load({s.node.path for s in shards})
                shards = [again for s in shards if (again := _laid_out_by(nodes[s.node.path], s)) is not None]
                raise

        return await with_fresh_layout(attempt, "the metadata of an array kept changing while it was being listed; try again")

    def _chunks(self, shard: ShardRead, cached: CachedIndex, prefix: str, leading: ChunkCoords) -> ListedBatch:
        layout, start = shard.layout, join(shard.node.path, "")
        keys, nbytes = chunk_keys_of(layout, shard.coords, cached.index, leading, start)

        def versions() -> list[Generation | None]:
            slots = slots_of(layout, shard.coords, cached.index, leading)
            places = cached.index.flat[slots].tolist()
            return [cached.version(slot, ChunkLocation(*place)) for slot, place in zip(slots.tolist(), places, strict=True)]

        listed = ListedBatch(keys, nbytes, versions)
        if (start + layout.key_encoding.prefix_of(leading, layout.ndim)).startswith(prefix):
            return listed
        return listed.subset([key.startswith(prefix) for key in keys])

    async def directory(self, prefix: str, *, approximate: bool = False) -> ListedDir:
        """Return what lies directly below ``prefix``, which is ``""`` or ends with ``/``.

        Exact, unless ``approximate``: then the prefixes below an array are those of all chunks that a shard could hold
        (the 2022 draft, ``list_dir``), which saves reading the indices.
        """
        if any(rest for _, rest in _cuts(prefix)):
            within = await self.array_prefix(prefix)
            listed = await self._storage.list_dir(prefix) if within is None or within.rest == "" else None
        else:  # whatever the node is, it is listed: in the same round
            within, listed = await asyncio.gather(self.array_prefix(prefix), self._storage.list_dir(prefix))
        if within is None:
            assert listed is not None
            return ListedDir(_as_presented(listed), listed.prefixes)
        if approximate and (possible := await self._possible_prefixes(within, prefix)) is not None:
            return possible
        layout = within.node.layout
        if listed is not None and layout is not None and layout.ndim and layout.key_encoding == ChunkKeyEncoding("default", "/"):
            # Right below the array there is only "c/", whatever chunks exist.
            return ListedDir(_as_presented(listed), listed.prefixes)
        return await directly_below(prefix, self.values(prefix))

    async def _possible_prefixes(self, within: ArrayPrefix, prefix: str) -> ListedDir | None:
        """Return, for a prefix between an array and its last dimension, the prefixes of all chunks in the grid that the shards could hold.

        A resize may leave chunks beyond the grid. Of these only those that exist are returned: the shards at the end are asked for them.
        """
        layout = within.node.layout
        assert layout is not None
        plan = plan_prefix(layout, within.rest)
        depth = len(plan.leading)
        settled = layout.key_encoding.prefix_of(plan.leading, layout.ndim)
        if layout.key_encoding.separator != "/" or settled != within.rest or depth >= layout.ndim - 1:
            return None
        listed = await self._storage.list_dir(join(within.node.path, plan.stored_prefix))
        per_shard, extent = layout.grid.chunks_per_shard[depth], layout.chunk_grid_shape[depth]
        prefixes: dict[str, None] = {}
        foreign: list[str] = []
        at_the_end: list[str] = []
        for below in listed.prefixes:
            name = below.rstrip("/").rpartition("/")[2]
            if not name.isdecimal() or str(int(name)) != name:
                foreign.append(below)
                continue
            first = int(name) * per_shard
            prefixes.update((f"{prefix}{i}/", None) for i in range(first, min(first + per_shard, extent)))
            if first + per_shard > extent:
                at_the_end.append(below)
        async for row in self._rows(at_the_end, plan.leading):
            if row >= extent:
                prefixes[f"{prefix}{row}/"] = None
        return ListedDir(_as_presented(listed), (*prefixes, *foreign))

    async def _rows(self, stored_prefixes: list[str], leading: ChunkCoords) -> AsyncIterator[int]:
        """Yield the positions along the dimension behind ``leading`` where the shards below some prefixes hold chunks, or could hold
        chunks if their index is damaged.
        """
        axis = len(leading)
        for below in stored_prefixes:
            async for shards in gathered((shard async for _, shard in self.stored(below) if shard is not None), _INDICES_AT_ONCE):
                for shard, index in await self._current_indices(shards):
                    if isinstance(index, ShardStoreError):
                        per_shard = shard.layout.grid.chunks_per_shard[axis]
                        for row in range(shard.coords[axis] * per_shard, (shard.coords[axis] + 1) * per_shard):
                            yield row
                    elif index is not None:
                        for row in rows_of(shard.layout, shard.coords, index.index, leading):
                            yield row


async def directly_below(prefix: str, values: AsyncIterator[ListedValue]) -> ListedDir:
    """Return the values and prefixes directly below ``prefix``, out of all values below it."""
    here: list[ListedValue] = []
    prefixes: dict[str, None] = {}
    async for value in values:
        name, slash, _ = value.key[len(prefix) :].partition("/")
        if slash:
            prefixes[prefix + name + "/"] = None
        else:
            here.append(value)
    return ListedDir(tuple(here), tuple(prefixes))


def _cuts(prefix: str) -> list[tuple[str, str]]:
    """Return ``(path, rest)`` of every array into whose chunk keys ``prefix`` could reach."""
    return [(path, rest) for path, rest in ancestors(prefix) if looks_like_chunk_prefix(rest)]


def _listed(found: ObjectInfo) -> ListedValue:
    """Return an object that is presented unchanged, or a document, whose presented size and version are known only once it is read."""
    if metadata_path(found.key) is not None:
        return ListedValue(found.key, None)
    return ListedValue(found.key, found.nbytes if found.nbytes != UNKNOWN_NBYTES else None, found.generation)


def _batch(found: list[ObjectInfo]) -> ListedBatch:
    listed = list(map(_listed, found))
    return ListedBatch([value.key for value in listed], [value.nbytes for value in listed], lambda: [value.version for value in listed])


def _as_presented(listed: DirListing) -> tuple[ListedValue, ...]:
    return tuple(map(_listed, listed.objects))


def _laid_out_by(node: Node | None, shard: ShardRead) -> ShardRead | None:
    """Return the same object as a shard of the present array, or ``None`` if it is no shard of it."""
    if node is None or node.layout is None:
        return None
    coords = node.coords_of(shard.key[len(join(node.path, "")) :])
    return None if coords is None else ShardRead(node, node.layout, coords, shard.key)


def _common(a: str, b: str) -> str:
    """Return the longest common beginning."""
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return a[:n]
