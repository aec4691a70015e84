"""Files and directories over a store: what opening, writing, closing, renaming and removing mean.

A chunk is stored whole when its file is closed, or at ``fsync``; nobody sees half of it. Files with the names that programs use for a
moment are kept here, and renaming one of them to a key is the commit. Paths are presented keys; ``""`` is the root. No FUSE here.
"""

from __future__ import annotations

import errno
import time
from collections import OrderedDict
from collections.abc import Callable

from shardstore.engine.actions import ERASE, Action
from shardstore.errors import AccessDenied, Conflict, InvalidInput, NotFound, ReadOnly, ShardStoreError, Unsupported
from shardstore.format.store_keys import check_key, join, possible_owners
from shardstore.mounting.early import Early
from shardstore.mounting.errnos import ErrorLog, Refused
from shardstore.mounting.held_back import Durable, HeldBack, Limits
from shardstore.mounting.moves import Moves
from shardstore.mounting.names import ByPath, in_order, is_document, is_scratch, name_of, parent_of
from shardstore.mounting.open_files import Entry, Pinned, Reader, Whole, Writer
from shardstore.mounting.reading import Values
from shardstore.mounting.tree import DIRECTORY, Tree
from shardstore.mounting.writing import Buffer, erasing_these, storing
from shardstore.presented.flavours import Presented

WHOLE_NBYTES = 16 * 2**20
"""Larger values are not read whole when they are opened, but piece by piece, of one version."""

_MOST_REMEMBERED = 100_000
_FINAL = (AccessDenied, Conflict, InvalidInput, ReadOnly, Refused)
"""What would fail again."""


class Files:
    """The files of one mount. All methods run on the IO loop."""

    def __init__(
        self,
        store: Presented,
        *,
        read_only: bool = False,
        durable: Durable = "close",
        attr_seconds: float = 1.0,
        read_ahead: int = 16 * 2**20,
        write_memory: int = 256 * 2**20,
        limits: Limits | None = None,
        log: ErrorLog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.read_only = read_only
        self.durable = durable
        self.attr_seconds = attr_seconds
        self.log = log or ErrorLog()
        self.values = Values(store, attr_seconds, read_ahead, clock)
        self.tree = Tree(store, self.values, attr_seconds, clock)
        self.held = HeldBack(store, write_memory, self._stored, self.log, limits or Limits(), clock)
        self.began_ns = time.time_ns()
        self._clock = clock
        self._buffers: ByPath[Buffer] = ByPath()
        self._made: ByPath[bool] = ByPath()  # directories that may be empty; True if they were made here
        self._removed: OrderedDict[str, float] = OrderedDict()  # directories that were removed here, and when
        self._early = Early(store.options.present, self.find, self.tree, self.values, self.held, attr_seconds, clock)
        self._moves = Moves()
        self._mtimes: OrderedDict[str, int] = OrderedDict()

    # -- names -----------------------------------------------------------------------------------------------------------

    async def find(self, path: str) -> int | None:
        """Return the size of a file in bytes, ``DIRECTORY`` for a directory, ``None`` if there is nothing.

        Raises:
            ShardStoreError: the storage could not be asked.
        """
        if (buffer := self._buffers.get(path)) is not None:
            return buffer.nbytes
        if (held := self.held.pending.get(path)) is not None:
            return held.nbytes
        if path in self._made:
            return DIRECTORY
        try:
            check_key(path or "x")
        except InvalidInput:
            return None
        if parent_of(path) in self._made and not await self._is_stored(parent_of(path)):
            return None
        found = await self.tree.find(path)
        return None if found == DIRECTORY and self._was_removed(path) else found

    async def _is_stored(self, path: str) -> bool:
        """Return whether a directory that was made here is on the storage too."""
        above = path
        while parent_of(above) in self._made:
            above = parent_of(above)
        return await self.tree.find(above) == DIRECTORY

    def _was_removed(self, path: str) -> bool:
        removed = self._removed.get(path)
        return removed is not None and self._clock() - removed < self.attr_seconds

    async def entries(self, path: str) -> list[Entry]:
        """Return what is in a directory: directories first, documents last. Raises as ``find``."""
        names: dict[str, int] = {}
        if path not in self._made or await self._is_stored(path):
            listed = await self.tree.names(path)
            names = {name: listed.names[name] for name in listed.ordered(path)}
        own = self._own(path)
        for name, nbytes in own.items():
            if nbytes is None:
                names.pop(name, None)
            else:
                names[name] = nbytes
        if own:
            ordered = sorted(names, key=lambda name: (names[name] != DIRECTORY, is_document(join(path, name)), in_order(name)))
            names = {name: names[name] for name in ordered}
        return [
            Entry(name, nbytes, self.mtime_ns(join(path, name)))
            for name, nbytes in names.items()
            if nbytes != DIRECTORY or not self._was_removed(join(path, name))
        ]

    def _own(self, path: str) -> dict[str, int | None]:
        """Return the names in a directory that this mount knows better than the storage."""
        own: dict[str, int | None] = dict.fromkeys(self._made.names(path), DIRECTORY)
        own |= {name: self.held.pending[join(path, name)].nbytes for name in self.held.pending.names(path)}
        own |= {name: self._buffers[join(path, name)].nbytes for name in self._buffers.names(path)}
        return own

    def mtime_ns(self, path: str) -> int:
        """Return when a file was written, if it was written here; else when the store was mounted."""
        return self._mtimes.get(path, self.began_ns)

    def set_mtime(self, path: str, mtime_ns: int) -> None:
        self._mtimes[path] = mtime_ns
        if len(self._mtimes) > _MOST_REMEMBERED:
            self._mtimes.popitem(last=False)

    def _stored(self, path: str, nbytes: int | None) -> None:
        """Note what has been stored."""
        self.values.forget(path)
        if is_document(path):
            self._early.forget()
            self.tree.forget_array(parent_of(path))
            if nbytes is not None and self._made.get(parent_of(path)):
                self.tree.made_here.add(parent_of(path))
        if nbytes is None:
            self.tree.remove(path)
            return
        self.tree.put(path, nbytes)
        while self._removed and (path := parent_of(path)):
            self._removed.pop(path, None)

    def _check_writable(self) -> None:
        if self.read_only:
            raise ReadOnly(f"{self.store.storage.url} is mounted for reading only")

    # -- reading ---------------------------------------------------------------------------------------------------------

    async def open(self, path: str) -> Reader:
        """Open a file for reading.

        Raises:
            NotFound: there is none.
            ShardStoreError: it could not be read.
        """
        if (buffer := self._buffers.get(path)) is not None:
            buffer.handles += 1
            return Writer(buffer, writes=False)
        if (held := self.held.pending.get(path)) is not None:
            data = self.held.read(path)
            if held.data is None or data is None:
                raise NotFound(f"there is no {path!r}")
            return Whole(data)
        nbytes = self.tree.nbytes(path)
        if nbytes is None or nbytes > WHOLE_NBYTES:
            pinned = await self.store.pin(check_key(path))
            if pinned is None:
                self.tree.remove(path)
                raise NotFound(f"there is no {path!r}")
            self.tree.put(path, pinned.nbytes)
            return Pinned(path, pinned, self.values) if pinned.nbytes > WHOLE_NBYTES else Whole(await pinned.read(0, pinned.nbytes))
        value = await self.values.open(path, self.tree.preceding(path), self.tree.following(path), self.tree.nbytes)
        if value is None:
            self.tree.remove(path)
            raise NotFound(f"there is no {path!r} any more")
        if value.nbytes != nbytes == self.tree.nbytes(path):  # not if it was written here meanwhile
            self.tree.put(path, value.nbytes)
        return Whole(value.data)

    # -- writing ---------------------------------------------------------------------------------------------------------

    async def create(self, path: str, *, exclusive: bool, appends: bool = False, truncates: bool = False) -> Writer:
        """Open a file for writing that is not there yet.

        Raises:
            Refused: it is there, and was to be created by ``exclusive``; or it is a directory.
            InvalidInput: no key can have this name.
            ReadOnly: nothing may be written.
        """
        self._check_writable()
        check_key(path)
        async with self._moves.change():
            return await self._create(path, exclusive=exclusive, appends=appends, truncates=truncates)

    async def _create(self, path: str, *, exclusive: bool, appends: bool, truncates: bool) -> Writer:
        found = await self.find(path)
        if found == DIRECTORY:
            raise Refused(errno.EISDIR)
        if found is not None:
            if exclusive:
                raise Refused(errno.EEXIST)
            return await self._edit(path, truncates=truncates, appends=appends)
        is_scratch = await self._is_scratch(path)
        if (others := self._buffers.get(path)) is not None:  # who were faster, while the storage was asked
            if exclusive:
                raise Refused(errno.EEXIST)
            return self._opened(path, others, appends)
        must_be_new = exclusive and path not in self.held.pending  # where it is erased, if not on the storage yet
        may_be_empty = self._may_be_empty(path)
        is_lock = must_be_new and may_be_empty and not is_scratch
        if is_lock:  # others rely on it at once
            await self._save(path, b"", *storing(path, no_replace=True), at_once=True)
            if (others := self._buffers.get(path)) is not None:
                return self._opened(path, others, appends)
        buffer = Buffer(path, is_scratch=is_scratch, creates=must_be_new and not is_lock, may_be_empty=may_be_empty)
        if is_lock:
            buffer.fill(b"", replaces=True)
        else:
            buffer.truncate(0)
        self._opened(path, buffer, appends)
        await self._show_directories(path)
        return Writer(buffer, appends)

    async def edit(self, path: str, *, truncates: bool, appends: bool = False) -> Writer:
        """Open a file for writing that is there. Raises as ``open`` and ``create``."""
        self._check_writable()
        async with self._moves.change():
            return await self._edit(path, truncates=truncates, appends=appends)

    async def _edit(self, path: str, *, truncates: bool, appends: bool = False) -> Writer:
        buffer = self._buffers.get(path)
        if buffer is None:
            if not truncates and (held := self.held.pending.get(path)) is not None and not held.waits:
                await self.held.settle([path])  # so that what replaces it does so on its condition too
            may_be_empty = self._may_be_empty(check_key(path))
            if truncates:
                buffer = Buffer(path, may_be_empty=may_be_empty)
            elif (held := self.held.pending.get(path)) is not None and held.data is not None:
                buffer = Buffer(path, may_be_empty=may_be_empty)
                buffer.fill(self.held.read(path) or b"")
            else:
                self.values.forget(path)  # the current one: another could not be replaced
                value = await self.values.read(path)
                if value is None:
                    raise NotFound(f"there is no {path!r} any more")
                buffer = Buffer(path, may_be_empty=may_be_empty)
                buffer.fill(value.data, replaces=True)
            if (others := self._buffers.get(path)) is not None:
                buffer.close()
                buffer = others
        if truncates and (buffer.nbytes or not buffer.is_dirty):
            buffer.truncate(0)
        return self._opened(path, buffer, appends)

    def _may_be_empty(self, path: str) -> bool:
        """Return whether a file can be meant to be empty: no document is, and no chunk."""
        return not is_document(path) and not possible_owners(path) and not self.store.options.present.shows_draft

    async def _show_directories(self, path: str) -> None:
        """Let listings show the directories among chunks in which there is a file now: they were there before, without being shown."""
        while await self.tree.chunk_area(path):
            path = parent_of(path)
            self._made[path] = self._made.get(path, False)

    def _opened(self, path: str, buffer: Buffer, appends: bool) -> Writer:
        buffer.handles += 1
        self._buffers[path] = buffer
        self.set_mtime(path, time.time_ns())
        return Writer(buffer, appends)

    async def _is_scratch(self, path: str) -> bool:
        if is_scratch(name_of(path)):
            return True
        if is_document(path):
            return False
        # A name among chunks that is none. (A name beside a document may be somebody's notes.)
        return await self.tree.chunk_area(path) and not await self.tree.is_chunk(path)

    async def flush(self, file: Reader) -> None:
        """Store what was written, since a descriptor is closed. A chunk or document that is empty waits until one is closed again, or the
        last one is: shells close one that they have duplicated before anything is written.

        Raises:
            ShardStoreError: it is not stored, and the old value is there.
        """
        if isinstance(file, Writer) and file.writes and file.buffer.is_complete():
            async with self._moves.change():
                await self._store(file.buffer)

    async def fsync(self, file: Reader) -> None:
        """Store what was written, and what is held back. Raises as ``flush``."""
        if isinstance(file, Writer) and file.writes:
            async with self._moves.change():
                await self._store(file.buffer)
        await self.sync()

    async def sync(self) -> None:
        """Store all that is held back, durably. Raises the first error; what it is about is still held back."""
        await self.held.sync()

    async def release(self, file: Reader) -> None:
        """Let go of a file that nobody has open any more through this descriptor."""
        if isinstance(file, Writer):
            async with self._moves.change():
                await self._release(file.buffer)
        elif isinstance(file, Pinned):
            file.close()

    async def _release(self, buffer: Buffer) -> None:
        buffer.handles -= 1
        if buffer.handles > 0:
            return
        path = buffer.path
        if path is not None and not buffer.is_scratch:
            try:
                if buffer.is_dirty and not buffer.has_bytes:  # closing has not stored it, see flush
                    await self._store(buffer)
            except ShardStoreError as exc:
                self.log.note(f"{path!r} was emptied, and that could not be stored", exc)
                if not isinstance(exc, _FINAL):  # nobody can be told any more: it is tried again, and fails whoever syncs
                    await self.held.put(path, b"", buffer.action, buffer.check_stored, lambda: buffer.path == path)
            if buffer.handles or buffer.path is None:
                return  # opened again meanwhile, or removed
            if self._buffers.get(buffer.path) is buffer:
                self._buffers.remove(buffer.path)
        elif path is not None:
            return  # scratch files stay until they are renamed or removed
        buffer.close()

    async def _store(self, buffer: Buffer) -> None:
        async with buffer.lock:
            path = buffer.path
            if path is None or buffer.is_scratch or not buffer.is_dirty:
                return
            changes = buffer.changes
            data = buffer.content()
            await self._save(path, data, buffer.action, buffer.check_stored, still=lambda: buffer.path == path)
            if buffer.changes == changes:
                buffer.is_dirty = False

    async def _save(
        self,
        path: str,
        data: bytes,
        action: Callable[[bytes], Action],
        check: Callable[[Action], None],
        *,
        at_once: bool = False,
        still: Callable[[], bool] = lambda: True,
    ) -> None:
        """Store a value, or hold it back unless ``at_once``; nothing if it is not ``still`` to be stored when its turn comes."""
        waits = not at_once and not is_document(path) and await self._early.is_early(path)
        if waits or (self.durable == "fsync" and not at_once):
            await self.held.put(path, data, action, check, still, waits=waits)
            if is_document(path):
                self._early.forget()
        else:
            await self.held.commit(path, data, action(data), check, still)
        self.set_mtime(path, time.time_ns())

    async def truncate(self, path: str, nbytes: int) -> None:
        """Cut or extend a file that is not open. Raises as ``edit`` and ``flush``."""
        self._check_writable()
        async with self._moves.change():
            writer = await self._edit(path, truncates=nbytes == 0)
            try:
                if writer.buffer.nbytes != nbytes:
                    writer.buffer.truncate(nbytes)
                await self._store(writer.buffer)
            finally:
                await self._release(writer.buffer)

    # -- names that change -----------------------------------------------------------------------------------------------

    async def unlink(self, path: str) -> None:
        """Remove a file. Raises ``NotFound``, ``Refused`` (it is a directory) or what erasing a document raises."""
        self._check_writable()
        async with self._moves.change():
            await self._unlink(path)

    async def _unlink(self, path: str) -> None:
        found = await self.find(path)
        if found is None:
            raise NotFound(f"there is no {path!r}")
        if found == DIRECTORY:
            raise Refused(errno.EISDIR)
        self._mtimes.pop(path, None)
        buffer = self._buffers.remove(path)
        if buffer is not None:
            buffer.path = None  # so that a close that has begun stores it no more
        try:
            if buffer is None or not buffer.is_scratch:
                await (self._erase_document(path) if is_document(path) else self.held.erase(path))
        except BaseException:
            if buffer is not None and path not in self._buffers:
                buffer.path = path
                self._buffers[path] = buffer
            raise
        self._keep_directories(path)
        if buffer is not None:
            self._let_go(buffer)

    def _keep_directories(self, path: str) -> None:
        """Remember the directories of a file that is removed: they stay, though nothing may be in them."""
        while path := parent_of(path):
            self._made[path] = self._made.get(path, False)

    async def _erase_document(self, path: str) -> None:
        try:
            await self.held.erase_document(path)
        except ReadOnly:
            raise
        except InvalidInput as exc:  # there are shards below it
            raise Refused(errno.ENOTEMPTY, str(exc)) from exc

    def _without_origin(self, buffer: Buffer) -> None:
        """Erase what a scratch file was before it got its name: it has another one now, or none."""
        if buffer.moved_from is not None:
            self.held.without_backup(buffer.moved_from)
            buffer.moved_from = None

    def _drop(self, path: str, *, keeps_origin: str = "") -> None:
        """Take its name from a file that is being written, or is scratch."""
        buffer = self._buffers.remove(path)
        if buffer is not None:
            buffer.path = None
            self._let_go(buffer, keeps_origin=keeps_origin)

    def _let_go(self, buffer: Buffer, *, keeps_origin: str = "") -> None:
        """Keep a file that has no name any more only as long as it is open."""
        if buffer.moved_from != keeps_origin:
            self._without_origin(buffer)
        if not buffer.handles:
            buffer.close()

    async def mkdir(self, path: str) -> None:
        """Make a directory, which is remembered by this mount alone until there is a file in it."""
        self._check_writable()
        check_key(path)
        async with self._moves.change():
            await self._mkdir(path)

    async def _mkdir(self, path: str) -> None:
        found = await self.find(path)
        if found is not None and (found != DIRECTORY or path in self._made or not await self.tree.is_hidden(path)):
            raise Refused(errno.EEXIST)
        self._removed.pop(path, None)
        self._made[path] = True

    async def rmdir(self, path: str) -> None:
        """Remove an empty directory; unless it is one of many, among chunks, what was in it is erased by then.

        Raises:
            NotFound, Refused: as POSIX says.
            ShardStoreError: what was in it could not be erased.
        """
        self._check_writable()
        async with self._moves.change():
            await self._rmdir(path)

    async def _rmdir(self, path: str) -> None:
        found = await self.find(path)
        if found is None:
            raise NotFound(f"there is no {path!r}")
        if found != DIRECTORY:
            raise Refused(errno.ENOTDIR)
        if await self.entries(path):
            raise Refused(errno.ENOTEMPTY)
        if not name_of(path).isdecimal():
            await self.held.settle(self.held.pending.below(path))
        self._made.remove(path)
        self._removed[path] = self._clock()
        if len(self._removed) > _MOST_REMEMBERED:
            self._removed.popitem(last=False)
        self.tree.remove(path)

    async def rename(self, source: str, target: str, *, no_replace: bool = False) -> None:
        """Rename a file or a directory. That of a file to a key is its commit.

        Raises:
            NotFound, Refused: as POSIX says.
            ShardStoreError: it could not be stored; then the file has its old name.
        """
        self._check_writable()
        check_key(target)
        is_directory = await self.find(source) == DIRECTORY
        async with self._moves.move() if is_directory else self._moves.change():
            found, there = await self.find(source), await self.find(target)
            if found is None or (found == DIRECTORY) != is_directory:
                raise NotFound(f"there is no {source!r}")
            if no_replace and there is not None:
                raise Refused(errno.EEXIST)
            if source == target:
                return
            if is_directory:
                await self._rename_directory(source, target, there)
            elif there == DIRECTORY:
                raise Refused(errno.EISDIR)
            else:
                await self._rename_file(source, target, no_replace=no_replace)

    async def _rename_file(self, source: str, target: str, *, no_replace: bool) -> None:
        buffer = self._buffers.get(source)
        was_stored = buffer is None or not buffer.is_scratch
        becomes_scratch = await self._is_scratch(target)
        if is_document(source) and was_stored and not becomes_scratch:
            raise Refused(errno.EXDEV)  # so that mv copies it, and is told if it may not be removed
        if becomes_scratch and was_stored:
            await self.held.settle([source])  # it has to be stored as long as its only name is one of this mount
        erasing: Action = ERASE  # where the bytes that are stored are not known
        if buffer is not None:
            data = buffer.content()
        elif source in self.held.pending:
            data = self.held.read(source) or b""
        else:
            value = await self.values.read(source)
            if value is None:
                raise NotFound(f"there is no {source!r} any more")
            data = bytes(value.data)
            erasing = erasing_these(data)
        changes = 0 if buffer is None else buffer.changes
        if not becomes_scratch:
            must_be_new = no_replace and target not in self.held.pending  # where it is erased, if not on the storage yet
            await self._save(target, data, *storing(target, must_be_new))
        await self._show_directories(target)
        self._drop(target, keeps_origin=source)
        if buffer is None and becomes_scratch:
            buffer = Buffer(target, is_scratch=True)
            buffer.fill(data)
        if buffer is not None:
            self._buffers.remove(source)
            buffer.path = target
            if not becomes_scratch:
                buffer.replaces(data)
                self._without_origin(buffer)
            elif was_stored:
                buffer.moved_from = source
            buffer.is_scratch = becomes_scratch
            if not becomes_scratch and buffer.changes == changes:
                buffer.is_dirty = False
            if buffer.handles or becomes_scratch:
                self._buffers[target] = buffer
            else:
                buffer.close()
        if becomes_scratch and target in self.held.pending:
            self.held.erase_later(target, ERASE, has_backup=False)
        if was_stored:
            # What has only a scratch name now stays stored until that is removed too. An editor puts a new one in its place at once.
            self.held.erase_later(source, erasing, has_backup=becomes_scratch)
            self._keep_directories(source)
        self.set_mtime(target, self.mtime_ns(source))
        self._mtimes.pop(source, None)

    async def link(self, source: str, target: str) -> None:
        """Give a scratch file, as it is now, a second name that must be new: so zarr-python stores a value only where none is.

        Raises:
            NotFound, Refused: as POSIX says; also if the file is another, of which two names would be two values.
            ShardStoreError: it could not be stored.
        """
        self._check_writable()
        check_key(target)
        async with self._moves.change():
            await self._link(source, target)

    async def _link(self, source: str, target: str) -> None:
        buffer = self._buffers.get(source)
        if buffer is None or not buffer.is_scratch or await self._is_scratch(target):
            raise Refused(errno.EOPNOTSUPP)
        if await self.find(target) is not None:
            raise Refused(errno.EEXIST)
        must_be_new = target not in self.held.pending
        await self._save(target, buffer.content(), *storing(target, must_be_new))
        await self._show_directories(target)

    async def _rename_directory(self, source: str, target: str, there: int | None) -> None:
        if there is not None and there != DIRECTORY:
            raise Refused(errno.ENOTDIR)
        if target.startswith(f"{source}/"):
            raise Refused(errno.EINVAL)
        if there == DIRECTORY and await self.entries(target):
            raise Refused(errno.ENOTEMPTY)
        if not all(self._buffers[path].is_scratch for path in self._buffers.below(source)):
            raise Refused(errno.EBUSY)
        for directory in (source, target):
            await self.held.wait_below(directory)
        await self.held.settle(self.held.pending.below(target))
        await self.held.settle([key for key in self.held.pending.below(source) if not self.held.pending[key].waits])
        if source not in self._made or await self._is_stored(source):
            try:
                await self.store.move_prefix(source, target)
            except NotFound:
                if source not in self._made:
                    raise
            except (Unsupported, InvalidInput) as exc:  # the latter for a directory of chunks
                raise Refused(errno.EXDEV) from exc  # so that mv copies file by file
        self.held.drop_below(target)
        self.held.moved(source, target)
        for path in [source, *self._made.below(source)]:
            if (is_new := self._made.remove(path)) is not None:
                self._made[target + path[len(source) :]] = is_new
        for other in self._buffers.values():
            if other.moved_from is not None and other.moved_from.startswith(f"{source}/"):
                other.moved_from = target + other.moved_from[len(source) :]
        for path in self._buffers.below(source):
            buffer = self._buffers.remove(path)
            assert buffer is not None
            buffer.path = target + path[len(source) :]
            self._buffers[buffer.path] = buffer
        self._early.forget()
        for path in [path for path in self._removed if path == target or path.startswith(f"{target}/")]:
            del self._removed[path]
        for path in (source, target):
            self.tree.forget(path)
        self.values.forget_all()

    # -- the end ---------------------------------------------------------------------------------------------------------

    async def end(self) -> list[str]:
        """Store what is held back; return the keys of what could not be stored. Scratch files are gone with the mount."""
        for path, buffer in list(self._buffers.items()):
            if buffer.is_scratch:
                self.log.note("left unstored", Refused(errno.EIO, f"{path!r} has a name of files that programs keep for a moment"))
        unstored = await self.held.end()
        for path in list(self._buffers):
            self._drop(path)
        return unstored
