"""Cut work to size: objects into tasks of one array each, and the reads of a task into windows of so many bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from shardstore.maintenance.array_plans import ArrayPlan
from shardstore.maintenance.walk import Located

T = TypeVar("T")

_OBJECTS_A_TASK = 256
_INDEX_BYTES_A_TASK = 4 * 2**20
_CONTENT_BYTES_A_TASK = 64 * 2**20  # so that there are enough tasks to go round


def gathered(objects: Iterable[Located], reads_all: Callable[[ArrayPlan], bool]) -> Iterator[tuple[ArrayPlan, list[Located]]]:
    """Yield objects of arrays, in the order of their arrival; ``reads_all`` returns for which arrays all bytes will be read."""
    plan: ArrayPlan | None = None
    some: list[Located] = []
    nbytes = 0
    for located in objects:
        assert located.plan is not None
        if plan is not None and some and (plan is not located.plan or _is_full(plan, len(some), nbytes if reads_all(plan) else 0)):
            yield plan, some
            some, nbytes = [], 0
        plan = located.plan
        some.append(located)
        nbytes += located.info.nbytes
    if plan is not None and some:
        yield plan, some


def _is_full(plan: ArrayPlan, objects: int, nbytes: int) -> bool:
    index_nbytes = 0 if plan.layout is None else plan.layout.index_format.nbytes
    return objects >= _OBJECTS_A_TASK or (objects + 1) * index_nbytes > _INDEX_BYTES_A_TASK or nbytes >= _CONTENT_BYTES_A_TASK


def in_windows(items: Iterable[T], nbytes_of: Callable[[T], int], window_bytes: int) -> Iterator[list[T]]:
    """Yield groups of items in their order, with at most ``window_bytes`` together; an item with more comes alone."""
    window: list[T] = []
    held = 0
    for item in items:
        nbytes = nbytes_of(item)
        if window and held + nbytes > window_bytes:
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


class Ahead(Generic[T]):
    """Tasks, taken so many objects ahead of the work that their total is known early: at once where there are not more."""

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
