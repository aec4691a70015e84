"""A second reader of ``sharding_indexed``: small, slow, and without a line of shardstore's.

A shard of ``n`` chunks holds an index of ``n`` pairs of uint64 ``(offset, nbytes)``, at its start or its end::

    | chunks ........................ | n x (offset, nbytes) | crc32c |      index_location = "end"
    | n x (offset, nbytes) | crc32c | chunks ........................ |      index_location = "start"
"""

from __future__ import annotations

import itertools
import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.stored import Objects

MISSING = 2**64 - 1


def _crc32c_table() -> tuple[int, ...]:
    # Castagnoli's polynomial, reflected (RFC 3720, appendix B.4).
    table = []
    for byte in range(256):
        remainder = byte
        for _ in range(8):
            remainder = (remainder >> 1) ^ (0x82F63B78 if remainder & 1 else 0)
        table.append(remainder)
    return tuple(table)


_TABLE = _crc32c_table()


def crc32c(data: bytes) -> int:
    """Checksum of ``data`` as the ``crc32c`` codec stores it (little-endian)."""
    value = 0xFFFFFFFF
    for byte in data:
        value = (value >> 8) ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Sharding:
    """What an array's stored metadata says about its shards."""

    path: str
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    chunks_per_shard: tuple[int, ...]
    encoding: str
    separator: str
    index_at_end: bool
    byte_order: str
    checksum: bool

    @property
    def chunks_in_shard(self) -> int:
        return math.prod(self.chunks_per_shard)

    @property
    def index_nbytes(self) -> int:
        return 16 * self.chunks_in_shard + (4 if self.checksum else 0)

    @property
    def grid_shape(self) -> tuple[int, ...]:
        return tuple(-(-size // chunk) for size, chunk in zip(self.shape, self.chunk_shape, strict=True))

    def key(self, coords: tuple[int, ...]) -> str:
        """The key of the chunk, or of the shard, at ``coords``: one key encoding serves both grids."""
        prefix = f"{self.path}/" if self.path else ""
        if self.encoding == "default":
            return prefix + self.separator.join(["c", *map(str, coords)])
        return prefix + (self.separator.join(map(str, coords)) or "0")

    def coords(self, key: str) -> tuple[int, ...] | None:
        """The inverse of ``key``, or ``None`` where the key is none of this array's."""
        prefix = f"{self.path}/" if self.path else ""
        parts = key.removeprefix(prefix).split(self.separator)
        if self.encoding == "default":
            parts = parts[1:]
        elif not self.shape:
            parts = []
        if not all(part.isdecimal() for part in parts):
            return None
        coords = tuple(map(int, parts))
        return coords if len(coords) == len(self.shape) and self.key(coords) == key else None


def sharding(path: str, metadata: dict[str, Any]) -> Sharding | None:
    """How the array at ``path`` is sharded, or ``None`` where ``sharding_indexed`` is not its only codec."""
    codecs = metadata["codecs"]
    if len(codecs) != 1 or codecs[0]["name"] != "sharding_indexed":
        return None
    configuration = codecs[0]["configuration"]
    shard_shape = metadata["chunk_grid"]["configuration"]["chunk_shape"]
    chunk_shape = configuration["chunk_shape"]
    index_codecs = {codec["name"]: codec.get("configuration", {}) for codec in configuration["index_codecs"]}
    assert set(index_codecs) <= {"bytes", "crc32c"}
    encoding = metadata["chunk_key_encoding"]
    default_separator = "/" if encoding["name"] == "default" else "."
    return Sharding(
        path=path,
        shape=tuple(metadata["shape"]),
        chunk_shape=tuple(chunk_shape),
        chunks_per_shard=tuple(shard // chunk for shard, chunk in zip(shard_shape, chunk_shape, strict=True)),
        encoding=encoding["name"],
        separator=encoding.get("configuration", {}).get("separator", default_separator),
        index_at_end=configuration.get("index_location", "end") == "end",
        byte_order="<" if index_codecs["bytes"]["endian"] == "little" else ">",
        checksum="crc32c" in index_codecs,
    )


def index_entries(layout: Sharding, shard: bytes) -> list[tuple[int, int]]:
    """The ``(offset, nbytes)`` pairs of ``shard``, in C order of the chunks."""
    nbytes = layout.index_nbytes
    encoded = shard[-nbytes:] if layout.index_at_end else shard[:nbytes]
    assert len(encoded) == nbytes
    if layout.checksum:
        (stored,) = struct.unpack("<I", encoded[-4:])
        encoded = encoded[:-4]
        assert crc32c(encoded) == stored
    numbers = struct.unpack(f"{layout.byte_order}{2 * layout.chunks_in_shard}Q", encoded)
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def encode_index(layout: Sharding, entries: list[tuple[int, int]]) -> bytes:
    """The inverse of ``index_entries``: entries need not make sense."""
    encoded = struct.pack(f"{layout.byte_order}{2 * len(entries)}Q", *itertools.chain.from_iterable(entries))
    return encoded + struct.pack("<I", crc32c(encoded)) if layout.checksum else encoded


def shard_chunks(layout: Sharding, shard_coords: tuple[int, ...], shard: bytes) -> Iterator[tuple[str, bytes]]:
    """Key and bytes of every chunk that ``shard`` holds, those beyond the array's edge included."""
    slots = itertools.product(*map(range, layout.chunks_per_shard))
    for slot, (offset, nbytes) in zip(slots, index_entries(layout, shard), strict=True):
        if (offset, nbytes) == (MISSING, MISSING):
            continue
        assert offset + nbytes <= len(shard)
        coords = tuple(s * n + i for s, n, i in zip(shard_coords, layout.chunks_per_shard, slot, strict=True))
        yield layout.key(coords), shard[offset : offset + nbytes]


def sharded_arrays(objects: Objects) -> dict[str, Sharding]:
    """The sharded arrays of a stored hierarchy by path."""
    found = {}
    for key in objects.keys():  # noqa: SIM118 - no mapping
        if key != "zarr.json" and not key.endswith("/zarr.json"):
            continue
        path = key.removesuffix("zarr.json").rstrip("/")
        data = objects.get(key)
        assert data is not None
        metadata = json.loads(data)
        layout = sharding(path, metadata) if metadata["node_type"] == "array" else None
        if layout is not None:
            found[path] = layout
    return found


def presented(objects: Objects) -> dict[str, bytes]:
    """What a view must show: chunks by key instead of shards, everything else as it is stored.

    Array metadata is not translated here: its values are the stored ones.
    """
    layouts = sharded_arrays(objects)
    shown: dict[str, bytes] = {}
    for key in objects.keys():  # noqa: SIM118 - no mapping
        data = objects.get(key)
        assert data is not None
        for layout in layouts.values():
            coords = layout.coords(key)
            if coords is not None:
                shown.update(shard_chunks(layout, coords, data))
                break
        else:
            shown[key] = data
    return shown
