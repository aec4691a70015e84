"""Which chunks of arrays exist, and how large they are: pictures and histograms, counted while a survey reads the indices.

Memory grows with the number of arrays and pictures, not of shards or chunks.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shardstore.maintenance.density import DensityCounter
from shardstore.maintenance.object_tasks import ListedDigests
from shardstore.maintenance.shard_content import CountedShard
from shardstore.model.chunks import ChunkCoords
from shardstore.storage.base import ObjectInfo

_BINS = 64
_CHUNKS_AT_ONCE = 1000  # objects that are one chunk, and counted together


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

    def add_lengths(self, lengths: npt.NDArray[np.int64]) -> None:
        # The exponent of a number is its length in bits, up to 2**53, which no chunk reaches.
        self.chunk_sizes += np.bincount(np.frexp(lengths.astype(np.float64))[1], minlength=_BINS)

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
        """Add shards."""
        for path, some in itertools.groupby(shards, key=lambda counted: counted.shard.path):
            of_array = list(some)
            layout = of_array[0].shard.layout
            array = self._array(path, layout.chunk_grid_shape, layout.grid.chunks_per_shard)
            for counted in of_array:
                array.add_object(counted.shard.key, counted.nbytes)
            array.add_lengths(np.concatenate([counted.lengths for counted in of_array]))
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
