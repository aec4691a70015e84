"""The task of a census: find the chunks in some objects of one array."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from shardstore._sync import run_sync
from shardstore.errors import Conflict, Corruption
from shardstore.maintenance.array_plans import ArrayPlan
from shardstore.maintenance.census.file import DIGEST_NBYTES
from shardstore.maintenance.execution import SharedStorage, check_running
from shardstore.maintenance.shard_content import slots_inside
from shardstore.model.chunks import ChunkCoords
from shardstore.model.generation import Generation
from shardstore.model.ranges import ByteRange, BytesLike
from shardstore.storage.base import Found, Read, ReadOutcome, Storage, read_one, unless_failed

_TRIES = 4

NO_DIGEST = bytes(DIGEST_NBYTES)


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """The entry of a census for one object."""

    nbytes: int
    digest: bytes
    bitmap: bytes


@dataclass(frozen=True, slots=True)
class CensusTask:
    """A task: objects of one array, each with its size as it was listed."""

    run: str
    place: SharedStorage
    plan: ArrayPlan
    objects: tuple[tuple[ChunkCoords, int], ...]
    of_contents: bool
    window_bytes: int

    def keys(self) -> list[str]:
        return [self.plan.key(coords) for coords, _ in self.objects]


@dataclass(frozen=True, slots=True)
class Counted:
    """The result of a task. Objects that were erased since they were listed are left out."""

    entries: tuple[tuple[ChunkCoords, ObjectEntry], ...]
    damaged: tuple[str, ...]
    """Keys of shards whose index cannot be read."""


def digest_of(data: BytesLike) -> bytes:
    """Return the digest of an encoded index, or of an object."""
    return hashlib.blake2b(data, digest_size=DIGEST_NBYTES).digest()


def count_objects(task: CensusTask) -> Counted:
    """Count the chunks of some objects. Runs in a thread other than the IO loop's.

    Raises:
        Conflict: an object was replaced again and again.
        StorageError: a request failed.
    """
    check_running(task.run)
    return _count_shards(task) if task.plan.layout is not None else _count_chunks(task)


def _count_shards(task: CensusTask) -> Counted:
    layout = task.plan.layout
    assert layout is not None
    entries: list[tuple[ChunkCoords, ObjectEntry]] = []
    damaged: list[str] = []
    keys = task.keys()
    outcomes = run_sync(task.place.storage.read([Read(key, (layout.index_format.request(),)) for key in keys]))
    for (coords, _), key, outcome in zip(task.objects, keys, outcomes, strict=True):
        for _ in range(_TRIES):
            found = _found(outcome)
            if found is None:
                break
            try:
                encoded = layout.index_format.slice_from(found.buffers[0], found.nbytes)
                index = layout.index_format.decode(encoded)
            except Corruption:
                damaged.append(key)
                break
            if task.of_contents:
                digest = content_digest(task.place.storage, key, found.generation, found.nbytes, task.window_bytes)
            else:
                digest = digest_of(encoded)
            if digest is not None:
                exists = index.present() & ~index.invalid(found.nbytes) & slots_inside(layout, coords)
                entries.append((coords, ObjectEntry(found.nbytes, digest, np.packbits(exists).tobytes())))
                break
            outcome = run_sync(read_one(task.place.storage, Read(key, (layout.index_format.request(),))))
        else:
            raise Conflict(f"{key!r} was replaced each time that it was read: take the census again")
    return Counted(tuple(entries), tuple(damaged))


def _count_chunks(task: CensusTask) -> Counted:
    entries: list[tuple[ChunkCoords, ObjectEntry]] = []
    for coords, nbytes in task.objects:
        digest: bytes | None = NO_DIGEST
        if task.of_contents:
            key = task.plan.key(coords)
            for _ in range(_TRIES):
                found = _found(run_sync(read_one(task.place.storage, Read(key, ()))))
                if found is None:
                    break
                nbytes = found.nbytes
                digest = content_digest(task.place.storage, key, found.generation, nbytes, task.window_bytes)
                if digest is not None:
                    break
            else:
                raise Conflict(f"{key!r} was replaced each time that it was read: take the census again")
            if found is None:
                continue
        assert digest is not None
        entries.append((coords, ObjectEntry(nbytes, digest, b"\x80")))
    return Counted(tuple(entries), ())


def content_digest(storage: Storage, key: str, generation: Generation, nbytes: int, window_bytes: int) -> bytes | None:
    """Return the digest of all bytes of one version of an object, read ``window_bytes`` at a time; ``None`` if it was replaced
    in between.
    """
    digest = hashlib.blake2b(digest_size=DIGEST_NBYTES)
    for start in range(0, nbytes, window_bytes):
        piece = ByteRange(start, min(nbytes, start + window_bytes))
        outcome = run_sync(read_one(storage, Read(key, (piece,), generation)))
        if not isinstance(outcome, Found):
            return None
        digest.update(outcome.buffers[0])
    return digest.digest()


def _found(outcome: ReadOutcome) -> Found | None:
    outcome = unless_failed(outcome)
    return outcome if isinstance(outcome, Found) else None
