"""Files of a versioned store that several arrays need: each is read once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import zarr

from shardstore.errors import StorageError
from shardstore.model.ranges import EVERYTHING
from shardstore.snapshots import Repository
from shardstore.storage.base import Failed, Found, Read, ReadOutcome
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.faults import Fail, Fault, FaultStorage
from shardstore.testing.latency import LatencyStorage
from shardstore.testing.trace import TraceStorage
from tests.snapshots.repositories import create_array, new_repository, run

NAMES = [f"a{number}" for number in range(30)]


@pytest.fixture
def place(tmp_path: Path) -> str:
    """30 small arrays with long attributes, in one commit: one manifest, one file of attributes."""
    session = new_repository(tmp_path).writable_session()
    for number, name in enumerate(NAMES):
        create_array(session, name, np.full(4, number + 1), (2,), attributes={"text": name * 10_000})
    session.commit("all")
    return str(tmp_path)


def chunk_reads() -> list[Read]:
    return [Read(f"{name}/c/{number}", (EVERYTHING,)) for name in NAMES for number in range(2)]


@pytest.mark.parametrize("how", ["one by one", "together", "at once"])
def test_a_manifest_is_read_once_for_all_arrays_that_it_has(place: str, how: str) -> None:
    trace = TraceStorage(LatencyStorage(MemoryStorage(place), 0.0001))
    storage = Repository.open(trace).readonly_session().storage

    async def read() -> list[list[ReadOutcome]]:
        if how == "one by one":
            return [await storage.read([one]) for one in chunk_reads()]
        if how == "together":
            return [await storage.read(chunk_reads())]
        return list(await asyncio.gather(*(storage.read([one]) for one in chunk_reads())))

    with trace.count() as block:
        outcomes = [outcome for several in run(read()) for outcome in several]
    assert all(isinstance(outcome, Found) for outcome in outcomes)
    assert [event.key[:2] for event in block.events] == ["m/"]


def test_a_file_of_attributes_is_read_once_for_all_nodes(place: str) -> None:
    trace = TraceStorage(LatencyStorage(MemoryStorage(place), 0.0001))
    session = Repository.open(trace).readonly_session()
    with trace.count() as block:
        group = zarr.open_group(session.store, mode="r")
        assert {name: array.attrs["text"] for name, array in group.arrays()} == {name: name * 10_000 for name in NAMES}
    assert [event.key[:2] for event in block.events] == ["a/"]


def test_whoever_waits_for_a_file_gets_its_error_and_the_next_one_reads_it_again(place: str) -> None:
    faults = FaultStorage(LatencyStorage(MemoryStorage(place), 0.0001))
    storage = Repository.open(faults).readonly_session().storage
    faults.plan(Fault(1, Fail(), keys="m/*"))
    outcomes = run(storage.read(chunk_reads()))
    assert len(faults.struck) == 1
    assert all(isinstance(outcome, Failed) and isinstance(outcome.error, StorageError) for outcome in outcomes)
    assert all(isinstance(outcome, Found) for outcome in run(storage.read(chunk_reads())))


def test_whoever_gives_up_takes_the_file_from_nobody(place: str) -> None:
    storage = Repository.open(LatencyStorage(MemoryStorage(place), 0.01)).readonly_session().storage

    async def race() -> list[ReadOutcome]:
        first, second = (asyncio.ensure_future(storage.read([one])) for one in chunk_reads()[:2])
        await asyncio.sleep(0.002)
        first.cancel()
        return await second

    (outcome,) = run(race())
    assert isinstance(outcome, Found)
