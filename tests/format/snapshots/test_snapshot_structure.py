"""Structure files of versioned stores, as the draft has them and where it is silent (D…)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest

from shardstore.errors import Corruption, InvalidInput
from shardstore.format.arrow_tables import sealed
from shardstore.format.snapshots.garbage import Garbage, decode_garbage, encode_garbage
from shardstore.format.snapshots.manifest import ChunkRefs, encode_manifest
from shardstore.format.snapshots.structure import (
    AttributesPlace,
    ManifestFile,
    ManifestPart,
    Node,
    decode_attributes,
    decode_structure,
    encode_attributes,
    encode_structure,
    structure_schema,
)
from tests.documents import array_v3

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

DRAFT = Path(__file__).parents[2] / "fixtures" / "icechunk_draft"
GROUP: dict[str, Any] = {"zarr_format": 3, "node_type": "group", "attributes": {"a": 1}}
FILES = (ManifestFile("7CETCYESXYW6ZQ59MB70", 4410, 1000, 7), ManifestFile("9H3RCH8GNF2SN393TWD0", 10, 1, 8))


def array(*shape: int, **members: Any) -> dict[str, Any]:
    return array_v3(shape, [1] * len(shape), **members)


ROOT = Node.of(0, "", GROUP)
NODES = (
    Node.of(9, "a-b", array(4), (ManifestPart(FILES[1], 0, ((0, 2),)), ManifestPart(FILES[0], 3, ((1, 4),)))),
    Node.of(3, "a/b", array()),
    ROOT,
    Node.of(5, "a", GROUP),
    replace(Node.of(6, "a/z", array(2, 2)), attributes=AttributesPlace("M5TZFN2ZQSHMB2C9RV70", 2)),
)


def read(data: bytes) -> Any:
    return pq.read_table(pa.BufferReader(data))


def test_the_schema_is_the_draft_s() -> None:
    assert structure_schema().equals(pa.ipc.read_schema(pa.py_buffer((DRAFT / "structure.arrows").read_bytes())), check_metadata=True)
    table = read(encode_structure(NODES, {}, draft=True))
    assert table.schema.equals(structure_schema())


def test_a_structure_comes_back_in_the_order_of_its_paths() -> None:
    """D13, D14, D15, D19, D22, D24, D25"""
    data = encode_structure(NODES, {"new": [9]})
    found = decode_structure(data)
    assert list(found.nodes) == ["", "a", "a/b", "a/z", "a-b"]
    assert {node.path: node for node in NODES} == dict(found.nodes)
    assert (found.changes, found.is_flagged) == ({"new": [9]}, False)
    assert read(data)["path"].to_pylist() == ["/", "/a", "/a/b", "/a/z", "/a-b"]
    listed = json.loads(read(data).schema.metadata[b"icechunk.manifests"])
    assert listed == [
        {"id": 0, "file": FILES[1].name, "nbytes": 10, "rows": 1, "crc32c": 8},
        {"id": 1, "file": FILES[0].name, "nbytes": 4410, "rows": 1000, "crc32c": 7},
    ]
    assert found.nodes["a/b"].document["shape"] == []
    assert found.nodes["a"].document["attributes"] == {"a": 1}


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (Node.of(1, "x", array(65536)), "'x' has 65536"),  # D16
        (Node.of(1, "x", array(4), (ManifestPart(FILES[0], 70_000, ((0, 4),)),)), "'x' has 70000"),
        (Node.of(1, "x", array(4, future=1)), "document of 'x'"),  # D17
    ],
)
def test_what_does_not_fit_is_wider_or_refused(node: Node, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        encode_structure([ROOT, node], {}, draft=True)
    assert decode_structure(encode_structure([ROOT, node], {})).nodes["x"] == node


@pytest.mark.gate
def test_the_draft_names_65536_manifests() -> None:
    """D16: their ids are from 0 to 65,535."""
    parts = tuple(ManifestPart(ManifestFile(f"{number:020d}", 1, 1, 0), 0, ((0, 1),)) for number in range(65_537))
    assert (
        len(decode_structure(encode_structure([ROOT, Node.of(1, "x", array(4), parts[1:])], {}, draft=True)).nodes["x"].manifests) == 65_536
    )
    with pytest.raises(InvalidInput, match="65,537: merge them"):
        encode_structure([ROOT, Node.of(1, "x", array(4), parts)], {}, draft=True)


def changed(of_row: int = -1, **members: Any) -> bytes:
    """Return a structure file of which one row, by default the last, has other members."""
    table = read(encode_structure([ROOT, Node.of(1, "x", array(4), (ManifestPart(FILES[0], 0, ((0, 4),)),))], {}))
    rows = table.to_pylist()
    rows[of_row] |= members
    file = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), file)
    return sealed(bytes(file.getvalue()))


PART = {"manifest_id": 0, "row": 0, "extent": [[0, 4]], "flags": None}
PLACE = {"attrs_file": "A", "row": 0, "flags": None}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "checksum is wrong"),
        (b"PAR1", "checksum is wrong"),
        (sealed(b"PAR1" + bytes(8) + b"PAR1"), "no structure file"),
        (changed(path="x"), "path 'x'"),
        (changed(path="/x/"), "path '/x/'"),
        (changed(path="/"), "two nodes"),
        (changed(id=0), "two nodes"),
        (changed(type="twig"), "type 'twig'"),
        (changed(type="group"), "type 'group', and has array_metadata"),
        (changed(array_metadata=None), "has no array_metadata"),
        (changed(manifests=[PART | {"manifest_id": 1}]), "manifest 1, which"),  # D22
        (changed(inline_attrs=b"{}", attrs_reference=PLACE), "two places"),  # D20
    ],
)
def test_a_structure_that_contradicts_itself_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(Corruption, match=message):
        decode_structure(data)


def test_without_a_root_it_is_none() -> None:
    """D15"""
    with pytest.raises(Corruption, match="no root"):
        decode_structure(changed(path="/y", of_row=0))
    with pytest.raises(InvalidInput, match="needs a root"):
        encode_structure([Node.of(1, "x", GROUP)], {})


@pytest.mark.parametrize("data", [changed(manifests=[PART | {"flags": 0}]), changed(attrs_reference=PLACE | {"flags": 1})])
def test_flags_are_told(data: bytes) -> None:
    """D21"""
    assert decode_structure(data).is_flagged


def test_names_with_their_folder_are_read() -> None:
    """D13"""
    found = decode_structure(changed(attrs_reference=PLACE | {"attrs_file": "a/A"}))
    assert found.nodes["x"].attributes == AttributesPlace("A", 0)


def test_nodes_are_unique() -> None:
    for twice in (replace(ROOT, id=1), replace(ROOT, path="y")):
        with pytest.raises(InvalidInput, match="two nodes have one"):
            encode_structure([ROOT, twice], {})


def test_files_are_decoded_without_the_threads_of_datasets(tmp_path: Path) -> None:
    """One of them may hold the bytes when the process ends, which aborts it."""
    (tmp_path / "structure").write_bytes(encode_structure(NODES, {}))
    (tmp_path / "attributes").write_bytes(encode_attributes([b"{}"]))
    one = np.ones(1, dtype=np.uint64)
    refs = ChunkRefs(np.zeros((1, 2), dtype=np.uint64), np.zeros(1, dtype=np.int32), one, one, [b"x" * 12])
    manifest = encode_manifest({1: refs})
    (tmp_path / "manifest").write_bytes(manifest)
    code = f"""
import sys
from pathlib import Path
from shardstore.format.snapshots.structure import decode_attributes
from shardstore.format.snapshots.manifest_groups import decode_rows, manifest_rows
from shardstore.format.snapshots.structure import ManifestFile, decode_structure
structure, attributes, manifest = ((Path(sys.argv[1]) / name).read_bytes() for name in ("structure", "attributes", "manifest"))
assert len(decode_structure(structure).nodes) == {len(NODES)}
assert len(decode_attributes(attributes)) == 1
file = ManifestFile("X", {len(manifest)}, 1, {google_crc32c.value(manifest)})
assert len(decode_rows(manifest_rows(manifest, file), file, {{1: 2}})[1]) == 1
print([name for name in sys.modules if "dataset" in name])
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.stdout == "[]\n", done.stderr


# -- checksums -----------------------------------------------------------------------------------------------------------

SEALED: dict[str, tuple[bytes, Any]] = {
    "structure": (encode_structure(NODES, {"new": [9]}), decode_structure),
    "attributes": (encode_attributes([b'{"a": 1}', b"{}" * 100]), decode_attributes),
    "garbage": (encode_garbage(Garbage(np.array([b"c/1", b"m/2"]), np.array([5, 6]), np.array([True, False]))), decode_garbage),
}


@pytest.mark.parametrize("kind", SEALED)
def test_no_flipped_bit_is_taken_for_content(kind: str) -> None:
    data, decode = SEALED[kind]
    decode(data)
    for number in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[number // 8] ^= 1 << number % 8
        with pytest.raises(Corruption, match="checksum is wrong"):
            decode(bytes(damaged))
    for length in range(len(data)):
        with pytest.raises(Corruption, match="checksum is wrong"):
            decode(data[:length])


@pytest.mark.parametrize("kind", SEALED)
def test_readers_of_parquet_read_what_has_a_checksum(kind: str) -> None:
    data, _ = SEALED[kind]
    assert pq.read_table(pa.BufferReader(data)).num_rows > 0
    assert pq.read_metadata(pa.BufferReader(data)).num_rows > 0
