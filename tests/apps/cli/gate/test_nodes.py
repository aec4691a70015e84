"""``shardstore cp``, ``mv`` and ``rm``: whole nodes as they are stored."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import numpy as np
import pytest
import zarr

import shardstore
from tests.apps.cli.running import VALUES, Place, make_store, options_of, run, succeed
from tests.stored import FsspecObjects, LocalObjects, snapshot

pytestmark = [pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")]


def below(objects: dict[str, bytes], path: str) -> dict[str, bytes]:
    return {key.removeprefix(f"{path}/"): data for key, data in objects.items() if key.startswith(f"{path}/")}


def without(objects: dict[str, bytes], path: str) -> dict[str, bytes]:
    return {key: data for key, data in objects.items() if not key.startswith(f"{path}/")}


def values_of(url: str, path: str, place: Place | None = None) -> np.ndarray:
    options = place.storage_options if place is not None else {}
    array = zarr.open_array(shardstore.open(url, storage_options=options or None), path=path, mode="r")
    return np.asarray(array[:12])


# -- copying -----------------------------------------------------------------------------------------------------------


def test_an_array_is_copied_byte_for_byte(place: Place) -> None:
    before = snapshot(place.objects)
    outcome = succeed("cp", f"{place.url}/ct", f"{place.url}/scans/ct", *place.options)
    assert outcome.lines == [f"copied 7 objects to {place.url}/scans/ct"]
    after = snapshot(place.objects)
    assert below(after, "scans/ct") == below(before, "ct")
    assert without(after, "scans/ct") == before
    assert np.array_equal(values_of(place.url, "scans/ct", place), VALUES)


@pytest.mark.parametrize(("source", "target"), [("d/a2", "v3/a2"), ("d", "v3")])
def test_a_hierarchy_of_the_2022_draft_becomes_one_that_everything_reads(tmp_path: Path, source: str, target: str) -> None:
    fixture = Path(__file__).parents[3] / "fixtures/transformer2022/t2d_missing"
    shutil.copytree(fixture / "store", tmp_path / "d")
    before = snapshot(LocalObjects(tmp_path / "d"))
    succeed("cp", str(tmp_path / source), str(tmp_path / target))
    with np.load(fixture / "expected.npz") as expected:
        array = zarr.open_array(str(tmp_path / "v3/a2"), mode="r", zarr_format=3)
        np.testing.assert_array_equal(np.asarray(array[...]), expected["a2"])
    assert snapshot(LocalObjects(tmp_path / "d")) == before


def test_a_store_is_copied_to_another_storage(place: Place, tmp_path: Path) -> None:
    target = tmp_path / "copies" / "copy.zarr"
    outcome = succeed("cp", place.url, str(target), "--json", *place.options)
    assert outcome.json == {"source": place.url, "target": str(target), "objects": len(place.objects.keys())}
    assert snapshot(LocalObjects(target)) == snapshot(place.objects)


def test_into_another_storage_with_its_own_options(local: Place, s3_url: tuple[str, dict[str, str]]) -> None:
    url, options = s3_url
    pairs = [argument for key, value in options.items() for argument in ("-o", f"{key}={value}")]
    succeed("cp", f"{local.url}/ct", f"{url}/ct", *pairs)
    assert np.array_equal(values_of(url, "ct", Place(url, local.objects, options)), VALUES)


def test_copying_onto_something_is_a_conflict(place: Place) -> None:
    before = snapshot(place.objects)
    outcome = run("cp", f"{place.url}/ct", f"{place.url}/time", *place.options)
    assert outcome.code == 6
    assert "there is something at" in outcome.error
    assert snapshot(place.objects) == before
    succeed("cp", "--overwrite", f"{place.url}/ct", f"{place.url}/time", *place.options)
    assert below(snapshot(place.objects), "time") == below(before, "ct")


# -- moving ------------------------------------------------------------------------------------------------------------


def test_an_array_is_moved(place: Place) -> None:
    before = snapshot(place.objects)
    outcome = succeed("mv", f"{place.url}/ct", f"{place.url}/ct2", *place.options)
    assert outcome.lines == [f"moved {place.url}/ct to {place.url}/ct2"]
    after = snapshot(place.objects)
    assert below(after, "ct2") == below(before, "ct")
    assert without(after, "ct2") == without(before, "ct")
    assert np.array_equal(values_of(place.url, "ct2", place), VALUES)


def test_a_store_is_moved(place: Place) -> None:
    before = snapshot(place.objects)
    target = f"{place.url.removesuffix('data.zarr')}other.zarr"
    succeed("mv", place.url, target, *place.options)
    assert place.objects.keys() == []
    assert np.array_equal(values_of(target, "ct", place), VALUES)
    succeed("mv", target, place.url, *place.options)
    assert snapshot(place.objects) == before


def test_a_move_on_a_local_disk_is_one_rename(local: Place) -> None:
    inode = Path(local.url, "ct/c/0/0").stat().st_ino
    directory = Path(local.url, "ct").stat().st_ino
    assert succeed("mv", "--json", f"{local.url}/ct", f"{local.url}/scans/moved").json["operations"] == 1
    assert Path(local.url, "scans/moved").stat().st_ino == directory
    assert Path(local.url, "scans/moved/c/0/0").stat().st_ino == inode
    root = Path(local.url).stat().st_ino
    succeed("mv", local.url, f"{local.url}-elsewhere")
    assert Path(f"{local.url}-elsewhere").stat().st_ino == root


def test_between_storages(local: Place) -> None:
    before = snapshot(local.objects)
    url = f"memory://moved-{uuid.uuid4().hex}/x.zarr"
    succeed("mv", f"{local.url}/ct", f"{url}/ct")
    assert np.array_equal(values_of(url, "ct"), VALUES)
    assert snapshot(local.objects) == without(before, "ct")


@pytest.mark.parametrize("command", ["cp", "mv"])
@pytest.mark.parametrize(
    ("source", "target", "code", "said"),
    [
        ("nothing", "new", 3, "there is nothing at"),
        ("ct/c/0/0", "new", 2, "belongs to the chunks of the sharded array 'ct'"),
        ("ct", "scans/pt/c/0", 2, "belongs to the chunks of the sharded array 'scans/pt'"),
        ("ct/zarr.json", "new", 2, "is the metadata of a node"),
        ("scans", "scans/pt/inside", 2, "overlap"),
        ("ct", "ct", 2, "overlap"),
        ("", "inside", 2, "overlap"),
        ("ct", "time", 6, "there is something at"),
    ],
)
def test_what_cannot_be_done_changes_nothing(local: Place, command: str, source: str, target: str, code: int, said: str) -> None:
    before = snapshot(local.objects)
    outcome = run(command, f"{local.url}/{source}", f"{local.url}/{target}")
    assert (outcome.code, said in outcome.error) == (code, True), outcome.err
    assert snapshot(local.objects) == before


def test_stale_consolidated_metadata_is_warned_of(local: Place) -> None:
    zarr.consolidate_metadata(shardstore.open(local.url))
    warning = f"warning: the consolidated metadata of {local.url} is out of date: renew it by zarr.consolidate_metadata\n"
    assert succeed("cp", f"{local.url}/ct", f"{local.url}/ct2").err == warning
    succeed("rm", "--yes", f"{local.url}/ct2")
    assert succeed("mv", f"{local.url}/ct", f"{local.url}/ct2").err == warning
    assert succeed("mv", f"{local.url}/ct2", f"{local.url}/ct").err == ""
    assert succeed("rm", "--yes", f"{local.url}/time").err == warning


def test_a_place_that_is_not_found_from_the_root_is_warned_of(local: Place) -> None:
    assert succeed("cp", f"{local.url}/ct", f"{local.url}/scans/ct").err == ""
    lost = f"{local.url}/no-group/ct"
    warning = f"warning: {local.url}/no-group is not a group, so {lost} is not found from the root: make one by zarr.create_group\n"
    assert succeed("mv", f"{local.url}/ct", lost).err == warning
    assert succeed("cp", lost, f"{local.url}-elsewhere/ct").err == ""  # no store there yet


# -- removing ----------------------------------------------------------------------------------------------------------


def test_an_array_is_removed(place: Place) -> None:
    before = snapshot(place.objects)
    nbytes = sum(map(len, below(before, "ct").values()))
    outcome = succeed("rm", "--yes", "--json", f"{place.url}/ct", *place.options)
    assert outcome.json == {"removed": f"{place.url}/ct", "kind": "array", "objects": 7, "nbytes": nbytes}
    assert snapshot(place.objects) == without(before, "ct")


@pytest.mark.parametrize("flags", [[], ["--recursive"]])
def test_without_anyone_to_ask_nothing_is_removed(place: Place, flags: list[str]) -> None:
    before = snapshot(place.objects)
    outcome = run("rm", *flags, f"{place.url}/ct", *place.options)
    assert outcome.code == 2
    assert f"this would remove array {place.url}/ct: 7 objects, " in outcome.error
    assert "Give --yes" in outcome.error
    assert snapshot(place.objects) == before


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("", 130)])
def test_on_a_terminal_it_asks(local: Place, monkeypatch: pytest.MonkeyPatch, answer: str, code: int) -> None:
    monkeypatch.setattr("shardstore.apps.cli.output.is_interactive", lambda: True)
    before = snapshot(local.objects)
    outcome = run("rm", f"{local.url}/ct", stdin=answer)
    assert outcome.code == code
    assert f"This would remove array {local.url}/ct: 7 objects" in outcome.err
    assert snapshot(local.objects) == (without(before, "ct") if code == 0 else before)


def test_groups_and_directories_need_recursive(place: Place) -> None:
    before = snapshot(place.objects)
    for path, kind in (("scans", "group"), ("", "group"), ("ct/c/0", "directory")):
        outcome = run("rm", "--yes", f"{place.url}/{path}", *place.options)
        assert (outcome.code, f" is a {kind} of " in outcome.error, "give --recursive to remove it" in outcome.error) == (2, True, True)
    assert snapshot(place.objects) == before
    succeed("rm", "--yes", "-r", f"{place.url}/scans", *place.options)
    assert snapshot(place.objects) == without(before, "scans")


def test_a_single_chunk_is_taken_out_of_its_shard(place: Place) -> None:
    outcome = succeed("rm", f"{place.url}/ct/c/0/1", *place.options)
    assert outcome.lines == [f"removed key {place.url}/ct/c/0/1: 1 key, 50 B"]
    expected = VALUES.copy()
    expected[:5, 5:10] = 0
    assert np.array_equal(values_of(place.url, "ct", place), expected)
    assert run("rm", f"{place.url}/ct/c/0/1", *place.options).code == 3


def test_a_directory_of_chunks(local: Place) -> None:
    outcome = succeed("rm", "-r", "--yes", "--json", f"{local.url}/ct/c/1")
    assert outcome.json == {"removed": f"{local.url}/ct/c/1", "kind": "directory", "keys": 7, "nbytes": 350}
    expected = VALUES.copy()
    expected[5:10] = 0
    assert np.array_equal(values_of(local.url, "ct"), expected)


def test_a_whole_store(place: Place) -> None:
    succeed("rm", "-r", "--yes", place.url, *place.options)
    assert place.objects.keys() == []
    assert run("rm", "-r", "--yes", place.url, *place.options).code == 3


def test_metadata_is_not_removed_alone(local: Place) -> None:
    outcome = run("rm", "--yes", f"{local.url}/ct/zarr.json")
    assert outcome.code == 2
    assert "remove the node instead" in outcome.error
    assert Path(local.url, "ct/zarr.json").exists()


def test_what_is_no_zarr_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.bin").write_bytes(b"123")
    for name, flags in (("notes/a.bin", []), ("notes/a.bin", ["--yes"]), ("notes", ["-r", "--yes"])):
        outcome = run("rm", *flags, str(tmp_path / name))
        assert outcome.code == 2
        assert outcome.error.startswith(f"nothing at or below {tmp_path}/{name} is Zarr: shardstore removes only arrays, groups and")
    assert (tmp_path / "notes/a.bin").read_bytes() == b"123"


def test_a_directory_of_stores_and_zarr_v2_count_as_zarr(local: Place, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    for name in (".zarray", "0.0", "0.1"):
        (old / name).write_bytes(b"{}")
    succeed("rm", "--yes", str(old / "0.1"))
    assert sorted(path.name for path in old.iterdir()) == [".zarray", "0.0"]
    succeed("rm", "-r", "--yes", str(old))
    assert not old.exists()
    succeed("rm", "-r", "--yes", str(tmp_path))
    assert local.objects.keys() == []


def test_a_key_outside_of_arrays_is_asked_for(local: Place) -> None:
    Path(local.url, "notes.txt").write_bytes(b"123")
    outcome = run("rm", f"{local.url}/notes.txt")
    assert (outcome.code, "this would remove key" in outcome.error) == (2, True)
    assert Path(local.url, "notes.txt").read_bytes() == b"123"
    succeed("rm", "--yes", f"{local.url}/notes.txt")
    assert not Path(local.url, "notes.txt").exists()


def test_a_bucket_that_is_no_node_is_never_removed(s3_url: tuple[str, dict[str, str]]) -> None:
    url, options = s3_url
    bucket = "/".join(url.split("/")[:3])
    make_store(f"{url}/data.zarr", options)
    before = snapshot(FsspecObjects(url, options))
    outcome = run("rm", "-r", "--yes", bucket, *options_of(options))
    assert outcome.code == 2
    assert f"{bucket} is a whole bucket or storage, and no Zarr node itself" in outcome.error
    assert snapshot(FsspecObjects(url, options)) == before


# -- overwriting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["cp", "mv"])
def test_overwrite_spares_directories_of_other_things(local: Place, tmp_path: Path, command: str) -> None:
    (tmp_path / "notes/deep").mkdir(parents=True)
    (tmp_path / "notes/deep/a.txt").write_bytes(b"123")
    before = snapshot(local.objects)
    outcome = run(command, "--overwrite", f"{local.url}/ct", str(tmp_path / "notes"))
    assert outcome.code == 2
    assert f"{tmp_path}/notes is no Zarr node, and --overwrite would erase all that is in it" in outcome.error
    assert (tmp_path / "notes/deep/a.txt").read_bytes() == b"123"
    assert sorted(path.name for path in (tmp_path / "notes").iterdir()) == ["deep"]
    assert snapshot(local.objects) == before


def test_overwrite_spares_a_bucket_with_other_things(local: Place, s3_url: tuple[str, dict[str, str]]) -> None:
    url, options = s3_url
    bucket = "/".join(url.split("/")[:3])
    make_store(f"{url}/data.zarr", options)
    before = snapshot(FsspecObjects(url, options))
    outcome = run("cp", "--overwrite", f"{local.url}/ct", bucket, *options_of(options))
    assert (outcome.code, f"{bucket} is no Zarr node" in outcome.error) == (2, True)
    assert snapshot(FsspecObjects(url, options)) == before


@pytest.mark.parametrize("command", ["cp", "mv"])
def test_overwrite_replaces_a_node(local: Place, command: str) -> None:
    before = snapshot(local.objects)
    succeed(command, "--overwrite", f"{local.url}/ct", f"{local.url}/scans/pt")
    assert below(snapshot(local.objects), "scans/pt") == below(before, "ct")
