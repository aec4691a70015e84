"""Readers of an array that is erased and created again with shards, where it had none: a shard is never taken for a chunk."""

from __future__ import annotations

import pytest

from shardstore._sync import run_sync
from shardstore.engine.actions import SetValue
from shardstore.engine.engine import Engine
from shardstore.engine.options import EngineOptions
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.memory import MemoryStorage
from tests.engine.hooked import HookedStorage, document, fresh_memory

N = 4


async def fill(place: MemoryStorage, chunks_per_shard: tuple[int, int] | None) -> None:
    """The array ``a``, made anew."""
    engine = Engine(place, EngineOptions(chunks_per_shard=chunks_per_shard))
    await engine.erase_prefix("a/")
    await engine.update(("a/zarr.json", SetValue(document((N, N), (1, 1)))))
    errors = await engine.update_many([(f"a/c/{i}/{j}", SetValue(bytes([i * N + j]))) for i in range(N) for j in range(N)])
    assert not any(errors)


async def read(reader: Engine, i: int, j: int) -> bytes | None:
    value = await reader.get((f"a/c/{i}/{j}", EVERYTHING))
    return None if value is None else bytes(value)


@pytest.mark.usefixtures("documents")
@pytest.mark.parametrize("moment", range(4), ids="before request {}".format)
def test_an_array_that_gets_shards(moment: int) -> None:
    """Whenever it is replaced: between two reads, or between any two requests of one."""

    async def run() -> None:
        place = fresh_memory()
        await fill(place, None)
        storage = HookedStorage(place)
        reader = Engine(storage, EngineOptions(metadata_ttl=1000.0))
        assert await read(reader, 0, 0) == bytes([0])
        left = moment

        async def replace_array(operation: str, _key: str) -> None:
            nonlocal left
            left -= operation == "read"
            if left <= 0:
                storage.before = None
                await fill(place, (2, 2))

        storage.before = replace_array
        assert await read(reader, 1, 0) in (bytes([N]), None)  # shard (1, 0) begins with the chunk (2, 0)
        if storage.before is not None:
            storage.before = None
            await fill(place, (2, 2))
        for i in range(N):
            for j in range(N):
                assert await read(reader, i, j) == bytes([i * N + j])

    run_sync(run())


@pytest.mark.usefixtures("documents")
def test_an_array_that_loses_its_shards() -> None:
    async def run() -> None:
        place = fresh_memory()
        await fill(place, (2, 2))
        reader = Engine(HookedStorage(place), EngineOptions(metadata_ttl=1000.0))
        assert await read(reader, 0, 0) == bytes([0])
        await fill(place, None)
        for i in range(N):
            for j in range(N):
                assert await read(reader, i, j) == bytes([i * N + j])

    run_sync(run())


def test_what_it_costs(documents: str) -> None:
    """Nothing, or one request for the document, in the same round as the chunks."""

    async def run() -> None:
        place = fresh_memory()
        await fill(place, None)
        reader = Engine(HookedStorage(place), EngineOptions(metadata_ttl=1000.0))
        await read(reader, 0, 0)
        before = reader.counters.requests
        values = await reader.get_many([(f"a/c/{i}/{i}", EVERYTHING) for i in range(N)])
        assert [None if value is None or isinstance(value, Exception) else bytes(value) for value in values] == [
            bytes([i * N + i]) for i in range(N)
        ]
        assert reader.counters.requests - before == N + (documents == "documents apart")

    run_sync(run())


def test_attributes_that_change_are_no_other_array(documents: str) -> None:
    async def run() -> None:
        place = fresh_memory()
        await fill(place, None)
        reader, writer = Engine(HookedStorage(place), EngineOptions(metadata_ttl=1000.0)), Engine(place)
        assert await read(reader, 0, 0) == bytes([0])
        for number in range(3):
            await writer.update(("a/zarr.json", SetValue(document((N, N), (1, 1), attributes={"number": number}))))
            assert await read(reader, 1, 0) == bytes([N])

    run_sync(run())


@pytest.mark.parametrize("chunks_per_shard", [None, (2, 2)], ids=["plain", "sharded"])
def test_an_array_that_is_back_is_found_at_once(chunks_per_shard: tuple[int, int] | None) -> None:
    """That another client has deleted an array which was in use is not believed for a while: it is likely to be made anew."""

    async def run() -> None:
        place = fresh_memory()
        await fill(place, chunks_per_shard)
        reader = Engine(HookedStorage(place), EngineOptions(metadata_ttl=1000.0))
        assert await read(reader, 1, 0) == bytes([N])
        await Engine(place).erase_prefix("a/")
        for _ in range(2):
            assert await read(reader, 1, 0) is None
        await fill(place, (1, 2))
        assert await read(reader, 1, 0) == bytes([N])

    run_sync(run())
