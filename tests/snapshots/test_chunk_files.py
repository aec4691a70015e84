"""Chunks that wait for their files, while what they wait in changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from shardstore.errors import StorageError
from shardstore.snapshots import Repository
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.faults import Fail, Fault, FaultStorage
from tests.snapshots.repositories import new_repository, read_array


def numbers(*shape: int) -> Any:
    return np.random.default_rng(shape[0]).integers(1, 60_000, shape, dtype="u2")


def test_chunks_that_wait_are_stored_when_a_resize_divides_the_array_otherwise(tmp_path: Path) -> None:
    """By "auto", chunks a shard follow from the shape: of two chunks with one place in shards of different shapes, none may be lost."""
    repo = new_repository(tmp_path)
    session = repo.writable_session()
    array = zarr.create_array(session.store, name="a", shape=(64, 64), chunks=(8, 8), dtype="u2", compressors=None)
    expected = np.zeros((640, 64), dtype="u2")
    array[:32, :56] = expected[:32, :56] = numbers(32, 56)
    array.resize((640, 64))
    array[64:, :40] = expected[64:, :40] = numbers(576, 40)
    array[:8, :8] = expected[:8, :8] = numbers(8, 8)
    np.testing.assert_array_equal(read_array(session, "a"), expected)
    session.commit("resized")
    np.testing.assert_array_equal(read_array(repo.readonly_session(), "a"), expected)
    assert session._core.gatherer._held == 0


def test_chunks_whose_file_could_not_be_stored_are_stored_at_the_commit(tmp_path: Path) -> None:
    """Though the array has been resized meanwhile, and one of them was written again, and one erased."""
    faults = FaultStorage(MemoryStorage(str(tmp_path)))
    repo = Repository.create(faults, pack=lambda info: (2, 2) if info.shape[0] > 64 else (4, 4))
    session = repo.writable_session()
    array = zarr.create_array(session.store, name="a", shape=(64, 64), chunks=(16, 16), dtype="u2", compressors=None)
    expected = np.zeros((128, 64), dtype="u2")
    array[:48] = expected[:48] = numbers(48, 64)
    faults.plan(Fault(1, Fail(), keys="c/*"))
    expected[48:64] = numbers(16, 64)
    with pytest.raises(StorageError, match="planned to fail"):
        array[48:] = expected[48:64]  # they are changed all the same, and wait
    array.resize((128, 64))
    array[16:32, 16:32] = expected[16:32, 16:32] = numbers(16, 16)
    array[64:] = expected[64:] = numbers(64, 64)
    del session.mapping()["a/c/0/0"]
    expected[:16, :16] = 0
    np.testing.assert_array_equal(read_array(session, "a"), expected)
    session.commit("all the same")
    np.testing.assert_array_equal(read_array(Repository.open(faults).readonly_session(), "a"), expected)


def test_chunks_that_wait_are_stored_though_their_array_got_another_id_when_it_had_been_resized(tmp_path: Path) -> None:
    """As a rebase does (D14)."""
    repo = new_repository(tmp_path)
    session = repo.writable_session()
    array = zarr.create_array(session.store, name="a", shape=(64, 64), chunks=(8, 8), dtype="u2", compressors=None)
    expected = np.zeros((640, 64), dtype="u2")
    array[:32, :56] = expected[:32, :56] = numbers(32, 56)
    array.resize((640, 64))
    core = session._core
    core.renumber(core.nodes["a"].id, new := core.new_node_id())
    core.adopt(core.base, {**core.nodes, "a": replace(core.nodes["a"], id=new)})
    array[64:, :40] = expected[64:, :40] = numbers(576, 40)
    session.commit("resized")
    np.testing.assert_array_equal(read_array(repo.readonly_session(), "a"), expected)


def test_stored_chunks_become_references_and_change_as_before(tmp_path: Path) -> None:
    """Once there are many; others of the same array are written, erased and replaced before and after."""
    repo = Repository.create(tmp_path / "repo", fsync=False, pack=(4,))
    session = repo.writable_session()
    session._core.folded_at = 8
    data = np.arange(12800, dtype="<f8")
    array = zarr.create_array(session.store, name="a", shape=(12800,), chunks=(200,), dtype="<f8", compressors=None)
    for start in range(0, 12800, 800):  # a chunk file each
        array[start : start + 800] = data[start : start + 800]
    changes = session._core.changes[session._core.array("a").id]
    assert changes.bulk is not None
    assert len(changes.bulk.refs) + len(changes.chunks) == 64
    assert len(changes.chunks) < 24
    array[:300] = data[:300] = 7  # one chunk as a whole, and a part of one
    array[400:600] = data[400:600] = 0  # erased
    assert (read_array(session, "a") == data).all()
    assert len(list(session.storage.session.stored_files())) >= 16
    session.commit("written")
    assert (read_array(repo.readonly_session(), "a") == data).all()
    assert repo.verify().is_sound
    assert repo.stats().references == 63
