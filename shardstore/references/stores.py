"""A Zarr hierarchy as the source of references: native shards, shards in shards, the 2022 draft, and chunks that are objects.

One listing finds all objects; the index of each shard is read by one request, those of the shards inside it by one more. Bytes of chunks
are only read to be written into the set itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shardstore._sync import run_sync
from shardstore.engine.engine import Engine
from shardstore.engine.metadata.hierarchy import Node
from shardstore.errors import Conflict, Corruption, NotFound
from shardstore.format.draft2022.keys import array_document_key, data_key
from shardstore.format.json_text import JsonObject
from shardstore.format.metadata_v3 import METADATA_NAME, is_array, parse_layout
from shardstore.format.presentation import levels_of
from shardstore.format.references.documents import DocumentFlavour, NodeDocuments
from shardstore.format.references.parquet import MISSING, MOST_CHUNKS, ReferenceRows
from shardstore.format.references.pins import PinnedObject
from shardstore.format.shard_index import IndexFormat
from shardstore.format.store_keys import join
from shardstore.format.v2.keys import document_key
from shardstore.maintenance.nodes import ArrayPlan, plan_v2_array
from shardstore.maintenance.walk import Walk
from shardstore.model.chunks import strides
from shardstore.model.coalescing import UPKEEP_LIMITS, coalesce_all
from shardstore.model.containers import batched
from shardstore.model.generation import Generation
from shardstore.model.ranges import EVERYTHING, ByteRange
from shardstore.references.batches import ReferenceBatch, ReferencedArray, ReferenceSource, ReferredObject, Shards, read_nodes
from shardstore.references.sets import OlderSet
from shardstore.storage.base import Found, Read, ReadOutcome, Storage, document_read, read_one, unless_failed
from shardstore.storage.local.versions import is_unsettled
from shardstore.stored.detect import is_draft
from shardstore.stored.draft2022.documents import scalar_key, scalar_keys

Numbers = npt.NDArray[np.int64]

_INDEX_BYTES_AT_ONCE = 8 * 2**20
_SHARDS_AT_ONCE = 256
_OBJECTS_AT_ONCE = 4096
_TRIES = 4

OnError = Literal["raise", "skip"]


@dataclass(frozen=True, slots=True)
class ArrayChoice:
    """How one array is referred to: ``whole_shards``, instead of their chunks; chunks of up to ``inline_nbytes`` are in the set itself."""

    whole_shards: bool = False
    inline_nbytes: int = 0
    flavour: DocumentFlavour | None = None
    """The flavour of its documents, if it has one of its own."""


@dataclass(slots=True)
class _Objects:
    """The objects of one array as they were listed, at ``coords`` of the grid of objects."""

    plan: ArrayPlan
    coords: list[tuple[int, ...]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)

    def sorted_by(self, order: Sequence[int]) -> _Objects:
        return _Objects(
            self.plan,
            [self.coords[i] for i in order],
            [self.keys[i] for i in order],
            [self.nbytes[i] for i in order],
            [self.tokens[i] for i in order],
        )


@dataclass(frozen=True, slots=True)
class ShardIndices:
    """The references into one version of a shard: numbers of chunks in the array's grid, offsets and lengths, ``(n,)`` each."""

    key: str
    generation: Generation
    nbytes: int
    chunks: Numbers
    offsets: Numbers
    lengths: Numbers


# -- arrays ------------------------------------------------------------------------------------------------------------


class StoredArray(ReferencedArray):
    """An array whose objects lie in a store."""

    def __init__(self, store: StoreReader, found: _Objects, stored: JsonObject | None, node: NodeDocuments, choice: ArrayChoice) -> None:
        plan = found.plan
        levels = [] if stored is None or choice.whole_shards else levels_of(stored)[:-1]
        layouts = [layout for level in levels if not isinstance(layout := parse_layout(level), str)]
        self._formats = [layout.index_format for layout in layouts]
        """Of the index of a stored object, then of those of the shards inside."""
        self._per_object = tuple(map(prod, zip(*(f.chunks_per_shard for f in self._formats), strict=True))) or (1,) * len(plan.shape)
        super().__init__(plan.path, node, layouts[-1].chunk_grid_shape if layouts else plan.object_grid)
        self.flavour = choice.flavour
        self._store = store
        self._choice = choice
        self._strides = strides(self.chunk_grid)
        inside = [i for i, coords in enumerate(found.coords) if plan.holds(coords)]
        order = np.argsort(self._numbers([found.coords[i] for i in inside]), kind="stable").tolist()
        self._objects = found.sorted_by([inside[i] for i in order])
        self._firsts = self._numbers(self._objects.coords)
        """The number of the first chunk of each object, ascending."""

    @property
    def shards(self) -> Shards | None:
        return Shards(self._per_object, self._shard_url) if len(self._formats) == 1 else None

    def _shard_url(self, coords: Sequence[str]) -> str:
        encoding = self._objects.plan.key_encoding
        parts = (["c"] if encoding.name == "default" else []) + list(coords)
        return self._store.url_of(join(self._objects.plan.path, encoding.separator.join(parts)))

    def _numbers(self, coords: Sequence[tuple[int, ...]]) -> Numbers:
        """Return the number of the first chunk of each object."""
        positions = np.array(coords, dtype=np.int64).reshape(len(coords), len(self.chunk_grid))
        return positions @ (np.array(self._per_object, dtype=np.int64) * self._strides)

    @cached_property
    def _lasts(self) -> Numbers:
        """The number of the last chunk of each object that lies in the grid."""
        positions = np.array(self._objects.coords, dtype=np.int64).reshape(len(self._firsts), len(self.chunk_grid))
        corners = (positions + 1) * np.array(self._per_object, dtype=np.int64) - 1
        return np.minimum(corners, np.array(self.chunk_grid, dtype=np.int64) - 1) @ self._strides

    def window(self, start: int, most: int) -> range:
        later = self._firsts[self._lasts >= start]
        if not len(later):
            return range(0)
        size = prod(self.chunk_grid)
        first = max(start, int(later[0]))
        slab = self._per_object[0] * int(self._strides[0]) if self.chunk_grid else size
        stop = min(size, first + most)
        if stop < size and stop // slab * slab > first:  # no shard reaches over the end of a slab
            stop = stop // slab * slab
        return range(first, stop)

    def batches(self, start: int, stop: int) -> Iterator[ReferenceBatch]:
        wanted = np.flatnonzero((self._firsts < stop) & (self._lasts >= start)).tolist()
        if self._formats:
            index_nbytes = sum(f.nbytes for f in self._formats)
            for some in batched(wanted, max(1, min(_SHARDS_AT_ONCE, _INDEX_BYTES_AT_ONCE // index_nbytes))):
                yield from self._shard_references(some)
        else:
            for some in batched(wanted, _OBJECTS_AT_ONCE):
                yield self._object_references(some)

    def _object_references(self, numbers: Sequence[int]) -> ReferenceBatch:
        """Return references to whole objects."""
        found = self._objects
        inline = {i: b"" for i, number in enumerate(numbers) if not found.nbytes[number]}
        small = [i for i, number in enumerate(numbers) if 0 < found.nbytes[number] <= self._choice.inline_nbytes]
        inline |= zip(small, run_sync(self._store.contents([found.keys[numbers[i]] for i in small])), strict=True)
        self._find_tokens(numbers)
        objects = [ReferredObject(found.keys[number], found.tokens[number], found.nbytes[number]) for number in numbers]
        urls, generations = self._store.referred(objects)
        target = np.arange(len(numbers), dtype=np.int32)
        target[list(inline)] = MISSING
        zeros = np.zeros(len(numbers), dtype=np.int64)
        return ReferenceBatch(self._firsts[numbers], ReferenceRows(urls, target, zeros, zeros, inline, generations), objects)

    def objects(self) -> dict[str, str | None]:
        """Return the token of each object of the array, by key: as listed, or, where the listing does not show any, as looked up now."""
        self._find_tokens(range(len(self._objects.keys)))
        return dict(zip(self._objects.keys, self._objects.tokens, strict=True))

    def _find_tokens(self, numbers: Sequence[int]) -> None:
        """Ask for the versions of objects of which the listing did not show any."""
        found = self._objects
        unknown = [number for number in numbers if found.tokens[number] is None] if self._store.is_pinned else []
        for number, token in zip(unknown, run_sync(self._store.tokens([found.keys[n] for n in unknown])), strict=True):
            found.tokens[number] = token

    def _shard_references(self, numbers: Sequence[int]) -> Iterator[ReferenceBatch]:
        """Yield the references into each shard, with the chunks that go into the set."""
        known = {n: batch for n in numbers if (batch := self._known(n)) is not None} if self._store.reuse is not None else {}
        wanted = [n for n in numbers if n not in known]
        places = [(self._objects.keys[n], self._objects.coords[n]) for n in wanted]
        read = dict(zip(wanted, run_sync(self._store.shards(self, places, self._choice.inline_nbytes)), strict=True))
        for number in numbers:
            if (batch := known.get(number)) is not None:
                yield batch
            if (found := read.get(number)) is None:
                continue
            shard, inline = found
            objects = [ReferredObject(shard.key, shard.generation.token, shard.nbytes)]
            urls, generations = self._store.referred(objects)
            target = np.zeros(len(shard.chunks), dtype=np.int32)
            target[list(inline)] = MISSING
            yield ReferenceBatch(shard.chunks, ReferenceRows(urls, target, shard.offsets, shard.lengths, inline, generations), objects)

    def _known(self, number: int) -> ReferenceBatch | None:
        """Return the references into a shard that has not changed since an older set was written."""
        key, token, nbytes = self._objects.keys[number], self._objects.tokens[number], self._objects.nbytes[number]
        corners = np.array([self._objects.coords[number]], dtype=np.int64) * np.array(self._per_object, dtype=np.int64)
        for level, index_format in enumerate(self._formats):
            corners, _, _ = self._located(level, corners, np.zeros((len(corners), prod(index_format.chunks_per_shard), 2), dtype=np.int64))
        assert self._store.reuse is not None
        batch = self._store.reuse.references(self.path, self.chunk_grid, key, token, corners @ self._strides)
        if batch is None:
            return None
        objects = [ReferredObject(key, token, nbytes)]
        urls, generations = self._store.referred(objects)  # the store, or the set, may have another place by now
        return ReferenceBatch(batch.chunks, replace(batch.rows, targets=urls, generations=generations), objects)

    # -- indices -----------------------------------------------------------------------------------------------------------

    @property
    def index_format(self) -> IndexFormat:
        """The format of the index of a stored object."""
        return self._formats[0]

    async def expand(
        self, coords: tuple[int, ...], outcome: Found, read: Callable[[Read], Coroutine[Any, Any, Found]], key: str
    ) -> ShardIndices:
        """Return the references into a shard from its index, and those of shards inside. Raises ``Corruption`` if one is damaged."""
        first = tuple(c * p for c, p in zip(coords, self._per_object, strict=True))
        entries = _entries(self._formats[0], outcome.buffers[0], outcome.nbytes, outcome.nbytes)
        corners = np.array([first], dtype=np.int64)
        chunks, offsets, lengths = self._located(0, corners, entries[None])
        for level, index_format in enumerate(self._formats[1:], 1):
            some = lengths > 0
            corners, offsets, lengths = chunks[some], offsets[some], lengths[some]
            if not len(offsets):
                chunks = corners
                break
            ranges = [_index_range(index_format, int(o), int(n)) for o, n in zip(offsets, lengths, strict=True)]
            answer = await read(Read(key, tuple(ranges), outcome.generation))
            inner = np.stack([_entries(index_format, buffer, int(n), int(n)) for buffer, n in zip(answer.buffers, lengths, strict=True)])
            inner[..., 0] += np.where(inner[..., 1] < 0, 0, offsets[:, None])
            chunks, offsets, lengths = self._located(level, corners, inner)
        return ShardIndices(key, outcome.generation, outcome.nbytes, chunks @ self._strides, offsets, lengths)

    def _located(self, level: int, corners: Numbers, entries: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Return the first chunks, ``(n, ndim)``, offsets and lengths of the entries, ``(shards, slots, 2)``, that exist and lie in the
        grid; ``corners`` are the first chunks of the shards, ``(shards, ndim)``.
        """
        steps = self._slots(level)
        positions = corners[:, None, :] + steps[None]
        inside = (positions < np.array(self.chunk_grid, dtype=np.int64)).all(axis=-1) & (entries[..., 1] >= 0)
        return positions[inside], entries[inside][:, 0], entries[inside][:, 1]

    def _slots(self, level: int) -> Numbers:
        """Return the first chunk of each slot of a shard at this level, counted from the shard's own first one, ``(nslots, ndim)``."""
        if level not in self._slots_known:
            counts = self._formats[level].chunks_per_shard
            within = tuple(map(prod, zip(*(f.chunks_per_shard for f in self._formats[level + 1 :]), strict=True))) or (1,) * len(counts)
            positions = np.indices(counts, dtype=np.int64).reshape(len(counts), prod(counts)).T
            self._slots_known[level] = positions * np.array(within, dtype=np.int64)
        return self._slots_known[level]

    @cached_property
    def _slots_known(self) -> dict[int, Numbers]:
        return {}


def _entries(index_format: IndexFormat, data: memoryview, object_nbytes: int, limit: int) -> Numbers:
    """Return the decoded entries, ``(nslots, 2)``; length -1 of one that is empty. Raises ``Corruption``."""
    index = index_format.decode(index_format.slice_from(data, object_nbytes))
    wrong = index.invalid(limit)
    if wrong.any():
        index.location(int(np.flatnonzero(wrong)[0]), limit)
    entries = index.flat.astype(np.int64)  # those that fit the object fit int64 as well; the empty marker becomes -1
    entries[entries[:, 1] < 0] = -1
    return entries


def _index_range(index_format: IndexFormat, offset: int, nbytes: int) -> ByteRange:
    """Return the range that holds the index of a shard at this place of an object. Raises ``Corruption`` if the shard is too short."""
    if nbytes < index_format.nbytes:
        raise Corruption(f"a shard inside it has {nbytes} bytes, its index alone needs {index_format.nbytes}")
    start = offset if index_format.location == "start" else offset + nbytes - index_format.nbytes
    return ByteRange(start, start + index_format.nbytes)


# -- the store -----------------------------------------------------------------------------------------------------------


class StoreReader:
    """Reads indices and chunks of one store, and notes what it refers to."""

    def __init__(self, storage: Storage, source: ReferenceSource, *, on_error: OnError, pinned: bool, reuse: OlderSet | None) -> None:
        self.storage = storage
        self.reuse = reuse
        self._source = source
        self._on_error = on_error
        self.is_pinned = pinned

    def url_of(self, key: str) -> str:
        return self._source.url_of(key)

    def referred(self, objects: Sequence[ReferredObject]) -> tuple[list[str], dict[str, str]]:
        """Return the URLs of objects, and the tokens by URL; note them as pins."""
        urls: list[str] = []
        generations: dict[str, str] = {}
        for key, token, nbytes in objects:
            url = self._source.url_of(key, token)
            urls.append(url)
            if token is not None and self.is_pinned:
                stored = self._source.stored_key(key)
                self._source.pins[key] = PinnedObject(key, token, nbytes, "" if stored == key else stored)
                if self._source.is_pinned and not self._source.suffix_of(self._source.stored_key(key), token):
                    generations[url] = token
        return urls, generations

    async def shards(
        self, array: StoredArray, wanted: Sequence[tuple[str, tuple[int, ...]]], inline_nbytes: int
    ) -> list[tuple[ShardIndices, dict[int, bytes]] | None]:
        """Return the references into each shard, and by row the bytes that go into the set; ``None`` of one that is gone or skipped."""
        request = (array.index_format.request(),)
        found: list[tuple[ShardIndices, dict[int, bytes]] | None] = [None] * len(wanted)
        pending = list(range(len(wanted)))
        for _ in range(_TRIES):
            outcomes = await self.storage.read([Read(wanted[i][0], request) for i in pending]) if pending else []
            self._source.index_requests += len(pending)
            results = await asyncio.gather(
                *(self._shard(array, *wanted[i], outcome, inline_nbytes) for i, outcome in zip(pending, outcomes, strict=True)),
                return_exceptions=True,
            )
            again: list[int] = []
            for i, result in zip(pending, results, strict=True):
                if isinstance(result, _Moved):
                    again.append(i)
                elif isinstance(result, Corruption):
                    self._damaged(wanted[i][0], array.path, result)
                elif isinstance(result, BaseException):
                    raise result
                else:
                    found[i] = result
            if not again:
                return found
            pending = again
        raise Conflict(
            f"the shard {wanted[pending[0]][0]!r} of {self.storage.url} kept changing while references to it were written: try again later"
        )

    def _damaged(self, key: str, path: str, error: Corruption) -> None:
        if self._on_error == "raise":
            raise Corruption(
                f"shard {key!r} of array {path!r} is damaged: {error}. shardstore repair may repair it; on_error='skip' leaves it out"
            ) from error
        self._source.left_out[key] = str(error)

    async def _shard(
        self, array: StoredArray, key: str, coords: tuple[int, ...], outcome: ReadOutcome, inline_nbytes: int
    ) -> tuple[ShardIndices, dict[int, bytes]] | None:
        outcome = unless_failed(outcome)
        if not isinstance(outcome, Found):
            return None
        if is_unsettled(outcome.generation.token):
            await self._found(Read(key, (), outcome.generation))  # waits until the version has a name that lasts
            raise _Moved
        shard = await array.expand(coords, outcome, self._found, key)
        inline = {int(row): b"" for row in np.flatnonzero(shard.lengths == 0)}
        small = np.flatnonzero((shard.lengths > 0) & (shard.lengths <= inline_nbytes))
        if len(small):
            starts, lengths = shard.offsets[small], shard.lengths[small]
            coalesced = coalesce_all(starts, starts + lengths, UPKEEP_LIMITS)
            answer = await self._found(Read(key, coalesced.requests, shard.generation))
            inline |= zip(small.tolist(), map(bytes, coalesced.cut(answer.buffers)), strict=True)
        return shard, inline

    async def _found(self, read: Read) -> Found:
        """Return what is read of one version. Raises ``_Moved`` if it is gone."""
        outcome = await read_one(self.storage, read)
        if not isinstance(outcome, Found):
            raise _Moved
        return outcome

    async def tokens(self, keys: Sequence[str]) -> list[str | None]:
        """Return the version of each object that lasts; ``None`` if there is none, or no object."""
        found: list[str | None] = []
        for some in batched(keys, _SHARDS_AT_ONCE):
            infos = await asyncio.gather(*map(self.storage.stat, some))
            for key, info in zip(some, infos, strict=True):
                if info is not None and info.generation is not None and is_unsettled(info.generation.token):
                    await self.storage.read([Read(key, (), info.generation)])  # waits until the version has a name that lasts
                    info = await self.storage.stat(key)
                found.append(None if info is None or info.generation is None else info.generation.token)
        return found

    async def contents(self, keys: Sequence[str]) -> list[bytes]:
        """Return whole objects, which are few and small."""
        found: list[bytes] = []
        for key, outcome in zip(keys, await self.storage.read([Read(key, (EVERYTHING,)) for key in keys]) if keys else (), strict=True):
            outcome = unless_failed(outcome)
            if not isinstance(outcome, Found):
                raise Conflict(
                    f"the object {key!r} of {self.storage.url} was removed while references to it were written: write the set again"
                )
            found.append(bytes(outcome.buffers[0]))
        return found


class _Moved(Exception):
    """A shard was replaced between two reads of it."""


# -- opening -------------------------------------------------------------------------------------------------------------


def store_source(
    storage: Storage,
    base: str,
    choose: Callable[[str], ArrayChoice | None],
    *,
    pinned: bool = True,
    on_error: OnError = "raise",
    reuse: OlderSet | None = None,
) -> ReferenceSource:
    """Return the hierarchy in ``storage`` as a source. ``base`` comes in front of the keys in URLs; ``choose`` says how each array is
    referred to, ``None`` leaves it out. What ``reuse`` knows is not read again.

    Raises:
        NotFound: there is no Zarr hierarchy.
        Corruption: a metadata document cannot be read.
        StorageError: a request failed.
    """
    engine = Engine(storage)
    source = ReferenceSource(storage.url, {}, [], base_url=base, is_pinned=pinned, storage=engine.storage)
    reader = StoreReader(engine.storage, source, on_error=on_error, pinned=pinned, reuse=reuse)
    documents, plans, objects, v2_keys = _hierarchy(engine)
    nodes = {path: NodeDocuments(levels_of(document)[-1], is_array=is_array(document)) for path, document in documents.items()}
    v2_nodes = run_sync(read_nodes(engine.storage, [key for key in v2_keys if document_key(key) is not None]))
    nodes |= {path: node for path, node in v2_nodes.items() if path not in nodes}  # where there are documents of both, that of v3 counts
    if not nodes:
        raise NotFound(f"there is no Zarr hierarchy at {storage.url}: check the address")

    def array_of(path: str, node: NodeDocuments) -> StoredArray | str | None:
        if (choice := choose(path)) is None:
            return None
        plan = plans.get(path) or (None if node.v2 is None else plan_v2_array(path, node.v2))
        if plan is None:
            return "its metadata do not say where its chunks are"
        if prod(plan.chunk_grid) >= MOST_CHUNKS:
            return f"its grid has {prod(plan.chunk_grid):,} chunks, too many to be numbered"
        stored = documents.get(path)
        shown = NodeDocuments(stored, is_array=True) if choice.whole_shards and stored is not None else node
        return StoredArray(reader, objects.get(path) or _Objects(plan), stored, shown, choice)

    source.add(nodes, array_of)
    run_sync(engine.storage.read([document_read(METADATA_NAME)]))  # which finds out what is stored
    if is_draft(engine.storage):
        places = run_sync(_scalar_places(storage, [array.path for array in source.arrays if not array.chunk_grid]))
        source.stored_key = lambda key: places.get(key) or data_key(key) or key
    return source


def _hierarchy(engine: Engine) -> tuple[dict[str, JsonObject], dict[str, ArrayPlan], dict[str, _Objects], list[str]]:
    """Return what one listing shows of a hierarchy: by path, the stored documents of v3, the plans and the objects of arrays; and the keys
    of documents of v2. Raises ``Corruption`` if the document of a node cannot be read.
    """
    documents: dict[str, JsonObject] = {}
    unreadable: list[str] = []

    def seen(node: Node, document: JsonObject | None) -> None:
        if node.kind == "other":
            unreadable.append(node.path)
        if document is not None:
            documents[node.path] = document

    walk = Walk(engine, "", seen)
    objects: dict[str, _Objects] = {}
    v2_keys: list[str] = []
    for located in walk.located():
        if located.role == "array" and located.plan is not None:
            found = objects.setdefault(located.plan.path, _Objects(located.plan))
            found.coords.append(located.coords)
            found.keys.append(located.info.key)
            found.nbytes.append(located.info.nbytes)
            found.tokens.append(None if located.info.generation is None else located.info.generation.token)
        elif located.role == "v2-document":
            v2_keys.append(located.info.key)
    if unreadable:
        named = ", ".join(map(repr, sorted(unreadable)[:5]))
        raise Corruption(f"the metadata of {named} in {engine.storage.url} cannot be read: run shardstore verify")
    return documents, {plan.path: plan for plan in walk.plans()}, objects, v2_keys


async def _scalar_places(storage: Storage, paths: Sequence[str]) -> dict[str, str]:
    """Return the stored keys of the chunks of 0-d arrays in a hierarchy of the draft, by canonical key."""
    places: dict[str, str] = {}
    for path, outcome in zip(paths, await storage.read([document_read(array_document_key(path)) for path in paths]), strict=True):
        if isinstance(outcome, Found) and (keys := scalar_keys(path, outcome)) is not None:
            first, second = keys
            places[scalar_key(path)] = first if await storage.stat(first) is not None else second
    return places
