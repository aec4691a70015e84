"""Processes that write to the same shards at the same time lose nothing, on every kind of storage."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import zarr

from tests.clusters import dask_cluster
from tests.harness.scale import sized
from tests.torture.conftest import Record
from tests.torture.crew import Crew, Job
from tests.torture.payloads import Payload
from tests.torture.places import APPENDING, KINDS, Place
from tests.torture.race_workers import (
    Done,
    create,
    create_and_write,
    found,
    runs_of,
    summary,
    toggle,
    write_beside,
    write_chunks,
    write_sets,
)

WRITERS = sized(8, 4)
PATH = "x"
LAYOUTS = [("start", 1000), ("end", 3)][: sized(2, 1)]
COMPRESSORS = ["auto", None][: sized(2, 1)]


def contents(place: Place, path: str, words: int) -> list[Payload | None]:
    """The chunks of an array as plain zarr-python reads them, and a new client of shardstore too."""
    native = found(place.native(path)[...], words)
    client = place.store(index_cache_bytes=0)  # an option that nobody else has: an engine of its own
    assert found(zarr.open_array(client, path=path, mode="r")[...], words) == native
    return native


def shards_of(place: Place, path: str) -> list[str]:
    return [key for key in place.objects.keys() if key.startswith(f"{path}/c/")]  # noqa: SIM118 - no mapping


# -- disjoint chunks -------------------------------------------------------------------------------------------------------


def write_disjoint(place: Place, crew: Crew, writers: int, each: int, words: int) -> list[Done]:
    """Each writer has every ``writers``-th chunk; all must be there afterwards."""
    chunks = writers * each
    results: list[Done] = crew.run(
        [Job(write_chunks, (place, PATH, words, writer, 1, range(writer, chunks, writers))) for writer in range(writers)]
    )
    lost = [chunk for chunk, value in enumerate(contents(place, PATH, words)) if value != Payload(0, 0, chunk, chunk % writers, 0)]
    assert lost == []
    return results


@pytest.mark.parametrize("place", dict.fromkeys([*KINDS, *APPENDING]), indirect=True)
def test_distinct_chunks_of_one_shard(place: Place, crew: Crew, record: Record) -> None:
    words, each = 16, sized(250, 4 if place.small_parts else 15)
    create(place.store(chunks_per_shard=(WRITERS * each,)), PATH, WRITERS * each, words)
    results = write_disjoint(place, crew, WRITERS, each, words)
    assert len(shards_of(place, PATH)) == 1
    if place.small_parts:
        assert place.is_appended(f"{PATH}/c/0"), "the last commit did not append"
    record(f"{summary(place.kind, results)}; 0 lost")


@pytest.mark.night
@pytest.mark.parametrize(("location", "per_shard"), LAYOUTS, ids=["index at start", "many shards"][: len(LAYOUTS)])
def test_distinct_chunks_in_other_layouts(place: Place, crew: Crew, record: Record, location: str, per_shard: int) -> None:
    words, each = 16, sized(60, 5)
    if place.strategy == "append" and location == "start":
        pytest.skip("what is appended to has its index at the end")
    create(place.store(chunks_per_shard=(per_shard,), index_location=location), PATH, WRITERS * each, words)
    record(f"{summary(place.kind, write_disjoint(place, crew, WRITERS, each, words))}; 0 lost")


@pytest.mark.night
def test_sixteen_writers_each_make_progress(place: Place, crew: Crew, record: Record) -> None:
    """All hammer one shard, each on a chunk of its own: all end, and nobody is told that it lost too often."""
    writers, times, words = sized(16, 5), sized(40, 8), 1024
    create(place.store(chunks_per_shard=(writers,)), PATH, writers, words)
    results = crew.run([Job(write_chunks, (place, PATH, words, writer, times, [writer])) for writer in range(writers)])
    assert contents(place, PATH, words) == [Payload(0, 0, writer, writer, times - 1) for writer in range(writers)]
    means = [sum(d.attempts) / d.writes for d in results]
    spread = f"attempts a write from {min(means):.2f} (luckiest writer) to {max(means):.2f} (unluckiest)"
    record(f"{summary(place.kind, results)}; {spread}; writers took {min(d.seconds for d in results):.1f} s and more")


# -- through dask ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """``distributed``, with a process a worker."""
    with dask_cluster(sized(8, 2)) as client:
        yield client


@pytest.mark.night
def test_misaligned_dask_chunks_on_a_cluster(place: Place, cluster: Any, record: Record) -> None:
    """Tasks end in the middle of shards, though never inside a chunk, which no store could put together."""
    import time

    dask_array: Any = importlib.import_module("dask.array")  # half of it has no types
    tasks = (sized(50, 5), sized(40, 4))
    # A task brings 3 x 2 chunks, a shard holds 7 x 5.
    shape = (12 * tasks[0], 8 * tasks[1])
    array = zarr.create_array(place.store(chunks_per_shard=(7, 5)), name=PATH, shape=shape, chunks=(4, 4), dtype="<u4", fill_value=0)
    values = np.arange(1, 1 + shape[0] * shape[1], dtype="<u4").reshape(shape)
    data = dask_array.from_array(values, chunks=(12, 8))
    assert data.npartitions == tasks[0] * tasks[1]
    began = time.monotonic()
    with cluster.as_current():
        dask_array.store(data, array, lock=False)
    seconds = time.monotonic() - began
    np.testing.assert_array_equal(place.native(PATH)[...], values)
    shards = len(shards_of(place, PATH))
    record(f"{place.kind}: {data.npartitions} tasks on {sized(8, 2)} processes, {shards} shards, {seconds:.1f} s; 0 lost")


# -- overlapping sets ------------------------------------------------------------------------------------------------------


@pytest.mark.night
@pytest.mark.parametrize("compressors", COMPRESSORS, ids=str)
def test_whole_shards_by_all(place: Place, crew: Crew, record: Record, compressors: Any) -> None:
    """Everybody assigns all chunks: what remains is one assignment, whole, and the last one of its writer."""
    chunks, words, versions = 12, 2048, sized(30, 5)
    create(place.store(chunks_per_shard=(chunks,)), PATH, chunks, words, compressors)
    results = crew.run([Job(write_sets, (place, PATH, words, chunks, writer, versions, True)) for writer in range(WRITERS)])
    values = contents(place, PATH, words)
    assert values[0] is not None
    assert values == [Payload(0, 0, chunk, values[0].writer, versions - 1) for chunk in range(chunks)]
    record(f"{summary(place.kind, results)}; one writer's shard, whole")


@pytest.mark.night
@pytest.mark.parametrize("compressors", COMPRESSORS, ids=str)
def test_overlapping_sets(place: Place, crew: Crew, record: Record, compressors: Any) -> None:
    """Everybody assigns runs of chunks, in two shards and a bit: each chunk is the last value that one of its writers gave it."""
    chunks, words, versions = 29, 2048, sized(30, 5)
    create(place.store(chunks_per_shard=(12,)), PATH, chunks, words, compressors)
    possible: list[set[Payload | None]] = [set() for _ in range(chunks)]
    for writer in range(WRITERS):
        runs = runs_of(writer, versions, chunks, whole=False)
        last = {chunk: version for version, run in enumerate(runs) for chunk in run}
        for chunk, version in last.items():
            possible[chunk].add(Payload(0, 0, chunk, writer, version))
    results = crew.run([Job(write_sets, (place, PATH, words, chunks, writer, versions, False)) for writer in range(WRITERS)])
    lost = [(chunk, value) for chunk, value in enumerate(contents(place, PATH, words)) if value not in (possible[chunk] or {None})]
    assert lost == []
    record(f"{summary(place.kind, results)}; each chunk one writer's last value, whole")


# -- creating and erasing --------------------------------------------------------------------------------------------------


@pytest.mark.night
def test_creators_of_one_array(place: Place, crew: Crew, record: Record) -> None:
    """All create the same arrays and write to them at once."""
    words, chunks = 16, 2 * WRITERS
    paths = [f"x{number}" for number in range(sized(20, 3))]
    results = crew.run([Job(create_and_write, (place, paths, words, chunks, writer, WRITERS)) for writer in range(WRITERS)])
    for path in paths:
        assert contents(place, path, words) == [Payload(0, 0, chunk, chunk % WRITERS, 0) for chunk in range(chunks)]
    record(f"{summary(place.kind, results)}; {len(paths)} arrays, 0 lost")


@pytest.mark.night
def test_a_chunk_written_while_its_shard_is_erased(place: Place, crew: Crew, record: Record) -> None:
    """An emptied shard is removed; whoever writes to it at that moment has written, or has not been answered yet."""
    erasers, writers, shards, words = sized(3, 1), sized(5, 2), sized(60, 3), 16
    chunks = shards * (1 + writers)
    create(place.store(chunks_per_shard=(1 + writers,)), PATH, chunks, words)
    jobs = [Job(toggle, (place, PATH, words, shards, writers, eraser, erasers)) for eraser in range(erasers)]
    jobs += [Job(write_beside, (place, PATH, words, shards, writer, writers, erasers)) for writer in range(writers)]
    results = crew.run(jobs, cells=erasers + writers)
    values = contents(place, PATH, words)
    lost = [
        chunk for chunk in range(chunks) if (writer := chunk % (1 + writers) - 1) >= 0 and values[chunk] != Payload(0, 0, chunk, writer, 0)
    ]
    assert lost == []
    record(f"{summary(place.kind, results[erasers:])}; {shards} shards, set and erased {sum(results[:erasers])} times; 0 lost")
