"""Readers beside writers: never a wrong value, on every kind of storage, nor an error but for those that know nothing of appends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
import zarr

from tests.harness.scale import FULL, sized
from tests.torture.conftest import Record
from tests.torture.crew import Crew, Job
from tests.torture.lives_workers import OTHER_CHUNKS, OTHER_SHARDS, Enough, Life, Seen, live, watch
from tests.torture.places import APPENDING, Place
from tests.torture.reader_workers import PARTS, Limits, Reads, append_on, prepare, read_natively, read_on, rewrite

READERS, WRITERS = 4, 2


def test_while_the_shard_is_rewritten(place: Place, crew: Crew, record: Record) -> None:
    chunks, words = 16, 1024
    prepare(place, words, chunks)
    # A time where there is time; in a short run only counts, so that a slow machine sees as much as a fast one.
    locally = 5000 if place.kind == "local" else 1
    limits = Limits(60.0 if FULL else 0.0, sized(locally, 25), sized(20, 3))
    jobs = [Job(read_on, (place, words, chunks, reader, READERS, limits)) for reader in range(READERS)]
    jobs += [Job(rewrite, (place, words, chunks, writer, READERS)) for writer in range(WRITERS)]
    results = crew.run(jobs, cells=2 * READERS)
    readers: list[Reads] = results[:READERS]
    reads, seconds = sum(r.reads for r in readers), max(r.seconds for r in readers)
    by_face = ", ".join(f"{r.face} {r.reads}" for r in readers)
    record(
        f"{place.kind}: {reads} reads ({by_face}) of {sum(r.chunks for r in readers)} chunks in {seconds:.0f} s beside "
        f"{sum(results[READERS:])} commits, {sum(r.retried for r in readers)} retried; 0 wrong, 0 errors"
    )


@pytest.mark.parametrize("place", APPENDING[:-1], indirect=True)  # adlfs cannot read the end of a blob
def test_native_readers_while_the_shard_is_appended_to(place: Place, crew: Crew, record: Record) -> None:
    """An error may come where a file is appended to in place, since no index is at its end then; a wrong value never."""
    chunks, words, readers = 16, 1024, sized(3, 2)
    prepare(place, words, chunks)
    nbytes = len(shard_of(place))
    limits = Limits(60.0 if FULL else 0.0, sized(100 if place.small_parts else 5000, 25), 0)
    jobs = [Job(read_natively, (place, words, chunks, reader, readers, limits)) for reader in range(readers)]
    jobs += [Job(append_on, (place, words, chunks, writer, readers)) for writer in range(WRITERS)]
    results = crew.run(jobs, cells=2 * readers)
    commits = sum(results[readers:])
    reads: list[Reads] = results[:readers]
    errors = sum((r.errors for r in reads), Counter[str]())
    assert not (place.small_parts and errors), errors  # objects are replaced at once
    assert errors.total() < sum(r.reads for r in reads)
    assert len(shard_of(place)) > nbytes + commits * 24, "it was rewritten, so that nothing has been seen"
    record(
        f"{place.kind}: {sum(r.reads for r in reads)} reads of {sum(r.chunks for r in reads)} chunks in "
        f"{max(r.seconds for r in reads):.0f} s beside {commits} appends; {errors.total()} errors {dict(errors) or ''}; 0 wrong"
    )


def shard_of(place: Place) -> bytes:
    """The only shard of ``parts``, as it is stored."""
    found = place.objects.get(f"{PARTS}/c/0")
    assert found is not None
    return found


def watch_lives(place: Place, crew: Crew, record: Record, lives: Sequence[Life], faces: Sequence[str]) -> None:
    zarr.create_group(place.store())
    arrays = WRITERS
    enough = Enough(60.0, 100, 10) if FULL else Enough(0.0, 10, 3)
    jobs = [Job(watch, (place, faces[reader % len(faces)], reader, arrays, enough)) for reader in range(READERS)]
    jobs += [Job(live, (place, lives, number, arrays, READERS)) for number in range(arrays)]
    results = crew.run(jobs, cells=2 * arrays + READERS)
    seen: list[Seen] = results[:READERS]
    errors = sum((s.errors for s in seen), Counter())
    record(
        f"{place.kind}: {sum(s.reads for s in seen)} reads in {max(s.seconds for s in seen):.0f} s through "
        f"{sum(results[READERS:])} lives of {arrays} arrays: {sum(s.right for s in seen)} right, "
        f"{sum(s.missing for s in seen)} with chunks missing, "
        f"{errors.total()} errors {dict(errors) or ''}; 0 wrong"
    )


@pytest.mark.night
def test_while_arrays_are_created_again_with_other_shards(place: Place, crew: Crew, record: Record) -> None:
    if place.strategy == "append":
        pytest.skip("some of these arrays have their indices at the start")
    watch_lives(place, crew, record, OTHER_SHARDS, ["zarr, held open", "mapper", "filesystem", "transformer"])


@pytest.mark.night
def test_while_arrays_are_created_again_with_other_chunks(place: Place, crew: Crew, record: Record) -> None:
    watch_lives(place, crew, record, OTHER_CHUNKS, ["zarr, opened anew"])
