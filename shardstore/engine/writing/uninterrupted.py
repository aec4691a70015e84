"""Writes are carried out even when their caller is cancelled.

A write holds views of its caller's memory. If a cancellation were delivered while the write goes on, the caller could fill
that memory anew, and bytes that nobody meant to write would be stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


async def uninterrupted(coroutine: Coroutine[object, object, T]) -> T:
    """Await a coroutine to its end; a cancellation meanwhile is delivered after it."""
    task = asyncio.ensure_future(coroutine)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # looked at, so that it is not reported as forgotten; the caller hears of the cancellation
        raise cancelled
    return task.result()
