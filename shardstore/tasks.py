"""Coroutines that are awaited together, or to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import TypeVar

T = TypeVar("T")


async def gather_all(*awaitables: Awaitable[T]) -> list[T]:
    """Await all, concurrently; return their results in order, or raise the first error when all have ended."""
    results: list[T] = []
    for outcome in await asyncio.gather(*awaitables, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results


async def uninterrupted(coroutine: Coroutine[object, object, T]) -> T:
    """Await a write to its end; a cancellation during it is delivered afterwards.

    A write holds views of its caller's memory. If a cancellation were delivered while the write goes on, the caller could reuse
    that memory, and bytes that were never meant to be written would be stored.
    """
    task = asyncio.ensure_future(coroutine)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # looked at, so that it is not reported as forgotten; the caller gets the cancellation
        raise cancelled
    return task.result()
