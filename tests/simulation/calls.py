"""System calls of the simulated disk: those of ``os`` and ``fcntl`` that name a path below ``ROOT``, or a descriptor of a file there.

Each call takes time, and other processes run meanwhile. A process that has died makes none: what its last instructions ask for is not done.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import random
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from unittest import mock

from greenlet import GreenletExit

from shardstore.storage.local import locks, range_locks, rules, versions
from shardstore.storage.local import storage as local_storage
from shardstore.storage.local.locks import ReadableFiles
from shardstore.storage.local.mounts import Mount
from tests.simulation.disk import Disk, Inode, OpenFile, failure
from tests.simulation.loop import Process, SimulationLoop, current_process

ROOT = "/simulated"
_FIRST_DESCRIPTOR = 1_000_000


@dataclass(frozen=True, slots=True)
class Habits:
    """The habits of a disk and its kernel: the probabilities are for each call."""

    mean_seconds: float = 1e-4
    switches: float = 0.5
    """How probable it is that others run before a call."""
    fails: float = 0.0
    """The disk answers with an error, and nothing was done."""
    short: float = 0.0
    """A write takes only some of the bytes."""


FAULTS = ("fails", "short", "full", "power")


@dataclass
class Calls:
    """The system calls of all processes of one world."""

    loop: SimulationLoop
    disk: Disk
    rng: random.Random
    habits: Habits = field(default_factory=Habits)
    mount: Mount | None = None
    faults: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    is_full: bool = False
    """While this is true nothing can be added."""
    awaited_sync: asyncio.Future[None] | None = None
    """Gets its result when one of the next syncs begins of a file that is changed in place; that sync waits then."""
    _files: dict[int, OpenFile] = field(default_factory=dict)
    _next: int = _FIRST_DESCRIPTOR

    # -- being in place ------------------------------------------------------------------------------------------------

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let ``os``, ``fcntl`` and ``time.sleep`` be those of this world, and what modules remember be each process's own."""
        with ExitStack() as stack:
            patched = stack.enter_context
            for name in _BY_PATH_OR_FILE:
                patched(mock.patch.object(os, name, self._instead_of(os, name)))
            for name in _QUESTIONS:
                patched(mock.patch.object(os.path, name, self._instead_of(os.path, name, "path_")))
            patched(mock.patch.object(os, "supports_fd", os.supports_fd | {os.utime}))
            for name in ("flock", "fcntl"):
                patched(mock.patch.object(fcntl, name, self._instead_of(fcntl, name)))
            patched(mock.patch.object(time, "sleep", self.loop.sleep_here))
            patched(mock.patch.object(versions, "sleep", self.loop.sleep_here))
            patched(mock.patch.object(versions, "time_ns", self._time_ns))
            patched(mock.patch.object(local_storage, "mount_of", self._mount_of))
            for module in (locks, range_locks):
                patched(mock.patch.object(module, "wait_for_lock", lambda fd, name, lock: lock(fd)))
            patched(mock.patch.object(rules.kept_names, "_objects", {}))
            patched(mock.patch.object(rules.kept_names, "_below", {}))
            patched(mock.patch.object(rules, "_swept", {}))
            patched(mock.patch.object(locks, "_readable", ReadableFiles()))
            patched(mock.patch.object(versions, "_drawn", versions._drawn))
            self.loop.entering = _remember_as
            yield

    @staticmethod
    def _time_ns() -> int:
        return time.time_ns()

    def _mount_of(self, path: str) -> Mount | None:
        return self.mount

    def _instead_of(self, module: ModuleType, name: str, prefix: str = "") -> Callable[..., Any]:
        real, ours = getattr(module, name), getattr(self, f"_{prefix}{name}")

        def call(first: Any, *more: Any, **options: Any) -> Any:
            if (isinstance(first, int) and first >= _FIRST_DESCRIPTOR) or (isinstance(first, str) and _is_here(first)):
                return ours(first, *more, **options)
            return real(first, *more, **options)

        return call

    def _enter(self, *, adds: bool = False, synced: Inode | None = None, may_fail: bool = True) -> None:
        """Let a call begin: others may run first, and it may fail."""
        process = current_process()
        if process is not None and not process.is_alive:
            raise GreenletExit
        self.calls += 1
        habits = self.habits
        awaited = None if synced is None or not self.disk.is_changed_in_place(synced) else self.awaited_sync
        if awaited is not None and not awaited.done() and self.rng.random() < 0.4:
            awaited.set_result(None)
        if awaited is not None or self.rng.random() < habits.switches:
            self.loop.sleep_here(self.rng.expovariate(1 / habits.mean_seconds), or_not=True)
        if may_fail and habits.fails and self.rng.random() < habits.fails:
            self.faults["fails"] += 1
            raise failure(errno.EIO)
        if adds and self.is_full:
            self.faults["full"] += 1
            raise failure(errno.ENOSPC)

    def end(self, process: Process | None = None) -> None:
        """Close what a process, or every one, has open: it has died."""
        for fd, file in list(self._files.items()):
            if (process is None or file.owner is process) and fd in self._files:
                self._close_now(fd)

    # -- files ---------------------------------------------------------------------------------------------------------

    def _file(self, fd: int) -> OpenFile:
        if fd not in self._files:
            raise failure(errno.EBADF)
        return self._files[fd]

    def _inode(self, file: int | str) -> Inode:
        return self._file(file).inode if isinstance(file, int) else self.disk.find(_inside(file))

    def _open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: None = None) -> int:
        creates = bool(flags & os.O_CREAT)
        self._enter(adds=creates)
        try:
            inode = self.disk.find(_inside(path))
        except FileNotFoundError:
            if not creates:
                raise
            inode = self.disk.create(_inside(path), is_directory=False)
        else:
            if creates and flags & os.O_EXCL:
                raise failure(errno.EEXIST, path)
        if inode.is_directory and flags & (os.O_WRONLY | os.O_RDWR):
            raise failure(errno.EISDIR, path)
        if not inode.is_directory and flags & os.O_DIRECTORY:
            raise failure(errno.ENOTDIR, path)
        self._files[self._next] = self.disk.opened(inode, current_process())
        self._next += 1
        return self._next - 1

    def _close(self, fd: int) -> None:
        process = current_process()
        if process is not None and not process.is_alive:
            raise GreenletExit
        self._file(fd)
        self._close_now(fd)

    def _close_now(self, fd: int) -> None:
        self.disk.closed(self._files.pop(fd))

    def _dup(self, fd: int) -> int:
        file = self._file(fd)
        file.descriptors += 1
        self._files[self._next] = file
        self._next += 1
        return self._next - 1

    def _lseek(self, fd: int, offset: int, whence: int) -> int:
        file = self._file(fd)
        file.position = {os.SEEK_SET: 0, os.SEEK_CUR: file.position}[whence] + offset
        return file.position

    def _pread(self, fd: int, nbytes: int, offset: int) -> bytes:
        self._enter()
        return bytes(self._inode(fd).content.data[offset : offset + nbytes])

    def _preadv(self, fd: int, buffers: Sequence[memoryview], offset: int, flags: int = 0) -> int:
        self._enter()
        done = 0
        for buffer in buffers:
            data = self._inode(fd).content.data[offset + done : offset + done + len(buffer)]
            memoryview(buffer).cast("B")[: len(data)] = data
            done += len(data)
        return done

    def _write(self, fd: int, data: Any) -> int:
        return self._writev(fd, [data])

    def _writev(self, fd: int, buffers: Sequence[Any]) -> int:
        file = self._file(fd)
        done = self._pwritev(fd, buffers, file.position)
        file.position += done
        return done

    def _pwritev(self, fd: int, buffers: Sequence[Any], offset: int) -> int:
        self._enter(adds=True)
        data = b"".join(map(bytes, buffers))
        if len(data) > 1 and self.habits.short and self.rng.random() < self.habits.short:
            self.faults["short"] += 1
            data = data[: self.rng.randrange(1, len(data))]
        self.disk.write(self._inode(fd), offset, data)
        return len(data)

    def _copy_file_range(self, source: int, target: int, nbytes: int, offset: int) -> int:
        data = self._pread(source, nbytes, offset)
        return self._write(target, data) if data else 0

    def _ftruncate(self, fd: int, nbytes: int) -> None:
        self._enter()
        self.disk.truncate(self._inode(fd), nbytes)

    def _fsync(self, fd: int) -> None:
        self._enter(synced=self._inode(fd))
        self.disk.sync(self._inode(fd))

    def _fdatasync(self, fd: int) -> None:
        self._enter(synced=self._inode(fd))
        self.disk.sync(self._inode(fd), only_data=True)

    def _posix_fadvise(self, fd: int, *_: int) -> None:
        self._file(fd)

    # -- status --------------------------------------------------------------------------------------------------------

    def _stat(self, file: int | str, *, dir_fd: None = None, follow_symlinks: bool = True) -> os.stat_result:
        self._enter(may_fail=False)
        return self.disk.status(self._inode(file))

    def _lstat(self, path: str, *, dir_fd: None = None) -> os.stat_result:
        return self._stat(path)

    def _fstat(self, fd: int) -> os.stat_result:
        return self._stat(fd)

    def _utime(self, file: int | str, times: None = None, *, ns: tuple[int, int]) -> None:
        self._enter()
        self.disk.set_times(self._inode(file), ns[1])

    def _chmod(self, file: int | str, mode: int, **_: Any) -> None:
        self._enter()
        self.disk.set_mode(self._inode(file), mode)

    def _chown(self, file: int | str, user: int, group: int, **_: Any) -> None:
        self._enter()

    def _check_attributes(self) -> None:
        if not self.disk.has_attributes:
            raise failure(errno.EOPNOTSUPP)

    def _getxattr(self, file: int | str, name: str, *, follow_symlinks: bool = True) -> bytes:
        self._enter(may_fail=False)
        self._check_attributes()
        value = self._inode(file).content.attributes.get(name)
        if value is None:
            raise failure(errno.ENODATA)
        return value

    def _setxattr(self, file: int | str, name: str, value: bytes, flags: int = 0, *, follow_symlinks: bool = True) -> None:
        inode = self._inode(file)
        self._enter(adds=name not in inode.content.attributes)
        self._check_attributes()
        if flags & os.XATTR_CREATE and name in inode.content.attributes:
            raise failure(errno.EEXIST)
        self.disk.set_attribute(inode, name, bytes(value))

    def _removexattr(self, file: int | str, name: str, *, follow_symlinks: bool = True) -> None:
        self._enter()
        self._check_attributes()
        self.disk.set_attribute(self._inode(file), name, None)

    # -- names ---------------------------------------------------------------------------------------------------------

    def _unlink(self, path: str, *, dir_fd: None = None) -> None:
        self._enter()
        self.disk.unlink(_inside(path))

    def _rmdir(self, path: str, *, dir_fd: None = None) -> None:
        self._enter()
        self.disk.rmdir(_inside(path))

    def _mkdir(self, path: str, mode: int = 0o777, *, dir_fd: None = None) -> None:
        self._enter(adds=True)
        self.disk.create(_inside(path), is_directory=True)

    def _makedirs(self, path: str, mode: int = 0o777, exist_ok: bool = False) -> None:
        above = os.path.dirname(path)
        if _is_here(above) and not os.path.exists(above):
            self._makedirs(above, exist_ok=exist_ok)
        try:
            self._mkdir(path)
        except FileExistsError:
            if not exist_ok or not os.path.isdir(path):
                raise

    def _rename(self, path: str, new: str, **_: Any) -> None:
        self._enter()
        self.disk.rename(_inside(path), _inside(new))

    def _replace(self, path: str, new: str, **_: Any) -> None:
        self._rename(path, new)

    def _link(self, path: str, new: str, **_: Any) -> None:
        self._enter(adds=True)
        self.disk.link(_inside(path), _inside(new))

    def _listdir(self, path: str) -> list[str]:
        self._enter()
        return list(self._directory(path).names)

    def _directory(self, path: str) -> Inode:
        inode = self._inode(path)
        if not inode.is_directory:
            raise failure(errno.ENOTDIR, path)
        return inode

    def _scandir(self, path: str) -> _Entries:
        self._enter()
        return _Entries([_Entry(self, path, name, inode) for name, inode in self._directory(path).names.items()])

    def _walk(self, top: str, **_: Any) -> Iterator[tuple[str, list[str], list[str]]]:
        try:
            with self._scandir(top) as entries:
                found = list(entries)
        except OSError:
            return
        directories = [entry.name for entry in found if entry.is_dir()]
        yield top, directories, [entry.name for entry in found if not entry.is_dir()]
        for name in directories:
            yield from self._walk(os.path.join(top, name))

    # -- questions of os.path, which take more or fewer calls from one Python to the next ------------------------------

    def _path_kind(self, path: str) -> bool | None:
        """Return whether there is a directory; ``None`` if there is nothing."""
        self._enter(may_fail=False)
        try:
            return self._inode(path).is_directory
        except OSError:
            return None

    def _path_exists(self, path: str) -> bool:
        return self._path_kind(path) is not None

    def _path_lexists(self, path: str) -> bool:
        return self._path_kind(path) is not None

    def _path_isdir(self, path: str) -> bool:
        return self._path_kind(path) is True

    def _path_isfile(self, path: str) -> bool:
        return self._path_kind(path) is False

    def _path_islink(self, path: str) -> bool:
        return False

    def _path_realpath(self, path: str, **_: Any) -> str:
        return os.path.normpath(path)

    def _path_getsize(self, path: str) -> int:
        return self._stat(path).st_size

    # -- locks ---------------------------------------------------------------------------------------------------------

    def _flock(self, fd: int, operation: int) -> None:
        self._enter(may_fail=False)
        file = self._file(fd)
        if operation & fcntl.LOCK_UN:
            self.disk.release(file)
            return
        while file.inode.lock not in (None, file):
            if operation & fcntl.LOCK_NB:
                raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
            self.loop.park_here(file.inode.waiting.append)
        file.inode.lock = file

    def _fcntl(self, fd: int, command: int, request: bytes) -> None:
        """Set or clear a lock of a range, which belongs to the open file."""
        self._enter(may_fail=False)
        kind, _, start, nbytes, _ = struct.unpack("hhqqi0q", request)
        file, end = self._file(fd), start + nbytes if nbytes else 2**63
        if kind == fcntl.F_UNLCK:
            self.disk.release(file, start, end)
            return
        while any(start < theirs_end and theirs < end and whose is not file for theirs, theirs_end, whose in file.inode.ranges):
            if command == fcntl.F_OFD_SETLK:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            self.loop.park_here(file.inode.waiting.append)
        file.inode.ranges.append((start, end, file))


@dataclass
class _Entry:
    """An entry of a directory, as ``os.scandir`` shows it."""

    calls: Calls
    directory: str
    name: str
    inode: Inode

    @property
    def path(self) -> str:
        return os.path.join(self.directory, self.name)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self.inode.is_directory

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return not self.inode.is_directory

    def is_symlink(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path)


class _Entries:
    """The entries of a directory, once."""

    def __init__(self, entries: list[_Entry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[_Entry]:
        return self._entries

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        """Do nothing."""


_BY_PATH_OR_FILE = (
    *(
        "open",
        "close",
        "dup",
        "lseek",
        "pread",
        "preadv",
        "write",
        "writev",
        "pwritev",
        "copy_file_range",
        "ftruncate",
        "fsync",
        "fdatasync",
    ),
    *(
        "posix_fadvise",
        "stat",
        "lstat",
        "fstat",
        "utime",
        "chmod",
        "chown",
        "getxattr",
        "setxattr",
        "removexattr",
        "unlink",
        "rmdir",
        "mkdir",
    ),
    *("makedirs", "rename", "replace", "link", "listdir", "scandir", "walk"),
)
_QUESTIONS = ("exists", "lexists", "isdir", "isfile", "islink", "realpath", "getsize")


def _is_here(path: str) -> bool:
    return path == ROOT or path.startswith(ROOT + "/")


def _inside(path: str) -> str:
    return path[len(ROOT) :] or "/"


def _remember_as(process: Process) -> None:
    """Let modules remember what this process has found out, and no other."""
    names = rules.kept_names
    if not process.remembers:
        process.remembers = {"objects": {}, "below": {}, "swept": {}, "readable": ReadableFiles(), "drawn": deque(maxlen=64)}
    names._objects, names._below = process.remembers["objects"], process.remembers["below"]
    rules._swept, locks._readable, versions._drawn = (process.remembers[name] for name in ("swept", "readable", "drawn"))
