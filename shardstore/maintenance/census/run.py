"""Take a census: the existing chunks, array by array. Takes one listing, and one request for the index of each shard."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from shardstore._sync import run_sync
from shardstore.engine.engine import Engine
from shardstore.errors import Conflict, Corruption, NotFound
from shardstore.maintenance.census.file import DIGEST_NBYTES, ArrayCensus, Census, Unread, bitmap_nbytes
from shardstore.maintenance.execution import Execution, SharedStorage, check_running, work_on_objects
from shardstore.maintenance.nodes import ArrayPlan
from shardstore.maintenance.shards import slots_inside
from shardstore.maintenance.walk import Located, Walk, gathered
from shardstore.model.chunks import ChunkCoords
from shardstore.model.coalescing import UPKEEP_LIMITS
from shardstore.model.generation import Generation
from shardstore.model.ranges import ByteRange, BytesLike
from shardstore.storage.base import Found, Read, ReadOutcome, Storage, in_its_place, read_one, unless_failed

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


# -- the run ----------------------------------------------------------------------------------------------------------


Progress = Callable[[int, int, int | None], None]


def take_census(
    engine: Engine,
    path: str = "",
    *,
    of_contents: bool = False,
    execution: Execution | None = None,
    progress: Progress | None = None,
    shown: str | None = None,
) -> Census:
    """Take the census of everything at and below ``path``, or of the share that ``execution`` is for. Not to be called on the IO loop.

    With ``of_contents`` every object is read whole, and its digest recorded. ``progress`` is called with the number of objects looked
    at, the number of their bytes, and the total of objects (``None`` while they are listed). Writes of other clients during the run may be
    in it or not; each object is as it was at one moment.

    Raises:
        NotFound: there is nothing at ``path``.
        StorageError: the listing failed, or a metadata document could not be read. Objects that cannot be read are in ``failed``.
    """
    return _Taking(SharedStorage(engine.storage), Walk(engine, path), of_contents, execution or Execution(), progress, shown).run()


@dataclass
class _Rows:
    """The rows of one array, in the order of their arrival."""

    coords: list[tuple[int, ...]] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    bitmaps: list[bytes] = field(default_factory=list)

    def census(self, plan: ArrayPlan) -> ArrayCensus:
        n, ndim = len(self.nbytes), len(plan.shape)
        coords = np.array(self.coords, dtype=np.int64).reshape(n, ndim)
        order = np.lexsort(coords.T[::-1]) if ndim else np.arange(n)
        return ArrayCensus(
            path=plan.path,
            shape=plan.shape,
            chunk_shape=plan.chunk_shape,
            chunks_per_object=plan.chunks_per_object,
            is_sharded=plan.layout is not None,
            coords=coords[order],
            nbytes=np.array(self.nbytes, dtype=np.int64)[order],
            digests=np.frombuffer(b"".join(self.digests), np.uint8).reshape(n, DIGEST_NBYTES)[order],
            bitmaps=np.frombuffer(b"".join(self.bitmaps), np.uint8).reshape(n, bitmap_nbytes(plan.chunks_per_object))[order],
        )


@dataclass(eq=False)
class _Taking:
    """The state of one census that is being taken."""

    place: SharedStorage
    walk: Walk
    of_contents: bool
    execution: Execution
    progress: Progress | None
    shown: str | None
    rows: defaultdict[str, _Rows] = field(default_factory=lambda: defaultdict(_Rows))
    damaged: list[str] = field(default_factory=list)
    failed: list[Unread] = field(default_factory=list)
    listed: int = 0
    done: int = 0
    nbytes: int = 0

    def run(self) -> Census:
        work_on_objects(self.execution, count_objects, self._tasks(), self._take, lambda *failed: self.failed.append(Unread(*failed)))
        absent = (Unread(key, NotFound(f"there is no object {key!r} of an array")) for key in self.execution.unmet())
        self.failed += absent
        obstacles = run_sync(self.walk.obstacles())
        self.failed += [Unread(one.key, in_its_place(one.key, one.what)) for one in obstacles if self.execution.takes(one.key)]
        self.walk.nodes.check_any(self.walk.path, self.listed, self.shown)
        arrays = tuple(self.rows[plan.path].census(plan) for plan in self.walk.plans())
        return Census(arrays, self.of_contents, tuple(sorted(self.damaged)), tuple(self.failed))

    def _tasks(self) -> Iterator[CensusTask]:
        def wanted(located: Located) -> bool:
            self.listed += 1
            plan = located.plan
            if plan is None or not plan.holds(located.coords):
                return False
            return self.execution.takes(located.info.key, plan.path, plan.number(located.coords))

        window = min(UPKEEP_LIMITS.request_bytes, self.execution.window_bytes)
        for plan, some in gathered(filter(wanted, self.walk.located()), reads_all=lambda plan: self.of_contents):
            objects = tuple((located.coords, located.info.nbytes) for located in some)
            yield CensusTask(self.execution.run, self.place, plan, objects, self.of_contents, window)

    def _take(self, task: CensusTask, counted: Counted, total: int | None) -> None:
        rows = self.rows[task.plan.path]
        for coords, entry in counted.entries:
            rows.coords.append(coords)
            rows.nbytes.append(entry.nbytes)
            rows.digests.append(entry.digest)
            rows.bitmaps.append(entry.bitmap)
        self.damaged += counted.damaged
        self.done += len(task.objects)
        self.nbytes += sum(entry.nbytes for _, entry in counted.entries)
        if self.progress is not None:
            self.progress(self.done, self.nbytes, total)
