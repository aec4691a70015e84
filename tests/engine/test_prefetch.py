"""Indices that are loaded beforehand, and shards that come with their index: counted rounds and requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.errors import Corruption, InvalidInput, NotFound
from shardstore.storage.local.storage import LocalStorage
from shardstore.testing.trace import TraceStorage
from tests.engine.hooked import fresh_memory


class Server(TraceStorage):
    """As an object store is seen: nothing is read beside, and a request takes its time."""

    @property
    def kind(self) -> str:
        return "generic"

    @property
    def capabilities(self) -> Any:
        return replace(self.inner.capabilities, guarded_reads=False)


def filled(storage: Any, chunk: int = 100, **options: Any) -> np.ndarray[Any, Any]:
    """An array of 4 shards of 8 chunks."""
    store = shardstore.open(storage, chunks_per_shard=(8,), **options)
    array = zarr.create_array(store, name="a", shape=(32 * chunk,), chunks=(chunk,), dtype="u1", compressors=None, fill_value=0)
    values = np.random.default_rng(0).integers(1, 256, 32 * chunk, dtype="u1")
    array[:] = values
    return values


def opened(storage: Any, **options: Any) -> tuple[shardstore.ShardedStore, zarr.Array[Any]]:
    store = shardstore.open(storage, metadata_ttl=float("inf"), **{"first_bytes": 65536, **options})
    return store, zarr.open_array(store, path="a", mode="r")


def requests(block: Any) -> int:
    return sum(event.op == "read" and "/c/" in event.key for event in block.events)


@pytest.mark.parametrize("location", ["start", "end"])
def test_a_small_shard_comes_with_its_index(location: str) -> None:
    storage = Server(fresh_memory())
    values = filled(storage, index_location=location)
    _, array = opened(storage)
    with storage.count() as block:
        np.testing.assert_array_equal(array[::100], values[::100])
        np.testing.assert_array_equal(array[750:1050], values[750:1050])
    assert requests(block) == 4 + 2  # one for each shard, and where the index is known, one for its chunks


def test_chunks_that_do_not_come_with_the_index_are_a_second_request_and_soon_not_tried() -> None:
    storage = Server(fresh_memory())
    values = filled(storage, chunk=16_000)
    store, array = opened(storage)
    store.engine.canonical._reader.useless_attempts = 2
    sizes = []
    for start in range(0, len(values), 128_000):  # the first chunk of each shard
        with storage.count() as block:
            np.testing.assert_array_equal(array[start : start + 5], values[start : start + 5])
        assert requests(block) == 2
        sizes.append(next(event.nbytes for event in block.events if "/c/" in event.key))
    assert sizes == [65536, 65536, 132, 132]
    assert store.counters.index_misses == 4


def test_by_default_only_the_index_is_read(tmp_path: Path) -> None:
    storage = TraceStorage(LocalStorage(tmp_path, fsync=False))
    values = filled(storage)
    _, array = opened(storage, first_bytes=0)
    with storage.count() as block:
        np.testing.assert_array_equal(array[:5], values[:5])
    assert [event.nbytes for event in block.events if "/c/" in event.key] == [132, 100]


def test_prefetched_indices_save_a_round() -> None:
    storage = Server(fresh_memory())
    values = filled(storage, chunk=40_000)
    store, array = opened(storage)
    with storage.count() as block:
        assert store.prefetch("a", (slice(320_000, 640_001),)) == 2
    assert requests(block) == 2
    assert block.summary().bytes_read <= 2 * 132
    with storage.count() as block:
        np.testing.assert_array_equal(array[320_000:320_010], values[320_000:320_010])
        np.testing.assert_array_equal(array[640_000:640_010], values[640_000:640_010])
    assert requests(block) == 2
    assert store.prefetch("a") == 4
    assert shardstore.get_mapper(storage).prefetch("/a/", [slice(0, 0)]) == 0


def test_no_more_is_prefetched_than_is_kept() -> None:
    storage = Server(fresh_memory())
    filled(storage)
    store, _ = opened(storage, index_cache_bytes=2 * 128)
    assert store.prefetch("a") == 2


def test_of_an_array_of_any_size() -> None:
    storage = Server(fresh_memory())
    store = shardstore.open(storage, chunks_per_shard=(4,), index_cache_bytes=64 * 10)
    zarr.create_array(store, name="a", shape=(10**15,), chunks=(1000,), dtype="u1")
    with storage.count() as block:
        assert store.prefetch("a") == 0
    assert requests(block) == 10


def test_what_cannot_be_prefetched(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    filled(storage)
    store, _ = opened(storage)
    with pytest.raises(NotFound, match="no sharded array at 'b'"):
        store.prefetch("b")
    for region in ([slice(None)] * 2, [slice(0, 10, 2)], [3]):
        with pytest.raises(InvalidInput, match="each of the 1 dimensions"):
            store.prefetch("a", region)  # type: ignore[arg-type]
    shard = tmp_path / "a/c/1"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    with pytest.raises(Corruption, match="'a/c/1'"):
        store.prefetch("a")
    assert store.prefetch("a", [slice(0, 800)]) == 1
