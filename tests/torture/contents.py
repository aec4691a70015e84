"""What lies in a storage, read past the engine, and whether each object is what it was or what it was to become."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from shardstore.model.generation import UNCONDITIONAL
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import Found, Read, Storage
from shardstore.testing.storage_suite import on_io_loop
from tests.shards import Sharding, shard_chunks, sharding

Contents = dict[str, bytes]
"""Stored objects by key."""

Layouts = dict[str, Sharding]
"""Sharded arrays by path."""


async def _read_all(storage: Storage) -> Contents:
    keys = [info.key async for info in storage.list("")]
    outcomes = await storage.read([Read(key, (EVERYTHING,)) for key in keys])
    assert all(isinstance(outcome, Found) for outcome in outcomes), outcomes
    return {key: bytes(found.buffers[0]) for key, found in zip(keys, outcomes, strict=True) if isinstance(found, Found)}


def contents_of(storage: Storage) -> Contents:
    """Every object of a storage that nobody writes to."""
    return on_io_loop(_read_all(storage))


async def restore(storage: Storage, contents: Contents) -> None:
    """Put objects into an empty storage."""
    await asyncio.gather(*(storage.write(key, [data], len(data), UNCONDITIONAL) for key, data in contents.items()))


# -- what they mean ----------------------------------------------------------------------------------------------------


def layouts_of(*moments: Contents) -> Layouts:
    """The sharded arrays of several moments; none may be sharded in two ways."""
    found: Layouts = {}
    for contents in moments:
        for key, data in contents.items():
            if key != "zarr.json" and not key.endswith("/zarr.json"):
                continue
            metadata: dict[str, Any] = json.loads(data)
            path = key.removesuffix("zarr.json").rstrip("/")
            layout = sharding(path, metadata) if metadata["node_type"] == "array" else None
            if layout is not None:
                known = found.setdefault(path, layout)
                assert known.chunks_per_shard == layout.chunks_per_shard
    return found


def _shard_of(key: str, layouts: Layouts) -> tuple[Sharding, tuple[int, ...]] | None:
    for layout in layouts.values():
        if (coords := layout.coords(key)) is not None and key.startswith(f"{layout.path}/"):
            return layout, coords
    return None


def decoded(contents: Contents, layouts: Layouts) -> dict[str, Mapping[str, bytes]]:
    """What each object shows, by presented key. A shard without chunks is as good as none. Fails where a shard is damaged."""
    shown: dict[str, Mapping[str, bytes]] = {}
    for key, data in contents.items():
        found = _shard_of(key, layouts)
        values = {key: data} if found is None else dict(shard_chunks(*found, data))
        if values:
            shown[key] = values
    return shown


def presented_by(contents: Contents, layouts: Layouts) -> dict[str, bytes]:
    """All that a view shows; documents as they are stored."""
    return {key: data for values in decoded(contents, layouts).values() for key, data in values.items()}


def check_old_or_new(now: Contents, old: Contents, new: Contents, *, chunk_by_chunk: bool = False, or_nothing: bool = False) -> None:
    """Each shard and each other object is what it was or what it was to become, whole; ``chunk_by_chunk``: each chunk is.

    ``or_nothing``: or it is gone, because the operation first erases what it then makes anew.
    """
    layouts = layouts_of(old, new)
    read: Any = presented_by if chunk_by_chunk else decoded
    is_now, was, is_to_be = read(now, layouts), read(old, layouts), read(new, layouts)
    for key in is_now.keys() | was.keys() | is_to_be.keys():
        value = is_now.get(key)
        if value is None and or_nothing:
            continue
        assert value in (was.get(key), is_to_be.get(key)), f"{key!r} is {value!r}, was {was.get(key)!r}, was to be {is_to_be.get(key)!r}"
