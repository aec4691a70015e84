"""An event loop whose clock jumps to whatever is due next: what waits for hours takes no time, and always the same way.

With ``LatencyStorage`` over ``MemoryStorage`` it is a model of clients on a network, without a clock that depends on the machine.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def no_sleep(_seconds: float) -> None:
    """Let whatever is ready run, in place of a sleep."""
    await asyncio.sleep(0)


class _Jumping(selectors.DefaultSelector):
    """Waits for nothing but threads; a wait with an end ends at once, and the clock is there."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            self.now += timeout
            timeout = 0
        return super().select(timeout)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Its ``time()`` starts at 0 and passes only while every task waits."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_in_virtual_time(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of ``coroutine``, run on a loop of its own whose time is virtual."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(coroutine)
