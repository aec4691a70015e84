"""The parts of which an object is put together: all of its bytes, in order, within the limits of S3."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardstore.model.ranges import CopiedRange, NewBytes, Padding, Segment
from shardstore.storage.requests.parts import SentPart
from shardstore.storage.s3.parts import COPY_PAYS_NBYTES, MIN_PART_BYTES, CopiedPart, plan_parts

MIB = 1 << 20
OLD_NBYTES = 60 * MIB


def places(segments: list[Segment]) -> list[tuple[str, int, int]]:
    """What bytes they are, as runs of the old version, of new bytes by their first one, or of nothing; neighbours joined."""
    found: list[tuple[str, int, int]] = []
    new_at = 0
    for segment in segments:
        match segment:
            case CopiedRange(offset, nbytes):
                run = "old", offset, nbytes
            case NewBytes(data):
                run = "new", new_at, len(data)
                new_at += len(data)
            case Padding(nbytes):
                run = "room", 0, nbytes
        if not run[2]:
            continue
        if found and found[-1][0] == run[0] and (run[0] == "room" or sum(found[-1][1:]) == run[1]):
            found[-1] = (run[0], found[-1][1], found[-1][2] + run[2])
        else:
            found.append(run)
    return found


# Sizes around those that decide.
sizes = st.sampled_from(
    [0, 1, MIB, MIN_PART_BYTES - 1, MIN_PART_BYTES, MIN_PART_BYTES + 1, COPY_PAYS_NBYTES - 1, COPY_PAYS_NBYTES, 23 * MIB]
)
copies = st.builds(lambda nbytes, share: CopiedRange(int((OLD_NBYTES - nbytes) * share), nbytes), sizes, st.sampled_from([0.0, 0.3, 1.0]))
news = sizes.map(lambda nbytes: NewBytes(memoryview(bytes(nbytes))))
segment_lists: st.SearchStrategy[list[Segment]] = st.lists(st.one_of(copies, news, sizes.map(Padding)), max_size=8)


@given(segment_lists)
def test_every_byte_once_and_in_order(segments: list[Segment]) -> None:
    parts = plan_parts(segments)
    flat: list[Segment] = []
    for part in parts:
        flat += [CopiedRange(part.offset, part.nbytes)] if isinstance(part, CopiedPart) else list(part.segments)
    assert places(flat) == places(segments)
    assert all(part.nbytes >= MIN_PART_BYTES for part in parts[:-1])
    assert all(part.nbytes < 17 * MIB for part in parts if isinstance(part, SentPart))
    assert all(segment.nbytes for part in parts if isinstance(part, SentPart) for segment in part.segments)
    lone = [s for s in segments if isinstance(s, CopiedRange) and s.nbytes >= COPY_PAYS_NBYTES]
    assert any(isinstance(part, CopiedPart) for part in parts) or not lone


def test_what_an_append_sends() -> None:
    parts = plan_parts([CopiedRange(0, 256 * MIB), NewBytes(b"x" * 100), NewBytes(b"index")])
    assert parts == [CopiedPart(0, 256 * MIB), SentPart((NewBytes(b"x" * 100), NewBytes(b"index")))]


def test_a_short_piece_in_front_borrows_from_the_copy_behind_it() -> None:
    parts = plan_parts([NewBytes(b"head"), CopiedRange(100, 30 * MIB)])
    lent = MIN_PART_BYTES - 4
    assert parts == [SentPart((NewBytes(b"head"), CopiedRange(100, lent))), CopiedPart(100 + lent, 30 * MIB - lent)]


def test_a_part_that_ends_where_a_copy_begins_has_nothing_of_it() -> None:
    new = NewBytes(memoryview(bytes(8 * MIB)))
    assert plan_parts([new, CopiedRange(0, 8 * MIB)]) == [SentPart((new,)), SentPart((CopiedRange(0, 8 * MIB),))]


def test_neighbours_are_one_copy() -> None:
    assert plan_parts([CopiedRange(0, 6 * MIB), CopiedRange(6 * MIB, 6 * MIB)]) == [CopiedPart(0, 12 * MIB)]


def test_more_than_a_part_may_hold() -> None:
    parts = plan_parts([CopiedRange(7, 50 * MIB)], max_part_bytes=20 * MIB)
    assert sum(part.nbytes for part in parts) == 50 * MIB
    assert len(parts) == 3
    assert parts[0] == CopiedPart(7, parts[0].nbytes)


def test_never_too_many_parts() -> None:
    assert len(plan_parts([NewBytes(memoryview(bytes(200 * MIB)))], max_parts=4)) <= 4
