"""Reports of a run, or of a run that was only planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from shardstore.maintenance.packing.translation import Mode
from shardstore.model.showing import ShownInNotebooks
from shardstore.progress.steps import Progress, Step

_ACTIONS = {"listing": "listing", "checking": "checking what is done", "packing": "copying chunks", "finishing": "writing metadata"}


def some_of(names: Sequence[str], most: int = 5) -> str:
    """Return the first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


@dataclass(frozen=True, slots=True)
class ArrayReport:
    """The report on one array. Objects and bytes are those that hold chunks; ``after`` is an estimate for objects that are not written
    yet.
    """

    path: str
    chunk_shape: tuple[int, ...]
    chunks_per_shard: tuple[int, ...] | None
    """The chunks per shard of the target; ``None`` if each chunk is an object."""
    units: int
    objects_before: int
    objects_after: int
    nbytes_before: int
    nbytes_after: int
    outside: int
    """The number of objects outside of the array's grid, which no reader sees: they are left out."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class FailedUnit:
    """A unit that could not be done, and the reason. ``path`` is ``None`` for objects that belong to no array."""

    path: str | None
    name: str
    """The key of its shard in the array, or of its first object."""
    error: str

    def __str__(self) -> str:
        return f"unit {self.name} of {'the other objects' if self.path is None else self.path or '(root)'}"


@dataclass(frozen=True, slots=True)
class Requests:
    """An estimate of the requests of a run that begins from nothing; lists are of pages of 1,000."""

    lists: int
    gets: int
    puts: int

    def price(self, per_thousand: Mapping[str, float]) -> float:
        """Return the price at list prices for 1,000 requests, by ``"list"``, ``"get"`` and ``"put"``; a missing name costs nothing."""
        counts = {"list": self.lists, "get": self.gets, "put": self.puts}
        return sum(per_thousand.get(name, 0.0) * number / 1000 for name, number in counts.items())


@dataclass(frozen=True)
class PackReport(ShownInNotebooks):
    """The report on one run of ``pack``, ``reshard`` or ``unpack``."""

    mode: Mode
    source: str
    target: str
    record: str
    """The place of the record; the same call continues from there. It may be removed when nothing is to be packed again. ``""`` if the
    target is a branch of a versioned store: there is none.
    """
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
    """The number of units of all parts together."""
    done: int
    """The number of units that this run has done."""
    skipped: int
    """The number of units that had been done before, from the same versions of the same objects."""
    written_nbytes: int
    chunks: int
    """The number of chunks that this run has moved."""
    chunk_nbytes: int
    failed: tuple[FailedUnit, ...]
    complete: bool
    """True if everything is at the target, including documents: only then can it be opened."""
    missing: int
    """The number of units that are still to be done, by other parts or because they failed."""
    requests: Requests
    unversioned: tuple[str | None, ...] = ()
    """Arrays, by path, and ``None`` for other objects, whose source has no versions: each run does their units again."""
    price: float | None = None
    notes: tuple[str, ...] = field(default=())
    copied: int = 0
    """The number of shards that this run did not have to put together: the source, a versioned store, has the same files, and the server
    copied them.
    """
    snapshot_id: str | None = None
    """The snapshot that the result has become, if the target is a branch of a versioned store."""

    def __repr__(self) -> str:
        state = "dry run" if self.dry_run else "complete" if self.complete else f"{self.missing} units missing"
        counts = f"{len(self.arrays)} arrays, {self.objects_before} objects to {self.objects_after}, {len(self.failed)} units failed"
        return f"<PackReport of {self.mode} {self.source!r} to {self.target!r}: {state}, {counts}>"

    def to_json(self) -> dict[str, Any]:
        """Return the report for programs; ``failed`` can be used as input again."""
        return asdict(self)


def packing_step(progress: Progress, /) -> Step:
    """Return the step that is shown."""
    return progress.step(_ACTIONS)
