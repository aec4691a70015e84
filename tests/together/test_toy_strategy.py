"""A write strategy that is written outside of the package: a value for ``strategy``."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import fsspec
import numpy as np
import pytest
import zarr

import shardstore
from shardstore.errors import InvalidInput, Unsupported
from shardstore.format.shard_index import IndexFormat
from shardstore.plan.commits import Commit, CommitPlan, Strategy, plan_rewrite
from shardstore.storage.generic.storage import GenericStorage


@dataclass(frozen=True)
class Morton(Strategy):
    """Rewrites in Morton order, whatever the options say."""

    name: str = "morton"

    def unsuited(self, index_format: IndexFormat) -> str | None:
        return "an index at the end" if index_format.location == "start" else None

    def plan(self, commit: Commit) -> CommitPlan:
        return plan_rewrite(commit.index_format, commit.old, commit.old_nbytes, commit.updates, "morton")


@dataclass(frozen=True)
class CarefulMorton(Morton):
    needs: ClassVar[Mapping[str, str]] = {"compare_and_swap": "replace on condition"}


def test_a_strategy_from_outside(tmp_path: Path) -> None:
    store = shardstore.open(str(tmp_path), strategy=Morton(), chunks_per_shard=(4, 4))
    array = zarr.create_array(store, name="a", shape=(4, 4), chunks=(1, 1), dtype="u1", compressors=None)
    array[...] = np.arange(1, 17, dtype="u1").reshape(4, 4)
    (shard,) = (path for path in (tmp_path / "a").rglob("*") if path.is_file() and path.name != "zarr.json")
    assert list(shard.read_bytes()[:16]) == [1, 2, 5, 6, 3, 4, 7, 8, 9, 10, 13, 14, 11, 12, 15, 16]
    again = zarr.open_array(pickle.loads(pickle.dumps(store)), path="a")
    again[0, 0] = 99
    assert list(shard.read_bytes()[:4]) == [99, 2, 5, 6]
    np.testing.assert_array_equal(array[0], [99, 2, 3, 4])


def test_what_a_strategy_asks_for_is_asked(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="strategy='morton' needs an index at the end"):
        shardstore.open(str(tmp_path), strategy=Morton(), index_location="start")
    with pytest.raises(Unsupported, match="cannot replace on condition, which strategy='morton' needs"):
        shardstore.open(GenericStorage(fsspec.filesystem("memory"), "/toy"), strategy=CarefulMorton())
    shardstore.open(str(tmp_path), strategy=CarefulMorton())
