"""The contract of storages, on sessions: before anything was committed, upon what was committed, and reading what was committed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardstore.snapshots import Repository
from shardstore.testing.storage_suite import StorageSuite, SyncStorage
from tests.snapshots.repositories import new_repository
from tests.snapshots.session_keys import ArrayForEach, OneArray, RenewingSession, SessionOfKeys
from tests.under_array import GRID, RANK


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return new_repository(tmp_path)


def with_history(repo: Repository) -> None:
    """Commit an array whose first and last chunk were there, and are gone: so all lookups go through two manifests."""
    storage = SessionOfKeys(repo, OneArray("deep/er"))
    s = SyncStorage(storage)
    s.put("gone", b"1")
    corners = [f"deep/er/c/{'/'.join([str(at)] * RANK)}" for at in (0, GRID - 1)]
    below = SyncStorage(storage.below)
    for corner in corners:
        below.put(corner, b"x" * 1000)
    storage.renew()
    SyncStorage(storage.below).delete_many(*corners, storage._chunks.chunk("gone"))
    storage.renew()


@pytest.mark.night
class TestOneArray(StorageSuite):
    """At the root, of which nothing is stored."""

    @pytest.fixture
    def storage(self, repo: Repository) -> SessionOfKeys:
        storage = SessionOfKeys(repo, OneArray(""))
        SyncStorage(storage.below).put(*storage._chunks.document(""))
        return storage


class TestArrayForEach(StorageSuite):
    @pytest.fixture
    def storage(self, repo: Repository) -> SessionOfKeys:
        return SessionOfKeys(repo, ArrayForEach())


class TestWithHistory(StorageSuite):
    @pytest.fixture
    def storage(self, repo: Repository) -> SessionOfKeys:
        with_history(repo)
        return SessionOfKeys(repo, OneArray("deep/er"))


class Committed(StorageSuite):
    @pytest.fixture
    def storage(self, repo: Repository) -> SessionOfKeys:
        with_history(repo)
        return SessionOfKeys(repo, OneArray("deep/er"))

    @pytest.fixture
    def s(self, storage: SessionOfKeys) -> RenewingSession:
        return RenewingSession(storage)


class TestCommitted(Committed):
    pass


@pytest.mark.night
class TestCommittedArrayForEach(Committed):
    @pytest.fixture
    def storage(self, repo: Repository) -> SessionOfKeys:
        return SessionOfKeys(repo, ArrayForEach())


@pytest.mark.night
class TestCommittedLocal(Committed):
    @pytest.fixture
    def repo(self, tmp_path: Path) -> Repository:
        return Repository.create(tmp_path, fsync=False)


class TestCommittedS3(Committed):
    @pytest.fixture
    def repo(self, s3_url: tuple[str, dict[str, Any]]) -> Repository:
        url, options = s3_url
        return Repository.create(url, storage_options=options)
