"""The bytes of files that are being written, until they are stored whole, and the changes that store and erase them."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from shardstore.adapters.file_access import Change
from shardstore.apps.mounting.errnos import Refused
from shardstore.errors import Conflict, NoSpace
from shardstore.model.ranges import BytesLike

MEMORY_NBYTES = 8 * 2**20
"""More bytes of one file than this go to a temporary one."""

MOST_NBYTES = 4 * 2**30
"""A longer file is refused: all of it is stored at once."""


class Buffer:
    """A file that is open for writing, or whose name never reaches the storage.

    One that began with the value that was there replaces that value, and no other.
    """

    def __init__(self, path: str, *, is_scratch: bool = False, creates: bool = False, may_be_empty: bool = True) -> None:
        self.path: str | None = path
        """Where it is stored; ``None`` once it has been removed or replaced."""
        self.is_scratch = is_scratch
        self.creates = creates
        """The value must not be there when it is stored: the file was opened with ``O_EXCL``."""
        self.may_be_empty = may_be_empty
        self.handles = 0
        self.is_dirty = False
        self.has_bytes = False
        """True once anything was written since it was created or truncated."""
        self._stays_empty = False
        self.changes = 0
        self.moved_from: str | None = None
        """The key that had this value before the file got its scratch name; it is erased when the file is removed."""
        self.nbytes = 0
        self.lock = asyncio.Lock()
        self._digest: bytes | None = None  # of the value that it began with, or that was stored last
        self._attempts: list[tuple[Change, bytes]] = []  # to replace that value since, with the digests of what they store
        self._is_cut = False
        self._mapped: list[weakref.ref[mmap.mmap]] = []  # what ``content`` has returned
        self._file = tempfile.SpooledTemporaryFile(MEMORY_NBYTES)  # noqa: SIM115  # closed when no program has it open

    def read(self, offset: int, nbytes: int) -> bytes:
        if offset >= self.nbytes:
            return b""
        self._file.seek(offset)
        return self._file.read(nbytes)

    def content(self) -> bytes | memoryview:
        """Return all bytes as they are now; those of a temporary file are not read into memory. Raises ``NoSpace`` if some that were
        written could not be kept.
        """
        if not self._is_cut and self.nbytes > MEMORY_NBYTES:
            self._file.flush()
            mapped = mmap.mmap(self._file.fileno(), self.nbytes, access=mmap.ACCESS_READ)
            self._mapped.append(weakref.ref(mapped))
            return memoryview(mapped)
        data = b"" if self._is_cut else self.read(0, self.nbytes)
        if len(data) != self.nbytes:
            raise NoSpace(f"{self.path!r} found no space in {tempfile.gettempdir()} while it was written, and is not stored")
        return data

    def _leave_content(self, nbytes: int) -> None:
        """Go on with a copy of the first bytes if anything still has the content: that must not change while it is stored."""
        if any(mapped() is not None for mapped in self._mapped):
            copy = _copy_of(self._file, nbytes)
            self._file.close()
            self._file = copy
        self._mapped.clear()

    def fill(self, data: BytesLike, *, replaces: bool = False) -> None:
        """Give it its first bytes; with ``replaces``, they are those that are stored, and will be replaced only if they still are."""
        self._file.write(data)
        self.nbytes = len(data)
        self.has_bytes = True
        self._digest = _digest(data) if replaces else None

    def committed(self, data: BytesLike | None, changes: int, *, creates: bool) -> None:
        """Note that its content when it had so many ``changes`` was committed under its name: these bytes are stored, or (``None``) will be
        stored whatever is there, or with ``creates``, where there is nothing.
        """
        if data is not None:
            self.replaces(data)
        else:
            self._digest = None
            self._attempts.clear()
            self.creates = creates
        if self.changes == changes:
            self.is_dirty = False

    def replaces(self, data: BytesLike) -> None:
        """Note that these bytes are stored under its name."""
        self._digest = _digest(data)
        self._attempts.clear()
        self.creates = False

    def write(self, offset: int, data: bytes) -> None:
        if offset + len(data) > MOST_NBYTES:
            raise Refused(errno.EFBIG, f"{self.path!r} would be longer than {MOST_NBYTES >> 30} GiB")
        with self._cutting():
            self._leave_content(self.nbytes)
            self._extend(offset)
            self._file.seek(offset)
            self._file.write(data)
        self.nbytes = max(self.nbytes, offset + len(data))
        self._changed()
        self.has_bytes = True

    def truncate(self, nbytes: int, *, stays: bool = False) -> None:
        """Cut or extend it. ``stays``: if it is empty then, that is not only because something will be written."""
        if nbytes < self.nbytes:
            self._leave_content(nbytes)
            self._file.truncate(nbytes)
            self.nbytes = nbytes
        else:
            with self._cutting():
                self._leave_content(self.nbytes)
                self._extend(nbytes)
        self._changed()
        if nbytes == 0:
            self.has_bytes = self._is_cut = False
            self._stays_empty = stays
            self._digest = None  # nothing of the old value is in it
        else:
            self.has_bytes = True

    @contextmanager
    def _cutting(self) -> Iterator[None]:
        """Remember an error of the temporary file: whatever is in it, it is not what was written."""
        try:
            yield
        except OSError:
            self._is_cut = self.has_bytes = True
            self._changed()
            raise

    def is_complete(self) -> bool:
        """Return whether closing it now is to store it; called when it is closed."""
        if self.has_bytes or self.may_be_empty or self._stays_empty:
            return True
        self._stays_empty = True
        return False

    def _extend(self, nbytes: int) -> None:
        if nbytes > MOST_NBYTES:
            raise Refused(errno.EFBIG, f"{self.path!r} would be longer than {MOST_NBYTES >> 30} GiB")
        if nbytes > MEMORY_NBYTES:
            self._file.rollover()
            self._file.truncate(max(nbytes, self.nbytes))  # zeros that take no room
        elif nbytes > self.nbytes:
            self._file.seek(self.nbytes)
            self._file.write(bytes(nbytes - self.nbytes))
        self.nbytes = max(nbytes, self.nbytes)

    def _changed(self) -> None:
        self.is_dirty = True
        self.changes += 1

    def change(self, data: BytesLike) -> Change:
        """Return the change that stores it."""
        if self.creates or self._digest is None:
            return Change(data, creates=self.creates)
        # Not by versions: they change with any chunk of the shard.
        allowed = {self._digest, _digest(data), *(digest for _, digest in self._attempts)}  # the latter where an answer was lost
        path = self.path

        def revise(old: bytes | None) -> bytes:
            if old is None or _digest(old) not in allowed:
                raise Conflict(f"{path!r} was replaced by another program while it was open here: what was written here is not stored")
            return bytes(data)

        change = Change(revise=revise)
        self._attempts.append((change, _digest(data)))
        return change

    def note_stored(self, change: Change) -> None:
        """Note that a change was carried out."""
        if change.creates:
            self.creates = False
        for attempt, digest in self._attempts:
            if attempt is change:
                self._digest = digest
                self._attempts.clear()
                break

    def close(self) -> None:
        self._file.close()


def _copy_of(file: tempfile.SpooledTemporaryFile[bytes], nbytes: int) -> tempfile.SpooledTemporaryFile[bytes]:
    """Return a copy of the first bytes of a temporary file, in which ranges that were never written take no room either."""
    copy = tempfile.SpooledTemporaryFile(MEMORY_NBYTES)  # noqa: SIM115  # closed by the buffer
    try:
        copy.rollover()
        copy.truncate(nbytes)
        file.flush()
        source, at = file.fileno(), 0
        while at < nbytes:
            try:
                at = os.lseek(source, at, os.SEEK_DATA)
            except OSError as exc:
                if exc.errno != errno.ENXIO:  # there is nothing more
                    raise
                break
            end = min(os.lseek(source, at, os.SEEK_HOLE), nbytes)
            while at < end:
                piece = os.pread(source, min(end - at, MEMORY_NBYTES), at)
                copy.seek(at)
                copy.write(piece)
                at += len(piece)
        copy.flush()
    except BaseException:
        copy.close()
        raise
    return copy


def erasing(data: BytesLike) -> Change:
    """Return the erasure of a value, unless another program has replaced these bytes."""
    mine = _digest(data)
    return Change(revise=lambda old: old if old is not None and _digest(old) != mine else None)


def hasher(data: BytesLike = b"") -> hashlib.blake2b:
    """Return a hash object, of 16 bytes, that has taken in some bytes."""
    return hashlib.blake2b(data, digest_size=16)


def _digest(data: BytesLike) -> bytes:
    return hasher(data).digest()
