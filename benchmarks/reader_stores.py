"""Stores that ``benchmarks/readers.py`` gives to readers: each written through shardstore, each with one peculiarity.

A store is a group with one array, ``0``, two-dimensional where nothing else is said. The group says that it is an image of OME-Zarr 0.5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
)

import shardstore

ARRAY = "0"
SHAPE, CHUNKS, CHUNKS_PER_SHARD = (40, 56), (8, 8), (2, 2)  # neither dimension is a whole number of shards
DTYPE = "<i4"
FILL_VALUE = 7

_ELEMENT: dict[str, Any] = {"encoding-type": "array", "encoding-version": "0.2.0"}
"""The attributes that anndata writes to an array, and looks for."""

Values = npt.NDArray[np.int32]

_OME = {
    "version": "0.5",
    "multiscales": [
        {
            "name": "image",
            "axes": [{"name": name, "type": "space"} for name in "yx"],
            "datasets": [{"path": ARRAY, "coordinateTransformations": [{"type": "scale", "scale": [1.0, 1.0]}]}],
        }
    ],
}


@dataclass(frozen=True, slots=True)
class StoreCase:
    """A store: ``what`` is peculiar about it, in the words of the page, and how it is made."""

    name: str
    what: str
    make: Callable[[Path], Values]
    """Writes the store at a path that does not exist, and returns the values of the array."""
    is_image: bool = True
    """Whether the array is one of the two dimensions that images have."""


def _values(shape: tuple[int, ...] = SHAPE) -> Values:
    return np.arange(1, int(np.prod(shape)) + 1, dtype=DTYPE).reshape(shape)


def _create(path: Path, *, store: dict[str, Any] | None = None, **array: Any) -> zarr.Array[Any]:
    opened = shardstore.open(path, **{"chunks_per_shard": CHUNKS_PER_SHARD, **(store or {})})
    group = zarr.create_group(opened, attributes={"ome": _OME})
    options: dict[str, Any] = {"shape": SHAPE, "chunks": CHUNKS, "dtype": DTYPE, "fill_value": FILL_VALUE, "dimension_names": ("y", "x")}
    options["attributes"] = _ELEMENT
    return group.create_array(ARRAY, **{**options, **array})


def _full(store: dict[str, Any] | None = None, **array: Any) -> Callable[[Path], Values]:
    def make(path: Path) -> Values:
        values = _values()
        _create(path, store=store, **array)[...] = values
        return values

    return make


def _with_dead_bytes(path: Path) -> Values:
    values = _values()
    options = {"strategy": "append", "max_dead_fraction": 0.9}
    array = _create(path, store=options)
    array[...] = 1
    for row in range(0, SHAPE[0], CHUNKS[0]):
        array[row : row + CHUNKS[0]] = values[row : row + CHUNKS[0]]
    return values


def _sparse(path: Path) -> Values:
    """One chunk of a shard, two of another, and no shard at all at the other places."""
    values = np.full(SHAPE, FILL_VALUE, DTYPE)
    array = _create(path)
    for rows, columns in ((slice(0, 8), slice(8, 16)), (slice(16, 32), slice(40, 48))):
        array[rows, columns] = values[rows, columns] = _values()[rows, columns]
    return values


def _scalar(path: Path) -> Values:
    array = _create(path, store={"chunks_per_shard": ()}, shape=(), chunks=(), dimension_names=())
    array[...] = 42
    return np.array(42, DTYPE)


def _nested(path: Path) -> Values:
    """Made by zarr-python, which alone can ask for it, and written through shardstore."""
    values = _values()
    group = zarr.create_group(path, attributes={"ome": _OME})
    innermost = ShardingCodec(chunk_shape=(4, 4), codecs=[BytesCodec(), ZstdCodec()])
    group.create_array(
        ARRAY,
        shape=SHAPE,
        chunks=(16, 16),
        dtype=DTYPE,
        fill_value=FILL_VALUE,
        attributes=_ELEMENT,
        dimension_names=("y", "x"),
        serializer=ShardingCodec(chunk_shape=CHUNKS, codecs=[innermost]),
        compressors=None,
    )
    zarr.open_group(shardstore.open(path), mode="r+")[ARRAY][...] = values  # type: ignore[index]  # an array
    return values


CASES: tuple[StoreCase, ...] = (
    StoreCase("plain", "index at the end with a checksum, zstd: what shardstore writes by default", _full()),
    StoreCase("start", 'index at the start (`index_location="start"`)', _full({"index_location": "start"})),
    StoreCase("unchecked", "index without a checksum (`index_checksum=False`)", _full({"index_checksum": False})),
    StoreCase("dead", 'bytes that no index entry refers to (`strategy="append"`)', _with_dead_bytes),
    StoreCase("sparse", "chunks and whole shards that are missing", _sparse),
    StoreCase("raw", "chunks without compression", _full(compressors=None)),
    StoreCase("gzip", "gzip", _full(compressors=GzipCodec())),
    StoreCase("blosc", "blosc", _full(compressors=BloscCodec())),
    StoreCase("crc32c", "zstd, then crc32c over each chunk", _full(compressors=[ZstdCodec(), Crc32cCodec()])),
    StoreCase("transpose", "transposition in front of each chunk's codecs", _full(filters=TransposeCodec(order=(1, 0)))),
    StoreCase("dot", "chunk keys with dots (`c.0.1`)", _full(chunk_key_encoding={"name": "default", "separator": "."})),
    StoreCase("nested", "shards that hold shards", _nested),
    StoreCase("scalar", "an array of no dimensions", _scalar, is_image=False),
)
