"""One run: the units of a plan are carried out, and the result becomes visible when all of them are done.

::

    plan ─► what is done already? ─► carry out the rest ─► record ─► all units of all parts done? ─► documents, the topmost last:
                                                                                                     now it can be opened

Until the documents are there, the target is no hierarchy. A driver that is killed leaves whole shards and a record of them. The next
run lists the source again, and does the units that are not recorded, were made from other versions of the source's objects, or differ
from the record.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any

from shardstore._sync import run_sync
from shardstore.errors import Incomplete, ShardStoreError
from shardstore.format.codecs import codec_configuration
from shardstore.maintenance.packing.plan import (
    Plan,
    Requests,
    check_room,
    check_settings,
    estimated_nbytes,
    estimated_objects,
    estimated_requests,
    has_begun,
    needed,
    room_of,
)
from shardstore.maintenance.packing.record import (
    DOCUMENTS,
    Announced,
    FailedUnit,
    Finished,
    Recorded,
    TargetObjects,
    intact_units,
    list_target,
)
from shardstore.maintenance.packing.target import (
    Candidates,
    Obstacles,
    Overwritten,
    check_foreign,
    check_target,
    foreign_keys,
    in_the_way,
    links_of,
    removable,
    remove,
    superseded,
    write_documents,
)
from shardstore.maintenance.packing.translation import Mode
from shardstore.maintenance.packing.units import NOTHING, AnyUnit, ArrayUnits, Unit, UnitName
from shardstore.maintenance.packing.writing import UnitDone, can_be_read, do_unit
from shardstore.model.showing import ShownInNotebooks
from shardstore.model.words import size, some_of
from shardstore.progress.steps import Progress, Step
from shardstore.storage.abilities import RestrictsKeys
from shardstore.storage.requests.outcomes import PROBE_PREFIX
from shardstore.storage.room import is_full

_ACTIONS = {"listing": "listing", "checking": "checking what is done", "packing": "copying chunks", "finishing": "writing metadata"}


class _Full(Exception):
    """The target is full: ends the run, since no other write will fit either."""


@dataclass(slots=True)
class Outcome:
    """The outcome of a run: counts of units, of chunks, and of bytes."""

    missing: int
    """The number of units that are still to be done, by other parts or because they failed."""
    done: int = 0
    skipped: int = 0
    copied: int = 0
    """The number of shards that the server, or the kernel, has copied."""
    chunks: int = 0
    chunk_nbytes: int = 0
    written_nbytes: int = 0
    failed: list[FailedUnit] = field(default_factory=list)
    first_error: Exception | None = None
    full: Exception | None = None
    """The error that says that the target is full."""
    is_complete: bool = False
    """True if everything is at the target, including documents."""


def carry_out(plan: Plan, *, overwrite: bool, check_space: bool, only_failed: bool, progress: Callable[[Progress], None]) -> Outcome:
    """Do all remaining units of a plan, and make the result visible when everything is done. A full target ends the run.

    Raises:
        Conflict: the target holds something else, or another run with other settings.
        NoSpace: with ``check_space``, the target has too little room; nothing was written.
    """
    run = run_sync(_look_at_target(plan, overwrite=overwrite, only_failed=only_failed, progress=progress))
    if check_space and (room := room_of(plan.places.stored_target)) is not None:
        left = {unit.unit_name for unit in run.left()}
        need = needed(plan.arrays, plan.copies, plan.encoded_documents, left.__contains__, run.earlier.units)
        check_room(room, need, run.old.nbytes)
    run.report_progress("packing")
    announced = Announced.of(run.left(), {*plan.documents, *run.old.shown()}, as_draft=plan.wanted.as_draft)
    run_sync(run.begin(announced, overwrite=overwrite))
    record = plan.places.record
    try:
        with suppress(Incomplete, _Full):  # the report names what failed, and how much is missing
            if run.outcome.full is None:
                plan.execution.carry_out(do_unit, run.to_do(), run.note, run.note_failure)
    finally:
        run_sync(run.write_down(record.flush()))
    recorded = run_sync(run.recorded())
    run.outcome.missing = sum(run.is_missing(unit, recorded) for unit in plan.units())
    if not run.outcome.missing:
        run.report_progress("finishing")
    run_sync(run.end(recorded))
    return run.outcome


async def _look_at_target(plan: Plan, *, overwrite: bool, only_failed: bool, progress: Callable[[Progress], None]) -> _PackingRun:
    """Look at the target once more, since to list the source may have taken hours, and at what earlier runs have recorded."""
    places, record, as_draft = plan.places, plan.places.record, plan.wanted.as_draft
    await record.check_place()
    await check_target(places, overwrite=overwrite)
    old, only, is_renewed = Overwritten(), frozenset[UnitName]() if only_failed else None, False
    if overwrite:
        old = await Overwritten.of(places, as_draft=as_draft)
        earlier = Recorded(announced=Announced(old.shown()))  # as if a run had announced it that died
    else:
        is_renewed = await has_begun(places, plan.settings)
        only = frozenset(await record.failed()) if only_failed else None
        earlier = await record.begin_run()
    if earlier:
        progress(Progress("checking", 0, len(earlier.units)))
    storage = places.target.storage
    there = await list_target(storage, earlier)
    if foreign_keys(there.unknown, plan.keys, earlier, as_draft=as_draft):
        now = await record.recorded()  # another part may have announced some since
        check_foreign(foreign_keys(there.unknown, plan.keys, now, as_draft=as_draft), places.shown_target)
    intact = await intact_units(storage, there, plan.units(), earlier)
    return _PackingRun(plan, progress, earlier, there, old, intact, only, is_renewed)


@dataclass(eq=False)
class _PackingRun:
    """The state of one run, after it has looked at the target and its record."""

    plan: Plan
    progress: Callable[[Progress], None]
    earlier: Recorded
    there: TargetObjects
    old: Overwritten
    intact: Mapping[UnitName, Finished]
    """The units that need not be done again."""
    only: frozenset[UnitName] | None
    """The units that are asked for; ``None``: all."""
    has_begun: bool
    """True if an earlier run of the same has begun, and left its settings."""

    def __post_init__(self) -> None:
        self.outcome = Outcome(missing=self.plan.total_units)
        self._record = self.plan.places.record
        self._storage = self.plan.places.target.storage
        self._obstacles = Obstacles()
        self._cleared: set[str | None] = set()
        """The paths of arrays whose obstacles have been removed, and ``None`` for other objects."""
        self._done_objects = self._done_nbytes = 0

    def report_progress(self, phase: str) -> None:
        objects, nbytes = self.plan.totals
        self.progress(Progress(phase, self._done_objects, objects, self._done_nbytes, nbytes, len(self.outcome.failed)))

    # -- beginning -----------------------------------------------------------------------------------------------------

    async def begin(self, announced: Announced, *, overwrite: bool) -> None:
        """Record what the run is about to write, and find out what is in the way of that.

        Raises:
            Conflict: another run with other settings has begun since, or a foreign object is in the way.
        """
        plan, record = self.plan, self._record
        await plan.places.stored_target.probe()
        if overwrite:
            await record.erase()
            await record.announce(announced)  # the next run, should this one die, may remove what is there
            await record.begin(plan.settings)
        elif not self.has_begun and not await record.begin(plan.settings) and (earlier := await record.settings()) is not None:
            check_settings(plan.places, plan.settings, earlier)  # those of another part, which has begun in between
        self._obstacles = await self._find_obstacles()
        if not overwrite:
            await self.write_down(record.announce(announced))
        restricted = plan.places.stored_target.ability(RestrictsKeys)
        if plan.places.hierarchy is not None or (restricted is not None and restricted.chunks_need_documents):
            await write_documents(self._storage, plan.documents)

    async def _find_obstacles(self) -> Obstacles:
        """Return what has to be removed before units are written: documents that would misread new chunks, objects where a directory will
        be, and links to directories in a target that is overwritten.
        """
        plan = self.plan
        links = await links_of(plan.places) if self.old.cuts_links else ()
        if not self.earlier:
            return Obstacles(links=links, as_draft=plan.wanted.as_draft)
        candidates = self._superseded(self.earlier, self.there.unknown)
        written = {path for unit in self.left() for path in plan.arrays_of(unit)}
        found = await in_the_way(self._storage, plan.target, plan.keys, candidates, self.earlier, written, plan.places.shown_target)
        objects = {info.key: info for info in (*await self.old.v2_documents(self._storage), *found)}
        return Obstacles(tuple(objects.values()), links, as_draft=plan.wanted.as_draft)

    def _superseded(self, recorded: Recorded, unknown: Sequence[str]) -> Candidates:
        plan = self.plan
        return superseded(recorded, plan.unit_names, plan.documents, unknown, as_draft=plan.wanted.as_draft)

    # -- units ---------------------------------------------------------------------------------------------------------

    def _asked_for(self) -> Iterator[AnyUnit]:
        """Yield the units of this part that are asked for."""
        only = self.only
        return (unit for unit in self.plan.own_units() if only is None or unit.unit_name in only)

    def left(self) -> Iterator[AnyUnit]:
        """Yield those that are not done; each is made when it is needed."""
        return (unit for unit in self._asked_for() if unit.unit_name not in self.intact)

    def to_do(self) -> Iterator[AnyUnit]:
        """Yield the units as ``left`` does, and count the intact ones. A unit that something is in the way of, and that cannot be read, has
        failed.
        """
        for unit in self._asked_for():
            if unit.unit_name in self.intact:
                self.outcome.skipped += 1
                self._count(unit)
                continue
            try:
                self._make_way(unit)
            except Exception as exc:  # noqa: BLE001  # whatever a unit can raise: it fails by it here as it would there
                self.note_failure(unit, exc)
            else:
                yield unit

    def _make_way(self, unit: AnyUnit) -> None:
        """Remove the obstacles to a unit, if it can be read; once for each array, and once for other objects.

        Raises:
            Exception: as ``do_unit``.
        """
        if not self._obstacles or unit.path in self._cleared:
            return
        if isinstance(unit, Unit):
            obstacles = self._obstacles.at(unit.path)
        else:
            obstacles = self._obstacles.without([self._obstacles.at(units.job.path) for units in self.plan.arrays])
        if obstacles and can_be_read(unit):
            run_sync(obstacles.remove(self.plan.places))
            self._cleared.add(unit.path)

    def note(self, unit: AnyUnit, done: UnitDone) -> None:
        outcome, record = self.outcome, self._record
        outcome.done += 1
        outcome.copied += done.is_copied
        outcome.chunks += done.chunks
        outcome.chunk_nbytes += done.chunk_nbytes
        outcome.written_nbytes += done.made.nbytes
        # No run goes on in a versioned store from a record, which would name each chunk.
        record.add(unit.unit_name, done if self.plan.places.hierarchy is None else replace(done, made=NOTHING))
        self._count(unit)
        if record.is_due and outcome.full is None:
            run_sync(self.write_down(record.flush()))
            if outcome.full is not None:
                raise _Full

    def note_failure(self, unit: AnyUnit, error: Exception) -> None:
        outcome = self.outcome
        outcome.first_error = outcome.first_error or error
        said = str(error) if isinstance(error, ShardStoreError) else f"{type(error).__name__}: {error}"
        outcome.failed.append(FailedUnit(*unit.unit_name, said))
        self.report_progress("packing")
        if is_full(error) and outcome.full is None:
            outcome.full = error
            raise _Full

    def _count(self, unit: AnyUnit) -> None:
        self._done_objects += unit.source_objects
        self._done_nbytes += unit.nbytes
        self.report_progress("packing")

    async def write_down(self, recording: Coroutine[object, object, None]) -> None:
        """Write the added units into the record, if there is room: units that are not recorded are done again."""
        try:
            await recording
        except ShardStoreError as exc:
            if not is_full(exc):
                raise
            self.outcome.full = self.outcome.full or exc

    # -- the end -------------------------------------------------------------------------------------------------------

    async def recorded(self) -> Recorded:
        """Record what this run could not do, and return all that is recorded now."""
        await self.write_down(self._record.note_failed(self.plan.execution.part, self.outcome.failed))
        await self.write_down(self._record.merge())
        return await self._record.recorded()

    def is_missing(self, unit: AnyUnit, recorded: Recorded) -> bool:
        """Return whether the unit is still to be done: it was not intact at the beginning, and has not been done since, by this part or
        another.
        """
        entry = recorded.units.get(unit.unit_name)
        if entry is None or entry.fingerprint != unit.fingerprint:
            return True
        return unit.unit_name not in self.intact and entry == self.earlier.units.get(unit.unit_name)

    async def end(self, recorded: Recorded) -> None:
        """Make the result visible if nothing is missing, and forget what the run was about to write if nothing has failed."""
        if not self.outcome.missing:
            await self._make_visible(recorded)
            self.outcome.is_complete = True
        if self.outcome.full is None and not self.outcome.failed:
            await self._record.end_run()

    async def _make_visible(self, recorded: Recorded) -> None:
        """Write the documents, the deepest first, then remove what runs have made for things that are gone."""
        plan, record, old, stored = self.plan, self._record, self.old, self.plan.places.stored_target
        unknown = [] if old.cuts_links else self.there.unknown  # ``clear_up`` removes what is overwritten
        gone = await removable(self._storage, self._superseded(recorded, unknown), recorded, plan.target.arrays, plan.places.shown_target)
        if probes := [info.key async for info in stored.list(PROBE_PREFIX)]:
            await stored.delete_many(probes)  # of drivers that died while they asked what the server honours
        await self._obstacles.remove(plan.places)
        await old.clear_for_documents(stored)
        record.add(DOCUMENTS, UnitDone("", await write_documents(self._storage, plan.documents), 0, 0))
        await record.flush()
        await remove(self._storage, gone)
        if old:
            made = (entry.made.keys() for name in plan.unit_names if (entry := recorded.units.get(name)) is not None)
            await old.clear_up(stored, {*plan.documents, *chain.from_iterable(made)})
        await record.merge({*plan.unit_names, DOCUMENTS})


# -- reports ----------------------------------------------------------------------------------------------------------


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
