"""A storage of each kind, and the same one showing a hierarchy of the 2022 draft."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from shardstore.storage.base import Storage
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.memory import MemoryStorage
from shardstore.stored.draft2022.storage import DraftStorage
from shardstore.testing.storage_suite import SyncStorage


@pytest.fixture(params=["memory", "local"])
def inner(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return MemoryStorage(f"/test-{uuid.uuid4().hex}") if request.param == "memory" else LocalStorage(tmp_path / "store", fsync=False)


@pytest.fixture
def i(inner: Storage) -> SyncStorage:
    return SyncStorage(inner)


@pytest.fixture
def s(inner: Storage) -> SyncStorage:
    return SyncStorage(DraftStorage(inner))
