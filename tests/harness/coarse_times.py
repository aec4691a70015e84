"""A file system that keeps too little of times, simulated: ext4 with inodes of 128 bytes, FAT.

While a ``CoarseTimes`` is entered, the functions of ``os`` by which a storage looks at files show their times cut off, and one inode number
for all files that are not empty, which is the worst that a file system can do with numbers that it uses again. Extended attributes
are those of the real file system, or there are none. Only this process sees it.
"""

from __future__ import annotations

import errno
import os
import stat as stat_modes
import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

_TIMES = ("st_atime", "st_mtime", "st_ctime")
_ATTRIBUTES = ("getxattr", "setxattr", "listxattr", "removexattr")

_real_stat, _real_fstat, _real_scandir = os.stat, os.fstat, os.scandir


class _Entry:
    """An entry of a directory, whose status is cut off."""

    def __init__(self, entry: os.DirEntry[str], shown: Callable[[os.stat_result], os.stat_result]) -> None:
        self._entry = entry
        self._shown = shown

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return self._shown(self._entry.stat(follow_symlinks=follow_symlinks))

    def __getattr__(self, name: str) -> Any:  # as the entry's own
        return getattr(self._entry, name)

    def __fspath__(self) -> str:
        return self._entry.path


class _Entries:
    """The entries of a directory, as ``os.scandir`` gives them."""

    def __init__(self, path: Any, shown: Callable[[os.stat_result], os.stat_result]) -> None:  # what scandir takes
        self._entries = _real_scandir(path)
        self._shown = shown

    def __iter__(self) -> Iterator[_Entry]:
        return self

    def __next__(self) -> _Entry:
        return _Entry(next(self._entries), self._shown)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._entries.close()


class CoarseTimes:
    """Times in whole multiples of ``granularity_ns``; ``has_attributes=False`` takes extended attributes away.

    ``clock`` tells which time, in nanoseconds, is shown for one of the real file system's, before it is cut off.
    """

    def __init__(self, granularity_ns: int, *, has_attributes: bool = True, clock: Callable[[int], int] = int) -> None:
        self.granularity_ns = granularity_ns
        self.has_attributes = has_attributes
        self.clock = clock
        self._replaced: list[tuple[str, Any]] = []

    def shown(self, status: os.stat_result) -> os.stat_result:
        """The status as this file system would tell it."""
        cut: dict[str, float] = {}
        for name in _TIMES:
            whole = self.clock(getattr(status, f"{name}_ns")) // self.granularity_ns * self.granularity_ns
            cut |= {name: whole / 1e9, f"{name}_ns": whole}
        numbers = list(status[:10])
        if stat_modes.S_ISREG(status.st_mode) and status.st_size:
            numbers[1] = 7
        return os.stat_result(numbers, cut)

    def __enter__(self) -> CoarseTimes:
        def stat(*args: Any, **kwargs: Any) -> os.stat_result:  # what stat takes
            return self.shown(_real_stat(*args, **kwargs))

        def fstat(fd: int) -> os.stat_result:
            return self.shown(_real_fstat(fd))

        def scandir(path: Any = ".") -> _Entries:  # what scandir takes
            return _Entries(path, self.shown)

        def none(path: Any, *args: Any, **kwargs: Any) -> None:  # what the four take
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

        self._replace("stat", stat)
        self._replace("fstat", fstat)
        self._replace("scandir", scandir)
        if sys.platform == "linux" and not self.has_attributes:
            for name in _ATTRIBUTES:
                self._replace(name, none)
        return self

    def _replace(self, name: str, function: Callable[..., Any]) -> None:
        real = getattr(os, name)
        for supports in (os.supports_fd, os.supports_follow_symlinks, os.supports_dir_fd):
            if real in supports:
                supports.add(function)
        self._replaced.append((name, real))
        setattr(os, name, function)

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        for name, real in self._replaced:
            for supports in (os.supports_fd, os.supports_follow_symlinks, os.supports_dir_fd):
                supports.discard(getattr(os, name))
            setattr(os, name, real)
        self._replaced = []


def has_attributes(directory: str | os.PathLike[str]) -> bool:
    """Whether files in ``directory`` can have extended attributes of users."""
    if sys.platform == "linux":
        try:
            os.getxattr(directory, "user.shardstore.none")
        except OSError as exc:
            return exc.errno == errno.ENODATA
    return False
