"""The root of a versioned store, opened without a branch: no node is stored beside its snapshots."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.errors import InvalidInput
from shardstore.opening.snapshot_place import POINTER_KEY
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.trace import TraceStorage
from tests.documents import array_v3


def _transaction(store: shardstore.ShardedStore) -> None:
    with store.transaction():
        zarr.create_array(store, name="y", data=np.arange(4, dtype="u1"), chunks=(2,))


WRITES: dict[str, Callable[[shardstore.ShardedStore], Any]] = {
    "a group": lambda store: zarr.open_group(store, mode="a"),
    "an array at the root": lambda store: zarr.create_array(store, shape=(4,), dtype="u1"),
    "an array": lambda store: zarr.create_array(store, name="y", shape=(4,), dtype="u1"),
    "in a transaction": _transaction,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_new_node_is_refused(tmp_path: Path, write: Callable[[shardstore.ShardedStore], Any]) -> None:
    repository = shardstore.snapshots.Repository.create(tmp_path / "x.ice")
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="x", data=np.arange(8, dtype="u1"), chunks=(2,))
    session.commit("first")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidInput, match=r"is a versioned store.*Repository\.open.*x\.ice@main"):
        write(shardstore.open(tmp_path / "x.ice"))
    assert sorted(tmp_path.rglob("*")) == before
    write_again = repository.writable_session("main").store
    zarr.create_array(write_again, name="y", shape=(4,), dtype="u1")


def test_the_root_is_looked_at_once_and_not_if_a_document_shows_it() -> None:
    place = MemoryStorage(f"/root-{uuid.uuid4().hex}")
    document = json.dumps(array_v3((4,), (2,))).encode()
    for expected in (1, 0):
        trace = TraceStorage(place)
        mapping = shardstore.get_mapper(trace)
        "zarr.json" in mapping  # noqa: B015 - the root is looked up
        for name in "abc":
            mapping[f"{name}{expected}/zarr.json"] = document
        assert sum(event.key == POINTER_KEY for event in trace.events) == expected
        zarr.open_group(shardstore.open(place), mode="a")
