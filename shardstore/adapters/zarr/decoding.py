"""Decode chunks by zarr's codecs, for ``shardstore.verify``, which wants to know whether they can be decoded."""

from __future__ import annotations

import json
import threading
import warnings
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.metadata.v3 import ArrayV3Metadata
from zarr.core.sync import sync

from shardstore.adapters.zarr.chunks import ChunkCodec, decode_chunk
from shardstore.errors import Corruption, Unsupported
from shardstore.maintenance.verify.chunks import Decode

_making = threading.Lock()  # filters of warnings are those of the whole process


@lru_cache(maxsize=64)
def zarr_decoder(document: bytes) -> Decode:
    """Return the decoder of an array's chunks, from its presented document of Zarr v3; see ``maintenance.verify.chunks.Decoder``.

    Raises:
        Unsupported: zarr has no such codec or data type, or cannot read the document.
    """
    if not document:
        raise Unsupported("its metadata has no counterpart in Zarr v3, from which zarr's codecs are made")
    parsed = json.loads(document)
    parsed.pop("storage_transformers", None)
    try:
        with _making, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zarr warns of what may be slow, or not be read by other programs: here only decoding matters
            spec, codec = _made(parsed)
    except Exception as exc:
        raise Unsupported(f"zarr cannot make its codecs ({type(exc).__name__}: {exc})") from exc

    def decode(name: str, data: memoryview) -> None:
        if codec.is_sync(spec):
            decode_chunk(codec.chain(spec), SimpleNamespace(path=name), data)
            return
        try:
            sync(codec.pipeline.decode([(spec.prototype.buffer.from_bytes(data), spec)]))
        except MemoryError:
            raise
        except Exception as exc:
            raise Corruption(f"it cannot be decoded: {type(exc).__name__}: {exc}") from exc

    return decode


def _made(parsed: dict[str, Any]) -> tuple[ArraySpec, ChunkCodec]:
    metadata = ArrayV3Metadata.from_dict(parsed)
    spec = ArraySpec(
        shape=tuple(parsed["chunk_grid"]["configuration"]["chunk_shape"]),
        dtype=metadata.data_type,
        fill_value=metadata.fill_value,
        config=ArrayConfig(order="C", write_empty_chunks=True),
        prototype=default_buffer_prototype(),
    )
    return spec, ChunkCodec(metadata.codecs, spec)
