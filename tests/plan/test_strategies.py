"""Plans of the strategy ``append``: the same chunks, what is there left where it is, dead bytes under their bound."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardstore.errors import Corruption
from shardstore.format.shard_index import EMPTY, IndexCodecs, IndexFormat, ShardIndex
from shardstore.model.ranges import BytesLike, CopiedRange, NewBytes, Padding
from shardstore.plan.commits import DeleteShard, NothingToDo, WriteShard, plan_rewrite
from shardstore.plan.strategies import Append, plan_append
from tests.plan.carrying_out import carry_out, contents

ROOM = 64

formats = st.builds(
    IndexFormat, st.lists(st.integers(1, 3), max_size=3).map(tuple), st.builds(IndexCodecs, st.sampled_from(["little", "big"]))
)


def stays(index_format: IndexFormat, old: ShardIndex, new: ShardIndex, updates: Mapping[int, BytesLike | None]) -> None:
    """Every chunk that was not touched is where it was."""
    for slot in range(prod(index_format.chunks_per_shard)):
        if slot not in updates:
            assert tuple(old.flat[slot]) == tuple(new.flat[slot])


@given(formats, st.sampled_from([None, ROOM]), st.sampled_from([0.0, 0.3, 0.9]), st.sampled_from([0, 100]), st.data())
def test_a_sequence_of_commits_is_a_dict(
    index_format: IndexFormat, room: int | None, fraction: float, ignored: int, data: st.DataObject
) -> None:
    nslots = prod(index_format.chunks_per_shard)
    model: dict[int, bytes] = {}
    shard = b""
    index: ShardIndex | None = None
    updates_of_a_commit = st.dictionaries(st.integers(0, nslots - 1), st.none() | st.binary(max_size=40), min_size=1)
    for updates in data.draw(st.lists(updates_of_a_commit, max_size=6)):
        before = dict(model)
        model = {slot: value for slot, value in (model | updates).items() if value is not None}
        if index is None:
            plan = plan_rewrite(index_format, None, 0, updates)
        else:
            plan = plan_append(index_format, index, len(shard), updates, "C", fraction, room, ignored)
        match plan:
            case NothingToDo():
                assert model == before
            case DeleteShard():
                assert not model
                shard, index = b"", None
            case WriteShard():
                old, shard = shard, carry_out(plan, shard)
                kept = plan.segments[0]
                if index is not None and isinstance(kept, CopiedRange) and any(isinstance(s, Padding) for s in plan.segments):
                    assert kept == CopiedRange(0, len(old))
                    assert shard.startswith(old)
                    stays(index_format, index, plan.index, updates)
                index = plan.index
                dead = len(shard) - index_format.nbytes - sum(map(len, model.values()))
                assert dead <= max(ignored, fraction * len(shard))
                assert (index_format.decode(index_format.slice_from(memoryview(shard), len(shard))).entries == index.entries).all()
        assert (contents(index_format, shard) if index is not None else {}) == model


def shard_of(*chunks: bytes) -> tuple[IndexFormat, ShardIndex, bytes]:
    index_format = IndexFormat((len(chunks),))
    plan = plan_rewrite(index_format, None, 0, dict(enumerate(chunks)))
    assert isinstance(plan, WriteShard)
    return index_format, plan.index, carry_out(plan, b"")


def test_in_place_the_old_index_stays_and_nothing_else_is_written() -> None:
    index_format, index, old = shard_of(*[bytes(1000)] * 20)
    plan = plan_append(index_format, index, len(old), {3: b"new", 7: None}, "C", 0.5, ROOM)
    assert isinstance(plan, WriteShard)
    assert plan.segments[:3] == (CopiedRange(0, len(old)), Padding(64), NewBytes(b"new"))
    assert len(plan.segments) == 4
    assert plan.nbytes == len(old) + 64 + 3 + index_format.nbytes


def test_in_place_no_chunk_ends_with_a_page() -> None:
    index_format, index, old = shard_of(*[bytes(1000)] * 20)
    first = 2 * 4096 * 4 - len(old) - 64
    plan = plan_append(index_format, index, len(old), {3: bytes(first), 4: b"next"}, "C", 0.9, ROOM)
    assert isinstance(plan, WriteShard)
    assert plan.segments[2:5] == (NewBytes(bytes(first)), Padding(1), NewBytes(b"next"))
    assert contents(index_format, carry_out(plan, old))[4] == b"next"


def test_elsewhere_the_old_index_goes() -> None:
    index_format, index, old = shard_of(*[bytes(1000)] * 20)
    plan = plan_append(index_format, index, len(old), {3: b"new"}, "C", 0.5, None)
    assert isinstance(plan, WriteShard)
    assert plan.segments[:2] == (CopiedRange(0, 20_000), NewBytes(b"new"))
    assert plan.nbytes == 20_003 + index_format.nbytes


def test_a_chunk_that_lies_on_the_index_is_kept() -> None:
    index_format = IndexFormat((2,))
    entries = ShardIndex(np.array([[0, 4], [2, 30]], dtype=np.uint64))
    old = b"abcd" + index_format.encode(entries)
    plan = plan_append(index_format, entries, len(old), {0: b"new"}, "C", 0.9, None)
    assert isinstance(plan, WriteShard)
    assert contents(index_format, carry_out(plan, old)) == {0: b"new", 1: old[2:32]}


def test_past_the_bound_the_shard_is_rewritten() -> None:
    index_format, index, old = shard_of(*[bytes(1000)] * 10)
    updates: dict[int, BytesLike | None] = {slot: bytes(1000) for slot in range(5)}
    appended = plan_append(index_format, index, len(old), updates, "C", 0.5, ROOM, dead_bytes_kept=0)
    assert isinstance(appended, WriteShard)
    assert len(appended.segments) == 8
    rewritten = plan_append(index_format, index, len(old), updates, "C", 0.3, ROOM, dead_bytes_kept=0)
    assert rewritten == plan_rewrite(index_format, index, len(old), updates) or (
        isinstance(rewritten, WriteShard) and rewritten.nbytes == len(old) and rewritten.segments[-2] == CopiedRange(5000, 5000)
    )


def test_where_no_chunk_stays_there_is_nothing_to_append_to() -> None:
    index_format, index, old = shard_of(b"a", b"b")
    plan = plan_append(index_format, index, len(old), {0: b"A", 1: None}, "C", 0.9, ROOM)
    assert isinstance(plan, WriteShard)
    assert plan.segments[0] == NewBytes(b"A")
    assert plan_append(index_format, index, len(old), {0: None, 1: None}, "C", 0.9, ROOM) == DeleteShard()


def test_an_entry_past_the_end_is_not_made_to_look_right_by_what_comes_behind() -> None:
    index_format = IndexFormat((3,))
    index = ShardIndex(np.array([[0, 2], [EMPTY, EMPTY], [50, 20]], dtype=np.uint64))
    with pytest.raises(Corruption, match="entry 2 names bytes"):
        plan_append(index_format, index, 60, {0: bytes(100)}, "C", 0.9, ROOM)
    assert isinstance(plan_append(index_format, index, 60, {0: b"new", 2: b"healed"}, "C", 0.9, ROOM), WriteShard)


def test_only_shards_that_show_when_they_are_half_written() -> None:
    assert Append().unsuited(IndexFormat((2,))) is None
    assert Append().unsuited(IndexFormat((2,), IndexCodecs("little", False)))
    assert Append().unsuited(IndexFormat((2,), location="start"))
