"""The status of local files, and the meaning of the system's errors about them; all in the calling thread."""

from __future__ import annotations

import errno
import os
import stat as stat_modes
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from shardstore.errors import AccessDenied, InvalidInput, NoSpace, ShardStoreError, StorageError
from shardstore.storage.base import LeadsNowhere, in_its_place
from shardstore.storage.room import FULL_ERRNOS

# Without O_NONBLOCK, opening a named pipe that someone put there would wait for ever; regular files ignore it.
READ_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


UPDATE_FLAGS = READ_FLAGS & ~os.O_RDONLY | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)
"""How files that exist are opened to be changed in place: no link is followed."""

VIEWS_A_CALL = 1024
"""The most buffers that one call writes: as many as Linux and macOS take."""


def translated(exc: OSError, key: str, action: str) -> ShardStoreError:
    """Return the error to raise, from ``exc``, if ``action`` on the object at ``key`` failed."""
    reason = exc.strerror or str(exc)
    where = f", in {os.path.dirname(exc.filename)}" if isinstance(exc.filename, str) else ""
    if isinstance(exc, PermissionError):
        denied = exc.filename2 or exc.filename
        return AccessDenied(f"{action} {key!r}: the operating system denied access to {denied or 'it'}{_why_sticky(exc.errno, denied)}")
    if exc.errno == errno.ENAMETOOLONG:
        return InvalidInput(f"{action} {key!r}: a part of the key, or the whole path, is longer than the file system allows")
    if isinstance(exc, NotADirectoryError | FileExistsError):
        link = f", or a link that leads nowhere, as {exc.filename} does" if where and os.path.islink(exc.filename) else ""
        return StorageError(f"{action} {key!r}: a part of the path above it is a file already{link}, so it cannot be a directory{where}")
    if isinstance(exc, IsADirectoryError):
        return StorageError(f"{action} {key!r}: there is a directory of this name")
    return (NoSpace if exc.errno in FULL_ERRNOS else StorageError)(f"{action} {key!r} failed: {reason}{where}")


@contextmanager
def translating(key: str, action: str) -> Iterator[None]:
    """Raise the system's errors in a ``with`` block as ``translated`` gives them."""
    try:
        yield
    except ShardStoreError:
        raise
    except OSError as exc:
        raise translated(exc, key, action) from exc


def _why_sticky(number: int | None, path: object) -> str:
    """Return the text to add if a file cannot be replaced or removed because of its directory's sticky bit."""
    if number == errno.EPERM and isinstance(path, str):
        with suppress(OSError):
            directory, file = os.stat(os.path.dirname(path)), os.lstat(path)
            if directory.st_mode & stat_modes.S_ISVTX:
                return (
                    f": its directory has the sticky bit, so that only the file's owner, user {file.st_uid}, can replace or remove it. "
                    "Allow it by 'chmod -t' on the directory"
                )
    return ""


# -- one file ----------------------------------------------------------------------------------------------------------


def pread(fd: int, nbytes: int, offset: int) -> bytes:
    """Read exactly ``nbytes``, or fewer if the file ends before."""
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


def unwritten(views: list[memoryview], nbytes: int) -> list[memoryview]:
    """Return the rest of ``views`` after ``nbytes`` of them were written."""
    done = 0
    while done < len(views) and nbytes >= len(views[done]):
        nbytes -= len(views[done])
        done += 1
    rest = views[done:]
    if nbytes:
        rest[0] = rest[0][nbytes:]
    return rest


_SPECIAL = {
    stat_modes.S_IFIFO: "a named pipe",
    stat_modes.S_IFSOCK: "a socket",
    stat_modes.S_IFCHR: "a device",
    stat_modes.S_IFBLK: "a device",
}


def special_file(status: os.stat_result) -> str | None:
    """Return what a file is that is neither an object nor a directory, as ``"a named pipe"``; ``None`` for an object or a directory."""
    return _SPECIAL.get(stat_modes.S_IFMT(status.st_mode))


def is_object(path: str, status: os.stat_result, key: str | None = None) -> bool:
    """Return whether the file with this status is an object; a directory is none. ``key`` is what errors name besides the path.

    Raises:
        StorageError: it is a named pipe, a socket or a device. To take it for absent would lose what should be there.
    """
    if stat_modes.S_ISREG(status.st_mode):
        return True
    if (what := special_file(status)) is not None:
        raise in_its_place(os.path.basename(path) if key is None else key, what, f", {path}")
    return False


def stat_file(path: str, key: str | None = None) -> os.stat_result | None:
    """Return the status of the object at ``path``, or ``None``. Raises ``StorageError`` as ``is_object`` does."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        if exc.errno == errno.ENAMETOOLONG:
            return None
        raise
    return status if is_object(path, status, key) else None


def missing(path: str, what: str) -> LeadsNowhere | None:
    """Return the error of a path at which there is nothing, if that is for a link on the way to it, or at it, which leads to what is not
    there, such as a disk that is not mounted. ``None``: there is no such object.
    """
    at = path
    while (mode := _mode(at)) is None:
        above = os.path.dirname(at)
        if above == at:
            return None
        at = above
    if not stat_modes.S_ISLNK(mode) or os.path.exists(at):
        return None
    return LeadsNowhere(f"{what}: {at} is a link to what is not there: make that reachable again, or remove the link")


def _mode(path: str) -> int | None:
    try:
        return os.lstat(path).st_mode
    except OSError:
        return None


def fresh_status(path: str) -> os.stat_result | None:
    """Return the status as ``stat_file`` does, by opening the file: then a network file system asks its server, where ``stat`` may answer
    from a cache.
    """
    try:
        fd = os.open(path, READ_FLAGS)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:  # who may not read it may replace it nevertheless
        return stat_file(path)
    except OSError as exc:
        if exc.errno == errno.ENAMETOOLONG:
            return None
        if exc.errno == errno.ENXIO:  # a socket, or a device that is not there
            return stat_file(path)
        raise
    try:
        status = os.fstat(fd)
    finally:
        with suppress(OSError):  # nothing was written to it
            os.close(fd)
    return status if is_object(path, status) else None


def fsync_file(path: str) -> None:
    """Make the bytes, times and attributes of a file survive the loss of power."""
    if os.name != "posix":  # where a descriptor for reading cannot be flushed
        return
    fd = os.open(path, READ_FLAGS)
    try:
        os.fsync(fd)
    finally:
        with suppress(OSError):  # nothing was written to it
            os.close(fd)


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
        with suppress(OSError):  # nothing was written to it
            os.close(fd)
