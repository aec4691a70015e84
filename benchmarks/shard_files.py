"""Shards as the leanest plain Python sees them: where chunks lie in a file, by the index at its end, without any check.

A shard is its chunks, then ``(offset, nbytes)`` of each as little-endian uint64 in C order, then four bytes of checksum.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
from numcodecs.blosc import Blosc
from numcodecs.zstd import Zstd

Index = npt.NDArray[np.uint64]
Box = tuple[slice, ...]
Coords = tuple[int, ...]

EMPTY = np.uint64(2**64 - 1)
_CHECKSUM_NBYTES = 4


@dataclass(frozen=True, slots=True)
class Layout:
    """What ``zarr.json`` says of a sharded array: shapes in elements, and zstd, blosc or no codec."""

    shape: Coords
    chunk_shape: Coords
    shard_shape: Coords
    dtype: np.dtype[Any]
    codec: Any
    """Of numcodecs; ``None``: chunks are raw."""

    @classmethod
    def of(cls, document: dict[str, Any]) -> Layout:
        sharding = document["codecs"][0]["configuration"]
        return cls(
            tuple(document["shape"]),
            tuple(sharding["chunk_shape"]),
            tuple(document["chunk_grid"]["configuration"]["chunk_shape"]),
            np.dtype(document["data_type"]).newbyteorder("<"),
            next(filter(None, map(_codec_of, sharding["codecs"])), None),
        )

    @property
    def chunks_per_shard(self) -> Coords:
        return tuple(s // c for s, c in zip(self.shard_shape, self.chunk_shape, strict=True))

    @property
    def index_nbytes(self) -> int:
        return 16 * prod(self.chunks_per_shard) + _CHECKSUM_NBYTES

    @property
    def chunk_nbytes(self) -> int:
        """Decoded."""
        return prod(self.chunk_shape) * self.dtype.itemsize

    def box(self, selection: slice | Box) -> Box:
        """A selection without open ends, one slice a dimension."""
        parts = selection if isinstance(selection, tuple) else (selection,)
        parts += (slice(None),) * (len(self.shape) - len(parts))
        return tuple(slice(*part.indices(n)[:2]) for part, n in zip(parts, self.shape, strict=True))

    def pieces(self, box: Box) -> Iterator[tuple[Coords, list[Piece]]]:
        """What of a box lies in which shard: its position in the grid of shards, and the chunks in C order."""
        for shard in product(*_touched(box, self.shard_shape)):
            origin = tuple(i * s for i, s in zip(shard, self.shard_shape, strict=True))
            inside = tuple(
                slice(max(part.start, o), min(part.stop, o + s)) for part, o, s in zip(box, origin, self.shard_shape, strict=True)
            )
            found = []
            for chunk in product(*_touched(inside, self.chunk_shape)):
                slot = 0
                out, within = [], []
                for i, o, c, per_shard, part in zip(chunk, origin, self.chunk_shape, self.chunks_per_shard, box, strict=True):
                    slot = slot * per_shard + i - o // c
                    start, stop = max(part.start, i * c), min(part.stop, (i + 1) * c)
                    out.append(slice(start - part.start, stop - part.start))
                    within.append(slice(start - i * c, stop - i * c))
                found.append(Piece(slot, tuple(out), tuple(within)))
            yield shard, found

    def decode_index(self, data: bytes | memoryview) -> Index:
        """``(slot, 2)``, from the end of a shard."""
        end = len(data) - _CHECKSUM_NBYTES
        return np.frombuffer(data[end - 16 * prod(self.chunks_per_shard) : end], "<u8").reshape(-1, 2)

    def encode_index(self, index: Index) -> bytes:
        body = index.astype("<u8", copy=False).tobytes()
        return body + struct.pack("<I", google_crc32c.value(body))

    def empty_index(self) -> Index:
        return np.full((prod(self.chunks_per_shard), 2), EMPTY)

    def encode(self, values: npt.NDArray[Any]) -> bytes:
        data = np.ascontiguousarray(values)
        return bytes(data.data.cast("B")) if self.codec is None else self.codec.encode(data)

    def place(self, piece: Piece, data: memoryview, scratch: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Decode a chunk, by way of ``scratch`` of one chunk, and put the part that is wanted into ``out``."""
        if self.codec is None:
            scratch = np.frombuffer(data, self.dtype).reshape(self.chunk_shape)
        else:
            self.codec.decode(data, scratch)
        out[piece.out] = scratch[piece.within]

    def scratch(self) -> npt.NDArray[Any]:
        return np.empty(self.chunk_shape, self.dtype)


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of one chunk that is wanted."""

    slot: int
    out: Box
    """Where it belongs."""
    within: Box
    """Where it is in the chunk."""


def _codec_of(named: dict[str, Any]) -> Any:
    """The codec of numcodecs; ``None`` of those that are none, such as ``bytes``."""
    settings = named.get("configuration", {})
    if named["name"] == "zstd":
        return Zstd(settings["level"])
    if named["name"] == "blosc":
        shuffle = {"noshuffle": Blosc.NOSHUFFLE, "shuffle": Blosc.SHUFFLE, "bitshuffle": Blosc.BITSHUFFLE}[settings["shuffle"]]
        return Blosc(settings["cname"], settings["clevel"], shuffle, typesize=settings["typesize"])
    return None


def _touched(box: Box, shape: Coords) -> list[range]:
    return [range(part.start // n, -(-part.stop // n)) for part, n in zip(box, shape, strict=True)]


def shard_path(array: Path, shard: Coords) -> Path:
    return array.joinpath("c", *map(str, shard))


def layout_of(array: Path) -> Layout:
    return Layout.of(json.loads((array / "zarr.json").read_bytes()))


def live_nbytes(array: Path) -> int:
    """Bytes of all chunks that the indices of an array refer to."""
    layout = layout_of(array)
    total = 0
    for path in array.joinpath("c").rglob("*"):
        if path.is_file() and not path.name.startswith("."):
            sizes = layout.decode_index(path.read_bytes())[:, 1]
            total += int(sizes[sizes != EMPTY].sum())
    return total
