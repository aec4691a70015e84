"""What the kernel asks, answered by pyfuse3: inodes, attributes, and the calls of ``Files``.

pyfuse3 runs on fsspec's IO loop itself. A handler must raise nothing but ``FUSEError``: anything else would end the mount.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

import pyfuse3
import pyfuse3.asyncio

from shardstore.adapters.file_access import place_of
from shardstore.apps.mounting.errnos import Refused, error_number
from shardstore.apps.mounting.files import Files
from shardstore.apps.mounting.names import DIRECTORY, Child, Inode, Place
from shardstore.apps.mounting.reading import DirEntry, Reader, Writer
from shardstore.errors import NotFound

T = TypeVar("T")

NAME_NBYTES = 255

_BLOCK = 512
_HUGE = 2**40
_XATTR = b"user.shardstore."


@dataclass(slots=True, eq=False)
class _Opened:
    file: Reader
    inode: Inode


@dataclass(slots=True, eq=False)
class _OpenedDirectory:
    inode: Inode
    entries: Sequence[DirEntry] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class Ownership:
    """The user, group and mode bits that all files have."""

    uid: int
    gid: int
    umask: int


def _answer(method: Callable[..., Awaitable[T]]) -> Callable[..., Coroutine[Any, Any, T]]:
    """Let a handler raise the error number of whatever goes wrong in it, and log that."""

    @wraps(method)
    async def handler(self: Operations, *arguments: Any) -> T:
        try:
            return await method(self, *arguments)
        except pyfuse3.FUSEError:
            raise
        except BaseException as exc:  # noqa: BLE001  # one that gets out would end the mount
            number = error_number(exc)
            if not isinstance(exc, NotFound):
                self.files.log.note(method.__name__, exc)
            raise pyfuse3.FUSEError(number) from None

    return handler


class Operations(pyfuse3.Operations):  # type: ignore[misc]  # it has no types where it is not installed
    """The file system of one mount."""

    enable_writeback_cache = False
    enable_acl = False

    def __init__(self, files: Files, ownership: Ownership, started: Callable[[], None], *, xattrs: bool = False) -> None:
        super().__init__()
        self.files = files
        self._has_xattrs = xattrs
        self._ownership = ownership
        self._started = started
        self._inodes = files.names.inodes
        self._opened: dict[int, _Opened | _OpenedDirectory] = {}
        self._next_handle = 1
        self._file_mode = stat.S_IFREG | (0o666 & ~ownership.umask & (0o555 if files.read_only else 0o777))
        self._directory_mode = stat.S_IFDIR | (0o777 & ~ownership.umask & (0o555 if files.read_only else 0o777))

    def init(self) -> None:
        self._started()

    # -- inodes ----------------------------------------------------------------------------------------------------------

    def _child(self, parent: int, name: bytes) -> Child:
        try:
            text = name.decode()
        except UnicodeDecodeError:
            raise pyfuse3.FUSEError(errno.EILSEQ) from None
        if len(name) > NAME_NBYTES:
            raise pyfuse3.FUSEError(errno.ENAMETOOLONG)
        return Child(self._inodes.get(parent), text)

    def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        for number, count in inode_list:
            self._inodes.forget(number, count)

    def _attributes(self, inode: Inode, nbytes: int, mtime_ns: int) -> Any:
        entry = pyfuse3.EntryAttributes()
        entry.entry_timeout = entry.attr_timeout = self.files.attr_seconds
        self._fill(entry, inode, nbytes, mtime_ns)
        return entry

    def _fill(self, entry: Any, inode: Inode, nbytes: int, mtime_ns: int) -> None:
        inode.reported_nbytes = nbytes
        entry.st_ino = inode.number
        entry.st_nlink = 1  # of a directory: how many are in it is not shown
        entry.st_uid, entry.st_gid = self._ownership.uid, self._ownership.gid
        entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = mtime_ns
        if nbytes == DIRECTORY:
            entry.st_mode = self._directory_mode
            entry.st_size = entry.st_blocks = 0
        else:
            entry.st_mode = self._file_mode
            entry.st_size = nbytes
            entry.st_blocks = -(-nbytes // _BLOCK)
            entry.st_blksize = 2**17

    async def _entry(self, place: Place) -> Any:
        """Return the attributes of what is at a place, for a reply that the kernel counts as a lookup."""
        path, nbytes = await self.files.look(place)
        if nbytes is None:
            raise NotFound(path)
        return self._looked_up(path, nbytes)

    def _looked_up(self, path: str, nbytes: int) -> Any:
        inode = self._inodes.at(path)
        inode.lookups += 1
        return self._attributes(inode, nbytes, self.files.names.mtime_ns(path))

    @_answer
    async def lookup(self, parent_inode: int, name: bytes, ctx: Any) -> Any:
        path, nbytes = await self.files.look(self._child(parent_inode, name))
        if nbytes is None:
            entry = pyfuse3.EntryAttributes()
            entry.st_ino = 0  # the kernel remembers that there is nothing
            entry.entry_timeout = self.files.attr_seconds
            return entry
        return self._looked_up(path, nbytes)

    @_answer
    async def getattr(self, inode: int, ctx: Any = None) -> Any:
        known = self._inodes.get(inode)
        if known.path is None:
            return self._attributes_of_removed(known)
        try:
            path, nbytes = await self.files.look(known)
        except Refused:
            if self._inodes.get(inode).path is not None:
                raise
            return self._attributes_of_removed(known)  # since then
        if nbytes is None:
            raise NotFound(path)
        return self._attributes(known, nbytes, self.files.names.mtime_ns(path))

    def _attributes_of_removed(self, known: Inode) -> Any:
        """Return the attributes of what has no name any more, but is open, or the directory that a program is in."""
        files = [opened.file for opened in self._opened.values() if isinstance(opened, _Opened) and opened.inode is known]
        return self._attributes(known, files[0].nbytes if files else known.reported_nbytes, self.files.names.began_ns)

    @_answer
    async def setattr(self, inode: int, attr: Any, fields: Any, fh: int | None, ctx: Any) -> Any:
        opened = None if fh is None else self._opened.get(fh)
        known = self._inodes.get(inode)
        if fields.update_size:
            if isinstance(opened, _Opened) and isinstance(opened.file, Writer):
                opened.file.buffer.truncate(attr.st_size, stays=True)
            else:
                await self.files.truncate(known, attr.st_size)
        if fields.update_mtime and known.path is not None:
            self.files.names.set_mtime(known.path, attr.st_mtime_ns)
        return await type(self).getattr(self, inode, ctx)

    @_answer
    async def access(self, inode: int, mode: int, ctx: Any) -> bool:
        return not (self.files.read_only and mode & os.W_OK)

    @_answer
    async def statfs(self, ctx: Any) -> Any:
        data = pyfuse3.StatvfsData()
        data.f_bsize = data.f_frsize = 4096
        data.f_blocks = data.f_bfree = data.f_bavail = _HUGE
        data.f_files = data.f_ffree = data.f_favail = _HUGE
        data.f_namemax = NAME_NBYTES
        return data

    # -- directories -----------------------------------------------------------------------------------------------------

    @_answer
    async def opendir(self, inode: int, ctx: Any) -> int:
        return self._handle(_OpenedDirectory(self._inodes.get(inode)))

    @_answer
    async def readdir(self, fh: int, start_id: int, token: Any) -> None:
        opened = self._opened[fh]
        assert isinstance(opened, _OpenedDirectory)
        if opened.inode.path is None:
            return
        if start_id == 0:
            path, opened.entries = await self.files.entries(opened.inode)
        else:
            path = opened.inode.path
        begin = f"{path}/" if path else ""
        seconds = self.files.attr_seconds
        attributes = pyfuse3.EntryAttributes()
        attributes.entry_timeout = attributes.attr_timeout = seconds
        reply = pyfuse3.readdir_reply
        for i in range(start_id, len(opened.entries)):
            entry = opened.entries[i]
            nbytes = entry.nbytes if start_id == 0 else self.files.names.size_now(begin + entry.name, entry.nbytes)
            if nbytes is None:
                continue  # removed since the entries were read: the kernel would take it for a file that is there
            inode = self._inodes.at(begin + entry.name)
            self._fill(attributes, inode, nbytes, entry.mtime_ns)
            if not reply(token, entry.name.encode(errors="surrogateescape"), attributes, i + 1):
                if not inode.lookups:
                    self.forget([(inode.number, 0)])
                return
            inode.lookups += 1

    @_answer
    async def releasedir(self, fh: int) -> None:
        self._opened.pop(fh, None)

    @_answer
    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        await self.files.sync()

    @_answer
    async def mkdir(self, parent_inode: int, name: bytes, mode: int, ctx: Any) -> Any:
        directory = self._child(parent_inode, name)
        await self.files.mkdir(directory)
        return await self._entry(directory)

    @_answer
    async def rmdir(self, parent_inode: int, name: bytes, ctx: Any) -> None:
        await self.files.rmdir(self._child(parent_inode, name))

    # -- files -----------------------------------------------------------------------------------------------------------

    def _handle(self, opened: _Opened | _OpenedDirectory) -> int:
        number = self._next_handle
        self._next_handle += 1
        self._opened[number] = opened
        return number

    def _info(self, file: Reader, inode: Inode) -> Any:
        # Without direct_io the kernel would cut reads at the size that it remembers: a value that has grown would be short.
        return pyfuse3.FileInfo(fh=self._handle(_Opened(file, inode)), direct_io=True, keep_cache=False)

    @_answer
    async def open(self, inode: int, flags: int, ctx: Any) -> Any:
        known = self._inodes.get(inode)
        if flags & os.O_ACCMODE == os.O_RDONLY and not flags & os.O_TRUNC:
            file = await self.files.open(known)
        else:
            file = await self.files.edit(known, truncates=bool(flags & os.O_TRUNC), appends=bool(flags & os.O_APPEND))
        if known.reported_nbytes != file.nbytes:
            self._invalidate(inode)  # a program that asks for the size of what it has opened gets the size of that
        return self._info(file, known)

    @staticmethod
    def _invalidate(inode: int) -> None:
        try:
            pyfuse3.invalidate_inode(inode, attr_only=True)
        except FileNotFoundError:
            return  # the kernel has forgotten it already

    @_answer
    async def create(self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: Any) -> Any:
        file = await self.files.create(
            self._child(parent_inode, name),
            exclusive=bool(flags & os.O_EXCL),
            appends=bool(flags & os.O_APPEND),
            truncates=bool(flags & os.O_TRUNC),
        )
        inode = self._inodes.at(file.buffer.path)  # where it is by now
        inode.lookups += 1
        return self._info(file, inode), self._attributes(inode, file.nbytes, self.files.names.mtime_ns(inode.path or ""))

    def _file(self, fh: int) -> Reader:
        opened = self._opened[fh]
        assert isinstance(opened, _Opened)
        return opened.file

    @_answer
    async def read(self, fh: int, off: int, size: int) -> bytes | memoryview:
        return await self._file(fh).read(off, size)

    @_answer
    async def write(self, fh: int, off: int, buf: bytes) -> int:
        file = self._file(fh)
        if not isinstance(file, Writer) or not file.writes:
            raise Refused(errno.EBADF)
        return file.write(off, buf)

    @_answer
    async def flush(self, fh: int) -> None:
        await self.files.flush(self._file(fh))

    @_answer
    async def fsync(self, fh: int, datasync: bool) -> None:
        await self.files.fsync(self._file(fh))

    @_answer
    async def release(self, fh: int) -> None:
        opened = self._opened.pop(fh)
        if isinstance(opened, _Opened):
            await self.files.release(opened.file)

    @_answer
    async def unlink(self, parent_inode: int, name: bytes, ctx: Any) -> None:
        await self.files.unlink(self._child(parent_inode, name))

    @_answer
    async def rename(self, parent_inode_old: int, name_old: bytes, parent_inode_new: int, name_new: bytes, flags: int, ctx: Any) -> None:
        if flags & ~pyfuse3.RENAME_NOREPLACE:
            raise Refused(errno.EOPNOTSUPP)
        source, target = self._child(parent_inode_old, name_old), self._child(parent_inode_new, name_new)
        await self.files.rename(source, target, no_replace=bool(flags & pyfuse3.RENAME_NOREPLACE))

    @_answer
    async def link(self, inode: int, new_parent_inode: int, new_name: bytes, ctx: Any) -> Any:
        target = self._child(new_parent_inode, new_name)
        await self.files.link(self._inodes.get(inode), target)
        return await self._entry(target)

    @_answer
    async def readlink(self, inode: int, ctx: Any) -> bytes:
        raise Refused(errno.EINVAL)

    # -- extended attributes ---------------------------------------------------------------------------------------------

    @_answer
    async def getxattr(self, inode: int, name: bytes, ctx: Any) -> bytes:
        self._check_xattrs()
        if not name.startswith(_XATTR):
            raise Refused(errno.ENODATA)
        path, nbytes = await self.files.look(self._inodes.get(inode))
        pinned = None if nbytes in (None, DIRECTORY) else await self.files.store.pin(path)
        value = {b"version": pinned.version, b"place": place_of(pinned)}.get(name.removeprefix(_XATTR)) if pinned is not None else None
        if value is None:
            raise Refused(errno.ENODATA)
        return value.encode(errors="surrogatepass")

    def _check_xattrs(self) -> None:
        if not self._has_xattrs:
            raise Refused(errno.ENOSYS)  # the kernel does not ask again: ls -l would, for each file

    @_answer
    async def listxattr(self, inode: int, ctx: Any) -> Sequence[bytes]:
        self._check_xattrs()
        return ()  # they are asked for by name: to tell which there are would cost a request a file

    # -- what a mount does not do ----------------------------------------------------------------------------------------

    @_answer
    async def _unsupported(self, *arguments: Any) -> Any:
        raise Refused(errno.EOPNOTSUPP)

    symlink = mknod = setxattr = removexattr = _unsupported


# -- the session -----------------------------------------------------------------------------------------------------------

_WORKERS_KEPT = 8
_WORKERS = 99  # requests of the kernel that are carried out at once


def attach(operations: Operations, directory: str, options: Sequence[str]) -> None:
    """Mount at a directory.

    Raises:
        RuntimeError: the system refuses; libfuse has said why on stderr.
    """
    pyfuse3.asyncio.enable()
    pyfuse3.init(operations, directory, set(options))


async def run() -> None:
    """Answer the kernel, on the IO loop, until it is unmounted, or ``stop`` is called."""
    await pyfuse3.main(min_tasks=_WORKERS_KEPT, max_tasks=_WORKERS)


def stop() -> None:
    """Answer nothing more; called on the IO loop."""
    loop = asyncio.get_running_loop()
    for descriptor in list(pyfuse3.asyncio._read_futures):
        loop.remove_reader(descriptor)  # pyfuse3 does so too late: a request that has just arrived would be an error of the loop
    pyfuse3.terminate()


def detach() -> None:
    """Unmount. Files that are open still fail with ``ENOTCONN`` from now on."""
    pyfuse3.close(unmount=True)
