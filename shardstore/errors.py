"""Exceptions, grouped by what the code that catches them would do.

Every message says what happened, to which key, shard and byte range, and what to do about it.
"""

from __future__ import annotations

__all__ = [
    "AccessDenied",
    "Conflict",
    "Corruption",
    "Incomplete",
    "InvalidInput",
    "NoSpace",
    "NotFound",
    "ReadOnly",
    "ShardStoreError",
    "SnapshotExpired",
    "StorageError",
    "Undecodable",
    "Unsupported",
    "WriteOutcomeUnknown",
]

NO_SUCH_BUCKET = "NoSuchBucket"
"""The ``code`` of the error for a bucket that does not exist."""

LEADS_OUTSIDE = "LeadsOutside"
"""The ``code`` of the error for a key behind a link that leads out of the directory."""


class ShardStoreError(Exception):
    """Root of every error that shardstore raises on purpose."""


class NotFound(ShardStoreError, KeyError, FileNotFoundError):
    """The key, or the node that it names, does not exist."""

    def __str__(self) -> str:
        # KeyError would show repr(message), OSError an errno: neither reads well.
        return str(self.args[0]) if self.args else ""


class SnapshotExpired(ShardStoreError):
    """What is asked for was part of a snapshot that has expired, and is gone for good: open a newer snapshot.

    It is neither a ``KeyError`` nor a ``FileNotFoundError``: no caller may take it for a chunk that was never written.
    """


class InvalidInput(ShardStoreError, ValueError):
    """The caller asked for something that cannot be done as asked; nothing was changed."""


class ReadOnly(InvalidInput):
    """A write was asked of a store that was opened read-only."""


class Conflict(ShardStoreError):
    """Other writers replaced the shard first too many times in a row; nothing of this write was stored."""


class WriteOutcomeUnknown(ShardStoreError):
    """The answer to a write was lost and reading back could not tell whether it was stored."""


class Unsupported(ShardStoreError):
    """The storage, or this version of shardstore, cannot do what was asked; nothing was changed."""


class Corruption(ShardStoreError):
    """Stored bytes contradict themselves. Never raised for what is merely missing."""


class Undecodable(Corruption, ValueError):
    """The codecs cannot decode a chunk's bytes. Also a ``ValueError``, as most codecs raise it, for callers that expect that."""


class StorageError(ShardStoreError, OSError):
    """The underlying storage failed; the original exception is the cause."""

    status: int | None = None
    """The HTTP status of a server's answer; ``None`` if there was no answer, or no server."""
    code: str = ""
    """The server's own word for a refusal, such as ``NoSuchBucket``; ``LeadsOutside`` where a link leads out of the directory."""
    is_unreachable = False
    """True if there was no connection to the server."""

    @property
    def has_no_place(self) -> bool:
        """True if there is no such server or bucket: whatever is asked for fails in the same way, and no key matters."""
        return self.is_unreachable or self.code == NO_SUCH_BUCKET

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class AccessDenied(StorageError, PermissionError):
    """The underlying storage refused the request; says nothing about whether the key exists."""


class NoSpace(StorageError):
    """The underlying storage has no room left, or a quota is used up: a retry helps once room has been made."""


class Incomplete(ShardStoreError):
    """Parts of a long task could not be done. The other parts are done, and the same call continues from there.

    ``report`` says what failed and why.
    """

    def __init__(self, message: str, report: object = None) -> None:
        super().__init__(message)
        self.report = report

    def __reduce__(self) -> tuple[type[Incomplete], tuple[str, object]]:
        return type(self), (str(self), self.report)
