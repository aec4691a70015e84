"""What a loss of power leaves of a directory, at the worst that POSIX allows: what was flushed, and nothing else.

::

    with LostPower(tmp_path / "disk") as power:           # what is there already survives
        LocalStorage(tmp_path / "disk/root") ...
    power.leave(tmp_path / "after")                       # may be opened as a store

A file has the bytes and attributes that it had when it was flushed last, and none if it never was. A directory has the names that it had
when it was flushed last: to be found, a file needs its own name flushed, and that of each directory above. File systems keep more.

Only what this process flushes counts, and only through ``os.fsync`` and ``os.fdatasync``. So a writer in another process, such as
one that ``tests.harness.crash`` kills, has flushed nothing. Linux only; one at a time.
"""

from __future__ import annotations

import os
import stat as stat_modes
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

Identity = tuple[int, int]


@dataclass(slots=True, eq=False)
class _Node:
    """A file or directory as it was when it was flushed last."""

    is_directory: bool
    data: bytes = b""
    attributes: dict[str, bytes] = field(default_factory=dict)
    entries: dict[str, _Node] = field(default_factory=dict)


class LostPower:
    """Watches a directory while it is entered."""

    def __init__(self, disk: str | os.PathLike[str]) -> None:
        self._disk = os.fspath(disk)
        self._nodes: dict[Identity, _Node] = {}
        self._lock = threading.RLock()
        self._replaced: dict[str, Any] = {}
        self.flushed: list[str] = []
        """The paths that were flushed, in order."""

    def __enter__(self) -> LostPower:
        self._flush_tree(self._disk)
        for name, wrapper in (("fsync", self._fsync), ("fdatasync", self._fdatasync), ("mkdir", self._mkdir), ("open", self._open)):
            self._replaced[name] = getattr(os, name)
            setattr(os, name, wrapper)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        for name, function in self._replaced.items():
            setattr(os, name, function)

    def leave(self, target: str | os.PathLike[str]) -> None:
        """Make the directory ``target``: what the disk is found with, if power is lost now."""
        with self._lock:
            _build(self._node(os.stat(self._disk)), Path(target))

    # -- what is watched -----------------------------------------------------------------------------------------------

    def _fsync(self, fd: int) -> None:
        self._replaced["fsync"](fd)
        self._flush(fd, attributes=True)

    def _fdatasync(self, fd: int) -> None:
        self._replaced["fdatasync"](fd)
        self._flush(fd, attributes=False)

    def _mkdir(self, path: Any, *args: Any, **kwargs: Any) -> None:
        self._replaced["mkdir"](path, *args, **kwargs)
        with self._lock, suppress(FileNotFoundError):  # removed at once by another thread
            self._made(os.stat(path))

    def _open(self, path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        fd: int = self._replaced["open"](path, flags, *args, **kwargs)
        if flags & os.O_CREAT and flags & os.O_EXCL:
            with self._lock:
                self._made(os.fstat(fd))
        return fd

    # -- what survives -------------------------------------------------------------------------------------------------

    def _made(self, status: os.stat_result) -> None:
        """A new one, though it may have the inode number of one that is gone."""
        self._nodes[status.st_dev, status.st_ino] = _Node(stat_modes.S_ISDIR(status.st_mode))

    def _node(self, status: os.stat_result) -> _Node:
        identity = status.st_dev, status.st_ino
        node = self._nodes.get(identity)
        if node is None or node.is_directory != stat_modes.S_ISDIR(status.st_mode):  # made by another process
            self._made(status)
        return self._nodes[identity]

    def _flush(self, fd: int, *, attributes: bool) -> None:
        with self._lock:
            self.flushed.append(os.readlink(f"/proc/self/fd/{fd}"))
            node = self._node(os.fstat(fd))
            if node.is_directory:
                node.entries = self._entries(fd)
                return
            with open(f"/proc/self/fd/{fd}", "rb") as file:
                node.data = file.read()
            if attributes:
                node.attributes = {name: os.getxattr(fd, name) for name in os.listxattr(fd) if name.startswith("user.")}

    def _entries(self, directory: int | str) -> dict[str, _Node]:
        found: dict[str, _Node] = {}
        with os.scandir(directory) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if not stat_modes.S_ISLNK(status.st_mode):
                        found[entry.name] = self._node(status)
        return found

    def _flush_tree(self, top: str) -> None:
        for directory, _, names in os.walk(top):
            for name in (*names, ""):
                fd = os.open(os.path.join(directory, name), os.O_RDONLY)
                try:
                    self._flush(fd, attributes=True)
                finally:
                    os.close(fd)
        self.flushed.clear()


def _build(node: _Node, target: Path) -> None:
    if node.is_directory:
        target.mkdir()
        for name, below in node.entries.items():
            _build(below, target / name)
        return
    target.write_bytes(node.data)
    for name, value in node.attributes.items():
        os.setxattr(target, name, value)
