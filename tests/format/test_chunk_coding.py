"""What is said of encoded chunks by their headers, against what the libraries write."""

from __future__ import annotations

import struct
from typing import Any

import numcodecs
import numpy as np
import pytest
from numcodecs.blosc import Blosc

from shardstore.errors import Corruption
from shardstore.format.chunk_coding import HEAD_NBYTES, ChunkCoding, check_blosc_header, checksum_fault, document_coding, header_fault
from shardstore.format.codecs import crc32c

BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
DATA = bytes(range(256)) * 40


@pytest.mark.parametrize(
    ("codecs", "expected"),
    [
        ([BYTES], ChunkCoding(nbytes=24)),
        ([BYTES, "crc32c"], ChunkCoding(nbytes=28, has_checksum=True)),
        ([{"name": "transpose", "configuration": {"order": [1, 0]}}, BYTES], ChunkCoding(nbytes=24)),
        ([BYTES, {"name": "zstd"}], ChunkCoding(compressor="zstd", compressed_nbytes=24)),
        ([BYTES, "crc32c", {"name": "blosc"}], ChunkCoding(compressor="blosc", compressed_nbytes=28)),
        ([BYTES, {"name": "gzip"}, "crc32c"], ChunkCoding(has_checksum=True, compressor="gzip", compressed_nbytes=24)),
        ([{"name": "vlen-utf8"}, {"name": "zstd"}], ChunkCoding(compressor="zstd")),
        ([BYTES, {"name": "odd"}, {"name": "zstd"}], ChunkCoding(compressor="zstd")),
        ([BYTES, {"name": "zstd"}, {"name": "odd"}], ChunkCoding()),
        ([{"name": "sharding_indexed"}], ChunkCoding()),
        (["crc32c"], ChunkCoding()),
        ("nonsense", ChunkCoding()),
    ],
)
def test_what_codecs_say(codecs: Any, expected: ChunkCoding) -> None:
    assert document_coding({"data_type": "int32", "codecs": codecs}, (2, 3)) == expected


def test_an_unknown_type_says_less() -> None:
    assert document_coding({"data_type": "odd", "codecs": [BYTES, {"name": "zstd"}]}, (2, 3)) == ChunkCoding(compressor="zstd")


CODECS = {"blosc": numcodecs.Blosc("lz4"), "zstd": numcodecs.Zstd(1), "gzip": numcodecs.GZip(1)}


@pytest.mark.parametrize("name", list(CODECS))
@pytest.mark.parametrize("nbytes", [1, 255, 256, 300, 10240])
@pytest.mark.parametrize("has_checksum", [False, True])
def test_what_libraries_write_is_right(name: Any, nbytes: int, has_checksum: bool) -> None:
    encoded = bytes(CODECS[name].encode(DATA[:nbytes]))
    data = encoded + crc32c(encoded) if has_checksum else encoded
    coding = ChunkCoding(None, has_checksum, name, nbytes)
    assert header_fault(coding, data, len(data)) is None
    assert header_fault(coding, data[:HEAD_NBYTES], len(data)) is None
    assert header_fault(ChunkCoding(None, has_checksum, name), data, len(data)) is None
    if name != "gzip":
        other = ChunkCoding(None, has_checksum, name, nbytes + 1)
        for some in (data, data[:HEAD_NBYTES]):
            fault = header_fault(other, some, len(data))
            assert fault is not None
            assert f"{nbytes + 1} were expected" in fault
    assert header_fault(coding, b"\x07" * len(data), len(data)) is not None
    assert header_fault(coding, b"", 0) is not None


def test_zstd_of_several_frames_is_right_once_all_is_there() -> None:
    one, other = (bytes(numcodecs.Zstd(1).encode(part)) for part in (DATA[:4000], DATA[4000:5000]))
    skippable = b"\x53\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"abc"
    coding = ChunkCoding(None, False, "zstd", 5000)
    data = one + skippable + other
    assert header_fault(coding, data[:HEAD_NBYTES], len(data)) is not None
    assert header_fault(coding, data, len(data)) is None
    for wrong, what in ((data[:-1], "cut"), (data + b"x", "1 bytes follow"), (one, "5000 were expected")):
        fault = header_fault(coding, wrong, len(wrong))
        assert fault is not None
        assert what in fault


def test_checksums() -> None:
    assert checksum_fault(memoryview(b"abc" + crc32c(b"abc"))) is None
    assert "its checksum is" in (checksum_fault(memoryview(b"abd" + crc32c(b"abc"))) or "")
    assert "needs 4" in (checksum_fault(memoryview(b"abc")) or "")


PACKED = bytes(Blosc().encode(np.arange(1000, dtype="i4")))


def test_blosc_buffers_of_the_library_pass() -> None:
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
def test_blosc_buffers_that_were_cut_or_changed_are_refused(data: bytes, expected: int | None) -> None:
    with pytest.raises(Corruption, match="Blosc"):
        check_blosc_header(data, expected)
