"""Any store of zarr-python as underlying storage: zarr's own stores, those of icechunk's sessions, and wrappers of them.

Such a store has keys, values and sizes, and nothing else: no versions, no conditions, and no promise of what a reader sees during a write.
So no capability is claimed but one: nothing changes in a read-only session of icechunk, which shows one snapshot for ever.

::

    an object of up to 64 KiB    read whole, by one ``get``; its version is made of all its bytes
    a larger one                 read in ranges; its version is made of a range, which is read again behind them (see ``inferred_versions``)
    in a snapshot of icechunk    the version is that of the snapshot

What the classes of stores do differently is asked for, or gone around, here:

- ``getsize`` answers for directories (``LocalStore``) and for absent chunks (icechunk: 0). Only what ``get`` finds is an object.
- A range that goes past the end is an error, one byte, or a panic in icechunk. So the size is asked for first.
- ``delete`` of a directory removes it with all that is in it (``LocalStore``).
- ``ZipStore`` writes a second object with the same name.
- icechunk takes the keys of Zarr v3 only, chunks only below the document of their array, and lists below nodes only.
- ``str`` of a store of icechunk waits for its writers, for ever if it is called where they run. Messages name the class.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from fsspec.spec import AbstractFileSystem
from zarr.abc.store import RangeByteRequest, Store
from zarr.core.buffer import cpu
from zarr.core.sync import _get_loop as zarr_loop
from zarr.storage import FsspecStore, LocalStore, MemoryStore, StorePath, ZipStore

from shardstore._sync import run_on
from shardstore.adapters.handle import Face
from shardstore.errors import AccessDenied, InvalidInput, ReadOnly, ShardStoreError, StorageError, Unsupported
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import UNCONDITIONAL, Condition, Generation, IfAbsent, IfGeneration
from shardstore.model.ranges import EVERYTHING, ByteRange, ByteRequest, BytesLike, resolve
from shardstore.model.redaction import redacted
from shardstore.opening.location import HasPhysicalLocation, Location, StorePlace, location_of
from shardstore.storage.abilities import NamesLocation, RestrictsKeys, VersionedByRange
from shardstore.storage.base import (
    ABSENT,
    CHANGED,
    Absent,
    Changed,
    DirListing,
    Failed,
    Found,
    ObjectInfo,
    Read,
    ReadOutcome,
    ReadsAndWrites,
    check_directory,
)
from shardstore.storage.generic.links import is_any
from shardstore.storage.generic.storage import GenericStorage, described
from shardstore.storage.inferred_versions import agrees, unversioned, witness_of, witnessed
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.requests.ranged_reads import check_most
from shardstore.storage.requests.writes import check_deletion, failed, joined

S = TypeVar("S")
T = TypeVar("T")

_WHOLE_NBYTES = 64 << 10
_KEYS_AT_ONCE = 4096
_REQUESTS_AT_ONCE = 32

_ABSENT_ERRORS = (FileNotFoundError, KeyError, NotADirectoryError, IsADirectoryError)
"""The errors of stores by which there is no object; some answer ``None`` instead."""

_ZARR_KEY = re.compile(r"(?:.+/)?(?:zarr\.json|c(?:/[0-9]+)*)")
"""The keys of documents and, in the default encoding, chunks of Zarr v3: icechunk takes no other."""


def storage_of(target: Store | StorePath) -> ZarrStorage:
    """Return the storage that a store, or a path in one, is.

    Raises:
        InvalidInput: it is a view of a store of this package, or an archive that was closed.
    """
    return ZarrStorage(target.store, target.path) if isinstance(target, StorePath) else ZarrStorage(target)


class ZarrStorage(ReadsAndWrites, HasPhysicalLocation, NamesLocation, RestrictsKeys, VersionedByRange):
    """The values of ``store`` below ``path``. Its coroutines run on zarr's event loop, as they do below zarr's own functions.

    Writes replace the whole value by ``set``, which holds it in memory; whether readers can see a part of it is the store's affair.
    Conditions are checked before the write, which does not protect against a second writer.
    """

    def __init__(self, store: Store, path: str = "") -> None:
        self.store = store
        self.path = path.strip("/")
        self._base = f"{self.path}/" if self.path else ""
        self._inner = inner = _unwrapped(store)
        _check_usable(inner)
        self._is_icechunk = _is_icechunk(inner)
        self._snapshot = _snapshot_of(inner) if self._is_icechunk else None
        self._url = f"{_described_store(inner, self._snapshot)}/{self._base}".rstrip("/")

    def __reduce__(self) -> tuple[type[ZarrStorage], tuple[Store, str]]:
        if isinstance(self._inner, MemoryStore):
            raise InvalidInput(
                f"{self.url} is in the memory of this process, which no other process can reach: run it with threads, the default"
            )
        return type(self), (self.store, self.path)

    def __repr__(self) -> str:
        return f"ZarrStorage({self.url!r})"

    @property
    def url(self) -> str:
        return self._url

    @property
    def kind(self) -> str:
        return "zarr"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(static=self._snapshot is not None)

    async def probe(self) -> Capabilities:
        return self.capabilities

    @property
    def keeps_records(self) -> bool:
        return not self._is_icechunk and bool(self.store.supports_deletes)

    def beside(self, suffix: str) -> ZarrStorage | None:
        if self.path:
            return ZarrStorage(self.store, self.path + suffix)
        if not isinstance(self.store, LocalStore):
            return None
        return ZarrStorage(LocalStore(f"{self.store.root}{suffix}", read_only=self.store.read_only))

    @property
    def place(self) -> object | None:
        if isinstance(self._inner, LocalStore):
            return os.path.join(self._inner.root, self.path) if self.path else str(self._inner.root)
        if isinstance(self._inner, FsspecStore):
            fs = self._inner.fs
            fs = getattr(fs, "sync_fs", fs)  # zarr wraps those that are not asynchronous
            if isinstance(getattr(fs, "fs", None), AbstractFileSystem):
                return None  # a link of a chain, such as a cache: what a path means is known there only
            options = {name: value for name, value in fs.storage_options.items() if name not in ("asynchronous", "loop")}
            return type(fs)(*fs.storage_args, **options), "/".join(filter(None, (self._inner.path, self.path)))
        return None

    @property
    def chunks_need_documents(self) -> bool:
        return self._is_icechunk

    def lies_in(self, path: str, *, links: bool) -> Location:
        return _location_in(self._inner, f"{self._base}{path}".strip("/"), links=links)

    def version_by(self, request: ByteRequest, data: BytesLike) -> Generation | None:
        if self._snapshot is not None:
            return self._snapshot
        generation = witnessed(request, data)
        return None if witness_of(generation) is None else generation

    # -- calling the store ---------------------------------------------------------------------------------------------

    async def _run(self, action: str, key: str, coroutine: Coroutine[object, object, T]) -> T:
        """Run a coroutine on zarr's loop, and translate what it raises."""
        try:
            return await run_on(zarr_loop(), coroutine)
        except ShardStoreError:
            raise
        except Exception as exc:
            raise self._error(action, key, exc) from exc

    def _error(self, action: str, key: str, exc: Exception) -> ShardStoreError:
        first = next((line.strip() for line in str(exc).splitlines() if line.strip()), "")
        error = AccessDenied if isinstance(exc, PermissionError) else StorageError
        return error(f"{action} {key!r} in {self.url} failed: {type(exc).__name__}: {redacted(first)}")

    def _takes(self, key: str) -> bool:
        """Return whether an object can have this key."""
        return bool(key) and (not self._is_icechunk or _ZARR_KEY.fullmatch(self._base + key) is not None)

    async def _size(self, key: str) -> int | None:
        """Return the size that the store gives; ``None`` if there is no object. A size is no proof that there is one."""
        if not self._takes(key):
            return None
        try:
            await self.store._ensure_open()
            return int(await self.store.getsize(self._base + key))
        except _ABSENT_ERRORS:
            return None

    async def _get(self, key: str, wanted: ByteRange | None) -> memoryview | None:
        """Return the bytes of a range that lies within the object, or all of them; ``None`` if there is no object."""
        asked = None if wanted is None else RangeByteRequest(wanted.start, wanted.end)
        try:
            value = await self.store.get(self._base + key, cpu.buffer_prototype, asked)
        except _ABSENT_ERRORS:
            return None
        if value is None:
            return None
        return memoryview(value.as_numpy_array().data).cast("B").toreadonly() if len(value) else memoryview(b"")

    async def _is_object(self, key: str, nbytes: int | None) -> bool:
        return nbytes is not None and await self._get(key, ByteRange(0, 1) if nbytes else None) is not None

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        return await self._run("reading", reads[0].key, _bounded(self._outcome, reads)) if reads else []

    async def _outcome(self, read: Read) -> ReadOutcome:
        try:
            return await self._read_one(read)
        except Exception as exc:  # noqa: BLE001  # whatever a store raises; it is handed on as the outcome
            error = exc if isinstance(exc, ShardStoreError) else self._error("reading", read.key, exc)
            if error is not exc:
                error.__cause__ = exc
            return Failed(error)

    async def _read_one(self, read: Read) -> ReadOutcome:
        nbytes = await self._size(read.key)
        if nbytes is None:
            return ABSENT
        if nbytes <= _WHOLE_NBYTES:
            return await self._read_whole(read)
        if EVERYTHING in read.ranges:
            check_most(nbytes, read.most_nbytes, f"reading {read.key!r} in {self.url}")
        return await self._read_ranges(read, nbytes)

    async def _read_whole(self, read: Read) -> ReadOutcome:
        whole = await self._get(read.key, None)
        if whole is None:
            return ABSENT
        check_most(len(whole), read.most_nbytes, f"reading {read.key!r} in {self.url}")
        asked, generation = read.generation, self._snapshot or witnessed(EVERYTHING, whole)
        if asked is not None and not self._is_version(asked, generation, whole):
            return CHANGED
        wanted = [resolve(request, len(whole)) for request in read.ranges]
        return Found(asked or generation, len(whole), tuple(whole[r.start : r.end] for r in wanted))

    def _is_version(self, asked: Generation, found: Generation, whole: memoryview) -> bool:
        """Return whether an object with these bytes, whose version is ``found``, may be the version that was asked for."""
        witness = None if self._snapshot is not None else witness_of(asked)
        if witness is None:
            return asked == found or agrees(asked, unversioned(len(whole)))
        wanted = resolve(witness, len(whole))
        return witnessed(witness, whole[wanted.start : wanted.end]) == asked

    async def _read_ranges(self, read: Read, nbytes: int) -> ReadOutcome:
        """Read ranges concurrently, then the witness of the version once more."""
        pieces = await self._pieces(read, nbytes)
        if not isinstance(pieces, list):
            return pieces
        generation = self._snapshot or self._version_of(read, pieces) or unversioned(nbytes)
        if read.generation is not None and read.generation != generation and not agrees(read.generation, generation):
            return CHANGED
        is_one_read = read.generation is None and len(pieces) <= 1
        if not is_one_read and not await self._is_still(generation, read.key, nbytes):
            return CHANGED
        return Found(generation, nbytes, tuple(pieces))

    async def _pieces(self, read: Read, nbytes: int) -> list[memoryview] | Absent | Changed:
        """Return the bytes of each range of an object that had so many bytes, or what has become of it."""
        wanted = [resolve(request, nbytes) for request in read.ranges]
        found = await asyncio.gather(*(self._piece(read.key, each) for each in wanted))
        pieces = [piece for piece in found if piece is not None]
        if len(pieces) < len(found) or not (any(pieces) or await self._is_object(read.key, nbytes)):
            return ABSENT if not any(pieces) else CHANGED
        if [len(piece) for piece in pieces] != [each.end - each.start for each in wanted]:
            return CHANGED  # it was replaced by a shorter one
        return pieces

    async def _is_still(self, generation: Generation, key: str, nbytes: int) -> bool:
        """Return whether an object has this version, by reading its witness again; true of versions without one."""
        witness = witness_of(generation) if self._snapshot is None else None
        if witness is None:
            return True
        again = await self._get(key, resolve(witness, nbytes))
        return again is not None and witnessed(witness, again) == generation

    def _version_of(self, read: Read, pieces: Sequence[memoryview]) -> Generation | None:
        """Return the version that is to be checked by its witness, or that is made of the first range."""
        if read.generation is not None and witness_of(read.generation) is not None:
            return read.generation
        versions = ((request, witnessed(request, piece)) for request, piece in zip(read.ranges, pieces, strict=True) if piece)
        return next((generation for request, generation in versions if request == EVERYTHING or witness_of(generation)), None)

    async def _piece(self, key: str, wanted: ByteRange) -> memoryview | None:
        return await self._get(key, wanted) if wanted.end > wanted.start else memoryview(b"")

    # -- writing -------------------------------------------------------------------------------------------------------

    def _check_writable(self, action: str, key: str, *, deletes: bool = False) -> None:
        name = type(self._inner).__name__
        if self.store.read_only or not self.store.supports_writes:
            raise ReadOnly(f"{action} {key!r}: the {name} {self.url} is read-only: open it for writing")
        if deletes and not self.store.supports_deletes:
            raise Unsupported(f"{action} {key!r}: a {name} can neither remove nor replace what it holds: write to another one")

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        self._check_writable("writing", key)
        if not key:
            raise InvalidInput("an object needs a key that is not empty")
        if not self._takes(key):
            raise Unsupported(
                f"writing {key!r} in {self.url}: icechunk stores the documents and chunks of Zarr v3 only (zarr.json, c/0/0), and no "
                "other object: leave it out, or put it elsewhere"
            )
        data = await joined(body, nbytes, key)

        async def store_it() -> None:
            await self.store._ensure_open()
            if not self.store.supports_deletes and await self.store.exists(self._base + key):
                self._check_writable("replacing", key, deletes=True)
            if not await self._holds(key, condition):
                raise failed(key, self.url)
            await self.store.set(self._base + key, cpu.Buffer.from_bytes(data))

        await self._run("writing", key, store_it())
        return witnessed(EVERYTHING, data)

    async def _holds(self, key: str, condition: Condition) -> bool:
        """Return whether the condition holds now; another writer may come before the write."""
        if condition == UNCONDITIONAL:
            return True
        if isinstance(condition, IfAbsent):
            return not await self._is_object(key, await self._size(key))
        assert isinstance(condition, IfGeneration)
        asked = condition.generation
        if witness_of(asked) is not None:
            return isinstance(await self._read_one(Read(key, (), asked)), Found)
        if await self._size(key) is None or (whole := await self._get(key, None)) is None:
            return False
        return self._is_version(asked, witnessed(EVERYTHING, whole), whole)

    async def delete(self, key: str, condition: Condition) -> bool:
        check_deletion(key, condition)
        self._check_writable("deleting", key, deletes=True)

        async def delete_it() -> bool:
            if not await self._is_object(key, await self._size(key)):
                return False
            if not await self._holds(key, condition):
                raise failed(key, self.url)
            await self.store.delete(self._base + key)
            return True

        return await self._run("deleting", key, delete_it())

    async def delete_many(self, keys: Sequence[str]) -> None:
        if not keys:
            return
        self._check_writable("deleting", keys[0], deletes=True)

        async def delete_one(key: str) -> None:
            if await self._is_object(key, await self._size(key)):  # it may be a directory, which goes with all that is in it
                await self.store.delete(self._base + key)

        await self._run("deleting", keys[0], _bounded(delete_one, keys))

    # -- listing -------------------------------------------------------------------------------------------------------

    def _check_listable(self, prefix: str) -> None:
        if not self.store.supports_listing:
            raise Unsupported(f"listing {prefix!r}: the {type(self._inner).__name__} {self.url} cannot list its keys")

    async def _keys_with(self, prefix: str) -> AsyncGenerator[str, None]:
        """Yield the keys that start with ``prefix``, in no order."""
        start = self._base + prefix
        directory = start[: start.rfind("/") + 1]
        try:
            await self.store._ensure_open()
            while self._is_icechunk and directory and not await self.store.exists(f"{directory}zarr.json"):
                directory = directory[: directory.rstrip("/").rfind("/") + 1]  # the rest it refuses to list
            async for key in self.store.list_prefix(directory):
                if key.startswith(start) and not key.endswith("/"):
                    yield key.removeprefix(self._base)
        except _ABSENT_ERRORS:
            return

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        self._check_listable(prefix)
        names = self._keys_with(prefix)
        try:
            while page := await self._run("listing", prefix, _page(names, _KEYS_AT_ONCE)):
                for info in await self._run("listing", prefix, _bounded(self._listed, sorted(page))):
                    if info is not None:
                        yield info
        finally:
            await self._run("listing", prefix, names.aclose())

    async def _listed(self, key: str) -> ObjectInfo | None:
        nbytes = await self._size(key)
        return None if nbytes is None else ObjectInfo(key, nbytes, self._snapshot)

    async def list_dir(self, prefix: str) -> DirListing:
        check_directory(prefix)
        self._check_listable(prefix)

        async def look(name: str) -> tuple[ObjectInfo | None, bool]:
            nbytes = await self._size(name)
            is_object = await self._is_object(name, nbytes)
            names = self._keys_with(f"{name}/")
            below = await _page(names, 1)
            await names.aclose()
            return ObjectInfo(name, nbytes or 0, self._snapshot) if is_object else None, bool(below)

        async def listed() -> DirListing:
            try:
                await self.store._ensure_open()
                found = {name.strip("/") async for name in self.store.list_dir((self._base + prefix).rstrip("/"))}
            except _ABSENT_ERRORS:
                found = set()
            keys = [prefix + name for name in sorted(found) if name and "/" not in name]
            looks = list(zip(keys, await _bounded(look, keys), strict=True))
            return DirListing(
                tuple(info for _, (info, _) in looks if info is not None), tuple(f"{key}/" for key, (_, below) in looks if below)
            )

        return await self._run("listing", prefix, listed())

    async def close(self) -> None:
        """Do nothing: the store is the user's, and stays open."""


# -- zarr's stores, as far as their classes differ; the coroutines run on zarr's loop --------------------------------


def _unwrapped(store: Store) -> Store:
    """Return the store inside all wrappers."""
    while isinstance(inner := getattr(store, "_store", None), Store):
        store = inner
    return store


def _is_icechunk(store: Store) -> bool:
    return any(cls.__module__.partition(".")[0] == "icechunk" for cls in type(store).__mro__)


def _check_usable(store: Store) -> None:
    if isinstance(store, Face) or (isinstance(store, FsspecStore) and is_any(store.fs, frozenset({"sharded"}))):
        raise InvalidInput(
            f"the {type(store).__name__} is a shardstore view of a store. Opening it again would shard the chunks twice. Give the URL of "
            "what is below it"
        )
    if isinstance(store, ZipStore) and hasattr(store, "_zf") and not store._is_open and store._zmode in ("w", "x"):
        raise InvalidInput(
            f"the ZipStore of {store.path} was closed; opening it again with mode={store._zmode!r} would erase it: use mode='r'"
        )


def _snapshot_of(store: Any) -> Generation | None:
    """Return the version of all objects of a session that cannot be written to. Not called while one is being written to."""
    session = store.session
    return Generation(f"snapshot-{session.snapshot_id}") if session.read_only else None


def _described_store(store: Any, snapshot: Generation | None) -> str:
    """Return a URL for people; it differs between stores of this process."""
    if isinstance(store, LocalStore):
        return LocalStorage(str(store.root)).url
    if isinstance(store, ZipStore):
        return f"zip::{LocalStorage(str(store.path)).url}"
    if isinstance(store, FsspecStore):
        return redacted(described(store.fs, store.path))
    if snapshot is not None:
        return f"icechunk://{snapshot.token}"
    holder = store._store_dict if isinstance(store, MemoryStore) else store
    return f"zarr://{type(store).__name__}-{id(holder):x}"


def _location_in(store: Any, path: str, *, links: bool) -> Location:
    """Return the location of a path in an unwrapped store, as ``location_of`` does."""
    if isinstance(store, LocalStore):
        return location_of(LocalStorage(str(store.root)), path, links=links)
    if isinstance(store, ZipStore):
        return location_of(LocalStorage(str(store.path)))
    if isinstance(store, FsspecStore):
        return location_of(GenericStorage(store.fs, store.path), path, links=links)
    if isinstance(store, MemoryStore):
        return StorePlace(store._store_dict, path).location(is_known=True)
    return StorePlace(store, path).location(is_known=False)


async def _page(keys: AsyncIterator[str], most: int) -> list[str]:
    """Return the next keys of a listing; none if there are no more."""
    found: list[str] = []
    async for key in keys:
        found.append(key)
        if len(found) == most:
            break
    return found


async def _bounded(call: Callable[[S], Coroutine[object, object, T]], items: Sequence[S]) -> list[T]:
    """Return the results of a call for each item, of which so many run at once."""
    bound = asyncio.Semaphore(_REQUESTS_AT_ONCE)

    async def one(item: S) -> T:
        async with bound:
            return await call(item)

    return await asyncio.gather(*map(one, items))
