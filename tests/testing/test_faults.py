"""The fault injector: each fault does what it says, where it says."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import uuid
from collections.abc import Callable
from concurrent.futures import CancelledError  # what a cancelled coroutine gives to a thread that waits for it
from pathlib import Path

import pytest

from shardstore.errors import ShardStoreError, StorageError, WriteOutcomeUnknown
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL, IfGeneration
from shardstore.model.ranges import EVERYTHING, ByteRange, ByteSuffix, CopiedRange, NewBytes
from shardstore.storage.base import CHANGED, ConditionFailed, Failed, Found, Read
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.faults import (
    Cancel,
    Change,
    Delay,
    DropReply,
    Effect,
    Fail,
    Fault,
    FaultStorage,
    Kill,
    Refuse,
    Request,
    TimeOut,
    Truncate,
    at_every_request,
)
from shardstore.testing.storage_suite import SyncStorage, on_io_loop, pieces, values
from shardstore.testing.trace import TraceStorage


class Sleeps(list[float]):
    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


def faults_in_memory(sleep: Sleeps | None = None) -> FaultStorage:
    return FaultStorage(MemoryStorage(f"/faults-{uuid.uuid4().hex}"), sleep=Sleeps() if sleep is None else sleep)


@pytest.fixture
def storage() -> FaultStorage:
    return faults_in_memory()


# -- counting ----------------------------------------------------------------------------------------------------------


def play(s: SyncStorage) -> None:
    """Every operation, once."""
    first = s.put("a/x", b"0123456789")
    s.read_many(Read("a/x", (ByteRange(0, 2), ByteSuffix(2))), Read("absent", (EVERYTHING,)), Read("a/x", ()))
    s.compose("a/x", first, [NewBytes(b"xy"), CopiedRange(2, 3)], IfGeneration(first))
    s.copy("a/x", "a/y")
    s.stat("a/x")
    s.keys("a/")
    s.children("a/")
    s.rename_prefix("a", "b")
    s.delete("b/x")
    s.delete_many("b/y", *(str(i) for i in range(1500)))


def test_it_counts_as_the_trace_does(storage: FaultStorage, s: SyncStorage) -> None:
    trace = TraceStorage(MemoryStorage(f"/faults-{uuid.uuid4().hex}"))
    play(SyncStorage(trace))
    play(s)
    assert len(storage.requests) == trace.summary().requests
    assert [request.operation for request in storage.requests] == [
        *("write", "read", "read", "read", "read", "compose", "copy", "stat", "list", "list_dir", "rename_prefix", "delete"),
        *("delete_many", "delete_many"),
    ]
    assert storage.requests[1:3] == [Request("read", "a/x", ByteRange(0, 2)), Request("read", "a/x", ByteSuffix(2))]
    assert storage.requests[6].key == "a/y"
    assert storage.struck == []


def listed_until_an_error(storage: FaultStorage) -> list[str]:
    seen: list[str] = []

    async def read() -> None:
        async for info in storage.list(""):
            seen.append(info.key)  # noqa: PERF401  # what came before the error counts

    with pytest.raises(StorageError):
        on_io_loop(read())
    return seen


def test_a_long_listing_is_many_requests(storage: FaultStorage, s: SyncStorage) -> None:
    async def fill() -> None:
        await asyncio.gather(*(storage.inner.write(f"{i:04}", [], 0, UNCONDITIONAL) for i in range(2001)))

    on_io_loop(fill())
    storage.plan(Fault(3, Fail()))
    assert len(listed_until_an_error(storage)) == 2000
    assert len(storage.requests) == 3


def test_faults_count_what_matches(storage: FaultStorage, s: SyncStorage) -> None:
    storage.plan(Fault(2, Fail(), operations=frozenset({"write"}), keys="a/*"))
    s.put("a/1", b"1")
    s.put("b", b"1")
    assert s.stat("a/1") is not None
    with pytest.raises(StorageError):
        s.put("a/2/3", b"1")
    s.put("a/2/3", b"1")
    assert [request for _, request in storage.struck] == [Request("write", "a/2/3")]
    assert storage.inner.url == storage.url


def test_faults_strike_in_a_row(storage: FaultStorage, s: SyncStorage) -> None:
    def outcomes() -> list[bool]:
        found = []
        for _ in range(5):
            try:
                s.stat("a")
            except StorageError:
                found.append(False)
            else:
                found.append(True)
        return found

    storage.plan(Fault(2, Fail(), times=2))
    assert outcomes() == [True, False, False, True, True]
    storage.plan(Fault(3, Fail(), times=None))
    assert outcomes() == [True, True, False, False, False]
    storage.plan(Fault(2, Delay(1)), Fault(2, Fail()), Fault(4, Fail()))  # the first of them
    assert outcomes() == [True, True, True, False, True]
    storage.plan()
    assert outcomes() == [True] * 5


def test_a_sweep_ends_behind_the_last_request() -> None:
    def attempt(fault: Fault) -> bool:
        storage = faults_in_memory()
        storage.plan(fault)
        s = SyncStorage(storage)
        try:
            s.put("a", b"1")
            s.stat("a")
            s.delete("a")
        except ShardStoreError:
            pass
        assert len(storage.requests) == min(fault.at, 3)
        return bool(storage.struck)

    assert at_every_request(Fail(), attempt) == 3


# -- what they do ------------------------------------------------------------------------------------------------------


def test_one_range_of_a_read(storage: FaultStorage, s: SyncStorage) -> None:
    """The read that it belongs to fails, the others of the round do not."""
    for key in ("a", "b", "c"):
        s.put(key, b"0123")
    reads = [Read("a", (EVERYTHING,)), Read("b", (ByteRange(0, 2), ByteRange(2, 4))), Read("c", (EVERYTHING,))]
    effects: list[Effect] = [Fail(), TimeOut(), DropReply()]
    for effect in effects:
        storage.plan(Fault(3, effect))
        a, b, c = s.read_many(*reads)
        assert isinstance(a, Found)
        assert isinstance(c, Found)
        assert isinstance(b, Failed)
        assert isinstance(b.error, StorageError)
    storage.plan(Fault(3, Change()))
    assert s.read_many(*reads)[1] == CHANGED
    storage.plan(Fault(3, Truncate(1)))
    cut = s.read_many(*reads)[1]
    assert isinstance(cut, Found)
    assert (values(cut), cut.nbytes) == ([b"01", b"2"], 4)


CHANGING = ("write", "compose", "copy", "rename_prefix", "delete", "delete_many")


def change(s: SyncStorage, operation: str) -> None:
    found = s.storage.inner if isinstance(s.storage, FaultStorage) else s.storage
    info = on_io_loop(found.stat("a/x"))
    assert info is not None
    assert info.generation is not None
    match operation:
        case "write":
            s.put("a/x", b"new", IfGeneration(info.generation))
        case "compose":
            s.compose("a/x", info.generation, [NewBytes(b"new")], IfGeneration(info.generation))
        case "copy":
            s.copy("a/x", "a/z")
        case "rename_prefix":
            s.rename_prefix("a", "b")
        case "delete":
            s.delete("a/x", IfGeneration(info.generation))
        case _:
            s.delete_many("a/x", "a/y")


def contents(storage: FaultStorage) -> dict[str, bytes | None]:
    inner = SyncStorage(storage.inner)
    return {key: inner.get(key) for key in inner.keys()}  # noqa: SIM118  # no mapping


@pytest.mark.parametrize("operation", CHANGING)
def test_changes(operation: str) -> None:
    sleeps = Sleeps()
    storage = faults_in_memory(sleeps)
    s = SyncStorage(storage)
    old: dict[str, bytes | None] = {"a/x": b"old", "a/y": b"old"}

    def struck_by(effect: Effect) -> BaseException | None:
        s.delete_many(*s.keys())
        for key in old:
            s.put(key, b"old")
        storage.plan(Fault(1, effect))
        try:
            change(s, operation)
        except (ShardStoreError, CancelledError) as exc:
            return exc
        finally:
            assert storage.struck
            storage.plan()
        return None

    assert struck_by(Delay(3)) is None
    new = contents(storage)
    assert new != old
    expected: list[tuple[Effect, type[BaseException], dict[str, bytes | None]]] = [
        (Fail(), StorageError, old),
        (TimeOut(5), StorageError, old),
        (DropReply(), WriteOutcomeUnknown, new),
        (Cancel(), CancelledError, old),
        (Cancel(after=True), CancelledError, new),
    ]
    if operation in ("write", "compose", "delete"):
        expected.append((Refuse(), ConditionFailed, old))
    if operation in ("write", "compose"):
        expected.append((Truncate(1), StorageError, old))
    if operation == "delete_many":
        expected.append((Truncate(), StorageError, {"a/y": b"old"}))
    for effect, error, left in expected:
        assert isinstance(struck_by(effect), error), effect
        assert contents(storage) == left, effect
    assert sleeps == [3, 5]


def test_bodies_break_off(tmp_path: Path) -> None:
    """What the inner storage gets is really short: one that stored it would be found out."""
    storage = FaultStorage(LocalStorage(tmp_path, fsync=False))
    s = SyncStorage(storage)
    s.put("a", b"old")
    for nbytes in range(6):
        for body in ([b"01", b"23", b"45"], pieces(b"01", b"23", b"45")):
            storage.plan(Fault(1, Truncate(nbytes)))
            with pytest.raises(StorageError, match="broke off"):
                s.write("a", body, 6)
            assert s.get("a") == b"old"
    storage.plan(Fault(1, Truncate(6)))
    s.put("a", b"012345")
    assert s.get("a") == b"012345"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_unconditional_writes_are_not_refused(storage: FaultStorage, s: SyncStorage) -> None:
    storage.plan(Fault(1, Refuse(), times=None))
    s.put("a", b"1")
    with pytest.raises(ConditionFailed):
        s.put("b", b"1", IF_ABSENT)
    assert s.delete("a")


@pytest.mark.parametrize("effect", [Fail(), TimeOut(), DropReply(), Cancel(), Cancel(after=True)], ids=str)
@pytest.mark.parametrize("operation", ["stat", "list", "list_dir"])
def test_questions(storage: FaultStorage, s: SyncStorage, operation: str, effect: Effect) -> None:
    for prefix, there in (("a/", True), ("nothing/", False)):
        if there:
            s.put("a/x", b"1")
        storage.plan(Fault(1, effect))
        asks: dict[str, Callable[[str], object]] = {"stat": s.stat, "list": s.keys, "list_dir": s.children}
        ask = asks[operation]
        with pytest.raises(CancelledError if isinstance(effect, Cancel) else StorageError):
            ask(prefix)
        ask(prefix)


def test_listings_break_off(storage: FaultStorage, s: SyncStorage) -> None:
    for key in ("a", "b"):
        s.put(key, b"1")
    storage.plan(Fault(1, Truncate()))
    assert listed_until_an_error(storage) == ["a"]


def _write_and_die(root: str, after: bool) -> None:
    storage = FaultStorage(LocalStorage(root, fsync=False), [Fault(2, Kill(after))])
    s = SyncStorage(storage)
    s.put("first", b"1")
    s.put("second", b"1")


@pytest.mark.parametrize("after", [False, True])
def test_kill(tmp_path: Path, after: bool) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_write_and_die, args=(str(tmp_path), after))
    process.start()
    process.join(120)
    assert process.exitcode == -9
    assert sorted(path.name for path in tmp_path.iterdir()) == (["first", "second"] if after else ["first"])


def test_pickles() -> None:
    plan = (Fault(3, Truncate(4), frozenset({"read"}), "a/*", None), Fault(1, Kill(after=True)))
    storage = FaultStorage(MemoryStorage("/x"), plan)
    storage.requests.append(Request("stat", "a"))
    copy = pickle.loads(pickle.dumps(storage))
    assert (copy.inner, copy.faults, copy.sleep, copy.requests) == (storage.inner, plan, asyncio.sleep, [])
