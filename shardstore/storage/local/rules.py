"""Take the lock of a local object, check conditions under it, and remove objects and directories: the rules of every change.

New versions are put in place by ``temporary.py`` and ``append.py``, which take the lock here.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from shardstore.errors import InvalidInput, StorageError, Unsupported
from shardstore.model.generation import Condition, Generation, IfAbsent, IfGeneration
from shardstore.storage.base import ConditionFailed
from shardstore.storage.local.durability import kept_names
from shardstore.storage.local.files import fresh_status, fsync_directory, fsync_file, stat_file
from shardstore.storage.local.locks import locked
from shardstore.storage.local.range_locks import give_up, locked_range
from shardstore.storage.local.sweep import sweep_once
from shardstore.storage.local.versions import generation_at, generation_of, wait_to_settle

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
        """Return the status of the object, or ``None``; called under its lock. Raises ``ConditionFailed`` if ``condition`` does not
        hold.
        """
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
