"""Large objects in parts: how their bodies are cut, which bytes of an old version go into them, and sending several at once.

An object is put together from segments: ranges of its old version, and new bytes. What the server takes over by itself is of the kind of
storage. The rest is sent: ``SentPart``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from shardstore.errors import InvalidInput
from shardstore.model.generation import Condition, Generation
from shardstore.model.ranges import ByteRange, BytesLike, CopiedRange, NewBytes, Padding, Segment
from shardstore.storage.base import ConditionFailed, Found, Read, Storage, read_one

PARTS_AT_ONCE = 6
"""The parts that an upload holds, with the one that is being filled; of each that is under way aiohttp makes a copy."""
_GAP_BYTES = 512 << 10  # ranges that are this near are read by one request: what lies between costs less than another

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class SentPart:
    """The bytes that are sent: new ones, and short ranges of the old version that are read before."""

    segments: tuple[Segment, ...]

    @property
    def nbytes(self) -> int:
        return sum(segment.nbytes for segment in self.segments)


def part_bytes_for(nbytes: int, min_part_bytes: int, max_parts: int) -> int:
    """Return the size of the parts of a body: ``min_part_bytes``, or whole MiB where there would be more than ``max_parts``."""
    least = -(-nbytes // max_parts)
    return min_part_bytes if least <= min_part_bytes else -(-least >> 20) << 20


def joined_copies(segments: Sequence[Segment]) -> Iterator[Segment]:
    """Yield the segments, with adjacent copies joined, and without empty ones."""
    last: CopiedRange | None = None
    for segment in segments:
        if not segment.nbytes:
            continue
        if last is not None:
            if isinstance(segment, CopiedRange) and segment.offset == last.offset + last.nbytes:
                last = CopiedRange(last.offset, last.nbytes + segment.nbytes)
                continue
            yield last
            last = None
        if isinstance(segment, CopiedRange):
            last = segment
        else:
            yield segment
    if last is not None:
        yield last


def sent_parts(segments: Sequence[Segment], part_bytes: int) -> list[SentPart]:
    """Return parts of about ``part_bytes``; none is smaller if there are several."""
    nbytes = sum(segment.nbytes for segment in segments)
    if not nbytes:
        return []
    count = max(1, nbytes // part_bytes)
    bounds = [nbytes * i // count for i in range(1, count + 1)]
    found: list[SentPart] = []
    mine: list[Segment] = []
    at = 0
    for segment in filter(lambda segment: segment.nbytes, segments):
        while at + segment.nbytes > bounds[0]:
            head, segment = _split(segment, bounds.pop(0) - at)
            found.append(SentPart((*mine, head) if head.nbytes else tuple(mine)))
            mine, at = [], at + head.nbytes
        mine.append(segment)
        at += segment.nbytes
    found.append(SentPart(tuple(mine)))
    return found


def _split(segment: Segment, nbytes: int) -> tuple[Segment, Segment]:
    match segment:
        case CopiedRange(offset, whole):
            return CopiedRange(offset, nbytes), CopiedRange(offset + nbytes, whole - nbytes)
        case NewBytes(data):
            view = memoryview(data)
            return NewBytes(view[:nbytes]), NewBytes(view[nbytes:])
        case Padding(whole):
            return Padding(nbytes), Padding(whole - nbytes)


def source_gone(key: str) -> ConditionFailed:
    """Return the error of a write whose source is another version now, or absent."""
    return ConditionFailed(f"{key!r} is not the version to copy from any more")


async def read_source(storage: Storage, key: str, source: Generation, ranges: tuple[ByteRange, ...]) -> Found:
    """Read ranges of one version. Raises ``ConditionFailed`` if it is gone."""
    outcome = await read_one(storage, Read(key, ranges, source))
    if not isinstance(outcome, Found):
        raise source_gone(key)
    return outcome


async def bytes_of(storage: Storage, key: str, source: Generation, part: SentPart) -> list[BytesLike]:
    """Return the bytes of a part; ranges of the old version are read, near ones together."""
    copies = [segment for segment in part.segments if isinstance(segment, CopiedRange)]
    spans: list[ByteRange] = []
    for copy in sorted(copies, key=lambda copy: copy.offset):
        end = copy.offset + copy.nbytes
        if spans and copy.offset - spans[-1].end <= _GAP_BYTES:
            spans[-1] = ByteRange(spans[-1].start, max(spans[-1].end, end))
        else:
            spans.append(ByteRange(copy.offset, end))
    buffers: list[memoryview] = []
    if spans:
        found = await read_source(storage, key, source, tuple(spans))
        for span, buffer in zip(spans, found.buffers, strict=True):
            if len(buffer) != span.end - span.start:
                raise InvalidInput(f"bytes [{span.start}, {span.end}) of {key!r} cannot be copied: it has {found.nbytes}")
        buffers = list(found.buffers)

    def old(copy: CopiedRange) -> memoryview:
        span, buffer = next((s, b) for s, b in zip(spans, buffers, strict=True) if s.start <= copy.offset < s.end)
        return buffer[copy.offset - span.start : copy.offset - span.start + copy.nbytes]

    return [
        old(segment) if isinstance(segment, CopiedRange) else segment.data if isinstance(segment, NewBytes) else bytes(segment.nbytes)
        for segment in part.segments
    ]


async def sent_pieces(storage: Storage, key: str, source: Generation, parts: Sequence[SentPart]) -> AsyncIterator[BytesLike]:
    """Yield the bytes of parts as the body of one object."""
    for part in parts:
        for piece in await bytes_of(storage, key, source, part):
            yield piece


async def write_instead(storage: Storage, key: str, source: Generation, parts: Sequence[SentPart], condition: Condition) -> Generation:
    """Store an object of which nothing is worth a copy: its parts are read, sent and written as a body."""
    if not any(isinstance(segment, CopiedRange) for part in parts for segment in part.segments):
        await read_source(storage, key, source, ())  # nothing else would show that the source is gone
    return await storage.write(key, sent_pieces(storage, key, source, parts), sum(part.nbytes for part in parts), condition)


async def upload_parts(pieces: AsyncIterator[T], upload: Callable[[int, T], Awaitable[R]], at_once: int = PARTS_AT_ONCE) -> list[R]:
    """Upload the parts, numbered from 1; return what ``upload`` returns of each, in order. At most ``at_once`` of them are held.

    Raises the first error, after which no part is sent any more.
    """
    tasks: list[asyncio.Task[R]] = []
    free = asyncio.Semaphore(at_once)

    async def send(number: int, piece: T) -> R:
        try:
            return await upload(number, piece)
        finally:
            free.release()

    try:
        async with asyncio.TaskGroup() as uploads:
            while True:
                await free.acquire()  # before the next part is gathered, which is one of those that are held
                if (piece := await anext(pieces, None)) is None:
                    break
                tasks.append(uploads.create_task(send(len(tasks) + 1, piece)))
                del piece
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None  # the first; the rest are consequences
    return [task.result() for task in tasks]
