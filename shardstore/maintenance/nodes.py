"""The nodes of a store as long work reads them: each document is read once, and only the facts that are needed are kept.

``SurveyedNodes`` are those of Zarr v3, ``V2Nodes`` those of Zarr v2, which shardstore passes through and verification checks. An
``ArrayPlan`` has the facts that are needed to work on an array's objects, and is small enough to travel with every task.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from shardstore.engine.engine import Engine
from shardstore.engine.metadata.hierarchy import Node
from shardstore.errors import Corruption, InvalidInput, NotFound
from shardstore.format.append_record import record_place
from shardstore.format.chunk_coding import ChunkCoding, document_coding
from shardstore.format.chunk_keys import ChunkKeyEncoding, looks_like_chunk_key
from shardstore.format.codecs import codec_configuration, codec_name
from shardstore.format.json_text import JsonObject, NumberText, dumps, loads_object, same_text
from shardstore.format.metadata_v3 import METADATA_NAME, ArrayLayout, PlainArray, item_nbytes, parse_plain, sizes
from shardstore.format.object_layout import ObjectLayout
from shardstore.format.presentation import consolidated_arrays, present_array
from shardstore.format.store_keys import ancestors, join, metadata_key, metadata_path
from shardstore.format.v2.documents import array_from_v2
from shardstore.format.v2.keys import ARRAY_NAME, CONSOLIDATED_NAME, GROUP_NAME, document_key
from shardstore.model.chunks import ChunkCoords
from shardstore.model.containers import batched
from shardstore.storage.base import Found, Storage, document_read, unless_failed

_DOCUMENTS_AT_ONCE = 256
_MOST_ABSENT = 100_000  # directories that were asked for and are no nodes
_UNTELLING = ("attributes", "dimension_names")  # of how chunks are coded

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
class ShardTally:
    """Sums over the objects of one array; see ``survey.Usage``."""

    objects: int = 0
    objects_outside: int = 0
    stored_nbytes: int = 0
    chunks: int = 0
    chunk_nbytes: int = 0
    chunks_outside: int = 0
    chunk_nbytes_outside: int = 0
    index_nbytes: int = 0
    dead_nbytes: int = 0
    damaged_objects: int = 0
    other_objects: int = 0
    other_nbytes: int = 0

    def add_object(self, nbytes: int, is_inside: bool) -> None:
        if is_inside:
            self.objects += 1
        else:
            self.objects_outside += 1
        self.stored_nbytes += nbytes

    def add_chunk(self, nbytes: int, is_inside: bool) -> None:
        """Add an object that is one chunk."""
        self.add_object(nbytes, is_inside)
        self.add_chunks(int(is_inside), nbytes if is_inside else 0, int(not is_inside), 0 if is_inside else nbytes)

    def add_chunks(self, inside: int, inside_nbytes: int, outside: int, outside_nbytes: int) -> None:
        self.chunks += inside
        self.chunk_nbytes += inside_nbytes
        self.chunks_outside += outside
        self.chunk_nbytes_outside += outside_nbytes


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
    objects: ObjectLayout | None = field(init=False)
    """The layout of an array's objects, if its chunks can be identified."""

    def __post_init__(self) -> None:
        array = self.node.layout or self.node.plain
        self.objects = None if array is None else ObjectLayout.of(array)

    @property
    def is_array(self) -> bool:
        return self.node.kind in ("sharded", "array")

    def is_record(self, key: str) -> bool:
        """Return whether an object with this key is the record of appends to this array along one of its dimensions."""
        place = record_place(key) if self.is_array else None
        return place is not None and place[0] == self.node.path and place[1] in (self.facts.dimension_names or ())


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
                    if coords is not None or not any(looks_like_chunk_key(below) for _, below in ancestors(relative)):
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
            raise NotFound(f"there is no node at {where}, and nothing below it: check the address. Nodes are arrays and groups, not chunks")

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


# -- arrays whose objects can be identified ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ArrayPlan(ObjectLayout):
    """An array whose objects can be identified."""

    path: str
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    """The shape of a chunk, as presented."""
    layout: ArrayLayout | None
    """The layout of a sharded array."""
    coding: ChunkCoding
    document: bytes = b""
    """The presented document, in Zarr v3, without attributes; empty if the array's codecs have no counterpart there."""
    is_v2: bool = False

    def key(self, coords: ChunkCoords) -> str:
        """Return the stored key of the object at ``coords`` of the grid of objects."""
        return join(self.path, self.key_encoding.encode(coords))


def _plan(path: str, array: ArrayLayout | PlainArray, coding: ChunkCoding, document: bytes = b"", *, is_v2: bool = False) -> ArrayPlan:
    objects, layout = ObjectLayout.of(array), array if isinstance(array, ArrayLayout) else None
    return ArrayPlan(
        objects.key_encoding,
        objects.chunk_grid,
        objects.index_format,
        path=path,
        shape=array.shape,
        chunk_shape=array.chunk_shape,
        layout=layout,
        coding=coding,
        document=document,
        is_v2=is_v2,
    )


def plan_array(node: Node, document: JsonObject | None) -> ArrayPlan | None:
    """Return the plan of a stored node of Zarr v3; ``None`` if it is no array, or its objects cannot be identified."""
    array = node.layout or node.plain
    if document is None or array is None:
        return None
    presented = present_array(document)
    # Below a transformer that stands on another, chunks are shards of the one above: nothing is known of their bytes.
    coding = ChunkCoding() if presented.get("storage_transformers") else document_coding(presented, array.chunk_shape)
    return _plan(node.path, array, coding, _telling(presented))


def plan_v2_array(path: str, zarray: JsonObject) -> ArrayPlan | None:
    """Return the plan of a stored array of Zarr v2; ``None`` if its objects cannot be identified."""
    shape = sizes(zarray.get("shape"), 0)
    chunk_shape = sizes(zarray.get("chunks"), 1, None if shape is None else len(shape))
    separator = zarray.get("dimension_separator") or "."
    if shape is None or chunk_shape is None or separator not in (".", "/"):
        return None
    plain = PlainArray(shape, chunk_shape, ChunkKeyEncoding("v2", "/" if separator == "/" else "."))
    try:
        presented = array_from_v2(zarray, None)
    except InvalidInput:
        return _plan(path, plain, ChunkCoding(), is_v2=True)
    return _plan(path, plain, document_coding(presented, chunk_shape), _telling(presented), is_v2=True)


def _telling(presented: JsonObject) -> bytes:
    document = {name: value for name, value in presented.items() if name not in _UNTELLING}
    plain = parse_plain(document)
    return b"" if isinstance(plain, str) else dumps(document)


# -- Zarr v2 ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class V2Document:
    """One of ``.zarray``, ``.zgroup``, ``.zattrs`` and ``.zmetadata``; ``None`` if it is no JSON object."""

    path: str
    name: Literal[".zarray", ".zgroup", ".zattrs", ".zmetadata"]
    document: JsonObject | None
    reason: str = ""


class V2Nodes:
    """Arrays by path, read when they are asked for."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._arrays: dict[str, ArrayPlan | None] = {}
        self._absent: set[str] = set()

    def arrays(self) -> list[ArrayPlan]:
        """Return the arrays that have been read, and whose objects can be identified, in the order of their paths."""
        return [plan for _, plan in sorted(self._arrays.items()) if plan is not None]

    async def owners(self, keys: Sequence[str]) -> list[tuple[ArrayPlan, ChunkCoords] | None]:
        """Return the outermost array of Zarr v2 that has an object at each key."""
        cuts = [[(path, rest) for path, rest in ancestors(key) if looks_like_chunk_key(rest)] for key in keys]
        await self.load(path for some in cuts for path, _ in some)
        return [self._owner(some) for some in cuts]

    def _owner(self, cuts: list[tuple[str, str]]) -> tuple[ArrayPlan, ChunkCoords] | None:
        for path, rest in cuts:
            plan = self._arrays.get(path)
            coords = plan.coords_of(rest) if plan is not None else None
            if plan is not None and coords is not None:
                return plan, coords
        return None

    def has_unreadable(self, key: str) -> bool:
        """Return whether an array above ``key`` does not show its objects: then the key may be one of them."""
        return any(path in self._arrays and self._arrays[path] is None for path, _ in ancestors(key))

    async def load(self, paths: Iterable[str]) -> None:
        """Read the arrays at ``paths``, if there are any. Raises ``StorageError`` if a request failed."""
        if len(self._absent) > _MOST_ABSENT:
            self._absent.clear()
        unknown = [path for path in dict.fromkeys(paths) if path not in self._arrays and path not in self._absent]
        for some in batched(unknown, _DOCUMENTS_AT_ONCE):
            for path, read in zip(some, await read_v2(self._storage, [join(path, ARRAY_NAME) for path in some]), strict=True):
                if read is None:
                    self._absent.add(path)
                else:
                    self._arrays[path] = None if read.document is None else plan_v2_array(path, read.document)


async def read_v2(storage: Storage, keys: Sequence[str]) -> list[V2Document | None]:
    """Return the documents at ``keys``, ``None`` if there is none. Raises ``StorageError`` if a request failed."""
    found: list[V2Document | None] = []
    outcomes = await storage.read([document_read(key) for key in keys])
    for key, outcome in zip(keys, outcomes, strict=True):
        outcome = unless_failed(outcome)
        named = document_key(key)
        if not isinstance(outcome, Found) or named is None:
            found.append(None)
            continue
        try:
            document, reason = loads_object(outcome.buffers[0]), ""
        except Corruption as exc:
            document, reason = None, str(exc)
        found.append(V2Document(named.path, named.name, document, reason))  # type: ignore[arg-type]  # a name of v2
    return found


async def is_stale_v2(storage: Storage, key: str, listed: Iterable[str]) -> bool:
    """Return whether the ``.zmetadata`` at ``key`` differs from the documents that it repeats, or lacks one of
    those that are ``listed``.
    """
    (read,) = await read_v2(storage, [key])
    metadata = None if read is None or read.document is None else read.document.get("metadata")
    if read is None or not isinstance(metadata, dict):
        return False  # gone, or another fault
    names = sorted(metadata)
    prefix = join(read.path, "")
    own = await read_v2(storage, [prefix + name for name in names])
    for name, one in zip(names, own, strict=True):
        repeated = metadata[name]
        if one is not None and one.name == GROUP_NAME and isinstance(repeated, dict):  # zarr-python 3 repeats more than it stores
            repeated = {member: value for member, value in repeated.items() if member != "consolidated_metadata"}
        if one is None or one.document is None or not same_text(one.document, repeated):
            return True
    below = (key[len(prefix) :] for key in listed if key.startswith(prefix) and not key.endswith(CONSOLIDATED_NAME))
    return any(name not in metadata for name in below)
