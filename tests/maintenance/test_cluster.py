"""Tasks on a dask cluster: each is done, whatever becomes of a worker between a task's end and the fetching of its result."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import distributed
import pytest

from shardstore.errors import Corruption, Incomplete, InvalidInput, StorageError
from shardstore.maintenance.cluster import ClusterExecutor, Patience, _Watch, executor_of
from shardstore.maintenance.execution import Execution
from tests.clusters import dask_cluster

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with dask_cluster(threads_per_worker=2, processes=False) as client:
        yield client


@pytest.fixture(params=["client", "executor", "pure=False"])
def given(request: pytest.FixtureRequest, client: Any) -> Any:
    """What callers may pass as ``executor``."""
    if request.param == "client":
        return client
    return client.get_executor() if request.param == "executor" else client.get_executor(pure=False)


def done_by(given: Any, function: Any, tasks: Any) -> tuple[dict[Any, Any], list[tuple[Any, Exception]]]:
    results: dict[Any, Any] = {}
    failures: list[tuple[Any, Exception]] = []
    Execution(given, workers=2, retries=2).carry_out(function, tasks, results.__setitem__, lambda *failed: failures.append(failed))
    return results, failures


_doubled: list[int] = []  # of the workers, which are threads of this process


def double(task: int) -> int:
    _doubled.append(task)
    return 2 * task


def test_every_task_is_done_once(given: Any) -> None:
    _doubled.clear()
    assert done_by(given, double, range(20)) == ({n: 2 * n for n in range(20)}, [])
    assert sorted(_doubled) == list(range(20))


def fails_twice(directory: str) -> int:
    tries = len(list(Path(directory).iterdir()))
    (Path(directory) / str(tries)).touch()
    if tries < 2:
        raise StorageError("no")
    return tries


def test_another_try_is_another_call(given: Any, tmp_path: Path) -> None:
    """Where functions count as pure, dask answers what failed with the same failure."""
    assert done_by(given, fails_twice, [str(tmp_path)]) == ({str(tmp_path): 2}, [])


def is_damaged(task: int) -> int:
    raise Corruption(f"{task} is damaged")


def test_failures_arrive_as_they_were_raised(given: Any) -> None:
    results, failures = done_by(given, is_damaged, [3])
    assert not results
    assert [(task, type(error), str(error)) for task, error in failures] == [(3, Corruption, "3 is damaged")]


def watch_fetching(monkeypatch: pytest.MonkeyPatch, fetched: Callable[[Any], None]) -> None:
    """Call ``fetched`` with each future whose result has just arrived, before who waits for it goes on."""
    original: Any = distributed.Client._gather

    async def gather(self: Any, futures: Any, *arguments: Any, **options: Any) -> Any:
        found = await original(self, futures, *arguments, **options)
        fetched(futures[0] if isinstance(futures, list) else futures)
        return found

    monkeypatch.setattr(distributed.Client, "_gather", gather)


def test_a_result_that_is_lost_when_it_has_just_been_fetched(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = 0

    def lose(future: Any) -> None:
        nonlocal lost
        if lost < 4:
            lost += 1
            future._state.lose()

    watch_fetching(monkeypatch, lose)
    assert done_by(given, double, range(8)) == ({n: 2 * n for n in range(8)}, [])
    assert lost == 4


KILLED: Any = distributed.KilledWorker


@pytest.mark.parametrize("error", [StorageError("no"), CancelledError(), KILLED("double", None, 1)])
def test_a_result_that_cannot_be_fetched(client: Any, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """The worker that has it is lost, and what was called again fails by then."""
    errors = [error]

    def fail(future: Any) -> None:
        if errors:
            raise errors.pop()

    watch_fetching(monkeypatch, fail)
    assert done_by(client.get_executor(), double, range(8)) == ({n: 2 * n for n in range(8)}, [])
    assert not errors


_started, _go_on = threading.Event(), threading.Event()


def waits(task: int) -> int:
    _started.set()
    assert _go_on.wait(60)
    return task


def test_what_is_cancelled_is_cancelled_there(client: Any) -> None:
    executor = ClusterExecutor(client)
    _go_on.clear()
    futures = [executor.submit(waits, n) for n in range(12)]  # some are at work, some lie at the worker, the last with the scheduler
    assert _started.wait(60)
    assert futures[-1].cancel()
    assert not futures[0].cancel()
    wait([futures[-1]], 60)
    assert futures[-1].cancelled()
    _go_on.set()
    assert [future.result(60) for future in futures[:-1]] == list(range(11))


def test_what_is_cancelled_while_the_scheduler_does_not_answer(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def processing() -> Any:
        raise OSError("no answer")

    monkeypatch.setattr(client, "processing", processing)
    _started.clear()
    _go_on.clear()
    future = ClusterExecutor(client).submit(waits, 1)
    assert _started.wait(60)
    assert future.cancel()
    _go_on.set()


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The file that leads to a scheduler without workers, and its process."""
    file = tmp_path / "scheduler.json"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--scheduler-file", str(file)]
    options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    with subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(600):
                if file.exists():
                    break
                assert process.poll() is None
                time.sleep(0.1)
            else:
                pytest.fail("the scheduler does not start")
            yield str(file), process
        finally:
            process.kill()


def test_a_scheduler_that_is_lost_ends_the_run(scheduler: tuple[str, subprocess.Popen[bytes]]) -> None:
    file, process = scheduler

    def tasks() -> Iterator[int]:
        for n in range(20):
            if n == 3:
                process.kill()
            yield n

    with distributed.Client(scheduler_file=file, set_as_default=False) as client:  # type: ignore[no-untyped-call]  # it has no types
        client._timeout = 1  # in seconds: how long it tries to reach it again
        failures: list[tuple[int, Exception]] = []
        with pytest.raises(Incomplete, match="scheduler is lost"):
            Execution(client, workers=2).carry_out(
                double, tasks(), lambda task, result: pytest.fail("done"), lambda *failed: failures.append(failed)
            )
    assert len(failures) in (4, 5)  # what was in flight, and one that was being given
    assert {type(error) for _, error in failures} == {Incomplete}


@pytest.fixture
def own_client(client: Any) -> Iterator[Any]:
    with distributed.Client(client.cluster.scheduler_address, set_as_default=False) as own:  # type: ignore[no-untyped-call]  # no types
        yield own
        own.status = "running"


def test_a_scheduler_that_is_lost_while_a_task_is_given_to_it(own_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = own_client.submit

    def submit(*arguments: Any, **options: Any) -> Any:
        future = given(*arguments, **options)
        own_client.status = "closed"
        return future

    monkeypatch.setattr(own_client, "submit", submit)
    _go_on.clear()
    future = ClusterExecutor(own_client).submit(waits, 1)
    assert isinstance(future.exception(0), BrokenExecutor)
    _go_on.set()


def test_a_scheduler_that_is_lost_before_a_task_is_given_to_it(own_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def submit(*arguments: Any, **options: Any) -> Any:
        own_client.status = "closed"
        raise RuntimeError("Client is closed")

    monkeypatch.setattr(own_client, "submit", submit)
    with pytest.raises(BrokenExecutor):
        ClusterExecutor(own_client).submit(double, 1)


def test_a_client_that_hears_nothing_any_more(own_client: Any) -> None:
    """Its task that listens has met an error: nothing else shows that."""
    _go_on.clear()
    executor = ClusterExecutor(own_client)
    future = executor.submit(waits, 1)
    own_client.loop.add_callback(own_client._handle_report_task.cancel)
    assert isinstance(future.exception(60), BrokenExecutor)
    with pytest.raises(BrokenExecutor):
        executor.submit(double, 1)
    _go_on.set()


def test_a_scheduler_that_is_lost_while_a_result_is_fetched(own_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(future: Any) -> None:
        own_client.status = "closed"
        raise RuntimeError("of what distributed does when it is closed")

    watch_fetching(monkeypatch, lose)
    assert isinstance(ClusterExecutor(own_client).submit(double, 1).exception(60), BrokenExecutor)


def interrupts(task: int) -> int:
    return waits(task) if task else 0


def test_an_interruption_waits_for_what_runs(client: Any) -> None:
    _started.clear()
    _go_on.clear()
    results: dict[int, int] = {}

    def done(task: int, result: int) -> None:
        results[task] = result
        if task == 0:
            assert _started.wait(60)
            threading.Timer(0.3, _go_on.set).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Execution(client, workers=1).carry_out(interrupts, range(9), done, lambda task, error: pytest.fail(str(error)))
    assert results == {0: 0, 1: 1}


@contextmanager
def without_workers() -> Iterator[Any]:
    with dask_cluster(0, processes=False) as client:
        yield client


def executed_by(executor: ClusterExecutor, tasks: Iterable[int], function: Callable[[int], int] = double) -> dict[int, int]:
    results: dict[int, int] = {}
    Execution(executor, workers=2).carry_out(function, tasks, results.__setitem__, lambda task, error: None)
    return results


def test_a_cluster_without_workers_is_said_and_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    with without_workers() as client:
        executor = ClusterExecutor(client, patience=Patience(first_word=0.0, steady=0.0, most=0.0))
        said: list[str] = []
        original = executor.look_after

        def look_after() -> None:
            original()
            said.extend(record.getMessage() for record in caplog.records if record.name.startswith("shardstore"))
            client.cluster.scale(1)  # so it ends

        executor.look_after = look_after  # type: ignore[method-assign]
        assert executed_by(executor, range(3)) == {n: 2 * n for n in range(3)}
        address = client.scheduler.address
    pattern = (
        f"3 tasks wait for the dask cluster at {re.escape(address)}, which has had no worker for . s: start workers; or interrupt the run"
    )
    assert re.fullmatch(pattern, said[0])


def test_a_cluster_that_has_lost_its_workers_is_given_up(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _go_on.clear()
    executor = ClusterExecutor(client, patience=Patience(most=0.0))
    looks = iter([{"tcp://a": 1}, {}])
    monkeypatch.setattr(client, "nthreads", lambda: next(looks))
    failures: list[tuple[int, Exception]] = []
    with pytest.raises(Incomplete, match="its workers were lost, and since then no other has stayed"):
        Execution(executor, workers=2).carry_out(
            waits, [1, 1, 1], lambda task, result: pytest.fail("done"), lambda *failed: failures.append(failed)
        )
    assert len(failures) == 3
    with pytest.raises(BrokenExecutor, match="its workers were lost"):
        executor.submit(double, 1)
    _go_on.set()


@pytest.mark.parametrize(
    ("looks", "is_given_up"),
    [
        ([(t, f"w{t // 30}") for t in range(0, 700, 5)], True),  # each lives for 30 s
        ([(t, f"w{t // 70}") for t in range(0, 700, 5)], False),  # each lives for 70 s: it may get something done
        ([(t, None) for t in range(0, 9000, 5)], False),  # there never was any
        ([(0, "w"), *((t, None) for t in range(5, 700, 5))], True),
        ([(0, "w"), *((t, None) for t in range(5, 500, 5)), *((t, "v") for t in range(500, 1500, 5))], False),
        ([(0, "w"), (5, None), (900, None), (905, "w"), (910, None)], False),  # the driver did something else meanwhile
    ],
)
def test_when_a_cluster_is_given_up(looks: list[tuple[int, str | None]], is_given_up: bool) -> None:
    now = 0
    watch = _Watch(Patience(), lambda: now)
    over = False
    for now, worker in looks:  # noqa: B007  # the clock's
        watch.look(frozenset() if worker is None else frozenset({worker}))
        over = over or watch.is_over
    assert over == is_given_up
    if is_given_up:
        watch.ended(is_death=False)
        assert not watch.is_over


def dies(task: int) -> int:
    os._exit(1)


@pytest.mark.gate
def test_tasks_that_kill_their_workers_end_the_run() -> None:
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}), dask_cluster() as client:
        executor = ClusterExecutor(client, patience=Patience(deaths=2))
        with pytest.raises(Incomplete, match=r"2 tasks in a row were given up because the workers that had them died"):
            executed_by(executor, range(1000), dies)


def test_other_options_of_an_executor_are_kept(client: Any) -> None:
    executor = client.get_executor(workers=["nobody"], allow_other_workers=True)
    assert done_by(executor, double, [1]) == ({1: 2}, [])
    executor = client.get_executor(resources={"GPU": 1})  # of which there are none
    without_workers = executor_of(executor)
    assert isinstance(without_workers, ClusterExecutor)
    future = without_workers.submit(double, 1)
    assert not wait([future], 1).done
    future.cancel()


def test_clients_for_coroutines_are_refused() -> None:
    async def refused() -> None:
        options: dict[str, Any] = {"processes": False, "dashboard_address": "127.0.0.1:0"}
        async with distributed.Client(asynchronous=True, **options) as client:  # type: ignore[no-untyped-call]  # distributed has no types
            with pytest.raises(InvalidInput, match="asynchronous"):
                Execution(client)

    asyncio.run(refused())
