"""Operations of clients of one run, which note in its history what they saw."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardstore.engine.actions import ERASE, SetValue
from shardstore.errors import Conflict, Incomplete, ShardStoreError, StorageError, WriteOutcomeUnknown
from shardstore.model.ranges import EVERYTHING
from shardstore.presented.flavours import Presented
from shardstore.storage.requests.outcomes import PROBE_PREFIX
from tests.simulation.loop import Process
from tests.simulation.registers import NEVER, Operation, Value, Violation
from tests.simulation.seen import Batch, History, Listing
from tests.simulation.world import World

_DOCUMENTS = (".json", ".zarray", ".zgroup", ".zattrs")


class Recorder:
    """What makes and records the operations of one run, on chunks of an array whose shards have ``per_shard`` chunks."""

    def __init__(self, world: World, per_shard: tuple[int, int]) -> None:
        self._world = world
        self.per_shard = per_shard
        self.history = History()
        self._written = 0

    def shard_of(self, key: str) -> tuple[int, ...]:
        """Return the shard of a chunk."""
        return tuple(int(n) // p for n, p in zip(key.split("/")[2:], self.per_shard, strict=True))

    def ended(self, places: Mapping[str, int]) -> None:
        """Note that the operations at these places have ended."""
        for key, place in places.items():
            self.history.operations[key][place] = replace(self.history.operations[key][place], ended=self._world.loop.time())

    def note(self, key: str, operation: Operation) -> int:
        self.history.operations[key].append(operation)
        return len(self.history.operations[key]) - 1

    async def read(self, process: Process, engine: Presented, keys: Sequence[str]) -> dict[str, Value]:
        began = self._world.loop.time()
        found = await engine.get_many([(shown(engine, key), EVERYTHING) for key in keys])
        ended = self._world.loop.time()
        values: dict[str, Value] = {}
        for key, value in zip(keys, found, strict=True):
            if isinstance(value, Exception):
                self.failed("read", value)
                continue
            values[key] = None if value is None else decoded(bytes(value))
            self._world.trace.note(f"{process.name} read {key}: {values[key]}")
            if (found_there := values[key]) is not None and not found_there.startswith(f"{place_of(key)} "):
                raise Violation(f"{key} was read as {found_there}, which is another chunk's")
            self.note(key, Operation(process.name, False, values[key], began, ended))
        self.history.outcomes["read"] += len(values)
        for shard in sorted({self.shard_of(key) for key in values}):
            together = tuple((key, value) for key, value in values.items() if self.shard_of(key) == shard)
            if len(together) > 1:
                self.history.seen_together.append(together)
        return values

    async def list(self, engine: Presented, keys: Sequence[str]) -> None:
        began = self._world.loop.time()
        asked = {shown(engine, key): key for key in keys}
        try:
            everything = [key async for batch in engine.list_batches("") for key in batch.keys]
        except ShardStoreError as exc:
            self.failed("list", exc)
            return
        listed = [key for key in everything if not (key.endswith(_DOCUMENTS) or key.startswith(PROBE_PREFIX))]
        if strangers := set(listed) - set(asked):
            raise Violation(f"{sorted(strangers)} were listed, and there are no such chunks")
        since, now = began - self._world.listing_lag_seconds, self._world.loop.time()
        self.history.listings.append(Listing(since, now, tuple(asked.values()), frozenset(asked[key] for key in listed)))
        self.history.outcomes["list"] += 1

    def _begun(self, process: Process, values: dict[str, Value], began: float) -> dict[str, int]:
        """Note that values are being written; return the places of the notes."""
        for shard in sorted({self.shard_of(key) for key in values}):
            some = [key for key in values if self.shard_of(key) == shard]
            if len(some) > 1:
                self.history.batches.append(Batch(tuple(some), tuple(values[key] for key in some)))
        self._world.trace.note(f"{process.name} writes {values}")
        return {key: self.note(key, Operation(process.name, True, value, began)) for key, value in values.items()}

    async def write(self, process: Process, engine: Presented, values: dict[str, Value]) -> bool:
        """Write, and return whether all was written."""
        places = self._begun(process, values, self._world.loop.time())
        actions = [(shown(engine, key), ERASE if value is None else SetValue(encoded(value))) for key, value in values.items()]
        errors = await engine.update_many(actions)
        ended = self._world.loop.time()
        for (key, place), error in zip(places.items(), errors, strict=True):
            operations = self.history.operations[key]
            if error is None:
                operations[place] = replace(operations[place], ended=ended)
                self.history.outcomes["written"] += 1
                self._world.trace.note(f"{process.name} wrote {key}: {values[key]}")
            else:
                self.failed("write", error)
                if isinstance(error, Conflict):
                    operations[place] = replace(operations[place], is_write=False, ended=NEVER)  # nothing was stored
        return not any(errors)

    def failed(self, what: str, error: Exception) -> None:
        self._world.trace.note(f"{what} failed: {type(error).__name__}")
        self.history.outcomes[f"{what} {type(error).__name__}"] += 1
        if not isinstance(error, StorageError | WriteOutcomeUnknown | Conflict | Incomplete):
            raise Violation(f"{what}: {type(error).__name__}: {error}") from error

    async def transaction(self, process: Process, engine: Presented, values: dict[str, Value]) -> None:
        """Write in a transaction: one commit for each shard."""
        await engine.begin()
        actions = [(shown(engine, key), ERASE if value is None else SetValue(encoded(value))) for key, value in values.items()]
        for error in await engine.update_many(actions):
            if error is not None:
                self.failed("held back", error)
                await engine.rollback()
                return
        began = self._world.loop.time()
        places = self._begun(process, values, began)
        try:
            await engine.commit()
        except ShardStoreError as exc:
            self.failed("transaction", exc)
        else:
            self.ended(places)
            self.history.outcomes["in transactions"] += len(values)

    def new(self, process: Process, key: str) -> str:
        """Return a value that nobody has written yet, and that tells which chunk it is of."""
        self._written += 1
        return f"{place_of(key)} {process.name}-{self._written}".ljust(8 + self._written % 40, ".")


def encoded(value: str) -> bytes:
    """Return the bytes of a chunk: a stream of gzip, since some checks look for one; not compressed, so that it is always the same."""
    stream = zlib.compressobj(0, wbits=31)
    return stream.compress(value.encode()) + stream.flush()


def decoded(data: bytes) -> str:
    """Return the value of a chunk.

    Raises:
        Violation: it is none that was written.
    """
    try:
        return zlib.decompress(data, wbits=31).decode()
    except (zlib.error, UnicodeDecodeError) as exc:
        raise Violation(f"{data!r} is no chunk: {exc}") from exc


async def stored(engine: Presented, documents: Mapping[str, bytes]) -> None:
    """Store documents, or raise what is wrong."""
    for error in await engine.update_many([(key, SetValue(data)) for key, data in documents.items()]):
        if error is not None:
            raise error


def shown(engine: Presented, key: str) -> str:
    """Return the key of a chunk as the clients of an engine know it; ``key`` is that of final Zarr v3."""
    array, _, coords = key.partition("/c/")
    match engine.options.present.name:
        case "v2":
            return f"{array}/{coords}"
        case "draft":
            return f"data/root/{array}/c{coords}"
        case _:
            return key


def place_of(key: str) -> str:
    """Return the part of a chunk's key that stays when the array is moved."""
    return key.partition("/")[2]
