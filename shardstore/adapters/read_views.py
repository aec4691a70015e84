"""Views of a store for programs that show it to clients who only read, such as a server: values with their versions, and directories."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from shardstore._sync import run_sync
from shardstore.adapters.handle import Handle
from shardstore.engine.metadata.hierarchy import Hierarchy
from shardstore.engine.reading.listing import ListedValue
from shardstore.errors import LEADS_OUTSIDE, AccessDenied, Conflict, NotFound, ShardStoreError, Unsupported
from shardstore.format.chunk_keys import ChunkKeyEncoding
from shardstore.format.metadata_v3 import ArrayLayout, PlainArray
from shardstore.format.store_keys import ancestors, possible_owners
from shardstore.model.generation import Generation
from shardstore.model.ranges import ByteRequest
from shardstore.opening.snapshot_place import SnapshotPlace
from shardstore.presented.flavours import Presented, flavour_of
from shardstore.presented.view import Canonical, PresentedFlavour, View
from shardstore.storage.base import UNKNOWN_NBYTES, Absent, Failed, Found, ObjectInfo, Read, ReadOutcome, Storage
from shardstore.storage.inferred_versions import is_unversioned
from shardstore.storage.local.storage import LocalFiles
from shardstore.storage.read_ahead import ReadAhead
from shardstore.stored.detect import DetectedStorage


class ValueRead(NamedTuple):
    """Ranges of one value, all of one version; with ``version``, of that version only. Without ranges, version and size are looked up."""

    key: str
    ranges: tuple[ByteRequest, ...] = ()
    version: Generation | None = None


@dataclass(frozen=True, slots=True)
class VersionedValue:
    """Ranges of one version of a value, which has ``nbytes`` bytes, each clipped to it."""

    version: Generation
    nbytes: int
    buffers: tuple[memoryview, ...]

    @property
    def has_known_size(self) -> bool:
        """False if the storage does not give the size with a part of a value; then ``nbytes`` is more than any value has."""
        return self.nbytes != UNKNOWN_NBYTES


class VersionGone(Conflict):
    """The value does not have the version that was asked for, or was replaced while it was read."""


ReadResult = VersionedValue | ShardStoreError | None
"""A value, ``None`` if there is none, or the reason why it could not be read."""


async def read_values(
    read: Callable[[Sequence[Read]], Awaitable[Sequence[ReadOutcome]]], reads: Sequence[ValueRead]
) -> Sequence[ReadResult]:
    """Read values by the ``read`` of a storage, or the ``read_versions`` of a store; results are in order."""
    outcomes = await read([Read(*one) for one in reads])
    return [_result(one.key, outcome) for one, outcome in zip(reads, outcomes, strict=True)]


def _result(key: str, outcome: ReadOutcome) -> ReadResult:
    match outcome:
        case Found(version, nbytes, buffers):
            return VersionedValue(version, nbytes, buffers)
        case Absent():
            return None
        case Failed(error):
            return error
    return VersionGone(f"{key!r} was replaced since its version was looked up, or while it was read: read it again")


_LIKE_V2_CHUNK = re.compile(r"[0-9]+(\.[0-9]+)+", re.ASCII)
"""The last segment of a chunk's key in an array of Zarr v2, as no directory is called."""


@dataclass(frozen=True, slots=True)
class ListedName:
    """A key with the size of its value in bytes and its version (``None``: not known yet), or a prefix that ends with ``/``."""

    name: str
    nbytes: int | None = None
    version: Generation | None = None
    is_prefix: bool = False


class ReadView(Protocol):
    """One view of a store. Its methods run on the IO loop, and take keys and prefixes that have been checked."""

    async def read(self, reads: Sequence[ValueRead]) -> Sequence[ReadResult]:
        """Read values, all in one round."""
        ...

    async def list_dir(self, prefix: str, *, exact: bool) -> list[ListedName]:
        """Return the keys and prefixes directly below ``prefix``, in ascending order; unless ``exact``, prefixes of chunks that do not
        exist may be among them.
        """
        ...

    async def list_below(self, prefix: str, most: int) -> list[ListedName] | None:
        """Return all keys below a directory, however deep, in ascending order; ``None`` if they are more than so many."""
        ...

    async def is_directory(self, key: str, *, looks: bool) -> bool:
        """Return whether there is a directory at a key that has no value. For a chunk that costs no request, nor for the beginning of the
        keys of chunks, which may be a directory in which no chunk exists. Another key is listed if this ``looks`` for it, or else is none.
        """
        ...

    def identifies(self, version: Generation) -> bool:
        """Return whether values whose versions equal this one have the same bytes."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PresentedView:
    """The values that a store presents in one flavour."""

    store: Presented

    async def read(self, reads: Sequence[ValueRead]) -> Sequence[ReadResult]:
        return await read_values(self.store.read_versions, reads)

    async def list_dir(self, prefix: str, *, exact: bool) -> list[ListedName]:
        listed = await self.store.list_dir(prefix, approximate=not exact)
        return _in_order(map(_of_value, listed.values), listed.prefixes)

    async def list_below(self, prefix: str, most: int) -> list[ListedName] | None:
        found: list[ListedName] = []
        async for batch in self.store.list_batches(prefix):
            found += map(_of_value, batch.values(versions=True))
            if len(found) > most:
                return None
        return _in_order(found)

    async def is_directory(self, key: str, *, looks: bool) -> bool:
        store = self.store
        if not isinstance(store, View):
            return await _is_directory(store.storage, key, store.hierarchy, key, looks=looks, as_v2=False)
        (meaning,) = await store.flavour.meanings(store, [key], for_write=False)
        # The other flavours have no prefix below the path of an array that begins with numbers.
        return isinstance(meaning, Canonical) and await _is_directory(
            store.storage, key, store.hierarchy, meaning.key, looks=looks, as_v2=True
        )

    def identifies(self, version: Generation) -> bool:
        return _identifies(self.store.storage, version)


@dataclass(frozen=True, slots=True, eq=False)
class StoredView:
    """The objects of a storage, unchanged; ``hierarchy`` knows which of them are shards."""

    storage: Storage
    hierarchy: Hierarchy

    async def read(self, reads: Sequence[ValueRead]) -> Sequence[ReadResult]:
        return await read_values(self.storage.read, reads)

    async def list_dir(self, prefix: str, *, exact: bool) -> list[ListedName]:
        listed = await self.storage.list_dir(prefix)
        return _in_order(map(_of_object, listed.objects), listed.prefixes)

    async def list_below(self, prefix: str, most: int) -> list[ListedName] | None:
        found: list[ListedName] = []
        async for info in self.storage.list(prefix):
            found.append(_of_object(info))
            if len(found) > most:
                return None
        return _in_order(found)

    async def is_directory(self, key: str, *, looks: bool) -> bool:
        try:
            # Reads the documents of arrays whose shard it may be, at most once a second.
            await self.hierarchy.locate([key], for_write=False)
        except ShardStoreError:
            return False
        return await _is_directory(self.storage, key, self.hierarchy, key, looks=looks, as_v2=False)

    def identifies(self, version: Generation) -> bool:
        return _identifies(self.storage, version)


def _in_order(values: Iterable[ListedName], prefixes: Iterable[str] = ()) -> list[ListedName]:
    return sorted([*values, *(ListedName(name, is_prefix=True) for name in prefixes)], key=attrgetter("name"))


def _of_value(value: ListedValue) -> ListedName:
    return ListedName(value.key, value.nbytes, value.version)


def _of_object(info: ObjectInfo) -> ListedName:
    return ListedName(info.key, None if info.nbytes == UNKNOWN_NBYTES else info.nbytes, info.generation)


def _identifies(storage: Storage, version: Generation) -> bool:
    return storage.capabilities.pinned_reads and not is_unversioned(version)


async def _is_directory(storage: Storage, key: str, hierarchy: Hierarchy, canonical: str, *, looks: bool, as_v2: bool) -> bool:
    """Return what ``ReadView.is_directory`` does, by what the hierarchy knows of the key."""
    if hierarchy.owner(possible_owners(canonical)) is not None:
        return False
    for path, rest in ancestors(canonical):
        node = hierarchy.known(path)
        if node is not None and node.array is not None and _begins_chunk_keys(node.array, f"{rest}/", as_v2=as_v2):
            return True
    if not looks or _LIKE_V2_CHUNK.fullmatch(key.rpartition("/")[2]) is not None:
        return False
    listed = await storage.list_dir(f"{key}/")  # one request; apart from chunks, all views have the directories of what is stored
    return bool(listed.objects or listed.prefixes)


def _begins_chunk_keys(array: ArrayLayout | PlainArray, prefix: str, *, as_v2: bool) -> bool:
    """Return whether keys of several chunks in the grid of an array begin with this, relative to the array; ``as_v2``: those of Zarr v2."""
    encoding = ChunkKeyEncoding("v2", array.key_encoding.separator) if as_v2 else array.key_encoding
    leading = encoding.leading_coords(prefix, array.ndim)
    if len(leading) >= array.ndim or encoding.prefix_of(leading, array.ndim) != prefix:
        return False
    return all(at * chunk < length for at, chunk, length in zip(leading, array.chunk_shape, array.shape, strict=False))


@dataclass(frozen=True, slots=True)
class ReadViews:
    """A store that was opened for reading, and its views by name."""

    handle: Handle
    views: Mapping[str, ReadView]
    absent: Mapping[str, str] = field(default_factory=dict)
    """The reasons why some views are not there, by name."""
    snapshot: SnapshotPlace | None = None
    """The snapshot of a versioned store that this is, if it is one."""


def open_views(
    url: Any, storage_options: Mapping[str, Any] | None, *, stored: bool = True, max_age: float = 0, follow_links: bool = False
) -> ReadViews:
    """Open a store, or a snapshot of a versioned one, for reading, with the views ``zarr3``, ``zarr2`` and ``stored``. Not called on the
    IO loop.

    ``stored``: with the stored objects; ``max_age``: seconds for which clients may keep values, which lets shards be read ahead;
    ``follow_links``: also show what links lead to out of a local directory. That is decided for paths and URLs: an object that stands for a
    place shows what it shows.

    Raises:
        InvalidInput, NotFound, StorageError, Unsupported: it cannot be opened.
    """
    handle = Handle.find(url, {"follow_links": follow_links, **(storage_options or {})}, {})
    below = handle.engine.canonical.storage
    run_sync(_check_there(below))
    target = handle.recipe.target
    snapshot = target if isinstance(target, SnapshotPlace) else None
    handle = _reading_ahead(handle, max_age)
    engine = handle.engine.canonical
    flavour = flavour_of("v2")
    assert isinstance(flavour, PresentedFlavour)
    views: dict[str, ReadView] = {"zarr3": PresentedView(engine), "zarr2": PresentedView(View(engine, flavour))}
    absent: dict[str, str] = {}
    if snapshot is not None:
        absent["stored"] = "the chunks of a snapshot lie in the chunk files of its versioned store: serve that to read them as they lie"
    elif not stored:
        absent["stored"] = "the server does not show it"
    else:
        views["stored"] = StoredView(below.inner if isinstance(below, DetectedStorage) else below, engine.hierarchy)
    return ReadViews(handle, views, absent, snapshot)


def leads_outside(exc: AccessDenied) -> bool:
    """Return whether access is denied because a link leads out of the directory, which ``follow_links`` would allow."""
    return exc.code == LEADS_OUTSIDE


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
    if not keep_seconds or storage.ability(LocalFiles) is not None:
        return handle
    inner = storage.inner if isinstance(storage, DetectedStorage) else storage
    return Handle.make(ReadAhead(inner, keep_seconds), None, {})
