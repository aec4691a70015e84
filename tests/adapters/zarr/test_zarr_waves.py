"""Large selections and assignments go in waves: later requests are on their way while chunks are decoded, and memory is bounded."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore import threads as codec_threads
from shardstore.adapters.zarr import chunk_pipeline as zarr_pipeline
from shardstore.adapters.zarr import chunks as zarr_chunks
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.trace import TraceStorage
from tests.limits import limit_pipeline

PER_SHARD = 4
CHUNK = 8
SHARD_NBYTES = PER_SHARD * CHUNK * 4
SHARDS = 6
VALUES = np.arange(1, SHARDS * PER_SHARD * CHUNK + 1, dtype="i4")
PATIENCE_SECONDS = 10


@pytest.fixture
def array() -> Any:
    """One shard makes a wave full, and no wave is small enough to be worked on where it arrives."""
    store = shardstore.open(MemoryStorage(f"/waves-{uuid.uuid4().hex}"), chunks_per_shard=(PER_SHARD,))
    array: Any = zarr.create_array(store, name="a", shape=VALUES.shape, chunks=(CHUNK,), dtype="i4", fill_value=0)
    limit_pipeline(array, usual_wave_bytes=SHARD_NBYTES, shards_per_wave=1, inline_bytes=0)
    return array


class Fetches:
    """In the place of ``_fetch``: counts what has been asked for and not been decoded yet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.under_way = self.most = self.asked = 0
        self.decoded = threading.Event()
        self.last_waits = False
        self._lock = threading.Lock()
        self._fetch, self._scatter = zarr_pipeline._fetch, zarr_chunks.scatter_chunks
        monkeypatch.setattr(zarr_pipeline, "_fetch", self.fetch)
        monkeypatch.setattr(zarr_pipeline, "scatter_chunks", self.scatter)

    async def fetch(self, place: Any, keys: Sequence[str], located: Any = None) -> list[memoryview | None]:
        with self._lock:
            self.asked += 1
            is_last = self.asked == SHARDS
            self.under_way += len(keys)
            self.most = max(self.most, self.under_way)
        if is_last and self.last_waits:
            assert await asyncio.to_thread(self.decoded.wait, PATIENCE_SECONDS)
        return await self._fetch(place, keys, located)

    def scatter(self, codec: Any, infos: Sequence[Any], *arguments: Any) -> None:
        self._scatter(codec, infos, *arguments)
        with self._lock:
            self.under_way -= len(infos)
        self.decoded.set()


def test_chunks_are_decoded_while_later_ones_are_on_their_way(array: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last shard does not arrive before a chunk of another one was decoded."""
    array[...] = VALUES
    fetches = Fetches(monkeypatch)
    fetches.last_waits = True
    np.testing.assert_array_equal(array[...], VALUES)
    assert fetches.asked == SHARDS


class Server(TraceStorage):
    """As an object store is seen: a document that has to be checked beside shards is a request of its own."""

    @property
    def capabilities(self) -> Any:
        return replace(self.inner.capabilities, guarded_reads=False)


@pytest.mark.parametrize(("large_wave_shards", "waves"), [(100, 3), (8, 3), (2, 12)])
def test_each_wave_checks_the_document_so_waves_of_few_shards_are_large(large_wave_shards: int, waves: int) -> None:
    """Every shard alone would make a wave full: eight go together, unless these are many bytes."""
    server = Server(MemoryStorage(f"/waves-{uuid.uuid4().hex}"))
    store = shardstore.open(server, chunks_per_shard=(PER_SHARD,))
    values = np.arange(1, 24 * PER_SHARD * CHUNK + 1, dtype="i4")
    array = zarr.create_array(store, name="a", shape=values.shape, chunks=(CHUNK,), dtype="i4", fill_value=0)
    array[...] = values
    fresh = zarr.open_array(shardstore.open(server, chunks_per_shard=(PER_SHARD,), metadata_ttl="1h"), path="a", mode="r")
    limit_pipeline(fresh, usual_wave_bytes=SHARD_NBYTES, large_wave_bytes=large_wave_shards * SHARD_NBYTES)
    with server.count() as block:
        np.testing.assert_array_equal(fresh[...], values)
    keys = [event.key for event in block.events if event.op == "read"]
    assert sum("/c/" in key for key in keys) == 24
    assert sum(key.endswith("zarr.json") for key in keys) == waves


@pytest.mark.parametrize("shards_at_once", [2, 3])
def test_waves_that_are_under_way_are_bounded(array: Any, monkeypatch: pytest.MonkeyPatch, shards_at_once: int) -> None:
    array[...] = VALUES
    limit_pipeline(array, read_bytes=shards_at_once * SHARD_NBYTES)
    fetches = Fetches(monkeypatch)
    np.testing.assert_array_equal(array[...], VALUES)
    assert fetches.asked == SHARDS
    assert PER_SHARD < fetches.most <= shards_at_once * PER_SHARD


def test_encoded_chunks_that_are_not_stored_yet_are_bounded(array: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_pipeline(array, write_bytes=2 * SHARD_NBYTES)
    held = most = commits = 0
    lock = threading.Lock()
    gather = zarr_chunks.gather_chunks
    engine = array.store.engine
    update_many = engine.update_many

    def encoding(codec: Any, infos: Sequence[Any], *arguments: Any) -> Any:
        nonlocal held, most
        with lock:
            held += len(infos)
            most = max(most, held)
        return gather(codec, infos, *arguments)

    async def storing(updates: Sequence[Any]) -> Any:
        nonlocal held, commits
        commits += 1
        await asyncio.sleep(0.01)  # long enough for every wave to be encoded, if nothing kept them back
        errors = await update_many(updates)
        with lock:
            held -= len(updates)
        return errors

    monkeypatch.setattr(zarr_pipeline, "gather_chunks", encoding)
    monkeypatch.setattr(engine, "update_many", storing)
    array[...] = VALUES
    assert commits == SHARDS
    assert PER_SHARD < most <= 2 * PER_SHARD
    assert held == 0
    monkeypatch.undo()
    np.testing.assert_array_equal(array[...], VALUES)


def test_small_work_is_done_where_it_arrives(array: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_arguments: Any, **_options: Any) -> Any:
        raise AssertionError("a thread was asked for")

    monkeypatch.setattr(codec_threads, "ThreadPoolExecutor", none)
    with pytest.raises(AssertionError, match="a thread"):
        array[:CHUNK] = 1
    limit_pipeline(array, inline_bytes=SHARD_NBYTES)
    array[:CHUNK] = VALUES[:CHUNK]
    np.testing.assert_array_equal(array[:CHUNK], VALUES[:CHUNK])
