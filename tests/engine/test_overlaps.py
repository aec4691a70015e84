"""Operations that overlap the end of a transaction, or the replacement of an array: nothing is lost, and nothing mixed."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any

import pytest

from shardstore._sync import run_sync
from shardstore.engine.actions import SetValue
from shardstore.engine.engine import Engine
from shardstore.engine.options import EngineOptions
from shardstore.model.chunks import RemovedChunks
from shardstore.model.generation import Condition, Generation
from shardstore.model.ranges import EVERYTHING, BytesLike, Segment
from shardstore.snapshots.files import StoreFiles
from shardstore.storage.base import Found, ObjectInfo, Read, ReadOutcome
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.trace import TraceStorage
from tests.documents import array_v3

OPTIONS = EngineOptions(chunks_per_shard=(4,))


def document(chunk: int = 1, name: str = "") -> bytes:
    return json.dumps(array_v3([8], [chunk], attributes={"name": name})).encode()


class Gated(TraceStorage):
    """Listings, reads of some key, and writes wait for their gates; ``before_chunks`` runs once, after a document has been read."""

    def __init__(self, inner: MemoryStorage) -> None:
        super().__init__(inner)
        self.listing: asyncio.Event | None = None
        self.reading: dict[str, asyncio.Event] = {}
        self.writing: asyncio.Event | None = None
        self.before_chunks: Callable[[], Awaitable[None]] | None = None
        self.written = 0

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        for read in reads:
            if read.key in self.reading:
                await self.reading[read.key].wait()
        outcomes: dict[int, ReadOutcome] = {}
        for i in sorted(range(len(reads)), key=lambda i: not reads[i].key.endswith("zarr.json")):
            if self.before_chunks is not None and not reads[i].key.endswith("zarr.json"):
                hook, self.before_chunks = self.before_chunks, None
                await asyncio.sleep(0.05)  # a document that was asked for at the same time has come
                await hook()
            (outcomes[i],) = await self.inner.read([reads[i]])
        return [outcomes[i] for i in range(len(reads))]

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        return await self._changed(self.inner.write(key, body, nbytes, condition))

    async def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        return await self._changed(self.inner.compose(key, source, segments, condition))

    async def _changed(self, change: Coroutine[Any, Any, Generation]) -> Generation:
        if self.writing is not None:
            await self.writing.wait()
        generation = await change
        self.written += 1
        return generation

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        if self.listing is not None:
            await self.listing.wait()
        async for found in self.inner.list(prefix):
            yield found


def gated() -> tuple[Gated, Engine]:
    storage = Gated(MemoryStorage(f"/overlaps-{uuid.uuid4().hex}"))
    return storage, Engine(storage, OPTIONS)


async def fill(engine: Engine, chunk: int = 1, name: str = "", value: bytes = b"x") -> None:
    updates: list[Any] = [("a/zarr.json", SetValue(document(chunk, name)))]
    updates += [(f"a/c/{i}", SetValue(value * chunk)) for i in range(8 // chunk)]
    assert not any(await engine.update_many(updates))


async def chunks_of(engine: Engine) -> list[str]:
    return [found.key async for found in engine.list("a/c/")]


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_an_erasure_that_lists_while_its_transaction_ends_is_carried_out(ends: str) -> None:
    async def check() -> None:
        storage, engine = gated()
        await fill(engine)
        await engine.begin()
        storage.listing = asyncio.Event()
        erasing = asyncio.create_task(engine.erase_below("a/", keep_documents=True))
        await asyncio.sleep(0.05)
        await (engine.commit() if ends == "commit" else engine.rollback())
        storage.listing.set()
        await erasing
        assert await chunks_of(engine) == []

    run_sync(check())


def test_an_erasure_of_removed_chunks_whose_transaction_has_ended_is_not_broken_off() -> None:
    async def check() -> None:
        storage, engine = gated()
        await fill(engine)
        await engine.begin()
        storage.listing = asyncio.Event()
        erasing = asyncio.create_task(engine.erase_removed("a", (1,), RemovedChunks((8,), (5,))))
        await asyncio.sleep(0.05)
        await engine.commit()
        storage.writing, storage.written = asyncio.Event(), 0
        storage.listing.set()
        await asyncio.sleep(0.05)
        erasing.cancel()
        await asyncio.sleep(0.05)
        storage.writing.set()
        with pytest.raises(asyncio.CancelledError):
            await erasing
        assert storage.written == 1
        assert await chunks_of(engine) == [f"a/c/{i}" for i in range(5)]

    run_sync(check())


def test_versions_of_held_values_are_read_while_the_transaction_is_committed() -> None:
    async def check() -> None:
        storage, engine = gated()
        await engine.update_many([("stored", SetValue(b"s")), ("held", SetValue(b"before"))])
        await engine.begin()
        await engine.update_many([("held", SetValue(b"after"))])
        storage.reading["stored"] = asyncio.Event()
        reading = asyncio.create_task(engine.read_versions([Read("stored", (EVERYTHING,)), Read("held", (EVERYTHING,))]))
        await asyncio.sleep(0.05)
        await engine.commit()
        storage.reading["stored"].set()
        outcomes = await reading
        assert [bytes(outcome.buffers[0]) for outcome in outcomes if isinstance(outcome, Found)] == [b"s", b"after"]

    run_sync(check())


def test_a_document_and_chunks_of_one_batch_are_of_one_array() -> None:
    """Another client replaces the array by one with other chunks, after the document was read and before the chunks were."""

    async def check() -> None:
        storage, reader = gated()
        writer = Engine(storage.inner, OPTIONS)
        await fill(writer, 1, "old", b"o")
        await reader.get_many([("a/zarr.json", EVERYTHING)])

        async def replace() -> None:
            await writer.erase_prefix("a/")
            await fill(writer, 2, "new", b"n")

        storage.before_chunks = replace
        stored, chunk = await reader.get_many([("a/zarr.json", EVERYTHING), ("a/c/0", EVERYTHING)])
        assert isinstance(stored, memoryview)
        assert isinstance(chunk, memoryview)
        assert (json.loads(bytes(stored))["attributes"]["name"], bytes(chunk)) == ("new", b"nn")

    run_sync(check())


def test_no_keys_have_no_plan() -> None:
    _, engine = gated()
    assert engine.known_plan([]) is None


@pytest.mark.parametrize("cache_bytes", [1, 7, 8])
def test_the_smallest_manifest_cache_is_bounded(cache_bytes: int) -> None:
    class Value:
        nbytes = 1_000_000

    files = StoreFiles(MemoryStorage(), cache_bytes=cache_bytes)
    rows: Any = files._rows
    for i in range(10):
        rows.put(f"m/{i}", Value())
    assert len(rows) == 1
