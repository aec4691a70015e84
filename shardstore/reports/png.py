"""Small pictures as PNG (ISO/IEC 15948): eight bits a pixel, grey or by a palette."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY, _PALETTE = 0, 3  # colour types


def encode_png(pixels: npt.NDArray[np.uint8], palette: npt.NDArray[np.uint8] | None = None) -> bytes:
    """Return a picture of ``pixels``, ``(rows, columns)``: grey values, or numbers of the colours in ``palette``, ``(n, 3)``: red, green,
    blue.
    """
    rows, columns = pixels.shape
    filtered = np.zeros((rows, columns + 1), dtype=np.uint8)  # each row begins with the number of its filter: none
    filtered[:, 1:] = pixels
    header = struct.pack(">IIBBBBB", columns, rows, 8, _GREY if palette is None else _PALETTE, 0, 0, 0)
    chunks = [(b"IHDR", header)]
    if palette is not None:
        chunks.append((b"PLTE", np.ascontiguousarray(palette, dtype=np.uint8).tobytes()))
    chunks += [(b"IDAT", zlib.compress(filtered.tobytes(), 9)), (b"IEND", b"")]
    return _SIGNATURE + b"".join(map(_chunk, *zip(*chunks, strict=True)))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
