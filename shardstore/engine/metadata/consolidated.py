"""Find groups whose consolidated metadata became stale when nodes were copied, moved or removed."""

from __future__ import annotations

from shardstore.errors import AccessDenied
from shardstore.format.json_text import JsonObject, parse_object
from shardstore.format.presentation import documents_inside
from shardstore.format.store_keys import ancestors, check_key, join, metadata_key
from shardstore.storage.base import Failed, Found, ReadOutcome, Storage, document_read


async def stale_consolidated(storage: Storage, path: str) -> list[str]:
    """Return the groups above ``path`` whose consolidated metadata differs from what is at ``path`` now, the outermost first.

    Ask after a node was copied, moved or removed, for its old path and its new one: a program that opens such a group by its consolidated
    metadata sees the old state. Consolidating it again is left to the user.
    """
    if not path:
        return []
    above = [(group, rest) for group, rest in ancestors(check_key(path)) if rest]
    keys = [metadata_key(path), join(path, ".zarray"), join(path, ".zgroup")]
    keys += [key for group, _ in above for key in (metadata_key(group), join(group, ".zmetadata"))]
    documents = [_document(outcome) for outcome in await storage.read([document_read(key) for key in keys])]
    v3, zarray, zgroup = documents[:3]
    is_v2 = zarray is not None or zgroup is not None
    stale: list[str] = []
    for (group, rest), inline, separate in zip(above, documents[3::2], documents[4::2], strict=True):
        v3_names = documents_inside(inline or {})
        v2_names = documents_inside({"consolidated_metadata": separate})
        if (v3_names is not None and _says_otherwise(v3_names, rest, v3)) or (
            v2_names is not None and is_v2 != any(name.startswith(f"{rest}/.z") for name in v2_names)
        ):
            stale.append(group)
    return stale


def _document(outcome: ReadOutcome) -> JsonObject | None:
    """Return a document that was read, ``None`` if there is none. If it is no JSON object, it only counts that it is there."""
    if isinstance(outcome, Failed) and not isinstance(outcome.error, AccessDenied):  # which may be said of what is absent
        raise outcome.error
    return parse_object(outcome.buffers[0]) or {} if isinstance(outcome, Found) else None


def _says_otherwise(named: JsonObject, rest: str, document: JsonObject | None) -> bool:
    """Return whether a group's consolidated metadata does not have ``document`` (``None``: no node) at the path ``rest``."""
    if document is None:
        return any(name == rest or name.startswith(f"{rest}/") for name in named)
    said = named.get(rest)
    return not isinstance(said, dict) or _alone(said) != _alone(document)


def _alone(document: JsonObject) -> JsonObject:
    return {name: value for name, value in document.items() if name != "consolidated_metadata"}
