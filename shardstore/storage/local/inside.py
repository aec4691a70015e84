"""Files that lie below a directory, wherever links lead: for readers who are not to see what a link in a store leads to elsewhere."""

from __future__ import annotations

import errno
import os

_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class Inside:
    """The real place of a directory. The directory itself may be a link, and lead elsewhere later."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._start = self._real_start()

    def _real_start(self) -> str:
        return os.path.join(os.path.realpath(self._root), "")

    def has(self, path: str) -> bool:
        """Return whether a path leads to something in the directory, or to the directory itself."""
        try:
            real = os.path.realpath(path, strict=True)
        except OSError as exc:
            if exc.errno in _NOTHING:
                return False
            real = os.path.realpath(path)  # it cannot be looked at: to use it is an error
        return self._has_real(real)

    def has_open(self, fd: int, path: str) -> bool:
        """Return whether an open file lies in the directory. ``path`` is how it was opened; links on it may have been changed since."""
        try:
            real = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # not Linux, or without /proc
            real = os.path.realpath(path)
        return self._has_real(real)

    def _has_real(self, real: str) -> bool:
        real = os.path.join(real, "")
        if not real.startswith(self._start):
            self._start = self._real_start()
        return real.startswith(self._start)
