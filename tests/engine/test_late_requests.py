"""Storages that may carry a request out after its client gave it up: whatever is late finds its condition broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardstore.engine.actions import ERASE, SetValue
from shardstore.engine.engine import Engine
from shardstore.engine.options import EngineOptions
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import ConditionFailed, Found, Read
from tests.engine.clients import get, play, put
from tests.engine.hooked import HookedStorage

KEYS = ("a/c/0", "a/c/1", "a/c/2", "a/c/3")


def answers_get_lost(storage: HookedStorage) -> None:
    storage.capabilities_override = replace(storage.inner.capabilities, exactly_once=False, unique_versions=False)


def test_a_late_request_to_create_does_not_bring_erased_chunks_back() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        answers_get_lost(storage)
        await put(mine, c0=b"0")
        await mine.update(("a/c/0", ERASE))
        assert storage.count("delete") == 0
        with pytest.raises(ConditionFailed):
            await storage.inner.write("a/c/0", [b"late"], 4, IF_ABSENT)
        assert await get(mine, "a/c/0") is None
        assert [one.key async for one in mine.list("a/c/")] == []

    play(scenario)


def test_no_two_versions_are_alike() -> None:
    """Where a version is named by its bytes, a late request that was meant for one must not fit another."""

    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        answers_get_lost(storage)
        for step, nbytes in (({"c0": b"0"}, 1), ({"c0": b"0", "c1": b"1", "c2": b"2", "c3": b"3"}, 4), ({}, 0)):
            bodies = set()
            for _ in range(3):
                await put(mine, c0=b"before")
                await mine.update(("a/c/0", ERASE))
                if step:
                    await put(mine, **step)
                (found,) = await storage.inner.read([Read("a/c/0", (EVERYTHING,))])
                assert isinstance(found, Found)
                bodies.add(bytes(found.buffers[0]))
                await mine.update_many([(key, ERASE) for key in KEYS])
            assert len(bodies) == 3
            assert set(map(len, bodies)) == {nbytes + 4 * 16 + 4 + 16}

    play(scenario)


def test_erasing_in_an_empty_shard_writes_nothing() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        answers_get_lost(storage)
        await put(mine, c0=b"0")
        await mine.update(("a/c/0", ERASE))
        writes = storage.count("write", "a/c/0")
        await mine.update(("a/c/1", ERASE))
        await Engine(storage, EngineOptions()).update(("a/c/1", ERASE))
        assert storage.count("write", "a/c/0") == writes

    play(scenario)


def test_a_whole_shard_is_written_on_condition() -> None:
    """By one request in an array that this process has created; elsewhere it is looked up first. Its body is sent once."""

    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        answers_get_lost(storage)
        await mine.update_many([(key, SetValue(b"1")) for key in KEYS])
        assert storage.seen == [("write", "a/c/0")]
        storage.seen.clear()
        newcomer = Engine(storage, EngineOptions(metadata_ttl=1000.0))
        for shard, there in (("a/c/0", True), ("a/c/1", False), ("a/c/2", False)):
            keys = [f"a/c/{i}" for i in range(4 * int(shard[-1]), 4 * int(shard[-1]) + 4)]
            await newcomer.update_many([(key, SetValue(b"2")) for key in keys])
            looks = [("stat", shard)] if there or shard == "a/c/1" else []
            assert [one for one in storage.seen if one[1] == shard] == [*looks, ("write", shard)]
            assert await get(other, keys[3]) == b"2"
        assert newcomer.counters.conflicts == 0

    play(scenario)


def test_a_whole_shard_whose_index_is_damaged_can_be_written() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        answers_get_lost(storage)
        await storage.inner.write("a/c/0", [b"damage"], 6, UNCONDITIONAL)
        await mine.update_many([(key, SetValue(b"1")) for key in KEYS])
        assert await get(other, "a/c/3") == b"1"

    play(scenario)


def test_a_whole_shard_that_others_write_meanwhile_is_replaced() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        answers_get_lost(storage)
        left = [3]

        async def race(operation: str, key: str) -> None:
            if operation == "write" and key == "a/c/0" and left[0]:
                left[0] -= 1
                await put(other, c0=b"theirs")

        storage.before = race
        await mine.update_many([(key, SetValue(b"1")) for key in KEYS])
        assert [await get(other, key) for key in KEYS] == [b"1"] * 4

    play(scenario)


def test_erasing_every_chunk_of_a_shard() -> None:
    """Of one that is not there nothing is left; of one that is there, an empty one, by two requests."""

    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        answers_get_lost(storage)
        await mine.update_many([(key, ERASE) for key in KEYS])
        assert storage.seen == [("stat", "a/c/0")]
        await put(other, c0=b"0")
        storage.seen.clear()
        await mine.update_many([(key, ERASE) for key in KEYS])
        assert storage.seen == [("stat", "a/c/0"), ("write", "a/c/0")]
        assert await get(other, "a/c/0") is None

    play(scenario)
