"""One run, from the listing of the source to the documents of the target.

::

    list the source ─► translate (or refuse, before anything is written) ─► units ─► what is done already?
        ─► carry out the rest ─► record ─► all units of all parts done? ─► documents, the topmost last: now it can be opened

Until the documents are there, the target is no hierarchy. A driver that is killed leaves whole shards and a record of them. The next
run lists the source anew, and does the units that are not recorded, were made from other versions of the source's objects, or differ
from the record.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any
from zlib import crc32

import numpy as np

from shardstore._sync import run_sync
from shardstore.errors import Conflict, Incomplete, InvalidInput, NotFound, ShardStoreError, StorageError
from shardstore.format.codecs import codec_configuration
from shardstore.format.json_text import JsonObject, dumps
from shardstore.format.store_keys import ancestors, metadata_key
from shardstore.maintenance.cluster import ExecutorLost
from shardstore.maintenance.execution import WHOLE, Execution, Failure
from shardstore.maintenance.packing.announced import Announced
from shardstore.maintenance.packing.collisions import Names, PlannedKeys, check_for_branch
from shardstore.maintenance.packing.documents import before_writing, kept_shards, write_documents
from shardstore.maintenance.packing.estimate import (
    Need,
    check_room,
    estimated_nbytes,
    estimated_objects,
    estimated_requests,
    needed,
    room_of,
)
from shardstore.maintenance.packing.finished import TargetObjects, intact_units, list_target
from shardstore.maintenance.packing.leaving import Candidates, check_foreign, foreign, look_at, remove, superseded
from shardstore.maintenance.packing.listing import OtherObject, list_source
from shardstore.maintenance.packing.made import NOTHING
from shardstore.maintenance.packing.ome import ome_nodes, ome_notice, with_ome_05
from shardstore.maintenance.packing.overwriting import Obstacles, Overwritten, check_target, links_of
from shardstore.maintenance.packing.places import Places
from shardstore.maintenance.packing.record import DOCUMENTS, Finished, Recorded, UnitName
from shardstore.maintenance.packing.report import ArrayReport, FailedUnit, PackReport, Progress, some_of
from shardstore.maintenance.packing.translation import Wanted, raise_refused, translate
from shardstore.maintenance.packing.units import ArrayUnits, Unit, job_for
from shardstore.maintenance.packing.writing import OthersJob, OthersUnit, UnitDone, can_be_read, do_unit
from shardstore.model.words import size
from shardstore.plan.commits import ChunkOrder
from shardstore.storage.base import RestrictsKeys
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.local.walk import LINK_TO_NOWHERE
from shardstore.storage.requests.outcomes import PROBE_PREFIX
from shardstore.storage.room import is_full
from shardstore.storage.wrappers import innermost

_OTHERS_A_UNIT = 256
_OTHERS_ON_AVERAGE = 128  # keys alone decide where most units begin: one more object changes no other unit than its own
_OTHER_BYTES_A_UNIT = 64 << 20

AnyUnit = Unit | OthersUnit


class _Full(Exception):
    """The target is full: ends the run, since no other write will fit either."""


class PackingRun:
    """One run of ``pack``, ``reshard`` or ``unpack``."""

    def __init__(
        self,
        places: Places,
        wanted: Wanted,
        execution: Execution,
        *,
        order: ChunkOrder,
        max_memory: int,
        only_failed: bool,
        progress: Callable[[Progress], None],
    ) -> None:
        self._places = places
        self._wanted = wanted
        self._execution = execution
        self._order: ChunkOrder = order
        self._max_memory = max_memory
        self._only_failed = only_failed
        self._only: set[UnitName] | None = None
        self._progress = progress
        self._failed: list[FailedUnit] = []
        self._first_error: Exception | None = None
        self._full: Exception | None = None
        self._done = self._copied = self._skipped = self._chunks = self._chunk_nbytes = self._written_nbytes = 0
        self._done_objects = self._done_nbytes = 0
        self._is_complete = False
        self._obstacles = Obstacles()
        self._cleared: set[str | None] = set()
        self._notes: list[str] = []

    # -- the plan ------------------------------------------------------------------------------------------------------

    def prepare(self, *, overwrite: bool, dry_run: bool) -> None:
        """Look at the target, list the source and translate its documents; nothing is written.

        Raises:
            Conflict: as ``carry_out``; a dry run reports it instead.
            NotFound: there is no node.
            StorageError: a request failed, or what the source names is not there.
            Unsupported: nodes cannot be expressed.
        """
        is_renewed = False
        try:
            run_sync(check_target(self._places, overwrite=overwrite))
            if not overwrite:
                is_renewed = run_sync(self._look_at_target())
        except Conflict as exc:
            if not dry_run:
                raise
            self._notes.append(f"it would be refused: {exc}")
        self._nodes = run_sync(list_source(self._places.source.storage, lambda n: self._progress(Progress("listing", n))))
        kept = run_sync(kept_shards(self._places.target.storage, self._nodes.arrays.values())) if is_renewed else None
        self._target = translate(self._nodes, self._wanted, kept)
        self._found_others = sorted(self._included_others())
        kind = innermost(self._places.stored_target)
        names = Names(
            root=kind.root if isinstance(kind, LocalStorage) else None,
            as_draft=self._wanted.as_draft,
            inside=self._places.record_inside,
        )
        raise_refused(self._target.refused | names.refused(self._target, [found.key for found in self._found_others]))
        self._check_reachable()
        if self._places.hierarchy is not None:
            check_for_branch(self._target, [found.key for found in self._found_others], self._places.shown_source)
        self._note_ome()
        if not self._target.documents:
            raise NotFound(
                f"there is no Zarr node at {self._places.shown_source}"
                + (", of those that include and exclude let through" if self._nodes.arrays or self._nodes.groups else "")
            )
        jobs = {
            path: job_for(
                array,
                run=self._execution.run,
                source=self._places.source,
                target=self._places.target,
                order=self._order,
                max_memory=self._max_memory,
            )
            for path, array in self._target.arrays.items()
        }
        self._arrays = [ArrayUnits(job, self._nodes.arrays[path].table.rows()) for path, job in jobs.items()]
        self._others = list(self._other_units())
        if self._execution.part != WHOLE and (unversioned := self._unversioned()):
            named = some_of(["other objects" if path is None else path or "(root)" for path in unversioned])
            raise InvalidInput(
                f"{self._places.shown_source} cannot be packed in parts: it has no versions for {named}, so parts cannot tell whether they "
                "read the same data. Run it without part (files that were just written on a file system of whole seconds have versions "
                "two seconds later)"
            )

    def _check_reachable(self) -> None:
        """Check that what the source names is there: to leave it out would call a target complete that shows fill values.

        Raises:
            StorageError: references, or links in a local source, lead to nothing; or something else is in the place of an object.
        """
        kind = innermost(self._places.source.storage)
        obstacles = run_sync(kind.obstacles("", self._nodes.has_key)) if isinstance(kind, LocalStorage) else []
        links = [one.key for one in obstacles if one.what == LINK_TO_NOWHERE]
        missing = [key for key in (*self._nodes.unreachable, *links) if self._is_wanted(key)]
        if missing:
            raise StorageError(
                f"{self._places.shown_source} names {some_of(sorted(missing))}, and what these lead to is not there: make it reachable "
                "again, or leave them out by exclude. Nothing was written"
            )
        others = [f"{one.key} ({one.what})" for one in obstacles if one.what != LINK_TO_NOWHERE and self._is_wanted(one.key)]
        if others:
            raise StorageError(
                f"{self._places.shown_source} has something else in the place of objects: {some_of(sorted(others))}. Remove it, or leave "
                "it out by exclude. Nothing was written"
            )

    def _is_wanted(self, key: str) -> bool:
        return self._wanted.includes(key.rpartition("/")[0]) and not self._wanted.excludes(key)

    def _unversioned(self) -> tuple[str | None, ...]:
        """Return the arrays, and ``None`` for other objects, that have a source object without a version."""
        arrays = (units.job.path for units in self._arrays if not units.is_versioned)
        return (*arrays, *([] if all(unit.is_versioned for unit in self._others) else [None]))

    def _note_ome(self) -> None:
        """Rewrite the metadata of OME-Zarr 0.4, or report them; they are ignored if the target is not final Zarr v3."""
        found = ome_nodes(self._target)
        if self._wanted.ome:
            self._target = with_ome_05(self._target, found)
            images = len(found.groups)
            self._notes.append(f"OME-Zarr 0.5: {images} {'group was' if images == 1 else 'groups were'} of 0.4")
        elif (
            (self._wanted.mode == "pack" or self._places.hierarchy is not None)
            and not self._wanted.as_draft
            and (notice := ome_notice(found)) is not None
        ):
            self._notes.append(notice)

    @property
    def _is_packed(self) -> bool:
        """True if chunks go into shards of final Zarr v3, or into a versioned store, which gathers them by itself."""
        return (self._wanted.mode == "pack" or self._places.hierarchy is not None) and not self._wanted.as_draft

    def _other_units(self) -> Iterator[OthersUnit]:
        job = OthersJob(self._execution.run, self._places.source, self._places.target, self._max_memory)
        held: list[OtherObject] = []
        number = 0
        for found in self._found_others:
            is_full = len(held) >= _OTHERS_A_UNIT or sum(f.nbytes for f in held) + found.nbytes > _OTHER_BYTES_A_UNIT
            if held and (is_full or crc32(found.key.encode(errors="surrogatepass")) % _OTHERS_ON_AVERAGE == 0):
                yield OthersUnit(job, number, tuple(held))
                number, held = number + 1, []
            held.append(found)
        if held:
            yield OthersUnit(job, number, tuple(held))

    def _included_others(self) -> Iterator[OtherObject]:
        """Yield the other objects that are included: each goes with the node that it lies in."""
        left_out = {path for path in (*self._nodes.arrays, *self._nodes.passed, *self._nodes.groups) if not self._is_kept(path)}
        for found in self._nodes.others:
            path = found.key
            if not self._wanted.includes(path.rpartition("/")[0]) or self._wanted.excludes(path):
                continue
            while path:
                path = path.rpartition("/")[0]
                if path in left_out:
                    break
            else:
                yield found

    def _is_kept(self, path: str) -> bool:
        return path in self._target.arrays or path in self._target.passed or path in self._target.groups

    def _units(self) -> Iterator[AnyUnit]:
        for units in self._arrays:
            yield from units
        yield from self._others

    @property
    def _total_units(self) -> int:
        return sum(map(len, self._arrays)) + len(self._others)

    # -- doing it ------------------------------------------------------------------------------------------------------

    def carry_out(self, *, overwrite: bool, check_space: bool) -> None:
        """Do all remaining units, and make the result visible when everything is done. A full target ends the run.

        Raises:
            Conflict: the target holds something else, or another run with other settings.
            NoSpace: with ``check_space``, the target has too little room; nothing was written.
        """
        record, storage = self._places.record, self._places.target.storage
        old = Overwritten()
        if self._only_failed:
            self._only = set()
        run_sync(record.check_place())
        run_sync(check_target(self._places, overwrite=overwrite))  # once more: to list the source may have taken hours
        if overwrite:
            old = run_sync(Overwritten.of(self._places, as_draft=self._wanted.as_draft))
            earlier = Recorded(announced=Announced(old.shown()))  # as if a run had announced it that died
        else:
            self._only = run_sync(record.failed()) if self._only_failed else None
            earlier = run_sync(record.begin_run())
        if earlier:
            self._progress(Progress("checking", 0, len(earlier.units)))
        there = run_sync(list_target(storage, earlier))
        run_sync(self._check_foreign(earlier, there))
        self._intact = run_sync(intact_units(storage, there, self._units(), earlier))
        self._totals = self._sums()
        if check_space and (room := room_of(self._places.stored_target)) is not None:
            check_room(room, self._need(earlier.units), old.nbytes)
        self._progress(Progress("packing", *self._so_far()))
        run_sync(self._places.stored_target.probe())
        announced = Announced.of(self._left(), {*self._documents, *old.shown()}, as_draft=self._wanted.as_draft)
        if overwrite:
            run_sync(record.erase())
            run_sync(record.announce(announced))  # whoever goes on after this run died may remove what is there
            run_sync(record.begin(self._settings()))
        else:
            run_sync(self._begin())
        self._obstacles = run_sync(self._find_obstacles(earlier, there, old))
        if not overwrite:
            self._write_down(record.announce(announced))
        kind = innermost(self._places.stored_target)
        if self._places.hierarchy is not None or (isinstance(kind, RestrictsKeys) and kind.chunks_need_documents):
            run_sync(write_documents(storage, self._documents))
        try:
            with suppress(ExecutorLost, _Full):  # the report names what failed, and how much is missing
                if self._full is None:
                    self._execution.carry_out(do_unit, self._to_do(), self._note, self._note_failure)
        finally:
            self._write_down(record.flush())
        self._write_down(record.note_failed(self._execution.part, self._failed))
        self._write_down(record.merge())
        recorded = run_sync(record.recorded())
        self._missing = sum(self._is_missing(unit, earlier, recorded) for unit in self._units())
        if not self._missing:
            self._progress(Progress("finishing", *self._so_far()))
            run_sync(self._finish(recorded, [] if overwrite else there.unknown, old))
            self._is_complete = True
        if self._full is None and not self._failed:
            run_sync(record.end_run())

    async def _begin(self) -> None:
        """Check that the target is free, or holds only the results of an earlier run of the same, and begin."""
        if not await self._look_at_target() and not await self._places.record.begin(self._settings()):
            self._check_settings(await self._places.record.settings())

    async def _look_at_target(self) -> bool:
        """Return whether an earlier run of the same has begun; writes nothing.

        Raises:
            Conflict: the target holds something else, or another run with other settings.
        """
        record = self._places.record
        earlier = await record.settings()
        if earlier is None and await self._is_taken():
            earlier = await record.settings()  # another part may have begun in between
            if earlier is None:
                raise Conflict(
                    f"there is something at {self._places.shown_target} already that no earlier run has made: choose another target, "
                    "erase it first, or overwrite it"
                )
        self._check_settings(earlier)
        return earlier is not None

    def _check_settings(self, earlier: dict[str, Any] | None) -> None:
        record, settings = self._places.record, self._settings()
        if earlier is not None and earlier != settings:
            differing = sorted(name for name in settings.keys() | earlier.keys() if settings.get(name) != earlier.get(name))
            said = ", ".join(f"{name} was {earlier.get(name)!r} and is {settings.get(name)!r}" for name in differing)
            raise Conflict(
                f"the record at {record.shown} is of a run with other options ({said}): use the same, choose another target, or overwrite "
                "this one"
            )

    def _settings(self) -> dict[str, Any]:
        wanted = self._wanted
        policy = wanted.policy
        return {
            "source": self._places.shown_source,
            "mode": wanted.mode,
            "chunks_per_shard": f"function {getattr(policy, '__qualname__', '?')}" if callable(policy) else _jsonable(policy),
            "stored": "transformer" if wanted.as_draft else "codec",
            "chunk_order": self._order,
            "index_location": wanted.index_location,
            "index_checksum": wanted.index_checksum,
            "chunk_checksums": wanted.chunk_checksums,
            "include": list(wanted.include),
            "exclude": list(wanted.exclude),
            **({"ome": True} if wanted.ome else {}),
        }

    async def _is_taken(self) -> bool:
        inside = self._places.record_inside
        async for info in self._places.stored_target.list(""):
            if not info.key.startswith((PROBE_PREFIX, *([] if inside is None else [inside]))):
                return True
        return False

    def _is_mine(self, unit: AnyUnit) -> bool:
        """Return whether the unit belongs to this part, and is asked for."""
        is_mine = self._execution.part.has(unit.path or "", unit.number)
        return is_mine and (self._only is None or name_of(unit) in self._only)

    def _left(self) -> Iterator[AnyUnit]:
        """Yield the units of this part that are not done; each is made when it is needed."""
        return (unit for unit in self._units() if self._is_mine(unit) and name_of(unit) not in self._intact)

    def _to_do(self) -> Iterator[AnyUnit]:
        """Yield the units as ``_left`` does, and count the others. A unit that something is in the way of, and that cannot be read, has
        failed.
        """
        for unit in filter(self._is_mine, self._units()):
            if name_of(unit) in self._intact:
                self._skipped += 1
                self._count(unit)
                continue
            try:
                self._make_way(unit)
            except Exception as exc:  # noqa: BLE001  # whatever a unit can raise: it fails by it here as it would there
                self._note_failure(Failure(unit, exc))
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
            obstacles = self._obstacles.of(unit.path)
        else:
            obstacles = self._obstacles.without(self._obstacles.of(units.job.path) for units in self._arrays)
        if obstacles and can_be_read(unit):
            run_sync(obstacles.remove(self._places))
            self._cleared.add(unit.path)

    def _is_missing(self, unit: AnyUnit, earlier: Recorded, recorded: Recorded) -> bool:
        """Return whether the unit is still to be done: it was not intact at the beginning, and has not been done since, by this part or
        another.
        """
        name = name_of(unit)
        entry = recorded.units.get(name)
        if entry is None or entry.fingerprint != unit.fingerprint:
            return True
        return name not in self._intact and entry == earlier.units.get(name)

    async def _check_foreign(self, earlier: Recorded, there: TargetObjects) -> None:
        """Raise ``Conflict`` if foreign objects would be replaced; another part may have announced some meanwhile."""
        planned, as_draft = self._planned_keys(), self._wanted.as_draft
        if foreign(there.unknown, planned, earlier, as_draft=as_draft):
            now = await self._places.record.recorded()
            check_foreign(foreign(there.unknown, planned, now, as_draft=as_draft), self._places.shown_target)

    def _arrays_of(self, unit: AnyUnit) -> Iterator[str]:
        """Yield the paths of arrays whose chunks a unit writes."""
        if isinstance(unit, Unit):
            yield unit.path
        elif self._target.passed:
            yield from (path for found in unit.objects for path, _ in ancestors(found.key) if path in self._target.passed)

    def _planned_keys(self) -> PlannedKeys:
        return PlannedKeys(self._target, (found.key for found in self._found_others))

    async def _find_obstacles(self, earlier: Recorded, there: TargetObjects, old: Overwritten) -> Obstacles:
        """Return what has to be removed before units are written: documents that would misread new chunks, objects where a directory will
        be, and links to directories in a target that is overwritten.
        """
        links = await links_of(self._places) if old.cuts_links else ()
        if not earlier:
            return Obstacles(links=links, as_draft=self._wanted.as_draft)
        storage = self._places.target.storage
        candidates = self._superseded(earlier, there.unknown)
        written = {path for unit in self._left() for path in self._arrays_of(unit)}
        leaving = await before_writing(storage, self._target, self._planned_keys(), candidates, earlier, written)
        leaving.check(self._places.shown_target)
        objects = {info.key: info for info in (*await old.v2_documents(storage), *leaving.objects)}
        return Obstacles(tuple(objects.values()), links, as_draft=self._wanted.as_draft)

    def _need(self, finished: Mapping[UnitName, Finished]) -> Need:
        """Return what this run still has to write."""

        left = {name_of(unit) for unit in self._left()}
        documents = [dumps(document) for document in self._target.documents.values()]
        return needed(self._arrays, self._others, documents, left.__contains__, finished)

    def _write_down(self, recording: Coroutine[object, object, None]) -> None:
        """Write the added units into the record, if there is room: units that are not recorded are done again."""
        try:
            run_sync(recording)
        except ShardStoreError as exc:
            if not is_full(exc):
                raise
            self._full = self._full or exc

    def _note(self, unit: AnyUnit, done: UnitDone) -> None:
        self._done += 1
        self._copied += done.is_copied
        self._chunks += done.chunks
        self._chunk_nbytes += done.chunk_nbytes
        self._written_nbytes += done.made.nbytes
        # Nobody goes on in a versioned store from a record, which would name each chunk.
        self._places.record.add(name_of(unit), done if self._places.hierarchy is None else replace(done, made=NOTHING))
        self._count(unit)
        if self._places.record.is_due and self._full is None:
            self._write_down(self._places.record.flush())
            if self._full is not None:
                raise _Full

    def _note_failure(self, failure: Failure[AnyUnit]) -> None:
        path, name = name_of(failure.task)
        error = failure.error
        if self._first_error is None:
            self._first_error = error
        was_full = self._full is not None
        if is_full(error):
            self._full = self._full or error
        self._failed.append(
            FailedUnit(path, name, str(error) if isinstance(error, ShardStoreError) else f"{type(error).__name__}: {error}")
        )
        self._progress(Progress("packing", *self._so_far()))
        if self._full is not None and not was_full:
            raise _Full

    def _count(self, unit: AnyUnit) -> None:
        self._done_objects += len(unit.rows) if isinstance(unit, Unit) else len(unit.objects)
        self._done_nbytes += unit.nbytes
        self._progress(Progress("packing", *self._so_far()))

    def _so_far(self) -> tuple[int, int, int, int, int]:
        return self._done_objects, self._totals[0], self._done_nbytes, self._totals[1], len(self._failed)

    def _sums(self) -> tuple[int, int]:
        """Return the number of objects and bytes of the source for this part."""
        part = self._execution.part
        objects = nbytes = 0
        for units in self._arrays:
            mine = np.array([part.has(units.job.path, n) for n in units.numbers.tolist()], dtype=np.bool_)
            objects += int(units.counts()[mine].sum())
            nbytes += int(units.sizes()[mine].sum())
        for other in self._others:
            if part.has("", other.number):
                objects, nbytes = objects + len(other.objects), nbytes + other.nbytes
        return objects, nbytes

    # -- the end -------------------------------------------------------------------------------------------------------

    async def _finish(self, recorded: Recorded, unknown: Iterable[str], old: Overwritten) -> None:
        """Write the documents, the deepest first, then remove what runs have made for things that are gone."""
        storage, record = self._places.target.storage, self._places.record
        leaving = await look_at(storage, self._superseded(recorded, unknown), recorded, self._target.arrays)
        leaving.check(self._places.shown_target)
        if probes := [info.key async for info in self._places.stored_target.list(PROBE_PREFIX)]:
            await self._places.stored_target.delete_many(probes)  # of drivers that died while they asked what the server honours
        await self._obstacles.remove(self._places)
        await old.clear_for_documents(self._places.stored_target)
        names, documents = self._planned_names(), self._documents
        record.add(DOCUMENTS, UnitDone("", await write_documents(storage, documents), 0, 0))
        await record.flush()
        await remove(storage, leaving)
        if old:
            made = (entry.made.keys() for name in names if (entry := recorded.units.get(name)) is not None)
            await old.clear_up(self._places.stored_target, {*documents, *chain.from_iterable(made)})
        await record.merge({*names, DOCUMENTS})

    def _superseded(self, recorded: Recorded, unknown: Iterable[str]) -> Candidates:
        return superseded(recorded, self._planned_names(), self._documents, unknown, as_draft=self._wanted.as_draft)

    @property
    def _documents(self) -> dict[str, JsonObject]:
        """The documents by key."""
        return {metadata_key(path): document for path, document in self._target.documents.items()}

    def _planned_names(self) -> set[UnitName]:
        names: set[UnitName] = {(units.job.path, name) for units in self._arrays for name in units.names}
        return names | {(None, unit.name) for unit in self._others}

    def report(self, *, dry_run: bool, prices: Mapping[str, float] | None) -> PackReport:
        """Return the report of the run, done or planned."""
        arrays = tuple(self._array_report(units) for units in self._arrays)
        passed = tuple(ArrayReport(path, (), None, 0, 0, 0, 0, 0, 0, reason) for path, reason in self._target.reasons.items())
        others = sum(len(unit.objects) for unit in self._others)
        other_nbytes = sum(unit.nbytes for unit in self._others)
        documents = [dumps(document) for document in self._target.documents.values()]
        requests = estimated_requests(self._arrays, others, self._nodes.objects, self._nodes.documents, len(documents))
        notes = [*self._notes]
        notes += [f"{path or '(root)'} goes over as it is stored: {reason}" for path, reason in self._target.reasons.items()]
        if unversioned := self._unversioned():
            named = some_of(["the other objects" if path is None else path or "(root)" for path in unversioned])
            notes.append(f"the source tells no versions of what {named} are made from: every run does that again")
        plain = [array.path or "(root)" for array in self._target.arrays.values() if array.source.layout.index_format is None]
        if self._wanted.mode == "reshard" and plain:
            notes.append(f"not sharded, and stays so: {some_of(plain)}. To have shards of its chunks, pack it")
        if dry_run and (room := room_of(self._places.stored_target)) is not None:
            self._intact = {}
            nbytes = self._need({}).on(room)
            fits = "" if nbytes <= room.nbytes else ": it does not fit"
            notes.append(f"about {size(nbytes)} are needed, and {size(room.nbytes)} are free in {room.path}{fits}")
        return PackReport(
            mode=self._wanted.mode,
            source=self._places.shown_source,
            target=self._places.shown_target,
            record=self._places.record.shown if self._places.hierarchy is None else "",
            part=str(self._execution.part),
            dry_run=dry_run,
            arrays=arrays + passed,
            groups=len(self._target.groups),
            other_objects=others,
            objects_before=self._nodes.objects,
            objects_after=sum(array.objects_after for array in arrays) + others + len(documents),
            nbytes_before=self._nodes.nbytes,
            nbytes_after=sum(array.nbytes_after for array in arrays) + other_nbytes + sum(map(len, documents)),
            units=self._total_units,
            done=self._done,
            skipped=self._skipped,
            written_nbytes=self._written_nbytes,
            chunks=self._chunks,
            chunk_nbytes=self._chunk_nbytes,
            failed=tuple(self._failed),
            complete=self._is_complete,
            missing=self._total_units if dry_run else self._missing,
            requests=requests,
            unversioned=self._unversioned(),
            price=None if prices is None else requests.price(prices),
            notes=tuple(notes),
            copied=self._copied,
        )

    def _array_report(self, units: ArrayUnits) -> ArrayReport:
        array = self._target.arrays[units.job.path]
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

    def raise_if_incomplete(self, report: PackReport) -> None:
        """Raise ``Incomplete`` if units failed, or the target was full; its cause is the error of the first."""
        stays = "What was done stays" if self._places.hierarchy is None else "Nothing was committed"
        again = "the same call goes on from there" if self._places.hierarchy is None else "the same call begins anew"
        if self._full is not None:
            raise Incomplete(
                f"there is no room left: the run stopped with {report.done + report.skipped:,} of {report.units:,} units done "
                f"({self._full}). {stays}: make room, and {again}",
                report,
            ) from self._full
        if not report.failed:
            return
        first = report.failed[0]
        more = f", and {len(report.failed) - 1} more" if len(report.failed) > 1 else ""
        raise Incomplete(
            f"{len(report.failed)} of {report.units} units could not be done: {first}: {first.error}{more}. {stays}: {again}",
            report,
        ) from self._first_error


def name_of(unit: AnyUnit) -> UnitName:
    return unit.path, unit.name


def _jsonable(policy: Any) -> Any:
    if isinstance(policy, Mapping):
        return {pattern: _jsonable(decided) for pattern, decided in policy.items()}
    return list(policy) if isinstance(policy, tuple) else policy
