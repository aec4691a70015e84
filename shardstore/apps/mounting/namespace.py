"""The names that a mount shows: those on the storage, and over them those that it has open, holds back, has made or has removed."""

from __future__ import annotations

import time
from collections.abc import Callable

from shardstore.apps.mounting.held_back import HeldBack
from shardstore.apps.mounting.names import DIRECTORY, ByPath, Inodes, moved_path, name_of, parent_of, shown_order
from shardstore.apps.mounting.reading import DirEntry
from shardstore.apps.mounting.tree import Tree
from shardstore.apps.mounting.writing import Buffer
from shardstore.errors import InvalidInput
from shardstore.format.store_keys import check_key, join
from shardstore.model.containers import Lru

_MOST_MTIMES = 100_000
_MOST_REMOVED = 100_000


class Directories:
    """Directories that may be empty, and are shown even if no listing has them (``path in directories``), and those that were removed."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._shown: ByPath[bool] = ByPath()  # True if it was made here
        self._removed: Lru[str, float] = Lru(_MOST_REMOVED)  # and when

    def __contains__(self, path: str) -> bool:
        return path in self._shown

    def names(self, path: str) -> list[str]:
        """Return the names of those in a directory."""
        return self._shown.names(path)

    def was_made(self, path: str) -> bool:
        """Return whether a program has made it."""
        return self._shown.get(path, False)

    def was_removed(self, path: str) -> bool:
        """Return whether it was removed so recently that a listing may show it still."""
        removed = self._removed.peek(path)
        return removed is not None and self._clock() - removed < self._seconds

    def was_once_removed(self, path: str) -> bool:
        """Return whether it was removed, however long ago, and this mount has put nothing in it since."""
        return path in self._removed

    def make(self, path: str) -> None:
        self._removed.pop(path)
        self._shown[path] = True

    def show(self, *paths: str) -> None:
        for path in paths:
            self._shown[path] = self._shown.get(path, False)

    def show_above(self, path: str) -> None:
        """Show the directories of a file that is removed: they stay, though nothing may be in them."""
        while path := parent_of(path):
            self.show(path)

    def remove(self, path: str) -> None:
        self._shown.remove(path)
        self._removed.put(path, self._clock())

    def filled(self, path: str) -> None:
        """Note that there is a file at ``path``, so that no directory above it is removed."""
        while self._removed and (path := parent_of(path)):
            self._removed.pop(path)

    def moved(self, source: str, target: str) -> None:
        """Note that a directory, with those in it, has another name."""
        for path in [source, *self._shown.below(source)]:
            if (was_made := self._shown.remove(path)) is not None:
                self._shown[moved_path(path, source, target)] = was_made
        for path in self._removed:
            if path == target or path.startswith(f"{target}/"):
                self._removed.pop(path)
        for path in self._removed:
            if path.startswith(f"{source}/") and (at := self._removed.pop(path)) is not None:
                self._removed.put(moved_path(path, source, target), at)


class Namespace:
    """The names of one mount."""

    def __init__(self, tree: Tree, held: HeldBack, attr_seconds: float, clock: Callable[[], float]) -> None:
        self.buffers: ByPath[Buffer] = ByPath()
        """Files that are open for writing, and scratch files."""
        self.directories = Directories(attr_seconds, clock)
        self.inodes = Inodes()
        self.began_ns = time.time_ns()
        self._tree = tree
        self.held = held
        self._mtimes: Lru[str, int] = Lru(_MOST_MTIMES)

    async def find(self, path: str) -> int | None:
        """Return the size of a file in bytes, ``DIRECTORY`` for a directory, ``None`` if there is nothing.

        Raises:
            ShardStoreError: the storage could not be asked.
        """
        if (buffer := self.buffers.get(path)) is not None:
            return buffer.nbytes
        if path in self.directories:
            return DIRECTORY
        if (held := self.held.pending.get(path)) is not None:
            return held.nbytes
        try:
            check_key(path or "x")
        except InvalidInput:
            return None
        if parent_of(path) in self.directories and not await self.is_stored(parent_of(path)):
            return None
        found = await self._tree.find(path)
        return None if found == DIRECTORY and await self._is_removed(path) else found

    async def _is_removed(self, path: str) -> bool:
        """Return whether a directory that the storage has was removed here: a moment ago, or only files that keep an old name are in it."""
        if self.directories.was_removed(path):
            return True
        return self.directories.was_once_removed(path) and await self._has_nothing_left(path)

    async def _has_nothing_left(self, path: str) -> bool:
        for name, nbytes in list((await self._tree.names(path)).names.items()):
            inside = join(path, name)
            held = self.held.pending.get(inside)
            if (held is None or held.data is not None) and not (nbytes == DIRECTORY and await self._has_nothing_left(inside)):
                return False
        return True

    async def is_stored(self, path: str) -> bool:
        """Return whether one of ``directories`` is on the storage too."""
        above = path
        while parent_of(above) in self.directories:
            above = parent_of(above)
        return await self._tree.find(above) == DIRECTORY

    async def entries(self, path: str) -> list[DirEntry]:
        """Return what is in a directory: directories first, documents last. Raises as ``find``."""
        names: dict[str, int] = {}
        if path not in self.directories or await self.is_stored(path):
            listed = await self._tree.names(path)
            names = {name: listed.names[name] for name in listed.ordered(path)}
        own = self._own(path)
        for name, nbytes in own.items():
            if nbytes is None:
                names.pop(name, None)
            else:
                names[name] = nbytes
        if own:
            names = {name: names[name] for name in shown_order(path, names)}
        return [
            DirEntry(name, nbytes, self.mtime_ns(join(path, name)))
            for name, nbytes in names.items()
            if nbytes != DIRECTORY or not await self._is_removed(join(path, name))
        ]

    def _own(self, path: str) -> dict[str, int | None]:
        """Return the names in a directory that this mount knows better than the storage."""
        own: dict[str, int | None] = {name: self.held.pending[join(path, name)].nbytes for name in self.held.pending.names(path)}
        own |= dict.fromkeys(self.directories.names(path), DIRECTORY)
        own |= {name: self.buffers[join(path, name)].nbytes for name in self.buffers.names(path)}
        return own

    def size_now(self, path: str, listed: int) -> int | None:
        """Return what ``find`` would return of a file or directory that was listed before, as far as that is known without asking."""
        if (buffer := self.buffers.get(path)) is not None:
            return buffer.nbytes
        if path in self.directories:
            return DIRECTORY
        if (held := self.held.pending.get(path)) is not None:
            return held.nbytes
        if self.directories.was_removed(path):
            return None
        names = self._tree.known_names(parent_of(path))
        found = listed if names is None else names.get(name_of(path))
        return found if found is None or found >= DIRECTORY else listed

    async def hidden_above(self, path: str) -> list[str]:
        """Return the directories among chunks above a new file: they were there before, without being shown, and are to be shown now."""
        found: list[str] = []
        while await self._tree.chunk_area(path):
            path = parent_of(path)
            found.append(path)
        return found

    def moved(self, source: str, target: str, *, is_directory: bool) -> None:
        """Note that a file or directory has another name."""
        self.inodes.moved(source, target, is_directory=is_directory)
        for path in self._mtimes if is_directory else ():
            if path.startswith(f"{source}/"):
                self.set_mtime(moved_path(path, source, target), self._mtimes.pop(path))
        self.set_mtime(target, self.mtime_ns(source))
        self.set_mtime(source, None)

    def mtime_ns(self, path: str) -> int:
        """Return when a file was written, if it was written here; else when the store was mounted."""
        mtime_ns = self._mtimes.peek(path)
        return self.began_ns if mtime_ns is None else mtime_ns

    def set_mtime(self, path: str, mtime_ns: int | None) -> None:
        """Note when a file was written; ``None``: it is gone."""
        if mtime_ns is None:
            self._mtimes.pop(path)
        else:
            self._mtimes.put(path, mtime_ns)
