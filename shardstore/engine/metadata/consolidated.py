"""Find groups whose consolidated metadata became stale when nodes were copied, moved or removed."""

from __future__ import annotations

from shardstore.errors import AccessDenied
from shardstore.format.json_text import JsonObject, parse_object
from shardstore.format.presentation import documents_inside
from shardstore.format.store_keys import ancestors, check_key, join, metadata_key
from shardstore.storage.base import Failed, Found, Storage, document_read


async def stale_consolidated(storage: Storage, path: str) -> list[str]:
    """Return the groups above ``path`` whose consolidated metadata differs from what is at ``path`` now, the outermost first.

    Ask after a node was copied, moved or removed, for its old path and its new one: a program that opens such a group by its consolidated
    metadata sees the old state. Consolidating it again is left to the user.
    """
    if not path:
        return []
    above = [(group, rest) for group, rest in ancestors(check_key(path)) if rest]
    of_groups = [[metadata_key(group), join(group, ".zmetadata")] for group, _ in above]
    of_node = [metadata_key(path), join(path, ".zarray"), join(path, ".zgroup")]
    keys = [*(key for keys in of_groups for key in keys), *of_node]
    outcomes = await storage.read([document_read(key) for key in keys])
    documents: dict[str, JsonObject | None] = {}
    for key, outcome in zip(keys, outcomes, strict=True):
        if isinstance(outcome, Failed) and not isinstance(outcome.error, AccessDenied):  # which may be said of what is absent
            raise outcome.error
        # If it is no JSON object, it only counts that it is there.
        documents[key] = parse_object(outcome.buffers[0]) or {} if isinstance(outcome, Found) else None
    v3, is_v2 = documents[of_node[0]], documents[of_node[1]] is not None or documents[of_node[2]] is not None
    stale: list[str] = []
    for (group, rest), (inline, separate) in zip(above, of_groups, strict=True):
        named = documents_inside(documents[inline] or {})
        if named is not None and _says_otherwise(named, rest, v3):
            stale.append(group)
            continue
        named = documents_inside({"consolidated_metadata": documents[separate]})
        if named is not None and is_v2 != any(name.startswith(f"{rest}/.z") for name in named):
            stale.append(group)
    return stale


def _says_otherwise(named: JsonObject, rest: str, document: JsonObject | None) -> bool:
    """Return whether a group's consolidated metadata does not have ``document`` (``None``: no node) at the path ``rest``."""
    if document is None:
        return any(name == rest or name.startswith(f"{rest}/") for name in named)
    said = named.get(rest)
    return not isinstance(said, dict) or _alone(said) != _alone(document)


def _alone(document: JsonObject) -> JsonObject:
    return {name: value for name, value in document.items() if name != "consolidated_metadata"}
