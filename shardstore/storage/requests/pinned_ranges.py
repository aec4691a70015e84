"""Read several ranges of one version of an object, where a request fetches one range and the answer shows the version."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shardstore.errors import ShardStoreError, StorageError
from shardstore.model.generation import Generation
from shardstore.model.ranges import ByteRequest, resolve
from shardstore.storage.base import CHANGED, Absent, Changed, Failed, Found, Read, ReadOutcome, ServerTimes
from shardstore.storage.requests.ranges import is_empty

_ATTEMPTS = 3

NOTHING = memoryview(b"")


@dataclass(frozen=True, slots=True)
class Part:
    """One range of one version of an object, which is ``nbytes`` long."""

    generation: Generation
    nbytes: int
    data: memoryview
    times: ServerTimes | None = None


PartOutcome = Part | Absent | Changed


class RangeSource(Protocol):
    """Requests whose answers each show their version. With a ``generation`` they are of that version, or ``Changed``."""

    async def get(self, key: str, request: ByteRequest, generation: Generation | None, most_nbytes: int | None = None) -> PartOutcome:
        """Read one range, which is not empty. Raises ``TooMuch`` where it is the whole of an object of more than ``most_nbytes``."""
        ...

    async def look_up(self, key: str, generation: Generation | None) -> PartOutcome:
        """Return version and size, without bytes."""
        ...


async def read_all(source: RangeSource, reads: Sequence[Read]) -> list[ReadOutcome]:
    """Read as ``Storage.read`` promises."""
    return await asyncio.gather(*(_read_one(source, read) for read in reads))


async def _read_one(source: RangeSource, read: Read) -> ReadOutcome:
    try:
        for _ in range(_ATTEMPTS):
            outcome = await _read_version(source, read)
            if not isinstance(outcome, Changed) or read.generation is not None:
                break
    except ShardStoreError as exc:
        return Failed(exc)
    return outcome


async def _read_version(source: RangeSource, read: Read) -> ReadOutcome:
    """Read all ranges of one version: the one asked for, or the one that the first answer shows."""
    asked = [i for i, request in enumerate(read.ranges) if not is_empty(request)]
    buffers = [NOTHING] * len(read.ranges)
    if not asked:
        part = await source.look_up(read.key, read.generation)
        return Found(part.generation, part.nbytes, tuple(buffers)) if isinstance(part, Part) else part
    generation = read.generation
    parts: list[PartOutcome] = []
    if generation is None:
        first = await source.get(read.key, read.ranges[asked[0]], None, read.most_nbytes)
        if not isinstance(first, Part):
            return first
        generation = first.generation
        parts.append(first)
    rest = asked[len(parts) :]
    parts += await asyncio.gather(*(source.get(read.key, read.ranges[i], generation, read.most_nbytes) for i in rest))
    nbytes, times = 0, None
    for i, part in zip(asked, parts, strict=True):
        if not isinstance(part, Part):
            return part if read.generation is not None else CHANGED
        buffers[i] = part.data
        nbytes, times = part.nbytes, times or part.times
    return Found(generation, nbytes, tuple(buffers), times)


async def past_the_end(source: RangeSource, key: str, request: ByteRequest, generation: Generation | None) -> PartOutcome:
    """Return the outcome where the server says that ``request`` starts at or after the end, or that the object is empty; a look shows for
    which version that is true.

    Raises ``StorageError`` where the server contradicts itself.
    """
    part = await source.look_up(key, generation)
    if not isinstance(part, Part):
        return part
    wanted = resolve(request, part.nbytes)
    if wanted.start == wanted.end:
        return part
    if generation is None:  # did it grow in between? Of the version just seen the answer is a range, or a contradiction
        return await source.get(key, request, part.generation)
    raise StorageError(f"reading {key!r}: the server says that {request!r} is past the end, of {part.nbytes} bytes")
