"""Shards of which the last chunk is erased, while somebody writes to them, and where a DELETE cannot be conditional."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from shardstore.engine.actions import ERASE, SetValue
from shardstore.engine.engine import Engine
from shardstore.errors import InvalidInput
from tests.engine.clients import get, play, put
from tests.engine.hooked import HookedStorage, document


def test_a_chunk_written_while_its_shard_is_being_emptied_does_not_vanish() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        await put(mine, c0=b"0")

        async def race(operation: str, key: str) -> None:
            if operation == "delete":
                storage.before = None
                await put(other, c1=b"theirs")

        storage.before = race
        await mine.update(("a/c/0", ERASE))
        assert await get(mine, "a/c/0") is None
        assert await get(mine, "a/c/1") == b"theirs"

    play(scenario)


def test_where_delete_has_no_condition_an_emptied_shard_is_swapped_for_its_index() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        storage.capabilities_override = replace(storage.inner.capabilities, conditional_delete=False)
        await put(mine, c0=b"0")
        await mine.update(("a/c/0", ERASE))
        assert storage.count("delete") == 0
        assert await get(mine, "a/c/0") is None
        assert [v.key async for v in other.list("a/c/")] == []
        await put(other, c0=b"again")
        assert await get(mine, "a/c/0") == b"again"

    play(scenario)


def test_an_array_whose_emptied_shards_could_not_be_deleted_can_be() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        storage.capabilities_override = replace(storage.inner.capabilities, conditional_delete=False)
        await put(mine, c0=b"0", c5=b"5")
        await mine.update_many([("a/c/0", ERASE), ("a/c/5", ERASE)])
        assert await storage.inner.stat("a/c/0") is not None
        await mine.update(("a/zarr.json", SetValue(document((16,), (2,)))))  # another chunk shape: there are no chunks
        await mine.update(("a/zarr.json", ERASE))
        assert await storage.inner.stat("a/zarr.json") is None

    play(scenario)


def emptied_in_the_way(storage: HookedStorage, meanwhile: Callable[[], Awaitable[None]]) -> None:
    """Emptied shards stay, and just before the second of them is deleted something happens."""
    storage.capabilities_override = replace(storage.inner.capabilities, conditional_delete=False)

    async def before(operation: str, key: str) -> None:
        if (operation, key) == ("delete", "a/c/1"):
            storage.before = None
            await meanwhile()

    storage.before = before


def test_a_chunk_that_is_written_while_its_array_is_laid_out_anew_is_not_lost() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        emptied_in_the_way(storage, lambda: other.update(("a/c/5", SetValue(b"!"))))
        await put(mine, c0=b"0", c5=b"5")
        await mine.update_many([("a/c/0", ERASE), ("a/c/5", ERASE)])
        with pytest.raises(InvalidInput, match="while it has chunks"):
            await mine.update(("a/zarr.json", SetValue(document((16,), (2,)))))
        assert storage.before is None
        assert [await get(Engine(storage.inner), key) for key in ("a/c/0", "a/c/5")] == [None, b"!"]

    play(scenario)


def test_a_chunk_of_an_array_that_is_created_while_its_forerunner_is_erased_is_not_lost() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        async def create() -> None:
            await other.update(("a/zarr.json", SetValue(document((16,), (1,)))))
            await other.update(("a/c/5", SetValue(b"!")))

        emptied_in_the_way(storage, create)
        await put(mine, c0=b"0", c5=b"5")
        await mine.update_many([("a/c/0", ERASE), ("a/c/5", ERASE)])
        await mine.update(("a/zarr.json", ERASE))
        assert storage.before is None
        assert [await get(Engine(storage.inner), key) for key in ("a/c/0", "a/c/5")] == [None, b"!"]

    play(scenario)
