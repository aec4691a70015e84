"""Versions of objects in stores that have none: identified by the bytes of a range, which every later read of that version
reads again.

::

    -20:20:9f86d0…    the last 20 bytes, such as the index of a shard, have this digest
    100:64:9f86d0…    bytes [100, 164) have it
    ::9f86d0…         the whole object has it: it names a version, and is not read again
"""

from __future__ import annotations

import hashlib
import re

from shardstore.model.generation import Generation
from shardstore.model.ranges import ByteOffset, ByteRange, ByteRequest, BytesLike, ByteSuffix

_MOST_WITNESS_BYTES = 4 * 2**20
_WITNESS = re.compile(r"(-?[0-9]+):([0-9]*):[0-9a-f]{32}", re.ASCII)


class Witnessed(Generation):
    """A version that is identified by bytes. Listings of such stores show none, so it has no digest to compare with theirs."""

    __slots__ = ()

    @property
    def digest(self) -> int:
        return 0


def start_and_length(request: ByteRequest) -> tuple[int, int | None]:
    """Return a range as a start, negative if it counts from the end, and a length, ``None`` if it goes to the end."""
    match request:
        case ByteRange(start, end):
            return start, end - start
        case ByteOffset(start):
            return start, None
        case ByteSuffix(nbytes):
            return -nbytes, None


def witnessed(request: ByteRequest, data: BytesLike) -> Generation:
    """Return the version in which ``request`` gives ``data``; without a witness if these bytes are none, or too many to be read again."""
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    if isinstance(request, ByteRange | ByteSuffix) and 0 < len(data) <= _MOST_WITNESS_BYTES:
        start, length = start_and_length(request)
        return Witnessed(f"{start}:{'' if length is None else length}:{digest}")
    return Witnessed(f"::{digest}")


def witness_of(generation: Generation) -> ByteRequest | None:
    """Return the range whose bytes tell a version; ``None`` if there is none to be read again."""
    match = _WITNESS.fullmatch(generation.token)
    if match is None:
        return None
    start, length = match.groups()
    return ByteRange(int(start), int(start) + int(length)) if length else ByteSuffix(-int(start))
