"""Files over a store: what opening, writing and closing mean.

A chunk is stored whole when its file is closed, or at ``fsync``; no program sees half of it. Files with the names that programs use for a
moment are kept here. Paths are presented keys; ``""`` is the root. No FUSE here.

What is opened or changed is given as a ``Place``, whose path is looked up once no directory above it can be renamed.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from shardstore.adapters.file_access import Change, FileAccess
from shardstore.apps.mounting.errnos import ErrorLog, Refused
from shardstore.apps.mounting.held_back import Durable, HeldBack, Limits
from shardstore.apps.mounting.names import DIRECTORY, Moves, Place, is_array_document, is_document, is_scratch, name_of, parent_of, path_of
from shardstore.apps.mounting.namespace import Namespace
from shardstore.apps.mounting.reading import DirEntry, Pinned, Reader, Values, Whole, Writer
from shardstore.apps.mounting.tree import Tree
from shardstore.apps.mounting.writing import Buffer
from shardstore.errors import AccessDenied, Conflict, InvalidInput, NotFound, ReadOnly, ShardStoreError
from shardstore.format.chunk_keys import looks_like_chunk_key
from shardstore.format.metadata_v3 import METADATA_NAME
from shardstore.format.store_keys import check_key, join, possible_owners
from shardstore.format.v2.keys import ARRAY_NAME
from shardstore.model.containers import Lru
from shardstore.model.ranges import BytesLike

WHOLE_NBYTES = 16 * 2**20
"""Larger values are not read whole when they are opened, but piece by piece, of one version."""

_FINAL = (AccessDenied, Conflict, InvalidInput, ReadOnly, Refused)
"""Errors that a retry cannot mend."""

_MOST_KNOWN = 100_000  # directories


class Contents:
    """The files of one mount, and what is in them. All methods run on the IO loop."""

    def __init__(
        self,
        store: FileAccess,
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
        self.names = Namespace(self.tree, self.held, attr_seconds, clock)
        self._buffers = self.names.buffers
        self._early = EarlyChunks(self.names, self.tree, self.values, attr_seconds, clock)
        self._moves = Moves()

    # -- names -----------------------------------------------------------------------------------------------------------

    async def find(self, path: str) -> int | None:
        """Return the size of a file in bytes, ``DIRECTORY`` for a directory, ``None`` if there is nothing. Raises as ``Namespace.find``."""
        return await self.names.find(path)

    async def look(self, place: Place) -> tuple[str, int | None]:
        """Return the path of a place, and what ``find`` returns for it."""
        return await self._moves.ask(place, self.names.find)

    async def entries(self, place: Place) -> tuple[str, list[DirEntry]]:
        """Return the path of a directory, and what is in it. Raises as ``find``."""
        return await self._moves.ask(place, self.names.entries)

    def _stored(self, path: str, nbytes: int | None) -> None:
        """Note what has been stored."""
        self.values.forget(path)
        if is_document(path):
            self._early.forget()
            self.tree.forget_array(parent_of(path))
            if nbytes is not None and self.names.directories.was_made(parent_of(path)):
                self.tree.made_here.add(parent_of(path))
            elif nbytes is None:
                self.tree.made_here.discard(parent_of(path))
        if nbytes is None:
            self.tree.remove(path)
            return
        self.tree.put(path, nbytes)
        self.names.directories.filled(path)

    def _check_writable(self) -> None:
        if self.read_only:
            raise ReadOnly(f"{self.store.url} is mounted for reading only")

    # -- reading ---------------------------------------------------------------------------------------------------------

    async def open(self, place: Place) -> Reader:
        """Open a file for reading.

        Raises:
            NotFound: there is none.
            ShardStoreError: it could not be read.
        """
        return (await self._moves.ask(place, self._open))[1]

    async def _open(self, path: str) -> Reader:
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
            if pinned.nbytes > WHOLE_NBYTES:
                return Pinned(path, pinned, self.values)
            with suppress(Conflict):  # another chunk of the shard may have been written
                return Whole(await pinned.read(0, pinned.nbytes))
        value = await self.values.open(path, self.tree.preceding(path), self.tree.following(path), self.tree.nbytes)
        if value is None:
            self.tree.remove(path)
            raise NotFound(f"there is no {path!r} any more")
        if value.nbytes != nbytes == self.tree.nbytes(path):  # not if it was written here in between
            self.tree.put(path, value.nbytes)
        return Whole(value.data)

    # -- writing ---------------------------------------------------------------------------------------------------------

    async def create(self, place: Place, *, exclusive: bool, appends: bool = False, truncates: bool = False) -> Writer:
        """Open a file for writing that is not there yet.

        Raises:
            Refused: it is there, and was to be created by ``exclusive``; or it is a directory.
            InvalidInput: no key can have this name.
            ReadOnly: nothing may be written.
        """
        self._check_writable()
        async with self._moves.change():
            return await self._create(check_key(path_of(place)), exclusive=exclusive, appends=appends, truncates=truncates)

    async def _create(self, path: str, *, exclusive: bool, appends: bool, truncates: bool) -> Writer:
        found = await self.find(path)
        if found == DIRECTORY:
            raise Refused(errno.EISDIR)
        if found is not None:
            if exclusive:
                raise Refused(errno.EEXIST)
            return await self._edit(path, truncates=truncates, appends=appends)
        is_scratch = await self._is_scratch(path)
        await self.held.make_way(path, is_directory=False)
        must_be_new = exclusive and await self._free_name(path)
        may_be_empty = self._may_be_empty(path)
        hidden = await self.names.hidden_above(path)
        is_lock = must_be_new and may_be_empty and not is_scratch
        if is_lock:  # other programs rely on it at once
            await self._save(path, b"", partial(Change, creates=True), at_once=True)
        if (opened := self._buffers.get(path)) is not None:  # by another program, while the storage was asked
            if exclusive and not is_lock:
                raise Refused(errno.EEXIST)
            return self._opened(path, opened, appends)
        buffer = Buffer(path, is_scratch=is_scratch, creates=must_be_new and not is_lock, may_be_empty=may_be_empty)
        if is_lock:
            buffer.fill(b"", replaces=True)
        else:
            buffer.truncate(0)
        self.names.directories.show(*hidden)
        return self._opened(path, buffer, appends)

    async def _free_name(self, path: str) -> bool:
        """Carry out an erasure of ``path`` that is held back, and return whether nothing is stored there then. Something still is where the
        file was renamed to a scratch name: it keeps its old name on the storage.
        """
        await self.held.carry_out_erasure(path)
        return path not in self.held.pending

    async def edit(self, place: Place, *, truncates: bool, appends: bool = False) -> Writer:
        """Open a file for writing that is there. Raises as ``open`` and ``create``."""
        self._check_writable()
        async with self._moves.change():
            return await self._edit(place, truncates=truncates, appends=appends)

    async def _edit(self, place: Place, *, truncates: bool, appends: bool = False) -> Writer:
        # The file itself may be renamed while its value is read: directories are not, but files are.
        path, buffer = await self._moves.ask(place, lambda path: self._buffer_of(path, truncates), self._close_unused)
        if truncates and (buffer.nbytes or not buffer.is_dirty):
            buffer.truncate(0)
        return self._opened(path, buffer, appends)

    async def _buffer_of(self, path: str, truncates: bool) -> Buffer:
        """Return the buffer of a file that is there, which a program has open, or a new one; with its value, unless ``truncates``."""
        if (buffer := self._buffers.get(path)) is not None:
            return buffer
        may_be_empty = self._may_be_empty(check_key(path))
        while not truncates:
            if (held := self.held.pending.get(path)) is not None and not held.waits:
                await self.held.settle([path])  # so that what replaces it does so on its condition too
            data: bytes | memoryview | None
            if (held := self.held.pending.get(path)) is not None:
                data = self.held.read(path)
            else:
                self.values.forget(path)  # the current one: another could not be replaced
                value = await self.values.read(path)
                data = None if value is None else value.data
            if (opened := self._buffers.get(path)) is not None:
                return opened
            if self.held.pending.get(path) is not held:
                continue  # it was changed since then
            if data is None:
                raise NotFound(f"there is no {path!r} any more")
            buffer = Buffer(path, may_be_empty=may_be_empty)
            buffer.fill(data, replaces=held is None)
            return buffer
        return Buffer(path, may_be_empty=may_be_empty)

    @staticmethod
    def _close_unused(buffer: Buffer) -> None:
        if not buffer.handles and not buffer.is_scratch:
            buffer.close()

    def _may_be_empty(self, path: str) -> bool:
        """Return whether a file can be meant to be empty: no document is, and no chunk."""
        return not is_document(path) and not possible_owners(path) and not self.store.shows_draft

    def _opened(self, path: str, buffer: Buffer, appends: bool) -> Writer:
        buffer.handles += 1
        self._buffers[path] = buffer
        self.names.set_mtime(path, time.time_ns())
        return Writer(buffer, appends)

    async def _is_scratch(self, path: str) -> bool:
        if is_scratch(name_of(path)):
            return True
        if is_document(path):
            return False
        # A name among chunks that is none. (A name next to a document may be a user's notes.)
        return await self.tree.chunk_area(path) and not await self.tree.is_chunk(path)

    async def flush(self, file: Reader) -> None:
        """Store what was written, since a descriptor is closed. A chunk or document that opening has emptied waits until one is closed
        again, or the last one is: shells close one that they have duplicated before anything is written.

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
        """Store all that is held back, durably, and what was emptied and closed. Raises the first error; what it is about is still to be
        stored.
        """
        for buffer in self._emptied_and_closed():
            async with self._moves.change():
                await self._store(buffer)
        await self.held.sync()

    def _emptied_and_closed(self) -> list[Buffer]:
        """Return the files that ``release`` is to store, and has not yet: programs have closed them."""
        closed = [buffer for buffer in self._buffers.values() if buffer.handles <= 0 and not buffer.is_scratch]
        return [buffer for buffer in closed if buffer.is_dirty and not buffer.has_bytes]

    async def release(self, file: Reader) -> None:
        """Let go of a file whose descriptor was closed by all programs that had it."""
        if isinstance(file, Writer):
            file.buffer.handles -= 1  # before any wait, so that ``sync`` knows of it
            async with self._moves.change():
                await self._released(file.buffer)
        elif isinstance(file, Pinned):
            file.close()

    async def _release(self, buffer: Buffer) -> None:
        buffer.handles -= 1
        await self._released(buffer)

    async def _released(self, buffer: Buffer) -> None:
        if buffer.handles > 0:
            return
        path = buffer.path
        if path is not None and not buffer.is_scratch:
            try:
                if buffer.is_dirty and not buffer.has_bytes:  # closing has not stored it, see flush
                    await self._store(buffer)
            except ShardStoreError as exc:
                self.log.note(f"{path!r} was emptied, and that could not be stored", exc)
                if not isinstance(exc, _FINAL):  # no program waits for it: it is tried again, and each sync fails
                    await self.held.put(path, b"", buffer.change, buffer.note_stored, lambda: buffer.path == path)
            if buffer.handles or buffer.path is None:
                return  # opened again since then, or removed
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
            await self._save(path, data, buffer.change, buffer.note_stored, still=lambda: buffer.path == path)
            if buffer.changes == changes:
                buffer.is_dirty = False

    async def _save(
        self,
        path: str,
        data: bytes | memoryview,
        change: Callable[[BytesLike], Change],
        note_stored: Callable[[Change], None] = lambda _: None,
        *,
        at_once: bool = False,
        still: Callable[[], bool] = lambda: True,
    ) -> None:
        """Store a value, or hold it back: an early chunk in any case, another value unless ``at_once``. Nothing is stored that is not
        ``still`` to be stored when its turn comes. ``note_stored`` is called with the change once that has been carried out.
        """
        waits = not is_document(path) and await self._early.is_early(path)
        if waits or (self.durable == "fsync" and not at_once):
            await self.held.put(path, data, change, note_stored, still, waits=waits)
            if is_document(path):
                self._early.forget()
        else:
            await self.held.commit(path, data, change(data), note_stored, still)
        self.names.set_mtime(path, time.time_ns())

    async def truncate(self, place: Place, nbytes: int) -> None:
        """Cut or extend a file that is not open. Raises as ``edit`` and ``flush``."""
        self._check_writable()
        async with self._moves.change():
            writer = await self._edit(place, truncates=nbytes == 0)
            try:
                if writer.buffer.nbytes != nbytes:
                    writer.buffer.truncate(nbytes)
                await self._store(writer.buffer)
            finally:
                await self._release(writer.buffer)


class EarlyChunks:
    """Files that come before the document of their array, as copies of directories send them: they look like chunks, and no array has them
    yet.
    """

    def __init__(self, names: Namespace, tree: Tree, values: Values, attr_seconds: float, clock: Callable[[], float]) -> None:
        self._names = names
        self._tree = tree
        self._values = values
        self._attr_seconds = attr_seconds
        self._clock = clock
        self._known: Lru[str, tuple[bool, float]] = Lru(_MOST_KNOWN)  # by directory, and when it was looked up
        self._epoch = 0

    def forget(self) -> None:
        """Look again: a document has been stored or held back, or a directory has been renamed."""
        self._known.clear()
        self._epoch += 1

    async def is_early(self, path: str) -> bool:
        """Return whether a file looks like a chunk of an array that has no document yet."""
        is_like_chunk = looks_like_chunk_key(name_of(path))
        known = self._known.peek(parent_of(path)) if is_like_chunk else None
        if known is not None and self._clock() - known[1] < self._attr_seconds:
            return known[0]
        at, epoch = self._clock(), -1
        while epoch != self._epoch:  # its document may be stored while this looks
            epoch = self._epoch
            is_early = await self._find_early(path)
        if is_like_chunk:
            self._known.put(parent_of(path), (is_early, at))
        return is_early

    async def _find_early(self, path: str) -> bool:
        owners = [owner for owner, _ in possible_owners(path)]
        store, held = self._tree.store, self._names.held
        if not owners or store.shows_draft or await self._tree.is_chunk(path):
            return False
        for owner in owners:
            document = join(owner, METADATA_NAME if store.is_canonical else ARRAY_NAME)
            if (pending := held.pending.get(document)) is not None and pending.data is not None:
                if is_array_document(document, bytes(held.read(document) or b"")):
                    return True  # it is stored before its chunks
                continue
            if await self._names.find(document) is None:
                continue
            value = await self._values.read(document)
            if value is not None and is_array_document(document, bytes(value.data)):
                return False
        return True
