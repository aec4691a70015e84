"""Zarr v2 documents as v3 ones and back, by Hypothesis: given back to the letter, changed only where asked, refused with the reason."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardstore.errors import InvalidInput, Unsupported
from shardstore.format import json_text
from shardstore.format.json_text import NumberText, dumps_zarr2, same_text
from shardstore.format.presentation import present_array, same_chunks, shard_document
from shardstore.format.shard_index import IndexCodecs, IndexFormat
from shardstore.format.v2.documents import (
    ARRAY_DIMENSIONS,
    array_from_v2,
    array_to_v2,
    consolidated_from_v2,
    consolidated_to_v2,
    group_from_v2,
    group_to_v2,
)
from shardstore.format.v2.kept import RESERVED, carry_kept, hide_kept
from tests.documents import array_v2

Json = dict[str, Any]

# Documents of v2, in spellings of zarr-python 2 and of others.

numbers = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False))
number_texts = st.sampled_from(["1e400", "1.50", "-0", "NaN", "1E2", "-Infinity"]).map(NumberText)
scalars = st.one_of(st.none(), st.booleans(), numbers, number_texts, st.text(max_size=5))
values = st.recursive(scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=4), v, max_size=3), max_leaves=6)
names = st.text(max_size=6).filter(lambda name: name != RESERVED)
dimensions = st.one_of(st.lists(st.text(max_size=3), max_size=3), st.lists(st.none() | st.text(max_size=3), max_size=3), values)


@st.composite
def zattrs(draw: st.DrawFn) -> Json | None:
    attributes = draw(st.none() | st.dictionaries(names, values, max_size=3))
    if attributes is not None and draw(st.booleans()):
        attributes[ARRAY_DIMENSIONS] = draw(dimensions)
    return attributes


UNITS = ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"]
typestrs = st.one_of(
    st.sampled_from(["|b1", "|i1", "|u1", "<u1", ">i1", "<b1"]),
    st.builds("{}{}".format, st.sampled_from("<>"), st.sampled_from(["i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"])),
    st.builds(
        "{}{}[{}{}]".format, st.sampled_from("<>"), st.sampled_from(["M8", "m8"]), st.sampled_from(["", 1, 25]), st.sampled_from(UNITS)
    ),
    st.builds("{}U{}".format, st.sampled_from("<>"), st.integers(1, 70)),
    st.builds("|{}{}".format, st.sampled_from("SV"), st.integers(1, 300)),
)
fields = st.recursive(
    typestrs.filter(lambda t: t[0] != ">" or t[1:] in ("i1",)),
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(lambda types: [[f"f{i}", t] for i, t in enumerate(types)]),
    max_leaves=4,
)
structured = fields.filter(lambda t: isinstance(t, list))


def nbytes(dtype: Any) -> int:
    if isinstance(dtype, list):
        return sum(nbytes(field[1]) for field in dtype)
    size = int(dtype[2:].split("[")[0])
    return 4 * size if dtype[1] == "U" else size


def floats(nbytes: int) -> st.SearchStrategy[Any]:
    width: Any = 8 * nbytes
    exact = st.floats(width=width, allow_nan=False, allow_infinity=False)
    rounded = st.floats(allow_nan=False, allow_infinity=False)  # 0.1 as a program writes it that does not round to the type
    return st.one_of(exact, rounded, st.integers(-(2**53), 2**53), number_texts, st.sampled_from(["NaN", "Infinity", "-Infinity"]))


def fill_values(dtype: Any) -> st.SearchStrategy[Any]:
    kind, size = ("V", nbytes(dtype)) if isinstance(dtype, list) else (dtype[1], nbytes(dtype))
    bits = 8 * size
    chosen: dict[str, st.SearchStrategy[Any]] = {
        "b": st.sampled_from([True, False, 0, 1]),
        "i": st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) | st.just(0.0),
        "u": st.integers(0, 2**bits - 1),
        "M": st.integers(-(2**63), 2**63 - 1) | st.just("NaT"),
        "U": st.text(max_size=size // 4 + 2),
        "S": st.binary(max_size=size + 2).map(lambda b: base64.b64encode(b).decode()),
        "V": st.binary(max_size=size).map(lambda b: base64.b64encode(b).decode()),
    }
    chosen["m"] = chosen["M"]
    if kind == "f":
        return st.none() | floats(size)
    if kind == "c":
        return st.none() | st.lists(floats(size // 2), min_size=2, max_size=2)
    return st.none() | chosen[kind]


compressors: st.SearchStrategy[Json] = st.one_of(
    st.builds(
        lambda cname, clevel, shuffle, blocksize: {
            "id": "blosc",
            "cname": cname,
            "clevel": clevel,
            "shuffle": shuffle,
            "blocksize": blocksize,
        },
        st.sampled_from(["blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd"]),
        st.integers(0, 9),
        st.integers(-1, 2),
        st.integers(0, 999),
    ),
    st.builds(lambda level: {"id": "zstd", "level": level}, st.integers(-9, 30)),
    st.builds(lambda level, checksum: {"id": "zstd", "level": level, "checksum": checksum}, st.integers(0, 22), st.booleans()),
    st.builds(lambda name, level: {"id": name, "level": level}, st.sampled_from(["gzip", "zlib", "bz2"]), st.integers(1, 9)),
    st.sampled_from([{"id": "gzip", "level": -1}, {"id": "gzip"}, {"id": "blosc"}, {"id": "blosc", "cname": "zstd"}, {"id": "zlib"}]),
    st.sampled_from(
        [{"id": "lz4"}, {"id": "lz4", "acceleration": 3}, {"id": "lzma", "format": 1, "check": -1, "preset": 2, "filters": None}]
    ),
)
checksums: st.SearchStrategy[Json] = st.sampled_from(
    [
        {"id": "crc32"},
        {"id": "crc32", "location": "end"},
        {"id": "crc32c"},
        {"id": "crc32c", "location": "end"},
        {"id": "adler32"},
        {"id": "fletcher32"},
        {"id": "jenkins_lookup3", "initval": 7, "prefix": None},
        {"id": "shuffle", "elementsize": 4},
        {"id": "shuffle"},
    ]
)


def element_filters(dtype: Any, flattening: bool) -> list[list[Json]]:
    chains: list[list[Json]] = [[]]
    if isinstance(dtype, list):
        return chains
    if dtype in ("|b1", "<b1") and flattening:
        chains.append([{"id": "packbits"}])
    if dtype[1] == "f" and dtype[0] == "<":
        quantize = {"id": "quantize", "digits": 2, "dtype": dtype, "astype": dtype}
        scale = {"id": "fixedscaleoffset", "scale": 10, "offset": 0.5, "dtype": dtype, "astype": "<i4"}
        chains += [[{"id": "bitround", "keepbits": 3}], [quantize]]
        chains += [[scale], [scale, {"id": "delta", "dtype": "<i4", "astype": "<i4"}]] if flattening else []
    if dtype[1] in "iu" and dtype[0] == "<" and dtype != "<u1":
        chains += [[{"id": "astype", "encode_dtype": "|u1", "decode_dtype": dtype}]]
        chains += [[{"id": "delta", "dtype": dtype}], [{"id": "delta", "dtype": dtype, "astype": "|i1"}]] if flattening else []
    return chains


@st.composite
def zarrays(draw: st.DrawFn) -> Json:
    shape = draw(st.lists(st.integers(0, 10**6) | st.integers(0, 2**63 - 1), max_size=4))
    order = draw(st.sampled_from("CF"))
    varies = draw(st.integers(0, 5)) == 0 and (order == "C" or len(shape) < 2)
    if varies:
        codec = draw(st.sampled_from(["vlen-utf8", "vlen-bytes"]))
        dtype: Any = "|O"
        filters: list[Json] = [{"id": codec}]
        fill_value = draw(st.sampled_from([0, None, ""]) | (st.text(max_size=3) if codec == "vlen-utf8" else st.nothing()))
    else:
        dtype = draw(typestrs | structured)
        filters = draw(st.sampled_from(element_filters(dtype, order == "C" or len(shape) < 2)))
        fill_value = draw(fill_values(dtype))
    filters = [*filters, *draw(st.lists(checksums | compressors, max_size=2))]
    document: Json = {
        "zarr_format": 2,
        "shape": shape,
        "chunks": draw(st.lists(st.integers(1, 10**9), min_size=len(shape), max_size=len(shape))),
        "dtype": dtype,
        "order": order,
        "filters": filters or draw(st.sampled_from([None, []])),
        "compressor": draw(st.none() | compressors | checksums),
        "fill_value": fill_value,
    }
    if draw(st.booleans()):
        document["dimension_separator"] = draw(st.sampled_from("./"))
    for member in ("filters", "compressor", "fill_value"):  # not to the letter of the specification, but without doubt
        if document[member] is None and draw(st.integers(0, 9)) == 0:
            del document[member]
    return document | draw(st.dictionaries(st.sampled_from(["_nczarr_array", "comment"]), values, max_size=1))


def stored_and_read(document: Json) -> Json:
    return json_text.loads_object(json_text.dumps(document))


@given(zarrays(), zattrs())
def test_arrays_are_given_back_byte_for_byte(zarray: Json, attributes: Json | None) -> None:
    text = dumps_zarr2(zarray)
    parsed = json_text.loads_object(text)
    parsed_attributes = None if attributes is None else json_text.loads_object(dumps_zarr2(attributes))
    document = array_from_v2(parsed, parsed_attributes)
    shown, shown_attributes = array_to_v2(stored_and_read(document))
    assert dumps_zarr2(shown) == text
    assert (None if shown_attributes is None else dumps_zarr2(shown_attributes)) == (
        None if attributes is None else dumps_zarr2(attributes)
    )
    assert document["chunk_key_encoding"] == {"name": "default", "configuration": {"separator": zarray.get("dimension_separator", ".")}}


@given(zarrays(), zattrs(), st.integers(1, 4))
def test_stored_in_shards_nothing_is_lost(zarray: Json, attributes: Json | None, chunks_per_side: int) -> None:
    """Through the document of shards, as it is stored, and its presentation."""
    document = array_from_v2(zarray, attributes)
    chunks_per_shard = (chunks_per_side,) * len(zarray["shape"])
    stored = shard_document(document, IndexFormat(chunks_per_shard, IndexCodecs(), "end"))
    presented = present_array(stored_and_read(stored))
    assert same_chunks(presented, document)
    shown, shown_attributes = array_to_v2(presented)
    assert same_text(shown, zarray)
    assert same_text(shown_attributes, attributes)


@given(zarrays(), zattrs(), zattrs(), st.data())
def test_updates_change_nothing_else(zarray: Json, before: Json | None, after: Json | None, data: st.DataObject) -> None:
    """A resize and new attributes, of an array that somebody has annotated in v3."""
    foreign = {"extra": {"must_understand": False, "x": 1}}
    document = array_from_v2(zarray, before) | foreign
    shape = data.draw(st.lists(st.integers(0, 99), min_size=len(zarray["shape"]), max_size=len(zarray["shape"])))
    updated = array_from_v2(zarray | {"shape": shape}, after, document)
    assert same_text(updated["shape"], shape)
    assert updated["extra"] == foreign["extra"]
    for member in ("data_type", "codecs", "chunk_grid", "chunk_key_encoding", "fill_value"):
        assert same_text(updated[member], document[member])
    shown, shown_attributes = array_to_v2(updated)
    assert same_text(shown, zarray | {"shape": shape})
    assert same_text(shown_attributes, after)
    assert same_text(array_from_v2(zarray, before, updated), document)


@given(zarrays(), zattrs(), zarrays())
def test_another_array_at_the_same_place(zarray: Json, attributes: Json | None, previous: Json) -> None:
    named = array_from_v2(previous, {}) | {"dimension_names": [None] * len(previous["shape"])}
    document = array_from_v2(zarray, attributes, named)
    shown, shown_attributes = array_to_v2(document)
    assert same_text(shown, zarray)
    assert same_text(shown_attributes, attributes)
    assert "dimension_names" not in document or len(document["dimension_names"]) == len(zarray["shape"])


# Documents of v3, in the spellings of libraries of v3.


@st.composite
def v3_arrays(draw: st.DrawFn) -> Json:
    zarray = draw(zarrays())
    document = array_from_v2({name: value for name, value in zarray.items() if name not in ("_nczarr_array", "comment")}, None)
    document.pop("attributes", None)
    kind, ndim = document["data_type"], len(document["shape"])
    width = {"float16": 4, "float32": 8, "float64": 16}.get(kind) if isinstance(kind, str) else None
    if width is not None and draw(st.booleans()):
        document["fill_value"] = f"0x{draw(st.integers(0, 16**width - 1)):0{width}x}"
    if draw(st.booleans()):
        document["attributes"] = draw(st.dictionaries(names, values, max_size=2))
        if draw(st.booleans()):
            document["attributes"][ARRAY_DIMENSIONS] = draw(dimensions)
    if draw(st.booleans()):
        name = draw(st.sampled_from([st.text(max_size=3), st.none() | st.text(max_size=3), st.none()]))
        document["dimension_names"] = draw(st.lists(name, min_size=ndim, max_size=ndim))
    if draw(st.booleans()):
        document["chunk_key_encoding"] = draw(
            st.sampled_from([{"name": "v2"}, {"name": "default"}, {"name": "v2", "configuration": {"separator": "/"}}])
        )
    if draw(st.booleans()):
        document["storage_transformers"] = []
    if draw(st.booleans()):
        document["extra"] = {"must_understand": False}
    return document


@given(v3_arrays(), st.data())
def test_v3_documents_survive_a_client_of_v2(document: Json, data: st.DataObject) -> None:
    zarray, attributes = array_to_v2(document)
    assert same_text(array_from_v2(zarray, attributes, document), document)
    shape = data.draw(st.lists(st.integers(0, 99), min_size=len(document["shape"]), max_size=len(document["shape"])))
    resized = array_from_v2(zarray | {"shape": shape}, attributes, document)
    assert same_text(resized, document | {"shape": shape})


@pytest.mark.parametrize("attribute", [None, ["y", "x"], ["a", "b"], "a"])
@pytest.mark.parametrize("names", [["y", "x"], ["y", None], [None, None], None])
def test_names_of_dimensions_beside_an_attribute(attribute: Any, names: Any) -> None:
    """Where a v3 document has both, a client of v2 sees the attribute, and what it leaves alone stays."""
    document = array_from_v2(REFUSABLE, {ARRAY_DIMENSIONS: 0, "units": "K"})
    document["attributes"][ARRAY_DIMENSIONS] = attribute
    document |= {} if names is None else {"dimension_names": names}
    zarray, attributes = array_to_v2(document)
    assert attributes == {ARRAY_DIMENSIONS: attribute, "units": "K"}
    assert array_from_v2(zarray, attributes, document) == document
    renamed = array_from_v2(zarray, attributes | {ARRAY_DIMENSIONS: ["p", "q"]}, document)
    assert (renamed["dimension_names"], renamed["attributes"]) == (["p", "q"], {"units": "K"})
    unnamed = array_from_v2(zarray, {"units": "K"}, document)
    assert unnamed.get("dimension_names") == (names if names in (["y", None], [None, None]) else None)


@given(v3_arrays())
def test_what_v2_shows_of_v3_is_settled(document: Json) -> None:
    """A copy made by a v2 program is another document, but the same array: its v2 face is the same."""
    zarray, attributes = array_to_v2(document)
    copy = array_from_v2(zarray, attributes)
    assert same_text(array_to_v2(copy), (zarray, attributes))
    for member in ("shape", "data_type", "chunk_grid"):
        assert same_text(copy[member], document[member])


# The reserved attribute.


@given(zarrays(), zattrs())
def test_a_client_of_v3_sees_nothing_of_what_is_kept(zarray: Json, attributes: Json | None) -> None:
    stored = array_from_v2(zarray, attributes)
    shown = hide_kept(stored)
    assert RESERVED not in shown.get("attributes", {})
    assert same_text({k: v for k, v in shown.items() if k != "attributes"}, {k: v for k, v in stored.items() if k != "attributes"})
    assert same_text(carry_kept(shown, stored), stored)
    rewritten = carry_kept(shown | {"attributes": {**shown.get("attributes", {}), "new": 1}}, stored)
    after, after_attributes = array_to_v2(rewritten)
    assert same_text(after, zarray)
    assert same_text(after_attributes, (attributes or {}) | {"new": 1})


def test_what_is_kept_of_nodes_in_consolidated_metadata() -> None:
    zarray: Json = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<f4", "order": "C", "filters": None, "compressor": None}
    zarray["fill_value"] = None
    array = array_from_v2(zarray, None)
    group = group_from_v2({"zarr_format": 2, "x": 1}, {"a": 1})
    consolidated = {"kind": "inline", "must_understand": False, "metadata": {"g": group, "g/a": array, "odd": 3}}
    root = group_from_v2({"zarr_format": 2}, None) | {"consolidated_metadata": consolidated}
    shown = hide_kept(root)
    assert RESERVED not in str(shown)
    assert "attributes" not in shown["consolidated_metadata"]["metadata"]["g/a"]
    assert carry_kept(shown, root) == root
    assert carry_kept(shown, None) == shown
    assert carry_kept(shown, None, {"g": group, "g/a": array}) == root
    with pytest.raises(InvalidInput, match="reserved"):
        carry_kept(root, None)


def test_a_change_made_in_v3_wins_over_what_is_kept() -> None:
    zarray: Json = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<f4", "order": "C", "filters": [], "compressor": None}
    stored = array_from_v2(zarray | {"fill_value": None, "dimension_separator": "."}, {})
    changed = carry_kept(hide_kept(stored) | {"fill_value": 1.5}, stored)
    shown, _ = array_to_v2(changed)
    assert same_text(shown, zarray | {"fill_value": 1.5, "dimension_separator": "."})


# Groups and consolidated metadata.

REFUSABLE: Json = array_v2([6, 4], [2, 2], "<i4")


@given(st.dictionaries(names.filter(lambda name: name != "zarr_format"), values, max_size=2), zattrs(), zattrs())
def test_groups_are_given_back(extra: Json, attributes: Json | None, after: Json | None) -> None:
    zgroup = {"zarr_format": 2} | extra
    document = group_from_v2(zgroup, attributes)
    assert same_text(group_to_v2(stored_and_read(document)), (zgroup, attributes))
    annotated = document | {"extra": {"must_understand": False}}
    updated = group_from_v2(zgroup, after, annotated)
    assert updated["extra"] == {"must_understand": False}
    assert same_text(group_to_v2(updated), (zgroup, after))


paths = st.lists(st.sampled_from(["a", "b", "0", "c"]), min_size=1, max_size=3).map("/".join)


@given(st.dictionaries(paths, st.tuples(st.none() | zarrays(), zattrs()), max_size=4), zattrs())
def test_consolidated_metadata_is_given_back_byte_for_byte(
    nodes: dict[str, tuple[Json | None, Json | None]], attributes: Json | None
) -> None:
    metadata: Json = {".zgroup": {"zarr_format": 2}} | ({} if attributes is None else {".zattrs": attributes})
    arrays = {path for path, (zarray, _) in nodes.items() if zarray is not None}
    for path, (zarray, node_attributes) in nodes.items():
        if any(path.startswith(array + "/") for array in arrays):
            continue
        metadata |= {f"{path}/.zgroup": {"zarr_format": 2}} if zarray is None else {f"{path}/.zarray": zarray}
        metadata |= {} if node_attributes is None else {f"{path}/.zattrs": node_attributes}
    text = dumps_zarr2({"metadata": metadata, "zarr_consolidated_format": 1})
    group = group_from_v2({"zarr_format": 2}, attributes)
    group["consolidated_metadata"] = consolidated_from_v2(json_text.loads_object(text))
    shown = consolidated_to_v2(stored_and_read(group))
    assert shown is not None
    assert dumps_zarr2(shown) == text
    again = consolidated_from_v2(shown, group["consolidated_metadata"]["metadata"])
    assert same_text(again, group["consolidated_metadata"])


def test_consolidated_metadata_with_groups_that_have_their_own() -> None:
    array = array_from_v2(json_text.loads_object(json_text.dumps(REFUSABLE)), None)
    inner = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": {"metadata": {"a": array}}}
    outer = {"zarr_format": 3, "node_type": "group", "attributes": {}, "consolidated_metadata": {"metadata": {"g": inner}}}
    shown = consolidated_to_v2(outer)
    assert shown is not None
    assert sorted(shown["metadata"]) == [".zattrs", ".zgroup", "g/.zgroup", "g/a/.zarray"]
    assert consolidated_to_v2({"zarr_format": 3, "node_type": "group"}) is None
    odd = {"metadata": {"g": inner | {"consolidated_metadata": {"metadata": {"a": array | {"data_type": "float128"}}}}}}
    with pytest.raises(Unsupported, match=r"'g/a' in the consolidated metadata.*float128"):
        consolidated_to_v2(outer | {"consolidated_metadata": odd})
    partly = consolidated_to_v2(outer | {"consolidated_metadata": odd}, omit_unsupported=True)
    assert partly is not None
    assert "g/a/.zarray" not in partly["metadata"]


@pytest.mark.parametrize(
    ("zmetadata", "reason"),
    [
        ({"zarr_consolidated_format": 2, "metadata": {}}, "is 2, not 1"),
        ({"zarr_consolidated_format": 1, "metadata": {}, "x": 1}, "other members"),
        ({"zarr_consolidated_format": 1, "metadata": []}, "other members"),
        ({"zarr_consolidated_format": 1, "metadata": {"a/.zmetadata": {}}}, "no metadata document"),
        ({"zarr_consolidated_format": 1, "metadata": {"/.zgroup": {}}}, "no metadata document"),
        ({"zarr_consolidated_format": 1, "metadata": {"a//b/.zgroup": {}}}, "no metadata document"),
        ({"zarr_consolidated_format": 1, "metadata": {"a/.zgroup": 3}}, "no metadata document"),
        ({"zarr_consolidated_format": 1, "metadata": {"a/.zattrs": {}}}, "'a': it is neither"),
        ({"zarr_consolidated_format": 1, "metadata": {"a/.zgroup": {"zarr_format": 2}, "a/.zarray": {}}}, "'a': it is both"),
        ({"zarr_consolidated_format": 1, "metadata": {"a/.zgroup": {"zarr_format": 3}}}, "'a': 'zarr_format'"),
        ({"zarr_consolidated_format": 1, "metadata": {"a/.zarray": {"zarr_format": 2}}}, "'a': 'shape'"),
        ({"zarr_consolidated_format": 1, "metadata": {"a/.zarray": REFUSABLE, "a/b/c/.zgroup": {"zarr_format": 2}}}, "below the array 'a'"),
    ],
)
def test_consolidated_metadata_that_is_refused(zmetadata: Json, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        consolidated_from_v2(zmetadata)


def test_consolidated_metadata_of_a_lone_array_is_refused() -> None:
    with pytest.raises(InvalidInput, match="an array"):
        consolidated_from_v2({"zarr_consolidated_format": 1, "metadata": {".zarray": REFUSABLE}})


# What is refused.

REFUSED: list[tuple[Json, str]] = [
    ({"zarr_format": 3}, "3 is not 2"),
    ({"zarr_format": True}, "True is not 2"),
    ({"shape": [6]}, "'chunks'.*2 sizes, the array has 1"),
    ({"shape": [6, -1]}, "'shape'"),
    ({"shape": [6, 4.0]}, "'shape'"),
    ({"chunks": [2, 0]}, "'chunks'"),
    ({"dimension_separator": "-"}, "neither '.' nor '/'"),
    ({"order": "A"}, "neither 'C' nor 'F'"),
    ({"dtype": "|i4"}, "byte order"),
    ({"dtype": "<f16"}, "no data type"),
    ({"dtype": "<c32"}, "no data type"),
    ({"dtype": "<M8"}, "unit of time"),
    ({"dtype": "<M8[fortnight]"}, "no date or duration"),
    ({"dtype": "<M4[s]"}, "no date or duration"),
    ({"dtype": "|S0"}, "none that can be stored"),
    ({"dtype": 7}, "none that can be stored"),
    ({"dtype": "|O"}, "objects need one of"),
    ({"dtype": "|O", "filters": [{"id": "pickle"}]}, "objects need one of.*'pickle'"),
    ({"dtype": [["a", "<i4", [2]]]}, "holds an array"),
    ({"dtype": [["a", ">i4"]]}, "big-endian"),
    ({"dtype": [["a", "<i4"], ["a", "<i4"]]}, "different names"),
    ({"dtype": []}, "has fields"),
    ({"fill_value": "x"}, "'fill_value'"),
    ({"fill_value": 2**31}, "'fill_value'"),
    ({"fill_value": 0.5}, "'fill_value'"),
    ({"dtype": "<f4", "fill_value": [0.0]}, "'fill_value'"),
    ({"dtype": "|S3", "fill_value": "*"}, "not base64"),
    ({"dtype": "|V3", "fill_value": "AAAAAAA="}, "5 bytes, an element has 3"),
    ({"dtype": "|O", "filters": [{"id": "vlen-bytes"}], "fill_value": "x"}, "'fill_value'"),
    ({"filters": {}}, "no list"),
    ({"filters": [{"id": "base64"}]}, "no codec that Zarr v3 has a name for"),
    ({"compressor": {"id": "zfpy", "mode": 4}}, "'compressor'.*no codec"),
    ({"compressor": {}}, "'compressor'"),
    ({"compressor": {"id": "zstd", "level": 1, "threads": 4}}, "'threads' that is not known"),
    ({"compressor": {"id": "blosc", "cname": "lzo"}}, "blosc has no"),
    ({"compressor": {"id": "blosc", "shuffle": 3}}, "blosc has no"),
    ({"compressor": {"id": "gzip", "level": 10}}, "gzip has no level"),
    ({"filters": [{"id": "delta", "dtype": "<i2"}]}, "configured for elements '<i2', and gets '<i4'"),
    ({"filters": [{"id": "zlib", "level": 1}, {"id": "delta", "dtype": "<i4"}]}, "follows a codec that returns bytes"),
    ({"filters": [{"id": "delta", "dtype": "<i4"}], "order": "F"}, "in order F"),
    ({"filters": [{"id": "delta", "dtype": ">i4"}], "dtype": ">i4"}, "big-endian"),
    ({"filters": [{"id": "packbits"}]}, "packbits takes booleans"),
    ({"filters": [{"id": "bitround", "keepbits": 3}]}, "bitround takes floats"),
    ({"filters": [{"id": "astype", "encode_dtype": "<i4", "decode_dtype": "|u1"}], "dtype": "|u1"}, "without a byte order"),
    ({"filters": [{"id": "quantize", "digits": 1, "dtype": "<f8", "astype": "<f4"}], "dtype": "<f8"}, "quantize to"),
]


@pytest.mark.parametrize(("members", "reason"), REFUSED)
def test_arrays_that_are_refused(members: Json, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        array_from_v2(REFUSABLE | members, None)


def test_the_reserved_attribute_is_refused() -> None:
    with pytest.raises(InvalidInput, match="reserved"):
        array_from_v2(REFUSABLE, {RESERVED: {}})
    with pytest.raises(InvalidInput, match="reserved"):
        group_from_v2({"zarr_format": 2}, {RESERVED: {}})
    for zgroup in ({"zarr_format": 3}, {"zarr_format": 2.0}, {}):
        with pytest.raises(InvalidInput, match="not 2"):
            group_from_v2(zgroup, None)


LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
NOT_SHOWN: list[tuple[Json, str]] = [
    ({"node_type": "group"}, "no array"),
    ({"chunk_grid": {"name": "rectilinear"}}, "not regular"),
    ({"chunk_key_encoding": {"name": "suffix"}}, "key encoding"),
    ({"storage_transformers": [{"name": "x"}]}, "storage transformers"),
    ({"extra": 1}, "'extra' must be understood"),
    ({"data_type": "bfloat16"}, "bfloat16"),
    ({"data_type": {"name": "numpy.datetime64", "configuration": {"unit": "generic", "scale_factor": 1}}, "fill_value": 0}, "no date"),
    ({"codecs": []}, "turn elements into bytes"),
    ({"codecs": [{"name": "sharding_indexed", "configuration": {}}]}, "sharding_indexed.*no counterpart"),
    ({"codecs": ["bytes"]}, "byte order"),
    ({"codecs": [LITTLE, {"name": "numcodecs.pcodec"}]}, "no counterpart"),
    ({"codecs": [{"name": "transpose", "configuration": {"order": [0, 0]}}, LITTLE]}, "codec transpose is no order of 2"),
    ({"codecs": [{"name": "numcodecs.delta", "configuration": {"dtype": ">i4"}}, LITTLE]}, "big-endian"),
    ({"codecs": [{"name": "numcodecs.zlib"}, LITTLE]}, "not a codec of elements"),
    ({"codecs": [LITTLE, {"name": "numcodecs.delta", "configuration": {"dtype": "<i4"}}]}, "not a codec of bytes"),
    ({"codecs": [LITTLE, {"name": "numcodecs.shuffle"}]}, "without elementsize"),
    ({"data_type": "int8", "codecs": ["vlen-utf8"]}, "do not become bytes"),
    ({"fill_value": "0x00000000"}, "'0x00000000' is none"),
    ({"data_type": "variable_length_bytes", "codecs": ["vlen-bytes"], "fill_value": "AA=="}, "bytes objects"),
]


@pytest.mark.parametrize(("members", "reason"), NOT_SHOWN)
def test_arrays_of_v3_that_v2_cannot_show(members: Json, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        array_to_v2(array_from_v2(REFUSABLE, None) | members)


def test_three_dimensions_transposed_otherwise() -> None:
    document = array_from_v2(REFUSABLE | {"shape": [1, 2, 3], "chunks": [1, 1, 1]}, None)
    transpose = {"name": "transpose", "configuration": {"order": [1, 0, 2]}}
    with pytest.raises(Unsupported, match="neither order C nor F"):
        array_to_v2(document | {"codecs": [transpose, LITTLE]})
    backwards = {"name": "transpose", "configuration": {"order": [2, 1, 0]}}
    assert array_to_v2(document | {"codecs": [backwards, LITTLE]})[0]["order"] == "F"
    assert array_to_v2(document | {"codecs": [transpose, transpose, LITTLE]})[0]["order"] == "C"


# Anything else is refused in words, never by chance.

members = st.sampled_from([*REFUSABLE, "dimension_separator"])
likely = st.sampled_from(
    ["<i4", "|O", "C", "/", 0, -1, [], {}, {"id": "delta"}, {"id": []}, [{"id": "vlen-utf8", "x": 1}], [[]], [["a", "|O"]]]
)


@given(zarrays(), st.dictionaries(members, values | likely, min_size=1, max_size=3))
def test_odd_arrays_are_exact_or_refused(zarray: Json, odd: Json) -> None:
    try:
        document = array_from_v2(zarray | odd, None)
    except InvalidInput:
        return
    assert same_text(array_to_v2(stored_and_read(document))[0], zarray | odd)


v3_members = st.sampled_from(
    ["shape", "data_type", "codecs", "chunk_grid", "chunk_key_encoding", "fill_value", "attributes", "dimension_names"]
)
odd_kept = st.fixed_dictionaries({RESERVED: values | st.fixed_dictionaries({}, optional={"members": values, "absent": values})})
likely_v3 = st.sampled_from([["bytes"], [{"name": "blosc"}], [{"name": []}], {"name": "struct", "configuration": {"fields": [[1]]}}, "r16"])


@given(v3_arrays(), st.dictionaries(v3_members, values | likely_v3 | odd_kept, min_size=1, max_size=3))
def test_odd_arrays_of_v3_are_shown_or_refused(document: Json, odd: Json) -> None:
    odd_document = document | odd
    try:
        zarray, attributes = array_to_v2(odd_document)
    except Unsupported:
        return
    assert json_text.loads_object(dumps_zarr2(zarray))["zarr_format"] == 2
    assert attributes is None or RESERVED not in attributes
    hide_kept(odd_document)
