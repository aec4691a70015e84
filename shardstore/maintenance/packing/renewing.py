"""How the arrays of a target that is renewed are sharded already: readers may have it open, so what ``"auto"`` decides must not change."""

from __future__ import annotations

from collections.abc import Iterable

from shardstore.engine.keys import metadata_key
from shardstore.errors import Corruption
from shardstore.format.json_text import loads_object
from shardstore.format.metadata_v3 import parse_layout, parse_plain
from shardstore.format.presentation import present_array
from shardstore.maintenance.packing.listing import SourceArray
from shardstore.maintenance.packing.translation import KeptShards
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import Failed, Found, Read, Storage


async def kept_shards(target: Storage, arrays: Iterable[SourceArray]) -> KeptShards:
    """Return the chunks per shard of those arrays of the source that the target has with the same chunk shape.

    Raises:
        StorageError: a request failed.
    """
    sources = list(arrays)
    kept: dict[str, tuple[int, ...] | None] = {}
    outcomes = await target.read([Read(metadata_key(source.path), (EVERYTHING,)) for source in sources]) if sources else []
    for source, outcome in zip(sources, outcomes, strict=True):
        if isinstance(outcome, Failed):
            raise outcome.error
        if not isinstance(outcome, Found):
            continue
        try:
            document = loads_object(outcome.buffers[0])
        except Corruption:
            continue  # nobody can read that array; its document is written anew
        layout = parse_layout(document)
        plain, wanted = parse_plain(present_array(document)), parse_plain(source.document)
        if isinstance(plain, str) or isinstance(wanted, str) or plain.chunk_shape != wanted.chunk_shape:
            continue
        kept[source.path] = None if isinstance(layout, str) else layout.grid.chunks_per_shard
    return kept
