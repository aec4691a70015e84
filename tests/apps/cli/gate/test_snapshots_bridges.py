"""``shardstore snapshots export`` and ``import``: what they take, print and end with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import zarr

import shardstore
from shardstore.apps.cli.output import ExitCode
from shardstore.snapshots import Repository
from tests.apps.cli.running import run, spawn, succeed

IS_2 = not icechunk.__version__.startswith("1.")
needs_2 = pytest.mark.skipif(not IS_2, reason="icechunk 1 does not say where its chunks lie")
DATA = np.arange(6400, dtype="i4").reshape(80, 80)


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    """Three snapshots, a branch besides main, and a tag."""
    made = Repository.create(tmp_path / "run.ice", fsync=False, pack=(2, 2))
    with made.transaction(message="array") as store:
        zarr.create_array(store, name="a", data=DATA, chunks=(20, 20), compressors=None)
    made.create_branch("side", made.lookup_branch("main"))
    with made.transaction(message="one chunk") as store:
        zarr.open_array(store, path="a", mode="r+")[:20, :20] = -1
    made.create_tag("v1", made.lookup_branch("main"))
    return made


def values(place: Path, access: Any) -> Any:
    found = icechunk.Repository.open(icechunk.local_filesystem_storage(str(place)), authorize_virtual_chunk_access=access)
    return zarr.open_array(found.readonly_session("main").store, path="a", mode="r")[...]


def access_to(*prefixes: str) -> Any:
    return icechunk.containers_credentials(dict.fromkeys(prefixes, getattr(icechunk.credentials, "LocalFileSystemAccess", None)))


def test_export_says_what_it_wrote(repo: Repository, tmp_path: Path) -> None:
    said = succeed("snapshots", "export", repo.url, str(tmp_path / "out"), "--to", "icechunk").lines
    assert said == [f"wrote 3 snapshots, 2 branches and 1 tag to file://{tmp_path}/out: 17 references, 0 of them copied"]
    wanted = DATA.copy()
    wanted[:20, :20] = -1
    np.testing.assert_array_equal(values(tmp_path / "out", access_to(f"file://{tmp_path}/run.ice/c/")), wanted)


def test_export_prints_nothing_but_json(repo: Repository, tmp_path: Path) -> None:
    done = spawn("snapshots", "export", repo.url, str(tmp_path / "out"), "--to", "icechunk", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    ids = found.pop("snapshots")
    assert list(ids) == [one.id for one in repo.ancestry()][::-1]
    target = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path / "out")))
    assert ids[repo.lookup_branch("main")] == target.lookup_branch("main")
    assert found == {
        "to": "icechunk",
        "location": f"file://{tmp_path}/out",
        "branches": 2,
        "tags": 1,
        "references": 17,
        "copied": 0,
        "without_bytes": 0,
        "texts": 0,
        "virtual_prefixes": [f"file://{tmp_path}/run.ice/c/"],
    }


def test_export_into_what_is_there_is_refused(repo: Repository, tmp_path: Path) -> None:
    succeed("snapshots", "export", repo.url, str(tmp_path / "out"), "--to", "icechunk")
    refused = run("snapshots", "export", repo.url, str(tmp_path / "out"), "--to", "icechunk")
    assert refused.code == ExitCode.INVALID
    assert f"there is something at file://{tmp_path}/out already" in refused.err
    for arguments, said in (
        ([repo.url, str(tmp_path / "x"), "--to", "zip"], "'zip' is not"),
        ([repo.url, str(tmp_path / "x")], "--to"),
        ([repo.url, str(tmp_path / "x"), "--to", "zarr", "-s", ""], "give a number for each dimension"),
        ([f"{repo.url}@main", str(tmp_path / "x"), "--to", "icechunk"], "@main"),
        ([str(tmp_path / "none.ice"), str(tmp_path / "x"), "--to", "icechunk"], "no versioned store"),
    ):
        refused = run("snapshots", "export", *arguments)
        assert refused.code in (ExitCode.INVALID, ExitCode.NOT_FOUND)
        assert said in refused.err
    assert not (tmp_path / "x").exists()


@needs_2
@pytest.mark.parametrize("copy", [False, True])
def test_import_makes_the_same_history(repo: Repository, tmp_path: Path, copy: bool) -> None:
    succeed("snapshots", "export", repo.url, str(tmp_path / "out"), "--to", "icechunk")
    prefix = f"file://{tmp_path}/run.ice/c/"
    options = ["--virtual-prefix", prefix, *(["--copy"] if copy else [])]
    (planned,) = succeed("snapshots", "import", str(tmp_path / "out"), str(tmp_path / "back.ice"), *options, "--dry-run").lines
    assert planned == f"would make the versioned store {tmp_path}/back.ice of {tmp_path}/out, with 3 snapshots, 2 branches and 1 tag"
    assert not (tmp_path / "back.ice").exists()
    first, second = succeed("snapshots", "import", str(tmp_path / "out"), str(tmp_path / "back.ice"), *options).lines
    assert first == f"made the versioned store file://{tmp_path}/back.ice of {tmp_path}/out, with 3 snapshots, 2 branches and 1 tag"
    prefixes = [prefix] if copy else [prefix, f"file://{tmp_path}/out/chunks/"]
    assert second == f"open it with virtual_prefixes={prefixes}"
    back = Repository.open(tmp_path / "back.ice", virtual_prefixes=prefixes)
    assert list(back.ancestry()) == list(repo.ancestry())
    found = zarr.open_array(back.readonly_session(tag="v1").store, path="a", mode="r")[...]
    np.testing.assert_array_equal(found, zarr.open_array(repo.readonly_session(tag="v1").store, path="a", mode="r")[...])
    again = succeed("snapshots", "import", str(tmp_path / "out"), str(tmp_path / "more.ice"), *options, "--json").json
    assert again == {
        "url": f"file://{tmp_path}/more.ice",
        "dry_run": False,
        "snapshot": repo.lookup_branch("main"),
        "snapshots": 3,
        "branches": 2,
        "tags": 1,
        "virtual_prefixes": prefixes,
    }


def test_import_of_what_is_none_is_refused(repo: Repository, tmp_path: Path) -> None:
    refused = run("snapshots", "import", repo.url, str(tmp_path / "back.ice"))
    if IS_2:
        assert refused.code == ExitCode.NOT_FOUND
        assert "there is no repository of icechunk at" in refused.err
    else:
        assert refused.code == ExitCode.UNSUPPORTED
        assert "import with icechunk 2" in refused.err
    assert not Repository.exists(tmp_path / "back.ice")


# -- one snapshot ------------------------------------------------------------------------------------------------------


def test_export_to_zarr_copies_shards_and_compares(repo: Repository, tmp_path: Path) -> None:
    arguments = ["snapshots", "export", repo.url, str(tmp_path / "out.zarr"), "--to", "zarr", "-s", "2,2"]
    planned = succeed(*arguments, "--dry-run").lines
    assert planned[0] == f"18 objects of main would become about 6 objects at file://{tmp_path}/out.zarr"
    assert not (tmp_path / "out.zarr").exists()
    said = succeed(*arguments).lines
    assert said == [
        f"wrote main to file://{tmp_path}/out.zarr: 16 chunks in 4 objects, 3 of them copied unchanged; compared with the snapshot"
    ]
    wanted = DATA.copy()
    wanted[:20, :20] = -1
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "out.zarr", path="a", mode="r")[...], wanted)


def test_export_to_zarr_of_a_tag_or_branch(repo: Repository, tmp_path: Path) -> None:
    found = succeed(
        "snapshots", "export", repo.url, str(tmp_path / "out.zarr"), "--to", "zarr", "--at", "side", "--no-check", "--json"
    ).json
    assert (found["to"], found["complete"], found["chunks"]) == ("zarr", True, 16)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "out.zarr", path="a", mode="r")[...], DATA)


@pytest.mark.filterwarnings("ignore")  # of pandas
@pytest.mark.parametrize("name", ["out.json", "out.refs"])
def test_export_to_references(repo: Repository, tmp_path: Path, name: str) -> None:
    arguments = ["snapshots", "export", repo.url, str(tmp_path / name), "--to", "references", "--at", "side"]
    assert succeed(*arguments, "--dry-run").lines == [f"would write 16 references to {tmp_path / name}"]
    assert succeed(*arguments).lines == [f"wrote 16 references to chunks of side to {tmp_path / name}"]
    for again in (run(*arguments, "--dry-run"), run(*arguments)):
        assert again.code == ExitCode.INVALID
        assert "there is something at" in again.error
    store = shardstore.open(f"reference::{tmp_path / name}", read_only=True)
    np.testing.assert_array_equal(zarr.open_array(store, path="a", mode="r")[...], DATA)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--to", "icechunk", "--at", "v1"], "--at cannot be used with --to icechunk"),
        (["--to", "references", "-s", "2,2"], "-s cannot be used with --to references"),
        (["--to", "icechunk", "--no-check"], "--no-check cannot be used with --to icechunk"),
    ],
)
def test_options_of_other_forms_are_refused(repo: Repository, tmp_path: Path, given: list[str], named: str) -> None:
    done = run("snapshots", "export", repo.url, str(tmp_path / "out"), *given)
    assert done.code == ExitCode.INVALID
    assert named in done.err
    assert not (tmp_path / "out").exists()


def test_export_to_icechunk_can_be_tried(repo: Repository, tmp_path: Path) -> None:
    said = succeed("snapshots", "export", repo.url, str(tmp_path / "out"), "--to", "icechunk", "--dry-run").lines
    assert said == [f"would write 3 snapshots, 2 branches and 1 tag to file://{tmp_path}/out"]
    assert not (tmp_path / "out").exists()


def test_adopted_store_is_exported_with_its_prefix(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "data.zarr", name="a", data=DATA, chunks=(20, 20), shards=(40, 40))
    succeed("snapshots", "adopt", str(tmp_path / "data.zarr"), str(tmp_path / "data.ice"))
    prefix = f"file://{tmp_path}/data.zarr/"
    succeed("snapshots", "export", str(tmp_path / "data.ice"), str(tmp_path / "out"), "--to", "zarr", "--virtual-prefix", prefix)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "out", path="a", mode="r")[...], DATA)
    refused = run("snapshots", "export", str(tmp_path / "data.ice"), str(tmp_path / "other"), "--to", "zarr")
    assert refused.code != ExitCode.OK
    assert f"--virtual-prefix file://{tmp_path}/data.zarr/" in refused.err
