"""What writers leave that die in the middle is removed by the next one; what living ones hold is not."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from shardstore.model.generation import UNCONDITIONAL
from shardstore.storage.local import locks as local_locks
from shardstore.storage.local import rules as local_rules
from shardstore.storage.local import temporary as local_temporary
from shardstore.storage.local.files import lock_path
from shardstore.storage.local.locks import locked
from shardstore.storage.local.range_locks import DIRECTORY_LOCK
from shardstore.storage.local.rules import WriteRules
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.local.temporary import TemporaryFile
from shardstore.testing.storage_suite import SyncStorage, on_io_loop
from tests.harness.system_calls import SystemCalls
from tests.storage.local.on_disk import NETWORK, files_below, mount_everything, start

DEAD = ".a.0a1b2c-1.0123456789ab.shardstore-tmp"
DEAD_LOCK = ".a.shardstore-lock"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with what a dead writer left; as a new process finds it."""
    local_rules.forget()
    (tmp_path / "root/d").mkdir(parents=True)
    (tmp_path / "root/d" / DEAD).write_bytes(b"half")
    (tmp_path / "root/d" / DEAD_LOCK).write_bytes(b"")
    return tmp_path / "root"


@pytest.fixture
def s(root: Path) -> SyncStorage:
    return SyncStorage(LocalStorage(root, fsync=False))


def test_the_first_write_in_a_directory_sweeps_it(s: SyncStorage, root: Path) -> None:
    s.put("other", b"1")
    assert files_below(root) == ["d", f"d/{DEAD}", f"d/{DEAD_LOCK}", "other"]
    s.put("d/b", b"1")
    assert files_below(root) == ["d", "d/b", "other"]
    (root / "d" / DEAD).write_bytes(b"half")
    with SystemCalls() as counted:
        s.put("d/b", b"2")
    assert "scandir" not in counted.calls
    assert files_below(root) == ["d", f"d/{DEAD}", "d/b", "other"]


def test_the_first_delete_in_a_directory_sweeps_it(s: SyncStorage, root: Path) -> None:
    (root / "d/b").write_bytes(b"1")
    s.delete("d/b")
    assert files_below(root) == []


def test_directories_that_are_remembered_are_bounded(root: Path) -> None:
    for i in range(10):
        local_rules.sweep_once(str(root / str(i)), False, most_remembered=3)
        assert len(local_rules._swept) <= 3


def test_a_huge_directory_is_not_looked_through(s: SyncStorage, root: Path) -> None:
    local_rules.sweep_once(str(root / "d"), False, most_entries=0)
    s.put("d/b", b"1")
    assert files_below(root / "d") == [DEAD, DEAD_LOCK, "b"]
    assert on_io_loop(LocalStorage(root).sweep(0)) == 2


def test_a_directory_that_cannot_be_looked_through_does_not_hinder(s: SyncStorage, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", denied)
    s.put("d/b", b"1")
    assert (root / "d/b").read_bytes() == b"1"


# -- those of the living -----------------------------------------------------------------------------------------------


def test_what_the_living_hold_stays(s: SyncStorage, root: Path) -> None:
    code = (
        "import sys, time\n"
        "from shardstore.storage.local.locks import locked\n"
        "from shardstore.storage.local.rules import WriteRules\n"
        "from shardstore.storage.local.temporary import TemporaryFile\n"
        "file = TemporaryFile(sys.argv[1] + '/theirs', 'theirs', WriteRules('', False, False, False))\n"
        "file.append([memoryview(b'written')])\n"
        "with locked(sys.argv[1] + '/b'):\n    print('held', flush=True)\n    time.sleep(600)\n"
    )
    writer = start(code, str(root / "d"))
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == "held\n"
        assert on_io_loop(LocalStorage(root).sweep(0)) == 0  # the writer has swept already
        held = files_below(root / "d")
        assert len(held) == 2
        s.put("d/c", b"1")
        assert files_below(root / "d") == sorted([*held, "c"])
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
    local_rules.forget()
    s.put("d/c", b"2")
    assert files_below(root / "d") == ["c"]


def test_a_writer_whose_file_is_taken_for_a_dead_ones_makes_another(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweeper may get the lock between the creation of the file and its locking."""
    original = local_locks.lock_whole
    taken: list[str] = []

    def late(fd: int, name: str) -> bool:
        if len(taken) < 2:
            taken.append(name)
            local_rules._remove_if_dead(name, 0.0)
        return original(fd, name)

    monkeypatch.setattr(local_temporary, "lock_whole", late)
    file = TemporaryFile(str(root / "d/a"), "a", WriteRules(str(root), False, False, False))
    assert len(set(taken)) == 2
    file.append([memoryview(b"new")])
    file.publish(UNCONDITIONAL)
    file.close()
    assert files_below(root / "d") == ["a"]
    assert (root / "d/a").read_bytes() == b"new"


def test_a_name_that_has_come_to_another_file_stays(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweeper has opened a lock file; its holder lets go, and the next one creates and holds a new one of the same name."""
    name = lock_path(str(root / "d/a"))
    original = local_locks.lock_whole
    holders = [locked(str(root / "d/a"))]

    def late(fd: int, path: str, wait: bool) -> bool:
        os.unlink(name)
        holders[0].__enter__()
        return original(fd, path, wait=wait)

    monkeypatch.setattr(local_rules, "lock_whole", late)
    (root / "d" / DEAD).unlink()
    assert on_io_loop(LocalStorage(root).sweep(0)) == 0
    monkeypatch.undo()
    with open(name) as still_locked, pytest.raises(BlockingIOError):
        fcntl.flock(still_locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
    holders[0].__exit__(None, None, None)
    assert files_below(root / "d") == []


# -- the method, and network mounts ------------------------------------------------------------------------------------


def test_sweeping_a_whole_tree(root: Path) -> None:
    foreign = (".a.shardstore-tmp", "a.0a1b2c-1.ab.shardstore-tmp", DIRECTORY_LOCK, ".hidden")
    for name in foreign:
        (root / "d" / name).write_bytes(b"")
    (root / "d/sub").mkdir()
    (root / "d/sub" / DEAD).write_bytes(b"")
    (root / "d/link").symlink_to(root / "d/sub" / DEAD)
    storage = LocalStorage(root)
    assert on_io_loop(storage.sweep()) == 0  # too young
    old = time.time() - 7200
    for name in (f"d/{DEAD}", f"d/{DEAD_LOCK}", f"d/sub/{DEAD}"):
        os.utime(root / name, (old, old))
    assert on_io_loop(storage.sweep()) == 3
    assert files_below(root / "d") == sorted([*foreign, "link", "sub"])


def test_on_a_network_mount_only_what_is_a_day_old(s: SyncStorage, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine's locks need not be seen here."""
    mount_everything(monkeypatch, NETWORK)
    s.put("d/b", b"1")
    left = [DEAD, DEAD_LOCK, DIRECTORY_LOCK, "b"]
    assert files_below(root / "d") == sorted(left)
    for hours, stays in ((23, True), (25, False)):
        old = time.time() - hours * 3600
        os.utime(root / "d" / DEAD, (old, old))
        os.utime(root / "d" / DEAD_LOCK, (old, old))
        local_rules.forget()
        s.put("d/b", b"1")
        assert (DEAD in files_below(root / "d")) is stays
    assert files_below(root / "d") == sorted(set(left) - {DEAD})
