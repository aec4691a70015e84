"""Documents of the target: written when all data are there, and removed before data that they would misread."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from shardstore.errors import Corruption
from shardstore.format.json_text import JsonObject, dumps, loads_object
from shardstore.format.metadata_v3 import METADATA_NAME
from shardstore.format.store_keys import metadata_path
from shardstore.maintenance.packing.made import Made
from shardstore.maintenance.packing.object_table import version_digest
from shardstore.model.generation import UNCONDITIONAL
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import Failed, Found, Read, Storage

_MEANING = ("node_type", "data_type", "chunk_grid", "chunk_key_encoding", "codecs", "storage_transformers")
"""Members of a document that define the meaning of a chunk's bytes, and their place."""


async def _read(storage: Storage, keys: list[str]) -> dict[str, Found]:
    outcomes = await storage.read([Read(key, (EVERYTHING,)) for key in keys]) if keys else []
    found: dict[str, Found] = {}
    for key, outcome in zip(keys, outcomes, strict=True):
        if isinstance(outcome, Failed):
            raise outcome.error
        if isinstance(outcome, Found):
            found[key] = outcome
    return found


async def write_documents(storage: Storage, documents: Mapping[str, JsonObject]) -> Made:
    """Write the documents, by key, that are missing or differ, the deepest first; return the documents that are there then.

    Raises:
        StorageError: a request failed.
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

    Raises:
        StorageError: a request failed.
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
            continue  # nobody can read it
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
