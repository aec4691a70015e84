"""zarr-python 3 over the engine over ``DraftStorage``: arrays without a transformer, which the engine passes through."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

import shardstore
from shardstore._sync import run_sync
from shardstore.engine.engine import Engine
from shardstore.engine.moving import copy_nodes
from shardstore.engine.options import EngineOptions
from shardstore.errors import InvalidInput
from shardstore.storage.base import Storage
from shardstore.stored.draft2022.storage import DraftStorage
from shardstore.testing.storage_suite import SyncStorage
from tests.engine.hooked import fresh_memory
from tests.stored import StorageObjects, snapshot

VALUES = np.arange(48, dtype="i4").reshape(6, 8)
PLAIN = EngineOptions(chunks_per_shard=None)


def fill(inner: Storage) -> None:
    store = shardstore.open(DraftStorage(inner), chunks_per_shard=None)
    group = zarr.create_group(store, path="g", attributes={"title": "é"})
    group.create_array("c", shape=VALUES.shape, chunks=(2, 4), dtype="i4", dimension_names=("y", "x"))[...] = VALUES
    group.create_array("one", shape=8, chunks=(2,), dtype="f8", fill_value=np.nan)[2:6] = 1.5
    group.create_array("deep/0d", shape=(), dtype="u1")[...] = 7


def check(group: zarr.Group) -> None:
    assert sorted(name for name, _ in group.members(max_depth=None)) == ["c", "deep", "deep/0d", "one"]
    assert dict(group.attrs) == {"title": "é"}
    for name, expected in {"c": VALUES, "deep/0d": np.array(7), "one": np.array([np.nan] * 2 + [1.5] * 4 + [np.nan] * 2)}.items():
        array = group[name]
        assert isinstance(array, zarr.Array)
        np.testing.assert_array_equal(np.asarray(array[...]), expected)


def test_written_and_read(inner: Storage, i: SyncStorage) -> None:
    fill(inner)
    store = shardstore.open(DraftStorage(inner), chunks_per_shard=None)
    group = zarr.open_group(store, path="g")
    check(group)
    assert "data/root/g/deep/0d/c0" in i.keys()  # noqa: SIM118 - no mapping
    array = group["c"]
    assert isinstance(array, zarr.Array)
    assert array.metadata.dimension_names == ("y", "x")  # type: ignore[union-attr]  # only metadata of v2 has none
    array.resize((4, 8))
    array.attrs["unit"] = "m"
    again = zarr.open_array(shardstore.open(DraftStorage(inner), chunks_per_shard=None), path="g/c")
    np.testing.assert_array_equal(np.asarray(again[...]), VALUES[:4])
    assert again.attrs["unit"] == "m"
    assert i.keys("data/root/g/c/") == [f"data/root/g/c/c{y}/{x}" for y in (0, 1) for x in (0, 1)]


def test_copied_moved_and_erased(inner: Storage, i: SyncStorage) -> None:
    fill(inner)
    before = snapshot(StorageObjects(inner))
    engine = Engine(DraftStorage(inner), PLAIN)
    run_sync(engine.copy_prefix("g", "n/h"))
    run_sync(engine.move_prefix("g", "m"))
    for path in ("n/h", "m"):
        check(zarr.open_group(shardstore.open(DraftStorage(inner), chunks_per_shard=None), path=path))
        moved = {key.replace("root/g", f"root/{path}"): data for key, data in before.items()}
        found = snapshot(StorageObjects(inner))
        assert {key: found.get(key) for key in moved} == moved
    assert i.keys("data/root/g") + i.keys("meta/root/g") == []
    run_sync(engine.erase_prefix("n/"))
    run_sync(engine.erase_prefix("m/"))
    # The root's group has a document if zarr-python asked for it before there was a node below it: then it is implicit.
    assert set(i.keys()) <= {"zarr.json", "meta/root.group.json"}


def test_to_final_zarr_v3_and_back(inner: Storage) -> None:
    fill(inner)
    final, again = fresh_memory(), DraftStorage(fresh_memory())
    run_sync(copy_nodes(Engine(DraftStorage(inner), PLAIN), "g", Engine(final, PLAIN), "g"))
    check(zarr.open_group(shardstore.open(final), path="g"))
    run_sync(copy_nodes(Engine(final, PLAIN), "g", Engine(again, PLAIN), "h"))
    check(zarr.open_group(shardstore.open(again), path="h"))


def test_what_the_draft_has_not_is_refused(inner: Storage, i: SyncStorage) -> None:
    store = shardstore.open(DraftStorage(inner), chunks_per_shard=None)
    with pytest.raises(InvalidInput, match="data_type"):
        zarr.create_array(store, name="x", shape=4, chunks=(2,), dtype=str)
    assert [key for key in i.keys() if "x" in key] == []  # noqa: SIM118 - no mapping
