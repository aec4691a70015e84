"""The version of a chunk: where it lay in which version of its shard when it was first seen. It differs wherever the bytes may differ.

It is kept while commits of this process carry the chunk over unchanged (``CachedIndex.version``).
"""

from __future__ import annotations

from shardstore.model.chunks import ChunkLocation
from shardstore.model.generation import Generation


def chunk_version(shard: Generation, where: ChunkLocation) -> Generation:
    return Generation(f"{shard.token}:{where.offset}:{where.nbytes}")


def parse_chunk_version(version: Generation) -> tuple[Generation, ChunkLocation] | None:
    """The shard's version and the chunk's place in it, or ``None`` where it is the version of something else."""
    shard, *place = version.token.rsplit(":", 2)
    if len(place) != 2 or not all(number.isdecimal() for number in place):
        return None
    return Generation(shard), ChunkLocation(int(place[0]), int(place[1]))
