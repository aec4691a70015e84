"""Stores with the record of appends, in each of its states."""

from __future__ import annotations

import json
from typing import Any

import zarr

import shardstore
from shardstore.format.append_record import AppendRecord
from shardstore.storage.base import Storage
from tests.stored import StorageObjects

KEY = "g/time/time.append.json"


def make(storage: Storage, length: int = 10) -> None:
    """A group ``g`` of ``time`` and ``t``, which are ``length`` long, and ``y``, which has another dimension."""
    root = zarr.open_group(shardstore.open(storage, chunks_per_shard={"g/t": (2, 1), "*": None}), mode="w")
    group = root.create_group("g")
    for name, dims in {"time": ["time"], "t": ["time", "y"], "y": ["y"]}.items():
        shape = tuple(length if dim == "time" else 3 for dim in dims)
        chunks = tuple(4 if dim == "time" else 3 for dim in dims)
        group.create_array(name, shape=shape, chunks=chunks, dtype="i4", dimension_names=dims, compressors=None)[...] = 1


def record(committed: int, shown: int | None = None) -> AppendRecord:
    return AppendRecord("time", committed, committed if shown is None else shown)


def put(storage: Storage, stored: AppendRecord | bytes, key: str = KEY) -> None:
    StorageObjects(storage).put(key, stored.encode() if isinstance(stored, AppendRecord) else stored)


def resize(storage: Storage, **lengths: int) -> None:
    """Make arrays of the group as long as another program would."""
    objects = StorageObjects(storage)
    for name, length in lengths.items():
        document: dict[str, Any] = json.loads(objects.get(f"g/{name}/zarr.json") or b"")
        document["shape"][0] = length
        objects.put(f"g/{name}/zarr.json", json.dumps(document).encode())
