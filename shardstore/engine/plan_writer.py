"""Carrying out the plan of one shard: one write on condition, its kept bytes copied by the storage or streamed through here.

What survives a cancellation, at any await: the old object or the new one, whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from shardstore.engine.memory_budget import MemoryBudget
from shardstore.errors import Corruption, Unsupported
from shardstore.model.generation import Condition, Generation
from shardstore.model.ranges import ByteRange, BytesLike
from shardstore.plan.commits import CopyOld, NewBytes, PlannedSegment, Unused, WriteShard
from shardstore.storage.base import ConditionFailed, Copy, Failed, Found, New, Read, Room, Segment, Storage


class PlanWriter:
    """Writes shards as they were planned, in windows of at most ``window_bytes``; all at once hold at most ``max_memory``."""

    def __init__(self, storage: Storage, window_bytes: int, max_memory: int) -> None:
        self._storage = storage
        self._window_bytes = window_bytes
        self._windows = MemoryBudget(max_memory)

    async def write(self, key: str, source: Generation, plan: WriteShard, condition: Condition) -> Generation:
        """Store ``plan``, what it copies taken from version ``source`` of the same key; the new version.

        Raises:
            ConditionFailed: the condition does not hold, or ``source`` is gone. Nothing was written.
        """
        if self._can_compose(plan):
            try:
                return await self._storage.compose(key, source, [_segment(s) for s in plan.segments], condition)
            except Unsupported:
                if self._storage.capabilities.compose:
                    raise
        pieces = self.pieces(key, source, plan.segments)
        async with self._windows.hold(min(plan.nbytes, self._window_bytes)):
            return await self._storage.write(key, pieces, plan.nbytes, condition)

    def _can_compose(self, plan: WriteShard) -> bool:
        """Whether the storage can put the plan together, and the longest range that is copied is worth a request of its own."""
        capabilities = self._storage.capabilities
        longest = max((segment.nbytes for segment in plan.segments if isinstance(segment, CopyOld)), default=0)
        return capabilities.compose and longest >= capabilities.copy_pays_nbytes

    async def pieces(self, key: str, generation: Generation, segments: Sequence[PlannedSegment]) -> AsyncIterator[BytesLike]:
        """The bytes of a plan, kept ones read a window at a time, of one version.

        Raises:
            ConditionFailed: the object is another version now.
        """
        at = 0
        while at < len(segments):
            segment = segments[at]
            if not isinstance(segment, CopyOld):
                yield _sent(segment)
                at += 1
                continue
            if segment.nbytes > self._window_bytes:
                async for piece in self._long_piece(key, generation, segment):
                    yield piece
                at += 1
                continue
            end, low, high = at, segment.offset, segment.offset + segment.nbytes
            while end < len(segments):
                following = segments[end]
                if isinstance(following, CopyOld):
                    span = min(low, following.offset), max(high, following.offset + following.nbytes)
                    if span[1] - span[0] > self._window_bytes:
                        break
                    low, high = span
                end += 1
            (window,) = await self.read_pinned(key, [ByteRange(low, high)], generation)
            for planned in segments[at:end]:
                if not isinstance(planned, CopyOld):
                    yield _sent(planned)
                else:
                    yield window[planned.offset - low : planned.offset - low + planned.nbytes]
            at = end

    async def _long_piece(self, key: str, generation: Generation, segment: CopyOld) -> AsyncIterator[BytesLike]:
        end = segment.offset + segment.nbytes
        for start in range(segment.offset, end, self._window_bytes):
            (piece,) = await self.read_pinned(key, [ByteRange(start, min(end, start + self._window_bytes))], generation)
            yield piece

    async def read_pinned(self, key: str, ranges: list[ByteRange], generation: Generation) -> list[memoryview]:
        """Bytes of exactly this version.

        Raises:
            ConditionFailed: the object is another version now.
        """
        (outcome,) = await self._storage.read([Read(key, tuple(ranges), generation)])
        if isinstance(outcome, Found):
            for wanted, buffer in zip(ranges, outcome.buffers, strict=True):
                if len(buffer) != wanted.end - wanted.start:
                    raise Corruption(f"bytes [{wanted.start}, {wanted.end}) of {key!r} were asked for, {len(buffer)} came")
            return list(outcome.buffers)
        if isinstance(outcome, Failed):
            raise outcome.error
        raise ConditionFailed(f"{key!r} changed while it was being rewritten")


def _segment(planned: PlannedSegment) -> Segment:
    match planned:
        case CopyOld(offset, nbytes):
            return Copy(offset, nbytes)
        case NewBytes(data):
            return New(data)
        case Unused(nbytes):
            return Room(nbytes)


def _sent(planned: NewBytes | Unused) -> BytesLike:
    """The bytes where they are sent."""
    return planned.data if isinstance(planned, NewBytes) else bytes(planned.nbytes)
