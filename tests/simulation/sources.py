"""The sources of chance, identity and time of the whole process, which come from a world while it runs."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

from tests.simulation.loop import current_process

EPOCH = 1_750_000_000.0
"""What clocks show, in seconds since 1970, when a world begins."""


@contextmanager
def replaced(seed: int, now: Callable[[], float]) -> Iterator[None]:
    """Let ``random``, ``uuid``, ``secrets`` and ``time`` go by a seed and by ``now``, the seconds since the world began."""
    drawn = random.Random(f"identities {seed}")
    state = random.getstate()
    random.seed(f"chance {seed}")

    def seconds() -> float:
        process = current_process()
        return EPOCH + now() + (0.0 if process is None else process.clock_seconds)

    def nanoseconds() -> int:
        return round(EPOCH) * 10**9 + round((seconds() - EPOCH) * 1e9)

    try:
        with (
            mock.patch.object(os, "urandom", drawn.randbytes),
            mock.patch.object(random, "_urandom", drawn.randbytes),
            mock.patch.object(time, "time", seconds),
            mock.patch.object(time, "time_ns", nanoseconds),
            mock.patch.object(time, "monotonic", now),
            mock.patch.object(time, "perf_counter", now),
        ):
            yield
    finally:
        random.setstate(state)
