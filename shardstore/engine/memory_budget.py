"""A bound on the bytes that are held at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class MemoryBudget:
    """Grants bytes in the order in which they are asked for. A request for more than the whole budget is granted alone."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def hold(self, nbytes: int) -> AsyncIterator[None]:
        """Wait until ``nbytes`` fit, and hold them for the block."""
        nbytes = min(nbytes, self._limit)
        await self._acquire(nbytes)
        try:
            yield
        finally:
            self._release(nbytes)

    async def _acquire(self, nbytes: int) -> None:
        if not self._waiting and self._used + nbytes <= self._limit:
            self._used += nbytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((nbytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release(nbytes)  # granted and cancelled in the same moment
            raise

    def _release(self, nbytes: int) -> None:
        self._used -= nbytes
        while self._waiting:
            wanted, turn = self._waiting[0]
            if turn.done():  # cancelled while it waited
                self._waiting.popleft()
            elif self._used + wanted <= self._limit:
                self._waiting.popleft()
                self._used += wanted
                turn.set_result(None)
            else:
                return
