"""A bound on concurrent requests, which survives forks and pickling."""

from __future__ import annotations

import asyncio


class Bound:
    """At most ``limit`` holders at once: ``async with bound.slot(): …``.

    A semaphore belongs to one loop, but a storage outlives it: after a fork fsspec starts another loop, which needs another
    semaphore.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"a bound of {limit} would let nothing through")
        self.limit = limit
        self._semaphore: asyncio.Semaphore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def slot(self) -> asyncio.Semaphore:
        """Return the semaphore of the running loop, to be entered."""
        loop = asyncio.get_running_loop()
        if self._semaphore is None or self._loop is not loop:
            self._semaphore, self._loop = asyncio.Semaphore(self.limit), loop
        return self._semaphore

    def __reduce__(self) -> tuple[type[Bound], tuple[int]]:
        return Bound, (self.limit,)
