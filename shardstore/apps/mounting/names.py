"""Names of files, and their paths, which change: inodes, places, and the lock by which directories are renamed.

A path that was looked up before a wait may be that of another file after it, since a directory above it was renamed. So ``Files`` takes a
``Place``, and looks its path up itself once nothing can rename it.
"""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from shardstore.apps.mounting.errnos import Refused
from shardstore.errors import ShardStoreError
from shardstore.format.json_text import parse_object
from shardstore.format.metadata_v3 import METADATA_NAME, is_array
from shardstore.format.store_keys import join
from shardstore.format.v2.keys import ARRAY_NAME, DOCUMENT_NAMES

T = TypeVar("T")

_ATTRIBUTES = (".zattrs", ".zmetadata")  # of the documents of Zarr v2

DIRECTORY = -1
"""Stands for the size of a directory in listings."""

_SCRATCH = re.compile(
    r"""
    .*\.(partial|__lock|tmp|swp|swo|swx)   # zarr-python, tensorstore, many; vim
    | .*~ | \#.*\# | \.\#.*                # what editors keep for a moment
    | \.nfs.* | \.fuse_hidden.* | \.goutputstream-.* | \.~lock.*
    | \..+\.(?=[A-Za-z]*[A-Z0-9])[A-Za-z0-9]{6} | sed(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{6}   # rsync, sed -i: random letters and digits
    """,
    re.VERBOSE,
)


def is_scratch(name: str) -> bool:
    """Return whether programs give such a name to a file that they rename or remove soon. It never reaches the storage."""
    return _SCRATCH.fullmatch(name) is not None


def is_document(path: str) -> bool:
    """Return whether a path is that of a metadata document, in any format."""
    name = path.rpartition("/")[2]
    return name == METADATA_NAME or name in DOCUMENT_NAMES or (path.startswith("meta/") and name.endswith((".array.json", ".group.json")))


def is_array_document(path: str, data: bytes) -> bool:
    """Return whether a document, with these bytes, makes its node an array."""
    if name_of(path) == ARRAY_NAME:
        return True
    document = parse_object(data) if name_of(path) == METADATA_NAME else None
    return document is not None and is_array(document)


def document_rank(path: str) -> tuple[int, int]:
    """Return a key to sort documents by in the order in which they are created: nodes above first, attributes after their node."""
    return path.count("/"), path.endswith(_ATTRIBUTES)


def parent_of(path: str) -> str:
    return path.rpartition("/")[0]


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


def in_order(name: str) -> tuple[int, int, str]:
    """Return a key to sort names by in which numbers are in their own order, as chunks are."""
    return (0, int(name), name) if name.isdecimal() and len(name) < 20 else (1, 0, name)


def shown_order(directory: str, names: Mapping[str, int]) -> list[str]:
    """Return the names in a directory, given with their sizes, in the order in which they are shown: directories first, documents last.

    Programs remove files in this order. Attributes come before the document of their node, with which they would be gone.
    """
    return sorted(names, key=lambda name: (names[name] != DIRECTORY, _document_order(join(directory, name)), in_order(name)))


def _document_order(path: str) -> int:
    return 0 if not is_document(path) else 1 if path.endswith(_ATTRIBUTES) else 2


def moved_path(path: str, source: str, target: str) -> str:
    """Return the name that ``path``, at or below ``source``, has after ``source`` was renamed to ``target``."""
    return target + path[len(source) :]


class ByPath(dict[str, T]):
    """Values by path, whose names in one directory are found at once."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[str, dict[str, None]] = {}

    def __setitem__(self, path: str, value: T) -> None:
        super().__setitem__(path, value)
        self._names.setdefault(parent_of(path), {})[name_of(path)] = None

    def remove(self, path: str) -> T | None:
        """Remove the value at ``path``, if there is one, and return it."""
        if path not in self:
            return None
        names = self._names[parent_of(path)]
        del names[name_of(path)]
        if not names:
            del self._names[parent_of(path)]
        return super().pop(path)

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory."""
        return list(self._names.get(directory, ()))

    def below(self, directory: str) -> list[str]:
        """Return all paths below a directory."""
        begin = f"{directory}/" if directory else ""
        return [path for path in self if path.startswith(begin)]


# -- inodes and places -----------------------------------------------------------------------------------------------------

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


# -- renaming --------------------------------------------------------------------------------------------------------------


class Moves:
    """The lock: many may change files at once (``change``), but a directory is renamed alone (``move``). The path of a place counts only
    if it was looked up while it is held; who only reads does not hold it, and uses ``ask``.
    """

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._active = 0
        self._is_moving = False
        self._renamed: tuple[str, ...] = ()  # the directories that are being renamed at this moment, and their new names
        self._count = 0  # of the times when that changed

    def _is_free(self) -> bool:
        return not self._is_moving

    @asynccontextmanager
    async def change(self) -> AsyncIterator[None]:
        """Hold the lock shared. Must not be nested: a ``move`` that waits between the two would wait for ever."""
        while not self._is_free():
            async with self._changed:
                await self._changed.wait_for(self._is_free)
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1
            if self._is_moving:
                async with self._changed:
                    self._changed.notify_all()

    @asynccontextmanager
    async def move(self) -> AsyncIterator[None]:
        """Hold the lock exclusively, while a directory is renamed."""
        async with self._changed:
            await self._changed.wait_for(self._is_free)
            self._is_moving = True
            try:
                await self._changed.wait_for(lambda: self._active == 0)
            except BaseException:
                self._is_moving = False
                self._changed.notify_all()
                raise
        try:
            yield
        finally:
            self.renames()
            async with self._changed:
                self._is_moving = False
                self._changed.notify_all()

    def renames(self, *paths: str) -> None:
        """Note which directories are renamed from now on, by the task that holds the lock exclusively."""
        self._renamed = paths
        self._count += 1

    def _concerns(self, path: str) -> bool:
        return any(path == renamed or path.startswith(f"{renamed}/") for renamed in self._renamed)

    async def ask(self, place: Place, question: Callable[[str], Awaitable[T]], drop: Callable[[T], object] = id) -> tuple[str, T]:
        """Return the path of a place, and the answer to a question about it; it is asked again if a rename came in between, and ``drop`` is
        called with the first answer.
        """
        while True:
            while self._concerns(path := path_of(place)):
                async with self._changed:
                    await self._changed.wait_for(lambda: not self._renamed)
            count = self._count
            try:
                answer = await question(path)
            except ShardStoreError:
                if count == self._count and path_of(place) == path:
                    raise
            else:
                try:
                    if count == self._count and path_of(place) == path:
                        return path, answer
                except Refused:
                    drop(answer)
                    raise
                drop(answer)
