"""Records of appends as ``info`` and ``report`` show them: rows that are committed and shown, and reservations that are open."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from shardstore.engine.appending.line import read_record
from shardstore.errors import Corruption
from shardstore.format.append_record import record_place
from shardstore.storage.base import Storage
from shardstore.tasks import gather_all


@dataclass(frozen=True, slots=True)
class Reserved:
    """An open reservation: ``rows`` rows from ``start`` on, stored or not yet (``done``)."""

    id: str
    start: int
    rows: int
    done: bool


@dataclass(frozen=True, slots=True)
class Appends:
    """The record of appends along a dimension, ``dim``, at ``key``."""

    key: str
    dim: str
    committed: int | None
    """The rows that never move any more; ``None`` if the record cannot be read, like the next field."""
    shown: int | None
    """The rows that readers see."""
    reserved: tuple[Reserved, ...] = ()
    """The open reservations, in their order."""
    evicted: int = 0
    """The number of the last reservations that were taken back, of at most 200."""
    closed: bool = False
    """True while the arrays are moved elsewhere."""
    fault: str = ""
    """The reason why the record cannot be read."""


async def read_appends(storage: Storage, keys: Collection[str]) -> tuple[Appends, ...]:
    """Return what records say, of those that are still there. One request each. Raises ``StorageError`` if one failed."""
    found = await gather_all(*(_read(storage, key) for key in keys))
    return tuple(one for one in found if one is not None)


async def _read(storage: Storage, key: str) -> Appends | None:
    place = record_place(key)
    assert place is not None
    dim = place[1]
    try:
        record, _ = await read_record(storage, key)
    except Corruption as exc:
        return Appends(key, dim, None, None, fault=str(exc))
    if record is None:
        return None
    reserved = tuple(Reserved(one.id, record.start_of(one.id), one.rows, one.done) for one in record.open)
    return Appends(key, dim, record.committed, record.shown, reserved, len(record.evicted), record.closed)
