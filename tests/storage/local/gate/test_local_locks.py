"""Locks of local files: on this machine's file systems, on network mounts, and with ``locks="cluster"``."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import fsspec.asyn
import pytest

import shardstore
from shardstore.errors import InvalidInput, StorageError, Unsupported
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL, IfGeneration
from shardstore.model.ranges import EVERYTHING, CopiedRange, NewBytes
from shardstore.opening.open import open_storage
from shardstore.storage.base import Changed, ConditionFailed
from shardstore.storage.local import locks as local_locks
from shardstore.storage.local import range_locks as local_range_locks
from shardstore.storage.local import rules as local_rules
from shardstore.storage.local import temporary as local_temporary
from shardstore.storage.local.files import LOCK_SUFFIX, TEMP_SUFFIX, lock_path
from shardstore.storage.local.mounts import Mount
from shardstore.storage.local.range_locks import DIRECTORY_LOCK, give_up
from shardstore.storage.local.rules import Locks, WriteRules
from shardstore.storage.local.storage import LocalStorage
from shardstore.testing.storage_suite import StorageSuite, SyncStorage
from tests.storage.local.on_disk import NETWORK, files_below, mount_everything, start
from tests.storage.local.test_local import increment_often

MODES = {"local": (False, False), "local cluster": (False, True), "network": (True, False), "network cluster": (True, True)}


def rules_of(mode: str, root: Path) -> WriteRules:
    is_network, is_cluster = MODES[mode]
    return WriteRules(str(root), False, is_network, is_cluster)


@pytest.fixture(params=MODES)
def rules(request: pytest.FixtureRequest, tmp_path: Path) -> WriteRules:
    return rules_of(request.param, tmp_path)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LocalStorage:
    """A storage whose root looks as if it lay on a network file system."""
    mount_everything(monkeypatch, NETWORK)
    return LocalStorage(tmp_path / "root", fsync=False)


@pytest.fixture
def n(network: LocalStorage) -> SyncStorage:
    return SyncStorage(network)


class TestLocksOfACluster(StorageSuite):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> LocalStorage:
        return LocalStorage(tmp_path / "root", fsync=False, locks="cluster")


class TestNetworkMount(StorageSuite):
    """Where locks are those of a cluster without being asked for."""

    @pytest.fixture
    def storage(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStorage:
        mount_everything(monkeypatch, NETWORK)
        return LocalStorage(tmp_path / "root", fsync=False)


# -- exclusion ---------------------------------------------------------------------------------------------------------


def test_a_lock_excludes_threads(rules: WriteRules, tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    count = 0

    def work() -> None:
        nonlocal count
        for _ in range(50):
            with rules.locked(path):
                seen = count
                time.sleep(0)
                count = seen + 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count == 400
    # The lock of an object is gone with it; that of a directory stays as long as the directory.
    assert files_below(tmp_path) == ([DIRECTORY_LOCK] if rules.is_network or rules.is_cluster else [])
    assert not local_locks._held


def is_free(rules: WriteRules, path: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the lock can be had without waiting."""

    class Held(Exception):
        pass

    flock, fcntl_, here = fcntl.flock, fcntl.fcntl, threading.get_ident()

    def flock_at_once(fd: int, operation: int) -> None:
        is_ours = threading.get_ident() == here
        try:
            flock(fd, operation | (fcntl.LOCK_NB if is_ours else 0))
        except BlockingIOError:
            if not is_ours:
                raise
            raise Held from None

    def fcntl_at_once(fd: int, command: int, argument: Any) -> Any:
        is_ours = threading.get_ident() == here
        try:
            return fcntl_(fd, fcntl.F_OFD_SETLK if is_ours and command == fcntl.F_OFD_SETLKW else command, argument)
        except BlockingIOError:
            if not is_ours:
                raise
            raise Held from None

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", flock_at_once)
        patched.setattr(fcntl, "fcntl", fcntl_at_once)
        try:
            with rules.locked(path):
                return True
        except Held:
            return False


@pytest.mark.parametrize("second", MODES)
@pytest.mark.parametrize("first", MODES)
def test_who_excludes_whom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str) -> None:
    """All that see the mount alike; and a machine with ``cluster`` that exports what the others have mounted."""
    path = str(tmp_path / "a")
    with rules_of(first, tmp_path).locked(path):
        # A local holder does not know of the network, and has to be told: that is what the option is for.
        excluded = {first, second} not in ({"local", "network"}, {"local", "network cluster"})
        assert is_free(rules_of(second, tmp_path), path, monkeypatch) is not excluded
        assert is_free(rules_of(second, tmp_path), str(tmp_path / "b"), monkeypatch)
    assert is_free(rules_of(second, tmp_path), path, monkeypatch)


def test_a_killed_holder_blocks_nobody(rules: WriteRules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount_everything(monkeypatch, NETWORK if rules.is_network else None)
    s = SyncStorage(LocalStorage(tmp_path, locks="cluster" if rules.is_cluster else "auto"))
    s.put("a", b"1")
    code = (
        "import sys, time\n"
        "from shardstore.storage.local.rules import WriteRules\n"
        "rules = WriteRules('', False, *map(bool, map(int, sys.argv[2:])))\n"
        "with rules.locked(sys.argv[1]):\n    print('held', flush=True)\n    time.sleep(600)\n"
    )
    holder = start(code, str(tmp_path / "a"), str(int(rules.is_network)), str(int(rules.is_cluster)))
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    writing = asyncio.run_coroutine_threadsafe(s.storage.write("a", [b"2"], 1, UNCONDITIONAL), fsspec.asyn.get_loop())
    assert not is_free(rules, str(tmp_path / "a"), monkeypatch)
    assert not writing.done()
    assert s.get("a") == b"1"  # reads wait for no lock
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    writing.result(30)
    assert s.get("a") == b"2"
    assert not os.path.exists(lock_path(str(tmp_path / "a")))


def test_a_forked_child_does_not_hold_its_parents_locks(rules: WriteRules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock belongs to all who have the open file; a child may outlive a parent that is killed."""
    code = (
        "import os, sys, time, warnings\n"
        "from shardstore.storage.local.rules import WriteRules\n"
        "from shardstore.storage.local.temporary import TemporaryFile\n"
        "rules = WriteRules('', False, *map(bool, map(int, sys.argv[2:])))\n"
        "file = TemporaryFile(sys.argv[1], 'a', rules)\n"
        "with rules.locked(sys.argv[1]):\n"
        "    pid = os.fork()\n"
        "    if pid:\n        print(pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    holder = start(code, str(tmp_path / "a"), str(int(rules.is_network)), str(int(rules.is_cluster)))
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    try:
        assert not is_free(rules, str(tmp_path / "a"), monkeypatch)
        holder.kill()
        holder.wait()
        deadline = time.monotonic() + 60  # the child closes its copies as soon as it runs
        while not is_free(rules, str(tmp_path / "a"), monkeypatch) or [name for name in files_below(tmp_path) if name.endswith("-tmp")]:
            assert time.monotonic() < deadline
            local_rules.forget()
            local_rules.sweep_once(str(tmp_path), rules.is_network, network_age_seconds=0.0)
    finally:
        os.kill(child, signal.SIGKILL)
        holder.stdout.close()


def test_many_objects_of_a_directory_do_not_wait_for_each_other(tmp_path: Path) -> None:
    rules = rules_of("network", tmp_path)
    everybody = threading.Barrier(8, timeout=60)

    def hold(name: str) -> None:
        with rules.locked(str(tmp_path / name)):
            everybody.wait()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(hold, "abcdefgh"))


def increment_over_the_network(root: str, times: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        mount_everything(patched, NETWORK)
        increment_often(root, times)


def test_processes_race_over_the_network(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=increment_over_the_network, args=(str(root), 40)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
    assert [process.exitcode for process in processes] == [0] * 4
    assert files_below(root) == ["d", f"d/{DIRECTORY_LOCK}", "d/n"]
    assert (root / "d/n").read_bytes() == b"160"


# -- the lock file of a directory --------------------------------------------------------------------------------------


def test_an_emptied_directory_is_removed_with_its_lock_file(n: SyncStorage, tmp_path: Path) -> None:
    n.put("a/b/x", b"1")
    n.put("a/b/y", b"1")
    n.put("a/z", b"1")
    assert files_below(tmp_path / "root/a/b") == [DIRECTORY_LOCK, "x", "y"]
    n.delete("a/b/x")
    assert files_below(tmp_path / "root/a/b") == [DIRECTORY_LOCK, "y"]
    n.delete("a/b/y")
    assert files_below(tmp_path / "root/a") == [DIRECTORY_LOCK, "z"]
    assert n.keys() == ["a/z"]
    (tmp_path / "root/n/empty").mkdir(parents=True)
    (tmp_path / "root/n/empty" / DIRECTORY_LOCK).touch()  # its last user died before it could give it up
    assert n.rename_prefix("a", "n")
    assert n.keys() == ["n/z"]


def test_a_lock_file_in_use_is_not_given_up(tmp_path: Path) -> None:
    rules = rules_of("network", tmp_path)
    path = str(tmp_path / "d/a")
    (tmp_path / "d").mkdir()
    with rules.locked(path):
        assert not give_up(str(tmp_path / "d"))
    (tmp_path / "d/other").touch()
    assert not give_up(str(tmp_path / "d"))
    (tmp_path / "d/other").unlink()
    assert give_up(str(tmp_path / "d"))
    assert not give_up(str(tmp_path / "d"))
    assert files_below(tmp_path) == ["d"]


def test_who_gets_the_lock_of_a_file_that_was_given_up_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second holder would have the lock of the new file."""
    rules = rules_of("network", tmp_path)
    path, name = str(tmp_path / "a"), tmp_path / DIRECTORY_LOCK
    original = fcntl.fcntl
    removals = 2

    def late(fd: int, command: int, argument: Any) -> Any:
        nonlocal removals
        if command == fcntl.F_OFD_SETLK and removals:  # the first try, which does not wait
            removals -= 1
            os.unlink(name)
            if removals:
                name.touch()
        return original(fd, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", late)
    with rules.locked(path):
        assert not is_free(rules, path, monkeypatch)
    assert removals == 0


def test_a_lock_file_that_is_never_the_same_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_range_locks, "_still_bears", lambda fd, name: False)
    with pytest.raises(StorageError, match="cannot be shared"), rules_of("network", tmp_path).locked(str(tmp_path / "a")):
        pass
    assert not local_locks._held


def test_whoever_may_write_in_a_directory_may_lock(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        (tmp_path / "d").mkdir()
        (tmp_path / "d").chmod(0o775)
        with rules_of("network", tmp_path).locked(str(tmp_path / "d/a")):
            assert (tmp_path / "d" / DIRECTORY_LOCK).stat().st_mode & 0o777 == 0o664
    finally:
        os.umask(before)


# -- locks that are refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
@pytest.mark.parametrize("locks", ["auto", "cluster"])
@pytest.mark.parametrize("mount", [None, Mount("/scratch", "lustre")])
def test_refused_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: Mount | None, locks: Locks, number: int) -> None:
    mount_everything(monkeypatch, mount)
    (tmp_path / "a").write_bytes(b"old")
    s = SyncStorage(LocalStorage(tmp_path, locks=locks))

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    operations: list[Callable[[], object]] = [lambda: s.put("a", b"new"), lambda: s.put("b", b"new", IF_ABSENT), lambda: s.delete("a")]
    if mount is not None:  # where flock works, and the locks of ranges do not
        monkeypatch.setattr(fcntl, "fcntl", refuse)
        monkeypatch.setattr(local_temporary, "lock_whole", lambda fd, name: True)
    for operation in operations:
        with pytest.raises(StorageError, match="refuses to lock") as caught:
            operation()
        assert "-o flock" in str(caught.value)
        if mount is not None:
            assert "/scratch (lustre)" in str(caught.value)
    left = [name for name in files_below(tmp_path) if not (mount is not None or number == errno.ENOLCK) or not name.startswith(".")]
    assert left == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"
    assert not local_locks._held


# -- what is promised --------------------------------------------------------------------------------------------------


def write_a_chunk(root: Path, **options: Any) -> shardstore.ShardingTransformer:
    transformer = shardstore.ShardingTransformer(str(root), chunks_per_shard=(4,), **options)
    transformer.set(
        "a/zarr.json",
        b'{"zarr_format":3,"node_type":"array","shape":[8],"data_type":"uint8","chunk_grid":{"name":"regular","configuration":'
        b'{"chunk_shape":[1]}},"chunk_key_encoding":{"name":"default"},"fill_value":0,"codecs":[{"name":"bytes"}]}',
    )
    transformer.set("a/c/0", b"1")
    return transformer


def test_writing_to_a_network_mount_warns_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount_everything(monkeypatch, NETWORK)
    with pytest.warns(RuntimeWarning, match="locks='cluster'"):
        transformer = write_a_chunk(tmp_path)
    transformer.set("a/c/1", b"1")
    write_a_chunk(tmp_path / "b", locks="cluster", require_atomic=True)
    with pytest.raises(Unsupported, match="different machines"):
        write_a_chunk(tmp_path / "c", require_atomic=True)
    mount_everything(monkeypatch, Mount("/", "ext4"))
    write_a_chunk(tmp_path / "d", require_atomic=True)


def test_the_option_belongs_to_the_recipe(tmp_path: Path) -> None:
    plain, cluster = shardstore.get_mapper(str(tmp_path)), shardstore.get_mapper(str(tmp_path), locks="cluster")
    assert cluster != plain
    assert pickle.loads(pickle.dumps(cluster)) == cluster
    assert open_storage(str(tmp_path), locks="cluster") == LocalStorage(tmp_path, locks="cluster")
    assert open_storage((fsspec.filesystem("file"), str(tmp_path)), locks="cluster") == LocalStorage(tmp_path, locks="cluster")
    for target in (str(tmp_path), "memory://locks"):
        with pytest.raises(InvalidInput, match="'auto' nor 'cluster'"):
            shardstore.get_mapper(target, locks="yes")  # type: ignore[arg-type]  # refused
    filesystem = fsspec.filesystem("sharded", fo=str(tmp_path), locks="cluster")
    filesystem.pipe_file(f"{tmp_path}/x", b"1")
    assert files_below(tmp_path) == [DIRECTORY_LOCK, "x"]


def test_cluster_locks_need_linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(Unsupported, match="Linux"):
        LocalStorage(tmp_path, locks="cluster")


# -- caches of network file systems ------------------------------------------------------------------------------------


def test_conditions_are_checked_past_the_cache_of_attributes(n: SyncStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = n.put("a", b"old")
    path = str(tmp_path / "root/a")
    stat, cached = os.stat, os.stat(path)
    n.put("a", b"theirs")

    def stale(name: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        return cached if name == path else stat(name, *args, **kwargs)

    monkeypatch.setattr(os, "stat", stale)
    with pytest.raises(ConditionFailed):
        n.put("a", b"mine", IfGeneration(old))
    with pytest.raises(ConditionFailed):
        n.delete("a", IfGeneration(old))
    assert n.stat("a") is not None
    assert n.get("a") == b"theirs"


def test_others_see_a_name_only_when_the_server_has_all_bytes(n: SyncStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written goes to the server when the file is closed."""
    opened: list[str] = []  # but lock files, which stay open

    def watching(function: Callable[..., None]) -> Callable[..., None]:
        def call(source: str, target: str) -> None:
            links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
            names = [os.readlink(link) for link in links if os.path.lexists(link)]
            opened.extend(name for name in names if name.endswith(TEMP_SUFFIX) and LOCK_SUFFIX not in name)
            function(source, target)

        return call

    monkeypatch.setattr(os, "replace", watching(os.replace))
    monkeypatch.setattr(os, "link", watching(os.link))
    generation = n.put("a", b"1", IF_ABSENT)
    assert opened == []
    info = n.stat("a")
    assert info is not None
    assert info.generation == generation
    assert n.put("a", b"2", IfGeneration(generation)) != generation
    assert opened == []


def test_a_file_that_another_machine_replaces_while_it_is_read(n: SyncStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    old = n.put("a", b"0123")
    pread = os.pread
    times = 1

    def stale(fd: int, nbytes: int, offset: int) -> bytes:
        nonlocal times
        if times:
            times -= 1
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return pread(fd, nbytes, offset)

    monkeypatch.setattr(os, "pread", stale)
    assert n.get("a") == b"0123"
    times = 1
    assert n.read("a", EVERYTHING, generation=old) == Changed()
    monkeypatch.delattr(os, "copy_file_range")
    times = 1
    with pytest.raises(ConditionFailed):
        n.compose("a", old, [CopiedRange(0, 2), NewBytes(b"x")], IfGeneration(old))
    times = 1
    n.copy("a", "b")
    assert n.get("b") == b"0123"


@pytest.mark.parametrize("name", ["link", "replace"])
def test_a_request_that_is_carried_out_twice(n: SyncStorage, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Its answer was lost, and the second time there is nothing left to do."""
    once = getattr(os, name)

    def twice(source: str, target: str) -> None:
        once(source, target)
        once(source, target)

    if name == "link":
        monkeypatch.setattr(os, name, twice)
        generation = n.put("a", b"1", IF_ABSENT)
        with pytest.raises(ConditionFailed):
            n.put("a", b"2", IF_ABSENT)
        assert n.get("a") == b"1"
    else:
        old = n.put("a", b"1")
        monkeypatch.setattr(os, name, twice)
        generation = n.put("a", b"2", IfGeneration(old))
        assert n.get("a") == b"2"
    info = n.stat("a")
    assert info is not None
    assert info.generation == generation


def test_an_object_that_appears_from_elsewhere_is_not_taken_for_ones_own(
    n: SyncStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def late(source: str, target: str) -> None:
        Path(target).write_bytes(b"theirs")  # by a writer that takes no locks
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(ConditionFailed):
        n.put("a", b"mine", IF_ABSENT)
    assert n.get("a") == b"theirs"
    assert files_below(tmp_path / "root") == [DIRECTORY_LOCK, "a"]
