"""Sets of references as a storage for reading: objects are values in the set, ranges of objects elsewhere, or whole ones.

The set is read when the storage is opened; one in Parquet only by its metadata. What it leads to is opened when it is first read.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fsspec.asyn import get_loop

from shardstore.errors import ReadOnly, ShardStoreError
from shardstore.format.references.json import Expansion
from shardstore.model.capabilities import Capabilities
from shardstore.model.containers import batched, gathered
from shardstore.model.generation import Generation
from shardstore.model.ranges import cut
from shardstore.storage.abilities import HasIdentity
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
    ReadsOnly,
    check_directory,
)
from shardstore.storage.generic.calls import read_only
from shardstore.storage.references.entries import Entry, PinnedReference, ReferenceTarget, SetPlace, Targets
from shardstore.storage.references.json_set import JSONSet, read_json_set, set_of
from shardstore.storage.references.parquet_set import CACHE_BYTES, ParquetSet, read_parquet_set
from shardstore.storage.references.reading import (
    ReferenceReader,
    inline_version,
    presented_version,
    referring,
    refers_to_nothing,
    shown_url,
)
from shardstore.storage.requests.ranged_reads import too_long

_LOOKS_AT_ONCE = 1000
_JSON_SUFFIXES = (".json", ".json.gz", ".json.zst")


@dataclass(frozen=True, slots=True)
class SetChoices:
    """The choices that decide how a set is read."""

    expansion: Expansion = field(default_factory=Expansion)
    pins: bool = True
    """True: objects are read at the versions that the set was made of, where it says those."""
    cache_bytes: int = CACHE_BYTES
    """The bound of the files of a set in Parquet that are kept, decoded."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Limits of coalescing in place of those of the storages, by their names in ``ReadLimits``."""


class SetOrigin(Protocol):
    """The origin of a set: a document in Python, or a place; it can be pickled, and compared."""

    @property
    def url(self) -> str:
        """The URL of the set as a filesystem, for people."""
        ...

    @property
    def identity(self) -> str:
        """A text that identifies this origin, with all of its options. Not to be shown."""
        ...

    @property
    def choices(self) -> SetChoices: ...

    @property
    def document(self) -> Mapping[str, Any] | None:
        """The document, if it is no place."""
        ...

    def place(self) -> SetPlace:
        """Open the place."""
        ...

    def targets(self) -> Targets:
        """Make the storages that references lead to."""
        ...


class ReferenceStorage(ReadsOnly, HasIdentity):
    """The objects below ``path`` that a set of references shows. With ``static``, nothing changes while it is open."""

    def __init__(self, origin: SetOrigin, path: str = "", static: bool = True) -> None:
        self.origin = origin
        self.path = path.strip("/")
        self.static = static
        self._base = f"{self.path}/" if self.path else ""
        self.targets = origin.targets()
        self._set: JSONSet | ParquetSet | None = None
        self._loading: asyncio.Future[JSONSet | ParquetSet] | None = None
        self._loading_pid = -1
        self._reader = ReferenceReader(self.targets, origin.choices.limits, self.url)
        self.place: SetPlace | None = None

    def __reduce__(self) -> tuple[type[ReferenceStorage], tuple[SetOrigin, str, bool]]:
        return type(self), (self.origin, self.path, self.static)  # the set is read again

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReferenceStorage) and (other.path, other.static, other.origin) == (self.path, self.static, self.origin)

    def __hash__(self) -> int:
        return hash((ReferenceStorage, self.path, self.origin.url))

    def __repr__(self) -> str:
        return f"ReferenceStorage({self.url!r})"

    def with_static(self, static: bool) -> ReferenceStorage:
        """Return the same place with the statement that nothing changes in it, or that something may."""
        return self if static is self.static else ReferenceStorage(self.origin, self.path, static)

    def reopened(self) -> ReferenceStorage:
        """Return the same place; it reads the set again."""
        return ReferenceStorage(self.origin, self.path, self.static)

    @property
    def url(self) -> str:
        return self.origin.url

    @property
    def identity(self) -> str:
        """A text that identifies this place, which ``url`` does not. Not to be shown."""
        place = f"{self.origin.identity}/{self._base}"
        return f"static {place}" if self.static else place

    @property
    def content(self) -> str:
        """A text that identifies the set that was read among those that were at its place; empty before it is read."""
        return "" if self._set is None else self._set.version

    @property
    def kind(self) -> str:
        return "references"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(static=self.static)

    async def probe(self) -> Capabilities:
        return self.capabilities

    # -- the set -------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the set now, from a thread that is not the IO loop's; on the loop itself the first request does it.

        Raises:
            NotFound, Corruption, StorageError, Unsupported: it cannot be read.
        """
        loop = get_loop()
        try:
            runs_here = asyncio.get_running_loop() is loop
        except RuntimeError:
            runs_here = False
        if not runs_here:
            asyncio.run_coroutine_threadsafe(self.references(), loop).result()

    async def references(self) -> JSONSet | ParquetSet:
        """Return the set; the first call reads it.

        Raises:
            NotFound, Corruption, StorageError, Unsupported: it cannot be read.
        """
        if self._set is not None:
            return self._set
        if self._loading is None or self._loading_pid != os.getpid():
            self._loading, self._loading_pid = asyncio.ensure_future(self._read_set()), os.getpid()
        loading = self._loading
        try:
            self._set = await asyncio.shield(loading)
        finally:
            if loading.done():
                self._loading = None
        return self._set

    async def _read_set(self) -> JSONSet | ParquetSet:
        choices = self.origin.choices
        if (document := self.origin.document) is not None:
            return set_of(document, choices.expansion)
        place = self.place = self.origin.place()
        if not place.name.endswith(_JSON_SUFFIXES):
            found = await read_parquet_set(place, self.targets, pins=choices.pins, cache_bytes=choices.cache_bytes)
            if found is not None:
                self.targets.settle(is_directory=True)
                return found
        return await read_json_set(place, choices.expansion, self.targets, pins=choices.pins)

    async def find(self, keys: Sequence[str]) -> list[Entry | ShardStoreError | None]:
        """Return what the set has for each key; ``None``: nothing; or the error, where it cannot be read."""
        found = await self.references()
        return await found.find([self._base + key for key in keys])

    def target(self, entry: PinnedReference, key: str) -> ReferenceTarget:
        """Return the object that the reference of a key leads to.

        Raises:
            InvalidInput: the set may not lead there, or its URL means nothing.
            ShardStoreError: the storage there cannot be opened.
        """
        try:
            return self.targets.target(entry.reference.url)
        except ShardStoreError as exc:
            raise referring(exc, key, self.url, shown_url(entry.reference.url)) from exc

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        outcomes: list[ReadOutcome] = [ABSENT] * len(reads)
        try:
            entries = await self.find([read.key for read in reads])
        except ShardStoreError as exc:
            return [Failed(exc)] * len(reads)
        referred: list[tuple[int, Read, PinnedReference]] = []
        for number, (read, entry) in enumerate(zip(reads, entries, strict=True)):
            if isinstance(entry, ShardStoreError):
                outcomes[number] = Failed(entry)
            elif isinstance(entry, PinnedReference):
                referred.append((number, read, entry))
            elif entry is not None:
                outcomes[number] = self._inline(read, entry)
        if referred:
            await self._reader.read(referred, outcomes)
        return outcomes

    def _inline(self, read: Read, data: bytes) -> ReadOutcome:
        if read.most_nbytes is not None and len(data) > read.most_nbytes:
            return Failed(too_long(len(data), read.most_nbytes, f"reading {read.key!r} in {self.url}"))
        generation = inline_version(data)
        if read.generation is not None and read.generation != generation:
            return CHANGED
        view = memoryview(data)
        return Found(generation, len(data), tuple(cut(view, request) for request in read.ranges))

    # -- looking -------------------------------------------------------------------------------------------------------

    async def _look(self, key: str, entry: PinnedReference) -> ObjectInfo | None:
        """Return a whole object that a reference leads to, for a listing; ``None`` if it does not exist."""
        target = self.target(entry, key)
        info = await target.storage.stat(target.key)
        return None if info is None else ObjectInfo(key, info.nbytes)

    async def _infos(self, entries: Sequence[tuple[str, Entry]]) -> list[ObjectInfo]:
        """Return objects for a listing; those that references lead to as a whole are looked at for their sizes."""
        infos = [_info_of(key, entry) for key, entry in entries]
        whole = [(i, key, entry) for i, (key, entry) in enumerate(entries) if infos[i] is None and isinstance(entry, PinnedReference)]
        if whole:
            looks = await asyncio.gather(*(self._look(key, entry) for _, key, entry in whole))
            for (i, _, _), info in zip(whole, looks, strict=True):
                infos[i] = info
        return [ObjectInfo(key, UNKNOWN_NBYTES) if info is None else info for (key, _), info in zip(entries, infos, strict=True)]

    async def stat(self, key: str) -> ObjectInfo | None:
        (entry,) = await self.find([key])
        if isinstance(entry, ShardStoreError):
            raise entry
        if entry is None:
            return None
        info = _info_of(key, entry)
        if info is None and isinstance(entry, PinnedReference) and (info := await self._look(key, entry)) is None:
            raise refers_to_nothing(key, self.url, shown_url(entry.reference.url))
        return info

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        found = await self.references()
        async for page in gathered(found.items(self._base + prefix), _LOOKS_AT_ONCE):
            for info in await self._infos([(key[len(self._base) :], entry) for key, entry in page]):
                yield info

    async def list_dir(self, prefix: str) -> DirListing:
        check_directory(prefix)
        cut_off = len(self._base)
        entries, prefixes = await (await self.references()).children(self._base + prefix)
        infos: list[ObjectInfo] = []
        for some in batched(entries, _LOOKS_AT_ONCE):
            infos += await self._infos([(key[cut_off:], entry) for key, entry in some])
        return DirListing(tuple(infos), tuple(name[cut_off:] for name in prefixes))

    async def keys(self, prefix: str) -> AsyncIterator[str]:
        """Yield the keys that start with ``prefix``; nothing is asked of what they lead to."""
        async for key, _ in (await self.references()).items(self._base + prefix):
            yield key[len(self._base) :]

    async def document_keys(self) -> Sequence[str]:
        """Return the keys of metadata documents, of either version of Zarr."""
        keys = await (await self.references()).documents()
        return [key[len(self._base) :] for key in keys if key.startswith(self._base)]

    async def urls(self) -> AsyncIterator[str | None]:
        """Yield the URLs of all references; some may come more than once."""
        async for url in (await self.references()).urls():
            yield url

    def refusal(self, action: str, key: str) -> ReadOnly:
        return read_only(action, key, self.url)

    async def close(self) -> None:
        """Do nothing: the storages below are opened without resources of their own, or share those of fsspec's filesystems."""


def _info_of(key: str, entry: Entry) -> ObjectInfo | None:
    """Return an object as the set itself shows it; ``None`` if that is a whole object elsewhere, whose size it does not say."""
    if isinstance(entry, bytes):
        return ObjectInfo(key, len(entry), inline_version(entry))
    return None if entry.reference.nbytes is None else ObjectInfo(key, entry.reference.nbytes)


def version_of(entry: Entry, target: Generation | None) -> Generation | None:
    """Return the version of what an entry shows, from the version of the object that it leads to, if that is known."""
    if isinstance(entry, bytes):
        return inline_version(entry)
    known = target if entry.token is None else Generation(entry.token)
    return None if known is None or not known.digest else presented_version(entry.reference, known)
