"""A program that works in two directories: what it is asked for, it does in a mount or in a plain directory, and reports the outcome.

Run as ``python worker.py MOUNT PLAIN``; requests and outcomes are lines of JSON.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import stat
import sys
from typing import Any

_LIBC = ctypes.CDLL(None, use_errno=True)
_HERE = -100  # AT_FDCWD


class Hands:
    """One of the directories, and what is open in it by the names of slots."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._open: dict[str, int] = {}

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def put(self, path: str, flags: int, offset: int, data: str) -> None:
        """Open a file, write, and close it."""
        self._put(os.open(self._path(path), flags, 0o644), offset, data)

    def put_at(self, slot: str, name: str, flags: int, offset: int, data: str) -> None:
        """Do the same by way of a directory that is open."""
        self._put(os.open(name, flags, 0o644, dir_fd=self._open[slot]), offset, data)

    @staticmethod
    def _put(descriptor: int, offset: int, data: str) -> None:
        try:
            if data:
                os.pwrite(descriptor, data.encode(), offset)
        finally:
            os.close(descriptor)

    def get(self, path: str) -> str:
        with open(self._path(path), "rb") as file:
            return file.read().decode()

    def open(self, slot: str, path: str, flags: int) -> None:
        self._open[slot] = os.open(self._path(path), flags, 0o644)

    def write(self, slot: str, offset: int, data: str) -> int:
        return os.pwrite(self._open[slot], data.encode(), offset)

    def read(self, slot: str) -> str:
        return os.pread(self._open[slot], 1 << 20, 0).decode()

    def cut(self, slot: str, nbytes: int) -> None:
        os.ftruncate(self._open[slot], nbytes)

    def fsync(self, slot: str) -> None:
        os.fsync(self._open[slot])

    def close(self, slot: str) -> None:
        os.close(self._open.pop(slot))

    def list_at(self, slot: str) -> list[str]:
        return sorted(os.listdir(self._open[slot]))

    def entries(self, path: str) -> dict[str, int]:
        """Return the sizes of the files in a directory; -1 for a directory."""
        with os.scandir(self._path(path)) as entries:
            found = {entry.name: entry.stat() for entry in entries}
        return {name: -1 if stat.S_ISDIR(one.st_mode) else one.st_size for name, one in sorted(found.items())}

    def size(self, path: str) -> int:
        found = os.stat(self._path(path))
        return -1 if stat.S_ISDIR(found.st_mode) else found.st_size

    def truncate(self, path: str, nbytes: int) -> None:
        os.truncate(self._path(path), nbytes)

    def rename(self, source: str, target: str, flags: int) -> None:
        if _LIBC.renameat2(_HERE, self._path(source).encode(), _HERE, self._path(target).encode(), flags):
            raise OSError(ctypes.get_errno(), "renameat2")

    def mkdir(self, path: str) -> None:
        os.mkdir(self._path(path))

    def rmdir(self, path: str) -> None:
        os.rmdir(self._path(path))

    def unlink(self, path: str) -> None:
        os.unlink(self._path(path))

    def sync(self, path: str) -> None:
        descriptor = os.open(self._path(path), os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def main() -> None:
    hands = [Hands(root) for root in sys.argv[1:]]
    for line in sys.stdin:
        which, method, *arguments = json.loads(line)
        outcome: Any
        try:
            outcome = getattr(hands[which], method)(*arguments)
        except OSError as exc:
            outcome = {"error": errno.errorcode[exc.errno or 0]}
        sys.stdout.write(json.dumps(outcome) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
