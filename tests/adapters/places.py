"""Places of every kind of storage for the tests of fsspec's face, and a hierarchy to put there."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from zarr.core.buffer import Buffer
from zarr.storage import MemoryStore

from shardstore.adapters.fsspec.filesystem import ShardedFileSystem
from shardstore.storage.memory import MemoryStorage
from tests.engine.hooked import document
from tests.shards import presented, sharded_arrays
from tests.stored import FsspecObjects, LocalObjects, Objects, StorageObjects


@dataclass(frozen=True, slots=True)
class Place:
    """The root of a store: ``url`` without the link ``sharded``."""

    url: str
    storage_options: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The root as fsspec's paths have it, in the filesystem below."""
        return str(fsspec.core.url_to_fs(self.url, **self.storage_options)[1])

    @property
    def objects(self) -> Objects:
        """The way past the code under test."""
        if self.url.startswith("memory://"):
            return StorageObjects(MemoryStorage(self.path))  # fsspec's own filesystem has no generations to change
        if self.url.startswith("file://"):
            return LocalObjects(Path(self.path))
        return FsspecObjects(self.url, self.storage_options)

    def link_options(self, **options: Any) -> dict[str, Any]:
        """The options of each link, as ``fsspec.open`` and zarr take them."""
        protocol = fsspec.core.split_protocol(self.url)[0]
        return {"sharded": options, protocol: self.storage_options}

    def filesystem(self, **options: Any) -> ShardedFileSystem:
        """The filesystem that the URL names; with the same options it is the same instance."""
        fs, path = fsspec.core.url_to_fs(f"sharded::{self.url}", **self.link_options(**options))
        assert isinstance(fs, ShardedFileSystem)
        assert path == self.path
        return fs

    def full(self, *keys: str) -> list[str]:
        """The paths of keys, sorted."""
        return sorted(f"{self.path}/{key}" for key in keys)


def memory_place() -> Place:
    """A fresh root in the process-wide memory filesystem."""
    return Place(f"memory://adapters-{uuid.uuid4().hex}")


def make_place(kind: str, request: pytest.FixtureRequest) -> Place:
    """A fresh root of one kind of storage."""
    match kind:
        case "memory":
            return memory_place()
        case "local":
            return Place(f"file://{request.getfixturevalue('tmp_path')}/store")
        case "s3" | "gcs":
            return Place(*request.getfixturevalue(f"{kind}_url"))
    raise AssertionError(kind)


def put_sample(objects: Objects) -> dict[str, bytes]:
    """Store a hierarchy by plain zarr-python and past shardstore; returned is what a view must show, but for the sizes of documents.

    ``ct``: 4 x 4 chunks in shards of 2 x 2, all but one there; ``g/lung``: chunk keys with dots, the index at the start;
    ``g/time``: not sharded; two objects that belong to no node.
    """
    native = MemoryStore()
    root = zarr.create_group(native, attributes={"title": "sample"})
    ct = root.create_array("ct", shape=(8, 8), chunks=(2, 2), shards=(4, 4), dtype="u2", fill_value=9, compressors=None)
    ct[...] = np.arange(64).reshape(8, 8) + 10
    ct[2:4, 4:6] = 9  # the chunk (1, 2) is nothing but fill value: it is not stored
    group = root.create_group("g")
    lung = zarr.create_array(
        group.store,
        name="g/lung",
        shape=(12,),
        chunks=(2,),
        shards=(6,),
        dtype="u1",
        compressors=None,
        chunk_key_encoding={"name": "default", "separator": "."},
    )
    lung[...] = np.arange(12) + 1
    time = group.create_array("time", shape=(4,), chunks=(2,), dtype="f8", compressors=None)
    time[...] = [1, 2, 3, 4]
    for key, value in native._store_dict.items():
        assert isinstance(value, Buffer)
        objects.put(key, value.to_bytes())
    objects.put("notes.txt", b"about this")
    objects.put("g/data/raw.bin", bytes(range(200)))
    assert set(sharded_arrays(objects)) == {"ct", "g/lung"}
    return presented(objects)


def is_document(key: str) -> bool:
    return key.endswith("zarr.json")


RAW = [{"name": "bytes"}]
"""Codecs that make as many bytes of every chunk."""

array_document = document
"""The presented document of a uint8 array whose chunks may have any length."""
