"""zarr-python's own conformance suite on zarr's own ``FsspecStore`` over ``sharded``, at a plain root and under a sharded array."""

from __future__ import annotations

import json
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from zarr.storage import FsspecStore

import shardstore
from tests import view
from tests.adapters.places import Place, make_place, memory_place
from tests.adapters.zarr.gate.test_zarr_suites import ShardedArraySuite, ShardedStoreSuite
from tests.stored import as_zarr_memory
from tests.under_array import SHARDED_ROOT, UnderShardedArray


class FsspecSuite(ShardedStoreSuite):
    """What the suite asks its user to write, as zarr does for its own tests of this store."""

    __test__ = False
    store_cls = FsspecStore  # type: ignore[assignment]  # the suite is one of classes, not of types

    @pytest.fixture
    def store_kwargs(self, kind: str, request: pytest.FixtureRequest) -> dict[str, Any]:
        self.place = make_place(kind, request)
        store = FsspecStore.from_url(f"sharded::{self.place.url}", storage_options=self.place.link_options())
        return {"fs": store.fs, "path": store.path}

    @pytest.fixture
    async def store(self, store_kwargs: dict[str, Any]) -> Any:
        return self.store_cls(**store_kwargs)

    def test_store_repr(self, store: Any) -> None:
        assert str(store) == "<FsspecStore(ShardedFileSystem, " + self.place.path + ")>"


class TestFsspecStore(FsspecSuite):
    __test__ = True


# -- the same suite, every key a chunk key of one sharded array --------------------------------------------------------


class UnderShardedFiles(UnderShardedArray):
    """A store whose keys are chunks of a sharded array in zarr's store over ``sharded``."""

    sharded: Any  # of the methods of a store that it calls, both kinds have all

    def __init__(self, sharded: FsspecStore | None = None, *, url: str = "", read_only: bool = False, storage_options: Any = None) -> None:
        if sharded is None:
            sharded = FsspecStore.from_url(f"sharded::{url}", storage_options=storage_options, read_only=read_only)
        super().__init__(sharded, read_only=read_only)  # type: ignore[arg-type]

    def with_read_only(self, read_only: bool = False) -> UnderShardedFiles:
        return UnderShardedFiles(self.sharded.with_read_only(read_only), read_only=read_only)


class ShardedFilesSuite(ShardedArraySuite):
    """No test of the suite is left out."""

    __test__ = False
    store_cls = UnderShardedFiles  # type: ignore[assignment]  # the suite is one of classes, not of types

    @pytest.fixture(params=["memory", "local"])
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def store_kwargs(self, kind: str, request: pytest.FixtureRequest) -> dict[str, Any]:
        place = make_place(kind, request)
        place.objects.put("zarr.json", json.dumps(SHARDED_ROOT).encode())
        self.beside = shardstore.ShardedStore(place.url, storage_options=place.storage_options or None, index_cache_bytes=1000)
        return {"url": place.url, "storage_options": place.link_options()}

    def test_store_repr(self, store: UnderShardedArray) -> None:
        assert "ShardedFileSystem" in repr(store)


class TestShardedArray(ShardedFilesSuite):
    __test__ = True


# -- zarr over URLs ------------------------------------------------------------------------------------------------------


def test_groups_and_arrays_by_url(place: Place) -> None:
    """Written and read by URL alone; what is stored is plain Zarr, in shards."""
    url, options = f"sharded::{place.url}", place.link_options(chunks_per_shard=(4, 4))
    root: Any = zarr.open_group(url, mode="w", storage_options=options, attributes={"by": "url"})
    x = root.create_array("g/x", shape=(20, 12), chunks=(2, 2), dtype="i4", fill_value=-1)
    x[:10] = np.arange(120).reshape(10, 12)
    x.attrs["unit"] = "mm"
    again: Any = zarr.open_group(url, mode="r", storage_options=options)
    assert sorted(again.group_keys()) == ["g"]
    assert again["g/x"].attrs["unit"] == "mm"
    assert again["g/x"].chunks == (2, 2)
    assert again["g/x"].shards is None
    native: Any = zarr.open_array(as_zarr_memory(place.objects), path="g/x", mode="r")
    assert native.shards == (8, 8)
    for array in (again["g/x"], native):
        np.testing.assert_array_equal(array[:10], np.arange(120).reshape(10, 12))
        np.testing.assert_array_equal(array[10:], -1)
    assert again["g/x"].nchunks_initialized == 30
    with pytest.raises(ValueError, match=r"read.only"):
        again["g/x"][0] = 1
    root["g/x"].resize((4, 12))
    assert zarr.open_array(url, path="g/x", mode="r", storage_options=options).nchunks_initialized == 12
    del root["g"]
    assert [key for key in place.objects.keys() if key != "zarr.json"] == []  # noqa: SIM118 - no mapping
    zarr.open_group(url, mode="w", storage_options=options)
    with pytest.raises(FileExistsError):
        zarr.open_group(url, mode="w-", storage_options=options)


def test_an_array_inside_by_url(place: Place) -> None:
    """The URL may end inside of the hierarchy: at a group or an array."""
    options = place.link_options(chunks_per_shard=(4,))
    root = zarr.open_group(f"sharded::{place.url}", mode="w", storage_options=options)
    root.create_array("g/x", shape=(32,), chunks=(2,), dtype="u1")[...] = 5
    inside = zarr.open_array(f"sharded::{place.url}/g/x", mode="r+", storage_options=options)
    assert inside.chunks == (2,)
    inside[:2] = 6
    group: Any = zarr.open_group(f"sharded::{place.url}/g", mode="r", storage_options=options)
    assert group["x"][:4].tolist() == [6, 6, 5, 5]
    assert len([key for key in place.objects.keys() if "/c/" in key]) == 4  # noqa: SIM118 - no mapping


def test_an_assignment_is_a_batch() -> None:
    """The pipeline reaches through zarr's store: a selection is two rounds, an assignment one commit a shard."""
    place = memory_place()
    options = place.link_options(chunks_per_shard=(64,))
    x: Any = zarr.create_array(f"sharded::{place.url}", storage_options=options, shape=(512,), chunks=(2,), dtype="u1")
    counters = x.store.fs.counters
    counters.reset()
    x[...] = np.arange(512) % 251
    assert counters.commits == 4
    counters.reset()
    assert x[10:500].tolist() == [i % 251 for i in range(10, 500)]
    assert counters.requests <= 2 * 4
    options["sharded"]["pipeline"] = False
    without = zarr.open_array(f"sharded::{place.url}", mode="r+", storage_options=options)
    without[:20] = 1
    assert x[:20].tolist() == [1] * 20


def test_a_mapper_is_a_store(place: Place) -> None:
    """``fsspec.get_mapper`` and what zarr makes of it."""
    mapper = fsspec.get_mapper(f"sharded::{place.url}", **place.link_options(chunks_per_shard=(4,)))
    x: Any = zarr.open_group(mapper).create_array("x", shape=(16,), chunks=(1,), dtype="u1")
    x[...] = np.arange(16)
    assert mapper["x/c/3"] == view.get(x.store, "x/c/3")
    assert set(mapper.getitems(["x/c/3", "x/c/4"])) == {"x/c/3", "x/c/4"}
    mapper.setitems({"x/c/5": mapper["x/c/3"]})
    assert x[5] == 3
    mapper.delitems(["x/c/5"])
    assert x[5] == 0
    assert len(mapper) == 16, "14 chunks that are not fill value, and two documents"
    assert len([key for key in place.objects.keys() if "/c/" in key]) == 4  # noqa: SIM118 - no mapping
