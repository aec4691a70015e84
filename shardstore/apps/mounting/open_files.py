"""Files that programs have open, and the entries of directories."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol, cast

from shardstore.adapters.file_access import PinnedVersion, shares_object
from shardstore.apps.mounting.reading import Values
from shardstore.apps.mounting.writing import Buffer, hasher
from shardstore.errors import Conflict


class Reader(Protocol):
    """A file that is open for reading: one version of it, or what this mount is writing."""

    @property
    def nbytes(self) -> int: ...

    async def read(self, offset: int, nbytes: int) -> bytes | memoryview: ...


@dataclass(frozen=True, slots=True)
class Whole:
    """A value that is in memory."""

    data: bytes | memoryview

    @property
    def nbytes(self) -> int:
        return len(self.data)

    async def read(self, offset: int, nbytes: int) -> bytes | memoryview:
        return self.data[offset : offset + nbytes]


_MOST_PIECES = 1000


@dataclass(slots=True)
class _ReadPiece:
    """A piece of a value that was read, and the digest of its bytes."""

    begin: int
    end: int
    digest: Any = field(default_factory=hasher)


@dataclass(slots=True)
class Pinned:
    """A value that is too long to be read whole when it is opened.

    It is read in pieces of one version. Once the storage does not have that any more, because another chunk of the shard was written, it is
    read whole into a temporary file; if all that was read before is in it too, reading goes on from it.
    """

    key: str
    value: PinnedVersion
    values: Values
    _pieces: list[_ReadPiece] = field(default_factory=list)
    _whole: BinaryIO | None = None
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def nbytes(self) -> int:
        return self.value.nbytes

    async def read(self, offset: int, nbytes: int) -> bytes | memoryview:
        """Return bytes, clipped to the value. Raises ``Conflict`` if it was replaced by another one."""
        if len(self._pieces) > _MOST_PIECES:  # read in no order: all of it is wanted, and is to be compared with less
            await self._read_whole()
        if (whole := self._whole) is not None:
            return _piece(whole, offset, nbytes)
        try:
            data = await self.value.read(offset, offset + nbytes)
        except Conflict:
            if not shares_object(self.value):
                raise  # all of the object is this value
            return _piece(await self._read_whole(), offset, nbytes)
        whole = self._whole  # another task may have read it since then
        if whole is not None and data != _piece(whole, offset, nbytes):
            raise self._replaced()
        if shares_object(self.value):
            self._note(offset, data)
        return data

    def _note(self, offset: int, data: bytes | memoryview) -> None:
        if not self._pieces or self._pieces[-1].end != offset:
            self._pieces.append(_ReadPiece(offset, offset))
        self._pieces[-1].end += len(data)
        self._pieces[-1].digest.update(data)

    async def _read_whole(self) -> BinaryIO:
        async with self._reading:
            if self._whole is None:
                self.values.forget(self.key)
                value = await self.values.read(self.key)
                if value is None or value.nbytes != self.nbytes:
                    raise self._replaced()
                for piece in self._pieces:
                    if hasher(value.data[piece.begin : piece.end]).digest() != piece.digest.digest():
                        raise self._replaced()
                file = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115  # see close
                try:
                    file.write(value.data)
                    file.flush()
                except OSError:
                    file.close()
                    raise
                self._whole = file
                self._pieces.clear()
            return self._whole

    def close(self) -> None:
        """Read it no more."""
        if self._whole is not None:
            self._whole.close()

    def _replaced(self) -> Conflict:
        return Conflict(f"{self.key!r} was replaced while it was being read in pieces: open it again")


def _piece(file: BinaryIO, offset: int, nbytes: int) -> bytes:
    file.seek(offset)
    return file.read(nbytes)


@dataclass(slots=True)
class Writer:
    """A file that is open for writing and reading; or, unless ``writes``, for reading what other programs write by this mount."""

    buffer: Buffer
    appends: bool = False
    writes: bool = True

    @property
    def nbytes(self) -> int:
        return self.buffer.nbytes

    async def read(self, offset: int, nbytes: int) -> bytes | memoryview:
        return self.buffer.read(offset, nbytes)

    def write(self, offset: int, data: bytes) -> int:
        self.buffer.write(self.buffer.nbytes if self.appends else offset, data)
        return len(data)


@dataclass(frozen=True, slots=True)
class DirEntry:
    """A name in a directory; ``nbytes`` is ``DIRECTORY`` for a directory."""

    name: str
    nbytes: int
    mtime_ns: int
