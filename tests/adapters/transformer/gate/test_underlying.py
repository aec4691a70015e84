"""What lies below a transformer: another one, whose chunks are objects like any other, and stores of other people's."""

from __future__ import annotations

import asyncio
import pickle
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

import pytest

from shardstore import ShardingTransformer
from shardstore.engine.actions import ERASE, Action, Patch, SetValue, Swap, Swapped
from shardstore.engine.engine import Engine
from shardstore.engine.options import EngineOptions, Present
from shardstore.errors import Corruption, InvalidInput, ReadOnly, StorageError, Unsupported
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL, Condition, Generation, IfGeneration
from shardstore.model.ranges import EVERYTHING, ByteOffset, ByteRange, BytesLike, ByteSuffix, resolve
from shardstore.presented.engine_storage import EngineStorage
from shardstore.storage.abilities import VersionedByRange
from shardstore.storage.base import CHANGED, ConditionFailed, DirListing, Found, ObjectInfo, Read, ReadOutcome, Storage, check_directory
from shardstore.storage.memory import MemoryStorage
from shardstore.storage.python_stores import PartialAccessStorage
from shardstore.storage.wrappers import StorageWrapper
from shardstore.testing.storage_suite import StorageSuite, SyncStorage
from shardstore.testing.storage_suite import on_io_loop as run_sync
from tests.adapters.transformer.layers import CountedCalls, Store, document, layered
from tests.engine.hooked import document as canonical_document
from tests.engine.hooked import fresh_memory

CHUNKS = 4096

A = TypeVar("A")


# -- an engine: the conformance suite of storages ------------------------------------------------------------------------


class TestObjects(StorageSuite):
    """Objects that are no chunks go through as they are."""

    @pytest.fixture
    def storage(self) -> Storage:
        return Looking(EngineStorage(Engine(fresh_memory())))


class Looking(CountedCalls):
    """Lists with versions, as the suite wants them, which takes a look at each object."""

    def ability(self, kind: type[A]) -> A | None:
        return None if issubclass(kind, VersionedByRange) else super().ability(kind)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for listed in self.inner.list(prefix):
            if (found := await self.inner.stat(listed.key)) is not None:
                yield found

    async def list_dir(self, prefix: str) -> DirListing:
        listed = await self.inner.list_dir(prefix)
        found = [await self.inner.stat(info.key) for info in listed.objects]
        return DirListing(tuple(info for info in found if info is not None), listed.prefixes)


class ChunksByName(StorageWrapper):
    """The chunks of one array under the names that the suite gives to objects; each lies among others in a shard of eight."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(EngineStorage(engine))
        self._numbers: dict[str, int] = {}

    def _key(self, name: str) -> str:
        number = self._numbers.setdefault(name, len(self._numbers))
        return f"x/c/{number * 3 % CHUNKS}"

    @property
    def _names(self) -> dict[str, str]:
        return {self._key(name): name for name in list(self._numbers)}

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        return await self.inner.read([replace(read, key=self._key(read.key)) for read in reads])

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        return await self.inner.write(self._key(key), body, nbytes, condition)

    async def compose(self, key: str, source: Any, segments: Any, condition: Condition) -> Generation:
        return await self.inner.compose(self._key(key), source, segments, condition)

    async def copy(self, source: str, target: str) -> Generation | None:
        return await self.inner.copy(self._key(source), self._key(target))

    async def rename_prefix(self, source: str, target: str) -> bool:
        return await self.inner.rename_prefix(source, target)

    async def delete(self, key: str, condition: Condition) -> bool:
        return await self.inner.delete(self._key(key), condition)

    async def delete_many(self, keys: Sequence[str]) -> None:
        await self.inner.delete_many([self._key(key) for key in keys])

    async def stat(self, key: str) -> ObjectInfo | None:
        found = await self.inner.stat(self._key(key))
        return None if found is None else found._replace(key=key)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        names = self._names
        found = [info._replace(key=names[info.key]) async for info in self.inner.list("x/c/")]
        for info in sorted(found, key=lambda info: info.key):
            if info.key.startswith(prefix):
                yield info

    async def list_dir(self, prefix: str) -> DirListing:
        check_directory(prefix)
        found = [info async for info in self.list(prefix)]
        below = [(info, info.key[len(prefix) :].partition("/")) for info in found]
        prefixes = sorted({f"{prefix}{name}/" for _, (name, slash, _) in below if slash})
        return DirListing(tuple(info for info, (_, slash, _) in below if not slash), tuple(prefixes))


class TestChunks(StorageSuite):
    """Chunks that share shards: versions, conditions, races."""

    @pytest.fixture
    def storage(self) -> Storage:
        engine = Engine(fresh_memory(), EngineOptions(chunks_per_shard=(8,)))
        run_sync(engine.update(("x/zarr.json", SetValue(canonical_document((CHUNKS,), (1,))))))
        return Looking(ChunksByName(engine))


@pytest.fixture
def engine() -> Engine:
    engine = Engine(fresh_memory(), EngineOptions(chunks_per_shard=(8,)))
    run_sync(engine.update(("x/zarr.json", SetValue(canonical_document((64,), (1,))))))
    return engine


def on_the_io_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**fixtures: Any) -> None:
        run_sync(test(**fixtures))

    return run


@on_the_io_loop
async def test_versions_survive_what_does_not_change_the_chunk(engine: Engine) -> None:
    """Of the engine that made the change; another one has to look, and is not told anything wrong."""
    below, other = EngineStorage(engine), EngineStorage(Engine(engine.storage, engine.options))
    version = await below.write("x/c/0", [b"zero"], 4, UNCONDITIONAL)
    await below.write("x/c/1", [b"one"], 3, UNCONDITIONAL)
    await below.write("x/c/9", [b"nine"], 4, UNCONDITIONAL)
    assert await below.read([Read("x/c/0", (EVERYTHING,), version)]) == [Found(version, 4, (memoryview(b"zero"),))]
    assert await other.read([Read("x/c/0", (EVERYTHING,), version)]) == [CHANGED]
    await other.write("x/c/1", [b"one"], 3, UNCONDITIONAL)
    assert await below.read([Read("x/c/0", (EVERYTHING,), version)]) == [CHANGED]
    (now,) = await below.read([Read("x/c/0", (ByteRange(1, 3), EVERYTHING))])
    assert isinstance(now, Found)
    assert (now.nbytes, [bytes(b) for b in now.buffers]) == (4, [b"er", b"zero"])
    assert await below.write("x/c/0", [b"ZERO"], 4, IfGeneration(now.generation)) != now.generation


@on_the_io_loop
async def test_swaps_of_one_commit(engine: Engine) -> None:
    """What one batch does to one chunk is done in its order, and each swap is told what became of it."""
    engine.keep_versions()
    outcomes = [Swapped() for _ in range(6)]
    updates: list[tuple[str, Action]] = [
        ("x/c/0", Swap(b"first", IF_ABSENT, outcomes[0])),
        ("x/c/0", Swap(b"second", IF_ABSENT, outcomes[1])),
        ("x/c/1", Swap(b"one", UNCONDITIONAL, outcomes[2])),
        ("x/c/1", SetValue(b"after")),
        ("x/c/2", Swap(b"never", IfGeneration(Generation("no:0:0")), outcomes[3])),
        ("x/c/2", Patch(0, b"patched")),
        ("x/c/3", Swap(None, UNCONDITIONAL, outcomes[4])),
        ("x/c/4", SetValue(b"four")),
        ("x/c/4", Swap(None, UNCONDITIONAL, outcomes[5])),
    ]
    assert await engine.update_many(updates) == [None] * len(updates)
    assert [o.happened for o in outcomes] == [True, False, True, False, True, True]
    assert [o.existed for o in outcomes] == [False, True, False, False, False, True]
    values = await engine.get_many([(f"x/c/{i}", EVERYTHING) for i in range(5)])
    assert list[object](values) == [b"first", b"after", b"patched", None, None]
    version = outcomes[0].version
    assert version is not None
    (found,) = await engine.read_versions([Read("x/c/0", (EVERYTHING,), version)])
    assert isinstance(found, Found)
    assert outcomes[2].version is not None
    assert await engine.read_versions([Read("x/c/1", (EVERYTHING,), outcomes[2].version)]) == [CHANGED], "it did not last"
    swap = Swapped()
    assert await engine.update_many([("x/c/0", Swap(b"x", IfGeneration(version), swap)), ("x/c/0", ERASE)]) == [None, None]
    assert (swap.happened, swap.lasted) == (True, False)
    assert await engine.get(("x/c/0", EVERYTHING)) is None


@on_the_io_loop
async def test_a_failed_condition_leaves_the_shard_alone(engine: Engine) -> None:
    below = EngineStorage(engine)
    await below.write("x/c/0", [b"zero"], 4, UNCONDITIONAL)
    before = await engine.storage.stat("x/c/0")
    swap = Swapped()
    await engine.update(("x/c/0", Swap(b"x", IF_ABSENT, swap)))
    assert not swap.happened
    assert await engine.storage.stat("x/c/0") == before


@on_the_io_loop
async def test_documents_are_swapped_by_their_content(engine: Engine) -> None:
    below = EngineStorage(engine)
    (found,) = await below.read([Read("x/zarr.json", (EVERYTHING,))])
    assert isinstance(found, Found)
    bigger = canonical_document((128,), (1,))
    await below.write("x/zarr.json", [bigger], len(bigger), IfGeneration(found.generation))
    with pytest.raises(ConditionFailed):
        await below.write("x/zarr.json", [bigger], len(bigger), IfGeneration(found.generation))
    with pytest.raises(ConditionFailed):
        await below.write("x/zarr.json", [bigger], len(bigger), IF_ABSENT)
    (again,) = await below.read([Read("x/zarr.json", (EVERYTHING,), found.generation)])
    assert again == CHANGED
    (now,) = await below.read([Read("x/zarr.json", ())])
    assert isinstance(now, Found)
    assert await below.delete("x/zarr.json", IfGeneration(now.generation)) is True
    assert await below.delete("x/zarr.json", UNCONDITIONAL) is False


@on_the_io_loop
async def test_no_conditions_in_a_transaction(engine: Engine) -> None:
    await engine.begin()
    with pytest.raises(Unsupported, match="transaction"):
        await EngineStorage(engine).write("x/c/0", [b"x"], 1, UNCONDITIONAL)
    await engine.rollback()


# -- two layers ------------------------------------------------------------------------------------------------------------


def test_two_layers_are_two_transformers_in_the_document() -> None:
    """The list in the document is the stack: the last is next to the storage."""
    place = MemoryStorage(f"/layers-{uuid.uuid4().hex}")
    top, _ = layered(place, 2, chunks_per_shard=(2, 3))
    top.set("meta/root/x.array.json", document((24, 36), (2, 2)))
    top.set("data/root/x/c7/11", b"1234")
    stored = SyncStorage(place)
    text = stored.get("meta/root/x.array.json") or b""
    assert text.count(b"storage_transformers/sharding/1.0") == 2
    assert stored.keys("data/") == ["data/root/x/c1/1"]
    assert b"storage_transformers" not in (top.get("meta/root/x.array.json") or b"")
    below = ShardingTransformer(place, present="draft")
    assert (below.get("meta/root/x.array.json") or b"").count(b"storage_transformers/sharding/1.0") == 1
    assert below.list_prefix("data/") == ["data/root/x/c3/3"]
    assert ShardingTransformer(below, present="draft").get("data/root/x/c7/11") == b"1234"
    assert ShardingTransformer(below).get("x/c/7/11") == b"1234", "and as final Zarr v3"


def test_a_layer_that_shards_nothing_still_is_a_layer() -> None:
    """Otherwise the transformer of the layer above would be taken for its own."""
    top, _ = layered(MemoryStorage(f"/layers-{uuid.uuid4().hex}"), 1, chunks_per_shard=None)
    upper = ShardingTransformer(top, present="draft", chunks_per_shard=(4,))
    upper.set("meta/root/x.array.json", document((16,), (1,)))
    upper.set("data/root/x/c5", b"5")
    assert upper.get("data/root/x/c5") == b"5"
    assert ShardingTransformer(top, present="draft").list_prefix("data/") == ["data/root/x/c5"]


def test_lost_transformers_of_both_layers() -> None:
    place = MemoryStorage(f"/layers-{uuid.uuid4().hex}")
    top, _ = layered(place, 2, chunks_per_shard=(2, 3))
    top.set("meta/root/x.array.json", document((24, 36), (2, 2)))
    top.set("data/root/x/c7/11", b"1234")
    SyncStorage(place).put("meta/root/x.array.json", document((24, 36), (2, 2)))  # as zarr-python 2.18's resize leaves it
    lost = {"x": (2, 3)}
    below = ShardingTransformer(place, present="draft", lost_transformers=lost)
    assert ShardingTransformer(below, present="draft", lost_transformers=lost).get("data/root/x/c7/11") == b"1234"


def test_stacked_transformers_travel() -> None:
    options: dict[str, Any] = {"present": "draft", "chunks_per_shard": (2,)}
    top = ShardingTransformer(ShardingTransformer(MemoryStorage(f"/layers-{uuid.uuid4().hex}"), **options), **options)
    top.set("meta/root/x.array.json", document((8,), (1,)))
    top.set("data/root/x/c5", b"5")
    again = pickle.loads(pickle.dumps(top))
    assert again.get("data/root/x/c5") == b"5"
    again.set("data/root/x/c4", b"4")
    assert top.get("data/root/x/c4") == b"4"


def test_what_is_read_only_below_is_not_written() -> None:
    below = ShardingTransformer(MemoryStorage(f"/layers-{uuid.uuid4().hex}"), present="draft", read_only=True)
    with pytest.raises(ReadOnly):
        ShardingTransformer(below, present="draft").set("data/root/x/c5", b"5")


@pytest.mark.parametrize("same_engine", [True, False])
def test_writers_of_two_layers_lose_nothing(same_engine: bool) -> None:
    """Every chunk lies in one shard of the lower layer, and all that are written at once in a few of the upper one."""
    place = MemoryStorage(f"/layers-{uuid.uuid4().hex}")
    options: dict[str, Any] = {"present": "draft", "chunks_per_shard": (4,)}
    first = ShardingTransformer(ShardingTransformer(place, **options), **options)
    first.set("meta/root/x.array.json", document((64,), (1,), compressed=True))
    second = first if same_engine else ShardingTransformer(ShardingTransformer(place, **options), **options)
    engines = [first.engine, second.engine]

    async def write() -> None:
        keys = [f"data/root/x/c{i}" for i in range(64)]
        done = await asyncio.gather(*(engines[i % 2].update((key, SetValue(key.encode()))) for i, key in enumerate(keys)))
        assert len(done) == 64

    run_sync(write())
    third = ShardingTransformer(ShardingTransformer(place, present="draft"), present="draft")
    assert third.list_prefix("data/") == sorted(f"data/root/x/c{i}" for i in range(64))
    assert all(third.get(key) == key.encode() for key in third.list_prefix("data/"))


# -- other people's stores -------------------------------------------------------------------------------------------------


class TestStoresOfOthers(StorageSuite):
    @pytest.fixture
    def storage(self) -> Storage:
        return Looking(PartialAccessStorage(Store()))

    # It knows neither sizes before it has read to the end, nor versions; pytest leaves out what is no function.
    test_it_is_a_storage = test_one_range = test_no_ranges_tell_version_and_size = None  # type: ignore[assignment]  # as said

    @pytest.mark.parametrize("data", [b"0123456789", b""])
    @pytest.mark.parametrize(
        "request_", [ByteRange(0, 1), ByteRange(3, 50), ByteRange(20, 30), EVERYTHING, ByteOffset(4), ByteOffset(20), ByteSuffix(3)]
    )
    def test_ranges(self, s: SyncStorage, request_: ByteRange | ByteOffset | ByteSuffix, data: bytes) -> None:
        s.put("a", data)
        wanted = resolve(request_, len(data))
        first = s.read("a", request_)
        assert isinstance(first, Found)
        assert bytes(first.buffers[0]) == data[wanted.start : wanted.end]
        if s.read("a", request_, generation=first.generation) != CHANGED:
            assert s.read("a", request_, generation=first.generation) == first
            s.put("a", b"another")
            assert s.read("a", request_, generation=first.generation) == CHANGED


@pytest.mark.filterwarnings("ignore:.*offers no compare-and-swap:RuntimeWarning")
def test_over_a_store_of_somebody_elses() -> None:
    store = Store()
    top = ShardingTransformer(store, present="draft", chunks_per_shard=(2, 2), metadata_ttl=float("inf"))
    top.set("meta/root/x.array.json", document((8, 8), (2, 2), compressed=True))
    keys = [f"data/root/x/c{i}/{j}" for i in range(4) for j in range(4)]
    store.calls.clear()
    top.set_partial_values([(key, 0, key.encode()) for key in keys])
    assert store.calls == {"set": 4}
    assert sorted(key for key in store.values if key.startswith("data")) == [f"data/root/x/c{i}/{j}" for i in range(2) for j in range(2)]
    store.calls.clear()
    assert top.get_partial_values([(key, (-3, 2)) for key in keys[:3]]) == [key.encode()[-3:-1] for key in keys[:3]]
    assert store.calls == {"get_partial_values": 1}, "the index is known from the write"
    store.calls.clear()
    assert top.get_partial_values([(key, None) for key in keys[:3]]) == [key.encode() for key in keys[:3]]
    assert store.calls == {"get_partial_values": 1}, "the index is known, and read again beside the chunks"
    assert top.list() == [*keys, "meta/root/x.array.json", "zarr.json"]
    assert top.list_dir("data/root/x/c1/") == ([f"data/root/x/c1/{j}" for j in range(4)], [])
    top.erase_values(keys[:3])
    top.erase_prefix("data/root/x/c3/")
    assert top.list_prefix("data/") == keys[3:12]
    top.erase_prefix("data/")
    assert sorted(store.values) == ["meta/root/x.array.json", "zarr.json"]


@pytest.mark.parametrize("present", ["v3", "draft"])
@pytest.mark.parametrize("start", [0, 2, 3, 4, 50])
def test_ranges_at_or_past_the_end_of_a_relayed_key_are_empty(present: Present, start: int) -> None:
    store = Store()
    store.values["notes.txt"] = b"abc"
    top = ShardingTransformer(store, present=present)
    assert top.get_partial_values([("notes.txt", (start, None))]) == [b"abc"[start:]]
    pairs = [("notes.txt", (start, length)) for length in (None, 0, 2, 9)] + [("absent", (start, None)), ("notes.txt", None)]
    assert top.get_partial_values(pairs) == [b"abc"[start:], b"", b"abc"[start : start + 2], b"abc"[start:], None, b"abc"]


@pytest.mark.filterwarnings("ignore:.*offers no compare-and-swap:RuntimeWarning")
def test_a_rewritten_shard_of_a_store_without_versions_is_noticed() -> None:
    """Its index is read again beside the chunks, so they are never cut out by the index of another version."""
    store = Store()
    options: dict[str, Any] = {"present": "draft", "chunks_per_shard": (4,)}
    one, other = ShardingTransformer(store, **options), ShardingTransformer(store, **options)
    one.set("meta/root/x.array.json", document((4,), (1,), compressed=True))
    one.set_partial_values([(f"data/root/x/c{i}", 0, b"%d" % i * (i + 1)) for i in range(4)])
    assert other.get("data/root/x/c2") == b"222"
    one.set("data/root/x/c0", b"a much longer chunk")
    assert [other.get(f"data/root/x/c{i}") for i in range(4)] == [b"a much longer chunk", b"11", b"222", b"3333"]


@pytest.mark.filterwarnings("ignore:.*offers no compare-and-swap:RuntimeWarning")
def test_two_layers_over_a_store_without_versions() -> None:
    """Chunks of equal sizes leave the lower index as it was: only their own bytes tell their versions."""
    store = Store()
    options: dict[str, Any] = {"present": "draft", "chunks_per_shard": (2,)}
    one, other = (ShardingTransformer(ShardingTransformer(store, **options), **options) for _ in range(2))
    one.set("meta/root/x.array.json", document((8,), (1,), compressed=True))
    one.set_partial_values([("data/root/x/c0", 0, b"A" * 10), ("data/root/x/c1", 0, b"B" * 20)])
    assert [other.get(f"data/root/x/c{i}") for i in range(2)] == [b"A" * 10, b"B" * 20]
    with one.transaction():
        one.set("data/root/x/c0", b"a" * 20)
        one.set("data/root/x/c1", b"b" * 10)
    assert [other.get(f"data/root/x/c{i}") for i in range(2)] == [b"a" * 20, b"b" * 10]


@pytest.mark.parametrize("layers", [1, 2])
def test_an_array_is_created_with_chunks_in_a_transaction(layers: int) -> None:
    top, _ = layered(MemoryStorage(f"/layers-{uuid.uuid4().hex}"), layers)
    with top.transaction():
        top.set("meta/root/x.array.json", document((8,), (1,), compressed=True))
        top.set("data/root/x/c0", b"v")
    assert top.list() == ["data/root/x/c0", "meta/root/x.array.json", "zarr.json"]
    with top.transaction():
        top.erase("data/root/x/c0")
        top.erase("meta/root/x.array.json")
    assert top.list() == ["zarr.json"]


@pytest.mark.parametrize("layers", [1, 2])
def test_the_same_in_a_transaction(layers: int) -> None:
    """A shard that is given whole is what is given; what begins later, or is nothing, is a part."""
    for in_transaction in (False, True):
        top, _ = layered(MemoryStorage(f"/layers-{uuid.uuid4().hex}"), layers)
        top.set("meta/root/x.array.json", document((8,), (1,), compressed=True))
        keys = [f"data/root/x/c{i}" for i in range(4)]
        for key in keys:
            top.set(key, b"a longer one")
        with top.transaction() if in_transaction else nullcontext():
            top.set_partial_values([(keys[0], 0, b"sh"), (keys[1], 0, b"sh"), (keys[2], 0, b"sh"), (keys[3], 2, b"sh")])
            top.set_partial_values([(keys[0], 0, b""), (keys[1], 0, b"")])
        assert [top.get(key) for key in keys] == [b"sh", b"sh", b"shlonger one", b"a shnger one"]


def test_what_is_damaged_below_can_be_erased() -> None:
    place = MemoryStorage(f"/layers-{uuid.uuid4().hex}")
    top, _ = layered(place, 2)
    top.set("meta/root/x.array.json", document((16,), (1,), compressed=True))
    top.set_partial_values([(f"data/root/x/c{i}", 0, b"v") for i in range(4)])
    stored = SyncStorage(place)
    shard = stored.get("data/root/x/c0") or b""
    stored.put("data/root/x/c0", shard[:-32] + (2**40).to_bytes(8, "little") + shard[-24:])  # the first entry of the lower index
    with pytest.raises(Corruption):
        ShardingTransformer(ShardingTransformer(place, present="draft"), present="draft").get("data/root/x/c0")
    again = ShardingTransformer(ShardingTransformer(place, present="draft"), present="draft")
    again.set_partial_values([("data/root/x/c0", 0, b"new"), ("data/root/x/c1", 0, b"new")])
    assert again.get("data/root/x/c0") == b"new"
    assert again.get("data/root/x/c2") == b"v"
    stored.put("data/root/x/c0", shard[:-32] + (2**40).to_bytes(8, "little") + shard[-24:])
    again = ShardingTransformer(ShardingTransformer(place, present="draft"), present="draft")
    upper = EngineStorage(ShardingTransformer(place, present="draft").engine)
    assert run_sync(upper.delete("data/root/x/c0", UNCONDITIONAL)) is True
    assert again.list_prefix("data/") == ["data/root/x/c2", "data/root/x/c3"]


class OfOddAnswers(Store):
    """An iterator for an answer, and nothing for an empty range."""

    def get_partial_values(self, key_ranges: Any) -> Any:
        found = super().get_partial_values(key_ranges)
        return iter([None if length == 0 else value for value, (_, (_, length)) in zip(found, key_ranges, strict=True)])


@pytest.mark.filterwarnings("ignore:.*offers no compare-and-swap:RuntimeWarning")
def test_stores_of_odd_answers() -> None:
    store = OfOddAnswers()
    top = ShardingTransformer(store, present="draft", chunks_per_shard=(4,))
    top.set("meta/root/x.array.json", document((4,), (1,)))
    top.set("data/root/x/c1", b"x")
    top.erase("data/root/x/c1")
    assert top.list_prefix("data/") == []
    assert sorted(store.values) == ["meta/root/x.array.json", "zarr.json"]


class Misbehaving(Store):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def get_partial_values(self, key_ranges: Sequence[tuple[str, tuple[int, int | None]]]) -> list[bytes | None]:
        found = super().get_partial_values(key_ranges)
        is_data = bool(key_ranges) and key_ranges[0][0].startswith("data")
        match self.how if is_data else "":
            case "too few":
                return found[:-1]
            case "raises":
                raise RuntimeError("the disk is on fire")
            case "short":
                return [None if value is None else value[:-1] for value in found]
        return found


@pytest.mark.filterwarnings("ignore:.*offers no compare-and-swap:RuntimeWarning")
@pytest.mark.parametrize(
    ("how", "error", "text"),
    [("too few", StorageError, "0 values for 1"), ("raises", StorageError, "on fire"), ("short", Corruption, "index")],
)
def test_stores_that_do_not_keep_to_it(how: str, error: type[Exception], text: str) -> None:
    store = Misbehaving("")
    top = ShardingTransformer(store, present="draft", chunks_per_shard=(4,), metadata_ttl=float("inf"))
    top.set("meta/root/x.array.json", document((4,), (1,)))
    top.set_partial_values([(f"data/root/x/c{i}", 0, b"x") for i in range(4)])
    other = ShardingTransformer(store, present="draft", metadata_ttl=float("inf"))
    store.how = how
    with pytest.raises(error, match=text):
        other.get("data/root/x/c1")


def test_what_is_no_store() -> None:
    class Half:
        def get_partial_values(self, key_ranges: Any) -> list[bytes | None]:
            return []

    with pytest.raises(InvalidInput, match="a target is"):
        ShardingTransformer(Half())
