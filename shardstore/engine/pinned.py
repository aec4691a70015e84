"""One version of a value, to be read piece by piece: what an open file reads."""

from __future__ import annotations

from shardstore.engine.actions import content_version
from shardstore.engine.index_cache import chunk_version, with_fresh_layout
from shardstore.engine.metadata.hierarchy import ChunkTarget, GoneTarget, Hierarchy, MetadataTarget, PlainTarget
from shardstore.engine.reading.reader import Reader
from shardstore.engine.reading.shard_chunks import group_by_shard
from shardstore.engine.values import Values
from shardstore.errors import Conflict, ShardStoreError, StorageError
from shardstore.model.chunks import ChunkLocation
from shardstore.model.generation import Generation
from shardstore.model.ranges import EVERYTHING, ByteRange
from shardstore.storage.base import Absent, Changed, Found, Read, Storage, read_one


class HeldValue:
    """A value that is in memory: a document as presented, or a value that a transaction holds back."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self.nbytes = len(data)

    @property
    def version(self) -> str:
        """Return a version that differs if the bytes differ."""
        return content_version(self._data).token

    async def read(self, start: int, end: int) -> memoryview:
        return self._data[start:end]


class PinnedValue:
    """``nbytes`` bytes at ``offset`` of one version of the stored object at ``stored_key``.

    ``version`` differs if the bytes may differ; ``is_chunk``: other values may lie in that object too.
    """

    def __init__(
        self, storage: Storage, key: str, stored_key: str, generation: Generation, slot: int, where: ChunkLocation, *, is_chunk: bool
    ) -> None:
        self._storage = storage
        self._key = key
        self.stored_key = stored_key
        self._generation = generation
        self.offset = where.offset
        self.is_chunk = is_chunk
        self.nbytes = where.nbytes
        self.version = chunk_version(generation, slot, where).token

    async def read(self, start: int, end: int) -> memoryview:
        """Return the bytes from ``start`` to ``end`` (exclusive) of the value, clipped to it.

        Raises:
            Conflict: the object was replaced since the value was opened: what was read before may be of another version.
        """
        start, end = max(0, start), min(end, self.nbytes)
        if start >= end:
            return memoryview(b"")
        wanted = ByteRange(self.offset + start, self.offset + end)
        match await read_one(self._storage, Read(self.stored_key, (wanted,), self._generation)):
            case Found(_, _, (data,)) if len(data) == end - start:
                return data
            case Absent() | Changed():
                raise Conflict(
                    f"{self._key!r} was being read in pieces, and object {self.stored_key!r} was replaced in between: open it again, "
                    "or read it whole"
                )
            case _:
                raise StorageError(
                    f"reading {self._key!r}: bytes {wanted.start} to {wanted.end} of {self.stored_key!r} were not received completely"
                )


OpenValue = PinnedValue | HeldValue


async def pin(key: str, storage: Storage, hierarchy: Hierarchy, reader: Reader, values: Values) -> OpenValue | None:
    """Return the value of a key as it is now, ``None`` if there is none. A value without a version is read whole.

    Raises:
        Corruption: the index of the chunk's shard, or the chunk's entry in it, is damaged.
    """

    async def attempt() -> OpenValue | None:
        (target,) = await hierarchy.locate([key], for_write=True)
        match target:
            case ChunkTarget():
                (shard,) = group_by_shard([(0, target, EVERYTHING)])
                found = await reader.chunk_place(shard, must_prove_layout=True)
                if found is None:
                    return None
                generation, where = found
                return PinnedValue(storage, key, shard.key, generation, target.slot, where, is_chunk=True)
            case MetadataTarget():
                return await _whole(key, values)
            case PlainTarget():
                info = await storage.stat(key)
                if info is None:
                    return None
                if info.generation is None:
                    return await _whole(key, values)
                return PinnedValue(storage, key, key, info.generation, 0, ChunkLocation(0, info.nbytes), is_chunk=False)
            case GoneTarget():
                return None

    return await with_fresh_layout(attempt, f"the metadata that decides where {key!r} lies kept changing; try again")


async def _whole(key: str, values: Values) -> HeldValue | None:
    (value,) = await values.get_many([(key, EVERYTHING)])
    if isinstance(value, ShardStoreError):
        raise value
    return None if value is None else HeldValue(value)
