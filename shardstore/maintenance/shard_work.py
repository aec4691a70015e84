"""Shared parts of all runs that replace shards: when they may, how they look for shards to work on, and how they report."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Generic, Protocol, TypeVar

from shardstore._sync import run_sync
from shardstore.engine.engine import Engine
from shardstore.engine.metadata.hierarchy import Node
from shardstore.errors import NotFound, Unsupported
from shardstore.format.store_keys import check_prefix, join, metadata_path
from shardstore.maintenance.execution import Execution, Failure, SharedStorage
from shardstore.maintenance.object_tasks import halved, in_windows, one_by_one, pages
from shardstore.maintenance.shard_content import StoredShard
from shardstore.maintenance.survey.nodes import SurveyedNodes
from shardstore.model.capabilities import Capabilities
from shardstore.progress.steps import Progress, Step
from shardstore.storage.base import ObjectInfo, Storage
from shardstore.storage.boundaries import check_own, is_reached_through, links_above

T = TypeVar("T")

_SHARDS_AT_ONCE = 1000
_SHARDS_A_TASK = 64
_INDEX_BYTES_A_TASK = 8 * 2**20

MOST_FAILED = 100_000  # that are listed, so that they can be tried again


@dataclass(frozen=True, slots=True)
class FirstItems(Generic[T]):
    """A count of things, and the first of them."""

    count: int = 0
    first: tuple[T, ...] = ()

    @classmethod
    def of(cls, items: Sequence[T], most: int = 1000) -> FirstItems[T]:
        return cls(len(items), tuple(items[:most]))


@dataclass(frozen=True, slots=True)
class FailedShard:
    """A shard that was given up, and the reason; it is unchanged."""

    path: str
    """The path of the array."""
    key: str
    error: Exception


def shard_step(progress: Progress, /, work: str) -> Step:
    """Return the step that is shown; ``work`` is what is done in the second phase."""
    return progress.step({"looking": "looking at indices", "working": work}, "shards")


# -- the shards of a store -----------------------------------------------------------------------------------------------


def _stored_shards(engine: Engine, path: str, unreadable: list[Node]) -> Iterator[StoredShard]:
    """Yield every shard of the arrays at and below ``path``, in the order of the listing; from a thread that is not the IO loop's.

    Nodes whose documents cannot be read are added to ``unreadable``; everything below them is skipped.

    Raises:
        NotFound: there is nothing at ``path``.
        StorageError: a request failed.
    """
    check_prefix(path)
    yield from one_by_one(_batches(engine, path.strip("/"), unreadable))


async def _batches(engine: Engine, path: str, unreadable: list[Node]) -> AsyncIterator[list[StoredShard]]:
    nodes = SurveyedNodes(engine)
    is_empty = True
    async for page in pages(engine.storage, join(path, "")):
        is_empty = False
        yield await _shards_of(nodes, page)
    if is_empty:
        raise NotFound(f"there is no node at {join(engine.storage.url.rstrip('/'), path)}, and nothing below it: check the address")
    unreadable += [record.node for record in nodes.records(path) if record.node.kind == "other"]


async def _shards_of(nodes: SurveyedNodes, found: Sequence[ObjectInfo]) -> list[StoredShard]:
    shards: list[StoredShard] = []
    for info, (record, coords) in zip(found, await nodes.owners([info.key for info in found]), strict=True):
        if record is not None and coords is not None and record.node.layout is not None and metadata_path(info.key) is None:
            shards.append(StoredShard(record.node.path, record.node.layout, coords, info.key))
    return shards


# -- the run -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LookTask:
    """A task: look at the indices of some shards."""

    place: SharedStorage
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

    def __init__(self, place: SharedStorage, execution: Execution, progress: Callable[[Progress], None]) -> None:
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
        mine = (shard for shard in _stored_shards(self.engine, path, self.unreadable) if takes(shard.key))
        rounds = in_windows(self._own(mine), lambda shard: shard.layout.index_format.nbytes, _INDEX_BYTES_A_TASK, _SHARDS_A_TASK)
        tasks = (LookTask(self.place, tuple(some)) for some in rounds)

        def done(task: LookTask, found: Outcome) -> None:
            self.shards += len(task.shards)
            looked(found)
            self._progress(Progress("looking", self.shards, failed=len(self.failed)))

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
            done_nbytes, total_nbytes = (0, None) if nbytes is None else nbytes(task)
            self._progress(Progress("working", self._done, total, done_nbytes, total_nbytes, len(self.failed)))

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
        Unsupported: the storage has no compare-and-swap, and other clients may write.
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
