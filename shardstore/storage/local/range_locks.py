"""Locks that hold between machines: ranges of bytes in one hidden file of each directory.

A network file system may show a file for some time after another machine has removed it. So the lock file of a directory stays as
long as there is anything else in the directory, and an object's lock is one byte of the lock file, at the hash of the object's name.
The lock belongs to the open file, not to the process (Linux: ``F_OFD_SETLKW``): threads exclude each other as well, the system releases
it when the holder dies, and closing another descriptor of the file does not.

A directory that has nothing else left gives its lock file up, or it could never be removed. Only a process that holds the whole file
may do that. Every process that gets a lock opens the name once more, which asks the server, to check that the name still belongs to
this file.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from shardstore.errors import StorageError, Unsupported
from shardstore.storage.local.files import LOCK_SUFFIX, share_as_directory
from shardstore.storage.local.locks import close_locked, create_lock_file, open_lock_file, raise_if_refused, wait_for_lock

DIRECTORY_LOCK = LOCK_SUFFIX
"""Name of the file whose bytes are the locks of a directory's objects."""

_ATTEMPTS = 100  # another process may give the file up while this process opens it, each time only with the last object of the directory
_ALL = (0, 0)  # struct flock: a length of 0 reaches to the end of any file


def _place(path: str) -> tuple[int, int]:
    """Return offset (below 2**62) and length of the byte that is the lock of the object at ``path``."""
    digest = hashlib.sha256(os.fsencode(os.path.basename(path))).digest()
    return int.from_bytes(digest[:8], "big") % 2**62, 1


if sys.platform == "linux":
    import fcntl

    def _lock(fd: int, name: str, kind: int, place: tuple[int, int], wait: bool = True) -> bool:
        """Set or clear a lock; return ``False`` if another holds it and ``wait`` is not set."""
        # struct flock: type, whence, start, length, process (0 for locks of open files).
        request = struct.pack("hhqqi0q", kind, os.SEEK_SET, *place, 0)
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, request)
        except BlockingIOError:
            return False
        except OSError as exc:
            if not wait and exc.errno == errno.EACCES:  # POSIX allows this answer as well
                return False
            raise_if_refused(exc, name)
            raise
        return True

    @contextmanager
    def locked_range(path: str) -> Iterator[None]:
        """Hold the lock of the object at ``path``; waits for it, blocking the thread.

        Raises:
            FileNotFoundError: the directory of ``path`` does not exist.
            StorageError: the file system has no such locks, or the interpreter is ending while another process holds the lock.
        """
        name = os.path.join(os.path.dirname(path), DIRECTORY_LOCK)
        fd = _acquire(name, _place(path))
        try:
            yield
        finally:
            _let_go(fd, name, _place(path))

    def give_up(directory: str) -> bool:
        """Remove the lock file of a directory that holds nothing else, if its locks are free; return whether it was removed."""
        name = os.path.join(directory, DIRECTORY_LOCK)
        try:
            fd = open_lock_file(name, writable=True)
        except OSError:  # there is none, or it is not ours to remove
            return False
        try:
            if (
                not _lock(fd, name, fcntl.F_WRLCK, _ALL, wait=False)
                or not _still_bears(fd, name)
                or os.listdir(directory) != [DIRECTORY_LOCK]
            ):
                return False
            os.unlink(name)
        except OSError:  # it stays: a directory that is not removed does no harm
            return False
        finally:
            _let_go(fd, name, _ALL)
        return True

    def _acquire(name: str, place: tuple[int, int]) -> int:
        for _ in range(_ATTEMPTS):
            fd = _open(name)
            try:
                if not _lock(fd, name, fcntl.F_WRLCK, place, wait=False):
                    wait_for_lock(fd, name, partial(_lock, name=name, kind=fcntl.F_WRLCK, place=place))
                if _still_bears(fd, name):
                    return fd
            except BaseException:
                _let_go(fd, name, place)
                raise
            close_locked(fd)
        raise StorageError(f"the lock file {name} keeps changing its inode number: this file system cannot be shared by writers")

    def _open(name: str) -> int:
        for _ in range(_ATTEMPTS):
            with suppress(FileNotFoundError):
                return open_lock_file(name, writable=True)
            with suppress(FileExistsError):
                return create_lock_file(name, lambda fd: share_as_directory(fd, os.path.dirname(name)))
        raise StorageError(f"the lock file {name} keeps appearing and disappearing: this file system cannot be shared by writers")

    def _still_bears(fd: int, name: str) -> bool:
        """Return whether ``fd`` is the file called ``name``. Opens the name: a cached answer to ``stat`` may be stale."""
        try:
            other = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return False
        try:
            named, mine = os.fstat(other), os.fstat(fd)
        except OSError as exc:
            if exc.errno == errno.ESTALE:  # removed by another machine
                return False
            raise
        finally:
            with suppress(OSError):
                os.close(other)
        return mine.st_nlink > 0 and os.path.samestat(named, mine)

    def _let_go(fd: int, name: str, place: tuple[int, int]) -> None:
        """Release the lock, and close the file. Never fails: nothing was written to a file that is only locked."""
        try:
            with suppress(OSError):
                # Explicitly: closing is not enough where a child that was forked just now still has the descriptor.
                _lock(fd, name, fcntl.F_UNLCK, place)
        finally:
            with suppress(OSError):
                close_locked(fd)

else:

    @contextmanager
    def locked_range(path: str) -> Iterator[None]:
        """Refuse: there are no locks of open files on this system."""
        raise Unsupported(f"locks that hold between machines are available on Linux only, not on {sys.platform}: {path} was not locked")
        yield

    def give_up(directory: str) -> bool:
        """Return ``False``: there are no such lock files on this system."""
        return False
