"""The shards of a store, one after the other, and their indices: the first step of all work on shards.

It takes one listing, one request for each metadata document, and one for the index of each shard.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from shardstore._sync import run_sync
from shardstore.engine.engine import Engine
from shardstore.engine.metadata.hierarchy import Node
from shardstore.engine.reading.reader import same_shards
from shardstore.engine.writing.committer import Shard
from shardstore.errors import Corruption, NotFound
from shardstore.format.metadata_v3 import ArrayLayout
from shardstore.format.shard_index import ShardIndex
from shardstore.format.store_keys import check_prefix, join, metadata_path
from shardstore.maintenance.survey.nodes import SurveyedNodes
from shardstore.model.chunks import ChunkCoords
from shardstore.model.generation import Generation
from shardstore.storage.base import Failed, Found, ObjectInfo, Read

T = TypeVar("T")

_KEYS_AT_ONCE = 1000
SHARDS_A_TASK = 64
_INDEX_BYTES_A_TASK = 8 * 2**20


@dataclass(frozen=True, slots=True)
class StoredShard:
    """The object of one shard as it was listed; it travels with tasks."""

    path: str
    """The path of the array."""
    layout: ArrayLayout
    coords: ChunkCoords
    key: str


@dataclass(frozen=True, slots=True)
class LookedAt:
    """One version of a shard: its size, and its index or the reason why that cannot be read."""

    generation: Generation
    nbytes: int
    index: ShardIndex | Corruption


# -- finding -----------------------------------------------------------------------------------------------------------


def stored_shards(engine: Engine, path: str, unreadable: list[Node]) -> Iterator[StoredShard]:
    """Yield every shard of the arrays at and below ``path``, in the order of the listing; from a thread that is not the IO loop's.

    Nodes whose documents cannot be read are added to ``unreadable``; everything below them is skipped.

    Raises:
        NotFound: there is nothing at ``path``.
        StorageError: a request failed.
    """
    check_prefix(path)
    batches = _batches(engine, path.strip("/"), unreadable)
    while (batch := run_sync(_next(batches))) is not None:
        yield from batch


async def _next(items: AsyncIterator[T]) -> T | None:
    return await anext(items, None)


async def _batches(engine: Engine, path: str, unreadable: list[Node]) -> AsyncIterator[list[StoredShard]]:
    nodes = SurveyedNodes(engine)
    found: list[ObjectInfo] = []
    is_empty = True
    async for info in engine.storage.list(join(path, "")):
        is_empty = False
        found.append(info)
        if len(found) == _KEYS_AT_ONCE:
            yield await _shards_of(nodes, found)
            found = []
    if is_empty:
        raise NotFound(f"there is no node at {join(engine.storage.url.rstrip('/'), path)}, and nothing below it: check the address")
    yield await _shards_of(nodes, found)
    unreadable += [record.node for record in nodes.records(path) if record.node.kind == "other"]


async def _shards_of(nodes: SurveyedNodes, found: Sequence[ObjectInfo]) -> list[StoredShard]:
    shards: list[StoredShard] = []
    for info, (record, coords) in zip(found, await nodes.owners([info.key for info in found]), strict=True):
        if record is not None and coords is not None and record.node.layout is not None and metadata_path(info.key) is None:
            shards.append(StoredShard(record.node.path, record.node.layout, coords, info.key))
    return shards


def in_tasks(shards: Iterable[StoredShard]) -> Iterator[tuple[StoredShard, ...]]:
    """Yield groups of shards that are looked at in one round: bounded in number, and in the bytes of their indices."""
    some: list[StoredShard] = []
    nbytes = 0
    for shard in shards:
        if some and (len(some) == SHARDS_A_TASK or nbytes + shard.layout.index_format.nbytes > _INDEX_BYTES_A_TASK):
            yield tuple(some)
            some, nbytes = [], 0
        some.append(shard)
        nbytes += shard.layout.index_format.nbytes
    if some:
        yield tuple(some)


# -- looking -----------------------------------------------------------------------------------------------------------


async def look_at(engine: Engine, shards: Sequence[StoredShard]) -> list[LookedAt | None]:
    """Return the indices of shards, by one request per shard; ``None`` where the shard no longer exists.

    Raises:
        StorageError: a request failed.
    """
    looks: list[LookedAt | None] = []
    outcomes = await engine.storage.read([Read(shard.key, (shard.layout.index_format.request(),)) for shard in shards])
    for shard, outcome in zip(shards, outcomes, strict=True):
        if isinstance(outcome, Failed):
            raise outcome.error
        looks.append(_look(shard, outcome) if isinstance(outcome, Found) else None)
    return looks


def _look(shard: StoredShard, found: Found) -> LookedAt:
    index_format = shard.layout.index_format
    try:
        index: ShardIndex | Corruption = index_format.decode(index_format.slice_from(found.buffers[0], found.nbytes))
    except Corruption as exc:
        index = exc
    return LookedAt(found.generation, found.nbytes, index)


async def current(engine: Engine, shard: StoredShard) -> Shard | None:
    """Return the shard with its node as the storage has it now; ``None`` where its array is gone, or has another layout by now.

    Called before damage is reported: the layout may be stale instead.
    """
    node = await engine.hierarchy.node(shard.path, fresh=True)
    if node is None or node.layout is None or not same_shards(node.layout, shard.layout):
        return None
    return Shard(node, node.layout, shard.coords)
