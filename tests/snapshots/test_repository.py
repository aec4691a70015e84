"""Repositories: sessions, commits, branches, tags, history, as programs use them."""

from __future__ import annotations

import asyncio
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore import ShardedFileSystem, pack, verify
from shardstore import open as open_store
from shardstore.errors import Conflict, Corruption, InvalidInput, NotFound, ReadOnly, StorageError, Unsupported
from shardstore.format.snapshots.state import decode_state
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import Condition, Generation
from shardstore.model.ranges import EVERYTHING
from shardstore.snapshots import Repository, SQLCatalog, StorageCatalog
from shardstore.snapshots.catalog import Pointer, PointerMoved
from shardstore.storage.base import Found, Read, Storage
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.trace import TraceStorage
from tests.snapshots.repositories import create_array, new_repository, read_array, run, traced_repository
from tests.snapshots.test_catalogs import WithoutConditions

DATA = np.arange(64 * 32, dtype="u2").reshape(64, 32) * 31
CHUNKS = (8, 8)


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return new_repository(tmp_path)


def committed(repo: Repository, message: str = "data", path: str = "ct", **options: Any) -> str:
    session = repo.writable_session()
    create_array(session, path, DATA, CHUNKS, **options)
    return session.commit(message)


# -- commits -----------------------------------------------------------------------------------------------------------


def test_a_new_repository_has_main_on_a_snapshot_of_nothing(repo: Repository) -> None:
    """D11"""
    assert (repo.list_branches(), repo.list_tags()) == ({"main"}, set())
    (first,) = repo.ancestry()
    assert (first.parent_id, first.message) == (None, "Repository initialized")
    session = repo.readonly_session()
    assert list(session.mapping()) == ["zarr.json"]
    assert zarr.open_group(session.store, mode="r").attrs.asdict() == {}


def test_changes_are_seen_by_the_session_alone_until_they_are_committed(repo: Repository) -> None:
    """D9"""
    before = repo.readonly_session()
    session, other = repo.writable_session(), repo.writable_session()
    create_array(session, "ct", DATA, CHUNKS)
    np.testing.assert_array_equal(read_array(session, "ct"), DATA)
    for blind in (before, other, repo.readonly_session()):
        assert list(blind.mapping()) == ["zarr.json"]
    snapshot = session.commit("day 1", {"run": 7})
    assert list(before.mapping()) == ["zarr.json"]
    after = repo.readonly_session()
    assert after.snapshot_id == session.snapshot_id == snapshot == repo.lookup_branch("main")
    np.testing.assert_array_equal(read_array(after, "ct"), DATA)
    info = next(iter(repo.ancestry()))
    assert (info.message, dict(info.metadata), info.parent_id) == ("day 1", {"run": 7}, before.snapshot_id)
    assert info == repo.lookup_snapshot(snapshot)
    said = repo._now().state.snapshots[snapshot].properties
    assert said == {"message": "day 1", "metadata": {"run": 7}, "writer": f"shardstore {shardstore.__version__}"}


def test_a_committed_session_reads_on_and_writes_no_more(repo: Repository) -> None:
    session = repo.writable_session()
    create_array(session, "ct", DATA, CHUNKS)
    session.commit("data")
    assert session.read_only
    np.testing.assert_array_equal(read_array(session, "ct"), DATA)
    with pytest.raises(ReadOnly, match="has been committed"):
        zarr.open_array(session.store, path="ct")[0] = 1
    with pytest.raises(ReadOnly):
        session.commit("again")


def test_each_snapshot_shows_what_it_was(repo: Repository) -> None:
    snapshots, expected = [committed(repo)], [DATA.copy()]
    rng = np.random.default_rng(0)
    for number in range(12):  # so many that manifests are merged
        session = repo.writable_session()
        array = zarr.open_array(session.store, path="ct")
        at = tuple(int(rng.integers(0, size - 5)) for size in DATA.shape)
        where = slice(at[0], at[0] + 5), slice(at[1], at[1] + 5)
        array[where] = number
        snapshots.append(session.commit(f"change {number}"))
        now = expected[-1].copy()
        now[where] = number
        expected.append(now)
    for snapshot, data in zip(snapshots, expected, strict=True):
        np.testing.assert_array_equal(read_array(repo.readonly_session(snapshot_id=snapshot), "ct"), data)


def test_nothing_changed_is_no_commit(repo: Repository) -> None:
    session = repo.writable_session()
    assert not session.has_uncommitted_changes
    with pytest.raises(InvalidInput, match="allow_empty"):
        session.commit("nothing")
    session.commit("nothing", allow_empty=True)
    assert [info.message for info in repo.ancestry()] == ["nothing", "Repository initialized"]
    with repo.transaction(message="not made"):
        pass
    assert len(list(repo.ancestry())) == 2
    with pytest.raises(InvalidInput, match="needs a message"):
        repo.writable_session().commit("", allow_empty=True)


def test_a_transaction_commits_at_its_end_or_not_at_all(repo: Repository) -> None:
    with repo.transaction(message="data", metadata={"by": "me"}) as store:
        zarr.create_array(store, name="ct", data=DATA, chunks=CHUNKS)
    np.testing.assert_array_equal(read_array(repo.readonly_session(), "ct"), DATA)

    def breaks() -> None:
        with repo.transaction(message="broken") as store:
            zarr.open_array(store, path="ct")[:] = 0
            raise KeyError("something else")

    with pytest.raises(KeyError) as caught:
        breaks()
    assert "nothing was committed" in caught.value.__notes__[0]
    np.testing.assert_array_equal(read_array(repo.readonly_session(), "ct"), DATA)


def test_changes_can_be_discarded(repo: Repository) -> None:
    committed(repo)
    session = repo.writable_session()
    array = zarr.open_array(session.store, path="ct")
    array[:] = 0
    zarr.create_group(session.store, path="g")
    session.discard_changes()
    assert not session.has_uncommitted_changes
    np.testing.assert_array_equal(read_array(session, "ct"), DATA)
    assert sorted(key for key in session.mapping() if key.endswith("zarr.json")) == ["ct/zarr.json", "zarr.json"]


def test_the_second_of_two_commits_from_one_tip_is_a_conflict_and_can_go_on(repo: Repository) -> None:
    committed(repo)
    first, second = repo.writable_session(), repo.writable_session()
    zarr.open_array(first.store, path="ct")[0, 0] = 1
    zarr.open_array(second.store, path="ct")[40, 20] = 2
    winner = first.commit("first")
    with pytest.raises(Conflict, match="has moved"):
        second.commit("second")
    assert repo.lookup_branch("main") == winner
    assert second.has_uncommitted_changes
    assert read_array(second, "ct")[40, 20] == 2
    assert read_array(second, "ct")[0, 0] == DATA[0, 0]


def test_commits_to_other_branches_are_no_conflict(repo: Repository) -> None:
    tip = committed(repo)
    repo.create_branch("other", tip)
    here, there = repo.writable_session(), repo.writable_session("other")
    zarr.open_array(here.store, path="ct")[0, 0] = 1
    zarr.open_array(there.store, path="ct")[0, 0] = 2
    here.commit("here")
    repo.create_tag("v1", tip)
    there.commit("there")
    assert [int(read_array(repo.readonly_session(name), "ct")[0, 0]) for name in ("main", "other")] == [1, 2]
    assert int(read_array(repo.readonly_session(tag="v1"), "ct")[0, 0]) == DATA[0, 0]


def test_times_of_snapshots_ascend_whatever_the_clock_says(repo: Repository) -> None:
    """D7"""
    repo._store.clock = lambda: 1000.0
    for number in range(3):
        committed(repo, path=f"a{number}")
    times = [info.written_at for info in repo.ancestry()]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == 4


# -- history -----------------------------------------------------------------------------------------------------------


def test_a_branch_is_shown_as_it_was(repo: Repository) -> None:
    """D7"""
    times = iter(range(2_000_000_000, 2_000_000_100, 10))
    repo._store.clock = lambda: next(times)
    first = committed(repo, path="a")
    second = committed(repo, path="b")
    begin = datetime.fromtimestamp(2_000_000_000, UTC)
    assert repo.readonly_session(as_of=begin).snapshot_id == first
    assert repo.readonly_session(as_of=begin + timedelta(seconds=9)).snapshot_id == first
    assert repo.readonly_session("main", as_of=begin + timedelta(seconds=10)).snapshot_id == second
    with pytest.raises(NotFound, match="as old as that"):
        repo.readonly_session(as_of=datetime(2000, 1, 1, tzinfo=UTC))
    with pytest.raises(InvalidInput, match="time zone"):
        repo.readonly_session(as_of=datetime(2000, 1, 1))  # noqa: DTZ001
    with pytest.raises(InvalidInput, match="one of"):
        repo.readonly_session("main", tag="x")
    with pytest.raises(InvalidInput, match="as_of needs a branch"):
        repo.readonly_session(snapshot_id=first, as_of=begin)


def test_branches_and_tags(repo: Repository) -> None:
    """D10, D12"""
    first, second = committed(repo, path="a"), committed(repo, path="b")
    repo.create_branch("try", first)
    repo.create_tag("v1", first)
    assert (repo.list_branches(), repo.list_tags()) == ({"main", "try"}, {"v1"})
    assert (repo.lookup_branch("try"), repo.lookup_tag("v1")) == (first, first)
    for make in (repo.create_branch, repo.create_tag):
        for name in ("try", "v1", "main"):
            with pytest.raises(InvalidInput, match="already"):
                make(name, second)
        with pytest.raises(NotFound, match="no snapshot"):
            make("new", "1CZ33ZREE1WVR4D62DV0")
        with pytest.raises(InvalidInput, match="cannot be the name"):
            make("a@b", second)
    repo.reset_branch("try", second, from_snapshot_id=first)
    with pytest.raises(Conflict, match=f"is at snapshot {second}"):
        repo.reset_branch("try", first, from_snapshot_id=first)
    with pytest.raises(NotFound, match="there is no tag 'v2': there are 'v1'"):
        repo.readonly_session(tag="v2")
    repo.delete_tag("v1")
    repo.create_tag("v1", second)
    repo.delete_branch("try")
    with pytest.raises(NotFound, match="no branch 'try'"):
        repo.delete_branch("try")
    with pytest.raises(NotFound):
        repo.delete_tag("main")
    with pytest.raises(InvalidInput, match="cannot be deleted"):
        repo.delete_branch("main")
    assert (repo.list_branches(), repo.list_tags()) == ({"main"}, {"v1"})


def test_a_reset_branch_goes_on_from_there(repo: Repository) -> None:
    first, second = committed(repo, path="a"), committed(repo, path="b")
    repo.reset_branch("main", first)
    assert sorted(zarr.open_group(repo.readonly_session().store, mode="r").array_keys()) == ["a"]
    third = committed(repo, path="c")
    assert [info.id for info in repo.ancestry()][:2] == [third, first]
    assert sorted(zarr.open_group(repo.readonly_session(snapshot_id=second).store, mode="r").array_keys()) == ["a", "b"]


# -- nodes -------------------------------------------------------------------------------------------------------------


def test_nodes_are_moved_with_all_below_them_and_no_manifest(tmp_path: Path) -> None:
    """D14"""
    repo, trace = traced_repository(tmp_path)
    committed(repo, path="a/b")
    before = repo._now().state.snapshots[repo.lookup_branch("main")].structure
    session = repo.writable_session()
    session.move("a", "x/y")
    np.testing.assert_array_equal(read_array(session, "x/y/b"), DATA)
    with trace.count() as block:
        session.commit("moved")
    assert sorted(event.key[:2] for event in block.events if event.op == "write") == ["ca", "s/", "t/"]
    session = repo.readonly_session()
    np.testing.assert_array_equal(read_array(session, "x/y/b"), DATA)
    paths = [key for key in session.mapping() if key.endswith("zarr.json")]
    assert sorted(paths) == ["x/y/b/zarr.json", "x/y/zarr.json", "x/zarr.json", "zarr.json"]
    was = run(repo._store.files.structure(before)).nodes
    now = session._core.nodes
    assert (was["a"].id, was["a/b"].id) == (now["x/y"].id, now["x/y/b"].id)


def test_impossible_moves_are_refused(repo: Repository) -> None:
    committed(repo, path="a/b")
    committed(repo, path="c")
    session = repo.writable_session()
    for source, target, error in [
        ("nothing", "x", NotFound),
        ("a", "a/x", InvalidInput),
        ("a", "c", InvalidInput),
        ("c", "a/b", InvalidInput),
        ("a", "c/x", InvalidInput),
        ("", "x", InvalidInput),
    ]:
        with pytest.raises(error):
            session.move(source, target)
    assert not session.has_uncommitted_changes


def test_long_attributes_go_into_a_file_of_their_own(tmp_path: Path) -> None:
    """D19"""
    repo, trace = traced_repository(tmp_path)
    long = {"text": "x" * 20_000}
    with trace.count() as block:
        committed(repo, attributes=long)
    assert [event.key[:2] for event in block.events if event.op == "write"].count("a/") == 1
    session = repo.readonly_session()
    assert zarr.open_array(session.store, path="ct", mode="r").attrs.asdict() == long
    session = repo.writable_session()
    zarr.open_array(session.store, path="ct")[0] = 1
    with trace.count() as block:
        session.commit("a chunk")
    assert not any(event.key.startswith("a/") for event in block.events)
    session = repo.writable_session()
    zarr.open_array(session.store, path="ct").attrs["more"] = 1
    session.commit("attributes")
    assert zarr.open_array(repo.readonly_session().store, path="ct", mode="r").attrs.asdict() == long | {"more": 1}


def test_an_array_that_is_made_again_has_no_old_chunks(repo: Repository) -> None:
    committed(repo)
    session = repo.writable_session()
    zarr.create_array(session.store, name="ct", shape=(4,), chunks=(2,), dtype="i4", fill_value=7, overwrite=True)
    assert read_array(session, "ct").tolist() == [7, 7, 7, 7]
    session.commit("again")
    assert read_array(repo.readonly_session(), "ct").tolist() == [7, 7, 7, 7]
    assert len(list(repo.readonly_session().mapping())) == 2


def test_there_is_always_a_root(repo: Repository) -> None:
    """D15"""
    committed(repo)
    root = repo.readonly_session()._core.nodes[""].id
    session = repo.writable_session()
    zarr.open_group(session.store, mode="w", attributes={"new": 1})
    session.commit("all anew")
    assert list(repo.readonly_session().mapping()) == ["zarr.json"]
    assert repo.readonly_session()._core.nodes[""].id == root
    session = repo.writable_session()
    del session.mapping()["zarr.json"]
    session.commit("without")
    assert zarr.open_group(repo.readonly_session().store, mode="r").attrs.asdict() == {}
    session = repo.writable_session()
    zarr.create_array(session.store, data=DATA, chunks=CHUNKS, overwrite=True)
    session.commit("an array at the root")
    session = repo.readonly_session()
    np.testing.assert_array_equal(read_array(session, ""), DATA)
    assert sorted(entry["name"].strip("/") for entry in session.filesystem.ls("")) == ["c", "zarr.json"]


def test_another_process_cannot_write_into_a_session(repo: Repository) -> None:
    session = repo.writable_session()
    pid = session._core._pid
    session._core._pid = -1  # as after a fork
    with pytest.raises(ReadOnly, match=r"session\.fork\(\) by pickle"):
        session.mapping()["a/zarr.json"] = b'{"zarr_format": 3, "node_type": "group"}'
    with pytest.raises(ReadOnly, match="another one writes"):
        session.commit("x", allow_empty=True)
    session._core._pid = pid
    session.commit("x", allow_empty=True)


def test_resizing_erases_what_is_outside(repo: Repository) -> None:
    """D26"""
    committed(repo)
    session = repo.writable_session()
    array = zarr.open_array(session.store, path="ct")
    array.resize((20, 32))
    array.resize((64, 32))
    session.commit("resized")
    data = read_array(repo.readonly_session(), "ct")
    np.testing.assert_array_equal(data[:20], DATA[:20])
    assert not data[24:].any()


def test_a_snapshot_has_a_root_though_it_was_deleted(repo: Repository) -> None:
    """D15"""
    session = repo.writable_session()
    create_array(session, "a", np.arange(8), (2,))
    del session.mapping()["zarr.json"]
    session.commit("without a root")
    again = Repository.open(repo.url).readonly_session()
    assert sorted(key for key in again.mapping() if key.endswith("zarr.json")) == ["a/zarr.json", "zarr.json"]
    assert zarr.open_group(again.store, mode="r").attrs.asdict() == {}


def test_everything_can_be_cleared_and_committed(repo: Repository) -> None:
    """D15"""
    session = repo.writable_session()
    create_array(session, "a", np.arange(8), (2,))
    session.commit("data")
    session = repo.writable_session()
    session.mapping().clear()
    assert list(session.mapping()) == []
    session.commit("nothing")
    assert list(Repository.open(repo.url).readonly_session().mapping()) == ["zarr.json"]


def test_sharded_arrays_are_refused_with_the_remedy(repo: Repository) -> None:
    """D35"""
    session = repo.writable_session()
    with pytest.raises(InvalidInput, match="leave shards out"):
        zarr.create_array(session.store, name="ct", shape=(8, 8), shards=(8, 8), chunks=(2, 2), dtype="u1")
    assert not session.has_uncommitted_changes


def test_other_keys_and_documents_are_refused(repo: Repository) -> None:
    store = repo.writable_session().mapping()
    with pytest.raises(InvalidInput, match="neither the document"):
        store["notes.txt"] = b"x"
    with pytest.raises(InvalidInput, match="Zarr v3"):
        store["a/zarr.json"] = b'{"zarr_format": 2, "node_type": "group"}'


# -- chunks ------------------------------------------------------------------------------------------------------------


def test_a_full_cell_is_stored_as_a_shard(tmp_path: Path) -> None:
    """D35"""
    repo, trace = traced_repository(tmp_path, pack=(4, 4))
    with trace.count() as block:
        committed(repo, compressors=None)
    files = [event.key for event in block.events if event.key.startswith("c/")]
    assert len(files) == 2
    target = MemoryStorage(f"{tmp_path}-sharded")
    store = open_store(target, chunks_per_shard=(4, 4))
    zarr.create_array(store, name="ct", data=DATA, chunks=CHUNKS, compressors=None)
    shards = {bytes(run(_whole(target, f"ct/c/{i}/0"))) for i in range(2)}
    assert {bytes(run(_whole(trace, key))) for key in files} == shards


async def _whole(storage: Any, key: str) -> bytes:

    (found,) = await storage.read([Read(key, (EVERYTHING,))])
    assert isinstance(found, Found), key
    return b"".join(found.buffers)


def test_chunks_gather_whatever_order_they_come_in(tmp_path: Path) -> None:
    repo, trace = traced_repository(tmp_path, pack=(4, 4))
    session = repo.writable_session()
    array = zarr.create_array(session.store, name="ct", shape=(128, 128), chunks=(8, 8), dtype="u2", compressors=None)
    data = np.random.default_rng(0).integers(0, 2**16, array.shape, dtype="u2")
    coords = np.random.default_rng(1).permutation(256)
    with trace.count() as block:
        for at in coords.tolist():
            i, j = at // 16 * 8, at % 16 * 8
            array[i : i + 8, j : j + 8] = data[i : i + 8, j : j + 8]
        session.commit("data")
    assert sum(event.key.startswith("c/") for event in block.events if event.op == "write") == 16
    np.testing.assert_array_equal(read_array(repo.readonly_session(), "ct"), data)


def test_small_chunks_go_into_the_manifest(tmp_path: Path) -> None:
    repo, trace = traced_repository(tmp_path)
    session = repo.writable_session()
    with trace.count() as block:
        create_array(session, "t", np.arange(5), (5,))
        session.commit("coordinates")
    assert not any(event.key.startswith("c/") for event in block.events)
    with trace.count() as block:
        assert read_array(repo.readonly_session(), "t").tolist() == [0, 1, 2, 3, 4]
    assert not any(event.key.startswith("c/") for event in block.events)


def test_memory_is_bounded_by_storing_the_largest_cells(tmp_path: Path) -> None:
    repo, trace = traced_repository(tmp_path, pack=(64,), max_memory=20_000)
    session = repo.writable_session()
    array = zarr.create_array(session.store, name="a", shape=(6400,), chunks=(10,), dtype="f8", compressors=None)
    with trace.count() as block:
        for start in range(0, 6400, 20):
            array[start : start + 20] = np.arange(20)
            gatherer = session._core.gatherer
            assert gatherer._held <= 20_000
    assert sum(event.key.startswith("c/") for event in block.events if event.op == "write") >= 2
    session.commit("data")
    np.testing.assert_array_equal(read_array(repo.readonly_session(), "a"), np.tile(np.arange(20), 320))


def test_erased_chunks_are_gone_and_come_back_when_they_are_written(repo: Repository) -> None:
    """D26"""
    committed(repo)
    session = repo.writable_session()
    del session.mapping()["ct/c/1/1"]
    session.commit("erased")
    data = read_array(repo.readonly_session(), "ct")
    assert not data[8:16, 8:16].any()
    assert "ct/c/1/1" not in repo.readonly_session().mapping()
    session = repo.writable_session()
    zarr.open_array(session.store, path="ct")[8:16, 8:16] = 9
    session.commit("again")
    assert (read_array(repo.readonly_session(), "ct")[8:16, 8:16] == 9).all()


def test_chunks_without_bytes_are_chunks(repo: Repository) -> None:
    """D26"""
    session = repo.writable_session()
    zarr.create_array(session.store, name="a", shape=(4,), chunks=(2,), dtype="u1")
    session.mapping()["a/c/0"] = b""
    session.commit("empty")
    mapping = repo.readonly_session().mapping()
    assert (mapping["a/c/0"], "a/c/1" in mapping) == (b"", False)


# -- requests ----------------------------------------------------------------------------------------------------------


def test_a_commit_is_one_round_of_writes_and_one_swap(tmp_path: Path) -> None:
    repo, trace = traced_repository(tmp_path)
    committed(repo)
    session = repo.writable_session()
    zarr.open_array(session.store, path="ct")[0:8, 0:8] = np.arange(64).reshape(8, 8)
    with trace.count() as block:
        session.commit("one chunk")
    assert [event.op for event in block.events] == ["write"] * len(block.events)
    assert sorted(event.key[:2] for event in block.events) == ["ca", "m/", "s/", "t/"]
    assert block.events[-1].key == "catalog.json"


def test_a_cold_read_takes_few_requests_and_a_warm_one_none_but_the_chunks(tmp_path: Path) -> None:
    repo, trace = traced_repository(tmp_path)
    session = repo.writable_session()
    create_array(session, "ct", np.random.default_rng(0).integers(0, 2**16, (64, 64), dtype="u2"), (16, 16), compressors=None)
    session.commit("data")
    repo = Repository.open(trace)
    with trace.count() as block:
        session = Repository.open(trace).readonly_session()
        array = zarr.open_array(session.store, path="ct", mode="r")
        array[0, 0]
    assert [event.key[:2] for event in block.events] == ["ca", "t/", "ca", "s/", "m/", "c/"]
    with trace.count() as block:
        array[:]
    assert {event.key[:2] for event in block.events} == {"c/"}


# -- places ------------------------------------------------------------------------------------------------------------


def test_read_only_sessions_travel(tmp_path: Path) -> None:
    repo = Repository.create(tmp_path)
    committed(repo)
    session = repo.readonly_session()
    for thing in (session, session.storage, session.store):
        again = pickle.loads(pickle.dumps(thing))
        store = again if thing is session.store else getattr(again, "store", None) or open_store(again, read_only=True)
        np.testing.assert_array_equal(zarr.open_array(store, path="ct", mode="r")[:], DATA)
    assert pickle.loads(pickle.dumps(repo)).list_branches() == {"main"}
    writable = repo.writable_session()
    for thing in (writable, writable.storage, writable.store):
        with pytest.raises(InvalidInput, match="cannot be pickled"):
            pickle.dumps(thing)


def test_a_copied_repository_opens_where_it_is(tmp_path: Path) -> None:
    """D3"""
    repo = Repository.create(tmp_path / "a")
    committed(repo)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    shutil.rmtree(tmp_path / "a")
    moved = Repository.open(tmp_path / "b")
    np.testing.assert_array_equal(read_array(moved.readonly_session(), "ct"), DATA)
    committed(moved, path="more")
    assert moved._now().state.root == repo.url


def test_the_state_is_that_of_the_store_that_the_catalog_names(tmp_path: Path) -> None:
    """D2, D4, D5"""
    first, second = Repository.create(tmp_path / "a"), Repository.create(tmp_path / "b")
    committed(first)
    shutil.copy(tmp_path / "a" / "catalog.json", tmp_path / "b" / "catalog.json")
    with pytest.raises(Corruption, match="is not in"):
        second.list_branches()
    shutil.copytree(tmp_path / "a" / "t", tmp_path / "b" / "t", dirs_exist_ok=True)
    assert second._store.files is not first._store.files
    states = sorted((tmp_path / "b" / "t").iterdir())
    assert [path.name[:20] for path in states] == ["0" * 20, "0" * 20, f"{1:020d}"]
    newest = decode_state(states[-1].read_bytes())
    text = (tmp_path / "b" / "catalog.json").read_text()
    (tmp_path / "b" / "catalog.json").write_text(text.replace(newest.id, "another"))
    with pytest.raises(Corruption, match="another store"):
        Repository.open(tmp_path / "b")
    (tmp_path / "b" / "catalog.json").write_text(
        text.replace('"generation": 1', '"generation": 2').replace('"generation":1', '"generation":2')
    )
    with pytest.raises(Corruption, match="generation"):
        Repository.open(tmp_path / "b")


def test_repositories_are_made_once_opened_and_destroyed(tmp_path: Path) -> None:
    """D32"""
    place = tmp_path / "run.ice"
    assert not Repository.exists(place)
    with pytest.raises(NotFound, match="shardstore snapshots init"):
        Repository.open(place)
    repo = Repository.open_or_create(place)
    committed(repo)
    assert Repository.exists(place)
    with pytest.raises(InvalidInput, match="already"):
        Repository.create(place)
    assert Repository.open_or_create(place).lookup_branch("main") == repo.lookup_branch("main")
    with pytest.raises(InvalidInput, match="yes=True"):
        repo.destroy()
    repo.destroy(yes=True)
    assert not [path for path in place.rglob("*") if path.is_file()]
    assert not Repository.exists(place)


def test_a_catalog_in_a_database(tmp_path: Path) -> None:
    """D33: the state is a file with any catalog, so that another catalog can take the store over."""
    pytest.importorskip("sqlalchemy")
    catalog = SQLCatalog(f"sqlite:///{tmp_path}/catalog.db")
    repo = Repository.create(tmp_path / "run.ice", catalog=catalog)
    committed(repo)
    assert not (tmp_path / "run.ice" / "catalog.json").exists()
    again = Repository.open(tmp_path / "run.ice", catalog=catalog, name="run.ice")
    np.testing.assert_array_equal(read_array(again.readonly_session(), "ct"), DATA)
    pointer = run(catalog.get("run.ice"))
    assert pointer is not None
    assert (tmp_path / "run.ice" / pointer.location).is_file()
    other = StorageCatalog(MemoryStorage(f"{tmp_path}-catalog"))
    run(other.swap("taken", None, pointer))
    taken = Repository.open(tmp_path / "run.ice", catalog=other, name="taken")
    np.testing.assert_array_equal(read_array(taken.readonly_session(), "ct"), DATA)


def test_storages_without_conditions_need_a_catalog_elsewhere(tmp_path: Path) -> None:
    storage = WithoutConditions(MemoryStorage(str(tmp_path)))
    zarr.create_array(tmp_path / "old.zarr", data=DATA)
    makes: list[Callable[[], object]] = [lambda: Repository.create(storage), lambda: Repository.adopt(tmp_path / "old.zarr", storage)]
    for refused in makes:
        with pytest.raises(Unsupported, match="SQLCatalog"):
            refused()
        assert listed(storage) == {}
    repo = Repository.create(storage, catalog=StorageCatalog(MemoryStorage(f"{tmp_path}-catalog")))
    committed(repo)
    np.testing.assert_array_equal(read_array(repo.readonly_session(), "ct"), DATA)


class LosesConditions(WithoutConditions):
    """A storage that honours conditions until it does not any more, as a server may that is configured anew."""

    is_able = True

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities if self.is_able else super().capabilities


def test_nothing_is_stored_for_a_change_that_the_catalog_cannot_make(tmp_path: Path) -> None:
    files, catalog = MemoryStorage(str(tmp_path)), LosesConditions(MemoryStorage(f"{tmp_path}-catalog"))
    repo = Repository.create(files, catalog=StorageCatalog(catalog))
    session = repo.writable_session()
    create_array(session, "ct", DATA, CHUNKS)
    before = listed(files)
    catalog.is_able = False
    for change in (
        lambda: session.commit("refused"),
        lambda: repo.create_tag("v1", repo.lookup("main")),
        lambda: repo.garbage_collect(timedelta()),
    ):
        with pytest.raises(Unsupported, match="No store was made or changed"):
            change()
        assert listed(files) == before
    catalog.is_able = True
    session.commit("data")
    np.testing.assert_array_equal(read_array(repo.readonly_session(), "ct"), DATA)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_repository_that_cannot_be_made_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_first: bool) -> None:
    """The catalog fails, or another client has made one just now."""
    files = MemoryStorage(str(tmp_path))
    catalog = StorageCatalog(MemoryStorage(f"{tmp_path}-catalog"))
    zarr.create_array(tmp_path / "old.zarr", data=DATA)

    async def swap(name: str, before: Pointer | None, after: Pointer) -> Pointer:
        if is_first:
            raise StorageError("the catalog fails")
        raise PointerMoved("another client was first", replace(after, location="t/another", store_id="another"))

    makes: list[Callable[[], object]] = [
        lambda: Repository.create(files, catalog=catalog),
        lambda: Repository.adopt(tmp_path / "old.zarr", files, catalog=catalog),
    ]
    for make in makes:
        with monkeypatch.context() as patch:
            patch.setattr(catalog, "swap", swap)
            with pytest.raises(StorageError if is_first else InvalidInput):
                make()
        assert listed(files) == {}
    Repository.create(files, catalog=catalog)


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    for options, message in [
        ({"schema": "new"}, "schema"),
        ({"pack": "everything"}, "chunks_per_shard"),
        ({"max_memory": 0}, "max_memory"),
        ({"virtual_prefixes": ["s3://bucket"]}, "virtual_prefixes"),
        ({"name": "a/b"}, "name of a store"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            Repository.create(tmp_path, **options)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_schema_draft_refuses_what_the_draft_cannot_hold(tmp_path: Path) -> None:
    """D16"""
    repo = new_repository(tmp_path, schema="draft")
    session = repo.writable_session()
    zarr.create_array(session.store, name="long", shape=(70_000,), chunks=(1000,), dtype="u1")
    with pytest.raises(InvalidInput, match="'long' has 70000"):
        session.commit("long")
    assert len(list(repo.ancestry())) == 1
    session.discard_changes()
    create_array(session, "ct", DATA, CHUNKS)
    session.commit("fits")
    np.testing.assert_array_equal(read_array(repo.readonly_session(), "ct"), DATA)


# -- tools -------------------------------------------------------------------------------------------------------------


def test_tools_work_on_sessions(tmp_path: Path, repo: Repository) -> None:
    committed(repo)
    session = repo.readonly_session()
    report = verify(session.storage)
    assert (report.errors, report.objects) == (0, 34)
    pack(session.storage, tmp_path / "packed.zarr", chunks_per_shard=(4, 4))
    np.testing.assert_array_equal(zarr.open_array(open_store(tmp_path / "packed.zarr"), path="ct", mode="r")[:], DATA)
    assert sorted(zarr.open_group(session.store, mode="r").array_keys()) == ["ct"]
    names = [entry["name"].rpartition("/")[2] for entry in session.filesystem.ls("ct/c/0")]
    assert names == ["0", "1", "2", "3"]
    v2 = session.mapping("v2")
    assert {"ct/.zarray", "ct/0.0", ".zgroup"} <= set(v2) or {"ct/.zarray", "ct/0/0", ".zgroup"} <= set(v2)


# -- differences -------------------------------------------------------------------------------------------------------


def listed(storage: Storage) -> dict[str, Generation | None]:
    """Return the version of each object as a listing tells it."""

    async def listing() -> dict[str, Generation | None]:
        return {info.key: info.generation async for info in storage.list("")}

    return run(listing())


def test_listings_tell_which_chunks_and_documents_a_commit_has_changed(repo: Repository) -> None:
    """So ``pack`` moves what is new alone, from one snapshot to the next."""
    committed(repo, attributes={"a": 1})
    create_small = repo.writable_session()
    create_array(create_small, "small", np.arange(4, dtype="u1"), (2,))  # within the manifest
    create_small.commit("inline chunks")
    before = repo.readonly_session().storage
    session = repo.writable_session()
    array = zarr.open_array(session.store, path="ct")
    array[:8, :8] = 1
    array.attrs["a"] = 2
    zarr.open_array(session.store, path="small")[0] = 9
    session.commit("changed")
    after = repo.readonly_session().storage
    for storage in (before, session.storage, after):
        versions = listed(storage)
        assert None not in versions.values()
        for key, version in versions.items():
            info = run(storage.stat(key))
            assert info is not None
            assert info.generation == version
    old, new = listed(before), listed(after)
    assert {key for key in new if old[key] != new[key]} == {"ct/zarr.json", "ct/c/0/0", "small/c/0"}


def test_a_session_is_not_packed_over_its_own_repository(tmp_path: Path) -> None:
    repo = Repository.create(tmp_path / "run.ice")
    committed(repo)
    files = sorted((tmp_path / "run.ice").rglob("*"))
    for target in ("run.ice", "run.ice/c", "."):
        with pytest.raises(InvalidInput, match="overlap"):
            pack(repo.readonly_session().storage, tmp_path / target, overwrite=True)
    assert sorted((tmp_path / "run.ice").rglob("*")) == files


def test_nodes_are_moved_within_a_session_by_its_filesystem(tmp_path: Path) -> None:
    repo = Repository.create(tmp_path / "run.ice", virtual_prefixes=[f"file://{tmp_path}/old/"])
    committed(repo)
    session = repo.writable_session()
    session.filesystem.mv("ct", "moved", recursive=True)
    np.testing.assert_array_equal(read_array(session, "moved"), DATA)
    with pytest.raises(InvalidInput, match="onto or into themselves"):
        session.filesystem.mv("moved", "moved/within", recursive=True)
    with pytest.raises(ReadOnly):
        repo.readonly_session().filesystem.mv("ct", "moved", recursive=True)


def test_where_virtual_references_may_lead_nothing_is_overwritten(tmp_path: Path) -> None:
    repo = Repository.create(tmp_path / "run.ice", virtual_prefixes=[f"file://{tmp_path}/old/"])
    committed(repo)
    with pytest.raises(InvalidInput, match="cannot be traced"):
        pack(repo.readonly_session().storage, tmp_path / "old", overwrite=True)
    assert pack(repo.readonly_session().storage, tmp_path / "new").complete


def test_what_differs_between_snapshots_is_told(repo: Repository) -> None:
    first = committed(repo)
    session = repo.writable_session()
    array = zarr.open_array(session.store, path="ct")
    array[8:16, 8:16] = 1
    array[0:8, 0:8] = DATA[:8, :8]  # other bytes of the same value are a change of the chunk
    array.attrs["a"] = 1
    zarr.create_group(session.store, path="g/h")
    create_array(session, "g/new", np.arange(6), (3,))
    del session.mapping()["ct/c/2/2"]
    status = session.status()
    second = session.commit("second")
    told = repo.diff(first, second)
    assert told == repo.diff(first) == status
    assert (sorted(told.new_groups), sorted(told.new_arrays)) == (["g", "g/h"], ["g/new"])
    assert (sorted(told.updated_arrays), sorted(told.updated_groups), sorted(told.deleted_arrays)) == (["ct"], [], [])
    assert told.updated_chunks == {"ct": [(0, 0), (1, 1), (2, 2)], "g/new": [(0,), (1,)]}
    assert str(told).splitlines()[-2:] == ["ct: 3 chunks changed", "g/new: 2 chunks changed"]
    session = repo.writable_session()
    session.move("ct", "g/ct")
    del zarr.open_group(session.store, path="g", mode="r+")["h"]
    third = session.commit("third")
    told = repo.diff(second, third)
    assert (told.moved_nodes, sorted(told.deleted_groups), dict(told.updated_chunks)) == ((("ct", "g/ct"),), ["g/h"], {})
    back = repo.diff(third, first)
    assert (sorted(back.deleted_arrays), back.moved_nodes) == (["g/new"], (("g/ct", "ct"),))
    assert back.updated_chunks == {"ct": [(0, 0), (1, 1), (2, 2)]}
    assert not repo.diff(third, "main")
    assert str(repo.diff(third, "main")) == "nothing differs"
    with pytest.raises(NotFound, match="'nothing' is not a branch, tag or snapshot: there are branch 'main'"):
        repo.diff("nothing")


def test_merged_manifests_are_no_difference(repo: Repository) -> None:
    first = committed(repo)
    for number in range(12):
        with repo.transaction(message=str(number)) as store:
            zarr.open_array(store, path="ct")[0:8, 0:8] = number
    assert repo.diff(first).updated_chunks == {"ct": [(0, 0)]}


# -- at the same time --------------------------------------------------------------------------------------------------


class HeldBack(TraceStorage):
    """A storage whose chunk files are stored when they are let go."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.is_open = threading.Event()
        self.waiting = threading.Event()
        self.fails = False

    async def write(self, key: str, body: Any, nbytes: int, condition: Condition) -> Generation:
        if key.startswith("c/"):
            self.waiting.set()
            await asyncio.to_thread(self.is_open.wait, 60)
            if self.fails:
                raise StorageError("the disk is on fire")
        return await super().write(key, body, nbytes, condition)


@pytest.mark.parametrize("fails", [False, True])
def test_a_commit_waits_for_chunk_files_that_are_on_their_way(tmp_path: Path, fails: bool) -> None:
    held = HeldBack(MemoryStorage(str(tmp_path)))
    repo = Repository.create(held, pack=(4, 4))
    session = repo.writable_session()
    array = zarr.create_array(session.store, name="ct", shape=DATA.shape, chunks=CHUNKS, dtype="f8", compressors=None)
    with ThreadPoolExecutor(2) as pool:
        held.fails = fails
        writing = pool.submit(array.__setitem__, slice(0, 32), DATA[:32])  # a full cell, whose file goes out at once
        assert held.waiting.wait(60)
        committing = pool.submit(session.commit, "data")
        while not session.read_only:
            assert not committing.done()
        with pytest.raises(ReadOnly, match="being committed"):
            array[40] = 1
        held.is_open.set()
        if fails:
            with pytest.raises(StorageError, match="on fire"):
                writing.result()
            with pytest.raises(StorageError, match="on fire"):
                committing.result()
            held.fails = False
            array[40] = DATA[40]
            session.commit("again")
        else:
            writing.result()
            committing.result()
    again = Repository.open(held).readonly_session()
    expected = np.zeros(DATA.shape)
    expected[:32] = DATA[:32]
    expected[40] = DATA[40] if fails else 0
    np.testing.assert_array_equal(read_array(again, "ct"), expected)


@pytest.mark.gate
def test_nothing_imports_pandas(tmp_path: Path) -> None:
    """It takes longer than all the rest, and pyarrow imports it where it is asked for numpy's arrays."""
    repo = Repository.create(tmp_path / "repo", fsync=False)
    session = repo.writable_session()
    create_array(session, "a", np.arange(40), (1,))
    session.commit("numbers")
    program = (
        "import sys\n"
        "import zarr\n"
        "from shardstore.snapshots import Repository\n"
        "repo = Repository.open(sys.argv[1], virtual_prefixes=['file:///nowhere/'])\n"
        "store = repo.readonly_session('main').store\n"
        "assert zarr.open_array(store, path='a', mode='r')[...].sum() == 780\n"
        "assert 'pandas' not in sys.modules, 'read'\n"
        "session = repo.writable_session('main')\n"
        "array = zarr.open_array(session.store, path='a', mode='r+')\n"
        "array[3:8] = 0\n"
        "array.attrs['long'] = 'x' * 100_000\n"
        "session.commit('more')\n"
        "assert 'pandas' not in sys.modules, 'committed'\n"
        "session = repo.writable_session('main')\n"
        "session.set_virtual_refs('a', [[20]], ['file:///nowhere/x'], [0], [8])\n"
        "session.commit('references')\n"
        "assert 'pandas' not in sys.modules, 'referred'\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program, tmp_path / "repo"], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


def test_without_pyarrow_the_error_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardstore.adapters.versioned.opened.find_spec", lambda name: None)
    with pytest.raises(Unsupported, match=r"pip install 'shardstore\[parquet]'"):
        Repository.create(tmp_path)


def test_a_repository_is_not_erased_by_who_takes_it_for_a_plain_store(tmp_path: Path) -> None:
    place = tmp_path / "run.ice"
    committed(Repository.create(place))
    store = open_store(place)
    for erase in (
        lambda: zarr.open_group(store, mode="w"),
        lambda: zarr.create_array(store, data=DATA, overwrite=True),
        lambda: ShardedFileSystem(str(place), "file").rm("", recursive=True),
    ):
        with pytest.raises(InvalidInput, match="is a versioned store"):
            erase()
    np.testing.assert_array_equal(read_array(Repository.open(place).readonly_session(), "ct"), DATA)
    session = Repository.open(place).writable_session()
    zarr.open_group(session.store, mode="w")
    session.commit("all anew")
