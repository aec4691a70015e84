"""Plans of the strategy ``keep``: whatever the old index refers to lies where it lay, and the size is bounded."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardstore.errors import Corruption
from shardstore.format.shard_index import EMPTY, IndexCodecs, IndexFormat, IndexLocation, ShardIndex
from shardstore.model.capabilities import Capabilities
from shardstore.model.ranges import BytesLike, CopiedRange, NewBytes
from shardstore.plan.commits import (
    Commit,
    CommitPlan,
    DeleteShard,
    NothingToDo,
    WriteShard,
    plan_compaction,
    plan_rewrite,
    with_nonce,
)
from shardstore.plan.strategies import DEAD_BYTES_KEPT, KeepOffsets
from tests.plan.carrying_out import carry_out, contents

NONCE = bytes(range(16))

formats = st.builds(
    IndexFormat,
    st.lists(st.integers(1, 3), max_size=3).map(tuple),
    st.builds(IndexCodecs, st.sampled_from(["little", "big"]), st.booleans()),
    st.sampled_from(["start", "end"]),
)


def planned(
    index_format: IndexFormat,
    old: ShardIndex | None,
    shard: bytes,
    updates: Mapping[int, BytesLike | None],
    fraction: float = 0.5,
    dead_bytes_kept: int = DEAD_BYTES_KEPT,
) -> CommitPlan:
    commit = Commit(index_format, old, len(shard), updates, "C", fraction, Capabilities())
    return KeepOffsets(dead_bytes_kept=dead_bytes_kept).plan(commit)


def decoded(index_format: IndexFormat, shard: bytes) -> ShardIndex:
    return index_format.decode(index_format.slice_from(memoryview(shard), len(shard)))


def found_by(index: ShardIndex, shard: bytes) -> dict[int, bytes]:
    """What a reader finds in a shard who has read another index."""
    return {
        slot: shard[offset : offset + nbytes]
        for slot, (offset, nbytes) in enumerate(index.flat.tolist())
        if (offset, nbytes) != (EMPTY,) * 2
    }


@given(formats, st.booleans(), st.sampled_from([0.0, 0.3, 0.9]), st.sampled_from([0, 100]), st.data())
def test_an_old_index_finds_the_old_chunks_in_the_next_version(
    index_format: IndexFormat, is_unique: bool, fraction: float, ignored: int, data: st.DataObject
) -> None:
    nslots = prod(index_format.chunks_per_shard)
    model: dict[int, bytes] = {}
    shard = b""
    index: ShardIndex | None = None
    longest = 0
    updates_of_a_commit = st.dictionaries(st.integers(0, nslots - 1), st.none() | st.binary(max_size=40), min_size=1)
    for updates in data.draw(st.lists(updates_of_a_commit, max_size=12)):
        before = model
        model = {slot: value for slot, value in (model | updates).items() if value is not None}
        match planned(index_format, index, shard, updates, fraction, ignored):
            case NothingToDo():
                assert model == before
            case DeleteShard():
                assert not model
                shard, index = b"", None
            case WriteShard() as plan:
                plan = with_nonce(plan, index_format, NONCE) if is_unique else plan
                old, shard = index, carry_out(plan, shard)
                reached = index_format.nbytes  # a chunk that lies far behind cannot move, whatever was erased before it
                if old is not None:
                    assert found_by(old, shard) == before
                    reached += int(old.flat[old.present()].sum(axis=1).max(initial=0))
                index = decoded(index_format, shard)
                assert (index.entries == plan.index.entries).all()
                longest = max([longest, *map(len, model.values())])
                live = sum(map(len, model.values())) + index_format.nbytes
                both = live + sum(map(len, before.values()))
                assert len(shard) <= max(live + ignored, live / (1 - fraction), both + (nslots + 1) * longest, reached) + 2 * len(NONCE)
        assert (contents(index_format, shard) if index is not None else {}) == model


def shard_of(*chunks: bytes, location: IndexLocation = "end") -> tuple[IndexFormat, ShardIndex, bytes]:
    index_format = IndexFormat((len(chunks),), location=location)
    plan = plan_rewrite(index_format, None, 0, dict(enumerate(chunks)))
    assert isinstance(plan, WriteShard)
    return index_format, plan.index, carry_out(plan, b"")


def test_new_chunks_go_behind_what_is_there() -> None:
    index_format, index, old = shard_of(*[bytes(1000)] * 20)
    plan = planned(index_format, index, old, {3: b"new", 7: None, 9: b""})
    assert isinstance(plan, WriteShard)
    assert plan.segments[:2] == (CopiedRange(0, 20_000), NewBytes(b"new"))
    assert plan.nbytes == 20_003 + index_format.nbytes


def test_an_index_at_the_start_is_replaced_there() -> None:
    index_format, index, old = shard_of(*[bytes(1000)] * 20, location="start")
    plan = planned(index_format, index, old, {3: b"new", 7: None})
    assert isinstance(plan, WriteShard)
    assert plan.segments[1:] == (CopiedRange(index_format.nbytes, 20_000), NewBytes(b"new"))
    assert carry_out(plan, old)[index_format.nbytes :] == old[index_format.nbytes :] + b"new"


@pytest.mark.parametrize("location", ["start", "end"])
def test_a_shard_that_is_written_whole_keeps_its_chunks_too(location: IndexLocation) -> None:
    index_format, index, old = shard_of(b"aaaa", b"bbbb", location=location)
    plan = planned(index_format, index, old, {0: b"AAAA", 1: b"BBBB"})
    assert isinstance(plan, WriteShard)
    assert found_by(index, carry_out(plan, old)) == {0: b"aaaa", 1: b"bbbb"}
    assert KeepOffsets().plans_from_old


def test_past_the_bound_dead_bytes_are_used_and_what_died_first_is_used_first() -> None:
    index_format, index, shard = shard_of(b"static", *[bytes([i] * 10) for i in range(10)])
    indices = [index]
    for version in range(100, 140):
        plan = planned(index_format, indices[-1], shard, {5: bytes([version] * 10)}, 0.3, 0)
        assert isinstance(plan, WriteShard)
        shard = carry_out(plan, shard)
        indices.append(plan.index)
        assert len(shard) <= (106 + index_format.nbytes) / 0.7
        assert [found_by(old, shard)[0] for old in indices] == [b"static"] * len(indices)
        if version > 110:
            assert [found_by(old, shard)[5][0] for old in indices[-5:]] == list(range(version - 4, version + 1))


def test_until_then_every_older_index_finds_its_chunks() -> None:
    index_format, index, shard = shard_of(*[bytes([i] * 10) for i in range(10)])
    indices = [index]
    for version in range(100, 140):
        plan = planned(index_format, indices[-1], shard, {version % 10: bytes([version] * 10)}, 0.0, 400)
        assert isinstance(plan, WriteShard)
        assert plan.segments[0] == CopiedRange(0, len(shard) - index_format.nbytes)
        shard = carry_out(plan, shard)
        indices.append(plan.index)
    assert [found_by(old, shard)[5][0] for old in indices] == [5] * 6 + [105] * 10 + [115] * 10 + [125] * 10 + [135] * 5


def test_where_dead_bytes_do_not_fit_the_shard_grows() -> None:
    index_format, index, shard = shard_of(b"a" * 10, b"b" * 10, b"c" * 10)
    first = planned(index_format, index, shard, {1: b"B" * 11}, 0.0, 0)
    assert isinstance(first, WriteShard)
    shard = carry_out(first, shard)
    second = planned(index_format, first.index, shard, {0: b"A" * 11}, 0.0, 0)
    assert isinstance(second, WriteShard)
    shard = carry_out(second, shard)
    assert found_by(first.index, shard) == {0: b"a" * 10, 1: b"B" * 11, 2: b"c" * 10}
    third = planned(index_format, second.index, shard, {2: b"C" * 11}, 0.0, 0)
    assert isinstance(third, WriteShard)
    assert third.index.flat[2].tolist() == [0, 11]  # where "a" and "b" were, which both are dead


def test_dead_bytes_behind_the_last_chunk_are_cut_off() -> None:
    index_format, index, shard = shard_of(b"a" * 100, b"b" * 100, b"c" * 100)
    erased = planned(index_format, index, shard, {1: None, 2: None}, 0.0, 0)
    assert isinstance(erased, WriteShard)
    shard = carry_out(erased, shard)
    assert found_by(index, shard) == {0: b"a" * 100, 1: b"b" * 100, 2: b"c" * 100}
    plan = planned(index_format, erased.index, shard, {1: b"B"}, 0.0, 0)
    assert isinstance(plan, WriteShard)
    assert plan.nbytes == 101 + index_format.nbytes


@pytest.mark.parametrize("grows", [False, True], ids=["raw", "compressed"])
@pytest.mark.parametrize("location", ["start", "end"])
def test_a_thousand_appends_are_bounded(location: IndexLocation, grows: bool) -> None:
    """Each writes a row into the chunks at the border; eight rows make a chunk, which is written eight times."""
    rng = np.random.default_rng(0)
    index_format = IndexFormat((125, 2), location=location)
    index: ShardIndex | None = None
    shard = b""
    live: dict[int, int] = {}
    kept = 4096
    for row in range(1000):
        slot = row // 8 * 2
        nbytes = 40 * (row % 8 + 1) + int(rng.integers(0, 40)) if grows else 400
        updates = {slot: rng.bytes(nbytes), slot + 1: rng.bytes(nbytes)}
        live |= dict.fromkeys(updates, nbytes)
        plan = planned(index_format, index, shard, updates, 0.25, kept)
        assert isinstance(plan, WriteShard)
        plan = with_nonce(plan, index_format, NONCE)
        new = carry_out(plan, shard)
        if index is not None:
            assert found_by(index, new) == found_by(index, shard)
        shard, index = new, plan.index
        wanted = sum(live.values()) + index_format.nbytes
        assert len(shard) <= max(wanted + kept, wanted / 0.75) + 2 * 400 + 2 * len(NONCE)
    assert index is not None
    compacted = plan_compaction(index_format, index, len(shard))
    assert isinstance(compacted, WriteShard)
    assert compacted.nbytes == sum(live.values()) + index_format.nbytes
    assert contents(index_format, carry_out(compacted, shard)) == found_by(index, shard)


def test_chunks_that_share_bytes_and_one_on_the_index_are_kept() -> None:
    index_format = IndexFormat((3,))
    index = ShardIndex(np.array([[0, 4], [2, 30], [0, 4]], dtype=np.uint64))
    old = b"abcd" + index_format.encode(index)
    plan = planned(index_format, index, old, {0: b"new"})
    assert isinstance(plan, WriteShard)
    new = carry_out(plan, old)
    assert contents(index_format, new) == {0: b"new", 1: old[2:32], 2: b"abcd"}
    assert found_by(index, new) == found_by(index, old)


def test_an_empty_chunk_at_the_offset_of_another_one() -> None:
    index_format = IndexFormat((4,))
    index = ShardIndex(np.array([[EMPTY] * 2, [EMPTY] * 2, [6, 0], [EMPTY] * 2], dtype=np.uint64))
    old = bytes(12) + index_format.encode(index)
    new = {0: b"behind", 1: b"before", 2: b""}
    plan = planned(index_format, index, old, new, 0.0, 0)
    assert isinstance(plan, WriteShard)
    shard = carry_out(plan, old)
    assert [offset for offset, _ in plan.index.flat.tolist()] == [6, 0, 6, EMPTY]
    assert contents(index_format, shard) == new
    assert len(shard) == 12 + index_format.nbytes


def test_bytes_of_a_chunk_that_lies_in_another_one_are_not_dead() -> None:
    index_format = IndexFormat((4,))
    index = ShardIndex(np.array([[0, 20], [5, 5], [30, 4], [EMPTY, EMPTY]], dtype=np.uint64))
    old = bytes(range(34)) + index_format.encode(index)
    plan = planned(index_format, index, old, {3: b"new"}, 0.0, 0)
    assert isinstance(plan, WriteShard)
    assert plan.index.flat[3].tolist() == [20, 3]
    assert found_by(index, carry_out(plan, old)) == found_by(index, old)


def test_a_chunk_on_an_index_at_the_start_moves() -> None:
    """Nothing else is possible: the new index is there."""
    index_format = IndexFormat((2,), location="start")
    index = ShardIndex(np.array([[36, 4], [2, 30]], dtype=np.uint64))
    old = index_format.encode(index) + b"abcd"
    plan = planned(index_format, index, old, {0: b"new"})
    assert isinstance(plan, WriteShard)
    assert contents(index_format, carry_out(plan, old)) == {0: b"new", 1: old[2:32]}


def test_an_entry_past_the_end_is_not_made_to_look_right_by_what_comes_behind() -> None:
    index_format = IndexFormat((3,))
    index = ShardIndex(np.array([[0, 2], [EMPTY, EMPTY], [50, 20]], dtype=np.uint64))
    old = b"ab" + bytes(58 - index_format.nbytes) + index_format.encode(index)
    with pytest.raises(Corruption, match="entry 2 names bytes"):
        planned(index_format, index, old, {0: bytes(100)})
    plan = planned(index_format, index, old, {0: b"new", 2: b"healed"})
    assert isinstance(plan, WriteShard)
    assert contents(index_format, carry_out(plan, old)) == {0: b"new", 2: b"healed"}


def test_of_a_shard_without_chunks_nothing_is_kept() -> None:
    index_format = IndexFormat((2,))
    index = index_format.empty()
    old = NONCE + index_format.encode(index)
    plan = planned(index_format, index, old, {0: b"new"})
    assert isinstance(plan, WriteShard)
    assert plan.nbytes == 3 + index_format.nbytes
