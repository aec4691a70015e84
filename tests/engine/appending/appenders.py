"""Programs that append to one group at once, in virtual time: they pause and die, and readers look all the while."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardstore.engine.actions import Revise
from shardstore.engine.appending.line import Append, Line, Place
from shardstore.engine.appending.view import GrownView
from shardstore.engine.engine import Engine
from shardstore.engine.options import EngineOptions
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import Storage
from shardstore.storage.memory import MemoryStorage
from tests.documents import array_v3, sharding_codec
from tests.engine.hooked import HookedStorage, fresh_memory

CHUNKS = {"time": 7, "a": 4, "b": 3}
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}


def array(name: str, length: int, **members: Any) -> dict[str, Any]:
    """The document of an array of uint16; those but the coordinate are stored in shards of two chunks."""
    chunk = CHUNKS[name]
    codecs = [BYTES] if name == "time" else [sharding_codec([chunk], [BYTES])]
    grid = chunk if name == "time" else 2 * chunk
    return array_v3([length], [grid], data_type="uint16", codecs=codecs, dimension_names=["time"], attributes={}) | members


def group(names: Sequence[str], length: int) -> dict[str, Any]:
    inside = {name: array(name, length) for name in names}
    consolidated = {"kind": "inline", "must_understand": False, "metadata": inside}
    return {"zarr_format": 3, "node_type": "group", "attributes": {}, "consolidated_metadata": consolidated}


async def make(storage: Storage, length: int = 0, names: Sequence[str] = ("time", "a", "b")) -> None:
    """Store a consolidated group of empty arrays that are ``length`` long."""
    documents = {f"{name}/zarr.json": array(name, length) for name in names} | {"zarr.json": group(names, length)}
    for key, document in documents.items():
        data = json.dumps(document).encode()
        await storage.write(key, [data], len(data), storage.capabilities.condition_on(None))


async def store_rows(engine: Engine, names: Sequence[str], place: Place, value: int) -> None:
    """Store ``value`` in the rows of a place, in all arrays."""

    def patch(low: int, high: int, chunk: int) -> Revise:
        def compute(old: bytes | None) -> bytes:
            rows = np.zeros(chunk, "<u2") if old is None else np.frombuffer(old, "<u2").copy()
            rows[low:high] = value
            return rows.tobytes()

        return Revise(compute)

    updates = []
    for name in names:
        chunk = CHUNKS[name]
        for i in range(place.start // chunk, -(-place.stop // chunk)):
            begin = i * chunk
            updates.append((f"{name}/c/{i}", patch(max(place.start - begin, 0), min(place.stop - begin, chunk), chunk)))
    for error in await engine.update_many(updates):
        if error is not None:
            raise error


@dataclass
class Program:
    """One program on a storage of its own: what it asks for takes time, and waits while the program is paused."""

    number: int
    storage: HookedStorage
    rng: random.Random
    mean_seconds: float = 0.02
    lease_seconds: float = 3.0
    names: Sequence[str] = ("time", "a", "b")
    acknowledged: dict[int, slice] = field(default_factory=dict)
    paused_until: float = 0.0
    signs: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.storage.before = self._before

    async def _before(self, operation: str, key: str) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self.rng.expovariate(1 / self.mean_seconds))
        await asyncio.sleep(max(0.0, self.paused_until - loop.time()))

    def line(self) -> Line:
        clock = asyncio.get_running_loop().time
        engine = Engine(self.storage, EngineOptions(), clock=clock, rng=random.Random(self.rng.random()))
        return engine.append_line("", "time", self.lease_seconds)

    async def append(self, rows: int, value: int) -> None:
        """Append rows of one value, as ``shardstore.append`` does."""
        line = self.line()
        await line.find()
        one = Append(line, rows)
        place: Place | None = await one.begin()
        while place is not None:
            self.signs = one._signs
            view = GrownView(line.storage, line.documents.grown(place.stop), line.key, place)
            engine = Engine(view, EngineOptions(chunks_per_shard=None), clock=asyncio.get_running_loop().time)
            try:
                await store_rows(engine, self.names, place, value)
            except Exception:
                place = await one.failed()
                if place is None:
                    raise
            else:
                place = await one.stored()
        await one.end()
        assert one.place is not None
        self.acknowledged[value] = slice(one.place.start, one.place.stop)

    async def work(self, appends: int) -> None:
        for number in range(appends):
            await self.append(self.rng.randint(1, 7), self.number * 1000 + number + 1)

    def kill(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        if self.signs is not None:
            self.signs.cancel()


async def shown(
    storage: Storage, names: Sequence[str] = ("time", "a", "b"), *, consolidated: bool = True
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the rows of all arrays as a program sees them that opens the group by its consolidated metadata."""
    engine = Engine(storage, EngineOptions(), clock=asyncio.get_running_loop().time)
    document = await engine.get(("zarr.json", EVERYTHING))
    assert isinstance(document, memoryview)
    lengths = {name: each["shape"][0] for name, each in json.loads(bytes(document))["consolidated_metadata"]["metadata"].items()}
    found = {}
    for name in names:
        chunk = CHUNKS[name]
        values = await engine.get_many([(f"{name}/c/{i}", EVERYTHING) for i in range(-(-lengths[name] // chunk))])
        assert not any(isinstance(value, Exception) for value in values), values
        rows = [np.zeros(chunk, "<u2") if not isinstance(value, memoryview) else np.frombuffer(value, "<u2") for value in values]
        found[name] = np.concatenate([np.zeros(0, "<u2"), *rows])[: lengths[name]]
    return found


def check_view(rows: dict[str, np.ndarray[Any, Any]]) -> None:
    """Check that all arrays show the same rows, and no fill values."""
    first, *more = rows.values()
    for each in more:
        assert np.array_equal(first, each), rows
    assert (first != 0).all(), rows


def programs(count: int, seed: int) -> tuple[list[Program], HookedStorage]:
    """Return programs on one place in memory, and a look at it that takes no time."""
    place = fresh_memory()
    rngs = {number: random.Random(f"{seed} {number}") for number in range(1, count + 1)}
    return [Program(number, HookedStorage(MemoryStorage(place.path)), rng) for number, rng in rngs.items()], HookedStorage(place)
