"""Find the chunks of an array, and read their bytes, whatever objects they are stored in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardstore._sync import run_sync
from shardstore.errors import Corruption
from shardstore.maintenance.array_plans import ArrayPlan
from shardstore.maintenance.shard_content import slots_inside
from shardstore.model.chunks import ChunkCoords, ShardGrid
from shardstore.model.coalescing import UPKEEP_LIMITS, coalesce
from shardstore.model.generation import Generation
from shardstore.model.ranges import EVERYTHING, ByteRange
from shardstore.storage.base import Found, Read, Storage, unless_failed


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk in one version of its object; ``bytes`` is ``None`` if the chunk is the whole object."""

    key: str
    generation: Generation
    bytes: ByteRange | None
    nbytes: int


class ObjectChanged(Exception):
    """The object has changed since the chunk was found in it."""


def object_of(plan: ArrayPlan, chunk: ChunkCoords) -> ChunkCoords:
    """Return the object that holds a chunk, if it exists."""
    return ShardGrid(plan.chunks_per_object).shard_of(chunk)


def stored_chunks(storage: Storage, plan: ArrayPlan, objects: Sequence[ChunkCoords]) -> Mapping[ChunkCoords, StoredChunk]:
    """Return the chunks in these objects that exist, in the array's shape, by one round of requests.

    Raises:
        Corruption: the index of a shard cannot be read, or has an entry that cannot be right.
        StorageError: a request failed.
    """
    layout = plan.layout
    ranges = (layout.index_format.request(),) if layout is not None else ()
    keys = [plan.key(coords) for coords in objects]
    found: dict[ChunkCoords, StoredChunk] = {}
    for coords, key, outcome in zip(objects, keys, run_sync(storage.read([Read(key, ranges) for key in keys])), strict=True):
        outcome = unless_failed(outcome)
        if not isinstance(outcome, Found) or not plan.holds(coords):
            continue
        if layout is None:
            found[coords] = StoredChunk(key, outcome.generation, None, outcome.nbytes)
            continue
        try:
            index = layout.index_format.decode(layout.index_format.slice_from(outcome.buffers[0], outcome.nbytes))
            for slot in np.flatnonzero(index.present() & slots_inside(layout, coords)).tolist():
                location = index.location(slot, outcome.nbytes)
                assert location is not None
                place = ByteRange(location.offset, location.offset + location.nbytes)
                found[layout.grid.coords_of(coords, slot)] = StoredChunk(key, outcome.generation, place, location.nbytes)
        except Corruption as exc:
            raise Corruption(f"{key!r}: {exc}") from exc
    return found


def read_chunks(storage: Storage, chunks: Sequence[StoredChunk]) -> list[memoryview]:
    """Return the bytes of chunks, in one round of requests.

    Raises:
        ObjectChanged: an object was replaced or erased since its chunks were found.
        StorageError: a request failed.
    """
    by_key: dict[str, list[int]] = {}
    for i, chunk in enumerate(chunks):
        by_key.setdefault(chunk.key, []).append(i)
    reads: list[Read] = []
    plans = []
    for key, numbers in by_key.items():
        wanted = [place for i in numbers if (place := chunks[i].bytes) is not None]
        plan = coalesce(wanted, UPKEEP_LIMITS)
        plans.append(plan)
        reads.append(Read(key, plan.requests if wanted else (EVERYTHING,), chunks[numbers[0]].generation))
    data: list[memoryview] = [memoryview(b"")] * len(chunks)
    for numbers, plan, outcome in zip(by_key.values(), plans, run_sync(storage.read(reads)), strict=True):
        outcome = unless_failed(outcome)
        if not isinstance(outcome, Found):
            raise ObjectChanged
        found = plan.cut(outcome.buffers) if plan.requests else [outcome.buffers[0]] * len(numbers)
        for i, piece in zip(numbers, found, strict=True):
            data[i] = piece
    return data
