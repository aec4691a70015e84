"""What a report tells of stores whose content is known: sizes, which chunks exist, damage, advice, and what was verified."""

from __future__ import annotations

import json
import shutil
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.apps.cli.output import ExitCode
from shardstore.apps.reports.facts import ReportedArray, occupancy_of_report
from shardstore.apps.reports.reporting import Report
from shardstore.engine.engine import Engine
from shardstore.errors import InvalidInput, NotFound
from shardstore.maintenance.density import Occupancy, pairs_of_axes
from shardstore.maintenance.survey.run import glance, survey
from shardstore.storage.local.storage import LocalStorage
from shardstore.testing.trace import TraceStorage
from tests.apps.cli.running import run
from tests.stored import on_io_loop

SHAPE, CHUNKS, PER_SHARD = (24, 40, 20), (4, 5, 5), (2, 4, 2)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "data.zarr"


def make(place: Path, exists: np.ndarray[Any, Any]) -> None:
    """An array whose chunks exist where ``exists``, in the grid of chunks, is true."""
    store = shardstore.open(place, chunks_per_shard=PER_SHARD)
    array = zarr.create_array(store, name="a", shape=SHAPE, chunks=CHUNKS, dtype="u2", compressors=None)
    for coords in np.argwhere(exists):
        start = coords * CHUNKS
        array[tuple(slice(int(s), int(s) + c) for s, c in zip(start, CHUNKS, strict=True))] = 1 + int(coords.sum())


def array_of(report: Report, path: str = "a") -> ReportedArray:
    (found,) = (array for array in report.facts.arrays if array.path == path)
    return found


def sparse() -> np.ndarray[Any, Any]:
    return np.random.default_rng(7).random((6, 8, 4)) < 0.4


def test_pictures_are_the_mask_along_each_pair_of_axes(place: Path) -> None:
    exists = sparse()
    make(place, exists)
    pictures = {picture.axes: picture for picture in array_of(shardstore.report(place)).pictures}
    assert list(pictures) == [(0, 1), (1, 2), (0, 2)]  # the most chunks first
    for (down, across), picture in pictures.items():
        (behind,) = {0, 1, 2} - {down, across}
        np.testing.assert_allclose(picture.cells, exists.mean(axis=behind))
        assert picture.chunks == (exists.shape[down], exists.shape[across])


def test_pictures_of_a_survey_are_those_of_a_census_of_the_same_store(place: Path) -> None:
    make(place, sparse())
    plain = zarr.create_array(place, name="plain", shape=(30, 7), chunks=(4, 2), dtype="i1")
    plain[3:19, :5] = 1
    report, census = shardstore.report(place), shardstore.census(place)
    for path in ("a", "plain"):
        for picture in array_of(report, path).pictures:
            assert picture.axes[0] is not None
            assert picture.axes[1] is not None
            same = census.array(path).density(512, 512, (picture.axes[0], picture.axes[1]))
            np.testing.assert_array_equal(picture.cells, same.cells)


def test_sizes_are_those_of_the_objects_and_chunks(place: Path) -> None:
    exists = sparse()
    make(place, exists)
    found = array_of(shardstore.report(place))
    files = {
        str(file.relative_to(place)): file.stat().st_size
        for file in (place / "a").rglob("*")
        if file.name != "zarr.json" and file.is_file()
    }
    assert found.smallest is not None
    assert found.largest is not None
    assert files[found.smallest.key] == found.smallest.nbytes == min(files.values())
    assert files[found.largest.key] == found.largest.nbytes == max(files.values())
    assert sum(one.number for one in found.object_sizes) == len(files)
    for one in found.object_sizes:
        assert one.number == sum(one.start <= nbytes < one.stop for nbytes in files.values())
    chunk_nbytes = int(np.prod(CHUNKS)) * 2
    assert [(one.start <= chunk_nbytes < one.stop, one.number) for one in found.chunk_sizes] == [(True, int(exists.sum()))]
    assert found.decoded_nbytes == exists.sum() * chunk_nbytes


def test_one_listing_and_one_request_a_shard(place: Path) -> None:
    make(place, np.ones((6, 8, 4), dtype=bool))
    counts = []
    for occupancy in (None, occupancy_of_report()):
        storage = TraceStorage(LocalStorage(place))
        on_io_loop(survey(Engine(storage), occupancy=occupancy))
        shards = [event for event in storage.events if event.op == "read" and not event.key.endswith("zarr.json")]
        assert [event.key for event in storage.events if event.op == "list"] == [""]
        counts.append((len(storage.events), len(shards)))
    assert counts[0] == counts[1]  # the pictures cost no request
    assert counts[1][1] == len([file for file in (place / "a/c").rglob("*") if file.is_file()])


def test_pictures_beyond_the_most_are_counted_and_not_drawn() -> None:
    occupancy = Occupancy(side=8, pairs=3, most_pictures=4)
    for path in ("a", "b", "c"):
        occupancy._array(path, (4, 4, 4), (2, 2, 2))
    assert [len(array.pictures) for array in occupancy.arrays.values()] == [3, 1, 0]
    assert occupancy.pictures_left_out == 5


@pytest.mark.parametrize(
    ("grid", "pairs"),
    [((), []), ((1,), []), ((5,), [None]), ((1, 1), []), ((1, 9), [(0, 1)]), ((2, 3, 9), [(1, 2), (0, 2), (0, 1)]), ((0, 4), [])],
)
def test_pairs_of_axes(grid: tuple[int, ...], pairs: list[tuple[int, int] | None]) -> None:
    assert pairs_of_axes(grid) == pairs


def test_chunks_and_shards_outside_the_shape_are_in_no_picture(place: Path) -> None:
    make(place, np.ones((6, 8, 4), dtype=bool))
    zarr.open_array(place, path="a").resize((24, 8, 20))  # 2 of 8 chunks along the axis, in a shard that holds 4
    (place / "a/c/0/1").mkdir(exist_ok=True)
    (place / "a/c/0/1/0").write_bytes((place / "a/c/0/0/0").read_bytes())  # as a writer leaves one that does not erase it
    found = array_of(shardstore.report(place))
    assert found.surveyed.usage is not None
    assert sum(one.number for one in found.chunk_sizes) == found.surveyed.usage.chunks
    assert all((picture.cells <= 1).all() for picture in found.pictures)
    assert sum(one.number for one in found.object_sizes) == found.surveyed.usage.objects
    assert found.surveyed.usage.chunks_outside > 0
    assert found.surveyed.usage.objects_outside > 0


# -- state ---------------------------------------------------------------------------------------------------------------


def test_nothing_is_called_sound_that_was_not_read(place: Path) -> None:
    make(place, sparse())
    assert shardstore.report(place, fast=True).facts.state == "not looked at"
    assert shardstore.report(place).facts.state == "not looked at"
    shallow = shardstore.report(place, verified=shardstore.verify(place))
    assert (shallow.facts.state, array_of(shallow).state) == ("not looked at", "not looked at")
    part = shardstore.report(place, verified=shardstore.verify(place, deep=True, part="1/2"))
    assert (part.facts.state, array_of(part).state) == ("not looked at", "not looked at")
    deep = shardstore.report(place, verified=shardstore.verify(place, deep=True))
    assert (deep.facts.state, array_of(deep).state) == ("sound", "sound")


def test_damage_is_shown_with_the_shard_and_the_remedy(place: Path) -> None:
    make(place, np.ones((6, 8, 4), dtype=bool))
    key = "a/c/0/0/0"
    data = bytearray((place / key).read_bytes())
    data[-10] ^= 1
    (place / key).write_bytes(data)
    report = shardstore.report(place)
    assert report.facts.state == "damaged"
    found = array_of(report)
    assert (found.state, [damage.key for damage in found.damage]) == ("damaged", [key])
    (advice,) = report.facts.advice
    assert (advice.kind, advice.path) == ("damaged", "a")
    assert advice.command == f"shardstore repair file://{place}/a"


@pytest.mark.parametrize("change", ["written", "rewritten", "erased", "all erased", "fast"])
def test_what_has_changed_since_it_was_verified_is_not_sound(place: Path, change: str) -> None:
    make(place, sparse())
    verified = shardstore.verify(place, deep=True)
    assert shardstore.report(place, verified=verified).facts.state == "sound"
    array = zarr.open_array(shardstore.open(place), path="a", mode="r+")
    if change == "written":
        array[...] = 7
    elif change == "rewritten":
        shard = next(file for file in (place / "a/c").rglob("*") if file.is_file())
        data = shard.read_bytes()
        shard.unlink()
        shard.write_bytes(data[:10] + b"!" + data[11:])
    elif change == "erased":
        next(file for file in (place / "a/c").rglob("*") if file.is_file()).unlink()
    elif change == "all erased":
        shutil.rmtree(place / "a/c")
    report = shardstore.report(place, verified=verified, fast=change == "fast")
    assert (report.facts.state, array_of(report).state) == ("not looked at", "not looked at")


def test_a_verification_of_all_counts_for_a_node_by_what_was_found_there(place: Path, tmp_path: Path) -> None:
    make(place, sparse())
    zarr.create_array(place, name="g/b", data=np.arange(3))
    verified = shardstore.verify(place, deep=True).to_json()
    verified["errors"] = 1
    finding = {"severity": "error", "kind": "index", "path": "a", "key": "a/c/0/0/0", "what": "it is damaged", "remedy": "restore it"}
    verified["findings"] = [finding]
    (tmp_path / "verified.json").write_text(json.dumps(verified))
    assert shardstore.report(place, path="g", verified=tmp_path / "verified.json").facts.state == "sound"
    assert shardstore.report(place, verified=tmp_path / "verified.json").facts.state == "damaged"
    (tmp_path / "verified.json").write_text(json.dumps(verified | {"errors": 0}))  # which the findings contradict
    assert shardstore.report(place, verified=tmp_path / "verified.json").facts.state == "damaged"


def test_damaged_arrays_are_shown_before_others(place: Path) -> None:
    group = zarr.create_group(place)
    for number in range(9):
        group.create_array(f"a{number}", data=np.arange(4), chunks=(2,), shards=(4,))
    shard = place / "a8/c/0"
    shard.write_bytes(shard.read_bytes()[:-1])
    report = shardstore.report(place, most_arrays=2)
    assert [array.path for array in report.facts.arrays] == ["a0", "a8"]
    assert [one.path for one in report.facts.advice] == ["a8"]


def test_urls_in_commands_are_those_that_commands_take(place: Path, tmp_path: Path) -> None:
    make(place, np.ones((6, 8, 4), dtype=bool))
    key = place / "a/c/0/0/0"
    key.write_bytes(key.read_bytes()[:-1])
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for file in place.rglob("*"):
            if file.is_file():
                archive.write(file, file.relative_to(place))
    (advice,) = shardstore.report(f"zip://::{tmp_path / 'all.zip'}").facts.advice
    assert advice.command.split()[-1].startswith("zip://a::")
    assert run(*advice.command.split()[1:], "--dry-run").code not in (ExitCode.NOT_FOUND, ExitCode.INVALID)


def test_a_name_that_utf8_cannot_hold(place: Path, tmp_path: Path) -> None:
    make(place, sparse())
    document = json.loads((place / "a/zarr.json").read_text())
    (place / "a/zarr.json").write_text(json.dumps(document | {"dimension_names": ["\ud800", None, None]}))
    report = shardstore.report(place)
    report.json.encode()
    report.write(tmp_path / "report.html")
    assert "\\ud800" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_axes_beyond_what_a_float_holds(place: Path) -> None:
    array = zarr.create_array(place, name="a", shape=(2**40,) * 30, chunks=(2**20,) * 30, dtype="u1")
    (place / "a/c" / "/".join(["0"] * 29)).mkdir(parents=True)
    (place / "a/c" / "/".join(["0"] * 30)).write_bytes(b"x")
    assert array.ndim == 30
    assert shardstore.report(place).html


def test_what_could_not_be_read_is_not_sound(place: Path, tmp_path: Path) -> None:
    make(place, sparse())
    verified = shardstore.verify(place, deep=True).to_json()
    verified["unread"] = [{"key": "a/c/0/0/0", "error": "the server is gone"}]
    (tmp_path / "verified.json").write_text(json.dumps(verified))
    report = shardstore.report(place, verified=tmp_path / "verified.json")
    assert (report.facts.state, array_of(report).state) == ("not looked at", "not looked at")


def test_a_document_that_is_none_makes_the_report_damaged(place: Path) -> None:
    make(place, sparse())
    (place / "b").mkdir()
    (place / "b/zarr.json").write_text('{"zarr_format": 3')
    report = shardstore.report(place)
    assert report.facts.state == "damaged"
    assert [(one.kind, one.path) for one in report.facts.advice] == [("unreadable", "b")]


def test_an_error_of_a_verification_makes_the_report_damaged(place: Path, tmp_path: Path) -> None:
    make(place, sparse())
    verified = shardstore.verify(place, deep=True).to_json()
    verified["errors"] = 1
    verified["arrays"][0]["errors"] = 1
    (tmp_path / "verified.json").write_text(json.dumps(verified))
    report = shardstore.report(place, verified=tmp_path / "verified.json")
    assert (report.facts.state, array_of(report).state) == ("damaged", "damaged")


def test_a_verification_of_something_else_is_refused(place: Path, tmp_path: Path) -> None:
    make(place, sparse())
    file = tmp_path / "verified.json"
    for text, said in (
        ("[]", "is not a report of verification"),
        ("{", "is not JSON"),
        (json.dumps(shardstore.verify(place).to_json() | {"url": "s3://other"}), "is a report on s3://other"),
        (json.dumps(shardstore.verify(place).to_json() | {"path": "b"}), "is a report on 'b'"),
        (json.dumps(shardstore.verify(place).to_json()).replace('"errors": 0', '"errors": 1e400', 1), "is not a report of verification"),
        (json.dumps(shardstore.verify(place).to_json() | {"errors": -1}), "is not a report of verification"),
        ("[" * 100_000, "is not JSON"),
        (json.dumps(shardstore.verify(place).to_json() | {"arrays": [{"path": "a"}]}), "is not a report of verification"),
    ):
        file.write_text(text)
        with pytest.raises(InvalidInput, match=said):
            shardstore.report(place, verified=file)
    with pytest.raises(NotFound, match="cannot be read"):
        shardstore.report(place, verified=tmp_path / "none.json")


# -- the rest ------------------------------------------------------------------------------------------------------------


def test_json_is_what_info_says_and_more(place: Path) -> None:
    make(place, sparse())
    zarr.create_array(place, name="b", shape=(3,), dtype="i1")
    document = json.loads(shardstore.report(place, most_arrays=1).json)
    assert (document["report"], document["state"], document["arrays_left_out"]) == (1, "not looked at", 1)
    (array,) = document["arrays"]
    assert array["path"] == "a"
    assert array["usage"]["chunks"] == int(sparse().sum())
    assert datetime.fromisoformat(document["at"]).tzinfo == UTC


def test_arrays_of_a_node_and_what_lies_below(place: Path) -> None:
    make(place, sparse())
    zarr.create_array(place, name="g/b", shape=(3,), dtype="i1")
    assert [array.path for array in shardstore.report(place, path="g").facts.arrays] == ["g/b"]
    with pytest.raises(NotFound):
        shardstore.report(place, path="none")


@pytest.mark.parametrize("bad", [{"most_arrays": -1}, {"most_arrays": True}, {"fast": 1}, {"access": ["?"]}])
def test_arguments_that_cannot_be_right(place: Path, bad: dict[str, Any]) -> None:
    make(place, sparse())
    with pytest.raises(InvalidInput):
        shardstore.report(place, **bad)


def test_a_glance_stops_at_the_most_arrays(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path)
    for number in range(30):
        group.create_array(f"a{number:02}", shape=(3,), dtype="i1")
    storage = TraceStorage(LocalStorage(tmp_path))
    found, is_complete = on_io_loop(glance(Engine(storage), most_arrays=20, seconds=60))
    assert (len(found.arrays), is_complete) == (20, False)
    assert sum(event.requests for event in storage.events) <= 22
    found, is_complete = on_io_loop(glance(Engine(storage), most_arrays=31, seconds=60))
    assert (len(found.arrays), is_complete) == (30, True)
    with pytest.raises(NotFound):  # no time to find anything
        on_io_loop(glance(Engine(LocalStorage(tmp_path)), most_arrays=20, seconds=0))
