"""Brings a session onto what other sessions have committed to its branch since it began, if that does not contradict it.

Reads the structure of the tip and the manifests of what was changed between, never chunks. The session's own chunk files stay unchanged:
nodes keep their ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from shardstore.errors import InvalidInput
from shardstore.format.json_text import JsonObject, dumps, loads_object
from shardstore.format.snapshots.state import KEEPS_VALUES, ORIGINAL_PARENT, Snapshot, State
from shardstore.format.snapshots.structure import ManifestPart, Node, NodeChanges, Structure, parse_changes
from shardstore.snapshots.appends import NO_APPENDS, JointAppends, how_to_join, joint_appends
from shardstore.snapshots.conflicts import (
    BasicConflictSolver,
    ConflictDetector,
    ConflictError,
    ConflictType,
    NodeConflict,
    Selection,
    Side,
    double_chunks,
    find_conflicts,
)
from shardstore.snapshots.diffs import changed_chunks
from shardstore.snapshots.files import StoreFiles
from shardstore.snapshots.session import SessionCore, ndim_of

_FOR_FORK: Mapping[Selection, Selection] = {"fail": "fail", "ours": "theirs", "theirs": "ours"}
"""The meaning of the session's selection to a fork, which is brought onto the session as a session is brought onto later commits."""


@dataclass(slots=True)
class _ThreeWayDiff:
    """The changes of a session, and of the commits to its branch since it began, to the snapshot with which it began."""

    tip: Snapshot
    structure: Structure
    ours: Side
    theirs: Side
    appends: JointAppends
    """What both have appended, which is no part of ``ours`` and ``theirs`` any more."""
    attributes: dict[int, bytes | None]
    """The merged attributes of nodes of which both have changed some, by id."""
    conflicts: list[NodeConflict]


async def conflicts_with(session: SessionCore, state: State, solver: ConflictDetector, url: str) -> list[NodeConflict]:
    """Return what of a session contradicts what was committed to its branch since. Raises ``ConflictError`` if the branch was reset."""
    return (await _compare_with_tip(session, state, solver, url)).conflicts


async def rebase(session: SessionCore, state: State, solver: ConflictDetector, url: str, *, rewrites: bool = False) -> Sequence[str]:
    """Bring a session onto the tip of its branch in ``state``. Raises ``ConflictError``: something contradicts, and nothing changes.

    With ``rewrites``, everything that the session has changed is an append. Where its chunks cannot move, they are forgotten; the paths of
    these arrays are returned, and their last rows are to be written again.
    """
    branch = session.branch
    assert branch is not None
    if state.ref(branch, "branch").snapshot == session.snapshot.id:
        return []
    compared = await _compare_with_tip(session, state, solver, url, rewrites=rewrites)
    if compared.conflicts:
        raise ConflictError(
            f"branch {branch!r} of {url} has moved from snapshot {session.snapshot.id} to {compared.tip.id}, and what was committed there "
            f"conflicts with this session: {'; '.join(map(str, compared.conflicts[:10]))}. Nothing was changed"
            + how_to_join(compared.ours, compared.theirs, session.base.nodes),
            compared.conflicts,
        )
    if solver.chunks() == "theirs":
        _give_up_double(session, compared.ours, compared.theirs)
    _apply(session, compared.structure, compared.ours, compared.theirs, compared.attributes, compared.appends)
    session.snapshot = compared.tip
    left = {one for one, append in compared.appends.arrays.items() if append.move is None}
    return [path for path, node in session.nodes.items() if node.id in left]


async def _compare_with_tip(
    session: SessionCore, state: State, solver: ConflictDetector, url: str, *, rewrites: bool = False
) -> _ThreeWayDiff:
    branch = session.branch
    assert branch is not None
    tip = state.snapshots[state.ref(branch, "branch").snapshot]
    since: list[Snapshot] = []
    for snapshot in state.ancestry(tip.id):
        if snapshot.id == session.snapshot.id:
            break
        since.append(snapshot)
    else:
        if session.snapshot.id not in state.snapshots:
            raise expired(session, url)
        raise ConflictError(
            f"branch {branch!r} of {url} was reset to snapshot {tip.id}. This session began with {session.snapshot.id}, which is not "
            "an ancestor of it. Nothing was changed; write it again in a new session"
        )
    structure = await session.files.structure(tip.structure)
    theirs = await _theirs(session, structure, since)
    ours = _side_of(session)
    reads = [] if session.reads is None else session.reads.conflicts(theirs, session.base.nodes)
    appends = NO_APPENDS
    if solver.joins_appends():
        appends = joint_appends(ours, theirs, session.base.nodes, rewrites=rewrites)
        ours, theirs = appends.rest_of_ours(ours), appends.rest_of_theirs(theirs)
    conflicts = find_conflicts(ours, theirs, session.base.nodes, solver, serializable=session.reads is not None)
    attributes, more = await _merged_attributes(session, ours, theirs)
    return _ThreeWayDiff(tip, structure, ours, theirs, appends, attributes, [*conflicts, *reads, *more])


def expired(session: SessionCore, url: str) -> ConflictError:
    """Return the error that the snapshot with which a session began is no more."""
    return ConflictError(
        f"snapshot {session.snapshot.id} of {url}, with which this session began, has expired since, so that it is unknown what was "
        f"committed to branch {session.branch!r}. Nothing was changed; write it again in a new session"
    )


async def merge(session: SessionCore, fork: SessionCore, on_chunk_conflict: Selection) -> None:
    """Make what was changed in a fork of a session part of it. ``on_chunk_conflict`` says whose chunk counts where both have changed one:
    ``"ours"`` is the session's, ``"theirs"`` that of the fork; see ``Session.merge``. After an error the session is as before.
    """
    if fork.snapshot.id != session.snapshot.id:
        raise InvalidInput(
            f"the fork began with snapshot {fork.snapshot.id}, and this session stands on {session.snapshot.id}: merge forks before you "
            "rebase"
        )
    async with fork.frozen("it is being merged"), session.frozen("a fork is being merged into it"):
        await fork.gatherer.store(fork.gatherer.plan())
        ours, theirs = _side_of(fork), _side_of(session)
        fails = on_chunk_conflict == "fail"
        solver = BasicConflictSolver(
            on_chunk_conflict=_FOR_FORK[on_chunk_conflict], fail_on_delete_of_updated_array=fails, fail_on_delete_of_updated_group=fails
        )
        appends = NO_APPENDS if fails else joint_appends(ours, theirs, session.base.nodes)
        ours, theirs = appends.rest_of_ours(ours), appends.rest_of_theirs(theirs)
        attributes, more = await _merged_attributes(fork, ours, theirs)
        conflicts = [*find_conflicts(ours, theirs, session.base.nodes, solver), *more]
        if conflicts:
            shown = "; ".join(map(str, conflicts[:10]))
            raise ConflictError(f"a fork conflicts with the session that it is merged into: {shown}. Nothing of it was merged", conflicts)
        if solver.chunks() == "theirs":
            _give_up_double(fork, ours, theirs)
        _apply(fork, replace(session.base, nodes=session.nodes), ours, theirs, attributes, appends)
        session.take_over(fork)
        fork.why_read_only = "it has been merged"


def _give_up_double(session: SessionCore, ours: Side, theirs: Side) -> None:
    """Forget what a session has done to chunks that both sides have changed."""
    for array in ours.chunks:
        if array not in ours.changes.created:
            session.give_up_chunks(ours.by_id[array], double_chunks(ours, theirs, array))


def _side_of(session: SessionCore) -> Side:
    return Side(session.nodes, NodeChanges.between(session.base.nodes, session.nodes), session.changed_chunks())


async def _theirs(session: SessionCore, tip: Structure, since: Sequence[Snapshot]) -> Side:
    """Return what the snapshots since have changed; ``tip`` is the structure of the newest of them."""
    was = {node.id: node for node in session.base.nodes.values()}
    asked = [node for node in tip.nodes.values() if node.is_array and node.id in was and node.manifests != was[node.id].manifests]
    if any(ORIGINAL_PARENT in snapshot.properties for snapshot in since):  # what expired snapshots have changed is unknown
        before, after = (SessionCore(session.files, session.snapshot, structure, None) for structure in (session.base, tip))
        found = await asyncio.gather(*(changed_chunks(before, after, was[node.id], node) for node in asked))
    else:
        found = await asyncio.gather(*(_changed_since(session.files, node, was[node.id], since) for node in asked))
    chunks = {node.id: coords for node, coords in zip(asked, found, strict=True)}
    return Side(tip.nodes, NodeChanges.between(session.base.nodes, tip.nodes), chunks)


async def _changed_since(files: StoreFiles, node: Node, was: Node, since: Sequence[Snapshot]) -> npt.NDArray[np.uint64]:
    """Return the chunks of an array that were written or erased since, each once or more: those in the manifests of differences."""
    parts: list[ManifestPart] = list(node.manifests[len(was.manifests) :])
    is_longer = node.manifests[: len(was.manifests)] == was.manifests
    if not is_longer or any(KEEPS_VALUES in snapshot.properties for snapshot in since):  # manifests have been merged, or chunks moved
        parts = []
        for structure in await asyncio.gather(*(files.structure(snapshot.structure) for snapshot in since)):
            _, names = parse_changes(structure.changes)
            there = next((one for one in structure.nodes.values() if one.id == node.id), None)
            parts += [part for part in (there.manifests if there is not None else ()) if part.file.name in names]
    found = await asyncio.gather(*(files.refs_of(part.file, node.id, ndim_of(node)) for part in parts))
    coords = [refs.coords for refs in found]
    return np.concatenate(coords) if coords else np.zeros((0, ndim_of(node)), dtype=np.uint64)


async def _merged_attributes(session: SessionCore, ours: Side, theirs: Side) -> tuple[dict[int, bytes | None], list[NodeConflict]]:
    """Return the attributes of nodes of which both have changed some, by id; and the conflicts, where both have changed the same."""
    was = {node.id: node for node in session.base.nodes.values()}
    merged: dict[int, bytes | None] = {}
    conflicts: list[NodeConflict] = []
    for one in sorted(ours.changes.attributes & theirs.changes.attributes):
        before, mine, other = [
            _attributes((await session.full_columns(node)).attributes) for node in (was[one], ours.by_id[one], theirs.by_id[one])
        ]
        names = {name for name in before.keys() | mine.keys() if before.get(name) != mine.get(name) or (name in before) != (name in mine)}
        clash = {name for name in names if other.get(name) != before.get(name) or (name in other) != (name in before)}
        if any(other.get(name) != mine.get(name) or (name in other) != (name in mine) for name in clash):
            conflicts.append(NodeConflict(ConflictType.ZarrMetadataDoubleUpdate, ours.by_id[one].path))
            continue
        both = {name: value for name, value in other.items() if name not in names} | {name: mine[name] for name in mine if name in names}
        merged[one] = dumps(both) if both else None
    return merged, conflicts


def _attributes(data: bytes | None) -> JsonObject:
    return {} if data is None else loads_object(data)


def _apply(
    session: SessionCore, tip: Structure, ours: Side, theirs: Side, attributes: Mapping[int, bytes | None], appends: JointAppends
) -> None:
    """Make the session's nodes those of the tip, with what the session has changed, and with what it has appended behind that."""
    changes = ours.changes
    nodes = {path: node for path, node in tip.nodes.items() if node.id not in changes.deleted and node.id not in changes.moved}
    for one, (_, after) in changes.moved.items():
        nodes[after] = replace(theirs.by_id[one], path=after)
    by_id = {node.id: node for node in nodes.values()}
    for one in changes.updated | changes.attributes:
        mine, node = ours.by_id[one], by_id[one]
        columns, place = node.columns, node.attributes
        if one in changes.attributes:
            data, place = (attributes[one], None) if one in attributes else (mine.columns.attributes, mine.attributes)
            columns = replace(columns, attributes=data)
        if one in changes.updated:
            columns = replace(columns, array=mine.columns.array, extra=mine.columns.extra)
        nodes[node.path] = replace(node, columns=columns, attributes=place)
    for one, path in changes.created.items():
        if path in nodes:  # both have made the same group
            continue
        id_ = one
        if one in theirs.by_id:  # the same random number (D14)
            id_ = session.new_node_id()
            session.renumber(one, id_)
        nodes[path] = replace(ours.by_id[one], id=id_)
    lengthened = appends.lengthened(nodes)
    session.adopt(tip, nodes | lengthened)
    for node in lengthened.values():
        if (append := appends.arrays.get(node.id)) is None:
            continue
        if append.move is None:
            session.changes.pop(node.id, None)
            session.gatherer.forget_array(node.id)
        else:
            session.move_chunks(node, append.axis, append.move)
