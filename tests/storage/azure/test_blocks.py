"""Which blocks of a blob a new version keeps, and what is sent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardstore.model.ranges import CopiedRange, NewBytes, Segment
from shardstore.storage.azure.blocks import Block, block_id, plan_blocks
from shardstore.storage.requests.parts import SentPart

WRITE = "0" * 32


def blocks_of(*sizes: int) -> list[Block]:
    return [Block(block_id(WRITE, number), nbytes) for number, nbytes in enumerate(sizes)]


def shown(plan: list[Block | SentPart]) -> list[object]:
    """The size of each kept block; of what is sent, its segments."""
    return [one.nbytes if isinstance(one, Block) else one.segments for one in plan]


def test_append_keeps_all_blocks_but_that_of_the_index() -> None:
    new, index = NewBytes(b"chunk"), NewBytes(b"index")
    plan = plan_blocks([CopiedRange(0, 30), new, index], blocks_of(10, 20, 7), 8, 100)
    assert shown(plan) == [10, 20, (new,), (index,)]


def test_edges_of_ranges_are_sent() -> None:
    new = NewBytes(b"n")
    plan = plan_blocks([new, CopiedRange(5, 30)], blocks_of(10, 20, 10), 8, 100)
    assert shown(plan) == [(new, CopiedRange(5, 5)), 20, (CopiedRange(30, 5),)]


def test_nothing_is_kept_of_blocks_with_other_ids_or_of_too_many() -> None:
    copied = CopiedRange(0, 30)
    assert shown(plan_blocks([copied], [Block("other", 30)], 100, 100)) == [(copied,)]
    assert shown(plan_blocks([copied, NewBytes(b"n")], blocks_of(*[1] * 30), 100, 10)) == [(copied,), (NewBytes(b"n"),)]


@given(
    st.lists(st.integers(0, 9), max_size=8),
    st.data(),
    st.integers(1, 6),
    st.sampled_from([4, 1000]),
)
def test_plan_holds_all_bytes_in_order(sizes: list[int], data: st.DataObject, block_bytes: int, max_blocks: int) -> None:
    total = sum(sizes)
    copies = st.tuples(st.integers(0, total), st.integers(0, total)).map(lambda ends: CopiedRange(min(ends), max(ends) - min(ends)))
    segments: list[Segment] = data.draw(st.lists(st.one_of(copies, st.integers(0, 9).map(lambda n: NewBytes(b"n" * n))), max_size=5))
    old, offsets, at = blocks_of(*sizes), {}, 0
    for block in old:
        offsets[block.id] = at
        at += block.nbytes

    def places(segment: Segment) -> list[int | str]:
        return [segment.offset + i if isinstance(segment, CopiedRange) else "n" for i in range(segment.nbytes)]

    plan = plan_blocks(segments, old, block_bytes, max_blocks)
    found: list[int | str] = []
    for one in plan:
        kept = (CopiedRange(offsets[one.id], one.nbytes),) if isinstance(one, Block) else one.segments
        found += [place for segment in kept for place in places(segment)]
    assert found == [place for segment in segments for place in places(segment)]
    assert len(plan) <= max_blocks or not any(isinstance(one, Block) for one in plan)
