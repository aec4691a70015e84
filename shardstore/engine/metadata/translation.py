"""Documents as they are stored. Translate the one that a client writes into the one that is stored, and refuse what cannot be stored.

The stored form depends on what is stored already: an update keeps the sharding, a creation asks the policy. Nothing
may be stored that makes existing objects mean something else.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from shardstore.engine.metadata.hierarchy import Glance, Hierarchy, Node, same_shards
from shardstore.engine.options import EngineOptions
from shardstore.errors import Corruption, InvalidInput
from shardstore.format.json_text import JsonObject, dumps, loads_object, parse_object
from shardstore.format.metadata_v3 import ArrayLayout, PlainArray, is_array, is_group, parse_layout, parse_plain
from shardstore.format.presentation import (
    asks_for_shards,
    can_be_presented,
    consolidated_arrays,
    has_chunks_of,
    levels_below,
    levels_of,
    map_consolidated,
    present_array,
    present_node,
    same_chunks,
    shard_document,
    update_stored,
    with_sizes_for_zeros,
)
from shardstore.format.shard_index import IndexFormat
from shardstore.format.storage_transformers import transformer_index_format
from shardstore.format.store_keys import check_node_path, join, metadata_key
from shardstore.format.v2.documents import array_from_v2
from shardstore.format.v2.kept import carry_kept, hide_kept
from shardstore.format.v2.keys import ARRAY_NAME
from shardstore.model.generation import Generation, IfGeneration
from shardstore.model.ranges import BytesLike
from shardstore.plan.commits import NONCE_NBYTES
from shardstore.plan.policy import chunks_per_shard
from shardstore.storage.base import (
    Absent,
    Changed,
    ConditionFailed,
    Failed,
    Found,
    ObjectInfo,
    Read,
    ReadOutcome,
    Storage,
    document_read,
)
from shardstore.stored.detect import is_draft


class OwnShards(Enum):
    """The permission of a client that sends the document of an array which is itself sharded."""

    REFUSED = "refused"
    """May send no sharded document: it would take a shard for what other clients call a chunk."""
    SAME = "same"
    """May send the document of an array that exists with these chunks: the client reads and writes it chunk by chunk."""
    NEW = "new"
    """May also send the document of a new array."""


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A stored document as it was read: its bytes, its version, the node, and the parsed JSON, if it is JSON."""

    data: bytes
    generation: Generation
    node: Node
    document: JsonObject | None
    hides_kept: bool = True
    """True if clients do not see the members that are kept for the view of Zarr v2."""

    def presented(self) -> bytes:
        """Return the bytes that a client sees: the stored ones, unchanged, if nothing has to be translated."""
        if self.document is None:
            return self.data
        presented = present_node(self.document, self.node.layout)
        if self.hides_kept:
            presented = hide_kept(presented)
        return self.data if presented == self.document else dumps(presented)


@dataclass(frozen=True, slots=True)
class ChunkObjects:
    """The objects at an array's keys: the first one that holds chunks, if any, and the shards before it that hold only an index.

    ``without`` has these shards with their versions.
    """

    with_chunks: str | None
    without: dict[str, Generation]


@dataclass(eq=False, repr=False)
class Translation:
    """Reads the documents of one store, and decides their stored form. The hierarchy remembers the nodes."""

    _storage: Storage
    _hierarchy: Hierarchy
    _options: EngineOptions

    async def read(self, path: str) -> StoredDocument | None:
        """Return the document of the node at ``path``, or ``None``."""
        return (await self.read_many([path]))[path]

    async def read_many(self, paths: Sequence[str]) -> dict[str, StoredDocument | None]:
        """Return the documents of ``paths``, read in one round. A damaged one has no JSON."""
        outcomes = await self._storage.read([document_read(metadata_key(path)) for path in paths])
        return {path: self.learn(path, outcome) for path, outcome in zip(paths, outcomes, strict=True)}

    def seen(self, path: str, found: Found, before: Glance) -> StoredDocument | None:
        """Return a document that a thread found after ``before``; ``None`` if the loop has to read it. From any thread."""
        (data,) = found.buffers
        node, document = self._hierarchy.describe(path, data, found.generation)
        if node.kind == "other" or not self._hierarchy.take(node, before):
            return None
        return StoredDocument(bytes(data), found.generation, node, document, self._options.present.hides_kept)

    def learn(self, path: str, outcome: ReadOutcome) -> StoredDocument | None:
        """Return the document that a ``document_read`` for ``path`` found."""
        match outcome:
            case Failed(error):
                raise error
            case Found(generation, _, (data,)):
                node, document = self._hierarchy.describe(path, data, generation)
                self._hierarchy.learn(path, outcome, even_damaged=True, described=node)
                return StoredDocument(bytes(data), generation, node, document, self._options.present.hides_kept)
            case Absent() | Changed():
                self._hierarchy.learn(path, outcome)
                return None
            case _:
                raise AssertionError(f"a whole-object read gave {outcome!r}")

    async def to_stored(self, path: str, data: bytes, current: StoredDocument | None, own_shards: OwnShards = OwnShards.REFUSED) -> bytes:
        """Return the bytes to store for what a client wrote, given what is stored now.

        Raises:
            InvalidInput: the client asks for shards itself and may not, changes what the bytes of existing chunks mean, or would
                turn existing objects into shards.
        """
        document = parse_object(data)  # some other file of this name passes through, as everything does that is not Zarr's
        was_sharded = current is not None and current.node.kind == "sharded"
        if document is None or not (is_array(document) or is_group(document)):
            if was_sharded and current is not None:
                await self._refuse_while_chunks_exist(current.node, "is no longer an array's")
            return data
        if current is None:
            check_node_path(path)
        if is_group(document):
            if was_sharded and current is not None:
                await self._refuse_while_chunks_exist(current.node, "is a group's")
            return await self._group(path, document, data, current)
        stored = await self.array(path, document, current, own_shards=own_shards)
        return data if stored == document else dumps(stored)

    async def array(
        self,
        path: str,
        presented: JsonObject,
        current: StoredDocument | None,
        *,
        nothing_there: bool = False,
        own_shards: OwnShards = OwnShards.REFUSED,
    ) -> JsonObject:
        """Return the stored document of an array. With ``nothing_there``, its chunks are erased before it is stored."""
        if current is None:
            check_node_path(path)
        previous = current.document if current is not None and is_array(current.document or {}) else None
        presented = self._carried(presented, previous)
        if current is not None and previous is not None:
            previous = with_sizes_for_zeros(previous, presented)
            shown = present_array(previous)
            if same_chunks(presented, shown) or (own_shards is not OwnShards.REFUSED and has_chunks_of(presented, previous)):
                return update_stored(presented, previous)
            await self._refuse_while_chunks_exist(current.node, _difference(presented, shown))
        if asks_for_shards(presented, may_stack=self._options.present.shows_draft):
            stored: JsonObject | None = self._with_own_shards(path, presented, own_shards)
        elif (restored := self._restored(path, presented, current)) is not None:
            return restored
        else:
            stored = self._by_policy(path, presented)
        if stored is None:
            return presented
        await self._refuse_over_objects(path, stored, current, nothing_there)
        return stored

    def _with_own_shards(self, path: str, presented: JsonObject, own_shards: OwnShards) -> JsonObject:
        """Return the stored document of a new array for which the client has chosen the shards. Raises ``InvalidInput`` if it may not."""
        if own_shards is not OwnShards.NEW or presented.get("storage_transformers"):
            raise InvalidInput(refusal_of_shards(path))
        stored = self._as_asked(presented)
        if levels_below(levels_of(stored), self._options.present_level):
            raise InvalidInput(
                f"array {path!r} has nested shards. With present_level={self._options.present_level!r}, clients would see other chunks "
                "than the creator writes: create it through a store with present_level=1"
            )
        return stored

    def _by_policy(self, path: str, presented: JsonObject) -> JsonObject | None:
        """Return the stored document of a new array that the policy shards; ``None`` if it is stored as presented."""
        wanted = chunks_per_shard(self._options.chunks_per_shard, path, presented)
        if wanted is None and presented.get("storage_transformers"):
            wanted = (1,) * len(presented["shape"])  # without one of this store's the client's last would be taken for it
        if wanted is None:
            return None
        by_transformer = self._options.shards_by_transformer(is_draft=is_draft(self._storage))
        index_format = self._options.index_format(wanted, self._storage.kind, by_transformer=by_transformer)
        stored = shard_document(presented, index_format, by_transformer=by_transformer)
        return stored if can_be_presented(presented, stored) else None  # a document that is not sound passes through

    def _as_asked(self, document: JsonObject) -> JsonObject:
        """Return the stored document of an array for which the client has chosen the shards: as given, if the codec does the sharding.

        An array that cannot be shown chunk by chunk passes through whole, for every client.
        """
        layout = parse_layout(document)
        if isinstance(layout, str) or not self._options.shards_by_transformer(is_draft=is_draft(self._storage)):
            return document
        index_format = transformer_index_format(layout.index_format.chunks_per_shard)
        return shard_document(present_array(document), index_format, by_transformer=True)

    async def _refuse_over_objects(self, path: str, stored: JsonObject, current: StoredDocument | None, nothing_there: bool) -> None:
        """Refuse a new sharded array if objects at its keys would be taken for shards, unless they are those of its damaged document."""
        layout = parse_layout(stored)
        if isinstance(layout, str) or nothing_there or self._is_known(path, layout, current):
            return
        found = (await self.chunk_objects(path, layout)).with_chunks
        if found is not None:
            raise InvalidInput(
                f"array {path!r} cannot be created sharded: object {found!r} exists already and would be taken for a shard. Write the "
                "metadata before the chunks, or erase what is there first"
            )

    def _is_known(self, path: str, layout: ArrayLayout, current: StoredDocument | None) -> bool:
        """Return whether the document of an array of this layout was damaged while this process knew it."""
        known = self._hierarchy.known(path)
        if current is None or current.node.kind != "other" or known is None or known.layout is None:
            return False
        return same_shards(known.layout, layout)

    def _restored(self, path: str, presented: JsonObject, current: StoredDocument | None) -> JsonObject | None:
        """Return the document with its old sharding, for an array whose document was damaged while this process knew its layout."""
        known = self._hierarchy.known(path)
        plain = parse_plain(presented)
        if current is None or current.node.kind != "other" or known is None or known.layout is None or isinstance(plain, str):
            return None
        if (plain.chunk_shape, plain.key_encoding) != (known.layout.chunk_shape, known.layout.key_encoding):
            return None
        return shard_document(presented, known.layout.index_format, by_transformer=known.layout.by_transformer)

    async def _group(self, path: str, document: JsonObject, data: bytes, current: StoredDocument | None) -> bytes:
        """Return a group's document to store; array documents inside are stored as the arrays themselves are, or were before."""
        previous = None if current is None else current.document
        paths = list(consolidated_arrays(document))
        arrays = await self.read_many([join(path, below) for below in paths]) if paths else {}
        original = document
        known = {below: now.document for below in paths if (now := arrays[join(path, below)]) is not None and now.document is not None}
        document = self._carried(document, previous, known)
        inside = consolidated_arrays(document)
        if not inside:
            return data if document == original else dumps(document)
        before = {} if previous is None else consolidated_arrays(previous)
        stored = {
            below: await self._consolidated(path, below, presented, arrays[join(path, below)], before.get(below))
            for below, presented in inside.items()
        }
        translated = map_consolidated(document, lambda below, _: stored[below])
        return data if translated == original else dumps(translated)

    async def _consolidated(
        self, path: str, below: str, presented: JsonObject, now: StoredDocument | None, before: JsonObject | None
    ) -> JsonObject:
        """Return the stored form of an array's document inside that of the group at ``path``; ``before`` is what is there so far."""
        for candidate in (None if now is None else now.document, before):
            # Some have it in memory as a client sees the array that has chosen its shards.
            if candidate is not None and has_chunks_of(presented, candidate):
                return update_stored(presented, candidate)
        if now is not None:
            raise InvalidInput(
                f"the consolidated metadata of group {path!r} describes array {below!r} otherwise than its own metadata does: "
                "consolidate again"
            )
        if asks_for_shards(presented, may_stack=self._options.present.shows_draft) and present_array(presented) == presented:
            return presented  # it passed through whole until it was erased
        return await self.array(join(path, below), presented, None)

    def _carried(self, document: JsonObject, previous: JsonObject | None, nodes: Mapping[str, JsonObject] | None = None) -> JsonObject:
        """Return the document with the members that are kept for the view of Zarr v2; clients do not see these members."""
        return carry_kept(document, previous, nodes) if self._options.present.hides_kept else document

    # -- what must not be reinterpreted ----------------------------------------------------------------------------

    async def _refuse_while_chunks_exist(self, node: Node, change: str) -> None:
        """Refuse to change the meaning of an array that still has chunks; remove its shards without chunks."""
        objects = None if node.array is None else await self.chunk_objects(node.path, node.array)
        if objects is not None and (objects.with_chunks is not None or not await self.clear_away(objects)):
            raise InvalidInput(
                f"the metadata of array {node.path!r} cannot change while it has chunks: the new document {change}. "
                "Erase the array first (overwrite=True does), or write to another path"
            )

    async def chunk_objects(self, path: str, array: ArrayLayout | PlainArray) -> ChunkObjects:
        """Return what lies at the chunk or shard keys of an array, up to the first object that holds chunks."""
        encoding, ndim = array.key_encoding, len(array.shape)
        start = join(path, "")
        without: dict[str, Generation] = {}
        async for found in self._storage.list(start + encoding.prefix_of((), ndim)):
            if encoding.decode(found.key[len(start) :], ndim) is None:
                continue
            emptied = await self._emptied(found, array.index_format) if isinstance(array, ArrayLayout) else None
            if emptied is None:
                return ChunkObjects(found.key, without)
            without[found.key] = emptied
        return ChunkObjects(None, without)

    async def clear_away(self, objects: ChunkObjects) -> bool:
        """Remove the shards without chunks, and return whether all are gone. A shard that has got a chunk since then stays."""
        deletions = (self._storage.delete(key, IfGeneration(generation)) for key, generation in objects.without.items())
        errors = [outcome for outcome in await asyncio.gather(*deletions, return_exceptions=True) if isinstance(outcome, BaseException)]
        for error in errors:
            if not isinstance(error, ConditionFailed):
                raise error
        return not errors

    async def _emptied(self, found: ObjectInfo, index_format: IndexFormat) -> Generation | None:
        """Return the version of a shard as ``plan_empty`` plans it, with a nonce or without; ``None`` for another object."""
        if found.nbytes not in (index_format.nbytes, index_format.nbytes + NONCE_NBYTES):
            return None
        (outcome,) = await self._storage.read([Read(found.key, (index_format.request(),))])
        if not isinstance(outcome, Found):
            return None
        try:
            return None if index_format.decode(outcome.buffers[0]).present().any() else outcome.generation
        except Corruption:
            return None


@dataclass(eq=False, repr=False)
class WrittenV2Arrays:
    """Checks each document of a new array of Zarr v2 that passes through one store: the array would stay without shards, unnoticed."""

    _storage: Storage
    _options: EngineOptions
    _has_warned: bool = field(default=False, init=False)

    async def check(self, key: str, data: BytesLike, *, nothing_there: bool = False) -> None:
        """Refuse a new array that would be sharded if it were one of Zarr v3, if the sharding was asked for; otherwise warn, once.

        With ``nothing_there``, everything that is stored will have been erased. Keys of anything else are accepted.

        Raises:
            InvalidInput: it would be sharded by ``chunks_per_shard``.
        """
        path, _, name = key.rpartition("/")
        policy = self._options.chunks_per_shard
        if name != ARRAY_NAME or policy is None or not self._options.present.is_canonical or (policy == "auto" and self._has_warned):
            return
        if not self._would_be_sharded(path, bytes(data)) or (not nothing_there and await self._storage.stat(key) is not None):
            return
        what = f"array {path!r} is one of Zarr v2 ({join(path, ARRAY_NAME)!r})"
        remedy = (
            "open the store with present='v2', which shards what clients of Zarr v2 write, or with chunks_per_shard=None, which stores it "
            "unchanged; or write Zarr v3 (zarr_format=3)"
        )
        if policy != "auto":
            raise InvalidInput(f"{what}, and would be stored without the shards that chunks_per_shard={policy!r} asks for: {remedy}")
        self._has_warned = True
        warnings.warn(
            f"{what}, and is stored without shards: {remedy}. Further arrays of this store are not reported", UserWarning, stacklevel=2
        )

    def _would_be_sharded(self, path: str, data: bytes) -> bool:
        """Return whether the array would be sharded if it were one of Zarr v3. If it cannot be one, a tuple is meant for it too."""
        policy = self._options.chunks_per_shard
        try:
            written = loads_object(data)
            document = array_from_v2(written, None)
        except (Corruption, InvalidInput):
            return isinstance(policy, tuple | list)  # a type that Zarr v3 does not have, say
        return chunks_per_shard(policy, path, document, written=written) is not None


def refusal_of_shards(path: str) -> str:
    """Return the message of the error for a client that asks for shards and may not."""
    return (
        f"array {path!r} asks for shards itself (shards=, encoding['shards'] copied from a native dataset, storage_transformers), and "
        "this client would take a whole shard for what other clients call a chunk. Through zarr-python, on a store with pipeline=True and "
        "present='v3', that is in order. Elsewhere leave shards= out (in xarray: del ds[name].encoding['shards']) and choose the shard "
        "shape by chunks_per_shard when you open the store"
    )


def _difference(presented: JsonObject, before: JsonObject) -> str:
    members = [m for m in ("data_type", "chunk_grid", "chunk_key_encoding", "codecs") if presented.get(m) != before.get(m)]
    changes = ", ".join(f"{m} from {before.get(m)!r} to {presented.get(m)!r}" for m in members)
    return f"changes {changes}"
