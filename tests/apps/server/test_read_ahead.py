"""Shards are read ahead where values may be kept: fewer requests, the same bytes, and never those of another version."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import zarr

import shardstore
from shardstore.adapters.read_views import StoredView, ValueRead
from shardstore.apps.server import serve
from shardstore.apps.server.buckets import GatheredReads
from shardstore.model.durations import Duration
from shardstore.model.generation import UNCONDITIONAL, Generation
from shardstore.model.ranges import ByteRange, ByteSuffix
from shardstore.storage.base import Absent, Changed, Found, Read, ReadOutcome, Storage
from shardstore.storage.memory import MemoryStorage
from shardstore.storage.read_ahead import BLOCK_NBYTES, KEPT_NBYTES, ReadAhead
from shardstore.testing.trace import TraceStorage
from tests.apps.server.conftest import DATA, connected
from tests.stored import on_io_loop


class Ahead:
    """Reads of an object through ``ReadAhead``, whose clock is moved by hand."""

    def __init__(self, nbytes: int, keep_seconds: float = 60.0) -> None:
        self.storage = TraceStorage(MemoryStorage(f"/ahead-{uuid.uuid4().hex}"))
        self.now = 0.0
        self.ahead = ReadAhead(self.storage, keep_seconds, clock=lambda: self.now)
        self.data = b""
        self.generation = self.put(bytes(i * 7 % 251 for i in range(1000)) * (nbytes // 1000 + 1), nbytes)

    def put(self, data: bytes, nbytes: int) -> Generation:
        self.data = data[:nbytes]
        return on_io_loop(self.storage.write("k", [self.data], nbytes, UNCONDITIONAL))

    def read(self, *ranges: Any, generation: Generation | None = None, key: str = "k") -> ReadOutcome:
        (outcome,) = on_io_loop(self.ahead.read([Read(key, ranges, generation or self.generation)]))
        return outcome

    def requests(self) -> int:
        n = sum(event.op == "read" for event in self.storage.events)
        self.storage.events.clear()
        return n


def parts(outcome: ReadOutcome) -> list[bytes]:
    assert isinstance(outcome, Found)
    return [bytes(buffer) for buffer in outcome.buffers]


def test_who_asks_twice_gets_the_rest_from_memory() -> None:
    it = Ahead(3_000_000)
    assert parts(it.read(ByteRange(0, 100))) == [it.data[:100]]
    assert parts(it.read(ByteRange(500, 600))) == [it.data[500:600]]  # and the block
    it.requests()
    for start in (0, 999_999, 2_999_990):
        found = it.read(ByteRange(start, start + 5), ByteRange(start, start + 9))
        assert parts(found) == [it.data[start : start + 5], it.data[start : start + 9]]
        assert isinstance(found, Found)
        assert (found.nbytes, found.generation) == (len(it.data), it.generation)
    assert it.requests() == 0


def test_who_asks_once_gets_what_was_asked_for() -> None:
    it = Ahead(3_000_000)
    it.read(ByteRange(0, 100))
    it.now = 10.0
    it.read(ByteRange(200, 300))
    assert [event.nbytes for event in it.storage.events if event.op == "read"] == [100, 100]


def test_ranges_over_several_blocks() -> None:
    it = Ahead(2 * BLOCK_NBYTES + 777)
    it.read(ByteRange(0, 1))
    for start, end in ((BLOCK_NBYTES - 5, BLOCK_NBYTES + 5), (3, 2 * BLOCK_NBYTES + 700), (2 * BLOCK_NBYTES, 2 * BLOCK_NBYTES + 777)):
        assert parts(it.read(ByteRange(start, end))) == [it.data[start:end]]
    it.requests()
    assert parts(it.read(ByteRange(1, 2 * BLOCK_NBYTES))) == [it.data[1 : 2 * BLOCK_NBYTES]]
    assert it.requests() == 0


def test_what_is_kept_is_of_one_version_and_not_for_longer_than_allowed() -> None:
    it = Ahead(1_000_000)
    old = it.data
    it.read(ByteRange(0, 10))
    it.read(ByteRange(0, 10))
    second = it.put(b"B" * 1_000_000, 1_000_000)
    assert parts(it.read(ByteRange(5, 9), generation=second)) == [b"BBBB"]
    assert parts(it.read(ByteRange(5, 9))) == [old[5:9]]  # that version, for as long as it may be kept
    it.now = 61.0
    assert isinstance(it.read(ByteRange(5, 9)), Changed)
    assert isinstance(it.read(ByteRange(5, 9), key="none"), Absent | Changed)


def test_other_reads_pass_through() -> None:
    it = Ahead(1_000_000)
    for _ in range(3):
        assert parts(it.read(ByteSuffix(7))) == [it.data[-7:]]
        (outcome,) = on_io_loop(it.ahead.read([Read("k", (ByteRange(0, 7),))]))
        assert parts(outcome) == [it.data[:7]]
        assert it.requests() == 2


def test_memory_is_bounded() -> None:
    it = Ahead(KEPT_NBYTES + 3 * BLOCK_NBYTES)
    for start in range(0, len(it.data), BLOCK_NBYTES):
        it.read(ByteRange(start, start + 1))
    blocks = [block for key in it.ahead._blocks if (block := it.ahead._blocks.peek(key)) is not None]
    assert it.ahead._blocks.used == sum(len(data) for _, data in blocks) <= KEPT_NBYTES


@pytest.mark.parametrize(("max_age", "is_ahead"), [(0, False), ("60s", True)])
@pytest.mark.parametrize("view", ["zarr3", "zarr2"])
def test_a_server_reads_ahead_only_where_values_may_be_kept(max_age: Duration, is_ahead: bool, view: str) -> None:
    storage = TraceStorage(MemoryStorage(f"/served-{uuid.uuid4().hex}"))
    fill(storage)
    with serve(storage, port=0, max_age=max_age) as serving, connected(serving) as http:
        assert (ReadAhead in kinds(serving.application.served.store.handle.engine.canonical.storage)) == is_ahead
        between = "/c/" if view == "zarr3" else "/"
        paths = [f"{view}/ct{between}{i}/{j}/0" for i in range(4) for j in range(4)]  # of one shard
        bodies = [http.get(path).content for path in paths[:3]]
        storage.events.clear()
        bodies += [http.get(path).content for path in paths[3:]]
        data_reads = [event for event in storage.events if event.op == "read" and not event.key.endswith("zarr.json")]
        assert (data_reads == []) == is_ahead
        for (i, j), body in zip(((i, j) for i in range(4) for j in range(4)), bodies, strict=True):
            assert body == DATA[i * 8 : i * 8 + 8, j * 8 : j * 8 + 8].tobytes()


def kinds(storage: Any) -> Iterator[type]:
    """The classes of a storage and of those inside."""
    while storage is not None:
        yield type(storage)
        storage = getattr(storage, "inner", None)


def fill(storage: Storage) -> None:
    store = shardstore.open(storage, chunks_per_shard=(4, 4, 1))
    zarr.create_array(store, name="ct", data=DATA, chunks=(8, 8, 8), compressors=None)


def test_stored_objects_are_read_as_they_are() -> None:
    storage = TraceStorage(MemoryStorage(f"/stored-{uuid.uuid4().hex}"))
    fill(storage)
    with serve(storage, port=0, max_age="1min") as serving, connected(serving) as http:
        for _ in range(3):
            storage.events.clear()
            assert http.get("stored/ct/c/0/0/0", headers={"range": "bytes=0-9"}).status_code == 206
            assert sum(event.nbytes for event in storage.events) == 10
        served = serving.application.served.buckets["stored"]
        assert isinstance(served.view, StoredView)
        assert ReadAhead not in kinds(served.view.storage)


@pytest.mark.parametrize(("seconds", "batches"), [(0.05, [1, 3]), (0.0, [1, 1, 1, 1])])
def test_reads_that_come_soon_after_each_other_go_together_where_reading_takes_long(seconds: float, batches: list[int]) -> None:
    asked: list[int] = []

    async def read(reads: Sequence[ValueRead]) -> list[None]:
        asked.append(len(reads))
        await asyncio.sleep(seconds)
        return [None] * len(reads)

    async def submit() -> None:
        gathered = GatheredReads(read)
        await gathered.submit(ValueRead("first"))
        rest = []
        for key in ("a", "b", "c"):
            rest.append(asyncio.ensure_future(gathered.submit(ValueRead(key))))
            for _ in range(3):
                await asyncio.sleep(0)  # some ticks of the loop
        await asyncio.gather(*rest)

    on_io_loop(submit())
    assert asked == batches
