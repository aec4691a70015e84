"""Survey a store: its arrays, how they are stored, how many of their chunks exist, and which are damaged.

It takes one listing of the storage, one request for each metadata document, and one for the index of each shard. Neither keys nor
indices are kept: memory grows with the number of nodes, not of chunks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Literal

from shardstore.engine.engine import Engine
from shardstore.errors import NotFound
from shardstore.format.shard_index import IndexLocation
from shardstore.format.store_keys import check_prefix, join, metadata_path
from shardstore.maintenance.appends import Appends, read_appends
from shardstore.maintenance.density import Occupancy
from shardstore.maintenance.execution import pages
from shardstore.maintenance.nodes import NodeRecord, ShardTally, SurveyedNodes
from shardstore.maintenance.shards import SHARDS_AT_ONCE, CountedShard, Damage, StoredShard, survey_shards
from shardstore.model.capabilities import Capabilities
from shardstore.model.showing import ShownInNotebooks
from shardstore.opening.kinds import kind_named
from shardstore.opening.snapshot_place import SnapshotPlace
from shardstore.presented.flavours import Presented
from shardstore.storage.base import ObjectInfo
from shardstore.stored.detect import is_draft

Stored = Literal["v3", "2022 draft"]
Progress = Callable[[int], None]

_INDEX_BYTES_AT_ONCE = 32 * 2**20
_MOST_V2_DOCUMENTS = 1000
_MOST_DAMAGES = 1000  # that are listed; all are counted
_MOST_WITHOUT_NODES = 20_000
_DEPTH_WITHOUT_NODES = 3  # directories that are no nodes, above the hierarchies that are looked for


V2_DOCUMENTS = (".zgroup", ".zarray")
"""The documents that make a directory a node of Zarr v2, which passes through unchanged."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Objects, chunks and bytes of one array. An array that is not sharded has one object per chunk."""

    objects: int
    """The number of stored objects that hold chunks of the array."""
    possible_objects: int | None
    """The number of objects that its shape asks for; ``None`` if its chunks cannot be identified."""
    objects_outside: int
    """The number of other objects, at places outside the array's shape: a resize leaves them."""
    stored_nbytes: int
    """Bytes of all these objects."""
    chunks: int
    """The number of existing chunks inside the array's shape."""
    possible_chunks: int | None
    chunk_nbytes: int
    chunks_outside: int
    """The number of existing chunks outside the array's shape."""
    chunk_nbytes_outside: int
    index_nbytes: int
    """Bytes of the shards' indices."""
    dead_nbytes: int
    """Dead bytes of shards: neither index nor part of a chunk; shared bytes of chunks count once."""
    damaged_objects: int
    other_objects: int
    """The number of objects below the array that are neither its metadata nor chunks."""
    other_nbytes: int


@dataclass(frozen=True, slots=True)
class ArraySurvey:
    """The survey of one array. Shapes are in elements, and ``None`` if the document does not give them; ``chunk_shape`` is the
    presented one.
    """

    path: str
    is_sharded: bool
    reason: str
    """The reason in words why it passes through unchanged; empty for an array that is shown chunk by chunk."""
    shape: tuple[int, ...] | None
    dimension_names: tuple[str | None, ...] | None
    data_type: str
    item_nbytes: int | None
    chunk_shape: tuple[int, ...] | None
    codecs: tuple[str, ...]
    """The codecs as presented."""
    stored_shape: tuple[int, ...] | None
    """The shape of one object: the shard's, or the chunk's."""
    stored_codecs: tuple[str, ...]
    chunks_per_shard: tuple[int, ...] | None
    index_location: IndexLocation | None
    index_checksum: bool | None
    by_transformer: bool
    """True if the storage transformer of 2022 shards the array, not a codec."""
    usage: Usage | None
    """The counts of objects, chunks and bytes; ``None`` if only metadata was asked for."""
    appends: tuple[Appends, ...] = ()
    """The records of appends in the array's directory; none if only metadata was asked for."""


@dataclass(frozen=True, slots=True)
class ConsolidatedMetadata:
    """Consolidated metadata of the group at ``path``, for ``arrays`` arrays; ``is_stale`` if it differs from their own."""

    path: str
    arrays: int
    is_stale: bool


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A document named ``zarr.json`` that is not that of a Zarr v3 node, and the reason."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Survey(ShownInNotebooks):
    """Everything at and below ``path``; totals count every stored object, whatever its role."""

    url: str
    path: str
    kind: Literal["array", "group", "directory"]
    arrays: tuple[ArraySurvey, ...]
    groups: int
    consolidated: tuple[ConsolidatedMetadata, ...]
    unreadable: tuple[Unreadable, ...]
    damage: tuple[Damage, ...]
    """The damaged shards, at most 1,000; the arrays' ``damaged_objects`` count all."""
    objects: int | None
    """The number of objects; ``None`` if only metadata was asked for, like the next field."""
    stored_nbytes: int | None
    other_objects: int | None
    """The number of objects that belong to no node."""
    other_nbytes: int | None
    v2_documents: tuple[str, ...] = ()
    """Keys of ``.zgroup`` and ``.zarray``, which make nodes of Zarr v2: at most 1,000, sorted."""

    @property
    def damaged_objects(self) -> int:
        return sum(array.usage.damaged_objects for array in self.arrays if array.usage is not None)


async def survey(
    engine: Engine,
    path: str = "",
    *,
    indices: bool = True,
    occupancy: Occupancy | None = None,
    progress: Progress | None = None,
    shown: str | None = None,
    most_without_nodes: int = _MOST_WITHOUT_NODES,
) -> Survey:
    """Look at everything at and below the node, or prefix, ``path``. Runs on the IO loop, as the engine does.

    With ``indices`` false only metadata is read: arrays are not listed, and nothing is counted. Each record of appends that is listed costs
    one request. ``occupancy`` counts each chunk that exists, by the same reads. ``progress`` is called with the number of objects seen so
    far. Writes of other clients during the survey may be counted or not. A damaged shard is listed, and the rest is still counted.
    ``shown`` is the name of the place in messages, by default its URL. A place that is no store, such as a home directory, is given up
    after ``most_without_nodes`` objects.

    Raises:
        NotFound: there is nothing at ``path``, or no node of Zarr among so many objects.
        Conflict: the metadata of an array changed while its shards were looked at.
        StorageError: a request failed.
    """
    check_prefix(path)
    surveyor = _Surveyor(engine, path.strip("/"), progress, shown, occupancy)
    await (surveyor.count_everything(most_without_nodes) if indices else surveyor.find_nodes())
    return surveyor.result(counted=indices)


async def glance(engine: Engine, path: str = "", *, most_arrays: int, seconds: float) -> tuple[Survey, bool]:
    """Survey metadata only, and stop after ``most_arrays`` arrays or so many ``seconds``. Return the survey, and whether it is complete.

    Raises:
        NotFound: nothing was found in that time.
        StorageError: a request failed.
    """
    surveyor = _Surveyor(engine, check_prefix(path).strip("/"), None, None)
    is_all = False
    try:
        async with asyncio.timeout(seconds):
            is_all = await surveyor.find_nodes(most_arrays)
    except TimeoutError:
        is_all = False
    return surveyor.result(counted=False), is_all


class _Surveyor:
    """The state of one survey."""

    def __init__(self, engine: Engine, path: str, progress: Progress | None, shown: str | None, occupancy: Occupancy | None = None) -> None:
        self._occupancy = occupancy
        self._engine = engine
        self._path = path
        self._progress = progress
        self._shown = shown
        self._nodes = SurveyedNodes(engine)
        self._damage: list[Damage] = []
        self._objects = 0
        self._nbytes = 0
        self._other_objects = 0
        self._other_nbytes = 0
        self._v2_documents: list[str] = []
        self._record_keys: list[str] = []
        self._appends: tuple[Appends, ...] = ()

    # -- by one listing of everything ------------------------------------------------------------------------------

    async def count_everything(self, most_without_nodes: int) -> None:
        shards: list[tuple[StoredShard, ShardTally]] = []
        index_nbytes = 0
        async for page in pages(self._engine.storage, join(self._path, "")):
            for shard in await self._sort(page):
                shards.append(shard)
                index_nbytes += shard[0].layout.index_format.nbytes
                if len(shards) >= SHARDS_AT_ONCE or index_nbytes >= _INDEX_BYTES_AT_ONCE:
                    await self._look_into(shards)
                    shards, index_nbytes = [], 0
            self._report()
            self._check_place(most_without_nodes)
        if shards:
            await self._look_into(shards)
        self._appends = await read_appends(self._engine.storage, sorted(self._record_keys))
        self._report()

    def _check_place(self, most_without_nodes: int) -> None:
        """Raise ``NotFound`` if there are many objects, and no node of Zarr so far."""
        if self._objects != self._other_objects or self._objects < most_without_nodes or self._v2_documents:
            return
        if not self._nodes.records(self._path):
            where = self._shown or join(self._engine.storage.url.rstrip("/"), self._path)
            raise NotFound(f"there is no Zarr among the first {self._objects:,} objects below {where}: name the store itself")

    def _note_v2(self, key: str) -> None:
        if key.rpartition("/")[2] in V2_DOCUMENTS and len(self._v2_documents) < _MOST_V2_DOCUMENTS:
            self._v2_documents.append(key)

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(self._objects)

    async def _sort(self, found: list[ObjectInfo]) -> list[tuple[StoredShard, ShardTally]]:
        """Count objects for their arrays; return the shards, whose indices have to be read."""
        shards: list[tuple[StoredShard, ShardTally]] = []
        owners = await self._nodes.owners([info.key for info in found])
        for info, owner in zip(found, owners, strict=True):
            self._objects += 1
            self._nbytes += info.nbytes
            self._note_v2(info.key)
            if metadata_path(info.key) is not None:
                continue
            record, coords = owner
            if record is not None and coords is not None and self._occupancy is not None:
                self._occupancy.listed.add(record.node.path, info)
            if record is None:
                self._other_objects += 1
                self._other_nbytes += info.nbytes
            elif coords is None and record.is_record(info.key):
                self._record_keys.append(info.key)
            elif coords is None:
                record.tally.other_objects += 1
                record.tally.other_nbytes += info.nbytes
            elif record.node.layout is not None:
                shards.append((StoredShard(record.node.path, record.node.layout, coords, info.key), record.tally))
            else:
                objects = record.objects
                is_inside = objects is not None and objects.holds(coords)
                record.tally.add_chunk(info.nbytes, is_inside)
                if objects is not None and is_inside and self._occupancy is not None:
                    self._occupancy.add_chunk(record.node.path, objects.chunk_grid, coords, info)
        return shards

    async def _look_into(self, shards: list[tuple[StoredShard, ShardTally]]) -> None:
        counted: list[CountedShard] | None = None if self._occupancy is None else []
        for damage in await survey_shards(self._engine, shards, counted):
            if len(self._damage) < _MOST_DAMAGES:
                self._damage.append(damage)
        if self._occupancy is not None and counted is not None:
            self._occupancy.add_shards(counted)
        self._report()

    # -- by metadata alone -----------------------------------------------------------------------------------------

    async def find_nodes(self, most_arrays: int | None = None) -> bool:
        """Find nodes from group to group; objects below arrays are not listed. Return false if there may be more than so many arrays."""
        level = [(self._path, 0)]
        arrays = 0
        while level:
            below: list[tuple[str, int]] = []
            while level:
                some = level if most_arrays is None else level[: most_arrays - arrays]
                level = level[len(some) :]
                if not some:
                    return False
                records = await self._nodes.load([path for path, _ in some])
                arrays += sum(record is not None and record.is_array for record in records.values())
                below += await self._below(some, records)
            self._report()
            level = below
        return True

    async def _below(self, some: list[tuple[str, int]], records: Mapping[str, NodeRecord | None]) -> list[tuple[str, int]]:
        below: list[tuple[str, int]] = []
        for path, strange in some:
            record = records[path]
            if record is not None and record.is_array:
                continue
            # Below what is no node there may be hierarchies, but no node of one that has begun above.
            depth = 0 if record is not None else strange + 1
            if depth > _DEPTH_WITHOUT_NODES or (record is None and strange == 0 and path != self._path):
                continue
            listed = await self._engine.storage.list_dir(join(path, ""))
            self._objects += len(listed.objects)
            for info in listed.objects:
                self._note_v2(info.key)
            self._other_objects += sum(metadata_path(info.key) is None for info in listed.objects)
            below += [(prefix.rstrip("/"), depth) for prefix in listed.prefixes]
        return below

    # -- what came of it -------------------------------------------------------------------------------------------

    def result(self, *, counted: bool) -> Survey:
        self._nodes.check_any(self._path, self._objects, self._shown)
        records = self._nodes.records(self._path)
        here = self._nodes.get(self._path)
        kind: Literal["array", "group", "directory"] = "directory"
        if here is not None and here.node.kind != "other":
            kind = "array" if here.is_array else "group"
        return Survey(
            url=self._engine.storage.url,
            path=self._path,
            kind=kind,
            arrays=tuple(_array(record, counted, self._appends) for record in records if record.is_array),
            groups=sum(record.node.kind == "group" for record in records),
            consolidated=tuple(ConsolidatedMetadata(*found) for found in self._nodes.consolidated(self._path)),
            unreadable=tuple(Unreadable(record.node.path, record.node.reason) for record in records if record.node.kind == "other"),
            damage=tuple(self._damage),
            objects=self._objects if counted else None,
            stored_nbytes=self._nbytes if counted else None,
            other_objects=self._other_objects if counted else None,
            other_nbytes=self._other_nbytes if counted else None,
            v2_documents=tuple(sorted(self._v2_documents)),
        )


def _array(record: NodeRecord, counted: bool, appends: Sequence[Appends]) -> ArraySurvey:
    layout = record.node.layout
    objects, chunks = (None, None) if record.objects is None else (prod(record.objects.object_grid), prod(record.objects.chunk_grid))
    usage = Usage(possible_objects=objects, possible_chunks=chunks, **asdict(record.tally))
    return ArraySurvey(
        path=record.node.path,
        is_sharded=layout is not None,
        reason=record.node.reason,
        chunks_per_shard=None if layout is None else layout.grid.chunks_per_shard,
        index_location=None if layout is None else layout.index_format.location,
        index_checksum=None if layout is None else layout.index_format.codecs.checksum,
        by_transformer=layout is not None and layout.by_transformer,
        **asdict(record.facts),
        usage=usage if counted else None,
        appends=tuple(one for one in appends if record.is_record(one.key)),
    )


# -- the storage ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """What is stored, and on what."""

    kind: str
    capabilities: Capabilities
    is_known: bool
    """False if the server has not been asked yet what it honours."""
    stored: Stored
    presented: str
    snapshot: SnapshotPlace | None = None


def storage_facts(engine: Presented, snapshot: SnapshotPlace | None, probed: Capabilities | None = None) -> StorageFacts:
    """Return the facts about the storage of an engine, whose documents have been read; ``probed`` are the answers of its server."""
    storage = engine.storage
    capabilities = probed or storage.capabilities
    kind = kind_named(storage.kind)
    is_known = probed is not None or kind is None or not kind.is_probed or capabilities.atomic_commits
    stored: Stored = "2022 draft" if is_draft(storage) else "v3"
    return StorageFacts(storage.kind, capabilities, is_known, stored, engine.options.present.name, snapshot)
