"""Arrays of Zarr v2 in a store that was asked to shard: they have no shards, and that is said."""

from __future__ import annotations

import uuid
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import FsspecStore, LocalStore

import shardstore
from shardstore.errors import InvalidInput
from shardstore.storage.memory import MemoryStorage
from tests.stored import StorageObjects


def memory() -> MemoryStorage:
    return MemoryStorage(f"/v2-unsharded-{uuid.uuid4().hex}")


def create(store: Any, name: str = "g/a", **options: Any) -> Any:
    return zarr.create_array(store, name=name, shape=(64, 64), chunks=(8, 8), dtype="i4", zarr_format=2, **options)


ASKED: list[Any] = [(2, 2), {"g/*": (2, 2)}, {"h": None}, lambda info: (2, 2)]


@pytest.mark.parametrize("policy", ASKED)
def test_where_shards_were_asked_for_it_is_an_error_and_nothing_is_left(policy: Any) -> None:
    storage = memory()
    store = shardstore.open(storage, chunks_per_shard=policy)
    with pytest.raises(InvalidInput, match=r"'g/a' is one of Zarr v2 .*present='v2'"):
        create(store)
    assert not StorageObjects(storage).keys()
    with store.transaction(), pytest.raises(InvalidInput, match="present='v2'"):
        create(store)
    assert not StorageObjects(storage).keys()


def test_by_url_and_by_keys_too(tmp_path: Path) -> None:
    store = FsspecStore.from_url(f"sharded::file://{tmp_path}", storage_options={"sharded": {"chunks_per_shard": (2, 2)}})
    with pytest.raises(InvalidInput, match="present='v2'"):
        create(store)
    create(LocalStore(tmp_path / "plain"), "a")
    document = (tmp_path / "plain/a/.zarray").read_bytes()
    mapper = shardstore.get_mapper(str(tmp_path / "mapped"), chunks_per_shard=(2, 2))
    with pytest.raises(InvalidInput, match="present='v2'"):
        mapper["a/.zarray"] = document
    with pytest.raises(InvalidInput, match="present='v2'"):
        mapper.setitems({"a/.zattrs": b"{}", "b/.zarray": document})
    assert [path.name for path in (tmp_path / "mapped").rglob(".z*")] == [".zattrs"]


@pytest.mark.parametrize("path", ["a", "g/a", ""])
def test_what_came_with_a_refused_array_is_refused(tmp_path: Path, path: str) -> None:
    create(LocalStore(tmp_path / "plain"), "a")[...] = 1
    below = f"{path}/" if path else ""
    values = {below + file.name: file.read_bytes() for file in (tmp_path / "plain/a").iterdir()}
    assert len(values) > 60
    mapper = shardstore.get_mapper(str(tmp_path / "mapped"), chunks_per_shard=(2, 2))
    with pytest.raises(InvalidInput, match="present='v2'"):
        mapper.setitems(values)
    with pytest.raises(InvalidInput, match=r"7\.7' was not written: .*\.zarray', which came with it, was refused"):
        mapper.setitems(dict(sorted(values.items(), reverse=True)))
    assert list(mapper) == []
    mapper.setitems({"b/x": b"1"})
    with pytest.raises(InvalidInput):
        mapper.setitems({"b/y": b"2", **values} if path else {"b/y": b"2", "c/.zarray": values[".zarray"], "c/0.0": b"3"})
    assert sorted(mapper) == ["b/x", "b/y"]


def test_an_array_that_is_refused_is_not_uploaded(tmp_path: Path) -> None:
    create(LocalStore(tmp_path / "plain"), "a")[...] = 1
    fs = shardstore.ShardedFileSystem(str(tmp_path / "there"), target_protocol="file", chunks_per_shard=(2, 2))
    with pytest.raises(InvalidInput):
        fs.put(str(tmp_path / "plain/a"), "a", recursive=True)
    assert fs.find("") == []


@pytest.mark.parametrize(
    "policy", [None, {"*": None}, {"g/*": None, "*": (2, 2)}, lambda info: None if info.document["zarr_format"] == 2 else (2, 2)]
)
def test_where_no_shards_were_asked_for_it_is_in_order(policy: Any) -> None:
    array = create(shardstore.open(memory(), chunks_per_shard=policy))
    array[...] = 1
    assert (array[...] == 1).all()


def test_by_default_one_warning_names_the_remedy() -> None:
    storage = memory()
    store = shardstore.open(storage)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        zarr.create_array(store, name="x", shape=(64,), chunks=(64,), dtype="i4", zarr_format=2)  # would have no shards anyway
    with pytest.warns(UserWarning, match=r"'g/a' is one of Zarr v2 .*present='v2'"):
        create(store)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        create(store, "g/b")[...] = 1
    assert StorageObjects(storage).get("g/b/0.0") is not None


def test_arrays_that_exist_are_read_and_updated() -> None:
    storage = memory()
    create(shardstore.open(storage, chunks_per_shard=None))[...] = 1
    store = shardstore.open(storage, chunks_per_shard=(2, 2))
    array = zarr.open_array(store, path="g/a", mode="r+")
    array.attrs["x"] = 1
    array.resize((70, 64))
    array[64:] = 2
    np.testing.assert_array_equal(zarr.open_array(store, path="g/a")[60:70, 0], [1] * 4 + [2] * 6)


def test_the_view_of_v2_shards_them() -> None:
    storage = memory()
    array = create(shardstore.open(storage, chunks_per_shard=(2, 2), present="v2"))
    array[...] = 1
    assert shardstore.open(storage).chunks_per_shard("g/a") == (2, 2)
