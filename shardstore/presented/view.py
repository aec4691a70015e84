"""An engine under other keys. Each presented key means a canonical key, a part of a document, or nothing.

Flavours subclass it. The canonical keys are those of final Zarr v3, which the engine itself knows; what is pinned, held back by a
transaction, committed and retried is the engine's business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from shardstore.engine.actions import Action, EraseValue, Patch, Revise, SetIfMissing, SetValue, Swap, revising
from shardstore.engine.engine import Engine
from shardstore.engine.keyed_store import KeyedStore
from shardstore.engine.metadata.hierarchy import LocatedChunks, Node
from shardstore.engine.metadata.translation import OwnShards
from shardstore.engine.options import Flavour
from shardstore.engine.pinned import HeldValue, OpenValue
from shardstore.engine.reading.listing import ListedBatch, ListedDir, ListedValue
from shardstore.engine.reading.shard_chunks import Value
from shardstore.engine.values import KeyRequest, KeyUpdate
from shardstore.engine.version_reader import content_outcome
from shardstore.errors import Corruption, InvalidInput, ShardStoreError, Unsupported
from shardstore.format.json_text import JsonObject, loads_object, parse_object
from shardstore.format.metadata_v3 import ArrayLayout, PlainArray, is_array, parse_shown
from shardstore.format.store_keys import check_directory, check_erased, check_key, check_prefix, metadata_key
from shardstore.model.ranges import EVERYTHING, BytesLike, cut
from shardstore.storage.base import ABSENT, Failed, Found, Read, ReadOutcome
from shardstore.tasks import uninterrupted

__all__ = ["Canonical", "DocumentPart", "KnownArray", "Meaning", "Nothing", "PresentedFlavour", "ShownPart", "Unknown"]


@dataclass(frozen=True, slots=True)
class Canonical:
    """The key means the value of this canonical key."""

    key: str


@dataclass(frozen=True, slots=True)
class DocumentPart:
    """The key means a part of the document of the node at ``path``; the flavour calls the part ``kind``."""

    path: str
    kind: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """The flavour has no such key, and nothing can be stored there, because of ``reason``."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The meaning of the key is not known now: the document of a node that it may belong to could not be read."""

    error: ShardStoreError


Meaning = Canonical | DocumentPart | Nothing | Unknown
"""What a key of a flavour stands for."""

ShownPart = bytes | ShardStoreError | None
"""The bytes of a part of a document, ``None`` if there is no such part, or the error."""

KnownArray = ArrayLayout | PlainArray
"""An array whose chunks have known names."""


class PresentedFlavour(Flavour, ABC):
    """A flavour that is not the engine's own: the meaning of keys and documents, as functions of a view. It keeps no state."""

    @abstractmethod
    async def meanings(self, view: View, keys: Sequence[str], *, for_write: bool) -> list[Meaning]:
        """Return what each presented key means."""

    async def meaning_of_new(self, view: View, key: str) -> Meaning:
        """Return what the key of a node's document means to a client that is about to create the node, with all its parents."""
        (meaning,) = await self.meanings(view, [key], for_write=True)
        return meaning

    @abstractmethod
    def shown(self, part: DocumentPart, document: bytes | None) -> bytes | None:
        """Return the bytes of a part of ``document``, the canonical presented document of its node; ``None`` if there is no such part.

        Raises:
            ShardStoreError: the flavour cannot express it.
        """

    @abstractmethod
    def revised(self, part: DocumentPart, data: bytes | None, document: bytes | None) -> bytes | None:
        """Return the canonical presented document with ``data`` as that part, or without the part; ``None`` if no document is left.

        Raises:
            InvalidInput: final Zarr v3 cannot express it.
        """

    @abstractmethod
    async def show_parts(self, view: View, parts: Sequence[DocumentPart], documents: dict[str, Value]) -> list[ShownPart]:
        """Return the bytes of each part, whole; ``documents`` are those of the parts' nodes, by path."""

    @abstractmethod
    async def update_many(self, view: View, updates: Sequence[KeyUpdate]) -> list[Exception | None]:
        """Carry out updates of presented keys, in the order that the flavour's documents need."""

    @abstractmethod
    def listed(self, view: View, prefix: str) -> AsyncIterator[ListedValue]:
        """Yield every presented key that starts with ``prefix``."""

    @abstractmethod
    async def list_dir(self, view: View, prefix: str, *, approximate: bool) -> ListedDir:
        """Return the presented keys and prefixes directly below ``prefix``; see ``Engine.list_dir``."""

    @abstractmethod
    async def erase_prefix(self, view: View, prefix: str) -> None:
        """Erase everything below a presented prefix that is ``""`` or ends with ``/``."""


class View(KeyedStore):
    """An engine under the keys and documents of a flavour. What is not about keys is the engine's own."""

    def __init__(self, engine: Engine, flavour: PresentedFlavour) -> None:
        super().__init__()
        self.engine = engine
        self.flavour = flavour
        self.options = engine.options
        self.storage = engine.storage
        self.hierarchy = engine.hierarchy
        self.counters = engine.counters
        self.keep_versions = engine.keep_versions
        self.layout = engine.layout
        self.is_node = engine.is_node
        self.is_inside_array = engine.is_inside_array
        self.prefetch = engine.prefetch
        self.client_view = engine.client_view
        self.erase_removed = engine.erase_removed
        self.stale_consolidated = engine.stale_consolidated
        self.begin = engine.begin
        self.commit = engine.commit
        self.rollback = engine.rollback
        self.close = engine.close

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.engine.storage.url!r}, {self.flavour.name!r})"

    # -- what is the engine's own ------------------------------------------------------------------------------------

    @property
    def canonical(self) -> Engine:
        return self.engine

    @property
    def in_transaction(self) -> bool:
        return self.engine.in_transaction

    @property
    def keeps_chunks(self) -> bool:
        return self.engine.keeps_chunks

    # -- nodes ---------------------------------------------------------------------------------------------------------

    async def arrays(
        self, paths: Iterable[str], *, for_write: bool, unreadable: dict[str, ShardStoreError] | None = None
    ) -> dict[str, KnownArray]:
        """Return those nodes of Zarr v3 at ``paths`` that are arrays whose chunks have known names, in one round of requests at most.

        Errors of nodes that could not be read are put into ``unreadable``: if they were taken for absent, chunks would be stored as other
        objects.

        Raises:
            StorageError: a node could not be read, and ``unreadable`` is not given.
        """
        unknown: list[str] = []
        hierarchy, held = self.engine.hierarchy, self.engine.held
        known: dict[str, KnownArray | None] = {}
        for path in dict.fromkeys(paths):
            if held is not None and held.decides(metadata_key(path)):
                known[path] = _held_array(held.get(metadata_key(path)))
            elif (node := hierarchy.known(path)) is not None and (hierarchy.is_fresh(node) or not for_write):
                known[path] = node.array
            elif node is not None or for_write or not hierarchy.recently_absent(path):
                unknown.append(path)
        for path, found in (await self._nodes(unknown)).items():
            if not isinstance(found, ShardStoreError):
                known[path] = None if found is None else found.array
            elif unreadable is None:
                raise found
            else:
                unreadable[path] = found
        return {path: array for path, array in known.items() if array is not None}

    async def _nodes(self, paths: Sequence[str]) -> dict[str, Node | ShardStoreError | None]:
        """Return the nodes at ``paths``, or why they could not be read. Damaged ones are left out: the engine says so of their keys."""
        try:
            return dict(await self.engine.hierarchy.load(paths))
        except Corruption:
            if len(paths) == 1:
                return {}
        except ShardStoreError as exc:
            if len(paths) == 1:
                return {paths[0]: exc}
        nodes: dict[str, Node | ShardStoreError | None] = {}
        for path in paths:
            nodes |= await self._nodes([path])
        return nodes

    # -- values --------------------------------------------------------------------------------------------------------

    async def get_many(self, requests: Sequence[KeyRequest], located: LocatedChunks | None = None) -> list[Value]:
        meanings = await self.flavour.meanings(self, [check_key(key) for key, _ in requests], for_write=False)
        canonical = [(i, m.key) for i, m in enumerate(meanings) if isinstance(m, Canonical)]
        parts = [(i, m) for i, m in enumerate(meanings) if isinstance(m, DocumentPart)]
        wanted = [(key, requests[i][1]) for i, key in canonical]
        if not parts:
            return _with_unknown(_in_order(len(requests), canonical, await self.engine.get_many(wanted)), meanings)
        paths = list(dict.fromkeys(part.path for _, part in parts))
        found = await self.engine.get_many([*wanted, *_documents(paths)])
        shown = await self.flavour.show_parts(self, [part for _, part in parts], dict(zip(paths, found[len(wanted) :], strict=True)))
        values = _in_order(len(requests), canonical, found[: len(wanted)])
        for (i, _), data in zip(parts, shown, strict=True):
            values[i] = cut(memoryview(data), requests[i][1]) if isinstance(data, bytes) else data
        return _with_unknown(values, meanings)

    async def documents_of(self, parts: Sequence[DocumentPart]) -> dict[str, Value]:
        """Return the canonical presented documents, by path."""
        paths = list(dict.fromkeys(part.path for part in parts))
        return dict(zip(paths, await self.engine.get_many(_documents(paths)), strict=True))

    async def read_document_parts(self, parts: Sequence[DocumentPart]) -> list[ShownPart]:
        return await self.flavour.show_parts(self, parts, await self.documents_of(parts))

    def shown_part(self, part: DocumentPart, document: Value) -> ShownPart:
        if isinstance(document, ShardStoreError):
            return document
        try:
            return self.flavour.shown(part, None if document is None else bytes(document))
        except ShardStoreError as exc:
            return exc

    async def read_versions(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        meanings = await self.flavour.meanings(self, [check_key(read.key) for read in reads], for_write=True)
        canonical = [(i, replace(reads[i], key=m.key)) for i, m in enumerate(meanings) if isinstance(m, Canonical)]
        parts = [(i, m) for i, m in enumerate(meanings) if isinstance(m, DocumentPart)]
        outcomes: list[ReadOutcome] = [ABSENT] * len(reads)
        paths = list(dict.fromkeys(part.path for _, part in parts))
        whole = [Read(key, (request,)) for key, request in _documents(paths)]
        found = await self.engine.read_versions([*(read for _, read in canonical), *whole])
        for (i, _), outcome in zip(canonical, found[: len(canonical)], strict=True):
            outcomes[i] = outcome
        read = dict(zip(paths, found[len(canonical) :], strict=True))
        shown = await self.flavour.show_parts(self, [part for _, part in parts], {path: _value_of(one) for path, one in read.items()})
        for (i, part), data in zip(parts, shown, strict=True):
            of_node = read[part.path]
            modified = of_node.generation.modified if isinstance(of_node, Found) else None
            outcomes[i] = content_outcome(reads[i], memoryview(data) if isinstance(data, bytes) else data, modified)
        return [Failed(m.error) if isinstance(m, Unknown) else outcome for outcome, m in zip(outcomes, meanings, strict=True)]

    async def update_many(self, updates: Sequence[KeyUpdate]) -> list[Exception | None]:
        return await uninterrupted(self.flavour.update_many(self, updates))

    async def update_meant(self, updates: Sequence[KeyUpdate], meanings: Sequence[Meaning]) -> list[Exception | None]:
        """Carry out updates; ``meanings`` are those of their keys."""
        errors: list[Exception | None] = [None] * len(updates)
        numbers: list[int] = []
        translated: list[KeyUpdate] = []
        for i, (meaning, (key, action)) in enumerate(zip(meanings, updates, strict=True)):
            match meaning:
                case Canonical():
                    translated.append((meaning.key, action))
                case DocumentPart() if isinstance(action, Patch):
                    errors[i] = InvalidInput(f"the metadata document {key!r} can only be written as a whole")
                    continue
                case DocumentPart():
                    translated.append((metadata_key(meaning.path), self.on_document(meaning, action)))
                case Nothing(reason):
                    if not isinstance(action, EraseValue):
                        errors[i] = InvalidInput(f"{key!r} cannot be stored: {reason}")
                    continue
                case Unknown(error):
                    errors[i] = error
                    continue
            numbers.append(i)
        for i, failed in zip(numbers, await self.engine.update_many(translated), strict=True):
            errors[i] = failed
        return errors

    async def check_new(self, key: str, data: BytesLike, own_shards: OwnShards = OwnShards.REFUSED) -> None:
        """Raise what storing the document of a new node would raise where nothing is stored; see ``Engine.check_new``."""
        match meaning := await self.flavour.meaning_of_new(self, check_key(key)):
            case Canonical():
                await self.engine.check_new(meaning.key, data, own_shards)
            case DocumentPart():
                document = self.flavour.revised(meaning, bytes(data), None)
                if document is not None:
                    await self.engine.check_new(metadata_key(meaning.path), document)
            case Nothing(reason):
                raise InvalidInput(f"{key!r} cannot be stored: {reason}")
            case Unknown(error):
                raise error

    def on_document(self, part: DocumentPart, action: Action) -> Revise:
        """Return the action on the whole document that changes this part of it."""

        def compute(document: bytes | None) -> bytes | None:
            def revised(inner: Callable[[bytes | None], bytes | None]) -> bytes | None:
                shown = self.flavour.shown(part, document)
                data = inner(shown)
                return document if data is shown else self.flavour.revised(part, data, document)

            match action:
                case SetValue(data):
                    action.check_seen(metadata_key(part.path), self.flavour.shown(part, document))
                    return self.flavour.revised(part, bytes(data), document)
                case SetIfMissing(data, creation):
                    is_missing = self.flavour.shown(part, document) is None
                    if creation is not None:
                        creation.happened = is_missing
                    return self.flavour.revised(part, bytes(data), document) if is_missing else document
                case EraseValue():
                    return document if self.flavour.shown(part, document) is None else self.flavour.revised(part, None, document)
                case Revise(inner):
                    return revised(inner)
                case Swap():
                    return revised(revising(action))
                case _:
                    raise AssertionError(f"{action!r} is not for documents")

        return Revise(compute)

    async def size(self, key: str) -> int | None:
        (meaning,) = await self.flavour.meanings(self, [check_key(key)], for_write=False)
        if isinstance(meaning, Canonical):
            return await self.engine.size(meaning.key)
        value = await self._read_part(meaning)
        return None if value is None else len(value)

    async def pin(self, key: str) -> OpenValue | None:
        (meaning,) = await self.flavour.meanings(self, [check_key(key)], for_write=True)
        if isinstance(meaning, Canonical):
            return await self.engine.pin(meaning.key)
        value = await self._read_part(meaning)
        return None if value is None else HeldValue(value)

    async def _read_part(self, part: DocumentPart | Nothing | Unknown) -> bytes | None:
        if isinstance(part, Unknown):
            raise part.error
        (value,) = await self.read_document_parts([part]) if isinstance(part, DocumentPart) else (None,)
        if isinstance(value, ShardStoreError):
            raise value
        return value

    async def shard_groups(self, keys: Sequence[str]) -> Sequence[Sequence[int]]:
        meanings = await self.flavour.meanings(self, keys, for_write=False)
        canonical = [i for i, meaning in enumerate(meanings) if isinstance(meaning, Canonical)]
        groups = await self.engine.shard_groups([m.key for m in meanings if isinstance(m, Canonical)])
        single = [[i] for i, meaning in enumerate(meanings) if not isinstance(meaning, Canonical)]
        return sorted([*([canonical[n] for n in group] for group in groups), *single])

    # -- listing and erasing -------------------------------------------------------------------------------------------

    async def list_batches(self, prefix: str) -> AsyncIterator[ListedBatch]:
        async for value in self.flavour.listed(self, check_prefix(prefix)):
            yield ListedBatch([value.key], [value.nbytes], lambda value=value: [value.version])  # type: ignore[misc]  # mypy cannot infer a default

    async def list_dir(self, prefix: str, *, approximate: bool = False) -> ListedDir:
        return await self.flavour.list_dir(self, check_directory(prefix), approximate=approximate)

    async def erase_prefix(self, prefix: str) -> None:
        await self.flavour.erase_prefix(self, check_erased(prefix))

    # -- whole nodes ---------------------------------------------------------------------------------------------------

    async def copy_prefix(self, source: str, target: str, *, overwrite: bool = False) -> int:
        self._check_nodes("copied")
        return await self.engine.copy_prefix(source, target, overwrite=overwrite)

    async def move_prefix(self, source: str, target: str, *, overwrite: bool = False) -> int:
        self._check_nodes("moved")
        return await self.engine.move_prefix(source, target, overwrite=overwrite)

    def _check_nodes(self, what: str) -> None:
        if not self.flavour.moves_nodes:
            raise Unsupported(
                f"whole nodes are not {what} under the keys of {self.flavour.words}: open the store with present='v3', and do it there"
            )


def _value_of(outcome: ReadOutcome) -> Value:
    """Return the value that was read whole."""
    return outcome.buffers[0] if isinstance(outcome, Found) else outcome.error if isinstance(outcome, Failed) else None


def _documents(paths: Iterable[str]) -> list[KeyRequest]:
    return [(metadata_key(path), EVERYTHING) for path in paths]


def _in_order(count: int, numbered: Sequence[tuple[int, str]], found: Sequence[Value]) -> list[Value]:
    """Return what was found of ``count`` requests by their numbers, and ``None`` for the rest."""
    values: list[Value] = [None] * count
    for (i, _), value in zip(numbered, found, strict=True):
        values[i] = value
    return values


def _with_unknown(values: list[Value], meanings: Sequence[Meaning]) -> list[Value]:
    """Return the values, and the errors of keys whose meaning is not known now."""
    return [m.error if isinstance(m, Unknown) else value for value, m in zip(values, meanings, strict=True)]


def _held_array(data: bytes | None) -> KnownArray | None:
    """Return the array of a document that a transaction holds back."""
    document = None if data is None else parse_object(data)
    plain = parse_shown(document) if document is not None and is_array(document) else ""
    return plain if isinstance(plain, PlainArray) else None


def parsed_document(data: bytes, key: str) -> JsonObject:
    """Return what a client writes as a document. Raises ``InvalidInput`` where it is no JSON object."""
    try:
        return loads_object(data)
    except Corruption as exc:
        raise InvalidInput(f"{key!r} cannot be stored: it is {exc}") from exc
