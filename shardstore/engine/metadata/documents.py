"""Metadata documents as clients read and write them: each write is a compare-and-swap of what it was translated from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum

from shardstore.engine.contention import Contention
from shardstore.engine.metadata.hierarchy import Node
from shardstore.engine.metadata.translation import OwnShards, StoredDocument, Translation
from shardstore.errors import AccessDenied, Conflict, InvalidInput
from shardstore.format.json_text import JsonObject, dumps, parse_object
from shardstore.format.metadata_v3 import is_array
from shardstore.format.presentation import documents_inside, present_array, same_chunks
from shardstore.format.store_keys import ancestors, check_key, join, metadata_key
from shardstore.model.generation import UNCONDITIONAL, Condition, Generation, IfGeneration, Unconditional
from shardstore.model.ranges import BytesLike
from shardstore.opening.snapshot_urls import holds_versioned_store
from shardstore.storage.base import ConditionFailed, Failed, Found, ReadOutcome, Storage, document_read


class _DocumentChange(Enum):
    """A change that stores no document."""

    KEPT = "kept"
    ERASED = "erased"


_NOT_STORED_YET = Generation("planned")


@dataclass(frozen=True, slots=True)
class PlannedArray:
    """An array's document as it will be stored, and the condition on which it will be stored.

    It is written after the array's chunks, unless it ``goes_first``: because it replaces a document that gives the chunks another meaning.
    """

    stored: bytes
    condition: Condition
    node: Node
    goes_first: bool


@dataclass(eq=False, repr=False)
class Documents(Translation):
    """The metadata documents of one store."""

    _drop_indices: Callable[[str], None]
    """Drops the remembered indices of the objects whose keys start with a prefix."""
    _contention: Contention
    _is_plain: bool = field(default=False, init=False)
    """True once it was seen that the root is not that of a versioned store."""

    async def write(
        self,
        path: str,
        data: BytesLike,
        *,
        only_if_absent: bool = False,
        own_shards: OwnShards = OwnShards.REFUSED,
        check: Callable[[bytes], None] | None = None,
    ) -> bool:
        """Store what a client wrote as the document of ``path``; with ``only_if_absent``, return ``False`` if there was one.

        ``check`` raises if the document, as clients see it, is not what the client has seen.

        Raises:
            InvalidInput: the client asks for shards itself and may not, changes what the bytes of existing chunks mean, or would
                turn existing objects into shards. Nothing is changed.
            Conflict: other clients kept changing the document.
        """
        data = bytes(data)

        def written(old: StoredDocument | None) -> bytes | _DocumentChange:
            if check is not None and old is not None:
                check(old.presented())
            return _DocumentChange.KEPT if only_if_absent and old is not None else data

        return await self._replace(path, written, own_shards)

    async def revise(self, path: str, compute: Callable[[bytes | None], bytes | None]) -> None:
        """Store what ``compute`` makes of the document of ``path``, as clients see it; ``None`` means no document, before or after.

        Nothing is stored if it returns the very bytes that it was given.

        Raises as ``write`` and ``erase`` do.
        """

        def revised(old: StoredDocument | None) -> bytes | _DocumentChange:
            before = None if old is None else old.presented()
            after = compute(before)
            if after is before:
                return _DocumentChange.KEPT
            return _DocumentChange.ERASED if after is None else after

        await self._replace(path, revised)

    async def erase(self, path: str) -> None:
        """Remove the document of ``path``.

        Raises:
            InvalidInput: it is the metadata of a sharded array that still has shards.
        """
        if not await self._replace(path, lambda old: _DocumentChange.KEPT if old is None else _DocumentChange.ERASED):
            self._hierarchy.forget(path)

    async def _replace(
        self, path: str, new: Callable[[StoredDocument | None], bytes | _DocumentChange], own_shards: OwnShards = OwnShards.REFUSED
    ) -> bool:
        """Store what ``new`` makes of the current document, or remove it. Return ``False`` if it is kept, and nothing was changed."""

        async def attempt() -> bool:
            current, hidden = await self._current(path)
            data = new(current)
            if data is _DocumentChange.KEPT:
                return False
            try:
                await self._change(path, data, current, own_shards)
            except ConditionFailed as exc:
                if hidden is None:
                    raise
                raise hidden from exc
            except InvalidInput as exc:
                # What is in the way of a new array may be the chunks of another client, which has just created the same one.
                if current is None and await self.read(path) is not None:
                    raise ConditionFailed(str(exc)) from exc
                raise
            return True

        return await self._contention.turn(metadata_key(path)).swap(f"the metadata of {path!r}", attempt)

    async def _current(self, path: str) -> tuple[StoredDocument | None, AccessDenied | None]:
        """Return the document as it is now. Where a refusal may mean that there is none, as some servers answer, return the refusal too:
        then a document may only be created, on condition that there is none.
        """
        try:
            return await self.read(path), None
        except AccessDenied as exc:
            if self._hierarchy.known(path) is not None or not (await self._storage.probe()).create_if_absent:
                raise
            return None, exc

    async def _change(self, path: str, data: bytes | _DocumentChange, current: StoredDocument | None, own_shards: OwnShards) -> None:
        """Store ``data``, or erase the document, on condition that it is still ``current``."""
        if isinstance(data, bytes):
            if current is None:
                await self._refuse_beside_snapshots(path)
            stored = await self.to_stored(path, data, current, own_shards)
            generation = await self._write(path, stored, await self._condition(current))
            self._stored(path, stored, generation)
            if current is None:
                self._hierarchy.being_filled.add(path)
        elif current is not None:
            await self._erase(path, current)

    async def _refuse_beside_snapshots(self, path: str) -> None:
        """Raise ``InvalidInput`` if the root is that of a versioned store: its snapshots would not have the new node. Asked once, and not
        where a document shows the root.
        """
        if self._is_plain or self._hierarchy.known("") is not None:
            return
        if await holds_versioned_store(self._storage):
            url = self._storage.url
            raise InvalidInput(
                f"{metadata_key(path)!r}: {url} is a versioned store, and no snapshot of it would have this node: write to it in a session "
                f"(in Python: shardstore.Repository.open), and read a branch of it as {url}@main. Nothing was changed"
            )
        self._is_plain = True

    async def plan_array(
        self, path: str, data: BytesLike, *, erased_first: bool, own_shards: OwnShards = OwnShards.REFUSED
    ) -> PlannedArray | None:
        """Return how an array's document will be stored, for a transaction that writes its chunks too; ``None`` if it is no array's.

        With ``erased_first``, the transaction erases what is there before it writes. Raises as ``write`` does.
        """
        document = parse_object(data)
        if document is None or not is_array(document):
            return None
        current = None if erased_first else await self.read(path)
        if current is None:
            await self._refuse_beside_snapshots(path)
        try:
            translated = await self.array(path, document, current, nothing_there=erased_first, own_shards=own_shards)
        except InvalidInput:
            if erased_first or current is not None or (current := await self.read(path)) is None:
                raise
            # What is in the way may be the chunks of another client, which has just created the same array.
            translated = await self.array(path, document, current, own_shards=own_shards)
        stored = dumps(translated)
        node, _ = self._hierarchy.describe(path, stored, _NOT_STORED_YET)
        is_uncommitted = node.layout is not None and current is None
        goes_first = current is not None and not same_chunks(present_array(translated), present_array(current.document or {}))
        return PlannedArray(stored, await self._condition(current), replace(node, is_uncommitted=is_uncommitted), goes_first)

    async def check_planned(self, planned: PlannedArray) -> None:
        """Check, before the chunks of an array are written, that the document from which it was planned is still there.

        Raises:
            Conflict: another client has changed the document since; nothing of the array was written.
        """
        path = planned.node.path
        current = await self.read(path)
        expected = planned.condition.generation if isinstance(planned.condition, IfGeneration) else None
        if (None if current is None else current.generation) != expected and not isinstance(planned.condition, Unconditional):
            raise Conflict(f"another client wrote the metadata of array {path!r} during the transaction: try again")

    async def write_planned(self, planned: PlannedArray) -> None:
        """Store a planned document, if the document from which it was planned is still there.

        Raises:
            Conflict: another client has changed the document since.
        """
        path = planned.node.path
        try:
            generation = await self._write(path, planned.stored, planned.condition)
        except ConditionFailed as exc:
            raise Conflict(
                f"another client wrote the metadata of array {path!r} during the transaction. The shards that this transaction wrote for "
                "the new array were removed again: try again"
            ) from exc
        self._stored(path, planned.stored, generation)
        if planned.node.is_uncommitted:
            self._hierarchy.being_filled.add(path)

    async def _write(self, path: str, stored: bytes, condition: Condition) -> Generation:
        with self._doubted_unless_carried_out(path):
            return await self._storage.write(metadata_key(path), [stored], len(stored), condition)

    @contextmanager
    def _doubted_unless_carried_out(self, path: str) -> Iterator[None]:
        """Have the document read again if the change in this block ends in an error: the change may have been made."""
        try:
            yield
        except BaseException:
            self._hierarchy.doubt(path)
            raise

    def _stored(self, path: str, data: bytes, generation: Generation) -> None:
        """Remember what was just stored."""
        before = self._hierarchy.known(path)
        node, _ = self._hierarchy.describe(path, data, generation)
        if (
            before is not None
            and before.layout is not None
            and (node.layout is None or node.layout.index_format != before.layout.index_format)
        ):
            self._drop_indices(join(path, ""))
        self._hierarchy.wrote(node)
        self._hierarchy.announce(path)

    async def check(self, path: str, data: BytesLike) -> None:
        """Raise what ``write`` would raise now; nothing is stored."""
        await self.to_stored(path, bytes(data), await self.read(path))

    async def check_new(self, path: str, data: BytesLike, own_shards: OwnShards) -> None:
        """Raise what ``write`` would raise of an array where nothing is; nothing is read or stored."""
        document = parse_object(data)
        if document is not None and is_array(document):
            await self.array(path, document, None, nothing_there=True, own_shards=own_shards)

    async def _erase(self, path: str, current: StoredDocument) -> None:
        layout = None if self._options.present.shows_draft else current.node.layout
        objects = None if layout is None else await self.chunk_objects(path, layout)
        if objects is not None and objects.with_chunks is not None:
            raise InvalidInput(
                f"the metadata of array {path!r} cannot be erased while it has shards: they cannot be read without it; "
                "erase its chunks first, or delete the whole node (delete_dir, erase_prefix)"
            )
        condition = await self._condition(current) if self._storage.capabilities.conditional_delete else UNCONDITIONAL
        with self._doubted_unless_carried_out(path):
            await self._storage.delete(metadata_key(path), condition)
        if objects is not None:
            await self.clear_away(objects)
        self._hierarchy.forget(path)
        self._hierarchy.announce(path)

    async def _condition(self, current: StoredDocument | None) -> Condition:
        return (await self._storage.probe()).condition_on(None if current is None else current.generation)


# -- consolidated metadata ---------------------------------------------------------------------------------------------


async def stale_consolidated(storage: Storage, path: str) -> list[str]:
    """Return the groups above ``path`` whose consolidated metadata differs from what is at ``path`` now, the outermost first.

    Ask after a node was copied, moved or removed, for its old path and its new one: a program that opens such a group by its consolidated
    metadata sees the old state. Consolidating it again is left to the user.
    """
    if not path:
        return []
    above = [(group, rest) for group, rest in ancestors(check_key(path)) if rest]
    keys = [metadata_key(path), join(path, ".zarray"), join(path, ".zgroup")]
    keys += [key for group, _ in above for key in (metadata_key(group), join(group, ".zmetadata"))]
    documents = [_document(outcome) for outcome in await storage.read([document_read(key) for key in keys])]
    v3, zarray, zgroup = documents[:3]
    is_v2 = zarray is not None or zgroup is not None
    stale: list[str] = []
    for (group, rest), inline, separate in zip(above, documents[3::2], documents[4::2], strict=True):
        v3_names = documents_inside(inline or {})
        v2_names = documents_inside({"consolidated_metadata": separate})
        if (v3_names is not None and _says_otherwise(v3_names, rest, v3)) or (
            v2_names is not None and is_v2 != any(name.startswith(f"{rest}/.z") for name in v2_names)
        ):
            stale.append(group)
    return stale


def _document(outcome: ReadOutcome) -> JsonObject | None:
    """Return a document that was read, ``None`` if there is none. If it is no JSON object, it only counts that it is there."""
    if isinstance(outcome, Failed) and not isinstance(outcome.error, AccessDenied):  # which may be said of what is absent
        raise outcome.error
    return parse_object(outcome.buffers[0]) or {} if isinstance(outcome, Found) else None


def _says_otherwise(named: JsonObject, rest: str, document: JsonObject | None) -> bool:
    """Return whether a group's consolidated metadata does not have ``document`` (``None``: no node) at the path ``rest``."""
    if document is None:
        return any(name == rest or name.startswith(f"{rest}/") for name in named)
    said = named.get(rest)
    return not isinstance(said, dict) or _alone(said) != _alone(document)


def _alone(document: JsonObject) -> JsonObject:
    return {name: value for name, value in document.items() if name != "consolidated_metadata"}
