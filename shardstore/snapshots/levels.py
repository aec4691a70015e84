"""The choice of the manifests of an array that a commit merges. Each commit adds a small one, with what it changed: a level. Many are slow.

::

    base ▇▇▇▇▇▇▇▇▇▇▇▇   ▇▇▇▇▇ ▇▇ ▇ ▁ ▁ ▁ ▁   + ▁     the newest levels that together are about as large as the one before them become one

A reference is merged again only when its level has about doubled, so all in all as often as the logarithm of their number.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardstore.format.snapshots.structure import ManifestPart

MOST_LEVELS = 8
"""Levels that are read for one chunk, in addition to the one that a commit adds."""

MOST_MERGED_ROWS = 1 << 24
"""References that one commit reads and writes again at most, for one array."""


def levels_of(parts: Sequence[ManifestPart]) -> list[list[ManifestPart]]:
    """Return an array's manifests by level, the oldest first: those of one commit follow each other, and no chunk is in two of them."""
    levels: list[list[ManifestPart]] = []
    for part in parts:
        if levels and part.file.run and levels[-1][0].file.run == part.file.run:
            levels[-1].append(part)
        else:
            levels.append([part])
    return levels


def first_of_all(rows: Sequence[int]) -> int | None:
    """Return the first of the levels that can become one with all newer ones, however few there are; ``None`` if that changes nothing."""
    first, total = len(rows), 0
    while first > 0 and total + rows[first - 1] <= MOST_MERGED_ROWS:
        first -= 1
        total += rows[first]
    return first if first < len(rows) - 1 else None


def first_to_merge(rows: Sequence[int]) -> int | None:
    """Return the first of the levels, given by their numbers of references, that are to become one with all newer ones."""
    if len(rows) <= MOST_LEVELS - 1:
        return None
    first, total = len(rows) - 2, rows[-2] + rows[-1]
    if total > MOST_MERGED_ROWS:
        return None
    while first > 0 and rows[first - 1] <= 2 * total and total + rows[first - 1] <= MOST_MERGED_ROWS:
        first -= 1
        total += rows[first]
    return first
