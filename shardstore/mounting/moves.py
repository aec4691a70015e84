"""A shared and exclusive lock on the names of a mount: many may change files at once, but a directory is renamed alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Moves:
    """The lock: ``change`` holds it shared, ``move`` exclusively."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._active = 0
        self._is_moving = False

    def _is_free(self) -> bool:
        return not self._is_moving

    @asynccontextmanager
    async def change(self) -> AsyncIterator[None]:
        """Hold the lock shared. Must not be nested: a ``move`` that waits between the two would wait for ever."""
        while not self._is_free():
            async with self._changed:
                await self._changed.wait_for(self._is_free)
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1
            if self._is_moving:
                async with self._changed:
                    self._changed.notify_all()

    @asynccontextmanager
    async def move(self) -> AsyncIterator[None]:
        """Hold the lock exclusively, while a directory is renamed."""
        async with self._changed:
            await self._changed.wait_for(self._is_free)
            self._is_moving = True
            await self._changed.wait_for(lambda: self._active == 0)
        try:
            yield
        finally:
            async with self._changed:
                self._is_moving = False
                self._changed.notify_all()
