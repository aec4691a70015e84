"""The requests of one batch to one shard."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shardstore.engine.metadata.hierarchy import ChunkTarget, LocatedChunks, Node
from shardstore.format.metadata_v3 import ArrayLayout
from shardstore.model.chunks import ChunkCoords
from shardstore.model.generation import Generation
from shardstore.model.ranges import EVERYTHING, ByteRequest


@dataclass(slots=True)
class ShardRead:
    """The requests of one batch to one shard, each by its number in the batch, the chunk's slot, and which bytes of it."""

    node: Node
    layout: ArrayLayout
    coords: ChunkCoords
    key: str
    numbers: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    requests: list[ByteRequest] = field(default_factory=list)
    parts: int = 0
    """The number of requests that are not for whole chunks."""
    versions: dict[int, tuple[Generation, int]] | None = None
    """The versions and sizes in bytes, where this is given, of the chunks that were read, by number in the batch."""

    @property
    def wants_everything(self) -> bool:
        """Return whether every chunk that the array has in this shard is wanted, whole."""
        per_shard, grid = self.layout.grid.chunks_per_shard, self.layout.chunk_grid_shape
        here = 1
        for s, n, g in zip(self.coords, per_shard, grid, strict=True):
            here *= max(0, min(n, g - s * n))
        if here == 0 or len(self.slots) < here:
            return False
        whole = self.slots if not self.parts else [s for s, r in zip(self.slots, self.requests, strict=True) if r == EVERYTHING]
        return len(set(whole)) >= here


def group_located(located: LocatedChunks, requests: Sequence[ByteRequest]) -> list[ShardRead]:
    """Like ``group_by_shard``, of chunks that were located together; one request for each."""
    parts = [i for i, request in enumerate(requests) if request is not EVERYTHING]
    shards: list[ShardRead] = []
    for coords, key, numbers in zip(located.shard_coords, located.shard_keys, located.numbers(), strict=True):
        mine: list[int] = numbers.tolist()
        shard = ShardRead(located.node, located.layout, coords, key, mine, located.slots[numbers].tolist(), [EVERYTHING] * len(mine))
        if parts:
            shard.requests = [requests[i] for i in mine]
            shard.parts = sum(request is not EVERYTHING for request in shard.requests)
        shards.append(shard)
    return shards


def group_by_shard(targets: Iterable[tuple[int, ChunkTarget, ByteRequest]]) -> list[ShardRead]:
    groups: dict[str, ShardRead] = {}
    for i, target, request in targets:
        group = groups.get(target.shard_key)
        if group is None:
            group = groups[target.shard_key] = ShardRead(target.node, target.layout, target.shard_coords, target.shard_key)
        group.numbers.append(i)
        group.slots.append(target.slot)
        group.requests.append(request)
        if request is not EVERYTHING:
            group.parts += 1
    return list(groups.values())
