"""Appends of both sides to the same arrays: a rebase puts them one behind the other, without reading or writing a chunk.

::

    both began with    | 0 1 2 3 | 4 5 6 7 |                             the old end is a border of chunks,
    they have          | 0 1 2 3 | 4 5 6 7 | a a a a |                   and so is the end of what they have added
    we have            | 0 1 2 3 | 4 5 6 7 | b b b b | b b
    after the rebase   | 0 1 2 3 | 4 5 6 7 | a a a a | b b b b | b b     our chunks lie one chunk further

Of the arrays of one group that have the dimension, the same ones must have grown on both sides, by the same rows: only then are they one
append. An array grows if nothing of its document has changed but one length, and no chunk before the old end.

A document does not say whether rows were appended, or the array was made longer for several sessions to write parts of it. So each side
must have written all chunks behind the old end, of one of the arrays at least. Only ``session.append`` needs no such sign.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
import numpy.typing as npt

from shardstore.format.json_text import JsonObject, dumps, loads_object
from shardstore.format.metadata_v3 import is_array, parse_shown
from shardstore.format.presentation import map_nodes
from shardstore.format.snapshots.node_columns import with_shape
from shardstore.format.snapshots.structure import Node
from shardstore.format.store_keys import groups_above
from shardstore.snapshots.conflicts import Side

_Dimension = tuple[str, str | int]
"""The group and the name of a dimension; where it has no name, the array and the number of the axis."""

Lengths = Mapping[str, tuple[int, int]]
"""An axis of an array, and how long it is, by the array's path."""


@dataclass(frozen=True, slots=True)
class JointAppend:
    """An array to which both sides have appended along ``axis``."""

    axis: int
    before: int
    """The rows that both began with."""
    ours: int
    """The rows that we have added."""
    theirs: int
    move: int | None
    """The chunks by which ours move; ``None``: a length is inside a chunk, so that our rows have to be written again."""


@dataclass(frozen=True, slots=True)
class JointAppends:
    """The appends of both sides that a rebase joins."""

    arrays: Mapping[int, JointAppend] = field(default_factory=dict)
    our_groups: frozenset[int] = frozenset()
    """Groups of whose documents we have changed nothing but what they say of the lengths."""
    their_groups: frozenset[int] = frozenset()

    def rest_of_ours(self, ours: Side) -> Side:
        """Return our changes without what is joined. Our chunks of these arrays will lie where they have none, so no solver is asked."""
        chunks = {one: coords for one, coords in ours.chunks.items() if one not in self.arrays}
        return _without_documents(ours, self.arrays.keys() | self.our_groups, chunks)

    def rest_of_theirs(self, theirs: Side) -> Side:
        return _without_documents(theirs, self.arrays.keys() | self.their_groups, theirs.chunks)

    def lengthened(self, nodes: Mapping[str, Node]) -> dict[str, Node]:
        """Return the nodes that get another document, by path; ``nodes`` are theirs with what is left of our changes."""
        lengths = {
            path: (append.axis, append.before + append.theirs + append.ours)
            for path, node in nodes.items()
            if (append := self.arrays.get(node.id)) is not None
        }
        return with_lengths(nodes, lengths)


NO_APPENDS = JointAppends()


def _without_documents(side: Side, nodes: Set[int], chunks: Mapping[int, npt.NDArray[np.uint64]]) -> Side:
    return Side(side.nodes, replace(side.changes, updated=side.changes.updated - nodes), chunks)


def joint_appends(ours: Side, theirs: Side, before: Mapping[str, Node], *, rewrites: bool = False) -> JointAppends:
    """Return the appends of both sides that can be joined; ``before`` are the nodes that both began with.

    ``rewrites``: what we have changed is an append of whole rows, and what cannot move is written again.
    """
    was = {node.id: node for node in before.values()}
    grown: dict[_Dimension, dict[int, JointAppend]] = defaultdict(dict)
    for one in sorted(ours.changes.updated & theirs.changes.updated):
        if was[one].is_array and (append := _append_of(was[one], ours, theirs)) is not None:
            grown[_dimensions(was[one])[append.axis]][one] = append
    joined: dict[int, JointAppend] = {}
    for dimension, arrays in grown.items():
        if not _are_all(dimension, arrays, ours, theirs, was):
            continue
        if rewrites or (all(one.move is not None for one in arrays.values()) and _are_written(arrays, ours, theirs)):
            joined |= arrays
    if not joined:
        return NO_APPENDS
    mine = {was[one].path: (append.axis, append.before + append.ours) for one, append in joined.items()}
    other = {was[one].path: (append.axis, append.before + append.theirs) for one, append in joined.items()}
    groups = [node for one, node in was.items() if not node.is_array and one in ours.by_id and one in theirs.by_id]
    same = {node.id for node in groups if ours.by_id[node.id].columns.extra == theirs.by_id[node.id].columns.extra}
    our_groups = {node.id for node in groups if _says_only(node, ours.by_id[node.id], mine)}
    their_groups = {node.id for node in groups if _says_only(node, theirs.by_id[node.id], other)}
    return JointAppends(joined, frozenset(our_groups | same), frozenset(their_groups | same))


def how_to_join(ours: Side, theirs: Side, before: Mapping[str, Node]) -> str:
    """Return what to do about appends of both sides that are not joined; empty if there are none."""
    was = {node.id: node for node in before.values()}
    both = [was[one] for one in ours.changes.updated & theirs.changes.updated if was[one].is_array]
    grown = sorted(node.path for node in both if _growth(node, ours.by_id[node.id]) and _growth(node, theirs.by_id[node.id]))
    if not grown:
        return ""
    return (
        f". Both have made {', '.join(map(repr, grown))} longer: session.append writes its rows behind those of other sessions, and "
        "BasicConflictSolver() joins two appends whose lengths are whole numbers of chunks"
    )


def _append_of(was: Node, ours: Side, theirs: Side) -> JointAppend | None:
    """Return the append of both sides to an array; ``None`` if either has done anything else to it."""
    mine, other = _growth(was, ours.by_id[was.id]), _growth(was, theirs.by_id[was.id])
    plain = parse_shown(was.document)
    if mine is None or other is None or mine[0] != other[0] or isinstance(plain, str):
        return None
    if was.id in ours.changes.attributes | theirs.changes.attributes:  # by which values are encoded
        return None
    axis, rows = mine
    before, chunk = plain.shape[axis], plain.chunk_shape[axis]
    fits = before % chunk == 0 and other[1] % chunk == 0
    if fits and not all(_is_behind(side.chunks.get(was.id), axis, before // chunk) for side in (ours, theirs)):
        return None
    return JointAppend(axis, before, rows, other[1], other[1] // chunk if fits else None)


def _growth(was: Node, now: Node) -> tuple[int, int] | None:
    """Return the axis along which an array has grown, and by how many rows; ``None`` if anything else of its document has changed."""
    old, new = was.document, now.document
    before, after = old.pop("shape"), new.pop("shape")
    axes = [axis for axis, (a, b) in enumerate(zip(before, after, strict=True)) if a != b] if len(before) == len(after) else []
    rows = after[axes[0]] - before[axes[0]] if len(axes) == 1 else 0
    return (axes[0], rows) if rows > 0 and old == new else None


def _is_behind(coords: npt.NDArray[np.uint64] | None, axis: int, first: int) -> bool:
    return coords is None or not len(coords) or int(coords[:, axis].min()) >= first


def _dimensions(node: Node) -> list[_Dimension]:
    """Return the dimensions of an array."""
    document = node.document
    names = document.get("dimension_names") or [None] * len(document["shape"])
    group = node.path.rpartition("/")[0]
    return [(node.path, axis) if name is None else (group, name) for axis, name in enumerate(names)]


def _are_all(dimension: _Dimension, arrays: Mapping[int, JointAppend], ours: Side, theirs: Side, was: Mapping[int, Node]) -> bool:
    """Return whether these are all arrays with the dimension to which a side has done anything, and have grown by the same rows."""
    if len({(one.before, one.ours, one.theirs) for one in arrays.values()}) > 1:
        return False
    there = ours.by_id.keys() & theirs.by_id.keys()
    for side in (ours, theirs):
        changed = {one for one in side.changes.updated & there if was[one].is_array and dimension in _dimensions(was[one])}
        new = (side.by_id[one] for one in side.changes.created)
        wanted = {(side.by_id[one].path.rpartition("/")[0], dimension[1]) for one in arrays}
        made = any(node.is_array and not wanted.isdisjoint(_dimensions(node)) for node in new)
        if changed != arrays.keys() or made:
            return False
    return True


def _are_written(arrays: Mapping[int, JointAppend], ours: Side, theirs: Side) -> bool:
    """Return whether each side has written all chunks behind the old end, of an array at least."""
    return all(any(_is_written(side, one, append) for one, append in arrays.items()) for side in (ours, theirs))


def _is_written(side: Side, array: int, append: JointAppend) -> bool:
    plain, coords = parse_shown(side.by_id[array].document), side.chunks.get(array)
    if isinstance(plain, str) or coords is None:
        return False
    counts = [-(-size // chunk) for size, chunk in zip(plain.shape, plain.chunk_shape, strict=True)]
    inside = coords[(coords < np.array(counts, dtype=np.uint64)).all(axis=1)]
    counts[append.axis] -= append.before // plain.chunk_shape[append.axis]
    return len(np.unique(inside, axis=0)) == prod(counts)


# -- documents ---------------------------------------------------------------------------------------------------------


def with_lengths(nodes: Mapping[str, Node], lengths: Lengths) -> dict[str, Node]:
    """Return the nodes that differ where arrays have these lengths: the arrays, and groups in whose consolidated metadata they are."""
    found: dict[str, Node] = {}
    for path, (axis, length) in lengths.items():
        node = nodes[path]
        found[path] = replace(node, columns=with_shape(node.columns, _with(node.document["shape"], axis, length)))
    for group in {group for path in lengths for group in groups_above(path)}:
        above = nodes.get(group)
        if above is not None and (extra := _extra_with(above, lengths)) != above.columns.extra:
            found[group] = replace(above, columns=replace(above.columns, extra=extra))
    return found


def _says_only(was: Node, now: Node, lengths: Lengths) -> bool:
    """Return whether the document of a group, without its attributes, is the old one with these lengths."""
    if was.columns.extra is None or now.columns.extra is None:
        return was.columns.extra == now.columns.extra
    expected = _extra_with(was, lengths)
    return expected is not None and loads_object(expected) == loads_object(now.columns.extra)


def _extra_with(group: Node, lengths: Lengths) -> bytes | None:
    """Return the document of a group, where it says more than its columns, with these lengths of arrays."""
    if group.columns.extra is None:
        return None
    document = loads_object(group.columns.extra)

    def lengthened(path: str, one: JsonObject) -> JsonObject:
        if path not in lengths or not is_array(one):
            return one
        return one | {"shape": _with(one["shape"], *lengths[path])}

    shown = map_nodes(document, lengthened, group.path)
    return group.columns.extra if shown == document else dumps(shown)


def _with(shape: Sequence[int], axis: int, length: int) -> list[int]:
    return [*shape[:axis], length, *shape[axis + 1 :]]
