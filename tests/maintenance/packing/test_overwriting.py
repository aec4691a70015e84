"""Packing over a target with links, and how often what was there is asked for and removed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import shardstore
from shardstore.storage.local.storage import LocalStorage
from shardstore.testing.trace import TraceStorage
from tests.documents import array_v3

GROUP = {"zarr_format": 3, "node_type": "group", "attributes": {}}


def array(chunks: int) -> dict[str, Any]:
    return array_v3([2 * chunks], [2], attributes={})


def put(root: Path, objects: dict[str, object]) -> None:
    for key, value in objects.items():
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())


@pytest.mark.parametrize("stored", ["codec", "transformer"])
@pytest.mark.parametrize("has_chunks", [False, True])
def test_nothing_is_written_through_a_link_out_of_a_target_that_is_overwritten(tmp_path: Path, stored: Any, has_chunks: bool) -> None:
    source, target, outside = (tmp_path / name for name in ("source", "target", "outside"))
    put(source, {"zarr.json": GROUP, "g/zarr.json": GROUP, "g/a/zarr.json": array(2), "g/README": b"of the source"})
    if has_chunks:
        put(source, {"g/a/c/0": b"ab"})
    put(outside, {"README": b"of another program"})
    put(target, {"zarr.json": GROUP})
    (target / "g").symlink_to(outside)
    (target / "data").mkdir()
    (target / "data/root").mkdir()
    (target / "data/root/g").symlink_to(outside)
    report = shardstore.pack(str(source), str(target), chunks_per_shard=(2,), overwrite=True, stored=stored)
    assert report.complete
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == {"README": b"of another program"}
    copies = [path for path in target.rglob("README") if not path.is_symlink()]
    assert [path.read_bytes() for path in copies] == [b"of the source"]
    assert not any(path.is_symlink() for path in target.rglob("*"))


def test_what_is_overwritten_is_removed_once(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    put(source, {"zarr.json": array(2), "c/0": b"ab"})
    put(target, {"old/zarr.json": array(200)} | {f"old/c/{i}": b"ab" for i in range(100)})
    trace = TraceStorage(LocalStorage(target))
    report = shardstore.pack(str(source), trace, chunks_per_shard=(2,), overwrite=True, record=str(tmp_path / "record"))
    assert report.complete
    operations = Counter(event.op for event in trace.events if event.key.startswith("old/"))
    assert set(operations) <= {"delete_many", "list", "list_dir", "read"}
    assert not (target / "old").exists()
