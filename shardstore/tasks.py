"""Coroutines that are awaited together, or to their end; requests that are carried out together, or once for all who want them; threads
for calls that block; a bound on the bytes that they hold.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")
Request = TypeVar("Request")
Result = TypeVar("Result")

LONG_AGO = 0
"""Before every moment."""

_moments = itertools.count(1)


def moment() -> int:
    """Return a number that is greater than those of all earlier calls; from any thread."""
    return next(_moments)


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


class TickBatch(Generic[Request, Result]):
    """``run`` gets what arrived in one tick and returns an outcome for each; exceptions are raised to their callers."""

    def __init__(self, run: Callable[[Sequence[Request]], Awaitable[Sequence[Result | Exception]]]) -> None:
        self._run = run
        self._waiting: list[tuple[Request, asyncio.Future[Result]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit(self, request: Request) -> Result:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._waiting.append((request, future))
        if len(self._waiting) == 1:
            self._begin(loop)
        return await future

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Arrange that the batch, which has its first request, is carried out."""
        loop.call_soon(self._flush)

    def _flush(self) -> None:
        batch, self._waiting = self._waiting, []
        task = asyncio.get_running_loop().create_task(self._carry_out(batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, batch: list[tuple[Request, asyncio.Future[Result]]]) -> None:
        try:
            outcomes = await self._run([request for request, _ in batch])
        except (Exception, asyncio.CancelledError) as exc:
            for _, future in batch:
                if not future.done():
                    future.set_exception(exc)
            if isinstance(exc, asyncio.CancelledError):
                raise
            return
        for (_, future), outcome in zip(batch, outcomes, strict=True):
            if future.done():
                continue  # its caller was cancelled
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)


class Answered(NamedTuple, Generic[Result]):
    """The answer to a request, the moment at which the request began, and one after it was answered."""

    answer: Result
    began: int
    ended: int


async def answered(request: Awaitable[Result]) -> Answered[Result]:
    """Return the answer to a request that begins now."""
    began = moment()
    answer = await request
    return Answered(answer, began, moment())


@dataclass(slots=True, eq=False)
class _UnderWay(Generic[Result]):
    """A request that has not been answered yet, or whose answer some have not taken yet."""

    began: int
    task: asyncio.Task[Answered[Result]]
    waiting: int = 0


class Joined(Generic[Result]):
    """Requests that are shared by all who want the same at the same moment. Used on one event loop only.

    A request goes on as long as one of them waits for it. Its error is raised to each of them.
    """

    def __init__(self) -> None:
        self._under_way: dict[Hashable, _UnderWay[Result]] = {}

    async def get(
        self, what: Hashable, request: Callable[[], Coroutine[object, object, Result]], since: int, *, patiently: bool = False
    ) -> Answered[Result]:
        """Return the answer to a request for ``what`` that began after the moment ``since``: one that is under way, or a new one.

        An older one that is under way is not waited for, unless the caller waits ``patiently``; then all such callers share the next one.
        """
        found = self._under_way.get(what)
        if patiently and found is not None and found.began <= since:
            await asyncio.wait([found.task])
            found = self._under_way.get(what)
        if found is None or found.began <= since:
            found = self._begin(what, request)
        found.waiting += 1
        try:
            return await asyncio.shield(found.task)
        finally:
            found.waiting -= 1
            if not found.waiting:
                found.task.cancel()  # no effect on one that has ended
                if self._under_way.get(what) is found:  # until now: by now those who waited have remembered the answer
                    del self._under_way[what]

    def _begin(self, what: Hashable, request: Callable[[], Coroutine[object, object, Result]]) -> _UnderWay[Result]:
        begun = self._under_way[what] = _UnderWay(moment(), asyncio.ensure_future(answered(request())))
        begun.task.add_done_callback(_look_at_error)
        return begun


def _look_at_error(task: asyncio.Task[Answered[Result]]) -> None:
    """Let no error be reported as forgotten: all who waited for it may have been cancelled."""
    if not task.cancelled():
        task.exception()


def leave_to_main_thread() -> None:
    """Block SIGINT in this thread; to be called at the start of a thread of a pool.

    The system gives a signal to any thread that does not block it. Python raises ``KeyboardInterrupt`` in the main thread, which notices
    only what interrupts its own system calls: while it waits for a result, a signal that another thread took would have no effect.
    """
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


class SharedThreads:
    """The threads of this process for one kind of blocking calls, at most ``most``. They start when they are needed, and stay."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self.most = most
        self._pool: ThreadPoolExecutor | None = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._pool = None  # its threads stayed behind

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Call a function in a thread; the future belongs to the running loop."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.most, self._name, leave_to_main_thread)
        return asyncio.get_running_loop().run_in_executor(self._pool, function)


class MemoryBudget:
    """Grants bytes in the order in which they are asked for. A request for more than the whole budget is granted alone."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def hold(self, nbytes: int) -> AsyncIterator[None]:
        """Wait until ``nbytes`` fit, and hold them for the block."""
        nbytes = min(nbytes, self._limit)
        await self._acquire(nbytes)
        try:
            yield
        finally:
            self._release(nbytes)

    async def _acquire(self, nbytes: int) -> None:
        if not self._waiting and self._used + nbytes <= self._limit:
            self._used += nbytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((nbytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release(nbytes)  # granted and cancelled in the same moment
            raise

    def _release(self, nbytes: int) -> None:
        self._used -= nbytes
        while self._waiting:
            wanted, turn = self._waiting[0]
            if turn.done():  # cancelled while it waited
                self._waiting.popleft()
            elif self._used + wanted <= self._limit:
                self._waiting.popleft()
                self._used += wanted
                turn.set_result(None)
            else:
                return
