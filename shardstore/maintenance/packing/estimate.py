"""An estimate of a run's objects, bytes and requests before it begins, compared with the room in the target's file system.

Chunks are moved unchanged, so their need of room is known. It is nearly exact: the last blocks of files are estimated, directories and
the record are not counted, and the dead bytes of a sharded source count as chunks. A file system that compresses or shares blocks needs
less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from shardstore.errors import NoSpace
from shardstore.format.codecs import CRC32C_NBYTES
from shardstore.maintenance.packing.record import Finished
from shardstore.maintenance.packing.units import ArrayUnits, CopyUnit, UnitName
from shardstore.model.words import size
from shardstore.storage.base import Storage
from shardstore.storage.local.directory import LocalFiles
from shardstore.storage.room import Room, room_at

_KEYS_A_PAGE = 1000
_PUT_BYTES = 64 << 20  # objects above this are uploaded in parts
_PART_BYTES = 8 << 20
_REQUEST_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Requests:
    """An estimate of the requests of a run that begins from nothing; lists are of pages of 1,000."""

    lists: int
    gets: int
    puts: int

    def price(self, per_thousand: Mapping[str, float]) -> float:
        """Return the price at list prices for 1,000 requests, by ``"list"``, ``"get"`` and ``"put"``; a missing name costs nothing."""
        counts = {"list": self.lists, "get": self.gets, "put": self.puts}
        return sum(per_thousand.get(name, 0.0) * number / 1000 for name, number in counts.items())


def estimated_objects(units: ArrayUnits) -> int:
    """Return the number of target objects that hold chunks; where chunks become objects out of shards, as many as the shards can hold."""
    job = units.job
    if job.target_layout.index_format is not None:
        return len(units)
    rows = int(units.counts().sum())
    if job.source_layout.index_format is None:
        return rows
    return min(rows * prod(job.source_layout.chunks_per_object), prod(job.source_layout.chunk_grid))


def estimated_nbytes(units: ArrayUnits) -> int:
    """Return the bytes of the target's objects: those of the source's objects, without the source's indices, with the target's indices and
    checksums.
    """
    job = units.job
    source, target = job.source_layout.index_format, job.target_layout.index_format
    rows = int(units.counts().sum())
    nbytes = units.nbytes
    if source is not None:
        nbytes -= rows * source.nbytes
    if target is not None:
        nbytes += len(units) * target.nbytes
    chunks = rows if source is None else estimated_objects(units) if target is None else 0
    return nbytes + (CRC32C_NBYTES * chunks if job.adds_checksums else 0)


def estimated_requests(arrays: Sequence[ArrayUnits], others: int, listed: int, read_documents: int, documents: int) -> Requests:
    """Return the requests of a run from nothing. Each object of the source is read by one request; of shards also the index, and long ones
    in pieces.
    """
    gets, puts = others + read_documents, others + documents
    for units in arrays:
        job = units.job
        counts, sizes = units.counts(), units.sizes()
        if job.source_layout.index_format is None:
            gets += int(counts.sum())
        else:
            gets += int(2 * counts.sum() + (sizes // _REQUEST_BYTES).sum())
        if job.target_layout.index_format is None:
            puts += estimated_objects(units)
        else:
            puts += int(np.where(sizes <= _PUT_BYTES, 1, 2 + -(-sizes // _PART_BYTES)).sum())
    return Requests(lists=-(-max(1, listed) // _KEYS_A_PAGE), gets=gets, puts=puts)


@dataclass(frozen=True, slots=True)
class Need:
    """The bytes and files that are needed."""

    nbytes: int
    files: int

    def on(self, room: Room) -> int:
        """Return the bytes, with the unused part of each file's last block, half of it on average."""
        return self.nbytes + self.files * (room.block_nbytes - 1) // 2


def needed(
    arrays: Sequence[ArrayUnits],
    others: Sequence[CopyUnit],
    documents: Sequence[bytes],
    is_left: Callable[[UnitName], bool],
    finished: Mapping[UnitName, Finished],
) -> Need:
    """Return the need of the units for which ``is_left`` is true, beyond ``finished`` objects of an earlier run that will be replaced."""
    nbytes = sum(map(len, documents))
    files = len(documents)
    is_any_left = not finished
    for units in arrays:
        names = [(units.job.path, name) for name in units.names]
        left = np.array([is_left(name) for name in names], dtype=np.bool_)
        is_any_left |= bool(left.any())
        nbytes += _nbytes(units, left)
        replaced = [finished[name] for name, is_one in zip(names, left.tolist(), strict=True) if is_one and name in finished]
        nbytes -= sum(entry.made.nbytes for entry in replaced)
        if units.job.target_layout.index_format is not None:
            files += int(left.sum()) - len(replaced)
        elif not replaced and len(units):
            files += estimated_objects(units) * int(left.sum()) // len(units)
    for unit in others:
        if is_left((None, unit.name)):
            is_any_left = True
            replaced_nbytes = finished[None, unit.name].made.nbytes if (None, unit.name) in finished else 0
            nbytes += unit.nbytes - replaced_nbytes
            files += 0 if replaced_nbytes else len(unit.objects)
    # Where all units are done, documents at most are missing, and those of the earlier run are there.
    return Need(max(0, nbytes), files) if is_any_left else Need(0, 0)


def _nbytes(units: ArrayUnits, left: npt.NDArray[np.bool_]) -> int:
    """Return the bytes of the chunks of some units, and of the indices and checksums that the target adds."""
    job, counts, sizes = units.job, units.counts(), units.sizes()
    source, target = job.source_layout.index_format, job.target_layout.index_format
    rows, nbytes = int(counts[left].sum()), int(sizes[left].sum())
    chunks = rows
    if source is not None:
        # A shard of the source counts for each unit that takes chunks from it: by as much the sum is too large.
        share = units.distinct_nbytes / max(1, units.nbytes)
        chunks = round(estimated_objects(units) * left.mean()) if target is None and len(left) else 0
        nbytes = max(0, round((nbytes - rows * source.nbytes) * share))
    if target is not None:
        nbytes += int(left.sum()) * target.nbytes
    return nbytes + (CRC32C_NBYTES * chunks if job.adds_checksums else 0)


def room_of(storage: Storage) -> Room | None:
    """Return the room of a local directory; ``None`` for other storages, which do not show it."""
    local = storage.ability(LocalFiles)
    return None if local is None else room_at(local.root)


def check_room(room: Room, need: Need, old_nbytes: int = 0) -> None:
    """Compare need and room. ``old_nbytes`` are to be overwritten: they go only when the new hierarchy is complete, so they give no room.

    Raises:
        NoSpace: the need is larger than the room.
    """
    nbytes, free = need.on(room), room.nbytes
    old = f"What is there, {size(old_nbytes)}, stays until all else is written: erase it first, " if old_nbytes else "Make room, "
    regardless = (
        f"{old}or choose another target; where the file system compresses what is written, or the estimate is wrong, go on by "
        "check_space=False (--no-space-check). Nothing was written"
    )
    if nbytes > free:
        raise NoSpace(f"about {size(nbytes)} are to be written, and {size(free)} are free in {room.path}. {regardless}")
    if room.files is not None and need.files > room.files:
        raise NoSpace(f"about {need.files:,} files are to be made, and {room.path} can hold {room.files:,} more. {regardless}")
