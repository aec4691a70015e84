"""Differences between two snapshots, or between a session and the snapshot that it began with."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from shardstore.format.snapshots.manifest import GONE
from shardstore.format.snapshots.structure import Node, NodeChanges
from shardstore.model.chunks import ChunkCoords
from shardstore.snapshots.chunk_files import ABSENT, ChunkPlaces
from shardstore.snapshots.session import SessionCore, ndim_of


@dataclass(frozen=True, slots=True)
class Diff:
    """The changes: nodes by their paths, chunks by their coordinates."""

    new_groups: frozenset[str]
    new_arrays: frozenset[str]
    deleted_groups: frozenset[str]
    deleted_arrays: frozenset[str]
    updated_groups: frozenset[str]
    """Groups whose documents differ, attributes included."""
    updated_arrays: frozenset[str]
    moved_nodes: tuple[tuple[str, str], ...]
    """Each node that was moved: its path before, and its path now."""
    updated_chunks: Mapping[str, list[ChunkCoords]]
    """The chunks of each array that were written or erased, in order; by the path that the array has now."""

    def __bool__(self) -> bool:
        return any(getattr(self, one.name) for one in fields(self))

    def __str__(self) -> str:
        lines = [
            f"{title}: {', '.join(path or '/' for path in sorted(paths))}"
            for title, paths in (
                ("new groups", self.new_groups),
                ("new arrays", self.new_arrays),
                ("deleted groups", self.deleted_groups),
                ("deleted arrays", self.deleted_arrays),
                ("updated groups", self.updated_groups),
                ("updated arrays", self.updated_arrays),
            )
            if paths
        ]
        lines += [f"moved: {before or '/'} to {after}" for before, after in self.moved_nodes]
        lines += [f"{path or '/'}: {len(chunks)} chunks changed" for path, chunks in self.updated_chunks.items()]
        return "\n".join(lines) or "nothing differs"


async def status(session: SessionCore) -> Diff:
    chunks = {array: coords for array, coords in session.changed_chunks().items() if len(coords)}
    return _diff(session.base.nodes, session.nodes, chunks)


async def diff(before: SessionCore, after: SessionCore) -> Diff:
    """Return what differs between two snapshots, given by sessions that show them. Only manifests that they do not share are read."""
    was, now = ({node.id: node for node in session.nodes.values() if node.is_array} for session in (before, after))
    arrays = [one for one in now if one not in was or was[one].manifests != now[one].manifests]
    changed = await asyncio.gather(*(changed_chunks(before, after, was.get(one), now[one]) for one in arrays))
    return _diff(before.nodes, after.nodes, {one: coords for one, coords in zip(arrays, changed, strict=True) if len(coords)})


async def changed_chunks(before: SessionCore, after: SessionCore, was: Node | None, now: Node) -> npt.NDArray[np.uint64]:
    """Return the chunks of an array that are elsewhere, or in one of two snapshots only."""
    shared = set(was.manifests) & set(now.manifests) if was is not None else set()
    asked = [part for node in (was, now) if node is not None for part in node.manifests if part not in shared]
    found = await asyncio.gather(*(after.files.refs_of(part.file, now.id, ndim_of(now)) for part in asked))
    pieces = [refs.coords for refs in found]
    if not pieces:
        return np.zeros((0, ndim_of(now)), dtype=np.uint64)
    coords = np.concatenate(pieces)
    coords = coords[:1] if not coords.shape[1] else np.unique(coords, axis=0)
    there = _identities(await after.places(now, coords))
    if was is None:
        return coords[[one is not None for one in there]]
    return coords[[a != b for a, b in zip(_identities(await before.places(was, coords)), there, strict=True)]]


def _identities(places: ChunkPlaces) -> list[object]:
    """Return for each chunk a value that is equal only for the same bytes; ``None`` where there is no chunk."""
    files = places.file.tolist()
    found: list[object] = []
    for number, (file, offset, nbytes) in enumerate(zip(files, places.offset.tolist(), places.nbytes.tolist(), strict=True)):
        if file in (GONE, ABSENT):
            found.append(None)
        else:
            found.append(places.data[number] if file < 0 else (places.files[file], places.checks.get(file), offset, nbytes))
    return found


def _diff(before: Mapping[str, Node], after: Mapping[str, Node], chunks: Mapping[int, npt.NDArray[np.uint64]]) -> Diff:
    changes = NodeChanges.between(before, after)
    was, now = {node.id: node for node in before.values()}, {node.id: node for node in after.values()}
    updated = changes.updated | changes.attributes

    def paths(of: Mapping[int, Node], ids: Iterable[int], *, arrays: bool) -> frozenset[str]:
        return frozenset(of[one].path for one in ids if of[one].is_array is arrays)

    by_path = {now[one].path: sorted(set(map(tuple, coords.tolist()))) for one, coords in chunks.items()}
    return Diff(
        paths(now, changes.created, arrays=False),
        paths(now, changes.created, arrays=True),
        paths(was, changes.deleted, arrays=False),
        paths(was, changes.deleted, arrays=True),
        paths(now, updated, arrays=False),
        paths(now, updated, arrays=True),
        tuple(sorted(changes.moved.values())),
        dict(sorted(by_path.items())),
    )
