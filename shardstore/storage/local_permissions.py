"""Who may read and write a local file: owner, group, permission bits, and on Linux the access control list."""

from __future__ import annotations

import os
import stat as stat_modes
import sys
from contextlib import suppress

_ACCESS_LIST = "system.posix_acl_access"


def share_as_directory(fd: int, directory: str) -> None:
    """Let everybody read and write the open file who may do that in its directory, as far as this user can."""
    if sys.platform == "win32":
        return
    status, mine = os.stat(directory), os.fstat(fd)
    _give(fd, status, mine)
    with suppress(OSError):  # a file system without permissions
        os.fchmod(fd, stat_modes.S_IMODE(status.st_mode) & 0o666)
    access = _access_list(directory)
    if access is not None and sys.platform == "linux":
        with suppress(OSError):
            os.setxattr(fd, _ACCESS_LIST, access)


def _give(fd: int, status: os.stat_result, mine: os.stat_result) -> None:
    """Give an open file the owner and the group of another, as far as this user may: root both, others a group that they belong to."""
    if sys.platform == "win32" or (mine.st_uid, mine.st_gid) == (status.st_uid, status.st_gid):
        return
    try:
        os.fchown(fd, status.st_uid, status.st_gid)
    except OSError:
        with suppress(OSError):
            os.fchown(fd, -1, status.st_gid)


def _access_list(file: int | str) -> bytes | None:
    """The access control list of a file, as the kernel encodes it; ``None`` where there is none beside the permission bits."""
    if sys.platform == "linux":
        with suppress(OSError):  # none, or not on this file system
            return os.getxattr(file, _ACCESS_LIST)
    return None
