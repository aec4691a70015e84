"""Every system call of every operation on local files fails once: a documented error, and the old or the new object, whole."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from shardstore.errors import StorageError
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL, Generation, IfGeneration
from shardstore.model.ranges import EVERYTHING, BytesLike, CopiedRange, NewBytes
from shardstore.storage.base import ConditionFailed, Found
from shardstore.storage.local import locks as local_locks
from shardstore.storage.local import rules as local_rules
from shardstore.storage.local.mounts import Mount
from shardstore.storage.local.range_locks import DIRECTORY_LOCK
from shardstore.storage.local.rules import Locks
from shardstore.storage.local.storage import LocalStorage
from shardstore.testing.storage_suite import SyncStorage, on_io_loop
from tests.harness.scale import moments
from tests.harness.system_calls import SystemCalls, fail
from tests.storage.local.on_disk import mount_everything

OLD = bytes(range(256)) * 12
OTHER = b"other"
NEW = b"new" * 1000
STATE = {"d/a": OLD, "d/b": OTHER, "e/alone": OLD}


@dataclass(frozen=True, slots=True)
class Operation:
    """What is done, and what is stored when it was; ``None``: nothing."""

    run: Callable[[SyncStorage, Generation], object]
    changes: dict[str, bytes | None]


async def body() -> AsyncIterator[BytesLike]:
    yield NEW[:1000]
    yield NEW[1000:]


async def delete_for_good(s: SyncStorage, *keys: str) -> None:
    assert isinstance(s.storage, LocalStorage)
    await s.storage.delete_for_good(keys)


OPERATIONS = {
    "create": Operation(lambda s, _: s.put("d/n", NEW, IF_ABSENT), {"d/n": NEW}),
    "create below": Operation(lambda s, _: s.put("x/y/n", NEW, IF_ABSENT), {"x/y/n": NEW}),
    "replace": Operation(lambda s, old: s.put("d/a", NEW, IfGeneration(old)), {"d/a": NEW}),
    "put": Operation(lambda s, _: s.put("d/a", NEW, UNCONDITIONAL), {"d/a": NEW}),
    "stream": Operation(lambda s, old: s.write("d/a", body(), len(NEW), IfGeneration(old)), {"d/a": NEW}),
    "compose": Operation(
        lambda s, old: s.compose("d/a", old, [CopiedRange(5, 1000), NewBytes(NEW), CopiedRange(0, 3)], IfGeneration(old)),
        {"d/a": OLD[5:1005] + NEW + OLD[:3]},
    ),
    "delete": Operation(lambda s, old: s.delete("d/a", IfGeneration(old)), {"d/a": None}),
    "delete the last": Operation(lambda s, _: s.delete("e/alone"), {"e/alone": None}),
    "delete many": Operation(lambda s, _: s.delete_many("d/a", "d/b"), {"d/a": None, "d/b": None}),
    "delete for good": Operation(lambda s, _: on_io_loop(delete_for_good(s, "d/a", "d/b")), {"d/a": None, "d/b": None}),
    "copy": Operation(lambda s, _: s.copy("d/a", "n/c"), {"n/c": OLD}),
    "rename": Operation(lambda s, _: s.rename_prefix("d", "f/g"), {"d/a": None, "d/b": None, "f/g/a": OLD, "f/g/b": OTHER}),
}
TOGETHER = {"rename"}  # all of its changes, or none


def fill(root: Path) -> None:
    for key, data in STATE.items():
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def stored(root: Path, key: str) -> bytes | None:
    path = root / key
    return path.read_bytes() if path.exists() else None


def hidden(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob(".*") if path.name != DIRECTORY_LOCK)


def check_outcome(root: Path, operation: Operation, done: bool, together: bool) -> None:
    """Each object is the old one or the new one, and the new one where it was said to be; the others are as they were."""
    changed = {key: stored(root, key) == new for key, new in operation.changes.items()}
    for key, is_new in changed.items():
        assert is_new or stored(root, key) == STATE.get(key), key
    if done:
        assert all(changed.values())
    if together:
        assert len(set(changed.values())) == 1
    for key in STATE.keys() - operation.changes.keys():
        assert stored(root, key) == STATE[key]


def check_writable(root: Path, storage: LocalStorage) -> None:
    """The next writer, of a new process and another day, finds no lock held, and leaves nothing hidden where it writes."""
    local_rules.forget()
    for name in hidden(root):
        os.utime(root / name, (0, 0))
    s = SyncStorage(LocalStorage(root, fsync=False, locks=storage.locks))
    for directory in [path for path in root.rglob("*") if path.is_dir()]:
        s.put(f"{directory.relative_to(root).as_posix()}/next", b"next")
    for key in ("d/a", "d/n", "x/y/n", "e/alone", "n/c", "f/g/a"):
        if stored(root, key) is not None:
            s.put(key, b"next")
    assert hidden(root) == []


@pytest.mark.parametrize(
    ("locks", "kind", "number"),
    [
        ("auto", "ext4", errno.EIO),
        ("auto", "ext4", errno.ENOSPC),
        ("auto", "ext4", errno.EACCES),
        ("cluster", "ext4", errno.EIO),
        ("auto", "nfs4", errno.EIO),
    ],
)
@pytest.mark.parametrize("name", OPERATIONS)
def test_at_every_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, locks: Locks, kind: str, number: int) -> None:
    mount_everything(monkeypatch, Mount("/", kind))
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # it is counted, and fails; nothing here loses power
    operation = OPERATIONS[name]
    calls: list[str] = []
    # The names above are flushed once: what is left to flush in each run are those below.
    SyncStorage(LocalStorage(tmp_path / "before", locks=locks)).put("x", b"1")
    for at in moments(itertools.count(1)):
        root = tmp_path / str(at)
        fill(root)
        local_rules.forget()
        storage = LocalStorage(root, locks=locks)
        s = SyncStorage(storage)
        found = s.read("d/a", EVERYTHING)
        assert isinstance(found, Found)
        descriptors = len(os.listdir("/proc/self/fd"))
        with SystemCalls(at, fail(number), threads="shardstore-write") as counted:
            try:
                done = operation.run(s, found.generation) is not False  # a rename may say that it cannot
            except (StorageError, ConditionFailed) as exc:
                assert counted.has_struck
                assert isinstance(exc, StorageError), counted.calls  # noqa: PT017  # nobody else is writing
                done = False
        assert len(os.listdir("/proc/self/fd")) <= descriptors, counted.calls
        assert not local_locks._held
        check_outcome(root, operation, done, name in TOGETHER)
        check_writable(root, storage)
        if not counted.has_struck:
            calls = counted.calls
            break
    assert len(calls) > 5


def test_what_a_write_costs(tmp_path: Path) -> None:
    """The system calls of a durable update, apart from the first in its directory."""
    s = SyncStorage(LocalStorage(tmp_path))
    old = s.put("a", b"1")
    with SystemCalls(threads="shardstore-write") as counted:
        s.put("a", b"2", IfGeneration(old))
    temporary = ["stat", "getxattr", "open", "flock", "fstat", "write", "utime", "fstat", "fsync"]
    lock = ["open", "flock", "fstat", "stat"]
    replace = ["stat", "replace", "open", "fsync", "close", "fstat"]
    assert counted.calls == [*temporary, *lock, *replace, "unlink", "flock", "close", "close"]
