"""zarr-python's own conformance suites, run on ShardedStore as they are.

``StoreTests`` never writes array metadata, so a store that hands everything through would pass it. It therefore runs once more
with every key of the suite turned into a chunk key of one sharded array (``UnderShardedArray``).
"""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import zarr.testing.strategies
from hypothesis.stateful import rule, run_state_machine_as_test
from zarr.core.buffer import Buffer, cpu
from zarr.core.sync import sync
from zarr.testing.stateful import ZarrHierarchyStateMachine, ZarrStoreStateMachine
from zarr.testing.store import StoreTests

import shardstore
from shardstore.plan.policy import ArrayInfo
from shardstore.storage.memory import MemoryStorage
from tests.harness.scale import EXAMPLES
from tests.stored import FsspecObjects, LocalObjects, Objects, StorageObjects
from tests.under_array import SHARDED_ROOT, UnderShardedArray, chunk_key

pytestmark = [pytest.mark.timeout(300 + 5 * EXAMPLES)]  # the run's is for the usual number of examples


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
        max_examples=EXAMPLES // 10,
        stateful_step_count=20,
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
    few = hypothesis.settings(machine_settings, max_examples=EXAMPLES // 20, stateful_step_count=10)
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
    few = hypothesis.settings(machine_settings, max_examples=EXAMPLES // 20, stateful_step_count=10)
    run_store_machine(ZarrStoreStateMachine, UnderS3(*s3_url), few)
