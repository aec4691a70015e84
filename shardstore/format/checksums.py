"""The ``crc32c`` codec: a 4-byte little-endian CRC-32C behind the bytes that it covers."""

from __future__ import annotations

import google_crc32c

from shardstore.model.ranges import BytesLike

CRC32C_NBYTES = 4


def crc32c(data: BytesLike) -> bytes:
    """The checksum as the four bytes that are stored (Zarr v3 ``crc32c`` codec)."""
    return int(google_crc32c.value(bytes(data))).to_bytes(CRC32C_NBYTES, "little")
