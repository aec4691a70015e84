"""Compare a store with an earlier census of it: objects that are gone, lie elsewhere, or have changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from shardstore.format.store_keys import metadata_key
from shardstore.maintenance.array_plans import ArrayPlan
from shardstore.maintenance.census.file import ArrayCensus, Census
from shardstore.maintenance.census.objects import NO_DIGEST, ObjectEntry
from shardstore.maintenance.execution import Execution
from shardstore.maintenance.verify.findings import Finding
from shardstore.maintenance.verify.objects import ListedObject
from shardstore.model.chunks import ChunkCoords

_TELLING_CHUNKS = 2  # of sizes that vary: an index of so many is taken for a shard's fingerprint


class CensusComparison:
    """The entries of the census, and which of them have been seen."""

    def __init__(self, census: Census, path: str, execution: Execution) -> None:
        inside = path + "/" if path else ""
        self._arrays = {a.path: _Expected(a) for a in census.arrays if a.path == path or a.path.startswith(inside)}
        self._execution = execution
        self._places: dict[bytes, list[tuple[str, int]]] | None = None
        self.of_contents = census.of_contents

    def expected(self, plan: ArrayPlan, coords: ChunkCoords) -> ObjectEntry | None:
        """Return the census's entry for an object, and mark the object as seen."""
        array = self._arrays.get(plan.path)
        return array.see(coords) if array is not None and array.fits(plan) else None

    def layout_findings(self, plans: Sequence[ArrayPlan]) -> Iterator[Finding]:
        """Yield findings for arrays that are gone, or have another layout than before."""
        now = {plan.path: plan for plan in plans}
        for path, array in self._arrays.items():
            plan = now.get(path)
            if plan is None:
                yield Finding("missing", path, metadata_key(path), "the census has such an array, and it is gone or cannot be read")
            elif not array.fits(plan):
                was, is_now = (
                    f"chunks of {chunk}, {per_object} of them an object"
                    for chunk, per_object in (
                        (array.census.chunk_shape, array.census.chunks_per_object),
                        (plan.chunk_shape, plan.chunks_per_object),
                    )
                )
                yield Finding("differs", path, metadata_key(path), f"the census has {was}; the metadata says {is_now}")

    def unseen(self, plans: Sequence[ArrayPlan]) -> Iterator[tuple[ArrayPlan, ChunkCoords]]:
        """Yield objects of this run that the census has, and that were not listed."""
        for plan in plans:
            array = self._arrays.get(plan.path)
            if array is None or not array.fits(plan):
                continue
            for coords in array.unseen():
                if plan.holds(coords) and self._execution.takes(plan.key(coords), plan.path, plan.number(coords)):
                    yield plan, coords

    def change(self, plan: ArrayPlan, listed: ListedObject, digest: bytes) -> Finding:
        """Return the finding about an object that differs from the census."""
        key = plan.key(listed.coords)
        assert listed.expected is not None
        chunks = int(np.unpackbits(np.frombuffer(listed.expected.bitmap, np.uint8)).sum())
        # Chunks of one size give all full shards the same index.
        is_telling = self.of_contents or (plan.coding.nbytes is None and plan.layout is not None and chunks >= _TELLING_CHUNKS)
        places = self._index().get(digest, []) if is_telling and digest != NO_DIGEST else []
        if len(places) == 1:
            (path, i) = places[0]
            coords = tuple(int(c) for c in self._arrays[path].census.coords[i])
            return Finding("misplaced", plan.path, key, f"it is what the census has of the object at {coords} of array {path or '/'!r}")
        return Finding("changed", plan.path, key, "it is not what the census has")

    def _index(self) -> dict[bytes, list[tuple[str, int]]]:
        """Return where the census has each digest; made when something is out of place."""
        if self._places is None:
            self._places = {}
            for path, array in self._arrays.items():
                for i, digest in enumerate(array.census.digests):
                    self._places.setdefault(digest.tobytes(), []).append((path, i))
        return self._places


class _Expected:
    """One array of a census, its objects found by their numbers."""

    def __init__(self, census: ArrayCensus) -> None:
        self.census = census
        self._seen = np.zeros(census.objects, dtype=np.bool_)
        # Numbers beyond 64 bits do not sort as integers: such arrays are rare, and are searched by coordinates.
        self._numbers: npt.NDArray[np.int64] | None = None
        if prod(census.object_grid) < 2**63:
            self._numbers = np.zeros(census.objects, dtype=np.int64)
            for axis, size in enumerate(census.object_grid):
                self._numbers = self._numbers * max(1, size) + census.coords[:, axis]

    def fits(self, plan: ArrayPlan) -> bool:
        return (plan.chunk_shape, plan.chunks_per_object) == (self.census.chunk_shape, self.census.chunks_per_object)

    def _find(self, coords: ChunkCoords) -> int | None:
        if not all(c < g for c, g in zip(coords, self.census.object_grid, strict=True)):
            return None
        if self._numbers is None:
            found = np.flatnonzero((self.census.coords == np.array(coords, dtype=np.int64)).all(axis=1))
            return int(found[0]) if len(found) else None
        number = 0
        for c, size in zip(coords, self.census.object_grid, strict=True):
            number = number * max(1, size) + c
        i = int(np.searchsorted(self._numbers, number))
        return i if i < len(self._numbers) and self._numbers[i] == number else None

    def see(self, coords: ChunkCoords) -> ObjectEntry | None:
        i = self._find(coords)
        if i is None:
            return None
        self._seen[i] = True
        census = self.census
        return ObjectEntry(int(census.nbytes[i]), census.digests[i].tobytes(), census.bitmaps[i].tobytes())

    def unseen(self) -> Iterator[ChunkCoords]:
        for i in np.flatnonzero(~self._seen).tolist():
            yield tuple(int(c) for c in self.census.coords[i])
