"""The record of finished work, kept next to the target: the next run continues from it, and detects that the source has changed.

::

    <target>.pack/                  or .shardstore-pack/ in a target that has no name of its own
        job.json                    {"format": 2, "settings": {…}}: written first, by the first run; with the "target", where the name
                                    of the place does not show it
        begun-<random>.jsonl        keys that a run is about to write; it goes when the run has ended, and has recorded all:
                                    ["path/of/array", "default", "/", [4, 16], [0, 0, 0, 1]]: groups of 4 × 16 objects, at (0, 0) and
                                    (0, 1) of these groups; [null, ["a/zarr.json", "README"]]: objects by their keys
        units-<random>.jsonl        ["path/of/array", "c/0/1", "<fingerprint>", "<contents>", 1, ["c/0/1"], [1048576], [<version>]]:
                                    a unit that is done, its run, and the objects that it has made, with their sizes and versions
        failed-1-of-1.jsonl         ["path/of/array", "c/0/2", "<error>"], a unit that the last run of a part could not do

A record owns the objects that it has made, by these names, and is that of one target. A place that holds anything else is refused, and
so is one with such names but without settings, or with the settings of another target: nothing there is read, replaced or erased.

Each driver writes objects of its own, and none is ever changed: any number of parts may run at once. Where several runs have done a
unit, the last one counts; other objects that the earlier runs made are removed when all is complete, and only then forgotten. A unit
that was done but not recorded, because its driver died in between, is done again.
"""

from __future__ import annotations

import json
import re
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from shardstore.errors import Conflict, Corruption
from shardstore.format.chunk_keys import ChunkKeyEncoding
from shardstore.format.store_keys import ancestors, join
from shardstore.maintenance.execution import Part, pages
from shardstore.maintenance.packing.listing import version_digest
from shardstore.maintenance.packing.units import AnyUnit, CopyUnit, Made, UnitName, digest_of_contents
from shardstore.maintenance.packing.writing import UnitDone
from shardstore.model.chunks import ChunkCoords
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL
from shardstore.model.ranges import EVERYTHING
from shardstore.model.redaction import redacted
from shardstore.storage.base import Absent, ConditionFailed, Found, Read, Storage, read_one, unless_failed
from shardstore.storage.requests.outcomes import PROBE_PREFIX

FORMAT = 2
SUFFIX = ".pack"
"""The suffix of the record's name, after the name of the target."""
INSIDE = ".shardstore-pack/"
"""The record's prefix in a target without a name: a bucket, the root of an archive."""

_JOB = "job.json"
_UNITS = "units-"
_FAILED = "failed-"
_BEGUN = "begun-"
_OWN = re.compile(r"job\.json|(?:units|begun)-[0-9a-f]{32}\.jsonl|failed-[0-9]+-of-[0-9]+\.jsonl")
_BEFORE_JOB = (_JOB, _BEGUN)  # an overwriting run announces what it will write before it erases what was there
_NAMED = 3  # foreign objects, in one error
_SECONDS_A_SEGMENT = 2.0
_LOOKS = 10  # at the record, while other drivers merge what they have written

DOCUMENTS: UnitName = (None, "")
"""The name for the documents, which are written when all units are done."""


@dataclass(frozen=True, slots=True)
class _Grouping:
    """The grouping of an array's objects into units."""

    encoding: ChunkKeyEncoding
    group: tuple[int, ...]


@dataclass(slots=True)
class Announced:
    """The keys of the target that a run is about to write: they identify objects that a driver wrote before it died without recording
    them. Keys of arrays are stored as the groups of objects that units make.
    """

    _keys: set[str] = field(default_factory=set)
    _groups: dict[str, dict[_Grouping, set[ChunkCoords]]] = field(default_factory=dict)

    @classmethod
    def of(cls, units: Iterable[AnyUnit], keys: Iterable[str], *, as_draft: bool) -> Announced:
        announced = cls(set(keys))
        for unit in units:
            if isinstance(unit, CopyUnit):
                announced._keys.update(found.key for found in unit.objects)
                continue
            grid = unit.job.unit_grid
            at = tuple(int(c) for c in np.unravel_index(unit.number, grid)) if grid else ()
            if as_draft and not grid:  # the key that its chunk has there without a document
                announced._keys.add(join(unit.path, "c/0"))
            announced._add(unit.path, _Grouping(unit.job.target_layout.key_encoding, unit.job.group), {at})
        return announced

    def _add(self, path: str, grouping: _Grouping, groups: set[ChunkCoords]) -> None:
        self._groups.setdefault(path, {}).setdefault(grouping, set()).update(groups)

    def __bool__(self) -> bool:
        return bool(self._keys or self._groups)

    def __contains__(self, key: str) -> bool:
        if key in self._keys:
            return True
        for path, rest in ancestors(key):
            for grouping, groups in self._groups.get(path, {}).items():
                coords = grouping.encoding.decode(rest, len(grouping.group))
                if coords is not None and tuple(c // n for c, n in zip(coords, grouping.group, strict=True)) in groups:
                    return True
        return False

    def lines(self) -> list[str]:
        lines = [json.dumps([None, sorted(self._keys)])] if self._keys else []
        for path, groupings in self._groups.items():
            for grouping, groups in groupings.items():
                flat = [c for at in sorted(groups) for c in at]
                lines.append(json.dumps([path, grouping.encoding.name, grouping.encoding.separator, grouping.group, flat]))
        return lines

    def add_line(self, line: bytes) -> None:
        """Add one line of the record. Raises ``ValueError`` or ``TypeError`` if it is invalid."""
        path, *rest = json.loads(line)
        if path is None:
            self._keys.update(*rest)
            return
        name, separator, group, flat = rest
        axes = [iter(flat)] * len(group)
        self._add(path, _Grouping(ChunkKeyEncoding(name, separator), tuple(group)), set(zip(*axes, strict=True)) if group else {()})


# -- the record ----------------------------------------------------------------------------------------------------------


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
class Finished:
    """A recorded unit; see ``UnitDone``."""

    fingerprint: str
    contents: str
    run: int
    """The number of the run that did it, among runs that knew of each other: parts at the same time have the same number."""
    made: Made


@dataclass(slots=True)
class Recorded:
    """The content of the record."""

    units: dict[UnitName, Finished] = field(default_factory=dict)
    """The last result of each unit."""
    older: list[Finished] = field(default_factory=list)
    """The results of earlier runs for units that were done again since."""
    announced: Announced = field(default_factory=Announced)
    """The keys that runs were about to write which have not ended, or have not recorded their end."""

    def __bool__(self) -> bool:
        return bool(self.units or self.announced)


class Record:
    """The record at ``prefix`` of ``storage``."""

    units_per_segment = 1000
    """So many finished units are written together, unless time passes before."""

    def __init__(self, storage: Storage, prefix: str, clock: Callable[[], float] = time.monotonic, *, target: str) -> None:
        """Prepare the record of the run that makes ``target``, a URL without secrets."""
        self._storage = storage
        self._prefix = prefix
        self._target = target
        self._implied = redacted(storage.url).rstrip("/").removesuffix("" if prefix else SUFFIX)
        """The target that the place is named after."""
        self._clock = clock
        self._new: list[tuple[UnitName, Finished]] = []
        self._mine: list[str] = []
        self._written: list[tuple[UnitName, Finished]] = []
        self._flushed = clock()
        self._run = 1
        self._begun: list[str] = []
        self._announced: str | None = None

    @property
    def shown(self) -> str:
        """The place of the record, for people."""
        return f"{self._storage.url.rstrip('/')}/{self._prefix}".rstrip("/")

    # -- beginning -----------------------------------------------------------------------------------------------------

    async def settings(self) -> dict[str, Any] | None:
        """Return the settings of the driver that began, or ``None`` if none has.

        Raises:
            Corruption: the place holds something else.
        """
        outcome = await read_one(self._storage, Read(self._prefix + _JOB, (EVERYTHING,)))
        if not isinstance(outcome, Found):
            return None
        try:
            job = json.loads(bytes(outcome.buffers[0]))
            known = job["format"] == FORMAT
            settings = job["settings"]
        except (ValueError, KeyError, TypeError) as exc:
            raise Corruption(
                f"{self._prefix + _JOB!r} at {self.shown} belongs to no record of packing, or is damaged: name another place for the "
                "record; or, if it is one, remove it, and give overwrite=True to begin again. Nothing was changed"
            ) from exc
        if not known:
            raise Conflict(
                f"the record at {self.shown} is of format {job['format']!r}, which this version does not know (it writes {FORMAT}): go on "
                "with the version that has made it, choose another target, or give overwrite=True to begin again"
            )
        target = job.get("target", self._implied)
        if target.rstrip("/") != self._target.rstrip("/"):
            raise Conflict(f"the record at {self.shown} is of another target, {target}: give each a record of its own. Nothing was changed")
        return dict(settings)

    async def check_place(self) -> None:
        """Check that the place holds nothing else: a record owns only the objects that it has made, by their names.

        Raises:
            Conflict: the place holds something else, or the record of another target.
            Corruption: the object with the name of a record is something else.
        """
        settings = await self.settings()
        foreign = []
        async for info in self._storage.list(self._prefix):
            is_own = self._owns(info.key) and (settings is not None or info.key.startswith(_BEFORE_JOB, len(self._prefix)))
            if not is_own and not info.key.startswith(PROBE_PREFIX):
                foreign.append(info.key)
            if len(foreign) > _NAMED:
                break
        if foreign:
            named = ", ".join(map(repr, foreign[:_NAMED])) + (", …" if len(foreign) > _NAMED else "")
            raise Conflict(
                f"{self.shown} cannot be the place of a record: it holds other objects ({named}): name an empty one. Nothing was changed"
            )

    async def is_of_unfinished_work(self, *, is_there: bool) -> bool:
        """Return whether a run has begun that has not ended; ``is_there``: all documents of the target were written once, so that only the
        announcement of a run shows that it has not ended.
        """
        kinds = _BEGUN if is_there else _BEFORE_JOB
        return any([info.key.startswith(kinds, len(self._prefix)) async for info in self._storage.list(self._prefix)])

    def _owns(self, key: str) -> bool:
        return _OWN.fullmatch(key.removeprefix(self._prefix)) is not None

    async def begin(self, settings: dict[str, Any]) -> bool:
        """Record the settings; return ``False`` if another driver won the race."""
        target = {} if self._target.rstrip("/") == self._implied else {"target": self._target}
        data = json.dumps({"format": FORMAT, **target, "settings": settings}, indent=1).encode()
        condition = IF_ABSENT if self._storage.capabilities.create_if_absent else UNCONDITIONAL
        try:
            await self._storage.write(self._prefix + _JOB, [data], len(data), condition)
        except ConditionFailed:
            return False
        return True

    async def erase(self) -> None:
        """Remove the objects of the record. The settings go last, so that the rest is never without them."""
        keys = [info.key async for info in self._storage.list(self._prefix) if self._owns(info.key)]
        await self._storage.delete_many([key for key in keys if key != self._prefix + _JOB])
        await self._storage.delete_many([self._prefix + _JOB])

    # -- units ---------------------------------------------------------------------------------------------------------

    async def recorded(self) -> Recorded:
        """Return what any driver has recorded."""
        return self._recorded(await self._objects(_UNITS, _BEGUN))

    def _recorded(self, objects: Mapping[str, list[bytes]]) -> Recorded:
        found = Recorded()
        for key, lines in objects.items():
            try:
                for line in lines:
                    if self._is(key, _UNITS):
                        self._add_unit(found, *json.loads(line))
                    elif self._is(key, _BEGUN):
                        found.announced.add_line(line)
            except (ValueError, TypeError, OverflowError) as exc:
                raise self._damaged(key) from exc
        return found

    def _add_unit(
        self,
        found: Recorded,
        path: str | None,
        name: str,
        fingerprint: str,
        contents: str,
        run: int,
        names: list[str],
        sizes: list[int],
        versions: list[int],
    ) -> None:
        entry = Finished(fingerprint, contents, run, Made.of(f"{path}/" if path else "", names, sizes, versions))
        last = found.units.setdefault((path, name), entry)
        if last is not entry:
            found.older.append(min(last, entry, key=lambda one: one.run))
            found.units[path, name] = entry if last.run <= entry.run else last

    def _is(self, key: str, kind: str) -> bool:
        return key.startswith(kind, len(self._prefix))

    async def _objects(self, *kinds: str) -> dict[str, list[bytes]]:
        """Return the lines of all objects of some kinds, by key; by one listing, and one round of reads."""
        for _ in range(_LOOKS):
            keys = [info.key async for info in self._storage.list(self._prefix) if info.key.startswith(kinds, len(self._prefix))]
            outcomes = await self._storage.read([Read(key, (EVERYTHING,)) for key in keys]) if keys else []
            if not any(isinstance(outcome, Absent) for outcome in outcomes):
                break  # or else one was merged into another in between, by its driver
        objects: dict[str, list[bytes]] = {}
        for outcome, key in zip(outcomes, keys, strict=True):
            outcome = unless_failed(outcome)
            if isinstance(outcome, Found):
                objects[key] = [line for line in bytes(outcome.buffers[0]).splitlines() if line.strip()]
        return objects

    async def begin_run(self) -> Recorded:
        """Return ``recorded`` for the beginning of a run; the units of this run take precedence."""
        objects = await self._objects(_UNITS, _BEGUN)
        found = self._recorded(objects)
        self._run = 1 + max((entry.run for entry in (*found.units.values(), *found.older)), default=0)
        self._begun = [key for key in objects if self._is(key, _BEGUN)]
        return found

    async def announce(self, announced: Announced) -> None:
        """Record what this run is about to write, before it does."""
        if announced:
            self._announced = f"{self._prefix}{_BEGUN}{uuid4().hex}.jsonl"
            await self._write_lines(self._announced, announced.lines())

    async def end_run(self) -> None:
        """Remove the announcements of this run: everything that it has written is recorded."""
        if self._announced is not None:
            await self._storage.delete(self._announced, UNCONDITIONAL)
            self._announced = None

    def add(self, name: UnitName, done: UnitDone) -> None:
        self._new.append((name, Finished(done.fingerprint, done.contents, self._run, done.made)))

    @property
    def is_due(self) -> bool:
        """True if enough has been added to be written."""
        return len(self._new) >= self.units_per_segment or (bool(self._new) and self._clock() - self._flushed >= _SECONDS_A_SEGMENT)

    async def flush(self) -> None:
        """Write the units that were added."""
        self._flushed = self._clock()
        if self._new:
            await self._write(self._new)
            self._written += self._new
            self._new = []

    async def merge(self, only: set[UnitName] | None = None) -> None:
        """Merge everything that this driver has written into one object. With ``only``, merge the whole record instead, and keep just
        those units: older results, and announcements of other runs that were not carried out, are removed too.
        """
        old = list(self._mine)
        if only is None:
            if len(old) > 1:
                await self._write(self._written)
                await self._storage.delete_many(old)
                self._mine = self._mine[-1:]
            return
        objects = await self._objects(_UNITS)
        recorded = self._recorded(objects)
        kept = [(name, entry) for name, entry in recorded.units.items() if name in only]
        if len(objects) > 1 or len(kept) != len(recorded.units) or recorded.older:
            await self._write(kept)
            await self._storage.delete_many([*objects])
        await self._storage.delete_many(self._begun)
        self._begun = []

    # -- failures ------------------------------------------------------------------------------------------------------

    async def note_failed(self, part: Part, failed: Sequence[FailedUnit]) -> None:
        """Record what this run of a part could not do, instead of the failures of the run before."""
        key = f"{self._prefix}{_FAILED}{part.number}-of-{part.of}.jsonl"
        if not failed:
            await self._storage.delete(key, UNCONDITIONAL)
            return
        await self._write_lines(key, [json.dumps([unit.path, unit.name, unit.error]) for unit in failed])

    async def failed(self) -> set[UnitName]:
        """Return the units that the last runs could not do."""
        names: set[UnitName] = set()
        for key, lines in (await self._objects(_FAILED)).items():
            try:
                names.update((path, name) for path, name, _ in map(json.loads, lines))
            except ValueError as exc:
                raise self._damaged(key) from exc
        return names

    async def _write(self, entries: list[tuple[UnitName, Finished]]) -> None:
        if not entries:
            return
        key = f"{self._prefix}{_UNITS}{uuid4().hex}.jsonl"
        await self._write_lines(key, [_line(name, entry) for name, entry in entries])
        self._mine.append(key)

    async def _write_lines(self, key: str, lines: list[str]) -> None:
        data = ("\n".join(lines) + "\n").encode()
        await self._storage.write(key, [data], len(data), UNCONDITIONAL)

    def _damaged(self, key: str) -> Corruption:
        return Corruption(f"{key!r} of the record at {self.shown} is damaged: give overwrite=True to begin again")


def _line(name: UnitName, entry: Finished) -> str:
    made = entry.made
    said = [*name, entry.fingerprint, entry.contents, entry.run, made.relative(), made.sizes.tolist(), made.versions.tolist()]
    return json.dumps(said, separators=(",", ":"))


# -- which recorded units still hold -------------------------------------------------------------------------------------


def _no_numbers() -> npt.NDArray[np.int64]:
    return np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class TargetObjects:
    """One listing of the target: 24 bytes per object, by the hashes of the keys, and the keys of objects that are not recorded."""

    hashes: npt.NDArray[np.int64] = field(default_factory=_no_numbers)
    """The hashes of the keys, ascending."""
    nbytes: npt.NDArray[np.uint64] = field(default_factory=lambda: _no_numbers().astype(np.uint64))
    versions: npt.NDArray[np.uint64] = field(default_factory=lambda: _no_numbers().astype(np.uint64))
    unknown: list[str] = field(default_factory=list)

    def has(self, made: Made) -> bool:
        """Return whether all these objects exist, with their sizes and, if known, their versions."""
        if not len(made):
            return True
        hashes = made.hashes()
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        if not len(self.hashes) or (self.hashes[at] != hashes).any() or (self.nbytes[at] != made.sizes).any():
            return False
        return not made.tells_versions or bool((self.versions[at] == made.versions).all())


async def list_target(storage: Storage, recorded: Recorded) -> TargetObjects:
    """Return the objects at the target; nothing, without a request, if nothing is recorded. Raises ``StorageError`` if a request failed."""
    if not recorded:
        return TargetObjects()
    known = np.unique(np.concatenate([_no_numbers(), *(entry.made.hashes() for entry in (*recorded.units.values(), *recorded.older))]))
    found = TargetObjects()
    hashes, nbytes, versions = array("q"), array("Q"), array("Q")
    async for page in pages(storage, ""):
        here = np.array([hash(info.key) for info in page], dtype=np.int64)
        hashes.extend(here.tolist())
        nbytes.extend(info.nbytes for info in page)
        versions.extend(version_digest(info.generation) for info in page)
        found.unknown += [info.key for info, is_known in zip(page, np.isin(here, known).tolist(), strict=True) if not is_known]
    found.hashes = np.array(hashes, dtype=np.int64)
    order = np.argsort(found.hashes)
    found.hashes = found.hashes[order]
    found.nbytes, found.versions = np.array(nbytes, dtype=np.uint64)[order], np.array(versions, dtype=np.uint64)[order]
    return found


async def intact_units(storage: Storage, there: TargetObjects, units: Iterable[AnyUnit], recorded: Recorded) -> dict[UnitName, Finished]:
    """Return the records of those units that need not be done again.

    A unit is done again if an object of the source has changed or has no version, or an object of the target is not the one that was
    made. Objects of a target without versions are read again and compared by their bytes.
    Raises ``StorageError`` if a request failed.
    """
    intact: dict[UnitName, Finished] = {}
    for unit in units if recorded.units else ():
        name = unit.unit_name
        entry = recorded.units.get(name)
        if entry is None or not unit.is_versioned or entry.fingerprint != unit.fingerprint or not there.has(entry.made):
            continue
        if entry.made.tells_versions or entry.contents == await digest_of_contents(storage, entry.made):
            intact[name] = entry
    return intact
