"""Single chunks that are read in the thread that asks: what it costs, when it is not done, and that it sees no other values."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import shardstore
from shardstore._sync import run_sync
from shardstore.engine import engine as engine_module
from shardstore.engine.index_cache import IndexCache
from shardstore.errors import Corruption
from shardstore.model.ranges import EVERYTHING, ByteRange
from shardstore.storage.local.reading import READS_CACHED
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.wrappers import innermost
from shardstore.testing.trace import TraceStorage

pytestmark = pytest.mark.skipif(not READS_CACHED, reason="only Linux tells what is in memory: chunks are read otherwise elsewhere")

PROTOTYPE = default_buffer_prototype()
VALUES = np.random.default_rng(0).integers(1, 256, (8, 100), dtype="u1")
"""The bytes of each chunk."""


@pytest.fixture(autouse=True)
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel holds in memory is its own affair: reads of cached bytes just read."""
    monkeypatch.setattr("shardstore.storage.local.reading._cached_pread", lambda fd, nbytes, offset: os.pread(fd, nbytes, offset))


@pytest.fixture
def store(tmp_path: Path) -> shardstore.ShardedStore:
    """An array of 2 shards of 4 chunks, the last of which is missing, and each shard read from."""
    store = shardstore.open(tmp_path, chunks_per_shard=(4,), fsync=False, metadata_ttl="1h")
    array = zarr.create_array(store, name="a", shape=(800,), chunks=(100,), dtype="u1", compressors=None, fill_value=0)
    array[:700] = VALUES[:7].ravel()
    for _ in range(2):  # a file is read without a hop when it was read a moment ago
        for i in (0, 4):
            get(store, f"a/c/{i}")
    return store


def get(store: shardstore.ShardedStore, key: str, wanted: Any = None) -> bytes | None:
    found = sync(store.get(key, PROTOTYPE, wanted))
    return None if found is None else found.to_bytes()


def page_cache_read(store: Any, key: str, request: Any = EVERYTHING) -> bytes | None:
    found = store.engine.short_value(key, request)
    return None if found is None else bytes(found)


def test_no_thread_is_asked(store: shardstore.ShardedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module.Engine, "get", None)
    mapper = shardstore.get_mapper(tmp_path, chunks_per_shard=(4,), fsync=False, metadata_ttl="1h")
    assert mapper.engine is store.engine
    store.counters.reset()
    for i in range(7):
        assert get(store, f"a/c/{i}") == VALUES[i].tobytes()
        assert mapper[f"a/c/{i}"] == VALUES[i].tobytes()
    assert get(store, "a/c/1", RangeByteRequest(10, 20)) == VALUES[1, 10:20].tobytes()
    assert get(store, "a/c/1", RangeByteRequest(90, 200)) == VALUES[1, 90:].tobytes()
    assert get(store, "a/c/1", OffsetByteRequest(30)) == VALUES[1, 30:].tobytes()
    assert get(store, "a/c/1", SuffixByteRequest(7)) == VALUES[1, -7:].tobytes()
    counters = store.counters
    assert (counters.requests, counters.chunks_read, counters.index_hits, counters.index_misses) == (18, 18, 18, 0)
    assert counters.bytes_read == 14 * 100 + 10 + 10 + 70 + 7


def test_what_has_to_be_asked_for(store: shardstore.ShardedStore) -> None:
    assert page_cache_read(store, "a/c/0") == VALUES[0].tobytes()
    assert page_cache_read(store, "a/c/0", ByteRange(5, 5)) is None
    for key in ("a/c/7", "a/c/8", "a/c/99", "a/c/x", "b/c/0", "a/c", ""):
        assert page_cache_read(store, key) is None
    with store.transaction():
        assert page_cache_read(store, "a/c/0") is None
    assert page_cache_read(store, "a/c/0") == VALUES[0].tobytes()
    storage = innermost(store.engine.canonical.storage)
    assert isinstance(storage, LocalStorage)
    storage.short_read_bytes = 99
    assert page_cache_read(store, "a/c/0") is None


def test_of_an_index_that_is_not_verified(store: shardstore.ShardedStore) -> None:
    engine = store.engine
    engine.hierarchy.distrust("a")
    assert page_cache_read(store, "a/c/0") is None
    assert get(store, "a/c/0") == VALUES[0].tobytes()  # and the document is known again
    assert page_cache_read(store, "a/c/0") == VALUES[0].tobytes()
    engine.canonical._indices.drop("a/c/0")
    assert page_cache_read(store, "a/c/0") is None
    assert page_cache_read(store, "a/c/4") == VALUES[4].tobytes()


def test_others_are_seen(store: shardstore.ShardedStore, tmp_path: Path) -> None:
    other = shardstore.open(LocalStorage(tmp_path, fsync=False), chunks_per_shard=(4,))
    new = bytes(range(100))
    sync(other.set("a/c/1", PROTOTYPE.buffer.from_bytes(new)))
    assert page_cache_read(store, "a/c/1") is None
    assert get(store, "a/c/1") == new
    assert page_cache_read(store, "a/c/1") == new
    sync(other.delete("a/c/1"))
    assert get(store, "a/c/1") is None
    sync(other.delete_dir("a"))
    assert get(store, "a/c/0") is None
    assert get(store, "a/c/4") is None


def test_indices_are_dropped_while_others_look(store: shardstore.ShardedStore) -> None:
    """A look from another thread moves an entry, which counts as a change of what is being gone through."""
    indices: IndexCache = store.engine.canonical._indices
    entries = indices._entries

    class Key(str):
        """Another thread looks while this one is compared."""

        __slots__ = ()

        def startswith(self, *_: Any) -> bool:
            entries.touch("a/c/0")
            return True

    entry = entries.peek("a/c/0")
    assert entry is not None
    indices.put(Key("b/c/0"), entry)
    indices.put(Key("b/c/1"), entry)
    indices.drop_prefix("b/")
    assert set(entries) == {"a/c/0", "a/c/1"}


def test_damage_is_told(store: shardstore.ShardedStore, tmp_path: Path) -> None:
    with (tmp_path / "a/c/0").open("r+b") as file:
        file.truncate(50)
    assert page_cache_read(store, "a/c/0") is None
    with pytest.raises(Corruption, match="the index of shard 'a/c/0'"):
        get(store, "a/c/0")
    assert get(store, "a/c/4") == VALUES[4].tobytes()


def test_wrapped_storages_and_other_views_are_asked(tmp_path: Path, store: shardstore.ShardedStore) -> None:
    """A wrapper sees every read; a view of Zarr v2 has other keys."""
    traced = shardstore.open(TraceStorage(LocalStorage(tmp_path)), chunks_per_shard=(4,), metadata_ttl="1h")
    for _ in range(3):
        assert get(traced, "a/c/0") == VALUES[0].tobytes()
    assert page_cache_read(traced, "a/c/0") is None
    as_v2 = shardstore.get_mapper(tmp_path, present="v2", fsync=False, metadata_ttl="1h")
    for _ in range(3):
        assert as_v2["a/0"] == VALUES[0].tobytes()
    assert as_v2.engine.short_value("a/c/0", EVERYTHING) is None


@pytest.mark.gate
def test_beside_writers_every_value_is_whole(store: shardstore.ShardedStore) -> None:
    """Threads read while the IO loop writes: what they read was written, and never goes back."""
    ended = threading.Event()
    wrong: list[object] = []
    seen = [0] * 3

    def read(number: int) -> None:
        last = 0
        while not ended.is_set():
            found = page_cache_read(store, "a/c/2")
            if found is None:
                found = get(store, "a/c/2")
            if found is None or len(set(found)) != 1 or found[0] < last:
                wrong.append(found)
                return
            last = found[0]
            seen[number] += 1

    run_sync(_write(store, 0))
    threads = [threading.Thread(target=read, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for i in range(1, 100):
        run_sync(_write(store, i))
    ended.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert all(seen)


async def _write(store: shardstore.ShardedStore, number: int) -> None:
    await asyncio.gather(*(store.set(f"a/c/{i}", PROTOTYPE.buffer.from_bytes(bytes([number]) * 100)) for i in (1, 2)))
