"""A picture of few cells from a census: the share of chunks behind each cell that exist. Pure numbers; other modules draw them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from shardstore.errors import InvalidInput
from shardstore.maintenance.census.file import ArrayCensus

_SLOTS_AT_ONCE = 2**22


@dataclass(frozen=True, slots=True, eq=False)
class Density:
    """An array's grid of chunks, seen along all but two axes."""

    axes: tuple[int | None, int | None]
    """The array's axes, down and across; ``None`` if it has too few."""
    chunks: tuple[int, int]
    """The number of chunks down and across, in the array's grid."""
    cells: npt.NDArray[np.float64]
    """The share of chunks that exist, 0 to 1, as ``(rows, columns)``; empty if the array has no chunks."""


def density(array: ArrayCensus, rows: int, columns: int, axes: tuple[int, int] | None = None) -> Density:
    """Return a picture of at most so many cells. Without ``axes``, or if the array has too few dimensions for them, the two axes with
    the most chunks go down and across, in their order.

    Raises:
        InvalidInput: both ``axes`` are the same.
    """
    grid = array.chunk_grid
    down, across = _chosen(grid, axes)
    sizes = tuple(1 if axis is None else grid[axis] for axis in (down, across))
    shape = (min(rows, sizes[0]), min(columns, sizes[1]))
    counts = np.zeros(shape[0] * shape[1], dtype=np.int64)
    if not counts.size:
        return Density((down, across), (sizes[0], sizes[1]), counts.reshape(shape).astype(np.float64))
    step = max(1, _SLOTS_AT_ONCE // max(1, array.slots))
    for start in range(0, array.objects, step):
        bits = np.unpackbits(array.bitmaps[start : start + step], axis=1, count=array.slots)
        objects, slots = np.nonzero(bits)
        inside = np.unravel_index(slots, array.chunks_per_object) if array.chunks_per_object else ()
        cell = np.zeros(len(slots), dtype=np.int64)
        for axis, size, cells in zip((down, across), sizes, shape, strict=True):
            place = np.zeros(len(slots), dtype=np.int64)
            if axis is not None:
                chunk = array.coords[start + objects, axis] * array.chunks_per_object[axis] + inside[axis]
                place = _cell(chunk, size, cells)
            cell = cell * cells + place
        counts += np.bincount(cell, minlength=counts.size)
    behind = prod(n for axis, n in enumerate(grid) if axis not in (down, across))
    possible = np.outer(_widths(sizes[0], shape[0]), _widths(sizes[1], shape[1])) * float(behind)
    return Density((down, across), (sizes[0], sizes[1]), counts.reshape(shape) / possible)


def _chosen(grid: tuple[int, ...], axes: tuple[int, int] | None) -> tuple[int | None, int | None]:
    if axes is not None:
        if axes[0] == axes[1] or min(axes) < 0:
            raise InvalidInput(f"axes {axes} are not two axes: give two numbers, counted from 0")
        if max(axes) < len(grid):
            return axes
    if len(grid) < 2:
        return None, 0 if grid else None
    longest = sorted(sorted(range(len(grid)), key=lambda axis: -grid[axis])[:2])
    return longest[0], longest[1]


def _cell(chunk: npt.NDArray[np.int64], size: int, cells: int) -> npt.NDArray[np.int64]:
    """Return which of ``cells`` cells each chunk of ``size`` belongs to."""
    if size < 2**31:
        return chunk * cells // size
    return np.minimum(cells - 1, (chunk / size * cells).astype(np.int64))  # the product would wrap; a cell more or less is not seen


def _widths(size: int, cells: int) -> npt.NDArray[np.float64]:
    """Return how many chunks belong to each cell."""
    if size < 2**31:
        edges = -(-np.arange(cells + 1, dtype=np.int64) * size // cells)
        return np.diff(edges).astype(np.float64)
    return np.full(cells, size / cells)
