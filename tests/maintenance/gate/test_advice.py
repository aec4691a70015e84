"""Predicted requests against what the engine asks for, and against counting every place of a box one by one."""

from __future__ import annotations

import itertools
import uuid
from math import prod
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import zarr
from hypothesis import given

import shardstore
from shardstore.errors import InvalidInput
from shardstore.format.shard_index import IndexCodecs, IndexLocation
from shardstore.maintenance.advice import Access, ArrayFacts, Excess, advise, box, evaluate, excess, parse_access, predict
from shardstore.model.coalescing import ReadLimits, coalesce
from shardstore.model.ranges import ByteRange
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.trace import TraceStorage

HOUR = "1h"
ROOMY = ReadLimits(gap_bytes=512 * 2**10, request_bytes=16 * 2**20)


# -- against the engine ------------------------------------------------------------------------------------------------

# Shape, chunks, chunks per shard, access, gap and request bytes; chunks are raw bytes, all of one size.
ENGINE_CASES: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], str, int, int]] = [
    ((60,), (4,), (4,), "7", 0, 10**6),
    ((60,), (4,), (16,), "30", 0, 10),  # longer than one request may be
    ((23, 17), (4, 3), (3, 2), "5,4", 0, 10**6),
    ((23, 17), (4, 3), (3, 2), "5,4", 12, 10**6),  # rows of one shard within a gap
    ((23, 17), (4, 3), (3, 4), "1,:", 20, 10**6),
    ((23, 17), (4, 3), (3, 4), ":,1", 20, 10**6),
    ((24, 24), (4, 4), (3, 3), ":,:", 0, 10**6),  # whole shards
    ((20, 20), (2, 2), (5, 5), "9,9", 8, 60),  # both limits at work
    ((9, 8, 10), (2, 2, 3), (3, 2, 2), "3,:,2", 30, 10**6),
    ((9, 8, 10), (2, 2, 3), (2, 4, 4), "4,3,5", 100, 150),
]


def boxes(shape: tuple[int, ...], extents: tuple[int, ...]) -> list[tuple[slice, ...]]:
    """Every place of a box."""
    starts = itertools.product(*(range(n - w + 1) for n, w in zip(shape, extents, strict=True)))
    return [tuple(slice(s, s + w) for s, w in zip(start, extents, strict=True)) for start in starts]


@pytest.mark.parametrize("index_location", ["end", "start"])
@pytest.mark.parametrize(("shape", "chunks", "per_shard", "pattern", "gap_bytes", "request_bytes"), ENGINE_CASES)
def test_predictions_are_what_the_engine_requests(
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    per_shard: tuple[int, ...],
    pattern: str,
    gap_bytes: int,
    request_bytes: int,
    index_location: IndexLocation,
) -> None:
    storage = MemoryStorage(f"/advice-{uuid.uuid4().hex}")
    store = shardstore.open(storage, chunks_per_shard=per_shard, index_location=index_location)
    array = zarr.create_array(store, name="x", shape=shape, chunks=chunks, dtype="u1", compressors=None, fill_value=0)
    array[...] = np.full(shape, 7, dtype="u1")
    trace = TraceStorage(storage)
    cold: dict[str, Any] = {"index_cache_bytes": 0, "metadata_ttl": HOUR, "gap_bytes": gap_bytes, "request_bytes": request_bytes}
    reader = zarr.open_array(shardstore.open(trace, **cold), path="x", mode="r")
    facts = ArrayFacts(shape, chunks, 1, prod(chunks))
    access = parse_access(pattern)
    places = boxes(shape, box(facts, access))
    with trace.count() as block:
        for place in places:
            assert (np.asarray(reader[place]) == 7).all()
    reads = [event for event in block.events if event.op == "read" and not event.key.endswith("zarr.json")]
    predicted = predict(facts, per_shard, access, ReadLimits(gap_bytes, request_bytes))
    assert predicted.requests == pytest.approx(len(reads) / len(places), rel=1e-12)
    assert predicted.nbytes == pytest.approx(sum(event.nbytes for event in reads) / len(places), rel=1e-12)


def test_the_prediction_for_an_unsharded_array_is_one_request_a_chunk() -> None:
    storage = MemoryStorage(f"/advice-{uuid.uuid4().hex}")
    array = zarr.create_array(
        shardstore.open(storage, chunks_per_shard=None), name="x", shape=(23, 17), chunks=(4, 3), dtype="u1", compressors=None, fill_value=0
    )
    array[...] = 1
    trace = TraceStorage(storage)
    reader = zarr.open_array(shardstore.open(trace, metadata_ttl=HOUR), path="x", mode="r")
    facts = ArrayFacts((23, 17), (4, 3), 1, 12)
    places = boxes((23, 17), (5, 4))
    with trace.count() as block:
        for place in places:
            assert (np.asarray(reader[place]) == 1).all()
    reads = [event for event in block.events if event.op == "read" and not event.key.endswith("zarr.json")]
    predicted = predict(facts, None, Access((5, 4)), ROOMY)
    assert predicted.requests == pytest.approx(len(reads) / len(places), rel=1e-12)
    assert predicted.nbytes == pytest.approx(sum(event.nbytes for event in reads) / len(places), rel=1e-12)


# -- against counting --------------------------------------------------------------------------------------------------


def counted(facts: ArrayFacts, per_shard: tuple[int, ...], extents: tuple[int, ...], limits: ReadLimits) -> tuple[float, float, float]:
    """Requests, bytes and shards of a box, averaged over its places: chunk by chunk, with the reader's own ``coalesce``."""
    index_nbytes = facts.index_codecs.nbytes(prod(per_shard))
    requests = nbytes = touched = 0
    places = boxes(facts.shape, extents)
    for place in places:
        ranges = [range(s.start // c, (s.stop - 1) // c + 1) for s, c in zip(place, facts.chunk_shape, strict=True)]
        shards: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for coords in itertools.product(*ranges):
            shards.setdefault(tuple(c // p for c, p in zip(coords, per_shard, strict=True)), []).append(coords)
        for shard, chunks in shards.items():
            held = tuple(min(p, g - s * p) for p, g, s in zip(per_shard, facts.grid, shard, strict=True))
            touched += 1
            nbytes += index_nbytes
            if len(chunks) == prod(held):
                requests += 1
                nbytes += prod(held) * facts.chunk_nbytes
                continue
            inside = [tuple(c % p for c, p in zip(coords, per_shard, strict=True)) for coords in chunks]
            starts = [int(np.ravel_multi_index(position, held)) * facts.chunk_nbytes for position in inside]
            merged = coalesce([ByteRange(start, start + facts.chunk_nbytes) for start in starts], limits).requests
            requests += 1 + len(merged)
            nbytes += sum(r.end - r.start for r in merged)
    return requests / len(places), nbytes / len(places), touched / len(places)


@st.composite
def situations(draw: st.DrawFn) -> tuple[ArrayFacts, tuple[int, ...], tuple[int, ...], ReadLimits]:
    ndim = draw(st.integers(1, 3))
    longest = {1: 60, 2: 16, 3: 7}[ndim]
    shape = tuple(draw(st.lists(st.integers(1, longest), min_size=ndim, max_size=ndim)))
    chunks = tuple(draw(st.lists(st.integers(1, 4), min_size=ndim, max_size=ndim)))
    per_shard = tuple(draw(st.lists(st.integers(1, 6), min_size=ndim, max_size=ndim)))
    extents = tuple(draw(st.integers(1, n)) for n in shape)
    facts = ArrayFacts(shape, chunks, 1, draw(st.sampled_from([1, 10, 33])), IndexCodecs("little", draw(st.booleans())))
    limits = ReadLimits(draw(st.sampled_from([0, 10, 25, 70, 500])), draw(st.sampled_from([1, 40, 100, 1000, 10**6])))
    return facts, per_shard, extents, limits


@given(situations())
def test_predictions_are_averages_over_all_places(situation: tuple[ArrayFacts, tuple[int, ...], tuple[int, ...], ReadLimits]) -> None:
    facts, per_shard, extents, limits = situation
    predicted = predict(facts, per_shard, Access(extents), limits)
    assert (predicted.requests, predicted.nbytes, predicted.objects) == pytest.approx(counted(facts, per_shard, extents, limits), rel=1e-9)


# -- patterns ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "access"),
    [
        ("1,:,:", Access((1, None, None))),
        (" 64, 64 ,64 ", Access((64, 64, 64))),
        (":", Access((None,))),
        ("1,:,: x10", Access((1, None, None), 10.0)),
        ("1,:x0.5", Access((1, None), 0.5)),
    ],
)
def test_patterns(text: str, access: Access) -> None:
    assert parse_access(text) == access
    assert parse_access(str(access)) == access


@pytest.mark.parametrize("text", ["", "1,,2", "0", "-1", "1:3", "a", "x3", "1,: x0", "1,: x", "1.5", "²"])
def test_wrong_patterns_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"access"):
        parse_access(text)


def test_a_box_is_clipped_to_the_array() -> None:
    facts = ArrayFacts((10, 20), (5, 5), 1, 25)
    assert box(facts, Access((None, 300))) == (10, 20)
    with pytest.raises(InvalidInput, match="3 dimensions, the array has 2"):
        box(facts, Access((1, 1, 1)))


@pytest.mark.parametrize(("shape", "chunks"), [((), (5,)), ((10,), (5, 5)), ((0, 10), (5, 5)), ((10, 10), (0, 5))])
def test_arrays_without_a_grid_are_refused(shape: tuple[int, ...], chunks: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput):
        ArrayFacts(shape, chunks, 1, 1)


# -- candidates --------------------------------------------------------------------------------------------------------

VOLUME = ArrayFacts((1024, 1024, 1024), (32, 32, 32), 2, 40_000)


def test_planes_want_shards_that_are_flat() -> None:
    along = [advise(VOLUME, [parse_access(text)], ROOMY).candidates[0].chunks_per_shard for text in ("1,:,:", ":,:,1")]
    assert all(best is not None for best in along)
    first, last = along
    assert first is not None
    assert last is not None
    assert first[0] == 1
    assert last[2] == 1


def test_the_recommended_one_costs_about_the_least_and_is_the_smallest_of_those() -> None:
    advice = advise(VOLUME, [parse_access("1,:,:"), parse_access("64,64,64 x100")], ROOMY)
    best, *others = advice.candidates
    least = min(candidate.cost for candidate in advice.candidates)
    assert best.cost <= 1.1 * least
    fewest = min(c.requests for c in advice.candidates if c.cost <= 1.1 * least)
    assert best.requests <= 1.5 * fewest
    assert [c for c in others if c.cost <= 1.1 * least and c.requests <= 1.5 * fewest and c.stored_nbytes < best.stored_nbytes] == []
    assert [c.cost for c in others] == sorted(c.cost for c in others)
    assert len({c.chunks_per_shard for c in advice.candidates}) == len(advice.candidates)


def test_where_bytes_prevail_requests_and_objects_decide() -> None:
    days = ArrayFacts((365_000, 721, 1440), (1, 721, 1440), 4, 721 * 1440 * 4)
    best, *others = advise(days, [parse_access(":,1,1"), parse_access("1,:,:")], ROOMY).candidates
    assert best.chunks_per_shard == (16, 1, 1)
    assert best.objects < min(c.objects for c in others)


def test_excess_is_what_chunks_read_beyond_what_is_wanted() -> None:
    days = ArrayFacts((3650, 721, 1440), (1, 721, 1440), 4, 1)
    assert excess(days, parse_access("1,:,:")) == Excess(1.0, ())
    assert excess(days, parse_access(":,1,1")) == Excess(721.0 * 1440, (1, 2))
    # One element of chunks of 4 along one axis; along the other 2 of 10 elements, at 9 places, 2 of which cut 2 chunks of 4.
    assert excess(ArrayFacts((8, 10), (4, 4), 1, 1), parse_access("1,2")).factor == pytest.approx(4 * (1 + 2 / 9) * 4 / 2)


@pytest.mark.parametrize("most_objects", [1, 7, 100, 5000])
def test_no_candidate_makes_more_objects_than_wanted(most_objects: int) -> None:
    advice = advise(VOLUME, [parse_access("64,64,64")], ROOMY, most_objects=most_objects)
    assert not advice.is_over
    for candidate in advice.candidates:
        assert candidate.chunks_per_shard is not None
        assert candidate.objects == prod(-(-32 // p) for p in candidate.chunks_per_shard) <= most_objects


def test_a_wish_that_cannot_be_met_gets_the_nearest() -> None:
    # A chunk of 64 MiB: "auto" would not shard, and no shard of more is proposed unless it is asked for.
    huge = ArrayFacts((512, 512, 1024), (256, 256, 512), 2, 2**26)
    assert advise(huge, [parse_access(":,:,1")], ROOMY).candidates == ()
    few = advise(huge, [parse_access(":,:,1")], ROOMY, most_objects=2)
    assert {candidate.objects for candidate in few.candidates} <= {1, 2}
    with pytest.raises(InvalidInput, match="0 objects"):
        advise(huge, [parse_access(":,:,1")], ROOMY, most_objects=0)


def test_what_is_there_now_is_among_the_compared() -> None:
    odd = advise(VOLUME, [parse_access("1,:,:")], ROOMY, exists=True, present=(3, 3, 3))
    assert [(c.chunks_per_shard, c.is_present) for c in odd.compared] == [((3, 3, 3), True), (None, False)]
    assert not any(c.is_present for c in odd.candidates)
    known = odd.candidates[0].chunks_per_shard
    again = advise(VOLUME, [parse_access("1,:,:")], ROOMY, exists=True, present=known)
    assert again.candidates[0].is_present
    assert [(c.chunks_per_shard, c.is_present) for c in again.compared] == [(None, False)]
    (unsharded,) = advise(VOLUME, [parse_access("1,:,:")], ROOMY, exists=True).compared
    assert unsharded.is_present
    (imagined,) = advise(VOLUME, [parse_access("1,:,:")], ROOMY).compared
    assert not imagined.is_present


def test_weights_make_a_mean() -> None:
    planes, cubes = parse_access("1,:,: x3"), parse_access("64,64,64")
    candidate = evaluate(VOLUME, (4, 4, 4), [planes, cubes], ROOMY)
    plane, cube = (predict(VOLUME, (4, 4, 4), access, ROOMY) for access in (planes, cubes))
    assert candidate.requests == pytest.approx((3 * plane.requests + cube.requests) / 4)
    assert candidate.nbytes == pytest.approx((3 * plane.nbytes + cube.nbytes) / 4)
    assert candidate.cost == pytest.approx(candidate.nbytes + candidate.requests * ROOMY.gap_bytes)


def test_sizes_of_a_shard() -> None:
    candidate = evaluate(VOLUME, (2, 4, 8), [parse_access("1,1,1")], ROOMY)
    assert candidate.shard_shape == (64, 128, 256)
    assert candidate.decoded_nbytes == 64 * 32**3 * 2
    assert candidate.stored_nbytes == 64 * 40_000 + 64 * 16 + 4
    assert candidate.objects == 16 * 8 * 4
    assert candidate.write_amplification == pytest.approx((64 * 40_000 + 1028) / 40_000)
    unsharded = evaluate(VOLUME, None, [parse_access("1,1,1")], ROOMY)
    assert (unsharded.objects, unsharded.write_amplification, unsharded.requests) == (32**3, 1.0, 1.0)


def test_a_shard_longer_than_the_array_holds_what_the_array_has() -> None:
    candidate = evaluate(ArrayFacts((40,), (10,), 1, 10), (16,), [parse_access(":")], ROOMY)
    assert candidate.stored_nbytes == 4 * 10 + 16 * 16 + 4
    assert (candidate.requests, candidate.nbytes) == (1.0, 4 * 10 + 16 * 16 + 4)


def test_no_access_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no access"):
        advise(VOLUME, [], ROOMY)


def test_progress_ends_at_the_number_of_candidates() -> None:
    seen: list[tuple[int, int]] = []
    advice = advise(VOLUME, [parse_access("1,:,:")], ROOMY, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(i + 1, len(advice.candidates)) for i in range(len(advice.candidates))]
