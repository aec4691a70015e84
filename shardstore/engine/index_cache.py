"""Decoded shard indices, bounded in bytes. An entry counts only while a read of its generation succeeds.

Two layouts of an array can have indices of the same length, so an index does not show by which of them its shard was written. An index is
*verified* once the array's document was read after it, and still had the layout by which the index was decoded: shards are deleted before
a document that gives them another meaning is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from shardstore.format.shard_index import IndexFormat, ShardIndex
from shardstore.model.chunks import ChunkLocation
from shardstore.model.containers import Lru
from shardstore.model.generation import Generation
from shardstore.model.ranges import BytesLike
from shardstore.storage.abilities import VersionedByRange
from shardstore.storage.base import Storage

_ENTRY_OVERHEAD = 512  # of the objects around the array
_VERSION_OVERHEAD = 256


@dataclass(frozen=True, slots=True)
class CachedIndex:
    """The index of one version of a shard that is ``object_nbytes`` long."""

    index_format: IndexFormat
    generation: Generation
    object_nbytes: int
    index: ShardIndex
    is_verified: bool = False
    carried_versions: Mapping[int, Generation] = field(default_factory=dict)
    """By slot, the versions of chunks that this process has carried over from earlier versions of the shard."""

    @property
    def cost(self) -> int:
        return self.index.nbytes + _ENTRY_OVERHEAD + len(self.carried_versions) * _VERSION_OVERHEAD

    def version(self, slot: int, where: ChunkLocation) -> Generation:
        """Return the version of the chunk in a slot; the chunk lies at ``where``."""
        return self.carried_versions.get(slot) or chunk_version(self.generation, slot, where)


class IndexCache:
    """A cache that drops the least recently used index first. It has no lock: all but ``peek`` is called on one event loop only."""

    def __init__(self, limit_bytes: int) -> None:
        self._entries: Lru[str, CachedIndex] = Lru(limit_bytes, lambda entry: entry.cost)

    def get(self, shard_key: str, index_format: IndexFormat) -> CachedIndex | None:
        """Return the entry, unless it was decoded in another format than the array has now."""
        entry = self._entries.get(shard_key)
        if entry is not None and entry.index_format != index_format:
            self.drop(shard_key)
            return None
        return entry

    def peek(self, shard_key: str, index_format: IndexFormat, *, unverified: bool) -> CachedIndex | None:
        """Return a verified entry as ``get`` does, or any with ``unverified``; from any thread.

        Changes nothing, except that the entry counts as just used.
        """
        entry = self._entries.peek(shard_key)
        if entry is None or entry.index_format != index_format or not (entry.is_verified or unverified):
            return None
        self._entries.touch(shard_key)
        return entry

    def put(self, shard_key: str, entry: CachedIndex) -> None:
        self._entries.put(shard_key, entry)

    def verify(self, shard_key: str, entry: CachedIndex) -> CachedIndex:
        """Return ``entry`` as verified; the cache has it so too, unless it has another one by now."""
        verified = replace(entry, is_verified=True)
        if self._entries.peek(shard_key) is entry:
            self._entries.put(shard_key, verified)
        return verified

    def drop(self, shard_key: str) -> None:
        self._entries.pop(shard_key)

    def drop_prefix(self, prefix: str) -> None:
        for key in self._entries:
            if key.startswith(prefix):
                self.drop(key)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def used_bytes(self) -> int:
        return self._entries.used


def chunk_version(shard: Generation, slot: int, where: ChunkLocation) -> Generation:
    """Return the version of a chunk, made of the version of its shard, its slot and its place there.

    It differs if the bytes may differ, and it is the version of no other chunk of the shard. While commits of this process carry the chunk
    over unchanged, it keeps the version that it had when it was first seen (``CachedIndex.carried_versions``).
    """
    return Generation(f"{shard.token}:{slot}:{where.offset}:{where.nbytes}", shard.modified)


def parse_chunk_version(version: Generation) -> tuple[Generation, int, ChunkLocation] | None:
    """Return the shard's version, and the chunk's slot and place in it, or ``None`` if it is the version of something else."""
    shard, *place = version.token.rsplit(":", 3)
    if len(place) != 3 or not all(number.isdecimal() for number in place):
        return None
    slot, offset, nbytes = map(int, place)
    return Generation(shard, version.modified), slot, ChunkLocation(offset, nbytes)


class IndexVersions:
    """The versions by which the shards of one storage are read, once their indices are known."""

    def __init__(self, storage: Storage) -> None:
        self._versions = storage.ability(VersionedByRange)

    def named(self, generation: Generation, index_format: IndexFormat, encoded: Callable[[], BytesLike]) -> Generation:
        """Return the version to read the shard by: ``generation``, or one made from the index where the storage has no versions.

        ``encoded`` returns the bytes of the index. With such a version a shard that was written, or read whole, is read in one round.
        """
        if self._versions is None:
            return generation
        return self._versions.version_by(index_format.request(), encoded()) or generation
