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
tail that no reader reads; the next writer cuts it off. The attribute alone means nothing: the contents may have been replaced since.
The bytes behind the old ones have to be the record, or its beginning if there are fewer; or zeros in place of some of it, for a loss of
power can leave what was written behind it, and not the record.

The record stays. A reader may find after its read that the file has changed. The record then proves that there was only an append: the
bytes read are those of the version that the reader began with.

New bytes are written from front to back. So other programs that copy or read the file during that see the beginning of the new one. It ends
somewhere in the middle of a chunk: no index is found there.
"""

from __future__ import annotations

import os
import struct
import sys
from dataclasses import dataclass

import google_crc32c

from shardstore.model.ranges import APPEND_PADDING_NBYTES

_MAGIC = bytes.fromhex("b7d05c3ee29f4a7c9d1184a6f32c08eb")
_RECORD = struct.Struct("<16sQQqq12x")
RECORD_NBYTES = _RECORD.size + 4
assert RECORD_NBYTES == APPEND_PADDING_NBYTES

APPEND_ATTRIBUTE = "user.shardstore.append"

_NOTHING_UNDER_WAY = bytes(RECORD_NBYTES)

HAS_ATTRIBUTES = sys.platform == "linux"


def _checksum(data: bytes) -> bytes:
    value: int = google_crc32c.value(data)
    return value.to_bytes(4, "little")


def encode_record(old: os.stat_result) -> bytes:
    """Return the record to put behind the bytes of a file whose status was ``old``."""
    head = _RECORD.pack(_MAGIC, old.st_size, old.st_size, old.st_mtime_ns, old.st_ctime_ns)
    return head + _checksum(head)


@dataclass(frozen=True, slots=True)
class AppendRecord:
    """The version of the file that the append began with."""

    nbytes: int
    mtime_ns: int
    ctime_ns: int


def decode_record(data: bytes, position: int | None = None) -> AppendRecord | None:
    """Decode a record that was read at ``position``, or anywhere; return ``None`` if it is no record, or one of another place."""
    if len(data) != RECORD_NBYTES or not data.startswith(_MAGIC):
        return None
    head = data[: _RECORD.size]
    _, where, nbytes, mtime, ctime = _RECORD.unpack(head)
    if where != nbytes or (position is not None and where != position) or data[_RECORD.size :] != _checksum(head):
        return None
    return AppendRecord(nbytes, mtime, ctime)


def may_be_record(found: bytes, record: bytes) -> bool:
    """Return whether the bytes that follow on a file's old ones are ``record``, as far as they go and as far as they were kept."""
    return bool(found) and all(byte in (0, wanted) for byte, wanted in zip(found, record, strict=False))


def set_under_way(fd: int, record: bytes) -> None:
    """Mark the append as under way. Raises ``OSError`` if the file system has no such attributes."""
    if sys.platform == "linux":
        os.setxattr(fd, APPEND_ATTRIBUTE, record)


def set_done(fd: int) -> None:
    """Mark the append as complete."""
    if sys.platform == "linux":
        os.setxattr(fd, APPEND_ATTRIBUTE, _NOTHING_UNDER_WAY)


def cut_tail(fd: int, nbytes: int, *, fsync: bool) -> None:
    """Cut off what the attribute hides; durably, before the attribute says something else: after a loss of power it would not hide it."""
    os.ftruncate(fd, nbytes)
    if fsync:
        os.fsync(fd)
