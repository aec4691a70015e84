"""The line of reservations: lost answers, and how long the dead hold up those behind them."""

from __future__ import annotations

import asyncio

import pytest

from shardstore.engine.appending.line import read_record
from shardstore.errors import WriteOutcomeUnknown
from shardstore.format.append_record import EVICTED_KEPT
from shardstore.model.generation import UNCONDITIONAL
from tests.engine.appending.appenders import make, programs
from tests.harness.virtual_time import run_in_virtual_time


def test_a_reservation_that_was_taken_back_before_its_answer_came_is_made_again_by_another_id() -> None:
    """By its old one, which the record has as evicted, rows that are committed would be stored a second time."""

    async def reserve() -> None:
        (program,), place = programs(1, 0)
        await make(place)
        line = program.line()
        await line.find()
        ids: list[str] = []

        async def evict(operation: str, key: str) -> None:
            if operation == "write" and not ids:
                record, generation = await read_record(place, key)
                assert record is not None
                ids.append(record.open[0].id)
                data = record.evict(ids[0]).encode()
                await place.write(key, [data], len(data), place.capabilities.condition_on(generation))
                raise WriteOutcomeUnknown("the answer was lost")

        program.storage.after = evict
        rows = await line.reserve(3)
        assert rows.id not in ids
        await line.wait_until_shown(rows, await line.finish(rows))

    run_in_virtual_time(reserve())


@pytest.mark.parametrize("changes", [0, EVICTED_KEPT + 1])
def test_rows_whose_commit_had_no_answer_are_committed_or_in_doubt_and_never_moved(changes: int) -> None:
    """Also of an old record, which has changed more often than it remembers: then they would be stored a second time."""

    async def finish() -> None:
        (program, later), place = programs(2, 0)
        await make(place)
        first, line = later.line(), program.line()
        await first.find()
        await line.find()
        for _ in range(EVICTED_KEPT + 1 if not changes else 1):
            await first.give_back(await first.reserve(1))
        rows = await first.reserve(3)

        async def lose(operation: str, key: str) -> None:
            if operation == "write":
                program.storage.after = None
                for _ in range(changes):
                    await first.give_back(await first.reserve(1))
                raise WriteOutcomeUnknown("the answer was lost")

        program.storage.after = lose
        if changes:
            with pytest.raises(WriteOutcomeUnknown, match="Look whether they are there"):
                await line.finish(rows)
        else:
            record = await line.finish(rows)
            assert record.committed == 3
            await line.wait_until_shown(rows, record)

    run_in_virtual_time(finish())


def test_many_dead_hold_up_an_append_for_one_lease() -> None:
    """Those that were done too: they are taken back with those before them."""

    async def append() -> None:
        dead, place = programs(5, 0)
        await make(place)
        for program in dead[1:]:
            line = program.line()
            await line.find()
            rows = await line.reserve(2)
            if program.number % 2:
                await line.finish(rows)
        began = asyncio.get_running_loop().time()
        await dead[0].append(3, 7)
        took = asyncio.get_running_loop().time() - began
        assert dead[0].lease_seconds < took < dead[0].lease_seconds + 2
        assert dead[0].acknowledged == {7: slice(0, 3)}

    run_in_virtual_time(append())


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_reservation_that_loses_races_looks_at_the_arrays_once(is_removed: bool) -> None:
    """Once more if the record was removed meanwhile: then the arrays alone say where the rows begin."""

    async def reserve() -> None:
        (program, rival), place = programs(2, 0)
        await make(place)
        line, first = program.line(), rival.line()
        await first.find()
        await line.find()
        await first.give_back(await first.reserve(1))
        races = 3

        async def overtake(operation: str, key: str) -> None:
            nonlocal races
            if operation == "write" and races:
                races -= 1
                await first.wait_until_shown(rows := await first.reserve(2), await first.finish(rows))
                if is_removed and not races:
                    await place.delete(key, UNCONDITIONAL)

        program.storage.before = overtake
        program.storage.seen.clear()
        rows = await line.reserve(3)
        assert (rows.start, rows.stop) == (6, 9)
        assert program.storage.count("read", "a/zarr.json") == 1 + is_removed
        program.storage.before = None
        await line.wait_until_shown(rows, await line.finish(rows))
        assert line.documents.lengths() == dict.fromkeys(("time", "a", "b"), 9)

    run_in_virtual_time(reserve())
