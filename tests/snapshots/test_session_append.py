"""``session.append``: rows behind whatever is there, once, in the order of commits, whoever commits first."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

import shardstore
from shardstore.errors import InvalidInput, NotFound, ReadOnly, StorageError, Unsupported, WriteOutcomeUnknown
from shardstore.snapshots import BasicConflictSolver, ConflictError, Repository, Session
from shardstore.snapshots.catalog import Pointer
from tests.snapshots.repositories import new_repository, traced_repository

Change = Callable[[Session], object]
ALIGNED, INSIDE = {"time": 4, "tas": 2}, {"time": 365, "tas": 2}
"""Chunks along time, of the coordinate and of a variable: border of both, and of the variable only."""


def data(first: int, rows: int) -> xr.Dataset:
    """Return rows of which each is different, and none is a fill value."""
    numbers = np.arange(first, first + rows) + 1
    return xr.Dataset(
        {"tas": (("time", "x"), numbers[:, None] * 10.0 + np.arange(3)), "height": ((), 2.0)},
        coords={"time": np.datetime64("2000-01-01", "ns") + numbers * np.timedelta64(1, "D"), "x": np.arange(3)},
    )


def begin(repo: Repository, chunks: dict[str, int] = ALIGNED, rows: int = 8, path: str = "") -> None:
    with repo.transaction(message="begin") as store:
        first = data(0, rows)
        first["tas"].encoding = {"chunks": (chunks["tas"], 3), "scale_factor": 0.5, "dtype": "i4", "_FillValue": -1}
        first["time"].encoding = {"chunks": (chunks["time"],), "units": "hours since 1990-01-01", "dtype": "i8"}
        first.to_zarr(store, group=path or None, mode="w" if not path else "a")


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    repo = new_repository(tmp_path)
    begin(repo)
    return repo


def shown(repo: Repository, path: str = "", **options: Any) -> xr.Dataset:
    dataset: xr.Dataset = xr.open_zarr(repo.readonly_session().store, group=path or None, **options).load()
    return dataset


def assert_rows(repo: Repository, *rows: tuple[int, int], path: str = "") -> None:
    """Check that these rows, (first value, number), follow those that were there in the beginning, for xarray and for zarr."""
    expected = xr.concat([data(first, number) for first, number in rows], "time", data_vars="minimal", coords="minimal", compat="override")
    for consolidated in (True, False):
        xr.testing.assert_equal(shown(repo, path, consolidated=consolidated), expected)
    group = zarr.open_group(repo.readonly_session().store, path=path, mode="r")
    assert {group["time"].shape[0], group["tas"].shape[0]} == {expected.sizes["time"]}  # type: ignore[union-attr]


def let_rows_be_first(repo: Repository, rows: list[tuple[int, int]]) -> None:
    """Let another process commit these rows, one piece before each of the next swaps of the catalog's pointer."""
    swap = repo._store.catalog.swap

    def commit(first: int, number: int) -> None:
        Repository.open(repo.url).writable_session().append(data(first, number), "time", message="theirs")

    async def swap_late(name: str, before: Pointer | None, after: Pointer) -> Pointer:
        if rows:
            await asyncio.to_thread(commit, *rows.pop(0))
        return await swap(name, before, after)

    repo._store.catalog.swap = swap_late  # type: ignore[method-assign]


# -- alone -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "a/b"])
def test_rows_are_appended_and_committed(tmp_path: Path, path: str) -> None:
    repo = new_repository(tmp_path)
    begin(repo, path=path)
    session = repo.writable_session()
    assert session.append(data(8, 3), "time", path=path, message="3 days", metadata={"by": "me"}) == slice(8, 11)
    assert session.snapshot_id == repo.lookup_branch("main")
    info = repo.lookup_snapshot(session.snapshot_id)
    assert (info.message, info.metadata) == ("3 days", {"by": "me"})
    assert_rows(repo, (0, 11), path=path)
    assert session.read_only
    with pytest.raises(ReadOnly):
        session.append(data(11, 1), "time", path=path, message="more")
    assert repo.writable_session().append(data(11, 1), "time", path=path, message="more") == slice(11, 12)
    assert_rows(repo, (0, 12), path=path)


def test_it_takes_data_arrays_arrays_and_dask(repo: Repository) -> None:
    with repo.transaction(message="more") as store:
        xr.Dataset({"log": ("t", np.arange(3))}).to_zarr(store, group="logs", mode="a", encoding={"log": {"chunks": (2,)}})
        zarr.create_array(store, name="other/wide", shape=(2, 3), chunks=(2, 2), dtype="i4", dimension_names=["y", "t"])

    def append(rows: Any, dim: str, path: str) -> slice:
        return repo.writable_session().append(rows, dim, path=path, message="rows")

    assert append(xr.DataArray([3, 4], dims="t", name="log"), "t", path="logs") == slice(3, 5)
    assert append([5], "t", path="logs/log") == slice(5, 6)
    assert append(xr.DataArray([6, 7, 8], dims="t", name="log").chunk(t=1), "t", path="logs") == slice(6, 9)
    assert append(np.ones((2, 2)), "t", path="other/wide") == slice(3, 5)
    dask_array = pytest.importorskip("dask.array")
    assert append(dask_array.full((2, 3), 2, chunks=(1, 1)), "t", path="other/wide") == slice(5, 8)
    group = zarr.open_group(repo.readonly_session().store, mode="r", use_consolidated=False)
    assert np.asarray(group["logs/log"]).tolist() == list(range(9))
    assert np.asarray(group["other/wide"])[0].tolist() == [0, 0, 0, 1, 1, 2, 2, 2]
    assert_rows(repo, (0, 8))


def test_no_rows_are_no_commit(repo: Repository) -> None:
    tip, session = repo.lookup_branch("main"), repo.writable_session()
    assert session.append(data(0, 0), "time", message="nothing") == slice(8, 8)
    assert (repo.lookup_branch("main"), session.read_only, session.has_uncommitted_changes) == (tip, False, False)


def test_what_does_not_fit_is_refused_and_changes_nothing(repo: Repository) -> None:
    session, good = repo.writable_session(), data(8, 2)
    for rows, arguments, error in (
        (good.drop_vars("tas"), {}, "no 'tas' along 'time'"),
        (good.assign(new=good["tas"]), {}, "no 'new' along 'time'"),
        (good.isel(x=slice(2)), {}, "order and all other sizes"),
        (good, {"dim": "t"}, "no array at '/' has the dimension 't'"),
        (good, {"dim": 0}, "not the name of a dimension"),
        (good, {"path": "time"}, "is an array"),
        (np.ones((2, 3)), {}, "is a group"),
        (good, {"message": ""}, "needs a message"),
        (good, {"rebase_tries": -1}, "rebase_tries"),
    ):
        with pytest.raises(InvalidInput, match=error):
            session.append(rows, **{"dim": "time", "message": "rows", **arguments})  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="nowhere"):
        session.append(good, "time", path="nowhere", message="rows")
    assert not session.has_uncommitted_changes
    session.append(good, "time", message="rows")
    assert_rows(repo, (0, 10))


def test_lengths_that_differ_are_refused(repo: Repository) -> None:
    with repo.transaction(message="longer") as store:
        zarr.open_array(store, path="tas").resize((9, 3))
    with pytest.raises(InvalidInput, match="different lengths"):
        repo.writable_session().append(data(8, 1), "time", message="rows")


def test_a_session_does_not_append_in_a_transaction(repo: Repository) -> None:
    """Its chunks would be held back, and the commit would show fill values."""
    session = repo.writable_session("main")
    with pytest.raises(InvalidInput, match="transaction"), session.store.transaction():
        session.append(data(8, 2), "time", message="rows")
    assert_rows(repo, (0, 8))


def test_a_session_with_changes_or_one_to_read_does_not_append(repo: Repository) -> None:
    session = repo.writable_session()
    zarr.open_group(session.store, mode="r+").attrs["one"] = 1
    with pytest.raises(InvalidInput, match="has changes"):
        session.append(data(8, 1), "time", message="rows")
    with pytest.raises(ReadOnly):
        repo.readonly_session().append(data(8, 1), "time", message="rows")
    with pytest.raises(InvalidInput, match="a fork cannot append"):
        repo.writable_session().fork().append(data(8, 1), "time", message="rows")


def test_after_an_error_nothing_is_left_and_the_session_is_at_its_end(repo: Repository) -> None:
    class Broken(RuntimeError):
        pass

    dask_array = pytest.importorskip("dask.array")

    def fail(block: Any) -> Any:
        raise Broken

    session, rows = repo.writable_session(), data(8, 4)
    rows["tas"] = (
        ("time", "x"),
        dask_array.map_blocks(fail, dask_array.from_array(rows["tas"].data, chunks=(2, 3)), dtype="f8", meta=np.ones((0, 0))),
    )
    with pytest.raises(Broken):
        session.append(rows, "time", message="rows")
    assert not session.has_uncommitted_changes
    with pytest.raises(ReadOnly, match="an append to it has failed"):
        session.append(data(8, 4), "time", message="rows")
    assert_rows(repo, (0, 8))


# -- others are first --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [ALIGNED, INSIDE], ids=["aligned", "inside"])
@pytest.mark.parametrize("theirs", [[4], [3], [4, 8], [1, 2, 3]], ids=str)
def test_rows_come_behind_those_that_were_committed_first(tmp_path: Path, chunks: dict[str, int], theirs: list[int]) -> None:
    repo = new_repository(tmp_path)
    begin(repo, chunks)
    let_rows_be_first(repo, [(100 * number, rows) for number, rows in enumerate(theirs, 1)])
    session = repo.writable_session()
    stop = 8 + sum(theirs)
    assert session.append(data(8, 3), "time", message="ours") == slice(stop, stop + 3)
    assert_rows(repo, (0, 8), *((100 * number, rows) for number, rows in enumerate(theirs, 1)), (8, 3))
    assert repo.verify().is_sound
    xr.testing.assert_equal(xr.open_zarr(session.store).load(), shown(repo))


def test_an_old_session_appends_to_the_newest_snapshot(repo: Repository) -> None:
    old = repo.writable_session()
    xr.open_zarr(old.store).load()
    zarr.open_array(old.store, path="tas")
    for first in (8, 11):
        repo.writable_session().append(data(first, 3), "time", message="theirs")
    assert old.append(data(14, 2), "time", message="ours") == slice(14, 16)
    assert_rows(repo, (0, 16))


def delete(path: str) -> Change:
    def change(session: Session) -> None:
        del zarr.open_group(session.store, mode="r+")[path]

    return change


def again(session: Session) -> None:
    """Make the dataset again, with other chunks and another encoding."""
    other = data(50, 5)
    other["tas"].encoding, other["time"].encoding = {"chunks": (3, 2)}, {"chunks": (5,)}
    other.to_zarr(session.store, mode="w")


def shorter(session: Session) -> None:
    for path, shape in (("tas", (5, 3)), ("time", (5,))):
        zarr.open_array(session.store, path=path).resize(shape)


MET: dict[str, tuple[Change, list[tuple[int, int]]]] = {
    "a correction": (
        lambda session: data(0, 8)[["tas"]].drop_vars(["time", "x"]).to_zarr(session.store, mode="r+", region={"time": slice(0, 8)}),
        [(0, 8)],
    ),
    "a shorter array": (shorter, [(0, 5)]),
    "another attribute": (
        lambda session: zarr.open_array(session.store, path="time").attrs.update(comment="checked"),
        [(0, 8)],
    ),
    "another dataset": (again, [(50, 5)]),
    "xarray's append": (lambda session: data(100, 4).to_zarr(session.store, append_dim="time"), [(0, 8), (100, 4)]),
    "xarray's append of some rows": (lambda session: data(100, 3).to_zarr(session.store, append_dim="time"), [(0, 8), (100, 3)]),
    "nothing that concerns it": (lambda session: zarr.create_group(session.store, path="more"), [(0, 8)]),
}


@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
@pytest.mark.parametrize("name", MET)
def test_other_commits_are_met(repo: Repository, name: str, isolation: Any) -> None:
    change, there = MET[name]
    session, other = repo.writable_session(isolation=isolation), repo.writable_session()
    change(other)
    other.commit("theirs")
    before = sum(rows for _, rows in there)
    assert session.append(data(200, 4), "time", message="ours") == slice(before, before + 4)
    with repo.transaction(message="consolidate") as store:
        zarr.consolidate_metadata(store)
    assert_rows(repo, *there, (200, 4))


def test_units_that_were_changed_meanwhile_are_those_of_the_rows(repo: Repository) -> None:
    """Values that were encoded by the old units would be other times."""
    session, other = repo.writable_session(), repo.writable_session()
    array = zarr.open_array(other.store, path="time")
    array[...] = np.asarray(array[...]) - 24
    array.attrs["units"] = "hours since 1990-01-02"
    zarr.consolidate_metadata(other.store)
    other.commit("theirs")
    session.append(data(8, 4), "time", message="ours")
    assert_rows(repo, (0, 12))


def test_a_variable_that_was_added_meanwhile_is_missing_in_the_data(repo: Repository) -> None:
    session, other = repo.writable_session(), repo.writable_session()
    zarr.create_array(other.store, name="pr", shape=(8,), chunks=(4,), dtype="i4", dimension_names=["time"])
    tip = other.commit("theirs")
    with pytest.raises(InvalidInput, match="no 'pr' along 'time'"):
        session.append(data(8, 4), "time", message="ours")
    assert repo.lookup_branch("main") == tip
    assert not session.has_uncommitted_changes


def test_what_is_gone_is_an_error(repo: Repository) -> None:
    session, other = repo.writable_session(), repo.writable_session()
    delete("tas")(other)
    other.commit("theirs")
    with pytest.raises(InvalidInput, match="has no 'tas'"):
        session.append(data(8, 4), "time", message="ours")
    first = list(repo.ancestry())[-1]
    session = repo.writable_session()
    repo.reset_branch("main", first.id)
    with pytest.raises(ConflictError, match="was reset"):
        session.append(data(8, 4).drop_vars("tas"), "time", message="ours")


def test_what_the_session_has_read_before_counts_if_it_is_serializable(repo: Repository) -> None:
    """The rows may depend on it. What the append itself reads does not count: it is read again."""
    session = repo.writable_session(isolation="serializable")
    rows = data(200, 2) + float(xr.open_zarr(session.store)["tas"][-1, 0])
    other = repo.writable_session()
    other.append(data(100, 4), "time", message="theirs")
    with pytest.raises(ConflictError, match=r"were read|was read"):
        session.append(rows, "time", message="ours")
    assert repo.lookup_branch("main") == other.snapshot_id


@pytest.mark.parametrize("chunks", [ALIGNED, INSIDE], ids=["aligned", "inside"])
def test_it_gives_up_after_some_tries(tmp_path: Path, chunks: dict[str, int]) -> None:
    repo = new_repository(tmp_path)
    begin(repo, chunks)
    let_rows_be_first(repo, [(100, 4), (200, 4), (300, 4)])
    with pytest.raises(ConflictError, match=r"other writers were first 2 times\. Nothing was changed; append in a new session"):
        repo.writable_session().append(data(8, 4), "time", message="ours", rebase_tries=2)
    assert_rows(repo, (0, 8), (100, 4), (200, 4), (300, 4))


def test_an_answer_that_was_lost_commits_once(repo: Repository) -> None:
    swap = repo._store.catalog.swap

    async def lost(name: str, before: Pointer | None, after: Pointer) -> Pointer:
        await swap(name, before, after)
        repo._store.catalog.swap = swap  # type: ignore[method-assign]
        raise WriteOutcomeUnknown("the answer was lost")

    repo._store.catalog.swap = lost  # type: ignore[method-assign]
    session = repo.writable_session()
    with pytest.raises(WriteOutcomeUnknown):
        session.append(data(8, 4), "time", message="ours")
    repo.writable_session().append(data(100, 4), "time", message="theirs")
    session.commit("ours")
    assert_rows(repo, (0, 12), (100, 4))


def test_an_error_of_the_storage_leaves_nothing(repo: Repository) -> None:
    write = repo._store.files.write

    async def failing(key: str, body: Any) -> None:
        if key.startswith("s/"):
            raise StorageError("no")
        await write(key, body)

    repo._store.files.write = failing  # type: ignore[assignment, method-assign]
    with pytest.raises(StorageError):
        repo.writable_session().append(data(8, 4), "time", message="ours")
    repo._store.files.write = write  # type: ignore[method-assign]
    assert repo.writable_session().append(data(8, 4), "time", message="ours") == slice(8, 12)
    assert_rows(repo, (0, 12))


# -- requests ----------------------------------------------------------------------------------------------------------


def chunk_events(block: Any, op: str) -> list[str]:
    return [event.key for event in block.events if event.op == op and event.key.startswith("c/")]


def big(first: int, rows: int) -> xr.Dataset:
    """Return rows whose chunks are too long for a manifest."""
    values = np.random.default_rng(first).integers(0, 2**31, (rows, 1000))
    return xr.Dataset({"tas": (("time", "x"), values)}, coords={"time": np.arange(first, first + rows)})


@pytest.mark.parametrize(("chunk", "files"), [(4, 1), (64, 1), (3, 2)])
def test_chunks_are_written_once_where_lengths_are_whole_numbers_of_chunks(tmp_path: Path, chunk: int, files: int) -> None:
    """A coordinate of longer chunks is written again; with 3 rows a chunk, all is, and the first file is removed."""
    repo, trace = traced_repository(tmp_path)
    with repo.transaction(message="begin") as store:
        encoding = {"tas": {"chunks": (4 if chunk != 3 else 3, 1000), "compressors": None}, "time": {"chunks": (chunk,)}}
        big(0, 8).to_zarr(store, mode="w", encoding=encoding)
    session = repo.writable_session()
    Repository.open(trace).writable_session().append(big(100, 4), "time", message="theirs")
    with trace.count() as block:
        session.append(big(200, 4), "time", message="ours")
    assert len(chunk_events(block, "write")) == files
    assert len(chunk_events(block, "read")) == files - 1  # the chunk of the old end
    found = xr.open_zarr(repo.readonly_session().store).load()
    xr.testing.assert_equal(found, xr.concat([big(0, 8), big(100, 4), big(200, 4)], "time"))
    assert repo.stats().unneeded.files == 0


def test_an_append_alone_takes_the_requests_of_a_commit(tmp_path: Path) -> None:
    repo, trace = traced_repository(tmp_path)
    begin(repo)
    session = repo.writable_session()
    with trace.count() as block:
        session.append(data(8, 4), "time", message="rows")
    assert sorted(event.key[:2] for event in block.events if event.op == "write") == ["ca", "m/", "s/", "t/"]
    assert {event.key[:2] for event in block.events if event.op == "read"} <= {"m/"}


# -- many --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_random_appends_follow_each_other(tmp_path: Path, seed: int) -> None:
    """Sessions of many ages and lengths, by ``append`` and by xarray with a solver: all rows there once, in the order of commits."""
    rng = random.Random(seed)
    repo = new_repository(tmp_path, pack=rng.choice([None, (2, 1), "auto"]))
    begin(repo, {"time": rng.choice([1, 2, 4, 8, 365]), "tas": rng.choice([1, 2, 3, 4, 8])}, rng.choice([4, 8, 7]))
    done = [(0, shown(repo).sizes["time"])]
    sessions: list[tuple[Session, int, int]] = []
    for number in range(1, 25):
        session, rows = repo.writable_session(), rng.choice([1, 2, 3, 4, 4, 8, 8])
        if rng.random() < 0.5:
            data(100 * number, rows).to_zarr(session.store, append_dim="time", safe_chunks=False)
        sessions.append((session, 100 * number, rows))
        while len(sessions) > rng.randrange(4):
            session, first, rows = sessions.pop(rng.randrange(len(sessions)))
            try:
                if session.has_uncommitted_changes:
                    session.commit("rows", rebase_with=BasicConflictSolver(on_chunk_conflict=rng.choice(["ours", "theirs"])))
                else:
                    stop = sum(one for _, one in done)
                    assert session.append(data(first, rows), "time", message="rows") == slice(stop, stop + rows)
            except ConflictError:
                assert session.has_uncommitted_changes
            else:
                done.append((first, rows))
    assert_rows(repo, *done)
    assert repo.verify().is_sound


def test_threads_append_and_each_writes_its_rows_twice_at_most(tmp_path: Path) -> None:
    """Those of one process wait for each other, and do not race."""
    repo = new_repository(tmp_path)
    begin(repo, INSIDE, 7)

    def append(number: int) -> tuple[int, int, int]:
        rows = 1 + number % 5
        found = repo.writable_session().append(data(100 * number, rows), "time", message="rows")
        return found.start, 100 * number, rows

    with ThreadPoolExecutor(8) as pool:
        done = sorted(pool.map(append, range(1, 25)))
    assert_rows(repo, (0, 7), *((first, rows) for _, first, rows in done))
    assert repo._store.counters.conflicts == 0


def test_a_plain_append_refuses_a_session(repo: Repository) -> None:
    with pytest.raises(Unsupported, match=r"session\.append"):
        shardstore.append(repo.writable_session().store, data(8, 1), "time")
