"""Many chunks of one array at once: read in parts by threads, where files are local, and in one batch elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from shardstore.errors import Corruption
from shardstore.opening.open import open_storage
from shardstore.snapshots import Repository
from shardstore.testing.trace import TraceStorage
from tests.snapshots.repositories import create_array, read_array, run

DATA = np.random.default_rng(0).integers(0, 2**16, (64, 32), dtype="u2")
CHUNKS = (4, 32)  # 256 bytes: 16 of them


@pytest.fixture(params=["local", "elsewhere"])
def repo(tmp_path: Path, request: pytest.FixtureRequest) -> Repository:
    """Of an array whose chunks are in a chunk file, but for one in a manifest, one erased, and one that was in a manifest and is erased."""
    place: Any = tmp_path / "repository"
    if request.param == "elsewhere":
        place = TraceStorage(open_storage(place))  # which no thread can read
    repo = Repository.create(place, fsync=False)
    session = repo.writable_session()
    create_array(session, "a", DATA, CHUNKS, compressors=None, fill_value=7)
    session.commit("all")
    for values in (DATA[:8] + 1, None):
        session = repo.writable_session()
        array = zarr.open_array(session.store, path="a")
        if values is None:
            array[4:12] = 7  # chunks 1 and 2: erased, since they equal the fill value
        else:
            array[:8] = values  # chunks 0 and 1: inline
        session.commit("some")
    return repo


WANTED = np.concatenate([DATA[:4] + 1, np.full((8, 32), 7, dtype="u2"), DATA[12:]])


def test_chunks_are_read_wherever_they_are(repo: Repository) -> None:
    session = repo.readonly_session()
    assert session.storage.plans_reads() is not isinstance(repo._opened.options.url, TraceStorage)
    assert np.array_equal(read_array(session, "a"), WANTED)
    keys = [f"a/c/{number}/0" for number in range(16)]
    values: Any = run(session.storage.chunk_values(keys))
    wanted = [None if number in (1, 2) else WANTED[4 * number : 4 * number + 4].tobytes() for number in range(16)]
    assert [None if value is None else bytes(value) for value in values] == wanted


def test_what_a_session_has_written_is_read_too(repo: Repository) -> None:
    session = repo.writable_session()
    array = zarr.open_array(session.store, path="a")
    array[20:24] = 9
    assert np.array_equal(array[...], np.concatenate([WANTED[:20], np.full((4, 32), 9), WANTED[24:]]))


def test_keys_of_something_else_are_left_to_the_engine(repo: Repository) -> None:
    storage = repo.readonly_session().storage
    for keys in (["a/c/0/0", "a/zarr.json"], ["a/c/0/0", "b/c/0/0"], ["zarr.json", "a/zarr.json"]):
        assert run(storage.chunk_values(keys)) is None


@pytest.mark.parametrize("damage", ["cut off", "removed"])
def test_a_damaged_chunk_file_is_named(repo: Repository, tmp_path: Path, damage: str) -> None:
    (file,) = (tmp_path / "repository/c").iterdir()
    if damage == "removed":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:3000])
    session = repo.readonly_session()
    with pytest.raises(Corruption, match=file.name):
        read_array(session, "a")
    if damage == "cut off":
        assert np.array_equal(zarr.open_array(session.store, path="a", mode="r")[:20], WANTED[:20])
