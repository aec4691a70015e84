"""OME-Zarr 0.4, as ome-zarr-py writes it, is packed into the 0.5 that ome-zarr-py writes of the same data."""

from __future__ import annotations

import base64
import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.errors import InvalidInput, Unsupported
from tests.apps.cli.running import run, succeed
from tests.golden import FIXTURES
from tests.maintenance.packing.sources import read_by_zarr

GOLDEN = json.loads((FIXTURES / "ome_zarr/golden.json").read_text())
HIERARCHIES = ["image.zarr", "plate.zarr"]


def source_of(name: str) -> dict[str, bytes]:
    return {key.removeprefix(f"{name}/"): base64.b64decode(data) for key, data in GOLDEN["0.4"].items() if key.startswith(f"{name}/")}


def documents_of(name: str) -> dict[str, Any]:
    """In 0.5, by path."""
    documents: dict[str, Any] = copy.deepcopy(GOLDEN["0.5"])
    return {key[len(name) + 1 :].removesuffix("zarr.json").rstrip("/"): found for key, found in documents.items() if key.startswith(name)}


def laid_down(name: str, root: Path) -> Path:
    for key, data in source_of(name).items():
        (root / name / key).parent.mkdir(parents=True, exist_ok=True)
        (root / name / key).write_bytes(data)
    return root / name


def stored_document(root: Path, path: str = "") -> Any:
    return json.loads((root / path / "zarr.json").read_text())


@pytest.mark.parametrize("name", HIERARCHIES)
def test_the_result_is_what_its_own_writer_writes(name: str, tmp_path: Path) -> None:
    source, target = source_of(name), tmp_path / name
    report = shardstore.pack(source, target, ome=True)
    assert report.complete
    plain = laid_down(name, tmp_path / "0.4")
    for path, expected in documents_of(name).items():
        found = stored_document(target, path)
        if expected["node_type"] == "array":
            assert found["dimension_names"] == expected["dimension_names"]
            np.testing.assert_array_equal(read_by_zarr(target, path), np.asarray(zarr.open_array(plain / path, mode="r")[...]))
            continue
        ome = expected["attributes"].get("ome", {})
        if "well" in ome:
            ome["well"]["version"] = "0.5"  # which the specification wants, and its own writer leaves out
        if ome:
            ome["version"] = "0.5"  # left out for the group of the labels
        assert found["attributes"] == expected["attributes"]


@pytest.mark.parametrize("name", HIERARCHIES)
def test_without_the_option_it_is_pointed_out(name: str, tmp_path: Path) -> None:
    report = shardstore.pack(source_of(name), tmp_path / name)
    (note,) = report.notes
    assert "--ome" in note
    assert "OME-Zarr" in note
    assert "ome" not in stored_document(tmp_path / name)["attributes"]
    assert stored_document(tmp_path / name)["attributes"] == json.loads(source_of(name)[".zattrs"])
    # What is 0.5 already, or was never of OME-Zarr, needs no notice.
    shardstore.pack(source_of(name), tmp_path / "five.zarr", ome=True)
    assert not shardstore.pack(tmp_path / "five.zarr", tmp_path / "again.zarr").notes


def test_packing_again_changes_nothing(tmp_path: Path) -> None:
    shardstore.pack(source_of("image.zarr"), tmp_path / "five.zarr", ome=True)
    shardstore.pack(tmp_path / "five.zarr", tmp_path / "again.zarr", ome=True)
    for path in documents_of("image.zarr"):
        assert stored_document(tmp_path / "again.zarr", path) == stored_document(tmp_path / "five.zarr", path)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_consolidated_metadata_say_the_same(zarr_format: Any, tmp_path: Path) -> None:
    plain = laid_down("plate.zarr", tmp_path)
    if zarr_format == 3:
        shardstore.unpack(plain, tmp_path / "v3.zarr")
        plain = tmp_path / "v3.zarr"
    zarr.consolidate_metadata(plain, zarr_format=zarr_format)
    shardstore.pack(plain, tmp_path / "b.zarr", ome=True)
    inside = stored_document(tmp_path / "b.zarr")["consolidated_metadata"]["metadata"]
    assert len(inside) == 5
    for path, child in inside.items():
        own = stored_document(tmp_path / "b.zarr", path)
        assert child["attributes"].get("ome") == own["attributes"].get("ome")
        assert "multiscales" not in child["attributes"]
        assert child.get("dimension_names") == own.get("dimension_names")
    assert inside["A/1/0"]["attributes"]["ome"]["version"] == "0.5"


def test_the_layout_of_bioformats2raw(tmp_path: Path) -> None:
    source = {f"0/{key}": data for key, data in source_of("image.zarr").items()}
    source |= {".zgroup": b'{"zarr_format": 2}', ".zattrs": b'{"bioformats2raw.layout": 3, "by": "somebody"}'}
    source |= {"OME/.zgroup": b'{"zarr_format": 2}', "OME/.zattrs": b'{"series": ["0"]}', "OME/METADATA.ome.xml": b"<OME/>"}
    shardstore.pack(source, tmp_path / "b.zarr", ome=True)
    assert stored_document(tmp_path / "b.zarr")["attributes"] == {"ome": {"version": "0.5", "bioformats2raw.layout": 3}, "by": "somebody"}
    assert stored_document(tmp_path / "b.zarr", "OME")["attributes"] == {"ome": {"version": "0.5", "series": ["0"]}}
    assert (tmp_path / "b.zarr/OME/METADATA.ome.xml").read_bytes() == b"<OME/>"
    assert stored_document(tmp_path / "b.zarr", "0/labels")["attributes"]["ome"]["labels"] == ["nuclei"]


def changed(**attributes: Any) -> dict[str, bytes]:
    source = source_of("image.zarr")
    zattrs = json.loads(source[".zattrs"])
    for name, value in attributes.items():
        if name == "multiscales":
            zattrs["multiscales"][0] |= value
        else:
            zattrs[name] = value
    return source | {".zattrs": json.dumps(zattrs).encode()}


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"multiscales": {"version": "0.3", "axes": ["c", "y", "x"]}}, "of version 0.3: bring them to 0.4 first"),
        ({"multiscales": {"version": "0.1"}}, "of version 0.1"),
        ({"ome": {"version": "0.5"}}, "an attribute 'ome' as well as 'multiscales'"),
    ],
    ids=["0.3", "0.1", "both"],
)
def test_what_cannot_be_rewritten_is_refused_by_name(attributes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    source = changed(**attributes)
    with pytest.raises(Unsupported, match=rf"'\(root\)': .*{reason}"):
        shardstore.pack(source, tmp_path / "b.zarr", ome=True)
    assert list(tmp_path.iterdir()) == []
    assert "bring them to 0.4" in shardstore.pack(source, tmp_path / "b.zarr").notes[0]


def test_a_version_that_is_left_out_is_that_of_the_members(tmp_path: Path) -> None:
    source = source_of("image.zarr")
    zattrs = json.loads(source[".zattrs"])
    del zattrs["multiscales"][0]["version"]
    shardstore.pack(source | {".zattrs": json.dumps(zattrs).encode()}, tmp_path / "b.zarr", ome=True)
    assert stored_document(tmp_path / "b.zarr")["attributes"]["ome"]["version"] == "0.5"


@pytest.mark.parametrize(
    "attributes",
    [
        {"labels": ["a", "b"], "series": ["1"], "well": {"depth": 3}, "plate": "A", "omero": {"id": 1}},
        {"multiscales": [{"datasets": [{"path": "x"}]}]},  # a pyramid of another convention
        {"multiscales": "many"},
    ],
    ids=["words", "pyramid", "text"],
)
def test_attributes_of_the_same_names_that_are_not_of_ome(attributes: Any, tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2, attributes=attributes)
    group.create_array("x", shape=(4,), chunks=(2,), dtype="i4")[...] = 1
    for target, ome in (("b.zarr", True), ("c.zarr", False)):
        report = shardstore.pack(tmp_path / "a.zarr", tmp_path / target, ome=ome)
        assert stored_document(tmp_path / target)["attributes"] == attributes
        assert ("0 groups were of 0.4" in str(report.notes)) is ome
        assert "dimension_names" not in stored_document(tmp_path / target, "x")


def test_the_draft_of_2022_has_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"OME-Zarr 0\.5 is of final Zarr v3"):
        shardstore.pack(source_of("image.zarr"), tmp_path / "b.zarr", ome=True, stored="transformer")


def test_another_choice_is_another_run(tmp_path: Path) -> None:
    source = laid_down("image.zarr", tmp_path)
    assert "pack with --ome" in succeed("pack", str(source), str(tmp_path / "b.zarr")).out
    assert "ome was None and is True" in run("pack", "--ome", str(source), str(tmp_path / "b.zarr")).error
    assert "OME-Zarr 0.5: 3 groups were of 0.4" in succeed("pack", "--ome", "--overwrite", str(source), str(tmp_path / "b.zarr")).out


@pytest.mark.parametrize("name", HIERARCHIES)
def test_ome_zarr_models_take_it(name: str, tmp_path: Path) -> None:
    """Where they are installed: they check what the specification demands."""
    models = pytest.importorskip("ome_zarr_models", reason="ome-zarr-py and its models are too large for the tests' environment")
    shardstore.pack(source_of(name), tmp_path / name, ome=True)
    opened = models.open_ome_zarr(zarr.open_group(tmp_path / name, mode="r"))
    assert opened.ome_zarr_version == "0.5"
    assert type(opened).__name__ == {"image.zarr": "Image", "plate.zarr": "HCS"}[name]


def test_ome_zarr_py_reads_the_image(tmp_path: Path) -> None:
    io = pytest.importorskip("ome_zarr.io", reason="ome-zarr-py is too large for the tests' environment")
    reader = pytest.importorskip("ome_zarr.reader")
    shardstore.pack(source_of("image.zarr"), tmp_path / "b.zarr", ome=True)
    nodes = list(reader.Reader(io.parse_url(str(tmp_path / "b.zarr")))())
    np.testing.assert_array_equal(np.asarray(nodes[0].data[0]), np.arange(2 * 12 * 16).reshape(2, 12, 16) + 1)
    assert any("nuclei" in str(node.zarr) for node in nodes)
