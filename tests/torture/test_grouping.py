"""Many single-chunk writes of one process to one shard are few commits.

What arrives in one tick of the event loop is one batch, and what arrives while a commit is on its way goes into the next one. So 64 writes
that are issued at the same time are two commits: the one of whoever came first, and the one of all others. The tests hold the first
commit back until all have come; how many there are without that is recorded.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import zarr
from zarr.core.buffer import cpu

import shardstore
from shardstore.engine.actions import Action
from shardstore.engine.metadata.hierarchy import ChunkTarget
from shardstore.engine.writing.writer import Writer
from shardstore.storage.base import Storage
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.wrappers import Counters
from shardstore.testing.latency import LatencyStorage
from tests.engine.hooked import HookedStorage, fresh_memory
from tests.torture.conftest import Record

CHUNKS = 64
SHARD = "x/c/0"
OPTIONS: dict[str, Any] = {"chunks_per_shard": (CHUNKS,), "metadata_ttl": "1h"}

Write = Callable[[Storage], Counters]
"""Write all chunks of the array that is there, and say what the engine did."""

dask_array: Any = importlib.import_module("dask.array")  # half of it has no types


def value(chunk: int) -> int:
    return 1 + chunk


def prepare(storage: Storage) -> None:
    """An array of 64 chunks of a byte, in one shard that does not exist yet."""
    store = shardstore.open(storage, **OPTIONS)
    zarr.create_array(store, name="x", shape=(CHUNKS,), chunks=(1,), dtype="u1", compressors=None, fill_value=0)


def check(storage: Storage) -> None:
    array = zarr.open_array(shardstore.open(storage), path="x", mode="r")
    np.testing.assert_array_equal(array[...], [value(chunk) for chunk in range(CHUNKS)])


def opened(storage: Storage) -> tuple[shardstore.ShardedStore, zarr.Array[Any]]:
    store = shardstore.open(storage, **OPTIONS)
    return store, zarr.open_array(store, path="x", mode="r+")


# -- ways to issue 64 writes -----------------------------------------------------------------------------------------------


def in_threads(action: Callable[[int], None]) -> None:
    start = threading.Barrier(CHUNKS)

    def run(chunk: int) -> None:
        start.wait()
        action(chunk)

    with ThreadPoolExecutor(CHUNKS) as pool:
        list(pool.map(run, range(CHUNKS)))


def threads_through_the_mapping(storage: Storage) -> Counters:
    mapper = shardstore.get_mapper(storage, **OPTIONS)
    in_threads(lambda chunk: mapper.__setitem__(f"x/c/{chunk}", bytes([value(chunk)])))
    return mapper.counters


def threads_through_zarr(storage: Storage) -> Counters:
    store, array = opened(storage)
    in_threads(lambda chunk: array.__setitem__(chunk, value(chunk)))
    return store.counters


def coroutines(storage: Storage) -> Counters:
    """On a loop of their own, not on that of the engine."""
    store = shardstore.open(storage, **OPTIONS)

    async def sets() -> None:
        await asyncio.gather(*(store.set(f"x/c/{chunk}", cpu.Buffer.from_bytes(bytes([value(chunk)]))) for chunk in range(CHUNKS)))

    asyncio.run(sets())
    return store.counters


def dask_threads(storage: Storage) -> Counters:
    store, array = opened(storage)
    data = dask_array.from_array(np.arange(value(0), value(CHUNKS), dtype="u1"), chunks=1)
    with dask.config.set(scheduler="threads", num_workers=CHUNKS):
        dask_array.store(data, array, lock=False)
    return store.counters


CONCURRENTLY = (threads_through_the_mapping, threads_through_zarr, coroutines, dask_threads)


@pytest.mark.parametrize("write", CONCURRENTLY, ids=lambda write: write.__name__)
def test_64_concurrent_writes_are_two_commits(write: Write, monkeypatch: pytest.MonkeyPatch, record: Record) -> None:
    storage = HookedStorage(fresh_memory())
    prepare(storage)
    arrived = 0
    all_there = asyncio.Event()
    commit = Writer.commit

    async def counting(self: Writer, updates: Sequence[tuple[ChunkTarget, Action]]) -> Any:
        nonlocal arrived
        arrived += len(updates)
        if arrived == CHUNKS:
            all_there.set()
        return await commit(self, updates)

    async def hold(operation: str, key: str) -> None:
        if operation == "write" and key == SHARD:
            await all_there.wait()

    monkeypatch.setattr(Writer, "commit", counting)
    storage.before = hold
    commits = write(storage).commits
    assert commits <= 2
    assert storage.count("write", SHARD) + storage.count("compose", SHARD) == commits
    check(storage)
    record(f"{commits} commits")


@pytest.mark.parametrize("write", CONCURRENTLY, ids=lambda write: write.__name__)
def test_64_concurrent_writes_with_nobody_held_back(write: Write, tmp_path: Path, record: Record) -> None:
    """On a disk, where a commit takes a few milliseconds, and on something as far away as an object store."""
    near = LocalStorage(str(tmp_path))
    far = LatencyStorage(fresh_memory(), 0.05)
    commits = []
    for storage in (near, far):
        prepare(storage)
        commits.append(write(storage).commits)
        check(storage)
    record(f"{commits[0]} commits on a disk, {commits[1]} at 50 ms a request")


# -- as one operation ------------------------------------------------------------------------------------------------------


def one_setitems(storage: Storage) -> Counters:
    mapper = shardstore.get_mapper(storage, **OPTIONS)
    mapper.setitems({f"x/c/{chunk}": bytes([value(chunk)]) for chunk in range(CHUNKS)})
    return mapper.counters


def one_assignment(storage: Storage) -> Counters:
    store, array = opened(storage)
    array[...] = [value(chunk) for chunk in range(CHUNKS)]
    return store.counters


def one_transaction(storage: Storage) -> Counters:
    store, array = opened(storage)
    with store.transaction():
        for chunk in range(CHUNKS):
            array[chunk] = value(chunk)
    return store.counters


def one_transaction_of_threads(storage: Storage) -> Counters:
    store, array = opened(storage)
    with store.transaction():
        in_threads(lambda chunk: array.__setitem__(chunk, value(chunk)))
    return store.counters


@pytest.mark.parametrize(
    "write", [one_setitems, one_assignment, one_transaction, one_transaction_of_threads], ids=lambda write: write.__name__
)
def test_64_chunks_in_one_operation_are_one_commit(write: Write) -> None:
    storage = HookedStorage(fresh_memory())
    prepare(storage)
    assert write(storage).commits == 1
    assert storage.count("write", SHARD) + storage.count("compose", SHARD) == 1
    check(storage)
