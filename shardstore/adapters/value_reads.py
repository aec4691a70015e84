"""Reads of values for programs that show a store. Each read returns ranges of one version, ``None`` if there is no value, or an error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardstore.errors import Conflict, ShardStoreError
from shardstore.model.generation import Generation
from shardstore.model.ranges import ByteRequest
from shardstore.storage.base import UNKNOWN_NBYTES, Absent, Failed, Found, Read, ReadOutcome


class ValueRead(NamedTuple):
    """Ranges of one value, all of one version; with ``version``, of that version only. Without ranges, version and size are looked up."""

    key: str
    ranges: tuple[ByteRequest, ...] = ()
    version: Generation | None = None


@dataclass(frozen=True, slots=True)
class VersionedValue:
    """Ranges of one version of a value, which has ``nbytes`` bytes, each clipped to it."""

    version: Generation
    nbytes: int
    buffers: tuple[memoryview, ...]

    @property
    def has_known_size(self) -> bool:
        """False if the storage does not give the size with a part of a value; then ``nbytes`` is more than any value has."""
        return self.nbytes != UNKNOWN_NBYTES


class VersionGone(Conflict):
    """The value does not have the version that was asked for, or was replaced while it was read."""


ReadResult = VersionedValue | ShardStoreError | None
"""A value, ``None`` if there is none, or the reason why it could not be read."""


async def read_values(
    read: Callable[[Sequence[Read]], Awaitable[Sequence[ReadOutcome]]], reads: Sequence[ValueRead]
) -> Sequence[ReadResult]:
    """Read values by the ``read`` of a storage, or the ``read_versions`` of a store; results are in order."""
    outcomes = await read([Read(*one) for one in reads])
    return [_result(one.key, outcome) for one, outcome in zip(reads, outcomes, strict=True)]


def _result(key: str, outcome: ReadOutcome) -> ReadResult:
    match outcome:
        case Found(version, nbytes, buffers):
            return VersionedValue(version, nbytes, buffers)
        case Absent():
            return None
        case Failed(error):
            return error
    return VersionGone(f"{key!r} was replaced since its version was looked up, or while it was read: read it again")
