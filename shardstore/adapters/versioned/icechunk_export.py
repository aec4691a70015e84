"""The whole history of a repository as one of Icechunk, by virtual references into its chunk files: no chunk is copied.

Each snapshot is written onto its parent, by what differs between them, the oldest first; then branches and tags.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from inspect import signature
from typing import Any

from shardstore._sync import run_sync
from shardstore.adapters.versioned.opened import OpenedStore
from shardstore.adapters.versioned.session import Session
from shardstore.errors import InvalidInput
from shardstore.format.snapshots.state import Snapshot, State
from shardstore.references.icechunk.writing import translated, write_changes
from shardstore.snapshots.diffs import Diff, diff
from shardstore.snapshots.reachable import Progress
from shardstore.snapshots.versioned_store import FIRST_BRANCH, Moment

_WORK = "shardstore-export"
"""The branch on which snapshots are written; it is removed."""


def export(opened: OpenedStore, target: Any, say: Progress) -> dict[str, str]:
    """Write the history into a new repository of icechunk; see ``Repository.export_icechunk``."""
    moment = run_sync(opened.store.now())
    with translated(_WORK):
        return _export(opened, moment, target, say)


def _export(opened: OpenedStore, moment: Moment, target: Any, say: Progress) -> dict[str, str]:
    state = moment.state
    first = target.lookup_branch(FIRST_BRANCH)
    if set(target.list_branches()) != {FIRST_BRANCH} or target.list_tags() or len(list(target.ancestry(snapshot_id=first))) > 1:
        raise InvalidInput("the repository of icechunk has a history already: give a new one, which icechunk.Repository.create makes")
    target.create_branch(_WORK, first)
    ids: dict[str, str] = {}
    try:
        for number, snapshot in enumerate(state.snapshots.values()):  # parents come first
            say("exporting snapshots", number, len(state.snapshots))
            base = first if snapshot.parent is None else ids[snapshot.parent]
            target.reset_branch(_WORK, base)
            ids[snapshot.id] = _write(opened, moment, snapshot, target, base, is_first=base == first)
        _name(state, ids, target)
    finally:
        target.delete_branch(_WORK)
    return ids


def _write(opened: OpenedStore, moment: Moment, snapshot: Snapshot, target: Any, base: str, *, is_first: bool) -> str:
    """Write one snapshot onto its parent; return its id in the target. ``is_first``: the parent is the first one of the target, which has
    no nodes, and stands for an empty one here.
    """
    after = Session(opened, moment, snapshot)
    nodes = after._core.nodes
    if snapshot.parent is None and nodes.keys() == {""} and nodes[""].columns.attributes is None and nodes[""].attributes is None:
        return base
    if is_first or snapshot.parent is None:
        groups = {path for path, node in nodes.items() if not node.is_array}
        gone: set[str] = set()
        arrays = nodes.keys() - groups
    else:
        changed = run_sync(diff(Session(opened, moment, moment.state.snapshots[snapshot.parent])._core, after._core))
        gone, groups, arrays = _changed(changed, nodes)
    session = target.writable_session(_WORK)
    write_changes(session, after.storage, gone=gone, groups=groups, arrays=arrays)
    if session.has_uncommitted_changes:
        return str(session.commit(_message(snapshot), metadata=_metadata(snapshot)))
    if "allow_empty" not in signature(session.commit).parameters:
        return base  # icechunk 1 has no commits without changes
    return str(session.commit(_message(snapshot), metadata=_metadata(snapshot), allow_empty=True))


def _changed(found: Diff, nodes: Mapping[str, Any]) -> tuple[set[str], set[str], set[str]]:
    """Return the paths that are gone, and those of groups and of arrays to be written anew."""
    moved_from, moved_to = ({pair[number] for pair in found.moved_nodes} for number in (0, 1))
    gone = {*found.deleted_groups, *found.deleted_arrays, *moved_from}
    written = {*found.new_groups, *found.new_arrays, *found.updated_groups, *found.updated_arrays, *moved_to, *found.updated_chunks}
    # What is below a path that goes, and stays in the snapshot, as a node of the same name does that was replaced, is written too.
    written |= {path for path in nodes for lost in gone if path == lost or path.startswith(f"{lost}/")}
    groups = {path for path in written if not nodes[path].is_array}
    return gone, groups, written - groups


def _message(snapshot: Snapshot) -> str:
    return str(snapshot.properties.get("message") or "") or f"snapshot {snapshot.id}"


def _metadata(snapshot: Snapshot) -> dict[str, Any]:
    own = snapshot.properties.get("metadata")
    when = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC).isoformat()
    return {**(dict(own) if isinstance(own, Mapping) else {}), "shardstore.snapshot": snapshot.id, "shardstore.written_at": when}


def _name(state: State, ids: Mapping[str, str], target: Any) -> None:
    for name, ref in state.refs.items():
        if ref.type == "tag":
            target.create_tag(name, ids[ref.snapshot])
        elif name == FIRST_BRANCH:
            target.reset_branch(name, ids[ref.snapshot])
        else:
            target.create_branch(name, ids[ref.snapshot])
