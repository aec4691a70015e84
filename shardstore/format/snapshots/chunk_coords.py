"""Coordinates of chunks as manifests hold them: each element big-endian, one behind the other, so that bytes sort as coordinates do.

::

    (5, 30, 10)     00 05 00 1e 00 0a                      the draft's form: two bytes an element
    (65536, 1)      00 01 00 00 00 00 00 01                four or eight where two are too few (D16)

The width is that of a file: the length of a coordinate divided by the number of dimensions.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from shardstore.errors import Corruption, InvalidInput

DRAFT_WIDTH = 2
WIDTHS = (DRAFT_WIDTH, 4, 8)
"""Bytes of an element."""


def width_for(most: int) -> int:
    """Return the fewest bytes that hold every element up to ``most``. Raises ``InvalidInput`` if eight do not."""
    for width in WIDTHS:
        if 0 <= most < 1 << 8 * width:
            return width
    raise InvalidInput(f"{most} cannot be an element of a chunk's coordinates: they are from 0 to 2^64 - 1")


def encode_coords(coords: npt.NDArray[np.uint64], width: int) -> npt.NDArray[np.uint8]:
    """Return ``(n, ndim * width)`` bytes of ``(n, ndim)`` coordinates, all of which are less than ``2 ** (8 * width)``."""
    return coords.astype(f">u{width}", order="C").view(np.uint8).reshape(len(coords), coords.shape[1] * width)


def decode_coords(data: bytes | memoryview, n: int, ndim: int) -> npt.NDArray[np.uint64]:
    """Return ``(n, ndim)`` coordinates from their bytes, one behind the other. Raises ``Corruption`` if the length fits no width."""
    if not n or not ndim:
        if len(data):
            raise Corruption(f"{n} coordinates of {ndim} dimensions have {len(data)} bytes")
        return np.zeros((n, ndim), dtype=np.uint64)
    width, rest = divmod(len(data), n * ndim)
    if rest or width not in WIDTHS:
        raise Corruption(f"{n} coordinates of {ndim} dimensions have {len(data)} bytes, which is not 2, 4 or 8 an element")
    return np.frombuffer(data, dtype=f">u{width}").reshape(n, ndim).astype(np.uint64)


class CoordSearch:
    """Finds coordinates among ``(n, ndim)`` ascending ones, many at once."""

    def __init__(self, coords: npt.NDArray[np.uint64]) -> None:
        self._n, ndim = coords.shape
        self._low = coords.min(axis=0) if len(coords) else np.zeros(ndim, dtype=np.uint64)
        high = coords.max(axis=0) if len(coords) else self._low
        extent = [int(b) - int(a) + 1 for a, b in zip(self._low, high, strict=True)]
        self._high = high
        self._strides: npt.NDArray[np.uint64] | None = None
        if prod(extent) < 2**63:
            self._strides = np.array([prod(extent[axis + 1 :]) for axis in range(ndim)], dtype=np.uint64)
        self._keys = self._keys_of(coords)

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes

    def find(self, wanted: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
        """Return the row of each of ``(k, ndim)`` coordinates, -1 where it is not there."""
        rows = np.full(len(wanted), -1, dtype=np.intp)
        inside = np.flatnonzero(((wanted >= self._low) & (wanted <= self._high)).all(axis=1)) if self._n else np.zeros(0, dtype=np.intp)
        if not len(inside):
            return rows
        keys = self._keys_of(wanted[inside])
        at = np.minimum(np.searchsorted(self._keys, keys), self._n - 1)
        is_there = self._keys[at] == keys
        rows[inside[is_there]] = at[is_there]
        return rows

    def _keys_of(self, coords: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
        """Return one value for each position, that sorts as the positions do."""
        if self._strides is not None:
            keys: npt.NDArray[np.uint64] = (coords - self._low) @ self._strides
            return keys
        return sortable(coords, 8)


def sortable(coords: npt.NDArray[np.uint64], width: int) -> npt.NDArray[np.bytes_]:
    """Return the bytes of ``(n, ndim)`` coordinates as an array of texts, which sort as the coordinates do. ``ndim`` is at least 1."""
    # Texts of numpy end before their last zeros; all have one length here, so this makes no two the same, and changes no order.
    return encode_coords(coords, width).view(f"S{coords.shape[1] * width}").reshape(-1)
