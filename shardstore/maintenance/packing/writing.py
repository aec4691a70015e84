"""Carry out one unit: from the source's objects to one shard, or to a group of objects that are one chunk each."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cache, partial

import google_crc32c
import numpy as np
import numpy.typing as npt

from shardstore._sync import run_sync
from shardstore.engine.options import EngineOptions
from shardstore.errors import Corruption
from shardstore.format.codecs import CRC32C_NBYTES, crc32c
from shardstore.format.shard_index import IndexFormat, ShardIndex
from shardstore.format.store_keys import join
from shardstore.maintenance.execution import check_running
from shardstore.maintenance.packing.listing import Rows, SizedObject, version_digest
from shardstore.maintenance.packing.streams import Chunks, ChunkStream, ChunkWindow, Fetching, SourceObject, checked, stream_here
from shardstore.maintenance.packing.units import NOTHING, AnyUnit, ArrayJob, CopyUnit, Job, Made, Unit, digest_of_contents
from shardstore.model.chunk_orders import slot_order
from shardstore.model.chunks import ShardGrid
from shardstore.model.containers import batched
from shardstore.model.generation import UNCONDITIONAL, Generation
from shardstore.model.ranges import ByteRange, BytesLike
from shardstore.storage.abilities import copy_between
from shardstore.storage.base import Found, Read, ReadOutcome
from shardstore.storage.known_references import KnowsReferences
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.wrappers import CheckedStorage
from shardstore.tasks import MemoryBudget

_WHOLE_BYTES = 8 << 20  # shards up to this are written from memory in one step
_UPLOAD_BYTES = 128 << 20  # what the upload of a long object holds at most: 64 MiB by one request, of which the client makes a copy
_COPIES_HELD = 3  # of a short one: its pieces, those together, and the client's
_OBJECTS_AT_ONCE = 64
_OF_WRITERS = 0.6  # the share of the memory that is granted to what is being written


@dataclass(frozen=True, slots=True)
class UnitDone:
    """The result of a unit."""

    fingerprint: str
    made: Made
    """The objects that were written, and their versions."""
    chunks: int
    chunk_nbytes: int
    """Bytes of the chunks as they were read."""
    contents: str = ""
    """``digest_of_contents`` of the written objects, if the target does not give all versions."""
    is_copied: bool = False
    """True if the server, or the kernel, has copied a shard unchanged."""


def do_unit(unit: AnyUnit) -> UnitDone:
    """Carry out a unit, in any thread or process; it is done when this returns, and no part of a shard is visible before.

    Raises:
        SourceChanged: the source has changed since it was listed.
        Corruption: an index of the source is damaged.
        StorageError: a request failed.
    """
    done = _done(unit)
    if not done.made.tells_versions:
        done = replace(done, contents=run_sync(digest_of_contents(unit.job.target.storage, done.made)))
    return done


def can_be_read(unit: AnyUnit) -> bool:
    """Read the beginning of what a unit is made from: the indices, and the first chunks. Return ``False`` if there is nothing to read.

    Raises:
        Exception: as ``do_unit``.
    """
    return run_sync(_read_beginning(unit))


async def _read_beginning(unit: AnyUnit) -> bool:
    if isinstance(unit, CopyUnit):
        stream: AsyncGenerator[object] = _pieces_of(unit.job, unit.objects[0])
    else:
        stream = _pieces(unit.job, (await _located(unit))[0], _memory(unit.job.max_memory))
    async with aclosing(stream):
        async for _ in stream:
            return True
    return isinstance(unit, CopyUnit)


def _done(unit: AnyUnit) -> UnitDone:
    if isinstance(unit, Unit) and unit.job.target_layout.index_format is not None:
        source, target = (place.storage.ability(LocalStorage) for place in (unit.job.source, unit.job.target))
        if source is not None and target is not None:
            return _pack_here(unit, unit.job.target_layout.index_format, source, target)
    try:
        return run_sync(_copy_objects(unit) if isinstance(unit, CopyUnit) else _do(unit))
    except BaseExceptionGroup as group:
        first = group.exceptions[0]
        raise first from first.__cause__  # the rest are consequences


# -- memory ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Memory:
    """The memory that all units of this process that share a limit hold: for writing, and for reading."""

    writers: MemoryBudget
    windows: MemoryBudget
    window_bytes: int


@cache
def _memory(max_memory: int) -> _Memory:
    writers = int(max_memory * _OF_WRITERS)
    return _Memory(MemoryBudget(writers), MemoryBudget(max_memory - writers), max(1 << 16, min(4 << 20, (max_memory - writers) // 8)))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_memory.cache_clear)


# -- shards ------------------------------------------------------------------------------------------------------------


async def _do(unit: Unit) -> UnitDone:
    chunks, slots = await _located(unit)
    if unit.job.target_layout.index_format is None:
        return await _write_objects(unit, slots, chunks)
    return await _write_shard(unit, unit.job.target_layout.index_format, slots, chunks)


async def _located(unit: Unit) -> tuple[Chunks, npt.NDArray[np.int64]]:
    """Read the indices of the source's shards, and return as ``_chunks_of`` does."""
    index_format = unit.job.source_layout.index_format
    objects = _objects_of(unit)
    reads = [] if index_format is None else [Read(found.key, (index_format.request(),)) for found in objects]
    return _chunks_of(unit, objects, await unit.job.source.storage.read(reads) if reads else [])


@dataclass(frozen=True, slots=True, eq=False)
class _Shard:
    """A shard that is to be written."""

    key: str
    before: tuple[bytes, ...]
    """The bytes before the chunks, and ``after`` those after them: one of both is the index."""
    after: tuple[bytes, ...]
    nbytes: int
    moved: Chunks
    """The bytes between: the chunks, or their common bytes if some share them."""

    @classmethod
    def of(cls, unit: Unit, index_format: IndexFormat, slots: npt.NDArray[np.int64], chunks: Chunks) -> _Shard:
        sizes = chunks.nbytes + CRC32C_NBYTES * unit.job.adds_checksums
        moved, begins = chunks, np.cumsum(sizes) - sizes
        if unit.job.source_layout.index_format is not None and not unit.job.adds_checksums:
            moved, begins = chunks.without_shared()
        is_first = index_format.location == "start"
        index = index_format.encode(index_format.index_of_new(slots, begins, sizes))
        key = join(unit.path, unit.name)
        nbytes = int(moved.nbytes.sum()) + CRC32C_NBYTES * len(moved) * unit.job.adds_checksums + len(index)
        return cls(key, (index,) if is_first else (), () if is_first else (index,), nbytes, moved)

    def done(self, unit: Unit, chunks: Chunks, stored: Generation) -> UnitDone:
        made = _made(unit, [unit.name], [self.nbytes], [stored])
        return UnitDone(unit.fingerprint, made, len(chunks), int(chunks.nbytes.sum()))


def _made(unit: Unit, names: Sequence[str], sizes: Sequence[int], stored: Sequence[Generation | None]) -> Made:
    # The 2022 draft renames the chunk of a 0-d array when it gets the document: it is recognised by its bytes.
    versions = [version_digest(generation) if unit.job.unit_chunks else 0 for generation in stored]
    return Made.of(f"{unit.path}/" if unit.path else "", names, sizes, versions)


def _pack_here(unit: Unit, index_format: IndexFormat, source: LocalStorage, target: LocalStorage) -> UnitDone:
    """Carry out a unit in this thread, if source and target are local: passing each of many small files to another thread takes longer
    than reading it.
    """
    job = unit.job
    objects = _objects_of(unit)
    of_index = job.source_layout.index_format
    reads = [] if of_index is None else [Read(found.key, (of_index.request(),)) for found in objects]
    chunks, slots = _chunks_of(unit, objects, source.read_blocking(reads))
    if not len(chunks):
        return UnitDone(unit.fingerprint, NOTHING, 0, 0)
    shard = _Shard.of(unit, index_format, slots, chunks)
    if of_index is None and not job.adds_checksums and (stored := _concatenated(unit, shard, chunks, source, target)) is not None:
        return shard.done(unit, chunks, stored)

    def groups() -> Iterator[Sequence[BytesLike]]:
        yield shard.before
        checksums = _Checksums(job, shard.moved)
        for window, buffers in stream_here(source, _fetching(job, shard.moved), _memory(job.max_memory).window_bytes, job.run):
            yield checksums.added(window, buffers)
        yield shard.after

    return shard.done(unit, chunks, target.write_blocking(shard.key, groups(), shard.nbytes, UNCONDITIONAL))


def _concatenated(unit: Unit, shard: _Shard, chunks: Chunks, source: LocalStorage, target: LocalStorage) -> Generation | None:
    """Write the shard as files one after the other, without looking at their bytes; return ``None`` if one differs from the listing;
    reading shows which.
    """
    files = [chunks.objects[number][:3] for number in chunks.of_object.tolist()]  # key, size and version
    look = partial(check_running, unit.job.run)
    return target.concatenate_blocking(shard.key, source, files, look, b"".join(shard.before), b"".join(shard.after), UNCONDITIONAL)


async def _write_shard(unit: Unit, index_format: IndexFormat, slots: npt.NDArray[np.int64], chunks: Chunks) -> UnitDone:
    if not len(chunks):
        return UnitDone(unit.fingerprint, NOTHING, 0, 0)  # no shard is written
    storage, memory = unit.job.target.storage, _memory(unit.job.max_memory)
    shard = _Shard.of(unit, index_format, slots, chunks)
    if (copied := await _copied(unit, shard, chunks)) is not None:
        return replace(shard.done(unit, chunks, copied), is_copied=True)
    is_short = shard.nbytes <= _WHOLE_BYTES
    async with memory.writers.hold(min(_COPIES_HELD * shard.nbytes, _UPLOAD_BYTES)):
        pieces = _pieces(unit.job, shard.moved, memory)
        if is_short:
            body = [piece async for some in pieces for piece in some]
            stored = await storage.write(shard.key, [*shard.before, *body, *shard.after], shard.nbytes, UNCONDITIONAL)
        else:
            stored = await storage.write(shard.key, _joined(shard.before, pieces, shard.after), shard.nbytes, UNCONDITIONAL)
    return shard.done(unit, chunks, stored)


async def _copied(unit: Unit, shard: _Shard, chunks: Chunks) -> Generation | None:
    """Copy the shard from the source, if it is there already as a file, byte for byte; return ``None``, with nothing written, if not.

    The file is this shard if it has the same chunks at the same places, and ends with the same index: only that is read.
    """
    source = unit.job.source.storage.ability(KnowsReferences)
    if source is None or not shard.after or unit.job.adds_checksums:
        return None
    file = await source.file_with([chunks.objects[number].key for number in chunks.of_object.tolist()])
    if file is None or (file.offset != np.cumsum(chunks.nbytes) - chunks.nbytes).any():
        return None
    end = b"".join(shard.after)
    (outcome,) = await source.stored_in.read([Read(file.key, (ByteRange(shard.nbytes - len(end), shard.nbytes + 1),))])
    if not isinstance(outcome, Found) or bytes(outcome.buffers[0]) != end:
        return None
    check_running(unit.job.run)
    target = unit.job.target.storage
    return await copy_between(source.stored_in, file.key, target.inner if isinstance(target, CheckedStorage) else target, shard.key)


async def _joined(
    before: Sequence[BytesLike], pieces: AsyncIterator[Sequence[BytesLike]], after: Sequence[BytesLike]
) -> AsyncIterator[BytesLike]:
    for piece in before:
        yield piece
    async for some in pieces:
        yield some[0] if len(some) == 1 else b"".join(some)
    for piece in after:
        yield piece


def _fetching(job: Job, chunks: Chunks) -> Fetching:
    return Fetching(chunks, EngineOptions().read_limits(job.source.storage.kind), job.source.storage.url)


async def _pieces(job: ArrayJob, chunks: Chunks, memory: _Memory) -> AsyncGenerator[Sequence[BytesLike]]:
    """Yield the bytes of the chunks, and of their checksums if those are added, a window at a time."""
    checksums = _Checksums(job, chunks)
    async for window, buffers in ChunkStream(job.source.storage, _fetching(job, chunks), memory.windows, memory.window_bytes, job.run):
        yield checksums.added(window, buffers)


class _Checksums:
    """A writer of the ``crc32c`` behind each chunk, if that was asked for; also for chunks that come in parts."""

    def __init__(self, job: ArrayJob, chunks: Chunks) -> None:
        self._adds = job.adds_checksums
        self._chunks = chunks
        self._crc = 0

    def added(self, window: ChunkWindow, buffers: list[memoryview]) -> Sequence[BytesLike]:
        if not self._adds:
            return buffers
        if not window.is_split:
            return [piece for data in buffers for piece in (data, crc32c(data))]
        self._crc = google_crc32c.extend(self._crc if window.begin else 0, bytes(buffers[0]))
        is_end = window.end == int(self._chunks.nbytes[window.first])
        return [buffers[0], self._crc.to_bytes(CRC32C_NBYTES, "little")] if is_end else buffers


# -- objects that are a chunk each -------------------------------------------------------------------------------------


async def _write_objects(unit: Unit, slots: npt.NDArray[np.int64], chunks: Chunks) -> UnitDone:
    job = unit.job
    storage = job.target.storage
    numbers = _chunk_numbers(job, unit.number, slots)
    names = job.target_layout.keys(numbers)
    stored: list[Generation | None] = [None] * len(names)
    sizes = chunks.nbytes + CRC32C_NBYTES * job.adds_checksums
    memory = _memory(job.max_memory)
    free = asyncio.Semaphore(_OBJECTS_AT_ONCE)

    async def write(i: int, body: list[BytesLike]) -> None:
        async with free:
            stored[i] = await storage.write(join(job.path, names[i]), body, int(sizes[i]), UNCONDITIONAL)

    long = np.flatnonzero(chunks.nbytes > memory.window_bytes).tolist()
    short = np.flatnonzero(chunks.nbytes <= memory.window_bytes)
    at = 0
    per_chunk = 2 if job.adds_checksums else 1
    async for pieces in _pieces(job, _some(chunks, short), memory):
        async with asyncio.TaskGroup() as writes:
            for some in batched(pieces, per_chunk):
                writes.create_task(write(int(short[at]), list(some)))
                at += 1
    for i in long:
        async with memory.writers.hold(min(_COPIES_HELD * int(sizes[i]), _UPLOAD_BYTES)):
            alone = _some(chunks, np.array([i]))
            body = _joined([], _pieces(job, alone, memory), [])
            stored[i] = await storage.write(join(job.path, names[i]), body, int(sizes[i]), UNCONDITIONAL)
    return UnitDone(unit.fingerprint, _made(unit, names, sizes.tolist(), stored), len(chunks), int(chunks.nbytes.sum()))


def _some(chunks: Chunks, which: npt.NDArray[np.intp]) -> Chunks:
    return Chunks(chunks.objects, chunks.of_object[which], chunks.start[which], chunks.nbytes[which])


def _chunk_numbers(job: ArrayJob, number: int, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the numbers of chunks in the grid of the target's objects, which are one chunk each; ``slots`` are ascending."""
    if not job.unit_grid:
        return np.zeros(len(slots), dtype=np.int64)
    at = np.unravel_index(number, job.unit_grid)
    inside = np.unravel_index(slots, job.unit_chunks)
    coords = [int(a) * n + i for a, n, i in zip(at, job.unit_chunks, inside, strict=True)]
    return np.asarray(np.ravel_multi_index(coords, job.target_layout.object_grid), dtype=np.int64)


# -- where the chunks are ----------------------------------------------------------------------------------------------


def _objects_of(unit: Unit) -> list[SourceObject]:
    keys = unit.job.source_layout.keys(unit.rows["number"])
    above = f"{unit.job.path}/" if unit.job.path else ""
    sizes, versions = unit.rows["nbytes"].tolist(), unit.rows["version"].tolist()
    return [SourceObject(above + key, nbytes, version) for key, nbytes, version in zip(keys, sizes, versions, strict=True)]


def _chunks_of(unit: Unit, objects: list[SourceObject], indices: Sequence[ReadOutcome]) -> tuple[Chunks, npt.NDArray[np.int64]]:
    """Return the chunks of the unit in the order in which they are stored, and their slots; ``indices`` were read where objects are
    shards.
    """
    job = unit.job
    if job.source_layout.index_format is None:
        slots = _slots_of_objects(job, unit.rows)
        chunks = Chunks(objects, np.arange(len(objects)), np.zeros(len(objects), dtype=np.int64), unit.rows["nbytes"].copy())
    else:
        slots, chunks = _chunks_of_shards(unit, job.source_layout.index_format, objects, indices)
    _check_sizes(job, chunks)
    present = np.zeros(ShardGrid(job.unit_chunks).nslots, dtype=np.bool_)
    present[slots] = True
    order = job.order if job.target_layout.index_format is not None else "C"
    wanted = slot_order(job.unit_chunks, order, present)
    by_slot = np.empty(len(present), dtype=np.int64)
    by_slot[slots] = np.arange(len(slots))
    return _some(chunks, by_slot[wanted]), wanted


def _check_sizes(job: ArrayJob, chunks: Chunks) -> None:
    """Raise ``Corruption`` if a chunk does not have the size that the codecs give every chunk: no reader could decode it."""
    if job.encoded_chunk_nbytes is None:
        return
    wrong = np.flatnonzero(chunks.nbytes != job.encoded_chunk_nbytes)
    if len(wrong):
        first = int(wrong[0])
        source = chunks.objects[int(chunks.of_object[first])]
        raise Corruption(
            f"a chunk of array {job.path!r} in {source.key!r} ({job.source.storage.url}), at byte {int(chunks.start[first])}, has "
            f"{int(chunks.nbytes[first])} bytes, and its codecs give {job.encoded_chunk_nbytes} to each: write it again, or erase it"
        )


def _slots_of_objects(job: ArrayJob, rows: Rows) -> npt.NDArray[np.int64]:
    if not job.unit_chunks:
        return np.zeros(len(rows), dtype=np.int64)
    coords = np.unravel_index(rows["number"], job.source_layout.object_grid)
    inside = [c % n for c, n in zip(coords, job.unit_chunks, strict=True)]
    return np.asarray(np.ravel_multi_index(inside, job.unit_chunks), dtype=np.int64)


def _chunks_of_shards(
    unit: Unit, index_format: IndexFormat, objects: list[SourceObject], outcomes: Sequence[ReadOutcome]
) -> tuple[npt.NDArray[np.int64], Chunks]:
    job = unit.job
    url = job.source.storage.url
    slots: list[npt.NDArray[np.int64]] = []
    columns: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
    for i, (source, outcome, number) in enumerate(zip(objects, outcomes, unit.rows["number"].tolist(), strict=True)):
        found = checked(source, outcome, url)
        objects[i] = SourceObject(source.key, source.nbytes, source.version, found.generation)
        try:
            index = index_format.decode(index_format.slice_from(found.buffers[0], found.nbytes))
            wrong = np.flatnonzero(index.invalid(found.nbytes))
            if len(wrong):
                index.location(int(wrong[0]), found.nbytes)  # raises, naming the entry
        except Corruption as exc:
            raise Corruption(
                f"shard {source.key!r} of array {job.path!r} in {url} cannot be moved: {exc}. None of it was moved: "
                "check it by verify, repair it by repair, or leave the array out by exclude"
            ) from exc
        mine, in_unit = _slots_of_shard(job, unit.number, number, index)
        slots.append(in_unit)
        flat = index.flat[mine].astype(np.int64)
        columns.append((np.full(len(mine), i, dtype=np.int64), flat[:, 0], flat[:, 1]))
    of_object, start, nbytes = (np.concatenate(column) for column in zip(*columns, strict=True))
    return np.concatenate(slots), Chunks(objects, of_object, start, nbytes)


def _slots_of_shard(job: ArrayJob, unit: int, shard: int, index: ShardIndex) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]:
    """Return the slots of a source shard with chunks of this unit that lie in the array's grid, and their slots in the unit."""
    present = np.flatnonzero(index.present())
    if not job.unit_chunks:
        return present, np.zeros(len(present), dtype=np.int64)
    per_shard, grid = job.source_layout.chunks_per_object, job.source_layout.chunk_grid
    inside = np.unravel_index(present, per_shard)
    at = [int(a) for a in np.unravel_index(shard, job.source_layout.object_grid)]
    here = [int(a) for a in np.unravel_index(unit, job.unit_grid)]
    taken = np.ones(len(present), dtype=np.bool_)
    coords: list[npt.NDArray[np.int64]] = []
    for a, m, i, h, n, g in zip(at, per_shard, inside, here, job.unit_chunks, grid, strict=True):
        c = a * m + i.astype(np.int64)
        taken &= (c >= h * n) & (c < min((h + 1) * n, g))
        coords.append(c - h * n)
    of_unit = np.ravel_multi_index([c[taken] for c in coords], job.unit_chunks)
    return present[taken], np.asarray(of_unit, dtype=np.int64)


# -- objects that are copied -------------------------------------------------------------------------------------------


async def _copy_objects(unit: CopyUnit) -> UnitDone:
    job = unit.job
    memory = _memory(job.max_memory)
    free = asyncio.Semaphore(_OBJECTS_AT_ONCE)

    async def copy(found: SizedObject) -> Generation:
        async with free, memory.writers.hold(min(_COPIES_HELD * found.nbytes, _UPLOAD_BYTES)):
            return await job.target.storage.write(found.key, _pieces_of(job, found), found.nbytes, UNCONDITIONAL)

    async with asyncio.TaskGroup() as group:
        copies = [group.create_task(copy(found)) for found in unit.objects]
    versions = [version_digest(task.result()) for task in copies]
    made = Made.of("", [found.key for found in unit.objects], [found.nbytes for found in unit.objects], versions)
    return UnitDone(unit.fingerprint, made, 0, unit.nbytes)


async def _pieces_of(job: Job, found: SizedObject) -> AsyncGenerator[BytesLike]:
    """Yield the bytes of a whole object, a window at a time."""
    start, memory = np.zeros(1, dtype=np.int64), _memory(job.max_memory)
    whole = Chunks([SourceObject(found.key, found.nbytes, found.version)], start, start, np.array([found.nbytes]))
    async for _, buffers in ChunkStream(job.source.storage, _fetching(job, whole), memory.windows, memory.window_bytes, job.run):
        for piece in buffers:
            yield piece
