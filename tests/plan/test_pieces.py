"""Chunks that share bytes: what is copied of them, and how often."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardstore.format.shard_index import IndexCodecs, IndexFormat, ShardIndex
from shardstore.model.chunk_orders import CHUNK_ORDERS
from shardstore.model.ranges import CopiedRange
from shardstore.plan.commits import WriteShard, covered_nbytes, plan_rewrite, shared_pieces
from shardstore.plan.strategies import plan_append
from tests.plan.carrying_out import carry_out, contents

ranges = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), min_size=1, max_size=10)


@given(ranges)
def test_pieces_cover_what_chunks_cover_and_do_not_overlap(chunks: list[tuple[int, int]]) -> None:
    offsets, lengths = np.array(chunks, dtype=np.int64).T
    covered = {byte for offset, nbytes in chunks for byte in range(offset, offset + nbytes)}
    assert covered_nbytes(offsets, lengths) == len(covered)
    pieces = shared_pieces(offsets, lengths)
    if pieces is None:
        return
    assert {byte for start, end in zip(pieces.starts, pieces.ends, strict=True) for byte in range(start, end)} == covered
    in_order = sorted(zip(pieces.starts.tolist(), pieces.ends.tolist(), strict=True))
    assert all(before[1] <= after[0] for before, after in pairwise(in_order))
    assert pieces.firsts.tolist() == sorted(pieces.firsts.tolist())
    for (offset, nbytes), piece in zip(chunks, pieces.of_chunk.tolist(), strict=True):
        assert pieces.starts[piece] <= offset
        assert offset + nbytes <= pieces.ends[piece]


@given(st.data())
def test_a_rewrite_keeps_each_chunk_and_copies_no_byte_twice(data: st.DataObject) -> None:
    chunks = data.draw(ranges)
    index_format = IndexFormat((len(chunks) + 1,), IndexCodecs("little", False), data.draw(st.sampled_from(["start", "end"])))
    low = index_format.nbytes if index_format.location == "start" else 0
    content = bytes(i % 251 for i in range(low + 52 + index_format.nbytes))
    entries = np.array([(low + offset, nbytes) for offset, nbytes in chunks] + [(2**64 - 1, 2**64 - 1)], dtype=np.uint64)
    old = ShardIndex(entries)
    updates = {slot: b"new" * slot for slot in data.draw(st.sets(st.integers(0, len(chunks)), min_size=1))}
    plan = plan_rewrite(index_format, old, len(content), updates, data.draw(st.sampled_from(sorted(CHUNK_ORDERS))))
    assert isinstance(plan, WriteShard)
    copied = [byte for s in plan.segments if isinstance(s, CopiedRange) for byte in range(s.offset, s.offset + s.nbytes)]
    assert len(copied) == len(set(copied))
    kept = {slot: content[low + offset : low + offset + nbytes] for slot, (offset, nbytes) in enumerate(chunks)}
    assert contents(index_format, carry_out(plan, content)) == kept | updates


def test_65536_chunks_that_are_the_same_bytes_are_copied_once() -> None:
    nslots, nbytes = 2**16, 2**23
    index_format = IndexFormat((nslots,))
    old = index_format.index(np.tile(np.array([[0, nbytes]], dtype=np.uint64), (nslots, 1)))
    object_nbytes = nbytes + index_format.nbytes
    for plan in (
        plan_rewrite(index_format, old, object_nbytes, {5: b"12345678"}),
        plan_append(index_format, old, object_nbytes, {5: b"12345678"}, "C", 0.5, None),
    ):
        assert isinstance(plan, WriteShard)
        assert plan.nbytes == object_nbytes + 8
        assert len({tuple(entry) for entry in plan.index.flat.tolist()}) == 2


def test_dead_bytes_are_told_where_chunks_share_theirs() -> None:
    """4 MiB that two chunks share, and 9 MiB that nothing refers to: counted twice, the shared ones would hide the dead."""
    index_format = IndexFormat((3,))
    mib = 2**20
    old = index_format.index(np.array([[0, 4 * mib], [0, 4 * mib], [13 * mib, 8]], dtype=np.uint64))
    plan = plan_append(index_format, old, 13 * mib + 8 + index_format.nbytes, {2: b"12345678"}, "C", 0.65, None)
    assert isinstance(plan, WriteShard)
    assert plan.nbytes == 4 * mib + 8 + index_format.nbytes
