"""A storage whose arrays may be sharded several times, shown with only one level of sharding left.

::

    the client's engine        takes the last level off
    LevelledStorage            documents: translated, both ways; data of an array with n levels below: from the n-th storage
      n-th storage             an engine, shown as a storage, upon the one before
      ...
      first storage            an engine, shown as a storage, upon what is stored
    what is stored             data of every other array, unchanged

When an engine serves as a storage, each chunk has a version and is replaced on condition of it. So the client's engine treats chunks as
objects. Documents are never read through such an engine: the shown document is computed from the stored one, has its version, and is
replaced on condition of that version.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from shardstore.format.chunk_keys import looks_like_chunk_prefix
from shardstore.format.json_text import JsonObject, dumps, parse_object
from shardstore.format.metadata_v3 import PlainArray, is_array, is_group, parse_shown
from shardstore.format.presentation import PresentLevel, consolidated_arrays, levels_below, levels_of, map_consolidated, restored
from shardstore.format.store_keys import ancestors, join, metadata_key, metadata_path, possible_owners
from shardstore.model.capabilities import Capabilities
from shardstore.model.containers import gathered
from shardstore.model.generation import UNCONDITIONAL, Condition, Generation, IfGeneration
from shardstore.model.ranges import EVERYTHING, ByteRange, BytesLike, CopiedRange, NewBytes, Segment, cut
from shardstore.storage.base import (
    CHANGED,
    DirListing,
    Failed,
    Found,
    ObjectInfo,
    Read,
    ReadOutcome,
    Storage,
    document_read,
    read_one,
    unless_failed,
)
from shardstore.storage.requests.writes import failed, joined
from shardstore.storage.wrappers import SettledStorage, StorageWrapper
from shardstore.stored.detect import DetectedStorage

T = TypeVar("T")
R = TypeVar("R")

_KEYS_AT_ONCE = 256


class LevelledStorage(StorageWrapper):
    """``inner``, with so many levels of sharding removed that only the last one is left, down to the level that is ``wanted``.

    ``above`` makes an engine upon a storage, and returns that engine as a storage.
    """

    def __init__(self, inner: Storage, wanted: PresentLevel, above: Callable[[Storage], Storage]) -> None:
        super().__init__(inner)
        self._wanted: PresentLevel = wanted
        self._above = above
        self._storages = [inner]
        self.deep_arrays: dict[str, int] = {}
        """By path, the number of levels below arrays whose shards are not stored objects, as their documents were last seen."""

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities that the storage of every array has: an engine can do no more than the storage that it works upon."""
        below = self.inner.capabilities
        atomic = below.atomic_commits
        conditional_delete = atomic and below.conditional_delete
        return replace(below, create_if_absent=atomic, compare_and_swap=atomic, conditional_delete=conditional_delete, guarded_reads=False)

    async def probe(self) -> Capabilities:
        await self.inner.probe()
        return self.capabilities

    def _storage_at(self, below: int) -> Storage:
        while len(self._storages) <= below:
            self._storages.append(self._above(self._storages[-1]))
        return self._storages[below]

    def _storage_of(self, key: str) -> Storage:
        """Return where the data at ``key`` is read and written; documents are in ``inner``."""
        for path, below in self.deep_arrays.items():
            if key.startswith(join(path, "")):
                return self._storage_at(below)
        return self.inner

    # -- documents, as they are shown ----------------------------------------------------------------------------------

    def _note(self, path: str, below: int) -> None:
        if below:
            self.deep_arrays[path] = below
        else:
            self.deep_arrays.pop(path, None)

    def _shown(self, path: str, outcome: ReadOutcome) -> ReadOutcome:
        """Return what the read of a whole stored document gives a client, and remember how many levels are below the array."""
        if isinstance(outcome, Failed):
            return outcome
        if not isinstance(outcome, Found):
            self._note(path, 0)
            return outcome
        document = parse_object(outcome.buffers[0])
        if document is None or not is_array(document):
            self._note(path, 0)
            shown = document if document is None else map_consolidated(document, lambda _, array: self._levels(array)[-1])
            return outcome if shown == document or shown is None else _with_content(outcome, dumps(shown))
        levels = self._levels(document)
        self._note(path, len(levels) - 1)
        return _with_content(outcome, dumps(levels[-1])) if len(levels) > 1 else outcome

    def _levels(self, document: JsonObject) -> list[JsonObject]:
        """Return the levels of an array down to that which is shown."""
        documents = levels_of(document)
        return documents[: 1 + levels_below(documents, self._wanted)]

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        paths = [metadata_path(read.key) for read in reads]
        asked = [read if path is None else document_read(read.key) for read, path in zip(reads, paths, strict=True)]
        places = [self.inner if path is not None else self._storage_of(read.key) for read, path in zip(reads, paths, strict=True)]
        # Documents are read last: they have to be true of the data that was read before them.
        outcomes = await _each(places, asked, lambda storage, some: storage.read(some), self.inner)
        return [
            outcome if path is None else _answer_to(read, self._shown(path, outcome))
            for read, path, outcome in zip(reads, paths, outcomes, strict=True)
        ]

    async def stat(self, key: str) -> ObjectInfo | None:
        if metadata_path(key) is None:
            return await self._storage_of(key).stat(key)
        outcome = await read_one(self, document_read(key))
        return ObjectInfo(key, outcome.nbytes, outcome.generation) if isinstance(outcome, Found) else None

    # -- writing -------------------------------------------------------------------------------------------------------

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        path = metadata_path(key)
        if path is None:
            return await self._storage_of(key).write(key, body, nbytes, condition)
        data = await joined(body, nbytes, key)
        document = parse_object(data)
        if path in self.deep_arrays:
            return await self._replace(path, data, document, condition)
        if document is not None and is_group(document):
            data = await self._stored_group(path, data, document)
        return await self.inner.write(key, [data], len(data), condition)

    async def _replace(self, path: str, data: bytes, document: JsonObject | None, condition: Condition) -> Generation:
        """Write the document of an array that had levels below when it was last seen."""
        key = metadata_key(path)
        outcome = await read_one(self.inner, document_read(key))
        self._shown(path, outcome)
        if not isinstance(outcome, Found) or path not in self.deep_arrays:
            return await self.inner.write(key, [data], len(data), condition)
        if isinstance(condition, IfGeneration) and condition.generation != outcome.generation:
            raise failed(key, self.url)
        levels = self._levels(parse_object(outcome.buffers[0]) or {})
        stored = None if document is None or not is_array(document) else restored(document, levels)
        if stored is None:  # nothing is left of the chunks, or this would be refused: it is an array of its own, or none
            generation = await self.inner.write(key, [data], len(data), condition)
            self._note(path, 0)
            return generation
        encoded = dumps(stored)
        return await self.inner.write(key, [encoded], len(encoded), condition)

    async def _stored_group(self, path: str, data: bytes, document: JsonObject) -> bytes:
        """Return a group's document, with the documents of arrays inside as these are stored, or as they were in it before."""
        below = list(consolidated_arrays(document))
        if not below:
            return data
        keys = [metadata_key(path), *(metadata_key(join(path, name)) for name in below)]
        outcomes = await self.inner.read([document_read(key) for key in keys])
        own, *arrays = [parse_object(outcome.buffers[0]) if isinstance(outcome, Found) else None for outcome in outcomes]
        before = {} if own is None else consolidated_arrays(own)
        known = dict(zip(below, arrays, strict=True))

        def stored(name: str, shown: JsonObject) -> JsonObject:
            for candidate in (known[name], before.get(name)):
                if candidate is not None and is_array(candidate) and (found := restored(shown, self._levels(candidate))) is not None:
                    return found
            return shown

        translated = map_consolidated(document, stored)
        return data if translated == document else dumps(translated)

    async def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        storage = self._storage_of(key)
        if storage is self.inner:
            return await storage.compose(key, source, segments, condition)
        ranges = tuple(ByteRange(s.offset, s.offset + s.nbytes) for s in segments if isinstance(s, CopiedRange))
        outcome = await read_one(storage, Read(key, ranges, source))
        if not isinstance(outcome, Found):
            raise failed(key, self.url)
        kept = iter(outcome.buffers)
        body = [next(kept) if isinstance(s, CopiedRange) else s.data if isinstance(s, NewBytes) else bytes(s.nbytes) for s in segments]
        return await storage.write(key, body, sum(segment.nbytes for segment in segments), condition)

    async def copy(self, source: str, target: str) -> Generation | None:
        """Copy data as it is shown; whole nodes are copied as they are stored, without this (``moving``)."""
        if not self.deep_arrays or self._storage_of(source) is self._storage_of(target) is self.inner:
            return await self.inner.copy(source, target)
        outcome = await read_one(self, Read(source, (EVERYTHING,)))
        unconditional = [bytes(buffer) for buffer in outcome.buffers] if isinstance(outcome, Found) else None
        return None if unconditional is None else await self.write(target, unconditional, sum(map(len, unconditional)), UNCONDITIONAL)

    async def rename_prefix(self, source: str, target: str) -> bool:
        if any(f"{path}/".startswith((f"{source}/", f"{target}/")) or f"{source}/".startswith(f"{path}/") for path in self.deep_arrays):
            return False
        return await self.inner.rename_prefix(source, target)

    async def delete(self, key: str, condition: Condition) -> bool:
        path = metadata_path(key)
        if path is None:
            return await self._storage_of(key).delete(key, condition)
        existed = await self.inner.delete(key, condition)
        self._note(path, 0)
        return existed

    async def delete_many(self, keys: Sequence[str]) -> None:
        paths = [metadata_path(key) for key in keys]
        places = [self.inner if path is not None else self._storage_of(key) for key, path in zip(keys, paths, strict=True)]

        async def erase(storage: Storage, some: Sequence[str]) -> Sequence[None]:
            await storage.delete_many(some)
            return [None] * len(some)

        await _each(places, keys, erase, self.inner)
        for path in paths:
            if path is not None:
                self._note(path, 0)

    # -- listing -------------------------------------------------------------------------------------------------------

    async def _within(self, prefix: str) -> Storage:
        """Return the storage to list below ``prefix``: that of the chunks of an array with levels below, or what is stored."""
        paths = [path for path, rest in ancestors(prefix) if looks_like_chunk_prefix(rest)]
        await self.read([document_read(metadata_key(path)) for path in paths])
        return next((self._storage_at(self.deep_arrays[path]) for path in paths if path in self.deep_arrays), self.inner)

    async def list_dir(self, prefix: str) -> DirListing:
        return await (await self._within(prefix)).list_dir(prefix)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        storage = await self._within(prefix)
        if storage is not self.inner:
            async for info in storage.list(prefix):
                yield info
            return
        seen: dict[str, PlainArray | None] = {}
        deep: dict[str, PlainArray] = {}
        async for page in gathered(self.inner.list(prefix), _KEYS_AT_ONCE):
            for shown in await self._outside(page, seen, deep):
                yield shown
        for path, array in deep.items():
            start = join(path, "")
            below = self._storage_at(self.deep_arrays.get(path, 0))
            async for info in below.list(start + array.key_encoding.prefix_of((), len(array.shape))):
                if info.key.startswith(prefix) and array.key_encoding.decode(info.key[len(start) :], len(array.shape)) is not None:
                    yield info

    async def _outside(
        self, page: Sequence[ObjectInfo], seen: dict[str, PlainArray | None], deep: dict[str, PlainArray]
    ) -> Sequence[ObjectInfo]:
        """Return the stored objects that are not shards of arrays with levels below; these arrays are added to ``deep``."""
        await self._look_up([info.key for info in page if metadata_path(info.key) is None], seen)
        outside: list[ObjectInfo] = []
        for info in page:
            owner = None if metadata_path(info.key) is not None else _owner(info.key, seen)
            if owner is not None and owner[0] in self.deep_arrays:
                deep[owner[0]] = owner[1]
            else:
                outside.append(info)
        return outside

    async def _look_up(self, keys: Sequence[str], seen: dict[str, PlainArray | None]) -> None:
        """Read the documents of the arrays that the keys may be chunks of, the outermost first."""
        while unknown := list(dict.fromkeys(path for key in keys if (path := _unknown_owner(key, seen)) is not None)):
            outcomes = await self.inner.read([document_read(metadata_key(path)) for path in unknown])
            for path, outcome in zip(unknown, outcomes, strict=True):
                outcome = unless_failed(outcome)
                self._shown(path, outcome)
                document = parse_object(outcome.buffers[0]) if isinstance(outcome, Found) else None
                array = parse_shown(document) if document is not None and is_array(document) else None
                seen[path] = array if isinstance(array, PlainArray) else None


class LevelledDraft(SettledStorage):
    """``detected``, or, if a draft hierarchy is stored there, ``levelled``, which takes the levels of ``detected`` off.

    By default only storage transformers are taken off, and only drafts have any.
    """

    def __init__(self, detected: DetectedStorage, levelled: LevelledStorage) -> None:
        super().__init__(detected)
        self._detected = detected
        self._levelled = levelled

    async def settled(self) -> Storage:
        stored = await self._detected.settled()
        return self.found_meanwhile() or stored

    def found_meanwhile(self) -> Storage | None:
        self.found = self._levelled if self._detected.is_draft else self._detected.found
        return self.found

    async def first_read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        found = self.found_meanwhile()
        if found is None:
            outcomes = await self._detected.read(reads)
            if (found := self.found_meanwhile()) is not self._levelled:
                return outcomes
        return await found.read(reads)


def _unknown_owner(key: str, seen: dict[str, PlainArray | None]) -> str | None:
    """Return the outermost array that could own a key and is not in ``seen``; ``None`` if an array in ``seen`` owns it."""
    for path, rest in possible_owners(key):
        if path not in seen:
            return path
        array = seen[path]
        if array is not None and array.key_encoding.decode(rest, len(array.shape)) is not None:
            return None
    return None


def _owner(key: str, seen: dict[str, PlainArray | None]) -> tuple[str, PlainArray] | None:
    for path, rest in possible_owners(key):
        array = seen.get(path)
        if array is not None and array.key_encoding.decode(rest, len(array.shape)) is not None:
            return path, array
    return None


def _with_content(outcome: Found, data: bytes) -> Found:
    return replace(outcome, nbytes=len(data), buffers=(memoryview(data),))


def _answer_to(read: Read, outcome: ReadOutcome) -> ReadOutcome:
    """Return the outcome of a read of a part, or of one version, from a document that was read whole."""
    if not isinstance(outcome, Found):
        return outcome
    if read.generation is not None and read.generation != outcome.generation:
        return CHANGED
    (data,) = outcome.buffers
    return replace(outcome, buffers=tuple(cut(data, request) for request in read.ranges))


async def _each(
    places: Sequence[Storage], items: Sequence[T], call: Callable[[Storage, Sequence[T]], Awaitable[Sequence[R]]], last: Storage
) -> list[R]:
    """Make one call for each place, with its items, and then one for ``last``; return the results in the order of the items."""
    if all(place is last for place in places):
        return list(await call(last, items)) if items else []
    numbers: dict[int, list[int]] = {}
    for i, place in enumerate(places):
        numbers.setdefault(id(place), []).append(i)
    in_the_end = numbers.pop(id(last), [])
    found = await asyncio.gather(*(call(places[mine[0]], [items[i] for i in mine]) for mine in numbers.values()))
    results = dict(zip((i for mine in numbers.values() for i in mine), (one for some in found for one in some), strict=True))
    if in_the_end:
        results |= zip(in_the_end, await call(last, [items[i] for i in in_the_end]), strict=True)
    return [results[i] for i in range(len(items))]
