"""Faults at the level of the operating system: a process that dies, or a call that fails, at the n-th system call.

The functions of ``os`` and ``fcntl`` through which a storage changes and looks at files are replaced while a ``SystemCalls`` is
entered. What Python's C code calls directly, imports among it, is not seen.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any

_OPEN_FILES = (
    "open",
    "close",
    "pread",
    "readv",
    "write",
    "writev",
    "pwrite",
    "pwritev",
    "copy_file_range",
    "lseek",
    "ftruncate",
    "fchmod",
    "chmod",
    "chown",
    "utime",
    "fsync",
    "fdatasync",
    "setxattr",
    "getxattr",
    "removexattr",
    "fstat",
)
_NAMES = ("stat", "lstat", "listdir", "scandir", "mkdir", "rmdir", "rename", "replace", "link", "unlink")
_LOCKS = ("flock", "fcntl")

Strike = Callable[[str], None]
"""What happens at a call: gets the name of its function, such as ``"rename"``."""

_entered = threading.Lock()


def kill(name: str) -> None:
    """End this process as SIGKILL does: nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail(errno: int) -> Strike:
    """Raise ``OSError`` with this number; the subclass that Python has for it."""

    def raise_it(name: str) -> None:
        raise OSError(errno, f"{os.strerror(errno)} ({name}, as planned)")

    return raise_it


class SystemCalls:
    """Counts the calls that are made while it is entered, by any thread; call number ``at``, from 1, is struck.

    ``strike`` is called instead of carrying the call out, if it raises or kills; or right after with ``after``, whether the call
    failed or not. A ``close`` is always carried out first, as the system does: it may report an error, and the descriptor is gone
    nevertheless. With ``threads``, only threads whose names start so are counted. One at a time can be entered in a process.
    """

    def __init__(self, at: int | None = None, strike: Strike = kill, *, after: bool = False, threads: str = "") -> None:
        self.at = at
        self.strike = strike
        self.after = after
        self.threads = threads
        self.calls: list[str] = []
        """The names of the functions that were called, in order."""
        self._lock = threading.Lock()
        self._replaced: list[tuple[ModuleType, str, Any]] = []

    @property
    def has_struck(self) -> bool:
        return self.at is not None and len(self.calls) >= self.at

    def __enter__(self) -> SystemCalls:
        if not _entered.acquire(blocking=False):
            raise RuntimeError("the system calls of this process are being counted already")
        self._replace(os, (*_OPEN_FILES, *_NAMES))
        self._replace(fcntl, _LOCKS)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        for module, name, function in self._replaced:
            for supports in (os.supports_fd, os.supports_follow_symlinks, os.supports_dir_fd):
                supports.discard(getattr(module, name))
            setattr(module, name, function)
        self._replaced = []
        _entered.release()

    def _replace(self, module: ModuleType, names: tuple[str, ...]) -> None:
        for name in names:
            function = getattr(module, name, None)
            if function is None:
                continue
            wrapper = self._wrapped(name, function)
            for supports in (os.supports_fd, os.supports_follow_symlinks, os.supports_dir_fd):
                if function in supports:
                    supports.add(wrapper)
            self._replaced.append((module, name, function))
            setattr(module, name, wrapper)

    def _wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not threading.current_thread().name.startswith(self.threads):
                return function(*args, **kwargs)
            with self._lock:
                self.calls.append(name)
                is_struck = len(self.calls) == self.at
            if not is_struck:
                return function(*args, **kwargs)
            if self.after or name == "close":
                try:
                    return function(*args, **kwargs)
                finally:
                    self.strike(name)
            self.strike(name)
            return function(*args, **kwargs)

        return call
