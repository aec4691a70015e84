"""The history of a repository of icechunk, of version 2: snapshots in order, the nodes of each, and where the chunks of each array lie.

Whole snapshots are read, and compared by the import: where a history has expired, icechunk's own difference of two snapshots says
only what the later one has done.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from shardstore.errors import Corruption, NotFound, StorageError, Unsupported
from shardstore.format.snapshots.manifest import CoordSearch
from shardstore.references.icechunk.blocks import Coords
from shardstore.references.icechunk.library import get_bytes, is_major_2, library
from shardstore.references.icechunk.places import Options, place_of, storage_at

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
        there = _find(before.coords, self.coords)
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
        return self.rows(np.flatnonzero(is_new)), before.coords[_find(self.coords, before.coords) < 0]


def _find(coords: Coords, wanted: Coords) -> npt.NDArray[np.intp]:
    if not wanted.shape[1]:  # the only chunk of an array of no dimensions
        return np.full(len(wanted), 0 if len(coords) else -1, dtype=np.intp)
    return CoordSearch(coords).find(wanted)


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
    """Return the history of a repository."""
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


async def document_of(store: Any, path: str) -> bytes:
    """Return the document of a node."""
    key = f"{path}/zarr.json" if path else "zarr.json"
    return await _existing(store, key)


async def chunk_of(store: Any, key: str) -> bytes:
    """Return the bytes of a chunk."""
    return await _existing(store, key)


async def _existing(store: Any, key: str) -> bytes:
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
    coords = np.concatenate(
        [np.zeros((0, ndim), dtype=np.uint64), *(np.asarray(one[0], np.uint64).reshape(-1, ndim) for one in batches if ndim)]
    )
    if not ndim:
        coords = np.zeros((n, 0), dtype=np.uint64)
    kinds = np.concatenate([np.zeros(0, dtype=np.uint8), *(one[1] for one in batches)])
    offsets = np.concatenate([np.zeros(0, dtype=np.uint64), *(one[3] for one in batches)])
    lengths = np.concatenate([np.zeros(0, dtype=np.uint64), *(one[4] for one in batches)])
    order = np.lexsort(coords.T[::-1]) if ndim else np.arange(n)
    ordered = {place: inline[row] for place, row in enumerate(order.tolist()) if row in inline} if inline else {}
    return SourceChunks(coords[order], kinds[order], np.array(paths, dtype=object)[order], offsets[order], lengths[order], ordered)
