"""How tasks are carried out: all of them, bounded in flight, again where that can help, and not after an interruption."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest

from shardstore._sync import run_sync
from shardstore.errors import AccessDenied, Corruption, Incomplete, InvalidInput, StorageError
from shardstore.maintenance.execution import Ahead, Execution, Interrupted, Part, SharedStorage, check_running
from shardstore.storage.memory import MemoryStorage
from shardstore.storage.wrappers import CheckedStorage


def double(task: int) -> int:
    return 2 * task


@pytest.mark.parametrize("executor", [None, ThreadPoolExecutor(2), ProcessPoolExecutor(2)])
def test_every_task_is_done_once(executor: Executor | None) -> None:
    results: dict[int, int] = {}
    Execution(executor, workers=3).carry_out(double, range(50), results.__setitem__, lambda task, error: pytest.fail(str(error)))
    assert results == {n: 2 * n for n in range(50)}
    if executor is not None:
        executor.shutdown()


def test_no_more_is_taken_than_is_in_flight() -> None:
    taken: list[int] = []
    most = 0
    finished = 0

    def tasks() -> Iterator[int]:
        nonlocal most
        for n in range(40):
            most = max(most, n + 1 - finished)
            taken.append(n)
            yield n

    def done(task: int, result: int) -> None:
        nonlocal finished
        finished += 1

    Execution(workers=2).carry_out(double, tasks(), done, lambda task, error: None)
    assert len(taken) == finished == 40
    assert most <= 4


@pytest.mark.parametrize(
    ("error", "tries"), [(StorageError("no"), 3), (OSError("no"), 3), (AccessDenied("no"), 1), (Corruption("no"), 1), (ValueError("no"), 1)]
)
def test_what_can_help_is_tried_again(error: Exception, tries: int) -> None:
    calls = 0

    def fails(task: int) -> int:
        nonlocal calls
        calls += 1
        raise error

    failures: list[tuple[int, Exception]] = []
    Execution(workers=1, retries=2).carry_out(fails, [7], lambda task, result: pytest.fail("done"), lambda *failed: failures.append(failed))
    assert failures == [(7, error)]
    assert calls == tries


class Breaks(Executor):
    """Does some tasks, and nothing any more."""

    def __init__(self, left: int) -> None:
        self.left = left

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.left -= 1
        if self.left < 0:
            raise BrokenExecutor("gone")
        future: Future[Any] = Future()
        if self.left:
            future.set_result(fn(*args))
        else:
            future.set_exception(BrokenExecutor("gone"))
        return future


def test_what_a_broken_executor_did_not_begin_is_not_passed_over_in_silence() -> None:
    results: dict[int, int] = {}
    failures: list[tuple[int, Exception]] = []
    with pytest.raises(Incomplete, match="gone"):
        Execution(Breaks(3), workers=1).carry_out(
            double, range(9), results.__setitem__, lambda *failed: failures.append(failed), lambda task: [task, task]
        )
    assert results == {0: 0, 1: 2}
    assert {task for task, _ in failures} <= {2, 3}
    assert {type(error) for _, error in failures} == {Incomplete}


def test_one_failure_does_not_end_the_others() -> None:
    def fails(task: int) -> int:
        if task == 3:
            raise Corruption("damaged")
        return task

    results: list[int] = []
    failures: list[int] = []
    Execution(workers=2).carry_out(fails, range(6), lambda task, result: results.append(result), lambda task, error: failures.append(task))
    assert sorted(results) == [0, 1, 2, 4, 5]
    assert failures == [3]


def test_tasks_are_taken_ahead_until_their_total_is_known() -> None:
    taken: list[int] = []

    def tasks() -> Iterator[tuple[int, ...]]:
        for i in range(6):
            taken.append(i)
            yield (i,) * 10

    ahead = Ahead(tasks(), len, most_objects=30)
    found = [(task[0], len(taken), ahead.total) for task in ahead]
    assert found == [(0, 4, None), (1, 5, None), (2, 6, None), (3, 6, 60), (4, 6, 60), (5, 6, 60)]
    assert [task[0] for task in Ahead(tasks(), len)] == list(range(6))


def test_what_fails_is_halved_until_it_is_alone() -> None:
    def fails(task: tuple[int, ...]) -> int:
        if 3 in task or 9 in task:
            raise Corruption("damaged")
        return sum(task)

    results: list[int] = []
    failures: list[tuple[int, ...]] = []
    tasks = [tuple(range(8)), tuple(range(8, 16))]
    Execution(workers=2, retries=0).carry_out(
        fails,
        tasks,
        lambda task, result: results.append(result),
        lambda task, error: failures.append(task),
        lambda task: [half for half in (task[: len(task) // 2], task[len(task) // 2 :]) if half],
    )
    assert sorted(failures) == [(3,), (9,)]
    assert sum(results) == sum(range(16)) - 12


def test_an_interruption_ends_what_runs_and_keeps_what_was_done() -> None:
    execution = Execution(workers=2)
    started = threading.Event()
    ended: list[str] = []

    def work(task: int) -> int:
        if task == 0:
            assert started.wait(10)
            return 0
        started.set()
        try:
            for _ in range(10_000):
                check_running(execution.run)
                time.sleep(0.001)
        except Interrupted:
            ended.append("interrupted")
            raise
        return task

    results: list[int] = []

    def done(task: int, result: int) -> None:
        results.append(result)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execution.carry_out(work, range(100), done, lambda task, error: pytest.fail(str(error)))
    assert results == [0]
    assert ended
    check_running(execution.run)  # over: nothing is stopped any more


def test_parts_are_disjoint_and_everything() -> None:
    parts = [Part(i + 1, 5) for i in range(5)]
    for path in ("", "a", "b/c", "\udcff"):
        for number in range(100):
            assert sum(part.has(path, number) for part in parts) == 1
    assert all(sum(part.has("a", n) for n in range(100)) == 20 for part in parts)


@pytest.mark.parametrize("text", ["0/3", "4/3", "1/0", "", "1", "a/b", "-1/3", "1/3/5"])
def test_parts_that_are_none(text: str) -> None:
    with pytest.raises(InvalidInput):
        Part.parse(text)
    assert Part.parse(" 2/3 ") == Part(2, 3)


@pytest.mark.parametrize("options", [{"workers": 0}, {"workers": True}, {"retries": -1}, {"executor": "threads"}])
def test_options_that_cannot_be(options: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        Execution(**options)  # type: ignore[arg-type]  # that is the point


def test_copies_of_a_storage_that_is_used_between_them_are_one_in_a_process() -> None:
    shared = SharedStorage(CheckedStorage(MemoryStorage("/shared")))
    opened = []
    for _ in range(3):
        opened.append(pickle.loads(pickle.dumps(shared)).storage)
        run_sync(shared.storage.stat("key"))
    assert opened[0] is opened[1] is opened[2]
