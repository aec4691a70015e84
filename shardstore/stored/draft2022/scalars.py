"""Find the one chunk of a 0-d array: only the array's document tells that ``c0`` is not the chunk 0 of a 1-d array."""

from __future__ import annotations

from shardstore.format.draft2022.keys import DATA_ROOT, scalar_data_keys
from shardstore.format.json_text import JsonObject
from shardstore.format.storage_transformers import scalar_key_name
from shardstore.storage.base import Found
from shardstore.stored.draft2022.entry_point import parsed


def scalar_key(path: str) -> str:
    """The canonical key of the chunk."""
    return f"{path}/c" if path else "c"


def data_path(stored: str) -> str:
    """The path whose document tells what data at this stored key is, one that ends in ``c`` or ``c0``."""
    return stored[len(DATA_ROOT) :].rpartition("/")[0]


def scalar_document(found: Found | None) -> JsonObject | None:
    document = parsed(found)
    return document if document is not None and document.get("shape") == [] else None


def scalar_keys(path: str, found: Found | None) -> tuple[str, str] | None:
    """The stored keys of a 0-d array's chunk, the one that a writer takes first; ``None`` where it is no such array."""
    document = scalar_document(found)
    if document is None:
        return None
    first, second = scalar_data_keys(path)
    return (first, second) if scalar_key_name(document) == "c" else (second, first)
