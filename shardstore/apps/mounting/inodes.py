"""Inodes: the files and directories that the kernel refers to by number, each with the path that it has now.

A path that was looked up before a wait may be that of another file after it, since a directory above it was renamed. So ``Files`` takes a
``Place``, and looks its path up itself once nothing can rename it.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from shardstore.apps.mounting.errnos import Refused
from shardstore.apps.mounting.names import DIRECTORY, moved_path
from shardstore.format.store_keys import join

ROOT = 1


@dataclass(slots=True, eq=False)
class Inode:
    """A file or directory, to which the kernel refers ``lookups`` times."""

    number: int
    path: str | None
    """``None`` once it has been removed or replaced."""
    lookups: int = 0
    reported_nbytes: int = DIRECTORY
    """The size that was last reported to the kernel."""


@dataclass(frozen=True, slots=True)
class Child:
    """A name in a directory, whatever path the directory has."""

    parent: Inode
    name: str


Place = str | Inode | Child
"""A path; or an inode or a name in one, whose path changes where a directory is renamed."""


def path_of(place: Place) -> str:
    """Return the path that a place has now. Raises ``Refused`` if the inode has been removed."""
    if isinstance(place, str):
        return place
    path = place.path if isinstance(place, Inode) else place.parent.path
    if path is None:
        raise Refused(errno.ESTALE)
    return path if isinstance(place, Inode) else join(path, place.name)


class Inodes:
    """The inodes of one mount."""

    def __init__(self) -> None:
        root = Inode(ROOT, "", 1)
        self._by_number = {ROOT: root}
        self._by_path = {"": root}
        self._next = ROOT + 1

    def get(self, number: int) -> Inode:
        """Return the inode of a number. Raises ``Refused`` if there is none."""
        inode = self._by_number.get(number)
        if inode is None:
            raise Refused(errno.ESTALE)
        return inode

    def at(self, path: str | None) -> Inode:
        """Return the inode of a path, which is made if there is none; for ``None``, a new one of a file that has no name any more."""
        inode = None if path is None else self._by_path.get(path)
        if inode is None:
            inode = self._by_number[self._next] = Inode(self._next, path)
            self._next += 1
            if path is not None:
                self._by_path[path] = inode
        return inode

    def detach(self, path: str) -> None:
        """Take the name of an inode, to which the kernel may still refer."""
        inode = self._by_path.pop(path, None)
        if inode is not None:
            inode.path = None

    def moved(self, source: str, target: str, *, is_directory: bool) -> None:
        """Give an inode, and those below a directory, the paths that they have after it was renamed."""
        self.detach(target)
        below = f"{source}/"
        for path in [path for path in self._by_path if path.startswith(below)] if is_directory else []:
            self._move(path, moved_path(path, source, target))
        self._move(source, target)

    def _move(self, source: str, target: str) -> None:
        inode = self._by_path.pop(source, None)
        if inode is not None:
            inode.path = target
            self._by_path[target] = inode

    def forget(self, number: int, lookups: int) -> None:
        """Note that the kernel refers to an inode so many times less."""
        inode = self._by_number.get(number)
        if inode is None or number == ROOT:
            return
        inode.lookups -= lookups
        if inode.lookups <= 0:
            del self._by_number[number]
            if inode.path is not None and self._by_path.get(inode.path) is inode:
                del self._by_path[inode.path]
