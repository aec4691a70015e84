"""Positions of chunks: in an array's chunk grid, and inside a shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

ChunkCoords = tuple[int, ...]
"""A position in a grid, one non-negative integer per dimension; ``()`` for a 0-d array."""


def strides(grid: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return how far apart the numbers of neighbours in a grid are along each dimension, ``(ndim,)``, in C order."""
    return np.array([prod(grid[i + 1 :]) for i in range(len(grid))], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class ChunkLocation:
    """The place of a chunk's encoded bytes in its shard: ``nbytes`` (possibly 0) from byte ``offset`` of the object."""

    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class ShardGrid:
    """The grouping of an array's chunks: ``chunks_per_shard`` of them along each dimension, from the origin.

    ``slot`` is a chunk's flat number inside its shard, in row-major (C) order.
    """

    chunks_per_shard: tuple[int, ...]

    @property
    def nslots(self) -> int:
        return prod(self.chunks_per_shard)

    def shard_of(self, chunk_coords: ChunkCoords) -> ChunkCoords:
        return tuple(c // n for c, n in zip(chunk_coords, self.chunks_per_shard, strict=True))

    def slot_of(self, chunk_coords: ChunkCoords) -> int:
        slot = 0
        for c, n in zip(chunk_coords, self.chunks_per_shard, strict=True):
            slot = slot * n + c % n
        return slot

    def split_all(self, chunk_coords: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.intp], npt.NDArray[np.int64]]:
        """Split ``(n, ndim)`` positions, of at least one dimension; return the shards, ``(k, ndim)``, the number of each position's shard
        among these, and the slots.
        """
        per_shard = np.array(self.chunks_per_shard, dtype=np.int64)
        shards = chunk_coords // per_shard
        slots = (chunk_coords - shards * per_shard) @ strides(self.chunks_per_shard)
        first = shards.min(axis=0)
        extent: list[int] = (shards.max(axis=0) - first + 1).tolist()
        if prod(extent) < 2**62:
            numbers = (shards - first) @ strides(extent)
            _, firsts, of_shard = np.unique(numbers, return_index=True, return_inverse=True)
            return shards[firsts], of_shard, slots
        rows, of_shard = np.unique(shards, axis=0, return_inverse=True)
        return rows, of_shard.reshape(-1), slots

    def coords_of(self, shard_coords: ChunkCoords, slot: int) -> ChunkCoords:
        """Return the chunk that occupies ``slot`` of the shard; the inverse of ``shard_of`` and ``slot_of``."""
        inside: list[int] = []
        for n in reversed(self.chunks_per_shard):
            slot, digit = divmod(slot, n)
            inside.append(digit)
        return tuple(s * n + i for s, n, i in zip(shard_coords, self.chunks_per_shard, reversed(inside), strict=True))


@dataclass(frozen=True, slots=True)
class RemovedChunks:
    """The chunks that an array loses when it shrinks: those of the grid ``before`` that are not in the grid ``after``.

    Both are numbers of chunks along each dimension. Chunks outside of ``before`` are not removed, whichever client has written them.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def is_empty(self) -> bool:
        return not all(self.before) or all(n >= was for n, was in zip(self.after, self.before, strict=True))

    def has(self, coords: ChunkCoords) -> bool:
        return all(c < n for c, n in zip(coords, self.before, strict=True)) and any(c >= n for c, n in zip(coords, self.after, strict=True))

    def has_all_of(self, shard: ChunkCoords, grid: ShardGrid) -> bool:
        """Return whether every slot of a shard is a removed chunk."""
        boxes = list(zip(shard, grid.chunks_per_shard, self.before, self.after, strict=True))
        return all((s + 1) * n <= before for s, n, before, _ in boxes) and any(s * n >= after for s, n, _, after in boxes)

    def has_some_of(self, shard: ChunkCoords, grid: ShardGrid) -> bool:
        """Return whether some slot of a shard is a removed chunk."""
        boxes = list(zip(shard, grid.chunks_per_shard, self.before, self.after, strict=True))
        return all(s * n < before for s, n, before, _ in boxes) and any(min((s + 1) * n, before) > after for s, n, before, after in boxes)

    def rows(self) -> range | None:
        """Return the removed positions along the first dimension, if chunks are removed along that one only."""
        if not self.before or any(n < was for n, was in zip(self.after[1:], self.before[1:], strict=True)):
            return None
        return range(self.after[0], self.before[0])
