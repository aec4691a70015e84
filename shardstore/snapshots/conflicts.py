"""Conflicts between what a session ("we") has changed and what other sessions ("they") have committed to its branch since.

::

    we \\ they        chunks              metadata     attributes                delete       move                create
    chunks           the same chunk      conflict     fine                      conflict     fine (ids stay)     –
    metadata         conflict            conflict*    conflict                  conflict     fine                –
    attributes       fine                conflict     fine if other names       conflict     fine                –
    delete           conflict            conflict     conflict                  fine         fine                conflict below it
    move             fine                fine         fine                      conflict     elsewhere           conflict below it
    move into it     –                   –            –                         conflict     conflict            –
    create           –                   –            –                         its group    its group           the same path

    * appends of both sides to the same arrays are joined by a ``BasicConflictSolver``, if no chunk has to be touched (``appends.py``)

With ``isolation="serializable"``, what the session has read counts too (``ReadSet``): that they have changed it is a conflict that no
solver solves. And a session cannot give up chunks for theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import prod
from typing import Literal

import numpy as np
import numpy.typing as npt

from shardstore.errors import Conflict, InvalidInput
from shardstore.format.metadata_v3 import parse_shown
from shardstore.format.snapshots.manifest import CoordSearch
from shardstore.format.snapshots.structure import Node, NodeChanges
from shardstore.format.store_keys import groups_above

Selection = Literal["fail", "ours", "theirs"]
_SELECTIONS = ("fail", "ours", "theirs")
_SHOWN = 5
_MOST_BITS = 1 << 33
"""A bitmap of 1 GiB: arrays with more chunks are remembered chunk by chunk."""


class ConflictType(StrEnum):
    """The kinds of conflicts: Icechunk's, and two of ``isolation="serializable"``."""

    NewNodeConflictsWithExistingNode = "a new node is where they have made one"
    NewNodeInInvalidGroup = "a new node is in a group that they have deleted or moved"
    ZarrMetadataDoubleUpdate = "both have changed the metadata"
    ZarrMetadataUpdateOfDeletedArray = "the metadata of an array that they have deleted was changed"
    ZarrMetadataUpdateOfDeletedGroup = "the metadata of a group that they have deleted was changed"
    ChunkDoubleUpdate = "both have changed chunks"
    ChunksUpdatedInDeletedArray = "chunks of an array that they have deleted were changed"
    ChunksUpdatedInUpdatedArray = "one has changed chunks, the other the metadata"
    DeleteOfUpdatedArray = "an array that they have changed was deleted"
    DeleteOfUpdatedGroup = "a group that they have changed was deleted"
    MoveOperationCannotBeRebased = "a node was moved that they have deleted, moved or put something into, or into a group that is gone"
    ReadOfUpdatedChunks = "chunks that were read have been changed by them"
    ReadOfUpdatedNodes = "a document or a listing that was read has been changed by them"


@dataclass(frozen=True, slots=True)
class NodeConflict:
    """One conflict: its kind, and the node that it concerns."""

    conflict_type: ConflictType
    path: str
    conflicted_chunks: Sequence[tuple[int, ...]] = ()
    """The chunks that both sessions have changed, if the conflict is about chunks."""

    def __str__(self) -> str:
        chunks = self.conflicted_chunks
        more = f" and {len(chunks) - _SHOWN} more" if len(chunks) > _SHOWN else ""
        which = f", chunks {', '.join(map(str, chunks[:_SHOWN]))}{more}" if chunks else ""
        return f"{self.path or '/'}: {self.conflict_type.value}{which}"


class ConflictError(Conflict):
    """Another session has committed to the branch first; nothing was committed, and the session still has its changes."""

    def __init__(self, message: str, conflicts: Sequence[NodeConflict] = ()) -> None:
        super().__init__(message)
        self.conflicts = tuple(conflicts)
        """The conflicts with what they have done; empty if there are none."""

    def __reduce__(self) -> tuple[type[ConflictError], tuple[str, Sequence[NodeConflict]]]:
        return type(self), (str(self), self.conflicts)


@dataclass(frozen=True, slots=True)
class ConflictDetector:
    """Bases a session on what other sessions have committed, if nothing there contradicts its changes."""

    def chunks(self) -> Selection:
        """Return whose chunk counts where both have changed one."""
        return "fail"

    def may_delete(self, *, is_array: bool) -> bool:
        """Return whether a node may be deleted that they have changed."""
        return False

    def joins_appends(self) -> bool:
        """Return whether our rows come behind theirs where both have appended to the same arrays."""
        return False


@dataclass(frozen=True, slots=True)
class BasicConflictSolver(ConflictDetector):
    """Like ``ConflictDetector``, but decides what has two answers: whose chunk counts, whether what they changed may be deleted, and whose
    rows come first where both have appended: theirs.
    """

    on_chunk_conflict: Selection = "ours"
    fail_on_delete_of_updated_array: bool = False
    fail_on_delete_of_updated_group: bool = False
    fail_on_append: bool = False

    def __post_init__(self) -> None:
        if self.on_chunk_conflict not in _SELECTIONS:
            raise InvalidInput(f"on_chunk_conflict {self.on_chunk_conflict!r} is not one of {', '.join(map(repr, _SELECTIONS))}")

    def chunks(self) -> Selection:
        return self.on_chunk_conflict

    def may_delete(self, *, is_array: bool) -> bool:
        return not (self.fail_on_delete_of_updated_array if is_array else self.fail_on_delete_of_updated_group)

    def joins_appends(self) -> bool:
        return not self.fail_on_append


@dataclass(slots=True)
class Side:
    """The changes of one side since the snapshot that both began with."""

    nodes: Mapping[str, Node]
    """The current ones, by path."""
    changes: NodeChanges
    chunks: Mapping[int, npt.NDArray[np.uint64]]
    """By array: ``(n, ndim)`` chunks that were written or erased."""
    by_id: dict[int, Node] = field(init=False)

    def __post_init__(self) -> None:
        self.by_id = {node.id: node for node in self.nodes.values()}


def find_conflicts(
    ours: Side, theirs: Side, before: Mapping[str, Node], solver: ConflictDetector, *, serializable: bool = False
) -> list[NodeConflict]:
    """Return what the solver does not solve; ``before`` are the nodes that both began with. Attributes that both have changed are left
    to ``merged_attributes``.

    A session that gives up chunks is not ``serializable``: it would have to come before theirs, who have not seen what is left of it.
    """
    was = {node.id: node for node in before.values()}
    chunks_fail = solver.chunks() == "fail" or (serializable and solver.chunks() == "theirs")
    return [
        *_chunk_conflicts(ours, theirs, fail=chunks_fail),
        *_document_conflicts(ours, theirs, was),
        *_deletion_conflicts(ours, theirs, was, solver),
        *_move_conflicts(ours, theirs),
        *_creation_conflicts(ours, theirs),
    ]


def double_chunks(ours: Side, theirs: Side, array: int) -> npt.NDArray[np.uint64]:
    """Return the chunks of an array that both have changed."""
    mine, other = ours.chunks.get(array), theirs.chunks.get(array)
    if mine is None or other is None or not len(mine) or not len(other):
        return np.zeros((0, 0), dtype=np.uint64)
    return mine[CoordSearch(_sorted(other)).find(mine) >= 0]


def _chunk_conflicts(ours: Side, theirs: Side, *, fail: bool) -> list[NodeConflict]:
    found: list[NodeConflict] = []
    for array, coords in ours.chunks.items():
        if not len(coords) or array in ours.changes.created:
            continue
        path = ours.by_id[array].path
        if array in theirs.changes.deleted:
            found.append(NodeConflict(ConflictType.ChunksUpdatedInDeletedArray, path))
        elif array in theirs.changes.updated:
            found.append(NodeConflict(ConflictType.ChunksUpdatedInUpdatedArray, path))
        elif fail and len(both := double_chunks(ours, theirs, array)):
            found.append(NodeConflict(ConflictType.ChunkDoubleUpdate, path, tuple(map(tuple, both.tolist()))))
    found += [
        NodeConflict(ConflictType.ChunksUpdatedInUpdatedArray, ours.by_id[array].path)
        for array in sorted(ours.changes.updated)
        if array in theirs.chunks and len(theirs.chunks[array]) and array not in theirs.changes.deleted
    ]
    return found


def _document_conflicts(ours: Side, theirs: Side, was: Mapping[int, Node]) -> list[NodeConflict]:
    found: list[NodeConflict] = []
    mine, other = ours.changes, theirs.changes
    for one in sorted(mine.updated | mine.attributes):
        path = ours.by_id[one].path
        if one in other.deleted:
            kind = ConflictType.ZarrMetadataUpdateOfDeletedArray if was[one].is_array else ConflictType.ZarrMetadataUpdateOfDeletedGroup
            found.append(NodeConflict(kind, path))
        elif one in other.updated or (one in mine.updated and one in other.attributes):
            found.append(NodeConflict(ConflictType.ZarrMetadataDoubleUpdate, path))
    return found


def _deletion_conflicts(ours: Side, theirs: Side, was: Mapping[int, Node], solver: ConflictDetector) -> list[NodeConflict]:
    found: list[NodeConflict] = []
    changed = theirs.changes.updated | theirs.changes.attributes | {array for array, coords in theirs.chunks.items() if len(coords)}
    for one, path in ours.changes.deleted.items():
        is_array = was[one].is_array
        kind = ConflictType.DeleteOfUpdatedArray if is_array else ConflictType.DeleteOfUpdatedGroup
        if one in changed and one not in theirs.changes.deleted and not solver.may_delete(is_array=is_array):
            found.append(NodeConflict(kind, path))
        there = theirs.by_id.get(one)
        if there is not None and not is_array and (news := _new_below(there.path, theirs, ours)):
            found += [NodeConflict(ConflictType.DeleteOfUpdatedGroup, new) for new in news]
    return found


def _move_conflicts(ours: Side, theirs: Side) -> list[NodeConflict]:
    found: list[NodeConflict] = []
    for one, (before, after) in ours.changes.moved.items():
        there, taken = theirs.by_id.get(one), theirs.nodes.get(after)
        is_elsewhere = theirs.changes.moved.get(one, (before, after))[1] != after
        is_taken = taken is not None and taken.id != one and not _moves_too(taken, ours)
        has_more = there is not None and not there.is_array and bool(_new_below(there.path, theirs, ours))
        if there is None or is_elsewhere or is_taken or has_more or _lacks_group(after, ours, theirs):
            found.append(NodeConflict(ConflictType.MoveOperationCannotBeRebased, before))
    return found


def _new_below(path: str, theirs: Side, ours: Side) -> list[str]:
    """Return the nodes below a path that they have made, or moved there, and that we know nothing of."""
    came = {*theirs.changes.created.values(), *(theirs.by_id[one].path for one in theirs.changes.moved if one in ours.by_id)}
    return sorted(new for new in came if new.startswith(f"{path}/") and (there := theirs.nodes.get(new)) and not _moves_too(there, ours))


def _moves_too(node: Node, ours: Side) -> bool:
    return node.id in ours.changes.moved or node.id in ours.changes.deleted


def _creation_conflicts(ours: Side, theirs: Side) -> list[NodeConflict]:
    found: list[NodeConflict] = []
    gone = {node.path for node in map(theirs.by_id.get, ours.changes.deleted) if node is not None}
    left = {node.path for node in map(theirs.by_id.get, ours.changes.moved) if node is not None}
    for one, path in ours.changes.created.items():
        there = theirs.nodes.get(path)
        if there is not None and path not in gone and path not in left and not _same_group(ours.by_id[one], there):
            found.append(NodeConflict(ConflictType.NewNodeConflictsWithExistingNode, path))
        elif _lacks_group(path, ours, theirs):
            found.append(NodeConflict(ConflictType.NewNodeInInvalidGroup, path))
    came = {*theirs.changes.created.values(), *(after for _, after in theirs.changes.moved.values())}
    # Below arrays that we bring; another array that is a group now, they have replaced.
    moved = {one: after for one, (_, after) in ours.changes.moved.items()}
    arrays = {path for one, path in {**ours.changes.created, **moved}.items() if ours.by_id[one].is_array}
    below = sorted(path for path in came if not arrays.isdisjoint(groups_above(path)))
    return found + [NodeConflict(ConflictType.NewNodeInInvalidGroup, path) for path in below]


def _lacks_group(path: str, ours: Side, theirs: Side) -> bool:
    """Return whether they have deleted, moved or replaced a group above a path to which we bring a node."""
    for group in groups_above(path):
        mine, other = ours.nodes.get(group), theirs.nodes.get(group)
        if mine is not None and (mine.id in ours.changes.created or mine.id in ours.changes.moved):
            continue  # it comes too
        if other is None or other.is_array:
            if other is not None or mine is not None:
                return True
        elif mine is not None and mine.id != other.id and not _same_group(mine, other):
            return True
    return False


def _same_group(mine: Node, other: Node) -> bool:
    """Return whether both have made the same group, which is then one."""
    return not mine.is_array and not other.is_array and mine.says_the_same(other)


def _sorted(coords: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    if coords.shape[1] == 0:
        return coords[:1]
    return np.unique(coords, axis=0)


# -- reads -------------------------------------------------------------------------------------------------------------


class _ReadChunks:
    """Chunks of one array: a bit each, or, of those that the grid does not have, one by one."""

    def __init__(self, node: Node) -> None:
        plain = parse_shown(node.document)
        counts = () if isinstance(plain, str) else tuple(-(-a // b) for a, b in zip(plain.shape, plain.chunk_shape, strict=True))
        is_small = not isinstance(plain, str) and 0 < prod(counts) <= _MOST_BITS
        self._counts = np.array(counts if is_small else (), dtype=np.uint64)
        self._strides = np.array([prod(counts[axis + 1 :]) for axis in range(len(counts))] if is_small else (), dtype=np.uint64)
        self._bits = np.zeros(-(-prod(counts) // 8) if is_small else 0, dtype=np.uint8)
        self._outside: set[tuple[int, ...]] = set()
        self.is_listed = False

    def add(self, coords: npt.NDArray[np.uint64]) -> None:
        inside = self._inside(coords)
        numbers = coords[inside] @ self._strides if inside.any() else np.zeros(0, dtype=np.uint64)
        np.bitwise_or.at(self._bits, (numbers >> np.uint64(3)).astype(np.intp), np.left_shift(1, numbers & np.uint64(7)).astype(np.uint8))
        self._outside.update(map(tuple, coords[~inside].tolist()))

    def among(self, coords: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Return those of ``(n, ndim)`` chunks that were read."""
        if self.is_listed:
            return coords
        inside = self._inside(coords)
        is_read = (
            np.array([tuple(one) in self._outside for one in coords.tolist()], dtype=np.bool_) if self._outside else np.zeros_like(inside)
        )
        if inside.any():
            numbers = coords[inside] @ self._strides
            bits = self._bits[(numbers >> np.uint64(3)).astype(np.intp)] >> (numbers & np.uint64(7)).astype(np.uint8)
            is_read[inside] |= (bits & 1).astype(np.bool_)
        return coords[is_read]

    def update(self, other: _ReadChunks) -> None:
        """Note everything that is noted in another one of the same array."""
        if np.array_equal(other._counts, self._counts):
            self._bits |= other._bits
        else:  # it has been resized in between
            self.is_listed = True
        self._outside |= other._outside
        self.is_listed |= other.is_listed

    def _inside(self, coords: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        if not len(self._bits) or coords.shape[1] != len(self._counts):
            return np.zeros(len(coords), dtype=np.bool_)
        inside: npt.NDArray[np.bool_] = np.all(coords < self._counts, axis=1)
        return inside


class ReadSet:
    """The nodes and chunks of its snapshot that a session has read: with ``isolation="serializable"``, a commit that changes them is a
    conflict.

    Chunks that the session has written before it read them are its own. A chunk that is not there was read too: that it was not there.
    """

    def __init__(self) -> None:
        self.documents: set[str] = set()
        """Paths of nodes whose documents were asked for, whether they are there or not, and of nodes that would have had a chunk."""
        self._nodes: set[int] = set()
        """Nodes whose documents were read, whatever path the session had moved them to."""
        self._found: set[int] = set()
        self._listed: set[str] = set()
        self._chunks: dict[int, _ReadChunks] = {}

    def read_document(self, path: str, node: Node | None) -> None:
        """Note that the document at a path was asked for, which is that of ``node``, if there is one."""
        self.documents.add(path)
        if node is not None:
            self._nodes.add(node.id)

    def read_attributes(self, node: Node) -> None:
        """Note that what is written depends on the document of a node."""
        self._nodes.add(node.id)

    def find(self, node: Node) -> None:
        """Note that a node was found at its path, to be moved or deleted, or to have chunks written."""
        self._found.add(node.id)

    def read_chunks(self, node: Node, coords: npt.NDArray[np.uint64]) -> None:
        self._chunks_of(node).add(coords)

    def list_chunks(self, node: Node) -> None:
        self._chunks_of(node).is_listed = True

    def list_nodes(self, prefix: str) -> None:
        """Note that the nodes below a prefix, which need not be a whole path, were listed."""
        self._listed.add(prefix)

    def update(self, other: ReadSet) -> None:
        """Note everything that is noted in another one."""
        self.documents |= other.documents
        self._nodes |= other._nodes
        self._found |= other._found
        self._listed |= other._listed
        for array, chunks in other._chunks.items():
            known = self._chunks.get(array)
            if known is None:
                self._chunks[array] = chunks
            else:
                known.update(chunks)

    def conflicts(self, theirs: Side, before: Mapping[str, Node]) -> list[NodeConflict]:
        """Return what was read and they have changed; ``before`` are the nodes that both began with."""
        found: list[NodeConflict] = []
        was = {node.id: node for node in before.values()}
        for array, coords in theirs.chunks.items():
            known = self._chunks.get(array)
            if array in was and known is not None and len(hit := known.among(coords)):
                found.append(NodeConflict(ConflictType.ReadOfUpdatedChunks, was[array].path, tuple(map(tuple, hit.tolist()))))
        changes = theirs.changes
        elsewhere = changes.updated | changes.deleted.keys() | changes.moved.keys()
        changed = elsewhere | changes.attributes
        hit_nodes = (changed & self._nodes) | (elsewhere & (self._found | self._chunks.keys()))  # read, or found at their paths
        paths = {was[one].path for one in changed} | set(changes.created.values()) | {after for _, after in changes.moved.values()}
        there = {*changes.created.values(), *changes.deleted.values(), *(path for both in changes.moved.values() for path in both)}
        hit_paths = (paths & self.documents) | {path for path in there if self._has_listed(path)} | {was[one].path for one in hit_nodes}
        return found + [NodeConflict(ConflictType.ReadOfUpdatedNodes, path) for path in sorted(hit_paths)]

    def _has_listed(self, path: str) -> bool:
        """Return whether a listing showed, or would have shown, the node at a path."""
        return any(f"{path}/".startswith(prefix) or prefix.startswith(f"{path}/") for prefix in self._listed)

    def _chunks_of(self, node: Node) -> _ReadChunks:
        if node.id not in self._chunks:
            self._chunks[node.id] = _ReadChunks(node)
        return self._chunks[node.id]
