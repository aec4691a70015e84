"""The layout of an array's chunks in its stored objects: the numbers, coordinates and keys of objects."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from shardstore.format.chunk_keys import ChunkKeyEncoding
from shardstore.format.metadata_v3 import ArrayLayout, PlainArray
from shardstore.format.shard_index import IndexFormat
from shardstore.model.chunks import ChunkCoords


@dataclass(frozen=True)
class ObjectLayout:
    """The layout of an array's chunks in its objects.

    An object holds a block of ``chunks_per_object`` chunks, from the origin: all ones, and ``index_format`` ``None``, where each chunk is
    an object. An object's *number* is its position in ``object_grid``, in row-major (C) order.
    """

    key_encoding: ChunkKeyEncoding
    chunk_grid: tuple[int, ...]
    """The number of chunks along each dimension that hold elements of the array."""
    index_format: IndexFormat | None = None

    @classmethod
    def of(cls, array: ArrayLayout | PlainArray) -> ObjectLayout:
        chunk_grid = tuple(-(-n // c) for n, c in zip(array.shape, array.chunk_shape, strict=True))
        return ObjectLayout(array.key_encoding, chunk_grid, array.index_format if isinstance(array, ArrayLayout) else None)

    @property
    def ndim(self) -> int:
        return len(self.chunk_grid)

    @property
    def chunks_per_object(self) -> tuple[int, ...]:
        return (1,) * self.ndim if self.index_format is None else self.index_format.chunks_per_shard

    @cached_property
    def object_grid(self) -> tuple[int, ...]:
        return tuple(-(-n // per_object) for n, per_object in zip(self.chunk_grid, self.chunks_per_object, strict=True))

    def holds(self, coords: ChunkCoords) -> bool:
        """Return whether the object at ``coords`` lies in the object grid."""
        return all(c < n for c, n in zip(coords, self.object_grid, strict=True))

    def number(self, coords: ChunkCoords) -> int:
        """Return the number of the object at ``coords``, which may also lie outside of the object grid."""
        number = 0
        for c, n in zip(coords, self.object_grid, strict=True):
            number = number * max(1, n) + c
        return number

    def number_of(self, coords: ChunkCoords) -> int | None:
        """Return the number of the object at ``coords``, or ``None`` if that is outside of the object grid."""
        number = 0
        for c, n in zip(coords, self.object_grid, strict=True):
            if c >= n:
                return None
            number = number * n + c
        return number

    def coords_of(self, key: str) -> ChunkCoords | None:
        """Return the coordinates of the object that a key relative to the array names."""
        return self.key_encoding.decode(key, self.ndim)

    def has_key(self, key: str) -> bool:
        """Return whether a key, relative to the array, is that of an object in its grid."""
        coords = self.coords_of(key)
        return coords is not None and self.holds(coords)

    def keys(self, numbers: npt.NDArray[np.int64]) -> list[str]:
        """Return the keys of many objects, relative to the array."""
        if not self.ndim:
            return [self.key_encoding.encode(()) for _ in range(len(numbers))]
        return self.key_encoding.encode_all([axis.tolist() for axis in np.unravel_index(numbers, self.object_grid)])
