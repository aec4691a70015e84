"""The rules of every change: sweep first, take the lock of the object, check conditions under it, and make the names durable.

New versions are put in place by ``temporary.py`` and ``append.py``, which take the lock here.

A writer holds a lock on its temporary file as long as it lives. So a file is left behind if its lock can be had at once: that
needs no knowledge of processes, which have the same numbers in other containers and again after a while.

Flushing a file keeps its bytes, and flushing a directory keeps the names in it; neither keeps the directory's own name. A writer that
finds a directory made by another, who may not have flushed it yet, or may have died before, flushes the names above it too. Each
process does so once for each directory, as far up as it can open: up to the root of the file system, since it does not know when each
directory was made.

A directory can be removed, when it is empty, and made again by another writer; it may even get the same inode number. So this process
believes that a directory is still the one whose name it has flushed as long as it finds an object there, or below, in the very version
that it stored: then the directory was never empty. This is checked when another process wrote the object last.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, get_args

from shardstore.errors import InvalidInput, StorageError, Unsupported
from shardstore.model.generation import Condition, Generation, IfAbsent, IfGeneration
from shardstore.storage.abilities import Leftover
from shardstore.storage.base import ConditionFailed
from shardstore.storage.local.files import (
    LOCK_SUFFIX,
    TEMP_SUFFIX,
    fresh_status,
    fsync_directory,
    fsync_file,
    stat_file,
    writer_of,
)
from shardstore.storage.local.locks import is_called, lock_whole, locked, open_lock_file, remove_locked, unlock
from shardstore.storage.local.range_locks import DIRECTORY_LOCK, give_up, locked_range
from shardstore.storage.local.versions import generation_at, generation_of, wait_to_settle

# -- names that survive the loss of power ------------------------------------------------------------------------------


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


# -- what dead writers left: temporary files, and the locks of objects -------------------------------------------------


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


# -- changes -----------------------------------------------------------------------------------------------------------


Locks = Literal["auto", "cluster"]
"""The reach of the locks of local files: ``"cluster"`` says that locks of the file system hold between machines."""

PARENT_ATTEMPTS = 20  # other processes may remove empty directories while this process makes them


def check_locks(locks: object) -> None:
    """Refuse a value that the option ``locks`` does not have.

    Raises:
        InvalidInput: there is no such value.
        Unsupported: this system has no such locks.
    """
    if locks not in get_args(Locks):
        raise InvalidInput(f"locks={locks!r} is neither {' nor '.join(map(repr, get_args(Locks)))}")
    if locks == "cluster" and sys.platform != "linux":
        raise Unsupported(f"locks='cluster' needs Linux: {sys.platform} has no locks of open files that reach across machines")


def check_follow_links(follow_links: object) -> bool:
    """Raise ``InvalidInput`` if the value is not true or false."""
    if isinstance(follow_links, bool):
        return follow_links
    raise InvalidInput(f"follow_links={follow_links!r} is neither True nor False: it says whether links may lead out of a directory")


_NOT_FLUSHED = (FileNotFoundError, NotADirectoryError, PermissionError)


@dataclass(frozen=True, slots=True)
class WriteRules:
    """The rules that every change below ``root`` keeps to."""

    root: str
    fsync: bool
    """True if an acknowledged write survives the loss of power."""
    is_network: bool
    """True if the root lies on a file system that other machines may have mounted; its caches may be stale."""
    is_cluster: bool
    """True if the user says that the locks of the file system hold between machines."""

    @contextmanager
    def locked(self, path: str) -> Iterator[None]:
        """Hold the lock of the object at ``path``; waits for it, blocking the thread.

        On file systems of this machine the lock is a file of the object's own; on network file systems, a byte of the directory's lock
        file. With ``locks="cluster"`` on a file system of this machine both are taken, always in this order: processes that were not
        given the option, and machines to which this one exports the directory, are excluded too.

        Raises:
            FileNotFoundError: the directory of ``path`` does not exist.
            StorageError: the file system has no locks.
        """
        with ExitStack() as held:
            if not self.is_network:
                held.enter_context(locked(path))
            if self.is_network or self.is_cluster:
                held.enter_context(locked_range(path))
            yield

    def status(self, path: str) -> os.stat_result | None:
        """Return the status of the object at ``path`` as the server has it, or ``None``."""
        return fresh_status(path) if self.is_network else stat_file(path)

    def check(self, path: str, key: str, condition: Condition) -> os.stat_result | None:
        """Return the object's status, or ``None``; called under its lock. Raises ``ConditionFailed`` if ``condition`` does not hold."""
        status = self.status(path)
        if isinstance(condition, IfAbsent):
            if status is not None:
                raise ConditionFailed(f"{key!r} exists")
            if os.path.lexists(path):
                raise StorageError(f"{key!r} cannot be created: there is a directory, or something else that is no object, of this name")
        if isinstance(condition, IfGeneration) and (status is None or not _is_version(path, status, condition.generation)):
            raise ConditionFailed(f"{key!r} is not the version that was asked for")
        return status

    def sweep_once(self, directory: str) -> None:
        """Remove what dead writers left in a directory, before the first change there."""
        sweep_once(directory, self.is_network)

    def delete(self, path: str, key: str, condition: Condition) -> bool:
        """Remove the object, and directories below the root that this leaves empty; return ``False`` if there was no object."""
        directory = os.path.dirname(path)
        if self.status(path) is None:
            self.keep_absence(directory)
            return False
        self.sweep_once(directory)
        try:
            # Unconditional deletes take the lock too: a removal between another writer's check and its replacing would be undone.
            with self.locked(path):
                if self.check(path, key, condition) is None:
                    return False
                os.unlink(path)
                if self.fsync:
                    fsync_directory(directory)
        except FileNotFoundError:
            return False
        self.prune(directory)
        return True

    def delete_all(self, directory: str, paths: Iterable[str]) -> None:
        """Remove objects in a directory, without locks since no process writes under their names; and directories that this empties."""
        self.sweep_once(directory)
        for path in paths:
            try:
                os.unlink(path)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                continue  # no object
        self.keep_absence(directory)
        self.prune(directory)

    def keep_seen(self, path: str) -> None:
        """Make durable what readers see at ``path`` now: an object, or that there is none; for a directory, the names in it and below. The
        process that wrote or removed the object may have died before it was flushed. Called only where writes are flushed.
        """
        if os.path.isdir(path):
            for directory, _, _ in os.walk(path, onerror=_check_listing):
                with suppress(*_NOT_FLUSHED):
                    fsync_directory(directory)
        elif (status := self.status(path)) is not None:
            if not kept_names.keeps_object(path, status):
                with suppress(FileNotFoundError):  # removed since then: what was relied on has changed
                    fsync_file(path)
                    kept_names.flush_object(path, status, self.status)
                    kept_names.remember(path, status)
            return
        self.keep_absence(os.path.dirname(path))

    def keep_absence(self, directory: str) -> None:
        """Make durable that there are no other names in a directory, or that it does not exist, nor those above that do not."""
        while self.fsync:
            try:
                kept_names.flush_absences(directory, self.status)
            except (FileNotFoundError, NotADirectoryError):
                directory = os.path.dirname(directory)
            except PermissionError:  # not to be read by this user
                return
            else:
                return

    def make_directory(self, directory: str) -> None:
        """Make ``directory`` and those above it. Their names are flushed with the first object.

        Another process may remove them again, since they are empty: a caller who finds them gone calls again, at most
        ``PARENT_ATTEMPTS`` times.

        Raises:
            FileExistsError: one of them is a file, or a link that leads nowhere.
        """
        missing = [str(above) for above in (Path(directory), *Path(directory).parents) if not os.path.isdir(above)]
        try:
            os.makedirs(directory, exist_ok=True)
        except (FileNotFoundError, FileExistsError):
            # One that was there already was removed when it was looked at, or before the next was made in it.
            for above in missing:
                if os.path.isfile(above) or (os.path.islink(above) and not os.path.exists(above)):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), above) from None

    def prune(self, directory: str) -> None:
        """Remove ``directory`` and its parents below the root as long as these are empty."""
        while len(directory) > len(self.root) and directory.startswith(self.root):
            if not self.remove_empty(directory):
                return
            directory = os.path.dirname(directory)

    def remove_empty(self, directory: str) -> bool:
        """Remove a directory that holds nothing but its lock file; return whether it is gone."""
        for _ in range(2):
            try:
                os.rmdir(directory)
            except OSError:  # not empty, or a writer was faster, or not ours to remove: an empty directory does no harm
                if (self.is_network or self.is_cluster) and give_up(directory):
                    continue
                return False
            return True
        return False


def _check_listing(error: OSError) -> None:
    """Raise an error of listing a directory, unless it was removed, or is not to be read by this user."""
    if not isinstance(error, _NOT_FLUSHED):
        raise error


def _is_version(path: str, status: os.stat_result, generation: Generation) -> bool:
    """Return whether the object is this version; the file may have a tail, which is no part of the version."""
    if generation_of(status, path) == generation or generation_at(path, status) == generation:
        return True
    wait_to_settle(generation, status)
    return False
