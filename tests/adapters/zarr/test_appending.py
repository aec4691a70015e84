"""``shardstore.append``: what it takes and refuses, what readers see, and what it asks the storage for."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from fsspec.implementations.memory import MemoryFileSystem

import shardstore
from shardstore.adapters.zarr import chunks
from shardstore.engine.appending.line import Place
from shardstore.engine.appending.view import GrownView
from shardstore.errors import Conflict, InvalidInput, NotFound, ReadOnly, Unsupported
from shardstore.format.append_record import AppendRecord
from shardstore.model.capabilities import Capabilities
from shardstore.opening.kinds import read_sizes
from shardstore.storage.memory import MemoryStorage
from shardstore.storage.wrappers import StorageWrapper
from shardstore.testing.trace import TraceStorage
from tests.engine.hooked import HookedStorage, fresh_memory

xr = pytest.importorskip("xarray")

ENCODING: dict[str, dict[str, Any]] = {
    "time": {"chunks": (7,)},
    "a": {"chunks": (4, 3)},
    "b": {"chunks": (2, 4)},
    "plain": {"chunks": (5,)},
}
SHARDS = {"a": (2, 2), "b": (2, 4), "plain": None, "time": None}


def rows(first: int, count: int) -> Any:
    """``count`` rows of numbers from ``first``, in arrays whose dimension ``time`` is the first, the last and the only one."""
    time = np.arange(first, first + count)
    arrays = {
        "a": (("time", "x"), np.repeat(time[:, None], 6, 1)),
        "b": (("y", "time"), np.repeat(time[None] * 1.0, 4, 0)),
        "plain": ("time", time),
    }
    return xr.Dataset(arrays, coords={"time": time, "x": np.arange(6)})


def made(target: Any, count: int = 3, *, group: str | None = None, consolidated: bool = True, **options: Any) -> None:
    store = shardstore.open(target, **({"chunks_per_shard": SHARDS} | options))
    rows(1, count).to_zarr(store, group=group, mode="a" if group else "w", encoding=ENCODING, consolidated=consolidated)


def check(target: Any, expected: Any, group: str | None = None, *, consolidated: bool = True) -> None:
    found = xr.open_zarr(shardstore.open(target, read_only=True), group=group, consolidated=consolidated).load()
    for name in ("a", "b", "plain", "time"):
        np.testing.assert_array_equal(found[name].values, expected[name].values, err_msg=name)


def objects(place: MemoryStorage) -> dict[str, bytes]:
    fs = MemoryFileSystem()
    return {name.removeprefix(f"{place.path}/"): fs.cat_file(name) for name in fs.find(place.path)}


def again(place: MemoryStorage) -> MemoryStorage:
    """The same place, as another program has it."""
    return MemoryStorage(place.path)


@pytest.mark.parametrize("consolidated", [True, False])
def test_rows_of_a_dataset(consolidated: bool) -> None:
    place = fresh_memory()
    made(place, consolidated=consolidated)
    assert shardstore.append(again(place), rows(4, 4), "time") == slice(3, 7)
    assert shardstore.append(again(place), rows(8, 1), "time") == slice(7, 8)
    check(place, rows(1, 8), consolidated=consolidated)
    root = json.loads(objects(place)["zarr.json"])
    assert ("consolidated_metadata" in root) is consolidated
    if consolidated:
        assert root["consolidated_metadata"]["metadata"]["b"]["shape"] == [4, 8]


def test_a_plain_zarr_program_reads_them(tmp_path: Path) -> None:
    made(str(tmp_path / "data"))
    shardstore.append(str(tmp_path / "data"), rows(4, 6), "time")
    found = xr.open_zarr(str(tmp_path / "data"), consolidated=True).load()
    np.testing.assert_array_equal(found.a.values, rows(1, 9).a.values)
    np.testing.assert_array_equal(found.b.values, rows(1, 9).b.values)


def test_an_array(tmp_path: Path) -> None:
    store = shardstore.open(str(tmp_path / "data"))
    array = zarr.create_array(store, name="a", shape=(2, 3), chunks=(4, 3), dtype="i4", dimension_names=["time", None], fill_value=0)
    array[...] = 1
    assert shardstore.append(store, [[2, 2, 2], [3, 3, 3], [4, 4, 4]], "time", path="a") == slice(2, 5)
    assert shardstore.append(store, xr.DataArray(np.full((1, 3), 5), dims=("time", "x")).rename(None).data, "time", path="a") == slice(5, 6)
    np.testing.assert_array_equal(zarr.open_array(store, path="a")[:, 0], [1, 1, 2, 3, 4, 5])
    with pytest.raises(InvalidInput, match="is an array"):
        shardstore.append(store, rows(4, 2), "time", path="a")
    with pytest.raises(InvalidInput, match="what is appended to 'a'"):
        shardstore.append(store, np.zeros((2, 5)), "time", path="a")


def test_arrays_of_dask() -> None:
    dask_array = pytest.importorskip("dask.array")
    place = fresh_memory()
    made(place)
    shardstore.append(again(place), rows(4, 9).chunk({"time": 2, "x": 2}), "time")
    check(place, rows(1, 12))
    more = dask_array.from_array(rows(13, 5).plain.values, chunks=2)
    with pytest.raises(InvalidInput, match="all variables at once"):
        shardstore.append(again(place), xr.Dataset({"plain": ("time", more)}), "time")


def test_no_rows() -> None:
    place = fresh_memory()
    made(place)
    before = objects(place)
    assert shardstore.append(again(place), rows(4, 0), "time") == slice(3, 3)
    assert objects(place) == before


def test_variables_without_the_dimension_are_left_out() -> None:
    place = fresh_memory()
    made(place)
    shardstore.append(again(place), rows(4, 1).assign_coords(x=np.arange(6) + 100), "time")
    np.testing.assert_array_equal(xr.open_zarr(shardstore.open(place)).x.values, np.arange(6))


def test_dates_are_encoded_as_those_that_are_there() -> None:
    place = fresh_memory()

    def days(first: int) -> Any:
        return xr.Dataset({"v": ("time", [first * 1.0])}, coords={"time": np.array([f"2000-01-{first:02}"], "datetime64[ns]")})

    days(1).to_zarr(shardstore.open(place), mode="w", consolidated=True)
    shardstore.append(again(place), days(5), "time")
    assert xr.open_zarr(shardstore.open(place)).time.values[1] == np.datetime64("2000-01-05")


def test_groups_below_a_consolidated_root_grow_alone() -> None:
    place = fresh_memory()
    for group in ("one", "two"):
        made(place, group=group, consolidated=False)
    zarr.consolidate_metadata(shardstore.open(place))
    shardstore.append(again(place), rows(4, 2), "time", path="one")
    check(place, rows(1, 5), "one")
    check(place, rows(1, 3), "two")
    shapes = {
        name: each["shape"]
        for name, each in json.loads(objects(place)["zarr.json"])["consolidated_metadata"]["metadata"].items()
        if "shape" in each
    }
    assert (shapes["one/plain"], shapes["two/plain"]) == ([5], [3])


@pytest.mark.parametrize(
    ("data", "arguments", "message"),
    [
        (lambda: rows(4, 2).drop_vars("plain"), {}, "has no 'plain' along 'time'"),
        (lambda: rows(4, 2).assign(more=("time", [1, 2])), {}, "has no 'more' along 'time'"),
        (lambda: rows(4, 2).isel(x=slice(2)), {}, "what is appended to 'a'"),
        (lambda: rows(4, 2).transpose(), {}, "order and all other sizes"),
        (lambda: rows(4, 2), {"dim": "height"}, "no array .* has the dimension 'height': they have 'time', 'x'"),
        (lambda: rows(4, 2), {"dim": ""}, "is not the name of a dimension"),
        (lambda: rows(4, 2), {"lease": 0}, "never ends, or ends at once"),
        (lambda: rows(4, 2), {"lease": float("inf")}, "never ends, or ends at once"),
        (lambda: rows(4, 2), {"path": "../x"}, "cannot be the path"),
        (lambda: np.zeros(3), {}, "is a group"),
        (lambda: np.zeros((2, 6)), {"path": "a"}, "'b', 'plain', 'time' would become shorter"),
        (lambda: rows(4, 2).a.rename(None), {}, "has no name"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_reserved(data: Callable[[], Any], arguments: dict[str, Any], message: str) -> None:
    place = fresh_memory()
    made(place)
    before = objects(place)
    with pytest.raises(InvalidInput, match=message):
        shardstore.append(again(place), data(), **({"dim": "time"} | arguments))
    assert objects(place) == before


def test_places_that_cannot_be_appended_to(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="to append to"):
        shardstore.append(fresh_memory(), rows(4, 2), "time")
    place = fresh_memory()
    made(place)
    with pytest.raises(ReadOnly):
        shardstore.append(shardstore.open(place, read_only=True), rows(4, 2), "time")
    repository = shardstore.snapshots.Repository.create(str(tmp_path / "versions"))
    session = repository.writable_session("main")
    made(session.storage, chunks_per_shard=None)
    with pytest.raises(Unsupported, match=r"session\.append"):
        shardstore.append(session.store, rows(4, 2), "time")
    zarr.create_array(str(tmp_path / "bare"), shape=(3,), dtype="i4")
    with pytest.raises(InvalidInput, match="they were made without dimension_names"):
        shardstore.append(str(tmp_path / "bare"), [1], "time")

    simple = HookedStorage(again(place))
    simple.capabilities_override = replace(place.capabilities, compare_and_swap=False)
    with pytest.raises(Unsupported, match="compare-and-swap"):
        shardstore.append(simple, rows(4, 2), "time")


def test_an_append_is_no_part_of_a_transaction() -> None:
    """What it stores is shown at once, and no rollback would take it back."""
    store = shardstore.open(place := fresh_memory())
    made(place)
    with pytest.raises(InvalidInput, match="transaction"), store.transaction():
        shardstore.append(store, rows(4, 2), "time")
    check(place, rows(1, 3))


def test_what_fails_gives_its_rows_back() -> None:
    place = fresh_memory()
    made(place)
    broken = HookedStorage(again(place))

    async def before(operation: str, key: str) -> None:
        if operation in ("write", "compose") and key.startswith("plain/c"):
            raise shardstore.StorageError("the disk is on fire")

    broken.before = before
    with pytest.raises(shardstore.StorageError, match="on fire"):
        shardstore.append(broken, rows(90, 2), "time")
    check(place, rows(1, 3))
    assert shardstore.append(again(place), rows(4, 2), "time") == slice(3, 5)
    check(place, rows(1, 5))


@pytest.mark.parametrize("fails", ["record", "document"])
def test_the_outcome_is_unknown_if_stored_rows_cannot_be_shown(fails: str) -> None:
    place = fresh_memory()
    made(place)
    broken = HookedStorage(again(place))
    changes: list[str] = []

    async def before(operation: str, key: str) -> None:
        if operation != "write":
            return
        changes.append(key)
        is_record = key.endswith(".append.json") and sum(each == key for each in changes) > 1
        if is_record if fails == "record" else key == "a/zarr.json":
            raise shardstore.StorageError("the disk is on fire")

    broken.before = before
    with pytest.raises(shardstore.WriteOutcomeUnknown, match=r"rows 3 to 5 .* on fire"):
        shardstore.append(broken, rows(4, 2), "time", lease="0.1s")
    check(place, rows(1, 3))
    where = shardstore.append(again(place), rows(6, 2), "time", lease="0.1s")
    if fails == "document":  # the rows were committed, and are shown now
        assert where == slice(5, 7)
        check(place, rows(1, 7))
    else:
        assert where == slice(3, 5)


def test_answers_that_stay_lost_are_no_conflict() -> None:
    place = fresh_memory()
    made(place)
    broken = HookedStorage(again(place))

    async def before(operation: str, key: str) -> None:
        if operation == "write" and key.endswith(".append.json"):
            raise shardstore.WriteOutcomeUnknown("no answer came")

    broken.before = before
    with pytest.raises(shardstore.WriteOutcomeUnknown, match="no answer came"):
        shardstore.append(shardstore.open(broken, commit_attempts=3), rows(4, 2), "time")


def foreign(length: int) -> Callable[[MemoryStorage], None]:
    def resize(place: MemoryStorage) -> None:
        store = shardstore.open(MemoryStorage(place.path))
        for name, axis in {"time": 0, "a": 0, "b": 1, "plain": 0}.items():
            array = zarr.open_array(store, path=name, mode="r+")
            array.resize((*array.shape[:axis], length, *array.shape[axis + 1 :]))

    return resize


def test_a_longer_length_that_another_program_has_set_is_taken_over() -> None:
    place = fresh_memory()
    made(place)
    shardstore.append(again(place), rows(4, 1), "time")
    foreign(9)(place)
    assert shardstore.append(again(place), rows(40, 2), "time") == slice(9, 11)


def test_arrays_that_became_shorter_are_refused_until_that_is_confirmed() -> None:
    """A plain program that stores a document from an old copy hides rows that were acknowledged; they are not to be written over."""
    place = fresh_memory()
    made(place)
    shardstore.append(again(place), rows(4, 4), "time")
    foreign(3)(place)
    with pytest.raises(Conflict, match=r"shorter along 'time' .* resize the arrays to 7; if it is meant, remove 'time/time.append.json'"):
        shardstore.append(again(place), rows(40, 2), "time")
    MemoryFileSystem().rm_file(f"{place.path}/time/time.append.json")
    assert shardstore.append(again(place), rows(40, 2), "time") == slice(3, 5)


@pytest.mark.parametrize("length", [1, 9])
def test_a_length_that_another_program_sets_meanwhile_is_a_conflict(length: int) -> None:
    place = fresh_memory()
    made(place)
    mine = HookedStorage(again(place))
    done = threading.Event()

    async def before(operation: str, key: str) -> None:
        if operation in ("write", "compose") and key.startswith("plain/c") and not done.is_set():
            done.set()
            thread = threading.Thread(target=foreign(length), args=(place,))
            thread.start()
            await asyncio.to_thread(thread.join)

    mine.before = before
    with pytest.raises(Conflict, match="another program"):
        shardstore.append(mine, rows(4, 2), "time")


def test_a_reservation_of_the_dead_does_not_stop_those_behind_a_foreign_change() -> None:
    place = fresh_memory()
    made(place)
    dead = AppendRecord("time", 3, 3).reserve("dead", 2, 0.2)
    MemoryFileSystem().pipe_file(f"{place.path}/time/time.append.json", dead.encode())
    foreign(9)(place)
    assert shardstore.append(again(place), rows(40, 2), "time") == slice(9, 11)


def test_consolidated_metadata_that_is_older_than_the_group_is_not_believed() -> None:
    place = fresh_memory()
    made(place, group="one", consolidated=False)
    zarr.consolidate_metadata(shardstore.open(place))
    made(again(place), group="two", consolidated=False)
    fs = MemoryFileSystem()
    assert b'"two/a"' not in fs.cat_file(f"{place.path}/zarr.json")
    shardstore.append(again(place), rows(4, 2), "time", path="two")
    check(place, rows(1, 5), "two", consolidated=False)


def test_arrays_of_different_lengths_are_refused() -> None:
    place = fresh_memory()
    made(place)
    zarr.open_array(shardstore.open(again(place)), path="plain", mode="r+").resize((8,))
    with pytest.raises(InvalidInput, match=r"different lengths.*plain 8"):
        shardstore.append(again(place), rows(4, 2), "time")


class AsServer(StorageWrapper):
    """A storage that copies no small parts, as servers."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.inner.capabilities, compose=False)

    async def probe(self) -> Capabilities:
        return self.capabilities


def test_requests_of_an_append_alone() -> None:
    """At most 4 of the record, two of each document, and three of each shard or chunk."""
    place = fresh_memory()
    variables = 20

    def many(first: int, count: int) -> Any:
        time = np.arange(first, first + count)
        return xr.Dataset({f"v{i}": (("time", "x"), np.repeat(time[:, None], 6, 1)) for i in range(variables)}, coords={"time": time})

    encoding = {f"v{i}": {"chunks": (4, 6)} for i in range(variables)} | {"time": {"chunks": (100,)}}
    many(1, 6).to_zarr(shardstore.open(place, chunks_per_shard={"v*": (4, 1), "time": None}), encoding=encoding, consolidated=True)
    traced = TraceStorage(again(place))
    store = shardstore.open(AsServer(traced), gap_bytes=read_sizes("s3")[0])
    assert shardstore.append(store, many(7, 3), "time") == slice(6, 9)
    kinds = Counter(event.key.rpartition("/")[2].partition(".")[2] for event in traced.events)
    arrays, shards = variables + 1, variables + 1
    assert kinds["json"] == 2 * (arrays + 1)
    assert sum(kinds.values()) <= 4 + 2 * (arrays + 1) + 3 * shards


@pytest.mark.parametrize(("counts", "decoded"), [((4, 4), 0), ((3, 5), 1)])
def test_appends_that_share_a_shard_but_no_chunk_decode_nothing(
    counts: tuple[int, int], decoded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the chunk in which one append ends and the next begins is decoded, by the one that comes second."""
    place = fresh_memory()
    store = shardstore.open(place, chunks_per_shard=(4,))
    zarr.create_array(store, name="a", shape=(0,), chunks=(4,), dtype="i4", dimension_names=["time"])
    calls: list[object] = []
    old_chunk = chunks._old_chunk

    def counted(chain: Any, getter: Any, spec: Any, was: Any) -> Any:
        calls.extend([was] if was is not None else [])
        return old_chunk(chain, getter, spec, was)

    monkeypatch.setattr(chunks, "_old_chunk", counted)
    first, second = HookedStorage(again(place)), HookedStorage(again(place))
    rival = threading.Thread(target=lambda: shardstore.append(second, np.full(counts[1], 2), "time", path="a"))
    stored = asyncio.Event()

    async def before(operation: str, key: str) -> None:
        if operation in ("write", "compose") and key.startswith("a/c") and not stored.is_set():
            rival.start()  # it stores its rows in the same shard before we do, and waits for us
            await stored.wait()

    async def after(operation: str, key: str) -> None:
        if key.startswith("a/c"):
            stored.set()

    first.before, second.after = before, after
    shardstore.append(first, np.full(counts[0], 1), "time", path="a")
    rival.join()
    np.testing.assert_array_equal(zarr.open_array(shardstore.open(again(place)), path="a")[...], [1] * counts[0] + [2] * counts[1])
    assert len(calls) == decoded


def test_a_view_travels_to_other_processes() -> None:
    place = fresh_memory()
    view = pickle.loads(pickle.dumps(GrownView(place, {"zarr.json": b"{}"}, "time/time.append.json", Place("x", 3, 5))))
    assert view._documents == {"zarr.json": b"{}"}
    assert view._place == Place("x", 3, 5)
