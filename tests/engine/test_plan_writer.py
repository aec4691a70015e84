"""Bytes that came with an index are not read again, and never serve for another version."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.engine.writing.plan_writer import PlanWriter
from shardstore.model.generation import UNCONDITIONAL, Generation
from shardstore.model.ranges import ByteRange
from shardstore.storage.base import ConditionFailed
from shardstore.testing.storage_suite import on_io_loop as run_sync
from tests.engine.hooked import HookedStorage, fresh_memory


def test_what_is_known_is_not_read() -> None:
    storage = HookedStorage(fresh_memory())
    plans = PlanWriter(storage, 100, 100)

    async def run() -> None:
        old = await storage.write("a", [b"abcdefgh"], 8, UNCONDITIONAL)
        plans.know("a", old, 2, memoryview(b"cdef"))
        for ranges, rounds in (([ByteRange(2, 4), ByteRange(3, 6)], 0), ([ByteRange(1, 4)], 1), ([ByteRange(4, 7)], 1)):
            before = storage.rounds
            found = await plans.read_pinned("a", ranges, old)
            assert [bytes(data) for data in found] == [b"abcdefgh"[wanted.start : wanted.end] for wanted in ranges]
            assert storage.rounds == before + rounds
        new = await storage.write("a", [b"ABCDEFGH"], 8, UNCONDITIONAL)
        assert await plans.read_pinned("a", [ByteRange(2, 4)], new) == [b"CD"]
        with pytest.raises(ConditionFailed):
            await plans.read_pinned("a", [ByteRange(2, 4)], Generation("another"))
        plans.forget("a")
        with pytest.raises(ConditionFailed):
            await plans.read_pinned("a", [ByteRange(2, 4)], old)

    run_sync(run())


@pytest.mark.parametrize("strategy", ["rewrite", "keep"])
@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("is_remembered", [False, True])
def test_after_a_lost_race_the_bytes_are_those_of_the_new_version(strategy: Any, location: Any, is_remembered: bool) -> None:
    inner = fresh_memory()
    mine = HookedStorage(inner)
    mine.capabilities_override = replace(inner.capabilities, compose=False)
    given: dict[str, Any] = {"chunks_per_shard": (4,), "gap_bytes": 2**19, "strategy": strategy, "index_location": location}
    array = zarr.create_array(shardstore.open(mine, **given), shape=(16,), chunks=(4,), dtype="i4", compressors=None, fill_value=0)
    array[:] = np.arange(1, 17)
    other = zarr.open_array(shardstore.open(inner, **given), mode="r+")
    if not is_remembered:
        array = zarr.open_array(shardstore.open(mine, **given), mode="r+")
    raced = 0

    async def before(operation: str, key: str) -> None:
        nonlocal raced
        if operation in ("write", "compose") and raced < 3:
            raced += 1
            await asyncio.to_thread(other.__setitem__, slice(1, 7), raced * 100)

    mine.before = before
    array[0] = -1
    assert raced == 3
    np.testing.assert_array_equal(other[:], [-1, *[300] * 6, *range(8, 17)])
    store: Any = array.store
    assert not store.engine._committer._plans._known
