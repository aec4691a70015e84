"""Virtual chunks: bytes of files of somebody else, read where the reader allows it, and only if they are still the same."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from shardstore import open as open_store
from shardstore import references
from shardstore.errors import Conflict, Corruption, InvalidInput, NotFound, ReadOnly
from shardstore.model.generation import Generation
from shardstore.opening.open import open_storage
from shardstore.snapshots import Repository, Session
from shardstore.snapshots.commit import MOST_LEVELS
from shardstore.storage.base import Storage
from tests.snapshots.repositories import create_array, new_repository, read_array, run

DATA = np.arange(64, dtype="<i4")


@pytest.fixture
def files(tmp_path: Path) -> str:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "one.bin").write_bytes(b"head" + DATA[:32].tobytes())
    (tmp_path / "old" / "two.bin").write_bytes(DATA[32:].tobytes())
    return f"file://{tmp_path}/old/"


def filled(repo: Repository, files: str, **options: Any) -> str:
    session = repo.writable_session()
    zarr.create_array(session.store, name="a", shape=(64,), chunks=(8,), dtype="<i4", compressors=None)
    urls = [f"{files}one.bin"] * 4 + [f"{files}two.bin"] * 4
    session.set_virtual_refs("a", np.arange(8)[:, None], urls, [4, 36, 68, 100, 0, 32, 64, 96], 32, **options)
    np.testing.assert_array_equal(read_array(session, "a"), DATA)
    return session.commit("virtual")


def test_virtual_chunks_are_read_below_authorised_prefixes_only(tmp_path: Path, files: str) -> None:
    """D31"""
    repo = new_repository(tmp_path / "repo", virtual_prefixes=[files])
    filled(repo, files)
    np.testing.assert_array_equal(read_array(repo.readonly_session(), "a"), DATA)
    for prefixes in ([], [f"{files}deeper/"], ["s3://bucket/"]):
        closed = Repository.open(repo.url, virtual_prefixes=prefixes)
        with pytest.raises(InvalidInput, match=r"open it with virtual_prefixes="):
            read_array(closed.readonly_session(), "a")
        session = closed.writable_session()
        with pytest.raises(InvalidInput, match="may lead"):
            session.set_virtual_refs("a", [[0]], f"{files}one.bin", 0, 32)
        assert not session.has_uncommitted_changes
    with pytest.raises(InvalidInput, match="may lead"):
        repo.writable_session().set_virtual_refs("a", [[0]], f"{files}../secret", 0, 32)


def test_virtual_chunks_can_be_overwritten_and_erased(tmp_path: Path, files: str) -> None:
    """D25, D26"""
    repo = new_repository(tmp_path / "repo", virtual_prefixes=[files])
    filled(repo, files)
    session = repo.writable_session()
    array = zarr.open_array(session.store, path="a")
    array[4:12] = -1
    del session.mapping()["a/c/7"]
    session.set_virtual_refs("a", [[2], [3], [2]], [f"{files}one.bin", f"{files}two.bin", f"{files}two.bin"], [4, 0, 32], [32, 32, 32])
    session.commit("changed")
    data = DATA.copy()
    data[4:12], data[56:], data[16:24], data[24:32] = -1, 0, DATA[40:48], DATA[32:40]
    np.testing.assert_array_equal(read_array(repo.readonly_session(), "a"), data)
    session = repo.writable_session()
    session.set_virtual_refs("a", np.array([[0]]), f"{files}one.bin", 4, 32)
    session.commit("virtual again")
    data[:8] = DATA[:8]
    np.testing.assert_array_equal(read_array(repo.readonly_session(), "a"), data)


def test_a_virtual_file_that_has_changed_is_not_read(tmp_path: Path, files: str) -> None:
    """D30"""
    storage = open_storage(files)
    info = run(storage.stat("one.bin"))
    assert info is not None
    assert info.generation is not None
    repo = new_repository(tmp_path / "repo", virtual_prefixes=[files])
    session = repo.writable_session()
    zarr.create_array(session.store, name="a", shape=(64,), chunks=(8,), dtype="<i4", compressors=None)
    session.set_virtual_refs("a", [[0], [1]], f"{files}one.bin", [4, 36], 32, etags=info.generation.token)
    session.commit("virtual")
    np.testing.assert_array_equal(read_array(repo.readonly_session(), "a")[:16], DATA[:16])
    other = tmp_path / "other"
    other.write_bytes(b"HEAD" + DATA[:32].tobytes())
    os.replace(other, tmp_path / "old" / "one.bin")
    with pytest.raises(Conflict, match=r"one\.bin has changed"):
        read_array(repo.readonly_session(), "a")


@pytest.fixture
def versions(tmp_path: Path) -> dict[str, str | None]:
    """The etags of ``replaced/blob``, whose bytes are all 2, and of the version before, whose bytes were all 1."""
    (tmp_path / "replaced").mkdir()
    found: dict[str, str | None] = {"none": None}
    for value, name in ((1, "old"), (2, "new")):
        (tmp_path / "other").write_bytes(bytes([value]) * 16)
        os.replace(tmp_path / "other", tmp_path / "replaced" / "blob")
        info = run(open_storage(f"file://{tmp_path}/replaced").stat("blob"))
        assert info is not None
        assert info.generation is not None
        found[name] = info.generation.token
    return found


def check_each(session: Session, names: list[str], path: str = "a") -> None:
    """Check that of chunks which are referred to by these versions, those of the old one are refused, and the others are read."""
    array = zarr.open_array(session.store, path=path, mode="r")
    for chunk, name in enumerate(names):
        part = slice(8 * chunk, 8 * chunk + 8)
        if name == "old":
            with pytest.raises(Conflict, match="blob has changed"):
                array[part]
        else:
            np.testing.assert_array_equal(array[part], np.full(8, 2))


def several_versions(place: Path, files: Path, versions: dict[str, str | None], names: list[str], **options: Any) -> Repository:
    """Return a repository of one array, whose chunks are in one virtual file, each in the version of that name."""
    prefix = f"file://{files}/replaced/"
    repo = new_repository(place, virtual_prefixes=[prefix], **options)
    session = repo.writable_session()
    n = len(names)
    zarr.create_array(session.store, name="a", shape=(8 * n + 8,), chunks=(8,), dtype="u1", compressors=None, fill_value=0)
    etags = [versions[name] for name in names]
    session.set_virtual_refs("a", np.arange(n)[:, None], f"{prefix}blob", [8 * (number % 2) for number in range(n)], 8, etags=etags)
    check_each(session, names)
    session.commit("several versions of a file")
    return repo


@pytest.mark.parametrize(
    "names", [["new", "old"], ["old", "new"], ["none", "old"], ["old", "none"], ["new", "none", "old", "new"]], ids=repr
)
def test_each_chunk_is_held_against_its_own_version_of_a_file(tmp_path: Path, versions: dict[str, str | None], names: list[str]) -> None:
    """D30"""
    repo = several_versions(tmp_path / "repo", tmp_path, versions, names)
    options: dict[str, Any] = {"virtual_prefixes": repo.virtual_prefixes}
    check_each(Repository.open(repo.url, **options).readonly_session(), names)
    for number in range(MOST_LEVELS + 1):  # so that commits merge the manifests
        session = repo.writable_session()
        zarr.open_array(session.store, path="a")[8 * len(names) :] = number
        session.commit("another chunk")
        check_each(Repository.open(repo.url, **options).readonly_session(), names)
    repo.rewrite_manifests()
    again = Repository.open(repo.url, **options)
    assert len(again.readonly_session()._core.nodes["a"].manifests) == 1
    check_each(again.readonly_session(), names)


def test_a_reference_to_another_version_of_the_same_bytes_is_a_difference(tmp_path: Path, versions: dict[str, str | None]) -> None:
    repo = several_versions(tmp_path / "repo", tmp_path, versions, ["old", "new"])
    before = repo.lookup_branch("main")
    session = repo.writable_session()
    session.set_virtual_refs("a", [[0], [1]], f"file://{tmp_path}/replaced/blob", [0, 8], 8, etags=versions["new"])
    session.commit("the file was replaced")
    check_each(repo.readonly_session(), ["new", "new"])
    assert repo.diff(before, "main").updated_chunks == {"a": [(0,)]}


def test_a_hierarchy_that_is_a_snapshot_keeps_the_version_of_each_chunk(tmp_path: Path, versions: dict[str, str | None]) -> None:
    names = ["new", "old", "none"]
    source = several_versions(tmp_path / "source", tmp_path, versions, names)
    session = source.writable_session()
    place = f"file://{tmp_path}/replaced/blob"
    zarr.create_array(session.store, name="timed", shape=(16,), chunks=(8,), dtype="u1", compressors=None, fill_value=0)
    session.set_virtual_refs("timed", [[0], [1]], place, [0, 8], 8, last_modified=[datetime.now(UTC), None])
    session.commit("by times")
    repo = new_repository(tmp_path / "repo", virtual_prefixes=[*source.virtual_prefixes, "memory://"])
    for snapshot in (session.storage, source.readonly_session().storage):
        session = repo.writable_session()
        session.set_virtual_hierarchy(snapshot, "x", overwrite=True)
        session.commit("referred")
        found = repo.readonly_session()
        check_each(found, names, "x/a")
        timed = zarr.open_array(found.store, path="x/timed", mode="r")
        np.testing.assert_array_equal(timed[8:], np.full(8, 2))
        with pytest.raises(InvalidInput, match="by its time of modification"):
            timed[:8]


def test_a_set_of_references_names_one_version_of_a_file(tmp_path: Path, versions: dict[str, str | None]) -> None:
    repo = several_versions(tmp_path / "repo", tmp_path, versions, ["new", "old"])
    snapshot = repo.readonly_session().storage
    for write in (references.write_json, references.write_parquet):
        with pytest.raises(InvalidInput, match=r"two versions of file:.*blob.*pins=False"):
            write(snapshot, tmp_path / "refs")
        with pytest.raises(NotFound):
            references.describe(tmp_path / "refs")
    report = references.write_json(snapshot, tmp_path / "free.json", pins=False)
    assert (report.references, report.is_pinned) == (2, False)
    same = several_versions(tmp_path / "same", tmp_path, versions, ["new", "none"])
    assert not references.write_json(same.readonly_session().storage, tmp_path / "same.json").is_pinned  # one of the two is not known
    store = open_store(f"reference::{tmp_path}/same.json", read_only=True)
    np.testing.assert_array_equal(zarr.open_array(store, path="a", mode="r")[:16], np.full(16, 2))


def test_listings_tell_the_versions_of_virtual_chunks_whose_files_are_checked(tmp_path: Path, files: str) -> None:
    repo = new_repository(tmp_path / "repo", virtual_prefixes=[files])
    session = repo.writable_session()
    zarr.create_array(session.store, name="a", shape=(64,), chunks=(8,), dtype="<i4", compressors=None)
    session.set_virtual_refs("a", [[0], [1]], [f"{files}one.bin", f"{files}two.bin"], 4, 32, etags=["one", None])
    session.commit("virtual")

    async def versions(storage: Storage) -> list[Generation | None]:
        return [info.generation async for info in storage.list("a/c/")]

    before = run(versions(repo.readonly_session().storage))
    session = repo.writable_session()
    session.set_virtual_refs("a", [[0]], f"{files}one.bin", 4, 32, etags="another")
    session.commit("the file was replaced")
    after = run(versions(repo.readonly_session().storage))
    assert before[0] is not None
    assert after[0] is not None
    assert before[0] != after[0]
    assert before[1] is after[1] is None


def test_times_of_modification_are_checked_where_the_storage_gives_them(tmp_path: Path, files: str) -> None:
    """D30"""
    repo = new_repository(tmp_path / "repo", virtual_prefixes=[files])
    session = repo.writable_session()
    zarr.create_array(session.store, name="a", shape=(64,), chunks=(8,), dtype="<i4", compressors=None)
    session.set_virtual_refs("a", [[0]], f"{files}one.bin", [4], 32, last_modified=datetime.now(UTC))
    with pytest.raises(InvalidInput, match="refer to it by its etag"):
        read_array(session, "a")


def test_missing_and_short_virtual_files_are_errors(tmp_path: Path, files: str) -> None:
    repo = new_repository(tmp_path / "repo", virtual_prefixes=[files])
    session = repo.writable_session()
    zarr.create_array(session.store, name="a", shape=(64,), chunks=(8,), dtype="<i4", compressors=None)
    session.set_virtual_refs("a", [[0], [1]], [f"{files}three.bin", f"{files}two.bin"], [0, 100], 32)
    array = zarr.open_array(session.store, path="a", mode="r")
    with pytest.raises(Corruption, match=r"three\.bin .* is not there"):
        array[0]
    with pytest.raises(Corruption, match="ends before the chunk does"):
        array[8]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[0, 0]], "{}one.bin", 0, 32), r"not \(n, 1\) whole numbers"),
        (([[0.5]], "{}one.bin", 0, 32), "whole numbers"),
        (([[-1]], "{}one.bin", 0, 32), "negative"),
        (([[0]], "{}one.bin", [0, 1], 32), "offsets of shape"),
        (([[0]], "{}one.bin", 0, -1), "lengths"),
        (([[0], [1]], ["{}one.bin"], 0, 32), "urls has 1 entries"),
    ],
)
def test_columns_that_do_not_fit_are_refused(tmp_path: Path, files: str, arguments: Any, message: str) -> None:
    repo = new_repository(tmp_path / "repo", virtual_prefixes=[files])
    session = repo.writable_session()
    create_array(session, "a", DATA, (8,))
    coords, urls, *rest = arguments
    urls = urls.format(files) if isinstance(urls, str) else [url.format(files) for url in urls]
    with pytest.raises(InvalidInput, match=message):
        session.set_virtual_refs("a", coords, urls, *rest)
    with pytest.raises(NotFound, match="no array"):
        session.set_virtual_refs("b", coords, urls, *rest)


# -- whole hierarchies -------------------------------------------------------------------------------------------------


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    place = tmp_path / "sharded.zarr"
    store = open_store(place, chunks_per_shard={"g/ct": (4, 2)})
    zarr.create_group(store, attributes={"of": "root"})
    zarr.create_array(store, name="g/ct", data=np.arange(64 * 32).reshape(64, 32), chunks=(8, 8), attributes={"a": 1})
    zarr.create_array(store, name="t", data=np.arange(5))
    zarr.create_array(store, name="scalar", data=np.array(7))
    return place


def test_a_sharded_hierarchy_becomes_part_of_a_session_without_a_copy(tmp_path: Path, sharded: Path) -> None:
    repo = Repository.create(tmp_path / "repo", virtual_prefixes=[f"file://{sharded}/"])
    session = repo.writable_session()
    assert session.set_virtual_hierarchy(sharded, "old/data") == 32 + 1 + 1
    session.commit("referred")
    assert not (tmp_path / "repo" / "c").exists()
    found = repo.readonly_session()
    np.testing.assert_array_equal(read_array(found, "old/data/g/ct"), np.arange(64 * 32).reshape(64, 32))
    assert zarr.open_array(found.store, path="old/data/g/ct", mode="r").attrs.asdict() == {"a": 1}
    assert read_array(found, "old/data/t").tolist() == [0, 1, 2, 3, 4]
    assert int(read_array(found, "old/data/scalar")) == 7
    assert zarr.open_group(found.store, path="old/data", mode="r").attrs.asdict() == {"of": "root"}
    # One more change goes into the repository, and not into the old shards.
    session = repo.writable_session()
    zarr.open_array(session.store, path="old/data/g/ct")[0, 0] = -1
    session.commit("changed")
    assert int(read_array(repo.readonly_session(), "old/data/g/ct")[0, 0]) == -1
    assert int(zarr.open_array(open_store(sharded), path="g/ct", mode="r")[0, 0]) == 0  # type: ignore[arg-type]


def test_a_shard_that_was_rewritten_is_not_read_and_one_with_another_mode_is(tmp_path: Path, sharded: Path) -> None:
    """D30"""
    repo = Repository.create(tmp_path / "repo", virtual_prefixes=[f"file://{sharded}/"])
    session = repo.writable_session()
    session.set_virtual_hierarchy(sharded)
    session.commit("referred")
    for path in sharded.rglob("*"):
        path.chmod(0o700)
    np.testing.assert_array_equal(read_array(repo.readonly_session(), "g/ct"), np.arange(64 * 32).reshape(64, 32))
    zarr.open_array(open_store(sharded), path="g/ct")[0, 0] = 5
    array = zarr.open_array(repo.readonly_session().store, path="g/ct", mode="r")
    with pytest.raises(Conflict, match="has changed"):
        array[0, 0]
    assert int(array[63, 31]) == 64 * 32 - 1  # type: ignore[arg-type]


def test_a_set_of_references_becomes_part_of_a_session(tmp_path: Path, sharded: Path) -> None:
    references.write_json(sharded, tmp_path / "refs.json", inline_nbytes=200)
    repo = Repository.create(tmp_path / "repo", virtual_prefixes=[f"file://{sharded}/"])
    session = repo.writable_session()
    session.set_virtual_hierarchy(f"reference::{tmp_path}/refs.json", paths={"scalar": None})
    session.commit("referred")
    found = repo.readonly_session()
    np.testing.assert_array_equal(read_array(found, "g/ct"), np.arange(64 * 32).reshape(64, 32))
    assert read_array(found, "t").tolist() == [0, 1, 2, 3, 4]
    assert "scalar/zarr.json" not in found.mapping()


def test_whole_files_of_a_set_are_referred_to_with_their_sizes(tmp_path: Path, files: str) -> None:
    document = {
        "zarr.json": '{"zarr_format": 3, "node_type": "group"}',
        "a/.zarray": (
            '{"zarr_format": 2, "shape": [32], "chunks": [32], "dtype": "<i4", "compressor": null, "fill_value": 0, "order": "C", '
            '"filters": null}'
        ),
        "a/0": [f"{files}two.bin"],
    }
    (tmp_path / "whole.json").write_text(json.dumps(document))
    repo = new_repository(tmp_path / "repo", virtual_prefixes=[files])
    session = repo.writable_session()
    assert session.set_virtual_hierarchy(f"reference::{tmp_path}/whole.json", "v2") == 1
    np.testing.assert_array_equal(read_array(session, "v2/a"), DATA[32:])


def test_nodes_at_the_same_paths_are_replaced_only_if_asked(tmp_path: Path, sharded: Path) -> None:
    repo = Repository.create(tmp_path / "repo", virtual_prefixes=[f"file://{sharded}/"])
    session = repo.writable_session()
    create_array(session, "g/ct", DATA, (8,))
    with pytest.raises(InvalidInput, match="'g/ct': overwrite=True"):
        session.set_virtual_hierarchy(sharded)
    np.testing.assert_array_equal(read_array(session, "g/ct"), DATA)
    session.set_virtual_hierarchy(sharded, overwrite=True)
    assert read_array(session, "g/ct").shape == (64, 32)
    closed = Repository.open(tmp_path / "repo")
    with pytest.raises(InvalidInput, match="virtual_prefixes"):
        closed.writable_session().set_virtual_hierarchy(sharded)
    with pytest.raises(NotFound):
        session.set_virtual_hierarchy(tmp_path / "nothing")
    with pytest.raises(ReadOnly):
        repo.readonly_session().set_virtual_hierarchy(sharded)
