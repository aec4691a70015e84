"""Dask tasks that write to the same shards at the same time, on every scheduler: nothing is lost, and aligned chunks cost less."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr
import zarr

import shardstore
from shardstore.adapters.tools.align import align
from shardstore.opening.open import open_storage
from shardstore.testing.trace import TraceStorage
from tests.clusters import dask_cluster

dask_array: Any = importlib.import_module("dask.array")  # half of it has no types

# Each process that dask starts imports xarray and zarr: a second of this machine's time, so they are few and started once.
WORKERS = 2
SHAPE, CHUNKS, PER_SHARD, SHARD = (24, 32), (2, 4), (4, 2), (8, 8)
SHARDS = (24 // 8) * (32 // 8)


def field() -> xr.Dataset:
    data = xr.Dataset({"v": (("y", "x"), np.arange(1.0, 1.0 + 24 * 32).reshape(SHAPE))}, coords={"y": np.arange(24), "x": np.arange(32)})
    data["v"].encoding["chunks"] = CHUNKS
    return data


def misaligned() -> xr.Dataset:
    """Every shard is written by four tasks: whole chunks of it by each, so that xarray has no objection."""
    return field().chunk(y=4, x=4)


POLICY = {"v": PER_SHARD, "*": None}


def native(root: Path) -> xr.Dataset:
    dataset: xr.Dataset = xr.open_zarr(root).load()
    return dataset


@pytest.fixture(params=["store", "url"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, dict[str, Any], Path]:
    """What ``to_zarr`` gets, and where it writes."""
    root = tmp_path / "data.zarr"
    options: dict[str, Any] = {"chunks_per_shard": POLICY, "fsync": False}
    if request.param == "store":
        return shardstore.open(root, **options), {}, root
    return f"sharded::{root.as_uri()}", {"storage_options": options}, root


@pytest.fixture(scope="module")
def processes() -> Iterator[Any]:
    """A pool of spawned processes, for dask's own scheduler."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        yield pool


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """``distributed``, with a process a worker."""
    with dask_cluster(WORKERS) as client:
        yield client


@pytest.fixture(params=["threads", *(pytest.param(name, marks=pytest.mark.gate) for name in ("synchronous", "processes", "distributed"))])
def scheduler(request: pytest.FixtureRequest) -> Iterator[None]:
    match request.param:
        case "processes":
            with dask.config.set(scheduler="processes", pool=request.getfixturevalue("processes")):
                yield
        case "distributed":
            with request.getfixturevalue("cluster").as_current():
                yield
        case name:
            with dask.config.set(scheduler=name, num_workers=8):
                yield


@pytest.mark.usefixtures("scheduler")
def test_nothing_is_lost_where_tasks_share_shards(target: tuple[Any, dict[str, Any], Path]) -> None:
    place, kwargs, root = target
    data = misaligned()
    data.to_zarr(place, **kwargs)
    xr.testing.assert_identical(native(root), field())

    # A region from inside one stored chunk to inside another; only a single task may write to each.
    part = (field()[["v"]].isel(y=slice(3, 23), x=slice(5, 31)) * -1).chunk(y=((1,) + (4,) * 4 + (3,)), x=((3,) + (4,) * 5 + (3,)))
    part.to_zarr(place, region="auto", mode="a", **kwargs)
    expected = field()
    expected["v"][3:23, 5:31] *= -1
    xr.testing.assert_identical(native(root), expected)

    more = field().assign_coords(y=np.arange(24, 48)).chunk(y=2, x=32)
    more.to_zarr(place, append_dim="y", **kwargs)
    assert native(root).sizes == {"y": 48, "x": 32}
    np.testing.assert_array_equal(native(root)["v"][24:], field()["v"])
    np.testing.assert_array_equal(native(root)["v"][:24], expected["v"])

    opened = xr.open_zarr(place, chunks={"y": 6, "x": 12}, **kwargs)
    assert float((opened["v"] * 2).sum()) == 2 * float(expected["v"].sum() + field()["v"].sum())


@pytest.mark.usefixtures("scheduler")
def test_aligned_chunks_on_every_scheduler(target: tuple[Any, dict[str, Any], Path]) -> None:
    place, kwargs, root = target
    align(misaligned(), place, **kwargs).to_zarr(place, **kwargs)
    xr.testing.assert_identical(native(root), field())


# -- what it costs ---------------------------------------------------------------------------------------------------------


def counted(data: xr.Dataset, **options: Any) -> tuple[int, xr.Dataset]:
    """How many commits a write of the values takes, the arrays being there already; and what is stored then."""
    storage = TraceStorage(open_storage(f"memory://dask-{uuid.uuid4().hex}", {}))
    store = shardstore.open(storage, chunks_per_shard=POLICY)
    field().to_zarr(store, compute=False)
    xr.full_like(field(), 0.0).to_zarr(store, mode="r+")
    store.counters.reset()
    with dask.config.set(scheduler="synchronous"):
        data.to_zarr(store, mode="r+", **options)
    return store.counters.commits, xr.open_zarr(store).load()


def test_aligned_chunks_commit_each_shard_once() -> None:
    data = misaligned()
    commits, stored = counted(data)
    assert commits == 4 * SHARDS
    np.testing.assert_array_equal(stored["v"], field()["v"])

    store = shardstore.open(f"memory://dask-{uuid.uuid4().hex}", chunks_per_shard=POLICY)
    commits, stored = counted(align(data, store))
    assert commits == SHARDS
    np.testing.assert_array_equal(stored["v"], field()["v"])


@pytest.mark.parametrize("aligned", [True, False])
def test_aligned_regions_commit_each_shard_once(aligned: bool) -> None:
    """From the middle of a shard to the middle of another."""
    store = shardstore.open(f"memory://dask-{uuid.uuid4().hex}", chunks_per_shard=POLICY)
    field().to_zarr(store)
    region = {"y": slice(4, 20), "x": slice(4, 28)}
    part = (field()[["v"]].isel(region) * -1).drop_vars(["y", "x"]).chunk(y=2, x=8)
    if aligned:
        part = align(part, store, region=region)
        assert part["v"].chunks == ((4, 8, 4), (12, 8, 4))
    store.counters.reset()
    with dask.config.set(scheduler="synchronous"):
        part.to_zarr(store, region=region)
    assert store.counters.commits == (3 * 4 if aligned else 8 * 3 * 2)
    expected = field()
    expected["v"][4:20, 4:28] *= -1
    xr.testing.assert_identical(xr.open_zarr(store).load(), expected)


def test_aligned_appends_commit_each_shard_once() -> None:
    store = shardstore.open(f"memory://dask-{uuid.uuid4().hex}", chunks_per_shard=POLICY)
    field().isel(y=slice(0, 6)).to_zarr(store)
    more = field().isel(y=slice(6, 24)).chunk(y=2, x=8)
    more = align(more, store, append_dim="y")
    assert more["v"].chunks == ((2, 8, 8), (8,) * 4)
    store.counters.reset()
    with dask.config.set(scheduler="synchronous"):
        more.to_zarr(store, append_dim="y")
    assert store.counters.commits == SHARDS
    xr.testing.assert_identical(xr.open_zarr(store).load(), field())


# -- dask without xarray -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("scheduler")
def test_dask_arrays_are_stored(tmp_path: Path) -> None:
    store = shardstore.open(tmp_path / "a.zarr", chunks_per_shard=PER_SHARD, fsync=False)
    array = zarr.create_array(store, name="v", shape=SHAPE, chunks=CHUNKS, dtype="f8")
    values = field()["v"].values
    data = dask_array.from_array(values, chunks=(4, 4))
    dask_array.store(data, array, lock=False)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a.zarr/v", mode="r")[...], values)
    again = dask_array.from_zarr(array)
    assert again.chunksize == CHUNKS
    np.testing.assert_array_equal(again.compute(), values)
    aligned = align(data.rechunk((3, 5)) * 2, array)  # chunks that are not whole stored chunks would not be safe to write
    assert aligned.chunks == ((8, 8, 8), (8,) * 4)
    dask_array.store(aligned, array, lock=False)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a.zarr/v", mode="r")[...], values * 2)


# -- travelling ------------------------------------------------------------------------------------------------------------


def test_what_is_opened_can_be_pickled(target: tuple[Any, dict[str, Any], Path]) -> None:
    place, kwargs, _ = target
    field().to_zarr(place, **kwargs)
    all_chunks: list[Any] = [None, {}]
    for chunks in all_chunks:
        opened = pickle.loads(pickle.dumps(xr.open_zarr(place, chunks=chunks, **kwargs)))
        xr.testing.assert_identical(opened.load(), field())


def test_another_process_needs_no_import_of_shardstore(tmp_path: Path) -> None:
    """By URL alone: the entry point is what makes fsspec know ``sharded``."""
    root = tmp_path / "data.zarr"
    field().to_zarr(shardstore.open(root, chunks_per_shard=POLICY))
    code = f"import xarray as xr; print(float(xr.open_zarr('sharded::{root.as_uri()}').v.sum()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == float(field()["v"].sum())
