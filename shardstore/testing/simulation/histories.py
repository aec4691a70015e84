"""One run: clients work at random on one store until their time is over; then all is checked that they were promised.

Checked are: every chunk is a linearisable register; what one batch wrote to one shard appears at once; afterwards a client that has seen
nothing reads what can be there, and so does a reader of the stored bytes that knows only their format.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from shardstore.engine.actions import ERASE, SetValue
from shardstore.engine.engine import Engine
from shardstore.engine.options import EngineOptions
from shardstore.errors import Conflict, ShardStoreError, StorageError, WriteOutcomeUnknown
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.local.range_locks import DIRECTORY_LOCK
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.requests.outcomes import PROBE_PREFIX
from shardstore.testing.simulation.calls import FAULTS as DISK_FAULTS
from shardstore.testing.simulation.calls import Habits
from shardstore.testing.simulation.loop import Process
from shardstore.testing.simulation.network import FAULTS as NETWORK_FAULTS
from shardstore.testing.simulation.network import Conduct
from shardstore.testing.simulation.registers import NEVER, Operation, TooLong, Value, explanation
from shardstore.testing.simulation.world import Kind, World

SHAPE, PER_SHARD = (4, 4), (2, 2)  # chunks
FAULTS = (*NETWORK_FAULTS, *DISK_FAULTS)
CLIENTS = 3
OPERATIONS = 12  # of each client


@dataclass(frozen=True, slots=True)
class Limits:
    """How a run is made smaller than it would be."""

    operations: int = CLIENTS * OPERATIONS
    clients: int = CLIENTS
    without: tuple[str, ...] = ()
    """Faults that do not happen."""
    kills: bool = True
    """Whether clients are killed and paused."""

    def __str__(self) -> str:
        words = [f"--operations {self.operations}", f"--clients {self.clients}"]
        words += [f"--without {','.join(self.without)}"] if self.without else []
        return " ".join([*words, *([] if self.kills else ["--no-kills"])])


class Violation(Exception):
    """A promise was broken."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one call wrote to one shard, by key."""

    keys: tuple[str, ...]
    values: tuple[Value, ...]


@dataclass
class History:
    """What the clients of one run saw."""

    operations: defaultdict[str, list[Operation]] = field(default_factory=lambda: defaultdict(list))
    """By key."""
    seen_together: list[tuple[tuple[str, Value], ...]] = field(default_factory=list)
    """Chunks of one shard that came from one read."""
    batches: list[Batch] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Result:
    """What one run was."""

    seed: int
    kind: Kind
    digest: str
    operations: int
    exchanges: int
    kills: int
    pauses: int
    faults: Counter[str]
    outcomes: Counter[str]
    virtual_seconds: float
    steps: int
    unchecked: int
    """How many chunks had too many operations at once for the search: nothing is known of these."""
    violation: str | None = None
    lines: Sequence[str] = ()


def document(shape: Sequence[int]) -> bytes:
    """Return the document of an array of chunks that may have any length."""
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(shape),
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1] * len(shape)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "bytes"}, {"name": "gzip", "configuration": {"level": 1}}],
            "attributes": {},
        }
    ).encode()


def habits_of(rng: random.Random, habits: Habits) -> Habits:
    """Return how the disk is in a run: faultless, or with some of the faults."""
    return replace(habits, fails=rng.choice([0.0, 0.0, 0.0005, 0.005]), short=rng.choice([0.0, 0.2]))


def conduct_of(rng: random.Random) -> Conduct:
    """Return how the network is in a run: calm, or with some of the faults."""
    if rng.random() < 0.15:
        return Conduct()
    likely = {name: rng.choice([0.0, 0.0, 0.01, 0.05, 0.2]) for name in NETWORK_FAULTS}
    return Conduct(mean_seconds=rng.choice([0.002, 0.02, 0.2]), latest_seconds=rng.choice([1.0, 30.0, 3600.0]), **likely)


class Run:
    """One run of clients in a world."""

    def __init__(self, seed: int, kind: Kind, limits: Limits, *, keeps_trace: bool = False) -> None:
        self.rng = random.Random(f"run {seed}")
        self.limits = limits
        self.left = limits.operations
        conduct = conduct_of(random.Random(f"conduct {seed}"))
        self.writes_alone = kind == "bare"  # where nothing is conditional one client writes; what it gives up must not be late
        without = (*(name for name in limits.without if name in NETWORK_FAULTS), *(["late"] if self.writes_alone else []))
        conduct = replace(conduct, **dict.fromkeys(without, 0.0))
        self.world = World(seed, kind, conduct, keeps_trace=keeps_trace)
        self.habits = Habits()
        if (calls := self.world.calls) is not None:
            self.habits = replace(
                habits_of(random.Random(f"habits {seed}"), calls.habits),
                **{name: 0.0 for name in limits.without if name in ("fails", "short")},
            )
        self.history = History()
        self.keys = [f"a/c/{i}/{j}" for i in range(SHAPE[0]) for j in range(SHAPE[1])]
        self.written = 0
        self.unchecked = 0
        self.base = EngineOptions(
            chunks_per_shard=PER_SHARD,
            index_location=self.rng.choice(["end", "end", "start"]),
            index_checksum=self.rng.random() < 0.9,
        )
        self.can_append = kind in ("aws", "s3", "local") and self.base.index_location == "end" and self.base.index_checksum
        # Few keys, so that clients meet.
        self.hot = self.rng.sample(self.keys, self.rng.choice([2, 4, 16]))

    def options(self) -> EngineOptions:
        return replace(
            self.base,
            strategy=self.rng.choice(["rewrite", "append"] if self.can_append else ["rewrite"]),
            metadata_ttl=self.rng.choice([0.0, 1.0, 60.0]),
            index_cache_bytes=self.rng.choice([0, 300, 64 << 20]),
            gap_bytes=self.rng.choice([None, 0]),
            first_bytes=self.rng.choice([None, 0]),
            commit_concurrency=self.rng.choice([1, 16]),
            copy_window_bytes=self.rng.choice([1, 64 << 20]),
        )

    # -- the run -------------------------------------------------------------------------------------------------------

    def go(self) -> Result:
        """Run it, and check it."""
        violation = None
        world = self.world
        try:
            world.run(self._main)
        except Violation as exc:
            violation = str(exc)
        operations = sum(map(len, self.history.operations.values()))
        return Result(
            world.seed,
            world.kind,
            world.trace.digest,
            operations,
            world.requests,
            world.kills,
            world.pauses,
            world.faults,
            self.history.outcomes,
            world.loop.time(),
            world.loop.steps,
            self.unchecked,
            violation,
            world.trace.lines,
        )

    async def _main(self) -> None:
        world = self.world
        conduct, world.network.conduct = world.network.conduct, Conduct()
        maker = world.process("maker")
        await world.loop.start(maker, partial(self._make, maker))
        world.network.conduct = conduct
        if world.calls is not None:
            world.calls.habits = self.habits
        lives = asyncio.gather(*(self._lives(f"client{number}") for number in range(self.limits.clients)))
        mishaps = asyncio.ensure_future(self._mishaps(lives))
        await lives
        await mishaps
        world.network.conduct = Conduct()
        if world.calls is not None:
            world.calls.habits, world.calls.is_full = Habits(), False
        await asyncio.sleep(2 * conduct.latest_seconds)  # what is under way arrives
        checker = world.process("checker")
        await world.loop.start(checker, partial(self._last_look, checker))
        self._check()

    async def _make(self, process: Process) -> None:
        engine = self.world.engine(process, self.base)
        for error in await engine.update_many(
            [("zarr.json", SetValue(b'{"zarr_format": 3, "node_type": "group"}')), ("a/zarr.json", SetValue(document(SHAPE)))]
        ):
            if error is not None:
                raise error

    async def _lives(self, name: str) -> None:
        """One client after the other, by one name: each is killed some time, but for the last, which ends its work."""
        left = [OPERATIONS]
        while left[0] > 0 and self.left > 0:
            process = self.world.process(name)
            task = self.world.loop.start(process, partial(self._work, process, left))
            died: asyncio.Future[None] = self.world.loop.create_future()
            process.died.append(partial(died.set_result, None))
            if self.rng.random() < 0.4 and self.limits.kills:
                await asyncio.wait([task, died], return_when="FIRST_COMPLETED", timeout=self._soon())
                if not task.done() and process.is_alive:
                    match self.rng.choice(["kill", "kill", "kill", "pause", "cut off"]):
                        case "kill" if not self.writes_alone:
                            self.world.kill(process)
                        case "pause":
                            self.world.pause(process, self.rng.choice([1.0, 60.0, 7200.0]))
                        case "cut off":
                            await self._cut_off(process)
            await asyncio.wait([task, died], return_when="FIRST_COMPLETED")
            if task.done():
                task.result()

    def _soon(self) -> float:
        mean = self.world.network.conduct.mean_seconds
        return self.rng.expovariate(1 / (mean / 4 if self.world.calls is not None else 20 * mean))

    async def _cut_off(self, process: Process) -> None:
        """Let a client reach no server for a while."""
        network = self.world.network
        network.cut_off.add(process.name)
        self.world.trace.note(f"{process.name} is cut off")
        await asyncio.sleep(self._soon())
        network.cut_off.discard(process.name)

    async def _mishaps(self, lives: asyncio.Future[Any]) -> None:
        """Let the machine lose power now and then, and its disk be full for a while."""
        calls = self.world.calls
        happen = [name for name in ("power", "full") if name not in self.limits.without and self.limits.kills]
        if calls is None or not happen or self.rng.random() < 0.4:
            return
        while not lives.done():
            await asyncio.wait([lives], timeout=self._soon())
            if lives.done():
                return
            if self.rng.choice(happen) == "power":
                self._forget_unacknowledged()
                self.world.lose_power()
            else:
                calls.is_full = True
                await asyncio.sleep(self._soon() / 4)
                calls.is_full = False

    def _forget_unacknowledged(self) -> None:
        """Let the reads say nothing that saw what a loss of power may undo: writes that had not ended."""
        for operations in self.history.operations.values():
            writes = [one for one in operations if one.is_write and one.is_open]
            values = {one.value for one in writes} - {None}
            erased = min((one.began for one in writes if one.value is None), default=NEVER)
            for place, one in enumerate(operations):
                if not one.is_write and (one.value in values or (one.value is None and one.ended >= erased)):
                    operations[place] = replace(one, ended=NEVER)

    async def _work(self, process: Process, left: list[int]) -> None:
        engine = self.world.engine(process, self.options())
        rng = random.Random(self.rng.random())
        while left[0] > 0 and self.left > 0:
            left[0] -= 1
            self.left -= 1
            if rng.random() < 0.3:
                await asyncio.sleep(rng.expovariate(1 / self.world.network.conduct.mean_seconds))
            reads_only = self.writes_alone and not process.name.startswith("client0#")
            match (
                "read" if reads_only else rng.choice(["read", "read", "write", "write", "write", "erase", "both", "transaction", "whole"])
            ):
                case "read":
                    await self._read(process, engine, self._some(rng))
                case "write":
                    await self._write(process, engine, {key: self._new(process) for key in self._some(rng)})
                case "erase":
                    await self._write(process, engine, dict.fromkeys(self._some(rng)))
                case "transaction":
                    values: dict[str, Value] = {key: self._new(process) for key in self._some(rng)}
                    await self._transaction(process, engine, values | dict.fromkeys(self._some(rng)[:1]))
                case "whole":
                    some = _shard_of(rng.choice(self.hot))
                    keys = [key for key in self.keys if _shard_of(key) == some]
                    await self._write(
                        process, engine, dict.fromkeys(keys) if rng.random() < 0.3 else {key: self._new(process) for key in keys}
                    )
                case "both":
                    keys = self._some(rng)
                    await asyncio.gather(
                        self._write(process, engine, {key: self._new(process) for key in keys}),
                        self._write(process, engine, {key: self._new(process) for key in self._some(rng)}),
                    )

    async def _transaction(self, process: Process, engine: Engine, values: dict[str, Value]) -> None:
        """Write in a transaction: one commit for each shard."""
        await engine.begin()
        actions = [(key, ERASE if value is None else SetValue(value.encode())) for key, value in values.items()]
        await engine.update_many(actions)
        began = self.world.loop.time()
        places = self._begun(process, values, began)
        try:
            await engine.commit()
        except ShardStoreError as exc:
            self._failed("transaction", exc)
        else:
            for key, place in places.items():
                self.history.operations[key][place] = replace(self.history.operations[key][place], ended=self.world.loop.time())
            self.history.outcomes["in transactions"] += len(values)

    def _some(self, rng: random.Random) -> list[str]:
        return sorted(rng.sample(self.hot, min(len(self.hot), rng.choice([1, 1, 2, 4]))))

    def _new(self, process: Process) -> str:
        self.written += 1
        return f"{process.name}-{self.written}".ljust(8 + self.written % 40, ".")

    # -- operations ----------------------------------------------------------------------------------------------------

    def _note(self, key: str, operation: Operation) -> int:
        self.history.operations[key].append(operation)
        return len(self.history.operations[key]) - 1

    async def _read(self, process: Process, engine: Engine, keys: Sequence[str]) -> dict[str, Value]:
        began = self.world.loop.time()
        found = await engine.get_many([(key, EVERYTHING) for key in keys])
        ended = self.world.loop.time()
        values: dict[str, Value] = {}
        for key, value in zip(keys, found, strict=True):
            if isinstance(value, Exception):
                self._failed("read", value)
                continue
            values[key] = None if value is None else bytes(value).decode()
            self.world.trace.note(f"{process.name} read {key}: {values[key]}")
            self._note(key, Operation(process.name, False, values[key], began, ended))
        self.history.outcomes["read"] += len(values)
        for shard in sorted({_shard_of(key) for key in values}):
            together = tuple((key, value) for key, value in values.items() if _shard_of(key) == shard)
            if len(together) > 1:
                self.history.seen_together.append(together)
        return values

    def _begun(self, process: Process, values: dict[str, Value], began: float) -> dict[str, int]:
        """Note that values are being written; return the places of the notes."""
        for shard in sorted({_shard_of(key) for key in values}):
            some = [key for key in values if _shard_of(key) == shard]
            if len(some) > 1:
                self.history.batches.append(Batch(tuple(some), tuple(values[key] for key in some)))
        self.world.trace.note(f"{process.name} writes {values}")
        return {key: self._note(key, Operation(process.name, True, value, began)) for key, value in values.items()}

    async def _write(self, process: Process, engine: Engine, values: dict[str, Value]) -> None:
        places = self._begun(process, values, self.world.loop.time())
        actions = [(key, ERASE if value is None else SetValue(value.encode())) for key, value in values.items()]
        errors = await engine.update_many(actions)
        ended = self.world.loop.time()
        for (key, place), error in zip(places.items(), errors, strict=True):
            operations = self.history.operations[key]
            if error is None:
                operations[place] = replace(operations[place], ended=ended)
                self.history.outcomes["written"] += 1
                self.world.trace.note(f"{process.name} wrote {key}: {values[key]}")
            else:
                self._failed("write", error)
                if isinstance(error, Conflict):
                    operations[place] = replace(operations[place], is_write=False, ended=NEVER)  # nothing was stored

    def _failed(self, what: str, error: Exception) -> None:
        self.world.trace.note(f"{what} failed: {type(error).__name__}")
        self.history.outcomes[f"{what} {type(error).__name__}"] += 1
        if not isinstance(error, StorageError | WriteOutcomeUnknown | Conflict):
            raise Violation(f"{what}: {type(error).__name__}: {error}") from error

    # -- checks --------------------------------------------------------------------------------------------------------

    async def _last_look(self, process: Process) -> None:
        if isinstance(storage := self.world.storage(process), LocalStorage):
            await asyncio.sleep(2 * 86400.0)  # on network file systems only age tells what is left behind
            await storage.sweep(0.0)
        seen = await self._read(process, self.world.engine(process, self.base), self.keys)
        objects = self.world.stored()
        if left := [name for name in objects if "/." in name and not (name.endswith(f"/{DIRECTORY_LOCK}") or PROBE_PREFIX in name)]:
            raise Violation(f"{left} are left behind")
        index_format = self.base.index_format(PER_SHARD, by_transformer=False)
        for key in self.keys:
            coords = [int(n) for n in key.split("/")[2:]]
            shard = "/".join(str(c // p) for c, p in zip(coords, PER_SHARD, strict=True))
            stored = objects.get(f"root/a/c/{shard}")
            value = None
            if stored is not None:
                index = index_format.decode(index_format.slice_from(memoryview(stored), len(stored)))
                slot = (coords[0] % PER_SHARD[0]) * PER_SHARD[1] + coords[1] % PER_SHARD[1]
                if (where := index.location(slot, len(stored))) is not None:
                    value = stored[where.offset : where.offset + where.nbytes].decode()
            if key not in seen or value != seen[key]:
                raise Violation(f"{key} is stored as {value}, and read as {seen.get(key, 'an error')}")

    def _check(self) -> None:
        for key in self.keys:
            operations = self.history.operations[key]
            try:
                is_explained = explanation(operations) is not None
            except TooLong:
                self.unchecked += 1
                continue
            if not is_explained:
                lines = "\n".join(f"  {one}" for one in sorted(operations, key=lambda one: one.began))
                raise Violation(f"{key} is no register: no order explains\n{lines}")
        self._check_batches()

    def _check_batches(self) -> None:
        """Of what one batch wrote to a shard, a reader sees all or nothing, but for what was written later."""
        batch_of: dict[tuple[str, Value], Batch] = {}
        for written in self.history.batches:
            batch_of |= {pair: written for pair in zip(written.keys, written.values, strict=True) if pair[1] is not None}
        written_by = {(key, one.value): one for key, some in self.history.operations.items() for one in some if one.is_write}
        for together in self.history.seen_together:
            seen = dict(together)
            for key, value in together:
                batch = batch_of.get((key, value))
                if batch is None:
                    continue
                began = written_by[key, value].began
                for other, theirs in zip(batch.keys, batch.values, strict=True):
                    if other == key or other not in seen or seen[other] == theirs:
                        continue
                    # What is there instead must not be older than the batch, as a write is that had ended before the batch began.
                    instead = seen[other]
                    later = [one for one in self.history.operations[other] if one.is_write and one.value == instead and one.ended >= began]
                    if not later:
                        raise Violation(f"{key} was read as {value} of a batch, and {other} as {instead}, which is older than that")


def _shard_of(key: str) -> tuple[int, ...]:
    return tuple(int(n) // p for n, p in zip(key.split("/")[2:], PER_SHARD, strict=True))


def run(seed: int, kind: Kind, limits: Limits | None = None, *, keeps_trace: bool = False) -> Result:
    """Make and check one run."""
    return Run(seed, kind, limits or Limits(), keeps_trace=keeps_trace).go()
