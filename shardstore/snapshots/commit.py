"""Commits: all that a session has changed becomes a snapshot, at one moment, or nothing does.

::

    1  chunk files, manifest of the differences, attributes, structure, state      all in one round: nothing refers to them yet
    2  the catalog's pointer, swapped from the state that the session began with   the commit
       another commit was first:
           the branch is where it was      a new state file on top of theirs, and 2 again
           the branch has moved            a conflict; or the session is brought onto the new tip, if the caller says how, and 1 again

A writer that dies before 2 leaves files that nothing refers to. The order of states is total, since of two swaps from one state one
succeeds; so each snapshot's parent was the tip of its branch at the moment of its commit. Specification: Icechunk draft, "Commit".

Each commit adds to an array a small manifest, with what it changed: a level. Many are slow, so a commit merges some::

    base ▇▇▇▇▇▇▇▇▇▇▇▇   ▇▇▇▇▇ ▇▇ ▇ ▁ ▁ ▁ ▁   + ▁     the newest levels that together are about as large as the one before them become one

A reference is merged again only when its level has about doubled, so all in all as often as the logarithm of their number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shardstore.format.snapshots.file_names import ATTRIBUTES, MANIFESTS, STRUCTURES
from shardstore.format.snapshots.manifest import INLINE, NO_CHECK, WIDTHS, ChunkRefs, encode_manifest, merged, subset, without_gone
from shardstore.format.snapshots.manifest_groups import manifest_file
from shardstore.format.snapshots.state import KEEPS_VALUES
from shardstore.format.snapshots.structure import (
    MOST_INLINE_NBYTES,
    AttributesPlace,
    Extent,
    ManifestPart,
    Node,
    NodeChanges,
    Structure,
    encode_attributes,
    encode_structure,
)
from shardstore.snapshots.chunk_files import ChunkFile
from shardstore.snapshots.files import StoreFiles
from shardstore.snapshots.session import SessionCore
from shardstore.tasks import gather_all

MOST_LEVELS = 8
"""Levels that are read for one chunk, in addition to the one that a commit adds."""

MOST_MERGED_ROWS = 1 << 24
"""References that one commit reads and writes again at most, for one array."""

_IN_THREAD_ROWS = 10_000


@dataclass(slots=True)
class NewFile:
    """A file that has been encoded, and not stored yet."""

    key: str
    data: bytes


@dataclass(slots=True)
class Differences:
    """The references that a session has changed, as manifests."""

    parts: dict[int, list[ManifestPart]]
    """By array."""
    files: list[NewFile]


@dataclass(slots=True)
class PlannedCommit:
    """All that a session has changed, as files to be stored."""

    chunks: list[ChunkFile]
    name: str
    """That of the structure."""
    structure: Structure
    files: list[NewFile]
    """All but those of chunks."""

    @property
    def keys(self) -> list[str]:
        """The keys of the files, but for those of chunks."""
        return [one.key for one in self.files]


async def plan_commit(session: SessionCore, *, draft: bool, merges_all: bool = False, keeps_values: bool = False) -> PlannedCommit:
    """Return the files of a snapshot of all that a session has changed. Its chunks wait no more, unless an error is raised."""
    if "" not in session.nodes:  # it was deleted, and every snapshot has a root (D15)
        session.make_group("")
    chunks = session.gatherer.plan()
    try:
        new = await differences(session, draft=draft)
        changes = NodeChanges.between(session.base.nodes, session.nodes)
        name, structure, files = await _plan_structure(session, changes, new, draft=draft, merges_all=merges_all, keeps_values=keeps_values)
    except BaseException:
        session.gatherer.take_back(chunks)
        raise
    return PlannedCommit(chunks, name, structure, files)


async def store_commit(session: SessionCore, planned: PlannedCommit) -> None:
    """Store the files of a commit. All have ended when the first error is raised: chunks that are still on their way would seem stored to
    the next attempt.
    """
    await gather_all(session.gatherer.store(planned.chunks), store_all(session.files, planned.files))


async def differences(session: SessionCore, *, draft: bool) -> Differences:
    """Return the manifests of what a session has changed, to be stored; chunks that wait must have been planned."""
    arrays: dict[int, ChunkRefs] = {}
    for node in session.nodes.values():
        changes = session.changes.get(node.id)
        if changes and node.is_array:
            ndim = session.keys_of(node).ndim
            arrays[node.id] = await session.without_needless(node, changes.refs(ndim))
    return await _manifests(session.files, {one: refs for one, refs in arrays.items() if len(refs)}, draft=draft)


async def _plan_structure(
    session: SessionCore, changes: NodeChanges, new: Differences, *, draft: bool, merges_all: bool = False, keeps_values: bool = False
) -> tuple[str, Structure, list[NewFile]]:
    """Return the name and the structure of a session's nodes, whose manifests are those of its base, some of them merged, and the new ones;
    and the files that it needs in addition to those of chunks.

    ``keeps_values``: the new ones say only that chunks have moved.
    """
    merged_levels = await _merged_levels(session, new, draft=draft, merges_all=merges_all)
    nodes: dict[str, Node] = {}
    for path, node in session.nodes.items():
        parts = (*merged_levels.parts.get(node.id, node.manifests), *new.parts.get(node.id, ()))
        nodes[path] = node if parts == node.manifests else replace(node, manifests=tuple(parts))
    files = [*new.files, *merged_levels.files]
    long_attributes = [
        (path, data) for path, node in nodes.items() if (data := node.columns.attributes) is not None and len(data) > MOST_INLINE_NBYTES
    ]
    rows = session.files.draft_row + 1 if draft else len(long_attributes)
    for start in range(0, len(long_attributes), max(1, rows)):
        name, some = session.files.new_name(), long_attributes[start : start + rows]
        files.append(NewFile(ATTRIBUTES + name, encode_attributes([data for _, data in some])))
        for row, (path, _) in enumerate(some):
            node = nodes[path]
            nodes[path] = replace(node, columns=replace(node.columns, attributes=None), attributes=AttributesPlace(name, row))
    ordered = dict(sorted(nodes.items(), key=lambda item: item[0].split("/") if item[0] else []))
    said = changes.to_json([] if keeps_values else list(dict.fromkeys(part.file.name for parts in new.parts.values() for part in parts)))
    structure = Structure(ordered, said)
    name = session.files.new_name()
    files.append(NewFile(STRUCTURES + name, encode_structure(ordered.values(), said, draft=draft)))
    return name, structure, files


async def store_all(files: StoreFiles, new: Sequence[NewFile]) -> None:
    """Store files, all at once; the first error is raised when all have ended."""
    await gather_all(*(files.write(one.key, [one.data]) for one in new))


async def _merged_levels(session: SessionCore, new: Differences, *, draft: bool, merges_all: bool) -> Differences:
    """Merge older manifests of the arrays that get a new one, where they have become many, or of all arrays; return all that such an array
    keeps.
    """
    arrays: dict[int, ChunkRefs] = {}
    kept: dict[int, list[ManifestPart]] = {}
    for node in session.nodes.values():
        if node.id not in new.parts and not merges_all:
            continue
        levels = levels_of(node.manifests)
        rows = [sum(part.file.rows for part in level) for level in levels]
        first = first_of_all(rows) if merges_all else first_to_merge(rows)
        if first is None:
            continue
        whole = await _refs_of_levels(session, node, levels[first:])
        kept[node.id] = [part for level in levels[:first] for part in level]
        if whole is not None:
            arrays[node.id] = without_gone(whole) if not first else whole
    found = await _manifests(session.files, {one: refs for one, refs in arrays.items() if len(refs)}, draft=draft)
    return Differences({one: [*parts, *found.parts.get(one, ())] for one, parts in kept.items()}, found.files)


async def _refs_of_levels(session: SessionCore, node: Node, levels: Sequence[Sequence[ManifestPart]]) -> ChunkRefs | None:
    """Return what levels of an array's manifests say together, the oldest first: of one chunk, the newest counts."""
    whole: ChunkRefs | None = None
    for part in (part for level in levels for part in level):
        newer = await session.files.refs_of(part.file, node.id, session.keys_of(node).ndim)
        whole = newer if whole is None else merged(whole, newer)
    return whole


async def _manifests(files: StoreFiles, arrays: Mapping[int, ChunkRefs], *, draft: bool) -> Differences:
    """Return manifests with these references, as few as may be."""
    parts: dict[int, list[ManifestPart]] = {}
    new: list[NewFile] = []
    pieces = divided(arrays, files.manifest_rows, files.draft_row if draft else files.manifest_rows, files.column_nbytes)
    run = files.new_name() if len(pieces) > 1 else ""
    for piece in pieces:
        rows = sum(map(len, piece.values()))
        data: bytes
        if rows > _IN_THREAD_ROWS:
            data = await asyncio.to_thread(encode_manifest, piece, draft=draft)
        else:
            data = encode_manifest(piece, draft=draft)
        name = files.new_name()
        file = manifest_file(name, data, rows, run)
        new.append(NewFile(MANIFESTS + name, data))
        files.keep_refs(file, piece)
        row = 0
        for array in sorted(piece):
            parts.setdefault(array, []).append(ManifestPart(file, row, extent_of(piece[array].coords)))
            row += len(piece[array])
    return Differences(parts, new)


def divided(arrays: Mapping[int, ChunkRefs], most: int, last_begin: int, most_nbytes: int) -> list[dict[int, ChunkRefs]]:
    """Divide references among manifests of up to ``most`` rows, of which no column has much more than ``most_nbytes``, and in which no
    array begins behind row ``last_begin``.
    """
    pieces: list[dict[int, ChunkRefs]] = []
    rows = nbytes = 0
    for array in sorted(arrays):
        refs = arrays[array]
        ends = np.cumsum(_nbytes_of_rows(refs))
        at = before = 0
        while at < len(refs):
            taken = min(most - rows, int(np.searchsorted(ends, before + most_nbytes - nbytes, "right")) - at, len(refs) - at)
            if not pieces or taken < 1 or rows > last_begin:
                if not pieces or rows:
                    pieces.append({})
                    rows = nbytes = 0
                    continue
                taken = 1  # longer than what there is room for, by itself
            pieces[-1][array] = refs if taken == len(refs) else subset(refs, np.arange(at, at + taken))
            at, rows, nbytes, before = at + taken, rows + taken, nbytes + int(ends[at + taken - 1]) - before, int(ends[at + taken - 1])
    return pieces


def _nbytes_of_rows(refs: ChunkRefs) -> npt.NDArray[np.int64]:
    """Return about the bytes of each row, ``(n,)``, in the column in which it has most."""
    of_files = [max(_nbytes_of(file), _nbytes_of(refs.checks.get(number, NO_CHECK).etag or "")) for number, file in enumerate(refs.files)]
    found: npt.NDArray[np.int64] = np.array([*of_files, 0, 0], dtype=np.int64)[
        refs.file
    ]  # the last two are of chunks that are gone, or in the manifest
    is_inline = refs.file == INLINE
    found[is_inline] = refs.nbytes[is_inline]
    return found.clip(min=refs.coords.shape[1] * max(WIDTHS))


def _nbytes_of(value: bytes | str) -> int:
    return len(value) if isinstance(value, bytes) or value.isascii() else 4 * len(value)


def extent_of(coords: npt.NDArray[np.uint64]) -> Extent:
    """Return the box around ``(n, ndim)`` chunks, at least one."""
    low: list[int] = coords.min(axis=0).tolist()
    high: list[int] = coords.max(axis=0).tolist()
    return tuple((first, last + 1) for first, last in zip(low, high, strict=True))


def properties(message: str, metadata: Mapping[str, Any] | None, writer: str, *, keeps_values: bool = False) -> dict[str, Any]:
    """Return the properties of a new snapshot (D9)."""
    said = {"message": message, **({"metadata": dict(metadata)} if metadata else {}), "writer": writer}
    return {**said, KEEPS_VALUES: True} if keeps_values else said


# -- levels -----------------------------------------------------------------------------------------------------------


def levels_of(parts: Sequence[ManifestPart]) -> list[list[ManifestPart]]:
    """Return an array's manifests by level, the oldest first: those of one commit follow each other, and no chunk is in two of them."""
    levels: list[list[ManifestPart]] = []
    for part in parts:
        if levels and part.file.run and levels[-1][0].file.run == part.file.run:
            levels[-1].append(part)
        else:
            levels.append([part])
    return levels


def first_of_all(rows: Sequence[int]) -> int | None:
    """Return the first of the levels that can become one with all newer ones, however few there are; ``None`` if that changes nothing."""
    first, total = len(rows), 0
    while first > 0 and total + rows[first - 1] <= MOST_MERGED_ROWS:
        first -= 1
        total += rows[first]
    return first if first < len(rows) - 1 else None


def first_to_merge(rows: Sequence[int]) -> int | None:
    """Return the first of the levels, given by their numbers of references, that are to become one with all newer ones."""
    if len(rows) <= MOST_LEVELS - 1:
        return None
    first, total = len(rows) - 2, rows[-2] + rows[-1]
    if total > MOST_MERGED_ROWS:
        return None
    while first > 0 and rows[first - 1] <= 2 * total and total + rows[first - 1] <= MOST_MERGED_ROWS:
        first -= 1
        total += rows[first]
    return first
