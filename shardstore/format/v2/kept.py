"""Parts of a v2 document that v3 cannot express, kept in an attribute of the v3 document that the v2 view hides.

::

    "attributes": {
        …,
        "_shardstore_v2": {
            "members": {"fill_value": null, "compressor": {…}},   members of .zarray or .zgroup, as they were written
            "absent": ["dimension_separator"],                     members that zarr-python 2 writes, and this one lacked
            "no_attributes": true,                                 there was no .zattrs, not even an empty one
            "implicit": true                                       there was no .zgroup (only in consolidated metadata)
        }
    }

The attribute exists only where the document regenerated from v3 would differ, and holds only the members that would differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shardstore.errors import InvalidInput
from shardstore.format.json_text import JsonObject, same_text
from shardstore.format.presentation import map_nodes, nodes_in

RESERVED = "_shardstore_v2"


@dataclass(frozen=True, slots=True)
class Kept:
    """Members of a v2 document in their original spelling; ``absent`` names those that it lacked."""

    members: JsonObject = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    no_attributes: bool = False
    implicit: bool = False

    def __bool__(self) -> bool:
        """Return whether this changes the document; ``no_attributes`` only matters together with members that do."""
        return bool(self.members or self.absent or self.implicit)

    def only(self, names: Iterable[str]) -> Kept:
        chosen = set(names)
        return Kept({k: v for k, v in self.members.items() if k in chosen}, tuple(k for k in self.absent if k in chosen))

    def applied_to(self, document: JsonObject) -> JsonObject:
        return {k: v for k, v in document.items() if k not in self.absent} | self.members


def difference(original: JsonObject, regenerated: JsonObject) -> Kept:
    """Return the changes that make ``regenerated`` equal to ``original``, down to the spelling of numbers."""
    members = {k: v for k, v in original.items() if k not in regenerated or not same_text(v, regenerated[k])}
    return Kept(members, tuple(k for k in regenerated if k not in original))


def with_attributes(document: JsonObject, attributes: JsonObject | None, kept: Kept) -> JsonObject:
    """Return ``document`` with ``attributes``, if any, and the kept members. Raises ``InvalidInput`` if a client uses the reserved name."""
    if attributes is not None and RESERVED in attributes:
        raise _reserved_name()
    if not kept:
        return document if attributes is None else document | {"attributes": attributes}
    reserved: JsonObject = {}
    if kept.members:
        reserved["members"] = kept.members
    if kept.absent:
        reserved["absent"] = list(kept.absent)
    if kept.implicit:
        reserved["implicit"] = True
    if attributes is None:
        reserved["no_attributes"] = True
    return document | {"attributes": (attributes or {}) | {RESERVED: reserved}}


def split_attributes(document: JsonObject) -> tuple[JsonObject | None, Kept]:
    """Return the attributes of a v3 document without the reserved one (``None``: there are none to show), and the kept members in it.

    A value that another program wrote under the reserved name is ignored.
    """
    attributes = document.get("attributes")
    if not isinstance(attributes, dict):
        return None, Kept()
    shown = {k: v for k, v in attributes.items() if k != RESERVED}
    reserved = attributes.get(RESERVED)
    if not isinstance(reserved, dict):
        return shown, Kept()
    members, absent = reserved.get("members", {}), reserved.get("absent", [])
    no_attributes = reserved.get("no_attributes") is True
    kept = Kept(
        members if isinstance(members, dict) else {},
        tuple(name for name in absent if isinstance(name, str)) if isinstance(absent, list) else (),
        no_attributes,
        reserved.get("implicit") is True,
    )
    return (None if no_attributes and not shown else shown), kept


def hide_kept(document: JsonObject) -> JsonObject:
    """Return a v3 document, and those inside its consolidated metadata, without the reserved attribute, for the v3 view."""

    def one(path: str, node: JsonObject) -> JsonObject:
        attributes = node.get("attributes")
        if not isinstance(attributes, dict) or RESERVED not in attributes:
            return node
        shown, _ = split_attributes(node)
        rest = {name: value for name, value in node.items() if name != "attributes"}
        return rest if shown is None else rest | {"attributes": shown}

    return map_nodes(document, one)


def carry_kept(document: JsonObject, previous: JsonObject | None, nodes: Mapping[str, JsonObject] | None = None) -> JsonObject:
    """Return the document that a client of the v3 view writes, with the reserved attribute of ``previous``, the stored document that it
    replaces.

    ``nodes`` has the stored documents of nodes, by path relative to the group, for the copies in its consolidated metadata; where it lacks
    one, the copy in ``previous`` is taken. Kept members that no longer apply do no harm: the v2 view compares (see ``array_to_v2``). Raises
    ``InvalidInput`` if the client uses the reserved name itself.
    """
    known = dict(nodes_in(previous or {})) | dict(nodes or {})

    def one(path: str, node: JsonObject) -> JsonObject:
        attributes = node.get("attributes")
        if isinstance(attributes, dict) and RESERVED in attributes:
            raise _reserved_name()
        before = known.get(path, {})
        if before.get("node_type") != node.get("node_type") or not isinstance(before.get("attributes"), dict):
            return node
        if RESERVED not in before["attributes"] or not isinstance(node.get("attributes", {}), dict):
            return node
        return node | {"attributes": node.get("attributes", {}) | {RESERVED: before["attributes"][RESERVED]}}

    return map_nodes(document, one)


def _reserved_name() -> InvalidInput:
    return InvalidInput(f"the attribute {RESERVED!r} is reserved for what Zarr v3 cannot hold of a Zarr v2 document: rename it")
