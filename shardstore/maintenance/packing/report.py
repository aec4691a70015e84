"""Reports of a run, or of a run that was only planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from shardstore.errors import Incomplete
from shardstore.format.codecs import codec_configuration
from shardstore.maintenance.packing.estimate import Requests, estimated_nbytes, estimated_objects, estimated_requests, needed, room_of
from shardstore.maintenance.packing.plan import Plan
from shardstore.maintenance.packing.record import FailedUnit
from shardstore.maintenance.packing.run import Outcome
from shardstore.maintenance.packing.translation import Mode
from shardstore.maintenance.packing.units import ArrayUnits
from shardstore.model.showing import ShownInNotebooks
from shardstore.model.words import size, some_of
from shardstore.progress.steps import Progress, Step

_ACTIONS = {"listing": "listing", "checking": "checking what is done", "packing": "copying chunks", "finishing": "writing metadata"}


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


# -- the report ----------------------------------------------------------------------------------------------------------


def report(plan: Plan, outcome: Outcome | None, prices: Mapping[str, float] | None) -> PackReport:
    """Return the report on a plan that was carried out, or, without an outcome, was only made."""
    places, nodes, target = plan.places, plan.nodes, plan.target
    done = Outcome(missing=plan.total_units) if outcome is None else outcome
    arrays = [_array_report(plan, units) for units in plan.arrays]
    passed = [ArrayReport(path, (), None, 0, 0, 0, 0, 0, 0, reason) for path, reason in target.reasons.items()]
    others = sum(unit.source_objects for unit in plan.copies)
    documents = plan.encoded_documents
    requests = estimated_requests(plan.arrays, others, nodes.objects, nodes.documents, len(documents))
    return PackReport(
        mode=plan.wanted.mode,
        source=places.shown_source,
        target=places.shown_target,
        record=places.record.shown if places.hierarchy is None else "",
        part=str(plan.execution.part),
        dry_run=outcome is None,
        arrays=(*arrays, *passed),
        groups=len(target.groups),
        other_objects=others,
        objects_before=nodes.objects,
        objects_after=sum(array.objects_after for array in arrays) + others + len(documents),
        nbytes_before=nodes.nbytes,
        nbytes_after=sum(array.nbytes_after for array in arrays) + sum(unit.nbytes for unit in plan.copies) + sum(map(len, documents)),
        units=plan.total_units,
        done=done.done,
        skipped=done.skipped,
        written_nbytes=done.written_nbytes,
        chunks=done.chunks,
        chunk_nbytes=done.chunk_nbytes,
        failed=tuple(done.failed),
        complete=done.is_complete,
        missing=done.missing,
        requests=requests,
        unversioned=plan.unversioned,
        price=None if prices is None else requests.price(prices),
        notes=(*plan.notes, *_notes(plan), *(_room_notes(plan) if outcome is None else ())),
        copied=done.copied,
    )


def _notes(plan: Plan) -> Iterator[str]:
    for path, reason in plan.target.reasons.items():
        yield f"{path or '(root)'} is copied unchanged: {reason}"
    if plan.unversioned:
        named = some_of(["the other objects" if path is None else path or "(root)" for path in plan.unversioned])
        yield f"the source gives no versions of what {named} are made from: every run does that again"
    plain = [array.path or "(root)" for array in plan.target.arrays.values() if array.source.layout.index_format is None]
    if plan.wanted.mode == "reshard" and plain:
        yield f"not sharded, and stays so: {some_of(plain)}. To have shards of its chunks, pack it"


def _room_notes(plan: Plan) -> Iterator[str]:
    if (room := room_of(plan.places.stored_target)) is not None:
        own = {unit.unit_name for unit in plan.own_units()}
        nbytes = needed(plan.arrays, plan.copies, plan.encoded_documents, own.__contains__, {}).on(room)
        fits = "" if nbytes <= room.nbytes else ": it does not fit"
        yield f"about {size(nbytes)} are needed, and {size(room.nbytes)} are free in {room.path}{fits}"


def _array_report(plan: Plan, units: ArrayUnits) -> ArrayReport:
    array = plan.target.arrays[units.job.path]
    index_format = array.layout.index_format
    return ArrayReport(
        path=array.path,
        chunk_shape=tuple(codec_configuration(array.source.document["chunk_grid"])["chunk_shape"]),
        chunks_per_shard=None if index_format is None else index_format.chunks_per_shard,
        units=len(units),
        objects_before=len(array.source.table),
        objects_after=estimated_objects(units),
        nbytes_before=int(array.source.table.rows()["nbytes"].sum()),
        nbytes_after=estimated_nbytes(units),
        outside=array.source.outside,
    )


def raise_if_incomplete(plan: Plan, outcome: Outcome, report: PackReport) -> None:
    """Raise ``Incomplete`` if units failed, or the target was full; its cause is the error of the first."""
    is_committed = plan.places.hierarchy is not None
    stays = "Nothing was committed" if is_committed else "What was done stays"
    again = "the same call starts from the beginning" if is_committed else "the same call goes on from there"
    if outcome.full is not None:
        raise Incomplete(
            f"there is no room left: the run stopped with {report.done + report.skipped:,} of {report.units:,} units done "
            f"({outcome.full}). {stays}: make room, and {again}",
            report,
        ) from outcome.full
    if not report.failed:
        return
    first = report.failed[0]
    more = f", and {len(report.failed) - 1} more" if len(report.failed) > 1 else ""
    raise Incomplete(
        f"{len(report.failed)} of {report.units} units could not be done: {first}: {first.error}{more}. {stays}: {again}",
        report,
    ) from outcome.first_error
