"""Documents of the target: written when all data are there, and removed before data that they would misread.

Readers may have a target open that is renewed, so what ``"auto"`` decides must not change. Where the meaning of an array's chunks
changes, its document is removed first: no reader finds new chunks under an old document, whenever the run is killed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from shardstore.errors import Corruption
from shardstore.format.json_text import JsonObject, dumps, loads_object
from shardstore.format.metadata_v3 import METADATA_NAME, parse_layout, parse_plain
from shardstore.format.presentation import present_array
from shardstore.format.store_keys import metadata_key, metadata_path
from shardstore.maintenance.packing.collisions import PlannedKeys
from shardstore.maintenance.packing.listing import SourceArray
from shardstore.maintenance.packing.object_table import Made, version_digest
from shardstore.maintenance.packing.record import Recorded
from shardstore.maintenance.packing.removal import Candidates, removable
from shardstore.maintenance.packing.translation import KeptShards, TargetNodes
from shardstore.model.generation import UNCONDITIONAL
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import Failed, Found, LeadsNowhere, ObjectInfo, Read, Storage

_MEANING = ("node_type", "data_type", "chunk_grid", "chunk_key_encoding", "codecs", "storage_transformers")
"""Members of a document that define the meaning of a chunk's bytes, and their place."""


async def _read(storage: Storage, keys: list[str]) -> dict[str, Found]:
    outcomes = await storage.read([Read(key, (EVERYTHING,)) for key in keys]) if keys else []
    found: dict[str, Found] = {}
    for key, outcome in zip(keys, outcomes, strict=True):
        if isinstance(outcome, Failed) and not isinstance(outcome.error, LeadsNowhere):  # such links of a target are cut, or refused
            raise outcome.error
        if isinstance(outcome, Found):
            found[key] = outcome
    return found


async def write_documents(storage: Storage, documents: Mapping[str, JsonObject]) -> Made:
    """Write the documents, by key, that are missing or differ, the deepest first; return the documents that are there then.
    Raises ``StorageError`` if a request failed.
    """
    order = sorted(documents, key=lambda key: (-key.count("/"), key))
    there = await _read(storage, order)
    sizes: list[int] = []
    versions: list[int] = []
    for key in order:
        data, found = dumps(documents[key]), there.get(key)
        if found is not None and bytes(found.buffers[0]) == data:
            stored = found.generation
        else:
            stored = await storage.write(key, [data], len(data), UNCONDITIONAL)
        sizes.append(len(data))
        versions.append(version_digest(stored))
    return Made.of("", order, sizes, versions)


async def misread(storage: Storage, documents: Mapping[str, JsonObject], written: Collection[str], gone: Collection[str]) -> set[str]:
    """Return the keys of documents at the target that would misread new chunks of the arrays ``written``: they describe the chunks in
    another way than ``documents`` will. The keys of documents that repeat one of these, or one that is then ``gone``, are included
    (consolidated metadata).
    Raises ``StorageError`` if a request failed.
    """
    if not written and not gone:
        return set()
    there = await _read(storage, list(documents))
    wrong: set[str] = set()
    consolidated: list[str] = []
    for key, found in there.items():
        try:
            document = loads_object(found.buffers[0])
        except Corruption:
            continue  # no reader can read it
        if metadata_path(key) in written and _meaning(document) != _meaning(documents[key]):
            wrong.add(key)
        if document.get("consolidated_metadata") is not None:
            consolidated.append(key)
    return wrong | {key for key in consolidated if any(below.startswith(key.removesuffix(METADATA_NAME)) for below in (*wrong, *gone))}


def _meaning(document: JsonObject) -> str:
    return repr([_sorted(document.get(name)) for name in _MEANING])


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return [(name, _sorted(value[name])) for name in sorted(value)]
    return [_sorted(item) for item in value] if isinstance(value, list) else value


async def kept_shards(target: Storage, arrays: Iterable[SourceArray]) -> KeptShards:
    """Return the chunks per shard of those source arrays that the target has with the same chunk shape.
    Raises ``StorageError`` if a request failed.
    """
    sources = {metadata_key(source.path): source for source in arrays}
    kept: dict[str, tuple[int, ...] | None] = {}
    for key, found in (await _read(target, list(sources))).items():
        source = sources[key]
        try:
            document = loads_object(found.buffers[0])
        except Corruption:
            continue  # no reader can read that array; its document is written again
        layout = parse_layout(document)
        plain, wanted = parse_plain(present_array(document)), parse_plain(source.document)
        if isinstance(plain, str) or isinstance(wanted, str) or plain.chunk_shape != wanted.chunk_shape:
            continue
        kept[source.path] = None if isinstance(layout, str) else layout.grid.chunks_per_shard
    return kept


async def in_the_way(
    storage: Storage,
    target: TargetNodes,
    planned: PlannedKeys,
    candidates: Candidates,
    recorded: Recorded,
    written: Collection[str],
    shown: str,
) -> list[ObjectInfo]:
    """Return what has to be removed before anything is written: objects where a directory will be, or under one, and documents that would
    misread chunks of the arrays ``written``. ``shown`` is the name of the target in messages.

    Raises:
        Conflict: a foreign object is in the way.
        StorageError: a request failed.
    """
    blocking = {key: made for key, made in candidates.items() if planned.in_the_way(key) is not None}
    # An array that loses a chunk now loses its document before.
    above = {key for key in candidates if (path := metadata_path(key)) is not None and any(_is_below(k, path) for k in blocking)}
    wrong = await misread(storage, {metadata_key(path): document for path, document in target.documents.items()}, written, above)
    found = await removable(storage, {key: candidates[key] for key in (*blocking, *above)}, recorded, {}, shown)
    documents = [await storage.stat(key) for key in wrong]
    return [*(info for info in documents if info is not None), *found]


def _is_below(key: str, path: str) -> bool:
    return not path or key.startswith(path + "/")
