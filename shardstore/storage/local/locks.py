"""A lock on one local object, exclusive between threads, processes and after crashes.

The lock is a hidden file next to the object. Its holder removes it before it releases the lock, so nothing is left behind, and the
system releases the lock of a holder that dies, so a file that was left behind blocks no process, whatever user made it.

This is exclusive, because a process that gets the lock of a file checks that this very file still has the name. The holder of the named
file is the only one who may remove the name; a waiter that gets the lock of a removed file sees that, and starts again.

Network file systems may show a removed file for some time: there ``range_locks`` is used.

A lock file outlives a writer that is killed. It must not keep other users out, whatever the umask of that writer. So a lock file has
the permissions that it needs before it appears under its name: if the umask removes them, it gets them under another name first. To
lock a whole file (flock) it is enough to read it; to lock a range of it (fcntl) one has to write it. A user who may write in the
directory can put a link, a pipe or a device in a lock file's place. No link is followed, and nothing is made at its target.

A system call that waits for a lock cannot be broken off from another thread, and the interpreter joins the threads of pools before it
ends. So a thread of a pool never waits in that call itself: a daemon thread does, which the interpreter leaves behind, with a second
descriptor of the same open file. Both kinds of lock, flock and ranges of open files, belong to the open file, so any descriptor of
it will do.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat as stat_modes
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from functools import partial

from shardstore.errors import AccessDenied, StorageError
from shardstore.storage.local.files import lock_path, temporary_path
from shardstore.storage.local.mounts import mount_of
from shardstore.tasks import leave_to_main_thread

# -- lock files --------------------------------------------------------------------------------------------------------


_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_CREATE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS

_NAME_ATTEMPTS = 20  # a sweeper may take the file for one that was left behind, before it has its name
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
            if not isinstance(exc, FileNotFoundError) or attempts == _NAME_ATTEMPTS:
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
        if status.st_mode & _READ_BY_ALL == _READ_BY_ALL or status.st_nlink > 1:
            return
        with suppress(OSError):  # another user's, or a file system without permissions
            os.chmod(fd, stat_modes.S_IMODE(status.st_mode) | _READ_BY_ALL)
            self._umask_hides = True

    def _grant(self, fd: int) -> None:
        status = os.fstat(fd)
        self._umask_hides = False
        self.check(fd, status)


# -- waiting for a lock ------------------------------------------------------------------------------------------------


_LOOK_SECONDS = 0.25  # between looks whether the interpreter is ending
_GRACE_SECONDS = 1.0  # a holder that works lets go within milliseconds


def wait_for_lock(
    fd: int, name: str, lock: Callable[[int], object], *, look_seconds: float = _LOOK_SECONDS, grace_seconds: float = _GRACE_SECONDS
) -> None:
    """Wait until ``lock``, a call that waits, has locked the open file ``fd``, called ``name``.

    Raises:
        StorageError: the interpreter is ending, and the holder of the lock has not let go within ``grace_seconds``.
    """
    second = second_descriptor(fd)
    locked: Future[None] = Future()

    def run() -> None:
        leave_to_main_thread()
        try:
            lock(second)
        except BaseException as exc:  # noqa: BLE001 - for the thread that waits for this one
            _close_second(second)
            locked.set_exception(exc)
        else:
            _close_second(second)  # the lock stays with the open file, which ``fd`` holds
            locked.set_result(None)

    threading.Thread(target=run, name="shardstore-lock", daemon=True).start()
    with closing(_Interpreter()) as interpreter:
        while not wait([locked], look_seconds).done:
            if interpreter.is_ending() and not wait([locked], grace_seconds).done:
                raise StorageError(
                    f"another process has held the lock {name} since this process began to exit: nothing was written. "
                    "Look whether a writer is stopped, or hangs"
                )
    locked.result()


class _Interpreter:
    """Notices that the interpreter has begun to end: from then on no pool accepts work."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "shardstore-ending", leave_to_main_thread)

    def is_ending(self) -> bool:
        try:
            self._pool.submit(time.monotonic)
        except RuntimeError:
            return True
        return False

    def close(self) -> None:
        self._pool.shutdown(wait=False)


def _close_second(fd: int) -> None:
    with suppress(OSError):  # nothing was written to a file that is only locked
        close_locked(fd)


# -- locks of objects --------------------------------------------------------------------------------------------------


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


def lock_whole(fd: int, name: str, wait: bool = True) -> bool:
    """Lock an open file; ``False`` if another holds it and not ``wait``. Raises ``StorageError`` if the file system has no locks."""
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
