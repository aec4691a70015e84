"""How much the torture tests do: a little in every run of the tests, everything in ``make torture``."""

from __future__ import annotations

import os

FULL = bool(os.environ.get("SHARDSTORE_TORTURE"))


def sized(full: int, small: int) -> int:
    """``full`` in ``make torture``, ``small`` in every other run."""
    return full if FULL else small
