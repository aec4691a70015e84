"""The error numbers that stand for shardstore's errors, and what is logged of them."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections import OrderedDict
from collections.abc import Callable

from shardstore.errors import (
    AccessDenied,
    InvalidInput,
    NoSpace,
    NotFound,
    ReadOnly,
    ShardStoreError,
    Unsupported,
)
from shardstore.storage.redaction import redacted

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
    """Return the number that the program is told."""
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
        self._clock = clock
        self._said: OrderedDict[str, float] = OrderedDict()

    def note(self, what: str, exc: BaseException) -> None:
        """Log that something failed. What the storage is not to blame for is logged with a traceback."""
        if isinstance(exc, Refused) and not str(exc):
            return
        text = redacted(" ".join(f"{what}: {str(exc) or type(exc).__name__}".split()))
        now = self._clock()
        if now - self._said.get(text, -REPEAT_SECONDS) < REPEAT_SECONDS:
            return
        self._said[text] = now
        self._said.move_to_end(text)
        if len(self._said) > _MOST_REMEMBERED:
            self._said.popitem(last=False)
        expected = isinstance(exc, ShardStoreError | OSError | MemoryError | asyncio.CancelledError)
        logger.error(text, exc_info=None if expected else exc)
