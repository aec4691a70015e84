"""Proofs of layouts that no race in the other tests needs: a read that was planned by a layout which another read has replaced."""

from __future__ import annotations

import pytest

from shardstore._sync import run_sync
from shardstore.engine.actions import SetValue
from shardstore.engine.engine import Engine
from shardstore.engine.index_cache import IndexCache, LayoutProof, StaleLayout
from shardstore.engine.options import EngineOptions
from shardstore.storage.base import ABSENT
from tests.engine.hooked import document, fresh_memory


def test_a_read_by_a_layout_that_was_replaced_has_to_find_out() -> None:
    place = fresh_memory()
    reader = Engine(place)
    proof = LayoutProof(reader.storage, reader.hierarchy, IndexCache(0))
    nodes = []
    for chunks_per_shard in [(2, 4), (4, 2)]:
        writer = Engine(place, EngineOptions(chunks_per_shard=chunks_per_shard))
        run_sync(writer.erase_prefix("a/"))
        run_sync(writer.update(("a/zarr.json", SetValue(document((8, 8), (1, 1))))))
        nodes.append(run_sync(reader.hierarchy.node("a", fresh=True)))
    before, now = nodes
    assert before is not None
    assert now is not None
    assert proof.guard(now) is not None
    assert proof.guard(before) is None  # the guard would hold, and the index would be decoded by the old layout
    assert proof.came_with_read(now, proof.guard(now), ABSENT)
    assert not proof.came_with_read(before, proof.guard(before), ABSENT)
    run_sync(proof.confirm([now]))
    with pytest.raises(StaleLayout):
        run_sync(proof.confirm([before]))
