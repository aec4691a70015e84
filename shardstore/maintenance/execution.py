"""Carry out long work: tasks of whole shards, on any ``concurrent.futures.Executor``, with a bounded number in flight, each retried where
that can help.

A task is a frozen value that can be pickled, and its function belongs to a module: both may travel to another process. The driver,
which makes the tasks and receives their results, stays where it was called; it alone keeps records.

Without an executor the tasks run in threads of this process, each of which waits for fsspec's IO loop. With ``part`` only a share of
the tasks is done. Shares are disjoint, whatever the driver of each has seen of the store, since names decide, not counts.
"""

from __future__ import annotations

import os
import pickle
import re
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar
from uuid import uuid4

from shardstore._sync import as_known, run_sync
from shardstore.errors import AccessDenied, Conflict, Incomplete, InvalidInput, ShardStoreError, StorageError
from shardstore.maintenance.cluster import ClusterExecutor, ExecutorLike, executor_of
from shardstore.model.options import CommandOption
from shardstore.storage.base import ObjectInfo, Storage
from shardstore.storage.room import is_full
from shardstore.tasks import leave_to_main_thread

T = TypeVar("T")
Task = TypeVar("Task")
SomeTask = TypeVar("SomeTask", bound="ObjectTask")
Result = TypeVar("Result")

_PART = re.compile(r"([0-9]+)/([0-9]+)")
_TASKS_A_WORKER = 2  # in flight: one that runs, one that waits
_DEFAULT_WORKERS = max(4, min(32, 2 * (os.cpu_count() or 1)))
_UNKNOWN_WORKERS = 32  # of an executor that does not give their number
_SECONDS_UNTIL_LOOKED_AFTER = 1.0  # a cluster, of which no task has ended for so long
_LEAST_WINDOW = 2**20
_MOST_OPEN = 64  # storages in one process
_KEYS_A_PAGE = 1000

DEFAULT_MAX_MEMORY = 256 * 2**20

# Options of every command that carries out tasks.
WORKERS = CommandOption("How many tasks run at once.", "N", "number", group="Run", default="2 per processor, 4 to 32")
PART = CommandOption("Do share I of N; all shares may run at the same time.", "I/N", group="Selection")
RETRIES = CommandOption("How often a failed task is tried again.", "N", "number", group="Run")
MAX_MEMORY = CommandOption("Memory of each process.", "BYTES", "bytes", group="Run")


class Interrupted(ShardStoreError):
    """The run was interrupted; finished work stays, and the same call continues from there."""


# -- shares ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """The share ``number``, counted from 1, of ``of`` disjoint shares of the same work."""

    number: int = 1
    of: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise InvalidInput(f"there is no part {self.number}/{self.of}: parts are counted from 1, as in 1/{max(1, self.of)}")

    @classmethod
    def parse(cls, text: str) -> Part:
        """Return the part that ``I/N`` names.

        Raises:
            InvalidInput: the text has another form, or there is no such part.
        """
        match = _PART.fullmatch(text.strip())
        if match is None:
            raise InvalidInput(f"part {text!r} is not of the form I/N, such as 3/16")
        return cls(int(match[1]), int(match[2]))

    def has(self, path: str, number: int) -> bool:
        """Return whether piece ``number`` of the thing named ``path`` belongs to this share."""
        return (zlib.crc32(path.encode(errors="surrogatepass")) + number) % self.of == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


WHOLE = Part()


# -- storages of tasks ---------------------------------------------------------------------------------------------------


@lru_cache(maxsize=_MOST_OPEN)
def _opened(data: bytes) -> Storage:
    storage: Storage = pickle.loads(data)
    return storage


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_opened.cache_clear)


@dataclass(frozen=True)
class SharedStorage:
    """A storage that can be pickled again and again: all copies unpickled in one process share one storage, with its threads."""

    storage: Storage

    def __reduce__(self) -> tuple[Callable[[bytes], SharedStorage], tuple[bytes]]:
        return _unpickled, (pickle.dumps(self.storage),)


def _unpickled(data: bytes) -> SharedStorage:
    return SharedStorage(_opened(data))


# -- being stopped -----------------------------------------------------------------------------------------------------

_stopped: set[str] = set()


def check_running(run: str) -> None:
    """End the task of a run of this process that is being interrupted; called by tasks between steps.

    Raises:
        Interrupted: the run is being interrupted.
    """
    if run in _stopped:
        raise Interrupted("the run was interrupted")


# -- carrying out ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Execution:
    """The settings for carrying out the tasks of one run."""

    executor: ExecutorLike | None = None
    """The executor; ``None``: threads of this process. A client of a dask cluster becomes its executor."""
    workers: int | None = None
    """The number of concurrent tasks: the threads without an executor; the executor's workers, if it does not give their number."""
    retries: int = 2
    """The number of retries of a task after its storage failed, or its worker was lost."""
    part: Part = WHOLE
    """The share of the work that is to be done."""
    only: frozenset[str] | None = None
    """The keys of the objects to work on; all objects if it is not given."""
    max_memory: int = DEFAULT_MAX_MEMORY
    """Bytes of chunks that the tasks of one process hold together; each task has its share, and at least one chunk."""
    _met: set[str] = field(default_factory=set, repr=False, compare=False)
    run: str = field(default_factory=lambda: uuid4().hex)
    """The name of the run, for ``check_running``."""

    @classmethod
    def of(
        cls,
        executor: ExecutorLike | None = None,
        workers: int | None = None,
        part: str | Part | None = None,
        retries: int = 2,
        max_memory: int = DEFAULT_MAX_MEMORY,
        only: Iterable[str] | None = None,
    ) -> Execution:
        """Return the execution that callers ask for; ``part`` may also be ``"I/N"``. Raises ``InvalidInput``."""
        share = Part.parse(part) if isinstance(part, str) else part or WHOLE
        return cls(executor, workers, retries, share, None if only is None else frozenset(only), max_memory)

    def __post_init__(self) -> None:
        if self.workers is not None and (type(self.workers) is not int or self.workers < 1):
            raise InvalidInput(f"workers {self.workers!r} is not a positive whole number")
        if type(self.retries) is not int or self.retries < 0:
            raise InvalidInput(f"retries {self.retries!r} is not a whole number, 0 or more")
        if type(self.max_memory) is not int or self.max_memory < 1:
            raise InvalidInput(f"max_memory {self.max_memory!r} is not a positive number of bytes")
        if self.executor is not None:
            object.__setattr__(self, "executor", executor_of(self.executor))

    @property
    def worker_count(self) -> int:
        """The number of concurrent tasks."""
        if self.workers is not None:
            return self.workers
        if self.executor is None:
            return _DEFAULT_WORKERS
        known = getattr(self.executor, "_max_workers", None)
        return known if isinstance(known, int) else _UNKNOWN_WORKERS

    @property
    def window_bytes(self) -> int:
        """The number of bytes of chunks that one task may hold."""
        return max(_LEAST_WINDOW, self.max_memory // self.worker_count)

    def takes(self, key: str, name: str | None = None, number: int = 0) -> bool:
        """Return whether the object at ``key`` is to be worked on; its own name decides, or ``number`` of the thing named ``name``."""
        if self.only is not None:
            if key not in self.only:
                return False
            self._met.add(key)
        return self.part.has(key if name is None else name, number)

    def unmet(self) -> list[str]:
        """Return the keys of ``only`` that ``takes`` was never asked about: no object has these names."""
        return sorted((self.only or frozenset()) - self._met)

    def carry_out(
        self,
        function: Callable[[Task], Result],
        tasks: Iterable[Task],
        done: Callable[[Task, Result], None],
        failed: Callable[[Task, Exception], None],
        halves: Callable[[Task], Sequence[Task]] | None = None,
    ) -> None:
        """Do every task. ``done`` and ``failed``, with a task that was given up and the reason, are called in the calling thread, in the
        order in which tasks end.

        ``halves`` cuts a failed task into smaller ones, which are tried instead, so that the failure of one object is not reported for
        the rest. It returns one task or none if the task cannot be cut.

        No more tasks are taken from the iterable than are in flight. Where ``tasks``, ``done`` or ``failed`` raise, or the caller is
        interrupted, no further task is started, and the error is raised when all running tasks have ended.

        Raises:
            Incomplete: the executor can do no more work. ``failed`` was called for tasks in flight; other tasks were never started.
        """
        with self._opened() as executor:
            run = _TasksInFlight(self, executor, function, iter(tasks), done, failed, halves)
            try:
                run.to_the_end()
            except BaseException:
                _stopped.add(self.run)
                run.give_up()
                raise
            finally:
                _stopped.discard(self.run)

    @contextmanager
    def _opened(self) -> Iterator[ExecutorLike]:
        if self.executor is not None:
            yield self.executor
            return
        with ThreadPoolExecutor(self.worker_count, "shardstore-work", leave_to_main_thread) as executor:
            yield executor


@dataclass(slots=True, eq=False)
class _TasksInFlight(Generic[Task, Result]):
    """The state of one run."""

    execution: Execution
    executor: ExecutorLike
    function: Callable[[Task], Result]
    tasks: Iterator[Task]
    done: Callable[[Task, Result], None]
    failed: Callable[[Task, Exception], None]
    halves: Callable[[Task], Sequence[Task]] | None
    flying: dict[Future[Result], tuple[Task, int]] = field(default_factory=dict)
    """The tasks in flight, and how often each was tried before."""
    takes_more: bool = True
    lost: Incomplete | None = None

    def to_the_end(self) -> None:
        most = _TASKS_A_WORKER * self.execution.worker_count
        look_after = self.executor.look_after if isinstance(self.executor, ClusterExecutor) else None
        while True:
            while self.takes_more and len(self.flying) < most:
                try:
                    task = next(self.tasks)
                except StopIteration:
                    self.takes_more = False
                    break
                self._submit(task, 0)
            if not self.flying:
                if self.lost is not None:
                    raise self.lost
                return
            ended, _ = wait(self.flying, _SECONDS_UNTIL_LOOKED_AFTER if look_after else None, FIRST_COMPLETED)
            if look_after and not ended:
                look_after()
            for future in ended:
                self._take(future)

    def _submit(self, task: Task, tries: int) -> None:
        try:
            self.flying[self.executor.submit(self.function, task)] = task, tries
        except BrokenExecutor as exc:
            self._give_back(task, exc)

    def _give_back(self, task: Task, exc: BrokenExecutor) -> None:
        """Report a task as failed that the executor could not do, since it can do no more work."""
        error = Incomplete(str(exc) if type(exc) is BrokenExecutor else f"{type(exc).__name__}: {exc}")
        self.lost = self.lost or error
        self.takes_more = False
        self.failed(task, error)

    def _take(self, future: Future[Result]) -> None:
        task, tries = self.flying.pop(future)
        error = CancelledError() if future.cancelled() else future.exception()
        if error is None:
            self.done(task, future.result())
        elif isinstance(error, BrokenExecutor):
            self._give_back(task, error)
        elif isinstance(error, Interrupted) or not isinstance(error, Exception):
            raise as_known(error)
        elif tries < self.execution.retries and _may_help(error):
            self._submit(task, tries + 1)
        elif isinstance(error, ShardStoreError) and self.halves is not None and len(smaller := self.halves(task)) > 1:
            for part in smaller:
                self._submit(part, tries)
        else:
            self.failed(task, as_known(error))

    def give_up(self) -> None:
        """Start no further task, wait for the running ones, and still report their results."""
        for future in self.flying:
            future.cancel()
        wait(self.flying)
        for future, (task, _) in self.flying.items():
            if not future.cancelled() and future.exception() is None:
                self.done(task, future.result())


def _may_help(exc: Exception) -> bool:
    """Return whether a retry can help: after errors of a storage that is not full, lost races, and lost workers, whose errors are the
    executor's own.
    """
    if isinstance(exc, AccessDenied) or is_full(exc):
        return False
    if isinstance(exc, ShardStoreError):
        return isinstance(exc, StorageError | Conflict)
    module = type(exc).__module__.partition(".")[0]
    return isinstance(exc, OSError | CancelledError) or module == "distributed"


# -- work cut to size: listings into pages, reads into windows, failed tasks into halves ----------------------------------


async def pages(storage: Storage, prefix: str) -> AsyncIterator[list[ObjectInfo]]:
    """Yield what the storage lists below ``prefix``, a thousand objects at a time. Raises ``StorageError`` if a request failed."""
    page: list[ObjectInfo] = []
    async for info in storage.list(prefix):
        page.append(info)
        if len(page) == _KEYS_A_PAGE:
            yield page
            page = []
    if page:
        yield page


def one_by_one(batches: AsyncIterator[Sequence[T]]) -> Iterator[T]:
    """Yield the items of batches that are made on the IO loop. Not to be called there."""
    while (batch := run_sync(_next(batches))) is not None:
        yield from batch


async def _next(batches: AsyncIterator[Sequence[T]]) -> Sequence[T] | None:
    return await anext(batches, None)


def in_windows(items: Iterable[T], nbytes_of: Callable[[T], int], window_bytes: int, most: int | None = None) -> Iterator[list[T]]:
    """Yield groups of items in their order, with at most ``window_bytes`` together, and at most so many; an item with more comes alone."""
    window: list[T] = []
    held = 0
    for item in items:
        nbytes = nbytes_of(item)
        if window and (held + nbytes > window_bytes or len(window) == most):
            yield window
            window, held = [], 0
        window.append(item)
        held += nbytes
    if window:
        yield window


class ObjectTask(Protocol):
    """A task that works on some objects of one array: a dataclass that can be cut."""

    @property
    def objects(self) -> tuple[Any, ...]: ...

    def keys(self) -> Sequence[str]: ...


def work_on_objects(
    execution: Execution,
    function: Callable[[SomeTask], Result],
    tasks: Iterable[SomeTask],
    done: Callable[[SomeTask, Result, int | None], None],
    failed: Callable[[str, ShardStoreError], None],
) -> None:
    """Do tasks of some objects each; one that fails is done again in halves, so that only the objects are given up that fail.

    ``done`` takes a task, its result, and the number of objects of all tasks, ``None`` until all are known; ``failed`` takes the keys of
    objects that were given up.
    """
    ahead = Ahead(tasks, lambda task: len(task.objects))

    def give_up(task: SomeTask, error: Exception) -> None:
        if not isinstance(error, ShardStoreError):
            raise error  # a mistake of ours, or of the executor's
        for key in task.keys():  # noqa: SIM118  # no mapping
            failed(key, error)

    execution.carry_out(function, ahead, lambda task, result: done(task, result, ahead.total), give_up, halves)


def halves(task: Any) -> list[Any]:
    """Return two tasks, each with half of the ``objects``; the task itself if it cannot be cut."""
    middle = len(task.objects) // 2
    return [replace(task, objects=some) for some in (task.objects[:middle], task.objects[middle:])] if middle else [task]


class Ahead(Generic[T]):
    """Tasks, taken so many objects ahead of the work that their total is known early: at once if there are not more."""

    def __init__(self, tasks: Iterable[T], objects_of: Callable[[T], int], most_objects: int = 100_000) -> None:
        self._tasks = tasks
        self._objects_of = objects_of
        self._most = most_objects
        self.total: int | None = None
        """The number of objects of all tasks; ``None`` until all tasks are known."""

    def __iter__(self) -> Iterator[T]:
        waiting: deque[T] = deque()
        held = seen = 0
        for task in self._tasks:
            waiting.append(task)
            seen += self._objects_of(task)
            held += self._objects_of(task)
            while held > self._most:
                held -= self._objects_of(waiting[0])
                yield waiting.popleft()
        self.total = seen
        while waiting:
            yield waiting.popleft()
