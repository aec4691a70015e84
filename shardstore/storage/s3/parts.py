"""Plan the parts of a multipart upload that put an object together from ranges of its old version and new bytes.

S3 takes parts of 5 MiB to 5 GiB, the last one of any size, at most 10,000. A long range of the old version is copied by the server. The
bytes between two such ranges are sent; if they are less than 5 MiB, the missing bytes are taken from the next range, read and sent
too. So a range of 10 MiB or more is always worth a request: it gives away at most half of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from shardstore.model.ranges import CopiedRange, Segment
from shardstore.storage.requests.parts import SentPart, joined_copies, sent_parts

MIN_PART_BYTES = 5 << 20
_MAX_PART_BYTES = 5 << 30
MAX_PARTS = 10_000
_SENT_PART_BYTES = 8 << 20

COPY_PAYS_NBYTES = 2 * MIN_PART_BYTES


@dataclass(frozen=True, slots=True)
class CopiedPart:
    """``nbytes`` bytes from ``offset`` of the old version, which the server copies."""

    offset: int
    nbytes: int


Part = CopiedPart | SentPart


def plan_parts(segments: Sequence[Segment], max_part_bytes: int = _MAX_PART_BYTES, max_parts: int = MAX_PARTS) -> list[Part]:
    """Return the parts, in order; none of them is copied if no range is long enough."""
    runs = list(joined_copies(segments))
    sent_nbytes = sum(run.nbytes for run in runs if not _is_long(run))
    part_bytes = max(_SENT_PART_BYTES, -(-2 * sent_nbytes // max_parts))
    parts: list[Part] = []
    waiting: list[Segment] = []
    for run in runs:
        if not isinstance(run, CopiedRange) or not _is_long(run):
            waiting.append(run)
            continue
        held = sum(segment.nbytes for segment in waiting)
        lent = max(0, MIN_PART_BYTES - held) if held else 0
        if lent:
            waiting.append(CopiedRange(run.offset, lent))
        parts += sent_parts(waiting, part_bytes)
        waiting = []
        parts += _copied(run.offset + lent, run.nbytes - lent, max_part_bytes)
    return [*parts, *sent_parts(waiting, part_bytes)]


def _is_long(segment: Segment) -> bool:
    return isinstance(segment, CopiedRange) and segment.nbytes >= COPY_PAYS_NBYTES


def _copied(offset: int, nbytes: int, max_part_bytes: int) -> list[Part]:
    count = -(-nbytes // max_part_bytes)
    bounds = [offset + nbytes * i // count for i in range(count + 1)]
    return [CopiedPart(start, end - start) for start, end in pairwise(bounds)]
