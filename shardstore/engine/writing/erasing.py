"""Erasing by prefix: whole shards are removed unread, partly covered ones are rewritten, metadata goes last.

Only the records of appends go after the documents: while there is an array, no append may begin a new one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from shardstore.engine.actions import ERASE, Action
from shardstore.engine.index_cache import CachedIndex, IndexCache, with_fresh_layout
from shardstore.engine.metadata.hierarchy import ChunkTarget, Hierarchy
from shardstore.engine.reading.listing import ArrayPrefix, Listing
from shardstore.engine.reading.reader import Reader
from shardstore.engine.reading.shard_chunks import ShardRead
from shardstore.engine.writing.writer import Writer
from shardstore.errors import InvalidInput, ShardStoreError
from shardstore.format.append_record import is_record_key
from shardstore.format.metadata_v3 import ArrayLayout, PlainArray
from shardstore.format.store_keys import join, metadata_path
from shardstore.model.chunks import ChunkCoords, RemovedChunks, ShardGrid
from shardstore.model.containers import batched, gathered
from shardstore.opening.snapshot_urls import holds_versioned_store
from shardstore.plan.prefixes import PrefixPlan, chunks_of, plan_prefix
from shardstore.storage.abilities import FileTree
from shardstore.storage.base import Storage

_KEYS_AT_ONCE = 1000  # as many as one request of S3 deletes
_SHARDS_AT_ONCE = 64
_ROWS_LISTED = 16  # along the first dimension, one by one: more are listed with the whole array


@dataclass(eq=False, repr=False)
class Erasing:
    """Removes everything below a prefix."""

    _storage: Storage
    _hierarchy: Hierarchy
    _indices: IndexCache
    _listing: Listing
    _reader: Reader
    _writer: Writer

    async def erase_prefix(self, prefix: str, *, keep_documents: bool = False) -> None:
        """Erase every key below ``prefix``, which is ``""`` or ends with ``/`` (the draft's ``erase_prefix``).

        A node is removed by operations on the stored prefix, its metadata last: until then what is left of it can be read. With
        ``keep_documents`` the metadata stays.

        Raises:
            InvalidInput: all of a versioned store would be erased, with its history.
            Conflict: the metadata of the array kept changing; some chunks may be left.
        """
        if not prefix and await holds_versioned_store(self._storage):
            raise InvalidInput(
                f"{self._storage.url} is a versioned store, and all of its snapshots would be erased: write to it in sessions "
                "(in Python: shardstore.Repository.open; Repository.destroy(yes=True) removes all of it)"
            )
        await with_fresh_layout(lambda: self._erase(prefix, keep_documents), _kept_changing(prefix))
        if (tree := self._storage.ability(FileTree)) is not None:  # another process may have removed something already
            await tree.keep_seen(prefix)

    async def erase_chunks(self, prefix: str) -> None:
        """Erase the chunks below a prefix that ends inside the coordinates of a sharded array: whole shards unread, and no other object.

        Raises:
            Conflict: the metadata of the array kept changing; some chunks may be left.
        """

        async def attempt() -> None:
            within = await self._listing.array_prefix(prefix)
            if within is None or not within.rest or within.node.layout is None:
                return
            plan = plan_prefix(within.node.layout, within.rest)
            if plan.covers_whole_shards:
                stored = join(within.node.path, plan.stored_prefix)
                await self._delete_each(found.key async for found, shard in self._listing.stored(stored) if shard is not None)
                self._indices.drop_prefix(stored)
            else:
                await self._erase_chunks(prefix, within, plan)

        await with_fresh_layout(attempt, _kept_changing(prefix))

    async def erase_removed(self, path: str, chunk_shape: tuple[int, ...], removed: RemovedChunks) -> bool:
        """Erase the chunks that an array loses when it shrinks: of the shards that are there, whole ones unread.

        Returns ``False``, and does nothing, if there is no array with known keys and chunks of this shape.

        Raises:
            Conflict: the metadata of the array kept changing; some chunks may be left.
        """

        async def attempt() -> bool:
            node = await self._hierarchy.node(path, fresh=True)
            array = None if node is None else node.array
            if node is None or array is None or array.chunk_shape != chunk_shape:
                return False
            grid = array.grid if isinstance(array, ArrayLayout) else ShardGrid((1,) * array.ndim)
            shards: list[ShardRead] = []

            async def whole() -> AsyncIterator[str]:
                async for key, coords in self._objects_with(path, array, grid, removed):
                    if isinstance(array, ArrayLayout) and not removed.has_all_of(coords, grid):
                        shards.append(ShardRead(node, array, coords, key))
                        continue
                    self._indices.drop(key)
                    yield key

            await self._delete_each(whole())
            for some in batched(shards, _SHARDS_AT_ONCE):
                await self._erase_from(some, lambda shard, index: filter(removed.has, chunks_of(shard.layout, shard.coords, index.index)))
            return True

        return await with_fresh_layout(attempt, _kept_changing(join(path, "")))

    async def _objects_with(
        self, path: str, array: ArrayLayout | PlainArray, grid: ShardGrid, removed: RemovedChunks
    ) -> AsyncIterator[tuple[str, ChunkCoords]]:
        """Yield the stored objects in which a removed chunk may be. Few rows along the first dimension are listed by themselves."""
        start, encoding = join(path, ""), array.key_encoding
        prefixes: dict[int | None, str] = {None: encoding.prefix_of((), array.ndim)}
        if (chunk_rows := removed.rows()) is not None:
            per_shard = grid.chunks_per_shard[0]
            rows = range(chunk_rows.start // per_shard, -(-chunk_rows.stop // per_shard))
            if len(rows) <= _ROWS_LISTED:
                prefixes = {row: encoding.prefix_of((row,), array.ndim) for row in rows}
        for row, prefix in prefixes.items():
            async for found in self._storage.list(start + prefix):
                coords = encoding.decode(found.key[len(start) :], array.ndim)
                if coords is not None and row in (None, coords[0]) and removed.has_some_of(coords, grid):
                    yield found.key, coords

    async def _delete_each(self, keys: AsyncIterator[str]) -> None:
        async for some in gathered(keys, _KEYS_AT_ONCE):
            await self._storage.delete_many(some)

    async def _delete_all(self, keys: Sequence[str]) -> None:
        for some in batched(keys, _KEYS_AT_ONCE):
            await self._storage.delete_many(some)

    async def _erase(self, prefix: str, keep_documents: bool) -> None:
        within = await self._listing.array_prefix(prefix, even_damaged=True)
        if within is None or not within.rest:
            await self._erase_nodes(prefix, keep_documents)
            return
        assert within.node.layout is not None
        plan = plan_prefix(within.node.layout, within.rest)
        if plan.covers_whole_shards:
            stored = join(within.node.path, plan.stored_prefix)
            if stored.endswith("/"):
                await self._cut_links(stored)
            await self._erase_objects(stored, [] if keep_documents else None)
            return
        await self._erase_chunks(prefix, within, plan)
        await self._erase_plain_objects(prefix, keep_documents)

    async def _erase_nodes(self, prefix: str, keep_documents: bool) -> None:
        documents: list[str] = []
        await self._cut_links(prefix)
        await self._erase_objects(prefix, documents)
        if keep_documents:
            return
        try:
            await self._delete_all([key for key in documents if not is_record_key(key)])
            await self._delete_all([key for key in documents if is_record_key(key)])
        finally:  # where it failed, some may be gone
            self._hierarchy.forget_below(prefix.rstrip("/"))

    async def _cut_links(self, prefix: str) -> None:
        if (tree := self._storage.ability(FileTree)) is not None:
            await tree.cut_links(prefix)

    async def _erase_objects(self, prefix: str, documents: list[str] | None = None) -> None:
        """Remove the stored objects below ``prefix``. If ``documents`` is given, documents, and records of appends, are added to it
        instead, the deepest first.
        """

        async def to_delete() -> AsyncIterator[str]:
            async for found in self._storage.list(prefix):
                if documents is not None and (metadata_path(found.key) is not None or is_record_key(found.key)):
                    documents.append(found.key)
                else:
                    yield found.key

        await self._delete_each(to_delete())
        if documents is not None:
            documents.sort(key=lambda key: -key.count("/"))
        self._indices.drop_prefix(prefix)

    async def _erase_chunks(self, prefix: str, within: ArrayPrefix, plan: PrefixPlan) -> None:
        """Erase the chunks whose keys start with ``prefix`` out of shards that hold other chunks too."""

        def chosen(shard: ShardRead, index: CachedIndex) -> Iterator[ChunkCoords]:
            encode = shard.layout.key_encoding.encode
            for coords in chunks_of(shard.layout, shard.coords, index.index, plan.leading):
                if join(shard.node.path, encode(coords)).startswith(prefix):
                    yield coords

        stored = self._listing.stored(join(within.node.path, plan.stored_prefix))
        async for shards in gathered((shard async for _, shard in stored if shard is not None), _SHARDS_AT_ONCE):
            await self._erase_from(shards, chosen)

    async def _erase_from(self, shards: Sequence[ShardRead], chosen: Callable[[ShardRead, CachedIndex], Iterable[ChunkCoords]]) -> None:
        """Erase some of the chunks that are in each of these shards, in one commit a shard."""
        updates: list[tuple[ChunkTarget, Action]] = []
        for shard, index in zip(shards, await self._reader.load_indices(shards), strict=True):
            if isinstance(index, ShardStoreError):
                raise index
            if not isinstance(index, CachedIndex):
                continue
            node, layout = shard.node, shard.layout
            keys = ((join(node.path, layout.key_encoding.encode(coords)), coords) for coords in chosen(shard, index))
            updates.extend((ChunkTarget.of(key, node, layout, coords), ERASE) for key, coords in keys)
        for outcome in await self._writer.commit(updates):
            if outcome is not None:
                raise outcome

    async def _erase_plain_objects(self, prefix: str, keep_documents: bool) -> None:
        """Erase the objects below the prefix that are not shards, the documents last."""
        plain = [found.key async for found, shard in self._listing.stored(prefix) if shard is None]
        if keep_documents:
            plain = [key for key in plain if metadata_path(key) is None]
        await self._delete_all(sorted(plain, key=lambda key: (metadata_path(key) is not None, -key.count("/"))))


def _kept_changing(prefix: str) -> str:
    return f"metadata kept changing while {prefix!r} was being erased; some of it may be left: try again"
