# mypy: ignore-errors
# The types are those of zarr-python 2, which is not installed where they are checked.
"""zarr-python 2.18's own sharding transformer: ``draft_programs.py write|read|update PATH``, run by its own interpreter.

``write`` makes arrays and a file of what is in them, ``read`` and ``update`` go by such a file. Needs the environment variables
``ZARR_V3_EXPERIMENTAL_API=1`` and ``ZARR_V3_SHARDING=1``, and pytest, which its decoder of metadata imports.
"""

from __future__ import annotations

import sys
from typing import Any

import numcodecs
import numpy as np
import zarr
from zarr._storage.v3_storage_transformers import ShardingStorageTransformer

LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {"shape": (37,), "chunks": (5,), "dtype": "<f8", "per_shard": (3,)},
    "two": {"shape": (10, 12), "chunks": (2, 3), "dtype": ">i4", "per_shard": (2, 2), "compressor": numcodecs.Zlib(2)},
    "dots": {"shape": (10, 12), "chunks": (2, 3), "dtype": "<u2", "per_shard": (4, 1), "dimension_separator": "."},
    "group/three": {"shape": (5, 6, 7), "chunks": (2, 2, 2), "dtype": "|u1", "per_shard": (1, 2, 4), "order": "F"},
    "four": {"shape": (3, 4, 5, 6), "chunks": (1, 2, 2, 3), "dtype": "<i2", "per_shard": (2, 2, 1, 2), "compressor": None},
}


def values(name: str) -> Any:
    layout = LAYOUTS[name]
    return np.arange(1, 1 + int(np.prod(layout["shape"]))).reshape(layout["shape"]).astype(layout["dtype"])


def update(array: Any, expected: Any) -> None:
    """Part of chunks, whole chunks to the fill value, and an erased one."""
    first = tuple(slice(0, max(1, n // 2)) for n in expected.shape)
    for data in (array, expected):
        data[first] = 7
        data[(slice(-1, None),) * expected.ndim] = 99


def write(path: str) -> None:
    store = zarr.DirectoryStoreV3(path)
    held = {}
    for name, layout in LAYOUTS.items():
        options = {k: v for k, v in layout.items() if k != "per_shard"}
        transformer = ShardingStorageTransformer("indexed", chunks_per_shard=layout["per_shard"])
        array = zarr.create(store=store, path=name, zarr_version=3, fill_value=0, storage_transformers=[transformer], **options)
        inside = tuple(slice(0, max(1, n - 3)) for n in layout["shape"])  # some chunks, and some shards, stay missing
        held[name] = np.zeros(layout["shape"], layout["dtype"])
        array[inside] = held[name][inside] = values(name)[inside]
        update(array, held[name])
    np.savez(f"{path}.npz", **{name.replace("/", "|"): value for name, value in held.items()})


def opened(path: str, name: str) -> Any:
    return zarr.open_array(zarr.DirectoryStoreV3(path), path=name, mode="r+", zarr_version=3)


def read(path: str) -> None:
    with np.load(f"{path}.npz") as held:
        for name, value in held.items():
            np.testing.assert_array_equal(opened(path, name.replace("|", "/"))[...], value)


def update_all(path: str) -> None:
    with np.load(f"{path}.npz") as held:
        changed = dict(held.items())
    for name, value in changed.items():
        array = opened(path, name.replace("|", "/"))
        update(array, value)
        np.testing.assert_array_equal(array[...], value)
    np.savez(f"{path}.npz", **changed)


if __name__ == "__main__":
    {"write": write, "read": read, "update": update_all}[sys.argv[1]](sys.argv[2])
