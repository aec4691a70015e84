"""Commit plans, carried out on bytes in memory and compared with a plain dict."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardstore.errors import Corruption
from shardstore.format.shard_index import EMPTY, IndexCodecs, IndexFormat, IndexLocation, ShardIndex
from shardstore.model.chunk_orders import CHUNK_ORDERS, ChunkOrder
from shardstore.model.ranges import CopiedRange, NewBytes
from shardstore.plan.commits import DeleteShard, NothingToDo, WriteShard, plan_empty, plan_rewrite, with_nonce
from tests.plan.carrying_out import carry_out, contents

formats = st.builds(
    IndexFormat,
    st.lists(st.integers(1, 3), max_size=3).map(tuple),
    st.builds(IndexCodecs, st.sampled_from(["little", "big"]), st.booleans()),
    st.sampled_from(["start", "end"]),
)
orders = st.sampled_from(sorted(CHUNK_ORDERS))


@given(formats, orders, st.data())
def test_a_sequence_of_commits_is_a_dict(index_format: IndexFormat, order: ChunkOrder, data: st.DataObject) -> None:
    nslots = prod(index_format.chunks_per_shard)
    model: dict[int, bytes] = {}
    shard: bytes | None = None
    index: ShardIndex | None = None
    updates_of_a_commit = st.dictionaries(st.integers(0, nslots - 1), st.none() | st.binary(max_size=6), min_size=1)
    for updates in data.draw(st.lists(updates_of_a_commit, max_size=6)):
        before = dict(model)
        for slot, value in updates.items():
            if value is None:
                model.pop(slot, None)
            else:
                model[slot] = value
        plan = plan_rewrite(index_format, index, len(shard or b""), updates, order)
        match plan:
            case NothingToDo():
                assert model == before
            case DeleteShard():
                assert not model
                assert shard is not None
                shard = index = None
            case WriteShard():
                shard = carry_out(plan, shard or b"")
                index = plan.index
                # No dead bytes: every byte is a chunk's or the index's.
                assert len(shard) == index_format.nbytes + sum(map(len, model.values()))
                assert (index_format.decode(index_format.slice_from(memoryview(shard), len(shard))).entries == index.entries).all()
        assert (contents(index_format, shard) if shard is not None else {}) == model


def test_neighbours_are_copied_in_one_piece() -> None:
    index_format = IndexFormat((5,))
    index = ShardIndex(np.array([[0, 2], [2, 3], [5, 1], [6, 4], [10, 1]], dtype=np.uint64))
    plan = plan_rewrite(index_format, index, 11 + index_format.nbytes, {2: b"xyz"})
    assert isinstance(plan, WriteShard)
    assert plan.segments[:3] == (CopiedRange(0, 5), NewBytes(b"xyz"), CopiedRange(6, 5))


def test_aliased_and_overlapping_chunks_are_each_kept_whole() -> None:
    index_format = IndexFormat((3,), IndexCodecs("little", False))
    old = b"abcdef" + bytes(48)
    index = ShardIndex(np.array([[0, 4], [2, 4], [0, 4]], dtype=np.uint64))
    plan = plan_rewrite(index_format, index, len(old), {0: b"Z"})
    assert isinstance(plan, WriteShard)
    assert contents(index_format, carry_out(plan, old)) == {0: b"Z", 1: b"cdef", 2: b"abcd"}


def test_a_damaged_entry_is_never_carried_over_silently() -> None:
    index_format = IndexFormat((3,))
    index = ShardIndex(np.array([[0, 2], [EMPTY, 5], [500, 5]], dtype=np.uint64))
    with pytest.raises(Corruption, match="entry 1 is half empty"):
        plan_rewrite(index_format, index, 60, {0: b"new"})
    with pytest.raises(Corruption, match="entry 2 names bytes"):
        plan_rewrite(index_format, index, 60, {1: b"new"})
    healed = plan_rewrite(index_format, index, 60, {1: b"new", 2: None})
    assert isinstance(healed, WriteShard)


def test_erasing_the_last_chunk_deletes_the_shard() -> None:
    index = ShardIndex(np.array([[0, 0], [EMPTY, EMPTY]], dtype=np.uint64))
    assert plan_rewrite(IndexFormat((2,)), index, 36, {0: None}) == DeleteShard()
    assert plan_rewrite(IndexFormat((2,)), index, 36, {1: None}) == NothingToDo()
    assert plan_rewrite(IndexFormat((2,)), None, 0, {1: None}) == NothingToDo()
    # An object of nothing but an index, as others may leave it, is no chunk either.
    assert plan_rewrite(IndexFormat((2,)), IndexFormat((2,)).empty(), 36, {1: None}) == DeleteShard()


@pytest.mark.parametrize("location", ["end", "start"])
def test_a_nonce_changes_no_chunk(location: IndexLocation) -> None:
    index_format = IndexFormat((2, 2), location=location)
    plan = plan_empty(index_format)
    assert (contents(index_format, carry_out(plan, b"")), plan.nbytes) == ({}, 68)
    assert contents(index_format, carry_out(with_nonce(plan, index_format, b"n" * 16), b"")) == {}
    rewritten = plan_rewrite(index_format, None, 0, {1: b"one", 3: b"three"})
    assert isinstance(rewritten, WriteShard)
    named = with_nonce(rewritten, index_format, b"n" * 16)
    assert contents(index_format, carry_out(named, b"")) == {1: b"one", 3: b"three"}
    assert named.nbytes == rewritten.nbytes + 16 == len(carry_out(named, b""))
