"""Copies from one storage to another, made by the server or the kernel: the bytes do not go through this process."""

from __future__ import annotations

from shardstore.model.generation import Generation
from shardstore.storage.base import Storage
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.requests.bucket import BucketStorage
from shardstore.storage.wrappers import innermost


async def copy_between(source: Storage, key: str, target: Storage, target_key: str) -> Generation | None:
    """Store one version of the object at ``key``, whole, under ``target_key`` in another storage, whatever is there.

    Returns ``None``, with nothing stored, if nobody but this process can do it, as between two servers, or if there is no such object.
    """
    origin = innermost(source)
    if isinstance(origin, LocalStorage) and isinstance(target, LocalStorage):
        return await target.copy(key, target_key, origin)
    if not (isinstance(origin, BucketStorage) and isinstance(target, BucketStorage) and type(origin) is type(target)):
        return None
    # One filesystem is one server with one set of credentials; fsspec gives the same one for the same options.
    return await target.copy(key, target_key, origin) if origin.client.fs is target.client.fs else None
