"""How long a writer waits after it lost against another, and when it gives up."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from shardstore.engine.counters import Counters
from shardstore.errors import Conflict

logger = logging.getLogger(__name__)

_FIRST_WAIT = 0.002
_LONGEST_WAIT = 0.5

Sleep = Callable[[float], Awaitable[object]]


class Conflicts:
    """Jittered exponential back-off of one write; full jitter, so that no writer waits longer for having come later."""

    def __init__(self, attempts: int, counters: Counters, sleep: Sleep = asyncio.sleep, rng: random.Random | None = None) -> None:
        self._left = attempts
        self._counters = counters
        self._sleep = sleep
        self._rng = rng or random.Random()
        self._longest = _FIRST_WAIT

    async def wait(self, what: str, cause: Exception) -> None:
        """Wait before the write is planned again.

        Raises:
            Conflict: it lost too many times.
        """
        self._counters.conflicts += 1
        self._left -= 1
        if self._left <= 0:
            raise Conflict(f"other writers kept changing {what}; nothing of this write was stored: try again") from cause
        logger.debug("conflict on %s: %s", what, cause)
        await self._sleep(self._rng.uniform(0, self._longest))
        self._longest = min(self._longest * 2, _LONGEST_WAIT)
