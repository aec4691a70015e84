"""zarr-python's own conformance suites, run on ShardedStore as they are.

``StoreTests`` never writes array metadata, so a store that hands everything through would pass it. It therefore runs once more
with every key of the suite turned into a chunk key of one sharded array (``UnderShardedArray``).
"""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, Self

import hypothesis
import hypothesis.strategies as st
import pytest
import zarr.testing.strategies
from hypothesis.stateful import rule, run_state_machine_as_test
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype, cpu
from zarr.core.sync import sync
from zarr.testing.stateful import ZarrHierarchyStateMachine, ZarrStoreStateMachine
from zarr.testing.store import StoreTests

import shardstore
from shardstore.plan.policy import ArrayInfo
from shardstore.storage.memory import MemoryStorage
from tests.stored import FsspecObjects, LocalObjects, Objects, StorageObjects

EXAMPLES = int(os.environ.get("SHARDSTORE_EXAMPLES", "30"))

pytestmark = [pytest.mark.slow, pytest.mark.zarr, pytest.mark.timeout(300 + 5 * EXAMPLES)]  # the run's is for the usual number of examples


def two_a_side(array: ArrayInfo) -> tuple[int, ...] | None:
    """A policy under which every array of Zarr v3 is sharded, the smallest too."""
    return None if array.document.get("zarr_format") == 2 else (2,) * len(array.shape)


class Under:
    """One kind of storage: what a store over it is made of, and its objects without one."""

    store_kwargs: dict[str, Any]
    objects: Objects


class UnderMemory(Under):
    def __init__(self) -> None:
        path = f"/suite-{uuid.uuid4().hex}"
        self.store_kwargs = {"url": f"memory:/{path}"}
        self.objects = StorageObjects(MemoryStorage(path))


class UnderLocal(Under):
    def __init__(self, root: Path) -> None:
        self.store_kwargs = {"url": str(root)}
        self.objects = LocalObjects(root)


class UnderS3(Under):
    def __init__(self, url: str, storage_options: dict[str, Any]) -> None:
        url = f"{url.rstrip('/')}/suite-{uuid.uuid4().hex}"
        self.store_kwargs = {"url": url, "storage_options": storage_options}
        self.objects = FsspecObjects(url, storage_options)


class ShardedStoreSuite(StoreTests[shardstore.ShardedStore, cpu.Buffer]):
    """What the suite asks its user to write: how a store is made, and two ways past it."""

    __test__ = False
    store_cls = shardstore.ShardedStore
    buffer_cls = cpu.Buffer
    under: Under

    @pytest.fixture
    def under_storage(self) -> Under:
        raise NotImplementedError

    @pytest.fixture
    def store_kwargs(self, under_storage: Under) -> dict[str, Any]:
        self.under = under_storage
        return dict(under_storage.store_kwargs)

    async def set(self, store: shardstore.ShardedStore, key: str, value: Buffer) -> None:
        await asyncio.to_thread(self.under.objects.put, key, value.to_bytes())

    async def get(self, store: shardstore.ShardedStore, key: str) -> Buffer:
        data = await asyncio.to_thread(self.under.objects.get, key)
        assert data is not None
        return self.buffer_cls.from_bytes(data)

    def test_store_repr(self, store: shardstore.ShardedStore) -> None:
        assert type(store).__name__ in repr(store)
        assert self.under.store_kwargs["url"].split("/")[-1] in repr(store)

    def test_store_supports_writes(self, store: shardstore.ShardedStore) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: shardstore.ShardedStore) -> None:
        assert store.supports_listing


class TestMemory(ShardedStoreSuite):
    __test__ = True

    @pytest.fixture
    def under_storage(self) -> Under:
        return UnderMemory()


class TestLocal(ShardedStoreSuite):
    __test__ = True

    @pytest.fixture
    def under_storage(self, tmp_path: Path) -> Under:
        return UnderLocal(tmp_path)


class TestS3(ShardedStoreSuite):
    __test__ = True

    @pytest.fixture
    def under_storage(self, s3_url: tuple[str, dict[str, Any]]) -> Under:
        return UnderS3(*s3_url)


# -- the same suite, every key a chunk key of one sharded array --------------------------------------------------------

RANK = 4  # as deep as the suite's keys go
GRID = 4096
SHARDED_ROOT = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [GRID] * RANK,
    "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4] * RANK}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 0,
    "codecs": [
        {
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": [1] * RANK,
                "codecs": [{"name": "bytes"}, {"name": "gzip", "configuration": {"level": 1}}],
                "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
            },
        }
    ],
    "attributes": {},
}

# Each name that occurs in the suite's keys gets a number, in the order in which they occur; 0 is left for dimensions that a
# key does not use. 1, 10, 11, ... come first, because there one name is a prefix of the other: the trap of `ct` and `ct2`.
_NUMBERS = [1, *range(10, 20), *range(2, 10), *range(20, GRID)]
_names: list[str] = []


def _number(name: str) -> str:
    if name not in _names:
        _names.append(name)
    return str(_NUMBERS[_names.index(name)])


def _name(number: str) -> str:
    return _names[_NUMBERS.index(int(number))]


def chunk_key(key: str) -> str:
    """``foo/bar`` becomes ``c/1/10/0/0``: one dimension a level."""
    numbers = [_number(name) for name in key.split("/")]
    assert len(numbers) <= RANK
    return "/".join(["c", *numbers, *["0"] * (RANK - len(numbers))])


def chunk_prefix(prefix: str) -> str:
    numbers = [_number(name) for name in prefix.strip("/").split("/") if name]
    return "/".join(["c", *numbers]) + ("/" if prefix.endswith("/") or not numbers else "")


def suite_key(key: str) -> str:
    return "/".join(_name(number) for number in key.split("/")[1:] if number != "0")


class UnderShardedArray(Store):
    """A store whose keys are chunks of a sharded array in a ShardedStore.

    By composition: a subclass would translate keys twice where one of ShardedStore's methods calls another.
    """

    def __init__(self, sharded: shardstore.ShardedStore | None = None, *, read_only: bool = False, **kwargs: Any) -> None:
        super().__init__(read_only=read_only)
        self.sharded = sharded if sharded is not None else shardstore.ShardedStore(read_only=read_only, **kwargs)

    @classmethod
    async def open(cls, *args: Any, **kwargs: Any) -> Self:
        store = cls(*args, **kwargs)
        await store._open()
        return store

    async def _open(self) -> None:
        await super()._open()
        await self.sharded._ensure_open()

    def close(self) -> None:
        super().close()
        self.sharded.close()

    def with_read_only(self, read_only: bool = False) -> UnderShardedArray:
        sharded = self.sharded.with_read_only(read_only)
        assert isinstance(sharded, shardstore.ShardedStore)
        return UnderShardedArray(sharded, read_only=read_only)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnderShardedArray) and self.sharded == other.sharded

    def __hash__(self) -> int:
        return hash(self.sharded)

    def __repr__(self) -> str:
        return f"UnderShardedArray({self.sharded!r})"

    @property
    def supports_writes(self) -> bool:
        return self.sharded.supports_writes

    @property
    def supports_deletes(self) -> bool:
        return self.sharded.supports_deletes

    @property
    def supports_listing(self) -> bool:
        return self.sharded.supports_listing

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        return await self.sharded.get(chunk_key(key), prototype, byte_range)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        return await self.sharded.get_partial_values(prototype, ((chunk_key(key), byte_range) for key, byte_range in key_ranges))

    async def exists(self, key: str) -> bool:
        return await self.sharded.exists(chunk_key(key))

    async def set(self, key: str, value: Buffer) -> None:
        await self.sharded.set(chunk_key(key), value)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        await self.sharded.set_if_not_exists(chunk_key(key), value)

    async def _set_many(self, values: Iterable[tuple[str, Buffer]]) -> None:
        await self.sharded._set_many((chunk_key(key), value) for key, value in values)

    async def delete(self, key: str) -> None:
        await self.sharded.delete(chunk_key(key))

    async def delete_dir(self, prefix: str) -> None:
        await self.sharded.delete_dir(chunk_prefix(prefix))

    async def is_empty(self, prefix: str) -> bool:
        return await self.sharded.is_empty(chunk_prefix(prefix))

    async def clear(self) -> None:
        # Clearing the sharded store would take the array away with its chunks.
        await self.sharded.delete_dir("c")

    async def getsize(self, key: str) -> int:
        return await self.sharded.getsize(chunk_key(key))

    async def getsize_prefix(self, prefix: str) -> int:
        return await self.sharded.getsize_prefix(chunk_prefix(prefix))

    async def list(self) -> AsyncIterator[str]:
        async for key in self.sharded.list():
            if key != "zarr.json":
                yield suite_key(key)

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        async for key in self.sharded.list_prefix(chunk_prefix(prefix)):
            yield suite_key(key)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        async for number in self.sharded.list_dir(chunk_prefix(prefix)):
            yield _name(number)


class ShardedArraySuite(StoreTests[UnderShardedArray, cpu.Buffer]):
    """No test of the suite is left out. ``set`` and ``get`` go through a second ShardedStore of its own, since no other
    writer and reader of single chunks of a shard is at hand."""

    __test__ = False
    store_cls = UnderShardedArray
    buffer_cls = cpu.Buffer
    beside: shardstore.ShardedStore

    @pytest.fixture
    def under_storage(self) -> Under:
        raise NotImplementedError

    @pytest.fixture
    def store_kwargs(self, under_storage: Under) -> dict[str, Any]:
        under_storage.objects.put("zarr.json", json.dumps(SHARDED_ROOT).encode())
        self.beside = shardstore.ShardedStore(**under_storage.store_kwargs)
        return dict(under_storage.store_kwargs)

    async def set(self, store: UnderShardedArray, key: str, value: Buffer) -> None:
        await self.beside.set(chunk_key(key), value)

    async def get(self, store: UnderShardedArray, key: str) -> Buffer:
        value = await self.beside.get(chunk_key(key), cpu.buffer_prototype)
        assert value is not None
        return value

    def test_store_repr(self, store: UnderShardedArray) -> None:
        assert "ShardedStore" in repr(store)

    def test_store_supports_writes(self, store: UnderShardedArray) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: UnderShardedArray) -> None:
        assert store.supports_listing


class TestShardedArrayInMemory(ShardedArraySuite):
    __test__ = True

    @pytest.fixture
    def under_storage(self) -> Under:
        return UnderMemory()


class TestShardedArrayOnLocalDisk(ShardedArraySuite):
    __test__ = True

    @pytest.fixture
    def under_storage(self, tmp_path: Path) -> Under:
        return UnderLocal(tmp_path)


class TestShardedArrayOnS3(ShardedArraySuite):
    __test__ = True

    @pytest.fixture
    def under_storage(self, s3_url: tuple[str, dict[str, Any]]) -> Under:
        return UnderS3(*s3_url)


def test_the_suite_does_reach_shards() -> None:
    """What keeps the suites above honest: their chunks do end up several to an object."""
    under = UnderMemory()
    under.objects.put("zarr.json", json.dumps(SHARDED_ROOT).encode())
    store = UnderShardedArray(**under.store_kwargs)
    keys = ["k/1", "k/2", "k/3"]
    sync(store._set_many([(key, cpu.Buffer.from_bytes(key.encode())) for key in keys]))
    assert len(under.objects.keys()) < 1 + len(keys)


# -- zarr's state machines ---------------------------------------------------------------------------------------------


@pytest.fixture
def machine_settings(request: pytest.FixtureRequest) -> hypothesis.settings:
    return hypothesis.settings(
        max_examples=EXAMPLES,
        stateful_step_count=20,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )


@pytest.fixture
def without_client_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer machines draw arrays with ``shards=``, and compare the keys with those of another store, which are of shards there."""

    def no_shards(**_: Any) -> st.SearchStrategy[None]:
        return st.none()

    monkeypatch.setattr(zarr.testing.strategies, "shard_shapes", no_shards)


def machine_store(under: Under) -> shardstore.ShardedStore:
    return sync(shardstore.ShardedStore.open(chunks_per_shard=two_a_side, **under.store_kwargs))


# zarr warns of types and of names that the specification does not know, and its machines draw such.
quiet = pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning", "ignore::zarr.errors.UnstableSpecificationWarning")


def run_hierarchy_machine(under: Under, settings: hypothesis.settings) -> None:
    store = machine_store(under)

    class Machine(ZarrHierarchyStateMachine):
        def __init__(self) -> None:
            super().__init__(store)

    run_state_machine_as_test(Machine, settings=settings)


@quiet
@pytest.mark.usefixtures("without_client_shards")
def test_hierarchy_machine_in_memory(machine_settings: hypothesis.settings) -> None:
    run_hierarchy_machine(UnderMemory(), machine_settings)


@quiet
@pytest.mark.usefixtures("without_client_shards")
def test_hierarchy_machine_on_local_disk(tmp_path: Path, machine_settings: hypothesis.settings) -> None:
    run_hierarchy_machine(UnderLocal(tmp_path), machine_settings)


@quiet
@pytest.mark.usefixtures("without_client_shards")
def test_hierarchy_machine_on_s3(s3_url: tuple[str, dict[str, Any]], machine_settings: hypothesis.settings) -> None:
    few = hypothesis.settings(machine_settings, max_examples=max(1, EXAMPLES // 10), stateful_step_count=10)
    run_hierarchy_machine(UnderS3(*s3_url), few)


def run_store_machine(machine: type[ZarrStoreStateMachine], under: Under, settings: hypothesis.settings) -> None:
    store = machine_store(under)

    class Machine(machine):  # type: ignore[misc, valid-type]  # a class that is a parameter
        def __init__(self) -> None:
            super().__init__(store)

    run_state_machine_as_test(Machine, settings=settings)


class ZarrStoreOnDiskMachine(ZarrStoreStateMachine):
    """The keys that a file system can hold: no name is both a file and a folder, none is longer than 255 bytes.

    zarr runs this machine on no file system at all for that reason.
    """

    def can_hold(self, key: str) -> bool:
        clash = any(other.startswith(f"{key}/") or key.startswith(f"{other}/") for other in self.model)
        return not clash and all(len(name) < 200 for name in key.split("/"))

    @rule(key=zarr.testing.strategies.keys(), data=st.binary(max_size=100))
    def set(self, key: str, data: bytes) -> None:
        hypothesis.assume(self.can_hold(key))
        super().set(key, data)


def test_store_machine_in_memory(machine_settings: hypothesis.settings) -> None:
    run_store_machine(ZarrStoreStateMachine, UnderMemory(), machine_settings)


def test_store_machine_on_local_disk(tmp_path: Path, machine_settings: hypothesis.settings) -> None:
    run_store_machine(ZarrStoreOnDiskMachine, UnderLocal(tmp_path), machine_settings)


def test_store_machine_on_s3(s3_url: tuple[str, dict[str, Any]], machine_settings: hypothesis.settings) -> None:
    few = hypothesis.settings(machine_settings, max_examples=max(1, EXAMPLES // 10), stateful_step_count=10)
    run_store_machine(ZarrStoreStateMachine, UnderS3(*s3_url), few)
