"""One run of packing: drivers pack a hierarchy of plain chunks into shards, are killed at that, and go on; meanwhile the source changes.

Checked is, when one has said that it is done, and nothing has changed since: the target is the source, chunk by chunk, ``verify`` finds it
sound, and nothing else is there but the record.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

from shardstore.engine.engine import Engine
from shardstore.engine.options import EngineOptions
from shardstore.errors import ShardStoreError
from shardstore.maintenance.execution import Execution
from shardstore.maintenance.packing.pack import PackKeywords, pack
from shardstore.maintenance.verify.run import Copy, verify_engine
from tests.simulation.histories import ARRAYS, PER_SHARDS, SHAPES, Limits, Run, document
from tests.simulation.loop import Process
from tests.simulation.operators import QUARANTINE, repaired
from tests.simulation.recorded import stored
from tests.simulation.registers import Violation
from tests.simulation.threads import in_thread
from tests.simulation.world import Kind

TARGET, RECORD = "packed", "record"


class Packing(Run):
    """One run of drivers that pack."""

    def __init__(self, seed: int, kind: Kind, limits: Limits, *, keeps_trace: bool = False) -> None:
        super().__init__(seed, kind, limits, keeps_trace=keeps_trace)
        # Chunks that are objects are written without conditions: a network that delivers a request late, or twice, may undo later ones.
        self.world.network.conduct = replace(self.world.network.conduct, late=0.0, twice=0.0)
        self.world.never_lists_late()  # what is not listed is not packed, and nobody could know
        self.base = EngineOptions(chunks_per_shard=None)
        self.shapes = {array: self.rng.choice(SHAPES) for array in ARRAYS}
        self.wanted = PackKeywords(
            stored=self.rng.choice(["codec", "codec", "codec", "transformer"]),
            index_location=self.rng.choice(["end", "start"]),
            chunk_order=self.rng.choice(["C", "morton"]),
            check_space=False,
        )
        if self.wanted["stored"] == "transformer":
            self.wanted |= {"index_location": "end"}
        self.recorder.per_shard = self.rng.choice(PER_SHARDS)
        self.parts = self.rng.choice([1, 1, 2])
        self.is_complete = False
        """Whether the last driver that ended said that the target is complete."""

    async def _main(self) -> None:
        world, conduct = self.world, self.calm()
        owner = world.process("owner")
        await world.loop.start(owner, partial(self._make_source, owner))
        self.storm(conduct)
        for _ in range(self.rng.choice([1, 2, 4])):
            self.is_complete = False
            await self._packed_in_parts()
            await asyncio.sleep(100 * conduct.mean_seconds)
            if self.is_complete:
                self.calm()
                checker = world.process("checker")
                await world.loop.start(checker, partial(self._check_packed, checker))
                self.storm(conduct)
            if self.rng.random() < 0.5:
                owner = world.process("owner")
                await self._until_death(owner, partial(self._change_source, owner))
                await asyncio.sleep(100 * conduct.mean_seconds)
        self.calm()
        await asyncio.sleep(86400.0)
        checker = world.process("checker")
        await world.loop.start(checker, partial(self._last_pack, checker))

    async def _make_source(self, process: Process) -> None:
        engine = self.world.engine(process, self.base)
        group = b'{"zarr_format": 3, "node_type": "group"}'
        await stored(engine, {"zarr.json": group} | {f"{array}/zarr.json": document(shape) for array, shape in self.shapes.items()})
        keys = [key for array, shape in self.shapes.items() for key in self.keys(array, shape) if self.rng.random() < 0.8]
        await self.recorder.write(process, engine, {key: self.recorder.new(process, key) for key in keys})

    async def _change_source(self, process: Process) -> None:
        engine = self.world.engine(process, self.base)
        all_keys = [key for array, shape in self.shapes.items() for key in self.keys(array, shape)]
        keys = self.rng.sample(all_keys, self.rng.choice([1, 3]))
        await self.recorder.write(process, engine, {key: self.recorder.new(process, key) for key in keys} | dict.fromkeys(keys[2:]))

    async def _packed_in_parts(self) -> None:
        """Let drivers pack, each one its part."""
        drivers = [self.world.process("driver") for _ in range(self.parts)]
        lives = asyncio.gather(
            *(self._until_death(driver, partial(self._pack, driver, part)) for part, driver in enumerate(drivers, start=1))
        )
        mishaps = asyncio.ensure_future(self._mishaps(lives))
        for task in await lives:
            if task.done():
                task.result()
        await mishaps

    async def _pack(self, process: Process, part: int) -> None:
        world = self.world
        source, target, record = (world.storage(process, root) for root in ("root", TARGET, RECORD))
        wanted = self.wanted.copy()
        wanted["workers"], wanted["part"], wanted["record"] = self.rng.choice([1, 3]), f"{part}/{self.parts}", record
        world.trace.note(f"{process.name} begins to pack")
        try:
            report = await in_thread(lambda: pack(source, target, chunks_per_shard=self.recorder.per_shard, **wanted))
        except ShardStoreError as exc:
            self.recorder.failed("pack", exc)
        else:
            self.recorder.history.outcomes["packed" if report.complete else "packed a part"] += 1
            self.is_complete = report.complete
            world.trace.note(f"{process.name} has packed {report.done}, passed over {report.skipped}")

    async def _last_pack(self, process: Process) -> None:
        for part in range(1, self.parts + 1):
            await self._pack(process, part)
        if not self.is_complete:
            raise Violation("nothing fails any more, and packing does not end")
        storage = self.world.storage(process, TARGET)
        await repaired(storage, self.world.storage(process, QUARANTINE), older_than=0, alone=True)
        await self._check_packed(process)
        self.check_hidden(name for name in self.world.stored() if name.startswith(f"{TARGET}/"))

    async def _check_packed(self, process: Process) -> None:
        """Compare the target with the source."""
        source, target = Engine(self.world.storage(process)), Engine(self.world.storage(process, TARGET))
        report = await in_thread(lambda: verify_engine(target, against=Copy(source), execution=Execution(workers=2)))
        if report.errors or report.unread:
            raise Violation(f"verify of what was packed found {(*report.findings, *report.unread)[0]}")
        keys = [key for array, shape in self.shapes.items() for key in self.keys(array, shape)]
        there = await self.recorder.read(process, source, keys)
        if (packed := await self.recorder.read(process, target, keys)) != there:
            differing = next(key for key in keys if packed.get(key) != there.get(key))
            raise Violation(f"{differing} is {there.get(differing)} in the source, and was packed as {packed.get(differing)}")
        self._check_target({key for key, value in there.items() if value is not None})

    def _check_target(self, present: set[str]) -> None:
        """Nothing is in the target but documents, and shards that hold chunks."""
        shards = {(key.split("/")[0], self.recorder.shard_of(key)) for key in present}
        objects = [name for name in self.world.stored() if name.startswith(f"{TARGET}/") and "/." not in name]
        others = [name for name in objects if not name.endswith(".json")]
        if len(others) != len(shards):
            raise Violation(f"there are to be {len(shards)} shards, and there are {sorted(others)}")
