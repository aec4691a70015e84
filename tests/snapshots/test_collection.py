"""Expiry and garbage collection (D8, D38): what is removed, what never is, and who is told."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from shardstore.errors import Conflict, Corruption, InvalidInput, NotFound, ShardStoreError, SnapshotExpired, StorageError
from shardstore.format.snapshots.file_names import encode_id
from shardstore.snapshots import BasicConflictSolver, ConflictDetector, ConflictError, Repository, Session, reachable
from shardstore.snapshots import collect as collect_module
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.faults import DropReply, Effect, Fail, Fault, FaultStorage, Truncate
from shardstore.testing.storage_suite import SyncStorage
from tests.harness.scale import at_requests
from tests.harness.virtual_time import no_sleep
from tests.snapshots.committing import contents_of, make_history
from tests.snapshots.repositories import create_array, new_repository, read_array, run, traced_repository
from tests.snapshots.whole import check_whole, current_state

NOW = timedelta()
FUTURE = datetime(2200, 1, 1, tzinfo=UTC)
DATA = np.repeat(np.arange(40), 100)  # chunks too large to lie in manifests
CHUNKS = (200,)


def files_of(repo: Repository, *folders: str) -> set[str]:
    async def listed() -> set[str]:
        return {info.key for folder in folders or ("s/", "a/", "m/", "c/") async for info in repo._store.files.storage.list(folder)}

    return run(listed())


def commit(repo: Repository, value: int, at: slice = slice(None), branch: str = "main", **options: Any) -> str:
    session = repo.writable_session(branch)
    zarr.open_array(session.store, path="a", mode="r+")[at] = value
    return session.commit(f"value {value}", **options)


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    """Four snapshots of one array."""
    made = new_repository(tmp_path, pack=(4,))
    session = made.writable_session()
    create_array(session, "a", DATA, CHUNKS, compressors=None)
    session.commit("array")
    for value in (1, 2):
        commit(made, value)
    return made


def expire_all(repo: Repository, **options: Any) -> Any:
    """Let all expire but the tip, whose manifests are made one before: the others' chunks are not needed any more."""
    repo.rewrite_manifests()
    return repo.expire_snapshots(FUTURE, **options)


# -- expiry ------------------------------------------------------------------------------------------------------------


def test_snapshots_that_nothing_points_to_expire(repo: Repository) -> None:
    ids = [one.id for one in repo.ancestry()]
    repo.create_tag("v1", ids[2])
    before = files_of(repo)
    assert repo.expire_snapshots(FUTURE, dry_run=True).snapshots == {ids[1], ids[3]}
    assert [one.id for one in repo.ancestry()] == ids
    assert repo.expire_snapshots(FUTURE).snapshots == {ids[1], ids[3]}
    assert [(one.id, one.parent_id) for one in repo.ancestry()] == [(ids[0], ids[2]), (ids[2], None)]
    assert files_of(repo) == before
    assert repo.expire_snapshots(FUTURE).snapshots == frozenset()
    for gone in (ids[1], ids[3]):
        with pytest.raises(NotFound, match="it has expired"):
            repo.readonly_session(snapshot_id=gone)


def test_expiry_is_one_swap_and_touches_no_file(tmp_path: Path) -> None:
    made, trace = traced_repository(tmp_path, pack=(4,))
    session = made.writable_session()
    create_array(session, "a", DATA, CHUNKS, compressors=None)
    session.commit("array")
    for value in range(5):
        commit(made, value)
    before = files_of(made)
    trace.events.clear()
    assert len(made.expire_snapshots(FUTURE).snapshots) == 6
    changes = [(event.op, event.key) for event in trace.events if event.op not in ("read", "stat")]
    assert [op for op, _ in changes] == ["write", "write"]
    assert (changes[0][1][:2], changes[1][1]) == ("t/", "catalog.json")
    assert files_of(made) == before


def test_only_older_ones_expire(repo: Repository) -> None:
    infos = list(repo.ancestry())
    assert repo.expire_snapshots(infos[2].written_at).snapshots == {infos[3].id}  # a time is not older than itself
    assert repo.expire_snapshots(infos[1].written_at).snapshots == {infos[2].id}


def test_branches_and_tags_expire_only_when_asked(repo: Repository) -> None:
    first, *_, old, _ = [one.id for one in repo.ancestry()]
    repo.create_branch("side", old)
    repo.create_tag("v1", old)
    assert old not in repo.expire_snapshots(FUTURE).snapshots
    found = repo.expire_snapshots(FUTURE, delete_expired_branches=True)
    assert (set(found.snapshots), set(found.branches), set(found.tags)) == (set(), {"side"}, set())
    found = repo.expire_snapshots(FUTURE, delete_expired_tags=True)
    assert (set(found.snapshots), set(found.branches), set(found.tags)) == ({old}, set(), {"v1"})
    assert (repo.list_branches(), repo.list_tags(), repo.lookup_branch("main")) == ({"main"}, set(), first)


def test_an_expiry_is_one_swap(tmp_path: Path) -> None:
    repo, trace = traced_repository(tmp_path)
    for number in range(3):
        repo.writable_session().commit(f"{number}", allow_empty=True)
    with trace.count() as block:
        repo.expire_snapshots(FUTURE)
    assert [(event.op, event.key.partition("/")[0]) for event in block.events if event.op != "probe"] == [
        ("read", "catalog.json"),
        ("read", "catalog.json"),
        ("write", "t"),
        ("write", "catalog.json"),
    ]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda repo: repo.expire_snapshots(datetime(2026, 1, 1)), "time with a time zone"),  # noqa: DTZ001  # which is what is refused
        (lambda repo: repo.expire_snapshots("yesterday"), "is not a duration"),
        (lambda repo: repo.expire_snapshots(FUTURE, dry_run="no"), "dry_run"),
        (lambda repo: repo.garbage_collect(7), "is not a duration"),
        (lambda repo: repo.garbage_collect(timedelta(-1)), "is not a duration"),
    ],
)
def test_bad_input(repo: Repository, call: Callable[[Repository], object], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        call(repo)


def test_age_of_expired_snapshots_may_be_a_duration(repo: Repository) -> None:
    now = repo.expire_snapshots(datetime.now(UTC), dry_run=True)
    assert repo.expire_snapshots("0s", dry_run=True) == repo.expire_snapshots(timedelta(), dry_run=True) == now
    assert repo.expire_snapshots("7d", dry_run=True).snapshots == frozenset()


# -- collection --------------------------------------------------------------------------------------------------------


def test_nothing_that_a_snapshot_needs_is_removed(repo: Repository) -> None:
    values = {one.id: read_array(repo.readonly_session(snapshot_id=one.id), "a") for one in list(repo.ancestry())[:3]}
    before = files_of(repo)
    found = repo.garbage_collect(NOW)
    assert files_of(repo) == before
    assert found.removed.keys() <= {"t/"}
    again = Repository.open(repo.url)
    for id_, value in values.items():
        np.testing.assert_array_equal(read_array(again.readonly_session(snapshot_id=id_), "a"), value)


def test_what_expired_is_removed_after_the_grace(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1_000_000.0]
    monkeypatch.setattr(repo._store, "clock", lambda: clock[0])
    expire_all(repo)
    before = files_of(repo)
    grace = timedelta(days=7)
    planned = repo.garbage_collect(NOW, dry_run=True)
    first = repo.garbage_collect(grace)
    assert (files_of(repo), sum(first.removed.values()), first.left) == (before, 0, sum(planned.removed.values()))
    clock[0] += grace.total_seconds() - 1
    commit(repo, 9, slice(0, 200))
    assert repo.garbage_collect(grace).removed == {}
    clock[0] += 1
    second = repo.garbage_collect(grace)
    assert {folder: n for folder, n in second.removed.items() if folder != "t/"} == {"s/": 4, "m/": 3, "c/": 10}
    assert len(before - files_of(repo)) == 17
    assert first.left_nbytes >= second.removed_nbytes > 0
    np.testing.assert_array_equal(read_array(Repository.open(repo.url).readonly_session(), "a"), [9] * 200 + [2] * 3800)


# -- the grace of what was garbage before ------------------------------------------------------------------------------

DAY = 86_400.0


class Clock:
    """The clock of a store, which stands still unless it is moved."""

    def __init__(self, repo: Repository) -> None:
        self.seconds = datetime(2100, 1, 1, tzinfo=UTC).timestamp()  # later than what was committed by another clock
        repo._store.clock = lambda: self.seconds

    def pass_days(self, days: float) -> datetime:
        self.seconds += days * DAY
        return datetime.fromtimestamp(self.seconds, UTC)


def late_commit(repo: Repository, how: str) -> str:
    """Let a collection see the files of a session, and commit them after that; return the id of the snapshot."""
    session = repo.writable_session()
    if how == "fork":
        fork = session.fork()
        zarr.open_array(fork.store, path="a", mode="r+")[:] = 7
        travelled = pickle.loads(pickle.dumps(fork))
        assert repo.garbage_collect().left >= 5
        session.merge(travelled)
    else:
        zarr.open_array(session.store, path="a", mode="r+")[:] = 7
        assert repo.garbage_collect().left >= 5
    if how == "rebase":
        commit(repo, 3, slice(0, 200))
        return session.commit("late", rebase_with=BasicConflictSolver("ours"))
    return session.commit("late")


def replaced(repo: Repository, clock: Clock) -> None:
    """Give all chunks other values, and let all snapshots expire but the newest."""
    commit(repo, 9)
    repo.rewrite_manifests()
    assert repo.expire_snapshots(clock.pass_days(0.001)).snapshots


@pytest.mark.parametrize("how", ["session", "fork", "rebase"])
@pytest.mark.parametrize("removes", [False, True], ids=["first", "after others were removed"])
def test_grace_counts_from_when_the_last_snapshot_that_needed_a_file_has_expired(repo: Repository, how: str, removes: bool) -> None:
    """D38"""
    clock = Clock(repo)
    if removes:
        expire_all(repo)
        assert repo.garbage_collect(NOW).removed
    late = late_commit(repo, how)
    reader = repo.readonly_session(snapshot_id=late)
    clock.pass_days(7)
    replaced(repo, clock)
    assert late not in [one.id for one in repo.ancestry()]
    for _ in range(3):
        assert "c/" not in repo.garbage_collect(dry_run=True).removed
        assert "c/" not in repo.garbage_collect().removed
        assert (read_array(reader, "a") == 7).all()
        clock.pass_days(2)
    clock.pass_days(2)
    assert repo.garbage_collect().removed["c/"] >= 5
    assert (read_array(Repository.open(repo.url).readonly_session(), "a") == 9).all()


def test_a_late_commit_that_is_there_at_the_next_collection_is_no_garbage_since_before(repo: Repository) -> None:
    clock = Clock(repo)
    late = late_commit(repo, "session")
    clock.pass_days(7)
    repo.garbage_collect()
    reader = repo.readonly_session(snapshot_id=late)
    replaced(repo, clock)
    assert "c/" not in repo.garbage_collect().removed
    assert (read_array(reader, "a") == 7).all()


def test_what_was_never_committed_is_removed_beside_late_commits(repo: Repository) -> None:
    """Only what late snapshots needed gets its grace again."""
    clock = Clock(repo)
    abandoned = open_session(repo, 5)
    files = {f"c/{encode_id(file)}" for file in abandoned._core.stored_files()}
    late_commit(repo, "session")
    clock.pass_days(7)
    replaced(repo, clock)
    assert repo.garbage_collect().removed["c/"] == len(files) == 5
    assert not files & files_of(repo)


@pytest.mark.parametrize("folder", ["s/", "m/"])
def test_damage_to_an_expired_snapshot_does_not_keep_collections_from_their_work(repo: Repository, folder: str) -> None:
    """Without its files nobody knows what it needed, so the grace of everything counts from now."""
    clock = Clock(repo)
    id_ = late_commit(repo, "session")
    late = repo._now().state.snapshots[id_]
    manifests = run(repo._store.files.structure(late.structure)).nodes["a"].manifests
    clock.pass_days(7)
    replaced(repo, clock)
    damaged = f"s/{late.structure}" if folder == "s/" else f"m/{manifests[-1].file.name}"
    run(repo._store.files.storage.delete_many([damaged]))
    again = Repository.open(repo.url)
    again._store.clock = repo._store.clock
    first = again.garbage_collect()
    assert (first.removed, first.left > 10) == ({}, True)
    clock.pass_days(7)
    assert again.garbage_collect().removed["c/"] >= 5


def test_a_late_commit_does_not_keep_a_removal_from_ending(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state says that files are being removed, until the collection that has swapped it has ended that."""
    expire_all(repo)
    session = repo.writable_session()  # it stores its files when the list of garbage is there already
    delete_many = repo._store.files.storage.delete_many
    committed: list[str] = []

    async def commit_first(keys: list[str]) -> None:
        if not committed:
            committed.append(await asyncio.to_thread(late))
        await delete_many(keys)

    def late() -> str:
        zarr.open_array(session.store, path="a", mode="r+")[:] = 7
        return session.commit("late")

    monkeypatch.setattr(repo._store.files.storage, "delete_many", commit_first)
    assert repo.garbage_collect(NOW).removed
    last = repo._now().state.collection
    assert last is not None
    assert committed
    assert (last.is_removing, last.late) == (False, (repo._now().state.snapshots[committed[0]].structure,))


def test_commits_of_sessions_that_began_after_a_collection_cost_collections_nothing(tmp_path: Path) -> None:
    repo, trace = traced_repository(tmp_path, pack=(4,))
    session = repo.writable_session()
    create_array(session, "a", DATA, CHUNKS, compressors=None)
    session.commit("array")
    clock = Clock(repo)
    open_session(repo)  # garbage
    repo.garbage_collect()
    for value in range(5):
        commit(repo, value)
    replaced(repo, clock)
    last = repo._now().state.collection
    assert last is not None
    assert not last.late
    with trace.count() as block:
        repo.garbage_collect()
    tip = repo._now().state.snapshots[repo.lookup_branch("main")]
    needed = {part.file.name for node in run(repo._store.files.structure(tip.structure)).nodes.values() for part in node.manifests}
    assert {event.key for event in block.events if event.op == "read" and event.key[:2] in ("s/", "m/")} == {f"m/{name}" for name in needed}


def test_a_dry_run_changes_nothing(repo: Repository) -> None:
    expire_all(repo)
    before, pointer = files_of(repo, "t/", "s/", "m/", "c/"), run(repo._store.now()).pointer
    found = repo.garbage_collect(NOW, dry_run=True)
    assert found.removed["c/"] == 10
    assert (files_of(repo, "t/", "s/", "m/", "c/"), run(repo._store.now()).pointer) == (before, pointer)
    assert repo.garbage_collect(NOW).removed.items() >= {"c/": 10, "m/": 3, "s/": 4}.items()


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    repo = Repository.create(tmp_path / "repo", fsync=False)
    for name in ("c/README", "s/x/y", "t/notes.json", "m/0000000000000000000Z", "other/c"):
        path = tmp_path / "repo" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    found = repo.garbage_collect(NOW)
    assert found.unknown == 4
    assert all((tmp_path / "repo" / name).exists() for name in ("c/README", "s/x/y", "t/notes.json", "m/0000000000000000000Z", "other/c"))


def test_old_states_go_and_the_last_ones_stay(repo: Repository) -> None:
    for number in range(40):
        repo.create_tag(f"t{number}", repo.lookup_branch("main"))
    assert len(files_of(repo, "t/")) == 44
    repo.garbage_collect(NOW)
    state = run(repo._store.now()).state
    assert state.collection is not None
    assert files_of(repo, "t/") >= {state.collection.garbage, *state.previous[-30:]}
    assert len(files_of(repo, "t/")) <= 36
    assert len(repo.list_tags()) == 40


def test_lists_of_garbage_do_not_pile_up(repo: Repository) -> None:
    for _ in range(5):
        repo.garbage_collect(NOW)
    assert len([key for key in files_of(repo, "t/") if "garbage" in key]) <= 2


def test_readers_of_expired_snapshots_are_told(repo: Repository) -> None:
    old = list(repo.ancestry())[1].id
    reading, again = (Repository.open(repo.url).readonly_session(snapshot_id=old) for _ in range(2))
    expire_all(repo)
    assert read_array(reading, "a")[0] == 1  # it goes on until its files are removed
    repo.garbage_collect(NOW)
    with pytest.raises(SnapshotExpired, match=rf"snapshot {old} .* has expired, and a garbage collection has removed files"):
        read_array(again, "a")
    with pytest.raises(SnapshotExpired, match="has expired"):
        list(again.mapping())


def test_a_file_that_somebody_else_removed_is_no_expiry(tmp_path: Path) -> None:
    repo = Repository.create(tmp_path / "repo", fsync=False, pack=(4,))
    session = repo.writable_session()
    create_array(session, "a", DATA, CHUNKS, compressors=None)
    session.commit("array")
    for file in (tmp_path / "repo/c").iterdir():
        file.unlink()
    with pytest.raises(Corruption, match="is not there, though a manifest refers to it"):
        read_array(repo.readonly_session(), "a")


def test_with_a_damaged_snapshot_nothing_is_removed(tmp_path: Path) -> None:
    repo = Repository.create(tmp_path / "repo", fsync=False)
    session = repo.writable_session()
    create_array(session, "a", DATA, CHUNKS, compressors=None)
    session.commit("array")
    (tmp_path / "repo/c/00000000000000000000").write_bytes(b"garbage")
    (manifest,) = (tmp_path / "repo/m").iterdir()
    manifest.write_bytes(b"damaged")
    with pytest.raises(Corruption, match="m/"):
        Repository.open(repo.url).garbage_collect(NOW)
    assert (tmp_path / "repo/c/00000000000000000000").exists()


# -- beside sessions ---------------------------------------------------------------------------------------------------


def open_session(repo: Repository, value: int = 7) -> Session:
    """Return a session that has stored a chunk file, to which nothing refers yet."""
    session = repo.writable_session()
    zarr.open_array(session.store, path="a", mode="r+")[:] = value
    return session


def test_a_session_whose_files_were_collected_cannot_be_committed(repo: Repository) -> None:
    session = open_session(repo)
    before = read_array(repo.readonly_session(), "a")
    assert repo.garbage_collect(NOW).removed["c/"] == 5
    for _ in range(2):
        with pytest.raises(Conflict, match=r"5 files of this session, such as 'c/.*', were removed .* longer than the longest session"):
            session.commit("too late", rebase_with=ConflictDetector())
    np.testing.assert_array_equal(read_array(Repository.open(repo.url).readonly_session(), "a"), before)


def test_a_session_is_left_in_peace_within_the_grace(repo: Repository) -> None:
    session = open_session(repo)
    repo.garbage_collect(timedelta(days=1))
    session.commit("in time")
    repo.garbage_collect(NOW)
    assert (read_array(Repository.open(repo.url).readonly_session(), "a") == 7).all()


def test_a_session_that_began_after_the_collection_looks_for_nothing(tmp_path: Path) -> None:
    repo, trace = traced_repository(tmp_path, pack=(4,))
    session = repo.writable_session()
    create_array(session, "a", DATA, CHUNKS, compressors=None)
    session.commit("array")
    expire_all(repo)
    repo.garbage_collect(NOW)
    session = open_session(repo)
    with trace.count() as block:
        session.commit("later")
    assert {event.op for event in block.events} <= {"read", "write", "probe"}  # no stat


@pytest.mark.parametrize("at", ["listed", "fenced", "removing", "ended"])
def test_a_commit_beside_a_collection(repo: Repository, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """Whenever a session is committed, its files are there, or it is told: the collector's own clock says that all garbage is old."""
    session = open_session(repo)
    outcomes: list[str] = []

    def go() -> None:
        try:
            outcomes.append(session.commit("beside", rebase_with=ConflictDetector()))
        except Conflict as exc:
            outcomes.append(type(exc).__name__)

    def once(function: Callable[..., Any], before: bool) -> Callable[..., Any]:
        async def wrapped(*arguments: Any, **options: Any) -> Any:
            if before and not outcomes:
                await asyncio.to_thread(go)
            found = await function(*arguments, **options)
            if not before and not outcomes:
                await asyncio.to_thread(go)
            return found

        return wrapped

    storage = repo._store.files.storage
    if at == "listed":
        lists = iter(range(10))

        async def then(*arguments: Any) -> Any:
            found = await real(*arguments)
            if next(lists) == len(reachable.FOLDERS) - 1:
                await asyncio.to_thread(go)
            return found

        real = reachable.list_files
        monkeypatch.setattr(collect_module, "list_files", then)
    elif at == "ended":
        monkeypatch.setattr(collect_module, "_end_removal", once(collect_module._end_removal, before=False))
        outcomes.append("")  # not after the first call, which finds nothing to end
    else:
        monkeypatch.setattr(storage, "delete_many", once(storage.delete_many, before=at == "fenced"))
    collector = threading.Thread(target=repo.garbage_collect, args=(NOW,))
    if at == "ended":
        repo.garbage_collect(NOW)
        outcomes.clear()
        go()
    else:
        collector.start()
        collector.join()
    (outcome,) = outcomes
    assert (outcome == "Conflict") == (at != "listed")
    values = read_array(Repository.open(repo.url).readonly_session(), "a")
    assert (values == (7 if at == "listed" else 2)).all()


def test_a_collection_that_was_interrupted_is_ended_by_the_next_one(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    expire_all(repo)
    session = open_session(repo)

    async def fails(keys: object) -> None:
        raise StorageError("the network is gone")

    with monkeypatch.context() as patched:
        patched.setattr(repo._store.files.storage, "delete_many", fails)
        with pytest.raises(StorageError, match="the network is gone"):
            repo.garbage_collect(NOW)
    with pytest.raises(Conflict, match="were removed"):
        session.commit("doomed", rebase_with=ConflictDetector())
    later = open_session(repo, 8)
    other = Repository.open(repo.url)
    assert other.garbage_collect(timedelta(days=7)).left > 0  # what the first doomed is gone all the same
    assert len([key for key in files_of(repo) if key.startswith("m/")]) == 1
    later.commit("after the fence", rebase_with=ConflictDetector())
    assert (read_array(other.readonly_session(), "a") == 8).all()


@pytest.mark.parametrize("effect", [Fail(), DropReply(), Truncate()], ids=repr)
def test_every_request_of_a_collection_may_fail(tmp_path: Path, effect: Effect) -> None:
    """The old state or the new; the next run ends what it began, and then nothing dangles and nothing is left."""
    made = MemoryStorage(f"{tmp_path}/history")
    make_history(made)
    Repository.open(made).expire_snapshots(FUTURE)
    objects = {info.key: SyncStorage(made).get(info.key) for info in SyncStorage(made).infos()}
    shown = {branch: contents_of(Repository.open(made).readonly_session(branch)) for branch in ("main", "side")}
    numbers = itertools.count()

    def attempt(fault: Fault) -> bool:
        inner = MemoryStorage(f"{tmp_path}/{next(numbers)}")
        for key, data in objects.items():
            assert data is not None
            SyncStorage(inner).put(key, data)
        storage = FaultStorage(inner, [fault], sleep=no_sleep)
        with suppress(ShardStoreError):
            Repository.open(storage).garbage_collect(NOW)
        assert check_whole(inner) <= {info.key for info in SyncStorage(inner).infos()}
        again = Repository.open(inner)
        again.garbage_collect(NOW)
        reached = check_whole(inner)
        assert {info.key for info in SyncStorage(inner).infos() if info.key[:2] in ("s/", "a/", "m/", "c/")} == reached
        assert {branch: contents_of(Repository.open(inner).readonly_session(branch)) for branch in shown} == shown
        state = current_state(inner)
        assert state.collection is not None
        assert not state.collection.is_removing
        return bool(storage.struck)

    at_requests(effect, attempt, least=11)


# -- conflicts after expiry --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [slice(0, 200), slice(2000, 2200)])
def test_what_expired_snapshots_changed_is_still_a_conflict(repo: Repository, at: slice) -> None:
    """A session from before; others have changed one chunk, merged manifests in many commits, and let those between expire."""
    repo.create_tag("base", repo.lookup_branch("main"))
    session = repo.writable_session()
    zarr.open_array(session.store, path="a", mode="r+")[at] = 99
    commit(repo, 5, slice(0, 200))
    for value in range(12):
        commit(repo, value, slice(3000, 3200))
    expire_all(repo)
    if at.start == 0:
        with pytest.raises(ConflictError, match="a: both have changed chunks"):
            session.commit("both", rebase_with=ConflictDetector())
    else:
        session.commit("apart", rebase_with=ConflictDetector())
        found = read_array(repo.readonly_session(), "a")
        assert (found[0], found[2000], found[3000]) == (5, 99, 11)


def test_a_session_whose_snapshot_expired_is_told(repo: Repository) -> None:
    session = open_session(repo)
    commit(repo, 5, slice(0, 200))
    expire_all(repo)
    with pytest.raises(ConflictError, match="with which this session began, has expired since"):
        session.commit("late", rebase_with=ConflictDetector())
