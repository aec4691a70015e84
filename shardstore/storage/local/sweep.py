"""Find and remove what dead writers left: temporary files, and the locks of objects.

A writer holds a lock on its temporary file as long as it lives. So a file is left behind if its lock can be had at once: that
needs no knowledge of processes, which have the same numbers in other containers and again after a while.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from itertools import islice

from shardstore.storage.leftovers import Leftover
from shardstore.storage.local.lock_files import open_lock_file
from shardstore.storage.local.locks import is_called, lock_whole, remove_locked, unlock
from shardstore.storage.local.names import LOCK_SUFFIX, TEMP_SUFFIX, host_token, writer_of
from shardstore.storage.local.range_locks import DIRECTORY_LOCK

# Looked through before the first write in a directory: 50 ms on a local disk. A larger one is left to ``LocalStorage.sweep``.
_ENTRIES_LOOKED_AT = 100_000
_DIRECTORIES_REMEMBERED = 10_000

# Locks on network file systems may be this machine's own affair: there, what another machine writes has to be known by its age too.
_NETWORK_AGE_SECONDS = 86_400.0

_swept: dict[str, None] = {}


def sweep_once(
    directory: str,
    is_network: bool,
    *,
    most_entries: int = _ENTRIES_LOOKED_AT,
    most_remembered: int = _DIRECTORIES_REMEMBERED,
    network_age_seconds: float = _NETWORK_AGE_SECONDS,
) -> None:
    """Remove what dead writers left in a directory, once per process. Never fails: the next write does not depend on it."""
    if directory in _swept:
        return
    if len(_swept) >= most_remembered:
        _swept.clear()
    _swept[directory] = None
    if sys.platform != "win32":
        with suppress(OSError):  # it is not there yet, or cannot be listed
            _sweep_directory(directory, is_network, network_age_seconds if is_network else 0.0, most_entries)


def forget() -> None:
    """Forget which directories were swept, so that each is swept once more, as in a new process."""
    _swept.clear()


def sweep_tree(
    root: str, is_network: bool, older_than_seconds: float, *, only_count: bool = False, network_age_seconds: float = _NETWORK_AGE_SECONDS
) -> int:
    """Remove what dead writers left below ``root`` that is at least that old; return the number of files."""
    removed = 0
    if is_network:
        older_than_seconds = max(older_than_seconds, network_age_seconds)
    for directory, _, _ in os.walk(root):
        with suppress(OSError):  # removed since then, or not ours to look into
            removed += _sweep_directory(directory, is_network, older_than_seconds, None, only_count)
    return removed


def find_left(root: str, prefix: str, is_network: bool) -> list[Leftover]:
    """Return what dead writers left below ``prefix`` (``""``, or ending with ``/``) of ``root``; removes nothing, and keeps no lock."""
    found: list[Leftover] = []
    for directory, _, names in os.walk(os.path.join(root, prefix)):
        for name in sorted(names):
            path = os.path.join(directory, name)
            if _may_be_left(name, is_network) and _remove_if_dead(path, _NETWORK_AGE_SECONDS if is_network else 0.0, only_count=True):
                key = os.path.relpath(path, root).replace(os.sep, "/")
                is_temporary = name.endswith(TEMP_SUFFIX)
                what = "a temporary file whose writer is gone" if is_temporary else "a lock file that no process holds"
                found.append(Leftover(key, "temporary" if is_temporary else "lock", what))
    return found


def _sweep_directory(directory: str, is_network: bool, older_than_seconds: float, limit: int | None, only_count: bool = False) -> int:
    with os.scandir(directory) as entries:
        names = [entry.name for entry in islice(entries, limit) if _may_be_left(entry.name, is_network)]
    return sum(_remove_if_dead(os.path.join(directory, name), older_than_seconds, only_count) for name in names)


def _may_be_left(name: str, is_network: bool) -> bool:
    if not name.startswith("."):
        return False
    if name.endswith(TEMP_SUFFIX):
        return writer_of(name) is not None
    # On a network file system, the holder of the lock of an object holds it on the machine that exports the directory.
    return name.endswith(LOCK_SUFFIX) and name != DIRECTORY_LOCK and not is_network


if sys.platform == "win32":

    def _is_dead(path: str, older_than_seconds: float) -> bool:
        """Return whether a writer is dead. There are no such locks on this system: the age shows it, and the process number of a writer on
        this machine.
        """
        writer = writer_of(os.path.basename(path))
        if writer is None:  # a lock file: those stay
            return False
        with suppress(OSError):  # removed since then
            return time.time() - os.stat(path).st_mtime >= older_than_seconds and not (writer[0] == host_token() and _is_alive(writer[1]))
        return False

    def _remove_if_dead(path: str, older_than_seconds: float, only_count: bool = False) -> bool:
        try:
            if not _is_dead(path, older_than_seconds):
                return False
            if not only_count:
                os.unlink(path)
        except OSError:  # removed since then, or still open
            return False
        return True

    def _is_alive(pid: int) -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except OSError:  # it exists, and is not ours
            return True
        return True

else:

    def _remove_if_dead(path: str, older_than_seconds: float, only_count: bool = False) -> bool:
        fd = _locked_if_dead(path, older_than_seconds)
        if fd is None:
            return False
        if not only_count:
            return remove_locked(fd, path)
        unlock(fd)
        return True

    def _locked_if_dead(path: str, older_than_seconds: float) -> int | None:
        """Lock a file whose writer is dead, and return the descriptor; ``None`` if the writer may live, or the file is too young."""
        try:
            fd = open_lock_file(path)
        except OSError:  # removed since then, or not ours to remove, or no file
            return None
        try:
            status = os.fstat(fd)
            is_old = time.time() - status.st_mtime >= older_than_seconds or not older_than_seconds
            # Under the lock: a file that was opened, and then removed by its writer, may have had a name that other files bear now.
            if is_old and lock_whole(fd, path, wait=False) and is_called(status, path):
                return fd
        except OSError:  # no locks here; what cannot be known to be left behind stays
            pass
        unlock(fd)
        return None
