"""What is killed in the middle of a commit: run in children of ``tests.harness.crash``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from shardstore.snapshots import Repository
from shardstore.storage.local.storage import LocalStorage
from shardstore.testing.faults import Fault, FaultStorage, Kill
from tests.harness.crash import Child
from tests.snapshots.committing import MESSAGE, change

FUTURE = datetime(2200, 1, 1, tzinfo=UTC)


def commit_once(child: Child, root: str) -> None:
    """A commit, whose system calls are counted; acknowledged when it says that it is durable."""
    session = Repository.open(root, pack=(4,)).writable_session()
    change(session)
    with child.counted():
        session.commit(MESSAGE)
    child.acknowledge("committed")


def collect_and_die(child: Child, root: str, at: int, after: bool) -> None:
    """An expiry and a collection; this process dies at request number ``at``, from 1, before it is carried out or ``after``."""
    storage = FaultStorage(LocalStorage(root, fsync=False))
    repo = Repository.open(storage)
    storage.plan(Fault(at, Kill(after)))
    repo.expire_snapshots(FUTURE)
    repo.garbage_collect(timedelta())
    child.acknowledge("collected")


def commit_and_die(child: Child, root: str, at: int, after: bool) -> None:
    """The same; this process dies at request number ``at``, from 1, before it is carried out or ``after``."""
    storage = FaultStorage(LocalStorage(root))
    session = Repository.open(storage, pack=(4,)).writable_session()
    change(session)
    storage.plan(Fault(at, Kill(after)))
    session.commit(MESSAGE)
    child.acknowledge("committed")
