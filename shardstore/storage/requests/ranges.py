"""Range requests in HTTP, and checks of a server's answers to them (RFC 9110, section 14)."""

from __future__ import annotations

import re

from shardstore.errors import StorageError
from shardstore.model.ranges import ByteOffset, ByteRange, ByteRequest, ByteSuffix, resolve
from shardstore.storage.requests.answer_bodies import TooMuch, check_most

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_SENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(?:\d+|\*)")


def is_empty(request: ByteRequest) -> bool:
    """Return whether ``request`` asks for nothing, which HTTP cannot express."""
    match request:
        case ByteRange(start, end):
            return start == end
        case ByteSuffix(nbytes):
            return nbytes == 0
        case ByteOffset():
            return False


def range_header(request: ByteRequest) -> str | None:
    """Return the header's value of ``Range``; ``None`` for a whole object, so that an empty one is not refused."""
    match request:
        case ByteRange(start, end):
            return f"bytes={start}-{end - 1}"
        case ByteOffset(0):
            return None
        case ByteOffset(start):
            return f"bytes={start}-"
        case ByteSuffix(nbytes):
            return f"bytes=-{nbytes}"


def most_of(request: ByteRequest, content_range: str | None, content_length: int | None, most_nbytes: int | None, key: str) -> int:
    """Return the most bytes that the body of an answer with a range (206) has, if it is an answer to ``request``.

    Raises ``TooMuch`` where it announces more than was asked for, or more than ``most_nbytes`` for a request up to the end;
    then nothing of it need be read.
    """
    sent = _SENT_RANGE.fullmatch((content_range or "").strip())
    announced = int(sent[2]) + 1 - int(sent[1]) if sent else None
    most = 0
    match request:
        case ByteRange(start, end):
            most = end - start
        case ByteSuffix(nbytes):
            most = nbytes
        case ByteOffset() if announced is not None:
            most = max(0, announced)
            check_most(most, most_nbytes, f"reading {key!r}")
        case ByteOffset() if content_length != 0:
            raise TooMuch(f"reading {key!r}: the server answered 206, Content-Range {content_range!r}, to {range_header(request)!r}")
    for length, name in ((announced, f"Content-Range {content_range!r}"), (content_length, f"Content-Length {content_length}")):
        if length is not None and length > most:
            raise TooMuch(f"reading {key!r}: the server announces more than it was asked for: {name} to {range_header(request)!r}")
    return most


def checked_part(request: ByteRequest, status: int, content_range: str | None, data: bytes, key: str) -> tuple[memoryview, int]:
    """Return the bytes of ``request`` and the size of the object, from an answer to it.

    Raises ``StorageError`` where the answer is for another range, or shorter than it says.
    """
    if status == 200:  # the whole object: asked for, or the server does not know ranges
        wanted = resolve(request, len(data))
        view = memoryview(data)
        if wanted.end - wanted.start < len(data):
            view = memoryview(bytes(view[wanted.start : wanted.end]))  # lets go of the rest
        return view, len(data)
    matched = _CONTENT_RANGE.fullmatch((content_range or "").strip())
    if status != 206 or matched is None:
        raise StorageError(f"reading {key!r}: the server answered {status}, Content-Range {content_range!r}, to {range_header(request)!r}")
    start, last, nbytes = (int(group) for group in matched.groups())
    if start > last or resolve(request, nbytes) != ByteRange(start, last + 1):
        raise StorageError(f"reading {key!r}: the server answered with {content_range!r} to {range_header(request)!r}")
    if len(data) != last + 1 - start:
        raise StorageError(f"reading {key!r}: the server announced {content_range!r} but sent {len(data)} bytes")
    return memoryview(data), nbytes
