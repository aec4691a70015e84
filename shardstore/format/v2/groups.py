"""Documents of groups: ``.zgroup`` and ``.zattrs``, and the consolidated metadata of a hierarchy, as v3 and back.

::

    .zmetadata                                        the group's zarr.json
    {"zarr_consolidated_format": 1, "metadata": {     {…, "attributes": <.zattrs>, "consolidated_metadata": {
       ".zgroup": …, ".zattrs": …,                       "kind": "inline", "must_understand": false, "metadata": {
       "a/.zgroup": …, "a/.zattrs": …,                      "a": {"node_type": "group", …},
       "a/b/.zarray": …, "a/b/.zattrs": …                   "a/b": {"node_type": "array", …}
    }}                                                }}}

Paths are relative to the group, all in one object, as both versions of zarr-python write them; groups that hold consolidated metadata
of their own, as v3 allows, are read too. The group's own documents are not repeated in v3: ``.zmetadata`` shows their current state. A
group without a document, above nodes that have one, gets one in v3, since zarr-python 3 does not open a hierarchy without it. It is
marked, so that v2 does not show it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shardstore.errors import InvalidInput, Unsupported
from shardstore.format.json_text import JsonObject
from shardstore.format.metadata_v3 import is_array, is_group
from shardstore.format.presentation import documents_inside
from shardstore.format.store_keys import groups_above
from shardstore.format.v2.arrays import array_from_v2, array_to_v2
from shardstore.format.v2.kept import Kept, difference, split_attributes, with_attributes
from shardstore.format.v2.keys import ARRAY_NAME, ATTRIBUTES_NAME, CONSOLIDATED_NAME, GROUP_NAME, document_key

_ZGROUP: JsonObject = {"zarr_format": 2}


def group_from_v2(zgroup: JsonObject, zattrs: JsonObject | None, previous: JsonObject | None = None) -> JsonObject:
    """Return the v3 document of a v2 group. ``zattrs`` is ``None`` where there is no ``.zattrs``.

    ``previous`` is the v3 document that is replaced, if there is one. Its other members are kept, also ``consolidated_metadata``, which
    becomes stale in v2 as well when attributes change. ``group_to_v2`` gives back exactly both documents.

    Raises:
        InvalidInput: the document is no ``.zgroup``.
    """
    if type(zgroup.get("zarr_format")) is not int or zgroup["zarr_format"] != 2:
        raise InvalidInput(f"'zarr_format' of this Zarr v2 group is {zgroup.get('zarr_format')!r}, not 2")
    document: JsonObject = {"zarr_format": 3, "node_type": "group"}
    if previous is not None and is_group(previous):
        document |= {name: value for name, value in previous.items() if name != "attributes"}
    return with_attributes(document, zattrs, difference(zgroup, _ZGROUP))


def group_to_v2(document: JsonObject) -> tuple[JsonObject, JsonObject | None]:
    """Return ``.zgroup`` and ``.zattrs`` (``None`` where the document has no attributes to show) of a v3 group.

    Raises:
        Unsupported: the document is of no group.
    """
    if not is_group(document):
        raise Unsupported("this document cannot be shown as a Zarr v2 group: it is none of Zarr v3")
    attributes, kept = split_attributes(document)
    return kept.only(name for name in kept.members if name not in _ZGROUP).applied_to(_ZGROUP), attributes


def consolidated_from_v2(zmetadata: JsonObject, previous: Mapping[str, JsonObject] | None = None) -> JsonObject:
    """Return the ``consolidated_metadata`` member for the v3 document of the group where ``.zmetadata`` is written.

    ``previous`` has the presented v3 documents of nodes, by path relative to the group: members that v2 does not show are taken over,
    as by ``array_from_v2``.

    Raises:
        InvalidInput: a document inside cannot be stored as Zarr v3, or ``.zmetadata`` holds something else.
    """
    if set(zmetadata) != {"metadata", "zarr_consolidated_format"} or not isinstance(zmetadata["metadata"], dict):
        raise InvalidInput(f"{CONSOLIDATED_NAME} has other members than 'metadata' and 'zarr_consolidated_format'")
    version = zmetadata["zarr_consolidated_format"]
    if type(version) is not int or version != 1:
        raise InvalidInput(f"'zarr_consolidated_format' of {CONSOLIDATED_NAME} is {version!r}, not 1")
    nodes: dict[str, JsonObject] = {}
    for key, document in zmetadata["metadata"].items():
        found = document_key(key)
        if found is None or found.name == CONSOLIDATED_NAME or not isinstance(document, dict):
            raise InvalidInput(f"{key!r} in {CONSOLIDATED_NAME} is no metadata document of Zarr v2")
        nodes.setdefault(found.path, {})[found.name] = document
    translated = {path: _node_from_v2(path, documents, previous or {}) for path, documents in nodes.items()}
    if not is_group(translated.pop("", {"zarr_format": 3, "node_type": "group"})):  # the group itself: its own document says it
        raise InvalidInput(f"{CONSOLIDATED_NAME} says of the group itself that it is an array")
    implicit = with_attributes({"zarr_format": 3, "node_type": "group"}, None, Kept(implicit=True))
    for path in list(translated):
        for parent in filter(None, groups_above(path)):
            if is_array(translated.setdefault(parent, implicit)):
                raise InvalidInput(f"{CONSOLIDATED_NAME} says of {path!r} that it lies below the array {parent!r}")
    return {"kind": "inline", "must_understand": False, "metadata": translated}


def _node_from_v2(path: str, documents: JsonObject, previous: Mapping[str, JsonObject]) -> JsonObject:
    zarray, zgroup, zattrs = (documents.get(name) for name in (ARRAY_NAME, GROUP_NAME, ATTRIBUTES_NAME))
    where = repr(path) if path else "the group itself"
    try:
        if zarray is not None and zgroup is None:
            return array_from_v2(zarray, zattrs, previous.get(path))
        if zgroup is not None and zarray is None:
            return group_from_v2(zgroup, zattrs, _without_consolidated(previous.get(path)))
        raise InvalidInput("it is neither an array nor a group" if zgroup is None else "it is both an array and a group")
    except InvalidInput as exc:
        raise InvalidInput(f"{CONSOLIDATED_NAME}, {where}: {exc}") from exc


def _without_consolidated(document: JsonObject | None) -> JsonObject | None:
    return None if document is None else {name: value for name, value in document.items() if name != "consolidated_metadata"}


def consolidated_to_v2(document: JsonObject, *, omit_unsupported: bool = False) -> JsonObject | None:
    """Return the ``.zmetadata`` document of a v3 group, whose consolidated metadata is presented; ``None`` where it has none.

    ``omit_unsupported`` leaves out documents without a v2 counterpart, for views that do not show those nodes.

    Raises:
        Unsupported: a document inside has no v2 counterpart, or it is no group.
    """
    zgroup, zattrs = group_to_v2(document)
    inside = documents_inside(document)
    if inside is None:
        return None
    metadata: JsonObject = {}
    _put(metadata, "", GROUP_NAME, zgroup, zattrs)
    for path, node in _nodes(inside, ""):
        try:
            name, shown, attributes = (ARRAY_NAME, *array_to_v2(node)) if is_array(node) else (GROUP_NAME, *group_to_v2(node))
        except Unsupported as exc:
            if omit_unsupported:
                continue
            raise Unsupported(f"{path!r} in the consolidated metadata: {exc}") from exc
        if attributes or not split_attributes(node)[1].implicit:
            _put(metadata, path + "/", name, shown, attributes)
    return {"metadata": metadata, "zarr_consolidated_format": 1}


def _put(metadata: JsonObject, prefix: str, name: str, document: JsonObject, attributes: JsonObject | None) -> None:
    metadata[prefix + name] = document
    if attributes is not None:
        metadata[prefix + ATTRIBUTES_NAME] = attributes


def _nodes(inside: JsonObject, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, node in inside.items():
        if not isinstance(node, dict):
            continue
        yield prefix + name, node
        below = documents_inside(node) if is_group(node) else None
        yield from _nodes(below or {}, f"{prefix}{name}/")
