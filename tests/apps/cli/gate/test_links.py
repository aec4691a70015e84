"""``rm``, ``mv`` and ``cp`` in stores with links in the middle: what those lead to is neither erased, moved nor added to."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr

import shardstore
from tests.apps.cli.running import Outcome, run, succeed
from tests.maintenance.packing.gate.test_whose import files, made, values


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """A store with a link to another one, which must stay as it is."""
    place, elsewhere = made(tmp_path / "p"), made(tmp_path / "elsewhere", 9)
    (place / "lnk").symlink_to(elsewhere)
    return place, elsewhere


def refused(outcome: Outcome, link: Path) -> bool:
    return outcome.code == 6 and f"is reached through the link {link} in the middle of a store" in outcome.error


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    "command",
    [
        "rm -r -y {p}/lnk/a",
        "rm -y {p}/lnk/a/c/0",
        "rm -r -y {p}/lnk/a/c",
        "mv {p}/lnk/a {p}/b",
        "mv {p}/lnk/a {s}/b",
        "cp {s}/a {p}/lnk/new",
        "cp {p}/a {p}/lnk/new",
        "cp --overwrite {s}/a {p}/lnk/a",
        "mv {s}/a {p}/lnk/new",
        "mv --overwrite {s}/a {p}/lnk/a",
    ],
)
def test_commands_are_refused_below_a_link(tmp_path: Path, places: tuple[Path, Path], command: str, zarr_format: int) -> None:
    place, _ = places
    if zarr_format == 2:  # whose root the command line finds by other documents
        (place / "zarr.json").unlink()
        (place / ".zgroup").write_text('{"zarr_format": 2}')
    source = made(tmp_path / "s")
    before = files(tmp_path)
    assert refused(run(*(word.format(p=place, s=source) for word in command.split())), place / "lnk")
    assert files(tmp_path) == before


def test_chunks_below_a_linked_directory_are_not_removed(tmp_path: Path, places: tuple[Path, Path]) -> None:
    place, _ = places
    shutil.move(place / "a/c", tmp_path / "c")
    (place / "a/c").symlink_to(tmp_path / "c")
    before = files(tmp_path)
    assert refused(run("rm", "-y", f"{place}/a/c/0"), place / "a/c")
    assert "'a/c' leads elsewhere" in run("rm", "-r", "-y", f"{place}/a/c").error
    assert files(tmp_path) == before
    succeed("rm", "-r", "-y", f"{place}/a")
    assert files(tmp_path / "c") == {key.removeprefix("c/"): data for key, data in before.items() if key.startswith("c/")}
    assert not (place / "a").exists()


def test_links_are_cut_where_they_lie_in_what_is_removed(places: tuple[Path, Path], tmp_path: Path) -> None:
    place, elsewhere = places
    (place / "a/nowhere").symlink_to(tmp_path / "absent")
    before = files(elsewhere)
    succeed("rm", "-r", "-y", f"{place}/lnk")
    assert not (place / "lnk").is_symlink()
    (place / "lnk").symlink_to(elsewhere)
    succeed("rm", "-r", "-y", str(place))
    assert not any(place.rglob("*"))
    assert files(elsewhere) == before


def test_whole_shards_below_a_link_are_not_erased_with_a_part_of_an_array(tmp_path: Path) -> None:
    place = tmp_path / "p"
    array = zarr.create_array(shardstore.open(place, chunks_per_shard=(1, 4)), shape=(4, 4), chunks=(1, 1), dtype="i4")
    array[...] = 3
    shutil.move(place / "c/1", tmp_path / "row")
    (place / "c/1").symlink_to(tmp_path / "row")
    before = files(tmp_path / "row")
    assert "'c/1' leads elsewhere" in run("rm", "-r", "-y", f"{place}/c/1").error
    fs = shardstore.ShardedFileSystem(fo=str(place))
    fs.rm("c/1", recursive=True)  # which cuts the link
    assert files(tmp_path / "row") == before
    assert not (place / "c/1").is_symlink()


@pytest.mark.parametrize("command", ["cp", "mv"])
def test_a_link_in_the_place_of_the_target_is_cut_or_refused(tmp_path: Path, places: tuple[Path, Path], command: str) -> None:
    place, elsewhere = places
    source, empty = made(tmp_path / "s"), tmp_path / "empty"
    empty.mkdir()
    (place / "e").symlink_to(empty)
    (place / "n").symlink_to(tmp_path / "nowhere")
    (place / "group").mkdir()
    (place / "group/c").symlink_to(empty)
    before = files(tmp_path)
    for name in ("e", "n", "group"):
        outcome = run(command, f"{source}/a", f"{place}/{name}")
        assert (outcome.code, "leads elsewhere" in outcome.error) == (6, True)
    assert files(tmp_path) == before
    for name in ("lnk", "e", "n", "group"):
        succeed(command, "--overwrite", f"{source}/a", f"{place}/{name}")
        assert values(place, name) == [3] * 8
        assert not (place / name).is_symlink()
        made(source, 3) if command == "mv" else None
    assert not (place / "group/c").is_symlink()
    assert list(empty.iterdir()) == []
    assert files(elsewhere) == {key.removeprefix("elsewhere/"): data for key, data in before.items() if key.startswith("elsewhere/")}


def test_what_a_link_leads_to_is_copied(tmp_path: Path, places: tuple[Path, Path]) -> None:
    place, elsewhere = places
    succeed("cp", f"{place}/lnk/a", f"{tmp_path}/copy.zarr")
    succeed("mv", f"{place}/lnk", f"{tmp_path}/moved.zarr")  # another store: what was there is read, and the link is cut
    assert (files(tmp_path / "moved.zarr"), (place / "lnk").is_symlink()) == (files(elsewhere), False)


def test_an_array_whose_chunks_are_linked_is_moved_with_its_link_or_not_at_all(tmp_path: Path, places: tuple[Path, Path]) -> None:
    place, _ = places
    shutil.move(place / "a/c", tmp_path / "c")
    (place / "a/c").symlink_to("../../c")
    outcome = run("mv", f"{place}/a", f"{place}/g/h/a")
    assert outcome.code == 6
    assert f"the link {place}/a/c in it, to '../../c', would lead elsewhere from its new place" in outcome.error
    assert values(place) == [3] * 8
    (place / "a/c").unlink()
    (place / "a/c").symlink_to(tmp_path / "c")
    succeed("mv", f"{place}/a", f"{place}/g/h/a")
    assert os.readlink(place / "g/h/a/c") == str(tmp_path / "c")
    assert values(place, "g/h/a") == [3] * 8


def test_arrays_are_written_through_links_as_ever(tmp_path: Path) -> None:
    """A part of a store that lies on another disk by a link is read, written and erased by zarr as any other part."""
    place, disk = made(tmp_path / "p"), tmp_path / "disk"
    (disk / "c").mkdir(parents=True)
    (disk / "g").mkdir()
    group = zarr.open_group(shardstore.open(place, chunks_per_shard=(4,)))
    array = group.create_array("b", shape=(16,), chunks=(1,), dtype="i4")
    (place / "b/c").symlink_to(disk / "c")
    (place / "g").symlink_to(disk / "g")
    array[...] = 1
    array[:4] = 2
    array[4:8] = 0
    assert sorted(path.name for path in (disk / "c").iterdir() if path.name.isdecimal()) == ["0", "2", "3"]
    assert np.asarray(array[...]).tolist() == [2] * 4 + [0] * 4 + [1] * 8
    for value in (5, 6):
        group.create_array("g/x", shape=(4,), chunks=(1,), dtype="i4", overwrite=True)[...] = value
        assert (disk / "g/x/zarr.json").exists()
    group["g/x"][0] = 0  # type: ignore[index]  # an array
    del group["g/x"]
    assert not (disk / "g/x/zarr.json").exists()
    assert (place / "g").is_symlink()
