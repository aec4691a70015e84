"""The error numbers that stand for shardstore's errors, and what is logged of them."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Callable

from shardstore.adapters.file_access import AlreadyExists
from shardstore.errors import (
    AccessDenied,
    InvalidInput,
    NoSpace,
    NotFound,
    ReadOnly,
    ShardStoreError,
    Unsupported,
)
from shardstore.model.containers import Lru
from shardstore.model.redaction import redacted

logger = logging.getLogger(__name__)

REPEAT_SECONDS = 10.0
"""The same message is not logged again within this time."""
_MOST_REMEMBERED = 1000


class Refused(ShardStoreError):
    """What POSIX has an error number for, such as removing a directory that is not empty."""

    def __init__(self, number: int, message: str = "") -> None:
        super().__init__(message)
        self.number = number


_BY_CLASS: tuple[tuple[type[BaseException], int], ...] = (
    (NotFound, errno.ENOENT),
    (AlreadyExists, errno.EEXIST),
    (ReadOnly, errno.EROFS),
    (InvalidInput, errno.EINVAL),
    (AccessDenied, errno.EACCES),
    (NoSpace, errno.ENOSPC),
    (Unsupported, errno.EOPNOTSUPP),
    (MemoryError, errno.ENOSPC),
    (TimeoutError, errno.ETIMEDOUT),
    (asyncio.CancelledError, errno.EINTR),
)


def error_number(exc: BaseException) -> int:
    """Return the number that the program gets."""
    if isinstance(exc, Refused):
        return exc.number
    for kind, number in _BY_CLASS:
        if isinstance(exc, kind):
            return number
    if isinstance(exc, OSError) and not isinstance(exc, ShardStoreError) and exc.errno == errno.ENOSPC:
        return errno.ENOSPC  # of a temporary file
    return errno.EIO


class ErrorLog:
    """Logs each error in one line, and the same one not again for a while."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._said: Lru[str, bool] = Lru(_MOST_REMEMBERED, seconds=REPEAT_SECONDS, clock=clock)

    def note(self, what: str, exc: BaseException) -> None:
        """Log that something failed. An error that is not the storage's is logged with a traceback."""
        if isinstance(exc, Refused) and not str(exc):
            return
        text = redacted(" ".join(f"{what}: {str(exc) or type(exc).__name__}".split()))
        if text in self._said:
            return
        self._said.put(text, True)
        expected = isinstance(exc, ShardStoreError | OSError | MemoryError | asyncio.CancelledError)
        logger.error(text, exc_info=None if expected else exc)
