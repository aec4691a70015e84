"""Files that programs have open, and the entries of directories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from shardstore.engine.pinned import OpenValue
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


@dataclass(frozen=True, slots=True)
class Pinned:
    """One version of a value that is too long to be read whole."""

    value: OpenValue

    @property
    def nbytes(self) -> int:
        return self.value.nbytes

    async def read(self, offset: int, nbytes: int) -> bytes | memoryview:
        return await self.value.read(offset, offset + nbytes)


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
