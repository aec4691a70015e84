"""Find the hierarchy that a URL points into: the root above a node, a chunk, or any other key.

The root is found by asking for ``zarr.json`` at the URL and at the directories above it: from the innermost that has one
upwards, as long as the next has one too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from shardstore.errors import ShardStoreError
from shardstore.format.store_keys import metadata_key
from shardstore.storage.base import Storage
from shardstore.storage.opening.address import Address
from shardstore.storage.opening.open import open_storage

_MOST_LEVELS = 32  # requests at most, all at once; chunk keys of six dimensions use eight


async def root_depth(address: Address, options: Mapping[str, Any]) -> int | None:
    """Return how many segments of the address name the root, or ``None`` where there is no node at or above it.

    Raises:
        StorageError: the server cannot be reached. It was tried for long enough.
    """
    last = len(address.segments)
    # The root directory of a machine is no store, unless it is named.
    first = max(int(address.is_absolute and last > 0), last - _MOST_LEVELS)
    storage = open_storage(address.at(first), dict(options) or None)
    answers = await _are_nodes(storage, address, first)
    for answer in answers:
        if isinstance(answer, ShardStoreError) and getattr(answer, "is_unreachable", False):
            raise answer
    is_node = dict(zip(range(first, last + 1), (answer is True for answer in answers), strict=True))
    innermost = next((depth for depth in reversed(is_node) if is_node[depth]), None)
    if innermost is None:
        return None
    depth = innermost
    while depth > first and is_node[depth - 1]:
        depth -= 1
    return depth


async def _are_nodes(storage: Storage, address: Address, first: int) -> list[bool | ShardStoreError]:
    """Return whether there is a ``zarr.json`` at each level from ``first`` on, or what was raised instead of an answer."""
    paths = ["/".join(address.segments[first:depth]) for depth in range(first, len(address.segments) + 1)]
    return list(await asyncio.gather(*(_is_node(storage, path) for path in paths)))


async def _is_node(storage: Storage, path: str) -> bool | ShardStoreError:
    try:
        return await storage.stat(metadata_key(path)) is not None
    except ShardStoreError as exc:
        # Access may be denied above the store, or a file be where a directory would have to be. What is wrong with the
        # place itself will show when it is used.
        return exc
