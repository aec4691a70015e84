"""What goes wrong for one request, array, shard or client does not become wrong data, or an error, for another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from shardstore import Conflict, InvalidInput, ShardingTransformer, StorageError, WriteOutcomeUnknown
from shardstore._sync import run_sync
from shardstore.engine.actions import SetValue
from shardstore.engine.engine import Engine
from shardstore.engine.options import EngineOptions
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import Failed, Read, ReadOutcome
from shardstore.storage.memory import MemoryStorage
from tests.engine.clients import get
from tests.engine.hooked import HookedStorage, document, fresh_memory

FOUR = EngineOptions(chunks_per_shard=(4,))


class FailingStorage(HookedStorage):
    """Reads fail for which ``fails`` is true. Documents are not checked beside shards."""

    fails: Callable[[Read], bool] = staticmethod(lambda _read: False)

    def __init__(self, inner: MemoryStorage) -> None:
        super().__init__(inner)
        self.capabilities_override = replace(inner.capabilities, guarded_reads=False)

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        outcomes = await super().read(reads)
        return [Failed(StorageError("503")) if self.fails(read) else o for read, o in zip(reads, outcomes, strict=True)]


async def make(place: MemoryStorage, chunks_per_shard: tuple[int, int], **chunks: bytes) -> None:
    """The array ``a`` of 8 × 8 chunks, made anew."""
    engine = Engine(place, EngineOptions(chunks_per_shard=chunks_per_shard))
    await engine.erase_prefix("a/")
    await engine.update(("a/zarr.json", SetValue(document((8, 8), (1, 1)))))
    for name, value in chunks.items():
        await engine.update((f"a/c/{name[1]}/{name[2]}", SetValue(value)))


def test_a_chunk_is_not_missing_because_another_could_not_be_read() -> None:
    """By an old index it is missing; the read that would have shown the index to be old fails."""

    async def run() -> None:
        place = fresh_memory()
        storage = FailingStorage(place)
        mine, other = Engine(storage, FOUR), Engine(place)
        await mine.update(("a/zarr.json", SetValue(document((16,), (1,)))))
        await mine.update(("a/c/0", SetValue(b"0")))
        await other.update(("a/c/1", SetValue(b"1")))
        storage.fails = lambda read: read.generation is not None
        both = await asyncio.gather(*(mine.get((f"a/c/{i}", EVERYTHING)) for i in (0, 1)), return_exceptions=True)
        assert all(isinstance(value, StorageError) for value in both)
        storage.fails = lambda _read: False
        assert await get(mine, "a/c/1") == b"1"

    run_sync(run())


def test_an_array_is_read_though_the_document_of_another_is_not() -> None:
    async def run() -> None:
        storage = FailingStorage(fresh_memory())
        mine = Engine(storage, replace(FOUR, metadata_ttl=0))
        for path in "ab":
            await mine.update((f"{path}/zarr.json", SetValue(document((16,), (1,)))))
            await mine.update((f"{path}/c/0", SetValue(b"0")))
        storage.fails = lambda read: read.key == "a/zarr.json"
        bad, good = await asyncio.gather(*(mine.get((f"{path}/c/0", EVERYTHING)) for path in "ab"), return_exceptions=True)
        assert isinstance(bad, StorageError)
        assert good is not None
        assert not isinstance(good, BaseException)
        assert bytes(good) == b"0"

    run_sync(run())


def test_a_commit_starts_from_no_index_that_was_read_by_an_old_layout() -> None:
    async def run() -> None:
        place = fresh_memory()
        await make(place, (2, 4))
        writer = Engine(FailingStorage(place), EngineOptions(metadata_ttl=1000.0))
        assert await writer.size("a/c/0/0") is None
        await make(place, (4, 2), c10=b"A", c31=b"B")
        await writer.size("a/c/0/0")  # now the index of the new shard is remembered, by the old layout
        assert await writer.update_many([("a/c/0/2", SetValue(b"W"))]) == [None]
        fresh = Engine(place)
        assert [await get(fresh, f"a/c/{name}") for name in ("1/0", "3/1", "0/2")] == [b"A", b"B", b"W"]

    run_sync(run())


def test_a_transaction_creates_an_array_that_another_client_has_erased() -> None:
    place = fresh_memory()
    mine, other = ShardingTransformer(place, chunks_per_shard=(4,)), ShardingTransformer(HookedStorage(place), chunks_per_shard=(4,))
    mine.set("a/zarr.json", document((16,), (1,)))
    mine.set("a/c/0", b"0")
    other.erase_prefix("a/")
    with mine.transaction():
        mine.set("a/zarr.json", document((16,), (1,)))
        mine.set("a/c/1", b"1")
    assert (other.get("a/c/0"), other.get("a/c/1")) == (None, b"1")


def test_a_transaction_does_not_read_by_the_layout_that_it_has_yet_to_create() -> None:
    async def run() -> None:
        place = fresh_memory()
        storage = HookedStorage(place)
        mine = Engine(storage, EngineOptions(chunks_per_shard=(2, 4), commit_attempts=2))
        seen: list[bytes | None] = []

        async def create_too(operation: str, key: str) -> None:
            if (operation, key) == ("write", "a/c/1/1"):
                storage.before = None
                await make(place, (4, 2), c10=b"A")
                seen.append(await get(mine, "a/c/0/2"))

        storage.before = create_too
        await mine.begin()
        await mine.update(("a/zarr.json", SetValue(document((8, 8), (1, 1)))))
        await mine.update(("a/c/2/4", SetValue(b"T")))
        with pytest.raises(Conflict):
            await mine.commit()
        assert seen == [None]
        assert await get(Engine(place), "a/c/1/0") == b"A"

    run_sync(run())


def test_one_shard_that_cannot_be_withdrawn_leaves_no_others() -> None:
    place = fresh_memory()
    storage = HookedStorage(place)
    mine = ShardingTransformer(storage, chunks_per_shard=(4,))
    left = 1

    async def fail(operation: str, key: str) -> None:
        nonlocal left
        if (operation, key) == ("write", "a/zarr.json"):
            raise StorageError("503")
        if operation == "delete" and left:
            left -= 1
            raise StorageError("503")

    async def stored() -> list[str]:
        return [info.key async for info in place.list("")]

    storage.before = fail

    def create() -> None:
        with mine.transaction():
            mine.set("a/zarr.json", document((16,), (1,)))
            for i in range(0, 16, 4):
                mine.set(f"a/c/{i}", b"x")

    with pytest.raises(StorageError) as caught:
        create()
    assert any("may be left" in note for note in caught.value.__notes__)
    assert len(run_sync(stored())) == 1


def test_a_shard_in_doubt_is_named_and_left_alone() -> None:
    """Were it compared by its bytes, the same bytes of another client's array would be removed."""
    place = fresh_memory()
    storage = HookedStorage(place)
    mine = ShardingTransformer(storage, chunks_per_shard=(4,))

    async def lose_the_answer(operation: str, key: str) -> None:
        if (operation, key) == ("write", "a/c/0"):
            raise WriteOutcomeUnknown("the answer was lost")

    async def stored() -> list[str]:
        return sorted([info.key async for info in place.list("")])

    def create() -> None:
        with mine.transaction():
            mine.set("a/zarr.json", document((8,), (1,)))
            for i in range(8):
                mine.set(f"a/c/{i}", b"x")

    storage.after = lose_the_answer
    with pytest.raises(WriteOutcomeUnknown) as caught:
        create()
    assert any("'a/c/0' (whether it was written is not known)" in note for note in caught.value.__notes__)
    assert run_sync(stored()) == ["a/c/0"], "the one that was written for certain was withdrawn"
    storage.after = None
    with pytest.raises(InvalidInput, match="'a/c/0' exists already"):
        create()
    mine.erase_prefix("a/")
    create()
    assert mine.get("a/c/0") == b"x"


def test_nobody_waits_for_a_committer_that_was_cancelled() -> None:
    """As where the loop is shut down."""

    async def run() -> None:
        mine = Engine(fresh_memory(), FOUR)
        await mine.update(("a/zarr.json", SetValue(document((16,), (1,)))))
        started, gate = asyncio.Event(), asyncio.Event()
        commit = mine._committer.commit

        async def slow(*arguments: object) -> object:
            started.set()
            await gate.wait()
            return await commit(*arguments)  # type: ignore[arg-type]

        mine._committer.commit = slow  # type: ignore[method-assign,assignment]
        one = asyncio.ensure_future(mine.update(("a/c/0", SetValue(b"0"))))
        await started.wait()
        two = asyncio.ensure_future(mine.update(("a/c/1", SetValue(b"1"))))
        (queue,) = mine._writer._queues.values()
        for _ in range(100):  # turns of the loop, until the second has joined the queue
            await asyncio.sleep(0)
        assert queue.waiting
        assert queue.runner is not None
        queue.runner.cancel()
        _, waiting = await asyncio.wait([one, two], timeout=30)
        assert not waiting
        for ended in (one, two):
            assert ended.cancelled() or ended.exception() is not None

    run_sync(run())
