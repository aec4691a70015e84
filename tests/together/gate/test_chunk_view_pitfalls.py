"""What goes wrong in a view at chunk level when it is done the obvious way; each of these was tried on something.

"Two processes" are two stores that know nothing of each other: a wrapper around a storage has an engine, and so caches, of its own.
No test here waits: ``metadata_ttl`` is 0 (always revalidate) or an hour (never, as far as a test can tell).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.core.sync import sync
from zarr.storage import MemoryStore

import shardstore
from shardstore.errors import InvalidInput, NotFound, ShardStoreError
from shardstore.model.durations import Duration
from shardstore.storage.base import Storage
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.trace import TraceStorage
from tests import view
from tests.documents import sharding_codec
from tests.golden import FIXTURES
from tests.shards import presented, sharded_arrays
from tests.stored import LocalObjects, Objects, StorageObjects, as_zarr_memory, copy_tree, document, snapshot

HOUR = "1h"


@dataclass
class Place:
    """One target, any number of clients that know nothing of each other, and the objects without any."""

    make: Callable[[], Storage]
    objects: Objects

    def client(self, **options: Any) -> shardstore.ShardedStore:
        return shardstore.open(TraceStorage(self.make()), **options)

    def native(self, path: str = "") -> zarr.Array[Any]:
        """The stored array, as zarr-python alone sees it."""
        return zarr.open_array(as_zarr_memory(self.objects), path=path, mode="r")


@pytest.fixture(params=["memory", "local"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "local":
        return Place(lambda: LocalStorage(str(tmp_path)), LocalObjects(tmp_path))
    path = f"/traps-{uuid.uuid4().hex}"
    return Place(lambda: MemoryStorage(path), StorageObjects(MemoryStorage(path)))


def create(store: shardstore.ShardedStore, name: str | None = "ct", **changes: Any) -> zarr.Array[Any]:
    """Eight bytes in chunks of one."""
    options: dict[str, Any] = {"shape": (8,), "chunks": (1,), "dtype": "u1", "compressors": None, "fill_value": 0}
    return zarr.create_array(store, name=name, **{**options, **changes})


def chunk_keys(objects: Objects) -> list[str]:
    return [key for key in objects.keys() if not key.endswith("zarr.json")]  # noqa: SIM118 - no mapping


# -- stale metadata -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ttl", [0.0, HOUR], ids=["revalidating", "trusting"])
def test_not_an_array_is_never_believed_for_a_write(place: Place, ttl: Duration) -> None:
    """A client that once saw no array must not write a chunk straight onto a stored shard: it would destroy all of it."""
    old = place.client(chunks_per_shard=(4,), metadata_ttl=ttl)
    assert view.get(old, "ct/c/0") is None
    assert not view.exists(old, "ct/c/0")
    assert view.keys(old) == []

    values = np.arange(1, 9, dtype="u1")
    create(place.client(chunks_per_shard=(4,)))[...] = values
    view.put(old, "ct/c/0", b"\x63")
    view.put(old, "ct/c/7", b"\x64")
    values[0], values[7] = 0x63, 0x64
    np.testing.assert_array_equal(place.native("ct")[...], values)
    assert chunk_keys(place.objects) == ["ct/c/0", "ct/c/1"]


def test_not_an_array_is_never_believed_for_a_delete(place: Place) -> None:
    """To such a client the key of a chunk is the key of an object, and that object is a shard of four chunks."""
    old = place.client(metadata_ttl=HOUR)
    assert view.get(old, "ct/c/0") is None
    create(place.client(chunks_per_shard=(4,)))[...] = np.arange(1, 9)
    view.delete(old, "ct/c/0")
    np.testing.assert_array_equal(place.native("ct")[...], [0, 2, 3, 4, 5, 6, 7, 8])


def test_what_another_client_created_is_seen(place: Place) -> None:
    old = place.client(metadata_ttl=0.0)
    assert view.get(old, "ct/c/5") is None
    create(place.client(chunks_per_shard=(4,)))[...] = np.arange(1, 9)
    assert view.get(old, "ct/c/5") == b"\x06"
    np.testing.assert_array_equal(zarr.open_array(old, path="ct", mode="r")[...], np.arange(1, 9))


def test_another_shard_shape_is_noticed_before_a_write(place: Place) -> None:
    """Written by the old shape, chunk 5 would go to slot 1 of shard 2, which the new shape does not have."""
    old = place.client(metadata_ttl=0.0)
    create(place.client(chunks_per_shard=(2,)))[...] = np.arange(1, 9)
    assert view.get(old, "ct/c/5") == b"\x06"

    create(place.client(chunks_per_shard=(8,)), overwrite=True)[...] = np.arange(11, 19)
    view.put(old, "ct/c/5", b"\x63")
    assert chunk_keys(place.objects) == ["ct/c/0"]
    np.testing.assert_array_equal(place.native("ct")[...], [11, 12, 13, 14, 15, 0x63, 17, 18])


def test_another_shard_shape_is_noticed_where_the_shard_is_absent(place: Place) -> None:
    """Compare-and-swap cannot help here: there is no object whose version could have changed."""
    old = place.client(metadata_ttl=0.0)
    create(place.client(chunks_per_shard=(2,)))
    view.put(old, "ct/c/5", b"\x06")
    create(place.client(chunks_per_shard=(8,)), overwrite=True)
    view.put(old, "ct/c/5", b"\x63")
    np.testing.assert_array_equal(place.native("ct")[...], [0, 0, 0, 0, 0, 0x63, 0, 0])


def test_reads_notice_another_shard_shape_even_when_trusting(place: Place) -> None:
    old = place.client(metadata_ttl=HOUR)
    create(place.client(chunks_per_shard=(2,)))[...] = np.arange(1, 9)
    array = zarr.open_array(old, path="ct", mode="r")
    np.testing.assert_array_equal(array[...], np.arange(1, 9))
    create(place.client(chunks_per_shard=(8,)), overwrite=True)[...] = np.arange(11, 19)
    np.testing.assert_array_equal(array[...], np.arange(11, 19))


def test_a_single_read_notices_another_shard_shape(place: Place) -> None:
    """By the old shape, chunk 5 lies in shard 2, which there no longer is: that must not read as a missing chunk."""
    old = place.client(metadata_ttl=0.0)
    create(place.client(chunks_per_shard=(2,)))[...] = np.arange(1, 9)
    assert view.get(old, "ct/c/5") == b"\x06"
    create(place.client(chunks_per_shard=(8,)), overwrite=True)[...] = np.arange(11, 19)
    assert view.get(old, "ct/c/5") == b"\x10"
    assert view.getsize(old, "ct/c/7") == 1
    assert view.exists(old, "ct/c/6")
    assert view.keys(old, "ct/c/") == [f"ct/c/{i}" for i in range(8)]


@pytest.mark.parametrize("ttl", [0.0, HOUR], ids=["revalidating", "trusting"])
def test_reads_notice_that_an_array_is_no_longer_sharded(place: Place, ttl: Duration) -> None:
    """The object ``ct/c/0`` was a shard and is a chunk."""
    old = place.client(metadata_ttl=ttl)
    create(place.client(chunks_per_shard=(2,)))[...] = np.arange(1, 9)
    array = zarr.open_array(old, path="ct", mode="r+")
    np.testing.assert_array_equal(array[...], np.arange(1, 9))
    create(place.client(chunks_per_shard=None), overwrite=True)[...] = np.arange(11, 19)
    np.testing.assert_array_equal(array[...], np.arange(11, 19))
    array[0] = 99
    np.testing.assert_array_equal(place.native("ct")[...], [99, *range(12, 19)])


def test_reads_and_writes_notice_that_an_array_is_sharded_now(place: Place) -> None:
    """The object ``ct/c/0`` was a chunk and is a shard of eight; the others are gone, and their chunks are not missing."""
    old = place.client(metadata_ttl=0.0)
    create(place.client(chunks_per_shard=None))[...] = np.arange(1, 9)
    array = zarr.open_array(old, path="ct", mode="r+")
    np.testing.assert_array_equal(array[...], np.arange(1, 9))
    create(place.client(chunks_per_shard=(8,)), overwrite=True)[...] = np.arange(11, 19)
    assert view.get(old, "ct/c/5") == b"\x10"
    assert view.get(old, "ct/c/0") == b"\x0b"
    assert view.getsize(old, "ct/c/7") == 1
    np.testing.assert_array_equal(array[...], np.arange(11, 19))
    array[0] = 99
    np.testing.assert_array_equal(place.native("ct")[...], [99, *range(12, 19)])


def test_a_cached_index_is_validated(place: Place) -> None:
    """Offsets of one version of a shard mean nothing in the next."""
    old = place.client(metadata_ttl=HOUR)
    new = place.client(chunks_per_shard=(8,))
    array = create(new, chunks=(2,))
    array[...] = np.arange(1, 9)
    reader = zarr.open_array(old, path="ct", mode="r")
    np.testing.assert_array_equal(reader[...], np.arange(1, 9))
    array[0:2] = 0  # the first chunk goes, so that all others move
    np.testing.assert_array_equal(reader[4:6], [5, 6])
    np.testing.assert_array_equal(reader[...], [0, 0, 3, 4, 5, 6, 7, 8])
    array[...] = 0  # the object goes
    np.testing.assert_array_equal(reader[...], np.zeros(8))


def test_an_array_that_another_client_deleted_is_not_written_as_objects(place: Place) -> None:
    old = place.client(metadata_ttl=0.0)
    new = place.client(chunks_per_shard=(4,))
    create(new)[...] = np.arange(1, 9)
    array = zarr.open_array(old, path="ct", mode="r+")
    array[0] = 9
    view.delete_dir(new, "ct")
    before = snapshot(place.objects)
    with pytest.raises(NotFound, match="ct"):
        array[0] = 10
    assert snapshot(place.objects) == before
    assert not [key for key in before if key.startswith("ct/")]


def test_writers_of_two_clients_do_not_lose_each_others_chunks(place: Place) -> None:
    one, other = place.client(chunks_per_shard=(8,)), place.client()
    mine = create(one)
    theirs = zarr.open_array(other, path="ct", mode="r+")
    for i in range(4):
        mine[2 * i] = 10 + i
        theirs[2 * i + 1] = 20 + i
    np.testing.assert_array_equal(place.native("ct")[...], [10, 20, 11, 21, 12, 22, 13, 23])
    assert len(chunk_keys(place.objects)) == 1


# -- order --------------------------------------------------------------------------------------------------------------

CHUNK_FIRST = [("ct/c/0", b"\x01"), ("ct/c/1", b"\x02"), ("ct/c/7", b"\x08"), ("ct/zarr.json", b"")]


def ct_document(shape: int = 8) -> bytes:
    """The presented document of the array that ``create`` makes."""
    memory = MemoryStore()
    zarr.create_array(memory, name="ct", shape=(shape,), chunks=(1,), dtype="u1", compressors=None, fill_value=0)
    data = view.get(memory, "ct/zarr.json")
    assert data is not None
    return data


def test_chunks_sent_before_metadata_in_one_batch(place: Place) -> None:
    """``c/…`` sorts before ``zarr.json``, so this is the order in which copies arrive."""
    store = place.client(chunks_per_shard=(4,))
    view.put_many(store, [*CHUNK_FIRST[:-1], ("ct/zarr.json", ct_document())])
    assert chunk_keys(place.objects) == ["ct/c/0", "ct/c/1"]
    np.testing.assert_array_equal(place.native("ct")[...], [1, 2, 0, 0, 0, 0, 0, 8])


def test_chunks_sent_before_metadata_in_one_transaction(place: Place) -> None:
    store = place.client(chunks_per_shard=(4,))
    with store.transaction():
        for key, data in CHUNK_FIRST[:-1]:
            view.put(store, key, data)
        view.put(store, "ct/zarr.json", ct_document())
    assert chunk_keys(place.objects) == ["ct/c/0", "ct/c/1"]
    np.testing.assert_array_equal(place.native("ct")[...], [1, 2, 0, 0, 0, 0, 0, 8])


def test_chunks_sent_before_metadata_one_by_one_are_never_taken_for_shards(place: Place) -> None:
    """Without metadata they are plain objects. A document that would turn them into shards is refused."""
    store = place.client(chunks_per_shard=(4,))
    for key, data in CHUNK_FIRST[:-1]:
        view.put(store, key, data)
    before = snapshot(place.objects)
    with pytest.raises(InvalidInput, match="ct/c/0") as raised:
        view.put(store, "ct/zarr.json", ct_document())
    assert "before the chunks" in str(raised.value)  # the remedy
    assert snapshot(place.objects) == before


def test_metadata_deleted_first_is_refused_while_there_are_shards(place: Place) -> None:
    store = place.client(chunks_per_shard=(4,))
    create(store)[...] = np.arange(1, 9)
    before = snapshot(place.objects)
    with pytest.raises(InvalidInput, match="ct"):
        view.delete(store, "ct/zarr.json")
    assert snapshot(place.objects) == before
    for i in range(8):
        view.delete(store, f"ct/c/{i}")
    view.delete(store, "ct/zarr.json")
    assert [key for key in place.objects.keys() if key.startswith("ct/")] == []  # noqa: SIM118 - no mapping


def test_deleting_a_node_deletes_its_shards(place: Place) -> None:
    """zarr's own ``delete_dir`` would delete ``zarr.json`` first, and then take every key for an object."""
    store = place.client(chunks_per_shard=(4,))
    for name in ("g/ct", "g/ct2"):
        create(store, name)[...] = np.arange(1, 9)
    view.delete_dir(store, "g/ct")
    assert [name for name in view.list_dir(store, "g") if name != "zarr.json"] == ["ct2"]
    assert not [key for key in place.objects.keys() if key.startswith("g/ct/")]  # noqa: SIM118 - no mapping
    np.testing.assert_array_equal(place.native("g/ct2")[...], np.arange(1, 9))


def test_deleting_inside_an_array_deletes_chunks_not_shards(place: Place) -> None:
    """Row 1 of the chunks shares its shards with row 0."""
    store = place.client(chunks_per_shard=(2, 2))
    array = create(store, shape=(4, 4), chunks=(1, 1))
    values = np.arange(1, 17, dtype="u1").reshape(4, 4)
    array[...] = values
    view.delete_dir(store, "ct/c/1")
    values[1] = 0
    np.testing.assert_array_equal(place.native("ct")[...], values)
    assert view.keys(store, "ct/c/1") == []
    view.delete_dir(store, "ct/c")
    assert chunk_keys(place.objects) == []
    assert document(place.objects, "ct/zarr.json")["node_type"] == "array"


def test_erasing_a_prefix_is_no_erasing_of_names_that_start_alike(place: Place) -> None:
    store = place.client(chunks_per_shard=(4, 2))
    array = create(store, shape=(12, 2), chunks=(1, 1))
    values = np.arange(1, 25, dtype="u1").reshape(12, 2)
    array[...] = values
    view.delete_dir(store, "ct/c/1")  # neither c/10/… nor c/11/…
    values[1] = 0
    np.testing.assert_array_equal(place.native("ct")[...], values)


def test_deleting_inside_an_array_deletes_other_keys_there_too(place: Place) -> None:
    """What is listed below a prefix is gone when the prefix is deleted, chunk or not."""
    store = place.client(chunks_per_shard=(2, 2))
    create(store, shape=(4, 4), chunks=(1, 1))[...] = 7
    view.put(store, "ct/c/1/notes.txt", b"text")
    view.put(store, "ct/c/12/y", b"text")
    view.delete_dir(store, "ct/c/1")
    assert view.keys(store, "ct/c/1/") == []
    assert view.exists(store, "ct/c/12/y")
    assert view.exists(store, "ct/c/0/0")


# -- what a client with an old view may do -------------------------------------------------------------------------------


def test_an_old_views_attributes_keep_the_sharding_that_is_stored_now(place: Place) -> None:
    old, new = place.client(chunks_per_shard=(2,), metadata_ttl=HOUR), place.client(chunks_per_shard=(8,))
    create(old)[...] = np.arange(1, 9)
    array = zarr.open_array(old, path="ct", mode="r+")
    create(new, overwrite=True)[...] = np.arange(11, 19)
    array.update_attributes({"seen": "late"})
    native = place.native("ct")
    assert native.shards == (8,)
    assert dict(native.attrs) == {"seen": "late"}
    np.testing.assert_array_equal(native[...], np.arange(11, 19))


@pytest.mark.parametrize("changes", [{"chunks": (2,)}, {"dtype": "i1"}, {"compressors": "auto"}], ids=["chunks", "dtype", "codecs"])
def test_an_old_views_attributes_do_not_reinterpret_chunks(place: Place, changes: dict[str, Any]) -> None:
    old, new = place.client(chunks_per_shard=(2,)), place.client(chunks_per_shard=(2,))
    array = create(old)
    create(new, overwrite=True, **changes)[...] = np.arange(1, 9)
    before = snapshot(place.objects)
    with pytest.raises(InvalidInput, match="ct"):
        array.update_attributes({"seen": "late"})
    assert snapshot(place.objects) == before


def test_updates_keep_the_sharding_whatever_the_policy_says(place: Place) -> None:
    create(place.client(chunks_per_shard=(4,), index_location="start"))[...] = np.arange(1, 9)
    for policy in ((2,), None, "auto"):
        array = zarr.open_array(place.client(chunks_per_shard=policy), path="ct", mode="r+")
        array.update_attributes({"policy": str(policy)})
        array.resize((12,))
        array.resize((8,))
        stored = document(place.objects, "ct/zarr.json")
        assert stored["chunk_grid"]["configuration"]["chunk_shape"] == [4]
        assert stored["codecs"][0]["configuration"]["index_location"] == "start"
        np.testing.assert_array_equal(place.native("ct")[...], np.arange(1, 9))


def test_recreation_with_another_shard_shape(place: Place) -> None:
    for count, first in ((2, 1), (8, 11), (3, 21)):
        store = place.client(chunks_per_shard=(count,))
        create(store, overwrite=True)[...] = np.arange(first, first + 8)
        native = place.native("ct")
        assert native.shards == (count,)
        np.testing.assert_array_equal(native[...], np.arange(first, first + 8))
        np.testing.assert_array_equal(zarr.open_array(store, path="ct", mode="r")[...], np.arange(first, first + 8))


def test_recreation_without_erasing_is_refused_when_it_changes_the_chunks(place: Place) -> None:
    store = place.client(chunks_per_shard=(4,))
    create(store)[...] = np.arange(1, 9)
    before = snapshot(place.objects)
    changed = json.loads(ct_document())
    changed["chunk_grid"]["configuration"]["chunk_shape"] = [2]
    group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    for data in (json.dumps(changed).encode(), json.dumps(group).encode(), b"no JSON"):
        with pytest.raises(InvalidInput, match="ct") as raised:
            view.put(store, "ct/zarr.json", data)
        assert "rase" in str(raised.value)  # the remedy: erase first
    assert snapshot(place.objects) == before


def test_nested_shards_may_get_attributes(tmp_path: Path) -> None:
    """The presented form still has shards, but nobody asked for new ones."""
    copy_tree(FIXTURES / "sharding_indexed" / "nested_sharding" / "store", LocalObjects(tmp_path))
    before = document(LocalObjects(tmp_path), "n/zarr.json")
    array = zarr.open_array(shardstore.open(str(tmp_path)), path="n", mode="r+")
    values = np.asarray(array[...])
    array.update_attributes({"a": 1})
    after = document(LocalObjects(tmp_path), "n/zarr.json")
    assert after["codecs"] == before["codecs"]
    assert after["chunk_grid"] == before["chunk_grid"]
    np.testing.assert_array_equal(zarr.open_array(str(tmp_path), path="n", mode="r")[...], values)


# -- what documents keep -------------------------------------------------------------------------------------------------


def test_documents_keep_what_nobody_understands(place: Place) -> None:
    """Number forms, order, unknown members, NaN with a payload: through the view and back into what is stored."""
    text = (
        '{"zarr_format": 3, "node_type": "array", "shape": [8], "data_type": "float32", '
        '"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}}, '
        '"chunk_key_encoding": {"name": "default"}, "fill_value": "0x7fc00123", '
        '"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}], '
        '"attributes": {"huge": 1e400, "small": 1.50, "negative": -0, "long": 123456789012345678901234567890, "text": "\\u00e9"}, '
        '"dimension_names": ["t"], "storage_transformers": [], "theirs": {"must_understand": false, "n": 1.0}}'
    )
    store = place.client(chunks_per_shard=(4,))
    view.put(store, "ct/zarr.json", text.encode())

    def parsed(data: bytes | None) -> Any:
        assert data is not None
        return json.loads(data, parse_float=lambda n: f"float {n}", parse_int=lambda n: f"int {n}")

    expected = parsed(text.encode())
    stored = parsed(place.objects.get("ct/zarr.json"))
    assert stored["codecs"][0]["name"] == "sharding_indexed"
    changed = ("chunk_grid", "codecs")
    assert {k: v for k, v in stored.items() if k not in changed} == {k: v for k, v in expected.items() if k not in changed}
    assert parsed(view.get(store, "ct/zarr.json")) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"theirs": {"must_understand": True}},
        {"theirs": 1},
        {"chunk_grid": {"name": "rectilinear", "configuration": {"chunk_shape": [1]}}},
        {"chunk_key_encoding": {"name": "reversed"}},
        {"storage_transformers": [{"name": "theirs", "configuration": {}}]},
    ],
    ids=["must be understood", "says nothing", "irregular grid", "unknown keys", "storage transformer"],
)
def test_what_is_not_understood_passes_through_whole(place: Place, change: dict[str, Any]) -> None:
    stored = json.loads(ct_document()) | change
    index_codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
    stored["codecs"] = [sharding_codec([1], stored["codecs"], index_codecs=index_codecs)]
    data = json.dumps(stored).encode()
    place.objects.put("ct/zarr.json", data)
    place.objects.put("ct/c/0", b"whatever it is")
    store = place.client()
    assert view.contents(store) == snapshot(place.objects)
    view.put(store, "ct/c/1", b"and more")
    assert place.objects.get("ct/c/1") == b"and more"


# -- sizes and counts ----------------------------------------------------------------------------------------------------


def test_counts_and_sizes_at_chunk_level(place: Place) -> None:
    """``list_prefix`` is asked for ``ct`` without a slash, and that must not match ``ct2``."""
    store = place.client(chunks_per_shard=(4,))
    ct, ct2 = create(store, "ct"), create(store, "ct2")
    ct[0:5] = 1
    ct2[...] = 2
    assert (ct.nchunks, ct.nchunks_initialized) == (8, 5)
    assert ct2.nchunks_initialized == 8
    for array in (ct, ct2):
        sizes = [view.getsize(store, key) for key in view.keys(store, f"{array.path}/")]
        assert array.nbytes_stored() == sum(sizes)
    assert ct2.nbytes_stored() - ct.nbytes_stored() == 3


def test_no_key_starts_with_a_slash(place: Place) -> None:
    """``list_prefix`` is of keys, of which none does, while ``list_dir`` is of a path, and ``/`` is the root's."""
    store = place.client(chunks_per_shard=(4,))
    create(store, "ct")[...] = 1
    assert view.keys(store, "/") == view.keys(store, "/ct") == []
    assert view.list_dir(store, "/") == ["ct", "zarr.json"]


def test_names_that_start_alike(place: Place) -> None:
    store = place.client(chunks_per_shard=(4,))
    for i, name in enumerate(("ct", "ct2", "c")):
        create(store, name)[...] = np.arange(1, 9) + 10 * i
    for i, name in enumerate(("ct", "ct2", "c")):
        np.testing.assert_array_equal(zarr.open_array(store, path=name, mode="r")[...], np.arange(1, 9) + 10 * i)
        assert view.keys(store, f"{name}/") == sorted([f"{name}/zarr.json", *[f"{name}/c/{k}" for k in range(8)]])
    assert view.list_dir(store, "") == ["c", "ct", "ct2", "zarr.json"]
    assert view.list_dir(store, "c") == ["c", "zarr.json"]


# -- which array a key belongs to ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "ndim"), [("", 3), ("0", 2), ("0/0", 1)])
def test_the_key_0_0_0_belongs_to_whichever_array_there_is(place: Place, path: str, ndim: int) -> None:
    """OME-Zarr names its arrays 0, 1, …: the shape of a key says nothing."""
    store = place.client(chunks_per_shard=(2,) * ndim)
    encoding: Any = {"name": "v2", "separator": "/"}
    array = create(store, path or None, shape=(4,) * ndim, chunks=(1,) * ndim, chunk_key_encoding=encoding)
    values = np.arange(1, 4**ndim + 1, dtype="u1").reshape((4,) * ndim)
    array[...] = values
    assert view.get(store, "0/0/0") == b"\x01"
    assert len(chunk_keys(place.objects)) == 2**ndim
    np.testing.assert_array_equal(place.native(path)[...], values)
    # Longer and shorter keys are nobody's chunks, and pass through.
    assert view.get(store, "0/0/0/0") is None
    assert {key: value for key, value in view.contents(store).items() if not key.endswith("zarr.json")} == {
        key: value for key, value in presented(place.objects).items() if not key.endswith("zarr.json")
    }


def test_multiscale_names(place: Place) -> None:
    store = place.client(chunks_per_shard=(2, 2))
    encoding: Any = {"name": "v2", "separator": "/"}
    zarr.create_group(store, path="image")
    expected = {}
    for level in range(3):
        size = 8 >> level
        array = create(store, f"image/{level}", shape=(size, size), chunks=(1, 1), chunk_key_encoding=encoding)
        expected[level] = np.arange(1, size * size + 1, dtype="u1").reshape(size, size)
        array[...] = expected[level]
    for level, values in expected.items():
        np.testing.assert_array_equal(zarr.open_array(store, path=f"image/{level}", mode="r")[...], values)
        np.testing.assert_array_equal(place.native(f"image/{level}")[...], values)
    assert view.list_dir(store, "image") == ["0", "1", "2", "zarr.json"]


def test_a_group_named_c(place: Place) -> None:
    """``c/0/c/1`` is chunk 1 of the array ``c/0``, and no chunk of the root."""
    store = place.client(chunks_per_shard=(4,))
    zarr.create_group(store)
    zarr.create_group(store, path="c")
    create(store, "c/0")[...] = np.arange(1, 9)
    create(store, "c/c")[...] = np.arange(11, 19)
    assert view.get(store, "c/0/c/1") == b"\x02"
    assert view.get(store, "c/c/c/1") == b"\x0c"
    assert view.list_dir(store, "c") == ["0", "c", "zarr.json"]
    np.testing.assert_array_equal(place.native("c/0")[...], np.arange(1, 9))
    assert sorted(sharded_arrays(place.objects)) == ["c/0", "c/c"]


def test_keys_that_only_look_like_chunks(place: Place) -> None:
    """Only the canonical spelling is a chunk: decimal, no leading zero, the array's rank. The rest passes through."""
    store = place.client(chunks_per_shard=(4,))
    create(store)[...] = np.arange(1, 9)
    for key in ("ct/c/00", "ct/c/0/0", "ct/c.0", "ct/c/x", "ct/c0", "ct/notes.txt", "ct/c/+1", "ct/c/\uff11"):
        if key != "ct/c/0/0":  # on a disk no name is a file and a folder
            view.put(store, key, key.encode())
            assert view.get(store, key) == key.encode()
            assert place.objects.get(key) == key.encode()
        else:
            assert view.get(store, key) is None
    np.testing.assert_array_equal(place.native("ct")[...], np.arange(1, 9))
    assert {"ct/c/00", "ct/notes.txt", "ct/c/7"} <= set(view.keys(store))


def test_listings_of_foreign_keys_below_chunks(place: Place) -> None:
    """They are named by the prefix that was asked for, chunks by that of their shard."""
    store = place.client(chunks_per_shard=(2, 2))
    zarr.create_array(store, name="ct", shape=(6, 4), chunks=(2, 2), dtype="u1")[...] = 1
    foreign = ["ct/c/0/1/2", "ct/c/1/notes", "ct/c/2/1/x/y"]
    for key in foreign:
        view.put(store, key, b"text")
    for prefix in ("ct/c/0/1", "ct/c/0/1/", "ct/c/1/", "ct/c/2/1/x", "ct/c/2/"):
        assert {key for key in view.keys(store, prefix) if key in foreign} == {key for key in foreign if key.startswith(prefix)}
    assert len(view.keys(store, "ct/c/1/")) == 2 + 1


def test_chunks_outside_the_grid_are_kept(place: Place) -> None:
    """Another client may be about to write the larger shape."""
    store = place.client(chunks_per_shard=(4,))
    array = create(store, shape=(6,))
    array[...] = np.arange(1, 7)
    view.put(store, "ct/c/7", b"\x63")
    assert view.get(store, "ct/c/7") == b"\x63"
    array[5] = 9
    array.resize((8,))
    np.testing.assert_array_equal(place.native("ct")[...], [1, 2, 3, 4, 5, 9, 0, 0x63])


@pytest.mark.parametrize("separator", ["/", "."])
def test_chunks_outside_the_grid_are_listed_and_erased(place: Place, separator: str) -> None:
    """What can be read by its key is listed, and gone when what it lies below is erased: a larger shape must not bring it back."""
    store = place.client(chunks_per_shard=(2, 4))
    encoding: dict[str, Any] = {"name": "default", "separator": separator}
    array = zarr.create_array(store, name="ct", shape=(4, 8), chunks=(1, 1), dtype="u1", fill_value=0, chunk_key_encoding=encoding)
    array[...] = 1
    before = view.keys(store)
    sync(array.async_array.resize((3, 2), delete_outside_chunks=False))
    assert view.keys(store) == before
    assert [key for key in before if not view.exists(store, key)] == []
    below = {key for key in before if key.startswith("ct/c/1/")}
    view.delete_dir(store, "ct/c/1")
    assert view.keys(store) == [key for key in before if key not in below]
    assert [key for key in below if view.exists(store, key)] == []
    assert view.list_dir(store, "ct/c") == (["0", "2", "3"] if separator == "/" else [])


# -- arrays that grow, values that are empty, conditions -------------------------------------------------------------------


def test_automatic_sharding_does_not_look_at_the_shape(place: Place) -> None:
    """xarray's ``append_dim`` creates an array of one chunk, and then appends."""
    store = place.client()
    array = zarr.create_array(store, name="t", shape=(1, 32, 32), chunks=(1, 32, 32), dtype="f4", compressors=None)
    for step in range(20):
        array.append(np.full((1, 32, 32), step, dtype="f4"))
    assert array.shape == (21, 32, 32)
    assert len(chunk_keys(place.objects)) < 5
    assert zarr.open_array(store, path="t", mode="r")[20, 0, 0] == 19


def test_an_empty_value_is_a_value(place: Place) -> None:
    """The index entry ``(offset, 0)`` is not the marker of a missing chunk."""
    store = place.client(chunks_per_shard=(4,))
    create(store, compressors="auto")  # else all chunks have one length
    view.put(store, "ct/c/1", b"")
    view.put(store, "ct/c/2", b"two")
    assert view.get(store, "ct/c/1") == b""
    assert view.exists(store, "ct/c/1")
    assert view.getsize(store, "ct/c/1") == 0
    assert view.get(store, "ct/c/0") is None
    assert view.keys(store, "ct/c/") == ["ct/c/1", "ct/c/2"]
    assert presented(place.objects)["ct/c/1"] == b""


def test_set_if_not_exists_sets_only_what_is_absent(place: Place) -> None:
    store, other = place.client(chunks_per_shard=(4,)), place.client()
    create(store, compressors="auto")
    view.put_if_absent(store, "ct/c/1", b"first")
    view.put_if_absent(other, "ct/c/1", b"second")
    view.put_if_absent(other, "ct/c/2", b"third")
    assert [view.get(store, f"ct/c/{i}") for i in range(4)] == [None, b"first", b"third", None]
    before = view.get(store, "ct/zarr.json")
    view.put_if_absent(other, "ct/zarr.json", b"{}")
    assert view.get(store, "ct/zarr.json") == before
    view.put_if_absent(store, "notes.txt", b"a")
    view.put_if_absent(other, "notes.txt", b"b")
    assert place.objects.get("notes.txt") == b"a"


def test_the_last_chunk_takes_the_shard_with_it(place: Place) -> None:
    store = place.client(chunks_per_shard=(4,))
    array = create(store)
    array[...] = np.arange(1, 9)
    for i in range(4):
        view.delete(store, f"ct/c/{i}")
    assert chunk_keys(place.objects) == ["ct/c/1"]
    view.delete(store, "ct/c/0")  # of a missing shard: no error
    assert view.list_dir(store, "ct/c") == ["4", "5", "6", "7"]


# -- transactions ----------------------------------------------------------------------------------------------------------


def test_a_transaction_shows_its_writes_to_itself_only(place: Place) -> None:
    store, other = place.client(chunks_per_shard=(8,)), place.client()
    array = create(store)
    with store.transaction():
        array[0] = 1
        array[5] = 6
        np.testing.assert_array_equal(array[...], [1, 0, 0, 0, 0, 6, 0, 0])
        np.testing.assert_array_equal(zarr.open_array(other, path="ct", mode="r")[...], np.zeros(8))
        assert chunk_keys(place.objects) == []
    np.testing.assert_array_equal(place.native("ct")[...], [1, 0, 0, 0, 0, 6, 0, 0])


def test_a_transaction_creates_an_array_and_fills_it(place: Place) -> None:
    """Chunks are committed before metadata, and must not then be taken for objects that were there before."""
    store = place.client(chunks_per_shard=(4,))
    with store.transaction():
        array = create(store)
        array[...] = np.arange(1, 9)
        np.testing.assert_array_equal(array[...], np.arange(1, 9))
        assert place.objects.keys() == []
    assert chunk_keys(place.objects) == ["ct/c/0", "ct/c/1"]
    np.testing.assert_array_equal(place.native("ct")[...], np.arange(1, 9))
    np.testing.assert_array_equal(array[...], np.arange(1, 9))


def test_a_transaction_replaces_an_array(place: Place) -> None:
    store = place.client(chunks_per_shard=(4,))
    create(store)[...] = np.arange(1, 9)
    with store.transaction():
        create(store, overwrite=True, chunks=(2,), dtype="i2")[...] = np.arange(11, 19)
        np.testing.assert_array_equal(place.native("ct")[...], np.arange(1, 9))
    native = place.native("ct")
    assert (native.dtype, native.chunks, native.shards) == (np.dtype("i2"), (2,), (8,))
    np.testing.assert_array_equal(native[...], np.arange(11, 19))


def test_a_transaction_deletes_an_array(place: Place) -> None:
    store = place.client(chunks_per_shard=(4,))
    create(store)[...] = np.arange(1, 9)
    create(store, "ct2")[...] = np.arange(1, 9)
    with store.transaction():
        view.delete_dir(store, "ct")
        assert not [key for key in view.keys(store) if key.startswith("ct/")]
        assert chunk_keys(place.objects) == ["ct/c/0", "ct/c/1", "ct2/c/0", "ct2/c/1"]
    assert chunk_keys(place.objects) == ["ct2/c/0", "ct2/c/1"]


def test_an_exception_discards_a_transaction(place: Place) -> None:
    store = place.client(chunks_per_shard=(8,))
    array = create(store)
    array[...] = np.arange(1, 9)
    before = snapshot(place.objects)

    class Cancelled(Exception):
        pass

    def cancelled() -> None:
        with store.transaction():
            array[0] = 99
            create(store, "another")
            raise Cancelled

    with pytest.raises((Cancelled, ShardStoreError)):
        cancelled()
    assert snapshot(place.objects) == before
    np.testing.assert_array_equal(array[...], np.arange(1, 9))
