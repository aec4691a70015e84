"""Records of appends among the objects of a store, and what becomes of them when their arrays move: they are closed, and stay behind.

A rename takes the record along, so an append that is under way finds none at the old place. Where a move is a copy and an erasure, an
append could store, show and acknowledge its rows in between. So the record is closed after the copy and before the source is compared with
what was copied: an append that changed anything until then is noticed, and none begins after it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress

from shardstore.engine.appending.line import read_record
from shardstore.engine.metadata.hierarchy import Hierarchy
from shardstore.errors import Conflict, Corruption, ShardStoreError
from shardstore.format.append_record import AppendRecord, is_record_key
from shardstore.model.generation import Generation
from shardstore.storage.base import ConditionFailed, Storage
from shardstore.tasks import uninterrupted


async def is_record(hierarchy: Hierarchy, key: str) -> bool:
    """Return whether an object is the record of appends to the array in whose directory it lies."""
    if not is_record_key(key):
        return False
    path = key.rpartition("/")[0]
    node = (await hierarchy.load([path], even_damaged=True))[path]
    return node is not None and node.kind in ("sharded", "array")


@asynccontextmanager
async def closed_records(storage: Storage, keys: Collection[str]) -> AsyncIterator[None]:
    """Close records; they are opened again if the block fails.

    Raises:
        Conflict: something is being appended.
    """
    try:
        for key in keys:
            await _close(storage, key)
        yield
    except BaseException:
        await uninterrupted(_reopen(storage, keys))
        raise


async def _close(storage: Storage, key: str) -> None:
    try:
        record, generation = await read_record(storage, key)
    except Corruption:
        return  # no append begins by it
    if record is None or record.closed:
        return
    under_way = Conflict(
        f"an append to {storage.url} is under way, by {key!r}: wait until it has ended, and move the arrays again. If no program is "
        f"appending, remove {key!r}: it was left by one that died"
    )
    if record.open or record.shown < record.committed:
        raise under_way
    try:
        await _store(storage, key, record.close(True), generation)
    except ConditionFailed as exc:
        raise under_way from exc


async def _reopen(storage: Storage, keys: Collection[str]) -> None:
    for key in keys:
        with suppress(ShardStoreError):
            record, generation = await read_record(storage, key)
            if record is not None and record.closed:
                await _store(storage, key, record.close(False), generation)


async def _store(storage: Storage, key: str, record: AppendRecord, generation: Generation | None) -> None:
    data = record.encode()
    await storage.write(key, [data], len(data), (await storage.probe()).condition_on(generation))
