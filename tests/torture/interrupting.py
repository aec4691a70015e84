"""Cancels a coroutine at its n-th suspension, as ``asyncio.Task.cancel`` would at that very moment."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Interrupting(Generic[T]):
    """Awaits ``coroutine``; at its suspension number ``at``, counted from 1, the task that awaits this is cancelled.

    ``late``: not when it suspends, but in the moment in which what it waits for is there and it has not gone on yet.
    ``suspensions`` tells how many there have been.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T], at: int, *, late: bool) -> None:
        self._coroutine = coroutine
        self._at = at
        self._late = late
        self.suspensions = 0

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._coroutine.__await__()
        delivered: BaseException | None = None
        while True:
            try:
                waits_for = steps.send(None) if delivered is None else steps.throw(delivered)
            except StopIteration as ended:
                result: T = ended.value
                return result
            self.suspensions += 1
            if self.suspensions == self._at:
                self._cancel(waits_for)
            delivered = None
            try:
                yield waits_for
            except BaseException as exc:  # noqa: BLE001  # whatever comes belongs to the coroutine
                delivered = exc

    def _cancel(self, waits_for: asyncio.Future[object] | None) -> None:
        task = asyncio.current_task()
        assert task is not None
        if not self._late:
            task.cancel()
        elif waits_for is None:  # a bare yield: the loop goes on with the task in its next turn
            asyncio.get_running_loop().call_soon(task.cancel)
        else:  # called back before the task is, whose turn it is to ask for that
            waits_for.add_done_callback(lambda _: task.cancel())
