"""What a server tells of when an object was stored spares another look at the array's document: counted, and where it must not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from shardstore._sync import run_sync
from shardstore.engine.actions import ERASE, SetValue
from shardstore.engine.engine import Engine
from shardstore.engine.options import EngineOptions
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import Read, ReadOutcome
from tests.engine.hooked import Clock, HookedStorage, document, fresh_memory, read_apart, tell_times

N = 8
CHUNKS = [(i, j) for i in range(N) for j in range(N)]
SHARD = [(i, j) for i in range(2) for j in range(4)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    read_apart(monkeypatch)
    return tell_times(monkeypatch)


class CountsRounds(HookedStorage):
    """Counts as one round the calls of ``read`` that are sent before any of them is answered. All of a round are answered together."""

    _answered: asyncio.Future[None] | None = None

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        if (answered := self._answered) is not None:
            await answered
        else:
            self.rounds += 1
            self._answered = answered = asyncio.get_running_loop().create_future()
            for _ in range(3):  # time for other tasks to send theirs
                await asyncio.sleep(0)
            self._answered = None
            answered.set_result(None)
        self.rounds -= 1  # it counts the call
        return await super().read(reads)


class Seen:
    """An array ``a`` of 8 shards of 2 × 4 chunks, or without, and a reader that has just seen its document."""

    def __init__(
        self, chunks_per_shard: tuple[int, int] | None = (2, 4), *, metadata_ttl: float = 1000.0, first_bytes: int | None = None
    ) -> None:
        self.place = fresh_memory()
        self.writer = Engine(self.place, EngineOptions(chunks_per_shard=chunks_per_shard))
        run_sync(self.writer.update(("a/zarr.json", SetValue(document((N, N), (1, 1))))))
        run_sync(self.writer.update_many([(f"a/c/{i}/{j}", SetValue(bytes([i * N + j]))) for i, j in CHUNKS]))
        self.storage = CountsRounds(self.place)
        self.reader = Engine(self.storage, EngineOptions(metadata_ttl=metadata_ttl, first_bytes=first_bytes))
        run_sync(self.reader.get(("a/zarr.json", EVERYTHING)))

    def read(self, *chunks: tuple[int, int]) -> list[bytes | None]:
        """What is there, and note what was asked for."""
        self.storage.seen.clear()
        self.storage.rounds = 0
        values = run_sync(self.reader.get_many([(f"a/c/{i}/{j}", EVERYTHING) for i, j in chunks]))
        assert not any(isinstance(value, Exception) for value in values)
        return [bytes(value) if isinstance(value, memoryview) else None for value in values]

    @property
    def rounds(self) -> int:
        return self.storage.rounds

    @property
    def documents(self) -> int:
        return self.storage.count("read", "zarr.json")

    @property
    def requests(self) -> int:
        return len(self.storage.seen)


def right(chunks: list[tuple[int, int]]) -> list[bytes]:
    return [bytes([i * N + j]) for i, j in chunks]


@pytest.mark.usefixtures("clock")
def test_a_whole_shard_is_one_request() -> None:
    seen = Seen()
    assert seen.read(*SHARD) == right(SHARD)
    assert seen.requests == 1


@pytest.mark.usefixtures("clock")
def test_what_is_known_is_read_beside_what_is_not() -> None:
    """Chunks by an index that is known, a shard that comes whole, and a small one with its index: one round."""
    seen = Seen(first_bytes=4096)
    assert seen.read((2, 0)) == right([(2, 0)])
    chunks = [(2, 1), (4, 0), *SHARD]
    assert seen.read(*chunks) == right(chunks)
    assert (seen.rounds, seen.requests, seen.documents) == (1, 3, 0)


@pytest.mark.parametrize("metadata_ttl", [0.0, 1000.0])
def test_without_times_documents_are_looked_at_once(monkeypatch: pytest.MonkeyPatch, metadata_ttl: float) -> None:
    """Behind the indices, for all of it."""
    read_apart(monkeypatch)
    seen = Seen(metadata_ttl=metadata_ttl)
    assert seen.read((2, 0)) == right([(2, 0)])
    chunks = [(2, 1), (4, 0), *SHARD]
    assert seen.read(*chunks) == right(chunks)
    assert (seen.rounds, seen.requests, seen.documents) == (2, 5, 1)


@pytest.mark.parametrize("times", [False, True])
def test_an_old_view_is_renewed_beside_chunks_by_a_known_index(monkeypatch: pytest.MonkeyPatch, times: bool) -> None:
    read_apart(monkeypatch)
    if times:
        tell_times(monkeypatch)
    seen = Seen(metadata_ttl=0.0)
    assert seen.read((2, 0)) == right([(2, 0)])
    assert seen.read((2, 1)) == right([(2, 1)])
    assert (seen.rounds, seen.requests, seen.documents) == (1, 2, 1)


@pytest.mark.usefixtures("clock")
def test_a_document_is_read_beside_chunks_by_a_known_index() -> None:
    seen = Seen()
    assert seen.read((2, 0)) == right([(2, 0)])
    seen.storage.rounds = 0
    run_sync(seen.reader.get_many([("a/c/2/1", EVERYTHING), ("a/zarr.json", EVERYTHING)]))
    assert seen.rounds == 1


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("chunks", [SHARD, [(0, 0)], [(2, 1), (0, 0)]], ids=["a whole shard", "a small shard", "beside known chunks"])
def test_a_shard_that_is_newer_than_the_last_look_but_one(chunks: list[tuple[int, int]]) -> None:
    """An array that grows: the document is looked at in the same round, once, and that was after the shard was stored."""
    seen = Seen(metadata_ttl=0.0, first_bytes=4096)
    assert seen.read((2, 0)) == right([(2, 0)])
    run_sync(seen.writer.update(("a/c/1/0", SetValue(b"!"))))
    wanted = [chunk for chunk in chunks if chunk != (1, 0)]
    found = dict(zip(chunks, seen.read(*chunks), strict=True))
    assert [found[chunk] for chunk in wanted] == right(wanted)
    assert (seen.rounds, seen.documents) == (1, 1)


@pytest.mark.usefixtures("clock")
def test_what_comes_with_indices_is_bounded_in_a_batch() -> None:
    seen = Seen(first_bytes=4096)
    seen.reader._reader.first_bytes_per_batch = 4 * (8 + 8 * 16 + 4)  # the bytes of four shards, with their indices
    assert seen.read((0, 0), (0, 4)) == right([(0, 0), (0, 4)])
    assert seen.rounds == 1
    chunks = [(2, 0), (2, 4), (4, 0), (4, 4), (6, 0)]
    assert seen.read(*chunks) == right(chunks)
    assert seen.rounds == 2


@pytest.mark.usefixtures("clock")
def test_a_chunk_does_not_keep_the_whole_small_shard_in_memory() -> None:
    seen = Seen(first_bytes=4096)
    (value,) = run_sync(seen.reader.get_many([("a/c/0/0", EVERYTHING)]))
    assert isinstance(value, memoryview)
    assert memoryview(value.obj).nbytes == 1


def test_without_times_it_is_two(monkeypatch: pytest.MonkeyPatch) -> None:
    read_apart(monkeypatch)
    seen = Seen()
    assert seen.read(*SHARD) == right(SHARD)
    assert (seen.requests, seen.documents) == (2, 1)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("first_bytes", [0, 4096])
def test_a_small_shard_comes_with_its_index(first_bytes: int) -> None:
    seen = Seen(first_bytes=first_bytes)
    assert seen.read((0, 0), (1, 3)) == right([(0, 0), (1, 3)])
    assert (seen.requests, seen.documents) == ((1, 0) if first_bytes else (2, 0))


def test_nothing_comes_with_the_index_where_that_saves_no_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """The document has to be looked at behind it anyway."""
    read_apart(monkeypatch)
    seen = Seen(first_bytes=4096)
    assert seen.read((0, 0)) == right([(0, 0)])
    assert (seen.requests, seen.documents) == (3, 1)


@pytest.mark.usefixtures("clock")
def test_a_chunk_of_an_array_without_shards_is_one_request() -> None:
    seen = Seen(None)
    assert seen.read((0, 0)) == right([(0, 0)])
    assert seen.requests == 1
    run_sync(seen.writer.update(("a/c/0/0", ERASE)))
    assert seen.read((0, 0)) == [None]
    assert (seen.requests, seen.documents) == (2, 1)


def rewritten(seen: Seen, clock: Clock) -> None:
    run_sync(seen.writer.update(("a/c/0/0", SetValue(b"!"))))


def just_before(seen: Seen, clock: Clock) -> None:
    """Before the document was seen, but not for long enough to be sure of the clocks."""
    clock.stored = dict.fromkeys(clock.stored, clock.now - 1)


def told_by_nobody(seen: Seen, clock: Clock) -> None:
    clock.stored.clear()


@pytest.mark.parametrize("change", [rewritten, just_before, told_by_nobody])
@pytest.mark.parametrize("sharded", [True, False], ids=["a shard", "a chunk"])
def test_what_is_new_is_looked_at_twice(clock: Clock, change: Callable[[Seen, Clock], None], sharded: bool) -> None:
    seen = Seen((2, 4) if sharded else None)
    change(seen, clock)
    chunks = SHARD if sharded else SHARD[:1]
    assert seen.read(*chunks)[1:] == right(chunks)[1:]
    assert (seen.requests, seen.documents) == (2, 1)


@pytest.mark.usefixtures("clock")
def test_a_missing_shard_is_looked_at_twice() -> None:
    seen = Seen()
    run_sync(seen.writer.update_many([(f"a/c/{i}/{j}", ERASE) for i, j in SHARD]))
    assert seen.read(*SHARD) == [None] * len(SHARD)
    assert (seen.requests, seen.documents) == (2, 1)


@pytest.mark.usefixtures("clock")
def test_an_old_view_is_renewed_beside_the_shard() -> None:
    """In the same round: what is stale is not believed for ever because shards are old."""
    seen = Seen(metadata_ttl=0.0)
    assert seen.read(*SHARD) == right(SHARD)
    assert seen.documents == 1
    assert seen.rounds == 1
    run_sync(seen.writer.erase_prefix("a/"))
    assert seen.read(*SHARD) == [None] * len(SHARD)
