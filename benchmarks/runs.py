"""Chunks of a shard that are read by one request: the merging that the physical limits use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shard_files import EMPTY, Index, Piece


@dataclass(frozen=True, slots=True)
class Run:
    """One range of a shard with the pieces in it, each with its offset from ``start`` and its encoded size."""

    start: int
    end: int
    pieces: tuple[tuple[Piece, int, int], ...]


def runs_of(index: Index, pieces: Sequence[Piece], gap_nbytes: int, run_nbytes: int) -> list[Run]:
    """Ranges that cover the pieces: those at most ``gap_nbytes`` apart in one, but none longer than ``run_nbytes`` where that can be."""
    entries = index[[piece.slot for piece in pieces]].tolist()
    placed = sorted(
        ((offset, nbytes, piece) for (offset, nbytes), piece in zip(entries, pieces, strict=True) if offset != int(EMPTY)),
        key=lambda one: one[0],
    )
    runs: list[Run] = []
    members: list[tuple[Piece, int, int]] = []
    start = end = 0
    for offset, nbytes, piece in placed:
        if members and (offset - end > gap_nbytes or offset + nbytes - start > run_nbytes):
            runs.append(Run(start, end, tuple(members)))
            members = []
        if not members:
            start = offset
        members.append((piece, offset - start, nbytes))
        end = max(end, offset + nbytes) if len(members) > 1 else offset + nbytes
    if members:
        runs.append(Run(start, end, tuple(members)))
    return runs
