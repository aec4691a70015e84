"""Several users write in one directory: whatever one leaves, alive or killed, and whatever its umask, the others can write."""

from __future__ import annotations

import errno
import multiprocessing
import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardstore.errors import AccessDenied, StorageError
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL
from shardstore.storage.local import locks as local_locks
from shardstore.storage.local import rules as local_rules
from shardstore.storage.local.files import TEMP_SUFFIX, lock_path
from shardstore.storage.local.locks import ReadableFiles
from shardstore.storage.local.range_locks import DIRECTORY_LOCK
from shardstore.storage.local.rules import WriteRules
from shardstore.storage.local.storage import LocalStorage
from shardstore.testing.storage_suite import SyncStorage
from tests.harness.crash import AtCall, Crasher
from tests.harness.system_calls import SystemCalls
from tests.storage.local import user_workers
from tests.storage.local.on_disk import NETWORK, files_below, mount_everything, set_access_list
from tests.storage.local.user_workers import MODES
from tests.torture.crew import ROOT

A, B = 60_001, 60_002
UMASKS = [0o022, 0o077]


def can_become_users() -> bool:
    """Root can, but not in every container."""
    if os.name != "posix" or os.geteuid() != 0:
        return False
    code = "import os; os.setgroups([]); os.setgid(60_001); os.setuid(60_001)"
    return subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, check=False).returncode == 0


two_users = pytest.mark.skipif(not can_become_users(), reason="only root, with all of root's rights, can become two users")


@pytest.fixture
def held_before() -> frozenset[int]:
    """The descriptors of locks that are held when the test begins: an earlier one, which was interrupted, may have left some."""
    return frozenset(local_locks._held)


@pytest.fixture(scope="module")
def crasher() -> Iterator[Crasher]:
    with Crasher(["tests.storage.local.user_workers"], [str(ROOT)]) as running:
        yield running


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that everybody may write in, and that everybody can reach, as pytest's own cannot."""
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o755)
        root = Path(made) / "root"
        make_shared(root / "d")
        yield root


def make_shared(directory: Path, mode: int = 0o777) -> None:
    directory.mkdir(parents=True)
    directory.chmod(mode)


def told(crasher: Crasher, work: Callable[..., None], *arguments: object) -> str:
    (answer,) = crasher.run(work, *arguments).acknowledged
    return answer


def hidden(root: Path) -> list[str]:
    return [name for name in files_below(root) if name.rpartition("/")[2].startswith(".")]


# -- two users ---------------------------------------------------------------------------------------------------------


@two_users
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("umask", UMASKS)
def test_what_a_killed_user_leaves_refuses_nobody(crasher: Crasher, shared: Path, umask: int, mode: str) -> None:
    assert crasher.run(user_workers.die_with_everything, A, umask, str(shared), "d/a", mode).was_killed
    left = hidden(shared)
    assert any(name.endswith(TEMP_SUFFIX) for name in left)
    assert any(not name.endswith(TEMP_SUFFIX) for name in left)
    assert told(crasher, user_workers.put, B, umask, str(shared), "d/a", b"theirs", mode) == "stored"
    assert (shared / "d/a").read_bytes() == b"theirs"
    # The temporary file as well, where it can be told to be a dead one's: a private one's lock cannot be looked at.
    stays = [] if mode == "local" else [f"d/{DIRECTORY_LOCK}"]
    assert [name for name in hidden(shared) if not name.endswith(TEMP_SUFFIX)] == stays
    if umask == 0o022:
        assert hidden(shared) == stays


@two_users
@pytest.mark.parametrize(("umask", "mode"), [(0o022, "local"), (0o077, "local"), (0o077, "cluster")])
def test_a_user_who_is_killed_at_any_call_refuses_nobody(crasher: Crasher, shared: Path, umask: int, mode: str) -> None:
    calls = len(crasher.run(user_workers.put, A, umask, str(shared), "d/a", b"first", mode).calls)
    assert calls > 10
    for at in range(1, calls + 1):
        root = shared / f"{at}"
        make_shared(root / "d")
        (root / "d/a").write_bytes(b"old")
        assert crasher.run(user_workers.put, A, umask, str(root), "d/a", b"mine", mode, at=AtCall(at)).was_killed
        assert told(crasher, user_workers.put, B, 0o022, str(root), "d/a", b"theirs", mode) == "stored", f"killed at call {at}"
        assert (root / "d/a").read_bytes() == b"theirs"
        assert told(crasher, user_workers.put, A, umask, str(root), "d/a", b"again", mode) == "stored"
        assert all(name == f"d/{DIRECTORY_LOCK}" for name in hidden(root)), "what is left is swept by its owner at the latest"


@two_users
@pytest.mark.parametrize("mode", MODES)
def test_users_exclude_each_other(shared: Path, mode: str) -> None:
    path = shared / "d/n"
    path.write_text("0")
    path.chmod(0o666)
    context = multiprocessing.get_context("spawn")
    writers = [
        context.Process(target=user_workers.increment, args=(user, umask, str(path), mode, 100))
        for user, umask in ((A, 0o022), (B, 0o077), (A, 0o077))
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(100)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert path.read_text() == "300"


@two_users
def test_in_a_directory_with_the_sticky_bit(crasher: Crasher, shared: Path) -> None:
    """There nobody removes another's file. A lock file that is left stays and blocks nobody; objects are their owner's."""
    make_shared(shared / "t", 0o1777)
    assert crasher.run(user_workers.die_with_everything, A, 0o077, str(shared), "t/a", "local").was_killed
    left = hidden(shared)
    assert told(crasher, user_workers.put, B, 0o022, str(shared), "t/a", b"1", "local") == "stored"
    assert hidden(shared) == left
    assert told(crasher, user_workers.sweep, B, str(shared), "local") == "0"
    denied = told(crasher, user_workers.put, A, 0o022, str(shared), "t/a", b"2", "local")
    assert denied.startswith("AccessDenied")
    assert "'t/a'" in denied
    assert f"user {B}" in denied
    assert "chmod -t" in denied
    assert "sticky" in told(crasher, user_workers.delete, A, str(shared), "t/a", "local")
    assert (shared / "t/a").read_bytes() == b"1"
    assert hidden(shared) == [], "its owner has swept what was left"


@two_users
@pytest.mark.parametrize("mode", ["local", "network"])
def test_a_lock_file_that_cannot_be_opened_is_named_with_the_remedy(crasher: Crasher, shared: Path, mode: str) -> None:
    name = Path(lock_path(str(shared / "d/a"))) if mode == "local" else shared / "d" / DIRECTORY_LOCK
    name.touch()
    name.chmod(0o600 if mode == "local" else 0o644)
    denied = told(crasher, user_workers.put, B, 0o022, str(shared), "d/a", b"1", mode)
    assert denied.startswith("AccessDenied")
    for word in (str(name), "user 0", "chmod", "remove it"):
        assert word in denied
    assert files_below(shared) == ["d", f"d/{name.name}"]


@two_users
@pytest.mark.parametrize("mode", MODES)
def test_whoever_an_access_list_lets_write_can_lock(crasher: Crasher, shared: Path, mode: str) -> None:
    directory = shared / "d"
    directory.chmod(0o700)
    os.chown(directory, A, -1)
    set_access_list(directory, B, 7)
    assert crasher.run(user_workers.die_with_everything, A, 0o077, str(shared), "d/a", mode).was_killed
    assert told(crasher, user_workers.put, B, 0o077, str(shared), "d/a", b"1", mode) == "stored"


@two_users
@pytest.mark.parametrize("mode", ["cluster", "network"])
def test_what_root_writes_first_does_not_lock_the_owner_out(crasher: Crasher, shared: Path, mode: str) -> None:
    """The lock file of a directory is never removed as long as anything else is there."""
    directory = shared / "d"
    directory.chmod(0o755)
    os.chown(directory, A, -1)
    assert told(crasher, user_workers.put, 0, 0o022, str(shared), "d/a", b"root", mode) == "stored"
    assert told(crasher, user_workers.put, A, 0o022, str(shared), "d/a", b"mine", mode) == "stored"


# -- without two users -------------------------------------------------------------------------------------------------


@pytest.fixture
def hiding_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("hiding_umask")
@pytest.mark.parametrize("mode", MODES)
def test_a_lock_file_is_never_seen_without_its_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """At no call, at which a writer can be killed: nobody could ever lock it then."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d").chmod(0o775)
    monkeypatch.setattr(local_locks, "_readable", ReadableFiles())  # as in a new process
    rules = WriteRules(str(tmp_path), False, *MODES[mode])
    expected = {lock_path(str(tmp_path / "d/a")): 0o444, str(tmp_path / "d" / DIRECTORY_LOCK): 0o664}
    seen: set[str] = set()

    def look(name: str) -> None:
        for path, bits in expected.items():
            if Path(path).exists():
                seen.add(path)
                assert stat.S_IMODE(Path(path).stat().st_mode) & bits == bits

    for at in range(1, 100):
        with SystemCalls(at, look, after=True) as counted, rules.locked(str(tmp_path / "d/a")):
            pass
        (tmp_path / "d" / DIRECTORY_LOCK).unlink(missing_ok=True)
        if not counted.has_struck:
            break
    assert len(seen) == (2 if mode == "cluster" else 1)
    assert files_below(tmp_path) == ["d"]


def test_a_umask_that_hides_nothing_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_locks, "_readable", ReadableFiles())
    rules = WriteRules(str(tmp_path), False, False, False)
    before = os.umask(0o022)
    try:
        for links in (1, 0, 0):
            with SystemCalls() as counted, rules.locked(str(tmp_path / "a")):
                pass
            assert counted.calls.count("link") == links
            assert len(counted.calls) < 8 or links
        os.umask(0o077)  # later, in the same process
        with rules.locked(str(tmp_path / "a")):
            assert Path(lock_path(str(tmp_path / "a"))).stat().st_mode & 0o444 == 0o444
    finally:
        os.umask(before)


def test_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(local_locks, "_readable", ReadableFiles())
    for mode in MODES:
        with WriteRules(str(tmp_path), False, *MODES[mode]).locked(str(tmp_path / "a")):
            assert hidden(tmp_path)
    assert hidden(tmp_path) == [DIRECTORY_LOCK]


def refuse_to_write(monkeypatch: pytest.MonkeyPatch, names: set[str], *, at_all: bool = False) -> None:
    """These files are another user's: they can be read only, or not even that ``at_all``."""
    original = os.open

    def open_(path: Any, flags: int, mode: int = 0o777) -> int:
        if os.path.basename(path) in names and not flags & os.O_CREAT and (at_all or flags & os.O_ACCMODE):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return original(path, flags, mode)

    monkeypatch.setattr(os, "open", open_)


def test_a_lock_file_that_can_only_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Left by another user: it is locked, and removed as any other."""
    left = Path(lock_path(str(tmp_path / "a")))
    dead = tmp_path / ".a.0a1b2c-1.0123456789ab.shardstore-tmp"
    left.touch()
    dead.touch()
    refuse_to_write(monkeypatch, {left.name, dead.name})
    local_rules.forget()
    s = SyncStorage(LocalStorage(tmp_path, fsync=False))
    s.put("a", b"1", IF_ABSENT)
    assert files_below(tmp_path) == ["a"]
    left.touch()
    s.put("a", b"2")
    s.put("b", b"2")
    assert files_below(tmp_path) == ["a", "b"]


def test_a_lock_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_before: frozenset[int]) -> None:
    """An earlier version hid it until its holder let go; who waits for that waits for a while only."""
    left = Path(lock_path(str(tmp_path / "a")))
    left.touch()
    refuse_to_write(monkeypatch, {left.name}, at_all=True)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            left.unlink()

    monkeypatch.setattr(time, "sleep", wait)
    s = SyncStorage(LocalStorage(tmp_path, fsync=False))
    s.put("a", b"1")
    assert len(waits) == 3
    left.touch()
    with pytest.raises(AccessDenied, match="chmod a\\+r") as caught:
        s.put("a", b"2")
    assert str(left) in str(caught.value)
    assert s.get("a") == b"1"
    assert local_locks._held <= held_before


# -- what is no lock file ----------------------------------------------------------------------------------------------


def socket_at(path: Path) -> None:
    before = os.getcwd()
    os.chdir(path.parent)  # a path of a socket has 107 bytes at most
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


IN_PLACE: dict[str, Callable[[Path, Path], None]] = {
    "a symbolic link": lambda path, elsewhere: path.symlink_to(elsewhere / "victim"),
    "a symbolic link ": lambda path, elsewhere: path.symlink_to(elsewhere / "nothing"),
    "a directory": lambda path, _: path.mkdir(),
    "a named pipe": lambda path, _: os.mkfifo(path),
    "a socket": lambda path, _: socket_at(path),
}


@pytest.mark.parametrize("what", IN_PLACE)
@pytest.mark.parametrize("is_network", [False, True])
def test_what_is_no_file_in_the_place_of_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, is_network: bool, held_before: frozenset[int]
) -> None:
    """It is neither followed nor waited for."""
    mount_everything(monkeypatch, NETWORK if is_network else None)
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "victim").write_bytes(b"x")
    s = SyncStorage(LocalStorage(root, fsync=False))
    s.put("d/a", b"old")
    name = root / "d" / DIRECTORY_LOCK if is_network else Path(lock_path(str(root / "d/a")))
    name.unlink(missing_ok=True)
    IN_PLACE[what](name, elsewhere)
    operations: list[Callable[[], object]] = [
        lambda: s.put("d/a", b"new", UNCONDITIONAL),
        lambda: s.delete("d/a"),
        lambda: s.copy("d/a", "d/a"),
    ]
    local_rules.forget()
    for operation in operations:
        with pytest.raises(StorageError, match=f"is {what.strip()}") as caught:
            operation()
        assert str(name) in str(caught.value)
        assert "Remove it" in str(caught.value)
    assert s.get("d/a") == b"old"
    assert files_below(root) == sorted(["d", "d/a", f"d/{name.name}"])
    assert files_below(elsewhere) == ["victim"]
    assert (elsewhere / "victim").read_bytes() == b"x"
    assert local_locks._held <= held_before
    name.rmdir() if name.is_dir() and not name.is_symlink() else name.unlink()
    s.put("d/a", b"new")
    assert s.get("d/a") == b"new"


def test_a_file_with_another_name_in_the_place_of_a_lock_keeps_its_permissions(tmp_path: Path) -> None:
    """Where systems let users link to files of others, it may be this user's private one."""
    store, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    store.mkdir()
    elsewhere.mkdir()
    private = elsewhere / "private"
    private.write_bytes(b"secret")
    private.chmod(0o600)
    s = SyncStorage(LocalStorage(str(store), fsync=False))
    s.put("0", b"old")  # sweeps up what is left there
    Path(lock_path(str(store / "0"))).hardlink_to(private)
    s.put("0", b"new")
    assert (store / "0").read_bytes() == b"new"
    assert private.read_bytes() == b"secret"
    assert stat.S_IMODE(private.stat().st_mode) == 0o600


def test_a_lock_file_that_is_never_the_same_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_before: frozenset[int]
) -> None:
    """A file system whose numbers of files do not hold; nobody waits for ever."""
    monkeypatch.setattr(local_locks, "is_called", lambda status, name: False)
    with pytest.raises(StorageError, match="keeps changing its inode number"):
        SyncStorage(LocalStorage(tmp_path, fsync=False)).put("a", b"1")
    assert local_locks._held <= held_before
