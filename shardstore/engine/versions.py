"""Versions of chunks and of shards.

The version of a chunk is the version of its shard and its place there, as they were when the chunk was first seen; so it differs wherever
the bytes may differ. It is kept while commits of this process carry the chunk over unchanged (``CachedIndex.version``). A shard in a
storage without versions is told by its index.
"""

from __future__ import annotations

from collections.abc import Callable

from shardstore.format.shard_index import IndexFormat
from shardstore.model.chunks import ChunkLocation
from shardstore.model.generation import Generation
from shardstore.model.ranges import BytesLike
from shardstore.storage.base import Storage, ToldByRanges
from shardstore.storage.wrappers.base import innermost


def chunk_version(shard: Generation, where: ChunkLocation) -> Generation:
    return Generation(f"{shard.token}:{where.offset}:{where.nbytes}")


def parse_chunk_version(version: Generation) -> tuple[Generation, ChunkLocation] | None:
    """The shard's version and the chunk's place in it, or ``None`` where it is the version of something else."""
    shard, *place = version.token.rsplit(":", 2)
    if len(place) != 2 or not all(number.isdecimal() for number in place):
        return None
    return Generation(shard), ChunkLocation(int(place[0]), int(place[1]))


class IndexVersions:
    """The versions by which the shards of one storage are read, once their indices are known."""

    def __init__(self, storage: Storage) -> None:
        inmost = innermost(storage)
        self._told_by = inmost if isinstance(inmost, ToldByRanges) else None

    def named(self, generation: Generation, index_format: IndexFormat, encoded: Callable[[], BytesLike]) -> Generation:
        """``generation``, or that by which a shard of this index, ``encoded``, can be read again where it names nothing.

        A shard that was written, or came whole, is read by one round then, as one whose index was read.
        """
        if self._told_by is None:
            return generation
        return self._told_by.version_by(index_format.request(), encoded()) or generation
