"""A stored hierarchy of the 2022 draft as a storage with the keys and documents of final Zarr v3.

::

    inside                                 here
    zarr.json                              none
    meta/root/x/y.array.json, .group.json  x/y/zarr.json, translated
    (no document, nodes below x)           x/zarr.json, of a group without attributes
    any key                                .draft2022/…~, not listed but for those who list there
    data/root/x/y/c0/1                     x/y/c/0/1, the same object
    data/root/x/s/c0 or c, s being 0-d     x/s/c, the same object

An array's document keeps the ``storage_transformers`` that are stored, and the grid of the chunks; what lies at its chunk keys
are shards then. Versions, conditions and ranges of data are those of the objects inside; a document's version is that of the stored
one, its bytes and ranges are those of the translation. Nothing is written but by writes, the entry point with the first document.
Keys without a counterpart have a name too (``format.draft2022.keys.verbatim_key``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from shardstore.errors import InvalidInput, ShardStoreError
from shardstore.format.draft2022.keys import (
    DATA_ROOT,
    ENTRY_POINT_KEY,
    META_ROOT,
    VERBATIM,
    array_document_key,
    canonical_key,
    data_key,
    document_path,
    scalar_data_keys,
    verbatim_stored,
)
from shardstore.model.generation import UNCONDITIONAL, Condition, Generation
from shardstore.model.ranges import EVERYTHING, BytesLike, Segment, cut
from shardstore.storage.abilities import FileTree
from shardstore.storage.base import (
    ABSENT,
    CHANGED,
    Absent,
    DirListing,
    Failed,
    Found,
    Guard,
    ObjectInfo,
    Read,
    ReadOutcome,
    Storage,
    document_read,
)
from shardstore.storage.requests.writes import check_deletion, joined
from shardstore.storage.wrappers import StorageWrapper
from shardstore.stored.draft2022.documents import (
    IMPLICIT,
    IMPLICIT_DOCUMENT,
    DraftDocuments,
    data_path,
    document_reads,
    scalar_document,
    scalar_keys,
    shown_outcome,
    sought,
)
from shardstore.stored.draft2022.listing import DraftListing

_NO_OVERRIDE: Mapping[str, tuple[int, ...]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _Inside:
    """The reads of the storage inside that one read needs: ``reads``, and what they are of."""

    reads: tuple[Read, ...]
    document: str | None = None
    scalar: str | None = None
    """The path of the array whose chunk it is, if that array is 0-d."""


@dataclass(frozen=True, slots=True)
class _Located:
    """The stored key of data; ``hidden`` is the other object of a 0-d array that has two."""

    key: str
    hidden: str | None = None


class DraftStorage(StorageWrapper, FileTree):
    """The hierarchy of the 2022 draft in ``inner``. ``override``: chunks per shard of arrays, by path, that have lost them.

    With ``with_stored``, documents that are read come with the stored ones (``format.draft2022.metadata.with_stored``).
    """

    def __init__(self, inner: Storage, override: Mapping[str, tuple[int, ...]] = _NO_OVERRIDE, *, with_stored: bool = False) -> None:
        super().__init__(inner)
        self.override = dict(override)
        self._with_stored = with_stored
        self._documents = DraftDocuments(inner, self.override, with_stored=with_stored)
        self._listing = DraftListing(inner, self._documents)

    def __reduce__(self) -> tuple[partial[DraftStorage], tuple[Storage, dict[str, tuple[int, ...]]]]:
        return partial(DraftStorage, with_stored=self._with_stored), (self.inner, self.override)

    def __repr__(self) -> str:
        return f"DraftStorage({self.inner!r}, {self.override!r})"

    async def problem(self) -> ShardStoreError | None:
        """Return the error if what is stored here is no hierarchy of the draft, or not one that is understood; else ``None``.

        Reads do not ask, so that any place can be looked at; the first write of a document does.
        """
        return await self._documents.entry_point.problem()

    async def cut_links(self, prefix: str) -> None:
        if (tree := self.inner.ability(FileTree)) is None:
            return
        is_verbatim = prefix.startswith(VERBATIM)
        for stored in (prefix.removeprefix(VERBATIM),) if is_verbatim else (f"{DATA_ROOT}{prefix}", f"{META_ROOT}/{prefix}"):
            await tree.cut_links(stored)

    async def keep_seen(self, key: str) -> None:
        if (tree := self.inner.ability(FileTree)) is not None:
            for stored in await self.stored_names(key.rstrip("/")):
                await tree.keep_seen(stored)

    async def stored_names(self, name: str) -> tuple[str, ...]:
        data = _stored_key(name) if name else DATA_ROOT.rstrip("/")
        return (data or f"{DATA_ROOT}{name}", f"{META_ROOT}/{name}".rstrip("/"))

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        """Read in one round inside, and one of listings for the documents that were asked for whole and are absent: are nodes below?"""
        insides = [_inside(read) for read in reads]
        found = iter(await self.inner.read([r for inside in insides for r in inside.reads]))
        outcomes: list[ReadOutcome] = []
        for read, inside in zip(reads, insides, strict=True):
            mine = [next(found) for _ in inside.reads]
            if inside.document is not None:
                outcomes.append(self._document(read, inside.document, *mine))
            elif inside.scalar is not None:
                outcomes.append(_scalar(inside.scalar, *mine))
            else:
                outcomes.append(mine[0] if mine else ABSENT)
        asked = [i for i, (r, o) in enumerate(zip(reads, outcomes, strict=True)) if o == ABSENT and EVERYTHING in r.ranges]
        asked = [i for i in asked if insides[i].document is not None]
        for i, outcome in zip(asked, await asyncio.gather(*(self._implicit(reads[i], insides[i]) for i in asked)), strict=True):
            outcomes[i] = outcome
        return outcomes

    def _document(self, read: Read, path: str, group: ReadOutcome, array: ReadOutcome) -> ReadOutcome:
        kind, outcome = shown_outcome(group, array)
        if not isinstance(outcome, Found):
            self._documents.forget(path)
            return outcome
        return _versioned_outcome(read, outcome.generation, self._documents.shown(path, kind, outcome))

    async def _implicit(self, read: Read, inside: _Inside) -> ReadOutcome:
        assert inside.document is not None
        try:
            is_implicit = await self._documents.is_implicit(inside.document)
        except ShardStoreError as exc:
            return Failed(exc)
        return _versioned_outcome(read, IMPLICIT, IMPLICIT_DOCUMENT) if is_implicit else ABSENT

    async def stat(self, key: str) -> ObjectInfo | None:
        """Look at an object. A document is read, and has the size of its translation; in listings it has that of the stored one."""
        path = document_path(key)
        if path is None and not _may_be_scalar(key):
            stored = _stored_key(key)
            info = None if stored is None else await self.inner.stat(stored)
            return None if info is None else info._replace(key=key)
        (outcome,) = await self.read([Read(key, () if path is None else (EVERYTHING,))])
        found = sought(outcome, key)
        return None if found is None else ObjectInfo(key, found.nbytes, found.generation)

    # -- where data lies -----------------------------------------------------------------------------------------------

    async def _located(self, key: str) -> _Located | None:
        """Return where data is, or where it would be written; ``None`` where the draft has no counterpart."""
        stored = _stored_key(key)
        if stored is None or verbatim_stored(key) is not None:
            return None if stored is None else _Located(stored)
        if _may_be_scalar_inside(stored):
            # The object c0 of a 0-d array is its chunk, not one of the key c/0.
            return None if await self._is_scalar(data_path(stored)) else _Located(stored)
        if not _may_be_scalar(key):
            return _Located(stored)
        path = _scalar_path(key)
        *data, document = await self.inner.read(_scalar_reads(Read(key, ()), path))
        keys = scalar_keys(path, sought(document, array_document_key(path)))
        if keys is None:
            return _Located(stored)
        present = {k for k, o in zip(scalar_data_keys(path), data, strict=True) if sought(o, k) is not None}
        # A writer takes the object that is there, so that conditions hold for the one that readers see.
        first, second = keys if keys[0] in present or not present else keys[::-1]
        return _Located(first, second if second in present else None)

    async def _is_scalar(self, path: str) -> bool:
        """Return whether a 0-d array is at ``path``, by what was last seen of its document, at which each writer has looked."""
        known = self._documents.is_scalar(path)
        if known is not None:
            return known
        (outcome,) = await self.inner.read([document_read(array_document_key(path))])
        return scalar_document(sought(outcome, array_document_key(path))) is not None

    async def _target(self, key: str) -> str:
        located = await self._located(key)
        if located is not None and verbatim_stored(key) is not None and canonical_key(located.key) is not None:
            raise InvalidInput(f"{located.key!r} is part of the hierarchy ({self.url}): it is written as what it is there")
        if located is None:
            raise InvalidInput(
                f"{key!r} has no counterpart in a hierarchy of the 2022 draft ({self.url}), where it would be taken for another key: "
                "choose another name"
            )
        return located.key

    # -- writing -------------------------------------------------------------------------------------------------------

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        path = document_path(key)
        if path is not None:
            return await self._documents.write(key, path, await joined(body, nbytes, key), condition)
        return await self.inner.write(await self._target(key), body, nbytes, condition)

    async def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        if document_path(key) is not None:
            raise InvalidInput(f"{key!r} is a document, which is translated: it is written whole")
        return await self.inner.compose(await self._target(key), source, segments, condition)

    async def copy(self, source: str, target: str) -> Generation | None:
        old, new = document_path(source), document_path(target)
        if old is not None and new is not None:
            return await self._documents.copy(target, old, new)
        if old is not None or new is not None:  # a document becomes a file, or the other way round
            (outcome,) = await self.read([Read(source, (EVERYTHING,))])
            found = sought(outcome, source)
            return None if found is None else await self.write(target, found.buffers, found.nbytes, UNCONDITIONAL)
        located = await self._located(source)
        return None if located is None else await self.inner.copy(located.key, await self._target(target))

    async def rename_prefix(self, source: str, target: str) -> bool:
        """Return ``False``: documents and data lie below two prefixes, and each document next to the directory of its node."""
        return False

    async def delete(self, key: str, condition: Condition) -> bool:
        check_deletion(key, condition)
        path = document_path(key)
        if path is not None:
            return await self._documents.delete(key, path, condition)
        located = await self._located(key)
        if located is None:
            return False
        if located.key == ENTRY_POINT_KEY:
            self._documents.entry_point.is_known = False
        if located.hidden is not None:  # first: it must not appear from behind the other
            await self.inner.delete(located.hidden, UNCONDITIONAL)
        return await self.inner.delete(located.key, condition)

    async def delete_many(self, keys: Sequence[str]) -> None:
        stored: list[str] = []
        doubtful: dict[str, list[str]] = {}
        for key in keys:
            path, inside = document_path(key), _stored_key(key)
            if inside == ENTRY_POINT_KEY:
                self._documents.entry_point.is_known = False
            if path is not None:
                self._documents.forget(path)
                stored += [group_read.key for group_read in document_reads(path)]
            elif inside is not None and verbatim_stored(key) is None and (_may_be_scalar(key) or _may_be_scalar_inside(inside)):
                doubtful.setdefault(data_path(inside), []).append(inside)
            elif inside is not None:
                stored.append(inside)
        documents = await self.inner.read([document_read(array_document_key(path)) for path in doubtful]) if doubtful else []
        for (path, mine), outcome in zip(doubtful.items(), documents, strict=True):
            names = scalar_data_keys(path)
            if scalar_document(sought(outcome, array_document_key(path))) is None:
                stored += mine
            elif names[0] in mine:
                stored += names
        await self.inner.delete_many(stored)

    # -- looking -------------------------------------------------------------------------------------------------------

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """List data in the order of the stored keys, then documents. Below ``VERBATIM``: documents, and what has no canonical key."""
        return self._listing.verbatim(prefix) if prefix.startswith(VERBATIM) else self._listing.objects(prefix)

    async def list_dir(self, prefix: str) -> DirListing:
        """List one level; below ``VERBATIM`` whatever is stored there."""
        return await (self._listing.verbatim_directory(prefix) if prefix.startswith(VERBATIM) else self._listing.directory(prefix))


# -- reads of single keys ----------------------------------------------------------------------------------------------


def _inside(read: Read) -> _Inside:
    path = document_path(read.key)
    guard = None if read.guard is None else _stored_guard(read.guard)
    if path is not None:
        return _Inside(document_reads(path, guard), document=path)
    stored = _stored_key(read.key)
    if stored is None:
        return _Inside(())
    inside = replace(read, key=stored, guard=guard)
    if not _may_be_scalar(read.key):
        return _Inside((inside,))
    return _Inside(_scalar_reads(inside, _scalar_path(read.key)), scalar=_scalar_path(read.key))


def _stored_key(key: str) -> str | None:
    """Return the stored key of data, or of what is named verbatim."""
    verbatim = verbatim_stored(key)
    return data_key(key) if verbatim is None else verbatim


def _stored_guard(guard: Guard) -> Guard:
    """Return the guard by its stored key. A document is taken for an array's: only readers of chunks use guards."""
    path = document_path(guard.key)
    stored = array_document_key(path) if path is not None else data_key(guard.key)
    return Guard(guard.key if stored is None else stored, guard.generation)


def _versioned_outcome(read: Read, generation: Generation, data: bytes) -> ReadOutcome:
    if read.generation is not None and read.generation != generation:
        return CHANGED
    return Found(generation, len(data), tuple(cut(memoryview(data), request) for request in read.ranges))


def _may_be_scalar(key: str) -> bool:
    """Return whether a canonical key is that of a 0-d array's chunk, if there is such an array."""
    return key == "c" or key.endswith("/c")


def _may_be_scalar_inside(stored: str) -> bool:
    return stored.endswith("/c0")


def _scalar_path(key: str) -> str:
    return key.rpartition("/")[0]


def _scalar_reads(read: Read, path: str) -> tuple[Read, ...]:
    """Return reads of both names, then of the document, which so is true of what was read before it."""
    return (*(replace(read, key=key) for key in scalar_data_keys(path)), document_read(array_document_key(path)))


def _scalar(path: str, c: ReadOutcome, c0: ReadOutcome, document: ReadOutcome) -> ReadOutcome:
    if not isinstance(document, Found | Absent):
        return document
    keys = scalar_keys(path, document if isinstance(document, Found) else None)
    if keys is None:
        return c
    one, other = (c, c0) if keys[0] == scalar_data_keys(path)[0] else (c0, c)
    return other if isinstance(one, Absent) else one
