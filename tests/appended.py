"""The version that a file shows to which bytes are being appended, by a reader that shares nothing with shardstore's.

See ``shardstore.storage.local_append_record`` for the format.
"""

from __future__ import annotations

import struct

import google_crc32c

_MAGIC = bytes.fromhex("b7d05c3ee29f4a7c9d1184a6f32c08eb")


def shown(data: bytes) -> bytes:
    """What counts of a file's bytes: all of them, or those that were there before an append that has not ended."""
    at = (len(data) - 64) // 64 * 64
    record = data[at : at + 64] if at >= 0 else b""
    if record[:16] != _MAGIC:
        return data
    position, old_nbytes = struct.unpack("<QQ", record[16:32])
    assert position == at
    assert google_crc32c.value(record[:60]) == int.from_bytes(record[60:], "little")
    return data[:old_nbytes]
