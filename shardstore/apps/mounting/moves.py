"""A shared and exclusive lock on the names of a mount: many may change files at once, but a directory is renamed alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from shardstore.apps.mounting.errnos import Refused
from shardstore.apps.mounting.inodes import Place, path_of
from shardstore.errors import ShardStoreError

T = TypeVar("T")


class Moves:
    """The lock: ``change`` holds it shared, ``move`` exclusively. The path of a place counts only if it was looked up while it is held; who
    only reads does not hold it, and uses ``ask``.
    """

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._active = 0
        self._is_moving = False
        self._renamed: tuple[str, ...] = ()  # the directories that are being renamed at this moment, and their new names
        self._count = 0  # of the times when that changed

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
            try:
                await self._changed.wait_for(lambda: self._active == 0)
            except BaseException:
                self._is_moving = False
                self._changed.notify_all()
                raise
        try:
            yield
        finally:
            self.renames()
            async with self._changed:
                self._is_moving = False
                self._changed.notify_all()

    def renames(self, *paths: str) -> None:
        """Note which directories are renamed from now on, by the task that holds the lock exclusively."""
        self._renamed = paths
        self._count += 1

    def _concerns(self, path: str) -> bool:
        return any(path == renamed or path.startswith(f"{renamed}/") for renamed in self._renamed)

    async def ask(self, place: Place, question: Callable[[str], Awaitable[T]], drop: Callable[[T], object] = id) -> tuple[str, T]:
        """Return the path of a place, and the answer to a question about it; it is asked again if a rename came in between, and ``drop`` is
        called with the first answer.
        """
        while True:
            while self._concerns(path := path_of(place)):
                async with self._changed:
                    await self._changed.wait_for(lambda: not self._renamed)
            count = self._count
            try:
                answer = await question(path)
            except ShardStoreError:
                if count == self._count and path_of(place) == path:
                    raise
            else:
                try:
                    if count == self._count and path_of(place) == path:
                        return path, answer
                except Refused:
                    drop(answer)
                    raise
                drop(answer)
