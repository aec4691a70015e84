"""Verify metadata: each document by itself, and documents that repeat or enclose other documents."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

from shardstore.engine.engine import Engine
from shardstore.engine.metadata.hierarchy import Node
from shardstore.errors import InvalidInput
from shardstore.format.json_text import JsonObject
from shardstore.format.metadata_faults import metadata_faults
from shardstore.format.metadata_v3 import sizes
from shardstore.format.store_keys import groups_above, metadata_key
from shardstore.format.v2.documents import array_from_v2
from shardstore.format.v2.dtypes import NoCounterpart
from shardstore.format.v2.keys import ARRAY_NAME, CONSOLIDATED_NAME, GROUP_NAME
from shardstore.maintenance.survey.nodes import SurveyedNodes
from shardstore.maintenance.v2_nodes import V2Document, is_stale_v2, read_v2
from shardstore.maintenance.verify.findings import Fault, Finding
from shardstore.model.containers import batched

_CONTRADICTING = frozenset({"zarr_format", "shape", "chunks", "order", "dimension_separator"})
_NUMBERS = re.compile(r"[<>|][biuf][0-9]+")  # types whose fill values are exact

_DOCUMENTS_AT_ONCE = 256


def document_faults(node: Node, document: JsonObject | None) -> list[Fault]:
    """Return the faults of a document of Zarr v3."""
    if document is None:
        return [Fault("not-json", node.reason)]
    return [Fault(fault.kind, fault.what) for fault in metadata_faults(document)]


class DocumentCheck:
    """A check that remembers what looks wrong, and looks again at the end."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._doubtful: set[str] = set()  # paths of nodes of Zarr v3
        self._v2_keys: list[str] = []

    def see(self, node: Node, document: JsonObject | None) -> None:
        """Note a node of Zarr v3 that was read."""
        if document_faults(node, document):
            self._doubtful.add(node.path)

    def list_v2(self, keys: Iterable[str]) -> None:
        """Note documents of Zarr v2 that were listed."""
        self._v2_keys += keys

    async def findings(self, nodes: SurveyedNodes, path: str) -> list[Finding]:
        """Return what is still wrong at and below ``path``, now that ``nodes`` have been read.
        Raises ``StorageError`` if a request failed.
        """
        found = [finding async for finding in self._v3_findings(nodes, path)]
        found += _nested([record.node.path for record in nodes.records(path) if record.is_array])
        found += await self._stale(nodes, path)
        for keys in batched(self._v2_keys, _DOCUMENTS_AT_ONCE):
            for key, read in zip(keys, await read_v2(self._engine.storage, keys), strict=True):
                if read is None:
                    continue
                found += [fault.at(read.path, key) for fault in v2_faults(read)]
                if read.name == CONSOLIDATED_NAME and await is_stale_v2(self._engine.storage, key, self._v2_keys):
                    what = "the consolidated metadata differ from the documents that they repeat"
                    found.append(Finding("stale-consolidated", read.path, key, what))
        return found

    async def _v3_findings(self, nodes: SurveyedNodes, path: str) -> AsyncIterator[Finding]:
        inside = {record.node.path for record in nodes.records(path)}
        doubtful = sorted(self._doubtful & inside)
        seen: list[tuple[Node, JsonObject | None]] = []
        again = SurveyedNodes(self._engine, lambda node, document: seen.append((node, document)))
        await again.load(doubtful)
        for node, document in seen:
            for fault in document_faults(node, document):
                yield fault.at(node.path, metadata_key(node.path))

    async def _stale(self, nodes: SurveyedNodes, path: str) -> list[Finding]:
        """Return groups whose consolidated metadata differ from the documents of arrays; both are read again, since writers change both."""
        if not any(is_stale for _, _, is_stale in nodes.consolidated(path)):
            return []
        again = SurveyedNodes(self._engine)
        await again.load(record.node.path for record in nodes.records(path))
        what = "the consolidated metadata differ from the documents of the arrays, or lack some: readers that trust them see something else"
        return [
            Finding("stale-consolidated", group, metadata_key(group), what) for group, _, is_stale in again.consolidated(path) if is_stale
        ]


def _nested(arrays: Sequence[str]) -> Iterator[Finding]:
    """Yield arrays inside of arrays, which no reader looks for."""
    known = set(arrays)
    for path in arrays:
        above = next((above for above in groups_above(path) if above in known), None)
        if above is not None:
            yield Finding("contradiction", path, metadata_key(path), f"it lies inside the array {above or '/'!r}: arrays hold no nodes")


def v2_faults(read: V2Document) -> list[Fault]:
    """Return what is wrong with one document by itself."""
    if read.document is None:
        return [Fault("not-json", read.reason)]
    if read.name == GROUP_NAME and read.document.get("zarr_format") != 2:
        return [Fault("contradiction", f"zarr_format {read.document.get('zarr_format')!r} is not 2")]
    if read.name == CONSOLIDATED_NAME and not isinstance(read.document.get("metadata"), dict):
        return [Fault("contradiction", "it holds no object of documents")]
    return _array_faults(read.document) if read.name == ARRAY_NAME else []


def _array_faults(zarray: JsonObject) -> list[Fault]:
    shape = sizes(zarray.get("shape"), 0)
    if shape is not None and sizes(zarray.get("chunks"), 1, len(shape)) is None:
        return [Fault("contradiction", f"its chunks {zarray.get('chunks')!r} are not {len(shape)} positive sizes, one a dimension")]
    try:
        array_from_v2(zarray, None)
    except InvalidInput as exc:
        member = exc.__cause__.member if isinstance(exc.__cause__, NoCounterpart) else ""
        is_number = _NUMBERS.fullmatch(str(zarray.get("dtype"))) is not None
        is_wrong = member in _CONTRADICTING or (member == "fill_value" and is_number)
        return [Fault("contradiction" if is_wrong else "unknown", str(exc))]
    return []
