"""The documents of a stored 2022-draft hierarchy, read and written as documents of final Zarr v3.

A node of the draft has one of two documents, ``x.array.json`` or ``x.group.json``; the canonical one at ``x/zarr.json`` is
whichever is there. Where both are, the array's counts, as for zarr-python 2.18: that is what a change of kind leaves that was broken
off, or two creators who raced. So a change writes the new one first and then removes the old one. From array to group it is
seen with the second step, from group to array with the first; a client that reads between two steps sees one of the two, or, as the two are
not read at one moment, none.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from shardstore.errors import Corruption, InvalidInput, ShardStoreError, StorageError, Unsupported
from shardstore.format.draft2022.keys import (
    DATA_ROOT,
    ENTRY_POINT_KEY,
    META_ROOT,
    array_document_key,
    canonical_key,
    group_document_key,
    scalar_data_keys,
    unwritable_name,
)
from shardstore.format.draft2022.metadata import (
    array_from_v3,
    array_to_v3,
    entry_point,
    entry_point_problem,
    given_array,
    given_group,
    group_from_v3,
    group_to_v3,
    implicit_group,
    is_entry_point,
    split_stored,
    with_stored,
)
from shardstore.format.json_text import JsonObject, dumps, dumps_zarr2, loads_object, parse_object
from shardstore.format.metadata_v3 import is_array, is_group
from shardstore.format.storage_transformers import scalar_key_name
from shardstore.format.store_keys import join
from shardstore.model.containers import Lru
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL, Condition, Generation, IfAbsent, IfGeneration, Unconditional
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import (
    MOST_DOCUMENT_NBYTES,
    Absent,
    ConditionFailed,
    Found,
    Guard,
    Read,
    ReadOutcome,
    Storage,
    document_read,
    read_one,
    unless_failed,
)


def sought(outcome: ReadOutcome, key: str) -> Found | None:
    """Return what a read of any version found, ``None`` if there is no object. Raises ``ShardStoreError`` if the read failed."""
    outcome = unless_failed(outcome)
    if not isinstance(outcome, Found | Absent):
        raise StorageError(f"{key!r} kept changing while it was being read: try again")
    return outcome if isinstance(outcome, Found) else None


def parsed(found: Found | None) -> JsonObject | None:
    """Return the stored document, ``None`` if there is none or it is no JSON object."""
    return None if found is None else parse_object(found.buffers[0])


class EntryPoint:
    """The entry point of the hierarchy in ``inner``; one that was seen, or made, is not looked for again before writes."""

    def __init__(self, inner: Storage) -> None:
        self._inner = inner
        self.is_known = False

    async def problem(self) -> ShardStoreError | None:
        """Return the error if this place cannot be used as a hierarchy of the draft, or ``None`` if it can or has no entry point."""
        found = await self._read()
        return None if found is None else self._error(found)

    async def is_sound(self) -> bool:
        """Return whether there is an entry point, of a hierarchy that can be shown."""
        found = await self._read()
        return found is not None and self._error(found) is None

    async def _read(self) -> Found | None:
        return sought(await read_one(self._inner, document_read(ENTRY_POINT_KEY)), ENTRY_POINT_KEY)

    def check(self, found: Found | None) -> bool:
        """Return whether there is an entry point, as ``found`` just now.

        Raises:
            InvalidInput: something else is stored here.
            Unsupported: it is that of a hierarchy that is not understood.
        """
        if found is None:
            return False
        if (error := self._error(found)) is not None:
            raise error
        self.is_known = True
        return True

    async def create(self) -> None:
        """Make the entry point, which was absent just now. Raises as ``check``, where another client has made it since."""
        body = dumps_zarr2(entry_point())
        condition = (await self._inner.probe()).condition_on(None)
        try:
            await self._inner.write(ENTRY_POINT_KEY, [body], len(body), condition)
        except ConditionFailed:
            self.check(await self._read())
            return
        self.is_known = True

    def _error(self, found: Found) -> ShardStoreError | None:
        where, document = f"{ENTRY_POINT_KEY!r} in {self._inner.url}", parsed(found)
        if document is None:
            return InvalidInput(
                f"{where} is not a JSON document, where the 2022 draft has its entry point: remove it, or choose another place"
            )
        if not is_entry_point(document):
            what = "the document of a Zarr v3 node" if is_array(document) or is_group(document) else "not the entry point of the 2022 draft"
            return InvalidInput(f"{where} is {what}: open it as what it is, or choose another place for a hierarchy of the 2022 draft")
        problem = entry_point_problem(document)
        if problem is None:
            return None
        return Unsupported(
            f"{where} is the entry point of a hierarchy that is not understood: {problem}; choose another place for what is to be written"
        )


logger = logging.getLogger(__name__)

Kind = Literal["array", "group"]

_MOST_NOTED = 10_000

IMPLICIT = Generation("implicit")
"""The version of a group that has no document: it is there because nodes are below it."""

IMPLICIT_DOCUMENT = dumps(implicit_group())


@dataclass(frozen=True, slots=True)
class StoredDocuments:
    """The stored documents of one node, whole."""

    array: Found | None
    group: Found | None

    @property
    def kind(self) -> Kind:
        """The kind of the document that counts, where there is one."""
        return "group" if self.array is None else "array"

    @property
    def shown(self) -> Found | None:
        return self.group if self.array is None else self.array

    def of(self, kind: Kind) -> Found | None:
        return self.array if kind == "array" else self.group


def document_key(kind: Kind, path: str) -> str:
    return array_document_key(path) if kind == "array" else group_document_key(path)


def document_reads(path: str, guard: Guard | None = None) -> tuple[Read, Read]:
    """Return what has to be read to know the document of ``path``; ``shown_outcome`` takes the outcomes."""
    return (
        Read(group_document_key(path), (EVERYTHING,), None, guard, MOST_DOCUMENT_NBYTES),
        # Second: where a group becomes an array in between, the array is there by then.
        Read(array_document_key(path), (EVERYTHING,), None, guard, MOST_DOCUMENT_NBYTES),
    )


def shown_outcome(group: ReadOutcome, array: ReadOutcome) -> tuple[Kind, ReadOutcome]:
    """Return the stored document that counts, or why it is not known."""
    return ("group", group) if isinstance(array, Absent) else ("array", array)


class DraftDocuments:
    """The documents of one hierarchy. ``override``: chunks per shard of arrays, by path, whose documents have lost them.

    ``with_stored``: canonical documents come with the stored ones.
    """

    def __init__(self, inner: Storage, override: Mapping[str, tuple[int, ...]], *, with_stored: bool) -> None:
        self._inner = inner
        self._override = override
        self._with_stored = with_stored
        self._scalars: Lru[str, bool] = Lru(_MOST_NOTED)  # by path, of documents that were seen
        self.entry_point = EntryPoint(inner)

    # -- reading -------------------------------------------------------------------------------------------------------

    def shown(self, path: str, kind: Kind, found: Found) -> bytes:
        """Return the canonical bytes of a stored document.

        One that cannot be translated is shown as it is stored. It has none of the members by which a reader knows a Zarr v3 node,
        and it is JSON: to the engine that is damaged metadata, below which no object is taken for a chunk, and none is made.
        """
        data = bytes(found.buffers[0])
        try:
            document = loads_object(data)
            self._note(path, document)
            canonical = array_to_v3(document, self._override.get(path)) if kind == "array" else group_to_v3(document)
            if not isinstance(canonical, str):
                return dumps(with_stored(canonical, document) if self._with_stored else canonical)
        except (Corruption, RecursionError):
            return data
        logger.debug("%s %r of the 2022 draft is shown as it is stored: %s", kind, path, canonical)
        # A final v3 document that a client has put here would be taken for an array, one of other keys than those below it.
        return dumps({"unreadable": canonical, "stored": document}) if is_array(document) or is_group(document) else data

    def is_scalar(self, path: str) -> bool | None:
        """Return whether the document of ``path`` was that of a 0-d array when it was last seen; ``None`` where none was."""
        return self._scalars.peek(path)

    def forget(self, path: str) -> None:
        self._scalars.pop(path)

    def _note(self, path: str, document: JsonObject) -> None:
        self._scalars.put(path, document.get("shape") == [])

    async def stored(self, path: str) -> StoredDocuments:
        return _documents(path, *await self._inner.read(document_reads(path)))

    async def is_implicit(self, path: str) -> bool:
        """Return whether ``path``, which has no document, is a group nevertheless: a node is below it, or it is the root of a hierarchy."""
        async for found in self._inner.list(f"{META_ROOT}/{path}/" if path else f"{META_ROOT}/"):
            if canonical_key(found.key) is not None:
                return True
        return not path and await self.entry_point.is_sound()

    # -- writing -------------------------------------------------------------------------------------------------------

    async def write(self, key: str, path: str, data: bytes, condition: Condition) -> Generation:
        """Store a canonical document, ``data``, as that of ``path``; what is not shown of the stored one is kept.

        Raises:
            InvalidInput: the draft cannot express it, or something else than a hierarchy of the draft is stored here.
            Unsupported: a hierarchy of the draft is stored here that is not understood.
            ConditionFailed: the condition does not hold. Nothing was changed.
        """
        canonical = _parsed_canonical(key, path, data)
        kind: Kind = "array" if is_array(canonical) else "group"
        stored, has_entry_point = await self._look(path)
        mine, other = stored.of(kind), stored.of("group" if kind == "array" else "array")
        inner_condition = _inner_condition(condition, key, mine, stored.shown)
        try:
            canonical, given = split_stored(canonical)
            if given is not None:
                document = (given_array if kind == "array" else given_group)(canonical, given)
            else:
                document = (array_from_v3 if kind == "array" else group_from_v3)(canonical, parsed(mine))
        except InvalidInput as exc:
            raise InvalidInput(f"{key!r} cannot be stored in {self._inner.url}: {exc}") from exc
        if not has_entry_point:
            await self.entry_point.create()
        body = dumps_zarr2(document)
        self.forget(path)
        generation = await self._inner.write(document_key(kind, path), [body], len(body), inner_condition)
        self._note(path, document)
        await self._leave_one(path, kind, generation, mine, other, condition)
        if mine is None:
            await self._settle_scalar(path, document)
        return generation

    async def _look(self, path: str) -> tuple[StoredDocuments, bool]:
        """Return what is stored of a node that is to be written, and whether there is an entry point. One round.

        Raises:
            InvalidInput, Unsupported: this is no hierarchy of the draft, or not one that is understood.
        """
        documents = document_reads(path)
        if self.entry_point.is_known:
            return _documents(path, *await self._inner.read(documents)), True
        *outcomes, outcome = await self._inner.read([*documents, document_read(ENTRY_POINT_KEY)])
        return _documents(path, *outcomes), self.entry_point.check(sought(outcome, ENTRY_POINT_KEY))

    async def _leave_one(
        self, path: str, kind: Kind, generation: Generation, mine: Found | None, other: Found | None, condition: Condition
    ) -> None:
        """See that the document of ``kind``, which has been written, is the only one of the node.

        ``mine`` and ``other`` were there before. A write on a condition fails where another client has made the other
        kind since: both may fail, when they race to create one, but at least one does.
        """
        theirs = document_key("group" if kind == "array" else "array", path)
        if isinstance(condition, Unconditional):
            if other is not None:
                await self._inner.delete(theirs, UNCONDITIONAL)
            return
        if other is not None:
            try:
                await self._delete(theirs, other.generation)
            except ConditionFailed:
                if kind == "array" and mine is not None:
                    return  # what changed was hidden behind the array, and still is
                await self._withdraw(path, kind, generation)
                raise
        elif mine is None and sought(await read_one(self._inner, Read(theirs, ())), theirs) is not None:
            await self._withdraw(path, kind, generation)
            raise ConditionFailed(f"another client has created {theirs!r} in {self._inner.url} since")

    async def _withdraw(self, path: str, kind: Kind, generation: Generation) -> None:
        with suppress(ConditionFailed):  # another client has replaced it: theirs then
            await self._delete(document_key(kind, path), generation)

    async def _delete(self, key: str, generation: Generation) -> bool:
        """Remove the version that was seen; without a condition where the storage cannot honour one."""
        can = (await self._inner.probe()).conditional_delete
        return await self._inner.delete(key, IfGeneration(generation) if can else UNCONDITIONAL)

    async def _settle_scalar(self, path: str, document: JsonObject) -> None:
        """Give the chunk of a 0-d array its name, when its document has been created. One stored before, as copies do, lies at ``c``,
        where zarr-python 2.18 does not look: it gets the name that this array's has.
        """
        if document.get("shape") != [] or scalar_key_name(document) != "c0":
            return
        early, settled = scalar_data_keys(path)
        outcomes = await self._inner.read([Read(early, ()), Read(settled, ())])
        found, other = (sought(outcome, key) for outcome, key in zip(outcomes, (early, settled), strict=True))
        if found is None or other is not None:
            return
        copied = await self._inner.copy(early, settled)
        try:
            await self._delete(early, found.generation)
        except ConditionFailed:  # another client has written to it since, and the older copy must not hide that
            if copied is not None:
                with suppress(ConditionFailed):
                    await self._delete(settled, copied)

    # -- copying and deleting ------------------------------------------------------------------------------------------

    async def copy(self, key: str, source: str, target: str) -> Generation | None:
        """Copy the document of the node ``source``, as it is stored, to ``target``, whose canonical key is ``key``."""
        _check_name(key, target)
        at_target, has_entry_point = await self._look(target)
        at_source = await self.stored(source)
        kind, found = at_source.kind, at_source.shown
        if found is None:
            if not await self.is_implicit(source):
                return None
            if at_target.shown is None and await self.is_implicit(target):
                return IMPLICIT  # what is below the node was copied first, and has brought its groups
            return await self.write(key, target, IMPLICIT_DOCUMENT, UNCONDITIONAL)
        if not has_entry_point:
            await self.entry_point.create()
        self.forget(target)
        body = self._with_override(source, found) if kind == "array" else None
        if body is not None:
            generation: Generation | None = await self._inner.write(array_document_key(target), [body], len(body), UNCONDITIONAL)
        else:
            generation = await self._inner.copy(document_key(kind, source), document_key(kind, target))
        if generation is not None:
            other: Kind = "group" if kind == "array" else "array"
            await self._leave_one(target, kind, generation, None, at_target.of(other), UNCONDITIONAL)
            if at_target.array is None:
                await self._settle_scalar(target, parsed(found) or {})
        return generation

    def _with_override(self, path: str, found: Found) -> bytes | None:
        """Return the document with the chunks per shard that only this object knows, or a copy's shards would be taken for chunks."""
        document, override = parsed(found), self._override.get(path)
        canonical = array_to_v3(document, override) if document is not None and override is not None else ""
        return None if isinstance(canonical, str) else dumps_zarr2(array_from_v3(canonical, document))

    async def delete(self, key: str, path: str, condition: Condition) -> bool:
        """Remove the document of ``path``; ``False`` where there is none, be it an implicit group's."""
        stored = await self.stored(path)
        self.forget(path)
        found = stored.shown
        if found is None:
            return False
        if isinstance(condition, IfGeneration) and condition.generation != found.generation:
            raise ConditionFailed(f"{key!r} in {self._inner.url} is not the version that was asked for")
        if stored.array is not None and stored.group is not None:
            await self._inner.delete(group_document_key(path), UNCONDITIONAL)  # first: it must not appear from behind the array's
        return await self._inner.delete(document_key(stored.kind, path), condition)


def _documents(path: str, group: ReadOutcome, array: ReadOutcome) -> StoredDocuments:
    return StoredDocuments(sought(array, array_document_key(path)), sought(group, group_document_key(path)))


def _check_name(key: str, path: str) -> None:
    if (problem := unwritable_name(path)) is not None:
        raise InvalidInput(f"{key!r} cannot be stored: {problem}")


def _parsed_canonical(key: str, path: str, data: bytes) -> JsonObject:
    """Return the document that a client writes. Raises ``InvalidInput`` where the draft has no place for it."""
    _check_name(key, path)
    try:
        document = loads_object(data)
    except Corruption as exc:
        raise InvalidInput(f"{key!r} cannot be stored in a hierarchy of the 2022 draft: {exc}") from exc
    if not (is_array(document) or is_group(document)):
        raise InvalidInput(f"{key!r} cannot be stored in a hierarchy of the 2022 draft: it is neither an array's document nor a group's")
    return document


def _inner_condition(condition: Condition, key: str, mine: Found | None, shown: Found | None) -> Condition:
    """Return the condition on the document of the kind that is written, of which ``mine`` was found; ``shown`` is the one that counts.
    Raises ``ConditionFailed`` if it is known already that it does not hold.
    """
    match condition:
        case Unconditional():
            return condition
        case IfGeneration(generation) if generation != IMPLICIT:
            if shown is None or shown.generation != generation:
                raise ConditionFailed(f"{key!r} is not the version that was asked for")
            return IF_ABSENT if mine is None else IfGeneration(mine.generation)
        case IfAbsent() | IfGeneration():
            if shown is not None:
                raise ConditionFailed(f"{key!r} exists")
            return IF_ABSENT


# -- the one chunk of a 0-d array: only the array's document shows that ``c0`` is not the chunk 0 of a 1-d array ----------


def scalar_key(path: str) -> str:
    """Return the canonical key of the chunk."""
    return join(path, "c")


def data_path(stored: str) -> str:
    """Return the path whose document says what data at this stored key is, one that ends in ``c`` or ``c0``."""
    return stored[len(DATA_ROOT) :].rpartition("/")[0]


def scalar_document(found: Found | None) -> JsonObject | None:
    document = parsed(found)
    return document if document is not None and document.get("shape") == [] else None


def scalar_keys(path: str, found: Found | None) -> tuple[str, str] | None:
    """Return the stored keys of a 0-d array's chunk, the one that a writer takes first; ``None`` where it is no such array."""
    document = scalar_document(found)
    if document is None:
        return None
    first, second = scalar_data_keys(path)
    return (first, second) if scalar_key_name(document) == "c" else (second, first)
