"""The libraries that are compared, each as something that opens one sharded array and reads and writes its chunks.

All of them work on the same kind of array: one dimension, one shard, created beforehand by zarr-python. A contender is
opened in processes of its own, so what one of them sets for its process does not reach the others. Nobody flushes to disk:
zarr-python never does, the others are told not to.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore

Values = npt.NDArray[Any]
StorageName = Literal["local", "s3"]

S3_REGION = "us-east-1"
S3_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
}
"""For the processes of the contenders: nobody's own account or proxy has anything to do with a server on this machine."""
_ZARRS = "zarrs.ZarrsCodecPipeline"
_FUSED = "zarr.core.codec_pipeline.FusedCodecPipeline"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a hierarchy lies: a directory, or a bucket and prefix at an S3 endpoint."""

    path: str
    endpoint: str | None = None

    @property
    def bucket_and_prefix(self) -> tuple[str, str]:
        bucket, _, prefix = self.path.partition("/")
        return bucket, prefix

    @property
    def s3_options(self) -> dict[str, Any]:
        """For s3fs. The server takes any key."""
        return {"key": "test", "secret": "test", "endpoint_url": self.endpoint, "client_kwargs": {"region_name": S3_REGION}}


@dataclass(frozen=True, slots=True)
class Target:
    """One array of one shard: ``chunks`` chunks of ``items`` numbers each."""

    place: Place
    name: str
    chunks: int
    items: int

    def chunk(self, number: int, count: int = 1) -> slice:
        """Chunk ``number`` and those after it, ``count`` in all, as items of the array."""
        return slice(number * self.items, (number + count) * self.items)


class OpenArray(ABC):
    """A target, opened by a contender. Writes have been acknowledged when they return."""

    def __init__(self, target: Target) -> None:
        self.target = target

    @abstractmethod
    def read(self, selection: slice) -> Values: ...

    @abstractmethod
    def write(self, selection: slice, values: Values) -> None:
        """One assignment."""

    def transaction(self) -> AbstractContextManager[None]:
        """Assignments inside are one transaction. Raises ``NotImplementedError`` where the library has none."""
        raise NotImplementedError

    def write_together(self, writes: list[tuple[slice, Values]]) -> int:
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
    def open(self, target: Target) -> OpenArray: ...

    def unavailable(self, storage: StorageName) -> str | None:
        """Why it cannot take part on this storage here; ``None`` where it can."""
        return None


# -- zarr-python -------------------------------------------------------------------------------------------------------


class _ZarrArray(OpenArray):
    def __init__(self, target: Target, array: zarr.Array[Any]) -> None:
        super().__init__(target)
        self._array = array

    def read(self, selection: slice) -> Values:
        return np.asarray(self._array[selection])

    def write(self, selection: slice, values: Values) -> None:
        self._array[selection] = values


def native_store(place: Place, *, obstore: bool = False) -> Store:
    """zarr-python's own store for a place."""
    if place.endpoint is None:
        return LocalStore(place.path)
    if not obstore:
        return FsspecStore.from_url(f"s3://{place.path}", storage_options=place.s3_options)
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
    """zarr-python's ``shards=``, with one of the codec pipelines that do sharding for it."""

    name: str = "zarr-python"
    pipeline: str | None = None
    obstore: bool = False

    def open(self, target: Target) -> OpenArray:
        if self.pipeline is not None:
            zarr.config.set({"codec_pipeline.path": self.pipeline})
            if self.pipeline == _ZARRS:
                import zarrs  # noqa: F401 - registers the pipeline
        store = native_store(target.place, obstore=self.obstore)
        return _ZarrArray(target, zarr.open_array(store, path=target.name, mode="r+"))

    def unavailable(self, storage: StorageName) -> str | None:
        if self.pipeline == _ZARRS:
            if importlib.util.find_spec("zarrs") is None:
                return "zarrs is not installed"
            return "the pipeline opens local files and HTTP only" if storage == "s3" else None
        if self.pipeline == _FUSED and not _has(_FUSED):
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
    def __init__(self, target: Target, array: Any, own_transactions: bool) -> None:
        super().__init__(target)
        self._array = array
        self._own_transactions = own_transactions
        self._transaction: Any = None

    def read(self, selection: slice) -> Values:
        return np.asarray(self._array[selection].read().result())

    def write(self, selection: slice, values: Values) -> None:
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

    def open(self, target: Target) -> OpenArray:
        import tensorstore

        place = target.place
        spec: dict[str, Any] = {"driver": "zarr3", "recheck_cached_data": True}
        if place.endpoint is None:
            spec["kvstore"] = {"driver": "file", "path": f"{place.path}/{target.name}/"}
            spec["context"] = {"file_io_sync": False}
        else:
            bucket, prefix = place.bucket_and_prefix
            spec["kvstore"] = {
                "driver": "s3",
                "bucket": bucket,
                "path": f"{prefix}/{target.name}/",
                "endpoint": place.endpoint,
                "aws_region": S3_REGION,
                "aws_credentials": {"type": "environment"},
            }
            if self.conditional_writes is not None:
                spec["kvstore"]["use_conditional_write"] = self.conditional_writes
        return _TensorStoreArray(target, tensorstore.open(spec).result(), self.own_transactions)

    def unavailable(self, storage: StorageName) -> str | None:
        if importlib.util.find_spec("tensorstore") is None:
            return "tensorstore is not installed"
        return "the setting is for S3" if storage == "local" and self.conditional_writes is not None else None


# -- shardstore --------------------------------------------------------------------------------------------------------


class _ShardStoreArray(_ZarrArray):
    def __init__(self, target: Target, store: Any, array: zarr.Array[Any]) -> None:
        super().__init__(target, array)
        self._store = store

    def transaction(self) -> AbstractContextManager[None]:
        transaction: AbstractContextManager[None] = self._store.transaction()
        return transaction


@dataclass(frozen=True, slots=True)
class ShardStore(Contender):
    """shardstore under zarr-python."""

    name: str = "shardstore"

    def open(self, target: Target) -> OpenArray:
        import shardstore

        place = target.place
        if place.endpoint is None:
            store = shardstore.open(place.path, fsync=False)
        else:
            store = shardstore.open(f"s3://{place.path}", storage_options=place.s3_options)
        return _ShardStoreArray(target, store, zarr.open_array(store, path=target.name, mode="r+"))


CONTENDERS: tuple[Contender, ...] = (
    ZarrPython(),
    ZarrPython("zarr-python, fused pipeline", pipeline=_FUSED),
    ZarrPython("zarr-python, zarrs pipeline", pipeline=_ZARRS),
    ZarrPython("zarr-python, obstore", obstore=True),
    TensorStore(),
    TensorStore("tensorstore, transactions", own_transactions=True),
    TensorStore("tensorstore, conditional writes set", conditional_writes=True),
    ShardStore(),
)


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
