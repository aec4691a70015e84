"""What the tests run in other processes: importable by a spawned child, and light to import."""

from __future__ import annotations

import numpy as np
import zarr

import shardstore

CHUNKS = 24


def values_of(worker: int) -> int:
    return 10 + worker


def write_share(store: shardstore.ShardedStore, path: str, worker: int, workers: int) -> int:
    """Write every ``workers``-th chunk of an array of ``CHUNKS`` one-byte chunks, one assignment each; how many."""
    array = zarr.open_array(store, path=path, mode="r+")
    mine = range(worker, CHUNKS, workers)
    for chunk in mine:
        array[chunk] = values_of(worker)
    return len(mine)


def read_all(store: shardstore.ShardedStore, path: str) -> list[int]:
    values: list[int] = np.asarray(zarr.open_array(store, path=path, mode="r")[...]).tolist()
    return values


def transformer_get(transformer: shardstore.ShardingTransformer, key: str) -> bytes | None:
    return transformer.get(key)
