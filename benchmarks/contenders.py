"""The libraries that are compared, each as something that opens one sharded array, reads from it and writes to it.

Arrays are created beforehand by zarr-python. A contender is opened in processes of its own, so what one of them sets for its
process does not reach the others. Nobody flushes to disk, but for the contender that is called durable: zarr-python never does, the
others are told not to.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import zarr
from counting_s3 import Counts
from metered_store import MeteredStore
from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import FsspecStore, LocalStore

Values = npt.NDArray[Any]
Selection = slice | tuple[slice, ...]
StorageName = Literal["local", "latency", "s3", "far s3"]
"""A directory; a directory behind a model of latency; a server; a server whose answers take as long as over a network."""

S3_REGION = "us-east-1"
S3_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
}
"""For the processes of the contenders: nobody's own account or proxy has anything to do with a server on this machine."""
ZARRS = "zarrs.ZarrsCodecPipeline"
FUSED = "zarr.core.codec_pipeline.FusedCodecPipeline"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a hierarchy lies: a directory, perhaps behind a model of latency, or a bucket and prefix at an S3 endpoint."""

    path: str
    endpoint: str | None = None
    latency_seconds: float = 0.0
    """That every request to the directory takes, inside the process."""
    server_seconds: float = 0.0
    """That the server at the endpoint waits before each answer."""
    http_url: str | None = None
    """Where a server with the same latency shows the directory, for those whose requests cannot be delayed inside the process."""

    @property
    def storage(self) -> StorageName:
        if self.endpoint is not None:
            return "far s3" if self.server_seconds else "s3"
        return "latency" if self.latency_seconds else "local"

    @property
    def bucket_and_prefix(self) -> tuple[str, str]:
        bucket, _, prefix = self.path.partition("/")
        return bucket, prefix

    @property
    def s3_options(self) -> dict[str, Any]:
        """For s3fs. The server takes any key."""
        return {"key": "test", "secret": "test", "endpoint_url": self.endpoint, "client_kwargs": {"region_name": S3_REGION}}


@dataclass(frozen=True, slots=True)
class Address:
    """Where one array is."""

    place: Place
    name: str


@dataclass(frozen=True, slots=True)
class Target(Address):
    """One array of one shard: ``chunks`` chunks of ``items`` numbers each."""

    chunks: int
    items: int

    def chunk(self, number: int, count: int = 1) -> slice:
        """Chunk ``number`` and those after it, ``count`` in all, as items of the array."""
        return slice(number * self.items, (number + count) * self.items)


class OpenArray(ABC):
    """An array, opened by a contender. Writes have been acknowledged when they return."""

    @abstractmethod
    def read(self, selection: Selection) -> Values: ...

    @abstractmethod
    def write(self, selection: Selection, values: Values) -> None:
        """One assignment."""

    async def ready(self) -> None:  # noqa: B027 - most have nothing of the kind
        """Open on the running loop what belongs to one."""

    async def read_async(self, selection: Selection) -> Values:
        """The same through the library's own asynchronous interface, on the caller's event loop."""
        raise NotImplementedError

    async def read_chunk(self, key: str, selection: Selection) -> Values:
        """One raw chunk, by its key in the hierarchy where the library has such a face, else by its elements."""
        return await self.read_async(selection)

    async def read_chunks(self, wanted: Sequence[tuple[str, Selection]]) -> list[Values]:
        """Raw chunks, all at once, as the library lets them be asked for together."""
        return list(await asyncio.gather(*(self.read_chunk(key, selection) for key, selection in wanted)))

    def counts(self) -> Counts | None:
        """The requests so far, where they are counted inside of this process."""
        return None

    def transaction(self) -> AbstractContextManager[None]:
        """Assignments inside are one transaction. Raises ``NotImplementedError`` where the library has none."""
        raise NotImplementedError

    def write_together(self, writes: Sequence[tuple[Selection, Values]]) -> int:
        """All assignments at once, by as many threads; how many failed."""
        failed = 0
        with ThreadPoolExecutor(len(writes)) as pool:
            for write in [pool.submit(self.write, selection, values) for selection, values in writes]:
                failed += write.exception() is not None
        return failed


class Contender(ABC):
    """A library with the settings that it runs with. Pickled into its processes."""

    name: str

    @abstractmethod
    def open(self, address: Address) -> OpenArray: ...

    def unavailable(self, storage: StorageName) -> str | None:
        """Why it cannot take part on this storage here; ``None`` where it can."""
        return None


# -- zarr-python -------------------------------------------------------------------------------------------------------


class _ZarrArray(OpenArray):
    def __init__(self, array: zarr.Array[Any], address: Address | None = None) -> None:
        self._array = array
        self._address = address
        self._here: zarr.AsyncArray[Any] = array.async_array

    async def ready(self) -> None:
        """zarr's synchronous array lives on zarr's own loop, and so do the connections of its store."""
        if self._address is not None and self._address.place.endpoint is not None:
            store = native_store(self._address.place, own_client=True)
            self._here = await zarr.api.asynchronous.open_array(store=store, path=self._address.name, mode="r")

    def read(self, selection: Selection) -> Values:
        return np.asarray(self._array[selection])

    def write(self, selection: Selection, values: Values) -> None:
        self._array[selection] = values

    async def read_async(self, selection: Selection) -> Values:
        return np.asarray(await self._here.getitem(selection))

    def counts(self) -> Counts | None:
        store = self._array.store
        return store.so_far() if isinstance(store, MeteredStore) else None


def native_store(place: Place, *, obstore: bool = False, own_client: bool = False) -> Store:
    """zarr-python's own store for a place; with ``own_client`` on connections of its own, which another loop may use."""
    if place.endpoint is None:
        store: Store = LocalStore(place.path)
        return MeteredStore(store, place.latency_seconds) if place.latency_seconds else store
    if not obstore:
        return FsspecStore.from_url(f"s3://{place.path}", storage_options={**place.s3_options, "skip_instance_cache": own_client})
    from obstore.store import S3Store
    from zarr.storage import ObjectStore

    bucket, prefix = place.bucket_and_prefix
    client: Any = S3Store(
        bucket,
        prefix=prefix,
        endpoint=place.endpoint,
        region=S3_REGION,
        access_key_id="test",
        secret_access_key="test",
        client_options={"allow_http": True},
    )
    return ObjectStore(client)


@dataclass(frozen=True, slots=True)
class ZarrPython(Contender):
    """zarr-python, with one of the codec pipelines that do sharding for it."""

    name: str = "zarr-python"
    pipeline: str | None = None
    obstore: bool = False
    unsharded: bool = False
    """Works on the copy of the array that has no shards."""

    def open(self, address: Address) -> OpenArray:
        store = native_store(address.place, obstore=self.obstore)
        with self._configured():  # an array keeps the pipeline that it was opened with
            return _ZarrArray(zarr.open_array(store, path=address.name, mode="r+"), address)

    def _configured(self) -> AbstractContextManager[Any]:
        if self.pipeline == ZARRS:
            import zarrs  # noqa: F401 - registers the pipeline
        chosen: AbstractContextManager[Any] = zarr.config.set({} if self.pipeline is None else {"codec_pipeline.path": self.pipeline})
        return chosen

    def unavailable(self, storage: StorageName) -> str | None:
        if self.pipeline == ZARRS:
            if importlib.util.find_spec("zarrs") is None:
                return "zarrs is not installed"
            return None if storage == "local" else "the pipeline opens local files and HTTP only"
        if self.pipeline == FUSED and not _has(FUSED):
            return f"zarr {zarr.__version__} has no such pipeline"
        if self.obstore:
            if storage == "local":
                return "it is for object stores"
            return None if importlib.util.find_spec("obstore") else "obstore is not installed"
        return None


def _has(dotted: str) -> bool:
    module, _, name = dotted.rpartition(".")
    return hasattr(importlib.import_module(module), name)


# -- tensorstore -------------------------------------------------------------------------------------------------------


class _TensorStoreArray(OpenArray):
    def __init__(self, array: Any, own_transactions: bool) -> None:
        self._array = array
        self._own_transactions = own_transactions
        self._transaction: Any = None

    def read(self, selection: Selection) -> Values:
        return np.asarray(self._array[selection].read().result())

    async def read_async(self, selection: Selection) -> Values:
        return np.asarray(await self._array[selection].read())

    async def read_chunks(self, wanted: Sequence[tuple[str, Selection]]) -> list[Values]:
        import tensorstore

        with tensorstore.Batch() as batch:  # collects what can be coalesced
            futures = [self._array[selection].read(batch=batch) for _, selection in wanted]
        return [np.asarray(await future) for future in futures]

    def write(self, selection: Selection, values: Values) -> None:
        import tensorstore

        if self._transaction is not None:
            self._array.with_transaction(self._transaction)[selection] = values
        elif self._own_transactions:
            with tensorstore.Transaction() as transaction:
                self._array.with_transaction(transaction)[selection] = values
        else:
            self._array[selection].write(values).result()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        import tensorstore

        with tensorstore.Transaction() as self._transaction:
            yield
            self._transaction = None


@dataclass(frozen=True, slots=True)
class TensorStore(Contender):
    """tensorstore's ``zarr3`` driver; cached data is validated at each read, which is its default."""

    name: str = "tensorstore"
    own_transactions: bool = False
    """Each assignment in a transaction of its own."""
    conditional_writes: bool | None = None
    """``use_conditional_write`` of its S3 driver; ``None``: as it decides for the endpoint."""
    cache_nbytes: int = 0
    """Of its cache pool, which keeps shard indices and decoded chunks; 0, its default, keeps nothing."""
    validates: bool = True
    """Cached data at each read; else what is cached is believed."""

    def open(self, address: Address) -> OpenArray:
        import tensorstore

        spec = {"driver": "zarr3", "recheck_cached_data": self.validates, **self.below(address.place, address.name)}
        return _TensorStoreArray(tensorstore.open(spec).result(), self.own_transactions)

    def below(self, place: Place, path: str) -> dict[str, Any]:
        """The members ``kvstore`` and ``context`` of its specification of what lies at a path."""
        context: dict[str, Any] = {"cache_pool": {"total_bytes_limit": self.cache_nbytes}} if self.cache_nbytes else {}
        if place.http_url is not None:
            kvstore: dict[str, Any] = {"driver": "http", "base_url": f"{place.http_url}/{path}/"}
        elif place.endpoint is None:
            kvstore = {"driver": "file", "path": f"{place.path}/{path}/"}
            context["file_io_sync"] = False
        else:
            bucket, prefix = place.bucket_and_prefix
            kvstore = {
                "driver": "s3",
                "bucket": bucket,
                "path": f"{prefix}/{path}/",
                "endpoint": place.endpoint,
                "aws_region": S3_REGION,
                "aws_credentials": {"type": "environment"},
            }
            if self.conditional_writes is not None:
                kvstore["use_conditional_write"] = self.conditional_writes
        return {"kvstore": kvstore, "context": context}

    def unavailable(self, storage: StorageName) -> str | None:
        if importlib.util.find_spec("tensorstore") is None:
            return "tensorstore is not installed"
        return "the setting is for S3" if "s3" not in storage and self.conditional_writes is not None else None


# -- shardstore --------------------------------------------------------------------------------------------------------


_PROTOTYPE = default_buffer_prototype()


class _ShardStoreArray(_ZarrArray):
    def __init__(self, store: Any, array: zarr.Array[Any]) -> None:
        super().__init__(array)
        self._store = store

    def transaction(self) -> AbstractContextManager[None]:
        transaction: AbstractContextManager[None] = self._store.transaction()
        return transaction

    async def read_chunk(self, key: str, selection: Selection) -> Values:
        value = await self._store.get(key, _PROTOTYPE)
        return np.asarray(value.as_numpy_array())

    async def read_chunks(self, wanted: Sequence[tuple[str, Selection]]) -> list[Values]:
        values = await self._store.get_partial_values(_PROTOTYPE, [(key, None) for key, _ in wanted])
        return [np.asarray(value.as_numpy_array()) for value in values]

    def counts(self) -> Counts | None:
        return counted(self._store)


def counted(store: Any) -> Counts:
    """What a face of shardstore has asked of its storage so far."""
    counters = store.counters
    return Counts({"requests": counters.requests}, counters.bytes_read, counters.bytes_written)


@dataclass(frozen=True, slots=True)
class ShardStore(Contender):
    """shardstore under zarr-python."""

    name: str = "shardstore"
    strategy: str = "rewrite"
    fsync: bool = False
    """Flush to disk, as is the default without this."""
    transport: str = "fsspec"
    kernel: bool = True
    """Without it Python decodes. Has to be the first one that its process opens."""

    def open(self, address: Address) -> OpenArray:
        if not self.kernel:
            os.environ["SHARDSTORE_KERNEL"] = "0"
        store = self.store(address.place)
        return _ShardStoreArray(store, zarr.open_array(store, path=address.name, mode="r+"))

    def store(self, place: Place) -> Any:
        """Of a new engine where none is open for the place in this process."""
        import shardstore

        target, options = self._target(place)
        return shardstore.open(target, **options)

    def mapping(self, place: Place) -> Any:
        """The same as a mapping."""
        import shardstore

        target, options = self._target(place)
        return shardstore.get_mapper(target, **options)

    def _target(self, place: Place) -> tuple[Any, dict[str, Any]]:
        options: dict[str, Any] = {"strategy": self.strategy}
        if place.endpoint is not None:
            return f"s3://{place.path}", {**options, "storage_options": place.s3_options, "transport": self.transport}
        if not place.latency_seconds:
            return place.path, {**options, "fsync": self.fsync}
        from aging_store import AgingStore

        # What the defaults are on object stores; by itself the model passes for the disk that it delays.
        slow = AgingStore(Path(place.path), place.latency_seconds)
        return slow, {**options, "gap_bytes": REMOTE_GAP_NBYTES, "first_bytes": REMOTE_GAP_NBYTES}

    def unavailable(self, storage: StorageName) -> str | None:
        if self.transport != "fsspec":
            if "s3" not in storage:
                return "it is for object stores"
            if importlib.util.find_spec("obstore") is None:
                return "obstore is not installed"
        return "only local files are flushed" if self.fsync and storage != "local" else None


# -- icechunk ----------------------------------------------------------------------------------------------------------


IN_ICECHUNK = "-icechunk"
"""Ends the name of the repository with the copy of an array, which is at its root and has no shards: a chunk is an object."""


@dataclass(frozen=True, slots=True)
class Icechunk(Contender):
    """Arrays of zarr-python in a repository, as its main branch has them."""

    name: str = "icechunk"

    def open(self, address: Address) -> OpenArray:
        import icechunk

        icechunk.set_logs_filter("error")
        repository = icechunk.Repository.open(self.storage(address.place, address.name + IN_ICECHUNK))
        return _ZarrArray(zarr.open_array(repository.readonly_session("main").store, mode="r"))

    def storage(self, place: Place, name: str) -> Any:
        import icechunk

        if place.endpoint is None:
            return icechunk.local_filesystem_storage(f"{place.path}/{name}")
        bucket, prefix = place.bucket_and_prefix
        return icechunk.s3_storage(
            bucket=bucket,
            prefix=f"{prefix}/{name}",
            region=S3_REGION,
            endpoint_url=place.endpoint,
            allow_http=True,
            access_key_id="test",
            secret_access_key="test",
            force_path_style=True,
        )

    def unavailable(self, storage: StorageName) -> str | None:
        return None if importlib.util.find_spec("icechunk") else "icechunk is not installed"


REMOTE_GAP_NBYTES = 512 * 2**10
"""shardstore's default away from local disks: wanted ranges at most this far apart share a request."""

CONTENDERS: tuple[Contender, ...] = (
    ZarrPython(),
    ZarrPython("zarr-python, fused pipeline", pipeline=FUSED),
    ZarrPython("zarr-python, zarrs pipeline", pipeline=ZARRS),
    ZarrPython("zarr-python, obstore", obstore=True),
    TensorStore(),
    TensorStore("tensorstore, transactions", own_transactions=True),
    TensorStore("tensorstore, conditional writes set", conditional_writes=True),
    ShardStore(),
)
"""Of the experiments on safety."""


# -- arrays to compete on ----------------------------------------------------------------------------------------------


def create(target: Target, dtype: str, *, fill_value: int, compressed: bool) -> None:
    """Create the array of ``target`` as zarr-python does, without any chunk."""
    zarr.create_array(
        native_store(target.place),
        name=target.name,
        shape=(target.chunks * target.items,),
        chunks=(target.items,),
        shards=(target.chunks * target.items,),
        dtype=dtype,
        fill_value=fill_value,
        compressors="auto" if compressed else None,
    )


def plain_array(target: Target) -> zarr.Array[Any]:
    """The array of ``target`` as plain zarr-python opens it, to fill it beforehand and to judge it afterwards."""
    return zarr.open_array(native_store(target.place), path=target.name, mode="r+")
