"""Blosc buffers: what the library made passes, what was cut or changed does not reach it."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from numcodecs.blosc import Blosc

from shardstore.errors import Corruption
from shardstore.format.blosc_header import check_blosc_header

PACKED = bytes(Blosc().encode(np.arange(1000, dtype="i4")))


def test_what_the_library_made_passes() -> None:
    check_blosc_header(PACKED, 4000)
    check_blosc_header(memoryview(PACKED), None)
    check_blosc_header(bytes(Blosc().encode(b"")), 0)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", None),
        (PACKED[:15], None),
        (PACKED[:-1], 4000),
        (PACKED + b"x", 4000),
        (PACKED, 3999),
        (PACKED[:4] + struct.pack("<i", -1) + PACKED[8:], None),
        (PACKED[:4] + struct.pack("<i", 2**31 - 1) + PACKED[8:], 4000),
    ],
)
def test_what_was_cut_or_changed_does_not(data: bytes, expected: int | None) -> None:
    with pytest.raises(Corruption, match="Blosc"):
        check_blosc_header(data, expected)
