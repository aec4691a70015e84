"""Documents of arrays as tests write them by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def array_v3(shape: Sequence[int], chunk_shape: Sequence[int], **members: Any) -> dict[str, Any]:
    """The document of an array of uint8 whose chunks are stored as they are, or with other ``members``."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
    } | members


def array_v2(shape: Sequence[int], chunks: Sequence[int], dtype: str, **members: Any) -> dict[str, Any]:
    """The ``.zarray`` of an array whose chunks are stored as they are, or with other ``members``."""
    stored = {"compressor": None, "fill_value": 0, "order": "C", "filters": None}
    return {"zarr_format": 2, "shape": list(shape), "chunks": list(chunks), "dtype": dtype, **stored} | members


def sharding_codec(chunk_shape: Sequence[int], codecs: Sequence[Any], **configuration: Any) -> dict[str, Any]:
    """The codec ``sharding_indexed``, of an index with a checksum where ``configuration`` says nothing else."""
    index_codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    members = {"chunk_shape": list(chunk_shape), "codecs": list(codecs), "index_codecs": index_codecs}
    return {"name": "sharding_indexed", "configuration": members | configuration}
