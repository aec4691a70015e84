"""Calls to any fsspec filesystem from coroutines: its own ones, or synchronous ones in threads; and the meaning of its exceptions."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import IO, Any, TypeVar
from weakref import WeakKeyDictionary

from fsspec.asyn import AsyncFileSystem
from fsspec.caching import BaseCache
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from shardstore.errors import AccessDenied, NoSpace, ReadOnly, ShardStoreError, StorageError, Unsupported
from shardstore.model.ranges import EVERYTHING, ByteRange, ByteRequest, resolve
from shardstore.model.redaction import redacted
from shardstore.storage.base import in_its_place
from shardstore.storage.generic.links import CACHES, REFERENCES, SERIAL, UNCHANGING, is_any, is_one
from shardstore.storage.requests.outcomes import Bound
from shardstore.storage.requests.ranged_reads import check_most
from shardstore.storage.room import FULL_ERRNOS
from shardstore.tasks import SharedThreads

ABSENT_ERRORS = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
"""Exceptions that filesystems raise at the path of an object that does not exist."""

_READ_ONLY_WORDS = ("read-only", "read only", "readonly", "not both", "not writable")


def read_only(action: str, key: str, url: str) -> ReadOnly:
    return ReadOnly(
        f"{action} {key!r}: {url} is for reading only. Write to the storage itself, or to another place and make the archive, the "
        "references or the cache from that"
    )


def contradicts(action: str, key: str, url: str) -> ReadOnly:
    """Return the error of a write to a place in which nothing changes, as the user said."""
    return ReadOnly(f"{action} {key!r}: {url} was opened with static=True, which says that nothing changes there: open it without")


def translated(exc: Exception, action: str, key: str, url: str, *, writes: bool = False) -> ShardStoreError:
    """Return the error to raise, from ``exc``, if ``action`` on the object or prefix ``key`` of ``url`` failed."""
    if isinstance(exc, ShardStoreError):
        return exc
    what = f"{action} {key!r} in {url}" if key else f"{action} {url}"
    text = redacted(str(exc))
    reason = f"{type(exc).__name__}: {text}" if text else type(exc).__name__
    if (cause := exc.__cause__) is not None:  # of a reference whose target cannot be reached the filesystem itself says no more
        reason += f", because of {type(cause).__name__}: {redacted(str(cause))}"
    if writes and (getattr(exc, "errno", None) == errno.EROFS or any(words in text.lower() for words in _READ_ONLY_WORDS)):
        return read_only(action, key, url)
    if isinstance(exc, PermissionError):
        return AccessDenied(f"{what}: access was denied ({reason})")
    if isinstance(exc, NotImplementedError):
        return Unsupported(f"{what}: this kind of filesystem cannot do that ({reason})")
    if isinstance(exc, IsADirectoryError | NotADirectoryError | FileExistsError):
        return StorageError(f"{what}: a directory has this name, or a part of the path above it is a file ({reason})")
    return (NoSpace if getattr(exc, "errno", None) in FULL_ERRNOS else StorageError)(f"{what} failed: {reason}")


Info = Mapping[str, Any]
T = TypeVar("T")

_STRIPES = 32
_MOST_THREADS = 32  # of all storages together; they start when they are needed

# One lock a filesystem, or several by path; shared by all storages on it.
_locks: WeakKeyDictionary[AbstractFileSystem, tuple[threading.Lock, ...]] = WeakKeyDictionary()
_locks_lock = threading.Lock()


# Not the loop's own threads: a synchronous call may wait for a coroutine on the loop, which in turn waits for one of those.
_threads = SharedThreads("shardstore-generic", _MOST_THREADS)


def _renew_after_fork() -> None:
    global _locks, _locks_lock
    _locks, _locks_lock = WeakKeyDictionary(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_after_fork)


@dataclass(frozen=True, slots=True)
class Look:
    """The looks at an object that belong to a read of it.

    ``nbytes`` is its size, if known. ``first`` asks for a look before the read, ``afterwards`` for one after it. Objects of more than
    ``most_nbytes`` are not read.
    """

    nbytes: int | None
    first: bool
    afterwards: bool
    most_nbytes: int | None = None

    def check(self, nbytes: int | None, path: str) -> None:
        """Raise ``TooMuch`` if the object has more than the allowed bytes."""
        if nbytes is not None:
            check_most(nbytes, self.most_nbytes, f"reading {path!r}")


@dataclass(frozen=True, slots=True)
class Content:
    """Ranges of an object: its ``info`` before and after, if it was asked for, the size, and the bytes; some may be missing."""

    before: Info | None
    after: Info | None
    nbytes: int
    buffers: tuple[bytes, ...]


def calls_of(fs: AbstractFileSystem, concurrency: int) -> _OnLoop | _InThreads:
    """Return the calls for a filesystem. Its exceptions are not translated; ``FileNotFoundError`` and its like say that there is no object.

    Reference filesystems are asynchronous, but load what they refer to by synchronous calls: so they go to threads as well.
    """
    if isinstance(fs, AsyncFileSystem) and not is_one(fs, REFERENCES):
        return _OnLoop(fs, concurrency)
    return _InThreads(fs, concurrency)


def _no_directory(info: Info, path: str) -> Info:
    if info.get("type") == "directory":
        raise IsADirectoryError(path)
    if info.get("type") == "other" and not info.get("islink"):  # to open a named pipe could wait for ever
        raise in_its_place(path, "a named pipe, a socket or a device")
    return info


def size_in(info: Info) -> int | None:
    """Return the size of an object, if ``info`` gives it."""
    nbytes = info.get("size")
    return int(nbytes) if isinstance(nbytes, int) and nbytes >= 0 else None


def _cut(data: bytes, ranges: Sequence[ByteRequest]) -> tuple[bytes, ...]:
    whole = [resolve(request, len(data)) for request in ranges]
    return tuple(data if r == ByteRange(0, len(data)) else data[r.start : r.end] for r in whole)


class _OnLoop:
    """Calls of an asynchronous filesystem on the running loop."""

    def __init__(self, fs: Any, concurrency: int) -> None:
        self._fs = fs
        self._bound = Bound(concurrency)

    async def call(self, path: str, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Call a method of the filesystem by its synchronous name; ``path`` is what it is about."""
        self._fs.invalidate_cache(path)
        async with self._bound.slot():
            return await getattr(self._fs, f"_{method}")(*arguments, **keywords)

    async def _info(self, path: str) -> Info:
        self._fs.invalidate_cache(path)  # listings are remembered, and answer for objects in them
        return _no_directory(await self._fs._info(path), path)

    async def info(self, path: str) -> Info:
        """Return the current metadata of the object. Raises ``IsADirectoryError``, or ``StorageError`` for a named pipe and the like."""
        async with self._bound.slot():
            return await self._info(path)

    async def read(self, path: str, ranges: Sequence[ByteRequest], look: Look) -> Content:
        """Read ranges of one object, between looks at it."""
        async with self._bound.slot():
            before = await self._info(path) if look.first else None
            nbytes = look.nbytes if before is None else size_in(before)
            look.check(nbytes, path)
            if look.afterwards and not look.first:
                self._fs.invalidate_cache(path)  # what is remembered may be of an older version than was last looked at
            if nbytes is None or tuple(ranges) == (EVERYTHING,):
                data = await self._fs._cat_file(path)
                buffers, nbytes = _cut(data, ranges), len(data) if nbytes is None else nbytes
            else:
                wanted = [resolve(request, nbytes) for request in ranges]
                if before is not None and all(r.start == r.end for r in wanted):
                    return Content(before, before, nbytes, (b"",) * len(wanted))
                buffers = await self._cat(path, wanted)
            return Content(before, await self._info(path) if look.afterwards else None, nbytes, buffers)

    async def _cat(self, path: str, ranges: Sequence[ByteRange]) -> tuple[bytes, ...]:
        wanted = [r for r in ranges if r.start < r.end]
        starts, ends = [r.start for r in wanted], [r.end for r in wanted]
        found = iter(await self._fs._cat_ranges([path] * len(wanted), starts, ends, on_error="raise") if wanted else ())
        return tuple(bytes(next(found)) if r.start < r.end else b"" for r in ranges)


class _InThreads:
    """Calls of a synchronous filesystem in threads: one thread for calls that belong together."""

    def __init__(self, fs: Any, concurrency: int) -> None:
        self._fs = fs
        self._bound = Bound(concurrency)
        self._is_cache = is_one(fs, CACHES)
        self._is_serial = is_any(fs, SERIAL)
        self._keeps_listings = not is_one(fs, UNCHANGING)
        # A filesystem's own cat_file may be made for it; the inherited one opens the file for every range.
        self._has_cat = type(fs).cat_file is not AbstractFileSystem.cat_file and not self._is_cache

    def _lock(self, path: str) -> AbstractContextManager[object]:
        """Return the lock for filesystems that cannot take two calls at once. A simple cache cannot for one path: an object that it is
        storing looks stored.
        """
        if not self._is_serial and not self._is_cache:
            return nullcontext()
        with _locks_lock:
            locks = _locks.get(self._fs)
            if locks is None:
                locks = _locks[self._fs] = tuple(threading.Lock() for _ in range(1 if self._is_serial else _STRIPES))
        return locks[hash(path) % len(locks)]

    async def call(self, path: str, method: str, *arguments: Any, **keywords: Any) -> Any:
        def locked() -> Any:
            with self._lock(path):
                self._forget(path)
                return getattr(self._fs, method)(*arguments, **keywords)

        async with self._bound.slot():
            return await _threads.call(locked)

    async def info(self, path: str) -> Info:
        def locked() -> Info:
            with self._lock(path):
                return self._info(path)

        async with self._bound.slot():
            return await _threads.call(locked)

    async def read(self, path: str, ranges: Sequence[ByteRequest], look: Look) -> Content:
        def locked() -> Content:
            with self._lock(path):
                return self._read_cached(path, ranges) if self._is_cache else self._read(path, ranges, look)

        async with self._bound.slot():
            return await _threads.call(locked)

    # -- in a thread ---------------------------------------------------------------------------------------------------

    def _forget(self, path: str) -> None:
        if self._keeps_listings:
            self._fs.invalidate_cache(path)

    def _info(self, path: str) -> Info:
        self._forget(path)
        info = _no_directory(self._fs.info(path), path)
        # References that hold the value itself tell its length in characters, before base64 is undone.
        if is_one(self._fs, REFERENCES) and not isinstance(self._fs.references.get(path), list | tuple):
            return {**info, "size": None}
        return info

    def _read(self, path: str, ranges: Sequence[ByteRequest], look: Look) -> Content:
        before = self._info(path) if look.first else None
        nbytes = look.nbytes if before is None else size_in(before)
        look.check(nbytes, path)
        if look.afterwards and not look.first:
            self._forget(path)  # what is remembered may be of an older version than was last looked at
        if nbytes is None:
            data = self._fs.cat_file(path)
            return Content(before, self._info(path) if look.afterwards else None, len(data), _cut(data, ranges))
        wanted = [resolve(request, nbytes) for request in ranges]
        if before is not None and all(r.start == r.end for r in wanted):
            return Content(before, before, nbytes, (b"",) * len(wanted))
        buffers = self._ranges(path, wanted)
        return Content(before, self._info(path) if look.afterwards else None, nbytes, buffers)

    def _ranges(self, path: str, wanted: Sequence[ByteRange]) -> tuple[bytes, ...]:
        if self._has_cat or all(r.start == r.end for r in wanted):
            return tuple(bytes(self._fs.cat_file(path, r.start, r.end)) if r.start < r.end else b"" for r in wanted)
        with self._fs.open(path, "rb") as file:
            if isinstance(file, AbstractBufferedFile):  # it would fetch megabytes ahead of an index
                file.cache = BaseCache(0, file.cache.fetcher, file.size)
            return _read_ranges(file, wanted)

    def _read_cached(self, path: str, ranges: Sequence[ByteRequest]) -> Content:
        """Read from the copy that the cache has: its size, and its bytes, may differ from those of the object by now."""
        try:
            file = self._fs.open(path, "rb")
        except FileNotFoundError:
            self._info(path)  # what is not allowed, or out of reach, is absent to a cache: this raises the reason
            raise
        with file:
            nbytes = file.size if isinstance(file, AbstractBufferedFile) else file.seek(0, os.SEEK_END)
            buffers = _read_ranges(file, [resolve(request, nbytes) for request in ranges])
            copy = _identity(file)
            return Content(copy, copy, nbytes, buffers)


def _identity(file: Any) -> Info:
    """Return which local copy ``file`` is, for caches of whole files; nothing for other filesystems."""
    try:
        status = os.fstat(file.fileno())
    except OSError:
        return {}
    return {"ino": status.st_ino, "mtime": status.st_mtime_ns, "size": status.st_size}


def _read_ranges(file: IO[bytes], ranges: Sequence[ByteRange]) -> tuple[bytes, ...]:
    """Read ranges in the order of the file: within archives, going back means starting again at the beginning."""
    buffers = [b""] * len(ranges)
    for i in sorted(range(len(ranges)), key=lambda i: ranges[i].start):
        start, end = ranges[i].start, ranges[i].end
        if start < end:
            file.seek(start)
            buffers[i] = _read_exactly(file, end - start)
    return tuple(buffers)


def _read_exactly(file: IO[bytes], nbytes: int) -> bytes:
    """Read so many bytes, or fewer if the file ends before."""
    data = bytes(file.read(nbytes))
    if len(data) == nbytes or not data:
        return data
    pieces = [data]
    missing = nbytes - len(data)
    while missing and (data := file.read(missing)):
        pieces.append(bytes(data))
        missing -= len(data)
    return b"".join(pieces)
