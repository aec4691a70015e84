"""Read one local file in the calling thread: the work that ``LocalStorage`` runs in its pools.

A reader opens a file once, so all bytes come from one inode.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from shardstore.errors import StorageError
from shardstore.model.ranges import ByteRange, resolve
from shardstore.storage.base import ABSENT, CHANGED, DIRECTORY, Failed, Found, Read, ReadOutcome
from shardstore.storage.local.files import READ_FLAGS, is_object, missing, pread, stat_file, translated
from shardstore.storage.local.versions import still_shows, version_of, wait_to_settle
from shardstore.storage.local.walk import Inside, outside
from shardstore.storage.requests.ranged_reads import too_long

READS_CACHED = hasattr(os, "preadv") and hasattr(os, "RWF_NOWAIT")  # Linux

Pread = Callable[[int, int, int], bytes | memoryview]
"""Reads from a descriptor so many bytes at an offset, or fewer if the file ends before."""

_READ_ATTEMPTS = 3


def _read_once(path: str, read: Read, look: Pread, inside: Inside | None) -> ReadOutcome:
    fd = os.open(path, READ_FLAGS)
    try:
        status = os.fstat(fd)
        if inside is not None:
            inside.check_open(fd, path, read.key)
        if not is_object(path, status, read.key):
            return DIRECTORY
        version = version_of(fd, status)
        if read.generation is not None and read.generation != version.generation:
            return CHANGED
        if read.most_nbytes is not None and version.nbytes > read.most_nbytes:
            return Failed(too_long(version.nbytes, read.most_nbytes, f"reading {read.key!r}"))
        buffers = []
        for request in read.ranges:
            wanted = request if isinstance(request, ByteRange) and request.end <= version.nbytes else resolve(request, version.nbytes)
            nbytes = wanted.end - wanted.start
            try:
                data = look(fd, nbytes, wanted.start) if nbytes else b""
            except MemoryError as exc:  # a sparse file has any size
                raise StorageError(
                    f"reading {read.key!r}: bytes [{wanted.start}, {wanted.end}) of it do not fit into memory. Read a smaller "
                    "part. If the index is damaged, shardstore verify reports it"
                ) from exc
            if len(data) != nbytes:
                return CHANGED
            buffers.append(memoryview(data).toreadonly())
        if not still_shows(fd, version, status):
            return CHANGED
        return Found(version.generation, version.nbytes, tuple(buffers))
    finally:
        os.close(fd)


def read_cached(path: str, read: Read, inside: Inside | None = None) -> Found | None:
    """Read as ``read_file`` does, from the page cache; return ``None`` if that would have to wait for the disk, or to try again."""
    try:
        outcome = _read_once(path, read, _cached_pread, inside)
    except (OSError, StorageError):  # not in memory, or an error that the other way words
        return None
    return outcome if isinstance(outcome, Found) else None


def fetch_soon(path: str, read: Read) -> None:
    """Let the system fetch what ``read`` is going to ask for, without waiting."""
    with suppress(OSError):  # a read will tell
        fd = os.open(path, READ_FLAGS)
        try:
            for wanted in read.ranges:
                if isinstance(wanted, ByteRange):
                    os.posix_fadvise(fd, wanted.start, wanted.end - wanted.start, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(fd)


def _cached_pread(fd: int, nbytes: int, offset: int) -> memoryview:
    """Read exactly ``nbytes`` from the page cache. Raises ``BlockingIOError`` if they are not there."""
    data = np.empty(nbytes, np.uint8).data  # a bytearray is filled with zeros first
    if os.preadv(fd, [data], offset, os.RWF_NOWAIT) != nbytes:
        raise BlockingIOError(f"{nbytes} bytes at {offset} are not all in memory")
    return data


def read_file(path: str, read: Read, inside: Inside | None = None) -> ReadOutcome:
    """Read all ranges of ``read`` from one open file, whose path is ``path``. Access to what does not lie ``inside`` is denied."""
    try:
        return _read_settled(path, read, inside)
    except (FileNotFoundError, NotADirectoryError):
        if inside is not None and not inside.has(path):
            return Failed(outside(read.key))
        behind_link = missing(path, f"reading {read.key!r}")
        return ABSENT if behind_link is None else Failed(behind_link)
    except IsADirectoryError:
        return DIRECTORY
    except StorageError as exc:
        return Failed(exc)
    except OSError as exc:
        return _failure(exc, path, read.key)


def _read_settled(path: str, read: Read, inside: Inside | None) -> ReadOutcome:
    """Read again while another writer replaces the file, unless one version is asked for."""
    for _ in range(_READ_ATTEMPTS):
        try:
            outcome = _read_once(path, read, pread, inside)
        except OSError as exc:
            if exc.errno != errno.ESTALE:
                raise
            outcome = CHANGED  # another machine replaced it, on a network file system: the open file is gone
        if outcome is not CHANGED or read.generation is not None:
            break
    if outcome is CHANGED and read.generation is not None:
        wait_to_settle(read.generation, stat_file(path))
    return outcome


def _failure(exc: OSError, path: str, key: str) -> ReadOutcome:
    if exc.errno == errno.ENAMETOOLONG:  # no object can have this name
        return ABSENT
    if exc.errno == errno.ENXIO:
        try:
            stat_file(path, key)
        except StorageError as special:  # a socket
            return Failed(special)
    error = translated(exc, key, "reading")
    error.__cause__ = exc
    return Failed(error)
