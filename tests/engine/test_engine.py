"""The engine against a storage on which another client acts between two requests."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shardstore.engine.actions import ERASE, Patch, SetIfMissing, SetValue
from shardstore.engine.engine import Engine
from shardstore.engine.options import EngineOptions
from shardstore.errors import Conflict, Corruption, InvalidInput, NotFound, Unsupported
from shardstore.format.shard_index import EMPTY, IndexFormat, ShardIndex
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import UNCONDITIONAL
from shardstore.model.ranges import EVERYTHING, ByteRange
from shardstore.storage.base import Found, Read
from tests.engine.clients import get, play, put
from tests.engine.hooked import HookedStorage, document


def test_another_commit_between_index_and_chunk_is_noticed() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        await put(other, c0=b"a0", c1=b"b0")
        calls = 0

        async def rewrite(operation: str, key: str) -> None:
            nonlocal calls
            if operation == "read" and key == "a/c/0":
                calls += 1
                if calls == 2:  # after the index, before the chunk: both chunks move
                    await put(other, c0=b"a-much-longer", c1=b"b1")

        storage.before = rewrite
        assert await get(mine, "a/c/1") == b"b1"
        assert mine.counters.retried_reads == 1

    play(scenario)


def test_a_shard_that_changes_at_every_read_is_settled_by_one_request() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        number = 0
        written: set[bytes] = set()

        async def rewrite(operation: str, key: str) -> None:
            nonlocal number
            if operation == "read" and key == "a/c/0":
                number += 1
                written.add(b"v" * number)
                await put(other, c0=b"x" * (100 - number), c1=b"v" * number)

        storage.before = rewrite
        value = await get(mine, "a/c/1")
        assert value in written
        assert number < 15

    play(scenario)


def test_a_cached_index_is_confirmed_before_a_chunk_is_called_missing() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        await put(mine, c0=b"0")
        assert await get(mine, "a/c/0") == b"0"
        await put(other, c1=b"1")
        assert await get(mine, "a/c/1") == b"1"

    play(scenario)


def test_a_lost_race_is_planned_again_and_loses_nothing() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        rounds = 0

        async def race(operation: str, key: str) -> None:
            nonlocal rounds
            if operation in ("write", "compose") and key == "a/c/0" and rounds < 3:
                rounds += 1
                await put(other, **{f"c{rounds}": b"theirs%d" % rounds})

        storage.before = race
        await put(mine, c0=b"mine")
        assert [await get(other, f"a/c/{i}") for i in range(4)] == [b"mine", b"theirs1", b"theirs2", b"theirs3"]
        assert mine.counters.conflicts == 3

    play(scenario)


def test_a_writer_that_always_loses_gives_up_and_says_so() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        number = 0

        async def race(operation: str, key: str) -> None:
            nonlocal number
            if operation in ("write", "compose") and key == "a/c/0":
                number += 1
                await put(other, c1=b"%d" % number)

        storage.before = race
        with pytest.raises(Conflict, match="shard 'a/c/0' of array 'a'"):
            await put(mine, c0=b"mine")
        assert number == 5

    play(scenario, commit_attempts=5)


def test_partial_values() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        await mine.update(("a/c/0", Patch(0, b"hello")))
        await mine.update(("a/c/0", Patch(4, b"0 world")))
        assert await get(other, "a/c/0") == b"hell0 world"
        with pytest.raises(InvalidInput, match="from 12: it has 11 bytes"):
            await mine.update(("a/c/0", Patch(12, b"x")))
        with pytest.raises(InvalidInput, match="because it does not exist"):
            await mine.update(("a/c/1", Patch(1, b"x")))
        await mine.update(("a/c/0", SetIfMissing(b"no")))
        await mine.update(("a/c/2", SetIfMissing(b"yes")))
        assert (await get(other, "a/c/0"), await get(other, "a/c/2")) == (b"hell0 world", b"yes")
        assert bytes(await mine.get(("a/c/0", ByteRange(4, 100))) or b"") == b"0 world"
        with pytest.raises(InvalidInput, match="only be written as a whole"):
            await mine.update(("a/zarr.json", Patch(0, b"x")))

    play(scenario)


def test_a_recreated_array_with_another_shard_shape_is_written_in_the_new_one() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        await put(mine, c0=b"0", c5=b"5")
        bigger = Engine(storage.inner, EngineOptions(chunks_per_shard=(8,)))
        await bigger.erase_prefix("a/")
        await bigger.update(("a/zarr.json", SetValue(document((16,), (1,)))))
        await put(bigger, c5=b"five")
        # The view of `mine` is out of date, and not yet due: the conflict with what is there brings it up to date.
        await put(mine, c1=b"1")
        assert [await get(bigger, f"a/c/{i}") for i in (0, 1, 5)] == [None, b"1", b"five"]
        assert await get(mine, "a/c/5") == b"five"

    play(scenario)


def test_the_layout_is_confirmed_after_a_conflict_where_no_checksum_would_tell() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        await put(mine, c0=b"0", c1=b"1")
        bigger = Engine(storage.inner, EngineOptions(chunks_per_shard=(8,), index_checksum=False))
        await bigger.erase_prefix("a/")
        await bigger.update(("a/zarr.json", SetValue(document((16,), (1,)))))
        await put(bigger, c4=b"four", c5=b"five")
        # The last four entries of the new index would pass for an index of the old shape.
        await put(mine, c1=b"one")
        assert [await get(bigger, f"a/c/{i}") for i in (0, 1, 4, 5)] == [None, b"one", b"four", b"five"]

    play(scenario, index_checksum=False)


def test_a_deleted_array_is_not_written_to_as_loose_objects() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        await put(mine, c0=b"0")
        await other.erase_prefix("a/")
        for _ in range(2):
            with pytest.raises(NotFound, match="array 'a' was sharded and has been deleted or moved"):
                await put(mine, c1=b"1")
        assert await get(mine, "a/c/1") is None
        assert await storage.inner.stat("a/c/1") is None

    play(scenario, metadata_ttl=0.0)


def test_a_damaged_document_of_a_known_array_stops_reads_and_writes() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        await put(mine, c0=b"0")
        shard = await storage.inner.stat("a/c/0")
        await storage.inner.write("a/zarr.json", [b"{"], 1, UNCONDITIONAL)
        with pytest.raises(Corruption, match=r"'a/zarr.json' was the metadata of a sharded array"):
            await put(mine, c1=b"1")
        assert await storage.inner.stat("a/c/0") == shard

    play(scenario, metadata_ttl=0.0)


def test_storages_without_compare_and_swap_warn_once_or_refuse() -> None:
    weak = Capabilities(pinned_reads=True)

    async def warns(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        storage.capabilities_override = weak
        with pytest.warns(RuntimeWarning, match="no compare-and-swap"):
            await put(mine, c0=b"0")
        await put(mine, c1=b"1")  # a second warning would be an error
        assert [await get(other, "a/c/0"), await get(other, "a/c/1")] == [b"0", b"1"]

    async def refuses(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        storage.capabilities_override = weak
        with pytest.raises(Unsupported, match="no compare-and-swap"):
            await put(mine, c0=b"0")
        assert storage.count("write") == 0

    play(warns)
    play(refuses, require_atomic=True)


@pytest.mark.parametrize("window", [1, 5, 1000])
def test_kept_chunks_are_read_in_windows_where_the_storage_cannot_copy(window: int) -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        storage.capabilities_override = replace(storage.inner.capabilities, compose=False)
        await put(mine, c0=b"aaaa", c1=b"bbb", c2=b"cc", c3=b"d")
        storage.seen.clear()
        await put(mine, c1=b"B" * 9)
        assert [await get(other, f"a/c/{i}") for i in range(4)] == [b"aaaa", b"B" * 9, b"cc", b"d"]
        if window == 1000:
            assert storage.count("read", "a/c/0") == 1  # the index is cached; one read of the rest
        assert storage.count("write", "a/c/0") == 1

    play(scenario, copy_window_bytes=window)


def test_metadata_cannot_be_erased_from_under_its_shards() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        await put(mine, c0=b"0")
        with pytest.raises(InvalidInput, match="while it has shards"):
            await mine.update(("a/zarr.json", ERASE))
        # In one batch the order does not matter: metadata is erased last.
        errors = await mine.update_many([("a/zarr.json", ERASE), ("a/c/0", ERASE)])
        assert errors == [None, None]
        assert [v.key async for v in other.list("")] == []

    play(scenario)


def test_chunks_sent_before_metadata_in_one_batch() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        updates = [("b/c/0", SetValue(b"0")), ("b/c/1", SetValue(b"1")), ("b/zarr.json", SetValue(document((16,), (1,))))]
        assert await mine.update_many(updates) == [None] * 3
        assert storage.count("write", "b/c/0") == 1
        assert storage.count("write", "b/c/1") == 0
        assert await get(other, "b/c/1") == b"1"

    play(scenario)


def test_deleting_a_node_removes_metadata_last() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        await mine.update(("a/g/zarr.json", SetValue(b'{"zarr_format": 3, "node_type": "group"}')))
        await put(mine, c0=b"0", c9=b"9")
        storage.seen.clear()
        await mine.erase_prefix("a/")
        assert [key for op, key in storage.seen if op == "delete"] == ["a/c/0", "a/c/2", "a/g/zarr.json", "a/zarr.json"]

    play(scenario)


def test_two_creators_with_other_policies_agree_on_one_layout() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        rival = Engine(storage.inner, EngineOptions(chunks_per_shard=(2,)))

        async def race(operation: str, key: str) -> None:
            if operation == "write" and key == "b/zarr.json":
                storage.before = None
                await rival.update(("b/zarr.json", SetValue(document((16,), (1,)))))
                await rival.update(("b/c/1", SetValue(b"theirs")))

        storage.before = race
        await mine.update(("b/zarr.json", SetValue(document((16,), (1,), attributes={"by": "mine"}))))
        await mine.update(("b/c/0", SetValue(b"mine")))
        assert [await get(rival, "b/c/0"), await get(rival, "b/c/1")] == [b"mine", b"theirs"]
        layout = await rival.layout("b")
        assert layout is not None
        assert layout.index_format.chunks_per_shard == (2,)

    play(scenario)


@pytest.mark.parametrize("codecs", [None, [], "bytes", {}])
def test_a_document_that_could_not_be_shown_again_passes_through(codecs: object) -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        odd = document((16,), (1,), codecs=codecs)
        await mine.update(("odd/zarr.json", SetValue(odd)))
        assert await get(other, "odd/zarr.json") == odd

    play(scenario)


def test_an_array_remembered_as_unsharded_is_checked_before_it_is_read() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        unsharded = Engine(storage.inner, EngineOptions(chunks_per_shard=None))
        await unsharded.update(("b/zarr.json", SetValue(document((16,), (1,)))))
        await put_in(unsharded, "b", {0: b"old0", 1: b"old1"})
        assert await get(mine, "b/c/1") == b"old1"
        await unsharded.erase_prefix("b/")
        await other.update(("b/zarr.json", SetValue(document((16,), (1,)))))
        await put_in(other, "b", {0: b"new0", 1: b"new1", 5: b"new5"})
        assert await mine.size("b/c/0") == 4
        assert [await get(mine, f"b/c/{i}") for i in (0, 1, 5, 6)] == [b"new0", b"new1", b"new5", None]

    play(scenario, metadata_ttl=0.0)


async def put_in(engine: Engine, path: str, chunks: dict[int, bytes]) -> None:
    errors = await engine.update_many([(f"{path}/c/{i}", SetValue(data)) for i, data in chunks.items()])
    assert errors == [None] * len(chunks)


@pytest.mark.parametrize("damaged", [b"", b"{", b'{"zarr_format": 3, "node_t', b"[]"])
def test_nothing_is_written_onto_what_may_be_a_shard(damaged: bytes) -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        await put(mine, c0=b"0", c1=b"1")
        before = await storage.inner.stat("a/c/0")
        await storage.inner.write("a/zarr.json", [damaged], len(damaged), UNCONDITIONAL)
        for action in (SetValue(b"x"), ERASE, Patch(0, b"x"), SetIfMissing(b"x")):
            with pytest.raises(Corruption, match=r"may be a shard: .*'a/zarr.json'"):
                await other.update(("a/c/0", action))
        assert await storage.inner.stat("a/c/0") == before

    play(scenario)


def test_a_damaged_document_is_restored_or_deleted_by_who_knew_it() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        await put(mine, c0=b"0")
        good = await get(mine, "a/zarr.json")
        assert good is not None
        await storage.inner.write("a/zarr.json", [b"{"], 1, UNCONDITIONAL)
        assert await get(mine, "a/zarr.json") == b"{"
        await mine.update(("a/zarr.json", SetValue(good)))
        assert await get(other, "a/c/0") == b"0"
        await storage.inner.write("a/zarr.json", [b"{"], 1, UNCONDITIONAL)
        await mine.erase_prefix("a/")
        assert [v.key async for v in other.list("")] == []

    play(scenario, metadata_ttl=0.0)


def test_one_arrays_trouble_is_not_anothers() -> None:
    def fails(info: Any) -> Any:
        if info.path == "bad":
            raise KeyError("oops")
        return (4,)

    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        await put(mine, c0=b"0")
        await mine.update(("b/zarr.json", SetValue(document((16,), (1,)))))
        await other.erase_prefix("a/")
        updates = [("a/c/0", SetValue(b"x")), ("b/c/0", SetValue(b"0")), ("notes.txt", SetValue(b"n"))]
        errors = await mine.update_many([*updates, ("bad/zarr.json", SetValue(document((4,), (1,))))])
        assert [type(e) for e in errors] == [NotFound, type(None), type(None), InvalidInput]
        assert "oops" in str(errors[3])
        assert [await get(other, key) for key in ("b/c/0", "notes.txt")] == [b"0", b"n"]

    play(scenario, metadata_ttl=0.0, chunks_per_shard=fails)


def test_paths_that_climb_out_are_refused_everywhere() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        for path in ("../b", "a/../../b", "/a", "a//b"):
            with pytest.raises(InvalidInput):
                await mine.layout(path)
            with pytest.raises(InvalidInput):
                await mine.is_node(path)

    play(scenario)


def test_documents_of_one_batch_are_written_at_once() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        under_way = most = 0

        async def watch(operation: str, key: str) -> None:
            nonlocal under_way, most
            if operation == "write":
                under_way += 1
                most = max(most, under_way)
                await asyncio.sleep(0.001)
                under_way -= 1

        storage.before = watch
        assert await mine.update_many([(f"n{i}/zarr.json", SetValue(document((4,), (1,)))) for i in range(20)]) == [None] * 20
        assert most > 10

    play(scenario)


def test_a_shard_that_was_replaced_is_not_read_in_the_layout_of_before() -> None:
    """Another array may have taken its place, whose index has as many slots and a right checksum."""

    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        def square(per_shard: tuple[int, int]) -> Engine:
            return Engine(storage.inner, EngineOptions(chunks_per_shard=per_shard))

        columns, rows = square((2, 1)), square((1, 2))
        await columns.update(("b/zarr.json", SetValue(document((2, 2), (1, 1)))))
        keys = [f"b/c/{i}/{j}" for i in range(2) for j in range(2)]
        assert await columns.update_many([(key, SetValue(b"old" + key.encode())) for key in keys]) == [None] * 4
        assert await get(mine, keys[0]) == b"old" + keys[0].encode()
        await rows.erase_prefix("b/")
        await rows.update(("b/zarr.json", SetValue(document((2, 2), (1, 1)))))
        assert await rows.update_many([(key, SetValue(b"new" + key.encode())) for key in keys]) == [None] * 4
        # `mine` knows the array for a thousand seconds, and yet:
        assert [await get(mine, key) for key in keys] == [b"new" + key.encode() for key in keys]

    play(scenario)


def test_a_cached_index_is_not_believed_longer_than_its_layout() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        await put(mine, c0=b"0")
        storage.seen.clear()
        assert await get(mine, "a/c/0") == b"0"
        assert sorted(storage.seen) == [("read", "a/c/0"), ("read", "a/zarr.json")]  # in one round: see the counted tests

    play(scenario, metadata_ttl=0.0)


def test_a_write_that_replaces_what_is_damaged_heals_the_shard() -> None:
    """A commit that would keep the damaged chunk is refused; the next one replaces it, and takes another caller's chunk along."""

    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        await put(mine, c0=b"00", c1=b"11")
        (found,) = await storage.inner.read([Read("a/c/0", (EVERYTHING,))])
        assert isinstance(found, Found)
        index_format = IndexFormat((4,))
        entries = np.array([[0, 2], [500, 2], [EMPTY, EMPTY], [EMPTY, EMPTY]], dtype=np.uint64)
        damaged = b"0011" + index_format.encode(ShardIndex(entries))
        await storage.inner.write("a/c/0", [damaged], len(damaged), UNCONDITIONAL)
        started, go_on = asyncio.Event(), asyncio.Event()

        async def hold(operation: str, key: str) -> None:
            if operation == "read" and key == "a/c/0" and not started.is_set():
                started.set()
                await go_on.wait()

        storage.before = hold
        first = asyncio.ensure_future(mine.update(("a/c/3", SetValue(b"33"))))
        await started.wait()
        later = [asyncio.ensure_future(mine.update((f"a/c/{i}", SetValue(b"new")))) for i in (2, 1)]
        await asyncio.sleep(0)
        go_on.set()
        results = await asyncio.gather(first, *later, return_exceptions=True)
        assert isinstance(results[0], Corruption)
        assert results[1:] == [None, None]
        assert await get(other, "a/c/1") == b"new"
        assert await get(other, "a/c/0") == b"00"

    play(scenario)


def test_a_stored_object_is_not_taken_for_a_chunk_of_an_array_that_has_just_been_created() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        assert await get(mine, "b/c/0") is None  # remembered: there is no array
        await other.update(("b/zarr.json", SetValue(document((16,), (1,)))))
        await put_in(other, "b", {0: b"zero", 1: b"one"})
        assert await get(mine, "b/c/0") == b"zero"
        assert await get(mine, "b/c/1") == b"one"

    play(scenario)


def test_nodes_are_deleted_from_the_leaves_up() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        group = b'{"zarr_format": 3, "node_type": "group"}'
        for path in ("g", "g/zz", "g/zz/zzz", "g/a"):  # which sort behind the document of their parent
            await mine.update((f"{path}/zarr.json", SetValue(group)))
        storage.seen.clear()
        await mine.erase_prefix("g/")
        deleted = [key.removesuffix("/zarr.json") for op, key in storage.seen if op == "delete"]
        assert len(deleted) == 4
        assert all(deleted.index(path) > deleted.index(below) for path in deleted for below in deleted if below.startswith(path + "/"))

    play(scenario)


def test_consolidated_metadata_is_stored_as_the_arrays_are() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        shown = json.loads(await get(mine, "a/zarr.json") or b"")
        consolidated = {"kind": "inline", "must_understand": False, "metadata": {"a": shown}}
        group = {"zarr_format": 3, "node_type": "group", "attributes": {}, "consolidated_metadata": consolidated}
        await mine.update(("zarr.json", SetValue(json.dumps(group).encode())))
        (found,) = await storage.inner.read([Read("zarr.json", (EVERYTHING,))])
        assert isinstance(found, Found)
        assert json.loads(bytes(found.buffers[0]))["consolidated_metadata"]["metadata"]["a"]["codecs"][0]["name"] == "sharding_indexed"
        assert json.loads(await get(other, "zarr.json") or b"") == group

    play(scenario)


@pytest.mark.parametrize("action", [SetValue(b"new"), Patch(0, b"new")])
def test_chunks_are_not_written_where_their_document_was_refused(action: SetValue | Patch) -> None:
    """They were encoded for another array than the one that is there."""

    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        await put(mine, c0=b"old")
        wrong = document((16,), (1,)).replace(b"int32", b"float64").replace(b"uint8", b"float64")
        errors = await mine.update_many(
            [("a/c/0", action), ("a/c/9", action), ("b/c/0", SetValue(b"free")), ("a/zarr.json", SetValue(wrong))]
        )
        assert [type(error) for error in errors] == [InvalidInput, InvalidInput, type(None), InvalidInput]
        assert "came with it, was refused" in str(errors[0])
        assert await get(mine, "a/c/0") == b"old"
        assert await get(mine, "a/c/9") is None
        assert await get(mine, "b/c/0") == b"free"
        assert await mine.update_many([("a/c/0", ERASE), ("a/zarr.json", SetValue(wrong))]) != [None, None]
        assert await get(mine, "a/c/0") is None, "what is erased is gone whatever its document is"

    play(scenario)


def test_creating_tells_whether_there_was_something() -> None:
    async def scenario(storage: HookedStorage, mine: Engine, other: Engine) -> None:
        for key in ("a/c/0", "plain", "g/zarr.json"):
            data = b'{"zarr_format": 3, "node_type": "group"}'
            made = await asyncio.gather(*(engine.create(key, data) for engine in (mine, other, mine, other)))
            assert sum(made) == 1, key
            assert await get(mine, key) == data
            assert await mine.create(key, b"{}") is False
        # One that is overwritten in the same batch has been created all the same.
        created, _ = await asyncio.gather(mine.create("a/c/5", b"1"), mine.update(("a/c/5", SetValue(b"2"))))
        assert created is True
        assert await get(mine, "a/c/5") == b"2"
        created, _ = await asyncio.gather(mine.create("plain2", b"1"), mine.update(("plain2", SetValue(b"2"))))
        assert created is True
        await mine.begin()
        assert await mine.create("a/c/5", b"3") is False
        assert await mine.create("a/c/6", b"3") is True
        await mine.commit()
        assert await get(other, "a/c/6") == b"3"

    play(scenario)
