"""Shared parts of all runs that replace shards: when they may, how they look for shards to work on, and how they report."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Generic, Literal, Protocol, TypeVar

from shardstore._sync import run_sync
from shardstore.engine.engine import Engine
from shardstore.engine.metadata.hierarchy import Node
from shardstore.errors import NotFound, Unsupported
from shardstore.maintenance.execution import Execution, Failure
from shardstore.maintenance.object_tasks import halved
from shardstore.maintenance.shard_content import StoredShard
from shardstore.maintenance.storages import Place
from shardstore.maintenance.stored_shards import in_tasks, stored_shards
from shardstore.model.capabilities import Capabilities
from shardstore.progress.steps import Step
from shardstore.storage.base import Storage
from shardstore.storage.boundaries import check_own, is_reached_through, links_above

T = TypeVar("T")

_SHARDS_AT_ONCE = 1000

MOST_FAILED = 100_000  # that are listed, so that they can be tried again


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """A count of things, and the first of them."""

    count: int = 0
    first: tuple[T, ...] = ()

    @classmethod
    def of(cls, items: Sequence[T], most: int = 1000) -> Listed[T]:
        return cls(len(items), tuple(items[:most]))


@dataclass(frozen=True, slots=True)
class FailedShard:
    """A shard that was given up, and the reason; it is unchanged."""

    path: str
    """The path of the array."""
    key: str
    error: Exception


@dataclass(frozen=True, slots=True)
class ShardProgress:
    """The progress of a run."""

    phase: Literal["looking", "working"]
    """The phase: first the indices of all shards are looked at, then the work on some of them is done."""
    shards: int
    """The number of shards finished in this phase."""
    total_shards: int | None = None
    """The total number of shards; ``None`` while the listing goes on."""
    nbytes: int | None = None
    """Bytes of the finished shards, if that is known."""
    total_nbytes: int | None = None
    failed: int = 0

    def step(self, work: str) -> Step:
        """Return the step that is shown; ``work`` is what is done in the second phase."""
        nbytes, total = (self.nbytes, self.total_nbytes) if self.total_nbytes else (None, None)
        action = "looking at indices" if self.phase == "looking" else work
        return Step(action, self.shards, self.total_shards, nbytes, total, self.failed, "shards")


@dataclass(frozen=True, slots=True)
class LookTask:
    """A task: look at the indices of some shards."""

    place: Place
    shards: tuple[StoredShard, ...]

    def halves(self) -> list[LookTask]:
        return [replace(self, shards=tuple(some)) for some in halved(self.shards)]


class ShardTask(Protocol):
    """A task that works on one shard."""

    @property
    def shard(self) -> StoredShard: ...


Task = TypeVar("Task", bound=ShardTask)
Outcome = TypeVar("Outcome")


class ShardRun:
    """The state of one run: it looks at all shards first, many per task, and then works on some of them, one per task."""

    def __init__(self, place: Place, execution: Execution, progress: Callable[[ShardProgress], None]) -> None:
        self.place = place
        self.engine = Engine(place.storage)
        self.execution = execution
        self.shards = 0
        """The number of shards that were looked at."""
        self.failed: list[FailedShard] = []
        self.unreadable: list[Node] = []
        self._done = 0
        self._progress = progress

    def look_at_all(self, path: str, look: Callable[[LookTask], Outcome], looked: Callable[[Outcome], None]) -> None:
        """Look at the shards at and below ``path`` that this run is for; ``looked`` takes what ``look`` has found.

        Raises:
            Conflict: ``path`` is reached through a link in the middle of a store.
        """
        run_sync(check_own(self.engine.storage, path.strip("/")))
        takes = self.execution.takes
        mine = (shard for shard in stored_shards(self.engine, path, self.unreadable) if takes(shard.key))
        tasks = (LookTask(self.place, some) for some in in_tasks(self._own(mine)))

        def done(task: LookTask, found: Outcome) -> None:
            self.shards += len(task.shards)
            looked(found)
            self._progress(ShardProgress("looking", self.shards, failed=len(self.failed)))

        def failed(failure: Failure[LookTask]) -> None:
            self.failed += [FailedShard(shard.path, shard.key, failure.error) for shard in failure.task.shards]

        self.execution.carry_out(look, tasks, done, failed, LookTask.halves)
        for key in self.execution.unmet():
            self.failed.append(FailedShard("", key, NotFound(f"there is no shard {key!r} in {self.engine.storage.url}")))

    def _own(self, shards: Iterable[StoredShard]) -> Iterator[StoredShard]:
        """Yield the shards that the store has itself; those behind a link in the middle of it have failed."""
        remaining = iter(shards)
        while some := list(islice(remaining, _SHARDS_AT_ONCE)):
            for shard, link in zip(some, run_sync(links_above(self.engine.storage, [shard.key for shard in some])), strict=True):
                if link is None:
                    yield shard
                else:
                    self.failed.append(FailedShard(shard.path, shard.key, is_reached_through(link, shard.key, self.engine.storage)))

    def work_on_each(
        self,
        function: Callable[[Task], Outcome],
        tasks: Iterable[Task],
        total: int,
        done: Callable[[Task, Outcome], None],
        nbytes: Callable[[Task], tuple[int, int]] | None = None,
    ) -> None:
        """Do the ``tasks``, ``total`` in number. ``nbytes`` adds the bytes of a task to those done, and returns these and the total."""

        def advance(task: Task) -> None:
            self._done += 1
            done_nbytes, total_nbytes = (None, None) if nbytes is None else nbytes(task)
            self._progress(ShardProgress("working", self._done, total, done_nbytes, total_nbytes, len(self.failed)))

        def finished(task: Task, outcome: Outcome) -> None:
            done(task, outcome)
            advance(task)

        def failed(failure: Failure[Task]) -> None:
            shard = failure.task.shard
            self.failed.append(FailedShard(shard.path, shard.key, failure.error))
            advance(failure.task)

        self.execution.carry_out(function, tasks, finished, failed)


def can_delete_emptied(capabilities: Capabilities) -> bool:
    """Return whether a shard without chunks may be removed; ``False`` if a chunk written at the same moment could be lost."""
    return capabilities.conditional_delete or not capabilities.compare_and_swap


async def check_can_swap(storage: Storage, exclusive: bool) -> None:
    """Check, before shards are replaced, that no writer's update can be lost.

    Raises:
        Unsupported: the storage has no compare-and-swap, and others may write.
    """
    capabilities = await storage.probe()
    if exclusive:
        return
    if not capabilities.atomic_commits:
        raise Unsupported(
            f"{storage.url} offers no compare-and-swap: a chunk that another client writes while its shard is replaced would be lost. "
            "Stop all writers, and say exclusive=True (--exclusive)"
        )
    if not capabilities.across_machines:
        warnings.warn(
            f"{storage.url} lies on a network file system: chunks that another machine writes while their shard is replaced can be lost. "
            "Let all writers run on this machine, or say locks='cluster' where the file system's locks reach across machines",
            RuntimeWarning,
            stacklevel=2,
        )
