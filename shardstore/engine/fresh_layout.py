"""Retries of operations that used a stale layout: another client changed an array's document after its keys were located."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from shardstore.errors import Conflict

T = TypeVar("T")

_TRIES = 5


class StaleLayout(Exception):
    """The array's metadata changed since its layout was looked up: the keys have to be located again."""


async def with_fresh_layout(attempt: Callable[[], Awaitable[T]], conflict: str) -> T:
    """Return what ``attempt`` returns. It locates its keys itself, and is called again if the layout was stale.

    Raises:
        Conflict: it was stale each time; ``conflict`` is the message.
    """
    for _ in range(_TRIES):
        with suppress(StaleLayout):
            return await attempt()
    raise Conflict(conflict)


async def each_with_fresh_layout(numbers: Iterable[int], attempt: Callable[[list[int]], Awaitable[list[int]]]) -> list[int]:
    """Carry out the operations of these numbers; return the numbers of those whose layout was stale each time.

    ``attempt`` locates the keys of the numbers that it is given, and returns those whose layout was stale.
    """
    pending = list(numbers)
    for _ in range(_TRIES):
        if not pending:
            break
        pending = await attempt(pending)
    return pending
