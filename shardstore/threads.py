"""The threads that decode and encode: as many as there are processors, for all that is read and assigned, as long as there are any.

They are started for the first of those that overlap, and end with the last. Linux starts a new thread on an idle processor, but
wakes a sleeping one on the processor of its waker; on virtual machines all threads then often share one processor for tens of
milliseconds. To start one takes 10 to 60 µs more than to wake one.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import TypeVar

from shardstore.tasks import leave_to_main_thread

INLINE_BYTES = 2**17
"""Up to so many decoded bytes are worked on in the thread where they arrive: another thread would begin 50 to 100 µs later."""

_MAX_THREADS = 32
_PIECES_A_THREAD = 4

T = TypeVar("T")


def threads_at_once() -> int:
    """Return the number of processors that this process may use: fewer than there are, on nodes that are shared."""
    return min(_MAX_THREADS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def pieces(count: int) -> list[tuple[int, int]]:
    """Return the bounds, end exclusive, of parts of ``count`` chunks; threads take one after the other, and so end at about one time."""
    parts = min(count, _PIECES_A_THREAD * threads_at_once())
    return [(count * i // parts, count * (i + 1) // parts) for i in range(parts)]


async def in_threads(count: int, nbytes: int, work: Callable[[int, int], T], inline_bytes: int = INLINE_BYTES) -> list[T]:
    """Call ``work(start, end)`` in threads on parts of ``count`` chunks of so many bytes in all; return the results in order.

    The first error is raised when all threads have ended.
    """
    if nbytes <= inline_bytes:
        return [work(0, count)]
    bounds = pieces(count)
    results: dict[int, T] = {}
    waiting = deque(range(len(bounds)))

    def run() -> None:
        while True:
            try:
                piece = waiting.popleft()
            except IndexError:
                return
            results[piece] = work(*bounds[piece])

    await run_in_threads(len(bounds), nbytes, run, waiting.clear, inline_bytes)
    return [results[piece] for piece in range(len(bounds))]


async def run_in_threads(
    most: int, nbytes: int, run: Callable[[], None], stop: Callable[[], None], inline_bytes: int = INLINE_BYTES
) -> None:
    """Call ``run()`` in each of at most ``most`` threads, for so many decoded bytes; ``stop`` makes all of them end soon.

    If one fails, the rest are stopped, and its error is raised when all have ended. A cancelled call waits for the threads too: they
    use memory of the caller.
    """
    if nbytes <= inline_bytes:
        run()
        return

    loop = asyncio.get_running_loop()
    with _threads.used() as pool:
        ended = asyncio.gather(
            *(loop.run_in_executor(pool, _run_or_stop, run, stop) for _ in range(min(most, threads_at_once()))), return_exceptions=True
        )
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            stop()
            while not ended.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([ended])
            raise
    for outcome in ended.result():
        if outcome is not None:
            raise outcome


def work_in_threads(threads: int, run: Callable[[], None], stop: Callable[[], None]) -> None:
    """Call ``run()`` in ``threads`` threads, one of which is the calling one; return when all have ended.

    ``stop`` makes all of them end soon. If one fails, the rest are stopped, and its error is raised.
    """
    if threads == 1:
        run()
        return

    with _threads.used() as pool:
        started = [pool.submit(_run_or_stop, run, stop) for _ in range(threads - 1)]
        try:
            _run_or_stop(run, stop)
        finally:
            wait(started)
    for future in started:
        future.result()


def _run_or_stop(run: Callable[[], None], stop: Callable[[], None]) -> None:
    """Call ``run``; if it fails, let the other threads end too."""
    try:
        run()
    except BaseException:
        stop()
        raise


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
                self._pool = ThreadPoolExecutor(threads_at_once(), "shardstore-codec", leave_to_main_thread)
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
