"""The keys of a store of zarr's, page by page, and calls for many of them. All of it is called on zarr's loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from typing import TypeVar

from zarr.abc.store import Store

T = TypeVar("T")

REQUESTS_AT_ONCE = 32

ABSENT_ERRORS = (FileNotFoundError, KeyError, NotADirectoryError, IsADirectoryError)
"""The errors of stores by which there is no object; some answer ``None`` instead."""


class StoredKeys:
    """The keys below ``base`` that start with ``prefix``, without ``base``. A store that ``lists_nodes_only`` refuses to list the rest."""

    def __init__(self, store: Store, base: str, prefix: str, *, lists_nodes_only: bool) -> None:
        self._store = store
        self._base = base
        self._prefix = base + prefix
        self._lists_nodes_only = lists_nodes_only
        self._keys: AsyncGenerator[str, None] | None = None

    async def page(self, most: int) -> list[str]:
        """Return the next keys, in no order; none if there are no more."""
        if self._keys is None:
            self._keys = self._listed()
        found: list[str] = []
        async for key in self._keys:
            found.append(key.removeprefix(self._base))
            if len(found) == most:
                break
        return found

    async def _listed(self) -> AsyncGenerator[str, None]:
        try:
            await self._store._ensure_open()
            async for key in await self._listing(self._prefix[: self._prefix.rfind("/") + 1]):
                if key.startswith(self._prefix) and not key.endswith("/"):
                    yield key
        except ABSENT_ERRORS:
            return

    async def _listing(self, directory: str) -> AsyncIterator[str]:
        while self._lists_nodes_only and directory and not await self._store.exists(f"{directory}zarr.json"):
            directory = directory[: directory.rstrip("/").rfind("/") + 1]
        return self._store.list_prefix(directory)

    async def close(self) -> None:
        """End the listing."""
        if self._keys is not None:
            await self._keys.aclose()


async def bounded(call: Callable[[str], Coroutine[object, object, T]], keys: Sequence[str]) -> list[T]:
    """Return the results of a call for each key, of which so many run at once."""
    bound = asyncio.Semaphore(REQUESTS_AT_ONCE)

    async def one(key: str) -> T:
        async with bound:
            return await call(key)

    return await asyncio.gather(*(one(key) for key in keys))
