"""The threads that decode and encode: as many as there are processors, for all selections together, as long as there are any.

They are started for the first of the selections that overlap, and end with the last. Linux starts a thread where nothing runs; one that
has slept it wakes beside whoever wakes it, which on virtual machines is often one and the same processor for all of them, for tens of
milliseconds. To start one takes 10 to 60 µs more than to wake one.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import TypeVar

INLINE_BYTES = 2**17
"""Decoded bytes that are worked on where they arrive: another thread would begin 50 to 100 µs later."""

_MAX_THREADS = 32

T = TypeVar("T")


def threads_at_once() -> int:
    """As many as this process may use processors: fewer than there are, on nodes that are shared."""
    return min(_MAX_THREADS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


async def in_threads(count: int, nbytes: int, work: Callable[[int, int], T], stop: Callable[[], None] | None = None) -> list[T]:
    """``work(start, end)`` on parts of ``count`` chunks of so many bytes in all, in threads; its results in order.

    When this is cancelled it waits for the threads, which use what is the caller's, and ``stop`` is to end them soon.
    """
    if nbytes <= INLINE_BYTES:
        return [work(0, count)]
    parts = min(count, threads_at_once())
    bounds = [count * i // parts for i in range(parts + 1)]
    with _threads.used() as pool:
        return await _all_of(pool, bounds, work, stop)


async def _all_of(pool: ThreadPoolExecutor, bounds: list[int], work: Callable[[int, int], T], stop: Callable[[], None] | None) -> list[T]:
    loop = asyncio.get_running_loop()
    futures = [loop.run_in_executor(pool, work, a, b) for a, b in pairwise(bounds)]
    results: list[T] = []
    errors: list[BaseException] = []
    ended = asyncio.gather(*futures, return_exceptions=True)
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        if stop is not None:
            stop()
        while not ended.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([ended])
        raise
    for done in ended.result():
        if isinstance(done, BaseException):
            errors.append(done)
        else:
            results.append(done)
    if errors:
        raise errors[0]
    return results


class _Threads:
    """A pool that lasts as long as it is used."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._users = 0

    @contextmanager
    def used(self) -> Iterator[ThreadPoolExecutor]:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(threads_at_once(), thread_name_prefix="shardstore-codec")
            pool = self._pool
            self._users += 1
        try:
            yield pool
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._pool = None
                    pool.shutdown(wait=False)


_threads = _Threads()


def _after_fork() -> None:
    global _threads
    _threads = _Threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
