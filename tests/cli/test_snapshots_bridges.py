"""``shardstore snapshots export`` and ``import``: what they take, print and end with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import zarr

from shardstore.cli.failures import ExitCode
from shardstore.snapshots import Repository
from tests.cli.running import run, spawn, succeed

pytestmark = pytest.mark.zarr

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
