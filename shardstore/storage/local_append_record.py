"""What tells that bytes are being put behind those of a file: until one last write of 64 bytes, it says itself that it still is what
it was.

::

    before:     | old bytes                                             |
    meanwhile:  | old bytes | record | new bytes, as far as they are there ...        | record | .. |
    then:       | old bytes | record | new bytes                                                   |
                            ^ where the old bytes end        the last multiple of 64 that leaves 64 bytes

    record, 64 bytes, little-endian:
        magic: 16 bytes | position: uint64, of the record itself | old_nbytes: uint64 | old mtime: int64 | old ctime: int64, nanoseconds
        | 12 zero bytes | crc32c of what precedes: uint32

The record at the end names the version that the file was, so every reader of this package goes on seeing that version, under its
own generation. It is written first, which gives the file its new length in one step, and overwritten last: 64 bytes at a multiple of
64 lie in one page and one sector, so a process that dies leaves all of them or none, and so does a loss of power. What dies before
that is a tail that nobody reads; the next writer cuts it off.

The record behind the old bytes stays. It proves to a reader who finds the file changed when it has read that nothing but an append
came in between: the bytes it has read are those of the version that it began with.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from dataclasses import dataclass

import google_crc32c

from shardstore.model.generation import Generation
from shardstore.storage.base import APPEND_ROOM_NBYTES
from shardstore.storage.local_files import FileGeneration, generation_of, pread

_MAGIC = bytes.fromhex("b7d05c3ee29f4a7c9d1184a6f32c08eb")
_RECORD = struct.Struct("<16sQQqq12x")
RECORD_NBYTES = _RECORD.size + 4
assert RECORD_NBYTES == APPEND_ROOM_NBYTES
_ALIGNED = 64


@dataclass(frozen=True, slots=True)
class FileVersion:
    """The version that an open file shows: its first ``nbytes`` bytes."""

    nbytes: int
    generation: Generation


def _checksum(data: bytes) -> bytes:
    value: int = google_crc32c.value(data)
    return value.to_bytes(4, "little")


def encode_record(position: int, old: os.stat_result) -> bytes:
    """The record at byte ``position`` of a file whose status was ``old``."""
    head = _RECORD.pack(_MAGIC, position, old.st_size, old.st_mtime_ns, old.st_ctime_ns)
    return head + _checksum(head)


def _decode(data: bytes, position: int, status: os.stat_result) -> FileVersion | None:
    """The version before, of a record that was read at ``position``; ``None``: that is no record, or of another place."""
    if len(data) != RECORD_NBYTES or not data.startswith(_MAGIC):
        return None
    head = data[: _RECORD.size]
    _, where, nbytes, mtime, ctime = _RECORD.unpack(head)
    if where != position or nbytes > position or data[_RECORD.size :] != _checksum(head):
        return None
    return FileVersion(nbytes, FileGeneration((status.st_dev, status.st_ino, nbytes, mtime, ctime)))


def last_record(nbytes: int) -> int:
    """Where the record at the end of a file of ``nbytes`` lies."""
    return (nbytes - RECORD_NBYTES) // _ALIGNED * _ALIGNED


def version_before(fd: int, status: os.stat_result) -> FileVersion | None:
    """The version that an append has not yet replaced, or never will; ``None``: no append is under way, or was left."""
    position = last_record(status.st_size)
    return _decode(pread(fd, RECORD_NBYTES, position), position, status) if position >= 0 else None


def version_of(fd: int, status: os.stat_result) -> FileVersion:
    """The version that an open file shows."""
    return version_before(fd, status) or FileVersion(status.st_size, generation_of(status))


def generation_at(path: str, flags: int, status: os.stat_result) -> Generation:
    """The generation of the object at ``path``, whose status was looked up before; of the file that is there now."""
    with suppress(OSError):
        fd = os.open(path, flags)
        try:
            return version_of(fd, os.fstat(fd)).generation
        finally:
            os.close(fd)
    return generation_of(status)


def was_appended_to(fd: int, version: FileVersion, after: os.stat_result) -> bool:
    """Whether ``version``, of an open file whose status is ``after`` by now, has been appended to, or is just now, and nothing else."""
    record = pread(fd, RECORD_NBYTES, version.nbytes)
    earlier = _decode(record, version.nbytes, after) or version_before(fd, after)
    return earlier == version
