"""An event loop on virtual time, in which processes live: each can be stopped for ever, or for a while, between any two of its steps.

A process is what a context variable names. A step, which is a callback of the loop, belongs to the process in whose context it was planned.
Time stands still while anything can run, and then jumps to whatever is due next. What would run in another thread is a greenlet, which goes
on in steps too: from one system call to the next.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

T = TypeVar("T")


class Deadlock(Exception):
    """Nothing can run any more, and what was asked for has not ended."""


@dataclass(eq=False)
class Process:
    """A process of the world; ``held`` are its steps while it is paused."""

    name: str
    is_alive: bool = True
    is_paused: bool = False
    held: list[asyncio.Handle] = field(default_factory=list)
    died: list[Callable[[], None]] = field(default_factory=list)
    """Called when it is killed."""
    clock_seconds: float = 0.0
    """How much its clock is ahead."""
    remembers: dict[str, Any] = field(default_factory=dict)
    """What modules remember that are one for all processes here."""


_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar("simulated_process", default=None)


def current_process() -> Process | None:
    """Return the process that this step belongs to; ``None`` of the world itself."""
    return _process.get()


class _Thread:
    """A function that runs in steps: until it sleeps, or is parked."""

    def __init__(self, loop: SimulationLoop, function: Callable[[], None]) -> None:
        self._loop = loop
        self.process = _process.get()
        self.context = contextvars.copy_context()
        self.greenlet = greenlet(function)
        self.greenlet.gr_context = contextvars.copy_context()

    def go(self) -> None:
        """Take the next step."""
        self.greenlet.parent = getcurrent()
        asyncio._set_running_loop(None)  # no loop runs in a thread
        try:
            wait = self.greenlet.switch()
        finally:
            asyncio._set_running_loop(self._loop)
        if self.greenlet.dead:
            self._loop._threads.pop(self.greenlet, None)
        elif wait is not None:
            self._loop.call_later(wait, self.go, context=self.context)

    def wake(self) -> None:
        """Plan the next step of one that is parked."""
        self._loop.call_soon(self.go, context=self.context)

    def end(self) -> None:
        """End it where it is; what it would still do on its way out, it does not."""
        running = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            while self.greenlet and not self.greenlet.dead:
                self.greenlet.parent = getcurrent()
                with suppress(Exception):
                    self.greenlet.throw(GreenletExit)
        finally:
            asyncio._set_running_loop(running)


class SimulationLoop(asyncio.AbstractEventLoop):
    """Runs what is ready in the order in which it was planned, as every loop of asyncio does."""

    def __init__(self) -> None:
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._planned = 0
        self._now = 0.0
        self._is_running = False
        self._is_closed = False
        # All of them: one of a killed process that is collected runs the ends of its blocks, at a moment that no seed says.
        self._tasks: list[asyncio.Task[Any]] = []
        self._threads: dict[Any, _Thread] = {}
        self._last: Process | None = None
        self.entering: Callable[[Process], None] = lambda process: None
        """Called before a step of another process than that of the last step."""
        self.steps = 0
        """How many steps were taken."""

    # -- processes -----------------------------------------------------------------------------------------------------

    def start(self, process: Process, main: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Let a process begin with ``main()``."""
        context = contextvars.Context()
        context.run(_process.set, process)
        return self._made(asyncio.Task(main(), loop=self, context=context))

    def kill(self, process: Process) -> None:
        """Let a process never take another step."""
        process.is_alive = False
        for thread in [thread for thread in self._threads.values() if thread.process is process]:
            thread.end()
            self._threads.pop(thread.greenlet, None)
        for call in process.died:
            call()
        process.died.clear()

    def is_thread(self, which: greenlet) -> bool:
        """Return whether a greenlet is one of the threads."""
        return which in self._threads

    def sleep_here(self, seconds: float, *, or_not: bool = False) -> None:
        """Let the calling thread stand still for a while. Where none of this world calls, that is an error, or with ``or_not`` nothing."""
        thread = self._threads.get(getcurrent())
        if thread is not None:
            thread.greenlet.parent.switch(seconds)
        elif not or_not:
            raise RuntimeError("the loop itself is to sleep")

    def park_here(self, register: Callable[[Callable[[], None]], object]) -> None:
        """Let the calling thread stand still until what is handed to ``register`` is called."""
        thread = self._threads[getcurrent()]
        register(thread.wake)
        thread.greenlet.parent.switch(None)

    def pause(self, process: Process, seconds: float) -> None:
        """Let a process stand still for a while: neither its steps nor its timers run."""
        process.is_paused = True

        def go_on() -> None:
            process.is_paused = False
            self._ready.extend(process.held)
            process.held.clear()

        contextvars.Context().run(self.call_later, seconds, go_on)

    # -- plans ---------------------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None) -> asyncio.Handle:  # type: ignore[override]  # asyncio's types of callbacks cannot be written down
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there are no threads

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]  # likewise
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]  # likewise
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._planned += 1
        heapq.heappush(self._timers, (when, self._planned, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled timer is passed over when it is due."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None, **more: Any
    ) -> asyncio.Task[Any]:
        if self._is_closed:  # what the killed would still begin on its way out
            coro.close()
            raise RuntimeError("the world has ended")
        return self._made(asyncio.Task(coro, loop=self, name=name, context=context, **more))

    def _made(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        self._tasks.append(task)
        return task

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]  # likewise
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            try:
                result = func(*args)
            except GreenletExit:  # its process has died
                return
            except Exception as exc:  # noqa: BLE001  # raised again by whoever waits
                if not future.done():
                    future.set_exception(exc)
            else:
                if not future.done():
                    future.set_result(result)

        thread = _Thread(self, run)
        self._threads[thread.greenlet] = thread
        self.call_soon(thread.go, context=thread.context)
        return future

    # -- running -------------------------------------------------------------------------------------------------------

    def run_until_complete(self, coroutine: Any) -> Any:
        task = asyncio.Task(coroutine, loop=self) if asyncio.iscoroutine(coroutine) else coroutine
        asyncio._set_running_loop(self)
        self._is_running = True
        try:
            while not task.done():
                self._step()
        finally:
            self._is_running = False
            asyncio._set_running_loop(None)
        return task.result()

    def _step(self) -> None:
        if not self._ready:
            if not self._timers:
                raise Deadlock(f"at {self._now:.6f} s nothing can run any more")
            when, _, timer = heapq.heappop(self._timers)
            if when > self._now:
                self._now = when
            self._ready.append(timer)
        handle = self._ready.popleft()
        if handle._cancelled:
            return
        process: Process | None = handle._context.get(_process)  # type: ignore[attr-defined]  # every handle has one
        if process is not None:
            if not process.is_alive:
                return
            if process.is_paused:
                process.held.append(handle)
                return
            if process is not self._last:
                self._last = process
                self.entering(process)
        self.steps += 1
        handle._run()

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """End all that has not ended, as the death of its process does: nothing of it may run in another world, when it is collected."""
        self._is_closed = True
        self._ready.clear()
        self._timers.clear()
        for thread in list(self._threads.values()):
            thread.end()
        self._threads.clear()
        asyncio._set_running_loop(self)
        try:
            for task in self._tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]  # it was killed: asyncio would warn
                    coroutine = task.get_coro()
                    with suppress(BaseException):  # what the killed would have said on its way out, nobody hears
                        coroutine.close()
        finally:
            asyncio._set_running_loop(None)

    def get_debug(self) -> bool:
        return False

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        if "future" in context or "task" in context:  # what a killed process leaves behind; what others do is asked for by who waits
            return
        raise RuntimeError(f"{context.get('message')}: {context.get('exception')!r}") from context.get("exception")

    call_exception_handler = default_exception_handler

    async def shutdown_asyncgens(self) -> None:
        """Do nothing: none are kept."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # its name in asyncio
        """Do nothing: there is none."""
