"""A shard that changes with every request: the last attempt, one request that holds chunk and index, knows no false damage."""

from __future__ import annotations

import pytest

from shardstore.engine.actions import ERASE
from shardstore.engine.engine import Engine
from tests.engine.clients import get, play, put
from tests.engine.hooked import HookedStorage


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("short", [1, 930, 990])  # the request begins past the end, inside the index, and one that reaches it
def test_a_shard_that_shrinks_under_the_settling_request_is_not_damaged(first: int, short: int) -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        number = first
        written = {b"v0"}
        await put(other, c0=b"x" * 1000, c1=b"v0")

        async def rewrite(operation: str, key: str) -> None:
            nonlocal number
            if operation == "read" and key == "a/c/0":
                number += 1
                written.add(b"v%d" % number)
                await put(other, c0=b"x" * (1000 if number % 2 else short), c1=b"v%d" % number)

        storage.before = rewrite
        assert await get(mine, "a/c/1") in written

    play(scenario)


def test_a_chunk_that_is_erased_while_the_shard_changes_is_missing_and_not_damaged() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        number = 0
        await put(other, c0=b"x", c1=b"v")

        async def rewrite(operation: str, key: str) -> None:
            nonlocal number
            if operation == "read" and key == "a/c/0":
                number += 1
                await put(other, c0=b"x" * number)
                if number >= 9:  # the index that the settling request goes by: without the chunk
                    await other.update(("a/c/1", ERASE))

        storage.before = rewrite
        assert await get(mine, "a/c/1") is None
        assert number >= 9

    play(scenario)
