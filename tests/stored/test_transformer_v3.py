"""Arrays of final Zarr v3 that the 2022 draft's storage transformer shards: no peer writes them any more, so their bytes are told here."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore

import shardstore
from shardstore.errors import Corruption, InvalidInput

MEMBER = [
    {
        "extension": "https://purl.org/zarr/spec/storage_transformers/sharding/1.0",
        "type": "indexed",
        "configuration": {"chunks_per_shard": [2, 2]},
    }
]
VALUES = np.arange(1, 31, dtype="<u2").reshape(5, 6)
ABSENT = 2**64 - 1


def create(root: Path, **options: Any) -> zarr.Array[Any]:
    store = shardstore.open(str(root), stored="transformer-v3", chunks_per_shard=(2, 2), **options)
    array = zarr.create_array(store, name="a", shape=(5, 6), chunks=(2, 2), dtype="<u2", fill_value=0, compressors=None)
    array[...] = VALUES
    return array


def document(root: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((root / "a" / "zarr.json").read_bytes())
    return loaded


def test_what_is_stored(tmp_path: Path) -> None:
    create(tmp_path)
    stored = document(tmp_path)
    assert stored["storage_transformers"] == MEMBER
    assert stored["chunk_grid"]["configuration"] == {"chunk_shape": [2, 2]}
    assert [codec["name"] for codec in stored["codecs"]] == ["bytes"]
    shards = sorted(str(p.relative_to(tmp_path / "a")) for p in (tmp_path / "a" / "c").rglob("*") if p.is_file())
    assert shards == ["c/0/0", "c/0/1", "c/1/0", "c/1/1"]
    # The chunk at (2, 2), alone in the last shard: two rows of the array, of which one is there, and the index without a checksum.
    data = (tmp_path / "a" / "c/1/1").read_bytes()
    assert data == struct.pack("<4H", 29, 30, 0, 0) + struct.pack("<8Q", 0, 8, *[ABSENT] * 6)


def test_presented_without_the_member(tmp_path: Path) -> None:
    create(tmp_path)
    mapper = shardstore.get_mapper(str(tmp_path))
    presented = json.loads(mapper["a/zarr.json"])
    assert "storage_transformers" not in presented
    assert presented == {k: v for k, v in document(tmp_path).items() if k != "storage_transformers"}
    assert mapper["a/c/2/2"] == struct.pack("<4H", 29, 30, 0, 0)
    with pytest.raises(ValueError, match="storage_transformers"):
        zarr.open_array(LocalStore(tmp_path), path="a", mode="r")  # no peer reads it
    np.testing.assert_array_equal(zarr.open_array(shardstore.open(str(tmp_path)), path="a", mode="r")[...], VALUES)


def test_attributes_and_shape_keep_the_member(tmp_path: Path) -> None:
    create(tmp_path)
    array = zarr.open_array(shardstore.open(str(tmp_path)), path="a", mode="r+")
    array.attrs["unit"] = "K"
    array.resize((7, 6))
    array[6] = 9
    stored = document(tmp_path)
    assert (stored["storage_transformers"], stored["shape"], stored["attributes"]) == (MEMBER, [7, 6], {"unit": "K"})
    expected = np.zeros((7, 6), "<u2")
    expected[:5], expected[6] = VALUES, 9
    np.testing.assert_array_equal(zarr.open_array(shardstore.open(str(tmp_path)), path="a", mode="r")[...], expected)


def test_consolidated_metadata(tmp_path: Path) -> None:
    create(tmp_path)
    store = shardstore.open(str(tmp_path))
    zarr.consolidate_metadata(store)
    inside = json.loads((tmp_path / "zarr.json").read_bytes())["consolidated_metadata"]["metadata"]["a"]
    assert inside["storage_transformers"] == MEMBER
    group = zarr.open_consolidated(shardstore.open(str(tmp_path)))
    array = group["a"]
    assert isinstance(array, zarr.Array)
    np.testing.assert_array_equal(array[...], VALUES)


@pytest.mark.parametrize(
    "member",
    [
        [{"storage_transformer": MEMBER[0]["extension"], "configuration": {"format": "indexed", "chunks_per_shard": [2, 2]}}],
        [{"extension": "sharding", "type": "indexed", "configuration": {"chunks_per_shard": [2, 2]}}],
        [{"name": "sharding", "configuration": {"chunks_per_shard": [2, 2]}}],
    ],
)
def test_every_form_of_the_member(tmp_path: Path, member: Any) -> None:
    create(tmp_path)
    path = tmp_path / "a" / "zarr.json"
    path.write_text(json.dumps(document(tmp_path) | {"storage_transformers": member}))
    array = zarr.open_array(shardstore.open(str(tmp_path)), path="a", mode="r+")
    array[0, 0] = 77
    array.attrs["unit"] = "K"
    assert document(tmp_path)["storage_transformers"] == member
    assert zarr.open_array(shardstore.open(str(tmp_path)), path="a", mode="r")[0, 0] == 77


def test_a_transformer_that_is_not_known_passes_through(tmp_path: Path) -> None:
    create(tmp_path)
    path = tmp_path / "a" / "zarr.json"
    data = json.dumps(document(tmp_path) | {"storage_transformers": [{"name": "novel"}]}).encode()
    path.write_bytes(data)
    mapper = shardstore.get_mapper(str(tmp_path))
    assert mapper["a/zarr.json"] == data
    assert len(mapper["a/c/1/1"]) == 8 + 64


def test_a_damaged_index(tmp_path: Path) -> None:
    """Exactly one of offset and length says that there is no chunk: neither a chunk nor its absence."""
    create(tmp_path)
    path = tmp_path / "a" / "c/1/1"
    path.write_bytes(path.read_bytes()[:8] + struct.pack("<8Q", 0, ABSENT, *[ABSENT] * 6))
    with pytest.raises(Corruption, match="c/1/1"):
        shardstore.get_mapper(str(tmp_path))["a/c/2/2"]


def test_what_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="index at the end"):
        shardstore.open(str(tmp_path), stored="transformer-v3", index_location="start")
    create(tmp_path / "other")
    mapper = shardstore.get_mapper(str(tmp_path))
    with pytest.raises(InvalidInput, match="asks for shards itself"):
        mapper["b/zarr.json"] = (tmp_path / "other" / "a" / "zarr.json").read_bytes()
    assert not (tmp_path / "b").exists()
