"""Packing that has not ended, by the record of finished work next to its target."""

from __future__ import annotations

from typing import Any

from shardstore.errors import ShardStoreError
from shardstore.maintenance.packing.pack import PackOptions, place_of_record
from shardstore.maintenance.packing.record import Record
from shardstore.model.redaction import redacted
from shardstore.storage.base import Storage


async def unfinished(target: Any, storage: Storage, storage_options: dict[str, Any] | None, *, is_there: bool) -> str | None:
    """Return the place of the record of a pack into ``target`` that has not ended; ``None`` if there is none. Makes one listing.

    ``is_there``: the target can be opened: then only a run that renews it can be unfinished. A record that was given another place, or that
    cannot be listed, is not found.
    """
    try:
        place, prefix = place_of_record(target, storage, PackOptions(), storage_options)
        record = Record(place, prefix, target=redacted(str(target)))
        return record.shown if await record.is_of_unfinished_work(is_there=is_there) else None
    except ShardStoreError:
        return None
