"""Sets of references made of snapshots of versioned stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore import references
from shardstore.errors import InvalidInput, NotFound
from shardstore.snapshots import Repository
from tests.apps.cli.running import succeed

pytestmark = [pytest.mark.filterwarnings("ignore")]  # of pandas, about fastparquet

DATA = np.arange(1, 4097, dtype="i4").reshape(64, 64)
TINY = np.arange(1, 5, dtype="i2")


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    """A tag on chunks in files, a chunk of a later commit, one that was erased, chunks in a manifest, and virtual ones."""
    source = shardstore.open(tmp_path / "old.zarr", chunks_per_shard=(2, 2))
    zarr.create_array(source, name="v", shape=DATA.shape, chunks=(16, 16), dtype="i4", compressors=None)[...] = DATA
    made = Repository.create(tmp_path / "run.ice", virtual_prefixes=[f"file://{tmp_path}/old.zarr/"], pack=(2, 2))
    session = made.writable_session()
    zarr.create_array(session.store, name="g/a", data=DATA, chunks=(16, 16), compressors=None)
    zarr.create_array(session.store, name="tiny", data=TINY, chunks=(1,), compressors=None)
    zarr.create_array(session.store, name="empty", shape=(4,), chunks=(1,), dtype="i2")
    zarr.create_array(session.store, name="scalar", data=np.array(7, dtype="i2"))
    session.set_virtual_hierarchy(tmp_path / "old.zarr", "from")
    session.commit("all")
    made.create_tag("v1", made.lookup_branch("main"))
    session = made.writable_session()
    array = zarr.open_array(session.store, path="g/a", mode="r+")
    array[:16, :16] = -1
    array[48:, 48:] = 0
    session.commit("changed")
    return made


def expected(ref: str) -> dict[str, Any]:
    a = DATA.copy()
    if ref == "main":
        a[:16, :16], a[48:, 48:] = -1, 0
    return {"g/a": a, "tiny": TINY, "empty": np.zeros(4), "scalar": np.array(7), "from/v": DATA}


def check(url: str, ref: str) -> None:
    store = shardstore.open(f"reference::{url}", read_only=True)
    for path, values in expected(ref).items():
        np.testing.assert_array_equal(zarr.open_array(store, path=path, mode="r")[...], values)


@pytest.mark.parametrize("ref", ["v1", "main"])
@pytest.mark.parametrize("flavour", ["v2", "v3"])
def test_json(repo: Repository, tmp_path: Path, ref: str, flavour: Any) -> None:
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run.ice").rglob("*")}
    report = references.write_json(f"{tmp_path}/run.ice@{ref}", tmp_path / "refs.json", flavour=flavour)
    assert report.references == 16 + 4 + 1 + 16 - (ref == "main")
    check(f"{tmp_path}/refs.json", ref)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run.ice").rglob("*")} == before


def test_parquet(repo: Repository, tmp_path: Path) -> None:
    references.write_parquet(f"{tmp_path}/run.ice@main", tmp_path / "refs.parq", record_size=5)
    check(f"{tmp_path}/refs.parq", "main")


def test_a_session_and_relative_urls(repo: Repository, tmp_path: Path) -> None:
    references.write_json(repo.readonly_session(tag="v1").storage, tmp_path / "refs.json", urls="relative", paths={"from/*": None})
    text = (tmp_path / "refs.json").read_text()
    assert "run.ice/c/" in text
    assert str(tmp_path) not in text
    store = shardstore.open(f"reference::{tmp_path}/refs.json", read_only=True)
    np.testing.assert_array_equal(zarr.open_array(store, path="g/a", mode="r")[...], DATA)


def test_fsspec_reads_it(repo: Repository, tmp_path: Path) -> None:
    import fsspec

    references.write_json(f"{tmp_path}/run.ice@v1", tmp_path / "refs.json", flavour="v3")
    fs = fsspec.filesystem("reference", fo=str(tmp_path / "refs.json"), asynchronous=False)
    assert fs.cat("g/a/c/0/0") == DATA[:16, :16].tobytes()
    assert fs.cat("from/v/c/3/3") == DATA[48:, 48:].tobytes()
    assert fs.cat("tiny/c/2") == TINY[2:3].tobytes()


def test_the_command(repo: Repository, tmp_path: Path) -> None:
    succeed("refs", "write", f"{tmp_path}/run.ice@v1", str(tmp_path / "refs.json"))
    check(f"{tmp_path}/refs.json", "v1")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"inline_nbytes": 100}, "taken unchanged"),
        ({"paths": {"g/a": "shards"}}, "taken unchanged"),
        ({"urls": "versioned"}, "taken unchanged"),
        ({"paths": {"nothing": "chunks"}}, "nothing"),
    ],
)
def test_what_means_nothing_for_a_snapshot_is_refused(repo: Repository, tmp_path: Path, options: Any, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        references.write_json(f"{tmp_path}/run.ice@v1", tmp_path / "refs.json", **options)
    assert not (tmp_path / "refs.json").exists()


def test_a_set_does_not_lie_in_the_store(repo: Repository, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="overlap"):
        references.write_json(f"{tmp_path}/run.ice@v1", tmp_path / "run.ice/refs.json")
    with pytest.raises(NotFound, match="names no snapshot"):
        references.write_json(f"{tmp_path}/run.ice@nothing", tmp_path / "refs.json")


@pytest.mark.parametrize("form", ["json", "parquet"])
@pytest.mark.parametrize("urls", ["absolute", "relative"])
def test_check_says_which_objects_of_a_snapshot_are_gone(repo: Repository, tmp_path: Path, form: str, urls: Any) -> None:
    """Chunk files never change, so they have no pins; virtual ones have some."""
    target, write = tmp_path / f"refs.{form}", references.write_json if form == "json" else references.write_parquet
    report = write(f"{tmp_path}/run.ice@v1", target, urls=urls)
    assert report.is_pinned
    found = references.check(target)
    assert (found.is_sound, found.objects) == (True, 4 + 4)
    assert [pin.key for pin in references.pins(target, store=tmp_path / "old.zarr")] == [f"v/c/{n}" for n in ("0/0", "0/1", "1/0", "1/1")]
    references.write_json(f"{tmp_path}/run.ice@v1", tmp_path / "same.json")
    gone = next(path for path in (tmp_path / "run.ice/c").iterdir() if path.name in (tmp_path / "same.json").read_text())
    gone.unlink()
    zarr.open_array(shardstore.open(tmp_path / "old.zarr"), path="v")[:16, :16] = 0
    found = references.check(target)
    assert (len(found.gone), found.changed) == (1, (f"file://{tmp_path}/old.zarr/v/c/0/0",))
    assert found.gone[0].endswith(gone.name)
    with pytest.raises(InvalidInput, match="or of a snapshot: make it of them again"):
        references.update(target)


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_set_of_a_snapshot_without_chunks_is_pinned(tmp_path: Path, form: str) -> None:
    repo = Repository.create(tmp_path / "run.ice")
    with repo.transaction(message="empty") as store:
        zarr.create_array(store, name="e", shape=(4,), chunks=(1,), dtype="i2")
    write = references.write_json if form == "json" else references.write_parquet
    assert write(f"{tmp_path}/run.ice@main", tmp_path / "refs").is_pinned
    found = references.check(tmp_path / "refs")
    assert (found.is_sound, found.objects) == (True, 0)
    assert references.pins(tmp_path / "refs", store=tmp_path / "old.zarr") == []
    assert not write(f"{tmp_path}/run.ice@main", tmp_path / "free", pins=False).is_pinned
    with pytest.raises(NotFound, match="does not say"):
        references.check(tmp_path / "free")


def test_of_a_large_grid_only_what_exists_is_looked_at(tmp_path: Path) -> None:
    repo = Repository.create(tmp_path / "run.ice")
    session = repo.writable_session()
    array = zarr.create_array(session.store, name="a", shape=(10**9,), chunks=(1,), dtype="i2", compressors=None)
    array[3], array[10**9 - 1] = 5, 6
    session.commit("far apart")
    report = references.write_json(session.storage, tmp_path / "refs.json")
    assert report.references == 2
    found: Any = zarr.open_array(shardstore.open(f"reference::{tmp_path}/refs.json", read_only=True), path="a", mode="r")
    assert (found[3], found[10**9 - 1], found[4]) == (5, 6, 0)
