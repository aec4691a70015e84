"""Two copies beside each other: equal where they are, whatever holds them, and each chunk named that differs."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

import shardstore
from shardstore.engine.engine import Engine
from shardstore.maintenance.execution import Execution, Part
from shardstore.maintenance.verify.run import Copy, VerifyReport, verify_engine
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.memory import MemoryStorage
from tests.documents import array_v2
from tests.shards import encode_index, index_entries, sharded_arrays
from tests.stored import StorageObjects, document

VALUES = np.random.default_rng(0).integers(1, 9999, (20, 45), dtype="u2")


def compared(one: Any, other: Any, path: str = "", part: Part | None = None, other_path: str | None = None) -> VerifyReport:
    execution = Execution(workers=2, part=part or Part())
    return verify_engine(Engine(one), path, execution=execution, against=Copy(Engine(other), path if other_path is None else other_path))


def kinds_at(report: VerifyReport) -> set[tuple[str, str]]:
    return {(finding.kind, finding.key) for finding in report.findings}


def make(shard: tuple[int, ...] | None, codecs: Any = "raw", dtype: str = "u2", **options: Any) -> MemoryStorage:
    """``g/ct``, with attributes; partly written."""
    storage = MemoryStorage(f"/against-{uuid.uuid4().hex}")
    store = shardstore.open(storage, chunks_per_shard=shard, **options)
    root = zarr.open_group(store, mode="w", attributes={"made": 1})
    array = root.create_array(
        "g/ct", shape=(20, 45), chunks=(5, 5), dtype=dtype, compressors=None if codecs == "raw" else codecs, fill_value=0
    )
    array.attrs["units"] = "HU"
    array[:, :40] = VALUES[:, :40]
    return storage


@pytest.mark.parametrize("shard", [(2, 3), (4, 1), None])
def test_copies_are_equal_however_they_are_sharded(shard: tuple[int, ...] | None) -> None:
    report = compared(make((1, 4)), make(shard, index_location="start"))
    assert (report.findings, report.unread) == ((), ())
    assert report.nbytes_read >= 4 * 8 * 50


@pytest.mark.parametrize("other", [(4, 1), None])
def test_chunks_that_differ_are_named(other: tuple[int, ...] | None) -> None:
    one, copy = make((2, 3)), make(other)
    array = zarr.open_group(shardstore.open(copy))["g/ct"]
    array[7, 12] = VALUES[7, 12] + 1  # type: ignore[index]  # an array
    array[0:5, 0:5] = 0  # type: ignore[index]  # erased
    array[10:15, 40:45] = 5  # type: ignore[index]  # only there
    expected = {("differs", "g/ct/c/1/2"), ("surplus", "g/ct/c/0/0"), ("missing", "g/ct/c/2/8")}
    assert kinds_at(compared(one, copy)) == expected
    parts = [compared(one, copy, part=Part(i + 1, 3)) for i in range(3)]
    assert sorted(pair for part in parts for pair in kinds_at(part)) == sorted(expected)
    assert compared(one, copy, "g").errors == 3


def test_damage_in_the_copy_hides_nothing_else() -> None:
    one, copy = make(None), make((2, 2))
    objects, there = StorageObjects(one), StorageObjects(copy)
    objects.delete("g/ct/c/3/3")
    objects.put("g/ct/c/3/2", b"other")
    assert kinds_at(compared(one, copy)) >= {("missing", "g/ct/c/3/3"), ("differs", "g/ct/c/3/2")}
    shard = there.get("g/ct/c/0/0")
    assert shard is not None
    there.put("g/ct/c/0/0", shard[:-1] + bytes([shard[-1] ^ 1]))
    found = kinds_at(compared(one, copy))
    assert found >= {("missing", "g/ct/c/3/3"), ("differs", "g/ct/c/3/2")}
    assert {key for kind, key in found if kind == "not-checked"} == {f"g/ct/c/{i}/{j}" for i in range(2) for j in range(2)}


def test_metadata_that_differs(tmp_path: Path) -> None:
    one, copy = make((2, 3)), make((2, 3))
    objects = StorageObjects(copy)
    stored = document(objects, "g/ct/zarr.json")
    objects.put("g/ct/zarr.json", json.dumps(stored | {"attributes": {"units": "mm"}, "fill_value": 1}).encode())
    objects.put("zarr.json", json.dumps(document(objects, "zarr.json") | {"attributes": {}}).encode())
    report = compared(one, copy)
    assert kinds_at(report) == {("differs", "g/ct/zarr.json"), ("differs", "zarr.json")}
    assert "attributes, fill_value" in next(f.what for f in report.findings if f.key == "g/ct/zarr.json")
    zarr.open_group(shardstore.open(copy)).create_group("more")
    assert ("missing", "more/zarr.json") in kinds_at(compared(one, copy))
    assert ("surplus", "more/zarr.json") in kinds_at(compared(copy, one))


def test_a_checksum_more_is_no_difference() -> None:
    one, copy = make((2, 3), [ZstdCodec(level=1)]), make((3, 2), [ZstdCodec(level=1), Crc32cCodec()])
    assert compared(one, copy).findings == ()
    assert compared(copy, one).findings == ()
    array = zarr.open_group(shardstore.open(copy))["g/ct"]
    array[7, 12] = VALUES[7, 12] + 1  # type: ignore[index]  # an array
    assert kinds_at(compared(one, copy)) == {("differs", "g/ct/c/1/2")}


def test_another_type_is_a_difference_of_metadata() -> None:
    report = compared(make((2, 3)), make((2, 3), dtype="i4"))
    assert ("differs", "g/ct/zarr.json") in kinds_at(report)
    assert "data_type" in next(f.what for f in report.findings if f.key == "g/ct/zarr.json")


@pytest.mark.parametrize("separator", [".", "/"])
def test_a_copy_of_zarr_v2(tmp_path: Path, separator: Any) -> None:
    root = zarr.open_group(str(tmp_path), mode="w", zarr_format=2, attributes={"made": 1})
    keys: Any = {"name": "v2", "separator": separator}
    array = root.create_array("g/ct", shape=(20, 45), chunks=(5, 5), dtype="u2", compressors=None, fill_value=0, chunk_key_encoding=keys)
    array.attrs["units"] = "HU"
    array[:, :40] = VALUES[:, :40]
    assert compared(make((2, 3)), LocalStorage(tmp_path)).findings == ()
    assert compared(LocalStorage(tmp_path), make((2, 3))).findings == ()
    chunk = tmp_path / f"g/ct/1{separator}2"
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"\xff")
    (tmp_path / f"g/ct/0{separator}0").unlink()
    assert kinds_at(compared(make((2, 3)), LocalStorage(tmp_path))) == {("differs", "g/ct/c/1/2"), ("surplus", "g/ct/c/0/0")}


V2_ARRAY = array_v2([4], [2], "<i4", fill_value=7)
V2_GROUP = {"zarr_format": 2}


@pytest.mark.parametrize(
    "files",
    [
        {".zgroup": V2_GROUP, "x/.zarray": V2_ARRAY},
        {".zgroup": V2_GROUP, "spatial_ref/.zarray": V2_ARRAY | {"shape": [], "chunks": []}, "spatial_ref/.zattrs": {"crs": "EPSG:4326"}},
        {".zgroup": V2_GROUP, "g/h/x/.zarray": V2_ARRAY},
        {"g/h/.zgroup": V2_GROUP},
        {".zgroup": V2_GROUP, "g/x/.zarray": V2_ARRAY, "g/.zgroup": V2_GROUP, "g/.zattrs": {"a": 1}},
    ],
    ids=["all fill values", "0-d", "implicit groups", "implicit groups of a group", "attributes"],
)
def test_nodes_of_zarr_v2_without_chunks(files: dict[str, Any], tmp_path: Path) -> None:
    """What was packed from them is equal; each node that the copy has lost is missing, and chunks where there were none are surplus."""
    source, target = tmp_path / "source", tmp_path / "target"
    for key, content in {"y/.zarray": V2_ARRAY, **files}.items():
        (source / key).parent.mkdir(parents=True, exist_ok=True)
        (source / key).write_text(json.dumps(content))
    (source / "y/0").write_bytes(bytes(8))
    shardstore.pack(source, target, fsync=False)
    for one, other in ((target, source), (source, target)):
        assert shardstore.verify(one, against=other).findings == ()
    nodes = [document.parent for document in target.rglob("zarr.json")]
    arrays = [node for node in nodes if json.loads((node / "zarr.json").read_text())["node_type"] == "array"]
    for node in arrays:
        moved = tmp_path / "moved"
        node.rename(moved)
        relative = node.relative_to(target).as_posix()
        assert kinds_at(shardstore.verify(target, against=source)) == {("missing", f"{relative}/zarr.json")}
        assert kinds_at(shardstore.verify(source, against=target)) == {("surplus", f"{relative}/zarr.json")}
        moved.rename(node)
        if relative != "y":
            zarr.open_array(shardstore.open(target), path=relative)[...] = 1
            (finding, *_) = shardstore.verify(target, against=source).findings
            assert (finding.kind, finding.path) == ("surplus", relative)
            (finding, *_) = shardstore.verify(source, against=target).findings
            assert (finding.kind, finding.path) == ("missing", relative)
            shardstore.pack(source, target, fsync=False, overwrite=True)
    for node in set(nodes) - set(arrays):
        document = (node / "zarr.json").read_text()
        (node / "zarr.json").unlink()
        relative = node.relative_to(target).as_posix()
        assert kinds_at(shardstore.verify(target, against=source)) == {
            ("missing", "zarr.json" if relative == "." else f"{relative}/zarr.json")
        }
        (node / "zarr.json").write_text(document)


def test_chunks_that_metadata_does_not_place_are_not_called_equal() -> None:
    """A chunk grid that is not known: the documents are equal, more is not claimed."""
    one, copy = make(None), make(None)
    for storage in (one, copy):
        objects = StorageObjects(storage)
        stored = document(objects, "g/ct/zarr.json")
        objects.put("g/ct/zarr.json", json.dumps(stored | {"chunk_grid": {"name": "rectilinear", "configuration": {}}}).encode())
    StorageObjects(copy).delete("g/ct/c/0/0")
    assert ("not-checked", "g/ct/zarr.json") in kinds_at(compared(one, copy))


def test_nodes_at_other_paths(tmp_path: Path) -> None:
    one, copy = make((2, 3)), make((4, 1))
    zarr.open_group(shardstore.open(copy), mode="a")
    assert compared(one, copy, "g/ct", other_path="g/ct").findings == ()
    assert compared(one, MemoryStorage(copy.url.removeprefix("memory:/") + "/g"), "g", other_path="").findings == ()


def test_damage_of_either_is_told_once_and_the_rest_compared() -> None:
    one, copy = make((2, 3)), make((4, 1))
    objects, others = StorageObjects(one), StorageObjects(copy)
    objects.put("g/ct/c/0/0", b"short")
    shard = others.get("g/ct/c/0/5") or b""
    layout = sharded_arrays(others)["g/ct"]
    entries = index_entries(layout, shard)
    entries[1] = (10**6, 1)
    others.put("g/ct/c/0/5", shard[: -layout.index_nbytes] + encode_index(layout, entries))
    report = compared(one, copy)
    errors = {(f.kind, f.key) for f in report.findings if f.severity == "error"}
    assert errors == {("index", "g/ct/c/0/0")}
    assert {f.kind for f in report.findings} == {"index", "not-checked"}


def test_public_verify_takes_a_copy(tmp_path: Path) -> None:
    for name, shard in (("one", (2, 3)), ("copy", (4, 1))):
        store = shardstore.open(str(tmp_path / name), chunks_per_shard=shard)
        zarr.create_array(store, name="x", shape=(20, 45), chunks=(5, 5), dtype="u2", compressors=None)[...] = VALUES
    assert shardstore.verify(str(tmp_path / "one"), against=str(tmp_path / "copy"), deep=True).findings == ()
    assert shardstore.verify(str(tmp_path / "one"), path="x", against=str(tmp_path / "copy")).findings == ()
