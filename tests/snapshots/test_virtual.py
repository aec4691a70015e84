"""Virtual chunks: bytes of files of somebody else, read where the reader allows it, and only if they are still the same."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from shardstore.errors import Conflict, Corruption, InvalidInput, NotFound
from shardstore.snapshots import Repository
from shardstore.storage.opening.open import open_storage
from tests.snapshots.repositories import create_array, new_repository, read_array, run

pytestmark = pytest.mark.zarr

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
