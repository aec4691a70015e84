"""Documents of the 2022 draft, against what zarr-python 2.18.7 wrote and what zarr-python 3 reads."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from shardstore.errors import InvalidInput
from shardstore.format.draft2022.metadata import (
    array_from_v3,
    array_to_v3,
    entry_point,
    entry_point_problem,
    group_from_v3,
    group_to_v3,
    implicit_group,
    is_entry_point,
)
from shardstore.format.json_text import JsonObject, NumberText, dumps, dumps_zarr2, loads_object
from shardstore.format.presentation import same_chunks
from shardstore.format.storage_transformers import scalar_key_name
from tests.documents import array_v3

# What zarr-python 2.18.7 (numcodecs 0.15.2) wrote, byte for byte.
ENTRY_POINT = b"""{
    "extensions": [],
    "metadata_encoding": "https://purl.org/zarr/spec/protocol/core/3.0",
    "metadata_key_suffix": ".json",
    "zarr_format": "https://purl.org/zarr/spec/protocol/core/3.0"
}"""
GROUP = b"""{
    "attributes": {
        "\\u00e9": 1
    }
}"""
ARRAY = b"""{
    "attributes": {},
    "chunk_grid": {
        "chunk_shape": [
            2,
            3
        ],
        "separator": "/",
        "type": "regular"
    },
    "chunk_memory_layout": "F",
    "compressor": {
        "codec": "https://purl.org/zarr/spec/codec/blosc/1.0",
        "configuration": {
            "blocksize": 0,
            "clevel": 3,
            "cname": "zstd",
            "shuffle": 2
        }
    },
    "data_type": ">i4",
    "dimension_separator": "/",
    "extensions": [],
    "fill_value": 3,
    "shape": [
        6,
        7
    ],
    "storage_transformers": [
        {
            "configuration": {
                "chunks_per_shard": [
                    2,
                    2
                ]
            },
            "extension": "https://purl.org/zarr/spec/storage_transformers/sharding/1.0",
            "type": "indexed"
        }
    ]
}"""
STORED: JsonObject = json.loads(ARRAY)
CANONICAL: JsonObject = array_v3(
    [6, 7],
    [2, 3],
    data_type="int32",
    fill_value=3,
    codecs=[
        {"name": "transpose", "configuration": {"order": [1, 0]}},
        {"name": "bytes", "configuration": {"endian": "big"}},
        {
            "name": "blosc",
            "configuration": {"cname": "zstd", "clevel": 3, "shuffle": "bitshuffle", "blocksize": 0, "typesize": 4},
        },
    ],
    attributes={},
    storage_transformers=STORED["storage_transformers"],
)

COMPLEX = "https://zarr-specs.readthedocs.io/en/core-protocol-v3.0-dev/protocol/extensions/complex-dtypes/v1.0.html"
DATES = "https://zarr-specs.readthedocs.io/en/latest/extensions/data-types/datetime/v1.0.html"
# The very words that zarr-python 2.18 writes where it has no URI.
BYTES, UNICODE = "TODO: bytestring array protocol URL", "TODO: unicode array protocol URL"


def extension(uri: str, name: Any, fallback: Any = None) -> JsonObject:
    return {"extension": uri, "fallback": fallback, "type": name}


def date(name: str, unit: str) -> JsonObject:
    return {"name": name, "configuration": {"unit": unit, "scale_factor": 1}}


def sized(name: str, nbytes: int) -> JsonObject:
    return {"name": name, "configuration": {"length_bytes": nbytes}}


def stored(**changes: Any) -> JsonObject:
    """A document with members changed, or left out where the change is ``...``."""
    return {m: v for m, v in (STORED | changes).items() if v is not ...}


def canonical(**changes: Any) -> JsonObject:
    return {m: v for m, v in (CANONICAL | changes).items() if v is not ...}


def shown(**changes: Any) -> JsonObject:
    document = array_to_v3(stored(**changes))
    assert isinstance(document, dict), document
    return document


def opens_in_zarr_python(document: JsonObject) -> Any:
    plain = {m: v for m, v in document.items() if m != "storage_transformers"}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Numcodecs codecs are not in the Zarr version 3 specification")
        return zarr.open_array(MemoryStore({"zarr.json": default_buffer_prototype().buffer.from_bytes(dumps(plain))}), mode="r")


def test_a_document_of_zarr_python_goes_both_ways() -> None:
    assert array_to_v3(STORED) == CANONICAL
    assert dumps_zarr2(array_from_v3(CANONICAL, None)) == ARRAY
    assert dumps_zarr2(array_from_v3(CANONICAL, STORED)) == ARRAY


def test_number_forms_survive() -> None:
    text = ARRAY.replace(b'"attributes": {}', b'"attributes": {\n        "a": 1.50,\n        "b": 1e400\n    }').replace(b"6,", b"60,")
    document = loads_object(text)
    assert document["attributes"]["a"] == NumberText("1.50")
    assert dumps_zarr2(array_from_v3(loads_object(dumps(array_to_v3(document))), document)) == text


# draft data type and fill value, canonical data type, endianness and fill value: all written by zarr-python 2.18.7.
WRITTEN_TYPES: list[tuple[Any, Any, Any, str | None, Any]] = [
    ("bool", True, "bool", None, True),
    ("i1", -3, "int8", None, -3),
    ("u1", 255, "uint8", None, 255),
    ("<i2", 7, "int16", "little", 7),
    (">i4", -9, "int32", "big", -9),
    ("<i8", 2**62, "int64", "little", 2**62),
    (">u8", 2**64 - 1, "uint64", "big", 2**64 - 1),
    ("<f2", "NaN", "float16", "little", "NaN"),
    ("<f4", 0.10000000149011612, "float32", "little", 0.10000000149011612),
    (">f8", "-Infinity", "float64", "big", "-Infinity"),
    (extension(COMPLEX, "<c8"), [1.0, 2.0], "complex64", "little", [1.0, 2.0]),
    (extension(COMPLEX, ">c16"), ["NaN", "Infinity"], "complex128", "big", ["NaN", "Infinity"]),
    (extension(DATES, "<M8[ns]"), -(2**63), date("numpy.datetime64", "ns"), "little", -(2**63)),
    (extension(DATES, ">m8[s]"), 5, date("numpy.timedelta64", "s"), "big", 5),
    (extension(BYTES, "|S5"), "YWI=", sized("null_terminated_bytes", 5), None, "YWI="),
    (extension(UNICODE, "<U4"), "ab", sized("fixed_length_utf32", 16), "little", "ab"),
    (extension(UNICODE, ">U1"), "", sized("fixed_length_utf32", 4), "big", ""),
]


@pytest.mark.parametrize(("data_type", "fill_value", "v3_type", "endian", "v3_fill"), WRITTEN_TYPES)
def test_types_that_zarr_python_writes(data_type: Any, fill_value: Any, v3_type: Any, endian: str | None, v3_fill: Any) -> None:
    document = stored(data_type=data_type, fill_value=fill_value, compressor=..., chunk_memory_layout="C")
    seen = array_to_v3(document)
    assert isinstance(seen, dict)
    assert (seen["data_type"], seen["fill_value"]) == (v3_type, v3_fill)
    assert seen["codecs"] == [{"name": "bytes"} if endian is None else {"name": "bytes", "configuration": {"endian": endian}}]
    assert array_from_v3(seen, None) == document
    assert array_from_v3(seen, document) == document
    assert opens_in_zarr_python(seen).shape == (6, 7)


@pytest.mark.parametrize(
    ("data_type", "v3_type", "endian"),
    [
        ("int32", "int32", "little"),  # November 2022
        ("float16", "float16", "little"),
        ("complex128", "complex128", "little"),
        ("uint8", "uint8", None),
        ("|u1", "uint8", None),
        ("|b1", "bool", None),
        (">c8", "complex64", "big"),
        (extension("https://purl.org/zarr/spec/extensions/datetime-dtypes/1.0", "<M8[us]"), date("numpy.datetime64", "us"), "little"),
        (
            extension("https://purl.org/zarr/spec/protocol/extensions/datetime-dtypes/1.0", "<M8[ns]", "<i8"),
            date("numpy.datetime64", "ns"),
            "little",
        ),
        (extension("https://example.org/quantity", "metre", ">f8"), "float64", "big"),
    ],
)
def test_types_of_other_drafts(data_type: Any, v3_type: Any, endian: str | None) -> None:
    document = stored(data_type=data_type, fill_value=None, compressor=..., chunk_memory_layout="C")
    seen = array_to_v3(document)
    assert isinstance(seen, dict)
    assert seen["data_type"] == v3_type
    assert seen["codecs"] == [{"name": "bytes"} if endian is None else {"name": "bytes", "configuration": {"endian": endian}}]
    assert array_from_v3(seen, document) == document


@pytest.mark.parametrize(
    "data_type",
    [
        None,
        3,
        "<i3",
        "i4",
        "<u1",
        "<f16",
        "<M8",
        "<i4[ns]",
        "<M8[10ns]",
        "int12",
        "int",
        "bool8",
        "r16",
        "int٣٢",
        extension("TODO: object array protocol URL", "|O"),
        extension("TODO: structured array protocol URL", [["a", "<i4"]]),
        extension("https://example.org/quantity", "<c8"),
        extension("https://example.org/quantity", "<c8", "metre"),
        {"type": "<c8"},
    ],
)
def test_types_that_must_be_understood(data_type: Any) -> None:
    assert "data type" in array_to_v3(stored(data_type=data_type))


# The draft's fill value of a data type, and the canonical one; None where there is none.
@pytest.mark.parametrize(
    ("data_type", "fill_value", "v3_fill"),
    [
        ("<i4", None, 0),
        ("bool", None, False),
        ("<f4", None, 0),
        (extension(COMPLEX, "<c8"), None, [0, 0]),
        (extension(BYTES, "|S2"), None, ""),
        (extension(DATES, "<M8[s]"), "NaT", "NaT"),
        ("bool", 1, True),
        ("<i4", 2.0, 2),
        ("<i4", "0xfffffffe", -2),
        ("u1", "0b10000001", 129),
        ("<f4", "+Infinity", "Infinity"),
        ("<f4", "0x7FC00001", "0x7fc00001"),
        ("<f4", NumberText("NaN"), "NaN"),
        ("<f4", NumberText("1.50"), NumberText("1.50")),
        ("<f2", "0b0111111000000001", "0x7e01"),
        ("<i4", 2**31, None),
        ("<i4", 0.5, None),
        ("<i4", 10**400, None),
        ("<i4", NumberText("Infinity"), None),
        ("<i4", "0xfe", None),
        ("<i4", "NaN", None),
        ("u1", -1, None),
        ("bool", 2, None),
        ("bool", "0xff", None),
        ("<f4", True, None),
        ("<f4", 10**400, None),
        ("<f4", "nan", None),
        ("<f4", "0x7fc0", None),
        ("<f4", {}, None),
        (extension(COMPLEX, "<c8"), 0, None),
        (extension(COMPLEX, "<c8"), [1, None], None),
        (extension(COMPLEX, "<c8"), [1, 2, 3], None),
        (extension(BYTES, "|S1"), "YWI=", None),
        (extension(BYTES, "|S5"), "no base64", None),
        (extension(UNICODE, "<U1"), "ab", None),
        (extension(DATES, "<M8[s]"), "now", None),
    ],
)
def test_fill_values(data_type: Any, fill_value: Any, v3_fill: Any) -> None:
    document = stored(data_type=data_type, fill_value=fill_value, compressor=..., chunk_memory_layout="C")
    seen = array_to_v3(document)
    if v3_fill is None:
        assert isinstance(seen, str)
        assert "fill_value" in seen
        return
    assert isinstance(seen, dict)
    assert seen["fill_value"] == v3_fill
    assert type(seen["fill_value"]) is type(v3_fill)
    assert array_from_v3(seen, document) == document


def test_a_fill_value_keeps_its_spelling_until_it_changes() -> None:
    document = stored(data_type="<f4", fill_value=NumberText("1.50"), compressor=..., chunk_memory_layout="C")
    seen = array_to_v3(document)
    assert isinstance(seen, dict)
    assert array_from_v3(seen | {"fill_value": 1.5}, document)["fill_value"] == NumberText("1.50")
    assert array_from_v3(seen | {"fill_value": "0x3fc00000"}, document)["fill_value"] == NumberText("1.50")
    assert array_from_v3(seen | {"fill_value": 2}, document)["fill_value"] == 2.0
    assert array_from_v3(seen | {"fill_value": -0.0}, document | {"fill_value": 0.0})["fill_value"] == -0.0
    assert "-" in str(array_from_v3(seen | {"fill_value": -0.0}, document | {"fill_value": 0.0})["fill_value"])


@pytest.mark.parametrize(
    ("v3_type", "v3_fill", "fill_value"),
    [
        ("float32", "0x7fc00000", "NaN"),
        ("float32", "0xff800000", "-Infinity"),
        ("float32", "0x3f800000", 1.0),
        ("float32", 1, 1.0),
        ("complex64", ["0x7fc00000", 1], ["NaN", 1.0]),
        (date("numpy.datetime64", "s"), "NaT", -(2**63)),
    ],
)
def test_new_fill_values_are_zarr_pythons(v3_type: Any, v3_fill: Any, fill_value: Any) -> None:
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
    written = array_from_v3(canonical(data_type=v3_type, fill_value=v3_fill, codecs=codecs), None)["fill_value"]
    assert written == fill_value
    assert repr(written) == repr(fill_value)


BLOSC = {"blocksize": 0, "clevel": 5, "cname": "lz4", "shuffle": 1}


# Compressors as zarr-python 2.18.7 wrote them, for an array of ">i4".
@pytest.mark.parametrize(
    ("name", "configuration", "v3_name", "v3_configuration", "exact"),
    [
        ("gzip", {"level": 1}, "gzip", {"level": 1}, True),
        ("gzip", {"level": -1}, "gzip", {"level": 6}, False),
        ("zlib", {"level": 6}, "numcodecs.zlib", {"level": 6}, True),
        ("bz2", {"level": 1}, "numcodecs.bz2", {"level": 1}, True),
        ("lz4", {"acceleration": 1}, "numcodecs.lz4", {"acceleration": 1}, True),
        (
            "lzma",
            {"check": -1, "filters": None, "format": 1, "preset": None},
            "numcodecs.lzma",
            {"check": -1, "filters": None, "format": 1, "preset": None},
            True,
        ),
        ("zstd", {"checksum": True, "level": 3}, "zstd", {"checksum": True, "level": 3}, True),
        ("zstd", {"level": 3}, "zstd", {"checksum": False, "level": 3}, False),
        ("blosc", BLOSC, "blosc", BLOSC | {"shuffle": "shuffle", "typesize": 4}, True),
        ("blosc", BLOSC | {"shuffle": 0}, "blosc", BLOSC | {"shuffle": "noshuffle"}, True),
        ("blosc", BLOSC | {"shuffle": -1}, "blosc", BLOSC | {"shuffle": "shuffle", "typesize": 4}, False),
    ],
)
def test_compressors(name: str, configuration: JsonObject, v3_name: str, v3_configuration: JsonObject, exact: bool) -> None:
    document = stored(compressor={"codec": f"https://purl.org/zarr/spec/codec/{name}/1.0", "configuration": configuration})
    seen = array_to_v3(document)
    assert isinstance(seen, dict)
    assert seen["codecs"][2] == {"name": v3_name, "configuration": v3_configuration}
    assert array_from_v3(seen, document) == document
    assert (array_from_v3(seen, None) == document) is exact
    assert opens_in_zarr_python(seen).shape == (6, 7)


def test_blosc_chooses_its_shuffle_by_size() -> None:
    compressor = STORED["compressor"] | {"configuration": BLOSC | {"shuffle": -1}}
    assert shown(data_type="u1", compressor=compressor)["codecs"][2]["configuration"]["shuffle"] == "bitshuffle"


def test_codecs_of_november_2022() -> None:
    codecs = [
        {"type": "https://purl.org/zarr/spec/codec/endian/1.0", "configuration": {"endian": "big"}},
        {"type": "https://purl.org/zarr/spec/codecs/gzip/1.0", "configuration": {"level": 1}},
    ]
    document = stored(compressor=..., codecs=codecs, data_type="int32", chunk_memory_layout="F")
    seen = array_to_v3(document)
    assert isinstance(seen, dict)
    assert seen["codecs"] == [*CANONICAL["codecs"][:2], {"name": "gzip", "configuration": {"level": 1}}]
    assert array_from_v3(seen | {"shape": [9, 9]}, document) == document | {"shape": [9, 9]}


@pytest.mark.parametrize(
    "changes",
    [
        {"compressor": {"codec": "https://purl.org/zarr/spec/codec/"}},  # zarr-python 2.18 writes it for codecs it does not know
        {"compressor": {"codec": "https://example.org/gzip/1.0"}},
        {"compressor": {"codec": "https://purl.org/zarr/spec/codec/jpeg/1.0"}},
        {"compressor": {"codec": "https://purl.org/zarr/spec/codec/gzip/2.0"}},
        {"compressor": {"codec": "https://purl.org/zarr/spec/codec/gzip/1.0", "configuration": {"dictionary": 1}}},
        {"compressor": STORED["compressor"] | {"configuration": BLOSC | {"shuffle": 3}}},
        {"compressor": STORED["compressor"] | {"configuration": BLOSC | {"shuffle": True}}},
        {"compressor": "gzip"},
        {"codecs": [{"type": "https://purl.org/zarr/spec/codecs/gzip/1.0"}]},  # beside the compressor
        {"compressor": ..., "codecs": {"type": "gzip"}},
        {"compressor": ..., "codecs": [{"type": "https://purl.org/zarr/spec/codec/endian/1.0", "configuration": {"endian": "little"}}]},
        {"chunk_memory_layout": "Z"},
        {"chunk_memory_layout": {"extension": "u", "type": "t"}},
        {"attributes": {"filters": [{"id": "delta", "dtype": "<i4"}]}},
        {"chunk_grid": {"type": "rectangular"}},
        {"chunk_grid": STORED["chunk_grid"] | {"extension": "https://example.org/grid"}},
        {"chunk_grid": STORED["chunk_grid"] | {"separator": "-"}},
        {"chunk_grid": STORED["chunk_grid"] | {"chunk_shape": [2]}},
        {"chunk_grid": STORED["chunk_grid"] | {"chunk_shape": [2, 0]}},
        {"shape": [6, -1]},
        {"shape": 6},
        {"extensions": [{"extension": "https://example.org/e", "must_understand": True}]},
        {"extensions": [{"extension": "https://example.org/e"}]},
        {"extensions": "all"},
        {"storage_transformers": [{"name": "compaction"}]},
        {"storage_transformer": "https://purl.org/zarr/spec/storage_transformers/sharding/1.0"},
    ],
)
def test_what_cannot_be_shown_says_why(changes: JsonObject) -> None:
    reason = array_to_v3(stored(**changes))
    assert isinstance(reason, str)
    assert reason.startswith(("its ", "the "))


def test_1d_is_always_shown_with_a_slash() -> None:
    document = stored(
        shape=[97], chunk_grid={"type": "regular", "chunk_shape": [10], "separator": "."}, dimension_separator=".", storage_transformers=...
    )
    seen = array_to_v3(document)
    assert isinstance(seen, dict)
    assert seen["chunk_key_encoding"] == {"name": "default", "configuration": {"separator": "/"}}
    assert [c["name"] for c in seen["codecs"]] == ["bytes", "blosc"]  # F means nothing here
    assert array_from_v3(seen | {"shape": [5]}, document) == document | {"shape": [5]}
    with pytest.raises(InvalidInput, match="chunk_key_encoding"):
        array_from_v3(seen | {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}}}, document)


@pytest.mark.parametrize("value", [[], [1]])
def test_0d(value: list[int]) -> None:
    transformers = [STORED["storage_transformers"][0] | {"configuration": {"chunks_per_shard": value}}]
    document = stored(
        shape=[], chunk_grid={"type": "regular", "chunk_shape": [], "separator": "."}, compressor=..., storage_transformers=transformers
    )
    seen = array_to_v3(document)
    assert isinstance(seen, dict)
    assert seen["storage_transformers"] == transformers
    assert seen["codecs"] == [CANONICAL["codecs"][1]]
    assert array_from_v3(seen, document) == document


def test_a_chunk_of_no_elements_grows_with_its_array() -> None:
    """zarr-python 2.18 writes ``chunks=(0,)`` for ``shape=(0,)`` where it is asked to."""
    document = stored(shape=[0, 7], chunk_grid={"type": "regular", "chunk_shape": [0, 3], "separator": "/"})
    seen = array_to_v3(document)
    assert isinstance(seen, dict)
    assert seen["chunk_grid"]["configuration"]["chunk_shape"] == [1, 3]
    assert array_from_v3(seen, document) == document
    assert array_from_v3(seen | {"shape": [4, 7]}, document)["chunk_grid"]["chunk_shape"] == [1, 3]


def test_resize_and_attributes_keep_everything_else() -> None:
    document = stored(
        novel=[1, 2],
        ignorable={"must_understand": False, "x": 1},
        extensions=[{"extension": "https://example.org/e", "must_understand": False}],
        dimension_separator=...,
        storage_transformers=[{"name": "sharding", "configuration": {"chunks_per_shard": [2, 2]}}],
        data_type="int32",
        chunk_memory_layout="C",
        compressor={"codec": "http://purl.org/zarr/spec/codec/gzip", "configuration": {}},
    )
    seen = array_to_v3(document)
    assert isinstance(seen, dict)
    assert "novel" not in seen
    assert seen["ignorable"] == {"must_understand": False, "x": 1}
    changed = array_from_v3(seen | {"shape": [60, 7], "attributes": {"a": [1]}}, document)
    assert changed == document | {"shape": [60, 7], "attributes": {"a": [1]}}
    # Another library's spelling of the same codecs changes nothing either.
    respelled = seen | {"codecs": ["bytes" if c["name"] == "bytes" else c for c in seen["codecs"]]}
    assert array_from_v3(respelled | {"data_type": "uint8"}, document | {"data_type": "uint8"}) == document | {"data_type": "uint8"}
    # Other chunks are another array: nothing is kept.
    assert "novel" not in array_from_v3(seen | {"codecs": CANONICAL["codecs"]}, document)
    del seen["ignorable"]
    assert "ignorable" not in array_from_v3(seen, document)


def test_lost_transformers_are_shown_by_override_and_written_back() -> None:
    document = stored(storage_transformers=...)
    assert "storage_transformers" not in shown(storage_transformers=...)
    seen = array_to_v3(document, (2, 2))
    assert seen == CANONICAL
    assert array_from_v3(CANONICAL, document) == STORED
    assert "override" in array_to_v3(STORED, (4, 4))
    assert array_to_v3(STORED, (2, 2)) == CANONICAL


def test_dimension_names_lie_in_xarrays_attribute() -> None:
    document = stored(attributes={"_ARRAY_DIMENSIONS": ["y", "x"], "unit": "m"})
    seen = array_to_v3(document)
    assert isinstance(seen, dict)
    assert seen["dimension_names"] == ["y", "x"]
    assert seen["attributes"] == {"unit": "m"}
    assert array_from_v3(seen, document) == array_from_v3(seen, None) == document
    assert array_from_v3(seen | {"dimension_names": ["y", None]}, document)["attributes"]["_ARRAY_DIMENSIONS"] == ["y", None]
    for nothing in (None, [None, None]):
        assert array_from_v3(seen | {"dimension_names": nothing}, document)["attributes"] == {"unit": "m"}
    for names in (["y"], "yx", [1, 2], [None, None]):  # not the names of two dimensions: an attribute as any other
        other = shown(attributes={"_ARRAY_DIMENSIONS": names})
        assert "dimension_names" not in other
        assert other["attributes"] == {"_ARRAY_DIMENSIONS": names}


@pytest.mark.parametrize(
    ("member", "changes"),
    [
        ("dimension_names", {"dimension_names": ["y"]}),
        ("dimension_names", {"dimension_names": ["y", "x"], "attributes": {"_ARRAY_DIMENSIONS": ["a", "b"]}}),
        ("attributes", {"attributes": {"filters": [{"id": "delta"}]}}),
        ("attributes", {"attributes": []}),
        ("chunk_key_encoding", {"chunk_key_encoding": {"name": "v2"}}),
        ("data_type", {"data_type": "string"}),
        ("data_type", {"data_type": {"name": "raw_bytes", "configuration": {"length_bytes": 4}}}),
        ("data_type", {"data_type": {"name": "int", "configuration": {"length_bytes": 4}}}),
        ("data_type", {"data_type": {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 10}}}),
        ("data_type", {"data_type": {"name": "numpy.datetime64", "configuration": {"unit": "generic", "scale_factor": 1}}}),
        ("data_type", {"data_type": {"name": "fixed_length_utf32", "configuration": {"length_bytes": 6}}}),
        ("data_type", {"data_type": {"name": "fixed_length_utf32", "configuration": {"length_bytes": "4"}}}),
        ("fill_value", {"fill_value": None}),
        ("fill_value", {"fill_value": 0.5}),
        ("fill_value", {"data_type": "float32", "fill_value": "0x7fc00001"}),
        ("fill_value", {"data_type": "float32", "fill_value": "0x7fc0"}),
        ("codecs", {"codecs": []}),
        ("codecs", {"codecs": ["bytes"]}),
        ("codecs", {"codecs": [{"name": "sharding_indexed", "configuration": {}}]}),
        ("codecs", {"codecs": [{"name": "transpose", "configuration": {"order": [0, 1]}}, CANONICAL["codecs"][1]]}),
        ("codecs", {"codecs": [*CANONICAL["codecs"], {"name": "gzip", "configuration": {"level": 1}}]}),
        ("codecs", {"codecs": [CANONICAL["codecs"][1], "crc32c"]}),
        ("codecs", {"codecs": [CANONICAL["codecs"][1], {"name": "numcodecs.gzip", "configuration": {"level": 1}}]}),
        ("codecs", {"codecs": [CANONICAL["codecs"][1], {"name": "gzip", "configuration": {"level": 1, "window": 2}}]}),
        ("codecs", {"codecs": [CANONICAL["codecs"][1], {"name": "blosc", "configuration": {"shuffle": "shuffle", "typesize": 2}}]}),
        ("codecs", {"codecs": [CANONICAL["codecs"][1], {"name": "blosc", "configuration": {"shuffle": 1}}]}),
        ("storage_transformers", {"storage_transformers": [{"name": "compaction"}]}),
        ("compressor", {"compressor": {"must_understand": False}}),
        ("novel", {"novel": 1}),
        ("shape", {"shape": "6"}),
        ("chunk grid", {"chunk_grid": {"name": "rectilinear"}}),
        ("array", {"node_type": "group"}),
    ],
)
def test_what_the_draft_cannot_express(member: str, changes: JsonObject) -> None:
    with pytest.raises(InvalidInput, match=member):
        array_from_v3(canonical(**changes), None)
    with pytest.raises(InvalidInput, match=member):
        array_from_v3(canonical(**changes), STORED if member != "storage_transformers" else stored(storage_transformers=...))


COMPRESSORS = st.sampled_from(
    [
        None,
        {"name": "gzip", "configuration": {"level": 5}},
        {"name": "zstd", "configuration": {"level": 3, "checksum": False}},
        {"name": "blosc", "configuration": BLOSC | {"shuffle": "noshuffle"}},
        {"name": "blosc", "configuration": BLOSC | {"shuffle": "bitshuffle"}},
        {"name": "numcodecs.zlib", "configuration": {}},
        {"name": "numcodecs.lzma", "configuration": {"preset": 1}},
    ]
)


@given(
    shape=st.lists(st.integers(0, 9), max_size=4),
    case=st.sampled_from(WRITTEN_TYPES),
    compressor=COMPRESSORS,
    reverse=st.booleans(),
    separator=st.sampled_from("/."),
    attributes=st.dictionaries(st.text(max_size=3), st.integers()),
)
def test_a_new_array_is_shown_as_it_was_written(
    shape: list[int], case: Any, compressor: JsonObject | None, reverse: bool, separator: str, attributes: JsonObject
) -> None:
    _, _, v3_type, endian, v3_fill = case
    order = list(range(len(shape)))[::-1]
    wanted = array_v3(
        shape,
        [2] * len(shape),
        data_type=v3_type,
        chunk_key_encoding={"name": "default", "configuration": {"separator": "/" if len(shape) == 1 else separator}},
        fill_value=v3_fill,
        codecs=[
            *([{"name": "transpose", "configuration": {"order": order}}] if reverse and len(shape) > 1 else []),
            {"name": "bytes"} if endian is None else {"name": "bytes", "configuration": {"endian": endian}},
            *([compressor] if compressor else []),
        ],
        attributes=attributes,
    )
    written = array_from_v3(wanted, None)
    seen = array_to_v3(json.loads(dumps_zarr2(written)))
    assert isinstance(seen, dict)
    assert same_chunks(seen, wanted)
    assert {m: seen[m] for m in ("shape", "fill_value", "attributes")} == {m: wanted[m] for m in ("shape", "fill_value", "attributes")}
    assert array_from_v3(seen, written) == written


def test_an_attribute_of_the_name_filters() -> None:
    """zarr-python 2.18 could not open an array that has it; one that has it already keeps it."""
    document = stored(attributes={"filters": "gaussian"})
    assert array_from_v3(shown(attributes={"filters": "gaussian"}), document) == document
    for before in (None, STORED, stored(attributes=["filters"])):
        with pytest.raises(InvalidInput, match="attributes"):
            array_from_v3(canonical(attributes={"filters": "gaussian"}), before)


def test_groups() -> None:
    document = json.loads(GROUP)
    assert group_to_v3(document) == implicit_group() | {"attributes": {"é": 1}}
    assert dumps_zarr2(group_from_v3(group_to_v3(document), None)) == GROUP
    assert group_to_v3({}) == implicit_group()
    odd = {"attributes": {}, "shape": [1], "novel": 1, "ignorable": {"must_understand": False}}
    assert group_to_v3(odd) == implicit_group() | {"ignorable": {"must_understand": False}}
    assert group_from_v3(group_to_v3(odd) | {"attributes": {"a": 1}}, odd) == odd | {"attributes": {"a": 1}}
    assert group_from_v3(implicit_group() | {"consolidated_metadata": None}, None) == {"attributes": {}}
    for member, changes in (
        ("consolidated_metadata", {"consolidated_metadata": {"metadata": {}}}),
        ("attributes", {"attributes": 1}),
        ("novel", {"novel": 1}),
        ("group", {"node_type": "array"}),
    ):
        with pytest.raises(InvalidInput, match=member):
            group_from_v3(implicit_group() | changes, None)


def test_the_entry_point() -> None:
    assert dumps_zarr2(entry_point()) == ENTRY_POINT
    november = {m: v.replace("protocol/", "") if isinstance(v, str) else v for m, v in entry_point().items()}
    for document in (entry_point(), november):
        assert is_entry_point(document)
        assert entry_point_problem(document) is None
    others: list[Any] = [{"zarr_format": 3, "node_type": "group"}, {"zarr_format": "https://purl.org/zarr/spec/core/4.0"}, {}, [], None]
    for other in others:
        assert not is_entry_point(other)
    for change, reason in (
        ({"metadata_key_suffix": ".xml"}, "metadata_key_suffix"),
        ({"metadata_encoding": "https://example.org/xml"}, "metadata_encoding"),
        ({"extensions": [{"extension": "https://example.org/e", "must_understand": True}]}, "must be understood"),
        ({"extensions": "all"}, "not a list"),
    ):
        assert reason in (entry_point_problem(entry_point() | change) or "")
    assert entry_point_problem(entry_point() | {"extensions": [{"extension": "e", "must_understand": False}]}) is None


def test_a_document_that_is_no_json_is_refused() -> None:
    with pytest.raises(TypeError, match="set"):
        dumps_zarr2({"a": {1}})


JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-1, 3), st.floats(), st.sampled_from(["", "C", "/", "0x00", "sharding", "int8", "<i4"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["name", "type", "extension", "codec", "configuration", "chunk_shape", "level", "must_understand"]), inner
        ),
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(STORED)), JSON), st.dictionaries(st.sampled_from(sorted(CANONICAL)), JSON))
def test_nonsense_is_refused_in_words(changes: JsonObject, v3_changes: JsonObject) -> None:
    previous = stored(**changes)
    seen = array_to_v3(previous)
    assert isinstance(seen, (dict, str))
    assert scalar_key_name(previous) in ("c", "c0")
    if isinstance(seen, dict):
        assert array_to_v3(array_from_v3(seen, previous)) == seen
    for before in (None, STORED, previous):
        try:
            written = array_from_v3(canonical(**v3_changes), before)
        except InvalidInput:
            continue
        assert isinstance(array_to_v3(written), dict)
