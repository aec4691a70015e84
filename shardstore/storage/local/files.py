"""Local files one by one: names of hidden ones, status, permissions, flushing, and the meaning of the system's errors about them. All of it
is done in the calling thread.

A new version of an object is a new file that takes the old one's place. It has the permissions of the old one from before the first
byte is in it, as if the old one had been written to: owner, group, permission bits, and on Linux the access control list. Rights that this
user may not give are not given at all: if the group cannot be kept, the new file's group gets what everybody has. Only root keeps the
owner. Set-user-ID and set-group-ID bits are dropped, as a write drops them. The file's other extended attributes are not carried over: they
are about the old bytes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import socket
import stat as stat_modes
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from shardstore.errors import AccessDenied, InvalidInput, NoSpace, ShardStoreError, StorageError
from shardstore.storage.base import LeadsNowhere, in_its_place
from shardstore.storage.room import FULL_ERRNOS

# Names of the hidden files next to objects: locks, and new versions that are being written.
LOCK_SUFFIX = ".shardstore-lock"
TEMP_SUFFIX = ".shardstore-tmp"

# File names have at most 255 bytes on nearly every system; longer stems than this are named by their hash.
_MAX_STEM_BYTES = 255 - len("." + LOCK_SUFFIX)

# What NFS and FUSE call a file that was removed while this machine has it open.
_REMOVED_WHILE_OPEN = re.compile(r"\.(nfs|fuse_hidden)[0-9a-f]{8,}")


def is_reserved(name: str) -> bool:
    """Return whether ``name`` is that of a lock file, a temporary file or a removed file that is still open: never an object."""
    return name.startswith(".") and (name.endswith((LOCK_SUFFIX, TEMP_SUFFIX)) or _REMOVED_WHILE_OPEN.fullmatch(name) is not None)


def lock_path(path: str) -> str:
    """Return the name of the lock file of the object at ``path``."""
    parent, name = os.path.split(path)
    stem = name
    if len(os.fsencode(name)) > _MAX_STEM_BYTES:
        stem = hashlib.sha256(os.fsencode(name)).hexdigest()
    return os.path.join(parent, f".{stem}{LOCK_SUFFIX}")


def host_token() -> str:
    """Return the token that stands for this machine in the names of temporary files."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]


def temporary_path(path: str) -> str:
    """Return a new name for a temporary file of ``path``: ``.{start of name}.{host}-{pid}.{random}.shardstore-tmp``, never too long."""
    parent, name = os.path.split(path)
    stem = os.fsencode(name)[:64].decode("utf-8", "ignore")
    return os.path.join(parent, f".{stem}.{host_token()}-{os.getpid()}.{secrets.token_hex(6)}{TEMP_SUFFIX}")


def writer_of(name: str) -> tuple[str, int] | None:
    """Return the host and process in the name of a temporary file; ``None`` if ``temporary_path`` did not make it."""
    host, separator, pid = name.removesuffix(TEMP_SUFFIX).rpartition(".")[0].rpartition(".")[2].partition("-")
    return (host, int(pid)) if separator and pid.isdecimal() else None


# -- errors ------------------------------------------------------------------------------------------------------------


# Without O_NONBLOCK, opening a named pipe that someone put there would wait for ever; regular files ignore it.
READ_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


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
    """Return the status as ``stat_file`` does, by opening the file: so a network file system asks its server, and not a cache."""
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


_ACCESS_LIST = "system.posix_acl_access"
_OWNER_WRITES = 0o600

# acl(5), as linux/posix_acl_xattr.h encodes it: the version, 4 bytes; entries of tag, rights and id.
_ENTRY = struct.Struct("<HHI")
_ENTRIES_OFFSET = 4
_FILES_GROUP, _OTHERS = 0x04, 0x20


@dataclass(frozen=True, slots=True)
class Permissions:
    """The permissions of one file."""

    mode: int
    """The nine bits for owner, group and all other users; the group's are the mask if there is an access control list."""
    owner: int
    group: int
    access_list: bytes | None
    seen: tuple[int, int, int] = field(compare=False)
    """Device, inode and ctime of the file: as long as these are the same, its permissions are the same."""

    @property
    def owner_writes(self) -> bool:
        """True if a version can have these permissions while it is being written."""
        return self.mode & _OWNER_WRITES == _OWNER_WRITES

    @property
    def mode_to_create(self) -> int:
        """Bits for ``open`` that admit only users who may be admitted, before the group and the access control list are set."""
        is_narrow = self.access_list is None and not self.mode >> 3 & ~self.mode & 0o7
        return (self.mode if is_narrow else self.mode & 0o700) | _OWNER_WRITES


def permissions_at(path: str, status: os.stat_result) -> Permissions:
    """Return the permissions of the file at ``path``, whose status is given."""
    mode = stat_modes.S_IMODE(status.st_mode) & 0o777
    return Permissions(mode, status.st_uid, status.st_gid, _access_list(path), _seen(status))


def are_those_of(permissions: Permissions | None, status: os.stat_result) -> bool:
    """Return whether they were looked up for this very file, and it has not changed."""
    return permissions is not None and permissions.seen == _seen(status)


def _seen(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_dev, status.st_ino, status.st_ctime_ns


def give(file: int | str, permissions: Permissions, mine: os.stat_result, *, is_done: bool = False) -> None:
    """Give a file, open or a path, whose status is ``mine``, these permissions, as far as this user can.

    Its owner can write to it until it ``is_done``.
    """
    mine = _give_owner(file, permissions.owner, permissions.group, mine)
    mode, access_list = permissions.mode, permissions.access_list
    if mine.st_gid != permissions.group:
        access_list = _without_group(access_list)
        if access_list is None:
            mode &= 0o707 | (mode & 0o7) << 3
    if not _set_access_list(file, access_list, is_narrow=not mode >> 3 & ~mode & 0o7):
        mode &= 0o707  # the group's bits were the mask of a list
    if not is_done:
        mode |= _OWNER_WRITES
    if stat_modes.S_IMODE(mine.st_mode) != mode or access_list is not None:
        with suppress(OSError):  # a file system without permissions
            os.chmod(file, mode)


def share_as_directory(fd: int, directory: str) -> None:
    """Let everybody read and write the open file who may do that in its directory, as far as this user can."""
    status = os.stat(directory)
    _give_owner(fd, status.st_uid, status.st_gid, os.fstat(fd))
    with suppress(OSError):  # a file system without permissions
        os.chmod(fd, stat_modes.S_IMODE(status.st_mode) & 0o666)
    access_list = _access_list(directory)
    if access_list is not None:
        _set_access_list(fd, access_list, is_narrow=True)


def _give_owner(file: int | str, owner: int, group: int, mine: os.stat_result) -> os.stat_result:
    """Set the owner and the group, as far as this user may: root both, other users a group that they belong to; the status then."""
    if mine.st_uid != owner and os.geteuid() == 0:
        with suppress(OSError):
            os.chown(file, owner, -1)
            try:
                os.chmod(file, stat_modes.S_IMODE(mine.st_mode))
            except OSError:  # a root that may give files away, and not change them then
                os.chown(file, mine.st_uid, -1)
    if mine.st_gid == group:
        return mine
    with suppress(OSError):
        os.chown(file, -1, group)
    return os.stat(file)


def make_like(root: str, key: str, source_root: str, source_key: str) -> None:
    """Make an empty file with the permissions of another; its directories admit no user whom the directories of the other keep out.

    A file that is there already stays unchanged. A later version that replaces the file has its permissions.
    """
    os.makedirs(os.path.dirname(root), exist_ok=True)
    source, made = source_root, root
    permissions = permissions_at(source, os.stat(source))
    for name in ("", *key.split("/")[:-1]):
        source, made = os.path.join(source, name) if name else source, os.path.join(made, name) if name else made
        if os.path.isdir(source):
            permissions = permissions_at(source, os.stat(source))
        with suppress(FileExistsError):
            os.mkdir(made, 0o700)
            give(made, replace(permissions, mode=permissions.mode | 0o700), os.stat(made), is_done=True)
    source = os.path.join(source_root, *source_key.split("/"))
    permissions = permissions_at(source, os.stat(source))
    with suppress(FileExistsError):
        fd = os.open(os.path.join(root, *key.split("/")), os.O_WRONLY | os.O_CREAT | os.O_EXCL, permissions.mode_to_create)
        try:
            give(fd, permissions, os.fstat(fd), is_done=True)
        finally:
            os.close(fd)


def _access_list(file: int | str) -> bytes | None:
    """Return the access control list of a file, as the kernel encodes it; ``None`` if there are only permission bits."""
    if sys.platform == "linux":
        with suppress(OSError):  # none, or not on this file system
            return os.getxattr(file, _ACCESS_LIST)
    return None


def _set_access_list(file: int | str, access_list: bytes | None, *, is_narrow: bool) -> bool:
    """Set the list, or none; return whether the file has it now. One from the directory may stay if the bits are ``is_narrow``."""
    if sys.platform == "linux":
        try:
            if access_list is not None:
                os.setxattr(file, _ACCESS_LIST, access_list)
            elif not is_narrow and _access_list(file) is not None:
                os.removexattr(file, _ACCESS_LIST)
        except OSError:
            return False
    return True


def _without_group(access_list: bytes | None) -> bytes | None:
    """Return the list with everybody's rights for the file's group, which is not the group that the list was made for."""
    if access_list is None:
        return None
    entries = [*_ENTRY.iter_unpack(access_list[_ENTRIES_OFFSET:])]
    of_all = next((rights for tag, rights, _ in entries if tag == _OTHERS), 0)
    changed = [(tag, rights & of_all if tag == _FILES_GROUP else rights, who) for tag, rights, who in entries]
    return access_list[:_ENTRIES_OFFSET] + b"".join(_ENTRY.pack(*entry) for entry in changed)
