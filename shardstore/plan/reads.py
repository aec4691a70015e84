"""Which ranges to request for a set of wanted byte ranges of one object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardstore.model.ranges import ByteRange


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How near ranges have to be to share a request (``gap_bytes`` between them), and how long one may get.

    A single wanted range is never split, however long it is.
    """

    gap_bytes: int = 32 * 2**10
    request_bytes: int = 16 * 2**20


@dataclass(frozen=True, slots=True, eq=False)
class CoalescedReads:
    """``requests``, ascending; the i-th wanted range lies in ``requests[of_request[i]]``."""

    requests: tuple[ByteRange, ...]
    of_request: npt.NDArray[np.intp]


def coalesce(wanted: Sequence[ByteRange], limits: ReadLimits) -> CoalescedReads:
    """Merge wanted ranges, given in any order and overlapping at will, into the fewest requests within the limits.

    Greedy in ascending order, which is optimal for ranges that do not overlap: a request goes on while the next range
    starts at most ``gap_bytes`` behind its end and ends at most ``request_bytes`` behind its start.
    """
    n = len(wanted)
    bounds = np.array([(r.start, r.end) for r in wanted], dtype=np.int64).reshape(n, 2)
    order = np.lexsort((bounds[:, 1], bounds[:, 0]))
    of_request = np.empty(n, dtype=np.intp)
    requests: list[ByteRange] = []
    starts, ends = bounds[order, 0].tolist(), bounds[order, 1].tolist()
    first, start, end = 0, 0, -1
    for i in range(n):
        joins = i > first and starts[i] - end <= limits.gap_bytes and max(end, ends[i]) - start <= limits.request_bytes
        if i > first and not joins:
            requests.append(ByteRange(start, end))
            of_request[order[first:i]] = len(requests) - 1
            first = i
        if i == first:
            start, end = starts[i], ends[i]
        else:
            end = max(end, ends[i])
    if n:
        requests.append(ByteRange(start, end))
        of_request[order[first:]] = len(requests) - 1
    return CoalescedReads(tuple(requests), of_request)
