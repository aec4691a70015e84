"""The local storage: what it leaves on the disk, and what happens between processes."""

from __future__ import annotations

import asyncio
import errno
import multiprocessing
import os
import pickle
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from shardstore.errors import AccessDenied, InvalidInput, StorageError
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL, IfGeneration
from shardstore.model.ranges import EVERYTHING, ByteRange, BytesLike, ByteSuffix, CopiedRange, NewBytes
from shardstore.storage.base import ABSENT, Absent, Changed, ConditionFailed, Failed, Found, Read
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.local.temporary import Extents, TemporaryFile
from shardstore.testing.storage_suite import StorageSuite, SyncStorage, on_io_loop, pieces
from tests.storage.local.on_disk import files_below


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "root", fsync=False)


class TestLocalStorage(StorageSuite):
    pass


# -- bodies that are made while they are stored -------------------------------------------------------------------------


def test_a_body_is_made_in_its_file(storage: LocalStorage, s: SyncStorage) -> None:
    def make(file: int) -> bytes:
        os.write(file, b"first, ")
        return b"then this"

    generation = on_io_loop(storage.write_made("c/a", make, UNCONDITIONAL))
    assert s.get("c/a") == b"first, then this"
    found = on_io_loop(storage.read([Read("c/a", (EVERYTHING,), generation)]))
    assert isinstance(found[0], Found)
    with pytest.raises(ConditionFailed):
        on_io_loop(storage.write_made("c/a", make, IF_ABSENT))
    assert files_below(Path(storage.root)) == ["c", "c/a"]


@pytest.mark.parametrize(("raised", "expected"), [(KeyError("own"), KeyError), (OSError(errno.ENOSPC, "full"), StorageError)], ids=str)
def test_a_body_that_cannot_be_made_leaves_what_was_there(
    storage: LocalStorage, s: SyncStorage, raised: Exception, expected: type[Exception]
) -> None:
    s.put("a", b"before")

    def make(file: int) -> bytes:
        os.write(file, b"half of ")
        raise raised

    with pytest.raises(expected):
        on_io_loop(storage.write_made("a", make, UNCONDITIONAL))
    assert s.get("a") == b"before"
    assert files_below(Path(storage.root)) == ["a"]


# -- what is read ------------------------------------------------------------------------------------------------------


def test_ranges_of_several_files_read_together(storage: LocalStorage, s: SyncStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {key: os.urandom(3000) for key in "abc"}
    for key, value in data.items():
        s.put(key, value)
    ranges = (ByteRange(0, 500), ByteRange(2900, 3100), ByteRange(700, 1500), ByteRange(10, 10), ByteSuffix(20), ByteRange(0, 2500))

    def check() -> None:
        outcomes = on_io_loop(storage.read([Read(key, ranges) for key in ("a", "none", "b", "c")]))
        assert outcomes[1] is ABSENT
        found = [outcome for outcome in outcomes if isinstance(outcome, Found)]
        assert [list(map(bytes, outcome.buffers)) for outcome in found] == [
            [data[key][r.start : r.end] if isinstance(r, ByteRange) else data[key][-r.nbytes :] for r in ranges] for key in "abc"
        ]
        assert all(buffer.readonly for outcome in found for buffer in outcome.buffers)

    check()
    if hasattr(os, "pread"):  # as of more than 2 GiB, of which one call reads no more
        pread = os.pread
        monkeypatch.setattr(os, "pread", lambda fd, nbytes, offset: pread(fd, min(nbytes, 700), offset))
        check()


# -- what is on the disk -----------------------------------------------------------------------------------------------


def test_only_objects_are_left(storage: LocalStorage, s: SyncStorage, tmp_path: Path) -> None:
    first = s.put("a/b/c", b"1", IF_ABSENT)
    s.write("a/b/c", pieces(b"2"), 1)
    for condition in (IF_ABSENT, IfGeneration(first)):
        with pytest.raises(ConditionFailed):
            s.put("a/b/c", b"3", condition)
    assert files_below(tmp_path / "root") == ["a", "a/b", "a/b/c"]
    assert (tmp_path / "root/a/b/c").read_bytes() == b"2"
    s.put("a/x", b"1")
    s.delete("a/b/c")
    assert files_below(tmp_path / "root") == ["a", "a/x"]
    s.delete("a/x")
    assert files_below(tmp_path) == ["root"]


def test_hidden_files_of_ours_are_no_objects(storage: LocalStorage, s: SyncStorage, tmp_path: Path) -> None:
    s.put("a", b"1")
    ours = (".a.shardstore-lock", ".a.x-1.y.shardstore-tmp", ".shardstore-lock")
    removed_while_open = (".nfs000000000a0b0c0d00000001", ".fuse_hidden0000a0b000000001")
    for name in (*ours, *removed_while_open):
        (tmp_path / "root" / name).write_bytes(b"")
        assert s.read(name, EVERYTHING) == ABSENT
        assert s.stat(name) is None
        assert s.delete(name) is False
        with pytest.raises(InvalidInput):
            s.put(name, b"1")
    assert s.keys() == ["a"]
    assert s.children() == (["a"], [])
    s.put(".nfs", b"1")
    s.put(".nfsx0000000000000000", b"1")
    assert s.keys() == [".nfs", ".nfsx0000000000000000", "a"]


@pytest.mark.parametrize("key", ["../a", "a/../b", "/a", "a//b", "./a", "a/", "a\0b"])
def test_keys_cannot_leave_the_root(s: SyncStorage, tmp_path: Path, key: str) -> None:
    (tmp_path / "a").write_bytes(b"outside")
    with pytest.raises(InvalidInput):
        s.put(key, b"1")
    assert s.read(key, EVERYTHING) == ABSENT
    assert s.delete(key) is False
    assert s.keys("../") == []
    assert s.children("../") == ([], [])
    assert (tmp_path / "a").read_bytes() == b"outside"


def syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are synced from now on."""
    synced: list[str] = []
    fsync = os.fsync

    def recording(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", recording)
    return synced


def test_durable_writes_sync_file_and_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = syncs(monkeypatch)
    s = SyncStorage(LocalStorage(tmp_path))
    assert s.storage.capabilities.durable
    s.put("a/b/c", b"1")
    assert synced[0].endswith(".shardstore-tmp")
    inside = {str(tmp_path), f"{tmp_path}/a", f"{tmp_path}/a/b"}
    assert set(synced[1:]) == inside | {*map(str, tmp_path.parents)} & {*synced}
    assert set(synced) > inside
    synced.clear()
    s.put("a/b/c", b"1")
    assert synced[1:] == [f"{tmp_path}/a/b"]
    synced.clear()
    SyncStorage(LocalStorage(tmp_path, fsync=False)).put("a/b/c", b"1")
    assert synced == []


def test_links_are_followed_and_loops_are_not(s: SyncStorage, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/x").write_bytes(b"there")
    s.put("d/a", b"1")
    root = tmp_path / "root"
    (root / "d/link").symlink_to(tmp_path / "elsewhere")
    (root / "d/loop").symlink_to(root / "d")
    (root / "d/nowhere").symlink_to(root / "absent")
    assert s.get("d/link/x") == b"there"
    assert s.keys("d/link/x") == ["d/link/x"]
    assert len(s.keys()) < 10
    for look in (s.get, s.stat):
        with pytest.raises(StorageError, match=r"'d/nowhere': .*/root/d/nowhere is a link to what is not there: .*remove the link"):
            look("d/nowhere")
    assert s.get("d/link/y") is None
    assert s.stat("d/link/y") is None


def test_what_is_no_file_is_no_object(s: SyncStorage, tmp_path: Path) -> None:
    s.put("a/b", b"1")
    os.mkfifo(tmp_path / "root/pipe")
    for look in (s.get, s.stat, s.delete):
        with pytest.raises(StorageError, match="'pipe': there is a named pipe of this name"):
            look("pipe")
    with pytest.raises(StorageError, match="there is a named pipe of this name"):
        s.put("pipe", b"1")
    assert s.keys() == ["a/b"]
    for condition in (UNCONDITIONAL, IF_ABSENT):
        with pytest.raises(StorageError, match="directory"):
            s.put("a", b"1", condition)
    with pytest.raises(StorageError, match="above it is a file"):
        s.put("a/b/c", b"1")
    assert files_below(tmp_path / "root") == ["a", "a/b", "pipe"]


def test_long_names(s: SyncStorage) -> None:
    s.put("n" * 255, b"1", IF_ABSENT)
    assert s.keys() == ["n" * 255]
    assert s.get("n" * 256) is None
    assert s.stat("n" * 256) is None
    with pytest.raises(InvalidInput, match="longer"):
        s.put("n" * 256, b"1")
    s.put("é" * 127, b"1")


def test_denied_access(s: SyncStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    s.put("a", b"1")

    def denied(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", "somewhere")

    monkeypatch.setattr(os, "open", denied)
    (outcome,) = s.read_many(Read("a", (EVERYTHING,)))
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, AccessDenied)
    with pytest.raises(AccessDenied, match="'a'"):
        s.put("a", b"2")


def test_a_full_disk_leaves_the_old_object(s: SyncStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = s.put("a", b"old")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageError, match="No space left"):
        s.put("a", b"new")
    with pytest.raises(StorageError, match="No space left"):
        s.write("b", pieces(b"new"), 3)
    assert s.stat("a") == s.infos()[0]
    assert s.infos()[0].generation == old
    assert files_below(tmp_path / "root") == ["a"]


def test_a_cancelled_write_leaves_nothing(s: SyncStorage, tmp_path: Path) -> None:
    s.put("a", b"old")

    async def never_ending(started: asyncio.Event) -> AsyncIterator[BytesLike]:
        yield b"x" * (2 << 20)
        started.set()
        await asyncio.sleep(60)

    async def cancel() -> None:
        started = asyncio.Event()
        task = asyncio.ensure_future(s.storage.write("a", never_ending(started), 3 << 20, UNCONDITIONAL))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    on_io_loop(cancel())
    assert s.get("a") == b"old"
    assert files_below(tmp_path / "root") == ["a"]


# -- versions ----------------------------------------------------------------------------------------------------------


def test_changes_in_place_by_others(s: SyncStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generation = s.put("a", b"old")
    path = tmp_path / "root/a"
    path.write_bytes(b"new")
    assert s.read("a", EVERYTHING, generation=generation) == Changed()
    with pytest.raises(ConditionFailed):
        s.put("a", b"x", IfGeneration(generation))

    pread = os.pread

    def changing(fd: int, nbytes: int, offset: int) -> bytes:
        data = pread(fd, nbytes, offset)
        path.write_bytes(b"%d" % time.time_ns())
        return data

    monkeypatch.setattr(os, "pread", changing)
    assert s.read("a", EVERYTHING) == Changed()


def test_an_open_file_that_is_replaced_is_still_one_version(s: SyncStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s.put("a", b"old")
    (tmp_path / "new").write_bytes(b"newer")
    pread = os.pread

    def replacing(fd: int, nbytes: int, offset: int) -> bytes:
        if (tmp_path / "new").exists():
            os.replace(tmp_path / "new", tmp_path / "root/a")
        return pread(fd, nbytes, offset)

    monkeypatch.setattr(os, "pread", replacing)
    outcome = s.read("a", EVERYTHING)
    assert isinstance(outcome, Found)
    assert bytes(outcome.buffers[0]) == b"old"


@pytest.mark.parametrize("error", [errno.EXDEV, errno.ENOSYS, None])
def test_compose_without_copy_file_range(s: SyncStorage, monkeypatch: pytest.MonkeyPatch, error: int | None) -> None:
    data = bytes(range(256)) * 20000
    old = s.put("a", data)
    if error is None:
        monkeypatch.delattr(os, "copy_file_range")
    else:

        def unable(*_: object) -> int:
            raise OSError(error, "unable")

        monkeypatch.setattr(os, "copy_file_range", unable)
    s.compose("a", old, [CopiedRange(5, 3_000_000), NewBytes(b"!")], IfGeneration(old))
    assert s.get("a") == data[5:3_000_005] + b"!"


# -- copying and renaming ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [None, errno.EXDEV])
def test_copies(s: SyncStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int | None) -> None:
    if error is not None:

        def fails(*_: object) -> int:
            raise OSError(error, os.strerror(error))

        monkeypatch.setattr(os, "copy_file_range", fails)
    data = os.urandom(3_000_001)
    s.put("a", data)
    s.copy("a", "n/b")
    assert files_below(tmp_path / "root") == ["a", "n", "n/b"]
    assert (tmp_path / "root/n/b").read_bytes() == data
    os.mkfifo(tmp_path / "root/pipe")
    with pytest.raises(StorageError, match="'pipe': there is a named pipe of this name"):
        s.copy("pipe", "c")
    assert s.copy("../root/a", "c") is None
    for key in ("../c", "a/../c", "c/"):
        with pytest.raises(InvalidInput):
            s.copy("a", key)
        with pytest.raises(InvalidInput):
            s.rename_prefix("n", key)
    assert s.rename_prefix("../root/n", "c") is False
    with pytest.raises(StorageError, match=r"copying 'a' to 'n'.*directory"):
        s.copy("a", "n")


def test_a_file_that_is_written_in_place_is_copied_whole_or_not_at_all(
    s: SyncStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s.put("a", b"0" * 100)
    original = TemporaryFile.copy
    changes = [b"1" * 100]

    def copy(self: TemporaryFile, source: Extents, offset: int, nbytes: int) -> None:
        original(self, source, offset, nbytes)
        if changes:
            (tmp_path / "root/a").write_bytes(changes.pop())

    monkeypatch.setattr(TemporaryFile, "copy", copy)
    s.copy("a", "b")
    assert s.get("b") == b"1" * 100
    changes += [b"%d" % i * (50 + i) for i in range(3)]  # shorter: the copy ends before its time
    with pytest.raises(StorageError, match="written in place"):
        s.copy("a", "c")
    assert files_below(tmp_path / "root") == ["a", "b"]


def test_durable_copies_and_renames_sync_what_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = SyncStorage(LocalStorage(tmp_path, fsync=False))
    quiet.put("a/b/c", b"1")
    quiet.put("a/x", b"1")
    synced = syncs(monkeypatch)
    quiet.copy("a/x", "a/y")
    quiet.rename_prefix("a/b", "n/b")
    assert synced == []
    s = SyncStorage(LocalStorage(tmp_path))
    s.copy("a/x", "a/z")
    assert synced[0].endswith(".shardstore-tmp")
    assert synced[1:3] == [f"{tmp_path}/a", str(tmp_path)]
    synced.clear()
    s.rename_prefix("n/b", "m/o/p")
    assert set(synced) == {str(tmp_path), f"{tmp_path}/m", f"{tmp_path}/m/o", f"{tmp_path}/n"}
    assert files_below(tmp_path) == ["a", "a/x", "a/y", "a/z", "m", "m/o", "m/o/p", "m/o/p/c"]


def test_renames_take_hidden_files_along_and_leave_no_directories(s: SyncStorage, tmp_path: Path) -> None:
    s.put("a/b/c/x", b"1")
    for name in (".x.shardstore-lock", ".x.host-1.abc.shardstore-tmp"):
        (tmp_path / "root/a/b/c" / name).write_bytes(b"")
    (tmp_path / "root/n/empty/dirs").mkdir(parents=True)
    assert s.rename_prefix("a/b", "n") is True
    assert s.keys() == ["n/c/x"]
    s.put("n/c/x", b"2")  # who left them is gone
    assert files_below(tmp_path / "root") == ["n", "n/c", "n/c/x"]


def test_a_writer_that_is_at_work_while_its_directory_is_renamed_is_told(s: SyncStorage, tmp_path: Path) -> None:
    s.put("a/x", b"old")

    async def body() -> AsyncIterator[BytesLike]:
        yield b"ne"
        assert await s.storage.rename_prefix("a", "b")
        yield b"w"

    with pytest.raises(StorageError, match="writing 'a/x' failed"):
        s.write("a/x", body(), 3)
    assert s.keys() == ["b/x"]
    assert s.get("b/x") == b"old"


def test_what_is_in_the_way_of_a_rename(s: SyncStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    s.put("a/x", b"1")
    s.put("file", b"1")
    (root / "link").symlink_to(root / "a")
    (root / "nowhere").symlink_to(root / "absent")
    (root / "hidden").mkdir()
    (root / "hidden/.x.host-1.abc.shardstore-tmp").write_bytes(b"")
    before = files_below(root)
    for target in ("file", "link", "nowhere", "hidden"):
        with pytest.raises(ConditionFailed):
            s.rename_prefix("a", target)
    with pytest.raises(StorageError, match="above it is a file"):
        s.rename_prefix("a", "file/b")
    assert s.rename_prefix("link", "b") is False  # its contents are to be moved, which the link does not hold
    assert files_below(root) == before

    def fails(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "rename", fails)
    number = errno.EXDEV
    assert s.rename_prefix("a", "new/b") is False
    number = errno.ENOTEMPTY
    with pytest.raises(ConditionFailed, match="faster"):
        s.rename_prefix("a", "new/b")
    number = errno.EACCES
    with pytest.raises(AccessDenied):
        s.rename_prefix("a", "new/b")
    assert files_below(root) == before


@pytest.mark.parametrize("mkdir_fails", [FileExistsError, FileNotFoundError])
def test_parents_that_are_removed_while_they_are_made(
    s: SyncStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mkdir_fails: type[OSError]
) -> None:
    """Somebody else makes a directory a moment earlier, or the one above it, and removes it a moment later."""
    original = os.mkdir
    failures = 3

    def mkdir(path: str, mode: int = 0o777) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise mkdir_fails(errno.EEXIST if mkdir_fails is FileExistsError else errno.ENOENT, "as if", path)
        original(path, mode)

    monkeypatch.setattr(os, "mkdir", mkdir)
    s.put("a/b/x", b"1")
    assert s.get("a/b/x") == b"1"
    failures = 3
    assert s.rename_prefix("a", "new/c") is True
    assert s.get("new/c/b/x") == b"1"
    (tmp_path / "root/file").write_bytes(b"f")
    (tmp_path / "root/nowhere").symlink_to(tmp_path / "absent")
    for name in ("file/y", "file/y/z", "nowhere/y", "nowhere/y/z"):  # what is in the way all the time is told
        with pytest.raises(StorageError, match="above it is a file"):
            s.put(name, b"1")
        with pytest.raises(StorageError, match="above it is a file"):
            s.rename_prefix("new", name)


def test_parents_that_are_removed_while_they_are_needed(s: SyncStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s.put("a/x", b"1")
    original = os.rename
    removals = 2

    def rename(source: str, target: str) -> None:
        nonlocal removals
        if removals:
            removals -= 1
            os.rmdir(os.path.dirname(target))
        original(source, target)

    monkeypatch.setattr(os, "rename", rename)
    assert s.rename_prefix("a", "new/b") is True
    removals = 1000
    assert s.rename_prefix("new/b", "other/c") is False
    assert files_below(tmp_path / "root") == ["new", "new/b", "new/b/x"]


# -- processes ---------------------------------------------------------------------------------------------------------


def increment_often(root: str, times: int) -> None:
    s = SyncStorage(LocalStorage(root, fsync=False))
    for _ in range(times):
        while True:
            found = s.read("d/n", EVERYTHING)
            try:
                if isinstance(found, Absent):
                    s.put("d/n", b"1", IF_ABSENT)
                elif isinstance(found, Found):
                    s.put("d/n", b"%d" % (int(bytes(found.buffers[0])) + 1), IfGeneration(found.generation))
                else:
                    continue
            except ConditionFailed:
                continue
            break


def create_and_delete_often(root: str, times: int) -> None:
    s = SyncStorage(LocalStorage(root, fsync=False))
    for i in range(times):
        s.put(f"p/q/{os.getpid()}-{i}", b"1")
        s.delete(f"p/q/{os.getpid()}-{i}")


@pytest.mark.gate
@pytest.mark.parametrize(("work", "left"), [(increment_often, ["d", "d/n"]), (create_and_delete_often, [])])
def test_processes_race(s: SyncStorage, tmp_path: Path, work: Callable[[str, int], None], left: list[str]) -> None:
    root = tmp_path / "root"
    root.mkdir()
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=(str(root), 40)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
    assert [process.exitcode for process in processes] == [0] * 4
    assert files_below(root) == left
    if left:
        assert s.get("d/n") == b"160"


def test_after_a_fork_there_are_new_threads(s: SyncStorage) -> None:
    s.put("a", b"1")
    code = (
        "import os, sys, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "from shardstore.storage.local.storage import LocalStorage\n"
        "from shardstore.testing.storage_suite import SyncStorage\n"
        "s = SyncStorage(LocalStorage(sys.argv[1]))\n"
        "s.put('a', b'2')\n"
        "pid = os.fork()\n"
        "if pid == 0:\n    s.put('a', s.get('a') + b'3')\n    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
    )
    assert isinstance(s.storage, LocalStorage)
    subprocess.run([sys.executable, "-c", code, s.storage.root], check=True, timeout=60)
    assert s.get("a") == b"23"


def test_pickles_and_equality(storage: LocalStorage, s: SyncStorage) -> None:
    s.put("a", b"1")
    copy = pickle.loads(pickle.dumps(storage))
    assert copy == storage
    assert hash(copy) == hash(storage)
    assert SyncStorage(copy).get("a") == b"1"
    assert LocalStorage(storage.root, fsync=True) != storage
    across = LocalStorage(storage.root, fsync=False, locks="cluster")
    assert across != storage
    assert pickle.loads(pickle.dumps(across)) == across
    assert "locks='cluster'" in repr(across)
    with pytest.raises(InvalidInput, match="neither 'auto' nor 'cluster'"):
        LocalStorage(storage.root, locks="all")  # type: ignore[arg-type]


def test_creating_where_the_file_system_has_no_hard_links(s: SyncStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    s.put("a/b", b"1", IF_ABSENT)
    assert s.get("a/b") == b"1"
    with pytest.raises(ConditionFailed):
        s.put("a/b", b"2", IF_ABSENT)
    assert s.get("a/b") == b"1"


def test_objects_that_are_deleted_for_good_are_gone_with_their_empty_directories(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "root")
    s = SyncStorage(storage)
    for key in ("a/b/x", "a/b/y", "c/z", "kept/x"):
        s.put(key, b"1")
    (tmp_path / "root/kept/directory").mkdir()
    on_io_loop(storage.delete_for_good(["a/b/x", "a/b/y", "c/z", "c/absent", "nowhere/x", "kept/directory", "../outside"]))
    assert [info.key for info in s.infos()] == ["kept/x"]
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == ["kept"]
    assert (tmp_path / "root/kept/directory").is_dir()
