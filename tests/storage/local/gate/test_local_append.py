"""Appending to a file in place: at every step a reader sees the old version or the new one, and what dies leaves the old one."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.errors import StorageError
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL, Condition, Generation, IfGeneration
from shardstore.model.ranges import APPEND_PADDING_NBYTES, EVERYTHING, ByteRange, ByteSuffix, CopiedRange, NewBytes, Padding, Segment
from shardstore.storage.base import CHANGED, Changed, ConditionFailed, Found, ObjectInfo, Read
from shardstore.storage.local import locks as local_locks
from shardstore.storage.local.append_record import APPEND_ATTRIBUTE
from shardstore.storage.local.mounts import Mount
from shardstore.storage.local.storage import LocalStorage
from shardstore.testing.storage_suite import SyncStorage, on_io_loop, values
from tests.harness.crash import AtCall, Child, Crasher
from tests.harness.scale import moments
from tests.harness.system_calls import SystemCalls, fail
from tests.storage.local.on_disk import mount_everything
from tests.torture.crew import ROOT

OLD = bytes(range(256)) * 40
NEW = b"new" * 3000
TAIL = b"the index, by its checksum" * 6


def segments(old_nbytes: int, new: bytes = NEW) -> list[Segment]:
    return [
        CopiedRange(0, old_nbytes),
        Padding(APPEND_PADDING_NBYTES),
        NewBytes(new[:1000]),
        NewBytes(memoryview(new)[1000:]),
        NewBytes(TAIL),
    ]


def append(s: SyncStorage, old: Generation, old_nbytes: int = len(OLD), new: bytes = NEW) -> Generation:
    return s.compose("d/a", old, segments(old_nbytes, new), IfGeneration(old))


@pytest.fixture
def s(tmp_path: Path) -> SyncStorage:
    return SyncStorage(LocalStorage(tmp_path))


def is_appended(data: bytes | None, old: bytes = OLD, new: bytes = NEW) -> bool:
    """The room may hold anything."""
    return data is not None and data[: len(old)] == old and data[len(old) + APPEND_PADDING_NBYTES :] == new + TAIL


def test_in_place(s: SyncStorage, tmp_path: Path) -> None:
    old = s.put("d/a", OLD)
    inode = (tmp_path / "d/a").stat().st_ino
    new = append(s, old)
    assert is_appended(s.get("d/a"))
    assert is_appended((tmp_path / "d/a").read_bytes())
    assert (tmp_path / "d/a").stat().st_ino == inode
    assert s.infos() == [ObjectInfo("d/a", len(OLD) + APPEND_PADDING_NBYTES + len(NEW + TAIL), new)]
    assert s.read("d/a", EVERYTHING, generation=old) == CHANGED
    again = append(s, new, s.infos()[0].nbytes)
    assert again != new
    assert not list(tmp_path.rglob(".*"))


def test_what_it_costs(s: SyncStorage) -> None:
    """The old bytes are neither read nor written, and nothing is renamed."""
    old = s.put("d/a", OLD)
    assert s.storage.capabilities.appends_in_place  # which is found out once
    with SystemCalls(threads="shardstore-write") as counted:
        append(s, old)
    lock = ["open", "flock", "fstat", "stat"]
    unlock = ["unlink", "flock", "close"]
    look = ["fstat", "stat", "getxattr"]
    write = ["setxattr", "fsync", "pwritev", "fdatasync", "setxattr", "fsync"]
    assert counted.calls == ["open", *lock, *look, *write, "utime", "fstat", *unlock, "close"]


@pytest.mark.parametrize("tail", [1, 64, 4096, 70_000])
@pytest.mark.parametrize("old_nbytes", [0, 1, 63, 64, 4095, 4096, 5000])
def test_of_any_size(s: SyncStorage, old_nbytes: int, tail: int) -> None:
    data = os.urandom(old_nbytes)
    old = s.put("d/a", data)
    last = os.urandom(tail)
    s.compose("d/a", old, [CopiedRange(0, old_nbytes), Padding(APPEND_PADDING_NBYTES), NewBytes(last)], IfGeneration(old))
    found = s.get("d/a")
    assert found is not None
    assert found[:old_nbytes] == data
    assert found[old_nbytes + APPEND_PADDING_NBYTES :] == last


@pytest.mark.parametrize(
    "made",
    [
        [Padding(APPEND_PADDING_NBYTES), NewBytes(NEW)],
        [CopiedRange(0, len(OLD)), Padding(1), NewBytes(NEW)],
        [CopiedRange(0, len(OLD) - 1), Padding(APPEND_PADDING_NBYTES), NewBytes(NEW)],
        [CopiedRange(0, len(OLD)), NewBytes(NEW)],
        [CopiedRange(0, len(OLD)), Padding(APPEND_PADDING_NBYTES), NewBytes(NEW), CopiedRange(0, 1)],
    ],
    ids=str,
)
def test_what_is_not_appending_is_a_new_file(s: SyncStorage, tmp_path: Path, made: list[Segment]) -> None:
    old = s.put("d/a", OLD)
    inode = (tmp_path / "d/a").stat().st_ino
    s.compose("d/a", old, made, IfGeneration(old))
    expected = b"".join(
        OLD[m.offset : m.offset + m.nbytes] if isinstance(m, CopiedRange) else bytes(m.data) if isinstance(m, NewBytes) else bytes(m.nbytes)
        for m in made
    )
    assert s.get("d/a") == expected
    assert (tmp_path / "d/a").stat().st_ino != inode


def test_a_file_with_two_names_is_copied(s: SyncStorage, tmp_path: Path) -> None:
    s.put("d/a", OLD)
    os.link(tmp_path / "d/a", tmp_path / "d/backup")
    found = s.read("d/a", EVERYTHING)
    assert isinstance(found, Found)
    append(s, found.generation)
    assert is_appended(s.get("d/a"))
    assert s.get("d/backup") == OLD


def test_a_link_is_replaced(s: SyncStorage, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(OLD)
    (tmp_path / "d").mkdir()
    (tmp_path / "d/a").symlink_to(tmp_path / "elsewhere")
    found = s.read("d/a", EVERYTHING)
    assert isinstance(found, Found)
    append(s, found.generation)
    assert is_appended(s.get("d/a"))
    assert (tmp_path / "elsewhere").read_bytes() == OLD


def test_a_file_of_somebody_else_is_replaced(s: SyncStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = s.put("d/a", OLD)
    inode = (tmp_path / "d/a").stat().st_ino
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    append(s, old)
    assert is_appended(s.get("d/a"))
    assert (tmp_path / "d/a").stat().st_ino != inode


def test_on_a_network_file_system_it_is_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount_everything(monkeypatch, Mount("/", "nfs4"))
    s = SyncStorage(LocalStorage(tmp_path))
    assert not s.storage.capabilities.appends_in_place
    old = s.put("d/a", OLD)
    inode = (tmp_path / "d/a").stat().st_ino
    append(s, old)
    assert is_appended(s.get("d/a"))
    assert (tmp_path / "d/a").stat().st_ino != inode


@pytest.mark.parametrize("condition", [IF_ABSENT, IfGeneration(Generation("another"))], ids=["absent", "another"])
def test_conditions(s: SyncStorage, condition: Condition) -> None:
    old = s.put("d/a", OLD)
    with pytest.raises(ConditionFailed):
        s.compose("d/a", old, segments(len(OLD)), condition)
    assert s.get("d/a") == OLD
    s.compose("d/a", old, segments(len(OLD)), UNCONDITIONAL)
    with pytest.raises(ConditionFailed):
        append(s, old)
    changed = s.put("d/a", OLD[::-1])
    with pytest.raises(ConditionFailed):
        s.compose("d/a", old, segments(len(OLD)), UNCONDITIONAL)
    assert s.get("d/a") == OLD[::-1]
    s.delete("d/a")
    with pytest.raises(ConditionFailed):
        append(s, changed)


# -- readers in the middle ----------------------------------------------------------------------------------------------


def number_of_calls(root: Path) -> int:
    s = SyncStorage(LocalStorage(root))
    old = s.put("d/a", OLD)
    with SystemCalls(threads="shardstore-write") as counted:
        append(s, old)
    return len(counted.calls)


def looking_at_each_call(root: Path, look: Callable[[SyncStorage, Generation], None]) -> Iterator[tuple[SyncStorage, Generation]]:
    """Append once for each of its system calls, with ``look`` before that call; the storage and the old version, after it."""
    for at in range(1, number_of_calls(root / "0") + 1):
        s = SyncStorage(LocalStorage(root / str(at)))
        old = s.put("d/a", OLD)

        def strike(name: str, s: SyncStorage = s, old: Generation = old) -> None:
            look(s, old)

        with SystemCalls(at, strike, threads="shardstore-write") as counted:
            new = append(s, old)
        assert counted.has_struck
        assert is_appended(s.get("d/a"))
        yield s, new


def test_a_reader_in_the_middle_sees_one_version(tmp_path: Path) -> None:
    seen: list[bool] = []

    def look(s: SyncStorage, old: Generation) -> None:
        assert isinstance(s.storage, LocalStorage)
        last = ByteSuffix(100)
        everything, pinned = s.storage.read_blocking([Read("d/a", (EVERYTHING, last)), Read("d/a", (ByteRange(5, 70), last), old)])
        assert isinstance(everything, Found)
        whole, end = values(everything)
        assert whole.endswith(end)
        seen.append(whole == OLD)
        if whole == OLD:
            assert everything.generation == old
            assert everything.nbytes == len(OLD)
            assert isinstance(pinned, Found)
            assert values(pinned) == [OLD[5:70], OLD[-100:]]
        else:
            assert is_appended(whole)
            assert isinstance(pinned, Changed)

    list(looking_at_each_call(tmp_path, look))
    assert seen == sorted(seen, reverse=True)  # old, then new
    assert seen.count(True) > 10
    assert seen.count(False) > 4


def test_a_reader_that_was_overtaken_has_read_one_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins before the append, or in the middle, and looks at the file again when it is through."""
    real = os.fstat
    for at in range(1, number_of_calls(tmp_path / "0") + 1):
        s = SyncStorage(LocalStorage(tmp_path / str(at)))
        storage = s.storage
        assert isinstance(storage, LocalStorage)
        old = s.put("d/a", OLD)
        begun: list[os.stat_result] = []

        def strike(name: str, path: Path = tmp_path / str(at) / "d/a", begun: list[os.stat_result] = begun) -> None:
            begun.append(os.stat(path))

        with SystemCalls(at, strike, threads="shardstore-write"):
            append(s, old)
        # The reader looked at the file when the call was made, and reads now: the first answer of fstat is the earlier one.
        answers = iter(begun)
        with monkeypatch.context() as patching:
            patching.setattr(os, "fstat", lambda fd, answers=answers: next(answers, None) or real(fd))
            (outcome,) = storage.read_blocking([Read("d/a", (ByteRange(0, len(OLD)),), old)])
        assert isinstance(outcome, Found | Changed)
        if isinstance(outcome, Found):
            assert values(outcome) == [OLD]
        if at == 1:
            assert isinstance(outcome, Found)  # nothing but an append came in between, and the record proves it


def test_what_was_written_in_place_by_others_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path)
    s = SyncStorage(storage)
    old = s.put("d/a", OLD)
    real, answers = os.fstat, iter([os.stat(tmp_path / "d/a")])
    with (tmp_path / "d/a").open("ab") as file:
        file.write(b"more")
    with monkeypatch.context() as patching:
        patching.setattr(os, "fstat", lambda fd: next(answers, None) or real(fd))
        assert storage.read_blocking([Read("d/a", (ByteRange(0, 10),), old)]) == [CHANGED]


# -- writers that fail or die -------------------------------------------------------------------------------------------


def check_old_or_new(s: SyncStorage, old: Generation, root: Path) -> bool:
    """Whether it is the new version; and the next writer finds everything in order."""
    raw = (root / "d/a").read_bytes()
    assert raw.startswith(OLD)
    found = s.read("d/a", EVERYTHING, ByteSuffix(50))
    assert isinstance(found, Found)
    data, end = values(found)
    assert data.endswith(end)
    is_new = data != OLD
    assert not is_new or is_appended(data)
    next_one = append(s, found.generation, len(data), b"next" * 1000)
    assert is_appended(s.get("d/a"), data, b"next" * 1000)
    s.put("d/a", b"replaced", IfGeneration(next_one))
    assert not local_locks._held
    return is_new


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EACCES])
def test_every_call_fails_once(tmp_path: Path, number: int) -> None:
    outcomes: list[bool] = []
    for at in itertools.count(1):
        root = tmp_path / str(at)
        s = SyncStorage(LocalStorage(root))
        old = s.put("d/a", OLD)
        descriptors = len(os.listdir("/proc/self/fd"))
        with SystemCalls(at, fail(number), threads="shardstore-write") as counted:
            try:
                append(s, old)
            except StorageError as exc:
                assert counted.has_struck
                assert not isinstance(exc, ConditionFailed)  # noqa: PT017  # nobody else is writing
                done = False
            else:
                done = True
        assert len(os.listdir("/proc/self/fd")) <= descriptors, counted.calls
        is_new = check_old_or_new(s, old, root)
        assert is_new or not done
        outcomes.append(is_new)
        if not counted.has_struck:
            break
    assert outcomes.count(False) > 5
    assert not list(tmp_path.rglob(".*"))


def append_once(child: Child, root: str) -> None:
    s = SyncStorage(LocalStorage(root))
    found = s.read("d/a", EVERYTHING)
    assert isinstance(found, Found)
    with child.counted():
        append(s, found.generation)
    child.acknowledge("appended")


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_every_call(tmp_path: Path, after: bool) -> None:
    outcomes: list[bool] = []
    with Crasher(["tests.storage.local.gate.test_local_append"], [str(ROOT)]) as crasher:
        for at in moments(itertools.count(1)):
            root = tmp_path / str(at)
            s = SyncStorage(LocalStorage(root))
            old = s.put("d/a", OLD)
            ended = crasher.run(append_once, str(root), at=AtCall(at, after))
            found = s.read("d/a", EVERYTHING)
            assert isinstance(found, Found)
            assert found.generation == old or is_appended(values(found)[0])
            is_new = check_old_or_new(s, old, root)
            assert is_new or not ended.acknowledged
            outcomes.append(is_new)
            if not ended.was_killed:
                break
    assert outcomes == sorted(outcomes)
    assert (outcomes[0], outcomes[-1]) == (False, True)


@pytest.fixture
def left(tmp_path: Path) -> tuple[SyncStorage, Generation, Path]:
    """A file that a writer left who died just before the last write; the version that it still is."""
    s = SyncStorage(LocalStorage(tmp_path))
    old = s.put("d/a", OLD)
    with SystemCalls(threads="shardstore-write") as counted:
        append(s, old)
    s.delete("d/a")
    old = s.put("d/a", OLD)
    with Crasher(["tests.storage.local.gate.test_local_append"], [str(ROOT)]) as crasher:
        assert crasher.run(append_once, str(tmp_path), at=AtCall(_last_write(tmp_path, crasher))).was_killed
    assert counted.calls
    return s, old, tmp_path / "d/a"


def _last_write(root: Path, crasher: Crasher) -> int:
    other = root.parent / f"{root.name}-counted"
    SyncStorage(LocalStorage(other)).put("d/a", OLD)
    calls = crasher.run(append_once, str(other)).calls
    return calls.index("fdatasync") + 1


def test_what_was_left_is_the_old_version_to_everybody(left: tuple[SyncStorage, Generation, Path]) -> None:
    s, old, path = left
    assert len(path.read_bytes()) > len(OLD) + len(NEW)
    assert s.get("d/a") == OLD
    s.copy("d/a", "d/copy")
    assert s.get("d/copy") == OLD
    assert (path.parent / "copy").read_bytes() == OLD
    with pytest.raises(ConditionFailed):
        s.delete("d/a", IfGeneration(Generation("another")))
    new = s.compose("d/a", old, [NewBytes(b"<"), CopiedRange(0, len(OLD))], IfGeneration(old))
    assert s.get("d/a") == b"<" + OLD
    assert s.delete("d/a", IfGeneration(new))


def test_what_was_left_is_replaced_and_removed_on_condition(left: tuple[SyncStorage, Generation, Path]) -> None:
    s, old, path = left
    assert s.delete("d/a", IfGeneration(old))
    assert not path.exists()


def test_the_attribute_means_nothing_without_the_record(left: tuple[SyncStorage, Generation, Path]) -> None:
    """Somebody may write the file in place after its writer died."""
    s, _, path = left
    torn = path.read_bytes()
    record = torn[len(OLD) : len(OLD) + 64]
    for shown, contents in [
        (OLD, torn[: len(OLD) + 30]),
        (OLD, torn + b"more"),
        (OLD, OLD + bytes(64) + torn[len(OLD) + 64 :]),  # power was lost: a later page was kept, and not this one
        (OLD, OLD + record[:20] + bytes(44) + torn[len(OLD) + 64 :]),
        (OLD, OLD + bytes(20) + record[20:] + torn[len(OLD) + 64 :]),
        (OLD, OLD[::-1] + torn[len(OLD) :]),  # what else can be told of it
        (None, b"." + torn),
        (None, torn[1:]),
        (None, OLD + b"." + record),
        (None, OLD + record[:20] + bytes([record[20] ^ 1]) + record[21:]),
        (None, OLD[:-5]),
        (None, b""),
    ]:
        path.write_bytes(contents)  # the same file, with its attributes
        expected = contents if shown is None else contents[: len(shown)]
        assert s.get("d/a") == expected, len(contents)


def test_a_writer_that_died_before_it_wrote_left_no_tail(s: SyncStorage, tmp_path: Path) -> None:
    old = s.put("d/a", OLD)
    with Crasher(["tests.storage.local.gate.test_local_append"], [str(ROOT)]) as crasher:
        other = tmp_path.parent / f"{tmp_path.name}-counted"
        SyncStorage(LocalStorage(other)).put("d/a", OLD)
        calls = crasher.run(append_once, str(other)).calls
        assert crasher.run(append_once, str(tmp_path), at=AtCall(calls.index("pwritev") + 1)).was_killed
    assert os.listxattr(tmp_path / "d/a")
    found = s.read("d/a", EVERYTHING)
    assert isinstance(found, Found)
    assert found.generation == old
    assert isinstance(s.storage, LocalStorage)
    assert [left.kind for left in on_io_loop(s.storage.leftovers(""))] == ["lock"]


def test_a_copy_with_all_attributes_is_what_its_bytes_are(left: tuple[SyncStorage, Generation, Path]) -> None:
    s, _, path = left
    shutil.copy2(path, path.parent / "copy")
    assert os.getxattr(path.parent / "copy", "user.shardstore.append")
    assert s.get("d/copy") == OLD
    data = path.read_bytes()
    s.put("d/blob", data)
    assert s.get("d/blob") == data  # bytes alone say nothing


def test_a_file_system_without_attributes_gets_a_new_file(s: SyncStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = s.put("d/a", OLD)
    inode = (tmp_path / "d/a").stat().st_ino

    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOTSUP, "not supported")

    monkeypatch.setattr(os, "setxattr", refuse)
    monkeypatch.setattr(os, "getxattr", refuse)
    append(s, old)
    assert is_appended(s.get("d/a"))
    assert (tmp_path / "d/a").stat().st_ino != inode


def test_a_limit_within_the_first_bytes(s: SyncStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could be written of it is cut off."""
    old = s.put("d/a", OLD)
    real, calls = os.pwritev, 0

    def short(fd: int, buffers: list[memoryview], offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            return real(fd, [buffers[0][:20]], offset)
        raise OSError(errno.EFBIG, "file too large")

    with monkeypatch.context() as patching:
        patching.setattr(os, "pwritev", short)
        with pytest.raises(StorageError, match="too large"):
            append(s, old)
    assert (tmp_path / "d/a").read_bytes() == OLD
    found = s.read("d/a", EVERYTHING)
    assert isinstance(found, Found)
    append(s, found.generation)
    assert is_appended(s.get("d/a"))


def test_many_pieces_never_end_a_call_together(s: SyncStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others find the file as long as after any call: not where a chunk ends, which may be a shard itself."""
    old = s.put("d/a", OLD)
    pieces = [os.urandom(1 + number % 7) for number in range(3000)]
    ends = set(itertools.accumulate(map(len, pieces), initial=len(OLD) + APPEND_PADDING_NBYTES))
    real = os.pwritev
    lengths: list[int] = []

    def noting(fd: int, buffers: list[memoryview], offset: int) -> int:
        assert len(buffers) <= 1024
        done = real(fd, buffers, offset)
        lengths.append(offset + done)
        return done

    monkeypatch.setattr(os, "pwritev", noting)
    made: list[Segment] = [CopiedRange(0, len(OLD)), Padding(APPEND_PADDING_NBYTES), *map(NewBytes, pieces)]
    s.compose("d/a", old, made, IfGeneration(old))
    assert len(lengths) == 3
    assert [length in ends for length in lengths[:-1]] == [piece_may_end(pieces, length, ends) for length in lengths[:-1]]
    found = s.get("d/a")
    assert found is not None
    assert found[len(OLD) + APPEND_PADDING_NBYTES :] == b"".join(pieces)


def piece_may_end(pieces: list[bytes], length: int, ends: set[int]) -> bool:
    """Where a piece is of one byte, and its last byte is held back, the one before it ends there."""
    return length in ends and length + 1 in ends


def test_a_tail_is_cut_off_durably_before_its_attribute_says_otherwise(
    left: tuple[SyncStorage, Generation, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of power could otherwise keep the attribute that hides nothing any more, and the tail too."""
    s, old, path = left
    torn, attribute = path.read_bytes(), os.getxattr(path, APPEND_ATTRIBUTE)
    with SystemCalls(threads="shardstore-write") as appending:
        append(s, old)
    path.write_bytes(torn)
    os.setxattr(path, APPEND_ATTRIBUTE, attribute)
    assert isinstance(s.storage, LocalStorage)
    with SystemCalls() as sweeping:
        assert on_io_loop(s.storage.sweep(0)) == 1
    found = s.read("d/a", EVERYTHING)
    assert isinstance(found, Found)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwritev", full)
    with SystemCalls(threads="shardstore-write") as failing, pytest.raises(StorageError):
        append(s, found.generation)
    for calls in (appending.calls, sweeping.calls, failing.calls):
        at = calls.index("ftruncate")
        assert "fsync" in calls[at : calls.index("setxattr", at)], calls


def test_a_tail_is_told_and_cut_off(left: tuple[SyncStorage, Generation, Path]) -> None:
    s, _, path = left
    storage = s.storage
    assert isinstance(storage, LocalStorage)
    tails = [found for found in on_io_loop(storage.leftovers("")) if found.kind == "tail"]
    assert [found.key for found in tails] == ["d/a"]
    assert f"{path.stat().st_size - len(OLD)} bytes" in tails[0].what
    assert [found.kind for found in on_io_loop(storage.leftovers("e/"))] == []
    assert on_io_loop(storage.sweep(3600)) == 0
    torn = path.read_bytes()
    assert on_io_loop(storage.sweep(0, only_count=True)) == 1
    assert path.read_bytes() == torn
    assert on_io_loop(storage.sweep(0)) == 1
    assert path.read_bytes() == OLD
    assert not any(os.getxattr(path, os.listxattr(path)[0]))
    assert on_io_loop(storage.leftovers("")) == []
    found = s.read("d/a", EVERYTHING)
    assert isinstance(found, Found)
    append(s, found.generation)
    assert on_io_loop(storage.leftovers("")) == []


def test_verification_tells_a_tail_and_repair_cuts_it_off(tmp_path: Path) -> None:
    store = shardstore.open(tmp_path, chunks_per_shard=(16,), strategy="append")
    array = zarr.create_array(store, name="a", shape=(1600,), chunks=(100,), dtype="u1", compressors=None, fill_value=0)
    array[:] = 1
    shard = tmp_path / "a/c/0"
    whole = shard.read_bytes()

    with Crasher(["tests.storage.local.gate.test_local_append"], [str(ROOT)]) as crasher:
        calls = crasher.run(assign_once, str(tmp_path)).calls
        before = zarr.open_array(tmp_path / "a", mode="r")[:]
        assert crasher.run(assign_once, str(tmp_path), at=AtCall(calls.index("fdatasync") + 1)).was_killed
    os.truncate(shard, len(shard.read_bytes()) - 5)  # as if the writer had died a little earlier
    assert whole != shard.read_bytes()
    np.testing.assert_array_equal(zarr.open_array(shardstore.open(tmp_path), path="a", mode="r")[:], before)
    with pytest.raises(ValueError, match="checksum"):
        zarr.open_array(tmp_path / "a", mode="r")[:]
    assert [(f.kind, f.key) for f in shardstore.verify(tmp_path).findings if f.kind not in ("lock", "dead")] == [("tail", "a/c/0")]
    shardstore.repair(tmp_path, older_than=0)
    assert [f.kind for f in shardstore.verify(tmp_path).findings] == ["dead"]
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a", mode="r")[:], before)


def assign_once(child: Child, root: str) -> None:
    array = zarr.open_array(shardstore.open(root, strategy="append"), path="a")
    with child.counted():
        array[:100] = 3
