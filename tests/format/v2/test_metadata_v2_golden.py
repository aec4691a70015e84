"""Documents and chunks written by zarr-python 2.18.7 with numcodecs 0.15.2: given back byte for byte, and read by zarr-python 3."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.storage import MemoryStore

from shardstore.format import json_text
from shardstore.format.json_text import dumps_zarr2
from shardstore.format.v2 import dtypes
from shardstore.format.v2.documents import array_from_v2, array_to_v2
from shardstore.format.v2.dtypes import NoCounterpart
from shardstore.format.v2.kept import RESERVED

# numcodecs' codecs are no part of the specification of v3, of which zarr warns.
pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3 specification")

# Name: (.zarray, the only chunk in base64, the values).
GOLDEN: dict[str, tuple[str, str, list[list[Any]]]] = {
    "order_f_big_endian": (
        r"""{
    "chunks": [
        2,
        3
    ],
    "compressor": {
        "id": "zlib",
        "level": 1
    },
    "dtype": ">i4",
    "fill_value": 0,
    "filters": null,
    "order": "F",
    "shape": [
        2,
        3
    ],
    "zarr_format": 2
}""",
        "eAFjYAADZiDJCMQsQMwExKwAAIsAEA==",
        [[0, 1, 2], [3, 4, 5]],
    ),
    "blosc_auto_bitshuffle": (
        r"""{
    "chunks": [
        2,
        3
    ],
    "compressor": {
        "blocksize": 0,
        "clevel": 3,
        "cname": "zstd",
        "id": "blosc",
        "shuffle": -1
    },
    "dtype": "|u1",
    "fill_value": 0,
    "filters": null,
    "order": "C",
    "shape": [
        2,
        3
    ],
    "zarr_format": 2
}""",
        "AgGWAQYAAAAGAAAAFgAAAAABAgMEBQ==",
        [[0, 1, 2], [3, 4, 5]],
    ),
    "delta_narrow_shuffle": (
        r"""{
    "chunks": [
        2,
        3
    ],
    "compressor": {
        "id": "bz2",
        "level": 1
    },
    "dtype": "<i4",
    "fill_value": 0,
    "filters": [
        {
            "astype": "<i2",
            "dtype": "<i4",
            "id": "delta"
        },
        {
            "elementsize": 2,
            "id": "shuffle"
        }
    ],
    "order": "C",
    "shape": [
        2,
        3
    ],
    "zarr_format": 2
}""",
        "QlpoMTFBWSZTWWmpkuoAAAHAAHAAIAAwzAkyKTAnF3JFOFCQaamS6g==",
        [[0, 1, 2], [3, 4, 5]],
    ),
    "packbits": (
        r"""{
    "chunks": [
        2,
        3
    ],
    "compressor": null,
    "dtype": "|b1",
    "fill_value": true,
    "filters": [
        {
            "id": "packbits"
        }
    ],
    "order": "C",
    "shape": [
        2,
        3
    ],
    "zarr_format": 2
}""",
        "Aqg=",
        [[True, False, True], [False, True, False]],
    ),
    "strings": (
        r"""{
    "chunks": [
        2,
        3
    ],
    "compressor": {
        "id": "gzip",
        "level": 1
    },
    "dtype": "|O",
    "fill_value": 0,
    "filters": [
        {
            "id": "vlen-utf8"
        }
    ],
    "order": "C",
    "shape": [
        2,
        3
    ],
    "zarr_format": 2
}""",
        "H4sIAEGxAWsE/2NjYGBgBOJEJiBxeAmQYACxkpJALJBEMgB2xDOEIgAAAA==",
        [["a", "ä", ""], ["bb", "", "c"]],
    ),
    "structured": (
        r"""{
    "chunks": [
        2,
        3
    ],
    "compressor": null,
    "dimension_separator": "/",
    "dtype": [
        [
            "a",
            "<i4"
        ],
        [
            "b",
            "|S3"
        ],
        [
            "n",
            [
                [
                    "t",
                    "<M8[s]"
                ]
            ]
        ]
    ],
    "fill_value": null,
    "filters": null,
    "order": "C",
    "shape": [
        2,
        3
    ],
    "zarr_format": 2
}""",
        "AAAAAHh5AAAAAAAAAAAAAQAAAHh5AAEAAAAAAAAAAgAAAHh5AAIAAAAAAAAAAwAAAHh5AAMAAAAAAAAABAAAAHh5AAQAAAAAAAAABQAAAHh5AAUAAAAAAAAA",
        [[(0, b"xy", (0,)), (1, b"xy", (1,)), (2, b"xy", (2,))], [(3, b"xy", (3,)), (4, b"xy", (4,)), (5, b"xy", (5,))]],
    ),
    "utf32_big_endian": (
        r"""{
    "chunks": [
        2,
        3
    ],
    "compressor": {
        "checksum": false,
        "id": "zstd",
        "level": 3
    },
    "dtype": ">U2",
    "fill_value": "\u00e9",
    "filters": null,
    "order": "C",
    "shape": [
        2,
        3
    ],
    "zarr_format": 2
}""",
        "KLUv/SAwzQAAaAAAAGEA6QBiYwAAAAAEAIDALrtAYgxoAQ==",
        [["a", "é", ""], ["bb", "", "c"]],
    ),
    "complex_fill": (
        r"""{
    "chunks": [
        2,
        3
    ],
    "compressor": {
        "acceleration": 1,
        "id": "lz4"
    },
    "dtype": "<c8",
    "fill_value": [
        "NaN",
        "-Infinity"
    ],
    "filters": null,
    "order": "C",
    "shape": [
        2,
        3
    ],
    "zarr_format": 2
}""",
        "MAAAABUAAQAjgD8LABJACAATQAgAE4AIAGCgQAAAAAA=",
        [[0, 1, 2], [3, 4, 5]],
    ),
    "not_a_time": (
        r"""{
    "chunks": [
        2,
        3
    ],
    "compressor": null,
    "dtype": "<M8[25s]",
    "fill_value": -9223372036854775808,
    "filters": null,
    "order": "F",
    "shape": [
        2,
        3
    ],
    "zarr_format": 2
}""",
        "AAAAAAAAAAADAAAAAAAAAAEAAAAAAAAABAAAAAAAAAACAAAAAAAAAAUAAAAAAAAA",
        [[0, 1, 2], [3, 4, 5]],
    ),
    "bytes_fill": (
        r"""{
    "chunks": [
        2,
        3
    ],
    "compressor": {
        "check": -1,
        "filters": null,
        "format": 1,
        "id": "lzma",
        "preset": null
    },
    "dtype": "|S3",
    "fill_value": "YWI=",
    "filters": null,
    "order": "C",
    "shape": [
        2,
        3
    ],
    "zarr_format": 2
}""",
        "/Td6WFoAAATm1rRGAgAhARYAAAB0L+Wj4AARABBdADCALMMbvYkZrj8NZFQAAAAAxEKRLON0ClUAASwSza8O6h+2830BAAAAAARZWg==",
        [[b"a", b"bc", b""], [b"bb", b"", b"c"]],
    ),
    "half_fill": (
        r"""{
    "chunks": [
        2,
        3
    ],
    "compressor": {
        "blocksize": 0,
        "clevel": 5,
        "cname": "lz4",
        "id": "blosc",
        "shuffle": 1
    },
    "dimension_separator": ".",
    "dtype": "<f2",
    "fill_value": 0.0999755859375,
    "filters": null,
    "order": "C",
    "shape": [
        2,
        3
    ],
    "zarr_format": 2
}""",
        "AgEzAgwAAAAMAAAAHAAAAAAAADwAQABCAEQARQ==",
        [[0, 1, 2], [3, 4, 5]],
    ),
    "crc32": (
        r"""{
    "chunks": [
        2,
        3
    ],
    "compressor": null,
    "dtype": "<u2",
    "fill_value": 0,
    "filters": [
        {
            "id": "crc32"
        }
    ],
    "order": "C",
    "shape": [
        2,
        3
    ],
    "zarr_format": 2
}""",
        "kLuzogAAAQACAAMABAAFAA==",
        [[0, 1, 2], [3, 4, 5]],
    ),
}

# What v3 has no member for, of the above.
KEPT: dict[str, dict[str, Any]] = {
    "blosc_auto_bitshuffle": {"compressor": {"blocksize": 0, "clevel": 3, "cname": "zstd", "id": "blosc", "shuffle": -1}},
    "strings": {"fill_value": 0},
    "structured": {"fill_value": None},
    "half_fill": {"dimension_separator": "."},
}


def store_of(document: dict[str, Any], chunk: bytes | None) -> dict[str, Buffer]:
    buffer = default_buffer_prototype().buffer
    entries = {"zarr.json": json_text.dumps(document)}
    if chunk is not None:
        separator = document["chunk_key_encoding"]["configuration"]["separator"]
        entries[separator.join("c00")] = chunk
    return {key: buffer.from_bytes(value) for key, value in entries.items()}


@pytest.mark.parametrize("name", GOLDEN)
def test_documents_are_given_back_byte_for_byte(name: str) -> None:
    text = GOLDEN[name][0]
    document = array_from_v2(json_text.loads_object(text.encode()), None)
    zarray, zattrs = array_to_v2(json_text.loads_object(json_text.dumps(document)))
    assert dumps_zarr2(zarray) == text.encode()
    assert zattrs is None
    if name in KEPT:
        assert document["attributes"] == {RESERVED: {"members": KEPT[name], "no_attributes": True}}
    else:
        assert "attributes" not in document


@pytest.mark.parametrize("name", GOLDEN)
def test_zarr_python_3_reads_the_chunks(name: str) -> None:
    text, chunk, values = GOLDEN[name]
    document = array_from_v2(json_text.loads_object(text.encode()), None)
    array = zarr.open_array(MemoryStore(store_of(document, base64.b64decode(chunk))), mode="r")
    assert isinstance(array, zarr.Array)
    read = np.asarray(array[...])
    if read.dtype.kind == "M":
        read = read.astype("M8[25s]").view("i8")
    if read.dtype.names:
        plain = [[(int(row["a"]), bytes(row["b"]), (int(row["n"]["t"].view("i8")),)) for row in rows] for rows in read]
        assert plain == values
    else:
        assert read.tolist() == values


@pytest.mark.parametrize("name", GOLDEN)
def test_what_zarr_python_3_makes_of_the_document_shows_the_same(name: str) -> None:
    """It writes all members in its own spelling, at every resize: nothing of v2 is lost, and the new shape is shown."""
    text = GOLDEN[name][0]
    entries = store_of(array_from_v2(json_text.loads_object(text.encode()), {"units": "K"}), None)
    array = zarr.open_array(MemoryStore(entries), mode="r+")
    assert isinstance(array, zarr.Array)
    array.resize((9, 3))
    zarray, zattrs = array_to_v2(json_text.loads_object(entries["zarr.json"].to_bytes()))
    assert dumps_zarr2(zarray) == dumps_zarr2(json_text.loads_object(text.encode()) | {"shape": [9, 3]})
    assert zattrs == {"units": "K"}


def test_a_fill_value_that_names_the_fields_is_that_of_the_bytes() -> None:
    """As zarr-python 3.4 writes it."""
    dtype = np.dtype(
        [("a", "<i4"), ("b", "S3"), ("f", "<f4"), ("c", "<c8"), ("u", "<U2"), ("t", "<M8[s]"), ("n", [("v", "V2"), ("x", "|u1")])]
    )
    element = dtypes.from_v2(
        [["a", "<i4"], ["b", "|S3"], ["f", "<f4"], ["c", "<c8"], ["u", "<U2"], ["t", "<M8[s]"], ["n", [["v", "|V2"], ["x", "|u1"]]]]
    )
    value = np.array((-5, b"ab", 1.5, 1 - 2j, "é", 7, (b"\1\2", 9)), dtype)
    named = {"a": -5, "b": "YWI=", "f": 1.5, "c": [1.0, -2.0], "u": "é", "t": 7, "n": {"v": "AQI=", "x": 9}}
    assert dtypes.fill_to_v2(named, element) == base64.b64encode(value.tobytes()).decode()
    assert dtypes.fill_to_v2({}, element) == base64.b64encode(bytes(dtype.itemsize)).decode()
    assert (
        dtypes.fill_to_v2({"f": "NaN"}, element)
        == base64.b64encode(np.array((0, b"", np.nan, 0, "", 0, (b"", 0)), dtype).tobytes()).decode()
    )
    with pytest.raises(NoCounterpart):
        dtypes.fill_to_v2({"other": 1}, element)
    with pytest.raises(NoCounterpart):
        dtypes.fill_to_v2({"x": 1, "a": "text"}, element)
