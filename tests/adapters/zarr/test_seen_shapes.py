"""A change of an array's shape, or of its attributes, that began with a shape which another client has changed since is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import FsspecStore

import shardstore
from shardstore.errors import Conflict

ROWS = np.arange(8, dtype="i4").reshape(2, 4)


def store_of(kind: str, root: Path) -> Any:
    if kind == "zarr's store":
        return FsspecStore(shardstore.ShardedFileSystem(fo=str(root), chunks_per_shard=(2, 1), asynchronous=True), path="")
    of_kind: dict[str, dict[str, Any]] = {"as Zarr v2": {"present": "v2"}, "not sharded": {"chunks_per_shard": None}}
    options = of_kind.get(kind, {})
    return shardstore.open(root, **{"chunks_per_shard": (2, 1), "fsync": False, **options})


@pytest.fixture(params=["sharded", "not sharded", "shards of its own", "as Zarr v2", "zarr's store"])
def clients(request: pytest.FixtureRequest, tmp_path: Path) -> list[Any]:
    """An array of 4 rows, opened three times, each time by a store of its own."""
    options: dict[str, Any] = {"shards": (4, 4)} if request.param == "shards of its own" else {}
    if request.param == "as Zarr v2":
        options["zarr_format"] = 2
    zarr.create_array(store_of(request.param, tmp_path), shape=(4, 4), chunks=(2, 4), dtype="i4", fill_value=0, **options)
    opened = [zarr.open_array(store_of(request.param, tmp_path), mode="r+") for _ in range(3)]
    opened[0][...] = 7
    return opened


def reopened(array: Any) -> Any:
    return zarr.open_array(array.store, mode="r+")


@pytest.mark.parametrize("nrows", [2, 4])
def test_an_append_behind_one_of_another_client(clients: list[Any], nrows: int) -> None:
    first, second, reader = clients
    first.append(ROWS)
    with pytest.raises(Conflict, match=r"\(6, 4\) since it was opened here with \(4, 4\).*Open the array again.*shardstore.append"):
        second.append(np.full((nrows, 4), 9, "i4"))  # of as many rows too: the document would be the same
    assert reopened(reader).shape == (6, 4)
    np.testing.assert_array_equal(reopened(reader)[4:], ROWS)
    reopened(second).append(ROWS + 8)
    np.testing.assert_array_equal(reopened(reader)[4:], np.arange(16).reshape(4, 4))


def test_attributes_that_would_bring_the_old_shape_back(clients: list[Any]) -> None:
    first, second, reader = clients
    first.append(ROWS)
    with pytest.raises(Conflict):
        second.attrs["unit"] = "K"
    assert reopened(reader).shape == (6, 4)
    reopened(second).attrs["unit"] = "K"
    assert dict(reopened(reader).attrs) == {"unit": "K"}
    assert reopened(reader).shape == (6, 4)


def test_nothing_is_erased_for_a_shape_that_is_refused(clients: list[Any]) -> None:
    first, second, reader = clients
    first.append(ROWS)
    with pytest.raises(Conflict):
        second.resize((2, 4))
    np.testing.assert_array_equal(reopened(reader)[...], np.concatenate([np.full((4, 4), 7), ROWS]))


def test_changes_of_one_client_follow_each_other(clients: list[Any]) -> None:
    first = clients[0]
    first.append(ROWS)
    first.resize((10, 4))
    first.attrs["unit"] = "K"
    first.resize((2, 4))
    first.append(ROWS)
    assert reopened(clients[2]).shape == (4, 4)
    np.testing.assert_array_equal(reopened(clients[2])[2:], ROWS)


def test_attributes_of_another_client_are_no_conflict(clients: list[Any]) -> None:
    first, second, reader = clients
    first.attrs["unit"] = "K"
    second.append(ROWS)
    assert reopened(reader).shape == (6, 4)


def test_in_a_transaction(tmp_path: Path) -> None:
    store, other = (shardstore.open(tmp_path, chunks_per_shard=(2, 1), fsync=False, metadata_ttl=0) for _ in range(2))
    zarr.create_array(store, shape=(4, 4), chunks=(2, 4), dtype="i4", fill_value=0)
    array = zarr.open_array(store, mode="r+")
    zarr.open_array(other, mode="r+").append(ROWS)
    with pytest.raises(Conflict), store.transaction():
        array.append(ROWS)
    assert zarr.open_array(store).shape == (6, 4)
    with store.transaction():
        array = zarr.open_array(store, mode="r+")
        array.append(ROWS)
        array.append(ROWS)
    assert zarr.open_array(other).shape == (10, 4)
