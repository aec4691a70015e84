"""Make Ctrl-C reach the main thread."""

from __future__ import annotations

import signal


def leave_to_main_thread() -> None:
    """Block SIGINT in this thread; to be called at the start of a thread of a pool.

    The system gives a signal to any thread that does not block it. Python raises ``KeyboardInterrupt`` in the main thread, which notices
    only what interrupts its own system calls: while it waits for a result, a signal that another thread took would have no effect.
    """
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
