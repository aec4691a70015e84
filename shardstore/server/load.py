"""A bound on the requests in flight: so many are carried out at once, as many more wait, and the rest are told to come again."""

from __future__ import annotations

import asyncio
from collections import deque

MOST_IN_FLIGHT = 256


class Busy(Exception):
    """There are as many requests as are carried out at once, and as many again that wait."""


class Load:
    """The requests in flight of one server."""

    def __init__(self, most: int = MOST_IN_FLIGHT) -> None:
        self.most = most
        self.running = 0
        """How many are being carried out."""
        self.refused = 0
        """How many were refused so far."""
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def has_room(self) -> bool:
        """True if a request would not have to wait."""
        return self.running < self.most and not self._queue

    async def enter(self) -> None:
        """Begin one request, when there is room; ``leave`` ends it. Raises ``Busy``."""
        if self.has_room:
            self.running += 1
            return
        if len(self._queue) >= self.most:
            self.refused += 1
            raise Busy
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn  # whoever leaves hands the place over
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()
            else:
                self._queue.remove(turn)
            raise

    def leave(self) -> None:
        """End one request."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.running -= 1
