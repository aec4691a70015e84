"""Renew a target: find how its arrays are already sharded, and what has to be removed before anything new is written.

Readers may have it open, so what ``"auto"`` decides must not change. Where the meaning of an array's chunks changes, its document is
removed first: no reader finds new chunks under an old document, whenever the run is killed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from shardstore.errors import Corruption
from shardstore.format.json_text import loads_object
from shardstore.format.metadata_v3 import parse_layout, parse_plain
from shardstore.format.presentation import present_array
from shardstore.format.store_keys import metadata_key, metadata_path
from shardstore.maintenance.packing.documents import misread
from shardstore.maintenance.packing.leaving import Candidates, Leaving, look_at
from shardstore.maintenance.packing.listing import SourceArray
from shardstore.maintenance.packing.planned_keys import PlannedKeys
from shardstore.maintenance.packing.record import Recorded
from shardstore.maintenance.packing.translation import KeptShards, TargetNodes
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import Failed, Found, Read, Storage


async def kept_shards(target: Storage, arrays: Iterable[SourceArray]) -> KeptShards:
    """Return the chunks per shard of those source arrays that the target has with the same chunk shape.

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


async def before_writing(
    storage: Storage, target: TargetNodes, planned: PlannedKeys, candidates: Candidates, recorded: Recorded, written: Collection[str]
) -> Leaving:
    """Return what has to be removed before anything is written: objects where a directory will be, or under one, and documents that would
    misread chunks of the arrays ``written``.

    Raises:
        StorageError: a request failed.
    """
    blocking = {key: made for key, made in candidates.items() if planned.in_the_way(key) is not None}
    # An array that loses a chunk now loses its document before.
    above = {key for key in candidates if (path := metadata_path(key)) is not None and any(_is_below(k, path) for k in blocking)}
    wrong = await misread(storage, {metadata_key(path): document for path, document in target.documents.items()}, written, above)
    leaving = await look_at(storage, {key: candidates[key] for key in (*blocking, *above)}, recorded, {})
    for key in wrong:
        info = await storage.stat(key)
        if info is not None:
            leaving.objects.insert(0, info)
    return leaving


def _is_below(key: str, path: str) -> bool:
    return not path or key.startswith(path + "/")
