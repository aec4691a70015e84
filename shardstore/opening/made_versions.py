"""Versions that are made for objects of storages without versions, from what can be looked at: so a change of equal size is noticed.

::

    a mapping               its bytes, which have to be read to know how long they are
    a reference to a URL    the reference, and the version of the object that it refers to
    a reference to bytes    the bytes
    an archive, not zip     the facts of its entry, and the version of the archive (entries of zip have a checksum)
    a cache                 the version in the filesystem behind it, which is read instead: a cache may show an older version
    anything else           unchanged

A version is looked at before the bytes are read. So it may be older than the bytes, and then differs at the next look; it is never
newer.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from typing import Any

from fsspec.core import OpenFile, split_protocol
from fsspec.spec import AbstractFileSystem

from shardstore.errors import ShardStoreError
from shardstore.model.containers import batched
from shardstore.model.generation import Generation
from shardstore.model.ranges import EVERYTHING
from shardstore.opening.open import open_storage
from shardstore.storage.base import DirListing, Found, ObjectInfo, Read, ReadOutcome, Storage, read_one
from shardstore.storage.generic.links import ARCHIVES, CACHES, REFERENCES, is_one
from shardstore.storage.generic.storage import GenericStorage
from shardstore.storage.inferred_versions import unversioned
from shardstore.storage.python_stores import MappingStorage
from shardstore.storage.references.entries import PinnedReference
from shardstore.storage.references.storage import ReferenceStorage, version_of
from shardstore.storage.static import StaticStorage

_LOOKS_AT_ONCE = 64
_KEYS_AT_ONCE = 1000


def options_of_new(source: object, options: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the storage options to open a URL of an archive or of references again: fsspec remembers filesystems, and they show what was
    there when they were opened.
    """
    if not isinstance(source, str) or source.partition("://")[0].partition("::")[0] not in ARCHIVES | REFERENCES:
        return options
    return {**(options or {}), "skip_instance_cache": True}


def with_versions(storage: Storage, *, is_new: bool = False) -> Storage:
    """Return ``storage`` for reading, with versions for as many of its objects as possible.

    Archives and sets of references are opened again, unless they were just opened (see ``options_of_new``).

    Raises:
        InvalidInput, StorageError: as ``open_storage`` does.
    """
    if isinstance(storage, MappingStorage):
        return _OfMapping(storage)
    if isinstance(storage, ReferenceStorage):
        return _OfReferences(storage if is_new else storage.reopened())
    if not isinstance(storage, GenericStorage):
        return storage
    fs = storage.fs
    if is_one(fs, CACHES):
        return with_versions(open_storage((object.__getattribute__(fs, "__dict__")["fs"], storage.path)))
    if not is_one(fs, ARCHIVES | REFERENCES):
        return storage
    opened = storage
    if not is_new:
        opened = storage.with_filesystem(type(fs)(*fs.storage_args, **fs.storage_options, skip_instance_cache=True))
    if is_one(fs, REFERENCES):
        return _OfFilesystemReferences(opened)
    return opened if is_one(fs, frozenset({"zip"})) else _OfArchive(opened)


class _Fingerprinted(StaticStorage):
    """``inner``, whose objects get versions if they have none; for reading only."""

    inner: Any

    async def _fingerprinted(self, infos: Sequence[ObjectInfo]) -> list[ObjectInfo]:
        """Return the objects, without those that are gone, with versions."""
        raise NotImplementedError

    async def stat(self, key: str) -> ObjectInfo | None:
        info = await self.inner.stat(key)
        return None if info is None else next(iter(await self._fingerprinted([info])), None)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        page: list[ObjectInfo] = []
        async for info in self.inner.list(prefix):
            page.append(info)
            if len(page) >= _KEYS_AT_ONCE:
                for found in await self._fingerprinted(page):
                    yield found
                page = []
        for found in await self._fingerprinted(page):
            yield found

    async def list_dir(self, prefix: str) -> DirListing:
        listing: DirListing = await self.inner.list_dir(prefix)
        return DirListing(tuple(await self._fingerprinted(listing.objects)), listing.prefixes)


class _OfMapping(_Fingerprinted):
    """A mapping whose values are read for each look at them."""

    async def _fingerprinted(self, infos: Sequence[ObjectInfo]) -> list[ObjectInfo]:
        found: list[ObjectInfo | None] = []
        for some in batched(infos, _LOOKS_AT_ONCE):
            found += await asyncio.gather(*(self._look(info.key) for info in some))
        return [info for info in found if info is not None]

    async def _look(self, key: str) -> ObjectInfo | None:
        outcome = await read_one(self.inner, Read(key, (EVERYTHING,)))
        return ObjectInfo(key, outcome.nbytes, _made_of(bytes(outcome.buffers[0]))) if isinstance(outcome, Found) else None

    async def stat(self, key: str) -> ObjectInfo | None:
        return await self._look(key)


class _OfArchive(_Fingerprinted):
    """An archive without checksums: times of its entries may be anything. Nothing changes in it while it is open."""

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        outcomes = await super().read([replace(read, generation=None) for read in reads])
        return [replace(found, generation=unversioned(found.nbytes)) if isinstance(found, Found) else found for found in outcomes]

    async def _fingerprinted(self, infos: Sequence[ObjectInfo]) -> list[ObjectInfo]:
        file: Any = object.__getattribute__(self.inner.fs, "__dict__").get("of")
        version = await _version_of(file.fs, str(file.path)) if isinstance(file, OpenFile) else None
        if version is None:
            return [info._replace(generation=None) for info in infos]
        return [info._replace(generation=_made_of(version, "" if (own := info.generation) is None else own.token)) for info in infos]


class _OfReferences(_Fingerprinted):
    """A set of references. Each object that they refer to is looked at once, unless the set says which version it was made of."""

    inner: ReferenceStorage

    def __init__(self, inner: ReferenceStorage) -> None:
        super().__init__(inner)
        self._versions: dict[str | None, Generation | None] = {}  # by URL

    async def _fingerprinted(self, infos: Sequence[ObjectInfo]) -> list[ObjectInfo]:
        entries = await self.inner.find([info.key for info in infos])
        new = {
            entry.reference.url: (info.key, entry)
            for info, entry in zip(infos, entries, strict=True)
            if isinstance(entry, PinnedReference) and entry.token is None and entry.reference.url not in self._versions
        }
        for some in batched(list(new.items()), _LOOKS_AT_ONCE):
            self._versions.update(await asyncio.gather(*(self._look(url, key, entry) for url, (key, entry) in some)))
        found: list[ObjectInfo] = []
        for info, entry in zip(infos, entries, strict=True):
            if isinstance(entry, ShardStoreError):
                raise entry
            known = self._versions.get(entry.reference.url) if isinstance(entry, PinnedReference) else None
            if entry is not None:
                found.append(info._replace(generation=version_of(entry, known)))
        return found

    async def _look(self, url: str | None, key: str, entry: PinnedReference) -> tuple[str | None, Generation | None]:
        try:
            target = self.inner.target(entry, key)
            info = await with_versions(target.storage).stat(target.key)
        except ShardStoreError:  # a server may serve an object, and refuse to show its metadata
            return url, None
        return url, None if info is None else info.generation


class _OfFilesystemReferences(_Fingerprinted):
    """A set of references as a filesystem of fsspec's. Each object that they refer to is looked at once."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._versions: dict[str, str | None] = {}  # by URL

    async def _fingerprinted(self, infos: Sequence[ObjectInfo]) -> list[ObjectInfo]:
        references = [self._reference(info.key) for info in infos]
        await self._look(url for value in references if isinstance(value, list) and (url := value[0]) not in self._versions)
        return [info._replace(generation=self._version(value)) for info, value in zip(infos, references, strict=True)]

    def _reference(self, key: str) -> bytes | list[Any] | None:
        """Return the bytes, or the URL and its further parts; ``None`` if there is no reference."""
        fs: Any = self.inner.fs
        try:
            value: Any = fs.references[f"{self.inner.path}/{key}" if self.inner.path else key]
        except KeyError:
            return None
        if hasattr(value, "to_bytes"):
            value = value.to_bytes()
        if isinstance(value, str):
            value = value.encode(errors="surrogatepass")
        if isinstance(value, bytes):
            return value
        url, *span = value
        return [fs.target if url is None else url, *map(int, span)]

    async def _look(self, urls: Iterable[str]) -> None:
        for some in batched(list(dict.fromkeys(urls)), _LOOKS_AT_ONCE):
            fss = [self.inner.fs.fss[split_protocol(url)[0]] for url in some]
            self._versions.update(zip(some, await asyncio.gather(*map(_version_of, fss, some)), strict=True))

    def _version(self, value: bytes | list[Any] | None) -> Generation | None:
        if isinstance(value, bytes):
            return _made_of(value)
        version = None if value is None else self._versions[value[0]]
        return None if value is None or version is None else _made_of(version, repr(value))


async def _version_of(fs: AbstractFileSystem, path: str) -> str | None:
    """Return the version of an object of any filesystem; ``None`` if it gives none, or cannot be looked at."""
    fs = vars(fs).get("sync_fs", fs)  # a synchronous one, made asynchronous for references
    parent, _, name = str(fs._strip_protocol(path)).rpartition("/")
    try:
        info = await with_versions(open_storage((fs, parent or "/"))).stat(name)
    except ShardStoreError:  # a server may serve an object, and refuse to show its metadata
        return None
    # One without a digest says nothing about the next look: it was made up for this one, or is of a clock that has not gone on.
    return None if info is None or info.generation is None or not info.generation.digest else f"{info.generation.token}-{info.nbytes}"


def _made_of(*parts: str | bytes) -> Generation:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode(errors="surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return Generation(f"made-of-{digest.hexdigest()}")
