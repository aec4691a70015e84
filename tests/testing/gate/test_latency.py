"""The latency wrapper, by an injected sleep: nothing here waits."""

from __future__ import annotations

import asyncio
import pickle
import uuid

import pytest

from shardstore.model.ranges import EVERYTHING, ByteRange, ByteSuffix
from shardstore.storage.base import Read
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.latency import LatencyStorage
from shardstore.testing.storage_suite import SyncStorage


class Sleeps:
    """Records sleeps, and how many were under way at once."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.at_once = 0
        self.most_at_once = 0

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1


@pytest.fixture
def sleeps() -> Sleeps:
    return Sleeps()


@pytest.fixture
def storage(sleeps: Sleeps) -> LatencyStorage:
    return LatencyStorage(MemoryStorage(f"/latency-{uuid.uuid4().hex}"), 0.5, bandwidth=100, concurrency=4, sleep=sleeps)


def test_requests_take_their_time(s: SyncStorage, sleeps: Sleeps) -> None:
    s.put("a", b"0" * 50)
    s.read_many(Read("a", (ByteRange(0, 10), ByteSuffix(20))), Read("absent", (EVERYTHING,)), Read("a", ()))
    assert sleeps.seconds == pytest.approx([1.0, 0.6, 0.7, 0.5, 0.5])
    sleeps.seconds.clear()
    s.stat("a")
    s.keys()
    s.children()
    s.delete("a")
    s.delete_many(*(str(i) for i in range(1001)))
    assert sleeps.seconds == [0.5] * 6
    s.put("a/x", b"")
    sleeps.seconds.clear()
    s.copy("a/x", "a/y")
    s.rename_prefix("a", "b")
    s.rename_prefix("a", "c")  # there is nothing any more
    assert sleeps.seconds == [0.5] * 2


def test_ranges_are_concurrent_within_the_bound(s: SyncStorage, sleeps: Sleeps) -> None:
    s.put("a", b"0" * 50)
    s.read("a", *(ByteRange(i, i + 1) for i in range(20)))
    assert sleeps.most_at_once == 4


def test_pickles() -> None:
    storage = LatencyStorage(MemoryStorage("/x"), 0.25, 1000.0, 7)
    copy = pickle.loads(pickle.dumps(storage))
    assert (copy.inner, copy.seconds, copy.bandwidth, copy.sleep) == (storage.inner, 0.25, 1000.0, asyncio.sleep)
    assert copy.__reduce__() == storage.__reduce__()
