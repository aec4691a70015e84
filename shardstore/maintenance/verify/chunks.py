"""Look into the bytes of chunks: checksums, headers of compressors, and, if a decoder is given, all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import TypeAlias

import numpy as np

from shardstore._sync import run_sync
from shardstore.errors import Corruption, Unsupported
from shardstore.format.chunk_coding import HEAD_NBYTES, ChunkCoding, checksum_fault, header_fault
from shardstore.maintenance.execution import in_windows
from shardstore.maintenance.nodes import ArrayPlan
from shardstore.maintenance.shards import slots_inside
from shardstore.maintenance.verify.findings import Fault
from shardstore.model.chunks import ChunkCoords, ShardGrid
from shardstore.model.coalescing import UPKEEP_LIMITS, coalesce
from shardstore.model.generation import Generation
from shardstore.model.ranges import EVERYTHING, ByteRange
from shardstore.storage.base import Found, Read, Storage, read_one, unless_failed

Decode: TypeAlias = Callable[[str, memoryview], None]
"""A function that decodes a chunk, whose key is given for messages. Raises ``Corruption`` if it cannot be decoded."""

Decoder: TypeAlias = Callable[[bytes], Decode]
"""A function that makes the decoder of an array from its presented document. It belongs to a module, since it travels with tasks.

Raises ``Unsupported`` if a codec or data type is not installed.
"""

WINDOW_BYTES = UPKEEP_LIMITS.request_bytes
"""The most bytes of chunks that a task holds in memory at once; one chunk that is longer is read alone."""


@dataclass(frozen=True, slots=True)
class ChunkBytes:
    """The place of one chunk's bytes, and its name in messages."""

    name: str
    bytes: ByteRange


@dataclass(frozen=True, slots=True)
class ChunkLook:
    """The way to look at the chunks of one array."""

    coding: ChunkCoding
    decode: Decode | None = None
    window_bytes: int = WINDOW_BYTES

    @property
    def reads_all(self) -> bool:
        """True if every byte of every chunk is read."""
        return self.coding.has_checksum or self.decode is not None

    def fault(self, name: str, data: memoryview) -> Fault | None:
        """Return the fault of a whole chunk, or ``None``."""
        if self.coding.has_checksum and (what := checksum_fault(data)) is not None:
            return Fault("chunk-checksum", f"{name}: {what}")
        if (what := header_fault(self.coding, data, len(data))) is not None:
            return Fault("chunk-header", f"{name}: {what}")
        if self.decode is None:
            return None
        try:
            self.decode(name, data)
        except Corruption as exc:
            return Fault("undecodable", f"{name}: {exc}")
        except Unsupported as exc:
            return Fault("not-checked", f"{name}: {exc}")
        return None


class ObjectChanged(Exception):
    """The object has changed since the chunk was found in it."""


def look_into(storage: Storage, key: str, generation: Generation, chunks: Sequence[ChunkBytes], look: ChunkLook) -> tuple[list[Fault], int]:
    """Return the faults of these chunks of one version of an object, and how many bytes were read.

    Raises:
        ObjectChanged: the object was replaced or erased in between.
        StorageError: a request failed.
    """
    faults: list[Fault] = []
    nbytes = 0
    in_order = sorted(chunks, key=lambda chunk: (chunk.bytes.start, chunk.bytes.end))
    reached = [0, *accumulate((chunk.bytes.end for chunk in in_order), max)]
    costs = [max(0, chunk.bytes.end - max(chunk.bytes.start, before)) for chunk, before in zip(in_order, reached, strict=False)]
    for some in in_windows(zip(in_order, costs, strict=True), itemgetter(1), look.window_bytes):  # shared bytes are read once a window
        window = [chunk for chunk, _ in some]
        plan = coalesce([chunk.bytes for chunk in window], UPKEEP_LIMITS)
        outcome = unless_failed(run_sync(read_one(storage, Read(key, plan.requests, generation))))
        if not isinstance(outcome, Found):
            raise ObjectChanged
        nbytes += sum(map(len, outcome.buffers))
        for chunk, data in zip(window, plan.cut(outcome.buffers), strict=True):
            if (fault := look.fault(chunk.name, data)) is not None:
                faults.append(fault)
    return faults, nbytes


def look_at_heads(storage: Storage, heads: Sequence[tuple[str, Generation, ChunkBytes]], look: ChunkLook) -> tuple[list[Fault | None], int]:
    """Return the fault in the header of one chunk each of several objects, and how many bytes were read; one round as a rule.

    Faults of an object that has changed in between are not reported.
    Raises ``StorageError`` if a request failed.
    """
    reads = [
        Read(key, (ByteRange(chunk.bytes.start, min(chunk.bytes.end, chunk.bytes.start + HEAD_NBYTES)),), generation)
        for key, generation, chunk in heads
    ]
    faults: list[Fault | None] = []
    nbytes = 0
    for (key, generation, chunk), outcome in zip(heads, run_sync(storage.read(reads)), strict=True):
        outcome = unless_failed(outcome)
        fault = None
        if isinstance(outcome, Found):
            (data,) = outcome.buffers
            nbytes += len(data)
            length = chunk.bytes.end - chunk.bytes.start
            if header_fault(look.coding, data, length) is not None:
                try:
                    found, more = look_into(storage, key, generation, [chunk], look)  # a header may be right in view of all the rest
                except ObjectChanged:
                    found, more = [], 0
                fault, nbytes = (found[0] if found else None), nbytes + more
        faults.append(fault)
    return faults, nbytes


# -- chunks of an array, whatever objects they are stored in -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk in one version of its object; ``bytes`` is ``None`` if the chunk is the whole object."""

    key: str
    generation: Generation
    bytes: ByteRange | None
    nbytes: int


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
