"""Hierarchies of the 2022 draft, written by zarr-python 2.18 and by shardstore in turn, read by both; and 2.18 over shardstore."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from tests.adapters.transformer.layers import document
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
    assert sorted(name for name, _ in zarr.open_group(shardstore.open(str(root)), mode="r").members()) == [
        "dots",
        "four",
        "group",
        "one",
        "two",
    ]


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


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3 specification")
@pytest.mark.parametrize("how", ["view", "view-as-store", "view-stacked", "own-store"])
def test_over_a_mapping(how: str, tmp_path: Path) -> None:
    """Programs of 2.18 see in shardstore, of one layer, of two, and over a store of their own, what a plain store would hold, byte for
    byte. What lies below has one object a shard, and is read by its own transformer, and as final Zarr v3.
    """
    root = tmp_path / "store"
    peer(how, root)
    objects = [p for p in (root / "data/root/g/a").rglob("*") if p.is_file()]
    assert len(objects) == {"view": 6, "view-as-store": 6, "view-stacked": 2, "own-store": 6}[how]
    peer("read", root)
    if how != "view-stacked":
        same(root)


def test_transformers_one_upon_the_other_in_turn(tmp_path: Path) -> None:
    root = tmp_path / "store"
    peer("write-stacked", root)
    top = shardstore.open(shardstore.ShardingTransformer(str(root), present="draft"))
    array = zarr.open_array(top, path="x", mode="r+")
    value = held(root)["x"]
    np.testing.assert_array_equal(np.asarray(array[...]), value)
    array[3:14, 5:9] = value[3:14, 5:9] = 77
    np.savez(f"{root}.npz", allow_pickle=False, x=value)
    peer("read", root)
    peer("update", root)
    np.testing.assert_array_equal(np.asarray(zarr.open_array(top, path="x", mode="r")[...]), held(root)["x"])


def test_written_by_the_transformers_operations(tmp_path: Path) -> None:
    """Chunks as bytes: whole shards, single ones, parts, erased ones, and some that never were, in one to four dimensions."""
    root = tmp_path / "store"
    store = shardstore.ShardingTransformer(str(root), present="draft", chunks_per_shard=lambda array: (2, 3, 1, 2)[: len(array.shape)])
    values: dict[str, Any] = {}
    for ndim in range(1, 5):
        shape, chunk = (9, 8, 5, 4)[:ndim], (2, 3, 2, 1)[:ndim]
        store.set(f"meta/root/a{ndim}.array.json", document(shape, chunk))
        grid = tuple(-(-n // c) for n, c in zip(shape, chunk, strict=True))
        padded = np.zeros([g * c for g, c in zip(grid, chunk, strict=True)], "u1")
        updates = []
        for number, coords in enumerate(np.ndindex(*grid)):
            inside = tuple(slice(i * c, (i + 1) * c) for i, c in zip(coords, chunk, strict=True))
            key = f"data/root/a{ndim}/c{'/'.join(map(str, coords))}"
            nbytes = int(np.prod(chunk))
            if number % 5 == 0:
                continue
            padded[inside] = number % 250 + 1
            updates.append((key, 0, bytes([number % 250 + 1]) * nbytes))
        store.set_partial_values(updates)
        first, last = updates[0][0], updates[-1][0]
        store.erase(first)
        store.set_partial_values([(last, 1, b"\xff")])
        for key in (first, last):
            coords = tuple(map(int, key.rpartition("/c")[2].split("/")))
            inside = tuple(slice(i * c, (i + 1) * c) for i, c in zip(coords, chunk, strict=True))
            flat = np.zeros(int(np.prod(chunk)), "u1") if key == first else padded[inside].reshape(-1).copy()
            if key == last:
                flat[1] = 255
            padded[inside] = flat.reshape(chunk)
        values[f"a{ndim}"] = padded[tuple(slice(0, n) for n in shape)]
    np.savez(f"{root}.npz", allow_pickle=False, **values)
    peer("read", root)
    peer("update", root)
    same(root)
