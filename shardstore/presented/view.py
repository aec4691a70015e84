"""An engine under other keys: each presented key is a canonical one, a part of a document, an object beside the hierarchy, or nothing.

Flavours subclass it. The canonical keys are those of final Zarr v3, which the engine itself knows; what is pinned, held back by a
transaction, committed and retried is the engine's business.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from shardstore.engine.actions import Action, EraseValue, Patch, Revise, SetIfMissing, SetValue, Swap, revising
from shardstore.engine.engine import Engine
from shardstore.engine.keys import check_key, check_prefix, metadata_key
from shardstore.engine.metadata.hierarchy import Node
from shardstore.engine.reading.listing import ListedBatch, ListedValue
from shardstore.engine.reading.pinned import HeldValue, OpenValue
from shardstore.engine.reading.shard_chunks import Value
from shardstore.engine.reading.version_reader import of_content
from shardstore.engine.values import KeyRequest, KeyUpdate
from shardstore.engine.writing.uninterrupted import uninterrupted
from shardstore.errors import Corruption, InvalidInput, ShardStoreError
from shardstore.format.chunk_keys import ChunkKeyEncoding
from shardstore.format.json_text import JsonObject, loads_object
from shardstore.format.metadata_v3 import ArrayLayout, PlainArray, is_array, parse_shown
from shardstore.model.ranges import EVERYTHING, resolve
from shardstore.storage.base import ABSENT, Read, ReadOutcome


@dataclass(frozen=True, slots=True)
class Canonical:
    """The value of this canonical key."""

    key: str


@dataclass(frozen=True, slots=True)
class Part:
    """What the flavour shows as ``kind`` of the document of the node at ``path``."""

    path: str
    kind: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """The flavour has no such key, and nothing can be stored there, because of ``reason``."""

    reason: str


Meaning = Canonical | Part | Nothing


@dataclass(frozen=True, slots=True)
class KnownArray:
    """How the chunks of an array are named."""

    encoding: ChunkKeyEncoding
    ndim: int


class PresentedEngine(Engine, ABC):
    """An engine whose public methods take and give the keys of a flavour."""

    # -- what a flavour defines ----------------------------------------------------------------------------------------

    @abstractmethod
    async def _meanings(self, keys: Sequence[str], *, for_write: bool) -> list[Meaning]:
        """What each presented key means."""

    @abstractmethod
    def _shown(self, part: Part, document: bytes | None) -> bytes | None:
        """The bytes of a part of the node whose canonical presented document is ``document``; ``None``: there is no such part.

        Raises:
            ShardStoreError: the flavour cannot express it.
        """

    @abstractmethod
    def _revised(self, part: Part, data: bytes | None, document: bytes | None) -> bytes | None:
        """The canonical presented document with ``data`` as that part, or without the part; ``None``: no document is left.

        Raises:
            InvalidInput: final Zarr v3 cannot express it.
        """

    @abstractmethod
    async def _show_parts(self, parts: Sequence[Part], documents: dict[str, Value]) -> list[bytes | ShardStoreError | None]:
        """The bytes of each part, whole, of what their ``documents`` are by path."""

    @abstractmethod
    async def _update_presented(self, updates: Sequence[KeyUpdate]) -> list[Exception | None]:
        """Carry out updates of presented keys, in the order that the flavour's documents need."""

    @abstractmethod
    def _presented_keys(self, prefix: str) -> AsyncIterator[ListedValue]:
        """Every presented key that starts with ``prefix``."""

    # -- nodes ---------------------------------------------------------------------------------------------------------

    async def _arrays(self, paths: Iterable[str], *, for_write: bool) -> dict[str, KnownArray]:
        """The arrays of final Zarr v3 whose chunks have known names among the nodes at ``paths``, in one round of requests at most."""
        arrays: dict[str, KnownArray] = {}
        unknown: list[str] = []
        hierarchy, held = self.hierarchy, self._held
        for path in dict.fromkeys(paths):
            if held is not None and held.decides(metadata_key(path)):
                if (array := _array_of_document(held.get(metadata_key(path)))) is not None:
                    arrays[path] = array
                continue
            node = hierarchy.known(path)
            if node is not None and (hierarchy.is_fresh(node) or not for_write):
                if (array := array_of_node(node)) is not None:
                    arrays[path] = array
            elif node is not None or for_write or not hierarchy.recently_absent(path):
                unknown.append(path)
        for path, node in (await self._nodes(unknown) if unknown else {}).items():
            if node is not None and (array := array_of_node(node)) is not None:
                arrays[path] = array
        return arrays

    async def _nodes(self, paths: Sequence[str]) -> dict[str, Node | None]:
        """The nodes at ``paths``, but for those that cannot be read: the engine looks for them again, and tells who asks for their keys."""
        try:
            return await self.hierarchy.load(paths)
        except ShardStoreError:
            if len(paths) == 1:
                return {}
        nodes: dict[str, Node | None] = {}
        for path in paths:
            nodes |= await self._nodes([path])
        return nodes

    # -- values --------------------------------------------------------------------------------------------------------

    async def get_many(self, requests: Sequence[KeyRequest]) -> list[Value]:
        meanings = await self._meanings([check_key(key) for key, _ in requests], for_write=False)
        canonical = [(i, m.key) for i, m in enumerate(meanings) if isinstance(m, Canonical)]
        parts = [(i, m) for i, m in enumerate(meanings) if isinstance(m, Part)]
        wanted = [(key, requests[i][1]) for i, key in canonical]
        if not parts:
            return _in_order(len(requests), canonical, await super().get_many(wanted))
        paths = list(dict.fromkeys(part.path for _, part in parts))
        found = await super().get_many([*wanted, *_documents(paths)])
        shown = await self._show_parts([part for _, part in parts], dict(zip(paths, found[len(wanted) :], strict=True)))
        values = _in_order(len(requests), canonical, found[: len(wanted)])
        for (i, _), data in zip(parts, shown, strict=True):
            if isinstance(data, bytes):
                inside = resolve(requests[i][1], len(data))
                values[i] = memoryview(data)[inside.start : inside.end]
            else:
                values[i] = data
        return values

    async def _documents_of(self, parts: Sequence[Part]) -> dict[str, Value]:
        """The canonical presented documents, by path."""
        paths = list(dict.fromkeys(part.path for part in parts))
        return dict(zip(paths, await Engine.get_many(self, _documents(paths)), strict=True))

    async def _read_parts(self, parts: Sequence[Part]) -> list[bytes | ShardStoreError | None]:
        return await self._show_parts(parts, await self._documents_of(parts))

    def _of_document(self, part: Part, document: Value) -> bytes | ShardStoreError | None:
        if isinstance(document, ShardStoreError):
            return document
        try:
            return self._shown(part, None if document is None else bytes(document))
        except ShardStoreError as exc:
            return exc

    async def read_versions(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        meanings = await self._meanings([check_key(read.key) for read in reads], for_write=True)
        canonical = [(i, replace(reads[i], key=m.key)) for i, m in enumerate(meanings) if isinstance(m, Canonical)]
        parts = [(i, m) for i, m in enumerate(meanings) if isinstance(m, Part)]
        outcomes: list[ReadOutcome] = [ABSENT] * len(reads)
        found, shown = await asyncio.gather(
            Engine.read_versions(self, [read for _, read in canonical]), self._read_parts([part for _, part in parts])
        )
        for (i, _), outcome in zip(canonical, found, strict=True):
            outcomes[i] = outcome
        for (i, _), data in zip(parts, shown, strict=True):
            outcomes[i] = of_content(reads[i], memoryview(data) if isinstance(data, bytes) else data)
        return outcomes

    async def update_many(self, updates: Sequence[KeyUpdate]) -> list[Exception | None]:
        return await uninterrupted(self._update_presented(updates))

    async def _update_meant(self, updates: Sequence[KeyUpdate], meanings: Sequence[Meaning]) -> list[Exception | None]:
        """Carry out updates of which it is known what their keys mean."""
        errors: list[Exception | None] = [None] * len(updates)
        numbers: list[int] = []
        translated: list[KeyUpdate] = []
        for i, (meaning, (key, action)) in enumerate(zip(meanings, updates, strict=True)):
            match meaning:
                case Canonical():
                    translated.append((meaning.key, action))
                case Part() if isinstance(action, Patch):
                    errors[i] = InvalidInput(f"the metadata document {key!r} can only be set whole")
                    continue
                case Part():
                    translated.append((metadata_key(meaning.path), self._on_document(meaning, action)))
                case Nothing(reason):
                    if not isinstance(action, EraseValue):
                        errors[i] = InvalidInput(f"{key!r} cannot be stored: {reason}")
                    continue
            numbers.append(i)
        for i, error in zip(numbers, await super().update_many(translated), strict=True):
            errors[i] = error
        return errors

    def _on_document(self, part: Part, action: Action) -> Revise:
        """The same action on the document that the part is of."""

        def compute(document: bytes | None) -> bytes | None:
            def revised(inner: Callable[[bytes | None], bytes | None]) -> bytes | None:
                shown = self._shown(part, document)
                data = inner(shown)
                return document if data is shown else self._revised(part, data, document)

            match action:
                case SetValue(data):
                    return self._revised(part, bytes(data), document)
                case SetIfMissing(data, creation):
                    is_missing = self._shown(part, document) is None
                    if creation is not None:
                        creation.happened = is_missing
                    return self._revised(part, bytes(data), document) if is_missing else document
                case EraseValue():
                    return document if self._shown(part, document) is None else self._revised(part, None, document)
                case Revise(inner):
                    return revised(inner)
                case Swap():
                    return revised(revising(action))
                case _:
                    raise AssertionError(f"{action!r} is not for documents")

        return Revise(compute)

    async def size(self, key: str) -> int | None:
        (meaning,) = await self._meanings([check_key(key)], for_write=False)
        match meaning:
            case Canonical():
                return await super().size(meaning.key)
            case Part():
                value = await self._read_part(meaning)
                return None if value is None else len(value)
            case Nothing():
                return None

    async def pin(self, key: str) -> OpenValue | None:
        (meaning,) = await self._meanings([check_key(key)], for_write=True)
        match meaning:
            case Canonical():
                return await super().pin(meaning.key)
            case Part():
                value = await self._read_part(meaning)
                return None if value is None else HeldValue(value)
            case Nothing():
                return None

    async def _read_part(self, part: Part) -> bytes | None:
        (value,) = await self._read_parts([part])
        if isinstance(value, ShardStoreError):
            raise value
        return value

    async def shard_groups(self, keys: Sequence[str]) -> Sequence[Sequence[int]]:
        meanings = await self._meanings(keys, for_write=False)
        canonical = [i for i, meaning in enumerate(meanings) if isinstance(meaning, Canonical)]
        groups = await super().shard_groups([m.key for m in meanings if isinstance(m, Canonical)])
        others = [[i] for i, meaning in enumerate(meanings) if not isinstance(meaning, Canonical)]
        return sorted([*([canonical[n] for n in group] for group in groups), *others])

    # -- listing -------------------------------------------------------------------------------------------------------

    async def list(self, prefix: str) -> AsyncIterator[ListedValue]:
        async for value in self._presented_keys(check_prefix(prefix)):
            yield value

    async def list_batches(self, prefix: str) -> AsyncIterator[ListedBatch]:
        async for value in self._presented_keys(check_prefix(prefix)):
            yield ListedBatch([value.key], [value.nbytes])


def _documents(paths: Iterable[str]) -> list[KeyRequest]:
    return [(metadata_key(path), EVERYTHING) for path in paths]


def _in_order(count: int, numbered: Sequence[tuple[int, str]], found: Sequence[Value]) -> list[Value]:
    """What was found of ``count`` requests by their numbers, and nothing of the others."""
    values: list[Value] = [None] * count
    for (i, _), value in zip(numbered, found, strict=True):
        values[i] = value
    return values


def array_of_node(node: Node) -> KnownArray | None:
    array: ArrayLayout | PlainArray | None = node.layout or node.plain
    return None if array is None else KnownArray(array.key_encoding, len(array.shape))


def _array_of_document(data: bytes | None) -> KnownArray | None:
    """Of a document that a transaction holds back."""
    try:
        document = {} if data is None else loads_object(data)
    except Corruption:
        return None
    plain = parse_shown(document) if is_array(document) else ""
    return KnownArray(plain.key_encoding, len(plain.shape)) if isinstance(plain, PlainArray) else None


def parsed_document(data: bytes, key: str) -> JsonObject:
    """What a client writes as a document. Raises ``InvalidInput`` where it is no JSON object."""
    try:
        return loads_object(data)
    except Corruption as exc:
        raise InvalidInput(f"{key!r} cannot be stored: it is {exc}") from exc
