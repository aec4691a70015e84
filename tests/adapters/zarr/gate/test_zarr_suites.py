"""zarr-python's own conformance suites, run on ShardedStore as they are.

``StoreTests`` never writes array metadata, so a store that hands everything through would pass it. It therefore runs once more
with every key of the suite turned into a chunk key of one sharded array (``UnderShardedArray``).
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import zarr.testing.strategies
from hypothesis.stateful import rule, run_state_machine_as_test
from zarr.abc.store import Store
from zarr.core.buffer import Buffer, cpu
from zarr.core.sync import sync
from zarr.testing.stateful import ZarrHierarchyStateMachine, ZarrStoreStateMachine
from zarr.testing.store import StoreTests

import shardstore
from shardstore.plan.policy import ArrayInfo
from tests.adapters.places import Place, make_place, memory_place
from tests.harness.scale import EXAMPLES
from tests.under_array import SHARDED_ROOT, UnderShardedArray, chunk_key

pytestmark = [pytest.mark.timeout(300 + 5 * EXAMPLES)]  # the run's is for the usual number of examples


def two_a_side(array: ArrayInfo) -> tuple[int, ...] | None:
    """A policy under which every array of Zarr v3 is sharded, the smallest too."""
    return None if array.document.get("zarr_format") == 2 else (2,) * len(array.shape)


def kwargs_of(place: Place) -> dict[str, Any]:
    return {"url": place.url, "storage_options": place.storage_options}


class SupportsAll:
    """Tests of the suite that a store which supports all replaces, on each kind of place."""

    @pytest.fixture(params=["memory", "local", "s3"])
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    def test_store_supports_writes(self, store: Store) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: Store) -> None:
        assert store.supports_listing


class ShardedStoreSuite(SupportsAll, StoreTests[shardstore.ShardedStore, cpu.Buffer]):
    """What the suite asks its user to write: how a store is made, and two ways past it."""

    __test__ = False
    store_cls = shardstore.ShardedStore
    buffer_cls = cpu.Buffer
    place: Place

    @pytest.fixture
    def store_kwargs(self, kind: str, request: pytest.FixtureRequest) -> dict[str, Any]:
        self.place = make_place(kind, request)
        return kwargs_of(self.place)

    async def set(self, store: shardstore.ShardedStore, key: str, value: Buffer) -> None:
        await asyncio.to_thread(self.place.objects.put, key, value.to_bytes())

    async def get(self, store: shardstore.ShardedStore, key: str) -> Buffer:
        data = await asyncio.to_thread(self.place.objects.get, key)
        assert data is not None
        return self.buffer_cls.from_bytes(data)

    def test_store_repr(self, store: shardstore.ShardedStore) -> None:
        assert type(store).__name__ in repr(store)
        assert self.place.url.split("/")[-1] in repr(store)


class TestShardedStore(ShardedStoreSuite):
    __test__ = True


# -- the same suite, every key a chunk key of one sharded array --------------------------------------------------------


class ShardedArraySuite(SupportsAll, StoreTests[UnderShardedArray, cpu.Buffer]):
    """No test of the suite is left out. ``set`` and ``get`` go through a second ShardedStore of its own, since no other
    writer and reader of single chunks of a shard is at hand."""

    __test__ = False
    store_cls = UnderShardedArray
    buffer_cls = cpu.Buffer
    beside: shardstore.ShardedStore

    @pytest.fixture
    def store_kwargs(self, kind: str, request: pytest.FixtureRequest) -> dict[str, Any]:
        place = make_place(kind, request)
        place.objects.put("zarr.json", json.dumps(SHARDED_ROOT).encode())
        self.beside = shardstore.ShardedStore(**kwargs_of(place))
        return kwargs_of(place)

    async def set(self, store: UnderShardedArray, key: str, value: Buffer) -> None:
        await self.beside.set(chunk_key(key), value)

    async def get(self, store: UnderShardedArray, key: str) -> Buffer:
        value = await self.beside.get(chunk_key(key), cpu.buffer_prototype)
        assert value is not None
        return value

    def test_store_repr(self, store: UnderShardedArray) -> None:
        assert "ShardedStore" in repr(store)


class TestShardedArray(ShardedArraySuite):
    __test__ = True


def test_the_suite_does_reach_shards() -> None:
    """What keeps the suites above honest: their chunks do end up several to an object."""
    place = memory_place()
    place.objects.put("zarr.json", json.dumps(SHARDED_ROOT).encode())
    store = UnderShardedArray(**kwargs_of(place))
    keys = ["k/1", "k/2", "k/3"]
    sync(store._set_many([(key, cpu.Buffer.from_bytes(key.encode())) for key in keys]))
    assert len(place.objects.keys()) < 1 + len(keys)


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


def run_machine(machine: type[Any], kind: str, request: pytest.FixtureRequest, settings: hypothesis.settings) -> None:
    store = sync(shardstore.ShardedStore.open(chunks_per_shard=two_a_side, **kwargs_of(make_place(kind, request))))

    class Machine(machine):  # type: ignore[misc]  # a class that is a parameter
        def __init__(self) -> None:
            super().__init__(store)

    if kind == "s3":
        settings = hypothesis.settings(settings, max_examples=EXAMPLES // 20, stateful_step_count=10)
    run_state_machine_as_test(Machine, settings=settings)


# zarr warns of types and of names that the specification does not know, and its machines draw such.
quiet = pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning", "ignore::zarr.errors.UnstableSpecificationWarning")


@quiet
@pytest.mark.usefixtures("without_client_shards")
@pytest.mark.parametrize("kind", ["memory", "local", "s3"])
def test_hierarchy_machine(kind: str, request: pytest.FixtureRequest, machine_settings: hypothesis.settings) -> None:
    run_machine(ZarrHierarchyStateMachine, kind, request, machine_settings)


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


@pytest.mark.parametrize("kind", ["memory", "local", "s3"])
def test_store_machine(kind: str, request: pytest.FixtureRequest, machine_settings: hypothesis.settings) -> None:
    run_machine(ZarrStoreOnDiskMachine if kind == "local" else ZarrStoreStateMachine, kind, request, machine_settings)
