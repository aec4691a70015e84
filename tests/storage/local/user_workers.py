"""What users do to a directory that they share: run in children of ``tests.harness.crash``, as root, each of which becomes a user."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import closing

from shardstore.errors import ShardStoreError
from shardstore.model.generation import UNCONDITIONAL, IfGeneration
from shardstore.model.ranges import APPEND_PADDING_NBYTES, EVERYTHING, CopiedRange, NewBytes, Padding, Segment
from shardstore.storage.base import Found, Read
from shardstore.storage.local import locks as local_locks
from shardstore.storage.local import storage as local
from shardstore.storage.local.mounts import Mount
from shardstore.storage.local.rules import WriteRules
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.local.temporary import TemporaryFile
from tests.harness.crash import Child
from tests.limits import sweep_young_files

MODES = {"local": (False, False), "cluster": (False, True), "network": (True, False)}


def _become(user: int, umask: int, groups: tuple[int, ...] = ()) -> None:
    os.setgroups(list(groups))
    os.setgid(user)  # a group of its own
    os.setuid(user)
    os.umask(umask)
    local_locks.__dict__["_REFUSALS"] = 1  # nothing here is of an earlier version that lets go in a moment


def _storage(root: str, mode: str) -> LocalStorage:
    is_network, is_cluster = MODES[mode]
    local.__dict__["mount_of"] = lambda path: Mount("/", "nfs4") if is_network else None
    sweep_young_files()
    return LocalStorage(root, fsync=False, locks="cluster" if is_cluster else "auto")


def _acknowledge(child: Child, work: Callable[[], object]) -> None:
    """Tell what comes of it, or the error."""
    try:
        child.acknowledge(f"{work()}")
    except ShardStoreError as exc:
        child.acknowledge(f"{type(exc).__name__}: {exc}".replace("\n", " "))


async def _generation(storage: LocalStorage, key: str) -> Found:
    found = (await storage.read([Read(key, (EVERYTHING,))]))[0]
    assert isinstance(found, Found), found
    return found


async def _put(storage: LocalStorage, key: str, data: bytes) -> str:
    await storage.write(key, [data], len(data), UNCONDITIONAL)
    return "stored"


async def _append(storage: LocalStorage, key: str, data: bytes) -> str:
    old = await _generation(storage, key)
    segments: list[Segment] = [CopiedRange(0, old.nbytes), Padding(APPEND_PADDING_NBYTES), NewBytes(data)]
    await storage.compose(key, old.generation, segments, IfGeneration(old.generation))
    return "stored"


def put(child: Child, user: int, umask: int, root: str, key: str, data: bytes, mode: str, groups: tuple[int, ...] = ()) -> None:
    """Replace or create an object; its system calls are counted."""
    storage = _storage(root, mode)
    _become(user, umask, groups)
    with child.counted():
        _acknowledge(child, lambda: asyncio.run(_put(storage, key, data)))


def append(child: Child, user: int, umask: int, root: str, key: str, data: bytes, mode: str) -> None:
    """Append to an object; its system calls are counted."""
    storage = _storage(root, mode)
    _become(user, umask)
    with child.counted():
        _acknowledge(child, lambda: asyncio.run(_append(storage, key, data)))


def delete(child: Child, user: int, root: str, key: str, mode: str) -> None:
    storage = _storage(root, mode)
    _become(user, 0o022)
    _acknowledge(child, lambda: asyncio.run(storage.delete(key, UNCONDITIONAL)))


def sweep(child: Child, user: int, root: str, mode: str) -> None:
    """Acknowledges the number of files that were removed."""
    storage = _storage(root, mode)
    _become(user, 0o022)
    _acknowledge(child, lambda: asyncio.run(storage.sweep(0.0)))


def die_with_everything(child: Child, user: int, umask: int, root: str, key: str, mode: str) -> None:
    """Killed with an object's lock held, and a temporary file."""
    rules = WriteRules(root, False, *MODES[mode])
    _become(user, umask)
    path = os.path.join(root, key)
    with closing(TemporaryFile(path, key, rules)), rules.locked(path):
        os.kill(os.getpid(), signal.SIGKILL)


def increment(user: int, umask: int, path: str, mode: str, times: int) -> None:
    """Add to the number in a file, under its lock; in a process of its own."""
    rules = WriteRules(os.path.dirname(path), False, *MODES[mode])
    _become(user, umask)
    for _ in range(times):
        with rules.locked(path):
            with open(path) as file:
                number = int(file.read())
            with open(path, "w") as file:
                file.write(str(number + 1))
