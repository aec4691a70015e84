"""How bodies and segments are cut into parts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardstore.model.ranges import CopiedRange, NewBytes, Padding, Segment
from shardstore.storage.requests.parts import part_bytes_for, sent_parts

MIB = 1 << 20

segments_of_any_kind = st.lists(
    st.one_of(
        st.builds(CopiedRange, st.integers(0, 50), st.integers(0, 12)),
        st.integers(0, 12).map(lambda n: NewBytes(b"n" * n)),
        st.integers(0, 12).map(Padding),
    ),
    max_size=6,
)


def bytes_of(segments: list[Segment]) -> list[object]:
    """Each byte, by where it comes from."""
    found: list[object] = []
    for one in segments:
        found += range(one.offset, one.offset + one.nbytes) if isinstance(one, CopiedRange) else [type(one)] * one.nbytes
    return found


@given(segments_of_any_kind, st.integers(1, 9))
def test_parts_hold_all_bytes_in_order_and_no_empty_segment(segments: list[Segment], part_bytes: int) -> None:
    parts = sent_parts(segments, part_bytes)
    assert bytes_of([segment for part in parts for segment in part.segments]) == bytes_of(segments)
    assert all(segment.nbytes for part in parts for segment in part.segments)
    assert all(part.nbytes >= part_bytes for part in parts) or len(parts) == 1


def test_parts_are_larger_where_there_would_be_too_many() -> None:
    assert part_bytes_for(0, 8 * MIB, 100) == part_bytes_for(800 * MIB, 8 * MIB, 100) == 8 * MIB
    assert part_bytes_for(800 * MIB + 1, 8 * MIB, 100) == 9 * MIB
