"""The record that shows that bytes are being appended to a file, or were.

::

    | old bytes | record | new bytes, written from front to back |
                ^ where the old bytes end

    record, 64 bytes, little-endian:
        magic: 16 bytes | position: uint64, of the record itself | old_nbytes: uint64 | old mtime: int64 | old ctime: int64, nanoseconds
        | 12 zero bytes | crc32c of what precedes: uint32

The record names the old version of the file. As long as the append is under way, an extended attribute of the file holds the record
too: so every reader of this package goes on seeing that version, under its own generation. When all is written, zeros replace the
record in the attribute, in one step; zeros, since removing an attribute takes twenty times as long. A writer that dies before leaves a
tail that nobody reads; the next writer cuts it off. The attribute alone means nothing: somebody may have replaced the contents since.
The bytes behind the old ones have to be the record, or its beginning if there are fewer.

The record stays. A reader may find after its read that the file has changed. The record then proves that there was only an append: the
bytes read are those of the version that the reader began with.

New bytes are written from front to back. So others who copy or read the file meanwhile see the beginning of the new one. It ends
somewhere in the middle of a chunk: no index is found there.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass

import google_crc32c

from shardstore.model.generation import Generation
from shardstore.model.ranges import APPEND_PADDING_NBYTES
from shardstore.storage.local.files import pread
from shardstore.storage.local.versions import generation_of, generation_of_numbers

_MAGIC = bytes.fromhex("b7d05c3ee29f4a7c9d1184a6f32c08eb")
_RECORD = struct.Struct("<16sQQqq12x")
RECORD_NBYTES = _RECORD.size + 4
assert RECORD_NBYTES == APPEND_PADDING_NBYTES

_ATTRIBUTE = "user.shardstore.append"
_NO_ATTRIBUTE = (errno.ENODATA, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM)

_NOTHING_UNDER_WAY = bytes(RECORD_NBYTES)

HAS_ATTRIBUTES = sys.platform == "linux"


@dataclass(frozen=True, slots=True)
class FileVersion:
    """The version that an open file shows: its first ``nbytes`` bytes."""

    nbytes: int
    generation: Generation


def _checksum(data: bytes) -> bytes:
    value: int = google_crc32c.value(data)
    return value.to_bytes(4, "little")


def encode_record(old: os.stat_result) -> bytes:
    """Return the record to put behind the bytes of a file whose status was ``old``."""
    head = _RECORD.pack(_MAGIC, old.st_size, old.st_size, old.st_mtime_ns, old.st_ctime_ns)
    return head + _checksum(head)


def _decode(fd: int, data: bytes, status: os.stat_result, position: int | None = None) -> FileVersion | None:
    """Return the old version that a record names, read at ``position`` or anywhere; ``None`` where it is no record, or one of another
    place.
    """
    if len(data) != RECORD_NBYTES or not data.startswith(_MAGIC):
        return None
    head = data[: _RECORD.size]
    _, where, nbytes, mtime, ctime = _RECORD.unpack(head)
    if where != nbytes or (position is not None and where != position) or data[_RECORD.size :] != _checksum(head):
        return None
    return FileVersion(nbytes, generation_of_numbers((status.st_dev, status.st_ino, nbytes, mtime, ctime), fd))


def set_under_way(fd: int, record: bytes) -> None:
    """Mark the append as under way. Raises ``OSError`` where the file system has no such attributes."""
    if sys.platform == "linux":
        os.setxattr(fd, _ATTRIBUTE, record)


def set_done(fd: int) -> None:
    """Mark the append as complete."""
    if sys.platform == "linux":
        os.setxattr(fd, _ATTRIBUTE, _NOTHING_UNDER_WAY)


def _attribute(fd: int) -> bytes | None:
    if sys.platform == "linux":
        try:
            return os.getxattr(fd, _ATTRIBUTE)
        except OSError as exc:
            if exc.errno not in _NO_ATTRIBUTE:
                raise
    return None


def version_before(fd: int, status: os.stat_result) -> FileVersion | None:
    """Return the old version, where an append is under way or was left unfinished; ``None`` where neither is so."""
    attribute = _attribute(fd)
    before = None if attribute is None else _decode(fd, attribute, status)
    if attribute is None or before is None or status.st_size < before.nbytes:
        return None
    if status.st_size == before.nbytes:  # nothing is written yet: then the attribute is all that has changed
        return before if status.st_mtime_ns == _mtime(attribute) else None
    there = pread(fd, min(RECORD_NBYTES, status.st_size - before.nbytes), before.nbytes)
    return before if there and attribute.startswith(there) else None


def _mtime(record: bytes) -> int:
    mtime: int = _RECORD.unpack(record[: _RECORD.size])[3]
    return mtime


def version_of(fd: int, status: os.stat_result) -> FileVersion:
    """Return the version that an open file shows."""
    return version_before(fd, status) or FileVersion(status.st_size, generation_of(status, fd))


def generation_at(path: str, flags: int, status: os.stat_result) -> Generation:
    """Return the generation of the object at ``path``, whose status was looked up before; it is that of the file that is there now."""
    with suppress(OSError):
        fd = os.open(path, flags)
        try:
            return version_of(fd, os.fstat(fd)).generation
        finally:
            os.close(fd)
    return generation_of(status, path)


def was_appended_to(fd: int, version: FileVersion, after: os.stat_result) -> bool:
    """Return whether ``version`` of an open file, whose status is now ``after``, was only appended to since, or is being appended to."""
    record = pread(fd, RECORD_NBYTES, version.nbytes)
    return (_decode(fd, record, after, version.nbytes) or version_before(fd, after)) == version
