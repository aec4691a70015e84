"""Lock files: made so that every user who may write in their directory can lock them, and opened so that nothing else is taken for one.

A lock file outlives a writer that is killed. It must not keep other users out, whatever the umask of that writer. So a lock file has
the permissions that it needs before it appears under its name: if the umask removes them, it gets them under another name first. To
lock a whole file (flock) it is enough to read it; to lock a range of it (fcntl) one has to write it.

A user who may write in the directory can put a link, a pipe or a device in a lock file's place. No link is followed, and nothing is
made at its target.
"""

from __future__ import annotations

import errno
import os
import stat as stat_modes
import sys
from collections.abc import Callable
from contextlib import suppress

from shardstore.errors import AccessDenied, StorageError
from shardstore.storage.local.names import temporary_path

_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_CREATE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS

_ATTEMPTS = 20  # a sweeper may take the file for one that was left behind, before it has its name
_READ_BY_ALL = 0o444

# What file systems without hard links answer to link(2): FAT, some FUSE and network ones.
NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)

_KINDS = {
    stat_modes.S_IFLNK: "a symbolic link",
    stat_modes.S_IFDIR: "a directory",
    stat_modes.S_IFIFO: "a named pipe",
    stat_modes.S_IFSOCK: "a socket",
}

# A forked child inherits the descriptor, and with it a share in the lock, which would outlive a parent that dies. So children close theirs.
_held: set[int] = set()


def _close_inherited() -> None:
    for fd in tuple(_held):
        with suppress(OSError):
            os.close(fd)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)


def open_to_lock(name: str, flags: int, mode: int = 0o666) -> int:
    """Open a file to lock it, by a descriptor that forked children will not share; for ``close_locked``."""
    fd = os.open(name, flags, mode)
    _held.add(fd)
    return fd


def second_descriptor(fd: int) -> int:
    """Return another descriptor of the open file of ``open_to_lock``; for ``close_locked``."""
    second = os.dup(fd)
    _held.add(second)
    return second


def close_locked(fd: int) -> None:
    """Close a descriptor of ``open_to_lock`` or ``second_descriptor``."""
    _held.discard(fd)
    os.close(fd)


def open_lock_file(name: str, *, writable: bool = False) -> int:
    """Open the lock file ``name``, which exists; for ``close_locked``. Another user's is opened for reading, unless ``writable``.

    Raises:
        FileNotFoundError: the file is gone.
        StorageError: there is something of that name that is no file.
        AccessDenied: this user may not open it.
    """
    try:
        fd = _open_some_way(name, writable)
    except PermissionError as exc:
        raise _denied(name, writable) from exc
    except OSError as exc:
        status = os.lstat(name)
        if stat_modes.S_ISREG(status.st_mode):
            raise
        raise _no_file(name, status) from exc
    try:
        status = os.fstat(fd)
        if not stat_modes.S_ISREG(status.st_mode):
            raise _no_file(name, status)
    except BaseException:
        close_locked(fd)
        raise
    return fd


def _open_some_way(name: str, writable: bool) -> int:
    try:
        return open_to_lock(name, os.O_RDWR | _FLAGS)
    except PermissionError:
        if writable:
            raise
    return open_to_lock(name, os.O_RDONLY | _FLAGS)


def _no_file(name: str, status: os.stat_result) -> StorageError:
    kind = _KINDS.get(stat_modes.S_IFMT(status.st_mode), "a device")
    return StorageError(f"{name} is {kind}, where only a lock file of shardstore belongs; nothing was written. Remove it, and write again")


def _denied(name: str, writable: bool) -> AccessDenied:
    whose, right = "of another user", "a+rw" if writable else "a+r"
    with suppress(OSError):
        status = os.lstat(name)
        whose = f"of user {status.st_uid} with mode {stat_modes.S_IMODE(status.st_mode):04o}"
    how = "for writing " if writable else ""
    return AccessDenied(
        f"the lock file {name}, {whose}, cannot be opened {how}by this user, so that nothing was written. As its owner or as root, "
        f"'chmod {right}' it, or remove it when no process writes there"
    )


def create_lock_file(name: str, grant: Callable[[int], None]) -> int:
    """Create the lock file ``name``; for ``close_locked``. ``grant`` gives it its permissions, before anybody can see it under that name.

    Raises:
        FileExistsError: there is something of that name.
        FileNotFoundError: its directory does not exist.
    """
    attempts = 0
    while True:
        attempts += 1
        temp = temporary_path(name)
        fd = open_to_lock(temp, _CREATE_FLAGS)
        try:
            grant(fd)
            os.link(temp, name)
        except OSError as exc:
            close_locked(fd)
            if exc.errno in NO_HARD_LINKS:
                return _create_at_once(name, grant)
            if not isinstance(exc, FileNotFoundError) or attempts == _ATTEMPTS:
                raise
        except BaseException:
            close_locked(fd)
            raise
        else:
            return fd
        finally:
            with suppress(OSError):  # swept up later
                os.unlink(temp)


def _create_at_once(name: str, grant: Callable[[int], None]) -> int:
    fd = open_to_lock(name, _CREATE_FLAGS)
    try:
        grant(fd)
    except BaseException:
        close_locked(fd)
        raise
    return fd


class ReadableFiles:
    """Creates files that everybody can read, and so lock as a whole; in one step as long as this process's umask leaves that right."""

    def __init__(self) -> None:
        self._umask_hides = True  # until a file has shown otherwise

    def create(self, name: str) -> int:
        """Create a lock file, as ``create_lock_file`` does; the caller hands the descriptor to ``check``."""
        return create_lock_file(name, self._grant) if self._umask_hides else open_to_lock(name, _CREATE_FLAGS)

    def check(self, fd: int, status: os.stat_result) -> None:
        """Check by the status of an open lock file that the umask has not changed; a file of this user's is made readable.

        A file that has another name too keeps its permissions: it may be a private one, to which another user has made a link here.
        """
        if status.st_mode & _READ_BY_ALL == _READ_BY_ALL or status.st_nlink > 1 or sys.platform == "win32":
            return
        with suppress(OSError):  # another user's, or a file system without permissions
            os.chmod(fd, stat_modes.S_IMODE(status.st_mode) | _READ_BY_ALL)
            self._umask_hides = True

    def _grant(self, fd: int) -> None:
        status = os.fstat(fd)
        self._umask_hides = False
        self.check(fd, status)
