"""Cancellation at every await of every operation, and at every request inside the engine.

After it every shard is old or new, whole; what the caller did with its memory after it was told is nowhere in the store; nobody
else is harmed; and nothing is left behind: no task, no lock, no memory that counts as used, no queue.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import pytest
import zarr
import zarr.api.asynchronous
from fsspec.implementations.memory import MemoryFileSystem
from zarr.core.buffer import cpu

import shardstore
from shardstore.engine.actions import Patch, SetValue
from shardstore.engine.engine import Engine
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import Storage
from shardstore.tasks import MemoryBudget
from shardstore.testing.faults import Cancel
from shardstore.testing.storage_suite import on_io_loop
from tests.engine.hooked import HookedStorage, fresh_memory
from tests.harness.scale import FULL, at_requests, moments
from tests.torture.conftest import Record
from tests.torture.contents import check_old_or_new, contents_of, layouts_of, presented_by, restore
from tests.torture.interrupting import Interrupting
from tests.torture.operations import (
    OPERATIONS,
    POLICY,
    ZARRS_WARNINGS,
    A,
    Answers,
    B,
    Given,
    OnIOLoop,
    Operation,
    after,
    before,
    client,
    new,
    old,
)
from tests.torture.settling import settled
from tests.torture.test_faults import Kind, attempt, check_answers, check_new, check_view

pytestmark = [pytest.mark.usefixtures("collected"), *ZARRS_WARNINGS]

GARBAGE = 0xAA


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    for path in [path for path in MemoryFileSystem.store if path.startswith("/engine-test-")]:
        del MemoryFileSystem.store[path]


# -- operations as coroutines ------------------------------------------------------------------------------------------


async def _assign(store: shardstore.ShardedStore, given: Given) -> None:
    array = await zarr.api.asynchronous.open_array(store=store, path="a", mode="r+")
    await array.setitem(slice(6, 22), np.frombuffer(given(bytes(range(100, 116))), np.uint8))


async def _select(store: shardstore.ShardedStore, _given: Given) -> Answers:
    array = await zarr.api.asynchronous.open_array(store=store, path="a", mode="r")
    return {"answer": memoryview(repr(np.asarray(await array.getitem(slice(2, 18))).tobytes()).encode())}


async def _delete_dir(store: shardstore.ShardedStore, _given: Given) -> None:
    await store.delete_dir("g")


BY_ZARR = {"assignment": _assign, "selection": _select, "delete_dir": _delete_dir}


def coroutine_of(operation: Operation, store: shardstore.ShardedStore, given: Given) -> Coroutine[Any, Any, Answers | None]:
    if isinstance(operation.run, OnIOLoop):
        return operation.run.start(store, given)
    return BY_ZARR[operation.name](store, given)


AS_COROUTINES = [operation for operation in OPERATIONS if isinstance(operation.run, OnIOLoop) or operation.name in BY_ZARR]


# -- what has to hold --------------------------------------------------------------------------------------------------


class Buffers:
    """The memory of a caller, who uses it for something else as soon as it is told that its call has ended."""

    def __init__(self) -> None:
        self._handed_over: list[bytearray] = []

    def give(self, data: bytes) -> bytearray:
        self._handed_over.append(bytearray(data))
        return self._handed_over[-1]

    def scramble(self) -> None:
        for buffer in self._handed_over:
            buffer[:] = bytes([GARBAGE]) * len(buffer)


def check_idle(engine: Engine) -> None:
    """Nothing waits, and nothing counts as used."""
    assert not engine._writer._queues
    assert engine._writer._bound._value == engine.options.commit_concurrency
    for batches in (engine._gets, engine._updates):
        assert not batches._waiting
        assert not batches._tasks
    assert engine._committer._plans._windows._used == 0
    assert not engine._committer._plans._windows._waiting
    assert not engine._committer._created
    assert engine._commit_ended.is_set()
    assert not engine.in_transaction


When = Literal["when it suspends", "when it would go on", "turns of the loop"]
WHENS: tuple[When, ...] = get_args(When)


async def interrupted(coroutine: Coroutine[Any, Any, Answers | None], at: int, when: When, buffers: Buffers) -> tuple[bool, Any]:
    """Whether the coroutine reached the moment number ``at``, and its answers, or ``CancelledError``.

    Suspensions are its own. In the turns of the loop the tasks go on that work for it.
    """
    watched = Interrupting(coroutine, 0 if when == "turns of the loop" else at, late=when == "when it would go on")

    async def call() -> Answers | None:
        try:
            return await watched
        finally:
            buffers.scramble()

    task = asyncio.ensure_future(call())
    turns = 0
    while when == "turns of the loop" and turns < at and not task.done():
        await asyncio.sleep(0)
        turns += 1
    reached = not task.done()
    if turns:
        task.cancel()
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    return (reached if turns else watched.suspensions >= at), outcome


def attempt_interrupted(operation: Operation, at: int, when: When, *, plain: bool) -> bool:
    """Cancel an operation at one moment, and check everything that has to hold after it; whether it has as many."""
    inner: Storage = fresh_memory()
    on_io_loop(restore(inner, before()))
    storage = Pausing(inner, composes=not plain)
    store = client(storage)
    buffers = Buffers()
    with settled():
        reached, outcome = on_io_loop(interrupted(coroutine_of(operation, store, buffers.give), at, when, buffers))
    now = contents_of(inner)
    if not isinstance(outcome, asyncio.CancelledError):
        assert not isinstance(outcome, BaseException), outcome
        assert not any(isinstance(answer, Exception) for answer in (outcome or {}).values()), outcome
        if operation.answers is None:
            check_new(operation, now)
        else:
            check_answers(operation, outcome)
    check_old_or_new(now, before(), after(operation), or_nothing=operation.begins_with_nothing, chunk_by_chunk=not operation.is_one_commit)
    if operation.removes_whole:
        left = {key for key in now if key.startswith(operation.removes_whole)}
        assert not left or left == {key for key in before() if key.startswith(operation.removes_whole)}, left
    check_idle(store.engine.canonical)
    check_view(client(inner), now, operation.changes)
    check_view(store, now, operation.changes)
    again = (operation.repeat or operation.run)(store) or {}
    assert not any(isinstance(answer, Exception) for answer in again.values()), again
    check_new(operation, contents_of(inner))
    check_idle(store.engine.canonical)
    return reached


class Pausing(HookedStorage):
    """Every request takes a turn of the loop before and after it, so that there is something to cancel."""

    def __init__(self, inner: Any, *, composes: bool) -> None:
        super().__init__(inner)
        self.before = self.after = self._pause
        if not composes:
            self.capabilities_override = replace(inner.capabilities, compose=False, conditional_delete=False)
            self.renames = False

    async def _pause(self, _operation: str, _key: str) -> None:
        await asyncio.sleep(0)


# -- the tests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", WHENS)
@pytest.mark.parametrize("operation", AS_COROUTINES, ids=str)
def test_every_await(operation: Operation, when: When, record: Record) -> None:
    interrupted = 0
    for plain in (False, True):
        for at in moments(itertools.count(1), sparse=6):
            if not attempt_interrupted(operation, at, when, plain=plain):
                break
            interrupted += 1
    assert interrupted or not FULL
    record(f"{interrupted} moments")


@pytest.mark.parametrize("after_it", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_every_request(operation: Operation, after_it: bool, record: Record) -> None:
    """What ends a request inside the engine is no cancellation of the caller, who gets a documented error."""
    kind = Kind("memory", fresh_memory)
    record(f"{at_requests(Cancel(after_it), partial(attempt, operation, kind, warm=after_it), least=0, sparse=6)} requests")


# -- others ------------------------------------------------------------------------------------------------------------


class Gated(HookedStorage):
    """Writes wait at a gate."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.gate = asyncio.Event()
        self.waits = asyncio.Event()
        self.before = self._pass

    async def _pass(self, operation: str, _key: str) -> None:
        if operation in ("write", "compose"):
            self.waits.set()
            await self.gate.wait()


async def _cancel_one_of_three(store: shardstore.ShardedStore, storage: Gated, at: int, late: bool, buffers: Buffers) -> bool:
    """The first is in the commit that is on its way, alone or with the second; the third waits for the next one of the same shard."""
    engine = store.engine
    watched = Interrupting(engine.update((A[0], SetValue(buffers.give(new(A[0]))))), at, late=late)

    async def first() -> None:
        try:
            await watched
        finally:
            buffers.scramble()

    calls = [asyncio.ensure_future(first()), asyncio.ensure_future(engine.update((A[1], SetValue(new(A[1])))))]
    await storage.waits.wait()
    calls.append(asyncio.ensure_future(engine.update((A[1], Patch(0, b"third!")))))
    gets = [asyncio.ensure_future(engine.get((key, EVERYTHING))) for key in B[:2]]
    gets[0].cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    storage.gate.set()
    outcomes = await asyncio.gather(*calls, *gets, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError) or outcomes[0] is None
    assert outcomes[1:3] == [None, None], outcomes
    assert isinstance(outcomes[3], asyncio.CancelledError)
    assert isinstance(outcomes[4], memoryview)
    assert outcomes[4] == old(B[1])
    return watched.suspensions >= at


@pytest.mark.parametrize("late", [False, True], ids=["when it suspends", "when it would go on"])
def test_who_shares_a_commit_with_a_cancelled_caller_is_answered(late: bool) -> None:
    for at in itertools.count(1):
        inner = fresh_memory()
        on_io_loop(restore(inner, before()))
        storage = Gated(inner)
        store = client(storage)
        with settled():
            reached = on_io_loop(_cancel_one_of_three(store, storage, at, late, Buffers()))
        shown = presented_by(contents_of(inner), layouts_of(before()))
        assert (shown[A[0]], shown[A[1]]) == (new(A[0]), b"third!")  # an update is carried out even when it is cancelled
        check_idle(store.engine.canonical)
        check_view(client(inner), contents_of(inner))
        if not reached:
            break
    assert at > 1


@pytest.mark.parametrize("late", [False, True], ids=["when it suspends", "when it would go on"])
def test_callers_on_a_loop_of_their_own(late: bool) -> None:
    """zarr's loop is not the one on which the engine runs; a cancellation has to cross over, and wait."""
    for at in itertools.count(1):
        inner = fresh_memory()
        on_io_loop(restore(inner, before()))
        store = client(Pausing(inner, composes=True))
        array = np.frombuffer(bytearray(new(A[0])), np.uint8)
        watched = Interrupting(store.set(A[0], cpu.Buffer.from_array_like(array)), at, late=late)

        async def call(watched: Interrupting[None] = watched, array: Any = array) -> None:
            try:
                await watched
            finally:
                array[:] = GARBAGE

        with settled(), suppress(asyncio.CancelledError):
            asyncio.run(call())
        now = contents_of(inner)
        assert presented_by(now, layouts_of(before()))[A[0]] in (old(A[0]), new(A[0]))
        check_view(store, now)
        check_idle(store.engine.canonical)
        if watched.suspensions < at:
            break
    assert at > 1


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals go to the main thread")
@pytest.mark.usefixtures("interruptible")
def test_a_keyboard_interrupt_leaves_the_memory_to_its_caller() -> None:
    """Whoever catches it may use its memory again, though the write may still be on its way."""
    inner = fresh_memory()
    on_io_loop(restore(inner, before()))
    storage = HookedStorage(inner)
    mapping = shardstore.get_mapper(storage, chunks_per_shard=POLICY)
    buffer = bytearray(new(A[0]))
    main = threading.get_ident()

    async def interrupt(operation: str, _key: str) -> None:
        if operation in ("write", "compose"):
            signal.pthread_kill(main, signal.SIGINT)
            await asyncio.sleep(0.2)  # long enough for the caller to be told too early

    storage.before = interrupt
    with settled():
        with pytest.raises(KeyboardInterrupt):
            mapping[A[0]] = buffer
        buffer[:] = bytes([GARBAGE]) * len(buffer)
    storage.before = None
    assert presented_by(contents_of(inner), layouts_of(before()))[A[0]] in (old(A[0]), new(A[0]))
    assert bytes(mapping[A[1]]) == old(A[1])


@pytest.mark.parametrize("late", [False, True], ids=["when it suspends", "when it would go on"])
def test_cancelled_holders_give_their_memory_back(late: bool) -> None:
    async def hold(budget: MemoryBudget, nbytes: int) -> None:
        async with budget.hold(nbytes):
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def three(at: int) -> bool:
        budget = MemoryBudget(10)
        watched = Interrupting(hold(budget, 8), at, late=late)

        async def second() -> None:
            await watched

        calls = [asyncio.ensure_future(call) for call in (hold(budget, 10), second(), hold(budget, 10))]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert (outcomes[0], outcomes[2]) == (None, None)
        assert (budget._used, list(budget._waiting)) == (0, [])
        return watched.suspensions >= at

    assert sum(1 for _ in itertools.takewhile(lambda at: on_io_loop(three(at)), itertools.count(1))) == 3
