"""Erasing by prefix: whole shards are removed unread, partly covered ones are rewritten, metadata goes last."""

from __future__ import annotations

from collections.abc import AsyncIterator

from shardstore.engine.actions import ERASE
from shardstore.engine.hierarchy import ChunkTarget, Hierarchy
from shardstore.engine.index_cache import CachedIndex, IndexCache
from shardstore.engine.keys import join, metadata_path
from shardstore.engine.listing import ArrayPrefix, Listing
from shardstore.engine.reader import Reader, ShardRead, StaleLayout
from shardstore.engine.writer import Writer
from shardstore.errors import Conflict, InvalidInput, ShardStoreError
from shardstore.plan.prefixes import PrefixPlan, chunks_of, plan_prefix
from shardstore.storage.base import Storage

_KEYS_AT_ONCE = 1000  # as many as one request of S3 deletes
_SHARDS_AT_ONCE = 64
_TRIES = 5


class Erasing:
    """Removes everything below a prefix."""

    def __init__(
        self, storage: Storage, hierarchy: Hierarchy, indices: IndexCache, listing: Listing, reader: Reader, writer: Writer
    ) -> None:
        self._storage = storage
        self._hierarchy = hierarchy
        self._indices = indices
        self._listing = listing
        self._reader = reader
        self._writer = writer

    async def erase_prefix(self, prefix: str) -> None:
        """Erase every key below ``prefix``, which is ``""`` or ends with ``/`` (the draft's ``erase_prefix``).

        A node is removed by operations on the stored prefix, its metadata last: until then what is left of it can be read.

        Raises:
            InvalidInput: the prefix ends otherwise.
        """
        if prefix and not prefix.endswith("/"):
            raise InvalidInput(f"prefix {prefix!r} does not end with '/': it would cut names in two")
        within = await self._listing.array_prefix(prefix)
        if within is None or not within.rest:
            await self._erase_nodes(prefix)
            return
        assert within.node.layout is not None
        plan = plan_prefix(within.node.layout, within.rest)
        if plan.covers_whole_shards:
            await self._erase_objects(join(within.node.path, plan.stored_prefix))
        else:
            await self._erase_chunks(within, plan)

    async def _erase_nodes(self, prefix: str) -> None:
        documents: list[str] = []
        await self._erase_objects(prefix, documents)
        for start in range(0, len(documents), _KEYS_AT_ONCE):
            await self._storage.delete_many(documents[start : start + _KEYS_AT_ONCE])
        self._hierarchy.forget_below(prefix.rstrip("/"))

    async def _erase_objects(self, prefix: str, documents: list[str] | None = None) -> None:
        """Remove the stored objects below ``prefix``; documents are not, but noted, the deepest first."""
        batch: list[str] = []
        async for found in self._storage.list(prefix):
            if documents is not None and metadata_path(found.key) is not None:
                documents.append(found.key)
                continue
            batch.append(found.key)
            if len(batch) == _KEYS_AT_ONCE:
                await self._storage.delete_many(batch)
                batch = []
        if batch:
            await self._storage.delete_many(batch)
        if documents is not None:
            documents.sort(key=lambda key: -key.count("/"))
        self._indices.drop_prefix(prefix)

    async def _erase_chunks(self, within: ArrayPrefix, plan: PrefixPlan) -> None:
        shards: list[ShardRead] = []
        async for shard in self._shards(within, plan):
            shards.append(shard)
            if len(shards) == _SHARDS_AT_ONCE:
                await self._erase_from(shards, plan)
                shards = []
        await self._erase_from(shards, plan)

    def _shards(self, within: ArrayPrefix, plan: PrefixPlan) -> AsyncIterator[ShardRead]:
        return self._listing.shards(join(within.node.path, plan.stored_prefix))

    async def _erase_from(self, shards: list[ShardRead], plan: PrefixPlan) -> None:
        for _ in range(_TRIES):
            if not shards:
                return
            try:
                indices = await self._reader.load_indices(shards)
            except StaleLayout:
                continue
            updates = []
            for shard, index in zip(shards, indices, strict=True):
                if isinstance(index, ShardStoreError):
                    raise index
                if not isinstance(index, CachedIndex):
                    continue
                encode = shard.layout.key_encoding.encode
                for coords in chunks_of(shard.layout, shard.coords, index.index, plan.leading):
                    key = join(shard.node.path, encode(coords))
                    updates.append((ChunkTarget(key, shard.node, shard.layout, coords), ERASE))
            outcomes = await self._writer.commit(updates)
            errors = [outcome for outcome in outcomes if outcome is not None]
            if not errors:
                return
            if not all(isinstance(error, StaleLayout) for error in errors):
                raise next(error for error in errors if not isinstance(error, StaleLayout))
        raise Conflict("the array's metadata kept changing while chunks were being erased; some may be left: try again")
