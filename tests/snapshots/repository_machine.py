"""Repositories against a model of dictionaries: several sessions on several branches, whatever they do.

Inherit from ``RepositoryMachine``, and give it ``create`` and ``reopen``; run it by ``hypothesis.stateful.run_state_machine_as_test``.
The session of each step is compared with the model after it, and all snapshots at the end.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import zarr
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from shardstore.adapters.versioned.repository import Repository
from shardstore.adapters.versioned.session import ForkSession, Session
from shardstore.errors import Conflict, InvalidInput, NotFound, ReadOnly
from shardstore.snapshots.conflicts import BasicConflictSolver, ConflictDetector, ConflictError
from tests.snapshots.repository_model import (
    CHUNK,
    Coords,
    ModelNode,
    ModelSide,
    Touched,
    Tree,
    assert_same,
    below,
    box,
    contradicts,
    grid,
    rebased,
)

NAMES = ("a", "b", "c")
ATTRIBUTES = ("x", "y", "z")
SOLVERS: tuple[ConflictDetector, ...] = (
    ConflictDetector(),
    BasicConflictSolver(),
    BasicConflictSolver(on_chunk_conflict="theirs"),
    BasicConflictSolver(on_chunk_conflict="fail", fail_on_delete_of_updated_array=True, fail_on_delete_of_updated_group=True),
    BasicConflictSolver(fail_on_append=True),
)
FIRST = "main"

_NUMBER = st.integers(0, 11)
_KINDS = (
    *("write", "write", "write", "part", "zeros", "erase", "resize", "append", "append", "attribute", "attribute", "drop"),
    *("array", "group", "delete", "move", "move"),
)


@dataclass(frozen=True)
class Operation:
    """A change of one session; the numbers choose among what is there."""

    kind: str
    which: int
    where: int
    value: int


@dataclass(eq=False)
class Client:
    """A session, and what it should show."""

    session: Session
    branch: str
    snapshot: str
    side: ModelSide
    parent: Client | None = None
    """The client whose session this is a fork of."""

    @property
    def tree(self) -> Tree:
        return self.side.tree

    def change(self, tree: Tree, touched: Touched | None = None) -> None:
        """Note another hierarchy; what was changed in arrays that are gone is forgotten."""
        keys = {node.key for node in tree.values()}
        known = self.side.touched if touched is None else touched
        self.side = ModelSide(self.side.base, tree, {key: coords for key, coords in known.items() if key in keys and coords})


@dataclass(frozen=True)
class Record:
    """A snapshot that should be there."""

    parent: str | None
    tree: Tree
    touched: dict[int, frozenset[Coords]] = field(default_factory=dict)
    """The chunks that its commit wrote, or erased where there was one."""


@st.composite
def operations(draw: st.DrawFn) -> Operation:
    return Operation(draw(st.sampled_from(_KINDS)), draw(_NUMBER), draw(_NUMBER), draw(st.integers(1, 9)))


@dataclass(frozen=True)
class Meeting:
    """A session whose branch moves while it changes something."""

    changes: list[Operation]
    others: list[list[Operation]]
    """What others commit meanwhile."""
    solver: ConflictDetector
    rebase_first: bool
    """Rebase before the commit."""


@st.composite
def meetings(draw: st.DrawFn) -> Meeting:
    """Often all change the same array, chunk or attribute."""
    changes = draw(st.lists(operations(), min_size=1, max_size=3))
    others = draw(st.lists(st.lists(operations(), min_size=1, max_size=2), min_size=1, max_size=2))
    if draw(st.booleans()):
        others = [[replace(change, which=changes[0].which, where=changes[0].where) for change in other] for other in others]
    return Meeting(changes, others, draw(st.sampled_from(SOLVERS)), draw(st.booleans()))


@st.composite
def meetings_of_appends(draw: st.DrawFn) -> Meeting:
    """All append to the same array, sometimes along another axis, and some change something else, too."""
    which, axis = draw(_NUMBER), draw(st.integers(0, 1))

    def change(*, may_differ: bool) -> list[Operation]:
        rows = Operation(
            "append", draw(_NUMBER), draw(_NUMBER), 1 + (axis + (may_differ and draw(_NUMBER) == 11)) % 2 + 2 * draw(st.integers(0, 3))
        )
        return [replace(rows, which=which), *draw(st.lists(operations(), max_size=1))]

    others = [change(may_differ=True) for _ in range(draw(st.integers(1, 2)))]
    return Meeting(change(may_differ=False), others, draw(st.sampled_from(SOLVERS)), draw(st.booleans()))


class RepositoryMachine(RuleBasedStateMachine):
    """Sessions on one repository. What each rule chooses from is given by numbers, so that examples shrink well."""

    def create(self) -> Repository:
        """Return a new repository."""
        raise NotImplementedError

    def reopen(self, repository: Repository) -> Repository:
        """Return the repository as another process would open it."""
        return Repository.open(repository._opened.options.url)

    def __init__(self) -> None:
        super().__init__()
        self.repo = self.create()
        self.keys = 1
        first = self.repo.lookup_branch(FIRST)
        self.records = {first: Record(None, {"": ModelNode(0)})}
        self.branches, self.tags = {FIRST: first}, dict[str, str]()
        self.clients: list[Client] = []

    # -- sessions ------------------------------------------------------------------------------------------------------

    @initialize(changes=st.lists(operations(), max_size=6))
    def begin_with_something(self, changes: list[Operation]) -> None:
        client = self.begin(0)
        for number, path in enumerate(("a", "b", "c", "a/a", "a/b")):
            self._make(client, path, "group" if path in "ac" else "array", number)
            self.apply(client, Operation("attribute", number, number, number + 1))
            self.apply(client, Operation("write", number, number, number + 1))
        for change in changes:
            self.apply(client, change)
        self._commit(client, None)

    @rule(branch=_NUMBER)
    def begin_session(self, branch: int) -> None:
        if len(self.clients) < 6:
            self.begin(branch)

    def begin(self, branch: int) -> Client:
        name = sorted(self.branches)[branch % len(self.branches)]
        tip = self.branches[name]
        tree = self.records[tip].tree
        client = Client(self.repo.writable_session(name), name, tip, ModelSide(tree, tree, {}))
        self.clients.append(client)
        return client

    def _client(self, number: int) -> Client | None:
        return self.clients[number % len(self.clients)] if self.clients else None

    def check(self, client: Client) -> None:
        """Compare what a session shows with what it should."""
        assert_same(shown(client.session), client.tree)
        assert client.session.has_uncommitted_changes == client.side.is_changed

    @rule(number=_NUMBER, change=operations())
    def change(self, number: int, change: Operation) -> None:
        if (client := self._client(number)) is not None:
            self.apply(client, change)
            self.check(client)

    @rule(number=_NUMBER)
    def discard(self, number: int) -> None:
        if (client := self._client(number)) is not None:
            client.session.discard_changes()
            client.side = ModelSide(client.side.base, client.side.base, {})
            self.check(client)

    @rule(number=_NUMBER)
    def abandon(self, number: int) -> None:
        if (client := self._client(number)) is not None:
            self._forget(client)

    def _forget(self, client: Client) -> None:
        self.clients = [other for other in self.clients if client not in (other, other.parent)]

    @rule(number=_NUMBER)
    def status(self, number: int) -> None:
        if (client := self._client(number)) is None:
            return
        found, side = client.session.status(), client.side
        assert_said(found, side)
        changed = {side.paths[key]: sorted(coords) for key, coords in side.touched.items()}
        assert {path: sorted(coords) for path, coords in found.updated_chunks.items()} == changed

    # -- changes -------------------------------------------------------------------------------------------------------

    def apply(self, client: Client, change: Operation) -> None:
        """Do one change in the session and in the model."""
        tree = client.tree
        arrays = sorted(path for path, node in tree.items() if node.values is not None)
        groups = sorted(path for path, node in tree.items() if node.values is None)
        others = sorted(tree.keys() - {""})
        parent = groups[change.where % len(groups)]
        target = f"{parent}/{NAMES[change.value % 3]}".strip("/")
        match change.kind:
            case "write" | "part" | "zeros" | "erase" | "resize" | "append" if arrays:
                self._change_array(client, arrays[change.which % len(arrays)], change)
            case "attribute" | "drop":
                self._change_attribute(client, sorted(tree)[change.which % len(tree)], change)
            case "array" | "group" if target not in tree and target.count("/") < 3:
                self._make(client, target, change.kind, change.which)
            case "delete" if others:
                path = others[change.which % len(others)]
                del zarr.open_group(client.session.store, mode="r+")[path]
                gone = below(path, tree)
                client.change({other: node for other, node in tree.items() if other not in gone})
            case "move" if others:
                deeper = f"{target}/{NAMES[change.which % 3]}" if change.which % 4 == 0 else target
                self._move(client, others[change.which % len(others)], deeper)
            case _:
                pass

    def _make(self, client: Client, path: str, kind: str, number: int) -> None:
        values: Any = None
        if kind == "group":
            zarr.create_group(client.session.store, path=path)
        else:
            values = np.zeros((CHUNK[0] * (1 + number % 2), CHUNK[1] * (1 + number % 3)), dtype=np.int64)
            compression: dict[str, Any] = {} if number % 4 else {"compressors": None}  # so that some chunks are large
            zarr.create_array(client.session.store, name=path, shape=values.shape, chunks=CHUNK, dtype=values.dtype, **compression)
        client.change({**client.tree, path: ModelNode(self.keys, {}, values)})
        self.keys += 1

    def _change_array(self, client: Client, path: str, change: Operation) -> None:
        node = client.tree[path]
        assert node.values is not None
        chunks = list(grid(node.values.shape))
        coords = chunks[change.where % len(chunks)] if chunks else None
        array = zarr.open_array(client.session.store, path=path, mode="r+")
        if change.kind == "resize":
            new = (CHUNK[0] * (1 + change.where % 2), CHUNK[1] * (1 + change.value % 3))
            array.resize(new)
            values = np.zeros(new, dtype=np.int64)
            kept = frozenset(grid(new))
            for one in node.present & kept:
                values[box(one)] = node.chunk(one)
            touched = frozenset(chunks) - kept
            node = replace(node, values=values, present=node.present & kept)
        elif change.kind == "append":
            axis = change.value % 2
            if coords is None or array.shape[axis] >= 6 * CHUNK[axis]:
                return
            node, touched = _appended(array, node, axis, change)
        elif coords is None:
            return
        elif change.kind == "erase":
            if not node.present:
                return
            coords = sorted(node.present)[change.where % len(node.present)]
            del client.session.mapping()["/".join((path, "c", *map(str, coords)))]
            node, touched = node.with_chunk(coords, np.zeros(CHUNK, dtype=np.int64)), frozenset({coords})
        else:
            node, touched = _written(array, node, coords, change)
        client.change({**client.tree, path: node}, {**client.side.touched, node.key: client.side.chunks(node.key) | touched})

    def _change_attribute(self, client: Client, path: str, change: Operation) -> None:
        node, name = client.tree[path], ATTRIBUTES[change.where % 3]
        attributes = dict(node.attributes)
        there = zarr.open(client.session.store, path=path, mode="r+")
        if change.kind == "drop":
            if not attributes:
                return
            name = sorted(attributes)[change.where % len(attributes)]
            del there.attrs[name], attributes[name]
        else:
            there.attrs[name] = attributes[name] = change.value
        client.change({**client.tree, path: replace(node, attributes=attributes)})

    def _move(self, client: Client, source: str, target: str) -> None:
        tree = dict(client.tree)
        parents = ["/".join(target.split("/")[:depth]) for depth in range(1, target.count("/") + 1)]
        is_inside = f"{target}/".startswith(f"{source}/")
        if is_inside or target in tree or any(parent in tree and tree[parent].values is not None for parent in parents):
            refused(InvalidInput, lambda: client.session.move(source, target))
            return
        client.session.move(source, target)
        for path in below(source, client.tree):
            tree[target + path[len(source) :]] = tree.pop(path)
        for parent in parents:
            if parent not in client.tree:
                tree[parent] = ModelNode(self.keys)
                self.keys += 1
        client.change(tree)

    # -- commits -------------------------------------------------------------------------------------------------------

    @rule(number=_NUMBER, solver=st.none() | st.sampled_from(SOLVERS))
    def commit(self, number: int, solver: ConflictDetector | None) -> None:
        if (client := self._client(number)) is not None and client.parent is None:
            self._commit(client, solver)

    @rule(number=_NUMBER, solver=st.sampled_from(SOLVERS))
    def rebase(self, number: int, solver: ConflictDetector) -> None:
        client = self._client(number)
        if client is None or client.parent is not None or client.branch not in self.branches:
            return
        if self._expected(client, solver) is None:
            refused(ConflictError, lambda: client.session.rebase(solver))
        else:
            client.session.rebase(solver)
            self._take(client, solver)
        assert client.session.snapshot_id == client.snapshot
        self.check(client)

    @rule(meeting=meetings())
    def meet(self, meeting: Meeting) -> None:
        """Let one session begin, others commit, and the first one commit on top of that."""
        changes, others, solver = meeting.changes, meeting.others, meeting.solver
        first = self.begin(0)
        for other in others:
            client = self.begin(0)
            for change in other:
                self.apply(client, change)
            self._commit(client, BasicConflictSolver())
            self._forget(client)
        for change in changes:
            self.apply(first, change)
        if meeting.rebase_first:
            self.rebase(self.clients.index(first), solver)
        self._commit(first, solver)
        self._forget(first)

    def _commit(self, client: Client, solver: ConflictDetector | None) -> None:
        def commit() -> str:
            return client.session.commit(f"commit {len(self.records)}", {"number": len(self.records)}, rebase_with=solver)

        tip = self.branches.get(client.branch)
        if not client.side.is_changed:
            refused(InvalidInput, commit)
        elif tip is None:
            refused(NotFound, commit)
        elif tip != client.snapshot and (solver is None or self._expected(client, solver) is None):
            refused(ConflictError, commit)
            assert self.repo.lookup_branch(client.branch) == tip
        else:
            new = commit()
            if tip != client.snapshot:
                assert solver is not None
                self._take(client, solver)
            self._note(client, new)
            return
        self.check(client)

    def _note(self, client: Client, new: str) -> None:
        """Note a commit, and that its session can change nothing any more."""
        assert new not in self.records
        parent = self.records[client.snapshot]
        there = {node.key: node.present for node in parent.tree.values()}
        touched = {
            node.key: frozenset(one for one in client.side.chunks(node.key) if one in node.present or one in there[node.key])
            for node in client.tree.values()
            if node.key in there
        }
        self.records[new] = Record(client.snapshot, client.tree, touched)
        self.branches[client.branch] = new
        assert client.session.snapshot_id == new
        assert client.session.read_only
        assert_same(shown(client.session), client.tree)
        refused(ReadOnly, lambda: client.session.move("a", "elsewhere"))
        self._forget(client)
        assert_same(shown(self.repo.readonly_session(client.branch)), client.tree)

    def _theirs(self, client: Client) -> ModelSide | None:
        """Return what was committed since a session began; ``None`` if its branch was reset."""
        tip = self.branches[client.branch]
        touched: dict[int, frozenset[Coords]] = {}
        at: str | None = tip
        while at != client.snapshot:
            if at is None:
                return None
            for key, coords in self.records[at].touched.items():
                touched[key] = touched.get(key, frozenset()) | coords
            at = self.records[at].parent
        return ModelSide(client.side.base, self.records[tip].tree, touched)

    def _expected(self, client: Client, solver: ConflictDetector) -> ModelSide | None:
        """Return what a session is once it stands on the tip of its branch; ``None`` if that is a conflict."""
        if (theirs := self._theirs(client)) is None:
            return None
        if contradicts(client.side, theirs, solver.chunks(), may_delete=solver.may_delete(is_array=True), joins=solver.joins_appends()):
            return None
        return rebased(client.side, theirs, solver.chunks())

    def _take(self, client: Client, solver: ConflictDetector) -> None:
        if self.branches[client.branch] == client.snapshot:
            return
        expected = self._expected(client, solver)
        assert expected is not None
        client.side, client.snapshot = expected, self.branches[client.branch]

    # -- forks ---------------------------------------------------------------------------------------------------------

    @rule(
        number=_NUMBER,
        forks=st.lists(st.tuples(st.lists(operations(), max_size=3), st.lists(operations(), max_size=2), st.booleans()), max_size=3),
        own=st.lists(operations(), max_size=2),
    )
    def fork_and_merge(self, number: int, forks: list[tuple[list[Operation], list[Operation], bool]], own: list[Operation]) -> None:
        """Let forks of a session change something, some of them in two places, and merge them one after the other."""
        client = self._client(number)
        if client is None or client.parent is not None:
            return
        if client.side.is_changed:
            refused(InvalidInput, client.session.fork)
            return
        children = []
        for first, second, travels in forks:
            side = ModelSide(client.side.base, client.side.base, {})
            child = Client(client.session.fork(), client.branch, client.snapshot, side, client)
            for part in (first, second):
                for change in part:
                    self.apply(child, change)
                self.check(child)
                if travels:
                    child.session = pickle.loads(pickle.dumps(child.session))
            children.append(child)
        for change in own:
            self.apply(client, change)
        for child in children:
            self._merge(client, child)

    def _merge(self, client: Client, child: Client) -> None:
        fork = child.session
        assert isinstance(fork, ForkSession)
        if contradicts(child.side, client.side, "ours", may_delete=True, joins=True):
            refused(ConflictError, lambda: client.session.merge(fork))
        else:
            client.session.merge(fork)
            merged = rebased(child.side, client.side, "ours")
            keys = {node.key for node in merged.tree.values()}
            both = {key: client.side.chunks(key) | merged.chunks(key) for key in keys}
            client.side = ModelSide(client.side.base, merged.tree, {key: coords for key, coords in both.items() if coords})
        self.check(client)

    # -- branches, tags and the repository -----------------------------------------------------------------------------

    @rule(branch=st.sampled_from(NAMES), snapshot=_NUMBER)
    def create_branch(self, branch: str, snapshot: int) -> None:
        self._create_ref(self.repo.create_branch, self.branches, branch, snapshot)

    @rule(tag=st.sampled_from(NAMES), snapshot=_NUMBER)
    def create_tag(self, tag: str, snapshot: int) -> None:
        self._create_ref(self.repo.create_tag, self.tags, tag, snapshot)

    def _create_ref(self, create: Callable[[str, str], None], refs: dict[str, str], name: str, number: int) -> None:
        snapshot = list(self.records)[number % len(self.records)]
        if name in self.branches or name in self.tags:
            refused(InvalidInput, lambda: create(name, snapshot))
        else:
            create(name, snapshot)
            refs[name] = snapshot

    @rule(branch=st.sampled_from(NAMES))
    def delete_branch(self, branch: str) -> None:
        if self.branches.pop(branch, None) is None:
            refused(NotFound, lambda: self.repo.delete_branch(branch))
        else:
            self.repo.delete_branch(branch)

    @rule(tag=st.sampled_from(NAMES))
    def delete_tag(self, tag: str) -> None:
        if self.tags.pop(tag, None) is None:
            refused(NotFound, lambda: self.repo.delete_tag(tag))
        else:
            self.repo.delete_tag(tag)

    @rule(branch=_NUMBER, snapshot=_NUMBER, asked=st.none() | _NUMBER)
    def reset_branch(self, branch: int, snapshot: int, asked: int | None) -> None:
        name, known = sorted(self.branches)[branch % len(self.branches)], list(self.records)
        to, from_ = known[snapshot % len(known)], None if asked is None else known[asked % len(known)]
        if from_ not in (None, self.branches[name]):
            refused(Conflict, lambda: self.repo.reset_branch(name, to, from_snapshot_id=from_))
        else:
            self.repo.reset_branch(name, to, from_snapshot_id=from_)
            self.branches[name] = to

    @rule()
    def reopen_repository(self) -> None:
        self.repo = self.reopen(self.repo)
        assert {name: self.repo.lookup_branch(name) for name in self.repo.list_branches()} == self.branches
        assert {name: self.repo.lookup_tag(name) for name in self.repo.list_tags()} == self.tags

    @rule(before=_NUMBER, after=_NUMBER)
    def diff(self, before: int, after: int) -> None:
        known = list(self.records)
        first, second = known[before % len(known)], known[after % len(known)]
        found = self.repo.diff(first, second)
        side = ModelSide(self.records[first].tree, self.records[second].tree, {})
        assert_said(found, side)
        for path, node in self.records[second].tree.items():
            said = set(found.updated_chunks.get(path, ()))
            if node.key in side.created:
                assert said == node.present
            elif node.values is not None:
                was = side.before(node.key)
                assert (
                    {one for one in node.present | was.present if not _is_same_chunk(was, node, one)} <= said <= node.present | was.present
                )

    def teardown(self) -> None:
        """Compare every snapshot with what it should hold, and its ancestors."""
        repo = self.reopen(self.repo)
        for snapshot, record in self.records.items():
            assert_same(shown(repo.readonly_session(snapshot_id=snapshot)), record.tree)
            ancestors: list[str] = []
            at: str | None = snapshot
            while at is not None:
                ancestors.append(at)
                at = self.records[at].parent
            assert [info.id for info in repo.ancestry(snapshot_id=snapshot)] == ancestors


def shown(session: Session) -> dict[str, Any]:
    """Return all nodes that a session shows, by path."""
    root = zarr.open_group(session.store, mode="r")
    return {"": root, **dict(root.members(max_depth=None))}


def refused(error: type[Exception], call: Callable[[], object]) -> None:
    """Call something that has to raise an error."""
    try:
        call()
    except error:
        return
    raise AssertionError(f"{error.__name__} was not raised")


def assert_said(found: Any, side: ModelSide) -> None:
    """Compare the nodes of a ``Diff`` with those that differ."""

    def paths(keys: set[int], of: Callable[[int], ModelNode], at: dict[int, str], *, arrays: bool) -> set[str]:
        return {at[key] for key in keys if (of(key).values is not None) is arrays}

    changed = side.updated | side.attributed
    assert (found.new_groups, found.new_arrays) == tuple(
        paths(side.created, side.node, side.paths, arrays=arrays) for arrays in (False, True)
    )
    assert (found.deleted_groups, found.deleted_arrays) == tuple(
        paths(side.deleted, side.before, side.was, arrays=arrays) for arrays in (False, True)
    )
    assert (found.updated_groups, found.updated_arrays) == tuple(
        paths(changed, side.node, side.paths, arrays=arrays) for arrays in (False, True)
    )
    assert sorted(found.moved_nodes) == sorted((side.was[key], side.paths[key]) for key in side.moved)


def _written(array: Any, node: ModelNode, coords: Coords, change: Operation) -> tuple[ModelNode, frozenset[Coords]]:
    """Write a chunk, zeros into it, or parts of it and of those beside it."""
    assert node.values is not None
    region = box(coords)
    if change.kind == "part":
        region = tuple(
            slice(at.start + change.value % 3, min(at.stop + change.which, size))
            for at, size in zip(region, node.values.shape, strict=True)
        )
    value = 0 if change.kind == "zeros" else 100 * change.value + change.which
    array[region] = value
    values = node.values.copy()
    values[region] = value
    touched = frozenset(
        one
        for one in grid(values.shape)
        if all(at.start < inside.stop and inside.start < at.stop for at, inside in zip(region, box(one), strict=True))
    )
    for one in touched:
        node = node.with_chunk(one, values[box(one)])
    return node, touched


def _appended(array: Any, node: ModelNode, axis: int, change: Operation) -> tuple[ModelNode, frozenset[Coords]]:
    """Append one or two chunks, sometimes of zeros."""
    assert node.values is not None
    shape = list(node.values.shape)
    shape[axis] = CHUNK[axis] * (1 + change.where % 2)
    rows = np.full(shape, 0 if change.which % 5 == 0 else 100 * change.value + change.which)
    array.append(rows, axis=axis)
    values = np.concatenate([node.values, rows], axis)
    new = frozenset(grid(values.shape)) - frozenset(grid(node.values.shape))
    return replace(node, values=values, present=node.present | (new if rows.any() else frozenset())), new


def _is_same_chunk(was: ModelNode, now: ModelNode, coords: Coords) -> bool:
    return coords in was.present and coords in now.present and bool(np.array_equal(was.chunk(coords), now.chunk(coords)))
