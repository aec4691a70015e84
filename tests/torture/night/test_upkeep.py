"""Compaction and repair, again and again, beside four writers and four readers: no write is lost, and no value is wrong."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardstore
from shardstore.opening.open import open_storage
from tests.harness.scale import sized
from tests.shards import Sharding, presented, sharded_arrays
from tests.stored import StorageObjects
from tests.torture.conftest import Record
from tests.torture.crew import Aborted, Crew, Job
from tests.torture.places import Place
from tests.torture.race_workers import create
from tests.torture.upkeep_workers import (
    CELLS,
    CHUNKS,
    PATH,
    READERS,
    SLOTS,
    WORDS,
    WRITERS,
    Done,
    check,
    compact,
    key,
    quarantine_of,
    read,
    repair,
    write,
)

ROUNDS = sized(60, 2)


class Threads:
    """What a crew is for processes: tasks that begin together, in threads of this process."""

    def __init__(self, count: int, cells: int) -> None:
        self.board = np.zeros(cells, np.int64)
        self._barrier = threading.Barrier(count)
        self._is_aborted = False

    def start(self) -> None:
        self._barrier.wait()

    def check(self) -> None:
        if self._is_aborted:
            raise Aborted

    def run(self, jobs: list[Job]) -> list[Any]:
        with ThreadPoolExecutor(len(jobs)) as executor:
            futures = [executor.submit(self._one, job) for job in jobs]
        for future in futures:
            error = future.exception()
            if error is not None and not isinstance(error, Aborted | threading.BrokenBarrierError):
                raise error
        return [future.result() for future in futures]

    def _one(self, job: Job) -> Any:
        try:
            return job.task(*job.arguments, self)
        except BaseException:
            self._is_aborted = True
            self._barrier.abort()
            raise


def prepared(place: Place) -> Sharding:
    create(place.store(chunks_per_shard=(SLOTS,)), PATH, CHUNKS, WORDS)
    return sharded_arrays(StorageObjects(open_storage(place.url, place.storage_options or None)))[PATH]


def jobs_of(place: Place, layout: Sharding) -> list[Job]:
    writers = [Job(write, (place, writer)) for writer in range(WRITERS)]
    readers = [Job(read, (place, reader)) for reader in range(READERS)]
    return [*writers, *readers, Job(compact, (place, layout, ROUNDS)), Job(repair, (place, layout, ROUNDS))]


def judge(place: Place, results: list[Done], record: Record) -> None:
    """All that was acknowledged is there at the end, by a second reader, and no shard holds a dead byte any more."""
    objects = StorageObjects(open_storage(place.url, place.storage_options or None))
    shardstore.repair(objects.storage, allow_reverting=True, quarantine=quarantine_of(place))
    shardstore.compact(objects.storage, dead_ratio=0.0)
    values = presented(objects)
    writes, reads = results[:WRITERS], results[WRITERS : WRITERS + READERS]
    for chunk, version in (item for done in writes for item in done.versions.items()):
        check(chunk, values.get(key(chunk)), version, version)
    compacted, repaired = results[-2:]
    assert min(done.operations for done in (*writes, *reads)) > 0
    record(
        f"{place.kind}: {sum(d.operations for d in writes)} writes ({sum(d.conflicts for d in writes)} conflicts), "
        f"{sum(d.operations for d in reads)} chunks read, {compacted.operations} shards compacted, {repaired.operations} repaired; "
        f"{sum(d.waited for d in (*writes, *reads))} met a torn shard; 0 lost, 0 wrong"
    )


@pytest.fixture(params=["memory", "local"])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(request.param, str(tmp_path / "root") if request.param == "local" else f"memory://{uuid.uuid4().hex}/root")


@pytest.mark.night
def test_in_threads(here: Place, record: Record) -> None:
    layout = prepared(here)
    jobs = jobs_of(here, layout)
    threads = Threads(len(jobs), CELLS)
    judge(here, threads.run(jobs), record)


@pytest.mark.night
def test_in_processes(place: Place, crew: Crew, record: Record) -> None:
    if ROUNDS < 10 and place.kind != "local":
        pytest.skip("servers only at full size")
    judge(place, crew.run(jobs_of(place, prepared(place)), CELLS), record)
