"""Arrays for which zarr's user has chosen the shards: seen by shards there, by chunks everywhere else, and stored as asked."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore, LoggingStore, MemoryStore

import shardstore
from shardstore.adapters.zarr.chunk_pipeline import place_of
from shardstore.adapters.zarr.own_shards import ShardPipeline
from shardstore.errors import InvalidInput, NotFound
from shardstore.format.json_text import dumps, loads_object
from shardstore.testing.trace import TraceStorage
from tests import view
from tests.engine.hooked import fresh_memory as memory
from tests.stored import LocalObjects, Objects, StorageObjects

REFUSAL = "asks for shards itself"
SHAPE = (20, 30)
VALUES = np.arange(1, 601, dtype="i4").reshape(SHAPE)

Array = npt.NDArray[np.int32]


def stored(objects: Objects) -> list[str]:
    return objects.keys()


def create(store: Any, name: str = "a", **options: Any) -> Any:
    described: dict[str, Any] = {"shape": SHAPE, "chunks": (2, 3), "shards": (8, 9), "dtype": "i4"}
    return zarr.create_array(store, name=name, **described | options)


def by_url(root: Path) -> FsspecStore:
    store = FsspecStore.from_url(f"sharded::file://{root}", storage_options={"sharded": {"fsync": False}})
    assert isinstance(store, FsspecStore)
    return store


STORES: dict[str, Callable[[Path], Any]] = {"store": lambda root: shardstore.open(str(root), fsync=False), "url": by_url}


@pytest.mark.parametrize("how", STORES)
def test_what_is_stored_is_what_was_asked_for(how: str, tmp_path: Path) -> None:
    """To the byte of the document, and native readers find the shards; other clients see chunks."""
    store, plain = STORES[how](tmp_path), MemoryStore()
    for target in (store, plain):
        create(target, attributes={"of": "Temperatur über Grund"}, dimension_names=["x", "y"])
    assert LocalObjects(tmp_path).get("a/zarr.json") == view.get(plain, "a/zarr.json")
    array = create(store, overwrite=True)
    assert (array.shards, array.chunks) == ((8, 9), (2, 3))
    array[...] = VALUES
    assert sorted(key for key in stored(LocalObjects(tmp_path)) if "/c/" in key) == [f"a/c/{i}/{j}" for i in range(3) for j in range(4)]
    native = zarr.open_array(LocalStore(tmp_path), path="a")
    assert native.shards == (8, 9)
    for reader in (native, array, zarr.open_array(STORES[how](tmp_path), path="a")):
        np.testing.assert_array_equal(reader[...], VALUES)
    seen = zarr.open_array(STORES[how](tmp_path), path="a")
    assert (seen.shards, seen.chunks) == (None, (2, 3))


def test_keys_mean_chunks_whoever_asks() -> None:
    store = shardstore.open(memory())
    array = create(store, compressors=None)
    array[...] = VALUES
    assert view.getsize(store, "a/c/0/0") == 2 * 3 * 4
    assert len(view.keys(store, "a/c")) == 10 * 10


ENCODINGS: list[Any] = [None, {"name": "default", "separator": "."}, {"name": "v2", "separator": "/"}, {"name": "v2", "separator": "."}]


def select(rng: np.random.Generator) -> tuple[str, Any, Any]:
    """A random selection: by which attribute zarr's arrays are asked for it (``""``: none), how, and what numpy calls the same."""
    first, last = sorted(rng.integers(0, SHAPE[0] + 1, 2).tolist())
    left, right = sorted(rng.integers(0, SHAPE[1] + 1, 2).tolist())
    rows, columns = slice(first, last, int(rng.integers(1, 5))), slice(left, right)
    row = int(rng.integers(SHAPE[0]))
    some_rows, some_columns = rng.permutation(SHAPE[0])[:5], rng.permutation(SHAPE[1])[:5]
    points, flags = rng.random(SHAPE) < 0.3, rng.random(SHAPE[0]) < 0.3
    kinds: list[tuple[str, Any, Any]] = [
        ("", (rows, columns), (rows, columns)),
        ("", (row, columns), (row, columns)),
        ("", (row, 7), (row, 7)),
        ("vindex", (some_rows, some_columns), (some_rows, some_columns)),
        ("vindex", points, points),
        ("oindex", (some_rows, some_columns), np.ix_(some_rows, some_columns)),
        ("oindex", (some_rows, columns), (some_rows, columns)),
        ("oindex", (rows, np.sort(some_columns)), (rows, np.sort(some_columns))),
        ("oindex", (row, some_columns), (row, some_columns)),
        ("oindex", (flags, columns), (flags, columns)),
    ]
    return kinds[int(rng.integers(len(kinds)))]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_kind_of_selection_is_the_same_by_shards_and_by_chunks(encoding: Any) -> None:
    store = shardstore.open(memory())
    array = create(store, chunk_key_encoding=encoding, fill_value=-1)
    chunks = zarr.open_array(store, path="a")
    expected: Array = np.full(SHAPE, -1, "i4")
    rng = np.random.default_rng(ENCODINGS.index(encoding))
    for number in range(40):
        by, selection, key = select(rng)
        value: Any = rng.integers(-1, 50, expected[key].shape, dtype="i4") if number % 3 else int(rng.integers(-1, 50))
        (getattr(array, by) if by else array)[selection] = value
        expected[key] = value
        by, selection, key = select(rng)
        for opened in (array, chunks):
            np.testing.assert_array_equal((getattr(opened, by) if by else opened)[selection], expected[key])
    np.testing.assert_array_equal(array[...], expected)
    np.testing.assert_array_equal(chunks[...], expected)


@pytest.mark.parametrize(("shape", "chunks", "shards"), [((), (), ()), ((7,), (1,), (7,)), ((3, 4, 5), (1, 2, 3), (2, 2, 6))])
def test_any_number_of_dimensions(shape: tuple[int, ...], chunks: tuple[int, ...], shards: tuple[int, ...]) -> None:
    store = shardstore.open(memory())
    if not shape and tuple(map(int, zarr.__version__.split(".")[:2])) < (3, 2):
        pytest.skip("zarr before 3.2 has no shards of arrays without dimensions")
    array = create(store, shape=shape, chunks=chunks, shards=shards)
    values = np.arange(1, 1 + int(np.prod(shape)), dtype="i4").reshape(shape)
    array[...] = values
    np.testing.assert_array_equal(array[...], values)
    np.testing.assert_array_equal(zarr.open_array(store, path="a")[...], values)


def test_strings_and_nested_shards() -> None:
    """Types without a size go through zarr's codecs, and so do chunks that are shards themselves."""
    store = shardstore.open(memory())
    words = np.array(["eins", "zwei", "", "vier", "fünf", "sechs"], dtype=np.dtypes.StringDType())
    array = create(store, shape=(6,), chunks=(2,), shards=(4,), dtype="str")
    array[...] = words
    for opened in (array, zarr.open_array(store, path="a")):
        assert np.asarray(opened[...]).tolist() == words.tolist()
    inner = zarr.codecs.ShardingCodec(chunk_shape=(2, 3))
    nested = create(store, "n", serializer=inner, chunks=(4, 6), shards=(8, 12), compressors=None)
    nested[...] = VALUES
    nested[3:9, 4:20] = 7
    expected = VALUES.copy()
    expected[3:9, 4:20] = 7
    seen = zarr.open_array(store, path="n")
    assert seen.shards == (4, 6)  # of the shards in shards the outer ones are not shown
    np.testing.assert_array_equal(nested[...], expected)
    np.testing.assert_array_equal(seen[...], expected)
    seen[0] = 1
    nested.attrs["x"] = 1
    assert (nested[0] == 1).all()


def test_writers_by_shards_and_by_chunks_share_shards_and_lose_nothing() -> None:
    storage = memory()
    array = create(shardstore.open(storage), shards=(10, 15))
    views = [array, array, zarr.open_array(shardstore.open(storage), path="a"), zarr.open_array(shardstore.open(storage), path="a")]

    def write(number: int) -> None:
        for row in range(2 * number, SHAPE[0], 8):  # a chunk has two rows, a shard ten
            views[number][row : row + 2] = VALUES[row : row + 2]

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(array[...], VALUES)


def test_an_assignment_costs_one_commit_a_shard_and_a_selection_one_index_a_shard() -> None:
    trace = TraceStorage(memory())
    store = shardstore.open(trace, metadata_ttl="1000s")
    array = create(store, shape=(16, 18))
    store.counters.reset()
    trace.reset()
    array[...] = 1
    assert store.counters.commits == 4
    assert not [event for event in trace.events if event.op == "read" and event.key.endswith("zarr.json")]
    trace.reset()
    other = shardstore.open(trace, metadata_ttl="999s")
    document = pickle.loads(pickle.dumps(array.metadata))
    opened: Any = zarr.Array(zarr.AsyncArray(document, store_path=zarr.storage.StorePath(other, "a")))
    np.testing.assert_array_equal(opened[...], np.ones((16, 18)))
    reads = [event.key for event in trace.events if event.op == "read"]
    assert reads.count("a/zarr.json") == 1
    assert len(reads) <= 1 + 2 * 4


def test_shrinking_erases_shards_that_are_outside_and_no_chunk_that_is_inside() -> None:
    """The keys that zarr would delete are those of chunks inside: ``c/1/0`` is the second shard, and the second chunk."""
    storage = memory()
    store = shardstore.open(storage)
    array = create(store)
    array[...] = VALUES
    array.resize((8, 30))
    np.testing.assert_array_equal(array[...], VALUES[:8])
    np.testing.assert_array_equal(zarr.open_array(store, path="a")[...], VALUES[:8])
    assert sorted(key for key in stored(StorageObjects(storage)) if "/c/" in key) == [f"a/c/0/{j}" for j in range(4)]
    array.resize((3, 30))  # within a shard: zarr keeps what is beyond the shape
    array.resize(SHAPE)
    np.testing.assert_array_equal(array[:8], VALUES[:8])
    assert not array[8:].any()
    with pytest.raises((ValueError, AssertionError)):
        array.resize((3,))
    np.testing.assert_array_equal(array[:8], VALUES[:8])


@pytest.mark.parametrize("in_transaction", [False, True])
def test_shrinking_erases_by_chunks_where_others_have_packed_the_array_anew(in_transaction: bool) -> None:
    storage = memory()
    store = shardstore.open(storage)
    array = create(store)
    array[...] = VALUES
    again = shardstore.open(storage, chunks_per_shard=(3, 7))
    zarr.create_array(again, name="a", shape=SHAPE, chunks=(2, 3), dtype="i4", overwrite=True)[...] = VALUES
    if in_transaction:
        with store.transaction():
            array.resize((8, 30))
    else:
        array.resize((8, 30))
    np.testing.assert_array_equal(zarr.open_array(again, path="a")[...], VALUES[:8])
    assert again.chunks_per_shard("a") == (3, 7)
    array.resize(SHAPE)
    assert not array[8:].any()


def test_an_array_is_updated_and_grown_through_all_its_handles() -> None:
    storage = memory()
    store = shardstore.open(storage)
    array = create(store, shape=(8, 9))
    array[...] = 1
    for number, handle in enumerate((array, pickle.loads(pickle.dumps(array)), array.with_config({"write_empty_chunks": True}))):
        handle.attrs["n"] = number
        assert zarr.open_array(store, path="a").attrs["n"] == number
        assert store.chunks_per_shard("a") == (4, 3)
    array.append(np.full((5, 9), 2, "i4"))
    assert zarr.open_array(store, path="a").shape == (13, 9)
    document = loads_object(StorageObjects(storage).get("a/zarr.json") or b"")
    assert document["chunk_grid"]["configuration"]["chunk_shape"] == [8, 9]
    assert (array[8:] == 2).all()


async def test_the_asynchronous_interface() -> None:
    store = shardstore.open(memory())
    group = await zarr.api.asynchronous.open_group(store, mode="w")
    array = await group.create_array("a", shape=SHAPE, chunks=(2, 3), shards=(8, 9), dtype="i4")
    await asyncio.gather(*(array.setitem(slice(row, row + 2), VALUES[row : row + 2]) for row in range(0, SHAPE[0], 2)))
    np.testing.assert_array_equal(await array.getitem(slice(None)), VALUES)
    await array.resize((8, 30))
    np.testing.assert_array_equal(await array.getitem(slice(None)), VALUES[:8])


def test_what_is_initialized_is_counted_by_shards() -> None:
    store = shardstore.open(memory())
    array = create(store)
    assert array.nchunks_initialized == 0
    array[8:10, 9:12] = 1  # one chunk in the middle of the grid of shards
    assert array.nchunks_initialized == 4 * 3
    assert "Shards Initialized : 1" in str(array.info_complete()).replace("  ", " ")
    other = zarr.create_array(MemoryStore(), shape=(4,), chunks=(1,), shards=(2,), dtype="i4")
    other[0] = 1
    assert other.nchunks_initialized == 2


def test_groups_copies_and_consolidated_metadata() -> None:
    store = shardstore.open(memory())
    group = zarr.create_group(store)
    array = group.create_array("a", shape=SHAPE, chunks=(2, 3), shards=(8, 9), dtype="i4")
    array[...] = VALUES
    copied = zarr.from_array(store, data=array, name="g/copy")
    assert copied.shards == (8, 9)
    assert store.chunks_per_shard("g/copy") == (4, 3)
    np.testing.assert_array_equal(copied[...], VALUES)
    zarr.consolidate_metadata(store)
    consolidated = zarr.open_consolidated(store)
    np.testing.assert_array_equal(np.asarray(consolidated["a"]), VALUES)
    consolidated.attrs["x"] = 1
    array.attrs["y"] = 1
    made: Any = dict(zarr.create_hierarchy(store=store, nodes={"h/b": array.metadata}, overwrite=True))["h/b"]
    made[...] = VALUES
    np.testing.assert_array_equal(zarr.open_array(store, path="h/b")[...], VALUES)


def test_a_transaction_creates_writes_and_shrinks() -> None:
    storage = memory()
    store = shardstore.open(storage)
    with store.transaction():
        array = create(store, "t", shape=(10,), chunks=(2,), shards=(4,))
        array[...] = np.arange(10)
        chunks = zarr.open_array(store, path="t")
        assert chunks.shards is None
        chunks[3] = 99
        chunks.attrs["by"] = "chunks"
        array.attrs["by"] = "shards"
        array.resize((5,))
        np.testing.assert_array_equal(array[...], [0, 1, 2, 99, 4])
        assert not stored(StorageObjects(storage))
    assert store.chunks_per_shard("t") == (2,)
    assert sorted(stored(StorageObjects(storage))) == ["t/c/0", "t/c/1", "t/zarr.json", "zarr.json"]
    np.testing.assert_array_equal(zarr.open_array(store, path="t")[...], [0, 1, 2, 99, 4])


# -- refused ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["option", "environment", "wrapper", "url"])
def test_without_the_pipeline_it_is_refused_and_nothing_is_left(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"}):
        if how == "environment":
            monkeypatch.setenv("SHARDSTORE_PIPELINE", "0")
        store: Any = shardstore.open(str(tmp_path), pipeline=how != "option")
        if how == "wrapper":
            store = LoggingStore(store)
        if how == "url":
            store = FsspecStore.from_url(f"sharded::file://{tmp_path}", storage_options={"sharded": {"pipeline": False}})
        with pytest.raises(InvalidInput, match=REFUSAL):
            create(store, "deep/down/a")
        assert not stored(LocalObjects(tmp_path))


def test_clients_of_keys_are_refused() -> None:
    """Even beside an array that zarr has: that must not let them turn shards into chunks."""
    storage, plain = memory(), MemoryStore()
    store = shardstore.open(storage)
    create(plain)
    document = view.get(plain, "a/zarr.json")
    assert document is not None
    with pytest.raises(InvalidInput, match=REFUSAL):
        view.put(store, "a/zarr.json", document)
    with pytest.raises(InvalidInput, match=REFUSAL):
        shardstore.get_mapper(storage)["a/zarr.json"] = document
    assert not stored(StorageObjects(storage))
    array = create(store)
    with pytest.raises(InvalidInput, match=REFUSAL):
        view.put(store, "b/zarr.json", document)
    view.delete_dir(store, "a")
    with pytest.raises(InvalidInput, match=REFUSAL):
        view.put(store, "a/zarr.json", document)  # the array may be updated by its handle, and was created once
    del array
    create(store)[...] = VALUES
    with pytest.raises(InvalidInput, match="cannot change while it has chunks"):
        shardstore.get_mapper(storage)["a/zarr.json"] = document


def test_an_array_that_is_not_what_it_was_is_neither_read_nor_written() -> None:
    storage = memory()
    store, others = shardstore.open(storage, metadata_ttl=0.0), shardstore.open(storage)
    array = create(store)
    array[...] = VALUES
    view.delete_dir(others, "a")
    with pytest.raises(NotFound, match="deleted"):
        array[0] = 1
    create(others, shards=None, chunks=(5, 5))
    with pytest.raises(InvalidInput, match="open it again"):
        array[0] = 1
    with pytest.raises(InvalidInput, match="open it again"):
        array.resize((1, 1))
    assert sorted(view.keys(others, "a")) == ["a/zarr.json"]
    # With the same chunks in other shards it is the same array.
    create(others, shards=(4, 30), overwrite=True)
    array[...] = VALUES
    np.testing.assert_array_equal(zarr.open_array(others, path="a")[...], VALUES)


def test_arrays_whose_chunks_cannot_be_shown_are_stored_as_asked() -> None:
    """For every client they are sharded: no two disagree about a key."""
    storage = memory()
    store = shardstore.open(storage)
    codecs: list[Any] = [zarr.codecs.ShardingCodec(chunk_shape=(2, 3)), zarr.codecs.Crc32cCodec()]
    with pytest.warns(UserWarning, match="partial"):
        array = zarr.create(store=store, path="w", shape=SHAPE, chunks=(8, 9), dtype="i4", codecs=codecs, zarr_format=3)
    assert isinstance(array.async_array.codec_pipeline, ShardPipeline)
    array[...] = VALUES
    assert "w/c/2/3" in stored(StorageObjects(storage))
    with pytest.warns(UserWarning, match="partial"):
        np.testing.assert_array_equal(zarr.open_array(store, path="w")[...], VALUES)
    array.resize((8, 30))
    assert "w/c/1/0" not in stored(StorageObjects(storage))
    np.testing.assert_array_equal(array[...], VALUES[:8])


# -- how it is asked for ------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Automatic shard shape inference")
def test_automatic_shards() -> None:
    store = shardstore.open(memory())
    array = create(store, shape=(400, 300), chunks=(10, 10), shards="auto")
    assert array.shards is not None
    assert store.chunks_per_shard("a") == tuple(s // c for s, c in zip(array.shards, array.chunks, strict=True))
    values = np.arange(400 * 300, dtype="i4").reshape(400, 300)
    array[...] = values
    np.testing.assert_array_equal(zarr.open_array(store, path="a")[...], values)


def test_shards_at_the_start() -> None:
    store = shardstore.open(memory())
    array = create(store, shards={"shape": (8, 9), "index_location": "start"})
    array[...] = VALUES
    layout = store.layout("a")
    assert layout is not None
    assert layout.index_format.location == "start"
    np.testing.assert_array_equal(sync(array.async_array.getitem(slice(None))), VALUES)


@pytest.mark.filterwarnings("ignore:Combining a")
def test_a_transposition_before_the_shards() -> None:
    storage = memory()
    store = shardstore.open(storage)
    codecs: list[Any] = [zarr.codecs.TransposeCodec(order=(1, 0)), zarr.codecs.ShardingCodec(chunk_shape=(3, 3))]
    array = zarr.create(store=store, path="t", shape=SHAPE, chunks=(9, 9), dtype="i4", codecs=codecs, zarr_format=3)
    array[...] = VALUES
    array[3:11, 5] = 0
    expected = VALUES.copy()
    expected[3:11, 5] = 0
    assert store.chunks_per_shard("t") == (3, 3)
    for opened in (array, zarr.open_array(store, path="t")):
        np.testing.assert_array_equal(opened[...], expected)
    assert zarr.open_array(store, path="t").chunks == (3, 3)


@pytest.mark.filterwarnings("ignore:Combining a")
def test_documents_that_cannot_be_shown_by_chunks_may_change_as_those_of_other_stores() -> None:
    """Such as irregular grids, which grow with the array."""
    storage = memory()
    store = shardstore.open(storage)
    codecs: list[Any] = [zarr.codecs.ShardingCodec(chunk_shape=(2, 3)), zarr.codecs.Crc32cCodec()]
    array = zarr.create(store=store, path="w", shape=SHAPE, chunks=(8, 9), dtype="i4", codecs=codecs, zarr_format=3)
    changed = dumps(loads_object(StorageObjects(storage).get("w/zarr.json") or b"") | {"data_type": "float32"})
    view.put(store, "w/zarr.json", changed)
    assert StorageObjects(storage).get("w/zarr.json") == changed
    del array
    with pytest.raises(InvalidInput, match=REFUSAL):
        view.put(store, "v/zarr.json", changed)


def test_a_mock_of_a_store_is_none() -> None:
    """What only pretends to be one must not be believed that it has an engine."""
    store = AsyncMock(wraps=shardstore.open(memory()), spec=shardstore.ShardedStore)
    store.read_only = False
    assert isinstance(store, shardstore.ShardedStore)
    assert place_of(store) is None
