"""Bodies of answers to requests for bytes: no more is read of what a server sends than was asked for.

An answer says beforehand which bytes it holds (``Content-Range``) and how long it is (``Content-Length``). Where that differs from the
request, nothing of the body is read. Where it does not say so, the body is read up to the first byte too many. A server that does not
know ranges answers with the whole object: only the wanted part is kept.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from shardstore.errors import StorageError
from shardstore.model.ranges import ByteOffset, ByteRange, ByteRequest, ByteSuffix, resolve

REFUSAL_NBYTES = 1 << 20
"""The most bytes that are read of the text of a refusal, where it is read at all."""


class TooMuch(StorageError):
    """An answer announces, or holds, more than was asked for, or something else."""


def too_long(nbytes: int, most_nbytes: int, what: str) -> TooMuch:
    """Return the error for an object that is to be read whole, and is longer than allowed. ``what`` begins the message."""
    return TooMuch(f"{what}: it has {nbytes} bytes, and what belongs there has at most {most_nbytes}: it was not read")


def check_most(nbytes: int, most_nbytes: int | None, what: str) -> None:
    """Raise that error where the object is longer than allowed."""
    if most_nbytes is not None and nbytes > most_nbytes:
        raise too_long(nbytes, most_nbytes, what)


async def exactly(blocks: AsyncIterator[bytes], nbytes: int, what: str) -> bytes:
    """Return a body of ``nbytes``, or the part that came where it ends before. Raises ``TooMuch`` at the first byte behind it."""
    body = bytearray()
    async for block in blocks:
        body += block
        if len(body) > nbytes:
            raise TooMuch(f"{what}: the server goes on sending behind the {nbytes} bytes that it was asked for: it cannot be trusted")
    return bytes(body)


async def cut(blocks: AsyncIterator[bytes], wanted: Sequence[ByteRequest], nbytes: int, what: str) -> tuple[memoryview, ...]:
    """Return the wanted ranges of a body of ``nbytes``, without ever holding the rest of it; bytes after them are not waited for.

    Raises ``StorageError`` where the body ends before.
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
    blocks: AsyncIterator[bytes], wanted: Sequence[ByteRequest], most_nbytes: int | None, what: str
) -> tuple[tuple[memoryview, ...], int]:
    """Return the wanted ranges of a body whose length is not known before it ends, and that length; the rest of it is not held.

    Raises ``TooMuch`` once there are more than ``most_nbytes``.
    """
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
    for request, buffer in zip(wanted, kept, strict=True):
        if isinstance(request, ByteSuffix) and len(buffer) > request.nbytes:
            del buffer[: len(buffer) - request.nbytes]
    return tuple(memoryview(buffer).toreadonly() for buffer in kept), position
