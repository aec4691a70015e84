"""File systems that keep too little of times: what names a version there, and what is said where nothing does."""

from __future__ import annotations

import os
import pickle
import re
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.errors import Unsupported
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL, Generation, IfGeneration
from shardstore.model.ranges import APPEND_PADDING_NBYTES, EVERYTHING, ByteRange, CopiedRange, NewBytes, Padding
from shardstore.storage.base import CHANGED, GUARD_CHANGED, Absent, ConditionFailed, Found, Guard, Read
from shardstore.storage.local import versions as local_versions
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.local.versions import Unsettled, generation_of, names_versions
from shardstore.testing.storage_suite import StorageSuite, SyncStorage, on_io_loop
from tests.harness.coarse_times import CoarseTimes, has_attributes
from tests.storage.swapped_chunks import check_readers_of_swapped_chunks

SECOND = 10**9
MARK = "user.shardstore.version"


class Clock:
    """The clock of the storage and of the file system: a thousand times slower than the machine's; who sleeps sets it forward."""

    def __init__(self) -> None:
        self.start = time.time_ns()
        self.slept: list[tuple[int, int]] = []
        """When, by the machine's clock, and for how long, in nanoseconds."""

    def shown(self, real_ns: int) -> int:
        if real_ns < self.start:
            return real_ns
        return self.start + (real_ns - self.start) // 1000 + sum(nanoseconds for when, nanoseconds in self.slept if when <= real_ns)

    def time_ns(self) -> int:
        return self.shown(time.time_ns())

    def sleep(self, seconds: float) -> None:
        self.slept.append((time.time_ns(), round(seconds * 1e9)))
        time.sleep(0.01)  # the kernel's clock for timestamps ticks seldom


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(local_versions, "time_ns", clock.time_ns)
    monkeypatch.setattr(local_versions, "sleep", clock.sleep)
    return clock


@pytest.fixture
def whole_seconds(tmp_path: Path, clock: Clock) -> Iterator[CoarseTimes]:
    """As ext4 with inodes of 128 bytes."""
    if not has_attributes(tmp_path):
        pytest.skip(f"{tmp_path} lies on a file system without extended attributes")
    with CoarseTimes(SECOND, clock=clock.shown) as times:
        yield times


@pytest.fixture
def fat(clock: Clock) -> Iterator[CoarseTimes]:
    """As FAT: no extended attributes either."""
    with CoarseTimes(2 * SECOND, has_attributes=False, clock=clock.shown) as times:
        yield times


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "root", fsync=False)


def mark_of(path: Path) -> bytes | None:
    if sys.platform == "linux" and MARK in os.listxattr(path):
        return os.getxattr(path, MARK)
    return None


@pytest.mark.usefixtures("whole_seconds")
class TestWholeSeconds(StorageSuite):
    pass


@pytest.mark.parametrize("granularity_ns", [100, 1000, 10**7])
def test_no_two_versions_have_one_name(granularity_ns: int, s: SyncStorage, tmp_path: Path) -> None:
    """NTFS, UDF and exFAT; the last with attributes, which some systems add."""
    if not has_attributes(tmp_path) and granularity_ns > 100:
        pytest.skip(f"{tmp_path} lies on a file system without extended attributes")
    with CoarseTimes(granularity_ns, has_attributes=granularity_ns > 100):
        StorageSuite().test_no_two_versions_have_one_name(s)


# -- marks -------------------------------------------------------------------------------------------------------------


def test_a_version_is_marked_where_its_time_is_not_kept(s: SyncStorage, tmp_path: Path, whole_seconds: CoarseTimes) -> None:
    versions = [s.put("a", b"one"), s.put("a", b"two")]
    marks = [version.token.rpartition("-")[2] for version in versions]
    assert marks[1] == f"{int.from_bytes(mark_of(tmp_path / 'root/a') or b'', 'little'):x}"
    assert marks[0] != marks[1]
    info = s.stat("a")
    assert info is not None
    assert [info.generation, s.infos()[0].generation] == [versions[1]] * 2
    assert info.generation is not None
    assert pickle.loads(pickle.dumps(info.generation)) == versions[1]
    assert info.generation.digest == versions[1].digest != versions[0].digest


def test_nothing_is_marked_and_no_mark_is_looked_for_where_times_are_kept(
    s: SyncStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    if sys.platform == "linux":
        getxattr = os.getxattr

        def recording(path: str, name: str) -> bytes:
            asked.append(name)
            return getxattr(path, name)

        monkeypatch.setattr(os, "getxattr", recording)
    version = s.put("a", b"one")
    assert isinstance(s.read("a", EVERYTHING, generation=version), Found)
    assert [s.infos(), s.stat("a")] == [[s.stat("a")], s.infos()[0]]
    s.put("a", b"two", IfGeneration(version))
    assert MARK not in asked
    assert mark_of(tmp_path / "root/a") is None


def test_another_programs_file_is_named_when_its_time_cannot_come_again(
    s: SyncStorage, tmp_path: Path, whole_seconds: CoarseTimes, clock: Clock
) -> None:
    s.put("a", b"one")
    path = tmp_path / "root/a"
    path.unlink()
    path.write_bytes(b"two")
    first, second = s.read("a", EVERYTHING), s.read("a", EVERYTHING)
    assert isinstance(first, Found)
    assert isinstance(second, Found)
    assert first.generation != second.generation
    assert first.generation.digest == 0
    info = s.stat("a")
    assert info is not None
    assert info.generation is None
    assert not clock.slept
    # Who comes back with such a name is let wait, and finds a name that lasts.
    assert s.read("a", ByteRange(0, 1), generation=first.generation) is CHANGED
    assert len(clock.slept) == 1
    settled = s.read("a", EVERYTHING)
    assert isinstance(settled, Found)
    for _ in range(2):
        assert isinstance(s.read("a", ByteRange(0, 1), generation=settled.generation), Found)
    assert s.infos()[0].generation == settled.generation
    s.put("a", b"six", IfGeneration(settled.generation))
    with pytest.raises(ConditionFailed):
        s.put("a", b"ten", IfGeneration(settled.generation))
    assert len(clock.slept) == 1


@pytest.mark.usefixtures("fat")
def test_nobody_waits_for_what_has_changed(s: SyncStorage, clock: Clock) -> None:
    first = s.put("a", b"one")
    s.put("a", b"three")
    assert s.read("a", EVERYTHING, generation=first) is CHANGED
    s.delete("a")
    assert isinstance(s.read("a", EVERYTHING, generation=first), Absent)
    assert not clock.slept
    travelled = Generation(s.put("a", b"one").token)
    assert s.read("a", EVERYTHING, generation=travelled) is CHANGED
    assert len(clock.slept) == 1


@pytest.mark.parametrize("action", ["write", "delete", "compose", "append", "beside"])
def test_a_name_of_one_look_holds_for_nothing(
    action: str, s: SyncStorage, tmp_path: Path, whole_seconds: CoarseTimes, clock: Clock
) -> None:
    s.put("b", b"b")
    path = tmp_path / "root/a"
    path.write_bytes(b"one")
    found = s.read("a", EVERYTHING)
    assert isinstance(found, Found)
    path.write_bytes(b"two")  # in the same second, and as long
    match action:
        case "write":
            with pytest.raises(ConditionFailed):
                s.put("a", b"six", IfGeneration(found.generation))
        case "delete":
            with pytest.raises(ConditionFailed):
                s.delete("a", IfGeneration(found.generation))
        case "compose":
            with pytest.raises(ConditionFailed):
                s.compose("a", found.generation, [CopiedRange(0, 1), NewBytes(b"x")], UNCONDITIONAL)
        case "append":
            with pytest.raises(ConditionFailed):
                s.compose("a", found.generation, [CopiedRange(0, 3), Padding(APPEND_PADDING_NBYTES), NewBytes(b"x")], UNCONDITIONAL)
        case "beside":
            assert s.read_many(Read("b", (EVERYTHING,), guard=Guard("a", found.generation))) == [GUARD_CHANGED]
    assert s.get("a") == b"two"
    assert clock.slept  # and the next look tells more


def test_an_append_to_another_programs_file_marks_it(s: SyncStorage, tmp_path: Path, whole_seconds: CoarseTimes, clock: Clock) -> None:
    s.put("b", b"b")
    (tmp_path / "root/a").write_bytes(b"one")
    clock.sleep(3)
    found = s.read("a", EVERYTHING)
    assert isinstance(found, Found)
    new = s.compose(
        "a", found.generation, [CopiedRange(0, 3), Padding(APPEND_PADDING_NBYTES), NewBytes(b"two")], IfGeneration(found.generation)
    )
    assert mark_of(tmp_path / "root/a") is not None
    again = s.read("a", EVERYTHING)
    assert isinstance(again, Found)
    assert (again.generation, again.nbytes) == (new, 3 + APPEND_PADDING_NBYTES + 3)


def test_appends_have_names_of_their_own(s: SyncStorage, tmp_path: Path, whole_seconds: CoarseTimes) -> None:
    names = [s.put("a", b"one")]
    for _ in range(20):
        nbytes = s.infos()[0].nbytes
        names.append(
            s.compose("a", names[-1], [CopiedRange(0, nbytes), Padding(APPEND_PADDING_NBYTES), NewBytes(b"x")], IfGeneration(names[-1]))
        )
        assert s.read("a", EVERYTHING, generation=names[-2]) is CHANGED
    assert len(set(names)) == len(names)
    assert (tmp_path / "root/a").read_bytes().startswith(b"one")


def test_a_mark_that_cannot_be_stored_fails_the_write(
    s: SyncStorage, tmp_path: Path, whole_seconds: CoarseTimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    s.put("a", b"one")

    def full(path: int | str, name: str, value: bytes, flags: int = 0) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "setxattr", full)
    with pytest.raises(shardstore.ShardStoreError, match="No space left"):
        s.put("a", b"two")
    assert s.get("a") == b"one"


def test_a_mark_of_another_length_is_none_of_ours(s: SyncStorage, tmp_path: Path, whole_seconds: CoarseTimes, clock: Clock) -> None:
    s.put("a", b"one")
    if sys.platform == "linux":
        os.setxattr(tmp_path / "root/a", MARK, b"some")
    found = s.read("a", EVERYTHING)
    assert isinstance(found, Found)
    assert isinstance(found.generation, Unsettled)


# -- neither times nor marks -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fat")
def test_no_compare_and_swap_is_claimed(storage: LocalStorage, s: SyncStorage) -> None:
    able = on_io_loop(storage.probe())
    assert able == storage.capabilities
    assert (able.compare_and_swap, able.conditional_delete, able.appends_in_place, able.guarded_reads, able.atomic_commits) == (False,) * 5
    assert (able.pinned_reads, able.create_if_absent, able.compose) == (True,) * 3
    s.put("a", b"1", IF_ABSENT)
    with pytest.raises(ConditionFailed):
        s.put("a", b"2", IF_ABSENT)


@pytest.mark.usefixtures("fat")
def test_no_two_versions_have_one_name_there_either(s: SyncStorage, clock: Clock) -> None:
    names: list[Generation] = []
    for i in range(100):
        names.append(s.put("a", b"%03d" % i))
        found = s.read("a", EVERYTHING)
        assert isinstance(found, Found)
        names.append(found.generation)
    assert len(set(names)) == len(names)
    assert s.read("a", EVERYTHING, generation=names[-1]) is CHANGED
    settled = s.read("a", EVERYTHING)
    assert isinstance(settled, Found)
    assert isinstance(s.read("a", EVERYTHING, generation=settled.generation), Found)
    assert settled.generation not in names


@pytest.mark.usefixtures("fat")
def test_one_writer_rewrites_without_waiting(s: SyncStorage, clock: Clock) -> None:
    s.put("a", b"0")
    for i in range(1, 10):
        found = s.read("a", EVERYTHING)
        assert isinstance(found, Found)
        s.compose("a", found.generation, [CopiedRange(0, i), NewBytes(b"%d" % i)], UNCONDITIONAL)
        assert not clock.slept
        with pytest.raises(ConditionFailed):
            s.compose("a", found.generation, [CopiedRange(0, 1)], UNCONDITIONAL)  # it is longer by now
        clock.slept.clear()
    assert s.get("a") == b"0123456789"


@pytest.mark.usefixtures("fat")
def test_a_writer_is_warned_or_refused(tmp_path: Path, clock: Clock) -> None:
    store = shardstore.open(str(tmp_path / "a"), chunks_per_shard=(4,), fsync=False)
    array = zarr.create_array(store, name="x", shape=(16,), chunks=(2,), dtype="u1")
    with pytest.warns(RuntimeWarning, match="offers no compare-and-swap"):
        array[...] = np.arange(16)
    again = zarr.open_array(shardstore.open(str(tmp_path / "a")), path="x", mode="r")
    assert np.array_equal(again[...], np.arange(16))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        strict = zarr.open_array(shardstore.open(str(tmp_path / "a"), require_atomic=True), path="x", mode="r+")
        with pytest.raises(Unsupported, match="no compare-and-swap"):
            strict[0] = 1


@pytest.mark.usefixtures("fat")
@pytest.mark.filterwarnings("ignore:.*offers no compare-and-swap:RuntimeWarning")
def test_chunks_of_one_shard_are_written_one_by_one_there(tmp_path: Path, clock: Clock) -> None:
    store = shardstore.open(str(tmp_path / "a"), chunks_per_shard=(8,), fsync=False)
    array = zarr.create_array(store, name="x", shape=(16,), chunks=(2,), dtype="u1", compressors=None)
    for i in range(16):  # half a chunk each: read, and written
        array[i] = i + 1
        assert array[i] == i + 1
    assert np.array_equal(array[...], np.arange(1, 17))


@pytest.mark.usefixtures("fat")
def test_a_mark_is_no_condition_for_a_mount_below_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """The root keeps times, and a directory below it does not: a swap waits until it can be told, and is never guessed."""
    monkeypatch.setattr("shardstore.storage.local.storage.names_versions", lambda root: True)
    s = SyncStorage(LocalStorage(tmp_path, fsync=False))
    stale = s.put("a", b"1")
    s.put("a", b"2")
    with pytest.raises(ConditionFailed):
        s.put("a", b"3", IfGeneration(stale))
    clock.sleep(3)
    found = s.read("a", EVERYTHING)
    assert isinstance(found, Found)
    s.put("a", b"4", IfGeneration(found.generation))
    with pytest.raises(ConditionFailed):
        s.put("a", b"5", IfGeneration(found.generation))
    assert s.get("a") == b"4"


# -- readers and writers of shards -------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["rewrite", "append"])
def test_an_index_is_never_believed_of_the_next_version(
    strategy: Literal["rewrite", "append"], tmp_path: Path, whole_seconds: CoarseTimes
) -> None:
    check_readers_of_swapped_chunks(tmp_path, strategy)


# -- what is found out -------------------------------------------------------------------------------------------------


def test_what_a_directory_tells(tmp_path: Path) -> None:
    missing = str(tmp_path / "not/there/yet")
    assert names_versions(str(tmp_path))
    assert names_versions(missing)
    (tmp_path / "file").write_bytes(b"")
    assert names_versions(str(tmp_path / "file/below"))
    for granularity_ns in (10**7, SECOND, 2 * SECOND):
        with CoarseTimes(granularity_ns, has_attributes=False):
            assert not names_versions(str(tmp_path))
            assert not names_versions(missing)
        if has_attributes(tmp_path):
            with CoarseTimes(granularity_ns):
                assert names_versions(missing)
    with CoarseTimes(100, has_attributes=False):
        assert names_versions(missing)


def test_times_are_drawn_once_and_never_whole_microseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_700_000_000_123_456_789
    given = iter((5_123, 5_199, 5_000, 6_099, 5_200, 5_101, 999_999))
    monkeypatch.setattr("secrets.randbelow", lambda below: next(given))
    start = 1_700_000_000_123_000_000
    assert [local_versions._draw(now) for _ in range(3)] == [start + 5_123, start + 5_200, start + 999_999]


def test_only_times_of_both_kinds_that_are_whole_let_a_mark_be_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"1")
    asked: list[str] = []
    monkeypatch.setattr(local_versions, "_mark_of", asked.append)
    second = 1_700_000_000 * SECOND
    for mtime, ctime, looks in ((0, 0, 1), (10**6, 1000, 1), (0, 999, 0), (1000, 0, 0), (100, 100, 0)):
        asked.clear()
        times = {"st_mtime_ns": second + mtime, "st_ctime_ns": second + ctime}
        generation_of(os.stat_result(tuple(os.stat(path))[:10], times), str(path))
        assert len(asked) == looks


def test_a_name_is_settled_by_age_alone(tmp_path: Path, fat: CoarseTimes, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"1")
    status = os.stat(path)
    names: dict[float, Generation] = {}
    for age in (-3, -1, 0, 1.9, 2.04, 2.06, 100):
        monkeypatch.setattr(local_versions, "time_ns", lambda age=age: status.st_ctime_ns + round(age * 1e9))
        names[age] = generation_of(status, str(path))
    assert [isinstance(name, Unsettled) for name in names.values()] == [False, True, True, True, True, False, False]
    assert names[-3] == names[2.06] == names[100]
    assert re.fullmatch(r"unsettled(-[0-9a-f]+){6}", names[0].token)
    for mtime_age, is_settled in ((-2, False), (-3, True), (2, False), (3, True)):  # of a file that was made long ago, as its ctime tells
        times = {"st_mtime_ns": status.st_ctime_ns + (100 - mtime_age) * SECOND, "st_ctime_ns": status.st_ctime_ns}
        name = generation_of(os.stat_result(tuple(status)[:10], times), str(path))
        assert isinstance(name, Unsettled) is not is_settled
    there = pickle.loads(pickle.dumps(names[0]))
    assert (there, type(there), there.digest) == (names[0], Unsettled, 0)
