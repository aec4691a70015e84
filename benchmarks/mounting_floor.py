"""A file system in memory that uses pyfuse3 alone: about the least that a mount costs which is built on it.

``python benchmarks/mounting_floor.py SOURCE DIRECTORY`` shows the files below SOURCE at DIRECTORY, and takes new ones,
until it is unmounted.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyfuse3
import pyfuse3.asyncio

SECONDS = 1.0  # that the kernel believes attributes, as those of a mount


@dataclass(eq=False)
class Node:
    """A file, or a directory with its names."""

    number: int
    data: bytearray = field(default_factory=bytearray)
    whole: bytes = b""
    names: dict[bytes, Node] | None = None


class InMemory(pyfuse3.Operations):  # type: ignore[misc]  # it has no types where it is not installed
    """The least that ``find``, ``cat`` and ``cp -r`` ask for."""

    def __init__(self, source: Path) -> None:
        super().__init__()
        self.nodes: dict[int, Node] = {}
        self._read(source)

    def _new(self, *, is_directory: bool) -> Node:
        node = Node(len(self.nodes) + pyfuse3.ROOT_INODE, names={} if is_directory else None)
        self.nodes[node.number] = node
        return node

    def _read(self, path: Path) -> Node:
        node = self._new(is_directory=path.is_dir())
        if node.names is None:
            node.whole = path.read_bytes()
            node.data[:] = node.whole
        else:
            for entry in sorted(path.iterdir()):
                node.names[entry.name.encode()] = self._read(entry)
        return node

    def _attributes(self, node: Node) -> Any:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino, entry.st_nlink, entry.st_size = node.number, 1, len(node.data)
        entry.entry_timeout = entry.attr_timeout = SECONDS
        entry.st_mode = stat.S_IFREG | 0o644 if node.names is None else stat.S_IFDIR | 0o755
        entry.st_uid, entry.st_gid = os.getuid(), os.getgid()
        return entry

    def _names(self, number: int) -> dict[bytes, Node]:
        names = self.nodes[number].names
        assert names is not None
        return names

    async def lookup(self, parent: int, name: bytes, ctx: Any = None) -> Any:
        node = self._names(parent).get(name)
        if node is None:
            nothing = pyfuse3.EntryAttributes()
            nothing.st_ino, nothing.entry_timeout = 0, SECONDS
            return nothing
        return self._attributes(node)

    async def getattr(self, inode: int, ctx: Any = None) -> Any:
        return self._attributes(self.nodes[inode])

    async def setattr(self, inode: int, attr: Any, fields: Any, fh: int | None, ctx: Any) -> Any:
        if fields.update_size:
            del self.nodes[inode].data[attr.st_size :]
        return self._attributes(self.nodes[inode])

    async def getxattr(self, inode: int, name: bytes, ctx: Any) -> bytes:
        raise pyfuse3.FUSEError(errno.ENOSYS)

    async def opendir(self, inode: int, ctx: Any) -> int:
        return inode

    async def readdir(self, fh: int, start: int, token: Any) -> None:
        for number, (name, node) in enumerate(list(self._names(fh).items())[start:], start + 1):
            if not pyfuse3.readdir_reply(token, name, self._attributes(node), number):
                return

    async def mkdir(self, parent: int, name: bytes, mode: int, ctx: Any) -> Any:
        node = self._names(parent)[name] = self._new(is_directory=True)
        return self._attributes(node)

    async def open(self, inode: int, flags: int, ctx: Any) -> Any:
        return pyfuse3.FileInfo(fh=inode, direct_io=True, keep_cache=False)

    async def create(self, parent: int, name: bytes, mode: int, flags: int, ctx: Any) -> Any:
        node = self._names(parent)[name] = self._new(is_directory=False)
        return await self.open(node.number, flags, ctx), self._attributes(node)

    async def read(self, fh: int, offset: int, nbytes: int) -> bytes:
        return self.nodes[fh].whole[offset : offset + nbytes]

    async def write(self, fh: int, offset: int, data: bytes) -> int:
        self.nodes[fh].data[offset : offset + len(data)] = data
        return len(data)

    async def flush(self, fh: int) -> None:
        pass

    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        pass

    async def release(self, fh: int) -> None:
        node = self.nodes[fh]
        if len(node.whole) != len(node.data):
            node.whole = bytes(node.data)

    async def releasedir(self, fh: int) -> None:
        pass

    async def forget(self, inodes: Any) -> None:
        pass


def main() -> None:
    """Mount until somebody unmounts."""
    source, directory = sys.argv[1:]
    operations = InMemory(Path(source))
    pyfuse3.asyncio.enable()
    pyfuse3.init(operations, directory, {"fsname=floor", "default_permissions"})
    try:
        asyncio.run(pyfuse3.main(min_tasks=8))
    finally:
        pyfuse3.close(unmount=True)


if __name__ == "__main__":
    main()
