"""Readers that miss one index or one document at the same moment share its request, and see what was stored before they began."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from shardstore._sync import run_sync
from shardstore.engine.actions import ERASE, SetValue
from shardstore.engine.engine import Engine
from shardstore.engine.index_cache import CachedIndex
from shardstore.engine.metadata.hierarchy import ChunkTarget
from shardstore.engine.options import EngineOptions
from shardstore.engine.reading.reader import LoadedHead
from shardstore.engine.reading.shard_chunks import group_by_shard
from shardstore.errors import StorageError
from shardstore.model.ranges import EVERYTHING, ByteSuffix
from shardstore.storage.abilities import ReadsOneByOne
from shardstore.storage.base import Failed, Read, ReadOutcome
from tests.engine.hooked import HookedStorage, document, fresh_memory, read_apart

SIDE = 8
READERS = 8
CHUNKS = [(i, j) for i in range(SIDE) for j in range(SIDE)]
SHARD = [(i, j) for i in range(2) for j in range(4)]


class Held(HookedStorage, ReadsOneByOne):
    """Carries out reads, and holds the answers of those that are to be held until they are let go."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.holds = ""
        """What is held: "index", "document", or nothing."""
        self.failing = 0
        """So many reads fail of those that ``fails`` names."""
        self.fails = "index"
        self.reads: list[str] = []
        self._let_go: asyncio.Event | None = None

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        kinds = [_kind(read) for read in reads]
        self.reads += kinds
        outcomes = await super().read(reads)
        if self.fails in kinds and self.failing:
            self.failing -= 1
            outcomes = [Failed(StorageError("the server is busy"))] * len(reads)
        if self.holds in kinds:
            if self._let_go is None:
                self._let_go = asyncio.Event()
            await self._let_go.wait()
        return outcomes

    def hold(self, kind: str) -> None:
        self.holds, self._let_go = kind, None

    def let_go(self) -> None:
        self.holds = ""
        if self._let_go is not None:
            self._let_go.set()

    def counted(self) -> dict[str, int]:
        return {kind: self.reads.count(kind) for kind in ("index", "chunk", "document")}


def _kind(read: Read) -> str:
    if read.key.endswith("zarr.json"):
        return "document"
    return "chunk" if read.generation is not None else "index" if isinstance(read.ranges[0], ByteSuffix) else "whole"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Place:
    """An array ``a`` of 8 × 8 chunks in shards of 2 × 4, and a client that knows its document, and no index."""

    def __init__(self, *, metadata_ttl: float = 1000.0, chunks: Sequence[tuple[int, int]] = CHUNKS, first_bytes: int = 0) -> None:
        self.place = fresh_memory()
        self.create((2, 4), chunks)
        self.storage = Held(self.place)
        self.clock = Clock()
        self.client = Engine(self.storage, EngineOptions(metadata_ttl=metadata_ttl, first_bytes=first_bytes), clock=self.clock)
        run_sync(self.client.get(("a/zarr.json", EVERYTHING)))
        self.storage.reads.clear()

    def create(self, chunks_per_shard: tuple[int, int], chunks: Sequence[tuple[int, int]]) -> None:
        self.other = Engine(self.place, EngineOptions(chunks_per_shard=chunks_per_shard))
        run_sync(self.other.update(("a/zarr.json", SetValue(document((SIDE, SIDE), (1, 1))))))
        run_sync(self.other.update_many([(key(chunk), SetValue(value(chunk))) for chunk in chunks]))

    async def read(self, chunk: tuple[int, int]) -> bytes | Exception | None:
        (found,) = await self.client.get_many([(key(chunk), EVERYTHING)])
        return bytes(found) if isinstance(found, memoryview) else found

    async def read_together(self, chunks: Sequence[tuple[int, int]], held: str = "index") -> list[bytes | Exception | None]:
        """Read these chunks, each by a reader of its own; one after the other has begun before the first request is answered."""
        self.storage.hold(held)
        readers = []
        for chunk in chunks:
            readers.append(asyncio.ensure_future(self.read(chunk)))
            await settled()
        self.storage.let_go()
        return list(await asyncio.gather(*readers))


def key(chunk: tuple[int, int]) -> str:
    return f"a/c/{chunk[0]}/{chunk[1]}"


def value(chunk: tuple[int, int]) -> bytes:
    return bytes([chunk[0] * SIDE + chunk[1]] * 3)


async def settled() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    read_apart(monkeypatch)


def test_readers_of_one_shard_share_its_index_and_the_document_that_proves_it() -> None:
    place = Place()
    assert run_sync(place.read_together(SHARD)) == [value(chunk) for chunk in SHARD]
    assert place.storage.counted() == {"index": 1, "chunk": READERS, "document": 1}
    assert run_sync(place.read_together(SHARD)) == [value(chunk) for chunk in SHARD]
    assert place.storage.counted() == {"index": 1, "chunk": 2 * READERS, "document": 1}


def test_readers_that_come_while_the_document_is_read_share_it() -> None:
    place = Place()
    assert run_sync(place.read_together(SHARD, "document")) == [value(chunk) for chunk in SHARD]
    assert place.storage.counted() == {"index": 1, "chunk": READERS, "document": 1}


@pytest.mark.parametrize("present", [[SHARD[0]], []])
def test_that_a_chunk_is_missing_is_asked_again_once_for_all_who_came_later(present: list[tuple[int, int]]) -> None:
    """What the first reader is answered may be of before the rest began; the next answer is not."""
    place = Place(chunks=present)
    missing = SHARD[1:]
    assert run_sync(place.read_together(missing)) == [None] * len(missing)
    assert place.storage.counted()["index"] == 2


def test_an_error_is_given_to_all_who_asked_before_the_request_began() -> None:
    place = Place()
    place.storage.failing = 2
    outcomes = run_sync(place.read_together(SHARD))
    assert all(isinstance(outcome, StorageError) for outcome in outcomes)
    assert place.storage.counted() == {"index": 2, "chunk": 0, "document": 2}


def test_an_error_of_a_request_that_began_before_is_not_given() -> None:
    place = Place()
    place.storage.failing = 1
    first, *rest = run_sync(place.read_together(SHARD))
    assert isinstance(first, StorageError)
    assert rest == [value(chunk) for chunk in SHARD[1:]]


@pytest.mark.parametrize("number", [0, 3])
def test_a_cancelled_reader_does_not_take_the_rest_with_it(number: int) -> None:
    place = Place()

    async def test() -> list[Any]:
        place.storage.hold("index")
        readers = [asyncio.ensure_future(place.read(chunk)) for chunk in SHARD]
        await settled()
        readers[number].cancel()
        await settled()
        place.storage.let_go()
        return list(await asyncio.gather(*readers, return_exceptions=True))

    outcomes = run_sync(test())
    assert isinstance(outcomes.pop(number), asyncio.CancelledError)
    assert outcomes == [value(chunk) for i, chunk in enumerate(SHARD) if i != number]
    assert place.storage.counted()["index"] == 1


@pytest.mark.parametrize("by", ["this client", "another"])
@pytest.mark.parametrize("before", [SHARD, [SHARD[0]], []])
@pytest.mark.parametrize("first_bytes", [0, 10_000])
def test_a_reader_sees_what_was_written_before_it_began(by: str, before: list[tuple[int, int]], first_bytes: int) -> None:
    """The index that it could share was read before the write; perhaps with chunks."""
    place = Place(chunks=before, first_bytes=first_bytes, metadata_ttl=float("inf") if first_bytes else 1000.0)
    written = SHARD[1]

    async def test() -> Any:
        place.storage.hold("index")
        early = asyncio.ensure_future(place.read(SHARD[0]))
        await settled()
        writer = place.client if by == "this client" else place.other
        place.storage.holds = ""
        assert await writer.update_many([(key(written), SetValue(b"new"))]) == [None]
        late = asyncio.ensure_future(place.read(written))
        await settled()
        place.storage.let_go()
        await early
        return await late

    assert run_sync(test()) == b"new"


def test_a_reader_does_not_see_what_was_erased_before_it_began() -> None:
    place = Place()

    async def test() -> Any:
        place.storage.hold("index")
        early = asyncio.ensure_future(place.read(SHARD[0]))
        await settled()
        assert await place.other.update_many([(key(SHARD[1]), ERASE)]) == [None]
        late = asyncio.ensure_future(place.read(SHARD[1]))
        await settled()
        place.storage.let_go()
        await early
        return await late

    assert run_sync(test()) is None


def test_an_index_is_not_proven_by_a_document_that_was_read_before_it() -> None:
    """The array is created again with shards of another shape, whose indices are as long, between the two."""
    place = Place()

    async def begin() -> asyncio.Future[Any]:
        place.storage.hold("document")
        early = asyncio.ensure_future(place.read((0, 0)))
        await settled()
        place.storage.holds = ""
        return early

    early = run_sync(begin())
    run_sync(place.other.erase_prefix("a/"))
    place.create((4, 2), CHUNKS)
    chunk = (5, 6)

    async def end() -> Any:
        late = asyncio.ensure_future(place.read(chunk))
        await settled()
        place.storage.let_go()
        await asyncio.gather(early, return_exceptions=True)
        return await late

    assert run_sync(end()) == value(chunk)


@pytest.mark.parametrize(("metadata_ttl", "documents"), [(10.0, 1), (0.0, READERS)])
def test_a_document_that_is_due_is_read_once_for_all(metadata_ttl: float, documents: int) -> None:
    place = Place(metadata_ttl=metadata_ttl)
    run_sync(place.read(SHARD[0]))  # the index is known from now on
    place.storage.reads.clear()
    place.clock.now += 100
    assert run_sync(place.read_together(SHARD, "document")) == [value(chunk) for chunk in SHARD]
    assert place.storage.counted() == {"index": 0, "chunk": READERS, "document": documents}


def test_that_a_chunk_is_missing_is_not_known_if_no_read_confirms_it() -> None:
    place = Place(chunks=SHARD[:2])
    place.storage.fails, place.storage.failing = "chunk", 2

    async def test() -> tuple[list[Any], list[Any]]:
        place.storage.hold("index")
        requests = [(key(SHARD[0]), EVERYTHING), (key(SHARD[5]), EVERYTHING)]
        early = asyncio.ensure_future(place.client.get_many(requests))
        await settled()
        late = asyncio.ensure_future(place.client.get_many(requests))
        await settled()
        place.storage.let_go()
        return await early, await late

    (failed, missing), late = run_sync(test())
    assert isinstance(failed, StorageError)
    assert missing is None
    assert all(isinstance(outcome, StorageError) for outcome in late)


def test_a_shard_that_changed_is_read_again_by_a_request_of_its_own() -> None:
    """Not by one that began before that was seen."""
    place = Place(chunks=SHARD[:2])
    run_sync(place.read(SHARD[0]))

    async def test() -> Any:
        may_go = asyncio.Event()

        async def wait(operation: str, name: str) -> None:
            if place.storage.reads[-1] == "chunk":
                await may_go.wait()

        place.storage.before = wait
        reader = asyncio.ensure_future(place.read(SHARD[0]))
        await settled()
        place.storage.hold("index")
        missing = asyncio.ensure_future(place.read(SHARD[5]))
        await settled()
        place.storage.holds = ""
        assert await place.other.update_many([(key(SHARD[0]), SetValue(b"new"))]) == [None]
        may_go.set()
        found = await reader
        place.storage.let_go()
        await missing
        return found

    assert run_sync(test()) == b"new"


@pytest.mark.parametrize("before", [SHARD, []])
def test_indices_that_are_loaded_for_plans(before: list[tuple[int, int]]) -> None:
    """That of an older read is to be confirmed; that there is none is asked again."""
    place = Place(chunks=before)
    (target,) = run_sync(place.client.hierarchy.locate([key(SHARD[0])], for_write=False))
    assert isinstance(target, ChunkTarget)
    reader = place.client._reader

    async def test() -> tuple[LoadedHead, LoadedHead]:
        place.storage.hold("index")
        early = asyncio.ensure_future(reader.load_heads(group_by_shard([(0, target, EVERYTHING)]), joins=True))
        await settled()
        place.storage.holds = ""
        assert await place.other.update_many([(key(SHARD[1]), SetValue(b"new"))]) == [None]
        late = asyncio.ensure_future(reader.load_heads(group_by_shard([(0, target, EVERYTHING)]), joins=True))
        await settled()
        place.storage.let_go()
        return (await early)[0], (await late)[0]

    first, second = run_sync(test())
    assert first.is_current
    assert (first.index is None) == (not before)
    assert isinstance(second.index, CachedIndex)
    assert second.is_current == (not before)


def _load(place: Place, *, fresh: bool) -> Coroutine[Any, Any, Any]:
    return place.client.hierarchy.node("a", fresh=fresh)


@pytest.mark.parametrize(("fresh", "changed", "documents"), [(False, False, 1), (True, False, 2), (False, True, 2)])
def test_a_document_that_is_looked_up(fresh: bool, changed: bool, documents: int) -> None:
    """Not one that was asked for before this client changed a document, or before one is to be read as it is now."""
    place = Place()

    async def test() -> None:
        place.client.hierarchy.forget("a")
        place.storage.hold("document")
        first = asyncio.ensure_future(_load(place, fresh=False))
        await settled()
        place.storage.holds = ""
        if changed:
            assert await place.client.update_many([("b/zarr.json", SetValue(document((4,), (1,))))]) == [None]
        place.storage.reads.clear()
        place.storage.reads.append("document")
        second = asyncio.ensure_future(_load(place, fresh=fresh))
        await settled()
        place.storage.let_go()
        for node in await asyncio.gather(first, second):
            assert node is not None

    run_sync(test())
    assert place.storage.counted()["document"] == documents
