"""Waits until nothing is under way: what a cancelled or failed call has left behind is part of what it did."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import fsspec.asyn
import zarr.core.sync

Tasks = set["asyncio.Task[object]"]

_LONGEST_SECONDS = 60.0  # a guard: what is still there then waits for something that never comes


async def _others() -> Tasks:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def _pending(known: Tasks) -> Tasks:
    new = await _others() - known
    return (await asyncio.wait(new, timeout=_LONGEST_SECONDS))[1] if new else set()


def _loops() -> list[asyncio.AbstractEventLoop]:
    """Where callers wait, and where the engine works."""
    return [zarr.core.sync._get_loop(), fsspec.asyn.get_loop()]


@contextmanager
def settled() -> Iterator[None]:
    """At the end of the block every task has ended that was made in it. Fails where one does not."""
    loops = _loops()
    known = [asyncio.run_coroutine_threadsafe(_others(), loop).result() for loop in loops]
    yield
    for _ in range(2):  # a task of the first loop may have made one on the second
        for loop, before in zip(loops, known, strict=True):
            pending = asyncio.run_coroutine_threadsafe(_pending(before), loop).result()
            assert not pending, f"tasks never end: {pending}"
