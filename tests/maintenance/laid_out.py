"""Shards laid out by hand: chunks in any order, bytes that nothing refers to, chunks that share bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.documents import array_v3, sharding_codec
from tests.shards import MISSING, Sharding, encode_index, sharding
from tests.stored import Objects

DEAD = None
"""In the place of a slot: bytes that no entry refers to."""

ANY_LENGTH = ({"name": "bytes"}, {"name": "numcodecs.lz4", "configuration": {"acceleration": 1}})
"""Codecs of chunks that may be any bytes, as far as nobody decodes them."""

Part = tuple[int | None, bytes]


def array_document(
    shape: Sequence[int] = (64,),
    chunk: Sequence[int] = (4,),
    per_shard: Sequence[int] = (8,),
    *,
    index_location: str = "end",
    checksum: bool = True,
    codecs: Sequence[Any] = ANY_LENGTH,
) -> dict[str, Any]:
    """Of an array of one-byte elements."""
    index_codecs: list[Any] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    if checksum:
        index_codecs.append({"name": "crc32c"})
    codec = sharding_codec(chunk, codecs, index_codecs=index_codecs, index_location=index_location)
    return array_v3(shape, [c * n for c, n in zip(chunk, per_shard, strict=True)], codecs=[codec], attributes={})


def put_array(objects: Objects, path: str, document: dict[str, Any]) -> Sharding:
    """Store the document of an array; how it is sharded."""
    objects.put(f"{path}/zarr.json" if path else "zarr.json", json.dumps(document).encode())
    layout = sharding(path, document)
    assert layout is not None
    return layout


def laid_out(layout: Sharding, parts: Sequence[Part], same_as: Mapping[int, int] | None = None) -> bytes:
    """A shard of ``parts`` one behind the other; slots of ``same_as`` refer to the bytes of other slots."""
    entries = [(MISSING, MISSING)] * layout.chunks_in_shard
    at = 0 if layout.index_at_end else layout.index_nbytes
    for slot, data in parts:
        if slot is not None:
            entries[slot] = (at, len(data))
        at += len(data)
    for slot, other in (same_as or {}).items():
        entries[slot] = entries[other]
    body, index = b"".join(data for _, data in parts), encode_index(layout, entries)
    return body + index if layout.index_at_end else index + body


def appended(layout: Sharding, shard: bytes, entries: Sequence[tuple[int, int]], chunks: Mapping[int, bytes]) -> bytes:
    """All of ``shard``, whose entries these are, then new chunks, then a new index: as a writer leaves it that appends."""
    new, at = list(entries), len(shard)
    for slot, data in chunks.items():
        new[slot] = (at, len(data))
        at += len(data)
    return shard + b"".join(chunks.values()) + encode_index(layout, new)
