"""Metadata documents as they are stored, read one or many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardstore.engine.metadata.hierarchy import Hierarchy, Node
from shardstore.format.json_text import JsonObject, dumps
from shardstore.format.presentation import present_node
from shardstore.format.store_keys import metadata_key
from shardstore.format.v2.kept import hide_kept
from shardstore.model.generation import Generation
from shardstore.storage.base import Absent, Changed, Failed, Found, ReadOutcome, Storage, document_read


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A stored document as it was read: its bytes, its version, the node, and the parsed JSON, if it is JSON."""

    data: bytes
    generation: Generation
    node: Node
    document: JsonObject | None
    hides_kept: bool = True
    """True if clients do not see the members that are kept for the view of Zarr v2."""

    def presented(self) -> bytes:
        """Return the bytes that a client sees: the stored ones, unchanged, if nothing has to be translated."""
        if self.document is None:
            return self.data
        presented = present_node(self.document)
        if self.hides_kept:
            presented = hide_kept(presented)
        return self.data if presented == self.document else dumps(presented)


@dataclass(eq=False, repr=False)
class DocumentReader:
    """Reads documents as they are now; the hierarchy remembers the nodes."""

    _storage: Storage
    _hierarchy: Hierarchy
    hides_kept: bool

    async def read(self, path: str) -> StoredDocument | None:
        """Return the document of the node at ``path``, or ``None``."""
        return (await self.read_many([path]))[path]

    async def read_many(self, paths: Sequence[str]) -> dict[str, StoredDocument | None]:
        """Return the documents of ``paths``, read in one round. A damaged one has no JSON."""
        outcomes = await self._storage.read([document_read(metadata_key(path)) for path in paths])
        return {path: self.learn(path, outcome) for path, outcome in zip(paths, outcomes, strict=True)}

    def learn(self, path: str, outcome: ReadOutcome) -> StoredDocument | None:
        """Return the document that a ``document_read`` for ``path`` found."""
        match outcome:
            case Failed(error):
                raise error
            case Found(generation, _, (data,)):
                node, document = self._hierarchy.describe(path, data, generation)
                self._hierarchy.learn(path, outcome, even_damaged=True, described=node)
                return StoredDocument(bytes(data), generation, node, document, self.hides_kept)
            case Absent() | Changed():
                self._hierarchy.learn(path, outcome)
                return None
            case _:
                raise AssertionError(f"a whole-object read gave {outcome!r}")
