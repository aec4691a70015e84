"""The ``crc32c`` codec: a 4-byte little-endian CRC-32C behind the bytes that it covers."""

from __future__ import annotations

import google_crc32c
import numpy as np

from shardstore.model.ranges import BytesLike

CRC32C_NBYTES = 4

_COPIED_NBYTES = 2**12  # so many are copied in less time than an array is made


def crc32c(data: BytesLike) -> bytes:
    """Return the checksum as the four bytes that are stored (Zarr v3 ``crc32c`` codec). Long data are not copied."""
    readable = bytes(data) if len(data) < _COPIED_NBYTES else np.frombuffer(data, np.uint8)  # it takes no memoryview
    return int(google_crc32c.value(readable)).to_bytes(CRC32C_NBYTES, "little")
