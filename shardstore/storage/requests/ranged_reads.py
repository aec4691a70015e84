"""Read byte ranges of one version of an object, where each request fetches one range and its answer shows the version.

``RangedReads`` serves the reads of a storage; a kind of storage derives from it. The rest checks a server's answers (RFC 9110,
section 14), so that no more is read of what a server sends than was asked for. An answer says beforehand which bytes it holds
(``Content-Range``) and how long it is (``Content-Length``). Where that differs from the request, nothing of the body is read. Where it
does not say so, the body is read up to the first byte too many. A server that does not know ranges answers with the whole object: only
the wanted part is kept, and if its length is not announced, no more than ``UNASKED_NBYTES`` are read beyond that part.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from shardstore.errors import ShardStoreError, StorageError
from shardstore.model.generation import Generation
from shardstore.model.ranges import ByteOffset, ByteRange, ByteRequest, ByteSuffix, resolve
from shardstore.storage.abilities import ReadsOneByOne
from shardstore.storage.base import ABSENT, CHANGED, Absent, Changed, Failed, Found, ObjectInfo, Read, ReadOutcome, ServerTimes
from shardstore.storage.requests.outcomes import RequestFailed

REFUSAL_NBYTES = 1 << 20
"""The most bytes that are read of the text of a refusal, if it is read at all."""

UNASKED_NBYTES = 256 << 20
"""The most bytes that are read beyond what was asked for, to learn the length of an object from a server that ignores ranges and does not
announce lengths. Seconds on a fast network; such servers have small objects.
"""


class TooMuch(StorageError):
    """An answer announces, or holds, more than was asked for, or something else."""


def too_long(nbytes: int, most_nbytes: int, what: str) -> TooMuch:
    """Return the error for an object that is to be read whole, and is longer than allowed. ``what`` begins the message."""
    return TooMuch(f"{what}: it has {nbytes} bytes, and what belongs there has at most {most_nbytes}: it was not read")


def check_most(nbytes: int, most_nbytes: int | None, what: str) -> None:
    """Raise ``TooMuch`` if the object is longer than allowed."""
    if most_nbytes is not None and nbytes > most_nbytes:
        raise too_long(nbytes, most_nbytes, what)


async def at_most(blocks: AsyncIterator[bytes], nbytes: int) -> bytes:
    """Return the first ``nbytes`` of a body."""
    body = bytearray()
    async for block in blocks:
        body += block
        if len(body) >= nbytes:
            break
    return bytes(body[:nbytes])


async def exactly(blocks: AsyncIterator[bytes], nbytes: int, what: str) -> bytes:
    """Return a body of ``nbytes``, or the part that came if it ends before. Raises ``TooMuch`` at the first byte behind it."""
    body = bytearray()
    async for block in blocks:
        body += block
        if len(body) > nbytes:
            raise TooMuch(f"{what}: the server sends more than the {nbytes} bytes that were requested: it cannot be trusted")
    return bytes(body)


async def cut(blocks: AsyncIterator[bytes], wanted: Sequence[ByteRequest], nbytes: int, what: str) -> tuple[memoryview, ...]:
    """Return the wanted ranges of a body of ``nbytes``, without ever holding the rest of it; bytes after them are not waited for.

    Raises ``StorageError`` if the body ends before.
    """
    ranges = [resolve(request, nbytes) for request in wanted]
    kept = [bytearray() for _ in ranges]
    end = max((r.end for r in ranges), default=0)
    position = 0
    async for block in blocks:
        for r, buffer in zip(ranges, kept, strict=True):
            if position < r.end and r.start < position + len(block):
                buffer += memoryview(block)[max(0, r.start - position) : r.end - position]
        position += len(block)
        if end <= position < nbytes:
            break
    if position < end:
        raise StorageError(f"{what}: the server announced {nbytes} bytes and sent {position}")
    return tuple(memoryview(buffer).toreadonly() for buffer in kept)


async def cut_unannounced(
    blocks: AsyncIterator[bytes],
    wanted: Sequence[ByteRequest],
    most_nbytes: int | None,
    what: str,
    unasked_nbytes: int = UNASKED_NBYTES,
) -> tuple[tuple[memoryview, ...], int]:
    """Return the wanted ranges of a body whose length is not known before it ends, and that length; the rest of it is not held.

    Raises ``TooMuch`` once there are more than ``most_nbytes``, or more than ``unasked_nbytes`` beyond the ranges.
    """
    most_read = _most_read(wanted, unasked_nbytes)
    kept = [bytearray() for _ in wanted]
    position = 0
    async for block in blocks:
        for request, buffer in zip(wanted, kept, strict=True):
            match request:
                case ByteRange(start, end):
                    buffer += memoryview(block)[max(0, start - position) : max(0, end - position)]
                case ByteOffset(start):
                    buffer += memoryview(block)[max(0, start - position) :]
                case ByteSuffix(nbytes):
                    buffer += block
                    if len(buffer) >= 2 * nbytes:
                        del buffer[: len(buffer) - nbytes]
        position += len(block)
        check_most(position, most_nbytes, what)
        if most_read is not None and position > most_read:
            raise TooMuch(
                f"{what}: the server ignores byte ranges and does not announce how long the object is, and after {position} bytes, "
                f"{unasked_nbytes} more than were asked for, it had not ended: read it from a server that knows ranges or sends "
                "Content-Length, or copy it first"
            )
    for request, buffer in zip(wanted, kept, strict=True):
        if isinstance(request, ByteSuffix) and len(buffer) > request.nbytes:
            del buffer[: len(buffer) - request.nbytes]
    return tuple(memoryview(buffer).toreadonly() for buffer in kept), position


def _most_read(wanted: Sequence[ByteRequest], unasked_nbytes: int) -> int | None:
    """Return the most bytes that may be read of a body of unknown length; ``None`` if all of it is wanted."""
    most = 0
    for request in wanted:
        match request:
            case ByteRange(_, end):
                most = max(most, end)
            case ByteSuffix(nbytes):
                most = max(most, nbytes)
            case ByteOffset():
                return None
    return most + unasked_nbytes


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

    Raises ``TooMuch`` if it announces more than was asked for, or more than ``most_nbytes`` for a request up to the end;
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


async def received(
    request: ByteRequest,
    status: int,
    content_range: str | None,
    nbytes: int | None,
    read: Callable[[], Awaitable[bytes]],
    blocks: AsyncIterator[bytes],
    most_nbytes: int | None,
    key: str,
    unasked_nbytes: int = UNASKED_NBYTES,
) -> bytes | tuple[memoryview, int]:
    """Return the body of an answer to ``request``, for ``checked_part``; of a whole object that came in place of a part, that part and the
    object's size.

    ``nbytes`` is the announced length of the body. It comes by ``read`` as a whole, or in ``blocks``. Raises ``TooMuch`` if it has more
    than was asked for, is a whole object of more than ``most_nbytes``, or of unknown length and more than ``unasked_nbytes`` too long.
    """
    what = f"reading {key!r}"
    if status == 206:
        most = most_of(request, content_range, nbytes, most_nbytes, key)
        return await read() if nbytes is not None else await exactly(blocks, most, what)
    if nbytes is None:
        (part,), nbytes = await cut_unannounced(blocks, [request], most_nbytes, what, unasked_nbytes)
        return part, nbytes
    check_most(nbytes, most_nbytes, what)
    if range_header(request) is None:
        return await read()
    (part,) = await cut(blocks, [request], nbytes, what)
    return part, nbytes


def checked_part(request: ByteRequest, status: int, content_range: str | None, data: bytes, key: str) -> tuple[memoryview, int]:
    """Return the bytes of ``request`` and the size of the object, from an answer to it.

    Raises ``StorageError`` if the answer is for another range, or shorter than it says.
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


_ATTEMPTS = 3

NOTHING = memoryview(b"")


@dataclass(frozen=True, slots=True)
class RangePart:
    """One range of one version of an object, which is ``nbytes`` long."""

    generation: Generation
    nbytes: int
    data: memoryview
    times: ServerTimes | None = None


RangeOutcome = RangePart | Absent | Changed


def as_list(outcome: RangeOutcome) -> list[RangePart] | Absent | Changed:
    return [outcome] if isinstance(outcome, RangePart) else outcome


class RangedReads(ReadsOneByOne, ABC):
    """The reads of a storage whose requests fetch one range each, and whose answers each show their version."""

    unasked_nbytes: int = UNASKED_NBYTES
    """See ``cut_unannounced``."""

    @abstractmethod
    async def get(self, key: str, request: ByteRequest, generation: Generation | None, most_nbytes: int | None = None) -> RangeOutcome:
        """Read one range, which is not empty, by one request; of ``generation`` only, if that is given.

        Raises ``TooMuch`` if it is the whole of an object of more than ``most_nbytes``.
        """

    @abstractmethod
    async def look_up(self, key: str, generation: Generation | None) -> RangeOutcome:
        """Return version and size, without bytes; see ``get``."""

    @property
    def may_ignore_ranges(self) -> bool:
        """True if the server may send the whole object for each range, so that one range has to be asked for before the rest."""
        return False

    async def get_first(
        self, key: str, requests: Sequence[ByteRequest], generation: Generation | None, most_nbytes: int | None = None
    ) -> list[RangePart] | Absent | Changed:
        """Read the first of ``requests``, or all of them if the answer to the first holds the whole object; see ``get``."""
        return as_list(await self.get(key, requests[0], generation, most_nbytes))

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        return await asyncio.gather(*(self._read_one(read) for read in reads))

    async def _read_one(self, read: Read) -> ReadOutcome:
        try:
            for _ in range(_ATTEMPTS):
                outcome = await self._read_version(read)
                if not isinstance(outcome, Changed) or read.generation is not None:
                    break
        except ShardStoreError as exc:
            return Failed(exc)
        return outcome

    async def _read_version(self, read: Read) -> ReadOutcome:
        """Read all ranges of one version: the one asked for, or the one that the first answer shows."""
        asked = [i for i, request in enumerate(read.ranges) if not is_empty(request)]
        buffers = [NOTHING] * len(read.ranges)
        if not asked:
            part = await self.look_up(read.key, read.generation)
            return Found(part.generation, part.nbytes, tuple(buffers)) if isinstance(part, RangePart) else part
        generation = read.generation
        parts: list[RangeOutcome] = []
        if generation is None or (len(asked) > 1 and self.may_ignore_ranges):
            first = await self.get_first(read.key, [read.ranges[i] for i in asked], generation, read.most_nbytes)
            if not isinstance(first, list):
                return first
            generation = generation or first[0].generation
            parts += first
        rest = asked[len(parts) :]
        parts += await asyncio.gather(*(self.get(read.key, read.ranges[i], generation, read.most_nbytes) for i in rest))
        nbytes, times = 0, None
        for i, part in zip(asked, parts, strict=True):
            if not isinstance(part, RangePart):
                return part if read.generation is not None else CHANGED
            buffers[i] = part.data
            nbytes, times = part.nbytes, times or part.times
        return Found(generation, nbytes, tuple(buffers), times)

    async def stat(self, key: str) -> ObjectInfo | None:
        part = await self.look_up(key, None)
        return ObjectInfo(key, part.nbytes, part.generation) if isinstance(part, RangePart) else None

    async def after_refusal(self, exc: RequestFailed, key: str, request: ByteRequest, generation: Generation | None) -> RangeOutcome:
        """Return the outcome of a read that a server refused with ``exc``; raise that if it says nothing of the object."""
        if exc.is_absent:
            return ABSENT
        if exc.status == 412 and generation is not None:
            return CHANGED
        if exc.status == 416:
            return await self.past_the_end(key, request, generation)
        raise exc

    async def past_the_end(self, key: str, request: ByteRequest, generation: Generation | None) -> RangeOutcome:
        """Return the outcome if the server says that ``request`` starts at or after the end, or that the object is empty; a look shows for
        which version that is true.

        Raises ``StorageError`` if the server contradicts itself.
        """
        part = await self.look_up(key, generation)
        if not isinstance(part, RangePart):
            return part
        wanted = resolve(request, part.nbytes)
        if wanted.start == wanted.end:
            return part
        if generation is None:  # did it grow in between? Of the version just seen the answer is a range, or a contradiction
            return await self.get(key, request, part.generation)
        raise StorageError(f"reading {key!r}: the server says that {request!r} is past the end, of {part.nbytes} bytes")
