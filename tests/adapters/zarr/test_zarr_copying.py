"""What it costs to write an array, by the ways that programs write one: one commit a shard. And what ``data=`` is copied from, and how."""

from __future__ import annotations

import asyncio
import importlib
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
import zarr.api.asynchronous
from zarr.storage import LocalStore, MemoryStore

import shardstore
from shardstore.adapters.zarr import arrays
from shardstore.adapters.zarr.chunk_pipeline import PipelineLimits
from shardstore.errors import InvalidInput, ShardStoreError
from shardstore.model.generation import Condition, Generation
from shardstore.snapshots import Repository
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.trace import TraceStorage
from tests.engine.hooked import fresh_memory as memory
from tests.stored import LocalObjects, StorageObjects, document

dask_array: Any = importlib.import_module("dask.array")  # half of it has no types

CHUNKS, PER_SHARD, SHARD = (16, 16), (4, 4), (64, 64)
VALUES: Any = np.random.default_rng(0).integers(1, 60000, (192, 160), dtype="u2")  # which does not compress
SHARDS = sorted(f"a/c/{i}/{j}" for i in range(3) for j in range(3))


def opened(storage: Any, **options: Any) -> shardstore.ShardedStore:
    return shardstore.open(storage, **{"chunks_per_shard": {"a*": PER_SHARD, "*": None}, **options})


def shards_of(storage: Any) -> list[str]:
    return [key for key in StorageObjects(storage).keys() if "/c/" in key]  # noqa: SIM118 - no mapping


def in_memory() -> Any:
    return zarr.create_array({}, data=VALUES, chunks=CHUNKS)


def dataset() -> xr.Dataset:
    data = xr.Dataset({"a": (("y", "x"), VALUES)})
    data["a"].encoding["chunks"] = CHUNKS
    return data


def create_and_assign(store: Any) -> None:
    zarr.create_array(store, name="a", shape=VALUES.shape, chunks=CHUNKS, dtype="u2")[...] = VALUES


def store_aligned(store: Any) -> None:
    array = zarr.create_array(store, name="a", shape=VALUES.shape, chunks=CHUNKS, dtype="u2")
    dask_array.store(shardstore.align(dask_array.from_array(VALUES, chunks=CHUNKS), array), array, lock=False)


def write_asynchronously(store: Any) -> None:
    async def write() -> None:
        await zarr.api.asynchronous.create_array(store, name="a", data=VALUES, chunks=CHUNKS)

    asyncio.run(write())


WAYS: dict[str, Callable[[Any], object]] = {
    "create and assign": create_and_assign,
    "create_array(data)": lambda store: zarr.create_array(store, name="a", data=VALUES, chunks=CHUNKS),
    "create_array(data, shards)": lambda store: zarr.create_array(store, name="a", data=VALUES, chunks=CHUNKS, shards=SHARD),
    "create_array(data), asynchronously": write_asynchronously,
    "create_array(data of dask)": lambda store: zarr.create_array(
        store, name="a", data=dask_array.from_array(VALUES, chunks=CHUNKS), chunks=CHUNKS
    ),
    "from_array(array of zarr)": lambda store: zarr.from_array(store, name="a", data=in_memory()),
    "from_array(list)": lambda store: zarr.from_array(store, name="a", data=VALUES.tolist(), chunks=CHUNKS),
    "group.create_array(data)": lambda store: zarr.open_group(store, mode="a").create_array("a", data=VALUES, chunks=CHUNKS),
    "group.create_array and assign, as ome-zarr": lambda store: (
        zarr.open_group(store, mode="a").create_array("a", shape=VALUES.shape, chunks=CHUNKS, dtype="u2").__setitem__(..., VALUES)
    ),
    "array": lambda store: zarr.array(VALUES, store=store, path="a", chunks=CHUNKS),
    "create, append": lambda store: zarr.create_array(store, name="a", shape=(0, 160), chunks=CHUNKS, dtype="u2").append(VALUES),
    "xarray": lambda store: dataset().to_zarr(store),
    "xarray with dask, aligned": lambda store: shardstore.align(dataset().chunk(y=16, x=16), store).to_zarr(store),
    "dask, aligned": store_aligned,
    "dask.to_zarr(array)": lambda store: dask_array.from_array(VALUES, chunks=CHUNKS).to_zarr(
        zarr.create_array(store, name="a", shape=VALUES.shape, chunks=CHUNKS, dtype="u2")
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_shard_is_committed_once(way: str) -> None:
    trace = TraceStorage(memory())
    store = opened(trace)
    with trace.count() as block:
        WAYS[way](store)
    of_shards = [event for event in block.events if "/c/" in event.key]
    written = [event for event in of_shards if event.op in ("write", "compose")]
    assert sorted(event.key for event in written) == SHARDS
    array = zarr.open_array(opened(trace), path="a", mode="r")
    assert sum(event.nbytes for event in written) <= 1.1 * array.nbytes
    assert len(of_shards) <= len(written) + 4  # no shard is there yet: only those that reach past the array are looked for
    assert sum(event.nbytes for event in of_shards if event.op == "read") == 0
    assert store.counters.commits == 9
    np.testing.assert_array_equal(np.asarray(array), VALUES)


SAVED: dict[str, Callable[[Any], object]] = {
    "save_array": lambda store: zarr.save_array(store, VALUES, path="a"),
    "save_group": lambda store: zarr.save_group(store, a=VALUES),
    "save": lambda store: zarr.save(store, a=VALUES),
    "group[name] =": lambda store: zarr.open_group(store, mode="a").__setitem__("a", VALUES),
}


@pytest.mark.parametrize("way", SAVED)
def test_a_saved_array_is_committed_once_a_shard(way: str) -> None:
    """zarr chooses the chunks: here it makes a single one."""
    store = shardstore.open(memory(), chunks_per_shard={"a": (2, 2)})
    SAVED[way](store)
    assert store.counters.commits == 1
    assert store.counters.bytes_written <= 1.1 * VALUES.nbytes
    np.testing.assert_array_equal(np.asarray(zarr.open_array(store, path="a")), VALUES)


def test_what_data_costs_on_s3(s3_url: tuple[str, dict[str, Any]]) -> None:
    """The example of the README."""
    url, options = s3_url
    image = np.arange(128 * 128, dtype="u4").reshape(128, 128)
    store = shardstore.open(url, storage_options=options)
    other = shardstore.open(url + "-assigned", storage_options=options)
    zarr.create_array(store, name="image", data=image, chunks=(32, 32))
    zarr.create_array(other, name="image", shape=image.shape, chunks=(32, 32), dtype="u4")[...] = image
    for counters in (store.counters, other.counters):
        assert counters.commits == 1
        assert counters.bytes_written < image.nbytes
        assert counters.bytes_read < 2**14
    assert store.counters.requests <= other.counters.requests + 2  # the first one asks the server what it honours
    assert store.counters.requests <= 12
    assert np.array_equal(np.asarray(zarr.open_array(url, path="image", mode="r", storage_options=options)), image)


@pytest.mark.parametrize(
    ("shape", "chunks", "policy"),
    [
        ((), (), None),
        ((0,), (3,), (2,)),
        ((7,), (3,), (2,)),
        ((5, 0, 3), (2, 2, 2), (2, 2, 2)),
        ((13, 17), (3, 4), (2, 3)),
        ((4, 9, 31), (1, 2, 3), (3, 2, 2)),
        ((9, 9), (2, 2), (100, 100)),
        ((13, 17), (3, 4), None),
    ],
)
@pytest.mark.parametrize("most_bytes", [1, 100, 2**24])
def test_a_copy_is_what_an_assignment_stores(
    shape: tuple[int, ...], chunks: tuple[int, ...], policy: Any, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, large_wave_bytes=most_bytes)
    values = np.arange(1, 1 + int(np.prod(shape)), dtype="i4").reshape(shape)
    copied, assigned = memory(), memory()
    array = zarr.create_array(opened(copied, chunks_per_shard=policy), name="g/a", data=values, chunks=chunks or "auto")
    other = zarr.create_array(
        opened(assigned, chunks_per_shard=policy), name="g/a", shape=shape, chunks=chunks or "auto", dtype=values.dtype
    )
    other[...] = values
    np.testing.assert_array_equal(np.asarray(array), values)
    objects = [{key: objects.get(key) for key in objects.keys()} for objects in map(StorageObjects, (copied, assigned))]  # noqa: SIM118
    assert objects[0] == objects[1]


def limit(monkeypatch: pytest.MonkeyPatch, **limits: int) -> None:
    monkeypatch.setattr(arrays, "PipelineLimits", lambda: replace(PipelineLimits(), **limits))


class Source:
    """Data that is computed when it is asked for, in no memory: what a file of another format is."""

    shape, dtype, ndim = (192, 16), np.dtype("u2"), 2

    def __init__(self, asked: Callable[[int], None]) -> None:
        self._asked = asked
        self._count = 0

    def __getitem__(self, region: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        self._asked(self._count)
        self._count += 1
        return np.ascontiguousarray(VALUES[region])


def source_of(asked: Callable[[int], None]) -> Any:
    """A source that reports how often it was asked before, each time it is asked; to zarr's types it is no array."""
    return Source(asked)


class HoldsCounted(MemoryStorage):
    """Notes, when the write of a shard begins, how many regions were read from the source and are not stored yet."""

    def __init__(self, root: str, asked: list[int]) -> None:
        super().__init__(root)
        self._asked, self._stored = asked, 0
        self.held: list[int] = []

    async def write(self, key: str, data: Any, nbytes: int, condition: Condition) -> Generation:
        if "/c/" not in key:
            return await super().write(key, data, nbytes, condition)
        self.held.append(len(self._asked) - self._stored)
        written = await super().write(key, data, nbytes, condition)
        self._stored += 1
        return written


def test_a_large_source_is_stored_shard_by_shard_and_few_shards_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, large_wave_bytes=1, write_bytes=1)
    asked: list[int] = []
    storage = HoldsCounted(f"/copying-{uuid.uuid4().hex}", asked)
    store = opened(storage, chunks_per_shard=(1, 1))
    array = zarr.create_array(store, name="a", data=source_of(asked.append), chunks=CHUNKS)
    assert len(asked) == len(storage.held) == 12
    assert max(storage.held) <= 2
    assert store.counters.commits == 12
    np.testing.assert_array_equal(np.asarray(array), VALUES[:, :16])


def test_small_shards_are_read_from_the_source_together() -> None:
    regions: list[int] = []
    zarr.create_array(opened(memory(), chunks_per_shard=(1, 1)), name="a", data=source_of(regions.append), chunks=CHUNKS)
    assert regions == [0]


def test_what_another_client_writes_meanwhile_is_durable_when_its_call_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """No write of another array is held back, or waits, because an array is being copied into the same store object."""
    limit(monkeypatch, large_wave_bytes=1, write_bytes=1)
    storage = memory()
    store = opened(storage)
    zarr.create_array(store, name="ab", shape=(192, 16), chunks=CHUNKS, dtype="u2", compressors=None)
    stored: list[bytes | None] = []

    def write(count: int) -> None:
        thread = threading.Thread(target=lambda: shards.update({f"ab/c/{count}/0": bytes([count + 1]) * 512}))
        thread.start()
        thread.join(timeout=60)
        assert not thread.is_alive()
        stored.append(StorageObjects(storage).get(f"ab/c/{count // 4}/0"))

    shards = shardstore.get_mapper(storage, chunks_per_shard={"a*": PER_SHARD, "*": None})
    zarr.create_array(store, name="a", data=source_of(write), chunks=CHUNKS)
    assert len(stored) == 3
    assert all(data is not None and bytes([count + 1]) * 512 in data for count, data in enumerate(stored))


def test_many_threads_create_arrays_in_one_store() -> None:
    storage = memory()
    store = opened(storage)
    with ThreadPoolExecutor(6) as pool:
        created = [pool.submit(zarr.create_array, store, name=f"a{number}", data=VALUES + number, chunks=CHUNKS) for number in range(6)]
        for done in created:
            done.result(timeout=60)
    assert store.counters.commits == 6 * 9
    for number in range(6):
        np.testing.assert_array_equal(np.asarray(zarr.open_array(opened(storage), path=f"a{number}")), VALUES + number)


# -- errors ---------------------------------------------------------------------------------------------------------------


def test_an_error_of_the_source_leaves_what_was_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, large_wave_bytes=1, write_bytes=1)
    storage = memory()

    def fail(count: int) -> None:
        if count == 2:
            raise RuntimeError("the disk of the source")

    with pytest.raises(RuntimeError, match="the disk of the source"):
        zarr.create_array(opened(storage), name="a", data=source_of(fail), chunks=CHUNKS)
    assert document(StorageObjects(storage), "a/zarr.json")["shape"] == [192, 16]
    assert set(shards_of(storage)) <= {"a/c/0/0", "a/c/1/0"}
    array = zarr.open_array(opened(storage), path="a")
    assert all(np.array_equal(array[i : i + 64], VALUES[i : i + 64, :16]) or not np.any(array[i : i + 64]) for i in range(0, 192, 64))
    array[...] = VALUES[:, :16]
    np.testing.assert_array_equal(np.asarray(array), VALUES[:, :16])


class FailingStorage(MemoryStorage):
    """Refuses to write one key."""

    async def write(self, key: str, data: Any, nbytes: int, condition: Condition) -> Generation:
        if key == "a/c/1/1":
            raise ShardStoreError("no more space")
        return await super().write(key, data, nbytes, condition)


def test_an_error_of_the_storage_is_raised_as_it_is() -> None:
    storage = FailingStorage(f"/copying-{uuid.uuid4().hex}")
    with pytest.raises(ShardStoreError, match="no more space"):
        zarr.create_array(opened(storage), name="a", data=VALUES, chunks=CHUNKS)
    assert sorted(shards_of(storage)) == [key for key in SHARDS if key != "a/c/1/1"]


@pytest.mark.parametrize(("source", "target"), [("a", "a"), ("g/a", "g"), ("g/a", ""), ("a", "a/b")])
@pytest.mark.parametrize("options", [{}, {"chunks_per_shard": (2, 2)}], ids=["the same store", "opened with other options"])
def test_an_array_is_not_overwritten_by_a_copy_of_itself(source: str, target: str, options: dict[str, Any]) -> None:
    storage = memory()
    store = opened(storage, chunks_per_shard=PER_SHARD)
    array = zarr.create_array(store, name=source, data=VALUES, chunks=CHUNKS)
    before = {key: StorageObjects(storage).get(key) for key in StorageObjects(storage).keys()}  # noqa: SIM118 - no mapping
    with pytest.raises(InvalidInput, match=r"would be erased.*data=array\[\.\.\.\]"):
        zarr.from_array(opened(storage, **options) if options else store, name=target, data=array, overwrite=True)
    assert {key: StorageObjects(storage).get(key) for key in StorageObjects(storage).keys()} == before  # noqa: SIM118 - no mapping


def test_an_array_is_not_overwritten_by_a_copy_of_itself_by_another_name(tmp_path: Path) -> None:
    root = tmp_path / "data.zarr"
    zarr.create_array(opened(LocalStorage(root)), name="a", data=VALUES, chunks=CHUNKS)
    (tmp_path / "link").symlink_to(root)
    for source in (LocalStore(root), opened(LocalStorage(tmp_path / "link")), shardstore.open(f"simplecache::file://{root}")):
        array: Any = zarr.open_array(source, path="a", mode="r")
        with pytest.raises(InvalidInput, match="would be erased"):
            zarr.from_array(opened(LocalStorage(root)), name="a", data=array, overwrite=True)
    np.testing.assert_array_equal(np.asarray(zarr.open_array(opened(LocalStorage(root)), path="a")), VALUES)


def test_an_array_is_overwritten_by_its_values_and_by_a_neighbour() -> None:
    store = opened(memory())
    array: Any = zarr.create_array(store, name="a", data=VALUES, chunks=CHUNKS)
    other = zarr.create_array(store, name="ab", data=VALUES + 1, chunks=CHUNKS)
    zarr.from_array(store, name="a", data=array[...] + 5, chunks=CHUNKS, overwrite=True)
    np.testing.assert_array_equal(np.asarray(zarr.open_array(store, path="a")), VALUES + 5)
    zarr.from_array(store, name="a", data=other, overwrite=True)
    np.testing.assert_array_equal(np.asarray(zarr.open_array(store, path="a")), VALUES + 1)
    with pytest.raises(ValueError, match="exists"):
        zarr.from_array(store, name="a", data=VALUES)


# -- where to, and what -----------------------------------------------------------------------------------------------------


def test_a_copy_without_data_is_empty() -> None:
    storage = memory()
    array = zarr.from_array(opened(storage), name="a", data=in_memory(), write_data=False)
    assert not np.any(np.asarray(array))
    assert shards_of(storage) == []


def test_a_copy_within_one_store_reads_each_shard_once() -> None:
    trace = TraceStorage(memory())
    store = opened(trace)
    array = zarr.create_array(store, name="a", data=VALUES, chunks=CHUNKS)
    with trace.count() as block:
        copied = zarr.from_array(store, name="ab", data=array)
    np.testing.assert_array_equal(np.asarray(copied), VALUES)
    assert len([event for event in block.events if event.key.startswith("ab/c/") and event.op == "write"]) == 9
    assert sum(event.nbytes for event in block.events if event.op == "read") <= 1.2 * VALUES.nbytes


def test_by_url_of_the_filesystem(tmp_path: Any) -> None:
    options = {"sharded": {"chunks_per_shard": PER_SHARD, "fsync": False}}
    array: Any = zarr.create_array(f"sharded::{tmp_path.as_uri()}/s.zarr", name="a", data=VALUES, chunks=CHUNKS, storage_options=options)
    assert array.store.fs.counters.commits == 9
    np.testing.assert_array_equal(np.asarray(zarr.open_array(LocalStore(tmp_path / "s.zarr"), path="a")), VALUES)


def test_under_the_keys_of_zarr_v2() -> None:
    storage = memory()
    store = opened(storage, present="v2")
    array = zarr.create_array(store, name="a", data=VALUES, chunks=CHUNKS, zarr_format=2)
    assert store.counters.commits == 9
    np.testing.assert_array_equal(np.asarray(array), VALUES)


def test_without_the_pipeline(tmp_path: Any) -> None:
    store = opened(str(tmp_path), pipeline=False, fsync=False)
    array = zarr.create_array(store, name="a", data=VALUES, chunks=CHUNKS)
    np.testing.assert_array_equal(np.asarray(array), VALUES)
    assert sorted(key for key in LocalObjects(tmp_path).keys() if "/c/" in key) == SHARDS  # noqa: SIM118 - no mapping


def test_in_a_transaction_nothing_is_stored_before_its_end() -> None:
    storage = memory()
    store = opened(storage)
    with store.transaction():
        array = zarr.create_array(store, name="a", data=VALUES, chunks=CHUNKS)
        np.testing.assert_array_equal(np.asarray(array), VALUES)
        assert StorageObjects(storage).keys() == []
    assert store.counters.commits == 9
    np.testing.assert_array_equal(np.asarray(array), VALUES)


def test_into_a_session_of_a_versioned_store(tmp_path: Any) -> None:
    repository = Repository.create(str(tmp_path / "v"))
    with repository.transaction("main", message="one") as store:
        zarr.create_array(store, name="a", data=VALUES, chunks=CHUNKS)
    array = zarr.open_array(repository.readonly_session("main").store, path="a", mode="r")
    np.testing.assert_array_equal(np.asarray(array), VALUES)


def test_into_other_stores_zarr_copies_as_always(monkeypatch: pytest.MonkeyPatch) -> None:
    opened(memory())

    async def fail(data: Any, array: Any) -> None:
        raise AssertionError("not ours")

    monkeypatch.setattr(arrays, "_copy", fail)
    array = zarr.from_array(MemoryStore(), data=VALUES, chunks=CHUNKS)
    np.testing.assert_array_equal(np.asarray(array), VALUES)


def test_chunks_of_several_sizes_are_copied_one_by_one() -> None:
    """Regions between whose borders chunks lie would be written by two assignments at once."""
    if tuple(map(int, zarr.__version__.split(".")[:2])) < (3, 2):
        pytest.skip("zarr before 3.2 has no such grids")
    with zarr.config.set({"array.rectilinear_chunks": True}):
        sizes: Any = [[10, 50, 132], [7, 153]]
        array = zarr.create_array(opened(memory()), name="a", data=VALUES, chunks=sizes)
        np.testing.assert_array_equal(np.asarray(array), VALUES)
