"""Names that the target cannot hold, or gives another meaning: refused all at once, before anything is written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.errors import Unsupported
from shardstore.storage.memory import MemoryStorage
from tests.documents import array_v2, array_v3
from tests.maintenance.packing.sources import read_by_zarr
from tests.stored import StorageObjects, snapshot

V2_ARRAY = array_v2([4], [2], "<i4")
V2_GROUP = {"zarr_format": 2}
V3_GROUP = {"zarr_format": 3, "node_type": "group", "attributes": {}}


def v3_array(shape: tuple[int, ...] = (4,), **more: Any) -> dict[str, Any]:
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
    return array_v3(shape, [2] * len(shape), data_type="int32", codecs=codecs, attributes={}) | more


CHUNK = np.arange(2, dtype="<i4").tobytes()


def mapping(documents: dict[str, Any]) -> dict[str, bytes]:
    return {key: json.dumps(document).encode() for key, document in documents.items()}


def v2_flat(**more: Any) -> dict[str, Any]:
    return {**V2_ARRAY, **more}


DEEP = "/".join(["x" * 200] * 25)

CASES: dict[str, tuple[dict[str, bytes], dict[str, str]]] = {
    "a shard's name": (
        {**mapping({".zgroup": V2_GROUP, "a/.zarray": V2_ARRAY}), "a/0": CHUNK, "a/c.0": b"notes"},
        {"a/c.0": "would be one of"},
    ),
    "a shard's name beyond the grid": (
        {**mapping({".zgroup": V2_GROUP, "a/.zarray": V2_ARRAY}), "a/c.99": b"notes"},
        {"a/c.99": "would be one of the array 'a'"},
    ),
    "where a directory will be": (
        {**mapping({".zgroup": V2_GROUP, "a/.zarray": v2_flat(dimension_separator="/", shape=[4, 4], chunks=[2, 2])}), "a/c/1": b"notes"},
        {"a/c/1": "cannot exist next to chunks of a"},
    ),
    "below a chunk": (
        {**mapping({"zarr.json": V3_GROUP, "a/zarr.json": v3_array()}), "a/c/0/notes": b"notes"},
        {"a/c/0/notes": "cannot exist next to chunks of a"},
    ),
    "where a group is": ({**mapping({"g/.zgroup": V2_GROUP}), "g": b"notes"}, {"g": "cannot exist next to 'g/zarr.json'"}),
    "an array called as documents are": (
        mapping({".zgroup": V2_GROUP, "zarr.json/.zarray": V2_ARRAY, "g/zarr.json/h/.zgroup": V2_GROUP}),
        {"zarr.json": "the name of documents", "g/zarr.json/h": "the name of documents", "g/zarr.json": "the name of documents"},
    ),
    "nodes in an array": (
        mapping({"zarr.json": V3_GROUP, "a/zarr.json": v3_array(), "a/b/zarr.json": v3_array(), "a/g/zarr.json": V3_GROUP}),
        {"a/b": "it lies in the array 'a'", "a/g": "it lies in the array 'a'"},
    ),
    "nodes in an array of Zarr v2": (
        mapping({".zgroup": V2_GROUP, "a/.zarray": V2_ARRAY, "a/g/b/.zarray": V2_ARRAY}),
        {"a/g/b": "it lies in the array 'a'", "a/g": "it lies in the array 'a'"},
    ),
    "nodes in an array at the root": (mapping({".zarray": V2_ARRAY, "b/.zarray": V2_ARRAY}), {"b": "it lies in the array '(root)'"}),
    "odd names": (
        {
            **mapping({"zarr.json": V3_GROUP, "a\\b/zarr.json": v3_array(), ".../zarr.json": V3_GROUP, "x//y/zarr.json": v3_array()}),
            "n\\otes": b"",
            "\udc80": b"",
        },
        {
            "a\\b": "backslash",
            "...": "periods alone",
            "x//y": "an empty",
            "n\\otes": "backslash",
            "\udc80": "cannot be that of an object",
        },
    ),
    "names for files": (
        {**mapping({"zarr.json": V3_GROUP}), "x" * 256: b"", ".a.shardstore-tmp": b""},
        {"x" * 256: "more than 255 bytes", ".a.shardstore-tmp": "lock or temporary file"},
    ),
    "paths for files": (
        {**mapping({"zarr.json": V3_GROUP, f"{DEEP}/a/zarr.json": v3_array()}), f"{DEEP}/x": b""},
        {f"{DEEP}/a": "too many for a file", f"{DEEP}/x": "too many for a file"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_names_are_refused_all_at_once_and_nothing_is_written(case: str, tmp_path: Path) -> None:
    source, wanted = CASES[case]
    with pytest.raises(Unsupported, match="nothing was written") as caught:
        shardstore.pack(source, tmp_path / "t.zarr", chunks_per_shard={"*": "auto"})
    said = {name.strip(): reason for name, _, reason in (part.partition(": ") for part in _parts(str(caught.value)))}
    assert set(said) == set(map(repr, wanted))
    for name, reason in wanted.items():
        assert reason in said[repr(name)]
    assert list(tmp_path.iterdir()) == []


def _parts(message: str) -> list[str]:
    return message.partition("nothing was written: ")[2].rpartition(". Leave")[0].split("; ")


def test_what_is_in_the_way_can_be_left_out_by_its_name(tmp_path: Path) -> None:
    source, _ = CASES["a shard's name"]
    report = shardstore.pack(source, tmp_path / "t.zarr", exclude="a/c.0", chunks_per_shard=(2,))
    assert report.complete
    assert read_by_zarr(tmp_path / "t.zarr", "a")[:2].tolist() == [0, 1]


def test_names_that_mean_nothing_go_over(tmp_path: Path) -> None:
    source = {
        **mapping({"zarr.json": V3_GROUP, "a/zarr.json": v3_array(), "c/zarr.json": V3_GROUP, "c/0/zarr.json": v3_array()}),
        **dict.fromkeys(("a/c.0", "a/c/x", "a/0", "a/c/0.txt", "a/notes.txt", "c/notes", "c.0", "a/cc/0", "...txt", "zarr.json.bak"), b"x"),
    }
    assert shardstore.pack(source, tmp_path / "t.zarr").complete
    others = {key for key in source if not key.endswith("zarr.json")}
    assert {path.relative_to(tmp_path / "t.zarr").as_posix() for path in (tmp_path / "t.zarr").rglob("*") if path.is_file()} >= others


def test_what_the_draft_has_no_names_for() -> None:
    target = MemoryStorage(f"/collisions-{os.getpid()}")
    source = {**mapping({"zarr.json": V3_GROUP, "a/zarr.json": v3_array(), "ü/zarr.json": V3_GROUP}), "a/c0": b"x"}
    with pytest.raises(Unsupported, match="2 nodes or objects") as caught:
        shardstore.pack(source, target, stored="transformer", record=MemoryStorage(f"/collisions-record-{os.getpid()}"))
    assert {part.partition(": ")[0] for part in _parts(str(caught.value))} == {"'ü'", "'a/c0'"}
    assert not snapshot(StorageObjects(target))


def test_a_backslash_in_the_name_of_a_file(tmp_path: Path) -> None:
    zarr.open_group(tmp_path / "s.zarr", mode="w")
    (tmp_path / "s.zarr/a\\b").write_text("x")
    with pytest.raises(Unsupported, match="backslash"):
        shardstore.pack(tmp_path / "s.zarr", tmp_path / "t.zarr")
    assert not (tmp_path / "t.zarr").exists()
