"""An array that shrinks loses what zarr would delete of it, key by key, and nothing else: in one batch, whatever shards it has."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from itertools import product
from operator import lt
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import zarr
from hypothesis import given
from zarr.storage import MemoryStore

import shardstore
from shardstore.errors import Conflict, ReadOnly, StorageError
from shardstore.model.chunks import RemovedChunks, ShardGrid
from shardstore.snapshots import Repository
from shardstore.storage.memory import MemoryStorage
from tests import view
from tests.engine.hooked import fresh_memory as memory
from tests.harness.scale import EXAMPLES
from tests.stored import StorageObjects


@pytest.mark.parametrize(("ndim", "longest"), [(1, 6), (2, 3)])
def test_what_is_said_of_a_shard_is_true_of_its_slots(ndim: int, longest: int) -> None:
    """All small grids, with shards of up to three chunks along each dimension."""
    grids = list(product(range(longest + 1), repeat=ndim))
    for before, after in product(grids, grids):
        removed = RemovedChunks(before, after)
        lost = {c for c in grids if all(map(lt, c, before)) and not all(map(lt, c, after))}
        assert lost == {c for c in grids if removed.has(c)}
        assert removed.is_empty == (not lost)
        if (rows := removed.rows()) is not None:
            assert {c[0] for c in lost} <= set(rows)
        for shape in product(range(1, 4), repeat=ndim):
            grid = ShardGrid(shape)
            for shard in product(range(2), repeat=ndim):
                gone = [removed.has(grid.coords_of(shard, slot)) for slot in range(grid.nslots)]
                assert removed.has_all_of(shard, grid) == all(gone)
                assert removed.has_some_of(shard, grid) == any(gone)


LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sharded": ({"chunks_per_shard": (3, 2)}, {}),
    "one shard": ({"chunks_per_shard": (9, 9)}, {}),
    "not sharded": ({"chunks_per_shard": None}, {}),
    "v2 keys": ({"chunks_per_shard": (3, 2)}, {"chunk_key_encoding": {"name": "v2", "separator": "."}}),
    "v2": ({"chunks_per_shard": (3, 2), "present": "v2"}, {"zarr_format": 2}),
    "v2, passed through": ({"chunks_per_shard": None}, {"zarr_format": 2}),
    "own shards": ({}, {"shards": (6, 4)}),
    "index at the start": ({"chunks_per_shard": (2, 3), "index_location": "start"}, {}),
}


@pytest.mark.parametrize("in_transaction", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@hypothesis.settings(max_examples=EXAMPLES // 5)
@given(data=st.data())
def test_what_is_left_is_what_zarr_leaves(layout: str, in_transaction: bool, data: st.DataObject) -> None:
    options, described = LAYOUTS[layout]
    shapes = data.draw(st.lists(st.tuples(st.integers(0, 22), st.integers(0, 22)), min_size=1, max_size=3))
    store = shardstore.open(memory(), **options)
    described = {"name": "x", "shape": (17, 19), "chunks": (2, 2), "dtype": "i2", **described}
    values = np.where(np.random.default_rng(0).random((17, 19)) < 0.7, 1 + np.arange(17 * 19).reshape(17, 19), 0).astype("i2")
    plain, array = zarr.create_array(MemoryStore(), **described), zarr.create_array(store, **described)
    plain[...] = array[...] = values
    if in_transaction:
        with store.transaction():
            for shape in shapes:
                array.resize(shape)
    else:
        for shape in shapes:
            array.resize(shape)
    for shape in shapes:
        plain.resize(shape)
    np.testing.assert_array_equal(np.asarray(array), np.asarray(plain))
    for handle in (plain, array):
        handle.resize((24, 24))
    zarr.open_array(store, path="x").resize((24, 24))
    np.testing.assert_array_equal(np.asarray(array), np.asarray(plain))


def test_nothing_goes_where_another_client_has_made_the_array_longer() -> None:
    """And has written there: into the shard in which the array ends here, and behind it."""
    storage = memory()
    store = shardstore.open(storage, chunks_per_shard=(4,))
    array: Any = zarr.create_array(store, name="x", shape=(6,), chunks=(1,), dtype="u1")
    array[...] = 1
    other: Any = zarr.open_array(store, path="x")
    other.resize((12,))
    other[6:] = 2
    with pytest.raises(Conflict):
        array.resize((2,))
    assert view.keys(store, "x/c/") == sorted(f"x/c/{i}" for i in range(12))
    assert other[...].tolist() == [1] * 6 + [2] * 6


def test_chunks_outside_are_kept_if_zarr_is_asked_to_keep_them() -> None:
    store = shardstore.open(memory(), chunks_per_shard=(4,))
    array: Any = zarr.create_array(store, name="x", shape=(6,), chunks=(1,), dtype="u1")
    array[...] = 1

    async def resize() -> None:
        await array.async_array.resize((2,), delete_outside_chunks=False)

    zarr.core.sync.sync(resize())
    array.resize((6,))
    assert array[...].tolist() == [1] * 6


class DeletionsNoted(MemoryStorage):
    """Notes the keys that it is asked to delete."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.deleted: list[str] = []

    async def delete_many(self, keys: Sequence[str]) -> None:
        self.deleted += keys
        await super().delete_many(keys)


@pytest.mark.parametrize("rows", [3, 40])
def test_rows_are_told_apart_from_those_that_begin_like_them(rows: int) -> None:
    """``c/1`` is the beginning of ``c/10`` too."""
    storage = DeletionsNoted(f"/shrinking-{uuid.uuid4().hex}")
    store = shardstore.open(storage, chunks_per_shard=(2,))
    array: Any = zarr.create_array(store, name="x", shape=(50,), chunks=(1,), dtype="u1")
    array[...] = 1
    array.resize((50 - rows,))
    array.resize((50,))
    assert array[...].tolist() == [1] * (50 - rows) + [0] * rows
    array.resize((26,))  # to the shards c/1 to c/12, of which some begin like others
    array.resize((2,))
    assert len(storage.deleted) == len(set(storage.deleted))
    assert [key for key in StorageObjects(storage).keys() if "/c/" in key] == ["x/c/0"]  # noqa: SIM118 - no mapping


def test_a_shape_that_is_refused_and_a_store_that_is_read_only_lose_nothing() -> None:
    storage = memory()
    store = shardstore.open(storage, chunks_per_shard=(2,))
    array: Any = zarr.create_array(store, name="x", shape=(8,), chunks=(1,), dtype="u1")
    array[...] = 1
    before = {key: StorageObjects(storage).get(key) for key in StorageObjects(storage).keys()}  # noqa: SIM118 - no mapping
    with pytest.raises((ValueError, AssertionError)):
        array.resize((2, 2))
    with pytest.raises(ReadOnly):
        zarr.open_array(shardstore.open(storage, read_only=True), path="x", mode="r").resize((2,))
    assert {key: StorageObjects(storage).get(key) for key in StorageObjects(storage).keys()} == before  # noqa: SIM118 - no mapping


class RefusesToDelete(MemoryStorage):
    """Carries out no deletion."""

    async def delete_many(self, keys: Sequence[str]) -> None:
        raise StorageError("not now")


def test_an_error_of_the_storage_leaves_the_shape() -> None:
    storage = RefusesToDelete(f"/shrinking-{uuid.uuid4().hex}")
    store = shardstore.open(storage, chunks_per_shard=(2,))
    array: Any = zarr.create_array(store, name="x", shape=(8,), chunks=(1,), dtype="u1")
    array[...] = 1
    with pytest.raises(StorageError, match="not now"):
        array.resize((2,))
    assert array.shape == (8,)
    assert np.asarray(zarr.open_array(store, path="x")).tolist() == [1] * 8


def test_in_a_session_of_a_versioned_store(tmp_path: Any) -> None:
    repository = Repository.create(str(tmp_path / "v"))
    values = np.arange(1, 101, dtype="i4").reshape(10, 10)
    with repository.transaction("main", message="one") as store:
        zarr.create_array(store, name="x", data=values, chunks=(2, 2))
    with repository.transaction("main", message="two") as store:
        array = zarr.open_array(store, path="x")
        array.resize((4, 10))
        array.resize((10, 10))
    array = zarr.open_array(repository.readonly_session("main").store, path="x", mode="r")
    np.testing.assert_array_equal(array[:4], values[:4])
    assert not np.any(array[4:])


def test_by_url_of_the_filesystem(tmp_path: Any) -> None:
    options = {"sharded": {"chunks_per_shard": (2, 2), "fsync": False}}
    url = f"sharded::{tmp_path.as_uri()}/s.zarr"
    array: Any = zarr.create_array(url, name="g/x", shape=(8, 8), chunks=(1, 1), dtype="u1", storage_options=options)
    array[...] = 1
    array.store.fs.counters.reset()
    array.resize((3, 8))
    assert array.store.fs.counters.commits == 4
    assert sorted(path.name for path in (tmp_path / "s.zarr/g/x/c").iterdir() if any(path.iterdir())) == ["0", "1"]
    array.resize((8, 8))
    assert np.count_nonzero(array[...]) == 24
