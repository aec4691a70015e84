"""Waiting for the lock of a file, in a way that does not keep the process from ending.

A system call that waits for a lock cannot be broken off from another thread, and the interpreter joins the threads of pools before it
ends. So a thread of a pool never waits in that call itself: a daemon thread does, which the interpreter leaves behind, with a second
descriptor of the same open file. Both kinds of lock, flock and ranges of open files, belong to the open file, so any descriptor of
it will do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress

from shardstore.errors import StorageError
from shardstore.storage.interrupts import leave_to_main_thread
from shardstore.storage.local.lock_files import close_locked, second_descriptor

_LOOK_SECONDS = 0.25  # between looks whether the interpreter is ending
_GRACE_SECONDS = 1.0  # a holder that works lets go within milliseconds


def wait_for_lock(
    fd: int, name: str, lock: Callable[[int], object], *, look_seconds: float = _LOOK_SECONDS, grace_seconds: float = _GRACE_SECONDS
) -> None:
    """Wait until ``lock``, a call that waits, has locked the open file ``fd``, called ``name``.

    Raises:
        StorageError: the interpreter is ending, and the holder of the lock has not let go within ``grace_seconds``.
    """
    second = second_descriptor(fd)
    locked: Future[None] = Future()

    def run() -> None:
        leave_to_main_thread()
        try:
            lock(second)
        except BaseException as exc:  # noqa: BLE001 - for the thread that waits for this one
            _close(second)
            locked.set_exception(exc)
        else:
            _close(second)  # the lock stays with the open file, which ``fd`` holds
            locked.set_result(None)

    threading.Thread(target=run, name="shardstore-lock", daemon=True).start()
    with closing(_Interpreter()) as interpreter:
        while not wait([locked], look_seconds).done:
            if interpreter.is_ending() and not wait([locked], grace_seconds).done:
                raise StorageError(
                    f"another process has held the lock {name} since this one began to end: nothing was written. "
                    "Look whether a writer is stopped, or hangs"
                )
    locked.result()


class _Interpreter:
    """Notices that the interpreter has begun to end: from then on no pool accepts work."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "shardstore-ending", leave_to_main_thread)

    def is_ending(self) -> bool:
        try:
            self._pool.submit(time.monotonic)
        except RuntimeError:
            return True
        return False

    def close(self) -> None:
        self._pool.shutdown(wait=False)


def _close(fd: int) -> None:
    with suppress(OSError):  # nothing was written to a file that is only locked
        close_locked(fd)
