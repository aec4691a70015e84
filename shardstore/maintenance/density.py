"""Pictures of few cells: the share of chunks behind each cell that exist. Pure numbers; other modules draw them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from shardstore.errors import InvalidInput

_SLOTS_AT_ONCE = 2**22
_MOST = 10**300  # chunks behind a cell; more do not fit a float


@dataclass(frozen=True, slots=True, eq=False)
class Density:
    """An array's grid of chunks, seen along all but two axes."""

    axes: tuple[int | None, int | None]
    """The array's axes, down and across; ``None`` if it has too few."""
    chunks: tuple[int, int]
    """The number of chunks down and across, in the array's grid."""
    cells: npt.NDArray[np.float64]
    """The share of chunks that exist, 0 to 1, as ``(rows, columns)``; empty if the array has no chunks."""


class DensityCounter:
    """Counts the existing chunks behind each cell of a picture while they are found; memory does not grow with their number."""

    def __init__(
        self, grid: tuple[int, ...], chunks_per_object: tuple[int, ...], rows: int, columns: int, axes: tuple[int, int] | None = None
    ) -> None:
        """Count for a picture of at most so many cells. Without ``axes``, or if the array has too few dimensions for them, the two axes
        with the most chunks go down and across, in their order.

        Raises:
            InvalidInput: both ``axes`` are the same.
        """
        self._grid = grid
        self._per_object = chunks_per_object
        self.axes = _chosen(grid, axes)
        self._sizes = tuple(1 if axis is None else grid[axis] for axis in self.axes)
        self._shape = (min(rows, self._sizes[0]), min(columns, self._sizes[1]))
        self._counts = np.zeros(self._shape[0] * self._shape[1], dtype=np.int64)

    def add(self, coords: npt.NDArray[np.int64], exists: npt.NDArray[np.bool_]) -> None:
        """Add objects: ``coords`` in the grid of objects, ``(n, ndim)``, and which of their slots, in C order, hold a chunk of the array's
        shape, ``(n, slots)``.
        """
        if not self._counts.size:
            return
        step = max(1, _SLOTS_AT_ONCE // max(1, exists.shape[1]))
        for start in range(0, len(coords), step):
            self._add(coords[start : start + step], exists[start : start + step])

    def _add(self, coords: npt.NDArray[np.int64], exists: npt.NDArray[np.bool_]) -> None:
        down, across = self.axes
        behind = tuple(1 + axis for axis in range(len(self._grid)) if axis not in (down, across))
        counts = exists.reshape(-1, *self._per_object).sum(axis=behind, dtype=np.int32)
        if down is not None and across is not None and down > across:
            counts = counts.swapaxes(1, 2)
        rows, columns = (self._cells(coords, number) for number in (0, 1))
        cells = rows[:, :, np.newaxis] * self._shape[1] + columns[:, np.newaxis, :]
        weights = counts.reshape(cells.shape)
        first, last = int(cells.min()), int(cells.max())  # objects that are listed together lie together
        self._counts[first : last + 1] += np.bincount((cells - first).ravel(), weights.ravel(), last + 1 - first).astype(np.int64)

    def _cells(self, coords: npt.NDArray[np.int64], number: int) -> npt.NDArray[np.int64]:
        """Return the row, or column, of each chunk of the objects along that axis: ``(n, chunks)``."""
        axis, size, cells = self.axes[number], self._sizes[number], self._shape[number]
        if axis is None:
            return np.zeros((len(coords), 1), dtype=np.int64)
        chunks = coords[:, axis, np.newaxis] * self._per_object[axis] + np.arange(self._per_object[axis])
        return np.minimum(_cell(chunks, size, cells), cells - 1)  # beyond the shape nothing exists

    def density(self) -> Density:
        """Return the picture of what has been added."""
        down, across = self.axes
        cells = self._counts.reshape(self._shape).astype(np.float64)
        if cells.size:
            behind = prod(n for axis, n in enumerate(self._grid) if axis not in (down, across))
            widths = (_widths(size, n) for size, n in zip(self._sizes, self._shape, strict=True))
            cells /= np.outer(*widths) * float(min(behind, _MOST))
        return Density((down, across), (self._sizes[0], self._sizes[1]), cells)


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
