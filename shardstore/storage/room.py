"""The room that a storage has left, and the errors that say that it has none."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from shardstore.errors import NoSpace

FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT} if hasattr(errno, "EDQUOT") else {errno.ENOSPC})

# RFC 4918, section 11.5 (Insufficient Storage); Ceph's and MinIO's words for a quota that is used up, and for full disks.
_FULL_STATUS = 507
_FULL_CODES = frozenset({"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "InsufficientStorage"})


def is_full(exc: BaseException) -> bool:
    """Return whether an error of a storage says that there is no room left: then no other write will fit either."""
    return isinstance(exc, NoSpace) or getattr(exc, "status", None) == _FULL_STATUS or getattr(exc, "code", None) in _FULL_CODES


@dataclass(frozen=True, slots=True)
class Room:
    """The room that a file system has left for its user. Quotas are not known to it."""

    path: str
    """The path that was asked about."""
    nbytes: int
    files: int | None
    """The number of files that can still be made; ``None`` if the file system has no fixed number of them."""
    block_nbytes: int
    """The unit in which files take up room."""


def room_at(path: str) -> Room | None:
    """Return the room at a local path, of which only some directories may exist; ``None`` if the system cannot tell."""
    if not hasattr(os, "statvfs"):
        return None
    while not os.path.isdir(path):
        above = os.path.dirname(path)
        if above == path:
            return None
        path = above
    try:
        found = os.statvfs(path)
    except OSError:
        return None  # a file system that does not say: a write that does not fit will fail
    if not found.f_blocks:
        return None  # of a file system without a size of its own
    return Room(path, found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None, found.f_frsize)
