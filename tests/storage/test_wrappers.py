"""The contract of every storage, for all wrappers, one upon the other: each forwards what it does not change."""

from __future__ import annotations

import uuid

import pytest

from shardstore.storage.memory import MemoryStorage
from shardstore.storage.wrappers import CheckedStorage
from shardstore.testing.faults import FaultStorage
from shardstore.testing.latency import LatencyStorage
from shardstore.testing.storage_suite import StorageSuite
from shardstore.testing.trace import TraceStorage


async def no_sleep(_seconds: float) -> None:
    return None


class TestWrappers(StorageSuite):
    """Without a plan of faults, and on a clock that does not wait."""

    @pytest.fixture
    def storage(self) -> TraceStorage:
        faulty = FaultStorage(MemoryStorage(f"/wrapped-{uuid.uuid4().hex}"), sleep=no_sleep)
        slow = LatencyStorage(faulty, 0.5, bandwidth=100, concurrency=4, sleep=no_sleep)
        return TraceStorage(CheckedStorage(slow, no_sleep))
