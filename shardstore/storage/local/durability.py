"""Names that survive the loss of power: of an object in its directory, and of all directories above, whichever process made them.

Flushing a file keeps its bytes, and flushing a directory keeps the names in it; neither keeps the directory's own name. A writer that
finds a directory made by another, who may not have flushed it yet, or may have died before, flushes the names above it too. Each
process does so once for each directory, as far up as it can open: up to the root of the file system, since it does not know when each
directory was made.

A directory can be removed, when it is empty, and made again by another writer; it may even get the same inode number. So this process
believes that a directory is still the one whose name it has flushed as long as it finds an object there, or below, in the very version
that it stored: then the directory was never empty. This is checked when another process wrote the object last.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

from shardstore.storage.local.files import fsync_directory

_OBJECTS_REMEMBERED = 10_000
_TICK_NS = 20_000_000  # of the kernel's clock for timestamps, on file systems that keep fractions of a millisecond
_COARSE_TICK_NS = 2_050_000_000  # elsewhere; FAT's is the coarsest

Look = Callable[[str], os.stat_result | None]
"""The status of an object, or ``None`` if there is none."""


class KeptNames:
    """The names that one process knows to survive."""

    def __init__(self, most_objects: int = _OBJECTS_REMEMBERED) -> None:
        self._most_objects = most_objects
        self._objects: dict[str, int] = {}  # by path: which version this process stored, or appended to, last
        self._absences: dict[str, int] = {}  # by directory: which state of it was flushed
        self._below: dict[str, str] = {}  # by directory: something in it, a directory or an object, that shows it to be the same

    def keeps_object(self, path: str, status: os.stat_result) -> bool:
        """Return whether the object with this status is what this process stored there: its name, and those above, were flushed then."""
        return self._objects.get(path) == _version(status)

    def keeps_directory(self, directory: str, look: Look) -> bool:
        """Return whether the name of a directory, and those above, were flushed, and it still is the same directory."""
        path = directory
        while (below := self._below.get(path)) is not None:
            path = below
        if path not in self._objects:
            return False
        try:
            status = look(path)
        except OSError:
            return False
        return status is not None and self.keeps_object(path, status)

    def flush_above(self, directory: str, look: Look) -> None:
        """Flush the names of a directory and of all above it, up to the first that survives, or the root of the file system."""
        if self.keeps_directory(directory, look):
            return
        status = os.stat(directory)
        while (above := os.path.dirname(directory)) != directory:
            if os.path.islink(directory):  # what it leads to has names of its own
                self.flush_above(os.path.realpath(directory), look)
            status_above = os.stat(above)
            if status_above.st_dev != status.st_dev and not os.path.islink(directory):  # another file system begins here
                return
            with suppress(PermissionError):  # not to be read by this user
                fsync_directory(above)
            if self.keeps_directory(above, look):
                return
            self._below[above] = directory
            directory, status = above, status_above

    def flush_object(self, path: str, status: os.stat_result, look: Look) -> None:
        """Flush the name of an object with this status, and those above, unless they survive."""
        if not self.keeps_object(path, status):
            directory = os.path.dirname(path)
            fsync_directory(directory)
            self.flush_above(directory, look)

    def flush_absences(self, directory: str, look: Look) -> None:
        """Flush the names in a directory, its own, and those above: what is not in it stays away, and no former directory comes back in
        its place. Not again as long as nothing in it changes.
        """
        status = os.stat(directory)
        if self._absences.get(directory) == _version(status):
            return
        fsync_directory(directory)
        self.flush_above(directory, look)
        tick = _COARSE_TICK_NS if _is_coarse(status) else _TICK_NS
        if time.time_ns() - status.st_mtime_ns > tick:  # or else it can change once more without another time
            if len(self._absences) >= self._most_objects:
                self._absences.clear()
            self._absences[directory] = _version(status)

    def remember(self, path: str, status: os.stat_result) -> None:
        """Record that the object with this status was stored or appended to, and that its name and those above were flushed.

        Not where times are coarse: an object that replaces this one, in a directory that was made again, could have the same status.
        """
        if _is_coarse(status):
            return
        if len(self._objects) >= self._most_objects:
            self._objects.clear()
            self._below.clear()
        self._objects[path] = _version(status)
        self._below[os.path.dirname(path)] = path


def _is_coarse(status: os.stat_result) -> bool:
    """Return whether the file system keeps no fractions of a millisecond; a writer draws them at random, see ``versions``."""
    return status.st_mtime_ns % 1_000_000 == 0


def _version(status: os.stat_result) -> int:
    return hash((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))


kept_names = KeptNames()
"""The names that this process knows to survive."""
