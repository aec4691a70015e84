"""Conflicts between what a session ("we") has changed and what other sessions ("they") have committed to its branch since.

::

    we \\ they        chunks              metadata     attributes                delete       move                create
    chunks           the same chunk      conflict     fine                      conflict     fine (ids stay)     –
    metadata         conflict            conflict     conflict                  conflict     fine                –
    attributes       fine                conflict     fine if other names       conflict     fine                –
    delete           conflict            conflict     conflict                  fine         fine                conflict below it
    move             fine                fine         fine                      conflict     elsewhere           conflict below it
    move into it     –                   –            –                         conflict     conflict            –
    create           –                   –            –                         its group    its group           the same path

With ``isolation="serializable"``, what the session has read counts too: that they have changed it is a conflict that no solver solves.
And a session cannot give up chunks for theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

import numpy as np
import numpy.typing as npt

from shardstore.errors import Conflict, InvalidInput
from shardstore.format.snapshots.manifest import CoordSearch
from shardstore.format.snapshots.structure import Node, NodeChanges
from shardstore.format.store_keys import groups_above
from shardstore.snapshots.read_set import ReadSet

Selection = Literal["fail", "ours", "theirs"]
_SELECTIONS = ("fail", "ours", "theirs")
_SHOWN = 5


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
    """One conflict."""

    conflict_type: ConflictType
    path: str
    conflicted_chunks: Sequence[tuple[int, ...]] = ()
    """The chunks that are concerned, where there are such."""

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
    """Brings a session onto what other sessions have committed if nothing contradicts it."""

    def chunks(self) -> Selection:
        """Return whose chunk counts where both have changed one."""
        return "fail"

    def may_delete(self, *, is_array: bool) -> bool:
        """Return whether a node may be deleted that they have changed."""
        return False


@dataclass(frozen=True, slots=True)
class BasicConflictSolver(ConflictDetector):
    """Like ``ConflictDetector``, but decides what has two answers: whose chunk counts, and whether what they changed may be deleted."""

    on_chunk_conflict: Selection = "ours"
    fail_on_delete_of_updated_array: bool = False
    fail_on_delete_of_updated_group: bool = False

    def __post_init__(self) -> None:
        if self.on_chunk_conflict not in _SELECTIONS:
            raise InvalidInput(f"on_chunk_conflict {self.on_chunk_conflict!r} is none of {', '.join(map(repr, _SELECTIONS))}")

    def chunks(self) -> Selection:
        return self.on_chunk_conflict

    def may_delete(self, *, is_array: bool) -> bool:
        return not (self.fail_on_delete_of_updated_array if is_array else self.fail_on_delete_of_updated_group)


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


def read_conflicts(reads: ReadSet, theirs: Side, before: Mapping[str, Node]) -> list[NodeConflict]:
    """Return what a session has read and they have changed."""
    found: list[NodeConflict] = []
    was = {node.id: node for node in before.values()}
    for array, coords in theirs.chunks.items():
        if array in was and len(hit := reads.chunks_read(array, coords)):
            found.append(NodeConflict(ConflictType.ReadOfUpdatedChunks, was[array].path, tuple(map(tuple, hit.tolist()))))
    changes = theirs.changes
    changed = changes.updated | changes.attributes | changes.deleted.keys() | changes.moved.keys()
    elsewhere = changes.updated | changes.deleted.keys() | changes.moved.keys()
    hit_nodes = {one for one in changed if reads.has_read_document(one)} | {one for one in elsewhere if reads.has_found(one)}
    paths = {was[one].path for one in changed} | set(changes.created.values()) | {after for _, after in changes.moved.values()}
    there = {*changes.created.values(), *changes.deleted.values(), *(path for both in changes.moved.values() for path in both)}
    hit_paths = {path for path in paths if path in reads.documents} | {path for path in there if reads.has_listed(path)}
    hit_paths |= {was[one].path for one in hit_nodes}
    found += [NodeConflict(ConflictType.ReadOfUpdatedNodes, path) for path in sorted(hit_paths)]
    return found


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
