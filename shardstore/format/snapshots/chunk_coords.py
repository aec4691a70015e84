"""Coordinates of chunks as manifests hold them: each element big-endian, one behind the other, so that bytes sort as coordinates do.

::

    (5, 30, 10)     00 05 00 1e 00 0a                      the draft's form: two bytes an element
    (65536, 1)      00 01 00 00 00 00 00 01                four or eight where two are too few (D16)

The width is that of a file: the length of a coordinate divided by the number of dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def encode_one(coords: Sequence[int], width: int) -> bytes:
    """Return the bytes of one chunk's coordinates."""
    return b"".join(coord.to_bytes(width) for coord in coords)
