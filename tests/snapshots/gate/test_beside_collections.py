"""Each operation on a versioned store, while somebody else lets everything expire and collects it without grace, at every one of its
requests: it is carried out, or says that what it needs has been collected; nothing is called damaged.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import zarr

from shardstore.errors import Conflict, SnapshotExpired, StorageError
from shardstore.snapshots import ConflictDetector, Repository
from shardstore.storage.memory import MemoryStorage
from shardstore.storage.wrappers import innermost
from shardstore.testing.faults import Delay, Fault, FaultStorage
from shardstore.testing.storage_suite import SyncStorage
from tests.harness.scale import at_requests
from tests.snapshots.committing import make_history
from tests.snapshots.repositories import read_array
from tests.snapshots.whole import check_whole

NOW = timedelta()
FUTURE = datetime(2200, 1, 1, tzinfo=UTC)


def change(repo: Repository, value: int) -> Any:
    session = repo.writable_session()
    zarr.open_array(session.store, path="a", mode="r+")[:] = value
    return session


def commit(repo: Repository) -> None:
    with suppress(Conflict):  # a collection has taken what the session had stored, and nothing was committed
        change(repo, 5).commit("beside", rebase_with=ConflictDetector())


def commit_old(repo: Repository) -> None:
    """Of a session that is older than the fence of a collection which has not ended."""
    other = Repository.open(innermost(repo._store.files.storage))
    other.garbage_collect(NOW)  # ends the one before
    session = change(repo, 5)
    change(other, 6)
    interrupted_collection(other)
    with suppress(Conflict):
        session.commit("beside", rebase_with=ConflictDetector())


def read(repo: Repository) -> None:
    with suppress(SnapshotExpired):  # it has expired since
        read_array(repo.readonly_session(), "a")


def verify(repo: Repository) -> None:
    assert repo.verify().findings == []


OPERATIONS: dict[str, Callable[[Repository], object]] = {
    "commit": commit,
    "commit of an old session": commit_old,
    "read": read,
    "verify": verify,
    "stats": lambda repo: repo.stats(),
    "collect": lambda repo: repo.garbage_collect(NOW),
    "collect with a grace": lambda repo: repo.garbage_collect(timedelta(days=1)),
    "look at garbage": lambda repo: repo.garbage_collect(NOW, dry_run=True),
    "expire": lambda repo: repo.expire_snapshots(FUTURE),
    "rewrite": lambda repo: repo.rewrite_manifests(),
    "branch": lambda repo: repo.create_branch("new", repo.lookup_branch("main")),
    "list": lambda repo: repo.list_branches(),
}


def interrupted_collection(repo: Repository) -> None:
    """Leave a collection that has doomed files, and died before it removed any."""

    async def fails(keys: object) -> None:
        raise StorageError("killed")

    repo.expire_snapshots(FUTURE)
    store = repo._store
    store.files.storage.delete_many, whole = fails, store.files.storage.delete_many  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="killed"):
        repo.garbage_collect(NOW)
    store.files.storage.delete_many = whole  # type: ignore[method-assign]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_somebody_else_collects_at_every_request(tmp_path: Path, operation: str) -> None:
    beside_collections(tmp_path, operation, 2)


@pytest.mark.night
@pytest.mark.parametrize(
    "operation",
    [one if one in ("commit", "read", "collect") else pytest.param(one, marks=pytest.mark.night) for one in OPERATIONS],
)
def test_somebody_else_collects_until_states_are_forgotten(tmp_path: Path, operation: str) -> None:
    beside_collections(tmp_path, operation, 10)


def beside_collections(tmp_path: Path, operation: str, times: int) -> None:
    made = MemoryStorage(f"{tmp_path}/history")
    make_history(made)
    interrupted_collection(Repository.open(made))
    objects = {info.key: SyncStorage(made).get(info.key) for info in SyncStorage(made).infos()}
    numbers = itertools.count()

    def attempt(fault: Fault) -> bool:
        inner = MemoryStorage(f"{tmp_path}/{next(numbers)}")
        for key, data in objects.items():
            assert data is not None
            SyncStorage(inner).put(key, data)

        def others() -> None:
            other = Repository.open(inner)
            for value in range(times):
                change(other, value).commit("others")
                other.expire_snapshots(FUTURE)
                other.garbage_collect(NOW)

        async def wait(_seconds: float) -> None:
            await asyncio.to_thread(others)

        storage = FaultStorage(inner, [fault], sleep=wait)
        OPERATIONS[operation](Repository.open(storage))
        check_whole(inner)
        return bool(storage.struck)

    at_requests(Delay(1.0), attempt, least=2)
