"""What is wrong with documents: contradictions are found, and what writers write is not called one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, GzipCodec, TransposeCodec

from shardstore.format.json_text import loads_object
from shardstore.format.metadata_faults import metadata_faults
from tests.documents import array_v3, sharding_codec
from tests.golden import FIXTURES
from tests.maintenance.damaging import CONTRADICTIONS, SHARDED_CONTRADICTIONS


def document(sharded: bool) -> dict[str, Any]:
    bytes_codec = {"name": "bytes", "configuration": {"endian": "little"}}
    codec = sharding_codec([2, 3], [bytes_codec], index_location="end") if sharded else bytes_codec
    return array_v3([10, 10], [4, 6], data_type="int16", chunk_key_encoding={"name": "default"}, codecs=[codec], attributes={})


@pytest.mark.parametrize("sharded", [True, False])
def test_contradictions(sharded: bool) -> None:
    assert metadata_faults(document(sharded)) == []
    for name, spoil in (CONTRADICTIONS | (SHARDED_CONTRADICTIONS if sharded else {})).items():
        spoiled = copy.deepcopy(document(sharded))
        spoil(spoiled)
        assert "contradiction" in {fault.kind for fault in metadata_faults(spoiled)}, name


UNKNOWN: dict[str, Callable[[dict[str, Any]], object]] = {
    "member": lambda d: d.update(odd={"name": "x"}),
    "grid": lambda d: d.update(chunk_grid={"name": "rectilinear", "configuration": {}}),
    "codec": lambda d: d["codecs"].append({"name": "odd"}),
    "keys": lambda d: d.update(chunk_key_encoding={"name": "odd"}),
    "transformers": lambda d: d.update(storage_transformers=[{"name": "odd"}]),
    "member of sharding": lambda d: d["codecs"][0]["configuration"].update(odd=1),
    "index codecs": lambda d: d["codecs"][0]["configuration"].update(index_codecs=[{"name": "odd"}]),
}


@pytest.mark.parametrize("name", list(UNKNOWN))
def test_extensions_may_be_right(name: str) -> None:
    spoiled = document(sharded=True)
    UNKNOWN[name](spoiled)
    assert {fault.kind for fault in metadata_faults(spoiled)} == {"unknown"}


@pytest.mark.parametrize(
    ("data_type", "right", "wrong"),
    [
        ("bool", [True, False], [0, "true", None]),
        ("int8", [-128, 127, 0.0], [128, -129, 0.5, "0", True, None, [0]]),
        ("uint64", [2**64 - 1], [-1, 2**64]),
        ("float32", [0, 1.5, "NaN", "-Infinity", "0x7fc00000"], ["nan", "0x7fc0", None, [1.0], True]),
        ("float64", ["0x7ff8000000000000"], ["0x7fc00000"]),
        ("complex64", [[0, "NaN"]], [0, [0], [0, 0, 0]]),
        ("r16", [[0, 255]], [[0], [0, 256]]),
        ("string", ["", 0], []),
        ("odd", [0, None], []),
    ],
)
def test_fill_values(data_type: str, right: list[Any], wrong: list[Any]) -> None:
    def kinds(value: Any) -> set[str]:
        return {fault.kind for fault in metadata_faults(document(False) | {"data_type": data_type, "fill_value": value})}

    assert [value for value in right if kinds(value)] == []
    assert [value for value in wrong if kinds(value) != {"contradiction"}] == []


@pytest.mark.parametrize("dtype", ["bool", "i1", ">i4", "u8", "f2", "f8", "c16", "S4", "U3", "M8[s]", "m8[D]", "V5"])
@pytest.mark.parametrize("ndim", [0, 2])
@pytest.mark.filterwarnings("ignore")
def test_what_zarr_writes_is_right(dtype: str, ndim: int) -> None:
    for compressors in (None, [GzipCodec()], [BloscCodec()]):
        for filters in (None, [TransposeCodec(order=tuple(reversed(range(ndim))))] if ndim else None):
            store = zarr.storage.MemoryStore()
            shape = (8,) * ndim
            shapes: Any = {"shape": shape, "chunks": (2,) * ndim, "shards": (4,) * ndim or None}
            zarr.create_array(store, **shapes, dtype=np.dtype(dtype), compressors=compressors, filters=filters)
            buffer = store._store_dict["zarr.json"]
            faults = metadata_faults(loads_object(buffer.to_bytes()))
            assert [fault for fault in faults if fault.kind == "contradiction"] == []


def test_what_others_wrote_is_right() -> None:
    documents = sorted(path for family in ("sharding_indexed", "tensorstore", "zarrs") for path in (FIXTURES / family).glob("**/zarr.json"))
    assert len(documents) > 15
    assert [path for path in documents if metadata_faults(loads_object(path.read_bytes()))] == []
