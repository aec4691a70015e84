"""Files that lie below a directory, wherever links lead: for readers who are not to see what a link in a store leads to elsewhere.

What lies outside is denied, and not absent: a chunk whose directory is a link to another disk would be read as the fill value.
"""

from __future__ import annotations

import os

from shardstore.errors import AccessDenied


class LeadsOutside(AccessDenied):
    """A key lies behind a link out of the directory."""


class Inside:
    """The real place of a directory. The directory itself may be a link, and lead elsewhere later."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._start = self._real_start()

    def _real_start(self) -> str:
        return os.path.join(os.path.realpath(self._root), "")

    def has(self, path: str) -> bool:
        """Return whether a path leads to a place in the directory, or to the directory itself, whether anything is there or not."""
        return self._has_real(os.path.realpath(path))

    def check(self, path: str, key: str) -> None:
        """Raise ``LeadsOutside`` if a path leads to a place outside."""
        if not self.has(path):
            raise outside(key)

    def check_open(self, fd: int, path: str, key: str) -> None:
        """Raise ``LeadsOutside`` if an open file lies outside. ``path`` is how it was opened; links on it may have been changed since."""
        try:
            real = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # not Linux, or without /proc
            real = os.path.realpath(path)
        if not self._has_real(real):
            raise outside(key)

    def _has_real(self, real: str) -> bool:
        real = os.path.join(real, "")
        if not real.startswith(self._start):
            self._start = self._real_start()
        return real.startswith(self._start)


def outside(key: str) -> LeadsOutside:
    """Return the error of a key that does not lie in the directory."""
    return LeadsOutside(
        f"{key!r} is, or lies behind, a link that leads out of the store, and such links are not followed here: allow them by "
        "follow_links=True (serve --follow-links) if you trust the author of the store"
    )
