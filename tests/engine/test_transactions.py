"""Transactions: held back, readable meanwhile, one commit a shard, chunks before metadata, or nothing."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import zarr
from zarr.core.buffer import cpu
from zarr.core.sync import sync

from shardstore import Conflict, InvalidInput, ShardedStore, ShardingTransformer, StorageError
from shardstore._sync import run_sync
from shardstore.engine.actions import SetIfMissing, SetValue
from shardstore.engine.engine import Engine
from shardstore.engine.options import EngineOptions
from shardstore.model.ranges import EVERYTHING
from tests.engine.hooked import HookedStorage, document, fresh_memory


def open_hooked(**options: Any) -> tuple[HookedStorage, ShardingTransformer, ShardingTransformer]:
    storage = HookedStorage(fresh_memory())
    mine = ShardingTransformer(storage, **({"chunks_per_shard": (4,)} | options))
    return storage, mine, ShardingTransformer(storage.inner, chunks_per_shard=(4,))


@pytest.mark.parametrize("max_memory", [10, 10**6])  # with and without a spill to a temporary file
def test_one_commit_a_shard_and_chunks_before_metadata(max_memory: int) -> None:
    storage, mine, other = open_hooked(max_memory=max_memory)
    with mine.transaction():
        mine.set("a/zarr.json", document((16,), (1,)))
        for i in range(8):
            mine.set(f"a/c/{i}", b"%d" % i * 3)
        mine.set("a/c/3", b"again")
        mine.set_partial_values([("a/c/3", 5, b"!")])
        mine.erase("a/c/0")
        assert mine.get("a/c/3") == b"again!"
        assert mine.get("a/c/0") is None
        assert mine.get_partial_values([("a/c/7", (1, 1)), ("a/c/9", None)]) == [b"7", None]
        assert mine.list() == sorted(["a/zarr.json", *(f"a/c/{i}" for i in range(1, 8))])
        assert mine.list_dir("a/") == (["a/zarr.json"], ["a/c/"])
        assert other.list() == []
        assert storage.count("write") == 0
    writes = [key for op, key in storage.seen if op in ("write", "compose")]
    if max_memory > 100:
        assert sorted(writes[:-1]) == ["a/c/0", "a/c/1"]
    assert writes[-1] == "a/zarr.json"
    assert other.get("a/c/3") == b"again!"
    assert other.get("a/c/0") is None
    assert other.get("a/c/7") == b"777"


def test_an_exception_discards_everything_and_says_how_much() -> None:
    _, mine, _ = open_hooked()
    mine.set("a/zarr.json", document((16,), (1,)))
    mine.set("a/c/0", b"old")

    def change() -> None:
        with mine.transaction():
            mine.set("a/c/0", b"new")
            mine.erase_prefix("a/c/")
            mine.set("a/c/1", b"new")
            raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        change()
    assert "rolled back" in caught.value.__notes__[0]
    assert (mine.get("a/c/0"), mine.get("a/c/1")) == (b"old", None)


def test_erased_prefixes_go_first() -> None:
    _, mine, other = open_hooked()
    mine.set("a/zarr.json", document((16,), (1,)))
    mine.set("a/c/0", b"old")
    mine.set("b", b"stays")
    with mine.transaction():
        mine.erase_prefix("a/")
        assert mine.get("a/c/0") is None
        assert mine.list() == ["b"]
        mine.set("a/zarr.json", document((8,), (2,)))
        mine.set("a/c/1", b"new")
        assert other.get("a/c/0") == b"old"
    assert other.list() == ["a/c/1", "a/zarr.json", "b"]
    assert other.get("a/c/1") == b"new"


def test_an_empty_array_that_is_laid_out_anew_is_described_before_its_chunks_are_there() -> None:
    """Who has the old document would read them by it, and be right about that as far as anybody could tell."""

    async def run() -> None:
        storage = HookedStorage(fresh_memory())
        mine, other = Engine(storage, EngineOptions(chunks_per_shard=(4,))), Engine(storage.inner)
        await mine.update(("a/zarr.json", SetValue(document((16,), (1,)))))
        assert await other.get(("a/c/1", EVERYTHING)) is None
        storage.seen.clear()
        await mine.begin()
        await mine.update(("a/zarr.json", SetValue(document((16,), (2,)))))
        await mine.update_many([("a/c/1", SetValue(b"11")), ("a/c/7", SetValue(b"77"))])
        await mine.commit()
        assert [key for operation, key in storage.seen if operation == "write"] == ["a/zarr.json", "a/c/0", "a/c/1"]
        assert [await other.get((f"a/c/{i}", EVERYTHING)) for i in (1, 7, 4)] == [b"11", b"77", None]

    run_sync(run())


def test_an_array_that_grows_is_described_behind_its_chunks() -> None:
    storage, mine, other = open_hooked()
    mine.set("a/zarr.json", document((16,), (1,)))
    mine.set("a/c/3", b"3")
    storage.seen.clear()
    with mine.transaction():
        mine.set("a/zarr.json", document((32,), (1,)))
        mine.set("a/c/20", b"20")
    assert [key for operation, key in storage.seen if operation == "write"] == ["a/c/5", "a/zarr.json"]
    assert (other.get("a/c/3"), other.get("a/c/20")) == (b"3", b"20")


def test_what_would_be_refused_is_refused_before_a_chunk_is_written() -> None:
    storage, mine, other = open_hooked()
    mine.set("a/zarr.json", document((16,), (1,)))
    mine.set("a/c/0", b"old")
    storage.seen.clear()

    def change() -> None:
        with mine.transaction():
            mine.set("a/c/1", b"new")
            mine.set("a/zarr.json", document((16,), (2,)))

    with pytest.raises(InvalidInput, match="cannot change while it has chunks") as caught:
        change()
    assert "0 of 2 held-back keys were committed" in caught.value.__notes__[0]
    assert storage.count("write") == storage.count("compose") == 0
    assert other.get("a/c/1") is None


def test_they_do_not_nest_and_need_a_writable_store() -> None:
    _, mine, _ = open_hooked()
    with mine.transaction(), pytest.raises(InvalidInput, match="cannot be nested"), mine.transaction():
        pytest.fail("the inner block must not be entered")
    with pytest.raises(InvalidInput, match="read-only"):
        ShardingTransformer(fresh_memory(), read_only=True).transaction()


def test_a_refused_commit_has_erased_nothing() -> None:
    storage, mine, other = open_hooked()
    mine.set("a/zarr.json", document((16,), (1,)))
    mine.set("a/c/0", b"old")

    def change() -> None:
        with mine.transaction():
            mine.erase_prefix("a/")
            mine.set("a/zarr.json", document((4, 4), (1, 1)))  # the policy is for one dimension
            mine.set("a/c/0/0", b"new")

    with pytest.raises(InvalidInput, match="array 'a' has 2"):
        change()
    assert other.get("a/c/0") == b"old"
    assert storage.count("delete") == 0


def test_set_if_missing_stays_conditional_until_the_commit() -> None:
    storage = HookedStorage(fresh_memory())
    mine = ShardedStore(storage, chunks_per_shard=(4,))
    other = ShardingTransformer(storage.inner, chunks_per_shard=(4,))
    other.set("a/zarr.json", document((16,), (1,)))
    with mine.transaction():
        for key in ("a/c/0", "a/c/1", "n.txt", "m.txt"):
            sync(mine.set_if_not_exists(key, cpu.Buffer.from_bytes(b"mine")))
            assert sync(mine.getsize(key)) == 4
        other.set("a/c/0", b"theirs")
        other.set("n.txt", b"theirs")
    assert [other.get(key) for key in ("a/c/0", "a/c/1", "n.txt", "m.txt")] == [b"theirs", b"mine", b"theirs", b"mine"]


def test_a_conditional_write_that_overlaps_the_commit_is_not_lost() -> None:
    storage = HookedStorage(fresh_memory())
    mine = ShardedStore(storage, chunks_per_shard=(4,))
    other = ShardingTransformer(storage.inner, chunks_per_shard=(4,))
    other.set("a/zarr.json", document((16,), (1,)))
    go_on, reached = threading.Event(), threading.Event()

    async def hold(operation: str, key: str) -> None:
        if operation == "read" and key == "a/c/1":  # the shard of a/c/4
            storage.before = None
            reached.set()
            await asyncio.to_thread(go_on.wait)

    thread = threading.Thread(target=lambda: sync(mine.set_if_not_exists("a/c/4", cpu.Buffer.from_bytes(b"late"))))
    with mine.transaction():
        sync(mine.set("a/c/0", cpu.Buffer.from_bytes(b"0")))
        storage.before = hold
        thread.start()
        reached.wait(20)
    go_on.set()
    thread.join(20)
    assert [other.get("a/c/0"), other.get("a/c/4")] == [b"0", b"late"]


def test_what_is_being_committed_stays_readable() -> None:
    storage, mine, _ = open_hooked()
    mine.set("a/zarr.json", document((16,), (1,)))
    seen: list[bytes | None] = []

    async def look(operation: str, key: str) -> None:
        if operation == "write":
            seen.append(await asyncio.to_thread(mine.get, "a/c/0"))
            seen.append(await asyncio.to_thread(mine.get, "b/zarr.json"))

    with mine.transaction():
        mine.set("a/c/0", b"new")
        mine.set("b/zarr.json", document((16,), (1,)))
        storage.before = look
    storage.before = None
    assert seen == [b"new", document((16,), (1,))] * 2


def test_listing_a_node_that_the_transaction_makes() -> None:
    store = ShardedStore(fresh_memory(), chunks_per_shard=(2,))
    with store.transaction():
        array = zarr.create_array(store, name="ct", shape=(8,), chunks=(2,), dtype="i4")
        array[:] = 1
        zarr.create_array(store, name="ct2", shape=(8,), chunks=(2,), dtype="i4")[:] = 1
        assert array.nchunks_initialized == 4
    assert array.nchunks_initialized == 4


@pytest.mark.parametrize("per_shard", [(4, 1), (4, 4)])  # of four shards the others go on while one waits; of one, none
def test_a_transaction_that_meets_anothers_new_array_harms_neither(per_shard: tuple[int, int]) -> None:
    """The other creates and fills the array at some moment of the commit; whichever it is, its values stay right."""
    for moment in range(1, 12):
        storage = HookedStorage(fresh_memory())
        mine = ShardingTransformer(storage, chunks_per_shard=per_shard)
        other = ShardingTransformer(storage.inner, chunks_per_shard=(1, 4))
        keys = [f"x/c/{i}/{j}" for i in range(4) for j in range(4)]
        calls = 0

        def fill(other: ShardingTransformer = other, keys: list[str] = keys) -> bool:
            try:
                other.set("x/zarr.json", document((4, 4), (1, 1)))
                for key in keys:
                    other.set(key, b"theirs" + key.encode())
            except (InvalidInput, Conflict):
                return False  # refused: there are shards of the transaction already
            return True

        filled: list[bool] = []

        async def race(
            operation: str,
            key: str,
            moment: int = moment,
            fill: Callable[[], bool] = fill,
            filled: list[bool] = filled,
            storage: HookedStorage = storage,
        ) -> None:
            nonlocal calls
            calls += 1
            if calls == moment:
                storage.before = None
                filled.append(await asyncio.to_thread(fill))

        try:
            with mine.transaction():
                mine.set("x/zarr.json", document((4, 4), (1, 1)))
                for key in keys:
                    mine.set(key, b"mine" + key.encode())
                storage.before = race
            succeeded = True
        except (Conflict, InvalidInput):  # the latter where it sees shards of the other before it has begun
            succeeded = False
        storage.before = None
        reader = ShardingTransformer(storage.inner)
        values = {reader.get(key) for key in keys}
        ours, theirs = {b"mine" + key.encode() for key in keys}, {b"theirs" + key.encode() for key in keys}
        if succeeded:
            assert values == ours, moment
        else:
            assert values == (theirs if filled == [True] else {None}), moment
        assert filled or moment > 4


def test_a_batch_that_overlaps_the_end_of_a_transaction() -> None:
    storage, mine, other = open_hooked()
    engine = mine.engine

    async def overlap() -> list[Exception | None]:
        await engine.begin()
        batch = asyncio.ensure_future(engine.update_many([("x", SetIfMissing(b"1")), ("y", SetValue(b"2"))]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await engine.commit()
        return await batch

    assert run_sync(overlap()) == [None, None]
    assert (other.get("x"), other.get("y")) == (b"1", b"2")
    assert storage.count("write") == 2


def test_a_listing_that_overlaps_the_commit_misses_nothing() -> None:
    _, mine, _ = open_hooked()
    mine.set("a/zarr.json", document((16,), (1,)))
    for i in range(16):
        mine.set(f"a/c/{i}", b"old")
    engine = mine.engine

    async def overlap(pauses: int) -> list[str]:
        async def list_slowly() -> list[str]:
            found = []
            async for value in engine.list("a/c/"):
                found.append(value.key)
                await asyncio.sleep(0)
            return found

        await engine.begin()
        await engine.erase_prefix("a/c/")
        await engine.update_many([(f"a/c/{i}", SetValue(b"new")) for i in range(16)])
        commit = asyncio.ensure_future(engine.commit())
        for _ in range(pauses):
            await asyncio.sleep(0)
        found = await list_slowly()
        await commit
        return found

    for pauses in range(0, 60, 3):
        assert sorted(run_sync(overlap(pauses))) == sorted(f"a/c/{i}" for i in range(16)), pauses


def test_a_full_disk_loses_nothing_that_was_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    _, mine, other = open_hooked(max_memory=4)

    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    with mine.transaction():
        mine.set("k", b"kept")
        monkeypatch.setattr("tempfile.TemporaryFile", full)
        with pytest.raises(StorageError, match="No space left"):
            mine.set("k", b"too long to keep")
        assert mine.get("k") == b"kept"
    assert other.get("k") == b"kept"


@pytest.mark.parametrize("moment", range(1, 7))  # behind them the transaction's own shard is there, and the other client is refused
def test_two_that_create_the_same_array(moment: int) -> None:
    """One stores the array and its chunks before any of the transaction's requests: it goes on with that array, or is to be tried again."""
    storage, mine, other = open_hooked()
    of_other = {f"a/c/{i}": b"other" for i in range(8)}
    requests = 0

    async def create_first(_operation: str, _key: str) -> None:
        nonlocal requests
        requests += 1
        if requests == moment:
            faster = Engine(storage.inner, EngineOptions(chunks_per_shard=(4,)))
            await faster.update(("a/zarr.json", SetValue(document((16,), (1,)))))
            assert not any(await faster.update_many([(key, SetValue(value)) for key, value in of_other.items()]))

    def create() -> None:
        with mine.transaction():
            mine.set("a/zarr.json", document((16,), (1,)))
            mine.set("a/c/3", b"mine")

    storage.before = create_first
    expected = dict(of_other)
    with contextlib.suppress(Conflict):
        create()
        expected["a/c/3"] = b"mine"
    assert requests >= moment
    assert {key: other.get(key) for key in other.list() if key != "a/zarr.json"} == expected
