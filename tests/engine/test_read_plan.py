"""Selections of local files, in parts that the decoding threads read: what is read, when the engine is asked, and that nothing is mixed."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import ZstdCodec
from zarr.core.sync import sync

import shardstore
from shardstore import threads as codec_threads
from shardstore._sync import run_sync
from shardstore.adapters.zarr import chunk_pipeline as zarr_pipeline
from shardstore.adapters.zarr import chunks as zarr_chunks
from shardstore.adapters.zarr import short_path
from shardstore.engine.engine import Engine
from shardstore.engine.reading.read_plan import PartLimits, PlannedObject, ReadPart, ReadPlan, read_parts
from shardstore.errors import Corruption
from shardstore.model.ranges import EVERYTHING, ByteRange
from shardstore.storage.local import reading as local_reading
from shardstore.storage.local import storage as local
from shardstore.storage.local.mounts import Mount
from shardstore.storage.local.reading import READS_CACHED
from shardstore.storage.local.storage import LocalStorage
from shardstore.testing.trace import TraceStorage
from tests.engine.hooked import document
from tests.limits import limit_pipeline

pytestmark = pytest.mark.skipif(not READS_CACHED, reason="only Linux tells what is in memory: selections are read otherwise elsewhere")

SHAPE, CHUNK, PER_SHARD = (40, 40), (5, 5), (4, 2)  # 8 by 8 chunks in 2 by 4 shards
VALUES = np.random.default_rng(0).integers(1, 1000, SHAPE, dtype="<u2")


@pytest.fixture(autouse=True)
def zarrs_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Selections go through the pipeline: what the short path does is tested with it."""
    monkeypatch.setattr(short_path, "is_enabled", False)


@pytest.fixture(autouse=True)
def all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel holds in memory is its own affair: reads of cached bytes just read."""
    monkeypatch.setattr(local_reading, "_cached_pread", lambda fd, nbytes, offset: memoryview(os.pread(fd, nbytes, offset)))


def opened(root: Path, **options: Any) -> shardstore.ShardedStore:
    return shardstore.open(root, chunks_per_shard=PER_SHARD, fsync=False, metadata_ttl="1h", **options)


def in_threads(array: Any) -> Any:
    """No selection of the array is too small for the threads."""
    limit_pipeline(array, inline_bytes=0)
    return array


def limit_parts(engine: Engine, least_bytes: int, most_bytes: int) -> PartLimits:
    assert engine._planner is not None
    limits = PartLimits(least_bytes, most_bytes)
    engine._planner.carrier = replace(engine._planner.carrier, limits=limits)
    return limits


def other(root: Path, **options: Any) -> Any:
    """The same array through an engine of its own, as another process has it."""
    store = shardstore.open(LocalStorage(root, fsync=False), chunks_per_shard=PER_SHARD, **options)
    return in_threads(zarr.open_array(store, path="a", mode="r+"))


@pytest.fixture
def array(tmp_path: Path) -> Any:
    array = zarr.create_array(opened(tmp_path), name="a", shape=SHAPE, chunks=CHUNK, dtype="<u2", compressors=ZstdCodec(), fill_value=0)
    array[...] = VALUES
    return in_threads(array)


def must_not_be_asked(*_: Any, **__: Any) -> None:
    raise AssertionError("the engine was asked")


def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of how many chunks the engine is asked, each time."""
    counts: list[int] = []
    fetch = zarr_pipeline._fetch

    async def counting(place: Any, keys: Sequence[str], located: Any = None) -> Any:
        counts.append(len(keys))
        return await fetch(place, keys, located)

    monkeypatch.setattr(zarr_pipeline, "_fetch", counting)
    return counts


def before_part(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], None]) -> None:
    """Act when the part of this number is about to be read."""
    read, seen = ReadPlan.in_memory, []

    def hooked(plan: ReadPlan, part: ReadPart) -> Any:
        seen.append(part)
        if len(seen) == number + 1:
            act()
        return read(plan, part)

    monkeypatch.setattr(ReadPlan, "in_memory", hooked)


# -- what is read ------------------------------------------------------------------------------------------------------


def test_the_engine_is_not_asked_for_values(array: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = asked(monkeypatch)
    counters = array.store.counters
    for selection in ((slice(None), slice(None)), (slice(3, 38), slice(7, 31)), (slice(0, 40), 17), (slice(1, 40, 7), slice(0, 40, 3))):
        np.testing.assert_array_equal(array[selection], VALUES[selection])
    np.testing.assert_array_equal(array.oindex[[1, 39, 4], [0, 38]], VALUES[np.ix_([1, 39, 4], [0, 38])])
    assert counts == [4]  # few come by one request, and are decoded by several threads
    counters.reset()
    monkeypatch.setattr(Engine, "plan_read", must_not_be_asked)  # everything is known: not even the loop is asked
    np.testing.assert_array_equal(array[...], VALUES)
    assert (counters.chunks_read, counters.index_hits, counters.index_misses) == (64, 8, 0)
    assert counters.bytes_read == sum(path.stat().st_size - (8 * 16 + 4) for path in shards(array))
    assert counters.requests == 8  # all chunks of a shard are one range


def shards(array: Any) -> list[Path]:
    return [path for path in (Path(array.store.engine.storage.url.removeprefix("file://")) / "a" / "c").rglob("*") if path.is_file()]


def test_the_first_selection_reads_indices(array: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zarr_pipeline, "_fetch", must_not_be_asked)
    again = other(tmp_path, metadata_ttl="1h")
    again.store.counters.reset()
    np.testing.assert_array_equal(again[:20], VALUES[:20])
    counters = again.store.counters
    assert (counters.index_misses, counters.chunks_read, counters.requests) == (4, 32, 8)


def test_what_is_missing_is_fill_values(array: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = VALUES.copy()
    expected[5:10, 10:20] = 0
    array[5:10, 10:20] = 0  # two chunks of different shards
    expected[20:, 20:30] = 0
    array[20:, 20:30] = 0  # a shard
    monkeypatch.setattr(zarr_pipeline, "_fetch", must_not_be_asked)
    for each in (array, other(tmp_path)):
        for _ in range(2):
            np.testing.assert_array_equal(each[...], expected)


_POSITIONS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=8, max_size=80)


@given(st.data())
def test_the_same_values_as_the_engine_gives(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    """Chunks of any length in any order, some missing, some empty, asked for once or twice, in parts of any length."""
    store = shardstore.get_mapper(tmp_path_factory.mktemp("parts"), chunks_per_shard=(4, 3), fsync=False, metadata_ttl="1h")
    store["a/zarr.json"] = document((50, 50), (5, 5))
    lengths = st.sampled_from([0, 1, 7, 300, 5000])
    stored = data.draw(st.dictionaries(st.tuples(st.integers(0, 9), st.integers(0, 9)), lengths, max_size=60))
    store.setitems({f"a/c/{i}/{j}": bytes([i * 10 + j]) * length for (i, j), length in stored.items()})
    keys = [f"a/c/{i}/{j}" for i, j in data.draw(_POSITIONS)]
    engine: Engine = store.engine.canonical
    if data.draw(st.booleans()):
        engine._indices.drop_prefix("a/")
    limits = limit_parts(engine, *data.draw(st.sampled_from([(1, 1), (64, 600), (2**16, 2**20)])))
    plan = engine.known_plan(keys)
    if not isinstance(plan, ReadPlan):
        plan = run_sync(engine.plan_read(keys, plan))
    assert plan is not None
    parts = plan.parts(2)
    values: list[Any] = [...] * len(keys)
    for i in plan.missing:
        values[i] = None
    for part in parts:
        found = plan.wait_for(part)
        assert found is not None
        for i, value in zip(part.numbers, found, strict=True):
            assert values[i] is ...
            values[i] = value
    for i in plan.rest:
        values[i] = run_sync(engine.get_many([(keys[i], EVERYTHING)]))[0]
    assert values == run_sync(engine.get_many([(key, EVERYTHING) for key in keys]))
    assert all(
        sum(r.end - r.start for r in part.read.ranges if isinstance(r, ByteRange)) <= 2 * max(limits.most_bytes, 5000) for part in parts
    )


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 200), st.integers(0, 20)), max_size=20), st.integers(1, 60), st.integers(0, 9))
def test_parts_hold_each_chunk_once_wherever_its_object_lies(chunks: list[tuple[int, int, int]], part_nbytes: int, gap_bytes: int) -> None:
    content = bytes(range(250))
    of_object, offsets, nbytes = np.array(chunks, dtype=np.int64).reshape(-1, 3).T
    objects = [PlannedObject(str(at), None, np.flatnonzero(of_object == at)) for at in range(4)]
    numbers = np.arange(len(chunks))[::-1]
    for far in (0, 2**62):  # that far in, objects cannot be numbered together
        parts = read_parts(objects, numbers, of_object, offsets + far, nbytes, gap_bytes, part_nbytes)
        values: dict[int, bytes] = {}
        for part in parts:
            ranges = [(one.start - far, one.end - far) for one in part.read.ranges if isinstance(one, ByteRange)]
            assert part.read.key == str(part.at)
            assert part.nbytes == sum(end - start for start, end in ranges)
            assert all(a[1] + gap_bytes < b[0] or b[1] - a[0] > part_nbytes for a, b in itertools.pairwise(ranges))
            cut = part.cut([memoryview(content[start:end]) for start, end in ranges])
            assert not values.keys() & set(part.numbers)
            values.update(zip(part.numbers, map(bytes, cut), strict=True))
        assert values == {n: content[a : a + k] for n, a, k in zip(numbers.tolist(), offsets.tolist(), nbytes.tolist(), strict=True)}


@pytest.mark.parametrize("chunk_nbytes", [2**14, 2**18])
def test_few_chunks_of_a_shard_are_one_request(tmp_path: Path, chunk_nbytes: int) -> None:
    store = opened(tmp_path)
    array = zarr.create_array(store, name="a", shape=(8, 8 * chunk_nbytes), chunks=(1, chunk_nbytes), dtype="u1", compressors=None)
    array[0] = np.random.default_rng(0).integers(1, 9, 8 * chunk_nbytes)
    for count in (1, 2):  # two chunks of a shard are neighbours
        array[0, : count * chunk_nbytes]
        store.counters.reset()
        array[0, : count * chunk_nbytes]
        counters = store.counters
        assert (counters.requests, counters.index_hits, counters.chunks_read, counters.bytes_read) == (1, 1, count, count * chunk_nbytes)


def test_an_index_that_was_of_no_use_is_counted_once(array: Any, tmp_path: Path) -> None:
    np.testing.assert_array_equal(array[0, 0], VALUES[0, 0])
    other(tmp_path)[...] = VALUES + 1
    counters = array.store.counters
    counters.reset()
    np.testing.assert_array_equal(array[0, 0], VALUES[0, 0] + 1)
    assert (counters.index_hits, counters.index_misses) == (1, 1)


# -- what has to be waited for -----------------------------------------------------------------------------------------


def not_in_memory(fd: int, nbytes: int, offset: int) -> memoryview:
    raise BlockingIOError


def test_what_is_not_in_memory_is_waited_for_by_the_threads(array: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    announced: list[int] = []
    advise = os.posix_fadvise

    def noted(fd: int, offset: int, nbytes: int, advice: int) -> None:
        announced.append(nbytes)
        advise(fd, offset, nbytes, advice)

    monkeypatch.setattr(local_reading, "_cached_pread", not_in_memory)
    monkeypatch.setattr(os, "posix_fadvise", noted)
    monkeypatch.setattr(zarr_pipeline, "_fetch", must_not_be_asked)
    array.store.counters.reset()
    np.testing.assert_array_equal(array[...], VALUES)
    assert sum(announced) == array.store.counters.bytes_read > 0


def test_the_thread_of_a_loop_does_not_wait(array: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is small is worked on in the thread of a loop, for which other tasks wait: what is not in memory goes to other threads."""
    monkeypatch.setattr(local_reading, "_cached_pread", not_in_memory)
    limit_pipeline(array, inline_bytes=2**20)
    wait, names = ReadPlan.wait_for, set()

    def noted(plan: ReadPlan, part: ReadPart) -> Any:
        names.add(threading.current_thread().name.partition("_")[0])
        return wait(plan, part)

    monkeypatch.setattr(ReadPlan, "wait_for", noted)
    counts = asked(monkeypatch)
    np.testing.assert_array_equal(array[...], VALUES)
    np.testing.assert_array_equal(array[0, 0], VALUES[0, 0])
    assert (counts, names) == ([], {"shardstore-codec"})


def test_no_more_is_announced_than_can_be_held(array: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    announced, waited = [], []
    monkeypatch.setattr(local_reading, "_cached_pread", not_in_memory)
    for module in (zarr_pipeline, codec_threads):
        monkeypatch.setattr(module, "threads_at_once", lambda: 1)
    limit_parts(array.store.engine, 1, 60)
    fetch, wait = local_reading.fetch_soon, ReadPlan.wait_for

    def waiting(plan: ReadPlan, part: ReadPart) -> Any:
        waited.append(part)
        return wait(plan, part)

    def announcing(path: str, read: Any) -> None:
        announced.append(path)
        assert len(announced) - len(waited) <= 5
        fetch(path, read)

    monkeypatch.setattr(ReadPlan, "wait_for", waiting)
    monkeypatch.setattr(local, "fetch_soon", announcing)
    plan = array.store.engine.known_plan([f"a/c/{i}/{j}" for i in range(8) for j in range(8)])
    assert isinstance(plan, ReadPlan)
    parts = plan.parts(1)
    limit_pipeline(array, announced_bytes=3 * max(part.nbytes for part in parts))
    np.testing.assert_array_equal(array[...], VALUES)
    assert len(announced) == len(waited) == len(parts) > 20


def test_what_is_missing_is_left_to_the_threads(array: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop would stand still while gigabytes of fill values are put in place."""
    array[...] = 0
    scatter, names = zarr_chunks.scatter_chunks, set()

    def noted(*arguments: Any) -> None:
        names.add(threading.current_thread().name.partition("_")[0])
        scatter(*arguments)

    monkeypatch.setattr(zarr_pipeline, "scatter_chunks", noted)
    assert not array[...].any()
    assert names == {"shardstore-codec"}


def test_a_selection_that_is_cancelled_writes_nothing_any_more(array: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (zarr_pipeline, codec_threads):
        monkeypatch.setattr(module, "threads_at_once", lambda: 1)
    begun, go_on = threading.Event(), threading.Event()
    read, reads = ReadPlan.in_memory, []

    def slowly(plan: ReadPlan, part: ReadPart) -> Any:
        reads.append(part)
        begun.set()
        assert go_on.wait(10)
        return read(plan, part)

    monkeypatch.setattr(ReadPlan, "in_memory", slowly)

    async def cancelled() -> int:
        selection = asyncio.ensure_future(array.async_array.getitem(Ellipsis))
        await asyncio.to_thread(begun.wait, 10)
        selection.cancel()
        await asyncio.sleep(0.05)
        assert not selection.done()  # a thread uses its memory
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await selection
        return len(reads)

    assert asyncio.run(cancelled()) == len(reads) == 1


def test_the_kind_of_file_system_is_found_out_when_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An automounter mounts at the first access."""
    kinds = ["autofs"]
    monkeypatch.setattr(local, "mount_of", lambda path: Mount(path, kinds[-1]))
    store = opened(tmp_path)
    at_first = store.engine.plans_reads
    kinds.append("nfs4")
    array = zarr.create_array(store, name="a", shape=SHAPE, chunks=CHUNK, dtype="<u2", compressors=None, fill_value=0)
    with pytest.warns(RuntimeWarning, match="network"):
        array[...] = VALUES
    np.testing.assert_array_equal(array[...], VALUES)
    assert (at_first, store.engine.plans_reads) == (True, False)
    assert not store.engine.storage.capabilities.across_machines


@pytest.mark.parametrize("is_held", [False, True])
def test_large_chunks_are_left_to_the_engine(array: Any, monkeypatch: pytest.MonkeyPatch, is_held: bool) -> None:
    """One of them for each thread may be all that memory allows; and what a transaction holds is nowhere else."""
    counts = asked(monkeypatch)
    if is_held:
        with array.store.transaction():
            array[0, 0] = 7
            assert array[...][0, 0] == 7
    else:
        limit_pipeline(array, wave_bytes=5 * 5 * 2 * codec_threads.threads_at_once() - 1)
        np.testing.assert_array_equal(array[...], VALUES)
    assert counts


def test_a_wrapped_storage_sees_every_read(array: Any, tmp_path: Path) -> None:
    store = shardstore.open(TraceStorage(LocalStorage(tmp_path)), chunks_per_shard=PER_SHARD)
    assert not store.engine.plans_reads
    np.testing.assert_array_equal(zarr.open_array(store, path="a")[...], VALUES)


# -- what changes meanwhile --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("strategy", ["rewrite", "append"])
def test_a_shard_is_of_one_version(array: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int, strategy: str) -> None:
    """Another client replaces every shard while some parts of some of them have been read."""
    limit_parts(array.store.engine, 1, 60)  # several parts a shard
    np.testing.assert_array_equal(array[...], VALUES)
    writer = other(tmp_path, strategy=strategy)

    def write() -> None:
        writer[...] = VALUES + 1

    before_part(monkeypatch, part * 3, write)
    counts = asked(monkeypatch)
    difference = array[...].astype("i4") - VALUES
    for i in range(0, 40, 20):
        for j in range(0, 40, 10):
            assert len(np.unique(difference[i : i + 20, j : j + 10])) == 1
    assert (difference == 1).any()
    assert sum(counts) >= 8
    np.testing.assert_array_equal(array[...], VALUES + 1)


def test_what_was_missing_is_looked_for(array: Any, tmp_path: Path) -> None:
    """By the indices that are remembered nothing would be read, which would have shown that they are old."""
    array[:15, :20] = 0  # all but a few chunks of two shards
    assert not array[:15, :20].any()
    other(tmp_path)[:15, :20] = VALUES[:15, :20]
    np.testing.assert_array_equal(array[:15, :20], VALUES[:15, :20])


def test_of_an_index_that_is_not_verified(array: Any) -> None:
    """It may have been read by the layout of an array that was there before."""
    engine = array.store.engine
    keys = [f"a/c/{i}/{j}" for i in range(8) for j in range(8)]
    np.testing.assert_array_equal(array[...], VALUES)
    assert isinstance(engine.known_plan(keys), ReadPlan)
    entry = engine._indices.peek("a/c/1/1", run_sync(engine.layout("a")).index_format, unverified=True)
    engine._indices.put("a/c/1/1", replace(entry, is_verified=False))
    assert not isinstance(engine.known_plan(keys), ReadPlan)
    np.testing.assert_array_equal(array[...], VALUES)
    assert isinstance(engine.known_plan(keys), ReadPlan)
    engine.hierarchy.distrust("a")
    assert not isinstance(engine.known_plan(keys), ReadPlan)
    np.testing.assert_array_equal(array[...], VALUES)
    assert isinstance(engine.known_plan(keys), ReadPlan)


def test_a_chunk_erased_by_another_writer_reads_as_fill_value(array: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.testing.assert_array_equal(array[...], VALUES)
    writer = other(tmp_path)
    before_part(monkeypatch, 0, lambda: sync(writer.store.delete("a/c/0/0")))
    expected = VALUES.copy()
    expected[:5, :5] = 0
    np.testing.assert_array_equal(array[...], expected)


def test_another_layout_is_found_out(array: Any, tmp_path: Path) -> None:
    """The array was deleted and made anew with other chunks; what is remembered of it has not expired."""
    np.testing.assert_array_equal(array[...], VALUES)
    sync(other(tmp_path).store.delete_dir("a"))
    again = zarr.create_array(other_store(tmp_path), name="a", shape=SHAPE, chunks=(10, 5), dtype="<u2", compressors=None, fill_value=0)
    again[...] = VALUES + 5
    with pytest.raises(Corruption, match=r"decoded|damaged"):
        array[...]  # opened for other chunks: their bytes mean nothing to it


def other_store(root: Path) -> shardstore.ShardedStore:
    return shardstore.open(LocalStorage(root, fsync=False), chunks_per_shard=PER_SHARD)


# -- damage ------------------------------------------------------------------------------------------------------------


def test_a_damaged_entry_is_told(array: Any, tmp_path: Path) -> None:
    """Of another writer, who knows no better: the index itself is sound."""
    engine = array.store.engine
    path = tmp_path / "a/c/0/0"
    layout = run_sync(engine.layout("a"))
    data = path.read_bytes()
    index = layout.index_format.decode(memoryview(data)[-layout.index_format.nbytes :])
    entries = index.entries.copy()
    entries[1, 1] = (2**40, 5)
    path.write_bytes(data[: -layout.index_format.nbytes] + layout.index_format.encode(type(index)(entries)))
    for each in (array, other(tmp_path)):
        with pytest.raises(Corruption, match="chunk 'c/1/1' of array 'a' in shard 'a/c/0/0' is damaged"):
            each[...]
    np.testing.assert_array_equal(array[20:], VALUES[20:])


def test_a_chunk_that_cannot_be_decoded_is_told(array: Any, tmp_path: Path) -> None:
    np.testing.assert_array_equal(array[...], VALUES)
    path = tmp_path / "a/c/1/2"
    data = bytearray(path.read_bytes())
    data[:20] = b"\xff" * 20
    path.write_bytes(data)
    with pytest.raises(Corruption, match=r"chunk 'a/c/\d/\d' \(\d+ bytes\) cannot be decoded"):
        array[...]
    np.testing.assert_array_equal(array[:20], VALUES[:20])
