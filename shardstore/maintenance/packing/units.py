"""Units of work: a *unit* makes one shard of the target, or a group of its chunks that are one object each.

A unit refers to its source objects by numbers. Numbers mean other places when an array is resized, so nothing is recorded by them: a
unit's *name* is the key of its shard, or the key of its first chunk with the shape of the group, ``c/0/16*4x16``. It is recognised
again by its *fingerprint*: made of the name, the layouts, and the position, size and version of each of its objects.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from zlib import crc32

import numpy as np
import numpy.typing as npt

from shardstore.format.object_layout import ObjectLayout
from shardstore.maintenance.execution import SharedStorage
from shardstore.maintenance.packing.listing import Rows, SizedObject
from shardstore.maintenance.packing.translation import TargetArray
from shardstore.model.chunk_orders import ChunkOrder
from shardstore.model.ranges import ByteRange
from shardstore.storage.base import Found, Read, Storage, read_one

_COPIES_A_UNIT = 256
_COPIES_ON_AVERAGE = 128
_COPIED_BYTES_A_UNIT = 64 << 20
_CHUNKS_A_GROUP = 256  # of a unit whose chunks become objects each, where they are objects in the source too
_BETWEEN = "\0"  # no key holds it
_BYTES_AT_ONCE = 4 << 20

UnitName = tuple[str | None, str]
"""The name of a unit among all: the path of its array, or ``None`` for objects that are copied, and the unit's name."""


@dataclass(frozen=True)
class Job:
    """The common facts of all units of a run."""

    run: str
    source: SharedStorage
    target: SharedStorage
    max_memory: int


@dataclass(frozen=True)
class ArrayJob(Job):
    """The common facts of one array's units; they travel with each unit, so they include no attributes."""

    path: str
    source_layout: ObjectLayout
    target_layout: ObjectLayout
    adds_checksums: bool
    order: ChunkOrder
    encoded_chunk_nbytes: int | None

    @classmethod
    def of(cls, array: TargetArray, job: Job, order: ChunkOrder) -> ArrayJob:
        """Return the job of one array of the target."""
        source = array.source
        layouts = source.layout, array.layout
        return cls(
            job.run, job.source, job.target, job.max_memory, array.path, *layouts, array.adds_checksums, order, source.encoded_chunk_nbytes
        )

    @cached_property
    def unit_chunks(self) -> tuple[int, ...]:
        """The number of chunks of a unit along each dimension."""
        if self.target_layout.index_format is not None:
            return self.target_layout.chunks_per_object
        if self.source_layout.index_format is not None:
            return self.source_layout.chunks_per_object
        return _group(self.source_layout.chunk_grid)

    @property
    def unit_grid(self) -> tuple[int, ...]:
        return tuple(-(-n // per_unit) for n, per_unit in zip(self.source_layout.chunk_grid, self.unit_chunks, strict=True))

    @cached_property
    def digest(self) -> bytes:
        """Return the digest of everything that decides what the units' bytes are, except the source's objects and the array's extent."""
        layouts = [(layout.key_encoding, layout.index_format) for layout in (self.source_layout, self.target_layout)]
        said = (self.path, layouts, self.unit_chunks, self.adds_checksums, self.order)
        return hashlib.blake2b(repr(said).encode(errors="surrogatepass"), digest_size=16).digest()

    @property
    def group(self) -> tuple[int, ...]:
        """The most objects of the target that a unit makes along each dimension."""
        return self.unit_chunks if self.target_layout.index_format is None else (1,) * self.target_layout.ndim

    def names(self, numbers: npt.NDArray[np.int64]) -> list[str]:
        """Return the names of the units ``numbers``: the same for the same keys, whatever the array's extent."""
        if self.target_layout.index_format is not None:
            return self.target_layout.keys(numbers)
        shape = "*" + "x".join(map(str, self.unit_chunks))
        encoding = self.target_layout.key_encoding
        if not self.unit_grid:
            return [encoding.encode(()) + shape for _ in range(len(numbers))]
        axes = [at * n for at, n in zip(np.unravel_index(numbers, self.unit_grid), self.unit_chunks, strict=True)]
        return [key + shape for key in encoding.encode_all([axis.tolist() for axis in axes])]

    def extent(self, number: int) -> tuple[int, ...]:
        """Return how many chunks of the unit lie in the array's grid, along each dimension."""
        at = np.unravel_index(number, self.unit_grid) if self.unit_grid else ()
        return tuple(min(n, g - int(a) * n) for a, n, g in zip(at, self.unit_chunks, self.source_layout.chunk_grid, strict=True))


def _group(chunk_grid: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a group: a block of at most ``_CHUNKS_A_GROUP`` chunks, as long as possible along the last dimensions."""
    counts: list[int] = []
    left = _CHUNKS_A_GROUP
    for n in reversed(chunk_grid):
        counts.append(max(1, min(n, left)))
        left //= counts[-1]
    return tuple(reversed(counts))


@dataclass(frozen=True)
class Unit:
    """The unit ``number`` of ``job``, made from the objects ``rows`` of the source."""

    job: ArrayJob
    number: int
    name: str
    rows: Rows

    @property
    def path(self) -> str:
        return self.job.path

    @property
    def unit_name(self) -> UnitName:
        return self.path, self.name

    @property
    def source_objects(self) -> int:
        return len(self.rows)

    @property
    def fingerprint(self) -> str:
        """A text that is equal for units made from the same versions of the same objects with the same result; see ``is_versioned``."""
        job, layout = self.job, self.job.source_layout
        digest = hashlib.blake2b(job.digest, digest_size=16)
        digest.update(self.name.encode(errors="surrogatepass"))
        if layout.index_format is not None:  # chunks of its shards that lie outside of the grid are left out
            digest.update(repr(job.extent(self.number)).encode())
        if layout.ndim:
            digest.update(np.stack(np.unravel_index(self.rows["number"], layout.object_grid)).astype("<i8").tobytes())
        digest.update(self.rows["nbytes"].tobytes() + self.rows["version"].tobytes())
        return digest.hexdigest()

    @property
    def is_versioned(self) -> bool:
        """True if each of its objects has a version: only then do equal fingerprints say that nothing has changed."""
        return bool(self.rows["version"].all())

    @property
    def nbytes(self) -> int:
        """Bytes of the source's objects; one that is needed for several units counts for each."""
        return int(self.rows["nbytes"].sum())

    def __str__(self) -> str:
        return f"{self.job.path or '(root)'} {self.name}"


class ArrayUnits:
    """All units of one array, in ascending order; each is made when it is asked for."""

    def __init__(self, job: ArrayJob, rows: Rows) -> None:
        self.job = job
        self.distinct_nbytes = int(rows["nbytes"].sum())
        """Bytes of the source's objects, each counted once."""
        self._rows, self._of_unit = _by_unit(job, rows)
        self.numbers, starts = np.unique(self._of_unit, return_index=True)
        self._bounds = np.append(starts, len(self._of_unit))

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def nbytes(self) -> int:
        return int(self._rows["nbytes"].sum())

    @property
    def is_versioned(self) -> bool:
        """True if all their objects have versions."""
        return bool(self._rows["version"].all())

    def counts(self) -> npt.NDArray[np.int64]:
        """Return ``(units,)``: the number of source objects of each unit."""
        return np.diff(self._bounds)

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return ``(units,)``: the bytes of these objects."""
        sums = np.append(0, np.cumsum(self._rows["nbytes"]))
        return np.asarray(sums[self._bounds[1:]] - sums[self._bounds[:-1]], dtype=np.int64)

    @cached_property
    def names(self) -> list[str]:
        """Return the names of the units, in their order."""
        return self.job.names(self.numbers)

    def __iter__(self) -> Iterator[Unit]:
        for i, (number, name) in enumerate(zip(self.numbers.tolist(), self.names, strict=True)):
            yield Unit(self.job, number, name, self._rows[self._bounds[i] : self._bounds[i + 1]])


def _by_unit(job: ArrayJob, rows: Rows) -> tuple[Rows, npt.NDArray[np.int64]]:
    """Return each object once for every unit that takes chunks from it, sorted by unit, and the units' numbers."""
    grid, per_unit, per_object = job.unit_grid, job.unit_chunks, job.source_layout.chunks_per_object
    if not grid:
        return rows, np.zeros(len(rows), dtype=np.int64)
    coords = np.unravel_index(rows["number"], job.source_layout.object_grid)
    if all(n % m == 0 for n, m in zip(per_unit, per_object, strict=True)):
        of_unit = np.ravel_multi_index([c * m // n for c, m, n in zip(coords, per_object, per_unit, strict=True)], grid)
    else:
        which: list[int] = []
        units: list[int] = []
        for i, position in enumerate(zip(*(axis.tolist() for axis in coords), strict=True)):
            spans = [
                range(c * m // n, min(-(-(c + 1) * m // n), g)) for c, m, n, g in zip(position, per_object, per_unit, grid, strict=True)
            ]
            for unit in product(*spans):
                which.append(i)
                units.append(int(np.ravel_multi_index(unit, grid)))
        rows = rows[np.array(which, dtype=np.intp)]
        of_unit = np.array(units, dtype=np.int64)
    order = np.argsort(of_unit, kind="stable")
    return rows[order], np.asarray(of_unit[order], dtype=np.int64)


# -- objects that are copied unchanged -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class CopyUnit:
    """A unit that copies some of these objects, in the order of their keys."""

    job: Job
    number: int
    objects: tuple[SizedObject, ...]

    @property
    def path(self) -> None:
        return None

    @property
    def name(self) -> str:
        return self.objects[0].key

    @property
    def unit_name(self) -> UnitName:
        return None, self.name

    @property
    def source_objects(self) -> int:
        return len(self.objects)

    @property
    def is_versioned(self) -> bool:
        """True if each of its objects has a version, as for ``Unit``."""
        return all(found.version for found in self.objects)

    @property
    def fingerprint(self) -> str:
        said = repr([(found.key, found.nbytes, found.version) for found in self.objects])
        return hashlib.blake2b(said.encode(errors="surrogatepass"), digest_size=16).hexdigest()

    @property
    def nbytes(self) -> int:
        return sum(found.nbytes for found in self.objects)

    def __str__(self) -> str:
        return f"other objects from {self.name!r}"


AnyUnit = Unit | CopyUnit


def copy_units(job: Job, objects: Sequence[SizedObject]) -> Iterator[CopyUnit]:
    """Yield the units of ``objects``, in the order of their keys. Keys alone decide where most units begin, so one object more changes no
    other unit than its own.
    """
    held: list[SizedObject] = []
    number = 0
    for found in objects:
        is_full = len(held) >= _COPIES_A_UNIT or sum(f.nbytes for f in held) + found.nbytes > _COPIED_BYTES_A_UNIT
        if held and (is_full or crc32(found.key.encode(errors="surrogatepass")) % _COPIES_ON_AVERAGE == 0):
            yield CopyUnit(job, number, tuple(held))
            number, held = number + 1, []
        held.append(found)
    if held:
        yield CopyUnit(job, number, tuple(held))


# -- objects that a unit has made ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Made:
    """Objects by key, relative to the target."""

    prefix: str = ""
    """The common start of all keys; ``names`` has the rest, joined."""
    names: str = ""
    numbers: bytes = b""
    """The sizes, then the versions: ``(2, n)``, uint64."""

    @classmethod
    def of(cls, prefix: str, names: Sequence[str], sizes: Sequence[int], versions: Sequence[int]) -> Made:
        """Return the objects as one value. Raises ``ValueError`` if the numbers of keys, sizes and versions differ."""
        if not len(names) == len(sizes) == len(versions):
            raise ValueError(f"{len(names)} objects have {len(sizes)} sizes and {len(versions)} versions")
        return cls(prefix, _BETWEEN.join(names), np.array([sizes, versions], dtype=np.uint64).tobytes())

    def __len__(self) -> int:
        return len(self.numbers) // 16

    @property
    def sizes(self) -> npt.NDArray[np.uint64]:
        """``(n,)``"""
        return np.frombuffer(self.numbers, dtype=np.uint64)[: len(self)]

    @property
    def versions(self) -> npt.NDArray[np.uint64]:
        """``(n,)``"""
        return np.frombuffer(self.numbers, dtype=np.uint64)[len(self) :]

    @property
    def nbytes(self) -> int:
        return int(self.sizes.sum())

    @property
    def tells_versions(self) -> bool:
        """True if the storage has given the version of each."""
        return bool(self.versions.all())

    def relative(self) -> list[str]:
        """Return the keys without the prefix."""
        return self.names.split(_BETWEEN) if len(self) else []

    def keys(self) -> list[str]:
        return [self.prefix + name for name in self.relative()]

    def hashes(self) -> npt.NDArray[np.int64]:
        """Return ``(n,)``: ``hash`` of each key, valid in this process."""
        return np.array(list(map(hash, self.keys())), dtype=np.int64)

    def __iter__(self) -> Iterator[SizedObject]:
        for key, nbytes, version in zip(self.keys(), self.sizes.tolist(), self.versions.tolist(), strict=True):
            yield SizedObject(key, nbytes, version)


NOTHING = Made()


async def digest_of_contents(storage: Storage, made: Made) -> str:
    """Return a digest by which these objects are recognised when they are read again; empty if one is absent, or has another length.
    Raises ``StorageError`` if a request failed.
    """
    digest = hashlib.blake2b(digest_size=16)
    for key, nbytes, _ in made:
        digest.update(f"{key}\0{nbytes}\0".encode(errors="surrogatepass"))
        for start in range(0, max(1, nbytes), _BYTES_AT_ONCE):
            wanted = ByteRange(start, min(nbytes, start + _BYTES_AT_ONCE))
            outcome = await read_one(storage, Read(key, (wanted,)))
            if not isinstance(outcome, Found) or outcome.nbytes != nbytes:
                return ""
            digest.update(outcome.buffers[0])
    return digest.hexdigest()
