"""The rules by which objects below one root are replaced and removed: locked, checked, and made durable."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from shardstore.errors import InvalidInput, StorageError, Unsupported
from shardstore.model.generation import Condition, Generation, IfAbsent, IfGeneration
from shardstore.storage.base import ConditionFailed
from shardstore.storage.local.append_record import generation_at
from shardstore.storage.local.files import READ_FLAGS, fresh_status, fsync_directory, stat_file
from shardstore.storage.local.locks import locked
from shardstore.storage.local.range_locks import give_up, locked_range
from shardstore.storage.local.sweep import sweep_once
from shardstore.storage.local.versions import generation_of, wait_to_settle

Locks = Literal["auto", "cluster"]
"""Whether the locks of local files hold between machines: ``"cluster"`` says that those of the file system do."""

PARENT_ATTEMPTS = 20  # others may remove empty directories while this process makes them


def check_locks(locks: object) -> None:
    """Refuse what is no value of the option ``locks``.

    Raises:
        InvalidInput: it is none.
        Unsupported: this system has no such locks.
    """
    if locks not in get_args(Locks):
        raise InvalidInput(f"locks={locks!r} is neither {' nor '.join(map(repr, get_args(Locks)))}")
    if locks == "cluster" and sys.platform != "linux":
        raise Unsupported(f"locks='cluster' needs Linux: {sys.platform} has no locks of open files that reach across machines")


@dataclass(frozen=True, slots=True)
class WriteRules:
    """The rules that every change below ``root`` keeps to."""

    root: str
    fsync: bool
    """True where acknowledged writes survive the loss of power."""
    is_network: bool
    """The root lies on a file system that other machines may have mounted; its caches are not to be believed."""
    is_cluster: bool
    """The locks of the file system hold between machines, the user says."""

    @contextmanager
    def locked(self, path: str) -> Iterator[None]:
        """Hold the lock of the object at ``path``; waits for it, blocking the thread.

        On this machine's file systems that is a file of the object's own; on network file systems, a byte of the directory's.
        With ``locks="cluster"`` on a file system of this machine it is both, always in this order: processes that were not given
        the option, and machines to which this one exports the directory, are excluded too.

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
        """The status of the object at ``path``, or ``None``, as it is on the server."""
        return fresh_status(path) if self.is_network else stat_file(path)

    def check(self, path: str, key: str, condition: Condition) -> os.stat_result | None:
        """The status of the object, if there is one, under its lock. Raises ``ConditionFailed`` where ``condition`` does not hold."""
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
        """Before the first change in a directory: remove what dead writers left there."""
        sweep_once(directory, self.is_network)

    def delete(self, path: str, key: str, condition: Condition) -> bool:
        """Remove the object, and directories below the root that this leaves empty; ``False`` where there was none."""
        if self.status(path) is None:
            return False
        directory = os.path.dirname(path)
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

    def make_directory(self, directory: str) -> None:
        """Make ``directory`` and those above it. Their names are flushed with the first object.

        Others may have removed them again, since they are empty: who finds them gone asks again, ``PARENT_ATTEMPTS`` times at most.

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
        """Remove ``directory`` and its parents below the root as long as they are empty."""
        while len(directory) > len(self.root) and directory.startswith(self.root):
            if not self.remove_empty(directory):
                return
            directory = os.path.dirname(directory)

    def remove_empty(self, directory: str) -> bool:
        """Remove a directory that holds nothing but the file of its locks; whether it is gone."""
        for _ in range(2):
            try:
                os.rmdir(directory)
            except OSError:  # not empty, or a writer was faster, or not ours to remove: an empty directory does no harm
                if (self.is_network or self.is_cluster) and give_up(directory):
                    continue
                return False
            return True
        return False


def _is_version(path: str, status: os.stat_result, generation: Generation) -> bool:
    """Return whether the object is this version; it may have been left with a tail that is none of it."""
    if generation_of(status, path) == generation or generation_at(path, READ_FLAGS, status) == generation:
        return True
    wait_to_settle(generation, status)
    return False
