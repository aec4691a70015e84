"""Arrays with a chunk size of 0, which older versions of zarr-python 3 stored: a client that repairs the size writes them as any array."""

from __future__ import annotations

import json
import uuid
import warnings
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.errors import InvalidInput
from shardstore.storage.memory import MemoryStorage
from tests.documents import array_v3
from tests.stored import StorageObjects, document

DOCUMENT = array_v3([4, 3], [1, 3], attributes={})


def of_sizes(*sizes: object, **members: Any) -> dict[str, Any]:
    return {**DOCUMENT, "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(sizes)}}, **members}


def stored_as(*sizes: object) -> MemoryStorage:
    """An array of these stored chunk sizes, and a chunk that another client has written after it had read them as 1 and 3."""
    storage = MemoryStorage(f"/zero-{uuid.uuid4().hex}")
    StorageObjects(storage).put("x/zarr.json", json.dumps(of_sizes(*sizes)).encode())
    StorageObjects(storage).put("x/c/0/0", b"abc")
    return storage


@pytest.mark.parametrize("in_transaction", [False, True])
@pytest.mark.parametrize("policy", ["auto", (2, 1), None])
@pytest.mark.parametrize("sizes", [(0, 3), (0, 0), (False, 3)])
def test_an_update_keeps_the_chunks_as_they_are_stored(sizes: tuple[Any, ...], policy: Any, in_transaction: bool) -> None:
    storage = stored_as(*sizes)
    keys = shardstore.get_mapper(storage, chunks_per_shard=policy)
    if in_transaction:
        with keys.transaction():
            keys["x/zarr.json"] = json.dumps(DOCUMENT).encode()
            keys["x/c/1/0"] = b"def"
    else:
        keys["x/zarr.json"] = json.dumps(DOCUMENT).encode()
        keys["x/c/1/0"] = b"def"
    assert document(StorageObjects(storage), "x/zarr.json") == DOCUMENT
    assert StorageObjects(storage).get("x/c/0/0") == b"abc"
    assert StorageObjects(storage).get("x/c/1/0") == b"def"
    assert keys["x/c/0/0"] == b"abc"


@pytest.mark.parametrize(
    "changed", [of_sizes(1, 2), of_sizes(1, 3, data_type="int8"), of_sizes(1, 3, codecs=[{"name": "bytes"}, {"name": "crc32c"}])]
)
def test_another_change_is_refused_as_before(changed: dict[str, Any]) -> None:
    storage = stored_as(0, 3)
    keys = shardstore.get_mapper(storage)
    with pytest.raises(InvalidInput, match="exists already and would be taken for a shard"):
        keys["x/zarr.json"] = json.dumps(changed).encode()
    assert document(StorageObjects(storage), "x/zarr.json") == of_sizes(0, 3)
    assert StorageObjects(storage).get("x/c/0/0") == b"abc"


@pytest.mark.parametrize("shards", [None, (2, 2)])
def test_zarr_writes_it_and_makes_it_longer(shards: Any) -> None:
    if tuple(int(part) for part in zarr.__version__.split(".")[:3]) < (3, 4, 2):
        pytest.skip("zarr before 3.4.2 does not read such arrays")
    storage = MemoryStorage(f"/zero-{uuid.uuid4().hex}")
    store = shardstore.open(storage, chunks_per_shard=None)
    zarr.create_array(store, name="x", shape=(0, 4), chunks=(1, 2), shards=shards, dtype="i2", fill_value=7)
    old = document(StorageObjects(storage), "x/zarr.json")
    old["chunk_grid"]["configuration"]["chunk_shape"][0] = 0
    StorageObjects(storage).put("x/zarr.json", json.dumps(old).encode())
    store = shardstore.open(storage)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array = zarr.open_array(store, path="x", mode="r+")
    array.append(np.full((3, 4), 5, "i2"))
    array[1] = 9
    array.attrs["a"] = 1
    plain: Any = zarr.open_array(store, path="x", mode="r")
    assert plain[:, 0].tolist() == [5, 9, 5]
    assert plain.attrs["a"] == 1
