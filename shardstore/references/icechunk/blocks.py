"""Parts of an array's chunks: blocks, whose references are columns in C order of a part of the grid; and some chunks out of all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from shardstore.format.references.parquet import ReferenceRows
from shardstore.model.chunks import strides
from shardstore.references.batches import ReferenceBatch, ReferencedArray

Numbers = npt.NDArray[np.int64]
Coords = npt.NDArray[np.uint64]
"""``(n, ndim)`` positions in the grid of an array's chunks."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The references of all chunks from ``first`` on, ``shape`` of them; of a missing one the location is empty."""

    first: tuple[int, ...]
    shape: tuple[int, ...]
    locations: list[str]
    offsets: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.uint64]

    def location_at(self, coords: Sequence[int]) -> str:
        return self.locations[int(np.ravel_multi_index([c - f for c, f in zip(coords, self.first, strict=True)], self.shape))]


def block_of(
    grid: tuple[int, ...], urls: Sequence[str], chunks: Numbers, target: npt.NDArray[np.int32], offsets: Numbers, lengths: Numbers
) -> Block | None:
    """Return the smallest block that has these chunks; ``None`` if they fill less than half of it, or the grid has no dimensions.

    ``chunks`` are numbers in C order of the grid, ``(n,)`` as their URLs' numbers, offsets and lengths; there is at least one.
    """
    if not grid:
        return None
    axes = np.unravel_index(chunks, grid)
    first = tuple(int(axis.min()) for axis in axes)
    shape = tuple(int(axis.max()) - start + 1 for axis, start in zip(axes, first, strict=True))
    if (size := prod(shape)) > 2 * len(chunks):
        return None
    at = np.ravel_multi_index([axis - start for axis, start in zip(axes, first, strict=True)], shape)
    locations: npt.NDArray[np.object_] = np.full(size, "", dtype=object)
    locations[at] = urls[0] if len(urls) == 1 else np.array(urls, dtype=object)[target]
    columns = np.zeros((2, size), dtype=np.uint64)
    columns[0, at], columns[1, at] = offsets, lengths
    return Block(first, shape, locations.tolist(), columns[0], columns[1])


def positions(grid: tuple[int, ...], chunks: Numbers) -> list[list[int]]:
    if not grid:
        return [[] for _ in chunks]
    found: list[list[int]] = np.stack(np.unravel_index(chunks, grid), axis=-1).tolist() if len(chunks) else []
    return found


class SomeChunks(ReferencedArray):
    """An array of which only some chunks are referred to, those at ``coords``."""

    def __init__(self, array: ReferencedArray, coords: Coords) -> None:
        super().__init__(array.path, array.node, array.chunk_grid)
        self.flavour = array.flavour
        self._array = array
        self._numbers = (coords.astype(np.int64) * strides(array.chunk_grid)).sum(axis=1, dtype=np.int64)

    def window(self, start: int, most: int) -> range:
        return self._array.window(start, most)

    def batches(self, start: int, stop: int) -> Iterator[ReferenceBatch]:
        for batch in self._array.batches(start, stop):
            kept = np.flatnonzero(np.isin(batch.chunks, self._numbers))
            rows = batch.rows
            inline = {place: rows.inline[row] for place, row in enumerate(kept.tolist()) if row in rows.inline}
            some = ReferenceRows(rows.targets, rows.target[kept], rows.offset[kept], rows.nbytes[kept], inline, rows.generations)
            yield ReferenceBatch(batch.chunks[kept], some, batch.objects, batch.checks)
