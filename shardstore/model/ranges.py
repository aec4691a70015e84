"""Ranges of bytes of a value, and the segments that a new version of an object is put together from, in their order in it."""

from __future__ import annotations

from dataclasses import dataclass

from shardstore.errors import InvalidInput

BytesLike = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes ``start`` (inclusive) to ``end`` (exclusive), both counted from byte 0."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise InvalidInput(f"byte range [{self.start}, {self.end}) is not a range: need 0 <= start <= end")


@dataclass(frozen=True, slots=True)
class ByteOffset:
    """All bytes from ``start`` (inclusive) to the end."""

    start: int

    def __post_init__(self) -> None:
        if self.start < 0:
            raise InvalidInput(f"byte offset {self.start} is negative; use ByteSuffix to count from the end")


@dataclass(frozen=True, slots=True)
class ByteSuffix:
    """The last ``nbytes`` bytes, or all of them where there are fewer."""

    nbytes: int

    def __post_init__(self) -> None:
        if self.nbytes < 0:
            raise InvalidInput(f"a suffix of {self.nbytes} bytes is not a range: need nbytes >= 0")


ByteRequest = ByteRange | ByteOffset | ByteSuffix

EVERYTHING = ByteOffset(0)


def resolve(request: ByteRequest, nbytes: int) -> ByteRange:
    """Return the part of ``[0, nbytes)`` that ``request`` names, clipped to it; possibly empty."""
    match request:
        case ByteRange(start, end):
            return ByteRange(min(start, nbytes), min(end, nbytes))
        case ByteOffset(start):
            return ByteRange(min(start, nbytes), nbytes)
        case ByteSuffix(length):
            return ByteRange(max(0, nbytes - length), nbytes)


def cut(data: memoryview, request: ByteRequest) -> memoryview:
    """Return the part of a whole value that ``request`` names, without a copy."""
    inside = resolve(request, len(data))
    return data[inside.start : inside.end]


@dataclass(frozen=True, slots=True)
class CopiedRange:
    """``nbytes`` bytes from ``offset`` of the version that is being replaced."""

    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class NewBytes:
    """Bytes that this write brings."""

    data: BytesLike

    @property
    def nbytes(self) -> int:
        return len(self.data)


@dataclass(frozen=True, slots=True)
class Padding:
    """``nbytes`` bytes that no index refers to, of any value. A storage may keep its own notes there while it writes."""

    nbytes: int


Segment = CopiedRange | NewBytes | Padding

APPEND_PADDING_NBYTES = 64
"""The padding that a storage which appends in place needs behind the old bytes."""
