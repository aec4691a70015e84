"""One run: clients work at random on one store until their time is over; then all is checked that they were promised.

Between phases, in which they work, the array is resized, created again with other shards, or moved; some clients keep what they remember.
In some runs operators compact, repair and verify meanwhile.

Checked are: every chunk is a linearisable register; what one batch wrote to one shard appears at once; afterwards a client that has seen
nothing reads what can be there, and so does a reader of the stored bytes that knows only their format; nothing has to be repaired, nothing
is left behind, and ``verify`` finds the store sound.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar

from shardstore.engine.options import V3, EngineOptions, StrategyName
from shardstore.errors import ShardStoreError
from shardstore.presented.flavours import Presented, flavour_of
from shardstore.storage.local.range_locks import DIRECTORY_LOCK
from shardstore.storage.requests.outcomes import PROBE_PREFIX
from shardstore.storage.wrappers import innermost
from tests.documents import array_v3
from tests.simulation.calls import FAULTS as DISK_FAULTS
from tests.simulation.calls import Habits
from tests.simulation.loop import Process
from tests.simulation.network import FAULTS as NETWORK_FAULTS
from tests.simulation.network import Conduct
from tests.simulation.operators import QUARANTINE, operate, repaired, verified
from tests.simulation.recorded import Recorder, decoded, stored
from tests.simulation.registers import Operation, Value, Violation
from tests.simulation.world import Kind, World

T = TypeVar("T")

SHAPE, PER_SHARD = (4, 4), (2, 2)  # chunks
SHAPES = ((4, 4), (4, 3), (3, 4), (2, 2))
PER_SHARDS = ((2, 2), (1, 2), (2, 1), (4, 4))
ARRAYS = ("a", "b")
_DOCUMENTS = (".json", ".zarray", ".zgroup", ".zattrs")
_OPERATIONS = ("read", "read", "list", "write", "write", "write", "erase", "both", "transaction", "whole")
Change = Literal["nothing", "resize", "recreate", "move"]
FAULTS = (*NETWORK_FAULTS, *DISK_FAULTS)
_CALM = Conduct()
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
    changes: bool = True
    """Whether the array is resized, created again or moved."""
    operators: bool = True
    """Whether the store is compacted, repaired and verified meanwhile."""
    strategy: StrategyName | None = None
    """The strategy of all clients; ``None``: each draws one."""

    def __str__(self) -> str:
        words = [f"--operations {self.operations}", f"--clients {self.clients}"]
        words += [f"--without {','.join(self.without)}"] if self.without else []
        words += [f"--strategy {self.strategy}"] if self.strategy else []
        words += [f"--no-{name}" for name in ("kills", "changes", "operators") if not getattr(self, name)]
        return " ".join(words)


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
    codecs = [{"name": "bytes"}, {"name": "gzip", "configuration": {"level": 1}}]
    return json.dumps(array_v3(shape, [1] * len(shape), codecs=codecs, attributes={})).encode()


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

    pause_seconds = (1.0, 60.0, 7200.0)

    def __init__(self, seed: int, kind: Kind, limits: Limits, *, keeps_trace: bool = False) -> None:
        self.rng = random.Random(f"run {seed}")
        self.limits = limits
        self.left = limits.operations
        conduct = conduct_of(random.Random(f"conduct {seed}"))
        self.writes_alone = kind == "bare"  # where nothing is conditional one client writes; what it gives up must not be late
        changes: list[Change] = ["nothing", "resize", "recreate", "recreate", "move"]
        self.changes = [self.rng.choice(changes) for _ in range(self.rng.choice([0, 0, 1, 2]) if limits.changes else 0)]
        self.has_operator = self.rng.random() < 0.3 and limits.operators and not self.writes_alone
        without = [name for name in limits.without if name in NETWORK_FAULTS]
        # What the page on consistency leaves open: late requests are not those of operators, nor of documents and whole arrays.
        if self.writes_alone or self.changes or self.has_operator:
            without.append("late")
        if self.writes_alone or self.changes:
            without.append("twice")  # the second may come after all that follows
        conduct = replace(conduct, **dict.fromkeys(without, 0.0))
        self.world = World(seed, kind, conduct, keeps_trace=keeps_trace)
        self.habits = Habits()
        if (calls := self.world.calls) is not None:
            self.habits = replace(
                habits_of(random.Random(f"habits {seed}"), calls.habits),
                **{name: 0.0 for name in limits.without if name in ("fails", "short")},
            )
        self.recorder = Recorder(self.world, PER_SHARD)
        self.array = ARRAYS[0]
        self.shape = SHAPE
        self.veterans: dict[str, tuple[Process, Presented]] = {}
        self.unchecked = 0
        self.base = EngineOptions(
            chunks_per_shard=PER_SHARD,
            index_location=self.rng.choice(["end", "end", "start"]),
            index_checksum=self.rng.random() < 0.9,
        )
        self.is_draft = self.rng.random() < 0.12
        if self.is_draft:
            self.base = replace(self.base, stored="transformer", index_location="end", index_checksum=False)
        self.can_append = kind in ("aws", "s3", "azure", "local") and self.base.index_location == "end" and self.base.index_checksum
        self._choose_hot()

    def keys(self, array: str, shape: tuple[int, int] = SHAPE) -> list[str]:
        """Return the keys of the chunks of an array."""
        return [f"{array}/c/{i}/{j}" for i in range(shape[0]) for j in range(shape[1])]

    def _choose_hot(self) -> None:
        """Choose few keys, so that clients meet."""
        keys = self.keys(self.array, self.shape)
        self.hot = self.rng.sample(keys, min(len(keys), self.rng.choice([2, 4, 16])))

    def options(self) -> EngineOptions:
        flavours = ["v3", "v3", "v3", "v2", "draft" if self.is_draft else "v3"]
        present = flavour_of(self.rng.choice(flavours))
        drawn: StrategyName = self.rng.choice(["rewrite", "append"] if self.can_append else ["rewrite"])
        return replace(
            self.base,
            present=present,
            strategy=self.limits.strategy or drawn,
            metadata_ttl=self.rng.choice([0.0, 1.0, 60.0]),
            index_cache_bytes=self.rng.choice([0, 300, 64 << 20]),
            gap_bytes=self.rng.choice([None, 0]),
            first_bytes=self.rng.choice([None, 0]),
            commit_concurrency=self.rng.choice([1, 16]),
            copy_window_bytes=self.rng.choice([16, 64 << 20]),
        )

    @property
    def operations(self) -> int:
        """How many operations there were so far."""
        return sum(map(len, self.recorder.history.operations.values()))

    # -- the run -------------------------------------------------------------------------------------------------------

    def go(self) -> Result:
        """Run it, and check it."""
        violation = None
        world = self.world
        try:
            world.run(self._main)
        except Violation as exc:
            violation = str(exc)
        except ShardStoreError as exc:
            violation = f"when nothing failed any more: {type(exc).__name__}: {exc}"
        return Result(
            world.seed,
            world.kind,
            world.trace.digest,
            self.operations,
            world.requests,
            world.kills,
            world.pauses,
            world.faults,
            self.recorder.history.outcomes,
            world.loop.time(),
            world.loop.steps,
            self.unchecked,
            violation,
            world.trace.lines,
        )

    async def _main(self) -> None:
        world = self.world
        conduct = self.calm()
        maker = world.process("maker")
        await world.loop.start(maker, partial(self._make, maker))
        self.storm(conduct)
        await self._phase()
        for change in self.changes:
            await self._change(change)
            await self._phase()
        self.calm()
        await asyncio.sleep(2 * conduct.latest_seconds)  # what is under way arrives
        checker = world.process("checker")
        await world.loop.start(checker, partial(self._last_look, checker))
        self.unchecked = self.recorder.history.check()

    def calm(self, conduct: Conduct = _CALM) -> Conduct:
        """Let nothing fail from now on; return how the network was."""
        before, self.world.network.conduct = self.world.network.conduct, conduct
        if self.world.calls is not None:
            self.world.calls.habits, self.world.calls.is_full = Habits(), False
        return before

    def storm(self, conduct: Conduct) -> None:
        """Let the network be as it is in this run, and the disk too."""
        self.world.network.conduct = conduct
        if self.world.calls is not None:
            self.world.calls.habits = self.habits

    async def _phase(self) -> None:
        """Let clients, and the operator, work for a time."""
        names = [f"client{number}" for number in range(self.limits.clients)]
        all_lives = [self._lives(name) for name in names]
        if self.has_operator:
            all_lives.append(self._operates())
        lives = asyncio.gather(*all_lives)
        mishaps = asyncio.ensure_future(self._mishaps(lives))
        await lives
        await mishaps

    async def _make(self, process: Process) -> None:
        group = b'{"zarr_format": 3, "node_type": "group"}'
        await stored(self.world.engine(process, self.base), {"zarr.json": group, f"{self.array}/zarr.json": document(self.shape)})

    async def _lives(self, name: str) -> None:
        """One client after the other, by one name: each is killed some time, but for the last, which ends its work."""
        left = [OPERATIONS // (1 + len(self.changes))]
        while left[0] > 0 and self.left > 0:
            before, engine = self.veterans.pop(name, (None, None))
            stays = before is not None and before.is_alive and self.rng.random() < 0.7
            process = before if before is not None and stays else self.world.process(name)
            begin = partial(self._engine, process, engine, is_new=process is not before)
            task = await self._until_death(process, partial(self._work, process, begin, left))
            if task.done():
                self.veterans[name] = process, task.result()

    async def _operates(self) -> None:
        """One operator after the other: each runs one program, and may be killed at that."""
        for _ in range(self.rng.choice([4, 8])):
            await asyncio.sleep(self._soon() / 2)
            process = self.world.process("operator")
            task = await self._until_death(process, partial(self._operate, process))
            if task.done():
                task.result()

    async def _operate(self, process: Process) -> None:
        try:
            self.recorder.history.outcomes[await operate(self.world, process, random.Random(self.rng.random()))] += 1
        except ShardStoreError as exc:
            self.recorder.failed("operator", exc)

    async def _until_death(self, process: Process, main: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Let a process work to its end, or until it is killed."""
        task = self.world.loop.start(process, main)
        died: asyncio.Future[None] = self.world.loop.create_future()
        either: list[asyncio.Future[Any]] = [task, died]
        process.died.append(partial(died.set_result, None))
        if self.rng.random() < 0.4 and self.limits.kills:
            await asyncio.wait(either, return_when="FIRST_COMPLETED", timeout=self._soon())
            if not task.done() and process.is_alive:
                match self.rng.choice(["kill", "kill", "kill", "pause", "cut off"]):
                    case "kill" if not self.writes_alone:
                        self.world.kill(process)
                    case "pause":
                        self.world.pause(process, self.rng.choice(self.pause_seconds))
                    case "cut off":
                        await self._cut_off(process)
        await asyncio.wait(either, return_when="FIRST_COMPLETED")
        process.died.clear()
        return task

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
                if self.rng.random() < 0.25:  # when it costs most: while a file that was changed in place is being synced
                    calls.awaited_sync = asyncio.get_running_loop().create_future()
                    await asyncio.wait([lives, calls.awaited_sync], return_when=asyncio.FIRST_COMPLETED)
                self.forget_unacknowledged()
                self.world.lose_power()
            else:
                calls.is_full = True
                await asyncio.sleep(self._soon() / 4)
                calls.is_full = False

    def forget_unacknowledged(self) -> None:
        """Let what was seen say nothing of what a loss of power may undo."""
        self.recorder.history.forget_unacknowledged()

    def _engine(self, process: Process, before: Presented | None, *, is_new: bool) -> Presented:
        """Return the engine that a client begins with: a new one, the one that it had before, or what has come of that by a pickle."""
        if before is None:
            return self.world.engine(process, self.options())
        if not is_new and self.rng.random() < 0.5:
            return before
        sent = pickle.dumps((innermost(before.storage), before.options, before.hierarchy.export()))
        self.recorder.history.outcomes["pickled"] += 1
        storage, options, nodes = pickle.loads(sent)
        engine = self.world.engine(process, options, storage)
        engine.hierarchy.restore(nodes)
        return engine

    async def _work(self, process: Process, begin: Callable[[], Presented], left: list[int]) -> Presented:
        engine = begin()
        rng = random.Random(self.rng.random())
        while left[0] > 0 and self.left > 0:
            left[0] -= 1
            self.left -= 1
            if rng.random() < 0.3:
                await asyncio.sleep(rng.expovariate(1 / self.world.network.conduct.mean_seconds))
            reads_only = self.writes_alone and not process.name.startswith("client0#")
            match (
                rng.choice(["read", "list"])
                if reads_only
                else rng.choice(_OPERATIONS + ("erase",) * (3 * self.has_operator))  # emptied shards are what compaction removes
            ):
                case "read":
                    await self.recorder.read(process, engine, self._some(rng))
                case "write":
                    await self.recorder.write(process, engine, {key: self.recorder.new(process, key) for key in self._some(rng)})
                case "list":
                    # Those outside of its shape too: a late listing may show what was erased when the array was made smaller.
                    await self.recorder.list(engine, self.keys(self.array))
                case "erase":
                    await self.recorder.write(process, engine, dict.fromkeys(self._some(rng)))
                case "transaction":
                    values: dict[str, Value] = {key: self.recorder.new(process, key) for key in self._some(rng)}
                    await self.recorder.transaction(process, engine, values | dict.fromkeys(self._some(rng)[:1]))
                case "whole":
                    some = self.recorder.shard_of(rng.choice(self.hot))
                    keys = [key for key in self.keys(self.array, self.shape) if self.recorder.shard_of(key) == some]
                    await self.recorder.write(
                        process,
                        engine,
                        dict.fromkeys(keys) if rng.random() < 0.3 else {key: self.recorder.new(process, key) for key in keys},
                    )
                case "both":
                    keys = self._some(rng)
                    await asyncio.gather(
                        self.recorder.write(process, engine, {key: self.recorder.new(process, key) for key in keys}),
                        self.recorder.write(process, engine, {key: self.recorder.new(process, key) for key in self._some(rng)}),
                    )
        return engine

    def _some(self, rng: random.Random) -> list[str]:
        return sorted(rng.sample(self.hot, min(len(self.hot), rng.choice([1, 1, 2, 4]))))

    # -- changes of the array ------------------------------------------------------------------------------------------

    async def _change(self, change: Change) -> None:
        """Change the array while no client does anything, and wait until those that remember it ask again."""
        world, mean = self.world, self.world.network.conduct.mean_seconds
        await asyncio.sleep(100 * mean)  # what is under way arrives
        if change != "nothing":
            architect = world.process("architect")
            world.trace.note(f"{architect.name} begins: {change}")
            task = await self._until_death(architect, partial(self._changed, architect, change))
            await asyncio.sleep(100 * mean)
            if not (task.done() and task.result()):
                await self._renew()
        self.recorder.history.outcomes[change] += 1
        await asyncio.sleep(max((engine.options.metadata_ttl for _, engine in self.veterans.values()), default=0.0))
        self._choose_hot()

    async def _renew(self) -> None:
        """Erase what a failed change may have left half done, and create the array anew; on a day on which nothing fails."""
        world = self.world
        conduct = self.calm()
        architect = world.process("architect")

        async def renew() -> None:
            for array in ARRAYS:
                await self._erase(architect, world.engine(architect, self.base), array)
            self.array, self.shape = ARRAYS[0], SHAPE
            await self._make(architect)

        await world.loop.start(architect, renew)
        self.storm(conduct)

    async def _changed(self, process: Process, change: Change) -> bool:
        """Return whether the change was made; otherwise some of it may be."""
        try:
            match change:
                case "resize":
                    return await self._resized(process)
                case "move":
                    return await self._moved(process)
                case _:
                    await self._erase(process, self.world.engine(process, replace(self.options(), present=V3)), self.array)
                    self.recorder.per_shard, self.shape = self.rng.choice(PER_SHARDS), self.rng.choice(SHAPES)
                    self.base = replace(self.base, chunks_per_shard=self.recorder.per_shard)
                    if not (self.can_append or self.is_draft):
                        self.base = replace(self.base, index_location=self.rng.choice(["start", "end"]))
                    await self._make(process)
        except ShardStoreError as exc:
            self.recorder.failed(change, exc)
            return False
        return True

    async def _erase(self, process: Process, engine: Presented, array: str) -> None:
        began = self.world.loop.time()
        places = {key: self.recorder.note(key, Operation(process.name, True, None, began)) for key in self.keys(array)}
        await engine.erase_prefix(f"{array}/")
        self.recorder.ended(places)
        await asyncio.sleep(2 * self.world.listing_lag_seconds)  # what is listed still, refuses a new array

    async def _resized(self, process: Process) -> bool:
        """Erase what will be outside, as zarr does, and store the document."""
        shape = self.rng.choice(SHAPES)
        engine = self.world.engine(process, replace(self.options(), present=V3))
        outside = sorted({*self.keys(self.array, self.shape)} - {*self.keys(self.array, shape)})
        if outside and not await self.recorder.write(process, engine, dict.fromkeys(outside)):
            return False
        await stored(engine, {f"{self.array}/zarr.json": document(shape)})
        self.shape = shape
        return True

    async def _moved(self, process: Process) -> bool:
        (target,) = {*ARRAYS} - {self.array}
        engine = self.world.engine(process, replace(self.options(), present=V3))
        values = await self.recorder.read(process, engine, self.keys(self.array, self.shape))
        if len(values) < self.shape[0] * self.shape[1]:
            return False
        began = self.world.loop.time()
        places = {key: self.recorder.note(key, Operation(process.name, True, None, began)) for key in values}
        for key, value in values.items():
            there = f"{target}{key.removeprefix(self.array)}"
            places[there] = self.recorder.note(there, Operation(process.name, True, value, began))
        await engine.move_prefix(self.array, target)
        self.recorder.ended(places)
        self.array = target
        return True

    # -- checks --------------------------------------------------------------------------------------------------------

    async def _last_look(self, process: Process) -> None:
        await asyncio.sleep(2 * 86400.0)  # on network file systems only age tells what is left behind
        storage = self.world.storage(process)
        await repaired(storage, self.world.storage(process, QUARANTINE), older_than=0, alone=self.writes_alone)
        report = await verified(storage)
        if report.unread:
            raise Violation(f"{report.unread[0]} cannot be read")
        keys = [key for array in ARRAYS for key in self.keys(array)]
        engine = self.world.engine(process, self.base)
        seen = await self.recorder.read(process, engine, keys)
        objects = self.world.stored()
        self._check_left(objects)
        per_shard = self.recorder.per_shard
        index_format = self.base.index_format(per_shard, engine.storage.kind, by_transformer=self.is_draft)
        for key in keys:
            array, _, *numbers = key.split("/")
            coords = [int(n) for n in numbers]
            shard = "/".join(str(c // p) for c, p in zip(coords, per_shard, strict=True))
            stored = objects.get(self._stored_key(array, shard))
            value = None
            if stored is not None:
                index = index_format.decode(index_format.slice_from(memoryview(stored), len(stored)))
                slot = (coords[0] % per_shard[0]) * per_shard[1] + coords[1] % per_shard[1]
                if (where := index.location(slot, len(stored))) is not None:
                    value = decoded(stored[where.offset : where.offset + where.nbytes])
            if key not in seen or value != seen[key]:
                raise Violation(f"{key} is stored as {value}, and read as {seen.get(key, 'an error')}")

    def _stored_key(self, array: str, shard: str) -> str:
        return f"root/data/root/{array}/c{shard}" if self.is_draft else f"root/{array}/c/{shard}"

    def _check_left(self, objects: Mapping[str, bytes]) -> None:
        """Nothing is there but the documents and shards of the array, lock files of network file systems, probes, and the quarantine."""
        # Where DELETE has no conditions, emptied shards stay for ever, outside of the shape too.
        shape = SHAPE if self.world.kind == "weak" else self.shape
        known = {self._stored_key(self.array, "/".join(map(str, self.recorder.shard_of(key)))) for key in self.keys(self.array, shape)}
        if self.is_draft:
            known |= {f"root/{name}" for name in ("zarr.json", "meta/root.group.json", f"meta/root/{self.array}.array.json")}
        else:
            known |= {"root/zarr.json", f"root/{self.array}/zarr.json"}
        self.check_hidden(objects)
        others = {name for name in objects if "/." not in name and not name.startswith(f"{QUARANTINE}/")}
        uploads = [key for key in self.world.uploads() if not key.startswith(f"{QUARANTINE}/")]  # those of a killed repair stay
        if left := [*sorted(others - known), *uploads]:
            raise Violation(f"{left} are left behind")

    @staticmethod
    def check_hidden(names: Iterable[str]) -> None:
        """Of hidden files, only lock files of directories on network file systems are left, and probes."""
        if left := [name for name in names if "/." in name and not (name.endswith(f"/{DIRECTORY_LOCK}") or PROBE_PREFIX in name)]:
            raise Violation(f"{sorted(left)} are left behind")
