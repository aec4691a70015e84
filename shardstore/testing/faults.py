"""Faults at the level of the storage protocol: the storage that injects them, and a sweep over every request.

What goes wrong is a value (``Fail``, ``DropReply``, …), where is a ``Fault``. ``FaultStorage`` is a storage like any other:
``shardstore.open`` takes it in the place of a URL.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from shardstore.storage.wrap_faults import (
    Cancel,
    Change,
    Delay,
    DropReply,
    Effect,
    Fail,
    Fault,
    FaultStorage,
    Kill,
    Refuse,
    Request,
    TimeOut,
    Truncate,
)

__all__ = [
    "Cancel",
    "Change",
    "Delay",
    "DropReply",
    "Effect",
    "Fail",
    "Fault",
    "FaultStorage",
    "Kill",
    "Refuse",
    "Request",
    "TimeOut",
    "Truncate",
    "at_every_request",
]


def at_every_request(effect: Effect, attempt: Callable[[Fault], bool]) -> int:
    """Call ``attempt`` with ``effect`` at the first request, at the second, and so on; how many requests were struck.

    ``attempt`` starts from the same state each time, runs the operation over a ``FaultStorage`` with the fault that it is given,
    checks what became of it, and returns whether the fault struck anything: the sweep ends where it did not.
    """
    for at in itertools.count(1):
        if not attempt(Fault(at, effect)):
            return at - 1
    raise AssertionError("counting never ends")
