"""Whether this process was forked from one that had imported obstore. Imports nothing of obstore."""

from __future__ import annotations

import os
import sys

_is_forked = False


def _after_fork() -> None:
    """Note that the threads of obstore stayed behind in the parent, so a request of the child would wait for ever."""
    global _is_forked
    _is_forked = _is_forked or "obstore" in sys.modules


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

WHY_NOT = "obstore does not work in a process that was forked after obstore had been imported; spawned processes can use it"


def can_run() -> bool:
    """Return whether obstore works in this process: not in one that was forked after obstore had been imported."""
    return not _is_forked
