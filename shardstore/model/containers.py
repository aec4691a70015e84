"""Containers that the standard library lacks in the oldest Python that is supported."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Generic, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


@overload
def batched(items: str, most: int) -> Iterator[str]: ...
@overload
def batched(items: Sequence[T], most: int) -> Iterator[Sequence[T]]: ...
def batched(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """Yield slices of a sequence, of ``most`` items each; the last one may be shorter."""
    for start in range(0, len(items), most):
        yield items[start : start + most]


async def gathered(items: AsyncIterator[T], most: int) -> AsyncIterator[list[T]]:
    """Yield lists of items, of ``most`` each, as soon as they are full; the last one may be shorter."""
    some: list[T] = []
    async for item in items:
        some.append(item)
        if len(some) == most:
            yield some
            some = []
    if some:
        yield some


class Lru(Generic[K, V]):
    """Values by key, up to a total size; the least recently used ones are dropped first.

    ``size`` returns the size of a value, 1 by default. A value that is larger than the limit alone is not kept. Values are dropped
    ``seconds`` after they were put there. Not safe for threads, except ``peek``
    and ``touch``.
    """

    def __init__(
        self,
        limit: int,
        size: Callable[[V], int] = lambda _: 1,
        *,
        seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = limit
        self._size = size
        self._seconds = seconds
        self._clock = clock
        self._values: OrderedDict[K, tuple[V, int, float]] = OrderedDict()
        self.used = 0
        """The total size of the values that are kept."""

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._values))  # a list in one step: other threads may read

    def __contains__(self, key: K) -> bool:
        return self.peek(key) is not None

    def get(self, key: K) -> V | None:
        """Return a value, ``None`` if there is none; it counts as used now."""
        value = self.peek(key)
        if value is None:
            self.pop(key)
        else:
            self._values.move_to_end(key)
        return value

    def peek(self, key: K) -> V | None:
        """Return a value, ``None`` if there is none, without a change."""
        kept = self._values.get(key)
        if kept is None or (self._seconds is not None and self._clock() - kept[2] >= self._seconds):
            return None
        return kept[0]

    def touch(self, key: K) -> None:
        """Let a value count as used now, if it is there."""
        with suppress(KeyError):  # dropped since it was looked up
            self._values.move_to_end(key)

    def put(self, key: K, value: V) -> V:
        """Keep a value, in place of one of the same key, and return it."""
        self.pop(key)
        size = self._size(value)
        if size <= self._limit:
            self._values[key] = value, size, self._clock() if self._seconds is not None else 0.0
            self.used += size
            while self.used > self._limit:
                _, (_, dropped, _) = self._values.popitem(last=False)
                self.used -= dropped
        return value

    def pop(self, key: K) -> V | None:
        """Drop a value, and return it; ``None`` if there is none."""
        kept = self._values.pop(key, None)
        if kept is None:
            return None
        self.used -= kept[1]
        return kept[0]

    def clear(self) -> None:
        self._values.clear()
        self.used = 0
