"""Many chunks that are located together are the same reads as one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardstore._sync import run_sync
from shardstore.adapters.transformer import ShardingTransformer
from shardstore.engine.metadata.hierarchy import ChunkTarget, Hierarchy
from shardstore.engine.reading.shard_chunks import group_by_shard, group_located
from shardstore.model.ranges import EVERYTHING, ByteRange, ByteRequest, ByteSuffix
from tests.engine.hooked import document, fresh_memory


@pytest.fixture(scope="module")
def opened() -> ShardingTransformer:
    opened = ShardingTransformer(fresh_memory(), chunks_per_shard=(3, 2))
    opened.set("g/a/zarr.json", document((100, 70), (5, 5)))
    for i in range(20):
        for j in range(0, 14, 3):
            opened.set(f"g/a/c/{i}/{j}", b"%d,%d!" % (i, j))
    return opened


_KEYS = st.lists(st.tuples(st.integers(0, 21), st.integers(0, 15)), min_size=8, max_size=60)
_REQUESTS = st.sampled_from([EVERYTHING, ByteRange(0, 2), ByteRange(1, 100), ByteSuffix(2)])


@given(_KEYS, st.data())
def test_the_same_reads(opened: ShardingTransformer, positions: list[tuple[int, int]], data: Any) -> None:
    keys = [f"g/a/c/{i}/{j}" for i, j in positions]
    requests: list[ByteRequest] = data.draw(st.lists(_REQUESTS, min_size=len(keys), max_size=len(keys)))
    engine = opened.engine
    hierarchy: Hierarchy = engine.hierarchy
    located = run_sync(hierarchy.locate_together(keys, for_write=False))
    assert located is not None
    one_by_one: list[ChunkTarget] = []
    for key in keys:
        (target,) = run_sync(hierarchy.locate([key], for_write=False))
        assert isinstance(target, ChunkTarget)
        one_by_one.append(target)
    assert located.targets(keys) == one_by_one
    together = {s.key: s for s in group_located(located, requests)}
    apart = {s.key: s for s in group_by_shard(zip(range(len(keys)), one_by_one, requests, strict=True))}
    assert together.keys() == apart.keys()
    for key, shard in together.items():
        other = apart[key]
        assert (shard.coords, shard.numbers, shard.slots, shard.requests, shard.parts) == (
            (other.coords, other.numbers, other.slots, other.requests, other.parts)
        )
    wanted = list(zip(keys, requests, strict=True))
    values = run_sync(engine.get_many(wanted))
    assert not any(isinstance(value, Exception) for value in values)
    assert values == [value for request in wanted for value in run_sync(engine.get_many([request]))]


def test_of_several_arrays_it_is_not_done(opened: ShardingTransformer) -> None:
    keys = [f"g/a/c/{i}/0" for i in range(10)]
    hierarchy = opened.engine.hierarchy
    for other in ("g/b/c/0/0", "g/a/c/0", "g/a/c/00/0", "g/a/zarr.json"):
        for wanted in ([*keys, other], [other, *keys]):
            assert run_sync(hierarchy.locate_together(wanted, for_write=False)) is None
    assert run_sync(hierarchy.locate_together(keys[:7], for_write=False)) is None
    located = run_sync(hierarchy.locate_together(keys, for_write=False))
    assert located is not None
    assert np.array_equal(np.concatenate(located.numbers()), np.arange(10))
