"""What zarr's tests get where they ask for zarr's own stores: ``ShardedStore``, with the same arguments.

Everything goes through the engine and, for whole selections and assignments, through the codec pipeline.
"""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import Any, Self

import fsspec
import hypothesis.extra.numpy as npst
import hypothesis.strategies as st
import zarr.storage
import zarr.testing.strategies
from zarr.abc.store import Store

import shardstore
from shardstore._sync import run_sync
from shardstore.engine.actions import SetValue
from shardstore.engine.counters import Counters
from shardstore.plan.policy import ArrayInfo

_ROOT = "/zarr-suite"
_NOT_EMPTY = npst.array_shapes(max_dims=4, min_side=1)  # as of the arrays that zarr draws with shards

_paths: dict[int, tuple[dict[str, Any], str]] = {}
"""Where the contents of a dictionary lie that was handed to ``MemoryStandIn``; the dictionary is held so that its id stays its own."""


_counters: dict[int, Counters] = {}
"""Of every engine behind a stand-in, once."""


def two_a_side(array: ArrayInfo) -> tuple[int, ...]:
    """A policy under which every array is sharded, the smallest too."""
    return (2,) * len(array.shape)


class MemoryStandIn(shardstore.ShardedStore):
    """In place of ``zarr.storage.MemoryStore``. Stores of the same dictionary hold the same; it stays as it is itself."""

    def __init__(self, store_dict: dict[str, Any] | None = None, *, read_only: bool = False) -> None:
        self._store_dict: dict[str, Any] = {} if store_dict is None else store_dict
        is_new = id(self._store_dict) not in _paths
        _, path = _paths.setdefault(id(self._store_dict), (self._store_dict, f"{_ROOT}/{uuid.uuid4().hex}"))
        super().__init__(f"memory:/{path}", read_only=read_only, chunks_per_shard=two_a_side)
        _counters[id(self.counters)] = self.counters
        if is_new:
            for key, value in self._store_dict.items():
                run_sync(self.engine.update((key, SetValue(value.to_bytes()))))

    @classmethod
    async def open(cls, *args: Any, **kwargs: Any) -> Self:
        store = cls(*args, **kwargs)
        await store._ensure_open()
        return store

    def with_read_only(self, read_only: bool = False) -> MemoryStandIn:
        return type(self)(self._store_dict, read_only=read_only)


class LocalStandIn(shardstore.ShardedStore):
    """In place of ``zarr.storage.LocalStore``."""

    def __init__(self, root: Path | str, *, read_only: bool = False) -> None:
        self.root = Path(root)
        super().__init__(str(root), read_only=read_only, fsync=False, chunks_per_shard=two_a_side)
        _counters[id(self.counters)] = self.counters

    @classmethod
    async def open(cls, root: Path | str, *, read_only: bool = False, mode: str | None = None) -> Self:
        store = cls(root, read_only=read_only)
        await store._ensure_open()
        return store

    def with_read_only(self, read_only: bool = False) -> LocalStandIn:
        return type(self)(self.root, read_only=read_only)


def replace_stores() -> None:
    """Put the stand-ins wherever a module of zarr has its own stores by name; modules that are imported later find them there."""
    stand_ins: dict[type[Store], type[Store]] = {
        zarr.storage.MemoryStore: MemoryStandIn,
        zarr.storage.LocalStore: LocalStandIn,
    }
    for name, module in list(sys.modules.items()):
        if name == "zarr" or name.startswith("zarr."):
            for attribute, value in list(vars(module).items()):
                if isinstance(value, type) and value in stand_ins:
                    setattr(module, attribute, stand_ins[value])
    drawn = {"stores": st.builds(MemoryStandIn), "shard_shapes": _no_shards, "sharded_arrays": _not_sharded}  # the last from zarr 3.4 on
    for name, strategy in drawn.items():
        if hasattr(zarr.testing.strategies, name):
            setattr(zarr.testing.strategies, name, strategy)


def _no_shards(**_: Any) -> st.SearchStrategy[None]:
    """In place of the strategy that draws ``shards=`` for arrays."""
    return st.none()


def _not_sharded(*, shapes: st.SearchStrategy[tuple[int, ...]] = _NOT_EMPTY, **_: Any) -> st.SearchStrategy[Any]:
    """In place of the strategy that draws arrays with ``shards=``."""
    arrays: st.SearchStrategy[Any] = zarr.testing.strategies.simple_arrays(shapes=shapes)
    return arrays


def forget_contents() -> list[Counters]:
    """Empty what the stores in memory held, and tell what each store of a test has done."""
    memory = fsspec.filesystem("memory")
    if memory.exists(_ROOT):
        memory.rm(_ROOT, recursive=True)
    _paths.clear()
    counters = list(_counters.values())
    _counters.clear()
    return counters
