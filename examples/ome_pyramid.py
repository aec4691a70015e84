"""Write a real volume as an OME-Zarr 0.5 multiscale pyramid in shards, and read it with readers that know nothing of shardstore.

The volume is an MRI of a head. Each level halves the one before by the mean of 2³ voxels, down to one that fits a chunk. The
arrays are called "0", "1", "2", … as viewers expect, and are stored as ordinary Zarr v3 shards of up to 64 chunks.

    python examples/ome_pyramid.py                                # a temporary directory, removed at the end
    python examples/ome_pyramid.py s3://bucket/head.ome.zarr      # any place that fsspec can write to; it stays

Specification: OME-Zarr 0.5, "multiscales" metadata.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from nifti import read_nifti
from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore

import shardstore
from shardstore.errors import ShardStoreError

VOLUME = Path(__file__).parent / "data" / "mni_icbm152_t1_tal_nlin_sym_09a_converted.nii.gz"
VOXEL_MILLIMETERS = 1.0
AXES = ("z", "y", "x")
CHUNKS = (32, 32, 32)
CHUNKS_PER_SHARD = (4, 4, 4)

Volume = npt.NDArray[np.generic]


def halved(volume: Volume) -> Volume:
    """The means of blocks of 2³ voxels, rounded where the type has no fractions; a last odd plane is repeated."""
    even = np.pad(volume, [(0, n % 2) for n in volume.shape], mode="edge")
    z, y, x = (n // 2 for n in even.shape)
    means = even.reshape(z, 2, y, 2, x, 2).mean(axis=(1, 3, 5))
    half: Volume = (means if volume.dtype.kind == "f" else np.rint(means)).astype(volume.dtype)
    return half


def pyramid(volume: Volume) -> list[Volume]:
    """The levels, the finest first, down to the first that is no longer than a chunk along any axis."""
    levels = [volume]
    while any(n > c for n, c in zip(levels[-1].shape, CHUNKS, strict=True)):
        levels.append(halved(levels[-1]))
    return levels


def ome_metadata(name: str, n_levels: int) -> dict[str, Any]:
    """The ``ome`` attribute of the group.

    The first voxel of level ``k`` is the mean of the first ``2**k`` voxels along each axis, so its centre lies ``(2**k - 1) / 2``
    voxels from that of level 0.
    """
    datasets = []
    for level in range(n_levels):
        scale = VOXEL_MILLIMETERS * 2**level
        offset = VOXEL_MILLIMETERS * (2**level - 1) / 2
        transformations = [
            {"type": "scale", "scale": [scale] * len(AXES)},
            {"type": "translation", "translation": [offset] * len(AXES)},
        ]
        datasets.append({"path": str(level), "coordinateTransformations": transformations})
    axes = [{"name": axis, "type": "space", "unit": "millimeter"} for axis in AXES]
    multiscale = {"name": name, "axes": axes, "datasets": datasets, "type": "mean", "metadata": {"method": "numpy.mean"}}
    return {"version": "0.5", "multiscales": [multiscale]}


def write(store: Store, levels: list[Volume]) -> None:
    group = zarr.create_group(store, attributes={"ome": ome_metadata("t1", len(levels))})
    for number, level in enumerate(levels):
        array = group.create_array(str(number), shape=level.shape, chunks=CHUNKS, dtype=level.dtype, dimension_names=AXES)
        array[...] = level


def read_with_zarr(store: Store) -> list[Volume]:
    """The levels that the metadata names, in its order."""
    group = zarr.open_group(store, mode="r")
    ome: Any = group.attrs["ome"]
    return [np.asarray(group[dataset["path"]][...]) for dataset in ome["multiscales"][0]["datasets"]]  # type: ignore[index]


def read_with_tensorstore(path: str, n_levels: int) -> list[Volume]:
    import tensorstore

    levels = []
    for level in range(n_levels):
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/{level}/"}}
        levels.append(np.asarray(tensorstore.open(spec, read=True).result().read().result()))
    return levels


def check(what: str, levels: list[Volume], expected: list[Volume]) -> None:
    same = len(levels) == len(expected) and all(np.array_equal(a, b) for a, b in zip(levels, expected, strict=True))
    print(f"  {'ok' if same else 'DIFFERENT':10}{what}")
    if not same:
        sys.exit(f"the levels differ: {what}")


def run(url: str, storage_options: dict[str, Any]) -> None:
    volume = np.ascontiguousarray(read_nifti(VOLUME).transpose())  # the file has x first
    levels = pyramid(volume)
    is_local = "://" not in url

    store = shardstore.open(url, chunks_per_shard=CHUNKS_PER_SHARD, storage_options=storage_options)
    write(store, levels)
    for number, level in enumerate(levels):
        n_chunks = int(np.prod([-(-n // c) for n, c in zip(level.shape, CHUNKS, strict=True)]))
        shape = " × ".join(map(str, level.shape))
        print(f"level {number}: {shape:17} {n_chunks:4} chunks in shards of {store.chunks_per_shard(str(number))}")

    print("the same voxels through")
    check("shardstore, by a store", read_with_zarr(store), levels)
    chain = f"sharded::{Path(url).absolute().as_uri() if is_local else url}"
    options = {} if is_local else {url.partition("://")[0]: storage_options}
    check(f"shardstore, by {chain}", read_with_zarr(FsspecStore.from_url(chain, storage_options=options, read_only=True)), levels)
    native = LocalStore(url, read_only=True) if is_local else FsspecStore.from_url(url, storage_options=storage_options, read_only=True)
    check("zarr-python alone, from the shards", read_with_zarr(native), levels)
    if is_local and find_spec("tensorstore") is not None:
        check("tensorstore, from the shards", read_with_tensorstore(url, len(levels)), levels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", help="where to write; default: a temporary directory")
    parser.add_argument("--storage-options", type=json.loads, default={}, metavar="JSON", help="options for the fsspec filesystem")
    arguments = parser.parse_args()
    if arguments.url is not None:
        run(arguments.url.removeprefix("file://"), arguments.storage_options)
        return
    with tempfile.TemporaryDirectory() as directory:
        run(f"{directory}/head.ome.zarr", {})


if __name__ == "__main__":
    try:
        main()
    except ShardStoreError as error:
        sys.exit(f"ome_pyramid: {error}")
