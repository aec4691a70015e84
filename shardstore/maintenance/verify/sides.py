"""The two sides of a comparison: the nodes of two copies of a hierarchy, as presented in Zarr v3, whatever their stored format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shardstore.engine.engine import Engine
from shardstore.errors import Corruption, InvalidInput
from shardstore.format.codecs import codec_name
from shardstore.format.json_text import JsonObject, loads_object, same_text
from shardstore.format.metadata_v3 import is_array, is_group
from shardstore.format.presentation import present_array, same_chunks
from shardstore.format.store_keys import ancestors, join, metadata_key
from shardstore.format.v2.arrays import array_from_v2
from shardstore.format.v2.groups import group_from_v2
from shardstore.format.v2.kept import hide_kept
from shardstore.format.v2.keys import ARRAY_NAME, ATTRIBUTES_NAME, GROUP_NAME
from shardstore.maintenance.array_plans import ArrayPlan
from shardstore.maintenance.v2_nodes import read_v2
from shardstore.maintenance.walk import Walk
from shardstore.model.containers import batched
from shardstore.storage.base import Found, document_read, unless_failed

_NODES_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two copies, listed; paths of nodes are relative to ``walk.path``."""

    engine: Engine
    walk: Walk
    v2_nodes: frozenset[str]
    """The relative paths of nodes that have documents of Zarr v2, including those without chunks."""

    def below(self, relative: str) -> str:
        return join(self.walk.path, relative) if relative else self.walk.path

    def relative(self, path: str) -> str:
        return path[len(self.walk.prefix) :] if path != self.walk.path else ""

    def plans(self) -> dict[str, ArrayPlan]:
        """Return the arrays whose objects can be identified, by relative path."""
        return {self.relative(plan.path): plan for plan in self.walk.plans()}

    def paths(self) -> list[str]:
        """Return the paths of all nodes, relative and sorted."""
        return sorted(self._v3_paths() | self.plans().keys() | self.v2_nodes | self._implicit_groups())

    def _v3_paths(self) -> set[str]:
        return {self.relative(record.node.path) for record in self.walk.nodes.records(self.walk.path) if record.node.kind != "other"}

    def _implicit_groups(self) -> set[str]:
        """Return the implicit groups of Zarr v2, which need no document: every path above a node is a group."""
        above = {path for node in self.v2_nodes if node for path, _ in ancestors(node)}
        return above - self.v2_nodes - self._v3_paths()

    async def documents(self, paths: Iterable[str]) -> dict[str, JsonObject]:
        """Return the presented documents by relative path; nodes without a readable document are left out.
        Raises ``StorageError`` if a request failed.
        """
        found: dict[str, JsonObject] = {}
        missing: list[str] = []
        for some in batched(list(paths), _NODES_AT_ONCE):
            reads = [document_read(metadata_key(self.below(path))) for path in some]
            for path, outcome in zip(some, await self.engine.storage.read(reads), strict=True):
                outcome = unless_failed(outcome)
                if not isinstance(outcome, Found):
                    missing.append(path)
                    continue
                try:
                    document = loads_object(outcome.buffers[0])
                except Corruption:
                    continue
                if is_array(document) or is_group(document):
                    found[path] = present_array(document) if is_array(document) else document
        implicit = self._implicit_groups()
        for path in missing:
            document_of_v2 = group_from_v2({"zarr_format": 2}, None) if path in implicit else await self._v2_document(path)
            if document_of_v2 is not None:
                found[path] = document_of_v2
        return found

    async def _v2_document(self, path: str) -> JsonObject | None:
        names = (ARRAY_NAME, GROUP_NAME, ATTRIBUTES_NAME)
        array, group, attributes = await read_v2(self.engine.storage, [join(self.below(path), name) for name in names])
        zattrs = None if attributes is None else attributes.document
        try:
            if array is not None and array.document is not None:
                return array_from_v2(array.document, zattrs)
            if group is not None and group.document is not None:
                return group_from_v2(group.document, zattrs)
        except InvalidInput:
            return None
        return None


def differing_members(one: JsonObject, other: JsonObject) -> list[str]:
    """Return the members in which two presented documents differ in meaning; an additional checksum at the end of chunks does not count."""
    if is_array(one) != is_array(other):
        return ["node_type"]
    one, other = hide_kept(one), hide_kept(other)
    members = ["attributes"]
    differing = []
    if is_array(one):
        members += ["shape", "fill_value", "dimension_names"]
        spelled = {"chunk_key_encoding": one.get("chunk_key_encoding"), "codecs": _without_checksum(one)}
        if not same_chunks(one | spelled, other | spelled | {"codecs": _without_checksum(other)}):
            differing.append("data_type, chunk shape or codecs")
    return [name for name in members if not same_text(_value(one, name), _value(other, name))] + differing


def _value(document: JsonObject, name: str) -> object:
    """Return a value to compare: absent attributes and names equal empty ones, and a fill value of zero is spelled ``0`` or ``0.0``."""
    value = document.get(name)
    if name == "dimension_names":
        return value if value is not None and any(v is not None for v in value) else None
    if name == "fill_value" and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if abs(value) < 2**53 else value
    return value or {} if name == "attributes" else value


def checksums(document: Mapping[str, object]) -> bool:
    """Return whether chunks end with a checksum, after some other codec."""
    codecs = document.get("codecs")
    return isinstance(codecs, list) and len(codecs) > 1 and codec_name(codecs[-1]) == "crc32c"


def _without_checksum(document: JsonObject) -> object:
    return document["codecs"][:-1] if checksums(document) else document.get("codecs")
