"""Requests that arrive separately in one tick of the event loop become one batch, as a data loader does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Request = TypeVar("Request")
Result = TypeVar("Result")


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
            loop.call_soon(self._flush)
        return await future

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
