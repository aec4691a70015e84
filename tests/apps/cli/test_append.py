"""``shardstore append``."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
import zarr

import shardstore
from tests.apps.cli.running import Outcome, run, succeed
from tests.stored import LocalObjects, snapshot

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")

DAY = np.timedelta64(1, "D")


def rows(start: int, stop: int) -> xr.Dataset:
    """Rows of ``t`` and of a coordinate of times, and a variable without the dimension."""
    values = np.arange(start * 3, stop * 3, dtype="f4").reshape(-1, 3)
    times = np.datetime64("2020-01-01", "ns") + np.arange(start, stop) * DAY
    return xr.Dataset({"t": (("time", "y"), values), "mask": (("y",), np.ones(3))}, coords={"time": times})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store whose root, and whose group ``g/h``, have five rows."""
    place = tmp_path / "data.zarr"
    for group in (None, "g/h"):
        target = shardstore.open(place, chunks_per_shard={"**/t": (2, 1), "*": None})
        rows(0, 5).to_zarr(target, group=group, encoding={"t": {"chunks": (2, 3)}}, mode="a")
    return place


@pytest.fixture
def sources(tmp_path: Path) -> list[str]:
    """Rows 5 to 7, and row 8, in Zarr stores of xarray's own."""
    places = [str(tmp_path / name) for name in ("a.zarr", "b.zarr")]
    rows(5, 8).to_zarr(places[0])
    rows(8, 9).to_zarr(places[1])
    return places


def check(store: Any, stop: int, group: str | None = None) -> None:
    with xr.open_zarr(store, group=group) as shown:
        xr.testing.assert_equal(shown.load(), rows(0, stop))


def test_each_source_is_an_append_of_its_own(store: Path, sources: list[str]) -> None:
    outcome = succeed("append", *sources, str(store), "--dim", "time")
    assert outcome.lines == [f"{sources[0]}: rows 5 to 7 of 'time'", f"{sources[1]}: row 8 of 'time'"]
    assert outcome.err == ""
    check(store, 9)
    check(store, 5, "g/h")


@pytest.mark.parametrize("place", ["g/h", "g/h/"])
def test_the_group_is_in_the_url(store: Path, sources: list[str], place: str) -> None:
    outcome = succeed("append", sources[0], f"{store}/{place}", "--dim", "time", "--json")
    assert outcome.json == {"target": f"{store}/g/h", "dim": "time", "appended": [{"source": sources[0], "start": 5, "stop": 8}]}
    check(store, 8, "g/h")
    check(store, 5)


def test_a_group_by_its_url_grows_in_the_consolidated_metadata_above_it(store: Path, sources: list[str]) -> None:
    zarr.consolidate_metadata(store)
    succeed("append", sources[0], f"{store}/g/h", "--dim", "time")
    assert zarr.open_consolidated(store)["g/h/t"].shape == (8, 3)  # type: ignore[union-attr]


def test_stores_by_url_and_in_memory(sources: list[str]) -> None:
    url = f"memory://append-{uuid.uuid4().hex}"
    rows(0, 5).to_zarr(shardstore.open(f"{url}/data.zarr"))
    rows(5, 8).to_zarr(shardstore.open(f"{url}/new.zarr"), group="inner")
    succeed("append", f"{url}/new.zarr/inner", sources[1], f"{url}/data.zarr", "--dim", "time")
    check(shardstore.open(f"{url}/data.zarr"), 9)


def test_a_source_of_zarr_v2(store: Path, tmp_path: Path) -> None:
    rows(5, 8).to_zarr(tmp_path / "old.zarr", zarr_format=2)
    succeed("append", str(tmp_path / "old.zarr"), str(store), "--dim", "time")
    check(store, 8)


@pytest.mark.parametrize("place", ["local", "memory"])
def test_a_file_of_another_format(store: Path, tmp_path: Path, place: str) -> None:
    pytest.importorskip("scipy")
    rows(5, 8).to_netcdf(tmp_path / "new.nc", engine="scipy")
    source = str(tmp_path / "new.nc")
    if place == "memory":
        source = f"memory://append-{uuid.uuid4().hex}/new.nc"
        with fsspec.open(source, "wb") as file:
            file.write((tmp_path / "new.nc").read_bytes())
    assert succeed("append", source, str(store), "--dim", "time").lines == [f"{source}: rows 5 to 7 of 'time'"]
    check(store, 8)


def test_a_large_source_is_not_read_at_once(store: Path, sources: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    append = shardstore.append

    def seeing(target: Any, data: Any, *arguments: Any, **more: Any) -> slice:
        seen.append(data["t"].chunks is not None)
        return append(target, data, *arguments, **more)

    monkeypatch.setattr(shardstore, "append", seeing)
    succeed("append", sources[0], str(store), "--dim", "time")
    assert seen == [True]


def test_texts_whose_size_is_not_known_are_appended_too(tmp_path: Path) -> None:
    def named(*names: str) -> xr.Dataset:
        return xr.Dataset({"name": (("x",), np.array(names, dtype=object))})

    named("a", "bc").to_zarr(tmp_path / "data.zarr")
    named("d").to_zarr(tmp_path / "new.zarr")
    succeed("append", str(tmp_path / "new.zarr"), str(tmp_path / "data.zarr"), "--dim", "x")
    assert xr.open_zarr(tmp_path / "data.zarr")["name"].values.tolist() == ["a", "bc", "d"]


# -- what is refused ---------------------------------------------------------------------------------------------------


def refused(store: Path, *arguments: str) -> Outcome:
    """Run a command that changes nothing."""
    before = LocalObjects(store).keys()
    outcome = run("append", *arguments)
    assert LocalObjects(store).keys() == before
    return outcome


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (["--dim", "tim"], 2, "has the dimension 'tim'"),
        (["--dim", "time", "--lease", "0"], 2, "--lease 0 never ends, or ends at once"),
        (["--dim", "time", "--lease", "30"], 2, "--lease '30' is not a duration"),
        (["--dim", "time", "--lease", "nan"], 2, "--lease 'nan' is not a duration"),
        ([], 2, "--dim"),
    ],
)
def test_what_cannot_be_right_is_refused(store: Path, sources: list[str], change: list[str], code: int, words: str) -> None:
    outcome = refused(store, sources[0], str(store), *change)
    assert outcome.code == code
    assert words in outcome.error


@pytest.mark.parametrize(
    ("below", "code", "words"),
    [("no", 3, "no array or group of Zarr v3 at 'no'"), ("t", 2, "data.zarr/t is an array: name the group that it is in")],
)
def test_what_is_no_group_is_refused(store: Path, sources: list[str], below: str, code: int, words: str) -> None:
    outcome = refused(store, sources[0], f"{store}/{below}", "--dim", "time")
    assert outcome.code == code
    assert words in outcome.error


def test_an_error_names_the_source(store: Path, tmp_path: Path) -> None:
    rows(5, 8).drop_vars("t").to_zarr(tmp_path / "part.zarr")
    outcome = refused(store, str(tmp_path / "part.zarr"), str(store), "--dim", "time")
    assert outcome.code == 2
    assert "the data has no 't'" in outcome.error
    assert "part.zarr" in outcome.error


@pytest.mark.parametrize(("name", "code", "words"), [("no.nc", 3, "there is nothing at"), ("text.txt", 2, "xarray cannot open")])
def test_all_sources_are_opened_before_anything_is_appended(
    store: Path, sources: list[str], tmp_path: Path, name: str, code: int, words: str
) -> None:
    (tmp_path / "text.txt").write_text("no data")
    outcome = refused(store, sources[0], str(tmp_path / name), str(store), "--dim", "time")
    assert outcome.code == code
    assert words in outcome.error
    assert name in outcome.error


def test_what_was_appended_before_an_error_is_said(store: Path, sources: list[str], tmp_path: Path) -> None:
    rows(9, 10).drop_vars("t").to_zarr(tmp_path / "part.zarr")
    arguments = ["append", *sources, str(tmp_path / "part.zarr"), str(store), "--dim", "time"]
    outcome = run(*arguments)
    assert outcome.code == 2
    assert [line.rpartition(": ")[2] for line in outcome.lines] == ["rows 5 to 7 of 'time'", "row 8 of 'time'"]
    assert f"appended already: 2 sources, up to {sources[1]}. Leave out" in outcome.err
    assert [one["start"] for one in run(*arguments, "--json").json["appended"]] == [9, 12]


def test_a_snapshot_is_not_changed(tmp_path: Path, sources: list[str]) -> None:
    shardstore.snapshots.Repository.create(tmp_path / "run.ice")
    outcome = run("append", sources[0], f"{tmp_path}/run.ice@main", "--dim", "time")
    assert outcome.code == 2
    assert "appending to" in outcome.error


def test_without_xarray_the_error_says_how_to_install_it(store: Path, sources: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xarray", None)
    outcome = refused(store, sources[0], str(store), "--dim", "time")
    assert outcome.code == 7
    assert "pip install 'shardstore[xarray]'" in outcome.error


def test_after_ctrl_c_it_is_said_what_is_known(store: Path, sources: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    append = shardstore.append
    calls = []

    def interrupted(*arguments: Any, **more: Any) -> slice:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return append(*arguments, **more)

    monkeypatch.setattr(shardstore, "append", interrupted)
    outcome = run("append", *sources, str(store), "--dim", "time")
    assert outcome.code == 130
    assert f"appended already: 1 source, up to {sources[0]}" in outcome.err
    assert "Whether the rows of the next source were appended is not known" in outcome.err


# -- what other commands say -------------------------------------------------------------------------------------------


def test_info_shows_the_rows_and_mv_takes_them_along(store: Path, sources: list[str]) -> None:
    succeed("append", sources[0], f"{store}/g/h", "--dim", "time")
    (time,) = [array for array in succeed("info", str(store), "--json").json["arrays"] if array["path"] == "g/h/time"]
    key = "g/h/time/time.append.json"
    state = {"key": key, "dim": "time", "committed": 8, "shown": 8, "reserved": [], "evicted": 0, "closed": False, "fault": ""}
    assert time["appends"] == [state]
    assert "  appends    8 rows of 'time'" in succeed("info", str(store)).lines
    assert {finding["kind"] for finding in succeed("verify", str(store), "--json").json["findings"]} <= {"dead"}
    assert "zarr.consolidate_metadata" in succeed("mv", f"{store}/g/h", f"{store}/g/i").err
    zarr.consolidate_metadata(store)
    succeed("append", sources[1], f"{store}/g/i", "--dim", "time")
    check(store, 9, "g/i")
    succeed("cp", f"{store}/g/i", f"{store}/g/j")
    assert [name for name in snapshot(LocalObjects(store)) if name.endswith(".append.json")] == ["g/i/time/time.append.json"]
    succeed("rm", "-r", "-y", f"{store}/g/i")
    assert not [name for name in snapshot(LocalObjects(store)) if name.startswith("g/i")]
