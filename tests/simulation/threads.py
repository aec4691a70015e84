"""Threads that wait: programs which are written without an event loop run in greenlets, and stand still until what they wait for is there.

What this package uses for that becomes this world's: the bridge to the IO loop, futures and pools of ``concurrent.futures``.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, ParamSpec, TypeVar
from unittest import mock

from greenlet import GreenletExit, getcurrent

from shardstore import _sync
from shardstore.maintenance import execution
from shardstore.opening import location
from tests.simulation.loop import SimulationLoop, current_process

P = ParamSpec("P")
T = TypeVar("T")


class Waited(NamedTuple):
    """What ``concurrent.futures.wait`` returns, in the order in which futures were given: sets have the order of addresses."""

    done: Sequence[Future[Any]]
    not_done: Sequence[Future[Any]]


class Pool(Executor):
    """Threads of this process. Tasks are pickled on their way, as to another process, since they may go to one."""

    def __init__(self, loop: SimulationLoop, workers: int) -> None:
        self._loop = loop
        self._workers = workers
        self._running = 0
        self._waiting: list[Callable[[], None]] = []

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        data = pickle.dumps((function, args, kwargs))

        def work() -> None:
            try:
                if future.set_running_or_notify_cancel():
                    sent, arguments, options = pickle.loads(data)
                    future.set_result(sent(*arguments, **options))
            except GreenletExit:  # its process has died
                raise
            except BaseException as exc:  # noqa: BLE001  # as in a pool of real threads: raised again by whoever waits
                future.set_exception(exc)
            self._running -= 1
            self._go()

        self._waiting.append(work)
        self._go()
        return future

    def _go(self) -> None:
        while self._waiting and self._running < self._workers:
            self._running += 1
            self._loop.run_in_executor(None, self._waiting.pop(0))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing: there is nothing to let go of."""


@contextmanager
def in_place(loop: SimulationLoop) -> Iterator[None]:
    """Let programs without an event loop run in the greenlets of ``loop``."""
    real_result = Future.result

    def stand_still_until(futures: Sequence[Future[Any]]) -> None:
        """Let the calling greenlet stand still until one of them is done."""

        def register(wake: Callable[[], None]) -> None:
            left = [wake]

            def once(future: Future[Any]) -> None:
                if left:
                    left.pop()()

            for future in futures:
                future.add_done_callback(once)

        if loop.is_thread(getcurrent()):
            process = current_process()
            if process is not None and not process.is_alive:
                raise GreenletExit
            loop.park_here(register)

    def result(future: Future[T], timeout: float | None = None) -> T:
        if not future.done():
            stand_still_until([future])
        return real_result(future, timeout)

    def wait_for(futures: Any, timeout: float | None = None, return_when: str = "ALL_COMPLETED") -> Any:
        given = list(futures)
        if not loop.is_thread(getcurrent()):
            return wait(given, timeout, return_when)
        while (left := [one for one in given if not one.done()]) and (return_when != FIRST_COMPLETED or len(left) == len(given)):
            stand_still_until(left)
        return Waited([one for one in given if one.done()], left)

    def pool(workers: int, *_: object) -> Pool:
        return Pool(loop, workers)

    def sync(_: object, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        return _sync.run_sync(function(*args))

    with ExitStack() as stack:
        for where, name, ours in (
            (Future, "result", result),
            (execution, "wait", wait_for),
            (execution, "ThreadPoolExecutor", pool),
            (_sync, "get_loop", lambda: loop),
            (location, "get_loop", lambda: loop),
            (location, "sync", sync),
        ):
            stack.enter_context(mock.patch.object(where, name, ours))
        yield


async def in_thread(function: Callable[[], T]) -> T:
    """Return what a function returns that is to be called from a thread without an event loop."""
    return await asyncio.get_running_loop().run_in_executor(None, function)
