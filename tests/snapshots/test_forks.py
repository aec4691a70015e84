"""Forks: what other processes write becomes part of the session."""

from __future__ import annotations

import pickle
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from shardstore.errors import Conflict, InvalidInput, ReadOnly
from shardstore.snapshots import ConflictDetector, ConflictError, ConflictType, ForkSession, Repository
from tests.snapshots.repositories import create_array, new_repository, read_array

DATA = np.random.default_rng(0).integers(0, 2**15, (64, 40)).astype("i4")


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    repo = new_repository(tmp_path, pack=(2, 5))
    session = repo.writable_session()
    zarr.create_array(session.store, name="a", shape=DATA.shape, chunks=(8, 8), dtype=DATA.dtype, compressors=None)
    session.commit("begin")
    return repo


def travelled(fork: ForkSession) -> ForkSession:
    again = pickle.loads(pickle.dumps(fork))
    assert isinstance(again, ForkSession)
    return again


def write_rows(fork: Any, start: int, data: np.ndarray) -> Any:
    zarr.open_array(fork.store, path="a")[start : start + len(data)] = data
    return fork


@pytest.mark.gate
def test_forks_are_written_in_other_processes_and_merged(tmp_path: Path) -> None:
    repo = Repository.create(tmp_path, pack=(2, 5), fsync=False)
    with repo.transaction(message="begin") as store:
        zarr.create_array(store, name="a", shape=DATA.shape, chunks=(8, 8), dtype=DATA.dtype, compressors=None)
    session = repo.writable_session()
    starts = range(0, 64, 16)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        tasks = [pool.submit(write_rows, session.fork(), start, DATA[start : start + 16]) for start in starts]
        session.merge(*(task.result() for task in tasks))
    np.testing.assert_array_equal(read_array(session, "a"), DATA)
    session.commit("data")
    np.testing.assert_array_equal(read_array(repo.readonly_session(), "a"), DATA)
    assert len(list((tmp_path / "c").iterdir())) == 4


def test_a_fork_travels_with_what_was_written(repo: Repository) -> None:
    session = repo.writable_session()
    fork = travelled(write_rows(travelled(session.fork()), 3, DATA[:4]))  # chunks are written in part
    np.testing.assert_array_equal(read_array(fork, "a")[3:7], DATA[:4])
    assert not session.has_uncommitted_changes
    session.merge(travelled(write_rows(fork, 20, DATA[20:24])))
    found = read_array(session, "a")
    np.testing.assert_array_equal(found[3:7], DATA[:4])
    np.testing.assert_array_equal(found[20:24], DATA[20:24])
    assert not found[7:20].any()


def test_forks_are_merged_without_having_travelled(repo: Repository) -> None:
    session = repo.writable_session()
    first, second = session.fork(), session.fork()
    write_rows(first, 0, DATA[:9])
    write_rows(second, 8, DATA[8:20])
    create_array(second, "new", DATA, (16, 16), attributes={"a": 1})
    zarr.open_array(first.store, path="a").attrs["one"] = 1
    zarr.open_array(second.store, path="a").attrs["two"] = 2
    session.merge(first, second)
    found = zarr.open_array(session.store, path="a", mode="r")
    assert found.attrs.asdict() == {"one": 1, "two": 2}
    np.testing.assert_array_equal(found[:8], DATA[:8])
    np.testing.assert_array_equal(found[8:20], DATA[8:20])
    session.commit("both")
    again = repo.readonly_session()
    assert zarr.open_array(again.store, path="a", mode="r").attrs.asdict() == {"one": 1, "two": 2}
    np.testing.assert_array_equal(read_array(again, "new"), DATA)


def test_of_one_chunk_the_last_fork_counts(repo: Repository) -> None:
    session = repo.writable_session()
    forks = [write_rows(session.fork(), 0, np.full((8, 40), value)) for value in (1, 2, 3)]
    session.merge(*forks)
    assert (read_array(session, "a")[:8] == 3).all()
    session.commit("last")
    assert (read_array(repo.readonly_session(), "a")[:8] == 3).all()


def test_forks_that_contradict_are_refused_and_nothing_of_them_is_merged(repo: Repository) -> None:
    session = repo.writable_session()
    first, second, third = (session.fork() for _ in range(3))
    create_array(first, "new", DATA, (16, 16))
    create_array(second, "new", DATA[:8], (8, 8))
    write_rows(second, 0, DATA[:8])
    zarr.open_array(third.store, path="a").resize((80, 40))
    session.merge(first)
    with pytest.raises(ConflictError, match="new: a new node"):
        session.merge(second)
    np.testing.assert_array_equal(read_array(session, "new"), DATA)
    assert not read_array(session, "a").any()
    write_rows(session, 0, DATA[:8])
    with pytest.raises(ConflictError, match="a: one has changed chunks"):
        session.merge(third)


def test_what_forks_cannot_do_is_refused(repo: Repository) -> None:
    session = repo.writable_session()
    fork = session.fork()
    for action in (lambda: fork.commit("x"), fork.fork, lambda: fork.rebase(ConflictDetector())):
        with pytest.raises(InvalidInput, match="fork"):
            action()
    for thing in (fork.store, fork.storage):
        with pytest.raises(InvalidInput, match="cannot be pickled"):
            pickle.dumps(thing)
    write_rows(session, 0, DATA[:8])
    with pytest.raises(InvalidInput, match="commit them first"):
        session.fork()
    with pytest.raises(InvalidInput, match="is not a fork"):
        session.merge(session)  # type: ignore[arg-type]
    with pytest.raises(ReadOnly):
        repo.readonly_session().fork()
    other = repo.writable_session()
    write_rows(other, 16, DATA[:8])
    other.commit("theirs")
    session.rebase(ConflictDetector())
    with pytest.raises(InvalidInput, match="merge forks before"):
        session.merge(fork)


def test_what_forks_read_counts_too(repo: Repository) -> None:
    """D34"""
    session, other = repo.writable_session(isolation="serializable"), repo.writable_session()
    fork = travelled(session.fork())
    assert not read_array(fork, "a").any()
    write_rows(fork, 40, DATA[:8])
    write_rows(other, 0, DATA[:8])
    session.merge(travelled(fork))
    other.commit("theirs")
    with pytest.raises(ConflictError, match="were read"):
        session.commit("ours", rebase_with=ConflictDetector())


def test_fork_whose_files_were_collected_is_not_committed_by_a_newer_session(repo: Repository) -> None:
    """The coordinator was started again: its new session began after the collection, the fork long before."""
    fork = travelled(write_rows(repo.writable_session().fork(), 0, DATA))
    assert repo.garbage_collect(timedelta()).removed["c/"] > 0
    session = repo.writable_session()
    session.merge(fork)
    with pytest.raises(Conflict, match="were removed"):
        session.commit("too late")
    assert Repository.open(repo.url).verify().is_sound


def test_fork_of_a_session_that_began_after_the_collection_looks_for_nothing(repo: Repository) -> None:
    repo.expire_snapshots(datetime(2200, 1, 1, tzinfo=UTC))
    repo.garbage_collect(timedelta())
    session = repo.writable_session()
    assert session.fork()._core.began == travelled(session.fork())._core.began == session._core.began > 0


# -- forks that wrote into one chunk -------------------------------------------------------------------------------------


def into_one_chunk(session: Any) -> list[ForkSession]:
    """Forks of which each has written half of chunk (0, 0), and a chunk of its own."""
    forks = [session.fork(), session.fork()]
    for number, fork in enumerate(forks):
        array = zarr.open_array(fork.store, path="a")
        array[4 * number : 4 * number + 4, :8] = number + 1
        array[16 + 8 * number, :8] = number + 1
    return [travelled(fork) for fork in forks]


@pytest.mark.parametrize("way", [{}, {"on_chunk_conflict": "theirs"}])
def test_chunk_of_the_last_fork_counts(way: Any, repo: Repository) -> None:
    session = repo.writable_session()
    session.merge(*into_one_chunk(session), **way)
    found = read_array(session, "a")
    assert (found[0, 0], found[4, 0], found[16, 0], found[24, 0]) == (0, 2, 1, 2)


def test_chunk_of_the_session_counts(repo: Repository) -> None:
    session = repo.writable_session()
    session.merge(*into_one_chunk(session), on_chunk_conflict="ours")
    session.commit("merged")
    found = read_array(repo.readonly_session(), "a")
    assert (found[0, 0], found[4, 0], found[16, 0], found[24, 0]) == (1, 0, 1, 2)


def test_chunk_that_two_forks_have_written_can_be_a_conflict(repo: Repository) -> None:
    session = repo.writable_session()
    first, second = into_one_chunk(session)
    session.merge(first, on_chunk_conflict="fail")
    with pytest.raises(ConflictError, match=r"a fork conflicts with the session.*a: both have changed chunks, chunks \(0, 0\)") as caught:
        session.merge(second, on_chunk_conflict="fail")
    (conflict,) = caught.value.conflicts
    assert (conflict.conflict_type, conflict.path, conflict.conflicted_chunks) == (ConflictType.ChunkDoubleUpdate, "a", ((0, 0),))
    found = read_array(session, "a")
    assert (found[0, 0], found[4, 0], found[16, 0], found[24, 0]) == (1, 0, 1, 0)
    session.merge(second)  # it is as it was, and can be merged in another way
    assert read_array(session, "a")[24, 0] == 2


def test_chunk_that_one_fork_has_erased_is_a_conflict_too(repo: Repository) -> None:
    with repo.transaction(message="data") as store:
        zarr.open_array(store, path="a")[...] = DATA
    session = repo.writable_session()
    writes, erases = session.fork(), session.fork()
    write_rows(writes, 0, DATA[:8] + 1)
    del erases.mapping()["a/c/0/0"]
    session.merge(travelled(erases), on_chunk_conflict="fail")
    with pytest.raises(ConflictError, match=r"chunks \(0, 0\)"):
        session.merge(travelled(writes), on_chunk_conflict="fail")


def test_chunk_that_the_session_itself_has_written_is_a_conflict_too(repo: Repository) -> None:
    session = repo.writable_session()
    fork = write_rows(session.fork(), 0, DATA[:8])
    write_rows(session, 0, DATA[:8] + 1)
    with pytest.raises(ConflictError, match="both have changed chunks"):
        session.merge(fork, on_chunk_conflict="fail")
    session.merge(fork, on_chunk_conflict="ours")
    np.testing.assert_array_equal(read_array(session, "a")[:8], DATA[:8] + 1)


@pytest.mark.parametrize("deletes_first", [False, True])
@pytest.mark.parametrize("is_made_again", [False, True])
def test_deleting_an_array_that_another_fork_has_written_is_a_conflict_too(
    repo: Repository, deletes_first: bool, is_made_again: bool
) -> None:
    session = repo.writable_session()
    writes, deletes = write_rows(session.fork(), 0, DATA[:8]), session.fork()
    deletes.mapping().rmdir("a")
    if is_made_again:
        create_array(deletes, "a", DATA, (8, 8))
    first, second = (deletes, writes) if deletes_first else (writes, deletes)
    session.merge(travelled(first), on_chunk_conflict="fail")
    with pytest.raises(ConflictError):
        session.merge(travelled(second), on_chunk_conflict="fail")


def test_forks_that_wrote_other_chunks_are_no_conflict(repo: Repository) -> None:
    session = repo.writable_session()
    session.merge(
        *(write_rows(session.fork(), 8 * number, DATA[8 * number : 8 * number + 8]) for number in range(8)), on_chunk_conflict="fail"
    )
    np.testing.assert_array_equal(read_array(session, "a"), DATA)


def test_chunks_of_what_a_fork_has_made_are_no_conflict(repo: Repository) -> None:
    session = repo.writable_session()
    fork = session.fork()
    create_array(fork, "new", DATA, (8, 8))
    write_rows(session, 0, DATA[:8])
    session.merge(travelled(fork), on_chunk_conflict="ours")
    np.testing.assert_array_equal(read_array(session, "new"), DATA)


def test_other_words_for_whose_chunk_counts_are_refused(repo: Repository) -> None:
    session = repo.writable_session()
    fork = write_rows(session.fork(), 0, DATA[:8])
    with pytest.raises(InvalidInput, match="on_chunk_conflict 'mine' is not one of 'fail', 'ours', 'theirs'"):
        session.merge(fork, on_chunk_conflict="mine")  # type: ignore[arg-type]
    assert not session.has_uncommitted_changes
