"""Many objects in little memory: those of one array of the source as numbers, 24 bytes per object, whatever their keys; and those of the
target that a unit has made, in some 40 bytes each.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardstore.errors import InvalidInput
from shardstore.format.chunk_keys import ChunkKeyEncoding
from shardstore.format.shard_index import IndexFormat
from shardstore.model.chunks import ChunkCoords
from shardstore.model.generation import Generation
from shardstore.model.ranges import ByteRange
from shardstore.storage.base import Found, Read, Storage, read_one

_BETWEEN = "\0"  # no key holds it
_BYTES_AT_ONCE = 4 << 20
_MOST_OBJECTS = 2**62  # so that numbers of objects fit into int64


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

    @property
    def ndim(self) -> int:
        return len(self.chunk_grid)

    @property
    def chunks_per_object(self) -> tuple[int, ...]:
        return (1,) * self.ndim if self.index_format is None else self.index_format.chunks_per_shard

    @cached_property
    def object_grid(self) -> tuple[int, ...]:
        return tuple(-(-n // per_object) for n, per_object in zip(self.chunk_grid, self.chunks_per_object, strict=True))

    def number_of(self, coords: ChunkCoords) -> int | None:
        """Return the number of the object at ``coords`` of the object grid, or ``None`` if that is outside of it."""
        number = 0
        for c, n in zip(coords, self.object_grid, strict=True):
            if c >= n:
                return None
            number = number * n + c
        return number

    def has_key(self, key: str) -> bool:
        """Return whether a key, relative to the array, is that of an object in its grid."""
        coords = self.key_encoding.decode(key, self.ndim)
        return coords is not None and self.number_of(coords) is not None

    def coords_of(self, number: int) -> ChunkCoords:
        """Return the coordinates of an object's number; the inverse of ``number_of``."""
        return tuple(int(c) for c in np.unravel_index(number, self.object_grid)) if self.ndim else ()

    def key(self, number: int) -> str:
        """Return the object's key, relative to the array."""
        return self.key_encoding.encode(self.coords_of(number))

    def keys(self, numbers: npt.NDArray[np.int64]) -> list[str]:
        """Return the keys of many objects, relative to the array."""
        if not self.ndim:
            return [self.key_encoding.encode(()) for _ in range(len(numbers))]
        return self.key_encoding.encode_all([axis.tolist() for axis in np.unravel_index(numbers, self.object_grid)])

    def check(self, path: str) -> None:
        """Raise ``InvalidInput`` if the array has more objects than can be numbered."""
        if prod(self.object_grid) >= _MOST_OBJECTS:
            raise InvalidInput(f"array {path!r} has a grid of {self.object_grid} objects, which is too large to be packed")


def version_digest(generation: Generation | None) -> int:
    """Return ``Generation.digest`` of a version; 0 if the storage's listing gives none."""
    return 0 if generation is None else generation.digest


ROW = np.dtype([("number", "<i8"), ("nbytes", "<i8"), ("version", "<u8")])
"""One object: its number, its size in bytes, and ``version_digest``."""

Rows = npt.NDArray[np.void]
"""Rows of a table: ``(n,)`` of ``ROW``."""


class ObjectTable:
    """A table of objects that are being listed."""

    __slots__ = ("_nbytes", "_numbers", "_versions")

    def __init__(self) -> None:
        self._numbers = array("q")
        self._nbytes = array("q")
        self._versions = array("Q")

    def add(self, number: int, nbytes: int, version: int) -> None:
        self._numbers.append(number)
        self._nbytes.append(nbytes)
        self._versions.append(version)

    def __len__(self) -> int:
        return len(self._numbers)

    def rows(self) -> Rows:
        """Return all objects by number; the last one counts if one was listed twice."""
        rows = np.empty(len(self), dtype=ROW)
        for name, column in (("number", self._numbers), ("nbytes", self._nbytes), ("version", self._versions)):
            rows[name] = column
        rows = rows[np.argsort(rows["number"], kind="stable")]
        if len(rows) > 1:
            is_last = np.append(rows["number"][1:] != rows["number"][:-1], True)
            rows = rows[is_last]
        return rows


# -- objects that a unit has made ----------------------------------------------------------------------------------------


class MadeObject(NamedTuple):
    """One object. ``version`` is ``version_digest``, 0 if the storage gave none."""

    key: str
    nbytes: int
    version: int


@dataclass(frozen=True, slots=True)
class Made:
    """Objects by key, relative to the target."""

    prefix: str = ""
    """The common start of all keys; ``names`` has the rest, joined."""
    names: str = ""
    numbers: bytes = b""
    """The sizes, then the versions: ``(2, n)``, uint64."""

    @classmethod
    def of(cls, prefix: str, names: Sequence[str], sizes: Sequence[int], versions: Sequence[int]) -> Made:
        """Return the objects as one value. Raises ``ValueError`` if the numbers of keys, sizes and versions differ."""
        if not len(names) == len(sizes) == len(versions):
            raise ValueError(f"{len(names)} objects have {len(sizes)} sizes and {len(versions)} versions")
        return cls(prefix, _BETWEEN.join(names), np.array([sizes, versions], dtype=np.uint64).tobytes())

    def __len__(self) -> int:
        return len(self.numbers) // 16

    @property
    def sizes(self) -> npt.NDArray[np.uint64]:
        """``(n,)``"""
        return np.frombuffer(self.numbers, dtype=np.uint64)[: len(self)]

    @property
    def versions(self) -> npt.NDArray[np.uint64]:
        """``(n,)``"""
        return np.frombuffer(self.numbers, dtype=np.uint64)[len(self) :]

    @property
    def nbytes(self) -> int:
        return int(self.sizes.sum())

    @property
    def tells_versions(self) -> bool:
        """True if the storage has given the version of each."""
        return bool(self.versions.all())

    def relative(self) -> list[str]:
        """Return the keys without the prefix."""
        return self.names.split(_BETWEEN) if len(self) else []

    def keys(self) -> list[str]:
        return [self.prefix + name for name in self.relative()]

    def hashes(self) -> npt.NDArray[np.int64]:
        """Return ``(n,)``: ``hash`` of each key, valid in this process."""
        return np.array(list(map(hash, self.keys())), dtype=np.int64)

    def __iter__(self) -> Iterator[MadeObject]:
        for key, nbytes, version in zip(self.keys(), self.sizes.tolist(), self.versions.tolist(), strict=True):
            yield MadeObject(key, nbytes, version)


NOTHING = Made()


async def digest_of_contents(storage: Storage, made: Made) -> str:
    """Return a digest by which these objects are recognised when they are read again; empty if one is absent, or has another length.
    Raises ``StorageError`` if a request failed.
    """
    digest = hashlib.blake2b(digest_size=16)
    for key, nbytes, _ in made:
        digest.update(f"{key}\0{nbytes}\0".encode(errors="surrogatepass"))
        for start in range(0, max(1, nbytes), _BYTES_AT_ONCE):
            wanted = ByteRange(start, min(nbytes, start + _BYTES_AT_ONCE))
            outcome = await read_one(storage, Read(key, (wanted,)))
            if not isinstance(outcome, Found) or outcome.nbytes != nbytes:
                return ""
            digest.update(outcome.buffers[0])
    return digest.hexdigest()
