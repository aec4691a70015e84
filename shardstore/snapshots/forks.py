"""Forks of a session as they travel between processes: with what was changed in them, but without the bytes of chunks, which are stored in
chunk files before.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardstore.format.snapshots.state import Snapshot
from shardstore.format.snapshots.structure import Node
from shardstore.snapshots.chunk_places import ArrayChanges
from shardstore.snapshots.read_set import ReadSet
from shardstore.snapshots.session import Session


@dataclass(frozen=True, slots=True)
class ForkState:
    """What of a fork travels."""

    snapshot: Snapshot
    branch: str
    nodes: dict[str, Node]
    changes: dict[int, ArrayChanges]
    documents: dict[int, tuple[bytes, int]]
    serial: int
    reads: ReadSet | None
    began: int


async def fork_state(session: Session) -> ForkState:
    """Return what of a session travels; chunks that wait are stored first."""
    assert session.branch is not None
    async with session.still("it is being pickled"):
        await session.gatherer.store(session.gatherer.plan())
    return ForkState(
        session.snapshot, session.branch, session.nodes, session.changes, session.documents, session.serial, session.reads, session.began
    )


def restore(session: Session, state: ForkState) -> None:
    """Make a new session on the same snapshot the fork that has travelled."""
    session.nodes, session.changes, session.documents = dict(state.nodes), state.changes, state.documents
    session.serial, session.reads, session.began = state.serial, state.reads, state.began
