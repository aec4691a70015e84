"""Documents that are changed by what they are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from shardstore.engine.actions import Revise, SetValue
from shardstore.engine.engine import Engine
from shardstore.engine.options import EngineOptions
from shardstore.errors import InvalidInput, ShardStoreError
from shardstore.model.ranges import EVERYTHING
from tests.engine.hooked import HookedStorage, document, fresh_memory

OPTIONS = EngineOptions(chunks_per_shard=(4,))
KEY = "a/zarr.json"


def with_attribute(name: str, value: object) -> Callable[[bytes | None], bytes | None]:
    def compute(old: bytes | None) -> bytes:
        assert old is not None
        loaded: dict[str, Any] = json.loads(old)
        return json.dumps(loaded | {"attributes": loaded["attributes"] | {name: value}}).encode()

    return compute


async def presented(engine: Engine, key: str = KEY) -> Any:
    value = await engine.get((key, EVERYTHING))
    return None if value is None else json.loads(bytes(value))


async def with_array() -> Engine:
    engine = Engine(fresh_memory(), OPTIONS)
    await engine.update((KEY, SetValue(document((8,), (1,)))))
    await engine.update(("a/c/1", SetValue(b"1")))
    return engine


def test_many_at_once_lose_nothing() -> None:
    async def revise() -> None:
        first = await with_array()
        engines = [Engine(first.storage, OPTIONS) for _ in range(4)]
        await asyncio.gather(*(e.update((KEY, Revise(with_attribute(f"k{i}-{j}", j)))) for i, e in enumerate(engines) for j in range(5)))
        attributes = (await presented(first))["attributes"]
        assert attributes == {f"k{i}-{j}": j for i in range(4) for j in range(5)}
        value = await first.get(("a/c/1", EVERYTHING))
        assert bytes(value or b"") == b"1"

    asyncio.run(revise())


def test_nothing_there_and_nothing_wanted() -> None:
    async def revise() -> None:
        engine = await with_array()
        seen: list[bytes | None] = []

        def nothing(old: bytes | None) -> None:
            seen.append(old)

        await engine.update(("b/zarr.json", Revise(nothing)))
        assert seen == [None]
        await engine.update(("g/zarr.json", Revise(lambda old: b'{"zarr_format": 3, "node_type": "group"}')))
        assert await presented(engine, "g/zarr.json") == {"zarr_format": 3, "node_type": "group"}
        await engine.update(("g/zarr.json", Revise(lambda old: None)))
        assert await presented(engine, "g/zarr.json") is None
        with pytest.raises(InvalidInput, match="cannot be erased while it has shards"):
            await engine.update((KEY, Revise(lambda old: None)))
        assert await presented(engine) is not None

    asyncio.run(revise())


def test_an_error_changes_nothing() -> None:
    async def revise() -> None:
        engine = await with_array()
        before = await presented(engine)

        def refuse(old: bytes | None) -> bytes:
            raise InvalidInput("no")

        with pytest.raises(ShardStoreError, match="no"):
            await engine.update((KEY, Revise(refuse)))
        assert await presented(engine) == before

    asyncio.run(revise())


def test_what_is_left_as_it_is_is_not_written() -> None:
    async def revise() -> None:
        engine = await with_array()
        before = await engine.storage.stat(KEY)
        await engine.update((KEY, Revise(lambda old: old)))
        assert await engine.storage.stat(KEY) == before

    asyncio.run(revise())


def test_in_a_transaction() -> None:
    async def revise() -> None:
        engine = await with_array()
        await engine.begin()
        await engine.update((KEY, Revise(with_attribute("one", 1))))
        await engine.update((KEY, Revise(with_attribute("two", 2))))
        assert (await presented(engine))["attributes"] == {"one": 1, "two": 2}
        assert (await presented(Engine(engine.storage, OPTIONS)))["attributes"] == {}
        await engine.commit()
        assert (await presented(Engine(engine.storage, OPTIONS)))["attributes"] == {"one": 1, "two": 2}

    asyncio.run(revise())


def test_a_removal_in_a_transaction() -> None:
    async def revise() -> None:
        engine = await with_array()
        await engine.update(("g/zarr.json", SetValue(b'{"zarr_format": 3, "node_type": "group"}')))
        await engine.begin()
        await engine.update(("g/zarr.json", Revise(lambda old: None)))
        assert await presented(engine, "g/zarr.json") is None
        await engine.commit()
        assert await presented(engine, "g/zarr.json") is None

    asyncio.run(revise())


def test_what_is_removed_is_what_was_seen() -> None:
    """Another client changes the document between the look at it and its removal: the decision is made again."""

    async def revise() -> None:
        place = HookedStorage(fresh_memory())
        engine, other = Engine(place, OPTIONS), Engine(place.inner, OPTIONS)
        group = b'{"zarr_format": 3, "node_type": "group", "attributes": {"by": "%s"}}'
        await engine.update(("g/zarr.json", SetValue(group % b"me")))

        async def change(operation: str, key: str) -> None:
            if operation == "delete":
                place.before = None
                await other.update(("g/zarr.json", SetValue(group % b"you")))

        place.before = change
        await engine.update(("g/zarr.json", Revise(lambda old: None if b"me" in (old or b"") else old)))
        assert (await presented(engine, "g/zarr.json"))["attributes"] == {"by": "you"}

    asyncio.run(revise())


def test_a_value_that_is_no_document() -> None:
    async def revise() -> None:
        engine = await with_array()
        for key in ("a/c/1", "notes.txt"):
            await engine.update((key, SetValue(b"1")))
            await engine.update((key, Revise(lambda old: (old or b"") + b"2")))
            assert bytes(await engine.get((key, EVERYTHING)) or b"") == b"12"

    asyncio.run(revise())
