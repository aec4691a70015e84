"""Whether what clients saw of one value can have happened in some order: linearisability of a register whose writes are all different.

An operation begins and ends; one that failed without a word, or whose client died, never ends, and may have happened at any moment since it
began, or not at all. The search is bounded: it remembers where it has been, by what has happened and what was there then.

A write may happen again as long as its call has not ended: where its answer was lost, and somebody else has written since, nothing tells
whether it happened, and it is made once more ("A lost answer" in ``docs/design/consistency.md``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

NEVER = math.inf

Value = str | None


class Violation(Exception):
    """A promise was broken."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A read or write of one register, by ``client``, from ``began`` to ``ended``."""

    client: str
    is_write: bool
    value: Value
    began: float
    ended: float = NEVER

    @property
    def is_open(self) -> bool:
        return self.ended == NEVER

    def __str__(self) -> str:
        ended = "…" if self.is_open else f"{self.ended:.4f}"
        return f"{self.began:.4f} to {ended}: {self.client} {'wrote' if self.is_write else 'read'} {self.value}"


class TooLong(Exception):
    """The search was given up."""


def explanation(operations: Sequence[Operation], initial: Value = None, most_states: int = 200_000) -> list[Operation] | None:
    """Return an order in which all ended operations, and some open ones, can have happened; ``None`` if there is none.

    Raises:
        TooLong: there are too many orders to try.
    """
    by_value = {operation.value for operation in operations if not operation.is_write}
    # Open reads say nothing; an open write whose value nobody saw may just as well not have happened.
    wanted = [one for one in operations if not one.is_open or (one.is_write and (one.value in by_value))]
    wanted.sort(key=lambda one: (one.began, one.ended))
    ended = sum(1 << i for i, one in enumerate(wanted) if not one.is_open)
    seen: set[tuple[int, Value]] = set()
    path: list[int] = []

    def candidates(done: int) -> list[int]:
        """The operations that can come next: those that began before every one that is left has ended."""
        first_end = min((one.ended for i, one in enumerate(wanted) if not done >> i & 1), default=NEVER)
        return [i for i, one in enumerate(wanted) if not done >> i & 1 and one.began <= first_end]

    def search(done: int, value: Value) -> bool:
        if done & ended == ended:
            return True
        if (done, value) in seen:
            return False
        if len(seen) >= most_states:
            raise TooLong(f"{len(wanted)} operations have too many orders")
        seen.add((done, value))
        found = candidates(done)
        # A read of what is there is right at once: nothing can become impossible by it.
        for i in found:
            if not wanted[i].is_write and wanted[i].value == value:
                path.append(i)
                if search(done | 1 << i, value):
                    return True
                path.pop()
                return False
        for i in found:
            if wanted[i].is_write:
                path.append(i)
                if search(done | 1 << i, wanted[i].value):
                    return True
                path.pop()
        asked_for = {wanted[i].value for i in found if not wanted[i].is_write}
        last_begin = max((one.began for i, one in enumerate(wanted) if done >> i & 1), default=-NEVER)
        for i, one in enumerate(wanted):
            if done >> i & 1 and one.is_write and one.value in asked_for and one.ended >= last_begin:
                path.append(i)
                if search(done, one.value):
                    return True
                path.pop()
        return False

    return [wanted[i] for i in path] if search(0, initial) else None
