"""Which chunks of arrays exist, and how large they are: pictures of few cells, and histograms. Pure numbers; other modules draw them.

Memory grows with the number of arrays and pictures, not of shards or chunks.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import numpy.typing as npt

from shardstore.errors import InvalidInput
from shardstore.maintenance.shards import CountedShard
from shardstore.maintenance.walk import ListedDigests
from shardstore.model.chunks import ChunkCoords
from shardstore.storage.base import ObjectInfo

_SLOTS_AT_ONCE = 2**22
_BINS = 64
_CHUNKS_AT_ONCE = 1000  # objects that are one chunk, and counted together
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


# -- what a survey counts ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Extreme:
    """The smallest or the largest object of an array."""

    key: str
    nbytes: int


@dataclass(slots=True, eq=False)
class ArrayOccupancy:
    """The objects of one array that lie in its shape. An array that is not sharded has one object per chunk."""

    pictures: list[DensityCounter]
    """Counters for pictures along different pairs of axes, the two with the most chunks first."""
    object_sizes: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(_BINS, dtype=np.int64))
    """How many objects have sizes in ``[2**(k - 1), 2**k)`` bytes, for each ``k``; of ``k = 0``: no bytes."""
    chunk_sizes: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(_BINS, dtype=np.int64))
    """The same of encoded chunks."""
    smallest: Extreme | None = None
    largest: Extreme | None = None

    def add_object(self, key: str, nbytes: int) -> None:
        self.object_sizes[nbytes.bit_length()] += 1
        if self.smallest is None or nbytes < self.smallest.nbytes:
            self.smallest = Extreme(key, nbytes)
        if self.largest is None or nbytes > self.largest.nbytes:
            self.largest = Extreme(key, nbytes)

    def draw(self, coords: Sequence[ChunkCoords], exists: npt.NDArray[np.bool_]) -> None:
        places = np.array(coords, dtype=np.int64).reshape(len(coords), -1)
        for picture in self.pictures:
            picture.add(places, exists)


class Occupancy:
    """Counts, for each array of a survey, which chunks exist, and how large its objects and chunks are."""

    def __init__(self, *, side: int, pairs: int, most_pictures: int) -> None:
        """Draw pictures of at most ``side`` by ``side`` cells, for each array along so many pairs of axes, ``most_pictures`` in all."""
        self.arrays: dict[str, ArrayOccupancy] = {}
        """By the path of the array; those without any object are missing."""
        self.pictures_left_out = 0
        self.listed = ListedDigests()
        self._side = side
        self._pairs = pairs
        self._pictures_left = most_pictures
        self._waiting: dict[str, list[ChunkCoords]] = {}  # of objects that are one chunk, by array

    def digest(self, path: str) -> str:
        """Return the digest of the objects of an array as they were listed."""
        return self.listed.of(path)

    def add_chunk(self, path: str, grid: tuple[int, ...], coords: ChunkCoords, info: ObjectInfo) -> None:
        """Add an object that is one chunk of an array with so many chunks along each dimension."""
        array = self._array(path, grid, (1,) * len(grid))
        array.add_object(info.key, info.nbytes)
        array.chunk_sizes[info.nbytes.bit_length()] += 1
        waiting = self._waiting.setdefault(path, [])
        waiting.append(coords)
        if len(waiting) >= _CHUNKS_AT_ONCE:
            self._draw_waiting(path)

    def add_shards(self, shards: Sequence[CountedShard]) -> None:
        for path, some in itertools.groupby(shards, key=lambda counted: counted.shard.path):
            of_array = list(some)
            layout = of_array[0].shard.layout
            array = self._array(path, layout.chunk_grid_shape, layout.grid.chunks_per_shard)
            for counted in of_array:
                array.add_object(counted.shard.key, counted.nbytes)
            # The exponent of a number is its length in bits, up to 2**53, which no chunk reaches.
            lengths = np.concatenate([counted.lengths for counted in of_array]).astype(np.float64)
            array.chunk_sizes += np.bincount(np.frexp(lengths)[1], minlength=_BINS)
            if array.pictures:
                array.draw([counted.shard.coords for counted in of_array], np.stack([counted.exists for counted in of_array]))

    def finish(self) -> None:
        """Draw what is not drawn yet."""
        for path in list(self._waiting):
            self._draw_waiting(path)

    def _draw_waiting(self, path: str) -> None:
        waiting = self._waiting.pop(path)
        self.arrays[path].draw(waiting, np.ones((len(waiting), 1), dtype=np.bool_))

    def _array(self, path: str, grid: tuple[int, ...], chunks_per_object: tuple[int, ...]) -> ArrayOccupancy:
        found = self.arrays.get(path)
        if found is None:
            wanted = pairs_of_axes(grid)[: self._pairs]
            pairs = wanted[: self._pictures_left]
            self.pictures_left_out += len(wanted) - len(pairs)
            self._pictures_left -= len(pairs)
            counters = [DensityCounter(grid, chunks_per_object, self._side, self._side, pair) for pair in pairs]
            found = self.arrays[path] = ArrayOccupancy(counters)
        return found


def pairs_of_axes(grid: tuple[int, ...]) -> list[tuple[int, int] | None]:
    """Return the pairs of axes that pictures show: those with the most chunks first. ``None``: the array has fewer than two."""
    if len(grid) < 2:
        return [None] if grid and grid[0] > 1 else []
    pairs = [(down, across) for down, across in itertools.combinations(range(len(grid)), 2) if grid[down] * grid[across] > 1]
    return [*sorted(pairs, key=lambda pair: -grid[pair[0]] * grid[pair[1]])]
