"""Writers of one process that share a commit, on a storage that shows what each request does."""

from __future__ import annotations

import asyncio

import pytest

from shardstore.engine.actions import Patch, SetValue
from shardstore.engine.engine import Engine
from shardstore.engine.values import KeyUpdate
from shardstore.errors import InvalidInput
from tests.engine.clients import get, play
from tests.engine.hooked import HookedStorage


def test_writes_that_arrive_together_are_one_commit() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        await asyncio.gather(*(mine.update((f"a/c/{i}", SetValue(b"%d" % i))) for i in range(4)))
        assert storage.count("write", "a/c/0") == 1
        assert storage.count("read", "a/c/0") == 0  # a whole shard is built without reading
        storage.seen.clear()
        values = await asyncio.gather(*(get(mine, f"a/c/{i}") for i in range(4)))
        assert values == [b"0", b"1", b"2", b"3"]
        assert storage.count("read", "a/c/0") == 1

    play(scenario)


def test_what_arrives_during_a_commit_goes_into_the_next_one_together() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        started, go_on = asyncio.Event(), asyncio.Event()

        async def hold(operation: str, key: str) -> None:
            if operation == "write" and key == "a/c/0":
                started.set()
                await go_on.wait()

        storage.before = hold
        first = asyncio.ensure_future(mine.update(("a/c/0", SetValue(b"0"))))
        await started.wait()
        later = [asyncio.ensure_future(mine.update((f"a/c/{i}", SetValue(b"%d" % i)))) for i in (1, 2, 3)]
        await asyncio.sleep(0)
        storage.before = None
        go_on.set()
        await asyncio.gather(first, *later)
        assert mine.counters.commits == 2
        assert [await get(other, f"a/c/{i}") for i in range(4)] == [b"0", b"1", b"2", b"3"]

    play(scenario)


def test_a_cancelled_writer_does_not_take_others_along() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        started, go_on = asyncio.Event(), asyncio.Event()

        async def hold(operation: str, key: str) -> None:
            if operation == "write" and key == "a/c/0":
                started.set()
                await go_on.wait()

        storage.before = hold
        first = asyncio.ensure_future(mine.update(("a/c/0", SetValue(b"0"))))
        await started.wait()
        second = asyncio.ensure_future(mine.update(("a/c/1", SetValue(b"1"))))
        await asyncio.sleep(0)
        first.cancel()
        storage.before = None
        go_on.set()
        await second
        assert await get(other, "a/c/1") == b"1"
        assert await get(other, "a/c/0") in (b"0", None)

    play(scenario)


def test_one_callers_mistake_is_not_anothers() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        updates = [mine.update((f"a/c/{i}", SetValue(b"%d" % i))) for i in (0, 2, 3)]
        bad = mine.update(("a/c/1", Patch(5, b"x")))
        results = await asyncio.gather(*updates, bad, return_exceptions=True)
        assert results[:3] == [None, None, None]
        assert isinstance(results[3], InvalidInput)
        assert [await get(other, f"a/c/{i}") for i in range(4)] == [b"0", None, b"2", b"3"]
        again: list[KeyUpdate] = [("a/c/1", SetValue(b"1")), ("a/c/1", Patch(5, b"x")), *((f"a/c/{i}", SetValue(b"9")) for i in (0, 2, 3))]
        both = await mine.update_many(again)
        assert [type(error) for error in both] == [InvalidInput, InvalidInput, type(None), type(None), type(None)]
        assert [await get(other, f"a/c/{i}") for i in range(4)] == [b"9", None, b"9", b"9"]

    play(scenario)


def test_a_cancelled_write_has_stopped_using_the_callers_memory() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        buffer = bytearray(b"mine")

        async def slow(operation: str, key: str) -> None:
            if operation == "write":
                await asyncio.sleep(0.05)

        storage.before = slow
        for updates in (["a/c/0"], ["notes.txt"], ["a/c/1", "a/c/2", "a/c/3", "a/c/4"]):
            buffer[:] = b"mine"
            task = asyncio.ensure_future(mine.update_many([(key, SetValue(memoryview(buffer))) for key in updates]))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            buffer[:] = b"next"
            assert [await get(other, key) for key in updates] == [b"mine"] * len(updates)

    play(scenario)
