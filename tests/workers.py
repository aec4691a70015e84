"""What the tests run in other processes: importable by a spawned child, and light to import."""

from __future__ import annotations

from typing import Any

import numpy as np
import zarr

import shardstore

CHUNKS = 24

inherited: Any = None  # by a forked child


def values_of(worker: int) -> int:
    return 10 + worker


def write_share(store: shardstore.ShardedStore, path: str, worker: int, workers: int) -> int:
    """Write every ``workers``-th chunk of an array of ``CHUNKS`` one-byte chunks, one assignment each; how many."""
    array = zarr.open_array(store, path=path, mode="r+")
    mine = range(worker, CHUNKS, workers)
    for chunk in mine:
        array[chunk] = values_of(worker)
    return len(mine)


def write_rows(store: shardstore.ShardedStore, path: str, worker: int, workers: int) -> None:
    """Write every ``workers``-th row of an array, one assignment each, whatever its chunks are: row ``i`` gets ``i + 1``."""
    array = zarr.open_array(store, path=path, mode="r+")
    for row in range(worker, array.shape[0], workers):
        array[row] = row + 1


def read_all(store: shardstore.ShardedStore, path: str) -> list[int]:
    values: list[int] = np.asarray(zarr.open_array(store, path=path, mode="r")[...]).tolist()
    return values


def transformer_get(transformer: shardstore.ShardingTransformer, key: str) -> bytes | None:
    return transformer.get(key)


def write_some(fs: Any, worker: int) -> int:
    """Write every second chunk of an array of 16, one by one, read them back; how many."""
    fs = inherited if fs is None else fs
    mine = range(worker, 16, 2)
    for i in mine:
        fs.pipe_file(f"a/c/{i}", bytes([100 + worker, i]))
    assert [fs.cat_file(f"a/c/{i}") for i in mine] == [bytes([100 + worker, i]) for i in mine]
    return len(mine)
