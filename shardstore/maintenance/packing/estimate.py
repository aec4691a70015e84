"""An estimate of a run's objects, bytes and requests, before it begins."""

from __future__ import annotations

from math import prod

import numpy as np

from shardstore.format.codecs import CRC32C_NBYTES
from shardstore.maintenance.packing.report import Requests
from shardstore.maintenance.packing.units import ArrayUnits

_KEYS_A_PAGE = 1000
_PUT_BYTES = 64 << 20  # objects above this are uploaded in parts
_PART_BYTES = 8 << 20
_REQUEST_BYTES = 16 << 20


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


def estimated_requests(arrays: list[ArrayUnits], others: int, listed: int, read_documents: int, documents: int) -> Requests:
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
