"""How much tests of faults, kills and races do: a little in every run of the tests, everything in ``make torture``."""

from __future__ import annotations

import os

FULL = bool(os.environ.get("SHARDSTORE_TORTURE"))
EVERY = int(os.environ.get("SHARDSTORE_EVERY", "1"))
"""Of the requests and other moments of an operation, one in so many is put to the test: all of them, but where time is short."""


def sized(full: int, small: int) -> int:
    """``full`` in ``make torture``, ``small`` in every other run."""
    return full if FULL else small
