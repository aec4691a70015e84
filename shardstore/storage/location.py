"""Whether two storages, whatever their roots, lead to the same objects."""

from __future__ import annotations

import os

from shardstore.storage.base import Storage
from shardstore.storage.local import LocalStorage
from shardstore.storage.wrapper import innermost


def location_of(storage: Storage, path: str = "") -> str:
    """Where ``path`` in a storage is, whatever root that has: two places overlap where one's is the other's, or a parent of it."""
    storage = innermost(storage)
    if isinstance(storage, LocalStorage):
        return os.path.realpath(os.path.join(storage.root, path))  # by whatever links the root is named
    url = storage.url if storage.url.endswith("/") else storage.url + "/"
    return f"{getattr(storage, 'endpoint', '')} {url}{path}".rstrip("/")


def overlap(one: str, other: str) -> bool:
    """Whether one of two locations is the other, or lies in it."""
    return one == other or one.startswith(other + "/") or other.startswith(one + "/")
