"""Lets many change names at once, or one move a directory with all that is in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Moves:
    """A lock that many share, or one has alone."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._active = 0
        self._is_moving = False

    def _is_free(self) -> bool:
        return not self._is_moving

    @asynccontextmanager
    async def change(self) -> AsyncIterator[None]:
        """Change names, beside others who do; not while a directory is being moved. Not to be nested."""
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
        """Move a directory, alone."""
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
