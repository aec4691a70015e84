"""A lock on one local object, exclusive between threads, processes and after crashes.

The lock is a hidden file next to the object. Its holder removes it before it releases the lock, so nothing is left behind, and the
system releases the lock of a holder that dies, so a file that was left behind blocks no process, whatever user made it.

This is exclusive, because a process that gets the lock of a file checks that this very file still has the name. The holder of the named
file is the only one who may remove the name; a waiter that gets the lock of a removed file sees that, and starts again.

Network file systems may show a removed file for some time: there ``range_locks`` is used.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from shardstore.errors import AccessDenied, StorageError
from shardstore.storage.local.lock_files import ReadableFiles, close_locked, open_lock_file
from shardstore.storage.local.mounts import mount_of
from shardstore.storage.local.names import lock_path
from shardstore.storage.local.waiting import wait_for_lock

if sys.platform == "win32":
    from filelock import FileLock
else:
    import fcntl

# What file systems without locks answer, or with all of them in use; EINVAL: a kernel that does not know this kind of lock.
_REFUSED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL)

_NO_LOCKS_AT_ALL = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)  # so no process holds one either

# Each time, another writer got the lock that was waited for, and removed it. Of 128 writers that race, none loses so often.
_ATTEMPTS = 10_000

# A writer of an earlier version, whose umask hides its lock file, lets go of it in a moment.
_REFUSALS = 100
_REFUSAL_SECONDS = 0.01

_readable = ReadableFiles()


def is_called(mine: os.stat_result, name: str) -> bool:
    """Return whether the open file with the status ``mine`` is the one called ``name`` now."""
    try:
        named = os.stat(name, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, mine)


def raise_if_refused(exc: OSError, name: str) -> None:
    """Raise an error with advice if the file system has no lock for the file ``name``."""
    if exc.errno not in _REFUSED:
        return
    mount = mount_of(name)
    raise StorageError(
        f"the file system at {mount or os.path.dirname(name)} refuses to lock files ({exc.strerror}), and without locks writers would lose "
        "each other's chunks: nothing was written. Mount it with locks (Lustre: -o flock; NFS: without nolock, and with the server's "
        "lock manager running), or write elsewhere"
    ) from exc


if sys.platform == "win32":

    def lock_whole(fd: int, name: str, wait: bool = True) -> bool:
        """Do nothing: on this system a temporary file has no lock, since an open file cannot be removed."""
        return True

    @contextmanager
    def locked(path: str) -> Iterator[None]:
        """Hold the lock of an object, as on other systems; lock files stay, since an open file cannot be removed."""
        name = lock_path(path)
        os.stat(os.path.dirname(name))  # FileLock would make the directory
        with FileLock(name):
            yield

else:

    def lock_whole(fd: int, name: str, wait: bool = True) -> bool:
        """Lock the open file ``fd``, called ``name``, exclusively; ``False`` if it is another's and ``wait`` is not set.

        Raises:
            StorageError: the file system has no locks.
        """
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        except OSError as exc:
            raise_if_refused(exc, name)
            raise
        return True

    @contextmanager
    def locked(path: str) -> Iterator[None]:
        """Hold the lock of the object at ``path``; waits for it, blocking the thread.

        Raises:
            FileNotFoundError: the directory of ``path`` does not exist.
            StorageError: the file system has no locks, or the interpreter is ending while another process holds the lock.
        """
        name = lock_path(path)
        fd = _acquire(name)
        try:
            yield
        finally:
            remove_locked(fd, name)

    def remove_locked(fd: int, name: str) -> bool:
        """Remove the file ``name``, whose lock ``fd`` holds, release the lock, and return whether the file was removed.

        Never fails. A file stays if it is another user's in a directory with the sticky bit; without its lock it blocks no process.
        """
        try:
            os.unlink(name)
        except OSError:
            return False
        finally:
            unlock(fd)
        return True

    def unlock(fd: int) -> None:
        """Release the lock, and close the file. Never fails: nothing was written to a file that is only locked."""
        try:
            with suppress(OSError):
                # Explicitly: closing is not enough where a child that was forked just now still has the descriptor.
                fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            with suppress(OSError):
                close_locked(fd)

    def _acquire(name: str) -> int:
        """Return a descriptor of the file called ``name``, exclusively locked."""
        refusals = 0
        for _ in range(_ATTEMPTS):
            try:
                fd = _open(name)
            except AccessDenied:
                refusals += 1
                if refusals > _REFUSALS:
                    raise
                time.sleep(_REFUSAL_SECONDS)
                continue
            if fd is None:
                continue
            try:
                if not lock_whole(fd, name, wait=False):
                    wait_for_lock(fd, name, partial(lock_whole, name=name))
                status = os.fstat(fd)
                _readable.check(fd, status)
                if is_called(status, name):
                    return fd
            except BaseException as exc:
                if isinstance(exc.__cause__, OSError) and exc.__cause__.errno in _NO_LOCKS_AT_ALL:
                    with suppress(OSError):
                        os.unlink(name)
                unlock(fd)
                raise
            close_locked(fd)
        raise StorageError(
            f"the lock file {name} keeps changing its inode number, so locks do not work on this file system: nothing was written. "
            "Write elsewhere"
        )

    def _open(name: str) -> int | None:
        """Return a descriptor of the lock file, which is new or was made by another writer; ``None`` if its holder just removes it."""
        try:
            return _readable.create(name)
        except FileExistsError:
            pass
        try:
            return open_lock_file(name)
        except FileNotFoundError:
            return None
