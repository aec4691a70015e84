"""The nodes that a survey finds: each document is read once, and only the facts for the survey are kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from shardstore.engine.engine import Engine
from shardstore.engine.metadata.hierarchy import Node
from shardstore.errors import NotFound
from shardstore.format.chunk_keys import looks_like_chunk_key
from shardstore.format.codecs import codec_configuration, codec_name
from shardstore.format.json_text import JsonObject, NumberText
from shardstore.format.metadata_v3 import METADATA_NAME, item_nbytes
from shardstore.format.presentation import consolidated_arrays, present_array
from shardstore.format.store_keys import ancestors, join, metadata_key, metadata_path
from shardstore.maintenance.shard_content import ShardTally
from shardstore.model.chunks import ChunkCoords
from shardstore.model.containers import batched
from shardstore.storage.base import Found, document_read, unless_failed

_DOCUMENTS_AT_ONCE = 256
_MOST_ABSENT = 100_000  # directories that were asked for and are no nodes

# What a reader takes from consolidated metadata instead of from the array's own document.
_TELLING = (
    *("shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs", "attributes", "dimension_names"),
    "storage_transformers",
)


@dataclass(frozen=True, slots=True)
class ArrayFacts:
    """The facts of an array's document, in words if they are for people."""

    shape: tuple[int, ...] | None = None
    dimension_names: tuple[str | None, ...] | None = None
    data_type: str = ""
    item_nbytes: int | None = None
    chunk_shape: tuple[int, ...] | None = None
    codecs: tuple[str, ...] = ()
    stored_shape: tuple[int, ...] | None = None
    stored_codecs: tuple[str, ...] = ()


@dataclass(slots=True)
class NodeRecord:
    """A node, and the counts for it."""

    node: Node
    facts: ArrayFacts
    digest: bytes
    """A digest, equal for array documents with the same meaning."""
    consolidated: dict[str, bytes] | None = None
    """For a group with consolidated metadata: the digests of the arrays in it, by path relative to the group."""
    tally: ShardTally = field(default_factory=ShardTally)

    @property
    def is_array(self) -> bool:
        return self.node.kind in ("sharded", "array")

    @property
    def grid(self) -> tuple[int, ...] | None:
        """The number of chunks along each dimension, if it is known."""
        if self.node.layout is not None:
            return self.node.layout.chunk_grid_shape
        plain = self.node.plain
        return None if plain is None else tuple(-(-n // c) for n, c in zip(plain.shape, plain.chunk_shape, strict=True))

    @property
    def possible_chunks(self) -> int | None:
        return None if self.grid is None else prod(self.grid)

    @property
    def possible_objects(self) -> int | None:
        if self.grid is None or self.node.layout is None:
            return self.possible_chunks
        return prod(-(-g // p) for g, p in zip(self.grid, self.node.layout.grid.chunks_per_shard, strict=True))

    def holds(self, coords: ChunkCoords) -> bool:
        """Return whether a chunk lies in the array's shape."""
        return self.grid is not None and all(c < g for c, g in zip(coords, self.grid, strict=True))


Owner = tuple[NodeRecord | None, ChunkCoords | None]
"""The array that an object belongs to, and its place in the grid of objects; ``None``: no array, or no place."""


class SurveyedNodes:
    """Nodes by path, which are read when they are asked for."""

    def __init__(self, engine: Engine, seen: Callable[[Node, JsonObject | None], None] | None = None) -> None:
        """Start without nodes. ``seen`` is called with each node that is read, and with its document if that is JSON."""
        self._engine = engine
        self._seen = seen
        self._records: dict[str, NodeRecord] = {}  # above the place of interest, too
        self._absent: set[str] = set()

    def get(self, path: str) -> NodeRecord | None:
        return self._records.get(path)

    def records(self, path: str) -> list[NodeRecord]:
        """Return the nodes at and below ``path`` that have been read, in the order of their paths."""
        inside = join(path, "")
        return [self._records[p] for p in sorted(self._records) if p == path or p.startswith(inside)]

    async def load(self, paths: Iterable[str]) -> dict[str, NodeRecord | None]:
        """Return the nodes at ``paths``; ``None`` if there is none. Raises ``StorageError`` if a request failed."""
        asked = list(dict.fromkeys(paths))
        unknown = [path for path in asked if path not in self._records and path not in self._absent]
        if len(self._absent) + len(unknown) > _MOST_ABSENT:
            self._absent.clear()
        for some in batched(unknown, _DOCUMENTS_AT_ONCE):
            outcomes = await self._engine.storage.read([document_read(metadata_key(path)) for path in some])
            for path, outcome in zip(some, outcomes, strict=True):
                outcome = unless_failed(outcome)
                if isinstance(outcome, Found):
                    node, document = self._engine.hierarchy.describe(path, outcome.buffers[0], outcome.generation)
                    self._records[path] = _record(node, document)
                    if self._seen is not None:
                        self._seen(node, document)
                else:
                    self._absent.add(path)
        return {path: self._records.get(path) for path in asked}

    async def owners(self, keys: Sequence[str]) -> list[Owner]:
        """Return which array each stored key belongs to, as the engine does: the outermost one that has such a chunk."""
        found: list[Owner] = [(None, None)] * len(keys)
        waiting: list[tuple[int, Iterator[tuple[str, str]]]] = []
        documents: list[str] = []
        for i, key in enumerate(keys):
            path = metadata_path(key)
            if path is not None:
                documents.append(path)
            else:
                waiting.append((i, iter(list(ancestors(key)))))
        await self.load(documents)
        while waiting:
            cuts = [(i, cut, rest) for i, rest in waiting if (cut := next(rest, None)) is not None]
            records = await self.load(path for _, (path, _), _ in cuts)
            waiting = []
            for i, (path, relative), rest in cuts:
                record = records[path]
                if record is not None and record.is_array:
                    coords = record.node.coords_of(relative)
                    if coords is not None or found[i][0] is None:
                        found[i] = (record, coords)
                    # An array inside an array is not to be, but where it is, its chunks are chunks.
                    if coords is not None or not _may_be_chunk(relative):
                        continue
                waiting.append((i, rest))
        return found

    def check_any(self, path: str, listed: int, shown: str | None) -> None:
        """Check that there is a node, or one of so many ``listed`` objects, at or below ``path``; ``shown`` is its name in messages.

        Raises:
            NotFound: there is nothing.
        """
        if not listed and not self.records(path):
            url = self._engine.storage.url
            where = shown or (join(url.rstrip("/"), path) if path else url)
            raise NotFound(f"there is no node at {where}, and nothing below it: check the address; a key alone is no node")

    def consolidated(self, path: str) -> list[tuple[str, int, bool]]:
        """Return path, number of arrays and staleness of the consolidated metadata of each group at and below ``path``.

        The result is right when all nodes there have been read.
        """
        found: list[tuple[str, int, bool]] = []
        for group in self.records(path):
            if group.consolidated is None:
                continue
            inside = join(group.node.path, "")
            there = {
                path.removeprefix(inside): record.digest
                for path, record in self._records.items()
                if record.is_array and path.startswith(inside)
            }
            found.append((group.node.path, len(group.consolidated), there != group.consolidated))
        return found


def _may_be_chunk(relative: str) -> bool:
    """Return whether some array deeper inside could own the key."""
    return any(looks_like_chunk_key(rest) for _, rest in ancestors(relative))


def _record(node: Node, document: JsonObject | None) -> NodeRecord:
    if document is None or node.kind == "other":
        return NodeRecord(node, ArrayFacts(), b"")
    if node.kind == "group":
        consolidated = document.get("consolidated_metadata")
        arrays = None
        if isinstance(consolidated, dict) and isinstance(consolidated.get("metadata"), dict):
            arrays = {path: _digest(array) for path, array in consolidated_arrays(document).items()}
        return NodeRecord(node, ArrayFacts(), b"", arrays)
    presented = present_array(document)
    facts = ArrayFacts(
        shape=_shape(document.get("shape")),
        dimension_names=_names(document.get("dimension_names")),
        data_type=_in_words(document.get("data_type")),
        item_nbytes=item_nbytes(document.get("data_type")),
        chunk_shape=_chunk_shape(presented),
        codecs=_codecs(presented),
        stored_shape=node.layout.shard_shape if node.layout is not None else _chunk_shape(document),
        stored_codecs=_codecs(document),
    )
    return NodeRecord(node, facts, _digest(document))


def _digest(document: JsonObject) -> bytes:
    def number(value: object) -> Any:
        if isinstance(value, NumberText):
            return {METADATA_NAME: value.text}
        raise TypeError(f"{type(value).__name__} is not of JSON")

    telling = {member: document.get(member) or None for member in _TELLING}
    telling["fill_value"] = document.get("fill_value")
    return hashlib.blake2b(json.dumps(telling, sort_keys=True, default=number).encode(), digest_size=16).digest()


# -- in words ----------------------------------------------------------------------------------------------------------


def _shape(value: Any) -> tuple[int, ...] | None:
    return tuple(value) if isinstance(value, list) and all(type(n) is int for n in value) else None


def _names(value: Any) -> tuple[str | None, ...] | None:
    return tuple(value) if isinstance(value, list) and all(name is None or isinstance(name, str) for name in value) else None


def _chunk_shape(document: JsonObject) -> tuple[int, ...] | None:
    return _shape(codec_configuration(document.get("chunk_grid")).get("chunk_shape"))


def _codecs(document: JsonObject) -> tuple[str, ...]:
    codecs = document.get("codecs")
    return tuple(map(_in_words, codecs)) if isinstance(codecs, list) else ()


def _in_words(extension: Any) -> str:
    """Return a short text for a codec or data type: ``zstd(level=3)``."""
    name = codec_name(extension)
    if name is None:
        return "?"
    details = [f"{k}={_value(v)}" for k, v in codec_configuration(extension).items() if v is not None and v is not False]
    return f"{name}({', '.join(details)})" if details else name


def _value(value: Any) -> str:
    if isinstance(value, NumberText):
        return value.text
    if isinstance(value, list):
        inside = ", ".join(_in_words(v) if isinstance(v, dict | str) else _value(v) for v in value)
        return f"[{inside}]"
    return "{…}" if isinstance(value, dict) else str(value)
