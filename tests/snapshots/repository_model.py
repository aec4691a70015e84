"""A model of versioned stores: hierarchies as dictionaries, what one session changes, and what a rebase makes of two sessions.

It says what a session has to do, by another way than ``shardstore.snapshots``: a rebase brings each member of each node (path, shape,
attribute, chunk) from the side that has changed it, and it is a conflict if both have, or if what comes out is no hierarchy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

CHUNK = (8, 16)
"""The shape of each chunk, a KiB: shapes of arrays are multiples of it."""

Coords = tuple[int, ...]
Touched = Mapping[int, frozenset[Coords]]
"""Chunks that were written or erased, by the key of their array."""
Selection = Literal["fail", "ours", "theirs"]


@dataclass(frozen=True, eq=False, slots=True)
class ModelNode:
    """A node of a hierarchy. Its key stays when it is moved."""

    key: int
    attributes: dict[str, int] = field(default_factory=dict)
    values: npt.NDArray[np.int64] | None = None
    """``None`` for a group."""
    present: frozenset[Coords] = frozenset()
    """The chunks that are stored: those with anything but zeros."""

    @property
    def shape(self) -> tuple[int, ...] | None:
        return None if self.values is None else self.values.shape

    def items(self) -> list[tuple[str, int]]:
        """Return the attributes in order: another order is another document."""
        return list(self.attributes.items())

    def chunk(self, coords: Coords) -> npt.NDArray[np.int64]:
        assert self.values is not None
        return self.values[box(coords)]

    def with_chunk(self, coords: Coords, values: npt.NDArray[np.int64]) -> ModelNode:
        assert self.values is not None
        now = self.values.copy()
        now[box(coords)] = values
        return replace(self, values=now, present=self.present - {coords} | ({coords} if values.any() else set()))


Tree = dict[str, ModelNode]
"""The nodes of a hierarchy by path."""


def box(coords: Coords) -> tuple[slice, ...]:
    return tuple(slice(at * size, at * size + size) for at, size in zip(coords, CHUNK, strict=True))


def grid(shape: tuple[int, ...]) -> Iterator[Coords]:
    """Yield the chunks of an array."""
    return itertools.product(*(range(-(-size // chunk)) for size, chunk in zip(shape, CHUNK, strict=True)))


def below(path: str, tree: Mapping[str, ModelNode]) -> list[str]:
    """Return the paths of a node and of all below it."""
    return [other for other in tree if other == path or not path or other.startswith(f"{path}/")]


def above(path: str) -> Iterator[str]:
    """Yield the paths of the groups that a node is in."""
    while path:
        path = path.rpartition("/")[0]
        yield path


@dataclass(slots=True)
class ModelSide:
    """What one side has changed since the hierarchy that both began with."""

    base: Tree
    tree: Tree
    touched: Touched
    paths: dict[int, str] = field(init=False)
    was: dict[int, str] = field(init=False)

    def __post_init__(self) -> None:
        self.paths = {node.key: path for path, node in self.tree.items()}
        self.was = {node.key: path for path, node in self.base.items()}

    def node(self, key: int) -> ModelNode:
        return self.tree[self.paths[key]]

    def before(self, key: int) -> ModelNode:
        return self.base[self.was[key]]

    @property
    def created(self) -> set[int]:
        return self.paths.keys() - self.was.keys()

    @property
    def deleted(self) -> set[int]:
        return self.was.keys() - self.paths.keys()

    @property
    def both(self) -> set[int]:
        return self.was.keys() & self.paths.keys()

    @property
    def moved(self) -> set[int]:
        return {key for key in self.both if self.paths[key] != self.was[key]}

    @property
    def updated(self) -> set[int]:
        return {key for key in self.both if self.node(key).shape != self.before(key).shape}

    @property
    def attributed(self) -> set[int]:
        return {key for key in self.both if self.node(key).items() != self.before(key).items()}

    def chunks(self, key: int) -> frozenset[Coords]:
        return self.touched.get(key, frozenset())

    @property
    def is_changed(self) -> bool:
        return bool(
            self.created or self.deleted or self.moved or self.updated or self.attributed or any(map(self.chunks, self.paths.keys()))
        )


def joined_axis(ours: ModelSide, theirs: ModelSide, key: int) -> int | None:
    """Return the axis along which both sides have appended to an array, and nothing else; ``None`` if they have not.

    The arrays have no names of dimensions, and whole chunks only.
    """
    axes = {_appended_axis(side, key) for side in (ours, theirs)}
    return axes.pop() if len(axes) == 1 else None


def _appended_axis(side: ModelSide, key: int) -> int | None:
    before, node = side.before(key), side.node(key)
    if before.shape is None or node.shape is None or node.items() != before.items():
        return None
    axes = [axis for axis in (0, 1) if node.shape[axis] != before.shape[axis]]
    if len(axes) != 1 or node.shape[axes[0]] < before.shape[axes[0]]:
        return None
    new = frozenset(grid(node.shape)) - frozenset(grid(before.shape))
    first = before.shape[axes[0]] // CHUNK[axes[0]]
    is_all = new <= side.chunks(key) and all(coords[axes[0]] >= first for coords in side.chunks(key))
    return axes[0] if is_all else None


def _joined(ours: ModelSide, theirs: ModelSide) -> dict[int, int]:
    found = {key: joined_axis(ours, theirs, key) for key in ours.updated & theirs.updated}
    return {key: axis for key, axis in found.items() if axis is not None}


def contradicts(ours: ModelSide, theirs: ModelSide, chunks: Selection, *, may_delete: bool, joins: bool) -> bool:
    """Return whether a session cannot be brought onto what others have committed."""
    joined = _joined(ours, theirs).keys() if joins else frozenset[int]()
    return (
        _contradicts_in_chunks(ours, theirs, joined, fail=chunks == "fail")
        or _contradicts_in_documents(ours, theirs, joined)
        or _contradicts_in_deletions(ours, theirs, may_delete=may_delete)
        or _contradicts_in_paths(ours, theirs)
    )


def _contradicts_in_chunks(ours: ModelSide, theirs: ModelSide, joined: Set[int], *, fail: bool) -> bool:
    changed = {key for key in ours.both - joined if ours.chunks(key)}
    resized = {key for key in ours.updated - joined if theirs.chunks(key) and key not in theirs.deleted}
    return bool(
        changed & (theirs.deleted | theirs.updated) or resized or (fail and any(ours.chunks(key) & theirs.chunks(key) for key in changed))
    )


def _contradicts_in_documents(ours: ModelSide, theirs: ModelSide, joined: Set[int]) -> bool:
    documents = (ours.updated | ours.attributed) - joined
    if documents & (theirs.deleted | theirs.updated) or ours.updated & theirs.attributed:
        return True
    return any(_merged_attributes(ours, theirs, key) is None for key in ours.attributed & theirs.attributed)


def _contradicts_in_deletions(ours: ModelSide, theirs: ModelSide, *, may_delete: bool) -> bool:
    changed = theirs.updated | theirs.attributed | {key for key in theirs.both if theirs.chunks(key)}
    return not may_delete and bool(ours.deleted & changed)


def _contradicts_in_paths(ours: ModelSide, theirs: ModelSide) -> bool:
    if ours.moved & theirs.deleted:
        return True
    if any(theirs.paths[key] != ours.paths[key] for key in ours.moved & theirs.moved):
        return True
    # What they have brought below a group that we took away.
    taken = [theirs.paths[key] for key in ours.deleted | ours.moved if key in theirs.paths and theirs.node(key).shape is None]
    brought = [theirs.paths[key] for key in theirs.created | theirs.moved if key not in ours.deleted | ours.moved]
    if any(path.startswith(f"{group}/") for path in brought for group in taken):
        return True
    # What we have brought below a group that is another one now.
    for key in ours.created | ours.moved:
        for group in above(ours.paths[key]):
            mine, other = ours.tree.get(group), theirs.tree.get(group)
            if mine is None or other is None or mine.key in ours.created | ours.moved or mine.key == other.key:
                continue
            if not _is_same_group(mine, other):
                return True
    merged, clashes = _merged_paths(ours, theirs)
    has_orphans = any((parent := merged.get(path.rpartition("/")[0])) is None or parent.shape is not None for path in merged if path)
    return clashes or has_orphans


def _is_same_group(mine: ModelNode, other: ModelNode) -> bool:
    return mine.shape is None and other.shape is None and mine.items() == other.items()


def _merged_paths(ours: ModelSide, theirs: ModelSide) -> tuple[Tree, bool]:
    """Return the nodes of both sides by path, ours only where it comes or has been moved; and whether two are at one path."""
    found: Tree = {theirs.paths[key]: theirs.node(key) for key in theirs.paths.keys() - ours.deleted - ours.moved}
    clashes = False
    for key in sorted(ours.moved & theirs.paths.keys()):
        clashes |= ours.paths[key] in found
        found[ours.paths[key]] = theirs.node(key)
    for key in sorted(ours.created):
        path = ours.paths[key]
        if path not in found:
            found[path] = ours.node(key)
        elif not _is_same_group(ours.node(key), found[path]):
            clashes = True
    return found, clashes


def _merged_attributes(ours: ModelSide, theirs: ModelSide, key: int) -> dict[str, int] | None:
    """Return the attributes of a node that both have changed; ``None`` if they have changed one to different values."""
    before, mine, other = ours.before(key).attributes, ours.node(key).attributes, theirs.node(key).attributes
    names = {name for name in before.keys() | mine.keys() if before.get(name) != mine.get(name)}
    if any(other.get(name) not in (before.get(name), mine.get(name)) for name in names):
        return None
    return {name: value for name, value in other.items() if name not in names} | {name: mine[name] for name in mine if name in names}


def rebased(ours: ModelSide, theirs: ModelSide, chunks: Selection) -> ModelSide:
    """Return our side as it is when it has been brought onto theirs, which it does not contradict."""
    tree, _ = _merged_paths(ours, theirs)
    touched: dict[int, frozenset[Coords]] = {}
    joined = _joined(ours, theirs)
    for path, node in tree.items():
        key = node.key
        if key in joined:
            tree[path], touched[key] = _behind(node, ours, key, joined[key])
            continue
        if key in ours.created:
            touched[key] = ours.chunks(key)
        if key in ours.created or key not in ours.was:
            continue
        mine = ours.node(key)
        if key in ours.updated:
            node = replace(mine, attributes=node.attributes)
        kept = ours.chunks(key) - (theirs.chunks(key) if chunks == "theirs" else frozenset())
        for coords in kept & frozenset(grid(node.shape or ())) if node.values is not None else ():
            node = node.with_chunk(coords, mine.chunk(coords))
        if key in ours.attributed:
            merged = _merged_attributes(ours, theirs, key) if key in theirs.attributed else mine.attributes
            assert merged is not None
            node = replace(node, attributes=merged)
        tree[path], touched[key] = node, kept
    return ModelSide(theirs.tree, tree, {key: coords for key, coords in touched.items() if coords})


def _behind(node: ModelNode, ours: ModelSide, key: int, axis: int) -> tuple[ModelNode, frozenset[Coords]]:
    """Return their node with the rows that we have appended behind theirs, and the chunks that these are."""
    before, mine = ours.before(key), ours.node(key)
    assert node.values is not None
    assert before.values is not None
    assert mine.values is not None
    rows = np.take(mine.values, range(before.values.shape[axis], mine.values.shape[axis]), axis)
    by = (node.values.shape[axis] - before.values.shape[axis]) // CHUNK[axis]

    def moved(chunks: frozenset[Coords]) -> frozenset[Coords]:
        return frozenset(tuple(at + by * (one == axis) for one, at in enumerate(coords)) for coords in chunks)

    behind = mine.present - frozenset(grid(before.values.shape))
    joint = replace(node, values=np.concatenate([node.values, rows], axis), present=node.present | moved(behind))
    return joint, moved(ours.chunks(key))


def assert_same(found: Mapping[str, Any], tree: Tree) -> None:
    """Compare nodes of zarr-python by path with a hierarchy."""
    assert found.keys() == tree.keys(), (sorted(found), sorted(tree))
    for path, node in tree.items():
        there = found[path]
        assert there.attrs.asdict() == node.attributes, path
        if node.values is None:
            assert not hasattr(there, "shape"), path
            continue
        assert there.shape == node.shape, path
        np.testing.assert_array_equal(there[...], node.values, err_msg=path)
