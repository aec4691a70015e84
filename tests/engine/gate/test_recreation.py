"""Readers of an array that is erased and created again in another shard shape, whose index is as long as the old one's."""

from __future__ import annotations

import pytest

from shardstore._sync import run_sync
from shardstore.engine.actions import ERASE, SetValue
from shardstore.engine.engine import Engine
from shardstore.engine.options import EngineOptions
from shardstore.errors import Conflict, InvalidInput
from shardstore.model.generation import UNCONDITIONAL
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import Found, Read
from shardstore.storage.memory import MemoryStorage
from tests.engine.hooked import HookedStorage, document, fresh_memory

N = 8
CHUNKS = [(i, j) for i in range(N) for j in range(N)]


async def fill(place: MemoryStorage, chunks_per_shard: tuple[int, int], path: str = "a") -> None:
    """The array at ``path``, made anew."""
    engine = Engine(place, EngineOptions(chunks_per_shard=chunks_per_shard))
    await engine.erase_prefix(f"{path}/")
    await engine.update((f"{path}/zarr.json", SetValue(document((N, N), (1, 1)))))
    errors = await engine.update_many([(f"{path}/c/{i}/{j}", SetValue(bytes([i * N + j]))) for i, j in CHUNKS])
    assert not any(errors)


def reader_of(storage: HookedStorage, metadata_ttl: float = 1000.0) -> Engine:
    return Engine(storage, EngineOptions(metadata_ttl=metadata_ttl))


async def read(engine: Engine, *chunks: tuple[int, int]) -> None:
    """Read, and see that what is there is what belongs there."""
    values = await engine.get_many([(f"a/c/{i}/{j}", EVERYTHING) for i, j in chunks])
    for (i, j), value in zip(chunks, values, strict=True):
        assert not isinstance(value, Exception), value
        assert value is None or bytes(value) == bytes([i * N + j]), (i, j)


async def outdated_reader(place: MemoryStorage) -> Engine:
    """It knows ``a`` with shards of 2 × 4 chunks, which are of 4 × 2 by now."""
    await fill(place, (2, 4))
    reader = reader_of(HookedStorage(place))
    await read(reader, (0, 0))
    await fill(place, (4, 2))
    return reader


async def plain(engine: Engine, *keys: str) -> list[bytes]:
    """Values that have to be there."""
    values = await engine.get_many([(key, EVERYTHING) for key in keys])
    return [bytes(value) for value in values if isinstance(value, memoryview)]


@pytest.mark.parametrize("chunk", CHUNKS[:: N - 1])
def test_an_index_that_was_not_read_before(documents: str, chunk: tuple[int, int]) -> None:
    async def run() -> None:
        place = fresh_memory()
        reader = await outdated_reader(place)
        await read(reader, chunk)
        await read(reader, *CHUNKS)

    run_sync(run())


def test_a_whole_shard(documents: str) -> None:
    async def run() -> None:
        place = fresh_memory()
        reader = await outdated_reader(place)
        await read(reader, *((i, j) for i in (6, 7) for j in range(4, 8)))

    run_sync(run())


@pytest.mark.parametrize("moment", range(1, 6))
def test_between_any_two_requests(documents: str, moment: int) -> None:
    """What is read is right whenever the array is replaced."""

    async def run(old: tuple[int, int], new: tuple[int, int], *chunks: tuple[int, int]) -> None:
        place = fresh_memory()
        await fill(place, old)
        storage = HookedStorage(place)
        reader = reader_of(storage)
        await read(reader, (0, 0))
        left = moment

        async def replace(operation: str, _key: str) -> None:
            nonlocal left
            left -= operation == "read"
            if left == 0:
                left = -1
                storage.before = None
                await fill(place, new)

        storage.before = replace
        await read(reader, *chunks)
        storage.before = None
        await read(reader, *CHUNKS)

    for old, new in (((2, 4), (4, 2)), ((8, 1), (1, 8))):
        run_sync(run(old, new, (3, 0)))
        run_sync(run(old, new, (7, 7), (3, 0), (0, 7)))
        run_sync(run(old, new, *CHUNKS))


def test_a_missing_chunk_makes_nobody_believe_the_index(documents: str) -> None:
    """An index that was read for a chunk that it lacks is used for others only with another look at the document."""

    async def run() -> None:
        place = fresh_memory()
        reader = await outdated_reader(place)
        other = Engine(place)
        await other.update(("a/c/7/7", ERASE))  # slot 7 of the last shard, in either shape
        assert await reader.get(("a/c/7/7", EVERYTHING)) is None
        await read(reader, *CHUNKS)

    run_sync(run())


def test_a_chunk_that_only_the_old_layout_misses(documents: str) -> None:
    async def run() -> None:
        place = fresh_memory()
        reader = await outdated_reader(place)
        await Engine(place).update(("a/c/4/2", ERASE))  # slot 0 of shard 1/1, which was that of chunk 2/4
        value = await reader.get(("a/c/2/4", EVERYTHING))
        assert value is not None
        assert bytes(value) == bytes([2 * N + 4])

    run_sync(run())


@pytest.mark.parametrize("beside", [[], ["b/c/0/0"], ["b/c/0/0", "b/c/5/5"]], ids=["alone", "with another shard", "with others"])
def test_an_index_that_was_loaded_for_a_size(documents: str, beside: list[str]) -> None:
    """By the old layout, of a shard of the new one: a chunk is read by it only with a look at the document."""

    async def run() -> None:
        place = fresh_memory()
        await fill(place, (2, 4), "b")
        reader = await outdated_reader(place)
        assert await plain(reader, "b/c/5/6") == [bytes([5 * N + 6])]
        await reader.size("a/c/2/4")
        assert await plain(reader, "a/c/2/4", *beside) == [bytes([2 * N + 4]), *(bytes([int(key[4]) * N + int(key[6])]) for key in beside)]

    run_sync(run())


def test_what_it_costs(documents: str) -> None:
    """Nothing, or one request for the document of an array, in the same round as the chunks."""
    more = 1 if documents == "documents apart" else 0

    async def run() -> None:
        place = fresh_memory()
        await fill(place, (2, 4))
        reader = reader_of(HookedStorage(place))
        await read(reader, (0, 0))

        async def cost(*chunks: tuple[int, int]) -> int:
            before = reader.counters.requests
            await read(reader, *chunks)
            return reader.counters.requests - before

        assert await cost((2, 0)) == 2 + more
        assert await cost((3, 1)) == 1
        assert await cost((6, 0), (6, 7), (4, 0)) == 6 + more
        assert await cost(*((i, j) for i in (4, 5) for j in range(4, 8))) == 1 + more
        reader = reader_of(HookedStorage(place), float("inf"))
        await read(reader, (0, 0))
        assert await cost((2, 0)) == 2

    run_sync(run())


def test_new_attributes_are_no_new_layout() -> None:
    async def run() -> None:
        place = fresh_memory()
        await fill(place, (2, 4))
        reader = reader_of(HookedStorage(place))
        await read(reader, (0, 0))
        await Engine(place).update(("a/zarr.json", SetValue(document((N, N), (1, 1), attributes={"a": 1}))))
        value = await reader.get(("a/c/7/7", EVERYTHING))
        assert value is not None
        assert bytes(value) == bytes([63])

    run_sync(run())


def test_a_writer_with_an_old_view() -> None:
    """Its chunk goes where it belongs: the index that the commit starts from is checked beside the document."""

    async def run() -> None:
        place = fresh_memory()
        writer = await outdated_reader(place)
        await writer.update(("a/c/3/0", SetValue(b"!")))
        reader = Engine(place)
        for i, j in CHUNKS:
            value = await reader.get((f"a/c/{i}/{j}", EVERYTHING))
            assert value is not None
            assert bytes(value) == (b"!" if (i, j) == (3, 0) else bytes([i * N + j]))

    run_sync(run())


@pytest.mark.parametrize("moment", range(1, 5))
def test_two_that_create_the_same_array(moment: int) -> None:
    """One has created it, and stored its first chunks, before any of the other's requests: these chunks are not in the way of the array."""

    async def run() -> None:
        place = fresh_memory()
        storage = HookedStorage(place)
        requests = 0

        async def create_first(_operation: str, _key: str) -> None:
            nonlocal requests
            requests += 1
            if requests == moment:
                await fill(place, (2, 4))

        storage.before = create_first
        engine = Engine(storage, EngineOptions(chunks_per_shard=(2, 4)))
        await engine.update(("a/zarr.json", SetValue(document((N, N), (1, 1)))))
        if requests >= moment:
            await read(engine, *CHUNKS)
            assert await engine.get(("a/c/1/1", EVERYTHING)) is not None

    run_sync(run())


def test_a_document_that_comes_and_goes_is_not_waited_for_for_ever() -> None:
    """Chunks are in the way, and whenever it is looked who has created them, the document is there; and gone before the next attempt."""

    async def run() -> None:
        place = fresh_memory()
        await fill(place, (2, 4))
        (outcome,) = await place.read([Read("a/zarr.json", (EVERYTHING,))])
        assert isinstance(outcome, Found)
        data = bytes(outcome.buffers[0])
        storage = HookedStorage(place)
        looks = 0

        async def toggle(operation: str, key: str) -> None:
            nonlocal looks
            if (operation, key) == ("read", "a/zarr.json"):
                looks += 1
                if looks % 2:
                    await place.delete(key, UNCONDITIONAL)
                else:
                    await place.write(key, [data], len(data), UNCONDITIONAL)

        storage.before = toggle
        engine = Engine(storage, EngineOptions(commit_attempts=3))
        with pytest.raises(Conflict, match="metadata of 'a'"):
            await engine.update(("a/zarr.json", SetValue(document((N, N), (1, 1)))))
        assert looks == 6

    run_sync(run())


def test_chunks_of_nobody_stay_in_the_way() -> None:
    async def run() -> None:
        place = fresh_memory()
        engine = Engine(place, EngineOptions(chunks_per_shard=(2, 4)))
        await engine.update(("a/c/0/0", SetValue(b"1")))
        with pytest.raises(InvalidInput, match="exists already and would be taken for a shard"):
            await engine.update(("a/zarr.json", SetValue(document((N, N), (1, 1)))))

    run_sync(run())
