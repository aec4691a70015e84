"""Shards: the content of one object by its index, and what runs have in common that look for shards, and replace some of them."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from shardstore._sync import run_sync
from shardstore.engine.engine import Engine
from shardstore.engine.metadata.hierarchy import Node, same_shards
from shardstore.engine.writing.committer import Shard
from shardstore.errors import Conflict, Corruption, NotFound, Unsupported
from shardstore.format.metadata_v3 import ArrayLayout
from shardstore.format.shard_index import IndexFormat, ShardIndex
from shardstore.format.store_keys import check_prefix, join, metadata_path
from shardstore.maintenance.execution import Execution, SharedStorage, halves, in_windows, one_by_one, pages
from shardstore.maintenance.nodes import ShardTally, SurveyedNodes
from shardstore.model.capabilities import Capabilities
from shardstore.model.chunks import ChunkCoords
from shardstore.model.generation import Generation
from shardstore.plan.commits import covered_nbytes
from shardstore.progress.steps import Progress, Step
from shardstore.storage.base import Found, Read, Storage, unless_failed
from shardstore.storage.boundaries import check_own, is_reached_through, links_above

T = TypeVar("T")

SHARDS_AT_ONCE = 256
_KEYS_AT_ONCE = 1000
_SHARDS_A_TASK = 64
_INDEX_BYTES_A_TASK = 8 * 2**20

MOST_FAILED = 100_000  # that are listed, so that they can be tried again


@dataclass(frozen=True, slots=True)
class Damage:
    """A shard whose index cannot be read, or has entries that cannot be right."""

    path: str
    """The path of the array."""
    key: str
    """The key of the shard's object."""
    what: str


@dataclass(frozen=True, slots=True)
class StoredShard:
    """The object of one shard as it was listed; it travels with tasks."""

    path: str
    """The path of the array."""
    layout: ArrayLayout
    coords: ChunkCoords
    key: str


@dataclass(frozen=True, slots=True)
class LookedAt:
    """One version of a shard: its size, and its index or the reason why that cannot be read."""

    generation: Generation
    nbytes: int
    index: ShardIndex | Corruption


async def look_at(engine: Engine, shards: Sequence[StoredShard]) -> list[LookedAt | None]:
    """Return the indices of shards, by one request per shard; ``None`` if the shard no longer exists.
    Raises ``StorageError`` if a request failed.
    """
    looks: list[LookedAt | None] = []
    outcomes = await engine.storage.read([Read(shard.key, (shard.layout.index_format.request(),)) for shard in shards])
    for shard, outcome in zip(shards, outcomes, strict=True):
        outcome = unless_failed(outcome)
        if not isinstance(outcome, Found):
            looks.append(None)
            continue
        index_format = shard.layout.index_format
        try:
            index: ShardIndex | Corruption = index_format.decode(index_format.slice_from(outcome.buffers[0], outcome.nbytes))
        except Corruption as exc:
            index = exc
        looks.append(LookedAt(outcome.generation, outcome.nbytes, index))
    return looks


async def current(engine: Engine, shard: StoredShard) -> Shard | None:
    """Return the shard with its node as the storage has it now; ``None`` if its array is gone, or has another layout by now."""
    node = await engine.hierarchy.node(shard.path, fresh=True)
    if node is None or node.layout is None or not same_shards(node.layout, shard.layout):
        return None
    return Shard(node, node.layout, shard.coords)


async def check_layout(engine: Engine, shard: StoredShard) -> None:
    """Check, before damage is reported, that the array still has the layout that was read with its metadata.

    Raises:
        Conflict: the layout is another one now, so the shard cannot be understood.
        StorageError: a request failed.
    """
    if await current(engine, shard) is None:
        raise Conflict(f"array {shard.path!r} was changed while its shards were checked: run it again")


@dataclass(frozen=True, slots=True, eq=False)
class CountedShard:
    """The chunks of one shard that lie in the array's shape."""

    shard: StoredShard
    nbytes: int
    exists: npt.NDArray[np.bool_]
    """For each slot, in C order: ``(slots,)``."""
    lengths: npt.NDArray[np.int64]
    """The encoded bytes of each existing chunk."""


async def survey_shards(
    engine: Engine, shards: Sequence[tuple[StoredShard, ShardTally]], counted: list[CountedShard] | None = None
) -> list[Damage]:
    """Read the indices of ``shards``, one request per shard, and add their content to the tallies; return the damage. With ``counted``
    the chunks of each shard whose index can be read, inside the array's shape, are added to it.

    Raises:
        Conflict: the metadata of an array changed in between, so that its shards cannot be understood.
        StorageError: a request failed.
    """
    damages: list[Damage] = []
    looks = await look_at(engine, [shard for shard, _ in shards])
    for (shard, tally), look in zip(shards, looks, strict=True):
        if look is None:
            continue  # deleted since it was listed
        tally.add_object(look.nbytes, _is_inside(shard))
        if (what := _count(shard, tally, look.nbytes, look.index, counted)) is not None:
            await check_layout(engine, shard)
            tally.damaged_objects += 1
            damages.append(Damage(shard.path, shard.key, what))
    return damages


def _is_inside(shard: StoredShard) -> bool:
    per_shard, grid = shard.layout.grid.chunks_per_shard, shard.layout.chunk_grid_shape
    return all(c * p < g for c, p, g in zip(shard.coords, per_shard, grid, strict=True))


def _count(
    shard: StoredShard, tally: ShardTally, object_nbytes: int, index: ShardIndex | Corruption, counted: list[CountedShard] | None
) -> str | None:
    """Add the content of one shard to its array's tally; return its fault in words, if there is one."""
    index_format = shard.layout.index_format
    tally.index_nbytes += min(index_format.nbytes, object_nbytes)
    if isinstance(index, Corruption):
        return f"its index is damaged: {index}"
    wrong = index.invalid(object_nbytes)
    used = index.present() & ~wrong
    # Entries that fit the object fit int64 as well.
    lengths = index.flat[used, 1].astype(np.int64)
    slots = slots_inside(shard.layout, shard.coords)
    inside = slots[used]
    tally.add_chunks(int(inside.sum()), int(lengths[inside].sum()), int((~inside).sum()), int(lengths[~inside].sum()))
    if counted is not None and _is_inside(shard):
        counted.append(CountedShard(shard, object_nbytes, used & slots, lengths[inside]))
    if wrong.any():
        return entry_fault(index, wrong, object_nbytes)  # what its bytes are is not known, so none of them is called dead
    tally.dead_nbytes += dead_nbytes(index_format, index, object_nbytes)
    return None


def entry_fault(index: ShardIndex, wrong: npt.NDArray[np.bool_], object_nbytes: int) -> str:
    """Return in words the fault of the first entry that ``ShardIndex.invalid`` names, and the number of such entries."""
    slots = np.flatnonzero(wrong)
    try:
        index.location(int(slots[0]), object_nbytes)
    except Corruption as exc:
        more = f", and {len(slots) - 1} more" if len(slots) > 1 else ""
        return f"{exc}{more}"
    raise AssertionError(f"entry {slots[0]} is invalid and has a location")


def slots_inside(layout: ArrayLayout, coords: ChunkCoords) -> npt.NDArray[np.bool_]:
    """Return ``(nslots,)``: true for slots of the shard at ``coords`` of the shard grid whose chunks lie in the array's grid."""
    inside = np.ones((), dtype=np.bool_)
    for c, p, g in zip(coords, layout.grid.chunks_per_shard, layout.chunk_grid_shape, strict=True):
        # Python's own numbers: coordinates of a stray object may exceed 64 bits.
        held = np.arange(p) < max(0, min(p, g - c * p))
        inside = inside[..., np.newaxis] & held
    return inside.reshape(-1)


def dead_nbytes(index_format: IndexFormat, index: ShardIndex, object_nbytes: int) -> int:
    """Return the number of dead bytes of a shard, which neither the index nor a chunk uses; every entry has to fit the object."""
    used = index.flat[index.present()].astype(np.int64)  # entries that fit the object fit int64 as well
    index_start = 0 if index_format.location == "start" else object_nbytes - index_format.nbytes
    offsets, lengths = np.append(used[:, 0], index_start), np.append(used[:, 1], index_format.nbytes)
    return object_nbytes - covered_nbytes(offsets, lengths)


# -- reports ----------------------------------------------------------------------------------------------------------


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
        owners = await nodes.owners([info.key for info in page])
        yield [
            StoredShard(record.node.path, record.node.layout, coords, info.key)
            for info, (record, coords) in zip(page, owners, strict=True)
            if record is not None and coords is not None and record.node.layout is not None and metadata_path(info.key) is None
        ]
    if is_empty:
        raise NotFound(f"there is no node at {join(engine.storage.url.rstrip('/'), path)}, and nothing below it: check the address")
    unreadable += [record.node for record in nodes.records(path) if record.node.kind == "other"]


# -- the run -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LookTask:
    """A task: look at the indices of some shards."""

    place: SharedStorage
    objects: tuple[StoredShard, ...]


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
            self.shards += len(task.objects)
            looked(found)
            self._progress(Progress("looking", self.shards, failed=len(self.failed)))

        def failed(task: LookTask, error: Exception) -> None:
            self.failed += [FailedShard(shard.path, shard.key, error) for shard in task.objects]

        self.execution.carry_out(look, tasks, done, failed, halves)
        for key in self.execution.unmet():
            self.failed.append(FailedShard("", key, NotFound(f"there is no shard {key!r} in {self.engine.storage.url}")))

    def _own(self, shards: Iterable[StoredShard]) -> Iterator[StoredShard]:
        """Yield the shards that the store has itself; those behind a link in the middle of it have failed."""
        remaining = iter(shards)
        while some := list(islice(remaining, _KEYS_AT_ONCE)):
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

        def failed(task: Task, error: Exception) -> None:
            self.failed.append(FailedShard(task.shard.path, task.shard.key, error))
            advance(task)

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
            "Stop all writers, and give exclusive=True"
        )
    if not capabilities.across_machines:
        warnings.warn(
            f"{storage.url} lies on a network file system: chunks that another machine writes while their shard is replaced can be lost. "
            "Let all writers run on this machine, or give locks='cluster' where the file system's locks reach across machines",
            RuntimeWarning,
            stacklevel=2,
        )
