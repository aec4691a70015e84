"""Cut work to size: listings into pages, reads into windows of so many bytes, and failed tasks into halves."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Generic, Protocol, TypeVar

from shardstore._sync import run_sync
from shardstore.errors import ShardStoreError
from shardstore.maintenance.execution import Execution, Failure
from shardstore.storage.base import ObjectInfo, Storage
from shardstore.storage.inferred_versions import is_unversioned

T = TypeVar("T")
Task = TypeVar("Task", bound="ObjectTask")
Result = TypeVar("Result")

_KEYS_A_PAGE = 1000


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


def halved(items: Sequence[T]) -> list[Sequence[T]]:
    """Return both halves of a sequence that can be cut into two."""
    middle = len(items) // 2
    return [items[:middle], items[middle:]] if middle else [items]


class ObjectTask(Protocol):
    """A task that works on some objects of one array: a dataclass that can be cut."""

    @property
    def objects(self) -> tuple[Any, ...]: ...

    def keys(self) -> Sequence[str]: ...


def work_on_objects(
    execution: Execution,
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    done: Callable[[Task, Result, int | None], None],
    failed: Callable[[str, ShardStoreError], None],
) -> None:
    """Do tasks of some objects each; one that fails is done again in halves, so that only the objects are given up that fail.

    ``done`` takes a task, its result, and the number of objects of all tasks, ``None`` until all are known; ``failed`` takes the keys of
    objects that were given up.
    """
    ahead = Ahead(tasks, lambda task: len(task.objects))

    def give_up(failure: Failure[Task]) -> None:
        if not isinstance(failure.error, ShardStoreError):
            raise failure.error  # a mistake of ours, or of the executor's
        for key in failure.task.keys():  # noqa: SIM118  # no mapping
            failed(key, failure.error)

    execution.carry_out(function, ahead, lambda task, result: done(task, result, ahead.total), give_up, _by_halves)


def _by_halves(task: Task) -> list[Task]:
    """Return two tasks, each with half of the objects; the task itself if it cannot be cut."""
    cut: Any = task
    return [replace(cut, objects=tuple(some)) for some in halved(task.objects)]


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


class ListedDigests:
    """Digests of the objects of arrays as a storage lists them: of keys, sizes, and versions where it gives them.

    They differ if an object was written or erased since; where a listing gives no versions, one that was replaced by another of the same
    size is not noticed. Objects may come in any order.
    """

    def __init__(self) -> None:
        self._sums: dict[str, int] = {}

    def add(self, path: str, info: ObjectInfo) -> None:
        """Add an object of the array at ``path``."""
        is_told = info.generation is not None and not is_unversioned(info.generation)
        version = info.generation.token if is_told and info.generation is not None else ""
        text = f"{info.key}\0{info.nbytes}\0{version}".encode(errors="surrogatepass")
        self._sums[path] = self._sums.get(path, 0) + int.from_bytes(blake2b(text, digest_size=8).digest())

    def of(self, path: str) -> str:
        """Return the digest of an array."""
        return f"{self._sums.get(path, 0) % 2**64:016x}"
