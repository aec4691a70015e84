"""Documents of Zarr v2 as those of v3 and back: arrays without sharding, groups, and the consolidated metadata of a hierarchy.

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

Attributes: ``_ARRAY_DIMENSIONS``, xarray's name for the dimensions in v2, becomes ``dimension_names`` where it is a list of as many
strings as the array has dimensions; anything else of that name stays an attribute. On the way back names are shown only where each
dimension has one (v2 needs all of them), and an attribute of that name takes precedence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from shardstore.errors import InvalidInput, Unsupported
from shardstore.format.json_text import JsonObject, same_text
from shardstore.format.metadata_v3 import is_array, is_group, parse_plain, sizes
from shardstore.format.presentation import documents_inside
from shardstore.format.store_keys import groups_above
from shardstore.format.v2 import codecs as v2_codecs
from shardstore.format.v2.codecs import V2Codecs, codec_id
from shardstore.format.v2.dtypes import NoCounterpart, fill_from_v2, fill_to_v2
from shardstore.format.v2.dtypes import from_v2 as type_from_v2
from shardstore.format.v2.kept import Kept, difference, split_attributes, with_attributes
from shardstore.format.v2.keys import ARRAY_NAME, ATTRIBUTES_NAME, CONSOLIDATED_NAME, GROUP_NAME, document_key

ARRAY_DIMENSIONS = "_ARRAY_DIMENSIONS"

# Members whose meanings depend on each other: what is kept of a group counts as a whole, or not at all.
_GROUPS = (("dtype", "order", "filters", "compressor"), ("fill_value",), ("dimension_separator",))
_MEMBERS = frozenset(("zarr_format", "shape", "chunks", *(name for group in _GROUPS for name in group)))
_IN_V2 = {"data_type": "dtype", "codecs": "filters"}
_ZGROUP: JsonObject = {"zarr_format": 2}


# -- arrays ------------------------------------------------------------------------------------------------------------


def array_from_v2(zarray: JsonObject, zattrs: JsonObject | None, previous: JsonObject | None = None) -> JsonObject:
    """Return the v3 document of a v2 array, presented: without sharding. ``zattrs`` is ``None`` where there is no ``.zattrs``.

    ``previous`` is the v3 document that is replaced, if there is one. Where it describes the same array except for shape and attributes,
    everything else is taken from it: its spelling, its chunk keys, and the members that v2 cannot show. ``array_to_v2`` gives back exactly
    ``zarray`` and ``zattrs``. Raises ``InvalidInput`` if a member has no exact counterpart in Zarr v3; the message names it with the
    reason.
    """
    try:
        document = _core(zarray)
        regenerated = _regenerate(document)
    except NoCounterpart as exc:
        member = _IN_V2.get(exc.member, exc.member)
        raise InvalidInput(f"{member!r} of this Zarr v2 array cannot be stored as Zarr v3: {exc.reason}") from exc
    kept = difference(zarray, regenerated)
    if previous is not None and is_array(previous):
        updated = _update(zarray, previous)
        if updated is not None:
            document, kept = updated
    else:
        previous = None
    attributes = _move_dimensions(document, zattrs, previous)
    translated = with_attributes(document, attributes, kept)
    shown, shown_attributes = array_to_v2(translated)
    if not same_text(shown, zarray) or not same_text(shown_attributes, zattrs):
        raise InvalidInput("this Zarr v2 array cannot be kept exactly in Zarr v3")  # a member spelled in a way that is not foreseen
    return translated


def array_to_v2(document: JsonObject) -> tuple[JsonObject, JsonObject | None]:
    """Return ``.zarray`` and ``.zattrs`` of a v3 array without sharding; for a sharded array pass its presented document.

    ``.zattrs`` is ``None`` where the document has no attributes to show. Raises ``Unsupported`` if no v2 document describes these chunks
    exactly; the message has the reason.
    """
    try:
        regenerated = _regenerate(document)
    except NoCounterpart as exc:
        raise Unsupported(f"this array cannot be shown as Zarr v2, for its {exc.member}: {exc.reason}") from exc
    attributes, kept = split_attributes(document)
    names = document.get("dimension_names")
    if _are_names(names):
        attributes = {ARRAY_DIMENSIONS: names} | (attributes or {})
    return _restore(regenerated, kept), attributes


def _core(zarray: JsonObject) -> JsonObject:
    """Return the v3 document for a ``.zarray``, without attributes. Raises ``NoCounterpart``."""
    if type(zarray.get("zarr_format")) is not int or zarray["zarr_format"] != 2:
        raise NoCounterpart("zarr_format", f"{zarray.get('zarr_format')!r} is not 2")
    shape = _sizes("shape", zarray.get("shape"), 0)
    chunks = _sizes("chunks", zarray.get("chunks"), 1)
    if len(shape) != len(chunks):
        raise NoCounterpart("chunks", f"{len(chunks)} sizes, the array has {len(shape)} dimensions")
    separator = zarray.get("dimension_separator")
    if separator not in (None, ".", "/"):
        raise NoCounterpart("dimension_separator", f"{separator!r} is neither '.' nor '/'")
    filters, order = zarray.get("filters"), zarray.get("order")
    if order not in ("C", "F"):
        raise NoCounterpart("order", f"{order!r} is neither 'C' nor 'F'")
    if filters is not None and not isinstance(filters, list):
        raise NoCounterpart("filters", "they are no list")
    element = type_from_v2(zarray.get("dtype"), codec_id(filters[0]) if filters else None)
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": element.v3,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": separator or "."}},
        "fill_value": fill_from_v2(zarray.get("fill_value"), element),
        "codecs": v2_codecs.to_v3(V2Codecs(element, order, filters, zarray.get("compressor")), len(shape)),
    }


def _sizes(member: str, value: Any, minimum: int) -> list[int]:
    if (found := sizes(value, minimum)) is None:
        raise NoCounterpart(member, f"{str(value)[:200]} are no sizes of at least {minimum}")
    return list(found)


def _regenerate(document: JsonObject) -> JsonObject:
    """Return the ``.zarray`` that zarr-python 2 writes for the array of a v3 document. Raises ``NoCounterpart``."""
    plain = parse_plain(document) if is_array(document) else "it is no array"
    if isinstance(plain, str):
        raise NoCounterpart("document", plain)
    members = v2_codecs.from_v3(document.get("codecs"), document.get("data_type"), len(plain.shape))
    zarray: JsonObject = {
        "chunks": list(plain.chunk_shape),
        "compressor": members.compressor,
        "dtype": members.element.v2,
        "fill_value": fill_to_v2(document.get("fill_value"), members.element),
        "filters": members.filters,
        "order": members.order,
        "shape": list(plain.shape),
        "zarr_format": 2,
    }
    return zarray | ({"dimension_separator": "/"} if plain.key_encoding.separator == "/" else {})


def _restore(regenerated: JsonObject, kept: Kept) -> JsonObject:
    """Return ``regenerated`` in the kept spelling, as far as that still describes the same array."""
    extra = kept.only(name for name in kept.members if name not in _MEMBERS)
    zarray = regenerated
    for group in _GROUPS:
        candidate = kept.only(group).applied_to(zarray)
        if _same_array(candidate, zarray):
            zarray = candidate
    return extra.applied_to(zarray)


def _same_array(one: JsonObject, other: JsonObject) -> bool:
    if same_text(one, other):
        return True
    try:
        return same_text(_core(one), _core(other))
    except NoCounterpart:
        return False


def _update(zarray: JsonObject, previous: JsonObject) -> tuple[JsonObject, Kept] | None:
    """Return ``previous`` with the shape of ``zarray`` and without attributes, where the two agree on everything else."""
    try:
        shown, _ = array_to_v2(previous)
    except Unsupported:
        return None
    if not same_text(shown | {"shape": zarray["shape"]}, zarray):
        return None
    _, kept = split_attributes(previous)
    document = {name: value for name, value in previous.items() if name != "attributes"}
    return document | {"shape": zarray["shape"]}, kept


def _move_dimensions(document: JsonObject, zattrs: JsonObject | None, previous: JsonObject | None) -> JsonObject | None:
    """Return the attributes for ``document``, and set its ``dimension_names`` from ``zattrs`` and ``previous``."""
    document.pop("dimension_names", None)
    ndim = len(document["shape"])
    names, before = (zattrs or {}).get(ARRAY_DIMENSIONS), (previous or {}).get("dimension_names")
    is_attribute = _has_same_attribute(zattrs, previous)
    if zattrs is not None and not is_attribute and _are_names(names) and len(names) == ndim:
        document["dimension_names"] = names
        rest = {name: value for name, value in zattrs.items() if name != ARRAY_DIMENSIONS}
        return rest if rest or previous is None or "attributes" in previous else None
    # Names that v2 does not show, since some are missing, or since there is an attribute that says something else.
    if isinstance(before, list) and len(before) == ndim and (is_attribute or not _are_names(before)):
        document["dimension_names"] = before
    return zattrs


def _has_same_attribute(zattrs: JsonObject | None, previous: JsonObject | None) -> bool:
    """Return whether the v3 document that is replaced has the attribute of v2's dimension names too, with the same value."""
    before = (previous or {}).get("attributes")
    if zattrs is None or not isinstance(before, dict) or ARRAY_DIMENSIONS not in zattrs or ARRAY_DIMENSIONS not in before:
        return False
    return same_text(before[ARRAY_DIMENSIONS], zattrs[ARRAY_DIMENSIONS])


def _are_names(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


# -- groups ------------------------------------------------------------------------------------------------------------


def group_from_v2(zgroup: JsonObject, zattrs: JsonObject | None, previous: JsonObject | None = None) -> JsonObject:
    """Return the v3 document of a v2 group. ``zattrs`` is ``None`` where there is no ``.zattrs``.

    ``previous`` is the v3 document that is replaced, if there is one. Its other members are kept, also ``consolidated_metadata``, which
    becomes stale in v2 as well when attributes change. ``group_to_v2`` gives back exactly both documents. Raises ``InvalidInput`` if the
    document is no ``.zgroup``.
    """
    if type(zgroup.get("zarr_format")) is not int or zgroup["zarr_format"] != 2:
        raise InvalidInput(f"'zarr_format' of this Zarr v2 group is {zgroup.get('zarr_format')!r}, not 2")
    document: JsonObject = {"zarr_format": 3, "node_type": "group"}
    if previous is not None and is_group(previous):
        document |= {name: value for name, value in previous.items() if name != "attributes"}
    return with_attributes(document, zattrs, difference(zgroup, _ZGROUP))


def group_to_v2(document: JsonObject) -> tuple[JsonObject, JsonObject | None]:
    """Return ``.zgroup`` and ``.zattrs``, ``None`` without attributes, of a v3 group. Raises ``Unsupported`` if it is none."""
    if not is_group(document):
        raise Unsupported("this document cannot be shown as a Zarr v2 group: it is none of Zarr v3")
    attributes, kept = split_attributes(document)
    return kept.only(name for name in kept.members if name not in _ZGROUP).applied_to(_ZGROUP), attributes


def consolidated_from_v2(zmetadata: JsonObject, previous: Mapping[str, JsonObject] | None = None) -> JsonObject:
    """Return the ``consolidated_metadata`` member for the v3 document of the group where ``.zmetadata`` is written.

    ``previous`` has the presented v3 documents of nodes, by path relative to the group: members that v2 does not show are taken over, as by
    ``array_from_v2``. Raises ``InvalidInput`` if a document inside cannot be stored as Zarr v3, or ``.zmetadata`` holds something else.
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
            before = previous.get(path)
            before = None if before is None else {name: value for name, value in before.items() if name != "consolidated_metadata"}
            return group_from_v2(zgroup, zattrs, before)
        raise InvalidInput("it is neither an array nor a group" if zgroup is None else "it is both an array and a group")
    except InvalidInput as exc:
        raise InvalidInput(f"{CONSOLIDATED_NAME}, {where}: {exc}") from exc


def consolidated_to_v2(document: JsonObject, *, omit_unsupported: bool = False) -> JsonObject | None:
    """Return the ``.zmetadata`` document of a v3 group, whose consolidated metadata is presented; ``None`` where it has none.

    ``omit_unsupported`` leaves out documents without a v2 counterpart, for views that do not show those nodes. Raises ``Unsupported`` if a
    document inside has no v2 counterpart, or it is no group.
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
