"""Which recorded units are still what was recorded: made from what is in the source now, and whole at the target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from shardstore.engine.keys import join
from shardstore.maintenance.packing.listing import SourceArray, list_objects
from shardstore.maintenance.packing.object_table import Rows
from shardstore.maintenance.packing.record import Finished, UnitName
from shardstore.maintenance.packing.translation import TargetArray, TargetNodes
from shardstore.maintenance.packing.units import ArrayJob, Unit
from shardstore.maintenance.packing.writing import OthersUnit, digest_of, others_digest
from shardstore.storage.base import Failed, Found, Read, Storage

_INDICES_AT_ONCE = 256


async def intact_units(
    storage: Storage, nodes: TargetNodes, units: Iterable[Unit | OthersUnit], finished: Mapping[UnitName, Finished]
) -> set[UnitName]:
    """The names of units that need not be done: one listing of the target, and one request for the index of each shard.

    Raises:
        StorageError: a request failed.
    """
    if not finished:
        return set()
    arrays = {path: _as_listed(array) for path, array in nodes.arrays.items()}
    listed = await list_objects(storage, arrays.values())
    there = {path: array.table.rows() for path, array in arrays.items()}
    others = {found.key: found.nbytes for found in listed.others}
    intact: set[UnitName] = set()
    shards: list[tuple[Unit, Finished]] = []
    for unit in units:
        name = (unit.job.path if isinstance(unit, Unit) else None), unit.number
        entry = finished.get(name)
        if entry is None or entry.fingerprint != unit.fingerprint:
            continue
        if isinstance(unit, OthersUnit):
            if others_digest((found.key, others.get(found.key, -1)) for found in unit.objects) == entry.check:
                intact.add(name)
        elif unit.job.target_layout.index_format is None:
            if _digest_of_objects(unit.job, unit.number, there[unit.job.path]) == entry.check:
                intact.add(name)
        elif not entry.check:
            intact.add(name)  # of no chunk at all: there is no shard
        elif _is_there(there[unit.job.path], unit.number, entry):
            shards.append((unit, entry))
            if len(shards) >= _INDICES_AT_ONCE:
                intact |= await _with_their_indices(storage, shards)
                shards = []
    return intact | await _with_their_indices(storage, shards)


def _as_listed(array: TargetArray) -> SourceArray:
    return SourceArray(array.path, array.document, array.document, array.layout)


def _is_there(rows: Rows, number: int, entry: Finished) -> bool:
    """Whether the listing shows the shard with the size that was recorded, and as the version, where both are known."""
    at = int(np.searchsorted(rows["number"], number))
    if at >= len(rows) or rows["number"][at] != number or rows["nbytes"][at] != entry.nbytes:
        return False
    listed = int(rows["version"][at])
    return 0 in (listed, entry.version) or listed == entry.version


def _digest_of_objects(job: ArrayJob, number: int, rows: Rows) -> str:
    """As ``UnitDone.check`` has it, of the objects of one unit that are there."""
    if not len(rows):
        return ""
    if job.unit_grid:
        at = np.unravel_index(number, job.unit_grid)
        coords = np.unravel_index(rows["number"], job.target_layout.object_grid)
        mine = np.ones(len(rows), dtype=np.bool_)
        for a, n, c in zip(at, job.unit_chunks, coords, strict=True):
            mine &= c // n == int(a)
        rows = rows[mine]
    return digest_of(np.stack([rows["number"], rows["nbytes"]]).astype("<i8").tobytes()) if len(rows) else ""


async def _with_their_indices(storage: Storage, shards: list[tuple[Unit, Finished]]) -> set[UnitName]:
    reads: list[Read] = []
    for unit, _ in shards:
        index_format = unit.job.target_layout.index_format
        assert index_format is not None  # only shards are looked into
        reads.append(Read(join(unit.job.path, unit.job.target_layout.key(unit.number)), (index_format.request(),)))
    intact: set[UnitName] = set()
    for (unit, entry), outcome in zip(shards, await storage.read(reads) if reads else [], strict=True):
        if isinstance(outcome, Failed):
            raise outcome.error
        if isinstance(outcome, Found) and outcome.nbytes == entry.nbytes and digest_of(outcome.buffers[0]) == entry.check:
            intact.add((unit.job.path, unit.number))
    return intact
