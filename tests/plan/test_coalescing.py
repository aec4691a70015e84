"""Coalescing: everything wanted is covered, limits hold, and no fewer requests would do."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from shardstore.model.coalescing import ReadLimits, coalesce
from shardstore.model.ranges import ByteRange

ranges = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 60)).map(lambda t: ByteRange(t[0], t[0] + t[1])), max_size=25)
limits = st.builds(ReadLimits, st.integers(0, 40), st.integers(1, 200))


@given(ranges, limits)
def test_every_wanted_range_lies_in_its_request(wanted: list[ByteRange], limit: ReadLimits) -> None:
    plan = coalesce(wanted, limit)
    for w, number in zip(wanted, plan.of_request, strict=True):
        request = plan.requests[number]
        assert request.start <= w.start <= w.end <= request.end


def stretches(members: list[ByteRange]) -> list[int]:
    """How long the ranges are, those that overlap taken together."""
    joined: list[tuple[int, int]] = []
    for member in members:
        if joined and member.start < joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], member.end)
        else:
            joined.append((member.start, member.end))
    return [end - start for start, end in joined] + [0]


@given(ranges, limits)
def test_no_byte_is_requested_twice(wanted: list[ByteRange], limit: ReadLimits) -> None:
    requests = coalesce(wanted, limit).requests
    for before, after in itertools.pairwise(requests):
        assert before.end <= after.start


@given(ranges, limits)
def test_limits_hold(wanted: list[ByteRange], limit: ReadLimits) -> None:
    plan = coalesce(wanted, limit)
    for number, request in enumerate(plan.requests):
        members = sorted((w for w, n in zip(wanted, plan.of_request, strict=True) if n == number), key=lambda r: (r.start, r.end))
        assert members
        assert request.end - request.start <= max(limit.request_bytes, *stretches(members))
        covered = members[0].end
        for member in members[1:]:
            assert member.start - covered <= limit.gap_bytes
            covered = max(covered, member.end)


@given(ranges, st.integers(0, 40))
def test_without_a_size_limit_only_gaps_separate_requests(wanted: list[ByteRange], gap: int) -> None:
    plan = coalesce(wanted, ReadLimits(gap, 10**9))
    for before, after in zip(plan.requests, plan.requests[1:], strict=False):
        assert after.start - before.end > gap


def test_examples() -> None:
    wanted = [ByteRange(100, 110), ByteRange(0, 10), ByteRange(12, 20)]
    assert coalesce(wanted, ReadLimits(2, 100)).requests == (ByteRange(0, 20), ByteRange(100, 110))
    assert coalesce(wanted, ReadLimits(1, 100)).requests == (ByteRange(0, 10), ByteRange(12, 20), ByteRange(100, 110))
    assert coalesce(wanted, ReadLimits(100, 19)).requests == (ByteRange(0, 10), ByteRange(12, 20), ByteRange(100, 110))
    assert coalesce([ByteRange(0, 500)], ReadLimits(0, 10)).requests == (ByteRange(0, 500),)
    assert coalesce([], ReadLimits()).requests == ()
