"""A disk: files, directories and their names, open files and locks, and what is left of all that after a loss of power.

Nothing is kept until it is synced. ``fsync`` of a file keeps its bytes, times and attributes, ``fdatasync`` its bytes and its length;
``fsync`` of a directory keeps the names in it, and not its own. Of what was not synced, a loss of power leaves any part: each write, each
change of length, times or attributes, and each change of names (a rename is one) is there afterwards or is not, whatever came before or
after it; of a write, perhaps its first bytes. This is harsher than any file system, and as much as POSIX promises.
"""

from __future__ import annotations

import errno
import os
import random
import stat as stat_modes
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

DEVICE = 77
_MODE = 0o644


def failure(number: int, *paths: str) -> OSError:
    """Return the error that a system call ends with."""
    return OSError(number, os.strerror(number), *paths[:1])


@dataclass
class Content:
    """What belongs to a file but its names."""

    data: bytearray = field(default_factory=bytearray)
    attributes: dict[str, bytes] = field(default_factory=dict)
    mode: int = _MODE
    mtime: int = 0
    ctime: int = 0

    def copy(self) -> Content:
        return replace(self, data=bytearray(self.data), attributes=dict(self.attributes))


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a file's content: ``apply(content, share)``, of which ``share`` of the bytes are done."""

    apply: Callable[[Content, float], None]
    is_data: bool


@dataclass(eq=False)
class Inode:
    """A file or a directory; ``names`` are those in a directory. ``kept`` and ``kept_names`` are what survives."""

    number: int
    is_directory: bool
    content: Content = field(default_factory=Content)
    kept: Content = field(default_factory=Content)
    changes: list[Change] = field(default_factory=list)
    names: dict[str, Inode] = field(default_factory=dict)
    kept_names: dict[str, Inode] = field(default_factory=dict)
    nlink: int = 0
    opened: int = 0
    lock: OpenFile | None = None
    ranges: list[tuple[int, int, OpenFile]] = field(default_factory=list)
    waiting: list[Callable[[], None]] = field(default_factory=list)
    """Called once, all of them, when a lock is released."""


@dataclass(eq=False)
class OpenFile:
    """What descriptors refer to."""

    inode: Inode
    owner: object
    position: int = 0
    descriptors: int = 1


@dataclass(frozen=True, slots=True)
class Renaming:
    """One change of names: in each of these directories, a name that is another file's from now on, or nobody's."""

    changes: tuple[tuple[Inode, str, Inode | None], ...]
    removed: tuple[Inode, ...]
    """What had these names before."""


class Disk:
    """One file system. ``now()`` is in nanoseconds; times are kept in units of ``tick_ns``, and attributes if ``has_attributes``."""

    def __init__(self, now: Callable[[], int], *, tick_ns: int = 1, has_attributes: bool = True) -> None:
        self._now = now
        self.tick_ns = tick_ns
        self.has_attributes = has_attributes
        self._free: list[Inode] = []
        self._most = 1
        self._unsynced: list[Renaming] = []
        self.root = self._new(is_directory=True)
        self.root.nlink = 1
        self.on_change: Callable[[str, str, Inode | None], None] = lambda what, name, inode: None

    # -- inodes --------------------------------------------------------------------------------------------------------

    def _new(self, *, is_directory: bool) -> Inode:
        """Return a new inode, which has the lowest number that is free: as ext4's, numbers return at once."""
        unsynced = {id(gone) for renaming in self._unsynced for gone in renaming.removed}  # may come back
        reusable = min((gone for gone in self._free if id(gone) not in unsynced), key=lambda gone: gone.number, default=None)
        if reusable is not None:
            self._free.remove(reusable)
            number = reusable.number
        else:
            self._most += 1
            number = self._most
        inode = Inode(number, is_directory)
        now = self._stamp(self._now())
        inode.content = Content(mode=0o755 if is_directory else _MODE, mtime=now, ctime=now)
        inode.kept = inode.content.copy()
        return inode

    def _stamp(self, ns: int) -> int:
        return ns - ns % self.tick_ns

    def _forget(self, inode: Inode) -> None:
        if not inode.nlink and not inode.opened and inode not in self._free:
            self._free.append(inode)

    def find(self, path: str) -> Inode:
        """Return what has this path, which begins with ``/``."""
        inode = self.root
        for part in _parts(path):
            if not inode.is_directory:
                raise failure(errno.ENOTDIR, path)
            if part not in inode.names:
                raise failure(errno.ENOENT, path)
            inode = inode.names[part]
        return inode

    def _place(self, path: str) -> tuple[Inode, str]:
        """Return the directory that holds the last name of a path, and the name."""
        *above, name = _parts(path)
        directory = self.find("/".join(["", *above]) or "/")
        if not directory.is_directory:
            raise failure(errno.ENOTDIR, path)
        return directory, name

    def status(self, inode: Inode) -> os.stat_result:
        content = inode.content
        kind = stat_modes.S_IFDIR if inode.is_directory else stat_modes.S_IFREG
        nbytes = 4096 if inode.is_directory else len(content.data)
        user = os.geteuid() if hasattr(os, "geteuid") else 0
        group = os.getegid() if hasattr(os, "getegid") else 0
        seconds = content.mtime // 10**9, content.ctime // 10**9
        nlink = inode.nlink + inode.is_directory
        return os.stat_result(
            (kind | content.mode, inode.number, DEVICE, nlink, user, group, nbytes, seconds[0], *seconds),
            {
                "st_atime": content.mtime / 1e9,
                "st_mtime": content.mtime / 1e9,
                "st_ctime": content.ctime / 1e9,
                "st_atime_ns": content.mtime,
                "st_mtime_ns": content.mtime,
                "st_ctime_ns": content.ctime,
                "st_blksize": 4096,
                "st_blocks": -(-nbytes // 512),
                "st_rdev": 0,
            },
        )

    # -- content -------------------------------------------------------------------------------------------------------

    def change(self, inode: Inode, apply: Callable[[Content, float], None], *, is_data: bool, modifies: bool = False) -> None:
        """Change a file's content, and its times with that."""
        now = self._stamp(self._now())

        def apply_all(content: Content, share: float) -> None:
            apply(content, share)
            content.ctime = now
            if modifies:
                content.mtime = now

        apply_all(inode.content, 1.0)
        inode.changes.append(Change(apply_all, is_data))

    def write(self, inode: Inode, offset: int, data: bytes) -> None:
        def apply(content: Content, share: float) -> None:
            done = data[: round(len(data) * share)]
            if len(content.data) < offset:
                content.data.extend(bytes(offset - len(content.data)))
            content.data[offset : offset + len(done)] = done

        self.change(inode, apply, is_data=True, modifies=True)

    def truncate(self, inode: Inode, nbytes: int) -> None:
        def apply(content: Content, share: float) -> None:
            del content.data[nbytes:]
            content.data.extend(bytes(nbytes - len(content.data)))

        self.change(inode, apply, is_data=True, modifies=True)

    def set_times(self, inode: Inode, mtime: int) -> None:
        def apply(content: Content, share: float) -> None:
            content.mtime = self._stamp(mtime)

        self.change(inode, apply, is_data=False)

    def set_attribute(self, inode: Inode, name: str, value: bytes | None) -> None:
        def apply(content: Content, share: float) -> None:
            content.attributes.pop(name, None)
            if value is not None:
                content.attributes[name] = value

        self.change(inode, apply, is_data=False)

    def set_mode(self, inode: Inode, mode: int) -> None:
        def apply(content: Content, share: float) -> None:
            content.mode = mode

        self.change(inode, apply, is_data=False)

    # -- names ---------------------------------------------------------------------------------------------------------

    def _rename(self, what: str, *changes: tuple[Inode, str, Inode | None]) -> None:
        """Change names, as one step."""
        now = self._stamp(self._now())
        removed = []
        for directory, name, inode in changes:
            before = directory.names.pop(name, None)
            if inode is not None:
                directory.names[name] = inode
                inode.nlink += 1
                inode.content.ctime = now
            if before is not None:
                removed.append(before)
                before.nlink -= 1
                before.content.ctime = now
                if inode is None or before is not inode:
                    self._forget(before)
            directory.content.mtime = directory.content.ctime = now
            self.on_change(what, name, inode)
        self._unsynced.append(Renaming(changes, tuple(removed)))

    def create(self, path: str, *, is_directory: bool) -> Inode:
        directory, name = self._place(path)
        if name in directory.names:
            raise failure(errno.EEXIST, path)
        inode = self._new(is_directory=is_directory)
        self._rename("create", (directory, name, inode))
        return inode

    def link(self, path: str, new: str) -> None:
        inode = self.find(path)
        directory, name = self._place(new)
        if name in directory.names:
            raise failure(errno.EEXIST, path)
        self._rename("link", (directory, name, inode))

    def unlink(self, path: str) -> None:
        directory, name = self._place(path)
        if name not in directory.names:
            raise failure(errno.ENOENT, path)
        if directory.names[name].is_directory:
            raise failure(errno.EISDIR, path)
        self._rename("unlink", (directory, name, None))

    def rmdir(self, path: str) -> None:
        directory, name = self._place(path)
        if name not in directory.names:
            raise failure(errno.ENOENT, path)
        if not directory.names[name].is_directory:
            raise failure(errno.ENOTDIR, path)
        if directory.names[name].names:
            raise failure(errno.ENOTEMPTY, path)
        self._rename("rmdir", (directory, name, None))

    def rename(self, path: str, new: str) -> None:
        directory, name = self._place(path)
        target, new_name = self._place(new)
        if name not in directory.names:
            raise failure(errno.ENOENT, path)
        inode, there = directory.names[name], target.names.get(new_name)
        if there is inode:
            return
        if there is not None and there.is_directory != inode.is_directory:
            raise failure(errno.EISDIR if there.is_directory else errno.ENOTDIR, path)
        if there is not None and there.names:
            raise failure(errno.ENOTEMPTY, path)
        inode.nlink += 1  # it has a name all the time
        self._rename("rename", (directory, name, None), (target, new_name, inode))
        inode.nlink -= 1

    # -- open files ----------------------------------------------------------------------------------------------------

    def opened(self, inode: Inode, owner: object) -> OpenFile:
        inode.opened += 1
        return OpenFile(inode, owner)

    def closed(self, file: OpenFile) -> None:
        """Close one descriptor of an open file; with the last one, its locks are gone."""
        file.descriptors -= 1
        if not file.descriptors:
            file.inode.opened -= 1
            self.release(file)
            self._forget(file.inode)

    def release(self, file: OpenFile, start: int = 0, end: int | None = None) -> None:
        """Release the locks that an open file has: that of the whole, and those of ranges within ``[start, end)``."""
        inode = file.inode
        if inode.lock is file and end is None:
            inode.lock = None
        inode.ranges = [one for one in inode.ranges if one[2] is not file or not (start <= one[0] and (end is None or one[1] <= end))]
        waiting, inode.waiting = inode.waiting, []
        for resume in waiting:
            resume()

    def is_changed_in_place(self, inode: Inode) -> bool:
        """Return whether a file has unsynced changes that a loss of power would not leave without a name."""
        is_new = any(named is inode for renaming in self._unsynced for _, _, named in renaming.changes)
        return bool(inode.changes) and not inode.is_directory and not is_new

    # -- what survives -------------------------------------------------------------------------------------------------

    def sync(self, inode: Inode, *, only_data: bool = False) -> None:
        """Keep what a file, or a directory, is now."""
        if inode.is_directory:
            # A rename between two directories is kept in both, and so is what was changed in them before.
            concerned = {id(inode)}
            for renaming in self._unsynced:
                if any(id(directory) in concerned for directory, _, _ in renaming.changes):
                    concerned |= {id(directory) for directory, _, _ in renaming.changes}
            left = []
            for renaming in self._unsynced:
                if any(id(directory) in concerned for directory, _, _ in renaming.changes):
                    _keep(renaming)
                else:
                    left.append(renaming)
            self._unsynced = left
            return
        if not only_data:
            inode.kept = inode.content.copy()
            inode.changes.clear()
            return
        inode.kept.data = bytearray(inode.content.data)
        inode.changes = [change for change in inode.changes if not change.is_data]

    def lose_power(self, rng: random.Random) -> None:
        """Let the disk be what it is after a loss of power; nobody has a file open then."""
        for renaming in self._unsynced:
            if rng.random() < 0.5:
                _keep(renaming)
        self._unsynced = []
        reachable: dict[int, Inode] = {}
        self._revive(self.root, reachable, rng)
        used = {inode.number for inode in reachable.values()}
        self._free = [Inode(number, is_directory=False) for number in range(2, self._most + 1) if number not in used]

    def _revive(self, inode: Inode, reachable: dict[int, Inode], rng: random.Random) -> None:
        reachable[id(inode)] = inode
        inode.opened, inode.lock, inode.ranges, inode.waiting = 0, None, [], []
        content = inode.kept
        for change in inode.changes:
            if rng.random() < 0.5:
                change.apply(content, rng.choice([1.0, rng.random()]))
        inode.content, inode.kept, inode.changes = content.copy(), content, []
        inode.nlink = int(inode is self.root)
        inode.names = dict(inode.kept_names)
        for below in inode.names.values():
            if id(below) not in reachable:
                self._revive(below, reachable, rng)
            below.nlink += 1


def _keep(renaming: Renaming) -> None:
    for directory, name, inode in renaming.changes:
        directory.kept_names.pop(name, None)
        if inode is not None:
            directory.kept_names[name] = inode


def _parts(path: str) -> Iterable[str]:
    return [part for part in path.split("/") if part]
