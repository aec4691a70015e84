"""The bytes of files that are being written, until they are stored whole."""

from __future__ import annotations

import asyncio
import errno
import tempfile

from shardstore.engine.actions import Action, Creation, SetIfMissing, SetValue, Swap, Swapped
from shardstore.errors import Conflict
from shardstore.model.generation import Generation, IfGeneration
from shardstore.mounting.errnos import Refused

MEMORY_NBYTES = 8 * 2**20
"""More bytes of one file than this go to a temporary one."""

_ZEROS = bytes(2**20)


class Buffer:
    """A file that is open for writing, or whose name never reaches the storage.

    ``version`` is that of the value that it began with, which storing it replaces, and no other; ``None`` where the whole value is written.
    """

    def __init__(self, path: str, *, version: Generation | None = None, is_scratch: bool = False, creates: bool = False) -> None:
        self.path: str | None = path
        """Where it is stored; ``None`` once it has been removed or replaced."""
        self.is_scratch = is_scratch
        self.creates = creates
        """The value must not be there when it is stored: the file was opened with ``O_EXCL``."""
        self.handles = 0
        self.is_dirty = False
        self.has_bytes = False
        """True once anything was written since it was created or truncated."""
        self.changes = 0
        self.nbytes = 0
        self.lock = asyncio.Lock()
        self._version = version
        self._creation = Creation()
        self._swapped = Swapped()
        self._file = tempfile.SpooledTemporaryFile(MEMORY_NBYTES)  # noqa: SIM115  # closed when nobody has it open

    def read(self, offset: int, nbytes: int) -> bytes:
        if offset >= self.nbytes:
            return b""
        self._file.seek(offset)
        return self._file.read(nbytes)

    def content(self) -> bytes:
        return self.read(0, self.nbytes)

    def fill(self, data: bytes | memoryview) -> None:
        """Give it its first bytes, which are those that are stored."""
        self._file.write(data)
        self.nbytes = len(data)
        self.has_bytes = True

    def write(self, offset: int, data: bytes) -> None:
        self._extend(offset)
        self._file.seek(offset)
        self._file.write(data)
        self.nbytes = max(self.nbytes, offset + len(data))
        self._changed()
        self.has_bytes = True

    def truncate(self, nbytes: int) -> None:
        if nbytes < self.nbytes:
            self._file.truncate(nbytes)
            self.nbytes = nbytes
        else:
            self._extend(nbytes)
        self._changed()
        if nbytes == 0:
            self.has_bytes = False
            self._version = None  # nothing of the old value is in it
        else:
            self.has_bytes = True

    def _extend(self, nbytes: int) -> None:
        if nbytes > self.nbytes:
            self._file.seek(self.nbytes)
            while self.nbytes < nbytes:
                piece = _ZEROS[: nbytes - self.nbytes]
                self._file.write(piece)
                self.nbytes += len(piece)

    def _changed(self) -> None:
        self.is_dirty = True
        self.changes += 1

    def action(self, data: bytes) -> Action:
        """Return the action that stores it."""
        if self.creates:
            self._creation = Creation()
            return SetIfMissing(data, self._creation)
        if self._version is not None:
            self._swapped = Swapped()
            return Swap(data, IfGeneration(self._version), self._swapped)
        return SetValue(data)

    def check_stored(self, action: Action) -> None:
        """Raise an error if the action changed nothing, because of what was there.

        Raises:
            Refused: the file was to be created, and was there.
            Conflict: others have replaced the value that it began with.
        """
        if isinstance(action, SetIfMissing):
            if not self._creation.happened:
                raise Refused(errno.EEXIST, f"{self.path!r} has been created by others meanwhile")
            self.creates = False
        elif isinstance(action, Swap):
            if not self._swapped.happened:
                raise Conflict(f"{self.path!r} was replaced by others while it was open here: what was written here is not stored")
            self._version = self._swapped.version

    def close(self) -> None:
        self._file.close()
