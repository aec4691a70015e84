"""Reads single chunks of local files in the page cache: at once, in the calling thread, without a hop to the IO loop and back.

That is possible if the array's document is fresh, the shard's index is known and verified, and the storage holds the bytes in memory. It is
the reader's second round for one chunk, with the same checks. Everything else is left to the reader.

Called from any thread, while the IO loop runs: it only looks at values that are replaced as a whole.
"""

from __future__ import annotations

from shardstore.engine.index_cache import IndexCache
from shardstore.engine.metadata.hierarchy import Hierarchy
from shardstore.errors import Corruption
from shardstore.model.ranges import ByteRange, ByteRequest, resolve
from shardstore.storage.abilities import BlockingReads
from shardstore.storage.base import Read
from shardstore.storage.wrappers import Counters


class PageCacheReader:
    """Reads single chunks of one store."""

    def __init__(self, storage: BlockingReads, hierarchy: Hierarchy, indices: IndexCache, counters: Counters) -> None:
        self._storage = storage
        self._hierarchy = hierarchy
        self._indices = indices
        self._counters = counters

    def get(self, key: str, request: ByteRequest) -> memoryview | None:
        """Return the bytes that ``request`` asks for, of a chunk that exists; ``None`` means: ask the engine."""
        target = self._hierarchy.fresh_chunk(key)
        if target is None:
            return None
        cached = self._indices.peek(target.shard_key, target.layout.index_format, unverified=self._hierarchy.never_checks)
        if cached is None:
            return None
        try:
            where = cached.index.location(target.slot, cached.object_nbytes)
        except Corruption:
            return None
        if where is None:
            return None
        inside = resolve(request, where.nbytes)
        if inside.start >= inside.end:
            return None
        wanted = ByteRange(where.offset + inside.start, where.offset + inside.end)
        found = self._storage.read_page_cache(Read(target.shard_key, (wanted,), cached.generation))
        if found is None:
            return None
        (data,) = found.buffers
        self._counters.add(requests=1, bytes_read=len(data), chunks_read=1, index_hits=1)
        return data
