"""The contract of every kind of underlying storage, as a class for pytest.

Inherit from ``StorageSuite`` in a class whose name starts with ``Test``, and give it a fixture ``storage`` that returns an empty
storage. Tests of capabilities that a storage does not claim are skipped; nothing is to be overridden.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from itertools import chain
from typing import Any, TypeVar

import fsspec.asyn
import pytest

from shardstore.errors import InvalidInput, Unsupported
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL, Condition, Generation, IfGeneration
from shardstore.model.ranges import (
    EVERYTHING,
    ByteOffset,
    ByteRange,
    ByteRequest,
    BytesLike,
    ByteSuffix,
    CopiedRange,
    NewBytes,
    Segment,
    resolve,
)
from shardstore.opening.kinds import kind_named
from shardstore.storage.abilities import VersionedByRange
from shardstore.storage.base import (
    Absent,
    Changed,
    ConditionFailed,
    Found,
    Guard,
    GuardChanged,
    ObjectInfo,
    Read,
    ReadOutcome,
    Storage,
    unless_failed,
)

__all__ = ["StorageSuite", "SyncStorage"]

T = TypeVar("T")

DATA = bytes(range(256)) * 4

_VERSIONS = 1000
_VERSIONS_ON_SERVERS = 100  # which take ten milliseconds each

MADE_UP = Generation('"0123456789abcdef0123456789abcdef"')


def on_io_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of ``coroutine``, run on fsspec's IO loop, where every storage runs."""
    return asyncio.run_coroutine_threadsafe(coroutine, fsspec.asyn.get_loop()).result(120)


class SyncStorage:
    """The methods of a storage, for tests that are no coroutines."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def put(self, key: str, data: BytesLike, condition: Condition = UNCONDITIONAL) -> Generation:
        """Write an object of one buffer."""
        return self.write(key, [data], len(data), condition)

    def write(
        self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition = UNCONDITIONAL
    ) -> Generation:
        return on_io_loop(self.storage.write(key, body, nbytes, condition))

    def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        return on_io_loop(self.storage.compose(key, source, segments, condition))

    def read_many(self, *reads: Read) -> list[ReadOutcome]:
        """Return the outcomes of several reads."""
        return on_io_loop(self.storage.read(reads))

    def read(self, key: str, *ranges: ByteRequest, generation: Generation | None = None) -> ReadOutcome:
        (outcome,) = self.read_many(Read(key, ranges, generation))
        return unless_failed(outcome)

    def get(self, key: str) -> bytes | None:
        """Return the bytes of an object; ``None`` if there is none."""
        outcome = self.read(key, EVERYTHING)
        if isinstance(outcome, Absent):
            return None
        assert isinstance(outcome, Found), outcome
        return bytes(outcome.buffers[0])

    def copy(self, source: str, target: str) -> Generation | None:
        return on_io_loop(self.storage.copy(source, target))

    def rename_prefix(self, source: str, target: str) -> bool:
        return on_io_loop(self.storage.rename_prefix(source, target))

    def delete(self, key: str, condition: Condition = UNCONDITIONAL) -> bool:
        return on_io_loop(self.storage.delete(key, condition))

    def delete_many(self, *keys: str) -> None:
        on_io_loop(self.storage.delete_many(keys))

    def stat(self, key: str) -> ObjectInfo | None:
        return on_io_loop(self.storage.stat(key))

    def infos(self, prefix: str = "") -> list[ObjectInfo]:
        """Return a listing."""

        async def collect() -> list[ObjectInfo]:
            return [info async for info in self.storage.list(prefix)]

        return on_io_loop(collect())

    def listed(self, key: str, nbytes: int, generation: Generation | None) -> ObjectInfo:
        """Return an object as a listing has to show it: with its version, if the storage has versions of its own."""
        return ObjectInfo(key, nbytes, None if self.storage.ability(VersionedByRange) is not None else generation)

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys of a listing."""
        return [info.key for info in self.infos(prefix)]

    def children(self, prefix: str = "") -> tuple[list[str], list[str]]:
        """Return the keys of objects and the prefixes directly below a prefix."""
        listing = on_io_loop(self.storage.list_dir(prefix))
        return [info.key for info in listing.objects], list(listing.prefixes)


def values(found: Found) -> list[bytes]:
    """Return the bytes that were read, for comparison."""
    return [bytes(buffer) for buffer in found.buffers]


async def pieces(*given: BytesLike) -> AsyncIterator[BytesLike]:
    """Yield a body that is made while it is written."""
    for piece in given:
        await asyncio.sleep(0)
        yield piece


def _claimed(storage: Storage, capability: str) -> None:
    if not getattr(on_io_loop(storage.probe()), capability):
        pytest.skip(f"{storage.kind} does not claim {capability}")


async def _is_carried_out(request: Coroutine[Any, Any, object]) -> bool:
    """Return whether a conditional request was carried out: false if its condition did not hold, or there was nothing to delete."""
    try:
        return await request is not False
    except ConditionFailed:
        return False


def _look_while_replaced(storage: Storage, look: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    """Replace the object ``a`` twenty times by one digit, 4096 times. Until then, ``look`` is called again and again by three clients, with
    the number of the client.
    """

    async def write() -> None:
        for i in range(20):
            await storage.write("a", [b"%d" % (i % 10) * 4096], 4096, UNCONDITIONAL)

    async def client(number: int, writer: asyncio.Task[None]) -> None:
        is_over = False
        while not is_over:
            is_over = writer.done()
            await look(number)

    async def race() -> None:
        writer = asyncio.ensure_future(write())
        await asyncio.gather(writer, *(client(number, writer) for number in range(3)))

    on_io_loop(race())


class StorageSuite:
    """The contract of ``shardstore.storage.base.Storage``."""

    @pytest.fixture
    def s(self, storage: Storage) -> SyncStorage:
        """Return the storage that is tested."""
        return SyncStorage(storage)

    # -- the storage itself --------------------------------------------------------------------------------------------

    def test_it_is_a_storage(self, storage: Storage) -> None:
        assert isinstance(storage, Storage)
        assert "://" in storage.url
        assert storage.kind
        assert on_io_loop(storage.probe()) == storage.capabilities

    def test_closing_keeps_what_was_written(self, s: SyncStorage) -> None:
        s.put("a", b"1")
        on_io_loop(s.storage.close())
        assert s.get("a") == b"1"

    # -- reading -------------------------------------------------------------------------------------------------------

    def test_absent(self, s: SyncStorage) -> None:
        s.put("a/b", b"1")
        assert s.read("nothing", EVERYTHING) == Absent()
        assert s.read("a", EVERYTHING) in (Absent(), Absent(is_directory=True))
        assert s.read("a/b/c", EVERYTHING) == Absent()
        assert s.read("nothing") == Absent()
        assert s.read("nothing", ByteRange(3, 3), ByteSuffix(0)) == Absent()
        assert s.read("nothing", EVERYTHING, generation=MADE_UP) in (Absent(), Changed())
        assert s.stat("nothing") is None
        assert s.stat("a") is None

    @pytest.mark.parametrize(
        "request_",
        [
            *(
                ByteRange(*ends)
                for ends in ((0, 1), (10, 200), (1000, 5000), (1023, 1024), (1024, 1025), (2000, 3000), (7, 7), (5000, 5000))
            ),
            *map(ByteOffset, (0, 1000, 1024, 5000)),
            *map(ByteSuffix, (0, 16, 1024, 4096)),
        ],
        ids=repr,
    )
    def test_one_range(self, s: SyncStorage, request_: ByteRequest) -> None:
        for data in (DATA, b""):
            generation = s.put("a/b", data)
            wanted = resolve(request_, len(data))
            for pinned in (None, generation):
                outcome = s.read("a/b", request_, generation=pinned)
                assert isinstance(outcome, Found)
                assert (outcome.generation, outcome.nbytes) == (generation, len(data))
                assert values(outcome) == [data[wanted.start : wanted.end]]

    def test_many_ranges_of_many_objects_in_order(self, s: SyncStorage) -> None:
        for i in range(40):
            s.put(f"n/{i}", DATA[i:])
        ranges = (ByteSuffix(4), ByteRange(0, 0), ByteRange(2, 5), EVERYTHING, ByteOffset(9999))
        outcomes = s.read_many(*(Read(f"n/{i}", ranges) for i in range(-1, 40)))
        assert outcomes[0] == Absent()
        for i, outcome in enumerate(outcomes[1:]):
            data = DATA[i:]
            assert isinstance(outcome, Found)
            assert values(outcome) == [data[-4:], b"", data[2:5], data, b""]

    def test_no_ranges_tell_version_and_size(self, s: SyncStorage) -> None:
        generation = s.put("a", DATA)
        assert s.read("a") == Found(generation, len(DATA), ())
        assert s.read_many() == []

    def test_pinned_reads(self, s: SyncStorage) -> None:
        _claimed(s.storage, "pinned_reads")
        old = s.put("a", b"old!")
        new = s.put("a", b"new!")
        assert old != new
        for ranges in ((), (EVERYTHING,), (ByteRange(1, 2), ByteSuffix(1)), (ByteRange(0, 0),), (ByteOffset(100),)):
            assert s.read("a", *ranges, generation=old) == Changed()
            assert isinstance(s.read("a", *ranges, generation=new), Found)
        s.delete("a")
        assert s.read("a", EVERYTHING, generation=new) in (Absent(), Changed())

    def test_reads_beside(self, s: SyncStorage) -> None:
        _claimed(s.storage, "guarded_reads")
        old = s.put("document", b"1")
        s.put("a", DATA)
        for key in ("a", "nothing"):
            (outcome,) = s.read_many(Read(key, (EVERYTHING,), None, Guard("document", old)))
            assert isinstance(outcome, Found | Absent)
        new = s.put("document", b"2")
        reads = [Read(key, (EVERYTHING,), None, Guard("document", generation)) for key in ("a", "nothing") for generation in (old, new)]
        first, second, third, fourth = s.read_many(*reads)
        assert (first, third, fourth) == (GuardChanged(), GuardChanged(), Absent())
        assert isinstance(second, Found)
        s.delete("document")
        assert s.read_many(*reads) == [GuardChanged()] * 4

    def test_same_length_replacements_differ(self, s: SyncStorage) -> None:
        seen = {s.put("a", b"%04d" % i) for i in range(50)}
        assert len(seen) == 50

    def test_buffers_outlive_the_object(self, s: SyncStorage) -> None:
        s.put("a", DATA)
        outcome = s.read("a", EVERYTHING, ByteRange(3, 9))
        s.put("a", b"x" * len(DATA))
        s.delete("a")
        assert isinstance(outcome, Found)
        assert values(outcome) == [DATA, DATA[3:9]]
        assert all(buffer.readonly for buffer in outcome.buffers)

    # -- writing -------------------------------------------------------------------------------------------------------

    def test_bodies_of_every_sort(self, s: SyncStorage) -> None:
        view = memoryview(bytearray(DATA))
        s.write("list", [DATA[:5], bytearray(DATA[5:9]), view[9:]], len(DATA))
        s.write("iterator", pieces(DATA[:5], b"", bytearray(DATA[5:9]), view[9:]), len(DATA))
        s.write("nothing", [], 0)
        s.write("nothing at all", pieces(), 0)
        assert [s.get(key) for key in ("list", "iterator", "nothing", "nothing at all")] == [DATA, DATA, b"", b""]

    def test_what_is_written_is_a_copy(self, s: SyncStorage) -> None:
        mine = bytearray(b"before")
        s.put("a", mine)
        mine[:] = b"after!"
        assert s.get("a") == b"before"

        async def reusing() -> AsyncIterator[BytesLike]:
            for piece in (b"one", b"two"):
                mine[:3] = piece
                yield memoryview(mine)[:3]

        s.write("b", reusing(), 6)
        assert s.get("b") == b"onetwo"

    @pytest.mark.parametrize("nbytes", [0, 2, 4])
    def test_a_body_of_another_length_leaves_the_old_object(self, s: SyncStorage, nbytes: int) -> None:
        generation = s.put("a", b"old")
        for body in ([b"n", b"ew"], pieces(b"n", b"ew")):
            with pytest.raises(InvalidInput):
                s.write("a", body, nbytes)
            with pytest.raises(InvalidInput):
                s.write("new", [b"abc"], nbytes)
        assert s.infos() == [s.listed("a", 3, generation)]

    def test_a_body_that_breaks_leaves_the_old_object(self, s: SyncStorage) -> None:
        class Broken(Exception):
            pass

        async def breaking() -> AsyncIterator[BytesLike]:
            yield b"n"
            raise Broken

        s.put("a", b"old")
        for key in ("a", "new"):
            with pytest.raises(Broken):
                s.write(key, breaking(), 3)
        assert s.get("a") == b"old"
        assert s.keys() == ["a"]

    @pytest.mark.parametrize("key", ["with space", "ünïcødé/键", "c/0/0", ".zarray", "a+b&c=d%20?#", "x" * 200, "dots.../..a"])
    def test_keys(self, s: SyncStorage, key: str) -> None:
        generation = s.put(key, b"1")
        assert s.get(key) == b"1"
        assert s.infos() == [s.listed(key, 1, generation)]
        assert s.infos(key) == [s.listed(key, 1, generation)]
        assert s.delete(key)
        assert s.keys() == []

    # -- conditions ----------------------------------------------------------------------------------------------------

    def test_create_if_absent(self, s: SyncStorage) -> None:
        _claimed(s.storage, "create_if_absent")
        first = s.put("a/b", b"1", IF_ABSENT)
        for body in ([b"2"], pieces(b"2")):
            with pytest.raises(ConditionFailed):
                s.write("a/b", body, 1, IF_ABSENT)
        assert s.infos() == [ObjectInfo("a/b", 1, first)]
        assert s.get("a/b") == b"1"
        assert s.delete("a/b")
        s.put("a/b", b"3", IF_ABSENT)

    def test_compare_and_swap(self, s: SyncStorage) -> None:
        _claimed(s.storage, "compare_and_swap")
        with pytest.raises(ConditionFailed):
            s.put("a", b"0", IfGeneration(MADE_UP))
        assert s.keys() == []
        first = s.put("a", b"1")
        second = s.put("a", b"2", IfGeneration(first))
        with pytest.raises(ConditionFailed):
            s.put("a", b"3", IfGeneration(first))
        third = s.write("a", pieces(b"4"), 1, IfGeneration(second))
        assert s.infos() == [ObjectInfo("a", 1, third)]
        s.delete("a")
        with pytest.raises(ConditionFailed):
            s.put("a", b"5", IfGeneration(third))
        assert s.get("a") is None

    def test_no_two_versions_have_one_name(self, s: SyncStorage) -> None:
        """Write versions of one size as fast as possible: clocks may tick seldom, and inode numbers be used again."""
        _claimed(s.storage, "compare_and_swap")
        pinned = on_io_loop(s.storage.probe()).pinned_reads
        kind = kind_named(s.storage.kind)
        names: list[Generation] = []

        async def check(i: int, newest: Generation) -> None:
            (found,) = await s.storage.read([Read("a", (ByteRange(0, 8),))])
            assert isinstance(found, Found), found
            assert (found.generation, values(found)) == (newest, [i.to_bytes(8)])
            if names:
                old = names[-1 - i % min(4, len(names))]
                if pinned:
                    assert isinstance((await s.storage.read([Read("a", (ByteRange(0, 8),), old)]))[0], Changed)
                with pytest.raises(ConditionFailed):
                    await s.storage.write("a", [bytes(64)], 64, IfGeneration(old))

        async def replace() -> None:
            for i in range(_VERSIONS_ON_SERVERS if kind is not None and kind.is_probed else _VERSIONS):
                newest = await s.storage.write("a", [i.to_bytes(8) * 8], 64, UNCONDITIONAL)
                if i % 25 == 1:
                    await check(i, newest)
                names.append(newest)

        on_io_loop(replace())
        assert len(set(names)) == len(names)

    def test_racing_creates_have_one_winner(self, s: SyncStorage) -> None:
        _claimed(s.storage, "create_if_absent")

        async def race(key: str) -> list[int]:
            bodies = [b"%d" % i for i in range(16)]
            won = await asyncio.gather(*(_is_carried_out(s.storage.write(key, [body], len(body), IF_ABSENT)) for body in bodies))
            return [i for i, mine in enumerate(won) if mine]

        for key in ("a", "b/c"):
            (winner,) = on_io_loop(race(key))
            assert s.get(key) == b"%d" % winner

    def test_racing_swaps_lose_nothing(self, s: SyncStorage) -> None:
        _claimed(s.storage, "compare_and_swap")
        s.put("n", b"0")

        async def increment() -> None:
            while True:
                (found,) = await s.storage.read([Read("n", (EVERYTHING,))])
                if isinstance(found, Found):
                    new = b"%d" % (int(bytes(found.buffers[0])) + 1)
                    if await _is_carried_out(s.storage.write("n", [new], len(new), IfGeneration(found.generation))):
                        return
                else:
                    assert isinstance(found, Changed), found

        async def race() -> None:
            await asyncio.gather(*(increment() for _ in range(16)))

        on_io_loop(race())
        assert s.get("n") == b"16"

    def test_readers_see_whole_versions_while_it_is_replaced(self, s: SyncStorage) -> None:
        s.put("a", b"0" * 4096)

        async def read(_client: int) -> None:
            (found,) = await s.storage.read([Read("a", (ByteRange(0, 8), ByteSuffix(8)))])
            if isinstance(found, Found):
                assert bytes(found.buffers[0]) == bytes(found.buffers[1])
            else:
                assert isinstance(found, Changed), found

        _look_while_replaced(s.storage, read)

    # -- composing -----------------------------------------------------------------------------------------------------

    def test_compose(self, s: SyncStorage) -> None:
        old = s.put("a", DATA)
        segments: list[Segment] = [NewBytes(b"<"), CopiedRange(10, 20), CopiedRange(0, 0), NewBytes(b"")]
        segments += [CopiedRange(1000, 24), NewBytes(memoryview(b">"))]
        if not on_io_loop(s.storage.probe()).compose:
            with pytest.raises(Unsupported):
                s.compose("a", old, segments, IfGeneration(old))
            assert s.get("a") == DATA
            return
        new = s.compose("a", old, segments, IfGeneration(old))
        assert s.get("a") == b"<" + DATA[10:30] + DATA[1000:] + b">"
        assert s.infos() == [ObjectInfo("a", 46, new)]
        for source, key in ((old, "a"), (new, "nothing")):
            with pytest.raises(ConditionFailed):
                s.compose(key, source, segments, UNCONDITIONAL)
        with pytest.raises(ConditionFailed):
            s.compose("a", new, [CopiedRange(0, 1)], IfGeneration(old))
        with pytest.raises(InvalidInput):
            s.compose("a", new, [CopiedRange(40, 7)], UNCONDITIONAL)
        assert s.infos() == [ObjectInfo("a", 46, new)]
        s.compose("a", new, [], UNCONDITIONAL)
        assert s.get("a") == b""

    # -- copying and renaming ------------------------------------------------------------------------------------------

    def test_times_of_versions_agree(self, s: SyncStorage) -> None:
        """Where the storage says when a version was stored, it says the same whichever way it is asked."""
        s.put("a/x", DATA)
        outcomes = [s.read("a/x", EVERYTHING), s.read("a/x", ByteRange(1, 3)), s.read("a/x")]
        versions = [outcome.generation for outcome in outcomes if isinstance(outcome, Found)]
        assert len(versions) == len(outcomes)
        versions += [info.generation for info in [s.stat("a/x"), *s.infos()] if info is not None and info.generation is not None]
        times = {int(version.modified) for version in versions if version.modified is not None}
        assert len(times) <= 1

    def test_copy(self, s: SyncStorage) -> None:
        assert s.copy("nothing", "b") is None
        assert s.keys() == []
        old = s.put("a/x", DATA)
        new = s.copy("a/x", "b/c/y")
        assert new is not None
        assert s.infos() == [s.listed("a/x", len(DATA), old), s.listed("b/c/y", len(DATA), new)]
        assert s.get("b/c/y") == DATA
        assert s.copy("a", "d") is None
        assert s.copy("a/x/z", "d") is None
        s.put("a/x", b"")
        newer = s.copy("a/x", "b/c/y")
        assert newer not in (None, new)
        assert (s.get("b/c/y"), s.keys()) == (b"", ["a/x", "b/c/y"])

    def test_a_copy_is_an_object_of_its_own(self, s: SyncStorage) -> None:
        s.put("a", b"old")
        copied = s.copy("a", "b")
        assert copied is not None
        s.put("a", b"new")
        assert s.get("b") == b"old"
        if on_io_loop(s.storage.probe()).compare_and_swap:
            with pytest.raises(ConditionFailed):
                s.put("b", b"2", IfGeneration(MADE_UP))
            s.put("b", b"2", IfGeneration(copied))
        s.delete("a")
        assert s.get("b") is not None

    def test_copies_have_the_bytes_of_one_version(self, s: SyncStorage) -> None:
        s.put("a", b"0" * 4096)

        async def copy(client: int) -> None:
            assert await s.storage.copy("a", f"b{client}") is not None
            (found,) = await s.storage.read([Read(f"b{client}", (EVERYTHING,))])
            assert isinstance(found, Found)
            assert len(set(bytes(found.buffers[0]))) == 1
            assert found.nbytes == 4096

        _look_while_replaced(s.storage, copy)

    def test_rename_prefix(self, s: SyncStorage) -> None:
        keys = ["a.x", "a/c/0/1", "a/c/1", "a/zarr.json", "ab/c", "b"]
        for key in keys:
            s.put(key, key.encode())
        before = s.infos()
        if not s.rename_prefix("a", "n/m"):
            assert s.infos() == before
            return
        moved = {key: "n/m/" + key.removeprefix("a/") if key.startswith("a/") else key for key in keys}
        assert s.keys() == sorted(moved.values())
        for old, new in moved.items():
            assert s.get(new) == old.encode()
        assert s.children("a/") == ([], [])
        s.put("a/new", b"1")
        assert s.rename_prefix("n/m/c", "a/c") is True
        assert s.get("a/c/0/1") == b"a/c/0/1"
        assert s.children("n/m/") == (["n/m/zarr.json"], [])

    def test_rename_prefix_overwrites_nothing(self, s: SyncStorage) -> None:
        for key in ("a/x", "b/y", "c", "first/x"):
            s.put(key, b"1")
        can = s.rename_prefix("first", "second")
        before = s.infos()
        assert s.rename_prefix("nothing", "d") is False
        assert s.rename_prefix("c", "d") is False
        for target, refusal in (("b", ConditionFailed), ("c", ConditionFailed), ("a", ConditionFailed), ("a/b", InvalidInput)):
            if can:
                with pytest.raises(refusal):
                    s.rename_prefix("a", target)
            else:
                assert s.rename_prefix("a", target) is False
            assert s.infos() == before

    # -- deleting ------------------------------------------------------------------------------------------------------

    def test_delete(self, s: SyncStorage) -> None:
        s.put("a/b", b"1")
        assert s.delete("a") is False
        assert s.delete("a/b/c") is False
        assert s.delete("a/b") is True
        assert s.delete("a/b") is False
        assert s.get("a/b") is None
        assert (s.keys(), s.children()) == ([], ([], []))
        with pytest.raises(InvalidInput):
            s.delete("a/b", IF_ABSENT)

    def test_conditional_delete(self, s: SyncStorage) -> None:
        old = s.put("a", b"1")
        new = s.put("a", b"2")
        with pytest.raises(ConditionFailed):
            s.delete("a", IfGeneration(old))
        assert s.get("a") == b"2"
        assert s.delete("a", IfGeneration(new)) is True
        assert s.delete("a", IfGeneration(new)) is False

    def test_racing_deletes_have_one_winner(self, s: SyncStorage) -> None:
        _claimed(s.storage, "conditional_delete")

        async def race(generation: Generation) -> int:
            condition = IfGeneration(generation)
            swaps = [s.storage.write("a", [b"new"], 3, condition) for _ in range(4)]
            deletions = [s.storage.delete("a", condition) for _ in range(4)]
            taking_turns = chain.from_iterable(zip(deletions, swaps, strict=True))
            return sum(await asyncio.gather(*map(_is_carried_out, taking_turns)))

        for _ in range(5):
            assert on_io_loop(race(s.put("a", b"old"))) >= 1
            assert s.get("a") in (b"new", None)

    def test_delete_many(self, s: SyncStorage) -> None:
        keys = [f"d/{i % 7}/{i}" for i in range(30)]
        for key in [*keys, "d2"]:
            s.put(key, b"1")
        s.delete_many()
        s.delete_many(*keys[:20], "absent", "d/absent/x")
        assert s.keys() == sorted([*keys[20:], "d2"])
        s.delete_many(*keys)
        assert s.keys() == ["d2"]

    # -- looking -------------------------------------------------------------------------------------------------------

    def test_stat(self, s: SyncStorage) -> None:
        generation = s.put("a", DATA)
        assert s.stat("a") == ObjectInfo("a", len(DATA), generation)
        assert s.stat("a/b") is None

    def test_list_by_any_prefix_in_key_order(self, s: SyncStorage) -> None:
        keys = ["ct/c/0/0", "ct/c/0/1", "ct/c.x", "ct/zarr.json", "ct2/zarr.json", "b", "c", "zarr.json", "ct-3"]
        for key in keys:
            s.put(key, b"1")
        for prefix in ("", "c", "ct", "ct/", "ct/c", "ct/c/", "ct/c/0/1", "ct2", "b", "nothing", "nothing/", "b/", "ct/c/0/1/"):
            assert s.keys(prefix) == sorted(key for key in keys if key.startswith(prefix)), prefix

    def test_list_dir(self, s: SyncStorage) -> None:
        for key in ("zarr.json", "ct/zarr.json", "ct/c/0", "ct/c/1", "ct2/c/0", "a b"):
            s.put(key, b"12")
        assert s.children() == (["a b", "zarr.json"], ["ct/", "ct2/"])
        assert s.children("ct/") == (["ct/zarr.json"], ["ct/c/"])
        assert s.children("ct/c/") == (["ct/c/0", "ct/c/1"], [])
        assert s.children("nothing/") == ([], [])
        assert s.children("zarr.json/") == ([], [])
        with pytest.raises(InvalidInput):
            s.children("ct")

    def test_a_long_listing(self, s: SyncStorage) -> None:
        keys = sorted(f"l/{i % 3}/{i}" for i in range(1100))

        async def write_all() -> None:
            await asyncio.gather(*(s.storage.write(key, [], 0, UNCONDITIONAL) for key in keys))

        on_io_loop(write_all())
        assert s.keys("l/") == keys
        s.delete_many(*keys)
        assert s.keys() == []
