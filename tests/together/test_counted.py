"""How many requests, and of how many bytes: counted, not timed, and so the same on every machine."""

from __future__ import annotations

import asyncio
import tracemalloc
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec.asyn
import hypothesis.strategies as st
import numpy as np
import pytest
import zarr
from hypothesis import given
from zarr.abc.store import RangeByteRequest
from zarr.core.buffer import cpu, default_buffer_prototype

import shardstore
from shardstore.format.shard_index import IndexLocation
from shardstore.model.capabilities import Capabilities
from shardstore.model.durations import Duration
from shardstore.model.ranges import ByteRange, ByteSuffix
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.trace import Event, TracedBlock, TraceStorage
from tests import view
from tests.limits import limit_pipeline
from tests.shards import MISSING, Sharding, encode_index, sharded_arrays
from tests.stored import StorageObjects, document

CHUNK = 1000  # bytes; raw, so that every chunk is as long
PER_SHARD = 16
HOUR = "1h"


class WithoutCompose(TraceStorage):
    """A storage that cannot copy ranges itself, as most cannot: what is kept of a shard is read."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, compose=False)


class WithoutConditions(WithoutCompose):
    """A storage whose writes have no conditions either."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, compare_and_swap=False)


class Counted:
    """An array of ``shards`` shards of 16 raw chunks, and as many cold clients of it as one likes."""

    def __init__(self, shards: int = 1, index_location: IndexLocation = "end") -> None:
        self.storage = MemoryStorage(f"/counted-{uuid.uuid4().hex}")
        self.values = np.random.default_rng(0).integers(1, 255, shards * PER_SHARD * CHUNK, dtype="u1")
        store = shardstore.open(self.storage, chunks_per_shard=(PER_SHARD,), index_location=index_location)
        array = zarr.create_array(store, name="x", shape=self.values.shape, chunks=(CHUNK,), dtype="u1", compressors=None, fill_value=0)
        array[...] = self.values
        self.layout: Sharding = sharded_arrays(StorageObjects(self.storage))["x"]

    def client(self, wrapper: type[TraceStorage] = TraceStorage, **options: Any) -> tuple[TraceStorage, zarr.Array[Any]]:
        """A trace and the array, opened: its metadata is known, its indices are not."""
        trace = wrapper(self.storage)
        store = shardstore.open(trace, **{"metadata_ttl": HOUR, **options})
        array = zarr.open_array(store, path="x", mode="r+")
        return trace, array

    def is_index(self, event: Event) -> bool:
        nbytes = self.layout.index_nbytes
        return event.range in (ByteSuffix(nbytes), ByteRange(0, nbytes))

    def index_reads(self, block: TracedBlock) -> list[Event]:
        return [event for event in shard_events(block, "read") if self.is_index(event)]

    def chunk_reads(self, block: TracedBlock) -> list[Event]:
        return [event for event in shard_events(block, "read") if not self.is_index(event)]


def shard_events(block: TracedBlock, *ops: str) -> list[Event]:
    return [event for event in block.events if not event.key.endswith("zarr.json") and (not ops or event.op in ops)]


def metadata_reads(block: TracedBlock) -> list[Event]:
    return [event for event in block.events if event.key.endswith("zarr.json") and event.op == "read"]


def store_of(array: zarr.Array[Any]) -> shardstore.ShardedStore:
    store = array.store
    assert isinstance(store, shardstore.ShardedStore)
    return store


def pick(array: zarr.Array[Any], chunks: Sequence[int]) -> Any:
    """The elements of some chunks, in one selection."""
    return array.oindex[np.concatenate([np.arange(chunk * CHUNK, (chunk + 1) * CHUNK) for chunk in chunks])]


def forced(chunks: Sequence[int], gap_bytes: int, request_bytes: int) -> int:
    """The fewest requests for these chunks, which lie one behind the other, within the limits."""
    requests, start, end = 0, 0, 0
    for chunk in sorted(set(chunks)):
        if requests and chunk * CHUNK - end <= gap_bytes and (chunk + 1) * CHUNK - start <= request_bytes:
            end = (chunk + 1) * CHUNK
            continue
        requests, start, end = requests + 1, chunk * CHUNK, (chunk + 1) * CHUNK
    return requests


# -- reading --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["start", "end"])
def one_shard(request: pytest.FixtureRequest) -> Counted:
    return Counted(1, request.param)


@pytest.mark.parametrize(
    ("chunks", "gap_bytes", "request_bytes", "requests"),
    [
        ([3], 0, 10**9, 1),
        ([3, 4, 5], 0, 10**9, 1),
        ([3, 5], 0, 10**9, 2),
        ([3, 5], CHUNK, 10**9, 1),
        ([3, 5, 8], CHUNK, 10**9, 2),
        ([3, 4, 5, 6], 0, 2 * CHUNK, 2),
        ([0, 15], 10**9, 10**9, 1),
        ([3], 0, 10, 1),  # a single chunk is never split
    ],
)
def test_a_cold_selection_inside_one_shard(
    one_shard: Counted, chunks: list[int], gap_bytes: int, request_bytes: int, requests: int
) -> None:
    assert forced(chunks, gap_bytes, request_bytes) == requests or request_bytes < CHUNK
    trace, array = one_shard.client(gap_bytes=gap_bytes, request_bytes=request_bytes)
    with trace.count() as block:
        got = pick(array, chunks)
    np.testing.assert_array_equal(got, np.concatenate([one_shard.values[c * CHUNK : (c + 1) * CHUNK] for c in chunks]))
    assert len(one_shard.index_reads(block)) == 1
    assert len(one_shard.chunk_reads(block)) == requests
    assert block.summary().rounds == 2
    assert metadata_reads(block) == []

    with trace.count() as again:
        pick(array, chunks)
    assert one_shard.index_reads(again) == []
    assert len(one_shard.chunk_reads(again)) == requests
    assert again.summary().rounds == 1


@given(
    chunks=st.lists(st.integers(0, PER_SHARD - 1), min_size=1, max_size=PER_SHARD - 1, unique=True),
    gap_bytes=st.integers(0, 4 * CHUNK),
    request_bytes=st.integers(CHUNK, 8 * CHUNK),
)
def test_no_selection_costs_more_than_the_limits_force(one_shard: Counted, chunks: list[int], gap_bytes: int, request_bytes: int) -> None:
    trace, array = one_shard.client(gap_bytes=gap_bytes, request_bytes=request_bytes)
    with trace.count() as block:
        pick(array, chunks)
    assert len(one_shard.index_reads(block)) == 1
    assert len(one_shard.chunk_reads(block)) <= forced(chunks, gap_bytes, request_bytes)
    assert block.summary().bytes_read <= PER_SHARD * CHUNK + one_shard.layout.index_nbytes


def test_one_chunk_costs_its_bytes_and_the_index(one_shard: Counted) -> None:
    trace, array = one_shard.client()
    with trace.count() as block:
        array.blocks[5]
    assert block.summary().bytes_read == CHUNK + one_shard.layout.index_nbytes


def test_a_part_of_a_chunk_costs_that_part(one_shard: Counted) -> None:
    trace, array = one_shard.client()
    with trace.count() as block:
        assert view.get(store_of(array), "x/c/5", RangeByteRequest(10, 20)) == bytes(one_shard.values[5 * CHUNK + 10 : 5 * CHUNK + 20])
    assert block.summary().bytes_read == 10 + one_shard.layout.index_nbytes


def test_a_whole_shard_is_one_request(one_shard: Counted) -> None:
    """Nothing but the shard: neither its index first, nor a round more."""
    trace, array = one_shard.client()
    for _ in ("cold", "warm"):
        with trace.count() as block:
            np.testing.assert_array_equal(array[...], one_shard.values)
        assert len(shard_events(block)) == 1
        assert block.summary().requests == 1


def test_several_whole_shards_are_a_request_each() -> None:
    counted = Counted(5)
    trace, array = counted.client()
    with trace.count() as block:
        np.testing.assert_array_equal(array[...], counted.values)
    assert sorted(event.key for event in shard_events(block)) == [f"x/c/{i}" for i in range(5)]
    assert block.summary().rounds == 1


def test_a_thousand_chunks_of_a_hundred_shards_are_two_rounds() -> None:
    counted = Counted(100)
    chunks = [shard * PER_SHARD + i for shard in range(100) for i in range(10)]
    trace, array = counted.client()
    with trace.count() as block:
        got = pick(array, chunks)
    assert got.size == 1000 * CHUNK
    assert block.summary().rounds == 2
    assert len(counted.index_reads(block)) == 100
    assert len(counted.chunk_reads(block)) == 100
    with trace.count() as again:
        pick(array, chunks)
    assert again.summary().rounds == 1
    assert counted.index_reads(again) == []


def test_missing_chunks_cost_no_chunk_request() -> None:
    counted = Counted(2)
    array = counted.client()[1]
    array.blocks[3:6] = 0
    trace, array = counted.client()
    with trace.count() as block:
        np.testing.assert_array_equal(array.blocks[3:6], 0)
    assert len(counted.index_reads(block)) == 1
    assert counted.chunk_reads(block) == []
    array[16 * CHUNK :] = 0
    with trace.count() as block:
        np.testing.assert_array_equal(array.blocks[20:24], 0)
    assert len(shard_events(block)) <= 1  # no object, and that is all there is to learn


def test_single_gets_of_one_tick_are_one_batch(one_shard: Counted) -> None:
    """Clients that ask one by one, as a data loader does."""
    trace, array = one_shard.client()
    store = store_of(array)

    async def gets() -> list[bytes]:
        values = await asyncio.gather(*(store.get(f"x/c/{i}", default_buffer_prototype()) for i in range(8)))
        return [value.to_bytes() for value in values if value is not None]

    with trace.count() as block:
        # On the IO loop, where a tick is a tick; from another loop it depends on the threads.
        got = fsspec.asyn.sync(fsspec.asyn.get_loop(), gets)
    assert b"".join(got) == bytes(one_shard.values[: 8 * CHUNK])
    assert len(one_shard.index_reads(block)) == 1
    assert len(one_shard.chunk_reads(block)) == 1


def test_sizes_and_existence_read_no_chunks() -> None:
    counted = Counted(4)
    trace, array = counted.client()
    with trace.count() as block:
        for chunk in range(4 * PER_SHARD):
            assert view.getsize(store_of(array), f"x/c/{chunk}") == CHUNK
            assert view.exists(store_of(array), f"x/c/{chunk}")
    assert counted.chunk_reads(block) == []
    with trace.count() as block:
        assert array.nchunks_initialized == 4 * PER_SHARD
    assert counted.chunk_reads(block) == []
    with trace.count() as block:
        assert array.nbytes_stored() > 4 * PER_SHARD * CHUNK
    assert counted.chunk_reads(block) == []
    assert len(counted.index_reads(block)) <= 4


@pytest.mark.parametrize("prefix", ["x/c/", "x/", ""])
def test_listing_chunks_is_a_request_a_shard_and_the_listing(prefix: str) -> None:
    counted = Counted(5)
    trace, array = counted.client()
    with trace.count() as block:
        listed = view.keys(store_of(array), prefix)
    assert len([key for key in listed if not key.endswith("zarr.json")]) == 5 * PER_SHARD
    assert len(counted.index_reads(block)) == 5
    assert counted.chunk_reads(block) == []
    assert len([event for event in block.events if event.op in ("list", "list_dir")]) == 1
    assert len([event for event in block.events if event.op in ("stat", "write", "delete")]) == 0


def test_a_chunk_of_a_huge_shard_costs_little_memory(tmp_path: Path) -> None:
    """2 GiB, of which one chunk is there; the file has a hole for the rest."""
    chunk, count = 2**20, 2**11
    store = shardstore.open(str(tmp_path), chunks_per_shard=(count,))
    zarr.create_array(store, name="x", shape=(chunk * count,), chunks=(chunk,), dtype="u1", compressors=None, fill_value=0)
    layout = Sharding("x", (chunk * count,), (chunk,), (count,), "default", "/", index_at_end=True, byte_order="<", checksum=True)
    offset, slot = 3 * 2**29, 1234
    entries = [(MISSING, MISSING)] * count
    entries[slot] = (offset, chunk)
    shard = tmp_path / "x/c/0"
    shard.parent.mkdir()
    with shard.open("wb") as file:
        file.seek(offset)
        file.write(b"\x07" * chunk)
        file.seek(2**31)
        file.write(encode_index(layout, entries))
    assert shard.stat().st_size > 2**31

    array = zarr.open_array(shardstore.open(str(tmp_path)), path="x", mode="r")
    array.blocks[slot - 1]  # imports and caches are not the chunk's
    tracemalloc.start()
    try:
        values = np.asarray(array.blocks[slot])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (values == 7).all()
    assert peak < chunk + 4 * 2**20


# -- writing --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapper", [TraceStorage, WithoutCompose])
def test_assigning_whole_shards_writes_each_once_and_reads_none(wrapper: type[TraceStorage]) -> None:
    counted = Counted(6)
    trace, array = counted.client(wrapper)
    with trace.count() as block:
        array[...] = counted.values[::-1]
    assert sorted(event.key for event in shard_events(block)) == [f"x/c/{i}" for i in range(6)]
    assert {event.op for event in shard_events(block)} == {"write"}
    assert len(metadata_reads(block)) <= 1
    np.testing.assert_array_equal(array[...], counted.values[::-1])


def test_a_new_array_of_whole_shards_is_written_once() -> None:
    """From nothing, with edge shards, which are whole as far as the array goes."""
    trace = TraceStorage(MemoryStorage(f"/counted-{uuid.uuid4().hex}"))
    store = shardstore.open(trace, chunks_per_shard=(4, 4), metadata_ttl=HOUR)
    volume = np.arange(1, 50 * 70 + 1, dtype="u4").reshape(50, 70)
    array = zarr.create_array(store, name="x", shape=volume.shape, chunks=(5, 5), dtype="u4")
    with trace.count() as block:
        array[...] = volume
    assert sorted(event.key for event in shard_events(block, "write", "compose")) == sorted(
        f"x/c/{i}/{j}" for i in range(3) for j in range(4)
    )
    assert len(metadata_reads(block)) <= 1
    # An edge shard has slots beyond the array, which only its index could tell to be empty: there are no objects yet.
    assert sum(event.nbytes for event in shard_events(block, "read")) == 0
    np.testing.assert_array_equal(array[...], volume)


def test_more_than_fits_in_memory_is_still_one_write_a_shard() -> None:
    """The pipeline takes large assignments in waves, and a wave must not end inside a shard."""
    counted = Counted(10)
    trace, array = counted.client()
    limit_pipeline(array, wave_bytes=3 * PER_SHARD * CHUNK + 5)
    with trace.count() as block:
        array[...] = counted.values[::-1]
    assert len(shard_events(block)) == 10
    with trace.count() as block:
        np.testing.assert_array_equal(array[...], counted.values[::-1])
    assert len(shard_events(block)) == 10
    with trace.count() as block:
        array[...] = 0
    assert len(shard_events(block)) == 10


def test_assigning_the_fill_value_deletes_whole_shards() -> None:
    counted = Counted(6)
    trace, array = counted.client()
    with trace.count() as block:
        array[...] = 0
    assert len(shard_events(block)) == 6
    assert {event.op for event in shard_events(block)} <= {"delete", "delete_many"}
    assert [key for key in StorageObjects(counted.storage).keys() if not key.endswith("zarr.json")] == []  # noqa: SIM118 - no mapping


@pytest.mark.parametrize("wrapper", [TraceStorage, WithoutCompose])
@pytest.mark.parametrize("ttl", [HOUR, 0.0], ids=["metadata known", "metadata stale"])
def test_updating_one_chunk(one_shard: Counted, wrapper: type[TraceStorage], ttl: Duration) -> None:
    """One revalidation, one read of the index, at most one of the rest, one write."""
    trace, array = one_shard.client(wrapper, metadata_ttl=ttl)
    with trace.count() as block:
        array.blocks[5] = one_shard.values[5 * CHUNK : 6 * CHUNK]
    assert len(metadata_reads(block)) <= 1
    assert len(one_shard.index_reads(block)) == 1
    rest = one_shard.chunk_reads(block)
    # Kept chunks lie on both sides of the new one: one range that spans it is one request.
    assert len(rest) <= 1
    assert len(shard_events(block, "write", "compose")) == 1
    if wrapper is TraceStorage:
        assert rest == []
        assert block.summary().bytes_written <= CHUNK + one_shard.layout.index_nbytes
    with trace.count() as again:
        array.blocks[7] = one_shard.values[7 * CHUNK : 8 * CHUNK]
    assert one_shard.index_reads(again) == []
    assert len(shard_events(again, "write", "compose")) == 1


def test_updating_a_part_of_a_chunk_reads_that_chunk_once() -> None:
    counted = Counted(1)
    trace, array = counted.client()
    with trace.count() as block:
        array[5 * CHUNK + 3] = 9
    assert len(counted.index_reads(block)) == 1
    assert len(counted.chunk_reads(block)) == 1
    assert block.summary().bytes_read <= CHUNK + counted.layout.index_nbytes + 2000
    assert len(shard_events(block, "write", "compose")) == 1


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("strategy", ["rewrite", "keep"])
def test_a_commit_of_a_small_shard_is_one_read_and_one_write(location: IndexLocation, strategy: str) -> None:
    """As on S3, where a request takes as long as half a mebibyte: all of the shard comes with its index, or with the chunk."""
    counted = Counted(2, location)
    trace, array = counted.client(WithoutCompose, gap_bytes=2**19, strategy=strategy)
    for value in (8, 9):  # the second time the index is known
        with trace.count() as block:
            array[5 * CHUNK + 3] = counted.values[5 * CHUNK + 3] = value
        assert [event.op for event in shard_events(block)] == ["read", "write"]
    with trace.count() as block:
        array.blocks[17] = counted.values[17 * CHUNK : 18 * CHUNK] = 7
    assert [event.op for event in shard_events(block)] == ["read", "write"]
    np.testing.assert_array_equal(array[:], counted.values)
    trace, array = counted.client(WithoutCompose, gap_bytes=2**12, strategy=strategy)
    with trace.count() as block:
        array[5 * CHUNK + 3] = counted.values[5 * CHUNK + 3] = 10
    assert len(counted.index_reads(block)) == 1  # nothing comes with the index of a larger one
    np.testing.assert_array_equal(counted.client()[1][:], counted.values)


@pytest.mark.filterwarnings("ignore:.*no compare-and-swap")
@pytest.mark.parametrize("wrapper", [TraceStorage, WithoutConditions])
def test_a_commit_reads_only_the_index_first(wrapper: type[TraceStorage]) -> None:
    """Where the storage copies what is kept, or nothing but a later read would notice that the shard has changed."""
    counted = Counted(1)
    trace, array = counted.client(wrapper, gap_bytes=2**19)
    with trace.count() as block:
        array.blocks[5] = 7
    assert len(counted.index_reads(block)) == 1


def test_an_assignment_is_one_commit_a_shard_however_many_chunks() -> None:
    counted = Counted(4)
    trace, array = counted.client()
    with trace.count() as block:
        array[3 * CHUNK : 60 * CHUNK] = 9
    assert len(shard_events(block, "write", "compose")) == 4
    assert len(counted.index_reads(block)) <= 2  # the two in the middle are replaced whole
    assert len(metadata_reads(block)) <= 1


def test_erasing_some_chunks_by_assignment_is_one_commit_a_shard() -> None:
    counted = Counted(2)
    trace, array = counted.client()
    with trace.count() as block:
        array.blocks[10:20] = 0
    assert len(shard_events(block, "write", "compose")) == 2
    assert counted.chunk_reads(block) == []
    assert len(counted.index_reads(block)) == 2


def test_shrinking_deletes_whole_shards_unread_and_rewrites_the_last() -> None:
    counted = Counted(6)
    trace, array = counted.client()
    with trace.count() as block:
        array.resize((40 * CHUNK,))
    assert counted.chunk_reads(block) == []
    assert len(counted.index_reads(block)) == 1
    assert [event.key for event in shard_events(block, "write", "compose")] == ["x/c/2"]
    assert [event.op for event in shard_events(block)].count("delete_many") == 1
    assert len([event for event in shard_events(block) if event.op == "list"]) <= 4  # rows of shards that lose a chunk
    np.testing.assert_array_equal(array[...], counted.values[: 40 * CHUNK])
    assert [key for key in StorageObjects(counted.storage).keys() if not key.endswith("zarr.json")] == [  # noqa: SIM118 - no mapping
        "x/c/0",
        "x/c/1",
        "x/c/2",
    ]


@pytest.mark.parametrize("chunks_per_shard", [(100, 100), None], ids=["sharded", "not sharded"])
def test_shrinking_costs_nothing_for_chunks_that_are_not_there(chunks_per_shard: Any) -> None:
    """Two and a quarter million of them, by zarr's way one delete each. They are never listed here either."""
    trace = TraceStorage(MemoryStorage(f"/counted-{uuid.uuid4().hex}"))
    store = shardstore.open(trace, chunks_per_shard=chunks_per_shard, metadata_ttl=HOUR)
    array = zarr.create_array(store, name="x", shape=(1500, 1500), chunks=(1, 1), dtype="u1")
    array[:2, :2] = 1
    array[700:702, 5] = 2
    array[1499, 1499] = 3
    with trace.count() as block:
        array.resize((1, 1))
    assert block.summary().requests <= 8
    assert view.keys(store, "x/c/") == ["x/c/0/0"]
    assert array[...] == 1


def test_single_sets_of_one_tick_are_one_commit() -> None:
    counted = Counted(1)
    trace, array = counted.client()
    store = store_of(array)

    async def sets() -> None:
        await asyncio.gather(*(store.set(f"x/c/{i}", cpu.Buffer.from_bytes(bytes([i]) * CHUNK)) for i in range(8)))

    with trace.count() as block:
        fsspec.asyn.sync(fsspec.asyn.get_loop(), sets)
    assert len(shard_events(block, "write", "compose")) == 1
    assert len(counted.index_reads(block)) == 1
    assert len(metadata_reads(block)) <= 1
    assert view.get(store, "x/c/7") == b"\x07" * CHUNK


def test_a_transaction_is_one_commit_a_shard() -> None:
    counted = Counted(3)
    trace, array = counted.client()
    with trace.count() as block, store_of(array).transaction():
        for chunk in range(0, 3 * PER_SHARD, 2):
            array.blocks[chunk] = 9
    assert len(shard_events(block, "write", "compose")) == 3


def test_a_write_revalidates_stale_metadata_once_a_batch() -> None:
    counted = Counted(10)
    trace, array = counted.client(metadata_ttl=0.0)
    with trace.count() as block:
        view.put_many(store_of(array), [(f"x/c/{chunk}", b"1" * CHUNK) for chunk in range(10 * PER_SHARD)])
    assert len(metadata_reads(block)) == 1
    assert len(shard_events(block, "write")) == 10


def test_deleting_a_node_reads_nothing_of_it() -> None:
    counted = Counted(6)
    trace, array = counted.client()
    with trace.count() as block:
        view.delete_dir(store_of(array), "x")
    assert shard_events(block, "read") == []
    assert block.summary().bytes_read <= 4000  # metadata
    assert [key for key in StorageObjects(counted.storage).keys() if key.startswith("x/")] == []  # noqa: SIM118 - no mapping


def test_resizing_writes_metadata_once() -> None:
    counted = Counted(1)
    trace, array = counted.client()
    with trace.count() as block:
        array.resize((20 * PER_SHARD * CHUNK,))
    assert [event.key for event in block.events if event.op == "write"] == ["x/zarr.json"]
    assert shard_events(block) == []
    assert document(StorageObjects(counted.storage), "x/zarr.json")["shape"] == [20 * PER_SHARD * CHUNK]
