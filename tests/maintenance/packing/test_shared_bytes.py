"""Chunks of the source that share bytes: they are moved once, and shared in the target."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

import shardstore
from shardstore.storage.memory import MemoryStorage
from tests.maintenance.laid_out import ANY_LENGTH, array_document
from tests.shards import MISSING, encode_index, presented, sharding
from tests.stored import LocalObjects, Objects, StorageObjects

NBYTES = 2**16
SHARED = [(0, NBYTES)] * 5 + [(7, NBYTES), (2 * NBYTES, 100), (MISSING, MISSING)]


def put_source(objects: Objects) -> None:
    """Two shards of 8 chunks, in each of which 6 share nearly all of their bytes."""
    document = array_document((128,), (8,), (8,), codecs=ANY_LENGTH)
    layout = sharding("a", document)
    assert layout is not None
    objects.put("a/zarr.json", json.dumps(document).encode())
    for shard in range(2):
        body = bytes((i * i + shard) % 251 for i in range(2 * NBYTES + 100))
        objects.put(f"a/c/{shard}", body + encode_index(layout, SHARED))


@pytest.mark.parametrize("how", ["local", "memory"])
@pytest.mark.parametrize("index_location", ["start", "end"])
@pytest.mark.parametrize("per_shard", [4, 16])
def test_shared_bytes_are_moved_once(how: str, index_location: Any, per_shard: int, tmp_path: Path) -> None:
    source: Any
    target: Any
    if how == "local":
        source, target = tmp_path / "a", tmp_path / "b"
        objects: tuple[Objects, Objects] = LocalObjects(source), LocalObjects(target)
    else:
        source, target = (MemoryStorage(f"/shared-{uuid.uuid4().hex}") for _ in range(2))
        objects = StorageObjects(source), StorageObjects(target)
    put_source(objects[0])
    before = presented(objects[0])
    report = shardstore.reshard(source, target, chunks_per_shard=(per_shard,), index_location=index_location)
    assert report.complete
    after = presented(objects[1])
    assert {key: value for key, value in after.items() if "/c/" in key} == {key: value for key, value in before.items() if "/c/" in key}
    written = sum(len(objects[1].get(key) or b"") for key in objects[1].keys() if "/c/" in key)  # noqa: SIM118 - no mapping
    shards, most = 16 // per_shard, 2 * (NBYTES + 7 + 100)
    assert written <= most * (1 if per_shard == 16 else 2) + shards * (16 * per_shard + 4)
    assert shardstore.reshard(source, target, chunks_per_shard=(per_shard,), index_location=index_location).complete  # nothing is done over
