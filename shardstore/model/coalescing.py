"""Merge the wanted byte ranges of one object into few requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardstore.model.ranges import ByteRange


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """The limits of coalescing: ranges share a request where at most ``gap_bytes`` lie between them, up to ``request_bytes``.

    A single wanted range is never split, however long it is, nor are ranges that overlap: no byte is asked for twice.
    """

    gap_bytes: int = 8 * 2**10
    request_bytes: int = 16 * 2**20
    first_bytes: int = 0
    """The bytes that are fetched at least with an index, since it takes no longer: a small shard is read whole that way."""


UPKEEP_LIMITS = ReadLimits(gap_bytes=32 * 2**10, request_bytes=8 * 2**20)
"""Limits for the tools that walk over whole archives, many objects at once, whatever the kind of storage."""


@dataclass(frozen=True, slots=True, eq=False)
class CoalescedReads:
    """The requests for ``n`` wanted byte ranges of one object. The i-th lies in ``requests[of_request[i]]``."""

    requests: tuple[ByteRange, ...]
    """The requests in ascending order; they do not overlap."""
    of_request: npt.NDArray[np.intp]
    """``(n,)``."""
    starts: npt.NDArray[np.int64]
    """``(n,)``: the first byte of each wanted range, in the object."""
    ends: npt.NDArray[np.int64]
    """``(n,)``: the byte behind the last one."""

    @classmethod
    def in_one(cls, request: ByteRange, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> CoalescedReads:
        """Return the ranges as parts of one request that has been made."""
        return cls((request,), np.zeros(len(starts), dtype=np.intp), starts, ends)

    def offsets(self) -> npt.NDArray[np.int64]:
        """Return where each wanted range begins in the answer to its request, ``(n,)``."""
        bases = np.array([request.start for request in self.requests], dtype=np.int64)
        return self.starts - bases[self.of_request]

    def cut(self, buffers: Sequence[memoryview]) -> list[memoryview]:
        """Return the bytes of each wanted range out of the answers to the requests; fewer bytes where an answer is too short."""
        firsts = self.offsets()
        lasts = firsts + (self.ends - self.starts)
        return [buffers[i][a:b] for i, a, b in zip(self.of_request.tolist(), firsts.tolist(), lasts.tolist(), strict=True)]


def coalesce(wanted: Sequence[ByteRange], limits: ReadLimits) -> CoalescedReads:
    """Like ``coalesce_all``, of ranges as they are."""
    bounds = np.array([(r.start, r.end) for r in wanted], dtype=np.int64).reshape(len(wanted), 2)
    return coalesce_all(bounds[:, 0], bounds[:, 1], limits)


def coalesce_all(starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], limits: ReadLimits) -> CoalescedReads:
    """Merge wanted ranges, given by their bounds in any order and overlapping at will, into the fewest requests within the limits.

    Greedy in ascending order, where ranges that overlap count as one, which is optimal: a request goes on while the next range
    starts at most ``gap_bytes`` behind its end and ends at most ``request_bytes`` behind its start. Requests do not overlap, so
    all of them together are no longer than the object.
    """
    n = len(starts)
    if not n:
        return CoalescedReads((), np.empty(0, dtype=np.intp), starts, ends)
    if n == 1:
        return CoalescedReads.in_one(ByteRange(int(starts[0]), int(ends[0])), starts, ends)
    wanted = starts, ends
    order = np.lexsort((ends, starts))
    starts, reached = starts[order], np.maximum.accumulate(ends[order])
    begins = np.ones(n, dtype=np.bool_)
    begins[1:] = starts[1:] - reached[:-1] > limits.gap_bytes
    firsts = np.flatnonzero(begins)
    lasts = np.append(firsts[1:], n) - 1
    for run in np.flatnonzero(reached[lasts] - starts[firsts] > limits.request_bytes).tolist():
        _cut_up(int(firsts[run]), int(lasts[run]), starts, reached, limits, begins)
    firsts = np.flatnonzero(begins)
    of_request = np.empty(n, dtype=np.intp)
    of_request[order] = np.cumsum(begins) - 1
    stops = np.maximum.reduceat(ends[order], firsts)
    return CoalescedReads(tuple(map(ByteRange, starts[firsts].tolist(), stops.tolist())), of_request, *wanted)


def _cut_up(
    first: int, last: int, starts: npt.NDArray[np.int64], reached: npt.NDArray[np.int64], limits: ReadLimits, begins: npt.NDArray[np.bool_]
) -> None:
    """Mark where a run of ranges that is too long for a request begins another one, never between ranges that overlap."""
    apart = np.append(first, first + 1 + np.flatnonzero(starts[first + 1 : last + 1] >= reached[first:last]))
    ends = reached[np.append(apart[1:] - 1, last)]
    start, end = int(starts[first]), int(ends[0])
    for i, begin, stop in zip(apart[1:].tolist(), starts[apart[1:]].tolist(), ends[1:].tolist(), strict=True):
        if begin - end > limits.gap_bytes or stop - start > limits.request_bytes:
            begins[i] = True
            start = begin
        end = stop
