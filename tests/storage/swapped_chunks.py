"""Versions of a shard that are of equal size and laid out otherwise, one right after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import zarr

import shardstore

_CHUNKS = 16
_TURNS = 30


def check_readers_of_swapped_chunks(directory: Path, strategy: Literal["rewrite", "append"]) -> None:
    """Of each pair of chunks one is there, the other erased. Two writers swap pairs in turn; a reader sees each chunk's own value.

    An index that is believed of another version shows the neighbour's value, or loses a pair that was written.
    """
    url = str(directory / "store")
    store = shardstore.open(url, chunks_per_shard=(_CHUNKS,), fsync=False)
    array = zarr.create_array(store, name="x", shape=(_CHUNKS * 4,), chunks=(4,), dtype="u4", fill_value=0, compressors=None)
    clients = []
    for name in ("b", "c", "d"):  # names of their own, or they would share what they remember
        (directory / name).symlink_to(url)
        clients.append(zarr.open_array(shardstore.open(str(directory / name), fsync=False, strategy=strategy), path="x", mode="r+"))
    *writers, reader = clients
    wanted = np.zeros((_CHUNKS, 4), "u4")
    wanted[::2] = 1000 + np.arange(0, _CHUNKS, 2)[:, None]
    array[...] = wanted.ravel()
    for turn in range(_TURNS):
        pair, on = turn * 7 % (_CHUNKS // 2) * 2, turn // 3 % 2
        wanted[pair : pair + 2] = 0
        wanted[pair + on] = 1000 + pair + on
        writers[turn % 2][pair * 4 : pair * 4 + 8] = wanted[pair : pair + 2].ravel()
        for chunk in (pair, pair + 1, (pair + 5) % _CHUNKS):
            assert np.array_equal(reader[chunk * 4 : chunk * 4 + 4], wanted[chunk])
    if strategy == "rewrite":  # others find no more than the beginning of what is being appended, so they are asked at the end
        assert np.array_equal(np.asarray(zarr.open_array(url, path="x", mode="r")[...]).reshape(_CHUNKS, 4), wanted)
