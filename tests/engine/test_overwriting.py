"""Copying over something: it goes object by object, and the rest when all has come; nothing before the source could be read."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore._sync import run_sync
from shardstore.engine.engine import Engine
from shardstore.engine.moving import copy_nodes, move_between
from shardstore.engine.options import EngineOptions
from shardstore.errors import ShardStoreError
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.faults import Fail, Fault, FaultStorage
from tests.stored import StorageObjects, snapshot


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return LocalStorage(tmp_path / "t") if request.param == "local" else MemoryStorage(f"/over-{uuid.uuid4().hex}")


def put(storage: Any, name: str, value: int, chunks: int) -> None:
    array = zarr.create_array(shardstore.open(storage, chunks_per_shard=(2,)), name=name, shape=(12,), chunks=(chunks,), dtype="i4")
    array[...] = value


def source(value: int = 7) -> MemoryStorage:
    made = MemoryStorage(f"/from-{uuid.uuid4().hex}")
    put(made, "a", value, 2)
    return made


def values(storage: Any, name: str = "a") -> list[int]:
    found: list[int] = np.asarray(zarr.open_array(shardstore.open(storage), path=name, mode="r")).tolist()
    return found


def over(source: Any, target: Any, do: Any = copy_nodes) -> None:
    run_sync(do(Engine(source), "a", Engine(target), "a", overwrite=True))


@pytest.mark.parametrize("do", [copy_nodes, move_between])
def test_nothing_is_left_of_what_was_there(storage: Any, do: Any) -> None:
    put(storage, "a", 1, 1)
    put(storage, "b", 2, 1)
    objects = StorageObjects(storage)
    # What lies where a directory will be, or under what will be an object; and other things.
    for key in ("a/c/9/deeper", "a/note", "a/x/zarr.json"):
        objects.put(key, b"old")
    given = source()
    expected = {key: data for key, data in snapshot(StorageObjects(given)).items() if key.startswith("a/")}
    over(given, storage, do)
    assert {key: data for key, data in snapshot(objects).items() if key.startswith("a/")} == expected
    assert (values(storage), values(storage, "b")) == ([7] * 12, [2] * 12)


def test_objects_in_the_way_go(storage: Any) -> None:
    objects = StorageObjects(storage)
    objects.put("a/c", b"an object where a directory will be")
    over(source(), storage)
    assert values(storage) == [7] * 12
    one = MemoryStorage(f"/one-{uuid.uuid4().hex}")
    StorageObjects(one).put("a", b"a single object")
    over(one, storage)
    assert snapshot(objects) == {"a": b"a single object"}


@pytest.mark.parametrize("first", range(5, 13))
def test_what_was_there_outlives_a_source_that_cannot_be_read(storage: Any, first: int) -> None:
    """From the request ``first`` on: the beginning of the data is read before anything goes."""
    put(storage, "a", 1, 1)
    objects = StorageObjects(storage)
    before = snapshot(objects)
    given = FaultStorage(source())
    engine = Engine(given)
    given.plan(*(Fault(number, Fail()) for number in range(first, 60)))
    with pytest.raises(ShardStoreError):
        run_sync(copy_nodes(engine, "a", Engine(storage), "a", overwrite=True))
    after = snapshot(objects)
    if first <= 7:
        assert after == before
    else:
        assert "a/zarr.json" not in after  # new shards would be misread by it
        assert set(after) >= set(before) - {"a/zarr.json"}
    given.plan()
    run_sync(copy_nodes(Engine(given), "a", Engine(storage), "a", overwrite=True))
    assert values(storage) == [7] * 12
    assert set(snapshot(objects)) == {"zarr.json", "a/zarr.json", "a/c/0", "a/c/1", "a/c/2"}


@pytest.mark.parametrize("stored", ["auto", "codec"])
def test_a_copy_over_a_link_replaces_the_link(tmp_path: Path, stored: Any) -> None:
    target = LocalStorage(tmp_path / "t")
    put(target, "b", 1, 1)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "zarr.json").write_text("of another program")
    (tmp_path / "t/a").symlink_to(outside)
    options = EngineOptions(stored=stored)
    run_sync(copy_nodes(Engine(source(), options), "a", Engine(target, options), "a", overwrite=True))
    assert [path.name for path in outside.iterdir()] == ["zarr.json"]
    assert (outside / "zarr.json").read_text() == "of another program"
    assert values(target) == [7] * 12
