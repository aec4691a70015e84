"""Sessions that are brought onto what others have committed: what contradicts is found, and what does not is kept of both."""

from __future__ import annotations

import asyncio
import itertools
import json
import pickle
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from shardstore.engine.contention import Contention
from shardstore.errors import Conflict, InvalidInput, NotFound, StorageError
from shardstore.model.generation import UNCONDITIONAL, IfGeneration
from shardstore.model.ranges import EVERYTHING
from shardstore.snapshots import BasicConflictSolver, ConflictDetector, ConflictError, ConflictType, Repository, Session
from shardstore.snapshots.catalog import Pointer
from shardstore.snapshots.versioned_store import CommitRequest
from shardstore.storage.base import Changed, ConditionFailed, Read
from shardstore.storage.wrappers import Counters
from tests.snapshots.repositories import create_array, new_repository, read_array, run, traced_repository

Change = Callable[[Session], object]
DATA = np.arange(64, dtype="i4")


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    repo = new_repository(tmp_path)
    session = repo.writable_session()
    zarr.create_group(session.store, path="g", attributes={"one": 1, "two": 2})
    for path in ("g/a", "g/b"):
        create_array(session, path, DATA, (8,), attributes={"one": 1, "two": 2})
    zarr.create_group(session.store, path="empty")
    session.commit("begin")
    return repo


def array(session: Session, path: str = "g/a") -> Any:
    return zarr.open_array(session.store, path=path)


def chunk(number: int, path: str = "g/a", value: int = -1) -> Change:
    def change(session: Session) -> None:
        array(session, path)[8 * number : 8 * number + 8] = value

    return change


def attribute(name: str, path: str = "g/a", value: int = 9) -> Change:
    return lambda session: zarr.open(session.store, path=path, mode="r+").attrs.update({name: value})


def resize(session: Session) -> None:
    array(session).resize((80,))


def delete(path: str) -> Change:
    def change(session: Session) -> None:
        group = zarr.open_group(session.store, mode="r+")
        del group[path]

    return change


def move(source: str, target: str) -> Change:
    return lambda session: session.move(source, target)


def create(path: str, value: int = 5) -> Change:
    return lambda session: create_array(session, path, np.full(16, value), (8,))


def group(path: str, **attributes: int) -> Change:
    return lambda session: zarr.open_group(session.store, path=path, mode="a").attrs.update(attributes)


def replace_by_group(session: Session) -> None:
    delete("g/a")(session)
    create("g/a/new")(session)


NOTHING: tuple[ConflictType, ...] = ()
T = ConflictType
CASES: dict[str, tuple[Change, Change, tuple[ConflictType, ...]]] = {
    "chunk, same chunk": (chunk(0), chunk(0), (T.ChunkDoubleUpdate,)),
    "chunk, other chunk": (chunk(0), chunk(1), NOTHING),
    "chunk, other array": (chunk(0), chunk(0, "g/b"), NOTHING),
    "chunk, metadata": (chunk(0), resize, (T.ChunksUpdatedInUpdatedArray,)),
    "chunk, attributes": (chunk(0), attribute("one"), NOTHING),
    "chunk, delete": (chunk(0), delete("g/a"), (T.ChunksUpdatedInDeletedArray,)),
    "chunk, delete of its group": (chunk(0), delete("g"), (T.ChunksUpdatedInDeletedArray,)),
    "chunk, move": (chunk(0), move("g/a", "g/z"), NOTHING),
    "chunk, move of its group": (chunk(0), move("g", "h"), NOTHING),
    "metadata, chunk": (resize, chunk(0), (T.ChunksUpdatedInUpdatedArray,)),
    "metadata, metadata": (resize, resize, (T.ZarrMetadataDoubleUpdate,)),
    "metadata, attributes": (resize, attribute("one"), (T.ZarrMetadataDoubleUpdate,)),
    "metadata, delete": (resize, delete("g/a"), (T.ZarrMetadataUpdateOfDeletedArray,)),
    "metadata, move": (resize, move("g/a", "g/z"), NOTHING),
    "attributes, chunk": (attribute("one"), chunk(0), NOTHING),
    "attributes, metadata": (attribute("one"), resize, (T.ZarrMetadataDoubleUpdate,)),
    "attributes, same attribute": (attribute("one"), attribute("one", value=8), (T.ZarrMetadataDoubleUpdate,)),
    "attributes, same attribute and value": (attribute("one"), attribute("one"), NOTHING),
    "attributes, other attribute": (attribute("one"), attribute("two"), NOTHING),
    "attributes, new attributes": (attribute("three"), attribute("four"), NOTHING),
    "attributes, delete": (attribute("one"), delete("g/a"), (T.ZarrMetadataUpdateOfDeletedArray,)),
    "attributes of a group, delete": (attribute("one", "empty"), delete("empty"), (T.ZarrMetadataUpdateOfDeletedGroup,)),
    "attributes of a group, of another": (attribute("one", "empty"), attribute("one", "g"), NOTHING),
    "attributes, move": (attribute("one"), move("g/a", "g/z"), NOTHING),
    "delete, chunk": (delete("g/a"), chunk(0), (T.DeleteOfUpdatedArray,)),
    "delete, metadata": (delete("g/a"), resize, (T.DeleteOfUpdatedArray,)),
    "delete, attributes": (delete("empty"), attribute("one", "empty"), (T.DeleteOfUpdatedGroup,)),
    "delete, delete": (delete("g/a"), delete("g/a"), NOTHING),
    "delete, move": (delete("g/a"), move("g/a", "g/z"), NOTHING),
    "delete, create in it": (delete("empty"), create("empty/new"), (T.DeleteOfUpdatedGroup,)),
    "delete, move into it": (delete("empty"), move("g/a", "empty/a"), (T.DeleteOfUpdatedGroup,)),
    "move, chunk": (move("g/a", "g/z"), chunk(0), NOTHING),
    "move, metadata": (move("g/a", "g/z"), resize, NOTHING),
    "move, attributes": (move("g/a", "g/z"), attribute("one"), NOTHING),
    "move, delete": (move("g/a", "g/z"), delete("g/a"), (T.MoveOperationCannotBeRebased,)),
    "move, same move": (move("g/a", "g/z"), move("g/a", "g/z"), NOTHING),
    "move, other move": (move("g/a", "g/z"), move("g/a", "g/y"), (T.MoveOperationCannotBeRebased,)),
    "move, create there": (move("g/a", "g/z"), create("g/z"), (T.MoveOperationCannotBeRebased,)),
    "move, create in it": (move("empty", "h"), create("empty/new"), (T.MoveOperationCannotBeRebased,)),
    "move into a group, delete of the group": (move("g/a", "empty/a"), delete("empty"), (T.MoveOperationCannotBeRebased,)),
    "move into a group, move of the group": (move("g/a", "empty/a"), move("empty", "h"), (T.MoveOperationCannotBeRebased,)),
    "move of a group into a group, delete of the group": (move("g", "empty/g"), delete("empty"), (T.MoveOperationCannotBeRebased,)),
    "move into a group, create in the group": (move("g/a", "empty/a"), create("empty/new"), NOTHING),
    "chunk, another array becomes a group": (chunk(0, "g/b"), replace_by_group, NOTHING),
    "create there, create below": (create("g/new"), create("g/new/below"), (T.NewNodeConflictsWithExistingNode, T.NewNodeInInvalidGroup)),
    "create, create there": (create("g/new"), create("g/new"), (T.NewNodeConflictsWithExistingNode,)),
    "create, create elsewhere": (create("g/new"), create("g/other"), NOTHING),
    "create, move there": (create("g/new"), move("g/a", "g/new"), (T.NewNodeConflictsWithExistingNode,)),
    "create, delete of the group": (create("empty/new"), delete("empty"), (T.NewNodeInInvalidGroup,)),
    "create, move of the group": (create("empty/new"), move("empty", "h"), (T.NewNodeInInvalidGroup,)),
    "create a group, the same": (group("h", one=1), group("h", one=1), NOTHING),
    "create a group, another": (group("h", one=1), group("h", one=2), (T.NewNodeConflictsWithExistingNode,)),
    "create in a group, in the same": (create("h/x"), create("h/y"), NOTHING),
}


def state(session: Session) -> dict[str, Any]:
    """Return all documents, and the values of all arrays."""
    root = zarr.open_group(session.store, mode="r")
    found: dict[str, Any] = {"": root.attrs.asdict()}
    for path, node in root.members(max_depth=None):
        found[path] = (node.attrs.asdict(), np.asarray(node[...]).tolist() if isinstance(node, zarr.Array) else None)
    return found


@pytest.mark.parametrize("name", CASES)
def test_what_contradicts_is_found_and_what_does_not_is_kept_of_both(repo: Repository, name: str) -> None:
    ours, theirs, expected = CASES[name]
    session, other = repo.writable_session(), repo.writable_session()
    ours(session)
    theirs(other)
    tip = other.commit("theirs")
    if expected:
        mine = state(session)
        with pytest.raises(ConflictError) as caught:
            session.commit("ours", rebase_with=ConflictDetector())
        assert {conflict.conflict_type for conflict in caught.value.conflicts} == set(expected)
        with pytest.raises(ConflictError, match="conflicts with this session"):
            session.commit("ours")
        assert repo.lookup_branch("main") == tip
        assert state(session) == mine
        return
    with pytest.raises(ConflictError, match="nothing that conflicts with"):
        session.commit("ours")
    session.commit("ours", rebase_with=ConflictDetector())
    assert [info.message for info in repo.ancestry()][:2] == ["ours", "theirs"]
    found = state(repo.readonly_session())
    assert found == state(session)
    if ("move" in name and "delete" not in name) or "delete, " in name:  # paths differ by the order
        return
    # The same as one after the other.
    again = repo.writable_session()
    begin = list(repo.ancestry())[2].id
    repo.create_branch("serial", begin)
    again = repo.writable_session("serial")
    theirs(again)
    ours(again)
    assert state(again) == found


def test_moves_and_deletions_are_kept_with_what_others_did(repo: Repository) -> None:
    session, other = repo.writable_session(), repo.writable_session()
    session.move("g/a", "g/z")
    delete("g/b")(session)
    chunk(2)(other)
    attribute("one")(other)
    other.move("g", "h")
    other.commit("theirs")
    with pytest.raises(ConflictError) as caught:
        session.commit("ours", rebase_with=ConflictDetector())
    assert {conflict.conflict_type for conflict in caught.value.conflicts} == {T.MoveOperationCannotBeRebased}
    session = repo.writable_session()
    session.move("h/a", "h/z")
    delete("h/b")(session)
    other = repo.writable_session()
    chunk(3, "h/a")(other)
    attribute("two", "h/a")(other)
    other.commit("more")
    session.commit("ours", rebase_with=ConflictDetector())
    found = state(repo.readonly_session())
    assert sorted(found) == ["", "empty", "h", "h/z"]
    data = DATA.copy()
    data[16:32] = -1
    assert found["h/z"] == ({"one": 9, "two": 9}, data.tolist())


@pytest.mark.parametrize(("selection", "value"), [("ours", 1), ("theirs", 2)])
def test_solvers_choose_whose_chunk_counts(repo: Repository, selection: Any, value: int) -> None:
    session, other = repo.writable_session(), repo.writable_session()
    chunk(0, value=1)(session)
    chunk(1, value=1)(session)
    chunk(0, value=2)(other)
    chunk(2, value=2)(other)
    other.commit("theirs")
    session.commit("ours", rebase_with=BasicConflictSolver(on_chunk_conflict=selection))
    data = DATA.copy()
    data[:8], data[8:16], data[16:24] = value, 1, 2
    np.testing.assert_array_equal(read_array(repo.readonly_session(), "g/a"), data)


def test_solvers_say_whether_what_others_changed_may_be_deleted(repo: Repository) -> None:
    session, other = repo.writable_session(), repo.writable_session()
    delete("g/a")(session)
    chunk(0)(other)
    other.commit("theirs")
    with pytest.raises(ConflictError, match="deleted"):
        session.commit("ours", rebase_with=BasicConflictSolver(fail_on_delete_of_updated_array=True))
    session.commit("ours", rebase_with=BasicConflictSolver())
    assert "g/a" not in state(repo.readonly_session())


def test_a_conflict_names_the_array_and_the_chunks(repo: Repository) -> None:
    session, other = repo.writable_session(), repo.writable_session()
    for number in range(7):
        chunk(number)(session)
        chunk(number + 1)(other)
    other.commit("theirs")
    with pytest.raises(ConflictError, match=r"g/a: both have changed chunks, chunks \(1,\), \(2,\), .* and 1 more") as caught:
        session.rebase(ConflictDetector())
    (conflict,) = caught.value.conflicts
    assert (conflict.path, list(conflict.conflicted_chunks)) == ("g/a", [(number,) for number in range(1, 7)])
    assert isinstance(caught.value, Conflict)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.conflicts) == (str(caught.value), caught.value.conflicts)


def test_a_session_is_rebased_over_many_commits_whose_manifests_were_merged(repo: Repository) -> None:
    session, clashing, stale = (repo.writable_session() for _ in range(3))
    chunk(0, value=100)(session)
    chunk(6, value=1)(clashing)
    chunk(7, value=1)(stale)
    for number in range(12):
        other = repo.writable_session()
        chunk(1 + number % 6, value=number)(other)
        other.commit(f"{number}")
    assert len(repo.readonly_session()._core.nodes["g/a"].manifests) <= 8
    stale.rebase(ConflictDetector())
    with pytest.raises(ConflictError, match=r"chunks \(6,\)"):
        clashing.rebase(ConflictDetector())
    session.rebase(ConflictDetector())
    session.commit("ours")
    data = DATA.copy()
    data[:8] = 100
    for number in range(12):
        at = 8 * (1 + number % 6)
        data[at : at + 8] = number
    np.testing.assert_array_equal(read_array(repo.readonly_session(), "g/a"), data)


def test_a_branch_that_was_reset_is_a_conflict(repo: Repository) -> None:
    begin, first = list(repo.ancestry())[::-1]
    session = repo.writable_session()
    chunk(0)(session)
    repo.reset_branch("main", begin.id)
    with pytest.raises(ConflictError, match="was reset"):
        session.commit("ours", rebase_with=BasicConflictSolver())
    repo.reset_branch("main", first.id)
    session.commit("ours")


@pytest.mark.parametrize("tries", [-1, 1.5, True, "many"])
def test_tries_are_a_whole_number(repo: Repository, tries: Any) -> None:
    session = repo.writable_session()
    chunk(0)(session)
    with pytest.raises(InvalidInput, match="rebase_tries"):
        session.commit("ours", rebase_with=ConflictDetector(), rebase_tries=tries)
    session.commit("ours", rebase_with=ConflictDetector(), rebase_tries=0)


def test_only_solvers_solve(repo: Repository) -> None:
    with pytest.raises(InvalidInput, match="neither ConflictDetector"):
        repo.writable_session().rebase("ours")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="on_chunk_conflict"):
        BasicConflictSolver(on_chunk_conflict="mine")  # type: ignore[arg-type]


def test_new_nodes_of_one_id_are_renumbered(repo: Repository) -> None:
    """D14"""
    session, other = repo.writable_session(), repo.writable_session()
    for one in (session, other):
        one._core.new_node_id = itertools.chain([77], iter(one._core.new_node_id, None)).__next__  # type: ignore[method-assign]
    create("x", 1)(session)
    create("y", 2)(other)
    assert session._core.nodes["x"].id == other._core.nodes["y"].id == 77
    other.commit("theirs")
    session.commit("ours", rebase_with=ConflictDetector())
    found = repo.readonly_session()
    assert found._core.nodes["x"].id != found._core.nodes["y"].id == 77
    assert read_array(found, "x").tolist() == [1] * 16
    assert read_array(found, "y").tolist() == [2] * 16


def test_a_rebase_reads_one_structure_and_the_manifests_of_differences(tmp_path: Path) -> None:
    repo, trace = traced_repository(tmp_path)
    session = repo.writable_session()
    data = np.random.default_rng(0).integers(0, 2**31, 4096)
    create_array(session, "a", data, (256,), compressors=None)
    session.commit("begin")
    repo = Repository.open(trace)
    session = repo.writable_session()
    array(session, "a")[:256] = 1
    others = Repository.open(trace)
    for number in range(1, 4):
        other = others.writable_session()
        array(other, "a")[256 * number : 256 * number + 256] = 2
        other.commit("theirs")
    with trace.count() as block:
        session.rebase(ConflictDetector())
    assert sorted(event.key[:2] for event in block.events) == ["ca", "m/", "m/", "m/", "s/", "t/"]
    with trace.count() as block:
        session.commit("ours")
    assert sorted(event.key[:2] for event in block.events if event.op == "write") == ["c/", "ca", "m/", "s/", "t/"]


@pytest.mark.parametrize("written", [slice(0, 8), slice(2, 8)])
def test_a_fill_value_that_is_written_where_no_chunk_is_contradicts_a_chunk_that_others_wrote(repo: Repository, written: slice) -> None:
    """zarr-python erases such a chunk. Nothing would be left of it if that were forgotten where there is none."""
    with repo.transaction(message="zeros") as store:
        zarr.create_array(store, name="z", shape=(64,), chunks=(8,), dtype="i4")
    session, other = repo.writable_session(), repo.writable_session()
    array(session, "z")[written] = 0
    array(session, "z")[8:16] = 1
    chunk(0, "z")(other)
    other.commit("theirs")
    with pytest.raises(ConflictError) as caught:
        session.commit("ours", rebase_with=ConflictDetector())
    assert {conflict.conflict_type for conflict in caught.value.conflicts} == {T.ChunkDoubleUpdate}
    session.commit("ours", rebase_with=BasicConflictSolver())
    found = repo.readonly_session()
    assert read_array(found, "z")[:16].tolist() == [0] * 8 + [1] * 8
    assert array(found, "z").nchunks_initialized == 1


def test_erasing_what_is_not_there_is_not_in_the_manifest(repo: Repository) -> None:
    """A sparse array that is made smaller would have large manifests."""
    with repo.transaction(message="zeros") as store:
        zarr.create_array(store, name="z", shape=(64,), chunks=(8,), dtype="i4")[:16] = 1
    session = repo.writable_session()
    array(session, "z")[:] = 0
    session.commit("zeros")
    core = repo.readonly_session()._core
    (_, differences) = core.nodes["z"].manifests
    refs = run(core.files.refs_of(differences.file, core.nodes["z"].id, 1))
    assert refs.coords.tolist() == [[0], [1]]


def test_a_document_that_a_rebase_has_changed_is_another_version(repo: Repository) -> None:
    session, other = repo.writable_session(), repo.writable_session()
    key = "g/a/zarr.json"
    was = run(session.storage.stat(key))
    assert was is not None
    assert was.generation is not None
    attribute("one")(other)
    other.commit("theirs")
    session.rebase(ConflictDetector())
    (outcome,) = run(session.storage.read([Read(key, (EVERYTHING,), was.generation)]))
    assert isinstance(outcome, Changed)
    with pytest.raises(ConditionFailed):
        run(session.storage.write(key, [b"{}"], 2, IfGeneration(was.generation)))
    assert array(session).attrs["one"] == 9


# -- commits that fail -------------------------------------------------------------------------------------------------


def let_others_be_first(repo: Repository, changes: list[Change]) -> None:
    """Let somebody else commit these changes to ``main``, one before each of the next swaps of the catalog's pointer."""
    swap, waiting = repo._store.catalog.swap, list(changes)

    async def swap_late(name: str, before: Pointer | None, after: Pointer) -> Pointer:
        if waiting:
            change, waiting[:] = waiting[0], waiting[1:]
            await asyncio.to_thread(_commit_elsewhere, repo, change)
        return await swap(name, before, after)

    repo._store.catalog.swap = swap_late  # type: ignore[method-assign]


def _commit_elsewhere(repo: Repository, change: Change) -> None:
    other = Repository.open(repo._opened.options.url)
    session = other.writable_session()
    change(session)
    session.commit("theirs")


def test_a_session_whose_commit_has_lost_after_a_rebase_can_be_written_and_committed_again(repo: Repository) -> None:
    session = repo.writable_session()
    data = np.random.default_rng(0).integers(0, 2**31, 4096)
    create_array(session, "big", data, (1024,), compressors=None)
    let_others_be_first(repo, [chunk(0), chunk(1)])
    with pytest.raises(ConflictError, match="other writers were first 1 times"):
        session.commit("ours", rebase_with=ConflictDetector(), rebase_tries=1)
    data[:1000] = 1
    array(session, "big")[:1000] = 1  # waits for a chunk file
    with pytest.raises(ConflictError, match=r"has moved from snapshot .* but nothing that conflicts with"):
        session.commit("ours")
    session.commit("ours", rebase_with=ConflictDetector(), rebase_tries=1)
    found = Repository.open(repo._opened.options.url).readonly_session()
    np.testing.assert_array_equal(read_array(found, "big"), data)
    assert (read_array(found, "g/a")[:16] == -1).all()


def test_chunks_are_not_lost_by_a_commit_whose_branch_has_been_deleted(repo: Repository) -> None:
    tip = repo.lookup_branch("main")
    repo.create_branch("side", tip)
    session = repo.writable_session("side")
    data = np.random.default_rng(0).integers(0, 2**31, 4096)
    repo.delete_branch("side")
    session._current = None  # as if it had been made on this state
    create_array(session, "big", data, (1024,), compressors=None)
    array(session, "big")[:1000] = 1
    with pytest.raises(NotFound, match="side"):
        session.commit("ours")
    repo.create_branch("side", tip)
    session.commit("ours")
    data[:1000] = 1
    np.testing.assert_array_equal(read_array(Repository.open(repo._opened.options.url).readonly_session("side"), "big"), data)


def test_a_commit_that_fails_waits_for_its_chunk_files(repo: Repository) -> None:
    """If it did not, the next attempt would take chunks for stored that are still on their way, and may never arrive."""
    files = repo._store.files
    write, ended = files.write, []

    async def failing_write(key: str, data: Any) -> None:
        if key.startswith("s/"):
            raise StorageError("the structure cannot be written")
        if key.startswith("c/"):
            for _ in range(1000):
                await asyncio.sleep(0)
            ended.append(key)
            raise StorageError("the chunk cannot be written")
        await write(key, data)

    session = repo.writable_session()
    data = np.random.default_rng(0).integers(1, 2**31, 1024)
    zarr.create_array(session.store, name="big", shape=(2048,), chunks=(1024,), dtype=data.dtype, compressors=None)
    array(session, "big")[:1024] = data  # half of a chunk file
    files.write = failing_write  # type: ignore[method-assign]

    async def commit() -> list[str]:
        with pytest.raises(StorageError):
            await repo._store.commit(session._core, session._current, CommitRequest("ours"))
        return list(ended)

    assert len(run(commit())) == 1
    files.write = write  # type: ignore[method-assign]
    session.commit("ours")
    np.testing.assert_array_equal(read_array(Repository.open(repo._opened.options.url).readonly_session(), "big")[:1024], data)


class Waits:
    """A clock that goes on by a millisecond when it is looked at, and by what is slept."""

    def __init__(self, repo: Repository) -> None:
        self.now, self.slept = 0.0, list[float]()
        repo._store._contention = Contention(1000, Counters(), self.clock, self.sleep, random.Random(0))

    def clock(self) -> float:
        self.now += 0.001
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


def test_sessions_that_are_old_do_not_wait_as_if_they_had_lost_a_race(repo: Repository) -> None:
    waits = Waits(repo)
    sessions = [repo.writable_session() for _ in range(20)]
    for number, session in enumerate(sessions):
        attribute(f"{number}")(session)
        session.commit("ours", rebase_with=ConflictDetector())
    assert sum(waits.slept) < 0.05  # one stop of a client that writes all the time


def test_waits_of_a_commit_that_loses_again_and_again_stay_short(repo: Repository) -> None:
    """Seconds that were waited are not taken for seconds that an attempt takes: waits would double with every loss."""
    waits = Waits(repo)
    session = repo.writable_session()
    chunk(0)(session)
    let_others_be_first(repo, [attribute(f"{number}") for number in range(12)])
    session.commit("ours", rebase_with=ConflictDetector())
    assert len(waits.slept) >= 11
    assert max(waits.slept) < 0.2
    for number in range(3):
        session = repo.writable_session()
        chunk(number)(session)
        session.commit("ours", rebase_with=ConflictDetector())
    assert max(waits.slept) < 0.2


# -- what was read -----------------------------------------------------------------------------------------------------


def skew(repo: Repository, isolation: Any) -> int:
    """Let two sessions each read what the other writes; return how many could commit."""
    sessions = [repo.writable_session(isolation=isolation) for _ in range(2)]
    for session, (read, written) in zip(sessions, [("g/a", "g/b"), ("g/b", "g/a")], strict=True):
        array(session, written)[:8] = int(array(session, read)[0]) + 1
    done = 0
    for session in sessions:
        try:
            session.commit("skew", rebase_with=BasicConflictSolver())
        except ConflictError as exc:
            assert {conflict.conflict_type for conflict in exc.conflicts} == {T.ReadOfUpdatedChunks}  # noqa: PT017
        else:
            done += 1
    return done


def test_write_skew_is_possible_under_snapshot_and_not_under_serializable(repo: Repository) -> None:
    """D34"""
    assert skew(repo, "snapshot") == 2
    assert skew(repo, "serializable") == 1


@pytest.mark.parametrize(
    ("reads", "theirs", "kind"),
    [
        (lambda session: array(session)[0], chunk(0), T.ReadOfUpdatedChunks),
        (lambda session: array(session)[0], chunk(1), None),
        (lambda session: array(session).attrs["one"], attribute("one"), T.ReadOfUpdatedNodes),
        (lambda session: array(session)[0], delete("g/a"), T.ReadOfUpdatedNodes),
        (lambda session: array(session)[0], move("g/a", "g/z"), T.ReadOfUpdatedNodes),
        (lambda session: list(zarr.open_group(session.store, path="g", mode="r").array_keys()), create("g/new"), T.ReadOfUpdatedNodes),
        (lambda session: list(zarr.open_group(session.store, path="g", mode="r").array_keys()), create("new"), None),
        (lambda session: array(session).nchunks_initialized, chunk(0), T.ReadOfUpdatedChunks),
        (lambda session: "g/a/c/3" in session.mapping(), chunk(3), T.ReadOfUpdatedChunks),
        (lambda session: "new/zarr.json" in session.mapping(), create("new"), T.ReadOfUpdatedNodes),
        (lambda session: array(session, "g/b")[0], chunk(0), None),
    ],
)
def test_what_was_read_counts(repo: Repository, reads: Change, theirs: Change, kind: ConflictType | None) -> None:
    session, other = repo.writable_session(isolation="serializable"), repo.writable_session()
    reads(session)
    create("mine")(session)
    theirs(other)
    other.commit("theirs")
    if kind is None:
        session.commit("ours", rebase_with=BasicConflictSolver())
        return
    with pytest.raises(ConflictError) as caught:
        session.commit("ours", rebase_with=BasicConflictSolver())
    assert kind in {conflict.conflict_type for conflict in caught.value.conflicts}


def stored(keys: list[str]) -> Change:
    return lambda session: run(session.storage.read([Read(key, (EVERYTHING,)) for key in keys]))


@pytest.mark.parametrize(
    ("reads", "theirs"),
    [
        (stored(["g/a/c/0"]), delete("g/a")),
        (stored(["g/a/c/0"]), move("g", "h")),
        (lambda session: run(session.storage.write("g/a/c/0", [b"12"], 2, UNCONDITIONAL)), move("g/a", "g/z")),
        (lambda session: run(session.storage.delete_many(["g/a/c/0"])), move("g/a", "g/z")),
        (lambda session: run(session.storage.delete_many(["g/a/zarr.json"])), move("g/a", "g/z")),
        (stored(["new/c/0"]), create("new")),
        (stored(["g/b/c/0", "new/c/0"]), create("new")),
        (lambda session: run(_listed(session, "new/c/")), create("new")),
        (lambda session: run(session.storage.write("g/a/zarr.json", [_document(session)], len(_document(session)), UNCONDITIONAL)), None),
    ],
)
def test_what_was_read_of_a_session_as_storage_counts(repo: Repository, reads: Change, theirs: Change | None) -> None:
    """Nobody has read the document before, as zarr-python does."""
    session, other = repo.writable_session(isolation="serializable"), repo.writable_session()
    reads(session)
    session._core.erase_chunk(session._core.nodes["g/b"], (7,))
    (theirs or attribute("one"))(other)
    other.commit("theirs")
    with pytest.raises(ConflictError) as caught:
        session.commit("ours", rebase_with=BasicConflictSolver())
    assert {conflict.conflict_type for conflict in caught.value.conflicts} == {T.ReadOfUpdatedNodes}


async def _listed(session: Session, prefix: str) -> list[str]:
    return [info.key async for info in session.storage.list(prefix)]


def _document(session: Session) -> bytes:
    """Return a document with another attribute, without having read it through the session."""
    document = session._core.nodes["g/a"].document
    return json.dumps(document | {"attributes": document["attributes"] | {"two": 9}}).encode()


def test_what_was_read_of_a_node_that_the_session_has_moved_counts(repo: Repository) -> None:
    session, other = repo.writable_session(isolation="serializable"), repo.writable_session()
    session.move("g/a", "g/z")
    assert array(session, "g/z").attrs["one"] == 1
    attribute("one")(other)
    other.commit("theirs")
    with pytest.raises(ConflictError, match="g/a: a document or a listing that was read"):
        session.commit("ours", rebase_with=BasicConflictSolver())


def test_reads_of_a_fork_that_saw_another_grid_are_not_mistaken(repo: Repository) -> None:
    with repo.transaction(message="square") as store:
        zarr.create_array(store, name="s", shape=(2, 2), chunks=(1, 1), dtype="i4")
    session, other = repo.writable_session(isolation="serializable"), repo.writable_session()
    fork = session.fork()
    array(session, "s")[0, 0]
    document = run(fork._core.document("s"))
    seen = array(fork, "s")
    seen.resize((2, 4))
    seen[1, 0]
    assert document is not None
    run(fork._core.set_document("s", document[0]))  # erases nothing, which would count as reading
    session.merge(fork)
    create("mine")(session)
    array(other, "s")[1, 0] = 5
    other.commit("theirs")
    with pytest.raises(ConflictError, match="s: chunks that were read"):
        session.commit("ours", rebase_with=BasicConflictSolver())


@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
def test_a_session_that_gave_up_a_chunk_would_not_be_serializable(repo: Repository, isolation: Any) -> None:
    """In either order, ``g/a`` would be the last value of ``g/b`` plus one, or of the session: not what was before plus one."""
    session, other = repo.writable_session(isolation=isolation), repo.writable_session(isolation=isolation)
    chunk(0, "g/a", 70)(session)
    chunk(0, "g/b", 70)(session)
    array(other, "g/a")[:8] = int(array(other, "g/b")[0]) + 1
    other.commit("theirs")
    solver = BasicConflictSolver(on_chunk_conflict="theirs")
    if isolation == "serializable":
        with pytest.raises(ConflictError) as caught:
            session.commit("ours", rebase_with=solver)
        assert {conflict.conflict_type for conflict in caught.value.conflicts} == {T.ChunkDoubleUpdate}
        session.commit("ours", rebase_with=BasicConflictSolver(on_chunk_conflict="ours"))
    else:
        session.commit("ours", rebase_with=solver)
    found = repo.readonly_session()
    assert [read_array(found, path)[0] for path in ("g/a", "g/b")] == ([70, 70] if isolation == "serializable" else [1, 70])


def test_what_a_session_has_written_itself_is_not_read(repo: Repository) -> None:
    session, other = repo.writable_session(isolation="serializable"), repo.writable_session()
    chunk(0)(session)
    read_back = array(session)[:8]
    assert (read_back == -1).all()
    chunk(0)(other)
    other.commit("theirs")
    session.commit("ours", rebase_with=BasicConflictSolver(on_chunk_conflict="ours"))


def test_a_session_that_is_old_has_lost_no_race_and_waits_for_nobody(repo: Repository) -> None:
    clock, other = Clock(), Repository.open(repo.url)
    contention = repo._store._contention
    contention.clock, contention.sleep = clock.read, clock.sleep
    for number in range(5):
        late, early = repo.writable_session(), other.writable_session()
        chunk(number % 8)(late)
        chunk(number % 8, "g/b")(early)
        for session in (early, late):
            session.commit("a chunk", rebase_with=ConflictDetector())
    assert contention.contest(repo._store.name) is None


def test_commits_of_one_process_wait_for_each_other_and_do_not_race(repo: Repository) -> None:
    def commit(number: int) -> None:
        for path in ("g/a", "g/b"):
            session = repo.writable_session()
            chunk(number, path)(session)
            session.commit("a chunk", rebase_with=ConflictDetector())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(commit, range(8)))
    assert repo._store.counters.conflicts == 0
    session = repo.readonly_session()
    assert all((read_array(session, path) == -1).all() for path in ("g/a", "g/b"))


def test_structures_of_many_commits_are_kept_for_a_rebase(tmp_path: Path) -> None:
    repo, trace = traced_repository(tmp_path)
    session = repo.writable_session()
    create_array(session, "a", DATA, (1,))
    session.commit("begin")
    late = repo.writable_session()
    for number in range(40):
        session = repo.writable_session()
        chunk(number % 4, "a")(session)
        session.commit("a chunk")
    chunk(7, "a")(late)
    with trace.count() as block:
        late.commit("late", rebase_with=ConflictDetector())
    assert [event.key for event in block.events if event.op == "read" and event.key.startswith("s/")] == []


class Clock:
    """Goes on by one second whenever somebody looks at it, and by what is slept."""

    def __init__(self) -> None:
        self.now = 0.0

    def read(self) -> float:
        self.now += 1
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
