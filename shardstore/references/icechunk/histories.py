"""The history of a repository of icechunk, of version 2: snapshots in order, the nodes of each, and where the chunks of each array lie;
chunks inside of chunks; and the origin of a commit.

Whole snapshots are read, and compared by the import: where a history has expired, icechunk's own difference of two snapshots says
only what the later one has done.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from shardstore.errors import Corruption, InvalidInput, NotFound, StorageError, Unsupported
from shardstore.format.json_text import JsonObject
from shardstore.format.metadata_v3 import ArrayLayout, mentions_sharding, parse_layout
from shardstore.format.presentation import present_array
from shardstore.format.shard_index import ShardIndex
from shardstore.format.snapshots.manifest import CoordSearch
from shardstore.references.icechunk.library import Options, get_bytes, is_major_2, library, place_of, storage_at

Coords = npt.NDArray[np.uint64]
"""``(n, ndim)`` positions in the grid of an array's chunks."""

NATIVE, VIRTUAL, INLINE = 1, 2, 3
"""The values of ``icechunk.ChunkType``."""

_INTERNAL = ("__root", "__icechunk")
"""Members of metadata in which icechunk notes something for itself."""


@dataclass(frozen=True, slots=True)
class SourceSnapshot:
    """One snapshot."""

    id: str
    parent: str | None
    written_at: datetime
    message: str
    metadata: Mapping[str, Any]
    is_initial: bool
    """True for the one that every repository begins with, which holds nothing."""


@dataclass(frozen=True, slots=True)
class SourceHistory:
    """All snapshots to which branches and tags lead, and these, by name."""

    snapshots: tuple[SourceSnapshot, ...]
    """Each behind its parent; else in the order of their times."""
    branches: Mapping[str, str]
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SourceNode:
    """A node of one snapshot."""

    id: str
    """Stays over history and through renames."""
    path: str
    """``""`` for the root."""
    is_array: bool
    manifests: Any
    """Which manifests have its chunks. Manifests never change, so two equal ones mean the same chunks."""


@dataclass(frozen=True, slots=True, eq=False)
class SourceChunks:
    """Where the chunks of an array lie, ``(n,)`` each, in the order of their coordinates."""

    coords: Coords
    kinds: npt.NDArray[np.uint8]
    paths: npt.NDArray[np.object_]
    """The URL of a virtual chunk as icechunk has it, the id of a native one."""
    offsets: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.uint64]
    inline: Mapping[int, bytes]
    """By row."""

    def __len__(self) -> int:
        return len(self.coords)

    def inside(self, grid: tuple[int, ...]) -> SourceChunks:
        """Return the chunks inside of an array's grid: chunks outside of it are never read."""
        return self.rows(np.flatnonzero((self.coords < np.array(grid, dtype=np.uint64)).all(axis=1)))

    def rows(self, rows: npt.NDArray[np.intp]) -> SourceChunks:
        """Return the chunks in these rows, which ascend."""
        if len(rows) == len(self):
            return self
        inline = {place: self.inline[row] for place, row in enumerate(rows.tolist()) if row in self.inline}
        return SourceChunks(self.coords[rows], self.kinds[rows], self.paths[rows], self.offsets[rows], self.lengths[rows], inline)

    def since(self, before: SourceChunks) -> tuple[SourceChunks, Coords]:
        """Return the chunks that ``before`` does not have, or has elsewhere; and those that only ``before`` has."""
        there = CoordSearch(before.coords).find(self.coords)
        known = np.flatnonzero(there >= 0)
        old = there[known]
        same = np.ones(len(known), dtype=np.bool_)
        for mine, theirs in ((self.kinds, before.kinds), (self.paths, before.paths), (self.offsets, before.offsets)):
            same &= mine[known] == theirs[old]
        same &= self.lengths[known] == before.lengths[old]
        for place in np.flatnonzero(same & (self.kinds[known] == INLINE)).tolist():
            same[place] = self.inline[int(known[place])] == before.inline[int(old[place])]
        is_new = np.ones(len(self), dtype=np.bool_)
        is_new[known[same]] = False
        return self.rows(np.flatnonzero(is_new)), before.coords[CoordSearch(self.coords).find(before.coords) < 0]


def opened_source(source: Any, options: Options) -> tuple[Any, str | None]:
    """Return a repository of icechunk and the URL of its files, if that is known.

    Raises:
        InvalidInput: the source is none.
        NotFound: there is none at the source.
        Unsupported: icechunk is not installed, or of a version that does not say where chunks lie.
    """
    icechunk = library()
    if not is_major_2(icechunk):
        raise Unsupported(
            f"icechunk {icechunk.__version__} does not say where its chunks lie: import with icechunk 2, which needs Python 3.12 or newer, "
            "and reads repositories that icechunk 1 has written too"
        )
    if isinstance(source, icechunk.Repository):
        return source, place_of(source.storage)
    storage = storage_at(source, options)
    place = place_of(storage)
    if place is None and isinstance(source, str):
        place = source.rstrip("/")
    try:
        return icechunk.Repository.open(storage), place
    except icechunk.RepositoryNotFoundError as exc:
        raise NotFound(f"there is no repository of icechunk at {place or ' '.join(str(storage).split())}") from exc


def history_of(repository: Any) -> SourceHistory:
    branches = {name: repository.lookup_branch(name) for name in sorted(repository.list_branches())}
    tags = {name: repository.lookup_tag(name) for name in sorted(repository.list_tags())}
    found: dict[str, SourceSnapshot] = {}
    for tip in dict.fromkeys((*branches.values(), *tags.values())):
        for info in repository.ancestry(snapshot_id=tip):
            if info.id in found:
                break
            metadata = {name: value for name, value in dict(info.metadata or {}).items() if name not in _INTERNAL}
            is_initial = info.parent_id is None and any(name in _INTERNAL for name in dict(info.metadata or {}))
            found[info.id] = SourceSnapshot(info.id, info.parent_id, info.written_at, info.message, metadata, is_initial)
    return SourceHistory(_in_order(found), branches, tags)


def _in_order(found: Mapping[str, SourceSnapshot]) -> tuple[SourceSnapshot, ...]:
    """Return snapshots, each behind its parent, else by time: clocks of several writers may contradict the order of parents."""
    children: dict[str | None, list[SourceSnapshot]] = {}
    for one in found.values():
        if one.parent is not None and one.parent not in found:
            raise Corruption(f"snapshot {one.id} of the repository of icechunk follows {one.parent}, which is not in its ancestry")
        children.setdefault(one.parent, []).append(one)
    ready = [(one.written_at, one.id) for one in children.get(None, [])]
    heapq.heapify(ready)
    ordered: list[SourceSnapshot] = []
    while ready:
        _, id_ = heapq.heappop(ready)
        ordered.append(found[id_])
        for child in children.get(id_, []):
            heapq.heappush(ready, (child.written_at, child.id))
    return tuple(ordered)


async def nodes_of(repository: Any, snapshot: str) -> dict[str, SourceNode]:
    """Return the nodes of a snapshot by path. Raises ``Unsupported`` if icechunk describes them in a way that is not known here."""
    found: dict[str, SourceNode] = {}
    try:
        # Not the synchronous twin: that keeps Python's lock while it waits for the storage.
        for said in (await repository.inspect_snapshot_async(snapshot))["nodes"]:
            path = str(said["path"]).strip("/")
            is_array = {"array": True, "group": False}[said["node_type"]]
            found[path] = SourceNode(str(said["id"]), path, is_array, said["manifest_refs"] if is_array else None)
    except (KeyError, TypeError, AttributeError) as exc:
        raise Unsupported(
            f"icechunk {library().__version__} describes a snapshot in a way that is not known here ({type(exc).__name__}: {exc}): import "
            "with icechunk 2.3"
        ) from exc
    return found


async def value_of(store: Any, key: str) -> bytes:
    """Return the bytes of a document, or of a chunk, that is there."""
    data = await get_bytes(store, key)
    if data is None:
        raise StorageError(f"the repository of icechunk has no {key!r}, though its snapshot says so: look whether it was collected")
    return data


async def chunks_of(store: Any, path: str, ndim: int) -> SourceChunks:
    """Return where the chunks of an array lie."""
    batches: list[tuple[Any, ...]] = [batch async for batch in store.array_chunk_iterator(f"/{path}")]
    inline: dict[int, bytes] = {}
    paths: list[str] = []
    for batch in batches:
        inline |= {len(paths) + row: bytes(data) for row, data in batch[5].items()}
        paths += batch[2]
    n = len(paths)
    coords = np.zeros((n, 0), dtype=np.uint64)
    if ndim:
        coords = np.concatenate([coords.reshape(0, ndim), *(np.asarray(one[0], np.uint64).reshape(-1, ndim) for one in batches)])
    kinds = np.concatenate([np.zeros(0, dtype=np.uint8), *(one[1] for one in batches)])
    offsets, lengths = (np.concatenate([np.zeros(0, dtype=np.uint64), *(one[at] for one in batches)]) for at in (3, 4))
    order = np.lexsort(coords.T[::-1]) if ndim else np.arange(n)
    ordered = {place: inline[row] for place, row in enumerate(order.tolist()) if row in inline} if inline else {}
    return SourceChunks(coords[order], kinds[order], np.array(paths, dtype=object)[order], offsets[order], lengths[order], ordered)


# -- chunks inside of chunks -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShownArray:
    """An array of icechunk, which knows a shard of ``sharding_indexed`` as one chunk, with the inner chunks as its chunks."""

    document: JsonObject
    """The presented one."""
    layout: ArrayLayout | None
    """That of its shards; ``None`` if it has none."""

    @property
    def chunk_grid(self) -> tuple[int, ...]:
        """The number of presented chunks along each dimension."""
        chunk_shape = self.document["chunk_grid"]["configuration"]["chunk_shape"]
        return tuple(-(-size // chunk) for size, chunk in zip(self.document["shape"], chunk_shape, strict=True))

    @property
    def object_grid(self) -> tuple[int, ...]:
        """The number of chunks along each dimension that icechunk has."""
        if self.layout is None:
            return self.chunk_grid
        return tuple(-(-size // chunk) for size, chunk in zip(self.layout.shape, self.layout.shard_shape, strict=True))

    def has_same_chunks(self, other: ShownArray) -> bool:
        """Return whether the chunks of icechunk have the same coordinates, and what is inside of them is arranged in the same way."""
        mine, theirs = self.document, other.document
        if len(mine["shape"]) != len(theirs["shape"]) or mine["chunk_grid"] != theirs["chunk_grid"]:
            return False
        formats = [None if one.layout is None else one.layout.index_format for one in (self, other)]
        return formats[0] == formats[1]


def shown_array(document: JsonObject, path: str) -> ShownArray:
    """Return how an array of icechunk is shown. Raises ``InvalidInput`` if its chunks are not known."""
    grid = document.get("chunk_grid")
    if not isinstance(grid, dict) or grid.get("name") != "regular":
        raise InvalidInput(f"the chunk grid of array {path!r} is not regular, which a versioned store does not hold: {grid!r}")
    if not mentions_sharding(document.get("codecs")):
        return ShownArray(document, None)
    layout = parse_layout(document)
    if isinstance(layout, str):
        raise InvalidInput(f"the shards of array {path!r} cannot be read chunk by chunk, which a versioned store needs: {layout}")
    shown = present_array(document)
    if mentions_sharding(shown.get("codecs")):
        raise InvalidInput(f"array {path!r} has shards inside of shards, which a versioned store does not hold: write it again in Icechunk")
    return ShownArray(shown, layout)


@dataclass(frozen=True, slots=True, eq=False)
class InnerChunks:
    """The chunks inside of some shards, ``(n,)`` each; ``exists`` is false for those that are empty."""

    coords: Coords
    shard: npt.NDArray[np.intp]
    """The number of each chunk's shard among those that were given."""
    offsets: npt.NDArray[np.uint64]
    """The first byte in the shard."""
    lengths: npt.NDArray[np.uint64]
    exists: npt.NDArray[np.bool_]


def inner_chunks(layout: ArrayLayout, shards: Coords, indices: Mapping[int, ShardIndex], nbytes: npt.NDArray[np.uint64]) -> InnerChunks:
    """Return all positions inside of shards that lie in the array; of a shard without an index all are empty.

    ``nbytes``: the length of each shard, ``(n,)``. Raises ``Corruption`` if an entry of an index cannot be right.
    """
    counts = np.array(layout.index_format.chunks_per_shard, dtype=np.uint64)
    nslots = int(counts.prod())
    slots = np.indices(layout.index_format.chunks_per_shard, dtype=np.uint64).reshape(len(counts), nslots).T
    coords = (shards[:, None, :] * counts + slots[None]).reshape(-1, len(counts))
    entries = np.zeros((len(shards), nslots, 2), dtype=np.uint64)
    exists = np.zeros((len(shards), nslots), dtype=np.bool_)
    for number, index in indices.items():
        places = index.places(np.arange(nslots), int(nbytes[number]))
        for slot in np.flatnonzero(places.is_damaged)[:1].tolist():
            index.location(slot, int(nbytes[number]))  # raises, and says why
        exists[number] = places.exists
        entries[number, :, 0], entries[number, :, 1] = places.offsets, places.nbytes
    inside = np.flatnonzero((coords < np.array(layout.chunk_grid_shape, dtype=np.uint64)).all(axis=1))
    inside = inside[np.lexsort(coords[inside].T[::-1])] if len(counts) else inside
    flat, is_there = entries.reshape(-1, 2)[inside], exists.reshape(-1)[inside]
    return InnerChunks(
        coords[inside],
        (inside // nslots).astype(np.intp),
        np.where(is_there, flat[:, 0], 0).astype(np.uint64),
        np.where(is_there, flat[:, 1], 0).astype(np.uint64),
        is_there,
    )


# -- origins -----------------------------------------------------------------------------------------------------------


# In the metadata of a commit: the snapshot of a versioned store that an export has written it of.
# {"shardstore.snapshot": "1CZ3…", "shardstore.parent": "9B2W…" or null, "shardstore.written_at": "2026-01-31T09:30:00.123000+00:00"}
_SNAPSHOT, _PARENT, _WRITTEN_AT = "shardstore.snapshot", "shardstore.parent", "shardstore.written_at"
_ID = re.compile(r"[0-9A-HJKMNP-TV-Z]{20}")


@dataclass(frozen=True, slots=True)
class Origin:
    """The snapshot of which a commit was made."""

    snapshot: str
    parent: str | None
    written_at: datetime


def origin_metadata(snapshot: str, parent: str | None, written_at: datetime) -> dict[str, Any]:
    """Return the members of a commit's metadata that say of which snapshot it is."""
    return {_SNAPSHOT: snapshot, _PARENT: parent, _WRITTEN_AT: written_at.isoformat()}


def origin_in(metadata: Mapping[str, Any]) -> Origin | None:
    """Return what a commit's metadata says of its origin; ``None`` if it says nothing, or nothing that an export would have written."""
    snapshot, parent, written_at = metadata.get(_SNAPSHOT), metadata.get(_PARENT), metadata.get(_WRITTEN_AT)
    if not isinstance(snapshot, str) or not _ID.fullmatch(snapshot) or not isinstance(written_at, str) or _PARENT not in metadata:
        return None
    if parent is not None and not isinstance(parent, str):
        return None
    try:
        when = datetime.fromisoformat(written_at)
    except ValueError:
        return None
    return None if when.tzinfo is None else Origin(snapshot, parent, when)


def without_origin(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metadata.items() if name not in (_SNAPSHOT, _PARENT, _WRITTEN_AT)}
