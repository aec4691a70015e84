"""The views of a store that are served, by their first path segment, which is also the name of an S3 bucket."""

from __future__ import annotations

import asyncio
import math
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol

from shardstore._sync import run_sync
from shardstore.adapters.handle import Handle
from shardstore.engine.keyed_store import TickBatch
from shardstore.engine.metadata.hierarchy import Hierarchy
from shardstore.engine.reading.listing import ListedValue
from shardstore.errors import NotFound, ShardStoreError, Unsupported
from shardstore.format.chunk_keys import ChunkKeyEncoding
from shardstore.format.metadata_v3 import ArrayLayout, PlainArray
from shardstore.format.store_keys import ancestors, possible_owners
from shardstore.model.generation import Generation
from shardstore.presented.flavours import flavour_of
from shardstore.presented.view import Canonical, PresentedFlavour, View
from shardstore.server.read_ahead import ReadAhead
from shardstore.storage.base import UNKNOWN_NBYTES, Absent, Found, ObjectInfo, Read, ReadOutcome, Storage, unless_failed
from shardstore.storage.inferred_versions import is_unversioned
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.opening.snapshot_place import SnapshotPlace
from shardstore.storage.wrappers import innermost
from shardstore.stored.detect import DetectedStorage

_LIKE_V2_CHUNK = re.compile(r"[0-9]+(\.[0-9]+)+", re.ASCII)
"""The last segment of a chunk's key in an array of Zarr v2, as no directory is called."""

_MOST_ETAGS = 10_000
_ETAG_NBYTES = 12
_HOLD_RATIO = 1 / 8
_MOST_HOLD_SECONDS = 0.005
_LEAST_HOLD_SECONDS = 0.001
_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class Listed:
    """The direct children of a directory: values with their full keys, and full prefixes ending in ``/``; each in ascending order."""

    values: tuple[ListedValue, ...]
    prefixes: tuple[str, ...]


class Source(Protocol):
    """Where the values of a bucket come from."""

    async def read(self, reads: Sequence[Read]) -> Sequence[ReadOutcome]:
        """Read as ``Storage.read`` does."""
        ...

    async def list_dir(self, prefix: str, *, exact: bool) -> Listed:
        """List a directory; unless ``exact``, prefixes of chunks that do not exist may be among the others."""
        ...

    async def list_below(self, prefix: str, most: int) -> Listed | None:
        """Return all keys below a directory, however deep, as ``values``; ``None`` if they are more than so many."""
        ...

    async def is_directory(self, key: str, *, looks: bool) -> bool:
        """Return whether there is a directory at a key that has no value. For a chunk that costs no request, nor for the beginning of the
        keys of chunks, which may be a directory in which no chunk exists. Others are listed if this ``looks`` for them, or else are none.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PresentedSource:
    """The values of an engine, or of a view of it."""

    store: Any  # Presented; both have these methods

    async def read(self, reads: Sequence[Read]) -> Sequence[ReadOutcome]:
        found: list[ReadOutcome] = await self.store.read_versions(reads)
        return found

    async def list_dir(self, prefix: str, *, exact: bool) -> Listed:
        listed = await self.store.list_dir(prefix, approximate=not exact)
        return Listed(tuple(sorted(listed.values, key=_key)), tuple(sorted(listed.prefixes)))

    async def list_below(self, prefix: str, most: int) -> Listed | None:
        found: list[ListedValue] = []
        async for batch in self.store.list_batches(prefix):
            found += batch.values(versions=True)
            if len(found) > most:
                return None
        return Listed(tuple(sorted(found, key=_key)), ())

    async def is_directory(self, key: str, *, looks: bool) -> bool:
        canonical = key
        if isinstance(self.store, View):
            (meaning,) = await self.store.flavour.meanings(self.store, [key], for_write=False)
            if not isinstance(meaning, Canonical):
                return False
            canonical = meaning.key
        as_v2 = isinstance(self.store, View)  # the other flavours have no such prefix below the path of an array
        return await _is_directory(self.store.storage, key, self.store.hierarchy, canonical, looks=looks, as_v2=as_v2)


@dataclass(frozen=True, slots=True, eq=False)
class StoredSource:
    """The objects of a storage as they lie; ``hierarchy`` tells which of them are shards."""

    storage: Storage
    hierarchy: Hierarchy

    async def read(self, reads: Sequence[Read]) -> Sequence[ReadOutcome]:
        return await self.storage.read(reads)

    async def list_dir(self, prefix: str, *, exact: bool) -> Listed:
        listed = await self.storage.list_dir(prefix)
        return Listed(tuple(sorted(map(_told, listed.objects), key=_key)), tuple(sorted(listed.prefixes)))

    async def list_below(self, prefix: str, most: int) -> Listed | None:
        found: list[ListedValue] = []
        async for info in self.storage.list(prefix):
            found.append(_told(info))
            if len(found) > most:
                return None
        return Listed(tuple(sorted(found, key=_key)), ())

    async def is_directory(self, key: str, *, looks: bool) -> bool:
        try:
            await self.hierarchy.locate(
                [key], for_write=False
            )  # reads the documents of arrays whose shard it may be, at most once a second
        except ShardStoreError:
            return False
        return await _is_directory(self.storage, key, self.hierarchy, key, looks=looks, as_v2=False)


async def _is_directory(storage: Storage, key: str, hierarchy: Hierarchy, canonical: str, *, looks: bool, as_v2: bool) -> bool:
    """Return what ``Source.is_directory`` does, by what the hierarchy knows of the key."""
    if hierarchy.owner(possible_owners(canonical)) is not None:
        return False
    for path, rest in ancestors(canonical):
        node = hierarchy.known(path)
        if node is not None and node.array is not None and _begins_chunk_keys(node.array, f"{rest}/", as_v2=as_v2):
            return True
    if not looks or _LIKE_V2_CHUNK.fullmatch(key.rpartition("/")[2]) is not None:
        return False
    listed = await storage.list_dir(
        f"{key}/"
    )  # one request; but for the chunks of arrays, all views have the directories of what is stored
    return bool(listed.objects or listed.prefixes)


def _begins_chunk_keys(array: ArrayLayout | PlainArray, prefix: str, *, as_v2: bool) -> bool:
    """Return whether keys of several chunks in the grid of an array begin with this, relative to the array; ``as_v2``: those of Zarr v2."""
    encoding = ChunkKeyEncoding("v2", array.key_encoding.separator) if as_v2 else array.key_encoding
    leading = encoding.leading_coords(prefix, array.ndim)
    if len(leading) >= array.ndim or encoding.prefix_of(leading, array.ndim) != prefix:
        return False
    return all(at * chunk < length for at, chunk, length in zip(leading, array.chunk_shape, array.shape, strict=False))


def _key(value: ListedValue) -> str:
    return value.key


def _told(info: ObjectInfo) -> ListedValue:
    return ListedValue(info.key, None if info.nbytes == UNKNOWN_NBYTES else info.nbytes, info.generation)


class Moved(Exception):
    """A value kept changing while it was read."""


class GatheredReads(TickBatch[Read, ReadOutcome]):
    """Reads that are carried out together: those of one tick of the loop, and where reading takes long, those that arrive soon after.

    A batch waits for an eighth of the time that the last one took, at most 5 ms: so the chunks that the connections of one client ask for
    become few requests to a distant storage. On a disk, which answers sooner than that would be worth, nothing waits.
    """

    def __init__(self, run: Callable[[Sequence[Read]], Awaitable[Sequence[ReadOutcome]]]) -> None:
        super().__init__(self._timed)
        self._carries_out = run
        self._took_seconds = 0.0

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        seconds = min(_MOST_HOLD_SECONDS, self._took_seconds * _HOLD_RATIO)
        if seconds < _LEAST_HOLD_SECONDS:
            super()._begin(loop)
        else:
            loop.call_later(seconds, self._flush)

    async def _timed(self, reads: Sequence[Read]) -> Sequence[ReadOutcome]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        outcomes = await self._carries_out(reads)
        self._took_seconds = loop.time() - began
        return outcomes


class Bucket:
    """One view of a store. Reads that arrive together are carried out together."""

    def __init__(self, name: str, words: str, source: Source, storage: Storage, clock: Callable[[], float] = time.time) -> None:
        """``storage`` is what lies below; the versions that it gives decide whether values have entity tags."""
        self.name = name
        self.words = words
        """What it shows, for people."""
        self._source = source
        self._storage = storage
        self._clock = clock
        self._reads = GatheredReads(self._run)
        self._generations: dict[str, Generation] = {}

    def __repr__(self) -> str:
        return f"Bucket({self.name!r})"

    async def _run(self, reads: Sequence[Read]) -> Sequence[ReadOutcome]:
        return await self._source.read(reads)

    async def read(self, read: Read) -> ReadOutcome:
        """Read one value, whose key has been checked.

        Raises:
            ShardStoreError: it could not be read.
        """
        outcome = await self._reads.submit(read)
        return unless_failed(outcome)

    async def look(self, key: str) -> Found | None:
        """Return version and size of a value, without its bytes; ``None`` if there is none. Raises as ``read``."""
        for _ in range(_ATTEMPTS):
            outcome = await self.read(Read(key, ()))
            if isinstance(outcome, Found):
                return outcome
            if isinstance(outcome, Absent):
                return None
        raise Moved(key)

    async def list_dir(self, prefix: str, *, exact: bool) -> Listed:
        """List the directory ``prefix``, which is ``""`` or ends with ``/``; see ``Source.list_dir``."""
        return await self._source.list_dir(prefix, exact=exact)

    async def list_below(self, prefix: str, most: int) -> Listed | None:
        """List all below a directory, if it is not too much; see ``Source.list_below``."""
        return await self._source.list_below(prefix, most)

    async def is_directory(self, key: str, *, looks: bool) -> bool:
        """Return whether a key without a value is that of a directory; see ``Source.is_directory``."""
        return await self._source.is_directory(key, looks=looks)

    async def look_at_each(self, keys: Sequence[str]) -> Mapping[str, Found]:
        """Return version and size of values; those that do not exist, or cannot be shown, are left out."""

        async def one(key: str) -> Found | None:
            try:
                return await self.look(key)
            except (ShardStoreError, Moved):
                return None

        found = await asyncio.gather(*map(one, keys))
        return {key: value for key, value in zip(keys, found, strict=True) if value is not None}

    def modified(self, generation: Generation | None) -> int:
        """Return when a version was stored, in whole seconds since the epoch: the time of the object that it lies in. Now, where the
        storage does not say so, or says a time to come: a client that compares times fetches the value again.
        """
        now = self._clock()
        stored = None if generation is None else generation.modified
        return int(now if stored is None or not 0 <= stored <= now else stored)

    def etag(self, generation: Generation) -> str | None:
        """Return the strong entity tag of a version of a value: equal in every process, and it tells nothing of the storage. ``None`` if
        equal versions do not promise equal bytes. It has the form of an upload in one part: s3cmd takes others for MD5 sums.
        """
        if not self._storage.capabilities.pinned_reads or is_unversioned(generation):
            return None
        token = generation.token.encode(errors="surrogatepass")
        etag = f'"{blake2b(token, digest_size=_ETAG_NBYTES, person=self.name.encode()).hexdigest()}-1"'
        self._generations.pop(etag, None)  # the last that were used are kept
        self._generations[etag] = generation
        if len(self._generations) > _MOST_ETAGS:
            del self._generations[next(iter(self._generations))]
        return etag

    def listed_etag(self, generation: Generation | None) -> str:
        """Return the entity tag of a version for a listing, where clients of S3 cannot do without: without a version, one that equals no
        other.
        """
        etag = None if generation is None else self.etag(generation)
        return etag or f'"{secrets.token_hex(_ETAG_NBYTES)}-1"'

    def generation(self, etag: str) -> Generation | None:
        """Return the version that an entity tag was made for, if this process has made it lately."""
        return self._generations.get(etag)


@dataclass(frozen=True, slots=True)
class Served:
    """A store as it is served."""

    handle: Handle
    buckets: Mapping[str, Bucket]
    absent: Mapping[str, str] = field(default_factory=dict)
    """Why buckets are not there, by name."""
    snapshot: SnapshotPlace | None = None

    @property
    def url(self) -> str:
        """The URL of the store, without credentials."""
        return self.handle.url


async def _check_there(storage: Storage) -> None:
    """Check that there is anything at all, where that can be listed. Raises ``NotFound``."""
    if storage.kind == "http":
        return
    try:
        listed = await storage.list_dir("")
    except Unsupported:
        return
    if not listed.objects and not listed.prefixes:
        hint = ", and what is before the @ is no versioned store that can be read" if "@" in storage.url else ""
        raise NotFound(f"there is nothing at {storage.url}{hint}: check the address")


def _reading_ahead(handle: Handle, max_age: float) -> Handle:
    """Return a handle on the same store that reads shards ahead, if values may be kept so many seconds, or for ever."""
    storage = handle.engine.canonical.storage
    keep_seconds = math.inf if storage.capabilities.static else max_age
    if not keep_seconds or isinstance(innermost(storage), LocalStorage):
        return handle
    inner = storage.inner if isinstance(storage, DetectedStorage) else storage
    return Handle.make(ReadAhead(inner, keep_seconds), None, {})


def open_served(
    url: Any, storage_options: Mapping[str, Any] | None, *, stored: bool = True, max_age: float = 0, follow_links: bool = False
) -> Served:
    """Open a store, or a snapshot of a versioned one, for reading; not on the IO loop. ``stored``: show the stored objects too;
    ``max_age``: seconds for which values may be kept; ``follow_links``: also show what links lead to out of a local directory. That is
    decided for paths and URLs: an object that stands for a place shows what it shows.

    Raises:
        InvalidInput, NotFound, StorageError, Unsupported: it cannot be opened.
    """
    handle = Handle.find(url, {"follow_links": follow_links, **(storage_options or {})}, {})
    run_sync(_check_there(handle.engine.canonical.storage))
    target = handle.recipe.target
    snapshot = target if isinstance(target, SnapshotPlace) else None
    below = handle.engine.canonical.storage
    handle = _reading_ahead(handle, max_age)
    engine = handle.engine.canonical
    flavour = flavour_of("v2")
    assert isinstance(flavour, PresentedFlavour)
    buckets = [
        Bucket("zarr3", "Zarr v3, chunk by chunk", PresentedSource(engine), engine.storage),
        Bucket("zarr2", "Zarr v2, chunk by chunk", PresentedSource(View(engine, flavour)), engine.storage),
    ]
    absent: dict[str, str] = {}
    if snapshot is not None:
        absent["stored"] = "the chunks of a snapshot lie in the chunk files of its versioned store: serve that to read them as they lie"
    elif not stored:
        absent["stored"] = "the server does not show it"
    else:
        storage = below.inner if isinstance(below, DetectedStorage) else below
        buckets.append(
            Bucket("stored", "the objects as they are stored: shards are shards", StoredSource(storage, engine.hierarchy), storage)
        )
    return Served(handle, {bucket.name: bucket for bucket in buckets}, absent, snapshot)
