"""The documents of nodes as columns of a structure file, and back (D17, D18)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardstore.errors import Corruption, InvalidInput
from shardstore.format.json_text import loads_object, same_text
from shardstore.format.snapshots.node_columns import NodeColumns, to_columns, to_document
from shardstore.format.snapshots.structure import Node, decode_attributes, encode_attributes, encode_structure
from tests.documents import array_v3

GROUP = '{"zarr_format": 3, "node_type": "group", "attributes": {"a": 1.50}, "consolidated_metadata": null}'


def array(**members: Any) -> str:
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    known = {"data_type": "float32", "fill_value": 0.0, "codecs": codecs, "attributes": {}, "storage_transformers": []}
    return json.dumps(array_v3([4, 70000], [1, 100], **known) | members)


EXPRESSED = {
    "a group": GROUP,
    "an array": array(),
    "names of dimensions": array(dimension_names=["t", None]),
    "a NaN": array(fill_value="NaN"),
    "an infinity": array(fill_value="-Infinity"),
    "another NaN": array(fill_value="0x7fc00001"),
    "a half": array(data_type="float16", fill_value=0.5),
    "a complex value": array(data_type="complex128", fill_value=[1.5, "NaN"]),
    "a truth value": array(data_type="bool", fill_value=True),
    "a large integer": array(data_type="uint64", fill_value=2**64 - 1),
    "a negative one": array(data_type="int8", fill_value=-128),
    "a text": array(data_type="string", fill_value="grün"),
    "no dimensions": array(shape=[], chunk_grid={"name": "regular", "configuration": {"chunk_shape": []}}),
    "attributes": array(attributes={"scale": [1, 2], "unit": "µm"}),
}
NOT_EXPRESSED = {
    "another grid": array(chunk_grid={"name": "rectangular", "configuration": {"chunk_shape": [[1, 3], [100]]}}),
    "a configured type": array(data_type={"name": "numpy.datetime64", "configuration": {"unit": "s"}}, fill_value=0),
    "raw bits": array(data_type="r16", fill_value=[0, 1]),
    "a rounded number": array(fill_value=0.1),
    "an integer for a float": array(fill_value=0),
    "an integer too large": array(data_type="int8", fill_value=128),
    "unknown members": array(future={"must_understand": False}),
    "members of codecs": array(codecs=[{"name": "bytes", "must_understand": True}]),
    "a codec by its name": array(codecs=["bytes"]),
    "storage transformers": array(storage_transformers=[{"name": "x"}]),
    "no separator": array(chunk_key_encoding={"name": "default"}),
    "a group with more": '{"zarr_format": 3, "node_type": "group", "more": 1}',
    "numbers as they are written": array(future=0).replace('"future": 0', '"future": 1.50'),
}


def said(document: dict[str, Any]) -> dict[str, Any]:
    """Return what a document says to readers of Zarr."""
    silent: dict[str, Any] = {"attributes": {}, "storage_transformers": [], "consolidated_metadata": None}
    return {name: document[name] for name in sorted(document) if name not in silent or document[name] != silent[name]}


@pytest.mark.parametrize("name", [*EXPRESSED, *NOT_EXPRESSED])
def test_every_document_comes_back(name: str) -> None:
    document = loads_object((EXPRESSED | NOT_EXPRESSED)[name].encode())
    columns = to_columns(document)
    assert same_text(said(to_document(columns)), said(document))
    assert (columns.extra is None) == (name in EXPRESSED)
    assert (columns.array is None) == (document["node_type"] == "group")


def test_the_payload_of_a_nan_stays() -> None:
    columns = to_columns(loads_object(array(fill_value="0x7fc00001").encode()))
    assert columns.array is not None
    assert columns.array["fill_value"] == bytes.fromhex("0100c07f")


@pytest.mark.parametrize(
    "text", ['{"zarr_format": 3}', array(shape=None), array(shape=[-1]), array(shape=[True]), array(data_type=None), array(data_type={})]
)
def test_what_is_no_node_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="document"):
        to_columns(loads_object(text.encode()))


@pytest.mark.parametrize("change", [{"fill_value": None}, {"fill_value": b"123"}, {"codecs": None}, {"chunk_grid": None}])
def test_columns_that_say_no_array_are_refused(change: dict[str, Any]) -> None:
    columns = to_columns(loads_object(array().encode()))
    assert columns.array is not None
    with pytest.raises(Corruption, match="structure file"):
        to_document(NodeColumns(columns.array | change, None, None))


def test_attributes_have_a_file_of_their_own() -> None:
    """D19"""
    pytest.importorskip("pyarrow")
    rows = [b'{"a": 1}', b"{}", b'{"long": "' + b"x" * 100_000 + b'"}']
    data = encode_attributes(rows)
    assert decode_attributes(data) == rows
    for broken in (b"", data[:-10], encode_structure([Node.of(0, "", loads_object(GROUP.encode()))], {})):
        with pytest.raises(Corruption, match=r"file of attributes|checksum is wrong"):
            decode_attributes(broken)
