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


def at_every_request(effect: Effect, attempt: Callable[[Fault], bool], *, every: int = 1) -> int:
    """Call ``attempt`` with ``effect`` at the first request, the second, and so on, or at one in ``every`` of them; how many were struck.

    ``attempt`` starts from the same state each time, runs the operation over a ``FaultStorage`` with the fault that it is given,
    checks what became of it, and returns whether the fault struck anything: the sweep ends where it did not.
    """
    for struck, at in enumerate(itertools.count(1, every)):
        if not attempt(Fault(at, effect)):
            return struck
    raise AssertionError("counting never ends")
