"""A census of the existing chunks of a store: taken by one listing, and one request for the index of each shard; and kept as bytes: small,
always the same for the same store, and complete enough to verify the store against it later.

::

    | 0x89 "shardcensus" 0x0a | version: uint16 | flags: uint16 | nbytes: uint64 | crc32c of the body | body, by zlib |

    body:    | nbytes: uint32 | JSON | blocks of the first array | blocks of the second | ...      arrays in the order of their paths
    blocks:  | coords: int64, n x ndim | nbytes: int64, n | digests: 16 bytes each, n | bitmaps: ceil(slots / 8) bytes each, n |

Numbers are little-endian. ``nbytes`` of the header is that of the body before zlib. Bit 0 of the flags: digests are of whole objects;
otherwise they are of the encoded index, and zero if an object is one chunk. The JSON has for each array its path, shape, shape of
chunks, chunks an object along each dimension, and ``objects``, the ``n`` of its blocks. Objects are in C order of their coordinates in
the grid of objects; those outside of the array's shape are left out. In a bitmap the chunk of the first slot is the highest bit of the
first byte; slots are in C order. A set bit: the chunk exists, in the array's shape. Digests are BLAKE2b's, 128 bits.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardstore._sync import run_sync
from shardstore.engine.engine import Engine
from shardstore.errors import Conflict, Corruption, InvalidInput, NotFound, ShardStoreError
from shardstore.format.codecs import CRC32C_NBYTES, crc32c
from shardstore.maintenance.density import Density, DensityCounter
from shardstore.maintenance.execution import Execution, SharedStorage, check_running, work_on_objects
from shardstore.maintenance.nodes import ArrayPlan
from shardstore.maintenance.shards import slots_inside
from shardstore.maintenance.walk import Located, Walk, gathered
from shardstore.model.chunks import ChunkCoords
from shardstore.model.coalescing import UPKEEP_LIMITS
from shardstore.model.generation import Generation
from shardstore.model.ranges import ByteRange, BytesLike
from shardstore.model.showing import ShownInNotebooks
from shardstore.storage.base import Found, Read, ReadOutcome, Storage, in_its_place, read_one, unless_failed

DIGEST_NBYTES = 16
NO_DIGEST = bytes(DIGEST_NBYTES)

_MAGIC = b"\x89shardcensus\n"
_VERSION = 1
_HEADER = struct.Struct(f"<{len(_MAGIC)}sHHQ{CRC32C_NBYTES}s")
_OF_CONTENTS = 1
_MOST_BYTES = 2**36  # a larger body comes from a damaged header
_TRIES = 4


@dataclass(frozen=True, slots=True, eq=False)
class ArrayCensus:
    """The existing chunks of one array. Objects are in C order of ``coords``."""

    path: str
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    """The shape of a chunk in elements, as presented."""
    chunks_per_object: tuple[int, ...]
    is_sharded: bool
    coords: npt.NDArray[np.int64]
    """Coordinates in the grid of objects: ``(n, ndim)``."""
    nbytes: npt.NDArray[np.int64]
    """Sizes of the objects: ``(n,)``."""
    digests: npt.NDArray[np.uint8]
    """Digests: ``(n, 16)``."""
    bitmaps: npt.NDArray[np.uint8]
    """One bit for each slot: ``(n, ceil(slots / 8))``."""

    @property
    def chunk_grid(self) -> tuple[int, ...]:
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunk_shape, strict=True))

    @property
    def object_grid(self) -> tuple[int, ...]:
        return tuple(-(-g // p) for g, p in zip(self.chunk_grid, self.chunks_per_object, strict=True))

    @property
    def slots(self) -> int:
        return prod(self.chunks_per_object)

    @property
    def objects(self) -> int:
        return len(self.nbytes)

    @property
    def possible_objects(self) -> int:
        return prod(self.object_grid)

    @property
    def chunks(self) -> int:
        """The number of existing chunks in the array's shape."""
        step = max(1, 2**22 // max(1, self.bitmaps.shape[1]))  # a damaged file may say that no chunk is in an object
        return sum(int(np.unpackbits(self.bitmaps[i : i + step]).sum()) for i in range(0, self.objects, step))

    @property
    def possible_chunks(self) -> int:
        return prod(self.chunk_grid)

    @property
    def stored_nbytes(self) -> int:
        return int(self.nbytes.sum())

    def density(self, rows: int, columns: int, axes: tuple[int, int] | None = None) -> Density:
        """Return a picture of which chunks exist. Parameters and errors are those of ``DensityCounter``."""
        counter = DensityCounter(self.chunk_grid, self.chunks_per_object, rows, columns, axes)
        step = max(1, 2**22 // max(1, self.slots))
        for start in range(0, self.objects, step):
            bits = np.unpackbits(self.bitmaps[start : start + step], axis=1, count=self.slots)
            counter.add(self.coords[start : start + step], bits.view(np.bool_))
        return counter.density()


@dataclass(frozen=True, slots=True)
class Unread:
    """An object that could not be read, so nothing is known of it."""

    key: str
    error: ShardStoreError


@dataclass(frozen=True, slots=True)
class Census(ShownInNotebooks):
    """The existing chunks of a store, per array, in the order of their paths."""

    arrays: tuple[ArrayCensus, ...]
    of_contents: bool = False
    """True if digests are of whole objects, not only of their indices."""
    damaged: tuple[str, ...] = ()
    """Keys of shards whose index cannot be read, so that their chunks are not counted; not part of the file."""
    failed: tuple[Unread, ...] = ()
    """Objects that could not be read, and are missing in it; not part of the file."""

    def __repr__(self) -> str:
        chunks = sum(array.chunks for array in self.arrays)
        possible = sum(array.possible_chunks for array in self.arrays)
        return f"<Census of {len(self.arrays)} arrays: {chunks} of {possible} chunks exist>"

    def array(self, path: str) -> ArrayCensus:
        """Return the census of one array. Raises ``NotFound`` if there is none."""
        for array in self.arrays:
            if array.path == path:
                return array
        raise NotFound(f"the census has no array {path!r}")

    def to_bytes(self) -> bytes:
        """Return the census as the bytes of a file, which are always the same for the same store."""
        described = [
            {
                "path": array.path,
                "shape": array.shape,
                "chunk_shape": array.chunk_shape,
                "chunks_per_object": array.chunks_per_object,
                "sharded": array.is_sharded,
                "objects": array.objects,
            }
            for array in self.arrays
        ]
        header = json.dumps({"arrays": described}, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
        blocks = [struct.pack("<I", len(header)), header]
        for array in self.arrays:
            blocks += [array.coords.astype("<i8").tobytes(), array.nbytes.astype("<i8").tobytes()]
            blocks += [array.digests.tobytes(), array.bitmaps.tobytes()]
        body = b"".join(blocks)
        compressed = zlib.compress(body, 6)
        return _HEADER.pack(_MAGIC, _VERSION, int(self.of_contents), len(body), crc32c(compressed)) + compressed

    def write(self, path: str | os.PathLike[str]) -> None:
        """Store the census as a local file."""
        Path(path).write_bytes(self.to_bytes())


def read_census(path: str | os.PathLike[str]) -> Census:
    """Read a census from a local file.

    Raises:
        NotFound: there is no such file.
        Corruption: the file is no census, or damaged.
    """
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError as exc:
        raise NotFound(f"there is no file {os.fspath(path)}") from exc
    try:
        return census_from_bytes(data)
    except Corruption as exc:
        raise Corruption(f"{os.fspath(path)}: {exc}") from exc


def merged(censuses: Sequence[Census]) -> Census:
    """Merge censuses that parts have taken of the same store; if several have an object, the last one counts.

    Raises:
        InvalidInput: there is no census, or they do not belong together.
    """
    if not censuses:
        raise InvalidInput("there is no census to merge: give one at least")
    if len({census.of_contents for census in censuses}) > 1:
        raise InvalidInput("some of the censuses are of contents, and some are not: take them all in the same way")
    by_path: dict[str, list[ArrayCensus]] = {}
    for census in censuses:
        for array in census.arrays:
            by_path.setdefault(array.path, []).append(array)
    arrays = tuple(_merged_array(by_path[path]) for path in sorted(by_path))
    damaged = tuple(sorted({key for census in censuses for key in census.damaged}))
    failed = tuple(unread for census in censuses for unread in census.failed)
    return Census(arrays, censuses[0].of_contents, damaged, failed)


def _merged_array(parts: Sequence[ArrayCensus]) -> ArrayCensus:
    first = parts[0]
    if len({(array.shape, array.chunk_shape, array.chunks_per_object, array.is_sharded) for array in parts}) > 1:
        raise InvalidInput(f"the censuses differ in how array {first.path or '/'!r} is laid out: take them of the same store")
    coords = np.concatenate([array.coords for array in parts])
    order = np.lexsort(coords.T[::-1]) if coords.shape[1] else np.arange(len(coords))
    same = (coords[order][1:] == coords[order][:-1]).all(axis=1)
    order = order[np.append(~same, True)[: len(order)]]  # of the same object the last one: the order is stable
    columns = {name: np.concatenate([getattr(array, name) for array in parts])[order] for name in ("nbytes", "digests", "bitmaps")}
    return replace(first, coords=coords[order], **columns)


def census_from_bytes(data: BytesLike) -> Census:
    """Decode a census; the inverse of ``Census.to_bytes``.

    Raises:
        Corruption: the bytes are no census, are damaged, or have an unknown version.
    """
    if len(data) < _HEADER.size or bytes(data[: len(_MAGIC)]) != _MAGIC:
        raise Corruption("this is not a census")
    _, version, flags, nbytes, checksum = _HEADER.unpack_from(data)
    if version != _VERSION or flags & ~_OF_CONTENTS:
        raise Corruption(f"a census of version {version} with flags {flags} is not known here: it takes a newer shardstore")
    compressed = memoryview(data)[_HEADER.size :]
    if crc32c(compressed) != checksum or not 0 < nbytes <= _MOST_BYTES:
        raise Corruption("the census is damaged: its checksum does not match")
    try:
        body = memoryview(zlib.decompressobj().decompress(compressed, nbytes))
        (header_nbytes,) = struct.unpack_from("<I", body)
        described = json.loads(bytes(body[4 : 4 + header_nbytes]))["arrays"]
        reader = _Blocks(body, 4 + header_nbytes)
        arrays = tuple(_array(one, reader) for one in described)
        if len(body) != nbytes or reader.rest:
            raise ValueError(f"{nbytes} bytes were expected, {len(body)} are there, and {reader.rest} of them belong to nothing")
    except (zlib.error, struct.error, ValueError, KeyError, TypeError) as exc:
        raise Corruption(f"the census is damaged: {type(exc).__name__}: {exc}") from exc
    return Census(arrays, bool(flags & _OF_CONTENTS))


class _Blocks:
    """A reader that takes one block after the other."""

    def __init__(self, body: memoryview, offset: int) -> None:
        self._body = body
        self._offset = offset

    @property
    def rest(self) -> int:
        """The number of bytes that have not been taken."""
        return len(self._body) - self._offset

    def take(self, dtype: str, *shape: int) -> npt.NDArray[Any]:
        count = prod(shape)
        block = np.frombuffer(self._body, dtype, count, self._offset) if count else np.empty(0, dtype)
        self._offset += block.nbytes
        return block.reshape(shape).astype(np.dtype(dtype).newbyteorder("="))


def _array(described: dict[str, Any], blocks: _Blocks) -> ArrayCensus:
    shape, n = tuple(described["shape"]), described["objects"]
    per_object = tuple(described["chunks_per_object"])
    coords, nbytes = blocks.take("<i8", n, len(shape)), blocks.take("<i8", n)
    digests, bitmaps = blocks.take("u1", n, DIGEST_NBYTES), blocks.take("u1", n, bitmap_nbytes(per_object))
    chunk_shape = tuple(described["chunk_shape"])
    return ArrayCensus(described["path"], shape, chunk_shape, per_object, described["sharded"], coords, nbytes, digests, bitmaps)


def bitmap_nbytes(chunks_per_object: tuple[int, ...]) -> int:
    return -(-prod(chunks_per_object) // 8)


# -- the task: find the chunks in some objects of one array -----------------------------------------------------------


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
