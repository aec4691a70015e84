"""The keys and documents of Zarr v2, whatever is stored: ``x/.zarray``, ``x/.zattrs``, ``x/.zgroup``, ``.zmetadata``, ``x/0.1``.

What is stored is final Zarr v3, so a program that knows v2 only writes what today's tools read, and reads what they write. The
documents of v2 are parts of one document of v3; each is changed by a compare-and-swap of the whole. The keys of v3 itself are not
shown. Where a node is stored as Zarr v2, without any ``zarr.json``, it passes through unchanged. Specification: Zarr v2.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardstore.engine.actions import ERASE, EraseValue, SetIfMissing, SetValue
from shardstore.engine.reading.listing import ListedDir, ListedValue, directly_below
from shardstore.engine.reading.shard_chunks import Value
from shardstore.engine.values import KeyUpdate
from shardstore.errors import InvalidInput, ShardStoreError
from shardstore.format.json_text import JsonObject, dumps, dumps_zarr2, loads_object, parse_object
from shardstore.format.metadata_v3 import is_array, is_group
from shardstore.format.store_keys import ancestors, check_key, join, metadata_key, metadata_path, possible_owners
from shardstore.format.v2.documents import array_from_v2, array_to_v2, consolidated_from_v2, consolidated_to_v2, group_from_v2, group_to_v2
from shardstore.format.v2.keys import (
    ARRAY_NAME,
    ATTRIBUTES_NAME,
    CONSOLIDATED_NAME,
    DOCUMENT_NAMES,
    GROUP_NAME,
    canonical_chunk_key,
    canonical_chunk_prefix,
    document_key,
    v2_chunk_key,
)
from shardstore.model.ranges import EVERYTHING
from shardstore.presented.view import (
    Canonical,
    DocumentPart,
    KnownArray,
    Meaning,
    Nothing,
    PresentedFlavour,
    ShownPart,
    Unknown,
    View,
    parsed_document,
)

_DOCUMENTS_AT_ONCE = 100
_NODE_NAMES = (ARRAY_NAME, GROUP_NAME)


@dataclass(frozen=True, slots=True)
class _WrittenPart(DocumentPart):
    """A part that is written, with what has been read for it.

    ``pending`` is the ``.zattrs`` that was written ahead of the node, ``nodes`` the documents below a group, for its consolidated metadata.
    """

    pending: bytes | None = None
    nodes: Mapping[str, JsonObject] = field(default_factory=dict)


@dataclass(frozen=True)
class V2Flavour(PresentedFlavour):
    """The keys of Zarr v2, whatever is stored."""

    name: str = "v2"
    words: str = "Zarr v2"
    hides_kept: bool = False

    # -- what keys mean ------------------------------------------------------------------------------------------------

    async def meanings(self, view: View, keys: Sequence[str], *, for_write: bool) -> list[Meaning]:
        owners = {key: possible_owners(key) for key in keys if document_key(key) is None and metadata_path(key) is None}
        unreadable: dict[str, ShardStoreError] = {}
        paths = (path for found in owners.values() for path, _ in found)
        arrays = await view.arrays(paths, for_write=for_write, unreadable=unreadable)
        return [self._meaning(view, key, owners.get(key, []), arrays, unreadable) for key in keys]

    def _meaning(
        self,
        view: View,
        key: str,
        owners: Sequence[tuple[str, str]],
        arrays: Mapping[str, KnownArray],
        unreadable: Mapping[str, ShardStoreError],
    ) -> Meaning:
        if (document := document_key(key)) is not None:
            return DocumentPart(document.path, document.name)
        if metadata_path(key) is not None:
            return Nothing("it is the key of a Zarr v3 document, and this view is of Zarr v2: write .zarray, .zgroup and .zattrs")
        for path, rest in owners:
            if path in unreadable:
                return Unknown(unreadable[path])
            if (array := arrays.get(path)) is None:
                gone = view.hierarchy.vanished(path)
                was = None if gone is None else gone.array
                if was is not None and canonical_chunk_key(rest, was.key_encoding, was.ndim) is not None:
                    return Nothing(
                        f"array {path!r} has been deleted or moved by another client: create it again, or open what is there now"
                    )
                continue
            if (chunk := canonical_chunk_key(rest, array.key_encoding, array.ndim)) is not None:
                return Canonical(join(path, chunk))
            if array.key_encoding.decode(rest, array.ndim) is not None:
                return Nothing(f"it is where a shard of array {path!r} is stored, not the key of a chunk of Zarr v2")
        return Canonical(key)

    # -- documents -------------------------------------------------------------------------------------------------------

    async def show_parts(self, view: View, parts: Sequence[DocumentPart], documents: dict[str, Value]) -> list[ShownPart]:
        shown = [view.shown_part(part, documents[part.path]) for part in parts]
        # Of a node that is stored as Zarr v2, and attributes that were written ahead of their node.
        stored = [i for i, part in enumerate(parts) if documents[part.path] is None]
        values = await view.engine.get_many([(join(parts[i].path, parts[i].kind), EVERYTHING) for i in stored])
        for i, value in zip(stored, values, strict=True):
            shown[i] = bytes(value) if isinstance(value, memoryview) else value
        return shown

    def shown(self, part: DocumentPart, document: bytes | None) -> bytes | None:
        canonical = None if document is None else loads_object(document)
        if canonical is None or not (is_array(canonical) or is_group(canonical)):
            return None
        shown: JsonObject | None = None
        if part.kind == CONSOLIDATED_NAME:
            shown = consolidated_to_v2(canonical, omit_unsupported=True) if is_group(canonical) else None
        elif part.kind == ATTRIBUTES_NAME:
            _, shown = _node_and_attributes(canonical)
        elif is_array(canonical) is (part.kind == ARRAY_NAME):
            shown, _ = _node_and_attributes(canonical)
        return None if shown is None else dumps_zarr2(shown)

    def revised(self, part: DocumentPart, data: bytes | None, document: bytes | None) -> bytes | None:
        new = None if data is None else parsed_document(data, join(part.path, part.kind))
        previous = None if document is None else loads_object(document)
        if part.kind in _NODE_NAMES:
            return None if new is None else dumps(_revised_node(part, new, previous))
        if previous is None:
            raise InvalidInput(f"there is no node at {part.path!r} to which {part.kind} could belong")
        if part.kind == ATTRIBUTES_NAME:
            from_v2 = array_from_v2 if is_array(previous) else group_from_v2
            return dumps(from_v2(_node_and_attributes(previous)[0], new, previous))
        if not is_group(previous):
            raise InvalidInput(f"{part.kind} belongs to a group, and {part.path!r} is an array")
        nodes = part.nodes if isinstance(part, _WrittenPart) else {}
        without = {member: value for member, value in previous.items() if member != "consolidated_metadata"}
        return dumps(without if new is None else without | {"consolidated_metadata": consolidated_from_v2(new, nodes)})

    # -- writing ---------------------------------------------------------------------------------------------------------

    async def update_many(self, view: View, updates: Sequence[KeyUpdate]) -> list[Exception | None]:
        """Update nodes first, then what is of them: attributes, consolidated metadata, chunks. Nodes that are erased go last."""
        errors: list[Exception | None] = [None] * len(updates)
        waves: tuple[list[int], list[int], list[int]] = ([], [], [])
        for i, (key, action) in enumerate(updates):
            document = document_key(key)
            is_node = document is not None and document.name in _NODE_NAMES
            waves[1 if not is_node else 2 if isinstance(action, EraseValue) else 0].append(i)
        for numbers in filter(None, waves):
            for i, error in zip(numbers, await self._update_wave(view, [updates[i] for i in numbers]), strict=True):
                errors[i] = error
        return errors

    async def _update_wave(self, view: View, updates: Sequence[KeyUpdate]) -> list[Exception | None]:
        meanings = await self.meanings(view, [check_key(key) for key, _ in updates], for_write=True)
        parts = {i: meaning for i, meaning in enumerate(meanings) if isinstance(meaning, DocumentPart)}
        if not parts:
            return await view.update_meant(updates, meanings)
        documents = await view.documents_of(list(parts.values()))
        without = [path for path, document in documents.items() if document is None]
        stored = await self._stored_as_v2(view, without)
        for i, part in parts.items():
            action = updates[i][1]
            if documents[part.path] is not None:
                if part.kind == CONSOLIDATED_NAME and isinstance(action, SetValue | SetIfMissing):
                    meanings[i] = _WrittenPart(part.path, part.kind, None, await self._nodes_below(view, part.path, bytes(action.data)))
                continue
            there = stored[part.path]
            if isinstance(there, ShardStoreError):
                meanings[i] = Nothing(f"whether {part.path!r} is stored as Zarr v2 is not known: {there}")
            elif part.kind not in _NODE_NAMES or any(name in there for name in _NODE_NAMES):
                meanings[i] = Canonical(join(part.path, part.kind))  # stored as v2, or ahead of its node
            else:
                meanings[i] = _WrittenPart(part.path, part.kind, there.get(ATTRIBUTES_NAME))
        errors = await view.update_meant(updates, meanings)
        taken = {m.path: m.pending for m, error in zip(meanings, errors, strict=True) if error is None and isinstance(m, _WrittenPart)}
        await self._adopt(view, without, taken)
        return errors

    async def _adopt(self, view: View, paths: Sequence[str], taken: Mapping[str, bytes | None]) -> None:
        """Give nodes the attributes that were written ahead of them; ``taken`` are those that they were created with.

        A client that creates a node looks for attributes after that, and one that writes attributes ahead of a node looks for the node
        after that: however the two race, one of them finds what the other wrote.
        """
        stored = await self._stored_as_v2(view, paths)
        readable = {path: there for path, there in stored.items() if isinstance(there, dict)}
        waiting = {path: there[ATTRIBUTES_NAME] for path, there in readable.items() if ATTRIBUTES_NAME in there}
        parts = [DocumentPart(path, ATTRIBUTES_NAME) for path in waiting]
        documents = await view.documents_of(parts)
        parts = [part for part in parts if isinstance(documents[part.path], memoryview)]
        late = [part for part in parts if taken.get(part.path) != waiting[part.path]]
        updates: list[KeyUpdate] = [(metadata_key(p.path), view.on_document(p, SetValue(waiting[p.path]))) for p in late]
        updates += [(join(part.path, ATTRIBUTES_NAME), ERASE) for part in parts]
        for error in await view.engine.update_many(updates) if updates else ():
            if error is not None:
                raise error

    async def _stored_as_v2(self, view: View, paths: Sequence[str]) -> dict[str, dict[str, bytes] | ShardStoreError]:
        """Return the objects of v2 at ``paths``, by name; the error of a path where they cannot be read."""
        names = (*_NODE_NAMES, ATTRIBUTES_NAME)
        found = await view.engine.get_many([(join(path, name), EVERYTHING) for path in paths for name in names]) if paths else []
        stored: dict[str, dict[str, bytes] | ShardStoreError] = {}
        for n, path in enumerate(paths):
            values = dict(zip(names, found[n * len(names) : (n + 1) * len(names)], strict=True))
            error = next((value for value in values.values() if isinstance(value, ShardStoreError)), None)
            stored[path] = error or {name: bytes(value) for name, value in values.items() if isinstance(value, memoryview)}
        return stored

    async def _nodes_below(self, view: View, path: str, data: bytes) -> dict[str, JsonObject]:
        """Return the documents of the nodes that a ``.zmetadata`` names, by path relative to its group."""
        inside = (parse_object(data) or {}).get("metadata")  # what is no JSON is refused when it is translated
        names = {d.path for key in inside if (d := document_key(key)) is not None and d.path} if isinstance(inside, dict) else set()
        documents = await view.documents_of([DocumentPart(join(path, name), CONSOLIDATED_NAME) for name in names])
        return {name: loads_object(_raised(document)) for name in names if (document := documents[join(path, name)]) is not None}

    # -- listing ---------------------------------------------------------------------------------------------------------

    async def listed(self, view: View, prefix: str) -> AsyncIterator[ListedValue]:
        documents: list[str] = []
        for canonical_prefix in await self._canonical_prefixes(view, prefix):
            async for value in view.engine.list(canonical_prefix, versions=True):
                path = metadata_path(value.key)
                if path is None:
                    key = await self._presented_key(view, value.key)
                    if key is not None and key.startswith(prefix):
                        yield replace(value, key=key)
                    continue
                documents.append(path)
                if len(documents) == _DOCUMENTS_AT_ONCE:
                    for key in await self._parts_at(view, documents, prefix):
                        yield ListedValue(key, None)
                    documents = []
        for key in await self._parts_at(view, documents, prefix):
            yield ListedValue(key, None)

    async def _canonical_prefixes(self, view: View, prefix: str) -> list[str]:
        """Return the canonical prefixes below which everything lies that is presented below ``prefix``; none covers another."""
        cuts = list(ancestors(prefix))
        arrays = await view.arrays([path for path, _ in cuts], for_write=False)
        documents = prefix[: prefix.rfind("/") + 1] if _may_name_document(prefix) else prefix
        for path, rest in cuts:
            if (array := arrays.get(path)) is not None and rest:
                chunks = join(path, canonical_chunk_prefix(rest, array.key_encoding, array.ndim))
                return [chunks] if documents.startswith(chunks) else [documents] if chunks.startswith(documents) else [chunks, documents]
        return [documents]

    async def _presented_key(self, view: View, canonical: str) -> str | None:
        """Return the presented key of what is listed under a canonical one, and is no document of v3."""
        if (named := document_key(canonical)) is not None:
            documents = await view.documents_of([DocumentPart(named.path, named.name)])
            return canonical if documents[named.path] is None else None  # left over next to a document of v3, which is what counts
        owners = possible_owners(canonical)
        arrays = await view.arrays([path for path, _ in owners], for_write=False)
        for path, rest in owners:
            if (array := arrays.get(path)) is not None and (chunk := v2_chunk_key(rest, array.key_encoding, array.ndim)) is not None:
                return join(path, chunk)
        return canonical

    async def _parts_at(self, view: View, paths: Sequence[str], prefix: str = "") -> list[str]:
        """Return those keys of the parts of the documents at ``paths`` that start with ``prefix``; what v2 cannot show is left out."""
        parts = [DocumentPart(path, name) for path in paths for name in DOCUMENT_NAMES]
        documents = await view.documents_of(parts)
        for document in documents.values():
            if document is not None:
                _raised(document)  # what cannot be read is not left out in silence
        shown = [view.shown_part(part, documents[part.path]) for part in parts]
        keys = [join(part.path, part.kind) for part, value in zip(parts, shown, strict=True) if isinstance(value, bytes)]
        return [key for key in keys if key.startswith(prefix)]

    async def list_dir(self, view: View, prefix: str, *, approximate: bool) -> ListedDir:
        cuts = list(ancestors(prefix))
        if await view.arrays([path for path, _ in cuts], for_write=False):
            return await directly_below(prefix, view.list(prefix, versions=True))
        listed = await view.engine.list_dir(prefix, approximate=approximate)
        values: list[ListedValue] = []
        for value in listed.values:
            path = metadata_path(value.key)
            keys = [await self._presented_key(view, value.key)] if path is None else await self._parts_at(view, [path])
            values += [replace(value, key=key) if path is None else ListedValue(key, None) for key in keys if key is not None]
        return ListedDir(tuple(values), listed.prefixes)

    # -- erasing ---------------------------------------------------------------------------------------------------------

    async def erase_prefix(self, view: View, prefix: str) -> None:
        if not await view.arrays([path for path, rest in ancestors(prefix) if rest], for_write=True):
            await view.engine.erase_prefix(prefix)
            return
        # Inside an array the same prefix means other keys of what is stored.
        await view.erase_many([value.key async for value in self.listed(view, prefix)])


def _node_and_attributes(document: JsonObject) -> tuple[JsonObject, JsonObject | None]:
    """Return a node's document as ``.zarray`` or ``.zgroup``, and its ``.zattrs``."""
    return array_to_v2(document) if is_array(document) else group_to_v2(document)


def _revised_node(part: DocumentPart, new: JsonObject, previous: JsonObject | None) -> JsonObject:
    """Return the document of a node whose ``.zarray`` or ``.zgroup`` is ``new``: with the attributes that it has, or that wait for it."""
    attributes: JsonObject | None = None
    if previous is not None and (is_array(previous) or is_group(previous)):
        _, attributes = _node_and_attributes(previous)
    elif isinstance(part, _WrittenPart) and part.pending is not None:
        attributes = parsed_document(part.pending, join(part.path, ATTRIBUTES_NAME))
    return (array_from_v2 if part.kind == ARRAY_NAME else group_from_v2)(new, attributes, previous)


def _may_name_document(prefix: str) -> bool:
    """Return whether a prefix goes on as the name of a document, as ``x/.za`` does."""
    name = prefix.rpartition("/")[2]
    return any(document.startswith(name) for document in DOCUMENT_NAMES)


def _raised(value: memoryview | ShardStoreError) -> memoryview:
    if isinstance(value, ShardStoreError):
        raise value
    return value
