"""Loads the indices of a region before its chunks are wanted, so that reading a chunk takes one round of requests instead of two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from shardstore.engine.layout_proof import with_fresh_layout
from shardstore.engine.metadata.hierarchy import Hierarchy, Node, shard_key
from shardstore.engine.reading.reader import Reader
from shardstore.engine.reading.shard_chunks import ShardRead
from shardstore.errors import InvalidInput, NotFound, ShardStoreError
from shardstore.format.metadata_v3 import ArrayLayout
from shardstore.model.chunks import ChunkCoords

_AT_ONCE = 256


async def prefetch(hierarchy: Hierarchy, reader: Reader, path: str, region: Sequence[slice] | None, most_bytes: int) -> int:
    """Load the indices of the shards that hold ``region`` of the array at ``path``, as many as fit into ``most_bytes``.

    ``region`` is in elements, a slice for each dimension; ``None``: the whole array. Returns how many shards there are of those that
    were asked for.

    Raises:
        NotFound: there is no sharded array at ``path``.
        InvalidInput: ``region`` is none of the array's.
        Corruption: an index is damaged.
    """

    async def attempt() -> int:
        node = await hierarchy.node(path)
        if node is None or node.layout is None:
            raise NotFound(f"there is no sharded array at {path!r}" if node is None else f"{path!r} is no sharded array: it has no indices")
        shards = islice(_shards(node, node.layout, region), most_bytes // max(1, node.layout.grid.nslots * 16))
        found = 0
        while some := list(islice(shards, _AT_ONCE)):
            for index in await reader.load_indices(some):
                if isinstance(index, ShardStoreError):
                    raise index
                found += index is not None
        return found

    return await with_fresh_layout(attempt, f"the metadata of array {path!r} kept changing; try again")


def _shards(node: Node, layout: ArrayLayout, region: Sequence[slice] | None) -> Iterator[ShardRead]:
    if region is None:
        region = [slice(None)] * layout.ndim
    parts: Sequence[object] = region
    if len(parts) != layout.ndim or not all(isinstance(part, slice) and part.step in (None, 1) for part in parts):
        raise InvalidInput(f"region {region!r} is not a slice without step for each of the {layout.ndim} dimensions of array {node.path!r}")
    axes: list[range] = []
    for part, extent, side in zip(region, layout.shape, layout.shard_shape, strict=True):
        start, stop, _ = part.indices(extent)
        axes.append(range(start // side, -(-stop // side)) if stop > start else range(0))
    for coords in _positions(axes):
        yield ShardRead(node, layout, coords, shard_key(node.path, layout, coords))


def _positions(axes: Sequence[range]) -> Iterator[ChunkCoords]:
    """Yield what ``itertools.product`` would, which first makes tuples of the axes, however long they are."""
    if not axes:
        yield ()
        return
    for first in axes[0]:
        for rest in _positions(axes[1:]):
            yield (first, *rest)
