"""How much the tests do, by the stage that runs them: ``SHARDSTORE_STAGE`` is ``test`` (``make test``), ``gate`` or ``night``.

Set it to run by hand what a stage runs: ``SHARDSTORE_STAGE=night pytest tests/engine/gate/test_moving.py``.
"""

from __future__ import annotations

import datetime
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from shardstore.testing.faults import Effect, Fault

T = TypeVar("T")

STAGE = os.environ.get("SHARDSTORE_STAGE", "test")
if STAGE not in ("test", "gate", "night"):
    raise ValueError(f"SHARDSTORE_STAGE is {STAGE!r}, and has to be test, gate or night")

FULL = STAGE == "night"
EXAMPLES = {"test": 20, "gate": 30, "night": 200}[STAGE]
"""Examples of each property; state machines, whose examples are long, have a fraction of them."""
EVERY = {"test": 7, "gate": 5, "night": 1}[STAGE]
"""Of the requests and other moments of an operation, one in so many is put to the test."""
_TODAY = datetime.date.today().toordinal()  # noqa: DTZ011  # whichever day it is here


def sized(full: int, small: int) -> int:
    """``full`` at night, ``small`` in every other run."""
    return full if FULL else small


def moments(every: Iterable[T], *, sparse: int = 1) -> Iterator[T]:
    """Return those of ``every`` moment at which an operation is broken off that this run puts to the test: other ones each day.

    ``sparse`` times fewer, but at night, where very many operations are broken off.
    """
    step = 1 if FULL else EVERY * sparse
    return itertools.islice(every, _TODAY % step, None, step)


def at_requests(effect: Effect, attempt: Callable[[Fault], bool], *, least: int, sparse: int = 1) -> int:
    """As ``shardstore.testing.faults.at_every_request``, at some of the requests; ``least`` is how many requests there are at least.

    Return how many were struck.
    """
    for struck, at in enumerate(moments(itertools.count(1), sparse=sparse)):
        if not attempt(Fault(at, effect)):
            assert struck >= least // (EVERY * sparse), f"only {struck} requests were struck"
            return struck
    raise AssertionError("counting never ends")
