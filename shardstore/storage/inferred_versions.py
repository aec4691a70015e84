"""Names for versions of objects whose storage gives none: made of their metadata, of nothing but the size, or of the bytes of a range,
which every later read of that version reads again.

::

    etag='"9a0364b9"'-100           a version, or a checksum of the content, that the storage gave
    created=12.5,mtime=17.25-100    times and numbers that usually change with the content
    unversioned-5f0c…-100           nothing was given: made up for one answer, so that no two are equal
    -20:20:9f86d0…                  the last 20 bytes, such as the index of a shard, have this digest
    100:64:9f86d0…                  bytes [100, 164) have it
    ::9f86d0…                       the whole object has it: it names a version, and is not read again
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from shardstore.model.generation import Generation
from shardstore.model.ranges import ByteOffset, ByteRange, ByteRequest, BytesLike, ByteSuffix
from shardstore.storage.requests.outcomes import modified_seconds

# Of these one is enough: a version, or a checksum of the content.
_IDENTITIES = ("etag", "e_tag", "version_id", "generation", "md5", "content_md5", "checksum", "sha", "sha256", "hex", "crc", "ukey")
# Of these all count together: a clock that ticks seldom says little by itself.
_TRACES = ("mtime", "modified", "last_modified", "lastmodified", "modify", "updated", "timemodified", "date_time", "created", "ino")

_UNVERSIONED = "unversioned-"


class Unversioned(Generation):
    """A version that was made up for one answer."""

    __slots__ = ()

    @property
    def digest(self) -> int:
        return 0


def unversioned(nbytes: int) -> Generation:
    """Return a name for an object without a version that was just seen with ``nbytes`` bytes; it equals no other name."""
    return Unversioned(f"{_UNVERSIONED}{uuid.uuid4().hex}-{nbytes}")


def is_unversioned(generation: Generation) -> bool:
    return generation.token.startswith(_UNVERSIONED)


def agrees(asked: Generation, found: Generation) -> bool:
    """Return whether ``found`` may be the version ``asked``: it has the same name, or, if neither has a version, the same size."""
    if is_unversioned(asked) and is_unversioned(found):
        return asked.token.rpartition("-")[2] == found.token.rpartition("-")[2]
    return asked == found


def trace_of(info: Mapping[str, Any]) -> str | None:
    """Return what in the metadata ``info`` of an object distinguishes its versions, except for the size; ``None`` if nothing does."""
    named = {str(name).lower().replace("-", "_"): value for name, value in info.items()}
    for name in _IDENTITIES:
        if named.get(name) not in (None, "", b""):
            return f"{name}={_text(named[name])}"
    return ",".join(f"{name}={_text(named[name])}" for name in sorted(_TRACES) if named.get(name) not in (None, "")) or None


def version_from(trace: str, nbytes: int, modified: float | None = None) -> Generation:
    """Return the version of an object of ``nbytes`` with this trace."""
    return Generation(f"{trace}-{nbytes}", modified)


def version_of(info: Mapping[str, Any], nbytes: int) -> Generation | None:
    """Return the version that the metadata ``info`` of an object of ``nbytes`` shows, or ``None`` if it shows none."""
    trace = trace_of(info)
    return None if trace is None else version_from(trace, nbytes, modified_seconds(info))


def _text(value: object) -> str:
    """Return a value as text, times as seconds: a listing may show a number, and the object itself a date."""
    return repr(value.timestamp()) if isinstance(value, datetime) else repr(value)


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
