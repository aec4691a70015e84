"""Hierarchies of the 2022 draft, written by zarr-python 2.18 and by shardstore in turn, read by both."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from tests.zarr2 import interpreter

HERE = Path(__file__).parent


def peer(what: str, root: Path) -> None:
    """zarr-python 2.18, whose sharding is an experiment that has to be asked for."""
    environment = os.environ | {"PYTHONWARNINGS": "ignore", "ZARR_V3_EXPERIMENTAL_API": "1", "ZARR_V3_SHARDING": "1"}
    done = subprocess.run(
        [interpreter(), str(HERE / "draft_programs.py"), what, str(root)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]


def held(root: Path) -> dict[str, Any]:
    with np.load(f"{root}.npz") as file:
        return {name.replace("|", "/"): value for name, value in file.items()}


def opened(root: Path, name: str, mode: Any = "r") -> zarr.Array[Any]:
    return zarr.open_array(shardstore.open(str(root)), path=name, mode=mode)


def same(root: Path) -> None:
    for name, value in held(root).items():
        np.testing.assert_array_equal(np.asarray(opened(root, name)[...]), value)


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3 specification")
def test_in_turn(tmp_path: Path) -> None:
    root = tmp_path / "store"
    peer("write", root)
    same(root)
    changed = held(root)
    for name, value in changed.items():
        array = opened(root, name, "r+")
        value[...] += 1
        value[(slice(0, 2),) * value.ndim] = 0  # to the fill value: chunks that are erased
        array[...] = value
        array.attrs["by"] = "shardstore"
    np.savez(f"{root}.npz", allow_pickle=False, **{name.replace("/", "|"): value for name, value in changed.items()})
    peer("read", root)
    peer("update", root)
    same(root)
    assert opened(root, "two").attrs["by"] == "shardstore"
    assert [name for name, _ in zarr.open_group(shardstore.open(str(root)), mode="r").members()] == ["dots", "four", "group", "one", "two"]


def test_arrays_of_our_own(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = shardstore.open(str(root), stored="transformer", chunks_per_shard=lambda array: (2,) * len(array.shape))
    values = {}
    for ndim in range(1, 5):
        shape = (7, 6, 5, 4)[:ndim]
        name = f"g/a{ndim}"
        array = zarr.create_array(store, name=name, shape=shape, chunks=(2,) * ndim, dtype=">f4", fill_value=0, compressors=None)
        values[name] = np.zeros(shape, ">f4")
        inside = (slice(0, 3),) * ndim
        array[inside] = values[name][inside] = np.arange(np.prod(values[name][inside].shape)).reshape(values[name][inside].shape)
    np.savez(f"{root}.npz", allow_pickle=False, **{name.replace("/", "|"): value for name, value in values.items()})
    assert sorted(p.name for p in root.iterdir()) == ["data", "meta", "zarr.json"]
    peer("read", root)
    peer("update", root)
    same(root)
