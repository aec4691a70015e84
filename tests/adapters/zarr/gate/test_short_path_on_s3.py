"""Known chunks of remote shards are read by obstore in the caller's thread, on condition of the version; whatever else, by the engine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import obstore
import pytest
import zarr

import shardstore
from shardstore.adapters.zarr import short_path
from tests.adapters.zarr.test_short_path import CHUNK, PER_SHARD, SHAPE, VALUES, check_same


def opened(s3_url: tuple[str, dict[str, Any]], **options: Any) -> shardstore.ShardedStore:
    url, storage_options = s3_url
    return shardstore.open(
        url, storage_options=storage_options, chunks_per_shard=PER_SHARD, **{"transport": "obstore", "metadata_ttl": 3600, **options}
    )


@pytest.fixture
def array(s3_url: tuple[str, dict[str, Any]]) -> Any:
    """An array whose documents and indices are known."""
    made = zarr.create_array(opened(s3_url), shape=SHAPE, chunks=CHUNK, dtype="i4", fill_value=7)
    made[...] = VALUES
    made[...]
    return made


def test_a_known_chunk_needs_no_loop_and_one_request(array: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    get = obstore.get

    def noted(store: Any, path: str, *, options: Any) -> Any:
        asked.append(options)
        return get(store, path, options=options)

    monkeypatch.setattr(obstore, "get", noted)
    monkeypatch.setattr(zarr.AsyncArray, "_get_selection", None)
    array.store.counters.reset()
    assert array[9, 9] == VALUES[9, 9]
    assert array.store.counters.requests == 1
    (options,) = asked
    assert options["if_match"]
    with ThreadPoolExecutor(8) as pool:  # as the workers of a DataLoader
        found = list(pool.map(lambda n: array[n * 7 % 64, n * 5 % 48], range(60)))
    assert found == [VALUES[n * 7 % 64, n * 5 % 48] for n in range(60)]
    assert len(asked) == 61


def test_another_version_is_read_by_the_engine(array: Any, s3_url: tuple[str, dict[str, Any]]) -> None:
    assert check_same(array, np.s_[9, 9])
    other = shardstore.open(s3_url[0], storage_options=s3_url[1])
    zarr.open_array(other, mode="r+")[:16, :16] = 5
    assert array[9, 9] == 5
    assert check_same(array, np.s_[9, 9])


def test_what_the_engine_is_asked_for(array: Any) -> None:
    assert not check_same(array, np.s_[:20, :20])  # several chunks
    array[8:16, 8:16] = 7
    assert not check_same(array, np.s_[9, 9])  # a chunk that is not in its shard
    array.store.engine.hierarchy.distrust("")
    assert short_path.read_selection(array._async_array, np.s_[0, 0]) is None  # a document that is not fresh
    assert check_same(array, np.s_[0, 0])  # and is fresh again


def test_a_request_that_fails_is_repeated_by_the_engine(array: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **kwargs: Any) -> Any:
        raise OSError("connection reset")

    monkeypatch.setattr(obstore, "get", refused)
    assert not check_same(array, np.s_[9, 9])
    assert array[9, 9] == VALUES[9, 9]
