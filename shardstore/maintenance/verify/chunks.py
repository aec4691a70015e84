"""Look into the bytes of chunks: checksums, headers of compressors, and, if a decoder is given, all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import TypeAlias

from shardstore._sync import run_sync
from shardstore.errors import Corruption, Unsupported
from shardstore.format.chunk_coding import HEAD_NBYTES, ChunkCoding, checksum_fault, header_fault
from shardstore.maintenance.object_tasks import in_windows
from shardstore.maintenance.verify.chunk_reading import ObjectChanged
from shardstore.maintenance.verify.findings import Fault
from shardstore.model.coalescing import UPKEEP_LIMITS, coalesce
from shardstore.model.generation import Generation
from shardstore.model.ranges import ByteRange
from shardstore.storage.base import Found, Read, ReadOutcome, Storage, unless_failed

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
        buffers = _pinned(run_sync(storage.read([Read(key, plan.requests, generation)]))[0])
        nbytes += sum(map(len, buffers))
        for chunk, data in zip(window, plan.cut(buffers), strict=True):
            if (fault := look.fault(chunk.name, data)) is not None:
                faults.append(fault)
    return faults, nbytes


def _pinned(outcome: ReadOutcome) -> tuple[memoryview, ...]:
    outcome = unless_failed(outcome)
    if not isinstance(outcome, Found):
        raise ObjectChanged
    return outcome.buffers


def look_at_heads(storage: Storage, heads: Sequence[tuple[str, Generation, ChunkBytes]], look: ChunkLook) -> tuple[list[Fault | None], int]:
    """Return the fault in the header of one chunk each of several objects, and how many bytes were read; one round as a rule.

    Faults of an object that has changed in between are not reported.
    Raises ``StorageError`` if a request failed.
    """
    reads = [Read(key, (_head(chunk.bytes),), generation) for key, generation, chunk in heads]
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


def _head(chunk: ByteRange) -> ByteRange:
    return ByteRange(chunk.start, min(chunk.end, chunk.start + HEAD_NBYTES))
