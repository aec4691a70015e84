"""Carries out the plan of one shard: one write on condition, whose kept bytes are copied by the storage or streamed through here.

What survives a cancellation, at any await: the old object or the new one, whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from shardstore.errors import Corruption, Unsupported
from shardstore.model.coalescing import CoalescedReads, ReadLimits, coalesce
from shardstore.model.generation import Condition, Generation
from shardstore.model.ranges import ByteRange, BytesLike, CopiedRange, NewBytes, Padding, Segment
from shardstore.plan.commits import WriteShard
from shardstore.storage.base import ConditionFailed, Found, Read, Storage, read_one
from shardstore.tasks import MemoryBudget

_GAP_BYTES = 512 * 2**10  # takes an object store about as long as a request


@dataclass(frozen=True, slots=True)
class _Known:
    """Bytes of one version of an object, from ``start`` on."""

    generation: Generation
    start: int
    data: memoryview


class PlanWriter:
    """Writes shards as they were planned, in windows of at most ``window_bytes``; all at once hold at most ``max_memory``."""

    def __init__(self, storage: Storage, window_bytes: int, max_memory: int) -> None:
        self._storage = storage
        self._window_bytes = window_bytes
        self._windows = MemoryBudget(max_memory)
        self._known: dict[str, _Known] = {}

    def know(self, key: str, generation: Generation, start: int, data: memoryview) -> None:
        """Hold bytes of one version of an object, from ``start`` on, until ``forget``: what lies in them is not read."""
        self._known[key] = _Known(generation, start, data)

    def forget(self, key: str) -> None:
        self._known.pop(key, None)

    async def write(self, key: str, source: Generation, plan: WriteShard, condition: Condition) -> Generation:
        """Store ``plan``, which copies ranges of version ``source`` of the same key; return the new version.

        Raises:
            ConditionFailed: the condition does not hold, or ``source`` is gone. Nothing was written.
        """
        capabilities = self._storage.capabilities
        longest = max((segment.nbytes for segment in plan.segments if isinstance(segment, CopiedRange)), default=0)
        if capabilities.compose and longest >= capabilities.copy_pays_nbytes:  # else it is not worth a request of its own
            try:
                return await self._storage.compose(key, source, list(plan.segments), condition)
            except Unsupported:
                if self._storage.capabilities.compose:
                    raise
        pieces = self.pieces(key, source, plan.segments)
        async with self._windows.hold(min(plan.nbytes, self._window_bytes)):
            return await self._storage.write(key, pieces, plan.nbytes, condition)

    async def pieces(self, key: str, generation: Generation, segments: Sequence[Segment]) -> AsyncIterator[BytesLike]:
        """Yield the bytes of a plan, kept ones read a window at a time, of one version.

        Raises:
            ConditionFailed: the object is another version now.
        """
        windows = _Windows(segments, self._window_bytes)
        at = 0
        while at < len(segments):
            segment = segments[at]
            if isinstance(segment, CopiedRange) and segment.nbytes > self._window_bytes:
                end = segment.offset + segment.nbytes
                for start in range(segment.offset, end, self._window_bytes):
                    (piece,) = await self.read_pinned(key, [ByteRange(start, min(end, start + self._window_bytes))], generation)
                    yield piece
                at += 1
                continue
            end = windows.end(at)
            copies = [segment for segment in segments[at:end] if isinstance(segment, CopiedRange)]
            reads = windows.reads(copies)
            buffers = await self.read_pinned(key, list(reads.requests), generation) if copies else []
            pieces = iter(reads.cut(buffers))
            for planned in segments[at:end]:
                yield next(pieces) if isinstance(planned, CopiedRange) else _sent(planned)
            at = end

    async def read_pinned(self, key: str, ranges: list[ByteRange], generation: Generation) -> list[memoryview]:
        """Read bytes of exactly this version.

        Raises:
            ConditionFailed: the object is another version now.
        """
        known = self._known.get(key)
        if known is not None and known.generation == generation:
            start, end = known.start, known.start + len(known.data)
            if all(start <= wanted.start and wanted.end <= end for wanted in ranges):
                return [known.data[wanted.start - start : wanted.end - start] for wanted in ranges]
        outcome = await read_one(self._storage, Read(key, tuple(ranges), generation))
        if isinstance(outcome, Found):
            for wanted, buffer in zip(ranges, outcome.buffers, strict=True):
                if len(buffer) != wanted.end - wanted.start:
                    raise Corruption(f"bytes [{wanted.start}, {wanted.end}) of {key!r} were requested, {len(buffer)} bytes were received")
            return list(outcome.buffers)
        raise ConditionFailed(f"{key!r} changed while it was being rewritten")


class _Windows:
    """The windows in which the copied ranges of a plan are read.

    A window has ``nbytes`` at most, and all of them together read no more bytes than lie from the first copied byte to the last. Bytes
    between two ranges are read too if that saves requests, within this limit: chunks may lie in any order.
    """

    def __init__(self, segments: Sequence[Segment], nbytes: int) -> None:
        self._segments = segments
        self._nbytes = nbytes
        copies = [segment for segment in segments if isinstance(segment, CopiedRange)]
        lowest = min((copy.offset for copy in copies), default=0)
        highest = max((copy.offset + copy.nbytes for copy in copies), default=0)
        self._spare = max(0, highest - lowest - sum(copy.nbytes for copy in copies))

    def end(self, at: int) -> int:
        """Return where the window that begins with the segment ``at`` ends: before the first copy that does not fit."""
        held = 0
        for i in range(at, len(self._segments)):
            segment = self._segments[i]
            if isinstance(segment, CopiedRange):
                held += segment.nbytes
                if held > self._nbytes:
                    return i
        return len(self._segments)

    def reads(self, copies: Sequence[CopiedRange]) -> CoalescedReads:
        """Return what is read for the copies of one window."""
        wanted = [ByteRange(copy.offset, copy.offset + copy.nbytes) for copy in copies]
        useful = sum(copy.nbytes for copy in copies)
        for gap_bytes in (self._nbytes, _GAP_BYTES):
            reads = coalesce(wanted, ReadLimits(gap_bytes, self._nbytes))
            read = sum(request.end - request.start for request in reads.requests)
            if read <= self._nbytes and read - useful <= self._spare:
                self._spare -= read - useful
                return reads
        return coalesce(wanted, ReadLimits(0, self._nbytes))


def _sent(planned: NewBytes | Padding) -> BytesLike:
    """Return the bytes of a segment that is sent."""
    return planned.data if isinstance(planned, NewBytes) else bytes(planned.nbytes)
