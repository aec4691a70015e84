"""The version that a file shows to which bytes are being appended, by a reader that shares nothing with shardstore's.

See ``shardstore.storage.local.append_record`` for the format.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import google_crc32c


def shown(path: Path) -> bytes | None:
    """What counts of a file's bytes: all of them, or those that were there before an append that has not ended; ``None``: no file."""
    if not path.is_file():
        return None
    data = path.read_bytes()
    try:
        record = os.getxattr(path, "user.shardstore.append")
    except OSError:
        return data
    if not any(record):
        return data
    position, old_nbytes = struct.unpack("<QQ", record[16:32])
    assert position == old_nbytes
    assert google_crc32c.value(record[:60]) == int.from_bytes(record[60:], "little")
    rest = data[old_nbytes : old_nbytes + 64]
    return data[:old_nbytes] if rest and record.startswith(rest) else data
