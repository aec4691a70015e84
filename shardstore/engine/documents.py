"""Metadata documents as clients read and write them: translation, compare-and-swap, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardstore.engine.hierarchy import Hierarchy, Node
from shardstore.engine.index_cache import IndexCache
from shardstore.engine.keys import join, metadata_key
from shardstore.engine.options import EngineOptions
from shardstore.engine.retrying import Conflicts
from shardstore.errors import Conflict, Corruption, InvalidInput
from shardstore.format.json_text import JsonObject, dumps, loads_object
from shardstore.format.metadata_v3 import ArrayLayout, PlainArray, is_array, is_group, parse_plain
from shardstore.format.presentation import (
    asks_for_shards,
    consolidated_arrays,
    map_consolidated,
    present_array,
    present_node,
    same_chunks,
    shard_document,
    update_stored,
)
from shardstore.format.shard_index import IndexFormat
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL, Condition, Generation, IfGeneration
from shardstore.model.ranges import EVERYTHING, BytesLike
from shardstore.plan.policy import chunks_per_shard
from shardstore.storage.base import Absent, Changed, ConditionFailed, Failed, Found, Read, Storage

_NOT_STORED_YET = Generation("planned")


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A stored document as it was read: its bytes, version, the node, and the JSON where it is JSON."""

    data: bytes
    generation: Generation
    node: Node
    document: JsonObject | None


@dataclass(frozen=True, slots=True)
class PlannedArray:
    """An array's document as it will be stored, and on which condition."""

    stored: bytes
    condition: Condition
    node: Node


def present(stored: StoredDocument) -> bytes:
    """The bytes that a client sees; the stored ones unchanged where nothing has to be translated."""
    if stored.document is None:
        return stored.data
    presented = present_node(stored.document)
    return stored.data if presented == stored.document else dumps(presented)


class Documents:
    """The metadata documents of one store."""

    def __init__(
        self,
        storage: Storage,
        hierarchy: Hierarchy,
        indices: IndexCache,
        options: EngineOptions,
        conflicts: Callable[[], Conflicts],
    ) -> None:
        self._storage = storage
        self._hierarchy = hierarchy
        self._indices = indices
        self._options = options
        self._conflicts = conflicts

    async def read(self, path: str) -> StoredDocument | None:
        """The stored document of the node at ``path`` as it is now, or ``None``."""
        (outcome,) = await self._storage.read([Read(metadata_key(path), (EVERYTHING,))])
        match outcome:
            case Failed(error):
                raise error
            case Found(generation, _, (data,)):
                self._hierarchy.learn(path, outcome)
                node, document = self._hierarchy.describe(path, data, generation)
                return StoredDocument(bytes(data), generation, node, document)
            case Absent() | Changed():
                self._hierarchy.learn(path, Absent())
                return None
            case _:
                raise AssertionError(f"a whole-object read gave {outcome!r}")

    async def write(self, path: str, data: BytesLike, *, only_if_absent: bool = False) -> bool:
        """Store what a client wrote as the document of ``path``; ``False`` where ``only_if_absent`` and there was one.

        Raises:
            InvalidInput: the client asks for shards itself, changes what the bytes of existing chunks mean, or would turn
                existing objects into shards. Nothing is changed.
            Conflict: others kept changing the document.
        """
        data = bytes(data)
        conflicts = self._conflicts()
        while True:
            current = await self.read(path)
            if only_if_absent and current is not None:
                return False
            stored = await self._translate(path, data, current)
            try:
                generation = await self._storage.write(metadata_key(path), [stored], len(stored), await self._condition(current))
            except ConditionFailed as exc:
                await conflicts.wait(f"the metadata of {path!r}", exc)
                continue
            self._stored(path, stored, generation)
            return True

    async def plan_array(self, path: str, data: BytesLike) -> PlannedArray | None:
        """How an array's document will be stored, for a transaction that writes its chunks first; ``None``: it is no array's.

        Raises as ``write`` does.
        """
        try:
            document = loads_object(data)
        except Corruption:
            return None
        if not is_array(document):
            return None
        current = await self.read(path)
        stored = dumps(await self.stored_array(path, document, current))
        node, _ = self._hierarchy.describe(path, stored, _NOT_STORED_YET)
        return PlannedArray(stored, await self._condition(current), node)

    async def write_planned(self, planned: PlannedArray) -> None:
        """Store a planned document, if what it was planned from is still there.

        Raises:
            Conflict: another client changed the document meanwhile.
        """
        path = planned.node.path
        try:
            generation = await self._storage.write(metadata_key(path), [planned.stored], len(planned.stored), planned.condition)
        except ConditionFailed as exc:
            raise Conflict(
                f"another client wrote the metadata of array {path!r} during the transaction: chunks of the transaction are stored, "
                "its metadata is not; write the array again"
            ) from exc
        self._stored(path, planned.stored, generation)

    def _stored(self, path: str, data: bytes, generation: Generation) -> None:
        """Remember what was just stored."""
        before = self._hierarchy.known(path)
        node, _ = self._hierarchy.describe(path, data, generation)
        if (
            before is not None
            and before.layout is not None
            and (node.layout is None or node.layout.index_format != before.layout.index_format)
        ):
            self._indices.drop_prefix(join(path, ""))
        self._hierarchy.put(node)

    async def check(self, path: str, data: BytesLike) -> None:
        """Raise what ``write`` would raise now; nothing is stored."""
        await self._translate(path, bytes(data), await self.read(path))

    async def erase(self, path: str) -> None:
        """Remove the document of ``path``.

        Raises:
            InvalidInput: it is the metadata of a sharded array that still has shards.
        """
        conflicts = self._conflicts()
        while True:
            current = await self.read(path)
            if current is None:
                self._hierarchy.forget(path)
                return
            if current.node.layout is not None and await self._has_objects(current.node):
                raise InvalidInput(
                    f"the metadata of array {path!r} cannot be erased while it has shards: nothing could tell any more what they hold; "
                    "erase its chunks first, or delete the whole node (delete_dir, erase_prefix)"
                )
            condition = await self._condition(current) if self._storage.capabilities.conditional_delete else UNCONDITIONAL
            try:
                await self._storage.delete(metadata_key(path), condition)
            except ConditionFailed as exc:
                await conflicts.wait(f"the metadata of {path!r}", exc)
                continue
            self._hierarchy.forget(path)
            return

    async def _condition(self, current: StoredDocument | None) -> Condition:
        capabilities = await self._storage.probe()
        if current is None:
            return IF_ABSENT if capabilities.create_if_absent else UNCONDITIONAL
        return IfGeneration(current.generation) if capabilities.compare_and_swap else UNCONDITIONAL

    # -- presented to stored ---------------------------------------------------------------------------------------

    async def _translate(self, path: str, data: bytes, current: StoredDocument | None) -> bytes:
        try:
            document: JsonObject | None = loads_object(data)
        except Corruption:
            document = None  # some other file of this name: passes through, as everything does that is not Zarr's
        was_sharded = current is not None and current.node.kind == "sharded"
        if document is None or not (is_array(document) or is_group(document)):
            if was_sharded and current is not None:
                await self._refuse_while_chunks_exist(current.node, "is no longer an array's")
            return data
        if is_group(document):
            if was_sharded and current is not None:
                await self._refuse_while_chunks_exist(current.node, "is a group's")
            return await self._translate_consolidated(path, document, data)
        stored = await self.stored_array(path, document, current)
        return data if stored == document else dumps(stored)

    async def stored_array(self, path: str, presented: JsonObject, current: StoredDocument | None) -> JsonObject:
        """The stored document for a presented one of an array, given what is stored there now."""
        previous = current.document if current is not None and is_array(current.document or {}) else None
        if current is not None and previous is not None:
            if same_chunks(presented, present_array(previous)):
                return update_stored(presented, previous)
            await self._refuse_while_chunks_exist(current.node, _difference(presented, present_array(previous)))
        if asks_for_shards(presented):
            raise InvalidInput(
                f"array {path!r} asks for shards itself (shards=, or encoding['shards'] copied from a native dataset): shardstore does "
                "the sharding, and two layers would disagree about what a chunk key means. Leave shards= out (in xarray: "
                "del ds[name].encoding['shards']) and choose the shard shape by chunks_per_shard when you open the store"
            )
        wanted = chunks_per_shard(self._options.chunks_per_shard, path, presented)
        if wanted is None:
            return presented
        index_format = IndexFormat(wanted, self._options.index_codecs, self._options.index_location)
        stored = shard_document(presented, index_format)
        if present_array(stored) != presented:
            return presented  # a document that is not sound: it passes through, and nothing is made of it
        plain = parse_plain(presented)
        assert isinstance(plain, PlainArray)  # the policy shards no other
        found = await self._chunk_object(path, plain)
        if found is not None:
            raise InvalidInput(
                f"array {path!r} cannot be created sharded: object {found!r} exists already and would be taken for a shard. Write the "
                "metadata before the chunks, or erase what is there first"
            )
        return stored

    async def _translate_consolidated(self, path: str, document: JsonObject, data: bytes) -> bytes:
        """A group's document; array documents inside are stored as the arrays themselves are."""
        inside = consolidated_arrays(document)
        if not inside:
            return data
        stored: dict[str, JsonObject] = {}
        current = await self._read_many([join(path, below) for below in inside])
        for below, presented in inside.items():
            array_path = join(path, below)
            now = current[array_path]
            if now is not None and now.document is not None and same_chunks(presented, present_array(now.document)):
                stored[below] = update_stored(presented, now.document)
            elif now is None and not asks_for_shards(presented):
                stored[below] = await self.stored_array(array_path, presented, None)
            else:
                raise InvalidInput(
                    f"the consolidated metadata of group {path!r} describes array {below!r} otherwise than its own metadata does: "
                    "consolidate again"
                )
        translated = map_consolidated(document, lambda below, _: stored[below])
        return data if translated == document else dumps(translated)

    async def _read_many(self, paths: list[str]) -> dict[str, StoredDocument | None]:
        outcomes = await self._storage.read([Read(metadata_key(path), (EVERYTHING,)) for path in paths])
        documents: dict[str, StoredDocument | None] = {}
        for path, outcome in zip(paths, outcomes, strict=True):
            self._hierarchy.learn(path, outcome)
            documents[path] = None
            if isinstance(outcome, Found):
                node, document = self._hierarchy.describe(path, outcome.buffers[0], outcome.generation)
                documents[path] = StoredDocument(bytes(outcome.buffers[0]), outcome.generation, node, document)
        return documents

    # -- what must not be reinterpreted ----------------------------------------------------------------------------

    async def _refuse_while_chunks_exist(self, node: Node, change: str) -> None:
        if await self._has_objects(node):
            raise InvalidInput(
                f"the metadata of array {node.path!r} cannot change while it has chunks: the new document {change}. "
                "Erase the array first (overwrite=True does), or write to another path"
            )

    async def _has_objects(self, node: Node) -> bool:
        array = node.layout or node.plain
        if array is None:
            return False
        return await self._chunk_object(node.path, array) is not None

    async def _chunk_object(self, path: str, array: ArrayLayout | PlainArray) -> str | None:
        """Some object that is a chunk, or shard, of an array with these keys; ``None`` where there is none."""
        encoding, ndim = array.key_encoding, len(array.shape)
        start = join(path, "")
        async for found in self._storage.list(start + encoding.prefix_of((), ndim)):
            if encoding.decode(found.key[len(start) :], ndim) is not None:
                return found.key
        return None


def _difference(presented: JsonObject, before: JsonObject) -> str:
    members = [m for m in ("data_type", "chunk_grid", "chunk_key_encoding", "codecs") if presented.get(m) != before.get(m)]
    changes = ", ".join(f"{m} from {before.get(m)!r} to {presented.get(m)!r}" for m in members)
    return f"changes {changes}"
