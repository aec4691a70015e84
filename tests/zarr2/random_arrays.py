# mypy: ignore-errors
# The types are those of zarr-python 2, which is not installed where they are checked.
"""Random arrays of zarr-python 2, written in the same way to a view and to a plain store: ``random_arrays.py v2|draft COUNT [SEED]``.

Run by an interpreter of its own; ``draft`` needs ``ZARR_V3_EXPERIMENTAL_API=1``. Every key and value has to be equal.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import numcodecs
import numpy as np
import zarr
from numcodecs.compat import ensure_bytes
from zarr._storage.v3 import KVStoreV3
from zarr.storage import KVStore

import shardstore

COMPRESSORS = [None, None, numcodecs.Zlib(1), numcodecs.Blosc()]  # no gzip, which writes the time
DTYPES = ["|b1", "|u1", "<i2", ">i4", "<f4", ">f8"]
DTYPES_OF_V2 = ["<c8", "<M8[s]", "|S3", "<U2"]


def layout(present: str, r: random.Random) -> dict[str, Any]:
    ndim = r.choice([0, 1, 1, 2, 2, 2, 3, 4])
    shape = tuple(r.randint(1, 9) for _ in range(ndim))
    dtype = r.choice(DTYPES + (DTYPES_OF_V2 if present == "v2" else []))
    made = {
        "shape": shape,
        "chunks": tuple(r.randint(1, n + 1) for n in shape),
        "dtype": dtype,
        "order": r.choice("CF"),
        "compressor": r.choice(COMPRESSORS + ([numcodecs.Zstd(1), numcodecs.LZ4()] if present == "v2" else [])),
        "fill_value": None if dtype in DTYPES_OF_V2 else r.choice([0, None]),
        "dimension_separator": r.choice("./"),
    }
    if present == "v2":
        made["write_empty_chunks"] = r.choice([True, False])
        if dtype in ("|u1", "<i2", ">i4") and r.random() < 0.2:
            made["filters"] = [numcodecs.Delta(dtype)]
    else:
        made["zarr_version"] = 3
    return made


def values(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    numbers = rng.integers(0, 2 if dtype == "|b1" else 100, shape)
    return numbers.astype("<i8").astype(dtype) if "M8" in dtype else numbers.astype(dtype)


def change(arrays: list[Any], dtype: str, r: random.Random, rng: np.random.Generator) -> None:
    """The same change of each: part of it, its shape, or its end."""
    shape, kind = arrays[0].shape, r.random()
    if kind < 0.7 or not shape:
        where = tuple(slice(start := r.randint(0, n - 1), r.randint(start + 1, n)) for n in shape)
        data = values(dtype, tuple(s.stop - s.start for s in where), rng)
        for array in arrays:
            array[where or ...] = data
    elif kind < 0.85:
        new = tuple(r.randint(1, 9) for _ in shape)
        for array in arrays:
            array.resize(new)
    else:
        data = values(dtype, (r.randint(1, 3), *shape[1:]), rng)
        for array in arrays:
            array.append(data)


def compare(present: str, seed: int) -> bool:
    """Whether the array could be made at all: what has no exact counterpart is refused."""
    r, rng = random.Random(seed), np.random.default_rng(seed)
    made = layout(present, r)
    per_shard = tuple(r.randint(1, 3) for _ in made["shape"])
    view = shardstore.get_mapper(f"memory://random-{seed}", present=present, chunks_per_shard=per_shard or None)
    plain = KVStore({}) if present == "v2" else KVStoreV3({})
    try:
        ours = zarr.create(store=view, path="x", **made)
    except shardstore.ShardStoreError:
        return False
    arrays = [ours, zarr.create(store=plain, path="x", **made)]
    for _ in range(r.randint(1, 5)):
        change(arrays, made["dtype"], r, rng)
    if made["fill_value"] is not None:
        np.testing.assert_array_equal(*(array[...] for array in arrays), err_msg=f"seed {seed}: {made}, {per_shard}")
    held, expected = ({key: ensure_bytes(value) for key, value in store.items()} for store in (view, plain))
    assert held == expected, f"seed {seed}: {made}, {per_shard}"
    return True


if __name__ == "__main__":
    present, count, seed = sys.argv[1], int(sys.argv[2]), int((sys.argv[3:] or ["0"])[0])
    done = sum(compare(present, seed + i) for i in range(count))
    assert done > count // 2, f"only {done} of {count} arrays could be made"
