"""Files that programs have open, and the entries of directories."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol, cast

from shardstore.engine.pinned import OpenValue, PinnedValue
from shardstore.errors import Conflict
from shardstore.mounting.reading import Values
from shardstore.mounting.writing import Buffer


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


@dataclass(slots=True)
class _Told:
    """A piece of a value that was read, and the digest of its bytes."""

    begin: int
    end: int
    digest: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=16))


@dataclass(slots=True)
class Pinned:
    """A value that is too long to be read whole when it is opened.

    It is read in pieces of one version. Once the storage does not have that any more, because another chunk of the shard was written, it is
    read whole into a temporary file; if all that was read before is in it too, it is as good as the first one.
    """

    key: str
    value: OpenValue
    values: Values
    _told: list[_Told] = field(default_factory=list)
    _whole: BinaryIO | None = None
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def nbytes(self) -> int:
        return self.value.nbytes

    async def read(self, offset: int, nbytes: int) -> bytes | memoryview:
        """Return bytes, clipped to the value. Raises ``Conflict`` if it was replaced by another one."""
        if (whole := self._whole) is not None:
            return _piece(whole, offset, nbytes)
        try:
            data = await self.value.read(offset, offset + nbytes)
        except Conflict:
            if isinstance(self.value, PinnedValue) and not self.value.is_chunk:
                raise  # all of the object is this value
            return _piece(await self._read_whole(), offset, nbytes)
        whole = self._whole  # somebody else may have read it meanwhile
        if whole is not None and data != _piece(whole, offset, nbytes):
            raise self._replaced() from None
        self._note(offset, data)
        return data

    def _note(self, offset: int, data: bytes | memoryview) -> None:
        if not self._told or self._told[-1].end != offset:
            self._told.append(_Told(offset, offset))
        self._told[-1].end += len(data)
        self._told[-1].digest.update(data)

    async def _read_whole(self) -> BinaryIO:
        async with self._reading:
            if self._whole is None:
                self.values.forget(self.key)
                value = await self.values.read(self.key)
                if value is None or value.nbytes != self.nbytes:
                    raise self._replaced()
                for told in self._told:
                    if hashlib.blake2b(value.data[told.begin : told.end], digest_size=16).digest() != told.digest.digest():
                        raise self._replaced()
                self._whole = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115  # see close
                self._whole.write(value.data)
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
    """A file that is open for writing, and for reading what is written; or, unless ``writes``, for reading what others here write."""

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
class Entry:
    """A name in a directory; ``nbytes`` is ``DIRECTORY`` for a directory."""

    name: str
    nbytes: int
    mtime_ns: int
