"""A lock on one local object, exclusive between threads, processes and after crashes.

The lock is a hidden file beside the object. Its holder removes it before letting go, so nothing is left behind, and the
system releases the lock of a holder that dies, so a file that was left behind blocks nobody.

Why that is exclusive: whoever gets the lock of a file checks that this very file still bears the name. The holder of the
named file is the only one who may remove the name; a waiter that gets the lock of a removed file sees that, and starts again.

Network file systems may show a removed file for some time: there ``local_range_locks`` is used.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from shardstore.errors import StorageError
from shardstore.storage.local_mounts import mount_of

if sys.platform == "win32":
    from filelock import FileLock
else:
    import fcntl

LOCK_SUFFIX = ".shardstore-lock"

# File names have at most 255 bytes on nearly every system; longer stems than this are named by their hash.
_MAX_STEM_BYTES = 255 - len("." + LOCK_SUFFIX)

# What file systems without locks answer, or with all of them in use; EINVAL: a kernel that does not know this kind of lock.
_REFUSED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL)

_NO_LOCKS_AT_ALL = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)  # so nobody holds one either

# A forked child inherits the descriptor, and with it a share in the lock, which would outlive a parent that dies. So children close theirs.
_held: set[int] = set()


def _close_inherited() -> None:
    for fd in tuple(_held):
        with suppress(OSError):
            os.close(fd)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)


def lock_path(path: str) -> str:
    """The name of the lock file of the object at ``path``."""
    parent, name = os.path.split(path)
    stem = name
    if len(os.fsencode(name)) > _MAX_STEM_BYTES:
        stem = hashlib.sha256(os.fsencode(name)).hexdigest()
    return os.path.join(parent, f".{stem}{LOCK_SUFFIX}")


def open_to_lock(name: str, flags: int) -> int:
    """A descriptor that forked children will not share; for ``close_locked``."""
    fd = os.open(name, flags, 0o666)
    _held.add(fd)
    return fd


def close_locked(fd: int) -> None:
    """Close what ``open_to_lock`` opened."""
    _held.discard(fd)
    os.close(fd)


def bears(fd: int, name: str) -> bool:
    """Whether the open file ``fd`` is the one called ``name`` now."""
    mine = os.fstat(fd)
    try:
        named = os.stat(name, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (named.st_dev, named.st_ino) == (mine.st_dev, mine.st_ino)


def raise_if_refused(exc: OSError, name: str) -> None:
    """Raise what to say, and what to do, where the file system has no lock for the file ``name``."""
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
        """There a temporary file has no lock: an open file cannot be removed."""
        return True

    @contextmanager
    def locked(path: str) -> Iterator[None]:
        """As below, but lock files stay: an open file cannot be removed there."""
        name = lock_path(path)
        os.stat(os.path.dirname(name))  # FileLock would make the directory
        with FileLock(name):
            yield

else:

    def lock_whole(fd: int, name: str, wait: bool = True) -> bool:
        """Lock the open file ``fd``, called ``name``, exclusively; ``False`` where it is another's and ``wait`` is not set.

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
            StorageError: the file system has no locks.
        """
        name = lock_path(path)
        fd = _acquire(name)
        try:
            yield
        finally:
            remove_locked(fd, name)

    def remove_locked(fd: int, name: str) -> None:
        """Remove the file ``name``, whose lock ``fd`` holds, and let go. Never fails: what is left behind is swept up later."""
        try:
            with suppress(OSError):
                os.unlink(name)
        finally:
            unlock(fd)

    def unlock(fd: int) -> None:
        """Let go of the lock, and close. Never fails: nothing was written to a file that is only locked."""
        try:
            with suppress(OSError):
                # Explicitly: closing is not enough where a child that was forked just now still has the descriptor.
                fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            with suppress(OSError):
                close_locked(fd)

    def _acquire(name: str) -> int:
        """A descriptor of the file that bears ``name``, exclusively locked."""
        while True:
            fd = open_to_lock(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            try:
                lock_whole(fd, name)
                if bears(fd, name):
                    return fd
            except BaseException as exc:
                if isinstance(exc.__cause__, OSError) and exc.__cause__.errno in _NO_LOCKS_AT_ALL:
                    with suppress(OSError):
                        os.unlink(name)
                unlock(fd)
                raise
            close_locked(fd)
