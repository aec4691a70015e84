"""Something goes wrong at the n-th request of a commit, for every n: the branch shows the old snapshot or the new one, whole.

Nothing that a state leads to is missing then; the session commits again, and is committed once; and other sessions go on.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from shardstore.errors import Corruption, ShardStoreError, WriteOutcomeUnknown
from shardstore.snapshots import ConflictDetector, Repository, Session
from shardstore.storage.base import Storage
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.faults import (
    Cancel,
    Change,
    Delay,
    DropReply,
    Effect,
    Fail,
    Fault,
    FaultStorage,
    Refuse,
    TimeOut,
    Truncate,
)
from shardstore.testing.storage_suite import SyncStorage, on_io_loop
from tests.harness.scale import at_requests
from tests.harness.virtual_time import no_sleep
from tests.snapshots.committing import MESSAGE, THEIRS, Contents, change, change_side, contents_of, make_history
from tests.snapshots.whole import check_whole, messages_of

Fresh = Callable[[], Storage]
"""Makes another storage with the same history, each time."""


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the history, which is copied."""
    place = tmp_path_factory.mktemp("history") / "root"
    make_history(LocalStorage(place, fsync=False))
    return place


@pytest.fixture
def fresh(request: pytest.FixtureRequest, history: Path, tmp_path: Path) -> Fresh:
    """Of the kind that the test is parametrised with."""
    numbers = itertools.count()
    if request.param == "local":

        def copy() -> Storage:
            place = tmp_path / str(next(numbers))
            shutil.copytree(history, place)
            return LocalStorage(place, fsync=False)

        return copy
    objects = {str(path.relative_to(history)): path.read_bytes() for path in history.rglob("*") if path.is_file()}

    def fill() -> Storage:
        storage = MemoryStorage(f"{tmp_path}/{next(numbers)}")
        for key, data in objects.items():
            SyncStorage(storage).put(key, data)
        return storage

    return fill


def shown(storage: Storage, branch: str = "main") -> Contents:
    """What a branch shows to somebody who knows nothing yet."""
    return contents_of(Repository.open(storage).readonly_session(branch))


def changed(storage: Storage) -> Session:
    session = Repository.open(storage, pack=(4,)).writable_session()
    change(session)
    return session


@dataclass(frozen=True)
class Case:
    """What a commit is to be, and what ``main`` shows before and after it."""

    fresh: Fresh
    rebases: bool
    old: Contents
    new: Contents

    @classmethod
    def of(cls, fresh: Fresh, *, rebases: bool = False) -> Case:
        storage = fresh()
        old = shown(storage)
        changed(storage).commit(MESSAGE)
        check_whole(storage)
        new = shown(storage)
        assert old != new
        theirs = {"a/c/5": THEIRS} if rebases else {}
        return cls(fresh, rebases, {**old, **theirs}, {**new, **theirs})

    @property
    def before(self) -> list[str]:
        """The messages before that of the commit."""
        return ["level 6", *(["theirs"] if self.rebases else [])]


def attempt(case: Case, fault: Fault) -> bool:
    """Commit with one fault, and check all that has to hold after it; return whether anything was struck."""
    inner = case.fresh()
    old, new = case.old, case.new
    storage = FaultStorage(inner, sleep=no_sleep)
    session = changed(storage)
    if case.rebases:
        theirs = Repository.open(inner).writable_session()
        change_side(theirs)
        theirs.commit("theirs")
    solver = ConflictDetector() if case.rebases else None
    side = Repository.open(inner).writable_session("side")
    change_side(side)
    storage.plan(fault)
    error: ShardStoreError | None = None
    try:
        session.commit(MESSAGE, rebase_with=solver)
    except ShardStoreError as exc:
        error = exc
    struck = [request for _, request in storage.struck]
    storage.plan()
    now = shown(inner)
    check_whole(inner)
    assert now in (old, new)
    if error is None:
        assert now == new
        assert session.read_only
    else:
        check_error(error, fault, [request.key for request in struck])
        assert not session.read_only
        assert {**contents_of(session), "a/c/5": b""} == {**new, "a/c/5": b""}, "the session has lost a change"
        session.commit(MESSAGE, rebase_with=solver)
        assert shown(inner) == new
    repo = Repository.open(inner)
    assert messages_of(repo)[-1 - len(case.before) :] == [*case.before, MESSAGE]
    assert contents_of(session) == new
    side.commit("side")
    on_top = repo.writable_session()
    change_side(on_top)
    on_top.commit("on top")
    check_whole(inner)
    assert shown(inner) == {**new, "a/c/5": THEIRS}
    assert shown(inner, "side") == {**old, "a/c/5": THEIRS}
    assert messages_of(repo)[-2:] == [MESSAGE, "on top"]
    on_io_loop(inner.close())
    return bool(struck)


def check_error(error: ShardStoreError, fault: Fault, struck: list[str]) -> None:
    """Something went wrong; and the outcome is unknown only where nobody could be asked about the pointer."""
    assert type(error).__module__ == "shardstore.errors", repr(error)
    assert struck, f"nothing went wrong, but: {error!r}"
    if isinstance(error, Corruption):  # nothing is damaged; but a storage that says that a random name is taken tells something
        assert isinstance(fault.effect, Refuse)
    if isinstance(error, WriteOutcomeUnknown):
        assert fault.times is None
        assert "catalog.json" in struck


def cases(*quick: tuple[str, Effect]) -> list[object]:
    """Every kind of storage with every effect; those that are not ``quick`` are left to ``make test-all``."""
    found: list[object] = []
    for kind, effect in itertools.product(("memory", "local"), EFFECTS):
        marks = [] if (kind, effect) in quick else [pytest.mark.night]
        if kind == "local" and not isinstance(effect, Fail | DropReply):
            marks.append(pytest.mark.night)
        found.append(pytest.param(kind, effect, marks=marks, id=f"{kind}-{effect}"))
    return found


EFFECTS: list[Effect] = [Fail(), DropReply(), TimeOut(), Delay(), Truncate(3), Change(), Refuse(), Cancel(), Cancel(after=True)]
_AT_LEAST = 14  # requests of a commit


@pytest.mark.parametrize(("fresh", "effect"), cases(("memory", Fail()), ("memory", DropReply()), ("local", Fail())), indirect=["fresh"])
def test_every_request(fresh: Fresh, effect: Effect) -> None:
    at_requests(effect, partial(attempt, Case.of(fresh)), least=_AT_LEAST)


@pytest.mark.parametrize(("fresh", "effect"), cases(("memory", DropReply())), indirect=["fresh"])
def test_every_request_of_a_commit_that_rebases(fresh: Fresh, effect: Effect) -> None:
    at_requests(effect, partial(attempt, Case.of(fresh, rebases=True)), least=_AT_LEAST)


@pytest.mark.parametrize(("fresh", "effect"), cases(("memory", DropReply())), indirect=["fresh"])
def test_everything_fails_from_some_request_on(fresh: Fresh, effect: Effect) -> None:
    """The storage is gone for good in the middle; then it is back."""
    case = Case.of(fresh)

    def from_then_on(fault: Fault) -> bool:
        return attempt(case, replace(fault, times=None))

    at_requests(effect, from_then_on, least=_AT_LEAST)


# -- branches and tags, and new repositories ---------------------------------------------------------------------------

REFS: dict[str, tuple[Callable[[Repository], object], Callable[[Repository], bool]]] = {
    "create tag": (lambda repo: repo.create_tag("v2", repo.lookup("side")), lambda repo: "v2" in repo.list_tags()),
    "delete tag": (lambda repo: repo.delete_tag("v1"), lambda repo: repo.list_tags() == set()),
    "reset branch": (
        lambda repo: repo.reset_branch("side", repo.lookup("v1"), from_snapshot_id=repo.lookup("main")),
        lambda repo: repo.lookup("side") == repo.lookup("v1"),
    ),
}


@pytest.mark.parametrize(("fresh", "effect"), cases(("memory", Fail()), ("memory", DropReply())), indirect=["fresh"])
@pytest.mark.parametrize("name", REFS)
def test_every_request_of_a_change_of_refs(fresh: Fresh, effect: Effect, name: str) -> None:
    act, is_done = REFS[name]

    def attempt(fault: Fault) -> bool:
        inner = fresh()
        storage = FaultStorage(inner, sleep=no_sleep)
        repo = Repository.open(storage)
        storage.plan(fault)
        error: ShardStoreError | None = None
        try:
            act(repo)
        except ShardStoreError as exc:
            error = exc
        struck = [request.key for _, request in storage.struck]
        storage.plan()
        check_whole(inner)
        assert is_done(Repository.open(inner)) == (error is None)
        if error is not None:
            check_error(error, fault, struck)
            act(repo)
            assert is_done(Repository.open(inner))
        check_whole(inner)
        return bool(struck)

    at_requests(effect, attempt, least=3)


@pytest.mark.parametrize("effect", EFFECTS, ids=repr)
def test_every_request_of_making_a_repository(effect: Effect, tmp_path: Path) -> None:
    numbers = itertools.count()

    def attempt(fault: Fault) -> bool:
        inner = MemoryStorage(f"{tmp_path}/{next(numbers)}")
        storage = FaultStorage(inner, [fault], sleep=no_sleep)
        error: ShardStoreError | None = None
        try:
            Repository.create(storage)
        except ShardStoreError as exc:
            error = exc
        struck = [request.key for _, request in storage.struck]
        assert Repository.exists(inner) == (error is None)
        if error is not None:
            check_error(error, fault, struck)
            Repository.create(inner)
        check_whole(inner)
        assert messages_of(Repository.open(inner)) == ["Repository initialized"]
        return bool(struck)

    at_requests(effect, attempt, least=3)
