"""The report of a run, or of a dry run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from shardstore.maintenance.packing.translation import Mode


@dataclass(frozen=True, slots=True)
class ArrayReport:
    """One array. Objects and bytes are those that hold chunks; ``after`` of objects that are not written yet is an estimate."""

    path: str
    chunk_shape: tuple[int, ...]
    chunks_per_shard: tuple[int, ...] | None
    """The chunks per shard of the target; ``None`` where each chunk is an object."""
    units: int
    objects_before: int
    objects_after: int
    nbytes_before: int
    nbytes_after: int
    outside: int
    """Objects outside of the array's grid, which no reader sees: left out."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class FailedUnit:
    """A unit that could not be done, and why. ``path`` is ``None`` for objects that are no array's."""

    path: str | None
    name: str
    """The key of its shard in the array, or of its first object."""
    error: str

    def __str__(self) -> str:
        return f"unit {self.name} of {'the other objects' if self.path is None else self.path or '(root)'}"


@dataclass(frozen=True, slots=True)
class Requests:
    """About how many requests a run takes that begins from nothing; lists are of pages of 1,000."""

    lists: int
    gets: int
    puts: int

    def price(self, per_thousand: Mapping[str, float]) -> float:
        """At list prices for 1,000 requests, by ``"list"``, ``"get"`` and ``"put"``; what is not named costs nothing."""
        counts = {"list": self.lists, "get": self.gets, "put": self.puts}
        return sum(per_thousand.get(name, 0.0) * number / 1000 for name, number in counts.items())


@dataclass(frozen=True)
class PackReport:
    """One run of ``pack``, ``reshard`` or ``unpack``."""

    mode: Mode
    source: str
    target: str
    record: str
    """The place of the record; the same call goes on from there. Safe to remove when nothing is to be packed again."""
    part: str
    dry_run: bool
    arrays: tuple[ArrayReport, ...]
    groups: int
    other_objects: int
    objects_before: int
    objects_after: int
    nbytes_before: int
    nbytes_after: int
    units: int
    """The units of all parts together."""
    done: int
    """Units that this run has done."""
    skipped: int
    """That had been done before, from the same versions of the same objects."""
    written_nbytes: int
    chunks: int
    """That this run has moved."""
    chunk_nbytes: int
    failed: tuple[FailedUnit, ...]
    complete: bool
    """True where everything is there, documents included: only then can the target be opened."""
    missing: int
    """Units that are still to be done, by other parts or because they failed."""
    requests: Requests
    unversioned: tuple[str | None, ...] = ()
    """Arrays, by path, and ``None`` for other objects, of which the source tells no versions: each run does their units again."""
    price: float | None = None
    notes: tuple[str, ...] = field(default=())

    def __repr__(self) -> str:
        state = "dry run" if self.dry_run else "complete" if self.complete else f"{self.missing} units missing"
        counts = f"{len(self.arrays)} arrays, {self.objects_before} objects to {self.objects_after}, {len(self.failed)} units failed"
        return f"<PackReport of {self.mode} {self.source!r} to {self.target!r}: {state}, {counts}>"

    def to_json(self) -> dict[str, Any]:
        """For programs; ``failed`` can be fed back."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run."""

    phase: str
    """``"listing"``, ``"checking"``, ``"packing"`` or ``"finishing"``."""
    objects: int = 0
    """That have been listed, or of the source that are done."""
    total_objects: int | None = None
    nbytes: int = 0
    total_nbytes: int | None = None
    failed: int = 0
