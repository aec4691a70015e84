"""Operations on one local file, in the thread that calls them: the parts that ``LocalStorage`` runs in its pools.

A reader opens a file once, so that all it reads is one inode; a writer fills a temporary file beside the object and puts
it in the object's place in one step, under the object's lock.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import socket
import stat as stat_modes
import time
from collections.abc import Iterable
from contextlib import suppress

from shardstore.errors import AccessDenied, InvalidInput, ShardStoreError, StorageError
from shardstore.model.generation import Condition, Generation, IfAbsent, IfGeneration
from shardstore.model.ranges import resolve
from shardstore.storage.base import ABSENT, CHANGED, ConditionFailed, Failed, Found, Read, ReadOutcome
from shardstore.storage.local_locks import LOCK_SUFFIX, locked

TEMP_SUFFIX = ".shardstore-tmp"

_COPY_BUFFER_BYTES = 1 << 20
_COPY_CALL_BYTES = 1 << 30  # the kernel stops a little below 2 GiB in any case
PARENT_ATTEMPTS = 20  # others may remove empty directories while this process makes them
_READ_ATTEMPTS = 3

# Without O_NONBLOCK, opening a named pipe that someone put there would wait for ever; regular files ignore it.
READ_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_CREATE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


# What file systems without hard links answer to link(2): FAT, some FUSE and network ones.
_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def is_reserved(name: str) -> bool:
    """Whether ``name`` is that of a lock or temporary file: never an object."""
    return name.startswith(".") and name.endswith((LOCK_SUFFIX, TEMP_SUFFIX))


def generation_of(status: os.stat_result) -> Generation:
    """The version of a file: what cannot stay the same when the bytes change (see ``_stamp_mtime``)."""
    numbers = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return Generation("-".join(format(number, "x") for number in numbers))


def translated(exc: OSError, key: str, action: str) -> ShardStoreError:
    """The error to raise, from ``exc``, where ``action`` on the object at ``key`` failed."""
    reason = exc.strerror or str(exc)
    where = f", in {os.path.dirname(exc.filename)}" if isinstance(exc.filename, str) else ""
    if isinstance(exc, PermissionError):
        return AccessDenied(f"{action} {key!r}: the operating system denied access to {exc.filename or 'it'}")
    if exc.errno == errno.ENAMETOOLONG:
        return InvalidInput(f"{action} {key!r}: a part of the key, or the whole path, is longer than the file system allows")
    if isinstance(exc, NotADirectoryError | FileExistsError):
        return StorageError(f"{action} {key!r}: a part of the path above it is a file already, so it cannot be a directory{where}")
    if isinstance(exc, IsADirectoryError):
        return StorageError(f"{action} {key!r}: there is a directory of this name")
    return StorageError(f"{action} {key!r} failed: {reason}{where}")


# -- reading -----------------------------------------------------------------------------------------------------------


def _pread(fd: int, nbytes: int, offset: int) -> bytes:
    """Exactly ``nbytes``, or fewer where the file ends."""
    if not hasattr(os, "pread"):  # Windows; the descriptor is ours alone
        os.lseek(fd, offset, os.SEEK_SET)
        with os.fdopen(os.dup(fd), "rb") as file:
            return file.read(nbytes)
    data = os.pread(fd, nbytes, offset)
    if len(data) == nbytes or not data:
        return data
    pieces = [data]
    done = len(data)
    while done < nbytes and (data := os.pread(fd, nbytes - done, offset + done)):
        pieces.append(data)
        done += len(data)
    return b"".join(pieces)


def same_bytes(before: os.stat_result, after: os.stat_result) -> bool:
    """Whether an open file was left alone. Giving it another name, or taking one, changes nothing but its ctime."""
    if generation_of(before) == generation_of(after):
        return True
    return before.st_nlink != after.st_nlink and (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)


def _read_once(path: str, read: Read) -> ReadOutcome:
    fd = os.open(path, READ_FLAGS)
    try:
        status = os.fstat(fd)
        if not stat_modes.S_ISREG(status.st_mode):
            return ABSENT
        generation = generation_of(status)
        if read.generation is not None and read.generation != generation:
            return CHANGED
        buffers = []
        for request in read.ranges:
            wanted = resolve(request, status.st_size)
            nbytes = wanted.end - wanted.start
            data = _pread(fd, nbytes, wanted.start) if nbytes else b""
            if len(data) != nbytes:
                return CHANGED
            buffers.append(memoryview(data))
        # Our own writers replace files; but others may write in place, and that shows here.
        if not same_bytes(status, os.fstat(fd)):
            return CHANGED
        return Found(generation, status.st_size, tuple(buffers))
    finally:
        os.close(fd)


def read_file(path: str, read: Read) -> ReadOutcome:
    """All ranges of ``read`` from one open file, whose path is ``path``."""
    try:
        for _ in range(_READ_ATTEMPTS):
            outcome = _read_once(path, read)
            if outcome is not CHANGED or read.generation is not None:
                break
        return outcome
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return ABSENT
    except OSError as exc:
        if exc.errno == errno.ENAMETOOLONG:  # no object can have this name
            return ABSENT
        error = translated(exc, read.key, "reading")
        error.__cause__ = exc
        return Failed(error)


def stat_file(path: str) -> os.stat_result | None:
    """The status of the object at ``path``, or ``None``: directories and devices are no objects."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        if exc.errno == errno.ENAMETOOLONG:
            return None
        raise
    return status if stat_modes.S_ISREG(status.st_mode) else None


# -- temporary files ---------------------------------------------------------------------------------------------------


def _host_token() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]


def _temp_name(name: str) -> str:
    """``.{start of name}.{host}-{pid}.{random}.shardstore-tmp``; cut, so that it is never too long."""
    stem = os.fsencode(name)[:64].decode("utf-8", "ignore")
    return f".{stem}.{_host_token()}-{os.getpid()}.{secrets.token_hex(6)}{TEMP_SUFFIX}"


def is_stale(name: str, status: os.stat_result, older_than_seconds: float) -> bool:
    """Whether the temporary file ``name`` is old, and its writer is not known to live."""
    if not name.endswith(TEMP_SUFFIX) or time.time() - status.st_mtime < older_than_seconds:
        return False
    host, _, pid = name.removesuffix(TEMP_SUFFIX).rpartition(".")[0].rpartition(".")[2].partition("-")
    if not pid.isdecimal():
        return False
    return host != _host_token() or not _is_alive(int(pid))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it exists, and is not ours
        return True
    return True


def fsync_directory(path: str) -> None:
    """Make the names in a directory survive the loss of power."""
    if os.name != "posix":
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as exc:
        if exc.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems on which directories need none
            raise
    finally:
        os.close(fd)


class TemporaryFile:
    """A new version of the object at ``path``, until it is published or discarded. One thread at a time uses it."""

    def __init__(self, path: str, key: str, fsync: bool) -> None:
        self._path = path
        self._key = key
        self._fsync = fsync
        self._parent, name = os.path.split(path)
        self._temp = os.path.join(self._parent, _temp_name(name))
        self._new_parents: list[str] = []
        self._fd = self._create()

    def _create(self) -> int:
        for attempt in range(PARENT_ATTEMPTS):
            try:
                return os.open(self._temp, _CREATE_FLAGS, 0o666)
            except FileNotFoundError:
                # The first write here; or someone deleted the last object here and pruned the directory again.
                if attempt == PARENT_ATTEMPTS - 1:
                    raise
                self._make_parents()
        raise AssertionError("unreachable")

    def _make_parents(self) -> None:
        missing = self._parent
        while not os.path.isdir(missing):
            self._new_parents.append(missing)
            missing = os.path.dirname(missing)
        with suppress(FileNotFoundError):  # pruned while it was being made: the next attempt makes it again
            os.makedirs(self._parent, exist_ok=True)

    def append(self, views: Iterable[memoryview]) -> None:
        for view in views:
            while view:
                view = view[os.write(self._fd, view) :]

    def copy(self, source: int, offset: int, nbytes: int) -> None:
        """Append bytes of the open file ``source``, inside the kernel where it can. Raises ``EOFError`` where it ends."""
        while nbytes and hasattr(os, "copy_file_range"):
            try:
                done = os.copy_file_range(source, self._fd, min(nbytes, _COPY_CALL_BYTES), offset)
            except OSError as exc:
                if exc.errno not in (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
                    raise
                break
            if not done:
                raise EOFError(f"{self._key!r} ended at byte {offset} while it was being copied")
            offset, nbytes = offset + done, nbytes - done
        while nbytes:
            data = _pread(source, min(nbytes, _COPY_BUFFER_BYTES), offset)
            if not data:
                raise EOFError(f"{self._key!r} ended at byte {offset} while it was being copied")
            self.append([memoryview(data)])
            offset, nbytes = offset + len(data), nbytes - len(data)

    def _stamp_mtime(self) -> None:
        """Give this version a modification time of its own.

        An inode number is used again as soon as a file is gone, and the kernel's clock for timestamps ticks every few
        milliseconds: two versions of equal length, written one after the other, can agree in everything that ``stat``
        shows. So the nanoseconds below a millisecond are drawn at random.
        """
        now = time.time_ns()
        mtime = now - now % 1_000_000 + secrets.randbelow(1_000_000)
        os.utime(self._fd if os.utime in os.supports_fd else self._temp, ns=(now, mtime))

    def publish(self, condition: Condition) -> Generation:
        """Make this the object. Raises ``ConditionFailed``, and leaves the old one, where ``condition`` does not hold."""
        self._stamp_mtime()
        if self._fsync:
            os.fsync(self._fd)
        # Unconditional writes take the lock as well: one of them between another writer's check and its replacing would be lost,
        # although it came after that check.
        with locked(self._path):
            check(self._path, self._key, condition)
            if isinstance(condition, IfAbsent):
                try:
                    os.link(self._temp, self._path)  # fails where a writer that takes no locks was faster
                except FileExistsError as exc:
                    raise ConditionFailed(f"{self._key!r} exists") from exc
                except OSError as exc:
                    if exc.errno not in _NO_HARD_LINKS:
                        raise
                    os.replace(self._temp, self._path)  # it was absent, and who writes through shardstore waits for the lock
                else:
                    os.unlink(self._temp)
            else:
                os.replace(self._temp, self._path)
            self._temp = ""
            if self._fsync:
                self._sync_names()
            # Last: a new name changes the ctime, which belongs to the generation.
            return generation_of(os.fstat(self._fd))

    def _sync_names(self) -> None:
        fsync_directory(self._parent)
        for made in self._new_parents:
            fsync_directory(os.path.dirname(made))

    def close(self) -> None:
        """Let go; what was not published is removed."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._temp:
            with suppress(FileNotFoundError):
                os.unlink(self._temp)
            self._temp = ""


# -- replacing and removing --------------------------------------------------------------------------------------------


def check(path: str, key: str, condition: Condition) -> bool:
    """Whether there is an object, under its lock. Raises ``ConditionFailed`` where ``condition`` does not hold."""
    status = stat_file(path)
    if isinstance(condition, IfAbsent):
        if status is not None:
            raise ConditionFailed(f"{key!r} exists")
        if os.path.lexists(path):
            raise StorageError(f"{key!r} cannot be created: there is a directory, or something else that is no object, of this name")
    if isinstance(condition, IfGeneration) and (status is None or generation_of(status) != condition.generation):
        raise ConditionFailed(f"{key!r} is not the version that was asked for")
    return status is not None


def delete_file(path: str, key: str, condition: Condition, root: str, fsync: bool) -> bool:
    """Remove the object, and directories below ``root`` that this leaves empty; ``False`` where there was none."""
    if stat_file(path) is None:
        return False
    try:
        # Unconditional deletes take the lock too: a removal between another writer's check and its replacing would be undone.
        with locked(path):
            if stat_file(path) is None:
                return False
            check(path, key, condition)
            os.unlink(path)
            if fsync:
                fsync_directory(os.path.dirname(path))
    except FileNotFoundError:
        return False
    prune(os.path.dirname(path), root)
    return True


def prune(directory: str, root: str) -> None:
    """Remove ``directory`` and its parents below ``root`` as long as they are empty."""
    while len(directory) > len(root) and directory.startswith(root):
        try:
            os.rmdir(directory)
        except OSError:  # not empty, or a writer was faster, or not ours to remove: an empty directory does no harm
            return
        directory = os.path.dirname(directory)
