"""Stores that are objects of Python, of any library: mappings from keys to bytes, for reading, such as a dictionary, an ``fsspec`` mapper
of a filesystem that is not known here, or a store of zarr-python 2; and stores of the draft's interface.

Specification: draft core protocol 3.0, "Abstract store interface"; sharding storage transformer 1.0 (draft), "API implementation".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from shardstore.errors import ReadOnly, ShardStoreError, StorageError
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import UNCONDITIONAL, Condition, Generation, IfAbsent, IfGeneration
from shardstore.model.ranges import EVERYTHING, ByteOffset, ByteRange, ByteRequest, BytesLike, ByteSuffix, resolve
from shardstore.storage.abilities import DocumentsFirst, VersionedByRange
from shardstore.storage.base import (
    ABSENT,
    CHANGED,
    UNKNOWN_NBYTES,
    DirListing,
    Failed,
    Found,
    ObjectInfo,
    Read,
    ReadOutcome,
    ReadsAndWrites,
    ReadsOnly,
    Storage,
    check_directory,
    direct_children,
    read_one,
)
from shardstore.storage.inferred_versions import start_and_length, unversioned, witness_of, witnessed
from shardstore.storage.requests.writes import check_deletion, failed, joined

_IN_MEMORY = (dict,)  # whose values cost nothing to look at


class MappingStorage(ReadsOnly, ReadsAndWrites):
    """The values of ``mapping``, which must not change while it is open: it gives no versions, and no size before a value was read."""

    kind = "mapping"

    def __init__(self, mapping: Mapping[str, Any]) -> None:
        self.mapping = mapping

    def __reduce__(self) -> tuple[type[MappingStorage], tuple[Mapping[str, Any]]]:
        return type(self), (self.mapping,)

    @property
    def url(self) -> str:
        return f"mapping://{type(self.mapping).__name__}"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        return await asyncio.to_thread(lambda: [self._read_one(read) for read in reads])

    def _read_one(self, read: Read) -> ReadOutcome:
        try:
            value = memoryview(self.mapping[read.key]).cast("B")
        except KeyError:
            return ABSENT
        except Exception as exc:  # noqa: BLE001  # whatever a mapping of another library raises
            error = StorageError(f"reading {read.key!r} from a {type(self.mapping).__name__} failed: {type(exc).__name__}: {exc}")
            error.__cause__ = exc
            return Failed(error)
        wanted = [resolve(request, len(value)) for request in read.ranges]
        return Found(unversioned(len(value)), len(value), tuple(value[r.start : r.end] for r in wanted))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        keys = await asyncio.to_thread(lambda: sorted(key for key in self.mapping if key.startswith(prefix)))
        for key in keys:
            size = len(memoryview(self.mapping[key]).cast("B")) if isinstance(self.mapping, _IN_MEMORY) else UNKNOWN_NBYTES
            yield ObjectInfo(key, size)

    async def list_dir(self, prefix: str) -> DirListing:
        check_directory(prefix)
        infos = {info.key: info async for info in self.list(prefix)}
        keys, prefixes = direct_children(infos, prefix)
        return DirListing(tuple(infos[key] for key in keys), prefixes)

    def refusal(self, action: str, key: str) -> ReadOnly:
        return ReadOnly(f"{action} {key!r}: a {type(self.mapping).__name__} is read-only")


T = TypeVar("T")

WITHOUT_VERSIONS = "partial-access"
"""The kind's name of stores without versions."""


@runtime_checkable
class StoreWithPartialAccess(Protocol):
    """The draft's interface, as far as a storage transformer needs it from the store below. Keys and prefixes are strings.

    Ranges are ``(start, length)``, ``None`` for all; a negative start counts from the end, which is how the index of a shard is read
    (the draft has no such start, zarr-python's stores do). It also needs ``set(key, value)``, or ``store[key] = value`` as zarr-python
    2's stores have it. Optional methods are used if they are there: ``erase_values(keys)``, ``list()``, ``getsize(key)``.
    """

    def get_partial_values(self, key_ranges: Any) -> Sequence[BytesLike | None]: ...

    def erase(self, key: str) -> None: ...

    def list_prefix(self, prefix: str) -> Iterable[str]: ...

    def list_dir(self, prefix: str) -> tuple[Iterable[str], Iterable[str]]: ...


def underlying_storage(target: object) -> Storage | None:
    """Return the storage for a target of the draft's interface; ``None`` if the target is something else."""
    storage = getattr(target, "as_storage", None)
    if callable(storage):
        found = storage()
        assert isinstance(found, Storage)
        return found
    if isinstance(target, Storage):
        return None
    if not isinstance(target, StoreWithPartialAccess):
        return None
    return PartialAccessStorage(target) if hasattr(target, "set") or hasattr(target, "__setitem__") else None


class PartialAccessStorage(ReadsAndWrites, VersionedByRange, DocumentsFirst):
    """A store of the draft's interface, called in threads, one call at a time.

    Such a store has no versions. Here a version is identified by a witness: the range that was read first, as a rule the index of a
    shard. The witness is read again with every later read of that version. So chunks are never cut out by the index of another version.
    But two writers can still lose each other's chunks, so no capability is claimed.
    """

    kind = WITHOUT_VERSIONS

    def __init__(self, store: StoreWithPartialAccess) -> None:
        self._store = store
        self._lock = asyncio.Lock()

    def __reduce__(self) -> tuple[type[PartialAccessStorage], tuple[StoreWithPartialAccess]]:
        return type(self), (self._store,)

    def __repr__(self) -> str:
        return f"PartialAccessStorage({self._store!r})"

    @property
    def url(self) -> str:
        return f"<{type(self._store).__name__} at {id(self._store):#x}>"

    def ability(self, kind: type[T]) -> T | None:
        if kind is DocumentsFirst and not hasattr(self._store, "as_storage"):  # no transformer of this package
            return None
        return super().ability(kind)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    def version_by(self, request: ByteRequest, data: BytesLike) -> Generation | None:
        generation = witnessed(request, data)
        return None if witness_of(generation) is None else generation

    async def _call(self, what: str, key: str, call: Callable[[], T]) -> T:
        async with self._lock:
            try:
                return await asyncio.to_thread(call)
            except ShardStoreError:
                raise
            except Exception as exc:
                raise StorageError(f"{what} {key!r} in {self.url} failed: {type(exc).__name__}: {exc}") from exc

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        """Read by one call of ``get_partial_values``."""
        asked = [_asked(read) for read in reads]
        key_ranges = [(read.key, start_and_length(r)) for read, ranges in zip(reads, asked, strict=True) for r in ranges or ()]
        found: Sequence[BytesLike | None] = ()
        if key_ranges:
            found = await self._call("reading", key_ranges[0][0], lambda: list(self._store.get_partial_values(key_ranges)))
            if len(found) != len(key_ranges):
                raise StorageError(f"{self.url} returned {len(found)} values for {len(key_ranges)} ranges")
        values = iter(found)
        outcomes: list[ReadOutcome] = []
        for read, ranges in zip(reads, asked, strict=True):
            mine = [next(values) for _ in ranges or ()]
            outcomes.append(CHANGED if ranges is None else _outcome(read, ranges, mine))
        return outcomes

    # -- writing -------------------------------------------------------------------------------------------------------

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        if condition != UNCONDITIONAL and not await self._holds(key, condition):
            raise failed(key, self.url)
        data = await joined(body, nbytes, key)
        await self._call("writing", key, lambda: _set(self._store, key, data))
        return witnessed(EVERYTHING, data)

    async def _holds(self, key: str, condition: Condition) -> bool:
        """Return whether the condition holds now; another writer may come before the write."""
        generation = condition.generation if isinstance(condition, IfGeneration) else None
        outcome = await read_one(self, Read(key, (), generation))
        if outcome == CHANGED and generation is not None and witness_of(generation) is None:  # all of its bytes identify it
            outcome = await read_one(self, Read(key, (EVERYTHING,)))
            return isinstance(outcome, Found) and outcome.generation == generation
        return isinstance(outcome, Found) is not isinstance(condition, IfAbsent)

    async def delete(self, key: str, condition: Condition) -> bool:
        check_deletion(key, condition)
        if not isinstance(await read_one(self, Read(key, ())), Found):
            return False
        if condition != UNCONDITIONAL and not await self._holds(key, condition):
            raise failed(key, self.url)
        await self._call("deleting", key, lambda: _erase(self._store, [key]))
        return True

    async def delete_many(self, keys: Sequence[str]) -> None:
        if keys:
            await self._call("deleting", keys[0], lambda: _erase(self._store, keys))

    # -- listing -------------------------------------------------------------------------------------------------------

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        directory = prefix[: prefix.rfind("/") + 1]

        def listed() -> list[ObjectInfo]:
            everything = getattr(self._store, "list", None)
            keys = everything() if not directory and callable(everything) else self._store.list_prefix(directory)
            return _sized(self._store, (key for key in keys if key.startswith(prefix)))

        for info in await self._call("listing", prefix, listed):
            yield info

    async def list_dir(self, prefix: str) -> DirListing:
        check_directory(prefix)

        def listed() -> DirListing:
            keys, prefixes = self._store.list_dir(prefix)
            return DirListing(tuple(_sized(self._store, keys)), tuple(sorted(prefixes)))

        return await self._call("listing", prefix, listed)


def _sized(store: Any, keys: Iterable[str]) -> list[ObjectInfo]:
    """Return objects in the order of their keys, with their sizes if the store gives them."""
    getsize: Callable[[str], int] | None = getattr(store, "getsize", None)
    return [ObjectInfo(key, UNKNOWN_NBYTES if getsize is None else int(getsize(key))) for key in sorted(keys)]


def _set(store: Any, key: str, data: bytes) -> None:
    if hasattr(store, "set"):
        store.set(key, data)
    else:
        store[key] = data


def _erase(store: Any, keys: Sequence[str]) -> None:
    """Erase a value; an absent one is no error, as with ``erase_values``: a store may raise for it."""
    if hasattr(store, "erase_values"):
        store.erase_values(list(keys))
        return
    for key in keys:
        if next(iter(store.get_partial_values([(key, (0, 1))]))) is not None:
            store.erase(key)


def _asked(read: Read) -> list[ByteRequest] | None:
    """Return the ranges of a read, and then the witness of the version that is asked for; ``None`` if that version has none."""
    ranges: list[ByteRequest] = list(read.ranges) or [ByteRange(0, 1)]  # of none a store may say that there is nothing
    if read.generation is None:
        return ranges
    witness = witness_of(read.generation)
    return None if witness is None else [*ranges, witness]


def _outcome(read: Read, ranges: Sequence[ByteRequest], values: Sequence[BytesLike | None]) -> ReadOutcome:
    pieces = [memoryview(value).cast("B") for value in values if value is not None]
    if len(pieces) < len(values):
        return ABSENT if not pieces else CHANGED
    if read.generation is not None and witnessed(ranges[-1], pieces[-1]) != read.generation:
        return CHANGED
    nbytes = min(_told_nbytes(request, len(piece)) for request, piece in zip(ranges, pieces, strict=True))
    generation = read.generation or witnessed(ranges[0], pieces[0])
    return Found(generation, nbytes, tuple(pieces[: len(read.ranges)]))


def _told_nbytes(request: ByteRequest, got: int) -> int:
    """Return the object's size as far as the answer shows it; if the request starts behind its end, the most that it has."""
    match request:
        case ByteRange(start, end):
            return UNKNOWN_NBYTES if got == end - start else start + got
        case ByteSuffix(nbytes):
            return UNKNOWN_NBYTES if got == nbytes else got
        case ByteOffset(start):
            return start + got
