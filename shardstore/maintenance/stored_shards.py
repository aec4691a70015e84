"""The shards of a store, one after the other, and their indices: the first step of all work on shards.

It takes one listing, one request for each metadata document, and one for the index of each shard.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

from shardstore.engine.engine import Engine
from shardstore.engine.metadata.hierarchy import Node
from shardstore.errors import NotFound
from shardstore.format.store_keys import check_prefix, join, metadata_path
from shardstore.maintenance.object_tasks import one_by_one, pages
from shardstore.maintenance.shard_content import StoredShard
from shardstore.maintenance.survey.nodes import SurveyedNodes
from shardstore.storage.base import ObjectInfo

SHARDS_A_TASK = 64
_INDEX_BYTES_A_TASK = 8 * 2**20


def stored_shards(engine: Engine, path: str, unreadable: list[Node]) -> Iterator[StoredShard]:
    """Yield every shard of the arrays at and below ``path``, in the order of the listing; from a thread that is not the IO loop's.

    Nodes whose documents cannot be read are added to ``unreadable``; everything below them is skipped.

    Raises:
        NotFound: there is nothing at ``path``.
        StorageError: a request failed.
    """
    check_prefix(path)
    yield from one_by_one(_batches(engine, path.strip("/"), unreadable))


async def _batches(engine: Engine, path: str, unreadable: list[Node]) -> AsyncIterator[list[StoredShard]]:
    nodes = SurveyedNodes(engine)
    is_empty = True
    async for page in pages(engine.storage, join(path, "")):
        is_empty = False
        yield await _shards_of(nodes, page)
    if is_empty:
        raise NotFound(f"there is no node at {join(engine.storage.url.rstrip('/'), path)}, and nothing below it: check the address")
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
