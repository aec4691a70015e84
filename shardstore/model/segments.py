"""Segments that a new version of an object is put together from, in their order in it."""

from __future__ import annotations

from dataclasses import dataclass

from shardstore.model.ranges import BytesLike


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
