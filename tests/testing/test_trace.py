"""The tracing wrapper: a storage like any other, which counts."""

from __future__ import annotations

import pickle
import uuid

import pytest

from shardstore.model.generation import IF_ABSENT, IfGeneration
from shardstore.model.ranges import EVERYTHING, ByteRange, ByteSuffix, CopiedRange, NewBytes
from shardstore.storage.base import ConditionFailed, Read
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.storage_suite import SyncStorage
from shardstore.testing.trace import Event, Summary, TraceStorage


@pytest.fixture
def storage() -> TraceStorage:
    return TraceStorage(MemoryStorage(f"/trace-{uuid.uuid4().hex}"))


def test_reads_count_ranges_and_rounds(storage: TraceStorage, s: SyncStorage) -> None:
    s.put("a", b"0123456789")
    storage.reset()
    s.read_many(Read("a", (ByteSuffix(4), ByteRange(8, 12))), Read("absent", (EVERYTHING,)))
    s.read("a")
    assert storage.events == [
        Event("read", "a", 1, ByteSuffix(4), 4),
        Event("read", "a", 1, ByteRange(8, 12), 2),
        Event("read", "absent", 1, EVERYTHING),
        Event("read", "a", 2),
    ]
    assert storage.summary() == Summary(requests=4, bytes_read=6, bytes_written=0, bytes_copied=0, rounds=2)


def test_writes_count_what_was_sent(storage: TraceStorage, s: SyncStorage) -> None:
    first = s.put("a", b"0123456789")
    second = s.compose("a", first, [NewBytes(b"xy"), CopiedRange(2, 5)], IfGeneration(first))
    with pytest.raises(ConditionFailed):
        s.put("a", b"1", IF_ABSENT)
    s.delete("a", IfGeneration(second))
    assert [event.op for event in storage.events] == ["write", "compose", "write", "delete"]
    assert storage.summary() == Summary(requests=4, bytes_read=0, bytes_written=12, bytes_copied=5, rounds=0)


def test_copies_and_renames_count_as_one_request(storage: TraceStorage, s: SyncStorage) -> None:
    s.put("a/x", b"0123456789")
    storage.reset()
    s.copy("a/x", "a/y")
    s.rename_prefix("a", "b")
    s.rename_prefix("a", "c")  # there is nothing any more
    assert storage.events == [Event("copy", "a/y", 0), Event("rename_prefix", "b", 0)]
    assert storage.summary() == Summary(requests=2, bytes_read=0, bytes_written=0, bytes_copied=0, rounds=0)


def test_keys_count_by_the_thousand(storage: TraceStorage, s: SyncStorage) -> None:
    assert s.keys() == []
    assert s.children() == ([], [])
    s.stat("a")
    s.delete_many(*(str(i) for i in range(1001)))
    assert storage.summary().requests == 1 + 1 + 1 + 2


def test_blocks(storage: TraceStorage, s: SyncStorage) -> None:
    s.put("a", b"1")
    with storage.count() as outer:
        s.put("a", b"22")
        with storage.count() as inner:
            storage.reset()
            s.get("a")
    s.get("a")
    assert inner.summary() == Summary(1, 2, 0, 0, 1)
    assert outer.summary() == Summary(2, 2, 2, 0, 1)
    assert storage.summary() == Summary(2, 4, 0, 0, 2)


def test_pickles(storage: TraceStorage, s: SyncStorage) -> None:
    s.put("a", b"1")
    copy = pickle.loads(pickle.dumps(storage))
    assert copy.inner == storage.inner
    assert copy.events == []
