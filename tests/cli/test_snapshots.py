"""``URL@ref`` on the command line, and ``shardstore snapshots``: what its commands take, print and end with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.cli.failures import ExitCode
from shardstore.snapshots import Repository
from tests.cli.running import options_of, run, succeed

pytestmark = pytest.mark.zarr

DATA = np.arange(1, 65, dtype="u2").reshape(8, 8)


class Store:
    """A versioned store with an array ``scans/ct``, which a tag and a branch show as it was."""

    def __init__(self, url: str, options: dict[str, object] | None = None) -> None:
        self.url = url
        self.options = options_of(options) if options else []
        self.repo = Repository.create(url, storage_options=options)
        with self.repo.transaction(message="first") as store:
            zarr.create_array(store, name="scans/ct", data=DATA, chunks=(4, 4), compressors=None)
        self.first = self.repo.lookup_branch("main")
        self.repo.create_tag("v1", self.first)
        self.repo.create_branch("try/more", self.first)
        with self.repo.transaction(message="second") as store:
            zarr.open_array(store, path="scans/ct")[:4, :4] = 0
        self.second = self.repo.lookup_branch("main")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "run.ice"))


@pytest.fixture(params=["local", "memory", pytest.param("s3", marks=pytest.mark.server)])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    match request.param:
        case "s3":
            url, options = request.getfixturevalue("s3_url")
            return Store(f"{url}/run.ice", options)
        case "memory":
            return Store(f"memory://{tmp_path.name}-run.ice")
        case _:
            return Store(str(tmp_path / "run.ice"))


# -- URL@ref -----------------------------------------------------------------------------------------------------------


def test_ls_and_cat_show_a_snapshot(anywhere: Store) -> None:
    url = f"{anywhere.url}@v1"
    assert succeed("ls", url, *anywhere.options).lines == ["scans/", "zarr.json"]
    assert succeed("ls", f"{url}/scans", "ct/c", *anywhere.options).lines == ["ct/c/0/", "ct/c/1/"]
    assert succeed("ls", "-r", f"{anywhere.url}@try/more/scans/ct/c", *anywhere.options).lines == ["0/0", "0/1", "1/0", "1/1"]
    assert succeed("cat", f"{url}/scans/ct/c/0/0", *anywhere.options).raw == DATA[:4, :4].tobytes()
    assert succeed("cat", f"{anywhere.url}@main", "scans/ct/c/1/1", *anywhere.options).raw == DATA[4:, 4:].tobytes()
    assert run("cat", f"{anywhere.url}@main", "scans/ct/c/0/0", *anywhere.options).code == ExitCode.NOT_FOUND  # it is all fill values


def test_info_shows_which_snapshot(anywhere: Store) -> None:
    done = succeed("info", f"{anywhere.url}@v1", *anywhere.options)
    assert done.lines[0].startswith(f"{anywhere.url}@v1  2 groups, 1 array")
    assert f"snapshot {anywhere.first} of " in done.out
    assert "UTC: first" in done.out
    assert "writers" not in done.out
    document = succeed("info", "--json", f"{anywhere.url}@try/more/scans", *anywhere.options).json
    assert document["snapshot"] == {"ref": "try/more", "id": anywhere.first}
    assert [array["path"] for array in document["arrays"]] == ["scans/ct"]


def test_info_of_the_store_itself_says_how_to_name_a_snapshot(anywhere: Store) -> None:
    assert f"{anywhere.url}@main" in " ".join(succeed("info", anywhere.url, *anywhere.options).out.split())


def test_nodes_are_copied_out_of_a_snapshot(anywhere: Store, tmp_path: Path) -> None:
    succeed("cp", f"{anywhere.url}@v1/scans", str(tmp_path / "scans.zarr"), *anywhere.options)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "scans.zarr", path="ct", mode="r")[...], DATA)
    succeed("cp", f"{anywhere.url}@main", str(tmp_path / "all.zarr"), *anywhere.options)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "all.zarr", path="scans/ct", mode="r")[4:], DATA[4:])


def test_snapshots_are_packed_verified_and_counted(anywhere: Store, tmp_path: Path) -> None:
    packed = str(tmp_path / "packed.zarr")
    succeed("pack", "-s", "2,2", f"{anywhere.url}@v1", packed, *anywhere.options)
    np.testing.assert_array_equal(zarr.open_array(shardstore.open(packed), path="scans/ct", mode="r")[...], DATA)
    assert succeed("verify", f"{anywhere.url}@v1/scans/ct", "--json", *anywhere.options).json["objects"] == 5
    against = ["--against", f"{anywhere.url}@v1", "--against-options", anywhere.options[1]] if anywhere.options else []
    succeed("verify", packed, *(against or ["--against", f"{anywhere.url}@v1"]))
    (array,) = succeed("census", "--json", f"{anywhere.url}@main/scans", *anywhere.options).json["arrays"]
    assert (array["path"], array["chunks"]) == ("scans/ct", 3)


def test_shapes_of_shards_are_compared_for_an_array_in_a_snapshot(store: Store) -> None:
    assert "recommended" in succeed("advise", f"{store.url}@main/scans/ct", "-a", "1,:").out


@pytest.mark.parametrize(
    "command",
    [
        ["cp", "plain.zarr", "run.ice@main/new"],
        ["cp", "--overwrite", "plain.zarr", "run.ice@main/scans"],
        ["mv", "plain.zarr", "run.ice@main/new"],
        ["mv", "run.ice@main/scans", "moved.zarr"],
        ["rm", "-r", "run.ice@main/scans"],
        ["rm", "run.ice@main/scans/ct/c/0/1"],
        ["pack", "plain.zarr", "run.ice@main"],
        ["unpack", "plain.zarr", "run.ice@main/new"],
        ["compact", "run.ice@main"],
        ["repair", "run.ice@main", "--yes"],
    ],
    ids=lambda command: " ".join(command),
)
def test_what_would_change_a_snapshot_is_refused(command: list[str], store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    zarr.create_array("plain.zarr", shape=(4,), chunks=(2,), dtype="u1")
    before = sorted(tmp_path.rglob("*"))
    done = run(*command)
    assert done.code == ExitCode.INVALID
    assert "a snapshot, which never changes. Write to what Repository.transaction" in done.error
    assert sorted(tmp_path.rglob("*")) == before


def test_a_name_that_is_not_there_lists_what_is(store: Store) -> None:
    done = run("ls", f"{store.url}@nothing")
    assert done.code == ExitCode.NOT_FOUND
    assert "'nothing' is no branch, tag or snapshot: there are branch 'main', branch 'try/more', tag 'v1'" in done.error
