"""Appends of many programs, in virtual time: what was acknowledged is there once, in its place, and no reader sees a part of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from shardstore.engine.appending.view import GrownView
from tests.engine.appending.appenders import Program, check_view, make, programs, shown
from tests.engine.hooked import HookedStorage
from tests.harness.scale import STAGE
from tests.harness.virtual_time import run_in_virtual_time

SEEDS = {"test": 3, "gate": 20, "night": 1000}[STAGE]


async def history(seed: int, *, kills: bool, pauses: bool, clients: int = 4, appends: int = 5) -> None:
    """Let programs append, pause and die, and readers look; then check what was acknowledged."""
    rng = random.Random(f"history {seed}")
    writers, place = programs(clients, seed)
    await make(place)
    tasks = {writer.number: asyncio.ensure_future(writer.work(appends)) for writer in writers}
    mishaps = asyncio.ensure_future(mishap(rng, writers, tasks, kills=kills, pauses=pauses))
    reader = asyncio.ensure_future(look(place, rng))
    outcomes = await asyncio.gather(*tasks.values(), return_exceptions=True)
    for task in (mishaps, reader):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)], outcomes
    await asyncio.sleep(100)  # what the dead sent arrives
    last = programs(1, seed + 1)[0][0]
    last.storage.inner = place.inner
    last.number = 60
    await last.work(1)
    await check(place, [*writers, last])


async def mishap(rng: random.Random, writers: list[Program], tasks: dict[int, asyncio.Task[None]], *, kills: bool, pauses: bool) -> None:
    while True:
        await asyncio.sleep(rng.expovariate(1))
        writer = rng.choice(writers)
        if kills and rng.random() < 0.2:
            writer.kill(tasks[writer.number])
        elif pauses:
            writer.paused_until = asyncio.get_running_loop().time() + rng.choice([0.5, 9.0])


async def look(place: HookedStorage, rng: random.Random) -> None:
    while True:
        await asyncio.sleep(rng.expovariate(4))
        check_view(await shown(place.inner))


async def check(place: HookedStorage, writers: list[Program]) -> None:
    rows = await shown(place.inner)
    check_view(rows)
    values = rows["time"]
    acknowledged = {value: where for writer in writers for value, where in writer.acknowledged.items()}
    for value, where in acknowledged.items():
        assert (values[where] == value).all(), (value, where, values)
        assert np.count_nonzero(values == value) == where.stop - where.start, (value, where, values)
    places = sorted((where.start, where.stop) for where in acknowledged.values())
    assert all(stop <= start for (_, stop), (start, _) in pairwise(places))
    # What a dead program had committed is there whole: rows of one value lie together.
    for value in set(values.tolist()):
        rows_of_value = np.flatnonzero(values == value)
        assert rows_of_value[-1] - rows_of_value[0] + 1 == len(rows_of_value), (value, values)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    run_in_virtual_time(coroutine)


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize(("kills", "pauses"), [(False, False), (True, False), (False, True), (True, True)])
def test_histories(seed: int, kills: bool, pauses: bool) -> None:
    run(history(seed, kills=kills, pauses=pauses))


def test_without_the_fence_rows_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(self: GrownView) -> None:
        """Ask nothing."""

    monkeypatch.setattr(GrownView, "_ask", ask)
    failed = 0
    for seed in range(200):
        try:
            run(history(seed, kills=False, pauses=True))
        except AssertionError:
            failed += 1
            break
    assert failed
