"""Facts about the encoded bytes of a chunk that need no decoding.

The codecs of an array show how long its chunks are (where they only arrange elements), whether each ends with a checksum, and which
compressor's header is at its start. Three compressors store the decoded size there::

    blosc   | version | versionlz | flags | typesize | nbytes: int32 | blocksize: int32 | cbytes: int32 | ...
    zstd    | 28 b5 2f fd | descriptor | window (0..1) | dictionary (0..4) | content size (0..8, may be absent) | blocks ... |
    gzip    | 1f 8b 08 | ...

A chunk of another array, or bytes out of the middle of one, rarely agree with it. Specifications: Zarr v3 codecs; RFC 8878, RFC 1952;
c-blosc, README_CHUNK_FORMAT.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from typing import Literal

from shardstore.errors import Corruption
from shardstore.format.codecs import CRC32C_NBYTES, codec_name, crc32c
from shardstore.format.json_text import JsonObject
from shardstore.format.metadata_v3 import encoded_chunk_nbytes, item_nbytes
from shardstore.model.ranges import BytesLike

Compressor = Literal["blosc", "zstd", "gzip"]

HEAD_NBYTES = 32
"""The number of bytes at the start of a chunk that hold a header."""

_COMPRESSORS: dict[str | None, Compressor] = {
    "blosc": "blosc",
    "zstd": "zstd",
    "gzip": "gzip",
    "numcodecs.blosc": "blosc",
    "numcodecs.zstd": "zstd",
    "numcodecs.gzip": "gzip",
}
_ARRANGING = frozenset({"bytes", "endian", "transpose"})

_BLOSC_HEADER = struct.Struct("<BBBBiii")
BLOSC_HEADER_NBYTES = _BLOSC_HEADER.size
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = b"\x2a\x4d\x18"  # after a byte 0x50 to 0x5f
_GZIP_MAGIC = b"\x1f\x8b\x08"


@dataclass(frozen=True, slots=True)
class ChunkCoding:
    """The facts that the codecs of an array give about each of its encoded chunks."""

    nbytes: int | None = None
    """The size of every chunk, where the codecs give all of them the same."""
    has_checksum: bool = False
    """True where the last codec is ``crc32c``."""
    compressor: Compressor | None = None
    """The compressor whose bytes a chunk starts with, where its header is known here."""
    compressed_nbytes: int | None = None
    """The size of the compressor's input for each chunk, where it is the same for all."""

    @property
    def has_size_in_header(self) -> bool:
        """True where headers give a size that is compared with the metadata."""
        return self.compressor is not None and self.compressed_nbytes is not None


def document_coding(presented: JsonObject, chunk_shape: tuple[int, ...]) -> ChunkCoding:
    """Return the facts from a presented document whose chunks have this shape."""
    data_type, codecs = presented.get("data_type"), presented.get("codecs")
    names = [codec_name(codec) for codec in codecs] if isinstance(codecs, list) else []
    has_checksum = len(names) > 1 and names[-1] == "crc32c"
    nbytes = encoded_chunk_nbytes(chunk_shape, data_type, codecs)
    before = names[:-1] if has_checksum else names
    compressor = _COMPRESSORS.get(before[-1]) if before else None
    compressed_nbytes = None
    if compressor is not None:
        item = item_nbytes(data_type)
        inner = before[:-1]
        checksums = inner.count("crc32c")
        if item is not None and {"bytes", "endian"} & set(inner) and set(inner) <= _ARRANGING | {"crc32c"}:
            compressed_nbytes = prod(chunk_shape) * item + checksums * CRC32C_NBYTES
    return ChunkCoding(nbytes, has_checksum, compressor, compressed_nbytes)


def checksum_fault(data: memoryview) -> str | None:
    """Return in words the fault of a chunk that ends with a checksum; ``None`` where it has none."""
    if len(data) < CRC32C_NBYTES:
        return f"it has {len(data)} bytes, its checksum alone needs {CRC32C_NBYTES}"
    body, stored = data[:-CRC32C_NBYTES], bytes(data[-CRC32C_NBYTES:])
    computed = crc32c(body)
    return None if stored == computed else f"its checksum is {stored.hex()} but its bytes give {computed.hex()}"


def header_fault(coding: ChunkCoding, data: BytesLike, nbytes: int) -> str | None:
    """Return in words the fault in the header of a chunk of ``nbytes`` bytes; ``data`` is the start of the chunk or all of it.

    A fault found in the start alone may disappear when all bytes are there: a zstd chunk may have several frames.
    """
    view = memoryview(data)
    checksum_nbytes = CRC32C_NBYTES if coding.has_checksum else 0
    if nbytes < checksum_nbytes:
        return f"it has {nbytes} bytes"
    nbytes -= checksum_nbytes
    is_whole = len(view) >= nbytes
    view = view[:nbytes]
    match coding.compressor:
        case "blosc":
            try:
                check_blosc_header(view[:BLOSC_HEADER_NBYTES], coding.compressed_nbytes, nbytes)
            except Corruption as exc:
                return str(exc)
        case "zstd":
            return _zstd_fault(view, coding.compressed_nbytes, is_whole)
        case "gzip":
            if bytes(view[:3]) != _GZIP_MAGIC:
                return "it does not begin as a gzip stream does"
        case None:
            pass
    return None


def check_blosc_header(data: BytesLike, decoded_nbytes: int | None, encoded_nbytes: int | None = None) -> None:
    """Refuse a buffer whose header contradicts its length, or the expected ``decoded_nbytes``, if they are known.

    ``encoded_nbytes`` is the length of the buffer, where ``data`` is only the start of it. Raises ``Corruption`` if the buffer is cut,
    extended, or of another size.
    """
    if encoded_nbytes is None:
        encoded_nbytes = len(data)
    if len(data) < BLOSC_HEADER_NBYTES:
        raise Corruption(f"a Blosc buffer has a header of {BLOSC_HEADER_NBYTES} bytes, this one has {len(data)} in all")
    _, _, _, _, nbytes, _, cbytes = _BLOSC_HEADER.unpack_from(data)
    if cbytes != encoded_nbytes:
        raise Corruption(f"the Blosc header says {cbytes} bytes, there are {encoded_nbytes}")
    if nbytes < 0 or (decoded_nbytes is not None and nbytes != decoded_nbytes):
        raise Corruption(f"the Blosc header says {nbytes} decoded bytes, {decoded_nbytes} were expected")


def _zstd_fault(view: memoryview, decoded_nbytes: int | None, is_whole: bool) -> str | None:
    total = 0
    at = 0
    while at < len(view) or at == 0:
        if bytes(view[at + 1 : at + 4]) == _ZSTD_SKIPPABLE and view[at] & 0xF0 == 0x50:
            if len(view) < at + 8:
                return "its last zstd frame is cut"
            at += 8 + int.from_bytes(view[at + 4 : at + 8], "little")
            continue
        if bytes(view[at : at + 4]) != _ZSTD_MAGIC:
            return "it does not begin as a zstd frame does" if at == 0 else f"{len(view) - at} bytes follow its last zstd frame"
        header = zstd_frame_header(view[at:])
        if header is None:
            return "its zstd header is cut"
        header_nbytes, content_nbytes, has_checksum = header
        if not is_whole:
            return _zstd_size_fault(content_nbytes, decoded_nbytes)
        end = _zstd_end(view, at + header_nbytes, has_checksum)
        if end is None:
            return "its last zstd frame is cut"
        if content_nbytes is None:
            decoded_nbytes = None  # only decoding shows it then
        total += content_nbytes or 0
        at = end
    return _zstd_size_fault(total, decoded_nbytes)


def _zstd_size_fault(content_nbytes: int | None, decoded_nbytes: int | None) -> str | None:
    if content_nbytes is None or decoded_nbytes is None or content_nbytes == decoded_nbytes:
        return None
    return f"its zstd header says {content_nbytes} decoded bytes, {decoded_nbytes} were expected"


def zstd_frame_header(frame: memoryview) -> tuple[int, int | None, bool] | None:
    """Return the length of a frame's header, the content size where it is stored, and whether a checksum ends the frame; ``None`` where
    the header is cut.

    Specification: RFC 8878, 3.1.1.1.
    """
    if len(frame) < 5:
        return None
    descriptor = frame[4]
    is_single_segment = bool(descriptor & 0x20)
    size_nbytes = (int(is_single_segment), 2, 4, 8)[descriptor >> 6]
    at = 5 + (not is_single_segment) + (0, 1, 2, 4)[descriptor & 3]
    if len(frame) < at + size_nbytes:
        return None
    content = int.from_bytes(frame[at : at + size_nbytes], "little") + (256 if size_nbytes == 2 else 0)
    return at + size_nbytes, content if size_nbytes else None, bool(descriptor & 4)


def _zstd_end(view: memoryview, at: int, has_checksum: bool) -> int | None:
    """Return where the blocks that begin at ``at`` end; ``None`` where the bytes end before (RFC 8878, 3.1.1.2)."""
    is_last = False
    while not is_last:
        if at + 3 > len(view):
            return None
        block = int.from_bytes(view[at : at + 3], "little")
        is_last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
        at += 3 + (1 if kind == 1 else size)  # a run of one byte is stored as that byte
    at += 4 if has_checksum else 0
    return at if at <= len(view) else None
