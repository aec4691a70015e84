"""Permissions of a local file: owner, group, permission bits, and on Linux the access control list.

A new version of an object is a new file that takes the old one's place. It has the permissions of the old one from before the first
byte is in it, as if the old one had been written to. Rights that this user may not give are not given at all: if the group cannot be
kept, the new file's group gets what everybody has. Only root keeps the owner. Set-user-ID and set-group-ID bits are dropped, as a write
drops them. The file's other extended attributes are not carried over: they are about the old bytes.
"""

from __future__ import annotations

import os
import stat as stat_modes
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace

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


if sys.platform == "win32":

    def give(file: int | str, permissions: Permissions, mine: os.stat_result, *, is_done: bool = False) -> None:
        """Do nothing: on this system a file has the permissions of its directory."""

    def share_as_directory(fd: int, directory: str) -> None:
        """Do nothing: on this system a file has the permissions of its directory."""

else:

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
    """Set the list, or none, and return whether the file has it now. One that came from the directory may stay if the bits are
    ``is_narrow``.
    """
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
