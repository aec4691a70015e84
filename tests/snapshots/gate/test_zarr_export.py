"""One snapshot as an ordinary sharded hierarchy: chunk files that are shards are copied as they are, others packed, and all compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import tensorstore
import xarray
import zarr
from zarr.storage import LocalStore

import shardstore
from shardstore import VerifyReport, verify
from shardstore.errors import Conflict, Corruption, NotFound, StorageError
from shardstore.maintenance.census import Unread
from shardstore.maintenance.packing import writing
from shardstore.snapshots import Repository
from shardstore.storage import abilities
from tests.snapshots.repositories import create_array

DATA = np.arange(96 * 64, dtype="<i4").reshape(96, 64)


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    """An array of 3 × 2 shards of 2 × 2 chunks: of one, a chunk was changed later; and one with chunks that are in manifests."""
    made = Repository.create(tmp_path / "repo", fsync=False, pack={"a": (2, 2), "*": "auto"})
    session = made.writable_session()
    create_array(session, "a", DATA, (16, 16), compressors=None, attributes={"units": "K"}, dimension_names=("y", "x"))
    create_array(session, "small", DATA[0, :4], (2,), compressors=None, dimension_names=("z",))
    session.commit("arrays")
    made.create_tag("first", made.lookup_branch("main"))
    with made.transaction(message="one chunk") as store:
        zarr.open_array(store, path="a", mode="r+")[:16, :16] = 7
    return made


def read(place: Path, path: str) -> Any:
    return zarr.open_array(LocalStore(place, read_only=True), path=path, mode="r")[...]


def test_snapshot_is_plain_sharded_hierarchy_for_others(repo: Repository, tmp_path: Path) -> None:
    report = repo.export_zarr(tmp_path / "out.zarr")
    wanted = DATA.copy()
    wanted[:16, :16] = 7
    assert report.complete
    np.testing.assert_array_equal(read(tmp_path / "out.zarr", "a"), wanted)
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{tmp_path}/out.zarr/a"}}
    np.testing.assert_array_equal(tensorstore.open(spec, open=True, read=True).result().read().result(), wanted)
    with xarray.open_zarr(LocalStore(tmp_path / "out.zarr", read_only=True), consolidated=False) as data:
        np.testing.assert_array_equal(data["a"], wanted)
        assert data["a"].attrs["units"] == "K"


def test_every_snapshot_is_what_it_was(repo: Repository, tmp_path: Path) -> None:
    for number, snapshot in enumerate(repo.ancestry("main")):
        repo.export_zarr(tmp_path / str(number), snapshot.id)
    repo.export_zarr(tmp_path / "tag", "first")
    np.testing.assert_array_equal(read(tmp_path / "1", "a"), DATA)
    np.testing.assert_array_equal(read(tmp_path / "tag", "a"), DATA)
    assert list(zarr.open_group(LocalStore(tmp_path / "2", read_only=True), mode="r").keys()) == []


def test_files_that_are_shards_are_copied_and_others_packed(repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    streamed: list[str] = []
    joined = writing._pieces

    def pieces(job: Any, *rest: Any) -> Any:
        streamed.append(job.path)
        return joined(job, *rest)

    monkeypatch.setattr(writing, "_pieces", pieces)
    report = repo.export_zarr(tmp_path / "out.zarr")
    assert (report.done, report.copied) == (6 + 1, 5)
    assert sorted(streamed) == ["a", "small"]
    files = {file.read_bytes() for file in (tmp_path / "repo" / "c").iterdir()}
    shards = [file.read_bytes() for file in (tmp_path / "out.zarr" / "a" / "c").rglob("*") if file.is_file()]
    assert len(shards) == 6
    assert len([shard for shard in shards if shard in files]) == 5


def test_other_shards_than_the_files_are_packed(repo: Repository, tmp_path: Path) -> None:
    report = repo.export_zarr(tmp_path / "out.zarr", "first", chunks_per_shard=(2, 4))
    assert report.copied == 0
    np.testing.assert_array_equal(read(tmp_path / "out.zarr", "a"), DATA)
    report = repo.export_zarr(tmp_path / "start.zarr", "first", index_location="start")
    assert report.copied == 0
    report = repo.export_zarr(tmp_path / "morton.zarr", "first", chunk_order="morton")
    assert report.copied == 6  # of two by two, both orders are the same
    report = repo.export_zarr(tmp_path / "sums.zarr", "first", chunk_checksums=True)
    assert report.copied == 0
    np.testing.assert_array_equal(read(tmp_path / "sums.zarr", "a"), DATA)


def test_export_goes_on_where_it_was(repo: Repository, tmp_path: Path) -> None:
    repo.export_zarr(tmp_path / "out.zarr")
    (tmp_path / "out.zarr" / "a" / "c" / "0" / "1").unlink()
    again = repo.export_zarr(tmp_path / "out.zarr")
    assert (again.done, again.copied, again.skipped) == (1, 1, 6)


@pytest.mark.parametrize("options", [{}, {"fsync": False}])
def test_last_shard_with_fewer_chunks_is_copied_too(tmp_path: Path, options: dict[str, Any]) -> None:
    made = Repository.create(tmp_path / "repo", fsync=False, pack=(4,))
    session = made.writable_session()
    create_array(session, "a", np.arange(1000, dtype="<f8"), (100,), compressors=None)
    session.commit("ten chunks: two shards and a half")
    report = made.export_zarr(tmp_path / "out.zarr", **options)
    assert (report.done, report.copied) == (3, 3)
    np.testing.assert_array_equal(read(tmp_path / "out.zarr", "a"), np.arange(1000))


def test_damaged_copy_is_found(repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = abilities.copy_between

    async def damaging(*given: Any) -> Any:
        made = await honest(*given)
        if given[3] == "a/c/1/1":
            place = tmp_path / "out.zarr" / given[3]
            data = bytearray(place.read_bytes())
            data[5] ^= 1
            place.write_bytes(bytes(data))
        return made

    monkeypatch.setattr(writing, "copy_between", damaging)
    with pytest.raises(Corruption, match=r"differs from snapshot \w+: a/c/2/2: its 1024 bytes differ"):
        repo.export_zarr(tmp_path / "out.zarr", "first")
    assert repo.export_zarr(tmp_path / "unchecked.zarr", "first", check=False).complete


def test_damaged_chunk_file_is_no_export(repo: Repository, tmp_path: Path) -> None:
    """A file that lost its end is not the shard that it was; what is left of it is too short."""
    (file, *_) = [file for file in (tmp_path / "repo" / "c").iterdir() if file.stat().st_size > 4000]
    file.write_bytes(file.read_bytes()[:300])
    with pytest.raises(shardstore.ShardStoreError, match=file.name):
        repo.export_zarr(tmp_path / "out.zarr", "first", retries=0)


def test_what_is_there_is_refused(repo: Repository, tmp_path: Path) -> None:
    (tmp_path / "out.zarr").mkdir()
    (tmp_path / "out.zarr" / "mine").write_text("mine")
    with pytest.raises(Conflict, match="there is something at"):
        repo.export_zarr(tmp_path / "out.zarr")
    with pytest.raises(NotFound, match="nothing"):
        repo.export_zarr(tmp_path / "other.zarr", "nothing")
    assert not (tmp_path / "other.zarr").exists()


def test_export_into_the_repository_is_refused(repo: Repository, tmp_path: Path) -> None:
    with pytest.raises(shardstore.errors.InvalidInput, match="overlap"):
        repo.export_zarr(tmp_path / "repo" / "c" / "out.zarr")


def test_server_copies_shards_on_s3(s3_url: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each shard only the index is read: here 4 × 16 bytes and a checksum."""
    url, given = s3_url
    options = {**given, "transport": "fsspec"}  # whose requests are seen below
    made = Repository.create(f"{url}/repo", storage_options=options, pack=(2, 2))
    session = made.writable_session()
    create_array(session, "a", DATA, (16, 16), compressors=None)
    session.commit("array")
    fs = fsspec.filesystem("s3", **given)
    called: list[tuple[str, dict[str, Any]]] = []
    original = fs._call_s3

    async def call(method: str, *given: Any, **parameters: Any) -> Any:
        called.append((method, parameters))
        return await original(method, *given, **parameters)

    monkeypatch.setattr(fs, "_call_s3", call)
    report = made.export_zarr(f"{url}/out.zarr", check=False)
    assert report.copied == 6
    assert [method for method, _ in called].count("copy_object") == 6
    of_chunks = [parameters["Range"] for method, parameters in called if method == "get_object" and "/c/" in parameters["Key"]]
    assert of_chunks == ["bytes=4096-4164"] * 6
    assert shardstore.verify(f"{url}/out.zarr", against=f"{url}/repo@main", storage_options=options, against_options=options).is_sound


def test_stale_consolidated_metadata_of_the_snapshot_are_noted_in_the_report(repo: Repository, tmp_path: Path) -> None:
    """They repeat an older shape, in the snapshot and in the export: nothing differs."""
    with repo.transaction(message="stale") as store:
        zarr.consolidate_metadata(store)
        zarr.open_array(store, path="a", mode="r+").resize((80, 64))
    report = repo.export_zarr(tmp_path / "out.zarr")
    assert report.complete
    assert [note for note in report.notes if note.startswith("stale, as in the snapshot: ") and "zarr.consolidate_metadata" in note]
    np.testing.assert_array_equal(read(tmp_path / "out.zarr", "small"), DATA[0, :4])


def test_an_export_that_cannot_be_read_again_is_that_error(repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*arguments: Any, **options: Any) -> VerifyReport:
        return replace(verify(*arguments, **options), unread=(Unread("a/c/0/0", StorageError("the disk is gone")),))

    monkeypatch.setattr("shardstore.adapters.tools.verification.verify", unreadable)
    with pytest.raises(StorageError, match="the disk is gone"):
        repo.export_zarr(tmp_path / "out.zarr")
