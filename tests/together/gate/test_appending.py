"""``shardstore.append`` of many processes: some die at each step, and programs without shardstore read all the while.

What they count is decided by writes, not by a clock; a time is only a bound on how long an append may wait for a dead one.
"""

from __future__ import annotations

import multiprocessing
import time
import warnings
from itertools import pairwise
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.storage import FsspecStore, LocalStore

import shardstore
from shardstore.format.append_record import AppendRecord
from tests.clusters import dask_cluster
from tests.together.gate.append_workers import ENCODING, ROWS_AT_START, Death, rows, work

ROOT = Path(__file__).parents[3]
NEXT = 900_000
"""The number of the first row that is appended at the end."""
MOST_SECONDS = 20.0
"""An append behind a dead one takes its lease, 1 s, and a few requests; machines are busy."""

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata")

Url = tuple[str, dict[str, Any] | None]


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Any:
    """New processes, which import what they run by this one's path."""
    monkeypatch.syspath_prepend(str(ROOT))
    return multiprocessing.get_context("spawn")


@pytest.fixture
def local(tmp_path: Path) -> Url:
    return str(tmp_path / "data.zarr"), None


def plain(url: Url) -> LocalStore | FsspecStore:
    """The store as programs without shardstore open it."""
    target, options = url
    return LocalStore(target) if options is None else FsspecStore.from_url(target, storage_options=options)


def make(url: Url, **encoding: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows(1, ROWS_AT_START).to_zarr(plain(url), encoding={**ENCODING, **encoding}, consolidated=True)


def view(url: Url) -> list[int]:
    """Return the numbers of the rows that a program without shardstore sees by consolidated metadata, and check that each is whole."""
    group = zarr.open_consolidated(plain(url))
    time, a, b = (np.asarray(group[name][...]) for name in ("time", "a", "b"))  # type: ignore[index]
    assert (len(a), b.shape[1]) == (len(time), len(time))
    assert (time != 0).all(), time
    np.testing.assert_array_equal(a, np.repeat(time[:, None], 6, 1))
    np.testing.assert_array_equal(b, np.repeat(time[None], 4, 0))
    return [int(number) for number in time]


class Worker:
    """A process that appends."""

    def __init__(self, context: Any, url: Url, writer: int, appends: int, death: Death | None = None) -> None:
        self._receives: Connection[Any, Any]
        self._receives, sends = context.Pipe(duplex=False)
        self.process: SpawnProcess = context.Process(target=work, args=(sends, *url, writer, appends, death), daemon=True)
        self.process.start()
        sends.close()
        self.may_die = death is not None

    def result(self) -> list[tuple[int, int, int]]:
        """Wait until it ends, and return ``(start, stop, first number)`` of each append that was acknowledged.

        One that was to die lives if its step does not come: another process shows its rows, or two shards are stored at once.
        """
        acknowledged = []
        try:
            while True:
                acknowledged.append(self._receives.recv())
        except EOFError:
            self.process.join()
        assert self.process.exitcode in ((-9, 0) if self.may_die else (0,))
        return acknowledged


def check(url: Url, acknowledged: list[tuple[int, int, int]], shown: list[int]) -> None:
    """Check that what was acknowledged is there once, in its place, and that appends which died are there whole or not at all."""
    for start, stop, first in acknowledged:
        assert shown[start:stop] == list(range(first, first + stop - start))
    assert len(set(shown)) == len(shown)
    places = sorted((start, stop) for start, stop, _ in acknowledged)
    assert all(stop <= start for (_, stop), (start, _) in pairwise(places))


def unacknowledged(acknowledged: list[tuple[int, int, int]], shown: list[int]) -> list[int]:
    found = {number for start, stop, first in acknowledged for number in range(first, first + stop - start)}
    return [number for number in shown[ROWS_AT_START:] if number not in found]


def count_of(writer: int) -> int:
    """Return how many rows the first append of a worker has."""
    return int(np.random.default_rng(writer).integers(1, 8))


DEATHS = {
    "after reserving": (Death("reserved"), False),
    "between two shards": (Death("shard"), False),
    "when all is stored": (Death("done", before=True), False),
    "after it is done": (Death("done"), True),
    "between two documents": (Death("document"), True),
    "before the root document": (Death("root", before=True), True),
    "before it is noted as shown": (Death("shown", before=True), True),
}


def die_and_append_behind(context: Any, url: Url, name: str) -> None:
    death, is_there = DEATHS[name]
    make(url)
    start = list(range(1, 1 + ROWS_AT_START))
    killed = list(range(1000, 1000 + count_of(1)))
    assert Worker(context, url, 1, 1, death).result() == []
    is_shown = name == "before it is noted as shown"
    assert view(url) == start + (killed if is_shown else [])

    began = time.monotonic()
    appended = shardstore.append(url[0], rows(NEXT, 2), "time", storage_options=url[1])
    assert time.monotonic() - began < MOST_SECONDS
    expected = start + (killed if is_there else []) + [NEXT, NEXT + 1]
    assert view(url) == expected
    assert (appended.start, appended.stop) == (len(expected) - 2, len(expected))
    fs, root = fsspec.url_to_fs(url[0], **(url[1] or {}))
    record = AppendRecord.parse("the record", fs.cat_file(f"{root}/time/time.append.json"))
    assert (len(record.evicted), record.open) == (0 if is_there else 1, ())


@pytest.mark.parametrize("name", DEATHS)
def test_the_next_append_ends_whenever_a_writer_dies(context: Any, local: Url, name: str) -> None:
    die_and_append_behind(context, local, name)


def test_the_next_append_ends_where_a_writer_dies_on_s3(context: Any, s3_url: Url) -> None:
    die_and_append_behind(context, s3_url, "between two shards")


def append_from_many(context: Any, url: Url, workers: list[Worker]) -> None:
    """Look until all workers have ended, then append once more, and check everything."""
    looks = 0
    while any(worker.process.is_alive() for worker in workers):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            view(url)
        looks += 1
        time.sleep(0.05)  # the server of some tests is in this process
    assert looks > 1
    acknowledged = [one for worker in workers for one in worker.result()]
    last = shardstore.append(url[0], rows(NEXT, 2), "time", storage_options=url[1])
    shown = view(url)
    check(url, [*acknowledged, (last.start, last.stop, NEXT)], shown)
    rest = unacknowledged([*acknowledged, (last.start, last.stop, NEXT)], shown)
    assert {number // 1000 for number in rest} <= {i for i, worker in enumerate(workers, 1) if worker.may_die}
    # What was not acknowledged is whole: as many rows as the writer wanted to append.
    for writer in {number // 1000 for number in rest}:
        rng = np.random.default_rng(writer)
        counts = [int(rng.integers(1, 8)) for _ in range(10)]
        of_writer = [number for number in rest if number // 1000 == writer]
        assert len(of_writer) == counts[(of_writer[0] % 1000) // 10]
        assert of_writer == list(range(of_writer[0], of_writer[0] + len(of_writer)))


def test_six_processes_of_which_three_die(context: Any, local: Url) -> None:
    make(local)
    deaths = [None, Death("shard", 2), None, Death("reserved"), None, Death("done", before=True)]
    append_from_many(context, local, [Worker(context, local, i, 5, death) for i, death in enumerate(deaths, 1)])


def test_two_processes_of_which_one_dies_on_s3(context: Any, s3_url: Url) -> None:
    make(s3_url)
    append_from_many(context, s3_url, [Worker(context, s3_url, 1, 2), Worker(context, s3_url, 2, 1, Death("done", before=True))])


def dask_rows(first: int, count: int) -> xr.Dataset:
    """In pieces that end inside of chunks."""
    return rows(first, count).chunk(time=3, x=2, y=3)


def test_rows_of_dask_in_other_processes(local: Url, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.syspath_prepend(str(ROOT))
    make(local)
    with dask_cluster(2) as client, client.as_current():
        shardstore.append(local[0], dask_rows(NEXT, 11), "time")
    assert view(local)[ROWS_AT_START:] == list(range(NEXT, NEXT + 11))
