"""Local files after a loss of power: what was acknowledged is there, whoever made the directories that it lies in."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
import zarr

import shardstore
from shardstore.model.generation import IF_ABSENT, IfGeneration
from shardstore.model.ranges import APPEND_PADDING_NBYTES, EVERYTHING, CopiedRange, NewBytes, Padding
from shardstore.storage.base import Found
from shardstore.storage.local import append as local_append
from shardstore.storage.local import rules as local_rules
from shardstore.storage.local import temporary as local_temporary
from shardstore.storage.local import walk as local_walk
from shardstore.storage.local.files import fsync_directory
from shardstore.storage.local.rules import KeptNames
from shardstore.storage.local.storage import LocalStorage
from shardstore.testing.storage_suite import SyncStorage, on_io_loop
from tests.harness.crash import AtCall, Child, Crasher
from tests.harness.lost_power import LostPower
from tests.harness.system_calls import SystemCalls
from tests.torture.crew import ROOT


@pytest.fixture(autouse=True)
def know(monkeypatch: pytest.MonkeyPatch) -> Callable[[KeptNames], None]:
    """Work as a process that knows what is given; as a new one until then."""

    def set_known(names: KeptNames) -> None:
        for module in (local_append, local_rules, local_temporary, local_walk):
            monkeypatch.setattr(module, "kept_names", names)
        local_rules.forget()

    set_known(KeptNames())
    for name in ("fsync", "fdatasync"):  # nothing here loses power, but what LostPower makes of what it has seen flushed
        monkeypatch.setattr(os, name, lambda fd: None)
    return set_known


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    made = tmp_path / "disk"
    made.mkdir()
    return made


@pytest.fixture
def after(tmp_path: Path) -> Path:
    return tmp_path / "after"


def storage(disk: Path) -> SyncStorage:
    return SyncStorage(LocalStorage(disk / "root"))


def append(s: SyncStorage, key: str, data: bytes) -> None:
    found = s.read(key, EVERYTHING)
    assert isinstance(found, Found)
    s.compose(
        key,
        found.generation,
        [CopiedRange(0, found.nbytes), Padding(APPEND_PADDING_NBYTES), NewBytes(data)],
        IfGeneration(found.generation),
    )


# -- the tool ----------------------------------------------------------------------------------------------------------


def test_only_what_was_flushed_survives(disk: Path, after: Path) -> None:
    (disk / "old").write_bytes(b"old")
    with LostPower(disk) as power:
        (disk / "d").mkdir()
        for name in ("named", "flushed", "both"):
            fd = os.open(disk / "d" / name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            os.write(fd, b"bytes")
            if name != "named":
                os.fsync(fd)
            os.close(fd)
            if name != "flushed":
                fsync_directory(str(disk / "d"))
            else:
                os.rename(disk / "d" / name, disk / "elsewhere")
        power.leave(after)
        assert [path.name for path in after.iterdir()] == ["old"], "the name of the directory is not flushed"
        fsync_directory(str(disk))
        os.unlink(disk / "d/both")
        power.leave(after.with_name("then"))
    left = after.with_name("then")
    found = {str(path.relative_to(left)): path.read_bytes() for path in left.rglob("*") if path.is_file()}
    assert found == {"old": b"old", "elsewhere": b"bytes", "d/named": b"", "d/both": b"bytes"}


# -- what was acknowledged ---------------------------------------------------------------------------------------------

WRITES: dict[str, Callable[[SyncStorage], object]] = {
    "put": lambda s: s.put("a/b/c/x", b"new"),
    "create": lambda s: s.put("a/b/c/x", b"new", IF_ABSENT),
    "copy": lambda s: s.copy("source", "a/b/c/x"),
    "rename": lambda s: s.rename_prefix("moved", "a/b/c"),
}


@pytest.mark.parametrize("how", WRITES)
@pytest.mark.parametrize("made", ["", "root", "root/a", "root/a/b"])
def test_in_directories_that_another_writer_has_made(disk: Path, after: Path, made: str, how: str) -> None:
    s = storage(disk)
    if how in ("copy", "rename"):
        s.put("source", b"new")
        s.put("moved/x", b"new")
    with LostPower(disk) as power:
        if made:
            os.makedirs(disk / made, exist_ok=True)  # it has not flushed them, or never will
        WRITES[how](s)
    power.leave(after)
    assert (after / "root/a/b/c/x").read_bytes() == b"new"


def put_new(child: Child, root: str, key: str) -> None:
    for name in ("fsync", "fdatasync"):
        setattr(os, name, lambda fd: None)  # of this process, which ends with this function
    with child.counted():
        SyncStorage(LocalStorage(root)).put(key, b"theirs")


@pytest.fixture(scope="module")
def crasher() -> Iterator[Crasher]:
    with Crasher([__name__], [str(ROOT)]) as running:
        yield running


@pytest.mark.parametrize("how", ["put", "append"])
def test_beside_a_writer_that_is_killed_at_any_call(crasher: Crasher, tmp_path: Path, how: str) -> None:
    """It has made directories, or given the object its name, and has flushed nothing."""
    calls = crasher.run(put_new, str(tmp_path / "counted"), "a/b/x").calls
    assert {"mkdir", "replace", "fsync"} <= {*calls}
    seen = 0
    for at, name in enumerate(calls, 1):
        if name not in ("mkdir", "open", "write", "replace", "fsync"):  # the others change nothing on the disk
            continue
        disk, after = tmp_path / f"disk{at}", tmp_path / f"after{at}"
        disk.mkdir()
        with LostPower(disk) as power:
            assert crasher.run(put_new, str(disk / "root"), "a/b/x", at=AtCall(at)).was_killed
            s = storage(disk)
            if how == "put":
                s.put("a/b/x", b"mine")
            elif s.stat("a/b/x") is None:
                continue
            else:
                append(s, "a/b/x", b"mine")
            seen += 1
        power.leave(after)
        found = (after / "root/a/b/x").read_bytes()
        assert found.endswith(b"mine"), f"killed at call {at}"
        assert how == "put" or found.startswith(b"theirs")
    assert seen > 2


@pytest.mark.parametrize("how", ["put", "another", "append"])
def test_in_a_directory_that_was_removed_and_made_again(disk: Path, after: Path, how: str) -> None:
    """This process had flushed the name of the one before, which may have had the same inode number."""
    s = storage(disk)
    with LostPower(disk) as power:
        s.put("a/b/x", b"1")
        shutil.rmtree(disk / "root/a/b")
        os.mkdir(disk / "root/a/b")
        fsync_directory(str(disk / "root/a/b"))
        if how == "append":
            (disk / "root/a/b/x").write_bytes(b"theirs")
            append(s, "a/b/x", b"2")
        else:
            s.put("a/b/x" if how == "put" else "a/b/y", b"2")
    power.leave(after)
    assert (after / "root/a/b" / ("y" if how == "another" else "x")).read_bytes().endswith(b"2")


def test_through_a_link_to_a_directory(disk: Path, after: Path) -> None:
    s = storage(disk)
    s.put("x", b"1")
    with LostPower(disk) as power:
        os.makedirs(disk / "elsewhere/d")
        (disk / "root/link").symlink_to(disk / "elsewhere/d")
        s.put("link/x", b"1")
    power.leave(after)
    assert (after / "elsewhere/d/x").read_bytes() == b"1"


@pytest.mark.parametrize("seed", range(6))
def test_whatever_two_processes_do(disk: Path, tmp_path: Path, seed: int, know: Callable[[KeptNames], None]) -> None:
    """Each object that one of them has acknowledged is there, after every step; what was removed may be there again."""
    rng = random.Random(seed)
    memories = (KeptNames(), KeptNames())
    s = storage(disk)
    expected: dict[str, bytes] = {}
    directories = ("a", "a/b", "a/c", "a/c/d")
    with LostPower(disk) as power:
        for step in range(40):
            know(rng.choice(memories))
            key = f"{rng.choice(directories)}/{rng.choice('xy')}"
            what = rng.random()
            if what < 0.2:
                s.delete(key)
                expected.pop(key, None)
            elif what < 0.3:
                directory = rng.choice(directories)  # somebody else does
                shutil.rmtree(disk / "root" / directory, ignore_errors=True)
                os.makedirs(disk / "root" / directory, exist_ok=True)
                expected = {key: data for key, data in expected.items() if not key.startswith(f"{directory}/")}
            elif what < 0.5 and key in expected:
                append(s, key, b"%d" % step)
                expected[key] = s.get(key) or b""
            else:
                expected[key] = b"%d" % step
                s.put(key, expected[key])
            if step % 4 == 0:
                after = tmp_path / f"after{step}"
                power.leave(after)
                found = SyncStorage(LocalStorage(after / "root"))
                assert {key: found.get(key) for key in expected} == expected, f"seed {seed}, step {step}"


# -- what it costs -----------------------------------------------------------------------------------------------------


def flushed(work: Callable[[], object]) -> int:
    with SystemCalls(threads="shardstore-write") as counted:
        work()
    return counted.calls.count("fsync")


def test_where_times_are_coarse_nothing_is_remembered(disk: Path, after: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second object has the size of the first, and may have its inode number and times, and the directory is another one."""
    s = storage(disk)
    with LostPower(disk) as power:
        with monkeypatch.context() as patched:
            patched.setattr(local_rules, "_version", lambda status: status.st_size)  # as if all else were the same
            patched.setattr(local_rules, "_is_coarse", lambda status: True)
            s.put("a/b/x", b"one")
            s.delete("a/b/x")
            s.put("a/b/x", b"two")
        power.leave(after)
    assert (after / "root/a/b/x").read_bytes() == b"two"


def test_names_are_flushed_once_a_process_and_directory(disk: Path) -> None:
    """The file, and its directory, are what is left to flush."""
    s = storage(disk)
    assert flushed(lambda: s.put("a/b/x", b"1")) > 5
    assert flushed(lambda: s.put("a/b/x", b"2")) == 2
    assert flushed(lambda: s.put("a/b/y", b"1")) == 2
    assert flushed(lambda: s.put("a/b/x", b"3")) == 2
    assert flushed(lambda: s.put("a/c/x", b"1")) == 3  # and the name of its directory
    assert flushed(lambda: s.put("a/x", b"1")) == 2
    (disk / "root/a/b/y").write_bytes(b"by somebody else")
    assert flushed(lambda: s.put("a/b/y", b"2")) == 2
    appends = [flushed(lambda: append(s, "a/b/x", b"1")) for _ in range(2)]
    assert appends[0] == appends[1]


def test_what_is_remembered_is_bounded(disk: Path, know: Callable[[KeptNames], None]) -> None:
    names = KeptNames(3)
    know(names)
    s = storage(disk)
    for i in range(10):
        s.put(f"d/{i}", b"1")
        assert len(names._objects) <= 3
        assert flushed(lambda i=i: s.put(f"d/{i}", b"2")) == 2  # type: ignore[misc]  # mypy cannot infer a default


def test_without_fsync_nothing_is_flushed(disk: Path, know: Callable[[KeptNames], None]) -> None:
    names = KeptNames()
    know(names)
    s = SyncStorage(LocalStorage(disk / "root", fsync=False))
    assert flushed(lambda: s.put("a/b/x", b"1")) == 0
    assert not names._objects


# -- what others did, and somebody relies on ---------------------------------------------------------------------------

RELYING: dict[str, Callable[[SyncStorage], object]] = {
    "delete": lambda s: s.delete("a/b/x"),
    "delete many": lambda s: s.delete_many("a/b/x"),
    "delete for good": lambda s: on_io_loop(delete_for_good(s, "a/b/x")),
    "an object": lambda s: on_io_loop(keep_seen(s, "a/b/x")),
    "all below": lambda s: on_io_loop(keep_seen(s, "a/")),
    "all": lambda s: on_io_loop(keep_seen(s, "")),
}


async def delete_for_good(s: SyncStorage, *keys: str) -> None:
    assert isinstance(s.storage, LocalStorage)
    await s.storage.delete_for_good(keys)


async def keep_seen(s: SyncStorage, key: str) -> None:
    assert isinstance(s.storage, LocalStorage)
    await s.storage.keep_seen(key)


@pytest.mark.parametrize("how", RELYING)
@pytest.mark.parametrize("left", ["", "a/b", "a/b/y", "another a/b"])
def test_what_others_removed_stays_away_once_somebody_relies_on_that(
    disk: Path, after: Path, know: Callable[[KeptNames], None], how: str, left: str
) -> None:
    """They may have died before they could make that durable, or have been told that it is not."""
    s = storage(disk)
    s.put("a/b/x", b"old")
    s.put("z", b"z")
    if left == "a/b/y":
        s.put("a/b/y", b"y")
    know(KeptNames())
    with LostPower(disk) as power:
        (disk / "root/a/b/x").unlink()
        if left in ("", "another a/b"):
            (disk / "root/a/b").rmdir()
            (disk / "root/a").rmdir()
        if left == "another a/b":
            (disk / "root/a/b").mkdir(parents=True)
        RELYING[how](s)
        power.leave(after)
    assert not (after / "root/a/b/x").exists()
    assert (after / "root/z").exists()


def test_what_others_replaced_stays_once_somebody_relies_on_that(disk: Path, after: Path, know: Callable[[KeptNames], None]) -> None:
    s = storage(disk)
    s.put("a/x", b"old")
    know(KeptNames())
    with LostPower(disk) as power:
        fd = os.open(disk / "root/a/.other", os.O_RDWR | os.O_CREAT | os.O_EXCL)
        os.write(fd, b"new")
        os.close(fd)
        os.rename(disk / "root/a/.other", disk / "root/a/x")
        on_io_loop(keep_seen(s, "a/x"))
        on_io_loop(keep_seen(s, "a/x"))
        power.leave(after)
        assert power.flushed.count(str(disk / "root/a/x")) == 1
    assert (after / "root/a/x").read_bytes() == b"new"


def test_absence_is_flushed_once(disk: Path) -> None:
    s = storage(disk)
    s.put("a/x", b"x")
    os.utime(disk / "root/a", (1, 1))
    with SystemCalls(threads="shardstore-write") as first:
        s.delete("a/y")
    with SystemCalls(threads="shardstore-write") as again:
        s.delete("a/y")
        s.delete("a/z")
    assert first.calls.count("fsync") >= 1
    assert "fsync" not in again.calls
    s.put("a/w", b"x")
    with SystemCalls(threads="shardstore-write") as changed:
        s.delete("a/y")
    assert changed.calls.count("fsync") >= 1


@pytest.mark.parametrize("present", ["v3", "v2"])
def test_an_erasure_that_finds_nothing_to_erase_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, present: Literal["v3", "v2"]
) -> None:
    zarr.create_array(tmp_path / "a", shape=(8,), chunks=(1,), shards=(4,), dtype="u1")[4:6] = 1
    relied_on = []
    keep = LocalStorage.keep_seen

    async def noted(self: LocalStorage, key: str) -> None:
        relied_on.append(key)
        await keep(self, key)

    monkeypatch.setattr(LocalStorage, "keep_seen", noted)
    store = shardstore.get_mapper(str(tmp_path), present=present)
    key = "a/{}" if present == "v2" else "a/c/{}"
    for number in (0, 4, 7):  # of no shard, one that is there, and another of that
        store.delitems([key.format(number)])
    assert relied_on == ["a/c/0", "a/c/1"]
    store.delitems([key.format(number) for number in range(4)])  # a whole shard, which is deleted, whatever is there
    shutil.rmtree(tmp_path / "a")
    relied_on.clear()
    store.clear()
    assert relied_on == [""]
