"""The meaning of exceptions of any fsspec filesystem."""

from __future__ import annotations

import errno

from shardstore.errors import AccessDenied, NoSpace, ReadOnly, ShardStoreError, StorageError, Unsupported
from shardstore.model.redaction import redacted
from shardstore.storage.room import FULL_ERRNOS

ABSENT_ERRORS = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
"""Exceptions that filesystems raise at the path of an object that does not exist."""

_READ_ONLY_WORDS = ("read-only", "read only", "readonly", "not both", "not writable")


def read_only(action: str, key: str, url: str) -> ReadOnly:
    return ReadOnly(
        f"{action} {key!r}: {url} is for reading only. Write to the storage itself, or to another place and make the archive, the "
        "references or the cache from that"
    )


def contradicts(action: str, key: str, url: str) -> ReadOnly:
    """Return the error of a write to a place in which nothing changes, as the user said."""
    return ReadOnly(f"{action} {key!r}: {url} was opened with static=True, which says that nothing changes there: open it without")


def translated(exc: Exception, action: str, key: str, url: str, *, writes: bool = False) -> ShardStoreError:
    """Return the error to raise, from ``exc``, if ``action`` on the object or prefix ``key`` of ``url`` failed."""
    if isinstance(exc, ShardStoreError):
        return exc
    what = f"{action} {key!r} in {url}" if key else f"{action} {url}"
    text = redacted(str(exc))
    reason = f"{type(exc).__name__}: {text}" if text else type(exc).__name__
    if (cause := exc.__cause__) is not None:  # of a reference whose target cannot be reached the filesystem itself says no more
        reason += f", because of {type(cause).__name__}: {redacted(str(cause))}"
    if writes and (getattr(exc, "errno", None) == errno.EROFS or any(words in text.lower() for words in _READ_ONLY_WORDS)):
        return read_only(action, key, url)
    if isinstance(exc, PermissionError):
        return AccessDenied(f"{what}: access was denied ({reason})")
    if isinstance(exc, NotImplementedError):
        return Unsupported(f"{what}: this kind of filesystem cannot do that ({reason})")
    if isinstance(exc, IsADirectoryError | NotADirectoryError | FileExistsError):
        return StorageError(f"{what}: a directory has this name, or a part of the path above it is a file ({reason})")
    return (NoSpace if getattr(exc, "errno", None) in FULL_ERRNOS else StorageError)(f"{what} failed: {reason}")
