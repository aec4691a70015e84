"""What zarr's tests get where they ask for zarr's own stores: ``ShardedStore``, with the same arguments.

Everything goes through the engine and, for whole selections and assignments, through the codec pipeline.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import fsspec
import hypothesis.strategies as st
import zarr.storage
import zarr.testing.strategies
from zarr.abc.store import Store
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.core.sync import sync

import shardstore
from shardstore._sync import run_sync
from shardstore.adapters.zarr.arrays import replace_methods
from shardstore.adapters.zarr.chunk_pipeline import handles_keys_as
from shardstore.engine.actions import SetValue
from shardstore.plan.policy import ArrayInfo
from shardstore.storage.wrappers import Counters

_ROOT = "/zarr-suite"


class Contents(Mapping[str, Buffer]):
    """What the stores of one place in memory show, where zarr's tests look into the dictionary of a ``MemoryStore``."""

    def __init__(self, given: dict[str, Buffer]) -> None:
        self.given = given  # held, so that its id stays its own
        self.url = f"memory:/{_ROOT}/{uuid.uuid4().hex}"

    def _store(self) -> shardstore.ShardedStore:
        return shardstore.ShardedStore(self.url, read_only=True)

    def __getitem__(self, key: str) -> Buffer:
        value = sync(self._store().get(key, default_buffer_prototype()))
        if value is None:
            raise KeyError(key)
        return value

    async def _keys(self) -> list[str]:
        return [key async for key in self._store().list()]

    def __iter__(self) -> Iterator[str]:
        return iter(sync(self._keys()))

    def __len__(self) -> int:
        return len(list(iter(self)))


_contents: dict[int, Contents] = {}
"""By the id of the dictionary that was handed to ``MemoryStandIn``."""

_counters: dict[int, Counters] = {}
"""Of every engine behind a stand-in, once."""


def two_a_side(array: ArrayInfo) -> tuple[int, ...] | None:
    """A policy under which every array of Zarr v3 is sharded, the smallest too."""
    return None if array.document.get("zarr_format") == 2 else (2,) * len(array.shape)


class MemoryStandIn(shardstore.ShardedStore):
    """In place of ``zarr.storage.MemoryStore``. Stores of the same dictionary hold the same; it stays as it is itself."""

    def __init__(self, store_dict: dict[str, Buffer] | Contents | None = None, *, read_only: bool = False) -> None:
        to_fill: dict[str, Buffer] = {}
        if isinstance(store_dict, Contents):
            contents = store_dict
        else:
            given = {} if store_dict is None else store_dict
            if id(given) not in _contents:
                _contents[id(given)] = Contents(given)
                to_fill = given
            contents = _contents[id(given)]
        self._store_dict = contents
        super().__init__(contents.url, read_only=read_only, chunks_per_shard=two_a_side)
        _counters[id(self.counters)] = self.counters
        for key, value in to_fill.items():
            run_sync(self.engine.update((key, SetValue(value.to_bytes()))))

    @classmethod
    async def open(cls, *args: Any, **kwargs: Any) -> Self:
        store = cls(*args, **kwargs)
        await store._ensure_open()
        return store

    @property
    def uses_pipeline(self) -> bool:
        """The ``set`` below is no reason against it, that of a test is."""
        return self._pipeline and handles_keys_as(self, MemoryStandIn)

    async def set(self, key: str, value: Buffer, byte_range: tuple[int, int] | None = None) -> None:
        """With the argument that ``MemoryStore.set`` has in addition, and that nobody gives a value."""
        assert byte_range is None
        await super().set(key, value)

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


# What zarr calls the class of a store in ``info``; pickles go by the qualified name.
MemoryStandIn.__name__ = zarr.storage.MemoryStore.__name__
LocalStandIn.__name__ = zarr.storage.LocalStore.__name__


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
    zarr.testing.strategies.stores = st.builds(MemoryStandIn)
    replace_methods()  # before zarr's tests import any of what that replaces


def forget_contents() -> list[Counters]:
    """Empty what the stores in memory held, and tell what each store of a test has done."""
    memory = fsspec.filesystem("memory")
    if memory.exists(_ROOT):
        memory.rm(_ROOT, recursive=True)
    _contents.clear()
    counters = list(_counters.values())
    _counters.clear()
    return counters
