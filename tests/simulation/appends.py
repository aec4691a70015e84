"""One run of appends: clients append rows to the arrays of one group, and die at that; readers look meanwhile.

Checked is at every moment what is stored, and what readers see who take their time and know only the format: all arrays have the same rows,
none is a fill value, a row that was seen never changes, and appends are there whole or not at all. What was acknowledged is there once, in
its place, in the order of the reservations. When nothing fails any more, the next append waits for the dead no longer than for a lease.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from itertools import count, groupby, repeat
from typing import Any, TypeAlias, TypeVar

from shardstore.engine.actions import Revise
from shardstore.engine.appending.line import Append, Place
from shardstore.engine.appending.view import GrownView
from shardstore.engine.engine import Engine
from shardstore.engine.options import V3, EngineOptions
from shardstore.errors import Corruption, ShardStoreError, WriteOutcomeUnknown
from shardstore.format.append_record import SUFFIX, AppendRecord
from shardstore.format.shard_index import IndexFormat
from shardstore.model.ranges import EVERYTHING, ByteRange, ByteRequest, ByteSuffix, cut
from shardstore.presented.flavours import Presented
from shardstore.storage.base import Found, Read, Storage, read_one
from tests.documents import array_v3, sharding_codec
from tests.simulation.histories import Limits, Run
from tests.simulation.loop import Process
from tests.simulation.network import Conduct
from tests.simulation.operators import verified
from tests.simulation.recorded import decoded, encoded
from tests.simulation.registers import Violation
from tests.simulation.world import Kind

T = TypeVar("T")
Fetch: TypeAlias = Callable[[str, ByteRequest], Awaitable[bytes | None]]
Rows: TypeAlias = list[int | None]
"""What an array has in its rows: the number of the append; 0: a fill value; ``None``: not looked at."""

ROWS = {"time": 4, "a": 3, "b": 3}
"""The rows of a chunk. The array ``b`` lies in shards of two by two chunks, and grows along its last dimension, the other two do not."""
LINES = {"time": ("",), "a": ("",), "b": ("0/", "1/")}
"""The chunks of the dimensions before, as keys have them."""
_CODECS = [{"name": "bytes"}, {"name": "gzip", "configuration": {"level": 1}}]
_MOST_LATE_SECONDS = 2.0
_LAST_ROWS = 12
_RECORD = f"root/time/time{SUFFIX}"


def documents(index_format: IndexFormat) -> dict[str, bytes]:
    """Return the documents of three empty arrays, and of their group with consolidated metadata."""
    inside = {name: array_v3([0], [ROWS[name]], codecs=_CODECS, dimension_names=["time"], attributes={}) for name in ("time", "a")}
    codec = sharding_codec([1, ROWS["b"]], _CODECS, index_location=index_format.location)
    inside["b"] = array_v3([2, 0], [2, 2 * ROWS["b"]], codecs=[codec], dimension_names=["x", "time"], attributes={})
    consolidated = {"kind": "inline", "must_understand": False, "metadata": inside}
    root = {"zarr_format": 3, "node_type": "group", "attributes": {}, "consolidated_metadata": consolidated}
    return {
        key: json.dumps(document).encode()
        for key, document in ({f"{name}/zarr.json": each for name, each in inside.items()} | {"zarr.json": root}).items()
    }


def at_once(look: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns that waits for nothing."""
    try:
        look.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("it waits")


class Appending(Run):
    """One run of clients that append."""

    pause_seconds = (1.0, 5.0, 30.0)  # who holds a lock of a file meanwhile holds up all, and those ask several times a second

    def __init__(self, seed: int, kind: Kind, limits: Limits, *, keeps_trace: bool = False) -> None:
        super().__init__(seed, kind, replace(limits, changes=False, operators=False), keeps_trace=keeps_trace)
        self.base = EngineOptions(chunks_per_shard=None)
        self.index_format = IndexFormat((2, 2), location=self.rng.choice(["end", "end", "start"]))
        self.lease_seconds = self.rng.choice([2.0, 6.0])
        self.counts = [0]
        """How many rows each append has, by its number."""
        self.rows: list[int] = []
        """What is in each row, as far as anybody has seen."""
        self.acknowledged: dict[int, Place] = {}
        self.refused: set[int] = set()
        """The appends of which nothing is stored, by their errors."""
        self.reserved: dict[str, int] = {}
        """The ids of reservations in their order."""
        # On S3 equal bytes of a chunk without a shard are one version, which a late request may find again.
        self.nonces = count() if kind in ("aws", "s3", "weak") else repeat(0)
        self.broken: Violation | None = None

    def options(self) -> EngineOptions:
        return replace(super().options(), present=V3)

    @property
    def operations(self) -> int:
        return self.limits.operations - self.left

    async def _main(self) -> None:
        conduct = self.calm()
        await self._by("maker", self._make)
        self.world.on_change = self._at_this_moment
        self.storm(conduct)
        for _ in range(self.rng.choice([1, 2])):
            await self._phase()
        self.calm(Conduct(mean_seconds=0.001))
        await self._by("next", self._append_in_time)
        await asyncio.sleep(2 * conduct.latest_seconds)  # what is under way arrives
        await self._by("checker", self._last_look)
        if self.broken is not None:
            raise self.broken

    async def _by(self, name: str, main: Callable[[Process], Coroutine[Any, Any, None]]) -> None:
        process = self.world.process(name)
        await self.world.loop.start(process, partial(main, process))

    async def _make(self, process: Process) -> None:
        storage = self.world.storage(process)
        for key, data in documents(self.index_format).items():
            await storage.write(key, [data], len(data), storage.capabilities.condition_on(None))

    async def _work(self, process: Process, begin: Callable[[], Presented], left: list[int]) -> Presented:
        engine = begin()
        rng = random.Random(self.rng.random())
        while left[0] > 0 and self.left > 0:
            left[0] -= 1
            self.left -= 1
            match rng.choice(["append", "append", "look", "read"]):
                case "append":
                    await self._append(process, engine, rng.randint(1, 7))
                case "look":
                    await self._look(process, partial(_fetch, self.world.storage(process)), rng)
                case _:
                    await self._look(process, partial(_get, engine), rng, as_stored=False)
        return engine

    # -- appends -------------------------------------------------------------------------------------------------------

    async def _append(self, process: Process, engine: Presented, rows: int) -> bool:
        """Append rows, as ``shardstore.append`` does; return whether it was acknowledged."""
        assert isinstance(engine, Engine)
        number = len(self.counts)
        self.counts.append(rows)
        self.world.trace.note(f"{process.name} appends {rows} rows of {number}")
        try:
            line = engine.append_line("", "time", self.lease_seconds)
            await line.find()
            one = Append(line, rows)
            try:
                place: Place | None = await one.begin()
                while place is not None:
                    self.world.trace.note(f"{process.name} has {place}")
                    place = await self._stored(process, engine, one, place, number)
            finally:
                await one.end()
        except ShardStoreError as exc:
            self.recorder.failed("append", exc)
            if "another program" in str(exc):
                raise Violation(f"append: {exc}") from exc
            if not isinstance(exc, WriteOutcomeUnknown):
                self.refused.add(number)
            return False
        assert one.place is not None
        self.acknowledged[number] = one.place
        self.world.trace.note(f"{process.name} appended {number}: {one.place}")
        self.recorder.history.outcomes["appended"] += 1
        return True

    async def _stored(self, process: Process, engine: Engine, one: Append, place: Place, number: int) -> Place | None:
        view = GrownView(one.line.storage, one.line.documents.grown(place.stop), one.line.key, place)
        options = replace(engine.options, chunks_per_shard=None, strategy=self.limits.strategy or "keep")
        through = self.world.engine(process, options, view)
        updates = []
        for name, lines in LINES.items():
            for i in range(place.start // ROWS[name], -(-place.stop // ROWS[name])):
                own = range(max(place.start - i * ROWS[name], 0), min(place.stop - i * ROWS[name], ROWS[name]))
                updates += [(f"{name}/c/{line}{i}", Revise(partial(self._with_rows, own, ROWS[name], number))) for line in lines]
        try:
            for error in await through.update_many(updates):
                if error is not None:
                    raise error
        except ShardStoreError:
            elsewhere = await one.failed()
            if elsewhere is None:
                raise
            self.recorder.history.outcomes["stored elsewhere"] += 1
            return elsewhere
        return await one.stored()

    def _with_rows(self, own: range, rows: int, number: int, old: bytes | None) -> bytes:
        """Return a chunk in which the rows ``own`` are those of an append."""
        return encoded(json.dumps([number if i in own else row for i, row in enumerate(_decoded(old, rows))] + [next(self.nonces)]))

    async def _append_in_time(self, process: Process) -> None:
        """The next append ends, and does not wait longer than for a lease."""
        began = self.world.loop.time()
        if not await self._append(process, self.world.engine(process, self.options()), 2):
            raise Violation("nothing fails any more, and nothing can be appended")
        took = self.world.loop.time() - began
        if took > self.lease_seconds + _MOST_LATE_SECONDS:
            raise Violation(f"the next append took {took:.1f} s, and a lease is {self.lease_seconds} s")

    # -- what is seen --------------------------------------------------------------------------------------------------

    async def _seen(self, fetch: Fetch, *, consolidated: bool = True, as_stored: bool = True, since: int = 0) -> dict[str, Rows]:
        """Return what a program sees of the chunks that have row ``since`` or later ones; ``as_stored``: it knows only the format."""
        seen: dict[str, Rows] = {}
        shown = json.loads(await _there(fetch, "zarr.json"))["consolidated_metadata"]["metadata"]
        for name, lines in LINES.items():
            document = shown[name] if consolidated else json.loads(await _there(fetch, f"{name}/zarr.json"))
            length = document["shape"][-1]
            first = max(since, 0) // ROWS[name]
            for line in lines:
                rows: Rows = [None for _ in range(first * ROWS[name])]
                for i in range(first, -(-length // ROWS[name])):
                    in_shard = as_stored and name == "b"
                    data = await (self._of_shard(fetch, int(line[0]), i) if in_shard else fetch(f"{name}/c/{line}{i}", EVERYTHING))
                    rows += _decoded(data, ROWS[name])
                seen[f"{name}/{line}"] = rows[:length]
        return seen

    async def _of_shard(self, fetch: Fetch, line: int, i: int) -> bytes | None:
        """Return a chunk of the array ``b``: the index of its shard first, then its bytes, of whatever version."""
        key, nbytes = f"b/c/0/{i // 2}", self.index_format.nbytes
        data = await fetch(key, ByteSuffix(nbytes) if self.index_format.location == "end" else ByteRange(0, nbytes))
        try:
            place = None if data is None else self.index_format.decode(memoryview(data)).location(2 * line + i % 2, 2**60)
        except Corruption as exc:
            raise Violation(f"the index of {key} was read as {data!r}: {exc}") from exc
        return None if place is None else await fetch(key, ByteRange(place.offset, place.offset + place.nbytes))

    async def _look(self, process: Process, fetch: Fetch, rng: random.Random, *, as_stored: bool = True) -> None:
        try:
            seen = await self._seen(fetch, as_stored=as_stored, since=len(self.rows) - rng.choice([1, 6, 12]))
        except ShardStoreError as exc:
            self.recorder.failed("look", exc)
            return
        self.world.trace.note(f"{process.name} saw {seen}")
        self.recorder.history.outcomes["seen"] += 1
        self._check(seen, process.name)

    def _at_this_moment(self, name: str) -> None:
        """Check what is stored now, after an object has changed: in the last rows, which others could be written over."""
        if self.broken is not None:
            return
        objects = self.world.stored()
        try:
            if name.endswith(SUFFIX):
                for one in AppendRecord.parse(name, objects[_RECORD]).open:
                    self.reserved.setdefault(one.id, len(self.reserved))
            else:
                self._check_stored(objects, since=len(self.rows) - _LAST_ROWS)
        except Violation as exc:
            self.broken = exc
            self.world.trace.note(f"broken: {exc}")

    def _check_stored(self, objects: Mapping[str, bytes], *, since: int = 0) -> None:
        """Check all rows, or those from ``since`` on, as objects have them at one moment."""

        async def fetch(key: str, asked: ByteRequest) -> bytes | None:
            data = objects.get(f"root/{key}")
            return data if data is None or asked == EVERYTHING else bytes(cut(memoryview(data), asked))

        each = at_once(self._seen(fetch, consolidated=False, since=since))
        self.rows += [row or 0 for row in max(each.values(), key=len)[len(self.rows) :]]
        self._check(each, "who looks now", is_one=False)
        self._check(at_once(self._seen(fetch, since=since)), "who looks now")
        there = [(number, len(list(same))) for number, same in groupby(self.rows)]
        numbers = [number for number, _ in there]
        if broken := [number for number, rows in there if (rows, numbers.count(number)) != (self.counts[number], 1)]:
            raise Violation(f"the rows of {broken} are not there once and whole: {self.rows}")

    def _check(self, seen: dict[str, Rows], who: str, *, is_one: bool = True) -> None:
        """Check that arrays show the rows that are there; ``is_one``: all of the same length."""
        if self.broken is not None:
            raise self.broken
        if is_one and len({len(rows) for rows in seen.values()}) > 1:
            raise Violation(f"{who} saw arrays of different lengths: {seen}")
        for name, rows in seen.items():
            for i, row in enumerate(rows):
                if row is not None and (row == 0 or self.rows[i : i + 1] != [row]):
                    raise Violation(f"{who} saw {row} in row {i} of {name}, of rows {self.rows}")

    def forget_unacknowledged(self) -> None:
        del self.rows[max((place.stop for place in self.acknowledged.values()), default=0) :]

    async def _last_look(self, process: Process) -> None:
        await self._append_in_time(process)
        self._check_stored(self.world.stored())
        if stored := self.refused.intersection(self.rows):
            raise Violation(f"{sorted(stored)} are stored, and the programs were told that they are not: {self.rows}")
        for number, place in self.acknowledged.items():
            if self.rows[place.start : place.stop] != [number] * self.counts[number]:
                raise Violation(f"{number} was appended as {place}, and the rows are {self.rows}")
        by_place = sorted(self.acknowledged.values(), key=lambda place: place.start)
        if by_place != sorted(by_place, key=lambda place: self.reserved[place.id]):
            raise Violation(f"{by_place} are not in the order of their reservations {self.reserved}")
        await self._look(process, partial(_fetch, self.world.storage(process)), self.rng)
        await verified(self.world.storage(process))


@lru_cache(1000)
def _decoded(data: bytes | None, rows: int) -> tuple[int, ...]:
    """Return the rows of a chunk."""
    found = [0] * rows if data is None else json.loads(decoded(data))
    return tuple(found[:rows])


async def _there(fetch: Fetch, key: str) -> bytes:
    data = await fetch(key, EVERYTHING)
    if data is None:
        raise Violation(f"{key} is not there")
    return data


async def _fetch(storage: Storage, key: str, asked: ByteRequest) -> bytes | None:
    """Read by one request, of whatever version."""
    outcome = await read_one(storage, Read(key, (asked,)))
    return bytes(outcome.buffers[0]) if isinstance(outcome, Found) else None


async def _get(engine: Presented, key: str, asked: ByteRequest) -> bytes | None:
    """Read as a client of this package."""
    value = await engine.get((key, asked))
    return None if value is None else bytes(value)
