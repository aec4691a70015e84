"""Eight processes append to one versioned store: all rows are there once, in the order of the commits, and every snapshot is whole."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

from shardstore.snapshots import Repository
from tests.harness.scale import sized
from tests.snapshots.append_workers import Acknowledged, append_rounds, begin

PROCESSES, ROUNDS, BEFORE = 8, sized(25, 5), 8


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        yield pool


def appended(pool: ProcessPoolExecutor, url: str, counts: list[int]) -> list[Acknowledged]:
    """Return what eight processes have appended, in the order of the rows."""
    tasks = [pool.submit(append_rounds, url, worker, ROUNDS, counts) for worker in range(1, PROCESSES + 1)]
    return sorted((one for task in tasks for one in task.result()), key=lambda one: one.start)


@pytest.mark.parametrize(
    ("time_chunk", "tas_chunk", "counts"),
    [(4, 2, [4, 8]), (1000, 2, [4, 8]), (4, 3, [1, 2, 3, 4, 5, 6, 7])],
    ids=["aligned", "coordinate inside a chunk", "inside chunks"],
)
def test_eight_processes_append(pool: ProcessPoolExecutor, tmp_path: Path, time_chunk: int, tas_chunk: int, counts: list[int]) -> None:
    url = str(tmp_path)
    begin(url, time_chunk, tas_chunk, BEFORE)
    done = appended(pool, url, counts)
    assert len(done) == PROCESSES * ROUNDS
    numbers = np.concatenate([np.arange(BEFORE), *(np.arange(one.first, one.first + one.count) for one in done)]) + 1
    starts = np.cumsum([BEFORE, *(one.count for one in done)])
    assert [one.start for one in done] == starts[:-1].tolist()  # neither an overlap nor a hole

    repo = Repository.open(url)
    assert [info.id for info in repo.ancestry("main")][::-1][2:] == [one.snapshot for one in done]
    for one, stop in list(zip(done, starts[1:], strict=True))[:: sized(1, 7)]:
        check(repo, one.snapshot, numbers[:stop])
    check(repo, repo.lookup_branch("main"), numbers)
    assert repo.verify().is_sound


def check(repo: Repository, snapshot: str, numbers: np.ndarray) -> None:
    """Compare a snapshot with the rows that it should show, by xarray and by zarr."""
    session = repo.readonly_session(snapshot_id=snapshot)
    for consolidated in (True, False):
        shown = xr.open_zarr(session.store, consolidated=consolidated).load()
        np.testing.assert_array_equal(shown["time"], numbers)
        np.testing.assert_array_equal(shown["tas"], numbers[:, None] * 10.0 + np.arange(3))
    np.testing.assert_array_equal(zarr.open_array(session.store, path="tas", mode="r")[:, 1], numbers * 10.0 + 1)
