"""Values as open files read them: whole, of one version, read ahead; and the files that programs have open."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any, BinaryIO, Protocol, cast

from shardstore.adapters.file_access import FileAccess, PinnedVersion, shares_object
from shardstore.adapters.read_views import ValueRead, VersionedValue, VersionGone
from shardstore.apps.mounting.names import is_document
from shardstore.apps.mounting.writing import Buffer, hasher
from shardstore.errors import Conflict, ShardStoreError
from shardstore.model.containers import Lru
from shardstore.model.generation import Generation
from shardstore.model.ranges import EVERYTHING

_KEPT = 8  # times the bytes that are read ahead at once, or 1 MiB
_DISTANCE = 64  # names between two files that are opened in order
_RECENT = 256
_CANDIDATES = 4096
_TRIES = 5


@dataclass(slots=True, eq=False)
class Value:
    """One version of a value, whole. ``shared`` are the keys that were read together with it."""

    data: memoryview
    version: Generation
    at: float
    shared: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        return len(self.data)


@dataclass(eq=False)
class Values:
    """Reads whole values of a store.

    What was read ahead is used for ``attr_seconds``; after that it is compared with the current versions, all chunks that were read
    together by one request.
    """

    store: FileAccess
    attr_seconds: float
    read_ahead: int
    """Bytes that are read ahead at once; 0: none."""
    clock: Callable[[], float] = time.monotonic
    _changed: dict[int, set[str]] = field(default_factory=dict)  # of each read that is under way: what was changed here since it began

    def __post_init__(self) -> None:
        self._kept: Lru[str, Value] = Lru(_KEPT * max(self.read_ahead, 2**20), lambda value: value.nbytes)
        self._recent: Lru[str, bool] = Lru(_RECENT)

    async def read(self, key: str) -> Value | None:
        """Return the value of a key, ``None`` if there is none.

        Raises:
            ShardStoreError: it could not be read.
        """
        if (value := await self._known(key)) is not None:
            return value
        (value,) = await self._read_and_keep([key])
        return value

    async def open(self, key: str, preceding: Iterable[str], following: Iterable[str], nbytes: Callable[[str], int | None]) -> Value | None:
        """Return the value of a file that is opened, and read ahead if files before it, in the order of listings, were opened recently.

        ``nbytes`` returns the sizes of the values that follow, as far as they are known. Raises as ``read``.
        """
        value = await self._known(key)
        if value is None:
            ahead: list[str] = []
            if self.read_ahead and any(other in self._recent for other in islice(preceding, _DISTANCE)):
                ahead = await self._next(key, following, nbytes)
            value = (await self._read_and_keep([key, *ahead], keep=bool(ahead)))[0]
        self._recent.put(key, True)
        return value

    async def _read_and_keep(self, keys: list[str], *, keep: bool = True) -> list[Value | None]:
        """Read values as ``_read`` does, and keep those that have not been changed here since; the first one is read again if it has."""
        for _ in range(_TRIES):
            changed: set[str] = set()
            self._changed[id(changed)] = changed
            try:
                values = await self._read(keys)
            finally:
                del self._changed[id(changed)]
            shared = tuple(keys)
            for key, found in zip(keys, values, strict=True):
                if keep and found is not None and key not in changed:
                    found.shared = shared
                    self._kept.put(key, found)
            if keys[0] not in changed:
                return values
        return values

    async def _next(self, key: str, following: Iterable[str], nbytes: Callable[[str], int | None]) -> list[str]:
        """Return the keys after ``key`` that lie in its shard, and are not known yet, up to the bytes that are read ahead."""
        # Documents come last in a directory, so the first one ends an array.
        inside = takewhile(lambda other: not is_document(other), islice(following, _CANDIDATES))
        candidates = [other for other in inside if other not in self._kept]
        groups = await self.store.shard_groups([key, *candidates])
        mine = next(group for group in groups if 0 in group)
        total = nbytes(key) or 0
        chosen: list[str] = []
        for number in mine:
            if number == 0:
                continue
            size = nbytes(candidates[number - 1])
            if size is None or total + size > self.read_ahead:
                break
            total += size
            chosen.append(candidates[number - 1])
        return chosen

    async def _known(self, key: str) -> Value | None:
        """Return the value of a key if it is in memory and still the current one."""
        value = self._kept.peek(key)
        if value is None:
            return None
        if self.clock() - value.at < self.attr_seconds:
            return self._kept.get(key)
        before = {other: kept for other in value.shared if (kept := self._kept.peek(other)) is not None}
        at = self.clock()
        for (other, kept), result in zip(before.items(), await self.store.read([ValueRead(other) for other in before]), strict=True):
            if self._kept.peek(other) is not kept:
                continue  # read again since then
            if isinstance(result, VersionedValue) and result.version == kept.version:
                kept.at = at
            else:
                self._kept.pop(other)
        return self._kept.peek(key)

    async def _read(self, keys: list[str]) -> list[Value | None]:
        """Read the first key, and the rest as far as they can be read."""
        values: list[Value | None] = [None] * len(keys)
        pending = list(range(len(keys)))
        for _ in range(_TRIES):
            at = self.clock()
            again: list[int] = []
            for i, result in zip(pending, await self.store.read([ValueRead(keys[i], (EVERYTHING,)) for i in pending]), strict=True):
                match result:
                    case VersionedValue(version, _, (data,)):
                        values[i] = Value(data, version, at)
                    case VersionGone() if i == 0:
                        again.append(i)
                    case ShardStoreError() if i == 0:
                        raise result
            if not again:
                return values
            pending = again
        raise Conflict(f"{keys[0]!r} was replaced again and again while it was read; try again")

    def forget(self, key: str) -> None:
        """Read a value again when it is asked for next: it has been changed here."""
        for changed in self._changed.values():
            changed.add(key)
        self._kept.pop(key)

    def forget_all(self) -> None:
        for key in self._kept:
            self.forget(key)


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
