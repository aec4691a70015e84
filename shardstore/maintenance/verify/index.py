"""Check one index: entries that cannot be right, and entries that are odd but valid. Pure: needs the index and its object's size only."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from shardstore.format.metadata_v3 import ArrayLayout
from shardstore.format.shard_index import ShardIndex
from shardstore.maintenance.shard_content import dead_nbytes, entry_fault, slots_inside
from shardstore.maintenance.verify.findings import Fault
from shardstore.model.chunks import ChunkCoords
from shardstore.plan.pieces import covered_nbytes


@dataclass(frozen=True, slots=True, eq=False)
class IndexCheck:
    """The faults and oddities of an index, and ``(nslots,)`` the slots whose bytes can be looked at."""

    faults: tuple[Fault, ...]
    readable: npt.NDArray[np.bool_]


def check_index(layout: ArrayLayout, coords: ChunkCoords, object_nbytes: int, index: ShardIndex) -> IndexCheck:
    """Check the index of the shard at ``coords`` of the shard grid."""
    present, wrong = index.present(), replace(index, chunk_nbytes=None).invalid(object_nbytes)
    used = present & ~wrong
    flat = index.flat
    offsets = np.where(used, flat[:, 0], 0).astype(np.int64)  # what fits the object fits int64 as well
    lengths = np.where(used, flat[:, 1], 0).astype(np.int64)
    ends = offsets + lengths
    index_start = 0 if layout.index_format.location == "start" else object_nbytes - layout.index_format.nbytes
    index_end = index_start + layout.index_format.nbytes
    in_index = used & (lengths > 0) & (offsets < index_end) & (ends > index_start)
    odd_size = used & index.invalid(object_nbytes)

    faults: list[Fault] = []
    if wrong.any():
        faults.append(Fault("entry", entry_fault(index, wrong, object_nbytes)))
    if in_index.any():
        slot = int(np.flatnonzero(in_index)[0])
        what = f"index entry {slot} names bytes [{offsets[slot]}, {ends[slot]}), the index itself is [{index_start}, {index_end})"
        faults.append(Fault("entry-in-index", what + _and_more(in_index)))
    if odd_size.any():
        slot = int(np.flatnonzero(odd_size)[0])
        what = f"index entry {slot} names a chunk of {lengths[slot]} bytes, the codecs make {index.chunk_nbytes} of each"
        faults.append(Fault("chunk-size", what + _and_more(odd_size)))
    outside = used & ~slots_inside(layout, coords)
    if outside.any():
        faults.append(Fault("outside", f"{int(outside.sum())} of its {int(used.sum())} chunks lie outside of the array's shape"))
    if not wrong.any():
        shared = int(lengths.sum()) - covered_nbytes(offsets[used], lengths[used])
        if shared:
            faults.append(Fault("overlap", f"chunks share {shared} bytes with others"))
        dead = dead_nbytes(layout.index_format, index, object_nbytes)
        if dead > 0:
            behind = object_nbytes - max(int(ends.max(initial=0)), index_end)
            where = f", {behind} of them at its end" if behind else ""
            faults.append(Fault("dead", f"{dead} of its {object_nbytes} bytes are neither index nor part of a chunk{where}"))
    return IndexCheck(tuple(faults), used & ~in_index & ~odd_size)


def _and_more(slots: npt.NDArray[np.bool_]) -> str:
    count = int(slots.sum())
    return f", and {count - 1} more" if count > 1 else ""
