"""``Repository.adopt`` beside data of others: what is there stays there, whatever fails; and sources that are objects, not URLs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import FsspecStore, LocalStore, MemoryStore, StorePath

from shardstore import references, verify
from shardstore.errors import Conflict, Corruption, InvalidInput, NotFound
from shardstore.snapshots import Repository
from shardstore.storage.memory import MemoryStorage
from tests.snapshots.repositories import read_array

DATA = np.arange(64, dtype="<i4").reshape(8, 8)


def files_below(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    zarr.create_array(tmp_path / "s.zarr", name="x", data=DATA, chunks=(2, 2), shards=(4, 4), compressors=None)
    return tmp_path / "s.zarr"


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """A hierarchy whose arrays have the names of the folders of a versioned store."""
    for name in "acmst":
        zarr.create_array(tmp_path / "o.zarr", name=name, data=DATA, chunks=(4, 4))
    return tmp_path / "o.zarr"


def test_failed_adoption_leaves_what_is_at_the_target(tmp_path: Path, others: Path, source: Path) -> None:
    before = files_below(others)
    with pytest.raises(NotFound, match="there is no Zarr hierarchy"):
        Repository.adopt(tmp_path / "typo.zarr", tmp_path / "new.ice")
    assert not (tmp_path / "new.ice").exists() or not files_below(tmp_path / "new.ice")
    for target in (others, others / "c"):
        with pytest.raises(InvalidInput, match=r"there is a Zarr hierarchy at .* needs a place of its own"):
            Repository.adopt(source, target)
        with pytest.raises(InvalidInput, match="there is a Zarr hierarchy at"):
            Repository.create(target)
    assert files_below(others) == before


def test_damaged_source_stays_as_it_is(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "d.zarr", data=np.arange(64), chunks=(4,), shards=(16,))
    os.truncate(tmp_path / "d.zarr/c/0", 10)
    before = files_below(tmp_path / "d.zarr")
    with pytest.raises(Corruption):
        Repository.adopt(tmp_path / "d.zarr", tmp_path / "d.ice")
    assert files_below(tmp_path / "d.zarr") == before
    assert not Repository.exists(tmp_path / "d.ice")
    assert files_below(tmp_path / "d.ice") == {}


@pytest.mark.parametrize("target", ["s.zarr", "s.zarr/x.ice", "."])
def test_repository_is_no_part_of_what_it_adopts(tmp_path: Path, source: Path, target: str) -> None:
    before = files_below(tmp_path)
    with pytest.raises(InvalidInput, match=r"overlap|there is a Zarr hierarchy"):
        Repository.adopt(source, tmp_path / target)
    assert files_below(tmp_path) == before


def test_destroy_removes_files_of_the_repository_only(tmp_path: Path) -> None:
    repo = Repository.create(tmp_path / "repo", fsync=False)
    mine = {"c/0", "s/notes.txt", "t/00.json", "readme"}
    for name in mine:
        (tmp_path / "repo" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "repo" / name).write_bytes(b"mine")
    repo.destroy(yes=True)
    assert set(files_below(tmp_path / "repo")) == mine


def test_interrupted_adoption_makes_no_repository(tmp_path: Path, source: Path) -> None:
    seen = []

    def progress(*said: Any) -> None:
        seen.append(Repository.exists(tmp_path / "s.ice"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Repository.adopt(source, tmp_path / "s.ice", progress=progress)
    assert seen == [False]
    made = Repository.adopt(source, tmp_path / "s.ice")
    assert (read_array(made.readonly_session(), "x") == DATA).all()
    assert [one.message for one in made.ancestry("main")] == ["Adopted", "Repository initialized"]


@pytest.mark.parametrize(
    "store",
    [
        lambda place: LocalStore(place),
        lambda place: StorePath(LocalStore(place.parent), place.name),
        lambda place: FsspecStore.from_url(f"file://{place}"),
    ],
    ids=["LocalStore", "StorePath", "FsspecStore"],
)
def test_store_of_zarr_is_adopted_where_it_lies(tmp_path: Path, source: Path, store: Any) -> None:
    made = Repository.adopt(store(source), tmp_path / "s.ice")
    assert made.virtual_prefixes == (f"file://{source}/",)
    assert (read_array(made.readonly_session(), "x") == DATA).all()
    references.write_json(store(source), tmp_path / "set.json")
    np.testing.assert_array_equal(zarr.open_array(shardstore_of(tmp_path / "set.json"), path="x", mode="r")[...], DATA)


@pytest.mark.parametrize("kind", ["memory", "a chain"])
def test_nothing_refers_to_what_only_an_object_of_this_process_reads(tmp_path: Path, source: Path, kind: str) -> None:
    store = MemoryStore() if kind == "memory" else FsspecStore.from_url(f"simplecache::file://{source}")
    if kind == "memory":
        zarr.create_array(store, name="x", data=DATA, chunks=(2, 2))
    with pytest.raises(InvalidInput, match=r"no reference can lead into .* Give the URL"):
        Repository.adopt(store, tmp_path / "m.ice")
    assert not Repository.exists(tmp_path / "m.ice")
    with pytest.raises(InvalidInput, match="no reference can lead into"):
        references.write_json(store, tmp_path / "m.json")


def test_snapshot_of_a_versioned_store_is_adopted(tmp_path: Path) -> None:
    theirs = Repository.create(tmp_path / "theirs", fsync=False)
    with theirs.transaction(message="x") as store:
        zarr.create_array(store, name="x", data=np.arange(4096), chunks=(512,), compressors=None)
    made = Repository.adopt(f"{tmp_path}/theirs@main", tmp_path / "ours")
    assert (read_array(made.readonly_session(), "x") == np.arange(4096)).all()
    assert list((tmp_path / "ours/c").glob("*")) == []


def test_set_of_an_adopted_repository_is_pinned(tmp_path: Path, source: Path) -> None:
    made = Repository.adopt(source, tmp_path / "s.ice")
    report = references.write_json(made.readonly_session().storage, tmp_path / "s.json")
    assert report.is_pinned
    again = zarr.open_array(shardstore_of(tmp_path / "s.json"), path="x", mode="r")
    np.testing.assert_array_equal(again[...], DATA)
    zarr.open_array(source, path="x", mode="r+")[0:4, 0:4] = 77
    with pytest.raises(Conflict, match="has changed since"):
        zarr.open_array(shardstore_of(tmp_path / "s.json"), path="x", mode="r")[0, :4]
    unpinned = references.write_json(made.readonly_session().storage, tmp_path / "u.json", pins=False)
    assert not unpinned.is_pinned
    assert "rewritten" not in unpinned.how_to_open
    assert "rewritten" in report.how_to_open


def shardstore_of(place: Path) -> Any:
    import shardstore

    return shardstore.open(f"reference::{place}", read_only=True)


# -- verification of a snapshot ------------------------------------------------------------------------------------------


def test_verify_looks_at_the_files_of_a_snapshot(tmp_path: Path, source: Path) -> None:
    repo = Repository.create(tmp_path / "repo", fsync=False, pack=(2, 2))
    with repo.transaction(message="x") as store:
        zarr.create_array(store, name="x", data=np.zeros((64, 64)) + 1, chunks=(32, 32), compressors=None)
    url = f"{tmp_path}/repo@main"
    assert verify(url).is_sound
    (file,) = (tmp_path / "repo/c").iterdir()
    os.truncate(file, 5000)
    (finding,) = verify(url).findings
    assert (finding.kind, finding.path, finding.key) == ("file", "x", f"c/{file.name}")
    assert "shorter than" in finding.what
    file.unlink()
    (finding,) = verify(url).findings
    assert "is not there" in finding.what


def test_verify_finds_what_changed_behind_an_adopted_repository(tmp_path: Path, source: Path) -> None:
    made = Repository.adopt(source, tmp_path / "s.ice")
    assert verify(made.readonly_session().storage).is_sound
    zarr.open_array(source, path="x", mode="r+")[0:4, 0:4] = 77
    (finding,) = verify(made.readonly_session().storage).findings
    assert (finding.kind, finding.key) == ("file", f"file://{source}/x/c/0/0")
    report = verify(f"{tmp_path}/s.ice@main")  # nobody has said that references may lead there
    assert report.is_sound
    assert set(report.counts) == {"not-checked"}


def test_verify_of_a_part_looks_at_its_files(tmp_path: Path) -> None:
    storage = MemoryStorage(f"{tmp_path}/m")
    repo = Repository.create(storage)
    with repo.transaction(message="x") as store:
        for name in ("x", "y"):
            zarr.create_array(store, name=name, data=np.arange(4096), chunks=(4096,), compressors=None)
    session = repo.readonly_session()
    (file,) = [fault.file for fault in _faults_without(storage, session, "x")]
    assert file.startswith("c/")
    assert _faults_of(session, "y") == []


def _faults_of(session: Any, path: str) -> list[Any]:
    from shardstore._sync import run_sync

    async def all_of() -> list[Any]:
        return [fault async for fault in session.storage.file_faults(path)]

    return run_sync(all_of())


def _faults_without(storage: MemoryStorage, session: Any, path: str) -> list[Any]:
    from shardstore._sync import run_sync

    references = run_sync(session.storage.known_references(path))
    run_sync(storage.delete_many(list(references.files)))
    return _faults_of(session, path)
