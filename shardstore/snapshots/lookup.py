"""The snapshot that a name, an id or a time means, and what programs see of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from shardstore.errors import InvalidInput, NotFound, SnapshotExpired
from shardstore.format.snapshots.file_names import is_id
from shardstore.format.snapshots.state import Snapshot, State
from shardstore.model.words import plural

FIRST_BRANCH = "main"
_SHOWN_REFS = 10


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """The facts about one snapshot."""

    id: str
    parent_id: str | None
    written_at: datetime
    message: str
    metadata: Mapping[str, Any]

    @classmethod
    def of(cls, snapshot: Snapshot) -> SnapshotInfo:
        """Return what a state says of a snapshot."""
        said = snapshot.properties
        metadata = said.get("metadata")
        return cls(
            snapshot.id,
            snapshot.parent,
            datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC),
            str(said.get("message", "")),
            metadata if isinstance(metadata, Mapping) else {},
        )


def snapshot_by_id(state: State, snapshot: str) -> Snapshot:
    """Return a snapshot. Raises ``NotFound`` if there is none of this id."""
    if (found := state.snapshots.get(snapshot)) is None:
        raise NotFound(f"there is no snapshot {snapshot!r}: it has expired, or belongs to another store")
    return found


def still_there(state: State, snapshot: str, url: str) -> Snapshot:
    """Return a snapshot of a store that has been open before. Raises ``SnapshotExpired`` if it is no more."""
    if (found := state.snapshots.get(snapshot)) is None:
        raise SnapshotExpired(f"snapshot {snapshot} of {url}, which this program had opened, has expired: open a newer snapshot")
    return found


def snapshot_of(state: State, ref: str) -> Snapshot:
    """Return the snapshot that a text means: a branch, else a tag, else a snapshot's id. Raises ``NotFound``, which lists what there is."""
    if (known := state.refs.get(ref)) is not None:
        return state.snapshots[known.snapshot]
    if (found := state.snapshots.get(ref)) is not None:
        return found
    there = ", ".join(f"{known.type} {name!r}" for name, known in sorted(state.refs.items())[:_SHOWN_REFS])
    gone = "; a snapshot of that id has expired, or belongs to another store" if is_id(ref) else ""
    raise NotFound(f"{ref!r} is not a branch, tag or snapshot: there are {there}, and {plural(len(state.snapshots), 'snapshot')}{gone}")


def named_snapshot(state: State, branch: str | None, tag: str | None, snapshot_id: str | None, as_of: datetime | None) -> Snapshot:
    """Return the snapshot that the arguments of ``Repository.readonly_session`` mean. Raises as that does."""
    given = [one for one in (branch, tag, snapshot_id) if one is not None]
    if len(given) > 1 or (as_of is not None and (tag is not None or snapshot_id is not None)):
        raise InvalidInput("give exactly one of branch, tag and snapshot_id; as_of needs a branch")
    if tag is not None:
        return state.snapshots[state.ref(tag, "tag").snapshot]
    if snapshot_id is not None:
        return snapshot_by_id(state, snapshot_id)
    tip = state.ref(branch or FIRST_BRANCH, "branch").snapshot
    if as_of is None:
        return state.snapshots[tip]
    newest_ms = milliseconds("as_of", as_of)
    found = next((one for one in state.ancestry(tip) if one.timestamp_ms <= newest_ms), None)
    if found is None:
        raise NotFound("no snapshot is as old as that")
    return found


def milliseconds(name: str, when: datetime) -> int:
    """Return a time in milliseconds since the epoch. Raises ``InvalidInput`` if it has no time zone."""
    given: object = when
    if not isinstance(given, datetime) or given.tzinfo is None:
        raise InvalidInput(f"{name}={when!r} is not a time with a time zone: give one, such as datetime(2026, 1, 31, tzinfo=UTC)")
    return int(when.timestamp() * 1000)
