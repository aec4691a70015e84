"""Commits on a local disk whose process is killed, or whose machine loses power: the old snapshot or the new one, whole.

What was acknowledged is there afterwards. Nobody has to clean up before others can commit.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from shardstore.snapshots import Repository
from shardstore.storage.local.storage import LocalStorage
from tests.harness.crash import AtCall, Crasher, Ended
from tests.harness.lost_power import LostPower
from tests.snapshots.commit_workers import commit_and_die, commit_once
from tests.snapshots.committing import MESSAGE, Contents, change, change_side, contents_of, make_history
from tests.snapshots.whole import check_whole, messages_of

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class History:
    """A repository in a directory, and what ``main`` shows before and after the commit."""

    place: Path
    old: Contents
    new: Contents


def shown(root: Path, branch: str = "main") -> Contents:
    return contents_of(Repository.open(str(root)).readonly_session(branch))


def commit(root: Path, message: str = MESSAGE) -> None:
    session = Repository.open(str(root), pack=(4,), fsync=False).writable_session()
    change(session)
    session.commit(message)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    place = tmp_path_factory.mktemp("history")
    make_history(LocalStorage(place / "old", fsync=False))
    shutil.copytree(place / "old", place / "new")
    commit(place / "new")
    return History(place / "old", shown(place / "old"), shown(place / "new"))


@pytest.fixture(scope="module")
def crasher() -> Iterator[Crasher]:
    preloaded = [
        "tests.snapshots.commit_workers",
        "shardstore.adapters.versioned.repository",
        "shardstore.adapters.mapping.mapping",
        "pyarrow.parquet",
    ]
    with Crasher(preloaded, [str(ROOT)]) as running:
        yield running


def check(root: Path, history: History, *, is_acknowledged: bool) -> bool:
    """Check a directory after a crash, and that others go on there; return whether it shows the new snapshot."""
    found = shown(root)
    check_whole(LocalStorage(root))
    assert found in (history.old, history.new)
    is_new = found == history.new
    assert is_new or not is_acknowledged, "an acknowledged commit is lost"
    repo = Repository.open(str(root), pack=(4,), fsync=False)
    side = repo.writable_session("side")
    change_side(side)
    side.commit("side")
    if not is_new:
        commit(root)
    assert shown(root) == history.new
    assert messages_of(repo)[-2:] == ["level 6", MESSAGE]
    check_whole(LocalStorage(root))
    return is_new


def sweep(history: History, tmp_path: Path, run: Callable[[Path, int], Ended], stride: int) -> tuple[int, list[bool]]:
    """Kill at every ``stride``-th moment; return how many there were, and whether each kill left the new snapshot.

    Threads make the number of moments differ from run to run: it ends when several runs in a row have not had so many.
    """
    became_new: list[bool] = []
    unharmed = 0
    for at in itertools.count(1, stride):
        root = tmp_path / str(at)
        shutil.copytree(history.place, root)
        ended = run(root, at)
        assert ended.was_killed != bool(ended.acknowledged)
        is_new = check(root, history, is_acknowledged=bool(ended.acknowledged))
        shutil.rmtree(root)
        if ended.was_killed:
            became_new.append(is_new)
            unharmed = 0
            continue
        assert is_new
        unharmed += 1
        if unharmed == UNHARMED:
            return at, became_new
    raise AssertionError("counting never ends")


UNHARMED = 10

STRIDES = [47, pytest.param(1, marks=[pytest.mark.night, pytest.mark.timeout(3600)])]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("stride", STRIDES)
def test_killed_at_every_system_call(crasher: Crasher, history: History, tmp_path: Path, stride: int, after: bool) -> None:
    calls, became_new = sweep(history, tmp_path, lambda root, at: crasher.run(commit_once, str(root), at=AtCall(at, after)), stride)
    assert calls > 100
    assert not became_new[0]
    if stride == 1:
        assert any(became_new), "nobody died between the commit and its acknowledgement"


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.night)])
def test_killed_at_every_request(crasher: Crasher, history: History, tmp_path: Path, stride: int, after: bool) -> None:
    requests, became_new = sweep(history, tmp_path, lambda root, at: crasher.run(commit_and_die, str(root), at, after), stride)
    assert requests > 12
    assert not became_new[0]
    if stride == 1:
        assert any(became_new) is after, "the swap is the last request"


# -- loss of power -----------------------------------------------------------------------------------------------------


def test_an_acknowledged_commit_survives_a_loss_of_power(history: History, tmp_path: Path) -> None:
    shutil.copytree(history.place, tmp_path / "disk/root")
    with LostPower(tmp_path / "disk") as power:
        session = Repository.open(str(tmp_path / "disk/root"), pack=(4,)).writable_session()
        change(session)
        session.commit(MESSAGE)
        power.leave(tmp_path / "after")
    assert check(tmp_path / "after/root", history, is_acknowledged=True)


def test_a_new_repository_and_what_is_done_to_its_refs_survive_a_loss_of_power(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    with LostPower(tmp_path / "disk") as power:
        repo = Repository.create(str(tmp_path / "disk/new/root"))
        power.leave(tmp_path / "made")
        repo.create_tag("v1", repo.lookup("main"))
        power.leave(tmp_path / "tagged")
        repo.create_branch("side", repo.lookup("main"))
        repo.delete_tag("v1")
        power.leave(tmp_path / "untagged")
    for after, tags, branches in (("made", set(), {"main"}), ("tagged", {"v1"}, {"main"}), ("untagged", set(), {"main", "side"})):
        found = Repository.open(str(tmp_path / after / "new/root"))
        assert (found.list_tags(), found.list_branches()) == (tags, branches)
        check_whole(LocalStorage(tmp_path / after / "new/root"))


@pytest.mark.parametrize("stride", [6, pytest.param(1, marks=pytest.mark.night)])
def test_power_is_lost_at_every_flush_of_a_commit(history: History, tmp_path: Path, stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the worst that POSIX allows: nothing is left but what was flushed until then."""
    shutil.copytree(history.place, tmp_path / "disk/root")
    flushes = itertools.count(1)
    with LostPower(tmp_path / "disk") as power:

        def then_leave(flush: Callable[[int], None]) -> Callable[[int], None]:
            def flushed(fd: int) -> None:
                flush(fd)
                if (number := next(flushes)) % stride == 0:
                    power.leave(tmp_path / f"after-{number}")

            return flushed

        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, then_leave(getattr(os, name)))
        session = Repository.open(str(tmp_path / "disk/root"), pack=(4,)).writable_session()
        change(session)
        session.commit(MESSAGE)
        monkeypatch.undo()
    left = sorted(tmp_path.glob("after-*"), key=lambda path: int(path.name.partition("-")[2]))
    assert len(left) >= 20 // stride  # some names are known to be kept, and not flushed again
    became_new = [check(one / "root", history, is_acknowledged=False) for one in left]
    assert became_new == sorted(became_new)
    assert not became_new[0]
    if stride == 1:
        assert became_new[-1]
