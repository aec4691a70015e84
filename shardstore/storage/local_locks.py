"""A lock on one local object, exclusive between threads, processes and after crashes.

The lock is a hidden file beside the object. Its holder removes it before letting go, so nothing is left behind, and the
system releases the lock of a holder that dies, so a file that was left behind blocks nobody.

Why that is exclusive: whoever gets the lock of a file checks that this very file still bears the name. The holder of the
named file is the only one who may remove the name; a waiter that gets the lock of a removed file sees that, and starts again.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

if sys.platform == "win32":
    from filelock import FileLock
else:
    import fcntl

LOCK_SUFFIX = ".shardstore-lock"

# File names have at most 255 bytes on nearly every system; longer stems than this are named by their hash.
_MAX_STEM_BYTES = 255 - len("." + LOCK_SUFFIX)

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


if sys.platform == "win32":

    @contextmanager
    def locked(path: str) -> Iterator[None]:
        """As below, but lock files stay: an open file cannot be removed there."""
        name = lock_path(path)
        os.stat(os.path.dirname(name))  # FileLock would make the directory
        with FileLock(name):
            yield

else:

    @contextmanager
    def locked(path: str) -> Iterator[None]:
        """Hold the lock of the object at ``path``; waits for it, blocking the thread.

        Raises ``FileNotFoundError`` where the directory of ``path`` does not exist.
        """
        name = lock_path(path)
        fd = _acquire(name)
        try:
            yield
        finally:
            try:
                with suppress(FileNotFoundError):
                    os.unlink(name)
            finally:
                # Explicitly: closing is not enough where a child that was forked just now still has the descriptor.
                fcntl.flock(fd, fcntl.LOCK_UN)
                _held.discard(fd)
                os.close(fd)

    def _acquire(name: str) -> int:
        """A descriptor of the file that bears ``name``, exclusively locked."""
        while True:
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            _held.add(fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                if _bears(fd, name):
                    return fd
            except BaseException:
                _held.discard(fd)
                os.close(fd)
                raise
            _held.discard(fd)
            os.close(fd)

    def _bears(fd: int, name: str) -> bool:
        """Whether the open file ``fd`` is the one called ``name`` now."""
        mine = os.fstat(fd)
        try:
            named = os.stat(name, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return (named.st_dev, named.st_ino) == (mine.st_dev, mine.st_ino)
