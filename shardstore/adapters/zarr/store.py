"""``ShardedStore``: a store of zarr-python (3.1 or newer)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from zarr.abc.store import OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype

from shardstore._sync import as_known, iterate, run_async, run_sync
from shardstore.adapters.handle import Handle, StoreFace, StoreOptions, raise_first, takes_store_options
from shardstore.adapters.own_shards import seen_shape, set_value
from shardstore.adapters.zarr.arrays import replace_methods
from shardstore.adapters.zarr.chunk_pipeline import handles_keys_as
from shardstore.adapters.zarr.pipeline import install_pipeline
from shardstore.engine.actions import ERASE, SetIfMissing, SetValue
from shardstore.engine.reading.shard_chunks import Value
from shardstore.errors import NotFound, ReadOnly
from shardstore.format.metadata_v3 import ArrayLayout
from shardstore.format.store_keys import join
from shardstore.model.options import check_flags
from shardstore.model.ranges import EVERYTHING, ByteOffset, ByteRange, ByteRequest, ByteSuffix

if TYPE_CHECKING:
    from zarr.abc.store import ByteRequest as ZarrByteRequest


_BATCHES_AT_ONCE = 16  # of at most a shard's keys each


class ShardedStore(StoreFace, Store):
    """A Zarr store that shows plain chunks and keeps shards.

    Args:
        url: a path, any fsspec URL or chain, a filesystem with a path, a store of zarr-python, or a ``shardstore.storage.base.Storage``.
        read_only: refuse every write.
        storage_options: for the filesystem that the URL names.
        pipeline: hand whole selections and assignments to the engine (zarr's ``codec_pipeline.path``); the environment
            variable ``SHARDSTORE_PIPELINE=0`` turns it off as well.
        options: those of ``shardstore.open``.
    """

    @takes_store_options
    def __init__(
        self,
        url: Any,
        *,
        read_only: bool = False,
        storage_options: dict[str, Any] | None = None,
        pipeline: bool = True,
        **options: Unpack[StoreOptions],
    ) -> None:
        check_flags(read_only=read_only, pipeline=pipeline)
        super().__init__(read_only=read_only)
        self._handle = Handle.find(url, storage_options, options)
        self._pipeline = pipeline
        self._uses_pipeline = pipeline and handles_keys_as(self, ShardedStore)
        replace_methods()
        if pipeline:
            install_pipeline()

    @classmethod
    @takes_store_options
    def from_url(
        cls,
        url: Any,
        *,
        read_only: bool = False,
        storage_options: dict[str, Any] | None = None,
        pipeline: bool = True,
        **options: Unpack[StoreOptions],
    ) -> ShardedStore:
        """Open a store, as calling the class does; zarr's own stores have this method too."""
        return cls(url, read_only=read_only, storage_options=storage_options, pipeline=pipeline, **options)

    # -- about -----------------------------------------------------------------------------------------------------

    def layout(self, path: str) -> ArrayLayout | None:
        """Return how the array at ``path`` is sharded: chunk shape, chunks per shard, index; ``None`` if it is not."""
        return run_sync(self.engine.layout(path))

    def chunks_per_shard(self, path: str) -> tuple[int, ...] | None:
        """Return the chunks per shard along each dimension of the array at ``path``; ``None`` if it is not sharded."""
        layout = self.layout(path)
        return None if layout is None else layout.index_format.chunks_per_shard

    def prefetch(self, path: str, region: Sequence[slice] | None = None) -> int:
        """Load the shard indices of a region of the array at ``path`` in one round of requests; return the number of shards.

        ``region`` is in elements, a slice without step for each dimension; ``None``: the whole array. Indices past ``index_cache_bytes``
        are left out. What is read of the region afterwards is one round of requests, where it would be two.

        Raises:
            NotFound: there is no sharded array at ``path``.
            InvalidInput: ``region`` is not a slice for each dimension.
            Corruption: an index is damaged.
        """
        return run_sync(self.engine.prefetch(path.strip("/"), region))

    def with_read_only(self, read_only: bool = False) -> ShardedStore:
        """Return the same store, on the same engine, read-only or not."""
        check_flags(read_only=read_only)
        store = type(self).__new__(type(self))
        Store.__init__(store, read_only=read_only)
        store._handle = self._handle
        store._pipeline, store._uses_pipeline = self._pipeline, self._uses_pipeline
        return store

    @property
    def supports_writes(self) -> bool:
        return True

    @property
    def supports_deletes(self) -> bool:
        return True

    @property
    def supports_listing(self) -> bool:
        return True

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        replace_methods()
        if self._pipeline:
            install_pipeline()

    def __str__(self) -> str:
        return f"sharded::{self.url}"

    # -- reading ---------------------------------------------------------------------------------------------------

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ZarrByteRequest | None = None) -> Buffer | None:
        """Return the value of a presented key, or a part of it; ``None`` if there is none. Ranges are clipped to the value.

        Raises:
            Corruption: the shard, its index or the chunk's entry is damaged.
            InvalidInput: the key climbs out of the store.
        """
        if not self._is_open or not key[-1:].isdigit():  # for the chunks of an array there is a pipeline already
            await self._ensure_open()
        request = byte_request(byte_range)
        value = self.engine.short_value(key, request)
        return _buffer(await run_async(self.engine.get((key, request))) if value is None else value, prototype)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ZarrByteRequest | None]]
    ) -> list[Buffer | None]:
        """Return parts of many values in one batch: at most two rounds of requests."""
        await self._ensure_open()
        requests = [(key, byte_request(wanted)) for key, wanted in key_ranges]
        return [_buffer(value, prototype) for value in await run_async(self.engine.get_many(requests))]

    async def _get_many(
        self, requests: Iterable[tuple[str, BufferPrototype, ZarrByteRequest | None]]
    ) -> AsyncGenerator[tuple[str, Buffer | None], None]:
        await self._ensure_open()
        wanted = list(requests)
        values = await run_async(self.engine.get_many([(key, byte_request(r)) for key, _, r in wanted]))
        for (key, prototype, _), value in zip(wanted, values, strict=True):
            yield key, _buffer(value, prototype)

    async def get_ranges(
        self,
        key: str,
        byte_ranges: Sequence[ZarrByteRequest | None],
        *,
        prototype: BufferPrototype,
        max_concurrency: int = 10,
        max_gap_bytes: int = 1 << 20,
        max_coalesced_bytes: int = 16 << 20,
    ) -> AsyncIterator[Sequence[tuple[int, Buffer | None]]]:
        """Yield many ranges of one value, in one batch (zarr 3.2 and newer); the engine's own limits decide what is merged.

        Raises:
            BaseExceptionGroup: with ``FileNotFoundError`` if the key has no value, as zarr's default does.
        """
        await self._ensure_open()
        values = await run_async(self.engine.get_many([(key, byte_request(wanted)) for wanted in byte_ranges]))
        errors = [as_known(value) for value in values if isinstance(value, Exception)]
        if any(value is None for value in values):
            errors.append(NotFound(f"{key!r} does not exist in {self.url}"))
        if errors:
            raise ExceptionGroup("chunk read failed", errors)
        if values:
            yield [(i, _buffer(value, prototype)) for i, value in enumerate(values)]

    async def exists(self, key: str) -> bool:
        """Return whether the key has a value; for a chunk, only the index of its shard is read."""
        await self._ensure_open()
        return await run_async(self.engine.exists(key))

    async def getsize(self, key: str) -> int:
        """Return the size of a value in bytes: of a chunk as it is encoded, of a document as it is presented.

        Raises:
            NotFound: there is no such key.
        """
        await self._ensure_open()
        nbytes = await run_async(self.engine.size(key))
        if nbytes is None:
            raise NotFound(f"{key!r} does not exist in {self.url}")
        return nbytes

    async def getsize_prefix(self, prefix: str) -> int:
        """Return the bytes below a path: chunks as encoded, documents as presented. One request a shard plus the listing."""
        await self._ensure_open()
        return await run_async(self.engine.size_prefix(_directory(prefix)))

    # -- writing ---------------------------------------------------------------------------------------------------

    async def set(self, key: str, value: Buffer) -> None:
        """Store a value; durable on return.

        Raises:
            InvalidInput: a document would change what existing chunks mean, or asks for shards itself and is not from an array of zarr's
                that has our pipeline; nothing was changed.
            Conflict: other writers changed the shard too many times in a row; nothing was stored.
            Corruption: a chunk of the shard that would be kept is damaged; nothing was stored.
        """
        await self._ensure_writable()
        await run_async(set_value(self.engine, key, self._bytes(value), seen_shape.get()))

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Store a value if the key has none: by a conditional put, if the storage has one."""
        await self._ensure_writable()
        await run_async(self.engine.update((key, SetIfMissing(self._bytes(value)))))

    async def _set_many(self, values: Iterable[tuple[str, Buffer]]) -> None:
        await self._ensure_writable()
        updates = [(key, SetValue(self._bytes(value))) for key, value in values]
        raise_first(await run_async(self.engine.update_many(updates)))

    async def delete(self, key: str) -> None:
        """Erase a value; nothing happens if there is none. A shard left without chunks is removed."""
        await self._ensure_writable()
        await run_async(self.engine.update((key, ERASE)))

    async def delete_dir(self, prefix: str) -> None:
        """Remove everything below a path: whole shards unread, metadata last."""
        await self._ensure_writable()
        await run_async(self.engine.erase_prefix(_directory(prefix)))

    # -- listing ---------------------------------------------------------------------------------------------------

    def list(self) -> AsyncIterator[str]:
        """Yield every presented key, in no particular order."""
        return self.list_prefix("")

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield every key below ``prefix``. The path of a node counts as ``path/``: ``ct`` does not list ``ct2``."""
        await self._ensure_open()
        if prefix.startswith("/"):
            return  # no key starts so; to the engine, as in the 2022 draft, it would mean everything
        if prefix and not prefix.endswith("/") and await run_async(self.engine.is_node(prefix)):
            prefix += "/"
        async for batch in iterate(lambda: self.engine.list_batches(prefix), _BATCHES_AT_ONCE):
            for key in batch.keys:
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names directly below a path, exactly: below an array's own level the indices of its shards are read."""
        await self._ensure_open()
        directory = _directory(prefix)
        listed = await run_async(self.engine.list_dir(directory))
        for name in (*listed.keys, *listed.prefixes):
            yield name[len(directory) :].rstrip("/")

    # -- the rest --------------------------------------------------------------------------------------------------

    async def _ensure_open(self) -> None:
        # zarr calls this before it makes a pipeline, and the configuration may have been reset since this store was made.
        if self._pipeline:
            install_pipeline()
        await super()._ensure_open()

    def _check_writable(self) -> None:
        if self.read_only:
            raise ReadOnly(f"store was opened in read-only mode and does not support writing: open {self.url} with read_only=False")

    async def _ensure_writable(self) -> None:
        self._check_writable()
        await self._ensure_open()

    def _bytes(self, value: object) -> memoryview:
        if not isinstance(value, Buffer):
            raise TypeError(f"{type(self).__name__}.set(): `value` must be a Buffer instance. Got an instance of {type(value)} instead.")
        return memoryview(value.as_numpy_array().data).cast("B") if len(value) else memoryview(b"")


def byte_request(wanted: object) -> ByteRequest:
    """Return the engine's byte request for one of zarr's.

    Raises:
        ValueError: it is not one of zarr's.
    """
    match wanted:
        case None:
            return EVERYTHING
        case RangeByteRequest(start, end):
            return ByteRange(start, end)
        case OffsetByteRequest(offset):
            return ByteOffset(offset)
        case SuffixByteRequest(suffix):
            return ByteSuffix(suffix)
        case _:
            raise ValueError(f"Unexpected byte_range, got {wanted}.")


def _buffer(value: Value, prototype: BufferPrototype) -> Buffer | None:
    if isinstance(value, Exception):
        raise as_known(value)
    return None if value is None else prototype.buffer.from_bytes(value)


def _directory(prefix: str) -> str:
    return join(prefix.strip("/"), "")
