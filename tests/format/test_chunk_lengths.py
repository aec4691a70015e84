"""The length of chunks that is told from an array's document is the one that zarr writes: a wrong one would make sound chunks damaged."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import zarr
import zarr.codecs
from zarr.storage import MemoryStore

from shardstore.format.metadata_v3 import encoded_chunk_nbytes

TYPES: list[Any] = ["bool", "i1", "u8", ">i4", "f2", "f4", "c8", "c16", "M8[ns]", "m8[10us]", "U7", ">U3", "S5", "V9"]
TYPES += [
    np.dtype([("a", "u1"), ("b", "f8")]),
    np.dtype([("a", "u1"), ("b", "f8")], align=True),
    np.dtype([("a", "u1"), ("b", [("c", "U3"), ("d", "M8[s]")])]),
    np.dtype({"names": ["a", "b"], "formats": ["u1", "f8"], "offsets": [0, 100], "itemsize": 200}),
]


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.filterwarnings("ignore:The structured dtype is converted to a packed field layout")
@pytest.mark.parametrize("data_type", TYPES, ids=str)
@pytest.mark.parametrize("codecs", ["bytes", "transpose, bytes, crc32c"])
def test_as_zarr_writes_them(data_type: Any, codecs: str) -> None:
    options: dict[str, Any] = {"compressors": None}
    if codecs != "bytes":
        options = {"filters": [zarr.codecs.TransposeCodec(order=(1, 0))], "compressors": [zarr.codecs.Crc32cCodec()]}
    store = MemoryStore()
    array = zarr.create_array(store, shape=(4, 6), chunks=(2, 3), dtype=data_type, config={"write_empty_chunks": True}, **options)
    array[...] = np.zeros((4, 6), dtype=data_type)
    document = json.loads(store._store_dict["zarr.json"].to_bytes())
    lengths = {len(value.to_bytes()) for key, value in store._store_dict.items() if key.startswith("c/")}
    assert lengths == {encoded_chunk_nbytes((2, 3), document["data_type"], document["codecs"])}


@pytest.mark.parametrize("data_type", ["string", "r12", "r0", "int4", "float8_e5m2", "bytes", {"name": "variable_length_bytes"}, None])
def test_of_other_types_none_is_told(data_type: Any) -> None:
    assert encoded_chunk_nbytes((2, 3), data_type, [{"name": "bytes"}]) is None


def test_of_structures_that_say_more_than_their_fields_none_is_told() -> None:
    fields = [["a", "uint8"], ["b", "float64"]]
    for configuration, expected in (({"fields": fields}, 54), ({"fields": fields, "itemsize": 16}, None)):
        assert encoded_chunk_nbytes((2, 3), {"name": "structured", "configuration": configuration}, [{"name": "bytes"}]) == expected


@pytest.mark.parametrize("codec", ["gzip", "zstd", "blosc", "vlen-utf8", "numcodecs.delta", "sharding_indexed", "of somebody's own"])
def test_of_other_codecs_none_is_told(codec: str) -> None:
    for codecs in ([codec], [{"name": "bytes"}, codec], [codec, {"name": "bytes"}]):
        assert encoded_chunk_nbytes((2, 3), "uint8", codecs) is None
