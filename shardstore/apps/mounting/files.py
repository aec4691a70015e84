"""Files and directories over a store: what making, renaming and removing them mean; ``contents`` has what opening and writing mean.

Renaming a file with one of the names that programs use for a moment to a key is the commit. Paths are presented keys; ``""`` is the root.
"""

from __future__ import annotations

import errno
from functools import partial

from shardstore.adapters.file_access import ERASE, Change
from shardstore.apps.mounting.contents import Contents
from shardstore.apps.mounting.errnos import Refused
from shardstore.apps.mounting.names import DIRECTORY, Place, is_document, moved_path, name_of, path_of
from shardstore.apps.mounting.writing import Buffer, erasing
from shardstore.errors import InvalidInput, NotFound, ReadOnly, ShardStoreError, Unsupported
from shardstore.format.store_keys import check_key
from shardstore.model.ranges import BytesLike


class Files(Contents):
    """The files and directories of one mount. All methods run on the IO loop."""

    async def unlink(self, place: Place) -> None:
        """Remove a file. Raises ``NotFound``, ``Refused`` (it is a directory) or what erasing a document raises."""
        self._check_writable()
        async with self._moves.change():
            await self._unlink(path_of(place))

    async def _unlink(self, path: str) -> None:
        found = await self.find(path)
        if found is None:
            raise NotFound(f"there is no {path!r}")
        if found == DIRECTORY:
            raise Refused(errno.EISDIR)
        buffer = self._buffers.get(path)
        if buffer is None:
            await self._erase(path)
        else:
            async with buffer.lock:  # a close that comes now waits for what becomes of it
                if buffer.path != path:
                    raise NotFound(f"there is no {path!r} any more")
                if not buffer.is_scratch:
                    await self._erase(path)
                if self._buffers.get(path) is buffer:
                    self._drop(path)
        self.names.inodes.detach(path)
        self.names.set_mtime(path, None)
        self.names.directories.show_above(path)

    async def _erase(self, path: str) -> None:
        await (self._erase_document(path) if is_document(path) else self.held.erase(path))

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
            if buffer.moved_from != keeps_origin:
                self._without_origin(buffer)
            if not buffer.handles:
                buffer.close()

    async def mkdir(self, place: Place) -> None:
        """Make a directory, which is remembered by this mount alone until there is a file in it."""
        self._check_writable()
        async with self._moves.change():
            path = check_key(path_of(place))
            found = await self.find(path)
            if found is not None and (found != DIRECTORY or path in self.names.directories or not await self.tree.is_hidden(path)):
                raise Refused(errno.EEXIST)
            await self.held.make_way(path, is_directory=True)
            self.names.directories.make(path)
            self.names.inodes.detach(path)

    async def rmdir(self, place: Place) -> None:
        """Remove an empty directory. Unless its name is a number, as those among chunks are, what was in it is erased by then.

        Raises:
            NotFound, Refused: as POSIX says.
            ShardStoreError: what was in it could not be erased.
        """
        self._check_writable()
        async with self._moves.change():
            path = path_of(place)
            found = await self.find(path)
            if found is None:
                raise NotFound(f"there is no {path!r}")
            if found != DIRECTORY:
                raise Refused(errno.ENOTDIR)
            if await self.names.entries(path):
                raise Refused(errno.ENOTEMPTY)
            if not (name_of(path).isdecimal() and await self.tree.chunk_area(path)):
                await self.held.settle(self.held.pending.below(path))
            self.names.directories.remove(path)
            self.names.inodes.detach(path)
            self.tree.remove(path)

    async def rename(self, source: Place, target: Place, *, no_replace: bool = False) -> None:
        """Rename a file or a directory. That of a file to a key is its commit.

        Raises:
            NotFound, Refused: as POSIX says.
            ShardStoreError: it could not be stored; then the file has its old name.
        """
        self._check_writable()
        while True:
            is_directory = (await self.look(source))[1] == DIRECTORY
            async with self._moves.move() if is_directory else self._moves.change():
                old, new = path_of(source), check_key(path_of(target))
                found, there = await self.find(old), await self.find(new)
                if found is None:
                    raise NotFound(f"there is no {old!r}")
                if (found == DIRECTORY) != is_directory:
                    continue  # it was replaced while the lock was waited for
                if no_replace and there is not None:
                    raise Refused(errno.EEXIST)
                if old == new:
                    return
                if is_directory:
                    await self._rename_directory(old, new, there)
                elif there == DIRECTORY:
                    raise Refused(errno.EISDIR)
                else:
                    await self._rename_file(old, new, no_replace=no_replace)
                return

    async def _rename_file(self, source: str, target: str, *, no_replace: bool) -> None:
        buffer = self._buffers.get(source)
        if buffer is None:
            await self._rename_to(source, target, None, no_replace)
            return
        buffer.handles += 1  # so that it is not closed while this waits, nor stored under its old name
        try:
            async with buffer.lock:
                if buffer.path != source:
                    raise NotFound(f"there is no {source!r} any more")
                await self._rename_to(source, target, buffer, no_replace)
        finally:
            await self._release(buffer)

    async def _rename_to(self, source: str, target: str, buffer: Buffer | None, no_replace: bool) -> None:
        was_stored = buffer is None or not buffer.is_scratch
        becomes_scratch = await self._is_scratch(target)
        if was_stored:
            await self._prepare_stored(source, target, becomes_scratch=becomes_scratch)
        await self.held.make_way(target, is_directory=False)
        must_be_new = no_replace and await self._free_name(target)
        hidden = await self.names.hidden_above(target)
        data, erasure = await self._value_to_rename(source, buffer)
        changes = 0 if buffer is None else buffer.changes
        is_stored = False

        def note_stored(_change: Change) -> None:
            nonlocal is_stored
            is_stored = True
            if buffer is not None and buffer.path == target:
                buffer.replaces(data)

        if not becomes_scratch:  # the source is erased only after that
            await self._save(target, data, partial(Change, creates=must_be_new), note_stored, at_once=was_stored)
        # No other task has its turn from here on.
        self.names.directories.show(*hidden)
        self._drop(target, keeps_origin=source)
        if becomes_scratch:
            self._keep_as_scratch(source, target, buffer, data, was_stored=was_stored)
        elif buffer is not None:
            self._move_buffer(buffer, source, target)
            buffer.is_scratch = False
            self._without_origin(buffer)
            buffer.committed(data if is_stored else None, changes, creates=must_be_new)
        if was_stored:
            # What has only a scratch name now stays stored until that is removed too. An editor puts a new one in its place at once.
            self.held.erase_later(source, erasure, has_backup=becomes_scratch)
            self.names.directories.show_above(source)
        self.names.moved(source, target, is_directory=False)

    async def _prepare_stored(self, source: str, target: str, *, becomes_scratch: bool) -> None:
        """Raise ``Refused`` where ``mv`` has to copy a stored file, and to remove the old one only after that: a document, so that ``mv``
        fails if it may not be removed; and what would become a chunk without an array, which waits for a document.
        """
        if becomes_scratch:
            await self.held.settle([source])  # it has to be stored as long as its only name is one of this mount
        elif is_document(source) or (not is_document(target) and await self._early.is_early(target)):
            raise Refused(errno.EXDEV)

    def _keep_as_scratch(self, source: str, target: str, buffer: Buffer | None, data: BytesLike, *, was_stored: bool) -> None:
        """Keep a file, which has a scratch name now, in this mount alone."""
        if buffer is None:
            buffer = Buffer(target)
            buffer.fill(data)
        self._move_buffer(buffer, source, target)
        buffer.is_scratch = True
        if was_stored:
            buffer.moved_from = source
        if target in self.held.pending:
            self.held.erase_later(target, ERASE, has_backup=False)

    async def _value_to_rename(self, source: str, buffer: Buffer | None) -> tuple[bytes | memoryview, Change]:
        """Return the bytes of a file, and the change that erases it under its old name. Raises ``NotFound``."""
        if buffer is not None:
            return buffer.content(), ERASE
        if source in self.held.pending:
            return self.held.read(source) or b"", ERASE
        value = await self.values.read(source)
        if value is None:
            raise NotFound(f"there is no {source!r} any more")
        data = bytes(value.data)
        return data, erasing(data)

    def _move_buffer(self, buffer: Buffer, source: str, target: str) -> None:
        self._buffers.remove(source)
        buffer.path = target
        self._buffers[target] = buffer

    async def link(self, source: Place, target: Place) -> None:
        """Give a scratch file, as it is now, a second name that must be new: so zarr-python stores a value only where none is.

        Raises:
            NotFound, Refused: as POSIX says; also if the file is another, of which two names would be two values.
            ShardStoreError: it could not be stored.
        """
        self._check_writable()
        async with self._moves.change():
            await self._link(path_of(source), check_key(path_of(target)))

    async def _link(self, source: str, target: str) -> None:
        buffer = self._buffers.get(source)
        if buffer is None or not buffer.is_scratch or await self._is_scratch(target):
            raise Refused(errno.EOPNOTSUPP)
        if await self.find(target) is not None:
            raise Refused(errno.EEXIST)
        await self.held.make_way(target, is_directory=False)
        must_be_new, hidden = await self._free_name(target), await self.names.hidden_above(target)
        await self._save(target, buffer.content(), partial(Change, creates=must_be_new))
        self.names.directories.show(*hidden)
        self.names.inodes.detach(target)

    async def _rename_directory(self, source: str, target: str, there: int | None) -> None:
        if there is not None and there != DIRECTORY:
            raise Refused(errno.ENOTDIR)
        if target.startswith(f"{source}/"):
            raise Refused(errno.EINVAL)
        if self._buffers.below(target) or (there == DIRECTORY and await self.names.entries(target)):
            raise Refused(errno.ENOTEMPTY)
        for directory in (source, target):
            await self.held.wait_below(directory)
        await self.held.make_way(target, is_directory=True)
        await self.held.settle(self.held.pending.below(target))
        await self.held.settle([key for key in self.held.pending.below(source) if not self.held.pending[key].waits])
        self._moves.renames(source, target)
        has_moved = await self._move_stored(source, target)
        self.held.drop_below(target)
        self.held.moved(source, target)
        self.names.directories.moved(source, target)
        self.names.directories.show_above(source)
        for other in self._buffers.values():
            if other.moved_from is not None and other.moved_from.startswith(f"{source}/"):
                other.moved_from = moved_path(other.moved_from, source, target)
        for path in self._buffers.below(source):
            self._move_buffer(self._buffers[path], path, moved_path(path, source, target))
        self.names.moved(source, target, is_directory=True)
        self._early.forget()
        self.tree.moved(source, target)
        if has_moved:
            self.tree.put(target, DIRECTORY)
        self.values.forget_all()

    async def _move_stored(self, source: str, target: str) -> bool:
        """Rename a directory on the storage; return ``False`` if only this mount has it."""
        is_shown = source in self.names.directories
        if is_shown and not await self.names.is_stored(source):
            return False
        try:
            await self.store.move_prefix(source, target)
        except NotFound:
            if not is_shown:
                raise
            return False
        except (Unsupported, InvalidInput) as exc:  # the latter for a directory of chunks
            raise Refused(errno.EXDEV) from exc  # so that mv copies file by file
        return True

    # -- the end ---------------------------------------------------------------------------------------------------------

    async def end(self) -> list[str]:
        """Store what is held back; return the keys of what could not be stored. Scratch files, and what was not closed, are gone with the
        mount.
        """
        for path, buffer in list(self._buffers.items()):
            if buffer.is_scratch:
                self.log.note("left unstored", Refused(errno.EIO, f"{path!r} has a name of files that programs keep for a moment"))
            elif buffer.is_dirty and buffer.handles > 0:
                self.log.note("left unstored", Refused(errno.EIO, f"{path!r} was written, and not closed"))
        try:
            await self.sync()
        except (ShardStoreError, OSError) as exc:
            self.log.note("not stored at the end", exc)
        unstored = sorted({*await self.held.end(), *(buffer.path for buffer in self._emptied_and_closed() if buffer.path is not None)})
        for path in list(self._buffers):
            self._drop(path)
        return unstored
