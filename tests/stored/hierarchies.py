"""Hierarchies of the 2022 draft, made by hand or by zarr-python 2.18.7, and canonical documents to write into them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shardstore.format.storage_transformers import sharding_transformer
from shardstore.model.generation import Generation
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import Found
from shardstore.testing.storage_suite import SyncStorage
from tests.documents import array_v3
from tests.golden import FIXTURES
from tests.stored import StorageObjects, snapshot

STORES = sorted(
    path.parent / "store" for family in ("transformer2022", "handmade_transformer") for path in (FIXTURES / family).glob("*/case.json")
)

ENTRY_POINT = {
    "zarr_format": "https://purl.org/zarr/spec/protocol/core/3.0",
    "metadata_encoding": "https://purl.org/zarr/spec/protocol/core/3.0",
    "metadata_key_suffix": ".json",
    "extensions": [],
}


def store_name(store: Path) -> str:
    return store.parent.name


def as_json(document: Any) -> bytes:
    return json.dumps(document).encode()


def draft_array(shape: list[int], chunk_shape: list[int], chunks_per_shard: list[int] | None = None, **members: Any) -> bytes:
    """A stored array's document."""
    transformers: dict[str, Any] = {}
    if chunks_per_shard is not None:
        transformers["storage_transformers"] = [sharding_transformer(()) | {"configuration": {"chunks_per_shard": chunks_per_shard}}]
    return as_json(
        {
            "shape": shape,
            "data_type": "u1",
            "chunk_grid": {"type": "regular", "chunk_shape": chunk_shape, "separator": "/"},
            "chunk_memory_layout": "C",
            "fill_value": 0,
            "extensions": [],
            "attributes": {},
        }
        | transformers
        | members
    )


def draft_group(**attributes: Any) -> bytes:
    return as_json({"attributes": attributes})


def array(shape: list[int], chunk_shape: list[int], transformer: tuple[int, ...] | None = None, **members: Any) -> bytes:
    """A canonical array's document."""
    transformers = {} if transformer is None else {"storage_transformers": [sharding_transformer(transformer)]}
    return as_json(array_v3(shape, chunk_shape, attributes={}) | transformers | members)


def group(**attributes: Any) -> bytes:
    return as_json({"zarr_format": 3, "node_type": "group", "attributes": attributes})


def objects_of(store: Path) -> dict[str, bytes]:
    return {path.relative_to(store).as_posix(): path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}


def same_json(one: bytes | None, other: bytes) -> bool:
    return one is not None and bool(json.loads(one) == json.loads(other))


def objects(i: SyncStorage) -> dict[str, bytes]:
    return snapshot(StorageObjects(i.storage))


def fill(i: SyncStorage, stored: dict[str, bytes]) -> None:
    for key, data in stored.items():
        i.put(key, data)


def generation_of(s: SyncStorage, key: str) -> Generation:
    found = s.read(key, EVERYTHING)
    assert isinstance(found, Found)
    return found.generation
