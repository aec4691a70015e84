"""What is bounded stays within its bound: the index cache and the memory that commits hold."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from shardstore import ShardingTransformer
from shardstore._sync import run_sync
from shardstore.engine.index_cache import CachedIndex, IndexCache
from shardstore.format.shard_index import IndexFormat
from shardstore.model.generation import Generation
from shardstore.tasks import MemoryBudget
from tests.engine.hooked import HookedStorage, document, fresh_memory

FORMAT = IndexFormat((4,))


def cached(index_format: IndexFormat = FORMAT) -> CachedIndex:
    return CachedIndex(index_format, Generation("g"), 100, index_format.empty())


def test_the_least_recently_used_index_goes_first() -> None:
    cache = IndexCache(3 * cached().cost)
    for key in "abc":
        cache.put(key, cached())
    assert cache.get("a", FORMAT) is not None
    cache.put("d", cached())
    assert cache.used_bytes == 3 * cached().cost
    assert [key for key in "abcd" if cache.get(key, FORMAT) is not None] == ["a", "c", "d"]
    cache.put("a", cached())  # again: it is not counted twice
    assert cache.used_bytes == 3 * cached().cost
    cache.drop_prefix("a")
    cache.drop("nothing")
    assert (len(cache), cache.used_bytes) == (2, 2 * cached().cost)


def test_an_index_larger_than_the_cache_is_not_kept() -> None:
    cache = IndexCache(cached().cost)
    cache.put("a", cached())
    cache.put("b", cached(IndexFormat((1000,))))
    assert cache.get("a", FORMAT) is not None
    assert len(cache) == 1


def test_an_index_of_another_format_is_not_used() -> None:
    cache = IndexCache(10**6)
    cache.put("a", cached())
    assert cache.get("a", IndexFormat((2,))) is None
    assert (len(cache), cache.used_bytes) == (0, 0)


@pytest.mark.parametrize("limit", [0, 700])  # none at all, and one at a time
def test_values_do_not_depend_on_the_cache(limit: int) -> None:
    storage = HookedStorage(fresh_memory())
    store = ShardingTransformer(storage, chunks_per_shard=(4,), index_cache_bytes=limit, metadata_ttl="1000s")
    store.set("a/zarr.json", document((64,), (1,)))
    for i in (*range(64), *range(0, 64, 3)):
        store.set(f"a/c/{i}", b"%d" % i)
    assert store.get_partial_values([(f"a/c/{i}", None) for i in range(64)]) == [b"%d" % i for i in range(64)]
    storage.seen.clear()
    assert [store.get(f"a/c/{i}") for i in (0, 5, 0, 5)] == [b"0", b"5", b"0", b"5"]
    assert len(storage.seen) == 8  # the index is read each time


def test_bytes_are_granted_in_turn_and_never_beyond_the_limit() -> None:
    async def scenario() -> list[str]:
        budget = MemoryBudget(10)
        order: list[str] = []
        held = 0

        async def user(name: str, nbytes: int) -> None:
            nonlocal held
            async with budget.hold(nbytes):
                held += min(nbytes, 10)
                assert held <= 10
                order.append(name)
                await asyncio.sleep(0.001)
                held -= min(nbytes, 10)

        tasks = [asyncio.create_task(user(name, nbytes)) for name, nbytes in [("a", 6), ("b", 6), ("c", 1), ("huge", 99), ("d", 4)]]
        await asyncio.sleep(0)
        tasks[1].cancel()  # while it waits: those behind it move up
        await asyncio.gather(*tasks, return_exceptions=True)
        async with budget.hold(10):  # all of it is there again
            return order

    assert run_sync(asyncio.wait_for(scenario(), 20)) == ["a", "c", "huge", "d"]


@pytest.mark.parametrize("cache_bytes", [0, 2**30])
def test_a_long_index_is_held_once_while_a_chunk_is_read(cache_bytes: int, tmp_path: Path) -> None:
    """With nothing of its length beside it: neither for its checksum, nor for its entries."""
    nslots = 2**20
    store = ShardingTransformer(str(tmp_path), chunks_per_shard=(nslots,))
    store.set("a/zarr.json", document((nslots,), (1,)))
    store.set_partial_values([(f"a/c/{i}", 0, b"%d" % i) for i in range(0, nslots, nslots // 64)])
    index_nbytes = IndexFormat((nslots,)).nbytes
    client = ShardingTransformer(str(tmp_path), index_cache_bytes=cache_bytes)
    client.get("a/zarr.json")
    for _ in range(2):
        assert _peak(lambda: client.get(f"a/c/{nslots // 2}")) < 1.25 * index_nbytes
    assert _peak(lambda: client.set("a/c/1", b"another")) < 3.5 * index_nbytes
    assert client.get(f"a/c/{nslots // 2}") == b"%d" % (nslots // 2)


def _peak(action: Callable[[], object]) -> int:
    """The most bytes that ``action`` holds at once, beside what there was."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        action()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
