"""Local paths whose names mean something in URLs, patterns or shells, by every face and command: what is beside them is never touched."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr

import shardstore
from shardstore import references
from shardstore.adapters.versioned.repository import Repository
from tests.apps.cli.running import succeed
from tests.apps.server.conftest import connected

# The name of a store, and that of a neighbour which a careless reader of URLs or patterns would take for it.
NAMES = {
    "run::v2": "run",
    "zip::run": "run",
    "run@main": "run",
    "run?x#1": "run",
    "run%41": "runA",
    "run*": "run2",
    "run[1]": "run1",
}


def plain(path: Path, value: int, shards: tuple[int, ...] | None = (2,)) -> None:
    store = zarr.storage.LocalStore(path)
    zarr.create_array(store, name="a", shape=(4,), chunks=(1,), shards=shards, dtype="i4", compressors=None)[...] = value


def value_at(path: Path) -> int:
    found = np.asarray(zarr.open_array(zarr.storage.LocalStore(path), path="a", mode="r")[...])
    assert len(set(found.tolist())) == 1
    return int(found[0])


def digests(base: Path) -> dict[str, str]:
    return {
        str(path.relative_to(base)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(base.rglob("*")) if path.is_file()
    }


@pytest.fixture(params=NAMES)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A store of twos, with a neighbour of ones."""
    for name, value in ((request.param, 2), (NAMES[request.param], 1)):
        plain(tmp_path / name, value)
    return tmp_path / str(request.param)


@pytest.fixture(autouse=True)
def _neighbour_unchanged(request: pytest.FixtureRequest) -> Any:
    if "path" not in request.fixturenames:
        yield
        return
    path: Path = request.getfixturevalue("path")
    neighbour = path.parent / NAMES[path.name]
    before = digests(neighbour)
    yield
    assert digests(neighbour) == before


TEXT_OR_PATH: list[Callable[[Path], Any]] = [Path, str]


@pytest.mark.parametrize("as_target", TEXT_OR_PATH, ids=["path", "text"])
def test_faces(path: Path, as_target: Callable[[Path], Any]) -> None:
    target = as_target(path)
    assert zarr.open_array(shardstore.open(target, read_only=True), path="a", mode="r")[0] == 2
    zarr.open_array(shardstore.open(target, fsync=False), path="a")[:2] = [5, 5]
    zarr.open_array(shardstore.open(target, fsync=False), path="a")[2:] = [5, 5]
    assert value_at(path) == 5
    mapper = shardstore.get_mapper(target)
    assert {"a/c/0", "a/zarr.json"} <= set(mapper)
    mapper.clear()
    assert not (path / "a").exists()


def test_a_relative_path(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    zarr.open_array(shardstore.open(Path(path.name), fsync=False), path="a")[...] = 6
    assert value_at(path) == 6
    shardstore.pack(Path(path.name), Path(f"to{path.name}"), fsync=False)
    assert value_at(path.parent / f"to{path.name}") == 6


@pytest.mark.parametrize("as_target", TEXT_OR_PATH, ids=["path", "text"])
def test_packing(path: Path, as_target: Callable[[Path], Any]) -> None:
    base = path.parent
    plain(base / "source", 3, None)
    report = shardstore.pack(base / "source", as_target(path), overwrite=True, chunks_per_shard=(2,), fsync=False)
    assert (report.complete, value_at(path)) == (True, 3)
    assert shardstore.pack(base / "source", as_target(path), chunks_per_shard=(2,), fsync=False).complete
    shardstore.unpack(as_target(path), as_target(base / f"un{path.name}"), fsync=False)
    assert value_at(base / f"un{path.name}") == 3
    found = {entry.name for entry in base.iterdir()} - {"source", NAMES[path.name]}
    assert {name.partition(path.name)[1] for name in found} == {path.name}, found


@pytest.mark.parametrize("as_target", TEXT_OR_PATH, ids=["path", "text"])
def test_upkeep(path: Path, as_target: Callable[[Path], Any]) -> None:
    target = as_target(path)
    assert shardstore.verify(target, deep=True).errors == 0
    assert [array.path for array in shardstore.census(target).arrays] == ["a"]
    assert shardstore.compact(target).url == f"file://{path}"
    (path / "a/c/0").write_bytes(b"broken")
    shardstore.repair(target)
    found = {entry.name for entry in path.parent.iterdir()}
    assert found == {path.name, f"{path.name}.quarantine", NAMES[path.name]}


def test_references(path: Path) -> None:
    base = path.parent
    sets = base / f"sets{path.name}"
    sets.mkdir()
    for urls in ("absolute", "relative"):
        report = references.write_json(path, sets / f"{urls}.json", urls=urls, flavour="v3")
        assert report is not None
        found = shardstore.open(f"reference::{sets}/{urls}.json", read_only=True)
        assert np.asarray(zarr.open_array(found, path="a", mode="r")[...]).tolist() == [2] * 4
        assert references.check(sets / f"{urls}.json", indices=True).is_sound
        assert {pin.key for pin in references.pins(sets / f"{urls}.json")} == {"a/c/0", "a/c/1"}
    references.write_parquet(path, sets / "set.parq")
    assert references.check(sets / "set.parq").is_sound
    adopted = Repository.adopt(path, base / f"ice{path.name}")
    assert np.asarray(zarr.open_array(adopted.readonly_session("main").store, path="a", mode="r")[...]).tolist() == [2] * 4


def test_versioned_stores(path: Path) -> None:
    if "@" in path.name:  # as text, the first @ is the one that counts
        return
    place = path.parent / f"ice{path.name}"
    neighbour = path.parent / f"ice{NAMES[path.name]}"
    for where, value in ((neighbour, 1), (place, 2)):
        repository = Repository.create(where, fsync=False)
        with repository.transaction("main", message="first") as store:
            zarr.create_array(store, name="a", shape=(4,), chunks=(1,), dtype="i4")[...] = value
    before = digests(neighbour)
    assert zarr.open_array(shardstore.open(f"{place}@main"), path="a", mode="r")[0] == 2
    assert shardstore.verify(f"{place}@main").errors == 0
    plain(path.parent / "new", 4, None)
    shardstore.pack(path.parent / "new", f"{place}@main", overwrite=True, message="second")
    assert zarr.open_array(shardstore.open(f"{place}@main"), path="a", mode="r")[0] == 4
    assert len(list(Repository.open(place).ancestry("main"))) > 2
    assert digests(neighbour) == before


def test_serving(path: Path) -> None:
    with shardstore.serve(path, port=0) as serving, connected(serving) as http:
        assert http.get("zarr3/a/c/0").content == (2).to_bytes(4, "little")


def test_commands(path: Path) -> None:
    base = path.parent
    assert "a/" in succeed("ls", str(path)).lines
    assert succeed("cat", f"{path}/a/c/0").raw[:1] == b"\2"
    assert str(path) in succeed("info", str(path)).out
    assert succeed("verify", "--json", str(path)).json
    succeed("census", str(path))
    succeed("compact", str(path))
    succeed("refs", "write", str(path), str(base / f"{path.name}.json"))
    succeed("cp", f"{path}/a", f"{path}/b")
    succeed("mv", f"{path}/b", f"{path}/c")
    assert (path / "c/zarr.json").exists()
    succeed("rm", "--yes", f"{path}/c")
    assert not (path / "c").exists()
    plain(base / "source", 3, None)
    succeed("pack", "--overwrite", str(base / "source"), str(path))
    assert value_at(path) == 3
    succeed("unpack", str(path), str(base / f"un{path.name}"))
    assert value_at(base / f"un{path.name}") == 3


def test_the_filesystem(path: Path) -> None:
    below = fsspec.filesystem("file")
    by_name: Any = fsspec.filesystem("sharded", fo=str(path), target_protocol="file", fsync=False)
    by_filesystem: Any = fsspec.filesystem("sharded", fo=str(path), fs=below, fsync=False)
    assert by_filesystem.cat_file(f"{path}/a/c/0") == (2).to_bytes(4, "little")
    if {"*", "["} & set(path.name):  # in text, fsspec's patterns
        assert sorted(by_name.find(str(path)))[0] == f"{path}/a/c/0"
    else:
        assert by_name.cat_file(f"{path}/a/c/0") == (2).to_bytes(4, "little")
    if "::" in path.name:
        with pytest.raises((shardstore.InvalidInput, ValueError), match=r"reads through no other link|Protocol not known"):
            fsspec.url_to_fs(f"sharded::{path}")


def test_a_directory_with_an_at_sign_is_no_snapshot(tmp_path: Path) -> None:
    """As text it is: that is how snapshots are named."""
    repository = Repository.create(tmp_path / "run", fsync=False)
    with repository.transaction("main", message="first") as store:
        zarr.create_array(store, name="a", shape=(4,), chunks=(1,), dtype="i4")[...] = 1
    assert zarr.open_array(shardstore.open(tmp_path / "run@main"), path="a", mode="r")[0] == 1
    plain(tmp_path / "run@main", 2)
    assert zarr.open_array(shardstore.open(f"{tmp_path}/run@main"), path="a", mode="r")[0] == 1
    assert zarr.open_array(shardstore.open(tmp_path / "run@main"), path="a", mode="r")[0] == 2
    plain(tmp_path / "source", 3, None)
    shardstore.pack(tmp_path / "source", tmp_path / "run@main", overwrite=True, fsync=False)
    assert value_at(tmp_path / "run@main") == 3
    assert len(list(repository.ancestry("main"))) == 2
