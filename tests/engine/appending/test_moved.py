"""Arrays that are copied, moved or removed while rows are appended: the record stays behind, and no acknowledged row goes lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from shardstore.engine.appending.line import read_record
from shardstore.engine.engine import Engine
from shardstore.engine.moving import copy_nodes, move_between
from shardstore.errors import Conflict, NotFound
from shardstore.format.append_record import AppendRecord
from shardstore.model.generation import UNCONDITIONAL
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.trace import TraceStorage
from tests.engine.appending.appenders import Program, make, programs, shown
from tests.engine.hooked import HookedStorage, fresh_memory

KEY = "time/time.append.json"


async def appended(rows: int = 3) -> tuple[Program, MemoryStorage]:
    """A program that has appended rows of 1 to a group, and the place where that lies."""
    (writer,), place = programs(1, 0)
    writer.mean_seconds = 1e-5  # what asks for links in threads is not for virtual time
    await make(place)
    await writer.append(rows, 1)
    inner = place.inner
    assert isinstance(inner, MemoryStorage)
    return writer, inner


async def keys(storage: MemoryStorage) -> set[str]:
    return {info.key async for info in storage.list("")}


async def values(storage: MemoryStorage) -> list[int]:
    rows: list[int] = (await shown(storage))["time"].tolist()
    return rows


async def put(storage: MemoryStorage, key: str, data: bytes) -> None:
    await storage.write(key, [data], len(data), UNCONDITIONAL)


def test_a_copy_has_no_record() -> None:
    async def run() -> None:
        _, place = await appended()
        other = fresh_memory()
        await copy_nodes(Engine(place), "", Engine(other), "")
        assert await keys(other) == await keys(place) - {KEY}
        await Engine(place).copy_prefix("time", "again")
        assert {key for key in await keys(place) if key.startswith("again/")} == {"again/c/0", "again/zarr.json"}

    asyncio.run(run())


def test_objects_of_the_same_name_that_are_no_records_are_copied() -> None:
    async def run() -> None:
        _, place = await appended()
        for key in ("notes.append.json", "x/time.append.json"):  # in a group, and where no node is
            await put(place, key, b"mine")
        other = fresh_memory()
        await copy_nodes(Engine(place), "", Engine(other), "")
        assert {"notes.append.json", "x/time.append.json"} <= await keys(other)
        await Engine(place).copy_prefix(KEY, "record.json")  # what is named itself is copied
        assert "record.json" in await keys(place)

    asyncio.run(run())


def test_a_copy_over_another_node_removes_the_record_of_that() -> None:
    async def run() -> None:
        _, place = await appended()
        _, other = await appended(5)
        await copy_nodes(Engine(place), "", Engine(other), "", overwrite=True)
        assert await keys(other) == await keys(place) - {KEY}
        assert await values(other) == [1, 1, 1]

    asyncio.run(run())


def test_a_move_by_copying_leaves_nothing_behind() -> None:
    async def run() -> None:
        _, place = await appended()
        other = fresh_memory()
        before = await keys(place)
        assert await move_between(Engine(place), "", Engine(other), "") == len(before) - 1
        assert (await keys(place), await keys(other)) == (set(), before - {KEY})
        assert await values(other) == [1, 1, 1]

    asyncio.run(run())


def test_a_store_without_records_costs_what_it_did() -> None:
    async def requests(*, record: bool) -> list[tuple[str, str]]:
        _, place = await appended()
        if not record:
            await place.delete(KEY, UNCONDITIONAL)
        trace = TraceStorage(place)
        await move_between(Engine(trace), "", Engine(fresh_memory()), "")
        return [(event.op, event.key) for event in trace.events if record or "append" in event.key]

    async def run() -> None:
        assert await requests(record=False) == []
        ops = [op for op, key in await requests(record=True) if key == KEY]
        assert ops == ["read", "write", "delete_many"]  # closed between copy and erasure

    asyncio.run(run())


def test_the_record_is_removed_after_the_documents() -> None:
    async def run() -> None:
        _, place = await appended()
        hooked = HookedStorage(place)
        there: dict[str, set[str]] = {}

        async def before(operation: str, key: str) -> None:
            if operation == "delete":
                there[key] = await keys(place)

        hooked.before = before
        await Engine(hooked).erase_prefix("time/")
        assert {KEY, "time/zarr.json"} <= there["time/c/0"]
        assert KEY in there["time/zarr.json"]
        assert "time/zarr.json" not in there[KEY]
        assert not [key for key in await keys(place) if key.startswith("time/")]

    asyncio.run(run())


def test_a_move_is_refused_while_a_reservation_is_open() -> None:
    async def run() -> None:
        writer, place = await appended()
        line = writer.line()
        await line.find()
        reserved = await line.reserve(2)
        with pytest.raises(Conflict, match="under way"):
            await move_between(Engine(place), "", Engine(fresh_memory()), "")
        await line.give_back(reserved)
        await writer.append(2, 2)  # nothing stayed closed
        assert await values(place) == [1, 1, 1, 2, 2]

    asyncio.run(run())


def test_a_move_is_refused_before_all_that_is_committed_is_shown() -> None:
    """The program that has committed the rows could show and acknowledge them while the source is erased."""

    async def run() -> None:
        _, place = await appended()
        await put(place, KEY, AppendRecord("time", 5, 3).encode())
        with pytest.raises(Conflict, match="under way"):
            await move_between(Engine(place), "", Engine(fresh_memory()), "")

    asyncio.run(run())


def test_a_move_that_fails_after_closing_opens_the_record_again() -> None:
    async def run() -> None:
        writer, place = await appended()
        hooked = HookedStorage(place)

        async def after(operation: str, key: str) -> None:
            if operation == "write" and key == KEY:
                hooked.after = nothing
                await put(place, "a/c/9", b"another client's")

        async def nothing(operation: str, key: str) -> None:
            """Do nothing."""

        hooked.after = after
        with pytest.raises(Conflict, match="written to"):
            await move_between(Engine(hooked), "", Engine(fresh_memory()), "")
        await writer.append(1, 2)
        assert await values(place) == [1, 1, 1, 2]

    asyncio.run(run())


def test_no_append_begins_while_the_source_is_erased() -> None:
    async def run() -> None:
        writer, place = await appended()
        hooked = HookedStorage(place)
        refused: list[str] = []

        async def before(operation: str, key: str) -> None:
            if operation == "delete":
                with pytest.raises((Conflict, NotFound)) as raised:
                    await writer.append(1, 2)
                refused.append(str(raised.value))

        hooked.before = before
        await move_between(Engine(hooked), "", Engine(fresh_memory()), "")
        assert "being moved" in refused[0]
        assert "there is no array or group" in refused[-1]

    asyncio.run(run())


def test_a_record_that_stayed_closed_is_closed_to_appends_until_it_is_removed() -> None:
    async def run() -> None:
        writer, place = await appended()
        record, generation = await read_record(place, KEY)
        assert record is not None
        data = record.close(True).encode()
        await place.write(KEY, [data], len(data), place.capabilities.condition_on(generation))
        with pytest.raises(Conflict, match=r"remove 'time/time\.append\.json'"):
            await writer.append(1, 2)
        await place.delete(KEY, UNCONDITIONAL)
        await writer.append(1, 2)
        assert await values(place) == [1, 1, 1, 2]

    asyncio.run(run())


@dataclass
class Way:
    """A way in which the group ``g`` goes, and the place where it is then."""

    change: Callable[[Engine, Engine], Awaitable[object]]
    is_elsewhere: bool = False
    is_gone: bool = False


WAYS = {
    "rename": Way(lambda here, there: here.move_prefix("g", "h")),
    "copy and erase": Way(lambda here, there: move_between(here, "g", there, "h"), is_elsewhere=True),
    "remove": Way(lambda here, there: here.erase_prefix("g/"), is_gone=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_append_during_a_move_is_acknowledged_only_if_its_rows_moved_too(way: str) -> None:
    """The group is moved, or removed, before each of the operations of an append."""
    outcomes: list[str] = []
    while not outcomes or outcomes[-1] != "ended before":
        outcomes.append(asyncio.run(moved_before(len(outcomes), WAYS[way])))
    assert 15 < len(outcomes) < 60
    assert set(outcomes) >= {"refused", "ended before"}
    if way == "copy and erase":
        assert "not moved" in outcomes


async def moved_before(operations: int, way: Way) -> str:
    """Move a group before an append that is under way carries out its next operation; return what came of both."""
    place, target = fresh_memory(), fresh_memory()
    inside = MemoryStorage(f"{place.path}/g")
    await make(inside)
    hooked = HookedStorage(MemoryStorage(inside.path))
    left = operations
    outcome = "ended before"

    async def before(operation: str, key: str) -> None:
        nonlocal left, outcome
        left -= 1
        if left == -1:
            outcome = "moved"
            try:
                await way.change(Engine(MemoryStorage(place.path)), Engine(MemoryStorage(target.path)))
            except Conflict:
                outcome = "not moved"

    writer = Program(1, hooked, random.Random(0))
    hooked.before = before
    try:
        await writer.append(4, 7)
    except (Conflict, NotFound):
        assert outcome == "moved"
        return "refused"
    if outcome != "moved":
        assert await values(inside) == [7] * 4
    elif not way.is_gone:
        assert await values(MemoryStorage(f"{(target if way.is_elsewhere else place).path}/h")) == [7] * 4
    return outcome
