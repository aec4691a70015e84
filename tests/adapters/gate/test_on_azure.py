"""Programs that work on Azure Blob Storage as they do elsewhere: xarray, dask, packing, appends and versioned stores, on Azurite."""

from __future__ import annotations

import json
from typing import Any

import dask.array
import numpy as np
import pytest
import xarray
import zarr

import shardstore
from shardstore.opening.open import open_storage
from shardstore.storage.azure.storage import AzureStorage
from tests.storage.azure.gate.test_azure import Calls
from tests.stored import FsspecObjects

Url = tuple[str, dict[str, Any]]

VALUES = np.arange(64 * 64, dtype="i4").reshape(64, 64)


@pytest.fixture
def url(azure_url: Url, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place, whose options are in the environment, where adlfs finds them."""
    place, options = azure_url
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", options["connection_string"])
    return place


def test_xarray_and_dask_on_azure(url: str) -> None:
    dataset = xarray.Dataset({"t": (("y", "x"), VALUES)})
    options: Any = {"sharded": {"chunks_per_shard": (2, 2)}}
    dask_array: Any = dask.array  # has no types
    dataset.to_zarr(f"sharded::{url}/x.zarr", mode="w", storage_options=options, encoding={"t": {"chunks": (16, 16)}}, consolidated=False)
    xarray.testing.assert_equal(xarray.open_zarr(f"sharded::{url}/x.zarr", consolidated=False).load(), dataset)
    dask_array.from_array(VALUES, chunks=(16, 16)).to_zarr(f"sharded::{url}/d.zarr", storage_options=options)
    np.testing.assert_array_equal(dask_array.from_zarr(f"sharded::{url}/d.zarr").compute(), VALUES)
    assert shardstore.verify(f"{url}/d.zarr").is_sound


def test_packed_from_s3_to_azure_and_back_everything_is_identical(url: str, s3_url: Url) -> None:
    place, options = s3_url
    plain = zarr.create_array(f"{place}/plain.zarr", name="a", shape=(64, 64), chunks=(8, 8), dtype="i4", storage_options=options)
    plain[:] = VALUES
    packed = f"{url}/packed.zarr"
    assert shardstore.pack(f"{place}/plain.zarr", packed, storage_options=options, target_options={}, chunks_per_shard=(4, 4)).complete
    assert shardstore.unpack(packed, f"{place}/back.zarr", storage_options={}, target_options=options).complete
    before, after = FsspecObjects(f"{place}/plain.zarr", options), FsspecObjects(f"{place}/back.zarr", options)
    assert {key: before.get(key) for key in before.keys()} == {key: after.get(key) for key in after.keys()}  # noqa: SIM118 - no mappings


def test_rows_that_are_appended_on_azure(url: str) -> None:
    store = shardstore.open(f"{url}/rows.zarr", chunks_per_shard=(8, 1), require_atomic=True)
    zarr.create_array(store, name="r", shape=(0, 4), chunks=(2, 4), dtype="i4", dimension_names=("row", "x"))
    for number in range(3):
        assert shardstore.append(f"{url}/rows.zarr", np.full((2, 4), number, "i4"), "row", path="r") == slice(2 * number, 2 * number + 2)
    rows = zarr.open_array(f"sharded::{url}/rows.zarr", path="r", mode="r")
    np.testing.assert_array_equal(rows[:, 0], [0, 0, 1, 1, 2, 2])


def test_versioned_store_on_azure(url: str) -> None:
    session = shardstore.Repository.create(f"{url}/run.ice").writable_session("main")
    zarr.create_array(session.store, name="a", data=VALUES, chunks=(16, 16))
    session.commit("first")
    array = zarr.open_array(shardstore.Repository.open(f"{url}/run.ice").readonly_session("main").store, path="a", mode="r")
    np.testing.assert_array_equal(array[:], VALUES)


def test_plain_zarr_reads_what_is_written_and_packed_by_default(url: str) -> None:
    """adlfs cannot read the end of a blob: the index has to be at the start."""
    zarr.create_array(shardstore.open(f"{url}/new.zarr", chunks_per_shard=(2, 2)), name="a", data=VALUES, chunks=(8, 8))
    zarr.create_array(f"{url}/plain.zarr", name="a", data=VALUES, chunks=(8, 8))
    assert shardstore.pack(f"{url}/plain.zarr", f"{url}/packed.zarr", chunks_per_shard=(2, 2)).complete
    for place in ("new.zarr", "packed.zarr"):
        array = zarr.open_array(f"{url}/{place}", path="a", mode="r")
        assert array.shards == (16, 16)
        np.testing.assert_array_equal(array[:], VALUES)


def test_appending_by_blocks_has_the_index_at_the_end(url: str) -> None:
    store = shardstore.open(url, chunks_per_shard=(2, 2), strategy="append")
    zarr.create_array(store, name="a", data=VALUES, chunks=(8, 8))
    (codec,) = json.loads(FsspecObjects(url, {}).get("a/zarr.json") or b"")["codecs"]
    assert codec["configuration"]["index_location"] == "end"


@pytest.mark.parametrize("index_location", ["start", "end"])
def test_requests_of_a_commit_on_azure(url: str, monkeypatch: pytest.MonkeyPatch, index_location: Any) -> None:
    """The document, all of a small shard, and one write, whatever the number of chunks: its size need not be looked up before."""
    store = shardstore.open(url, chunks_per_shard=(4, 4), index_location=index_location)
    zarr.create_array(store, name="a", data=VALUES, chunks=(8, 8), compressors=None)
    storage = open_storage(url, transport="fsspec")  # of a client that has seen nothing yet
    assert isinstance(storage, AzureStorage)
    calls = Calls(storage.fs, monkeypatch)
    array = zarr.open_array(shardstore.open(storage), path="a")
    calls.made.clear()
    array[:8, :24] = 7
    assert calls.names == ["get", "get", "put"]
    array[:8, :24] = 8
    assert calls.names[3:] == ["get", "put"]
    np.testing.assert_array_equal(zarr.open_array(shardstore.open(url), path="a")[:8, :24], np.full((8, 24), 8))
