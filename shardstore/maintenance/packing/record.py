"""What a run has finished, kept beside the target: so that the next one goes on there, and knows a source that has changed.

::

    <target>.pack/                  or .shardstore-pack/ in a target that has no name of its own
        job.json                    {"format": 1, "settings": {…}}: written first, by whoever begins
        units-<random>.jsonl        ["path/of/array", 17, "<fingerprint>", 1048576, "<check>", <version>, 1], a line for each unit
                                    that is done; the last number counts the runs, and of a unit that was done again the latest counts
        failed-1-of-1.jsonl         ["path/of/array", 18, "<error>"], what the last run of a part could not do

Each driver writes objects of its own, and none is ever changed: any number of parts may run at once. A unit that was done and is not
recorded, because its driver died in between, is done again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from shardstore.errors import Conflict, Corruption
from shardstore.maintenance.execution import Part
from shardstore.maintenance.packing.report import FailedUnit
from shardstore.maintenance.packing.writing import UnitDone
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import ConditionFailed, Failed, Found, Read, Storage

FORMAT = 1
SUFFIX = ".pack"
"""Behind the name of the target."""
INSIDE = ".shardstore-pack/"
"""In a target that has no name: a bucket, the root of an archive."""

_JOB = "job.json"
_UNITS = "units-"
_FAILED = "failed-"
_SECONDS_A_SEGMENT = 2.0
_UNITS_A_SEGMENT = 1000

UnitName = tuple[str | None, int]
"""The path of an array, or ``None`` for other objects, and the number of a unit."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A unit as it is recorded; see ``UnitDone``."""

    fingerprint: str
    nbytes: int
    check: str
    version: int
    """``version_digest`` of the object that was written, 0 where that is not known, or it was not one."""
    run: int
    """By which run it was done, of those that knew of each other: parts at the same time have the same number."""


class Record:
    """The record at ``prefix`` of ``storage``."""

    def __init__(self, storage: Storage, prefix: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._storage = storage
        self._prefix = prefix
        self._clock = clock
        self._new: list[tuple[UnitName, Finished]] = []
        self._mine: list[str] = []
        self._written: list[tuple[UnitName, Finished]] = []
        self._flushed = clock()
        self._run = 1

    @property
    def shown(self) -> str:
        """Where it is, for people."""
        return f"{self._storage.url.rstrip('/')}/{self._prefix}".rstrip("/")

    # -- beginning -----------------------------------------------------------------------------------------------------

    async def settings(self) -> dict[str, Any] | None:
        """What was to be done by whoever began, or ``None`` where nobody has.

        Raises:
            Corruption: there is something else.
        """
        (outcome,) = await self._storage.read([Read(self._prefix + _JOB, (EVERYTHING,))])
        if isinstance(outcome, Failed):
            raise outcome.error
        if not isinstance(outcome, Found):
            return None
        try:
            job = json.loads(bytes(outcome.buffers[0]))
            known = job["format"] == FORMAT
            settings = job["settings"]
        except (ValueError, KeyError, TypeError) as exc:
            raise self._damaged(_JOB) from exc
        if not known:
            raise Conflict(f"the record at {self.shown} is of format {job['format']!r}, which this version does not know")
        return dict(settings)

    async def begin(self, settings: dict[str, Any]) -> bool:
        """Write down what is to be done; ``False`` where another driver was faster."""
        data = json.dumps({"format": FORMAT, "settings": settings}, indent=1).encode()
        condition = IF_ABSENT if self._storage.capabilities.create_if_absent else UNCONDITIONAL
        try:
            await self._storage.write(self._prefix + _JOB, [data], len(data), condition)
        except ConditionFailed:
            return False
        return True

    async def erase(self) -> None:
        """Remove it; what was to be done last, so that it is not taken for none before it is."""
        keys = [info.key async for info in self._storage.list(self._prefix)]
        await self._storage.delete_many([key for key in keys if key != self._prefix + _JOB])
        await self._storage.delete_many([self._prefix + _JOB])

    # -- units ---------------------------------------------------------------------------------------------------------

    async def finished(self) -> dict[UnitName, Finished]:
        """Every unit that any driver has recorded, but for those that this one has not written down yet."""
        keys = await self._segments()
        found: dict[UnitName, Finished] = {}
        for outcome, key in zip(await self._storage.read([Read(key, (EVERYTHING,)) for key in keys]) if keys else [], keys, strict=True):
            if isinstance(outcome, Failed):
                raise outcome.error
            if not isinstance(outcome, Found):
                continue  # merged into another meanwhile, by its driver
            try:
                for line in bytes(outcome.buffers[0]).splitlines():
                    path, number, *rest = json.loads(line)
                    entry = Finished(*rest)
                    if (path, number) not in found or found[path, number].run <= entry.run:
                        found[path, number] = entry
            except (ValueError, TypeError) as exc:
                raise self._damaged(key) from exc
        return found

    async def begin_run(self) -> dict[UnitName, Finished]:
        """``finished``, at the beginning of a run: what this one adds counts more."""
        found = await self.finished()
        self._run = 1 + max((entry.run for entry in found.values()), default=0)
        return found

    async def _segments(self) -> list[str]:
        return [info.key async for info in self._storage.list(f"{self._prefix}{_UNITS}")]

    def add(self, path: str | None, done: UnitDone) -> None:
        self._new.append(((path, done.number), Finished(done.fingerprint, done.nbytes, done.check, done.version, self._run)))

    @property
    def is_due(self) -> bool:
        """Whether enough has come together to be written down."""
        return len(self._new) >= _UNITS_A_SEGMENT or (bool(self._new) and self._clock() - self._flushed >= _SECONDS_A_SEGMENT)

    async def flush(self) -> None:
        """Write down what was added."""
        self._flushed = self._clock()
        if self._new:
            await self._write(self._new)
            self._written += self._new
            self._new = []

    async def merge(self, only: set[UnitName] | None = None) -> None:
        """Make one object of all that this driver has written; of everything that is recorded, and is in ``only``, where that is given."""
        old = list(self._mine)
        if only is None:
            if len(old) > 1:
                await self._write(self._written)
                await self._storage.delete_many(old)
                self._mine = self._mine[-1:]
            return
        keys = await self._segments()
        finished = await self.finished()
        kept = [(name, entry) for name, entry in finished.items() if name in only]
        if len(keys) > 1 or len(kept) != len(finished):
            await self._write(kept)
            await self._storage.delete_many(keys)

    # -- failures ------------------------------------------------------------------------------------------------------

    async def note_failed(self, part: Part, failed: Sequence[FailedUnit]) -> None:
        """What this run of a part could not do, instead of what the one before could not."""
        key = f"{self._prefix}{_FAILED}{part.number}-of-{part.of}.jsonl"
        if not failed:
            await self._storage.delete(key, UNCONDITIONAL)
            return
        lines = [json.dumps([unit.path, unit.number, unit.error], ensure_ascii=True) for unit in failed]
        data = ("\n".join(lines) + "\n").encode()
        await self._storage.write(key, [data], len(data), UNCONDITIONAL)

    async def failed(self) -> set[UnitName]:
        """What the last runs could not do."""
        keys = [info.key async for info in self._storage.list(f"{self._prefix}{_FAILED}")]
        names: set[UnitName] = set()
        for outcome, key in zip(await self._storage.read([Read(key, (EVERYTHING,)) for key in keys]) if keys else [], keys, strict=True):
            if isinstance(outcome, Failed):
                raise outcome.error
            try:
                lines = bytes(outcome.buffers[0]).splitlines() if isinstance(outcome, Found) else []
                names |= {(path, number) for path, number, _ in map(json.loads, lines)}
            except ValueError as exc:
                raise self._damaged(key) from exc
        return names

    async def _write(self, entries: list[tuple[UnitName, Finished]]) -> None:
        lines = [json.dumps([path, number, e.fingerprint, e.nbytes, e.check, e.version, e.run]) for (path, number), e in entries]
        data = ("\n".join(lines) + "\n").encode()
        key = f"{self._prefix}{_UNITS}{uuid4().hex}.jsonl"
        await self._storage.write(key, [data], len(data), UNCONDITIONAL)
        self._mine.append(key)

    def _damaged(self, key: str) -> Corruption:
        return Corruption(f"{key!r} of the record at {self.shown} is damaged: overwrite the target, or remove both and begin again")
