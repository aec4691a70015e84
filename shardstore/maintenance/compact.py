"""Rewrite shards whose dead bytes pass a bound, and delete shards without chunks.

First all shards are looked at, many per task, by one request each. Then those that pass the bound are rewritten, one per task: looked
at again, planned, and stored on condition that they still are that version. So a shard that another client has written since is looked
at once more, and no client loses its writes. Chunks are neither decoded nor checked, and those outside the array's shape are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from shardstore._sync import run_sync
from shardstore.engine.engine import Engine
from shardstore.engine.index_cache import CachedIndex, StaleLayout
from shardstore.engine.options import EngineOptions
from shardstore.errors import Corruption, InvalidInput, NotFound
from shardstore.format.shard_index import IndexFormat, ShardIndex
from shardstore.maintenance.cluster import ExecutorLike
from shardstore.maintenance.execution import DEFAULT_MAX_MEMORY, Execution, Part, SharedStorage
from shardstore.maintenance.pins import Pin, Pins, is_held
from shardstore.maintenance.shards import (
    MOST_FAILED,
    Damage,
    FailedShard,
    FirstItems,
    LookTask,
    ShardRun,
    StoredShard,
    can_delete_emptied,
    check_can_swap,
    check_layout,
    current,
    dead_nbytes,
    look_at,
    shard_step,
)
from shardstore.model.chunk_orders import ChunkOrder, check_chunk_order
from shardstore.model.options import check_flags
from shardstore.model.showing import ShownInNotebooks
from shardstore.opening.open import open_storage
from shardstore.opening.snapshot_urls import named_snapshot, refuse_to_change
from shardstore.plan.commits import DeleteShard, WriteShard, plan_compaction
from shardstore.progress.shown import reported
from shardstore.progress.steps import Progress
from shardstore.storage.local.rules import Locks

compact_step = partial(shard_step, work="compacting")
"""Make the step of the progress that is shown."""
_ATTEMPTS = 8  # lost in a row against writers of the same shard: they leave no dead bytes behind


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound for rewriting a shard: more than ``ratio`` of its bytes are dead, or at least ``nbytes`` of them."""

    ratio: float = 0.25
    nbytes: int | None = None

    def __post_init__(self) -> None:
        if type(self.ratio) not in (int, float) or not 0 <= self.ratio <= 1:
            raise InvalidInput(f"dead_ratio {self.ratio!r} is not a number from 0 to 1")
        if self.nbytes is not None and (type(self.nbytes) is not int or self.nbytes < 1):
            raise InvalidInput(f"dead_bytes {self.nbytes!r} is not a positive whole number")

    def is_passed(self, dead: int, object_nbytes: int) -> bool:
        return dead > self.ratio * object_nbytes or (self.nbytes is not None and dead >= self.nbytes)


@dataclass(frozen=True, slots=True)
class CompactReport(ShownInNotebooks):
    """The results of a run, or with ``is_dry_run`` the results that it would have had."""

    url: str
    path: str
    is_dry_run: bool
    shards: int
    """The number of shards that were looked at."""
    rewritten: int
    deleted: int
    """The number of deleted shards, which had no chunk."""
    nbytes_before: int
    """Bytes of the shards that were rewritten or deleted, before that."""
    nbytes_after: int
    dead_nbytes: int
    """The dead bytes that were found, also in shards below the bound."""
    pinned: FirstItems[str]
    """Keys of shards past the bound that are pinned."""
    damaged: FirstItems[Damage]
    """Damaged shards, which stay unchanged: ``shardstore.repair`` is for them."""
    failed: FirstItems[FailedShard]
    unreadable: tuple[str, ...]
    """Paths of nodes whose documents cannot be read; their shards were not looked at."""

    def __repr__(self) -> str:
        dry = "dry run, " if self.is_dry_run else ""
        counts = f"{self.shards} shards, {self.rewritten} rewritten, {self.deleted} deleted, {self.failed.count} failed"
        return f"<CompactReport of {self.url!r}: {dry}{counts}>"

    @property
    def nbytes_freed(self) -> int:
        """The bytes of storage that are needed no more."""
        return self.nbytes_before - self.nbytes_after


# -- tasks -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loose:
    """A shard to be rewritten, as it was when it was looked at."""

    shard: StoredShard
    generation: str
    is_empty: bool
    nbytes: int
    dead_nbytes: int


@dataclass(frozen=True, slots=True)
class Looked:
    """The result of a task that looks at shards."""

    loose: tuple[Loose, ...]
    damaged: tuple[Damage, ...]
    dead_nbytes: int
    """Dead bytes of all these shards together."""


@dataclass(frozen=True, slots=True)
class CompactTask:
    """A task: rewrite one shard, if it still passes the bound."""

    place: SharedStorage
    shard: StoredShard
    nbytes: int
    """Bytes that it had when it was looked at."""
    bound: Bound
    order: ChunkOrder
    held: frozenset[str | None]
    window_bytes: int


@dataclass(frozen=True, slots=True)
class Compacted:
    """The outcome for one shard; ``kept``: nothing was to be done any more."""

    what: Literal["rewritten", "deleted", "kept", "pinned", "damaged"]
    nbytes_before: int = 0
    nbytes_after: int = 0
    reason: str = ""


def look(task: LookTask, bound: Bound) -> Looked:
    engine = Engine(task.place.storage)
    loose: list[Loose] = []
    damaged: list[Damage] = []
    all_dead = 0
    for shard, seen in zip(task.objects, run_sync(look_at(engine, task.objects)), strict=True):
        if seen is None:
            continue
        if isinstance(seen.index, Corruption) or _what_is_wrong(seen.index, seen.nbytes):
            run_sync(check_layout(engine, shard))
            damaged.append(Damage(shard.path, shard.key, _what_is_wrong(seen.index, seen.nbytes)))
            continue
        dead = dead_nbytes(shard.layout.index_format, seen.index, seen.nbytes)
        all_dead += dead
        is_empty = not seen.index.present().any()
        if is_empty or bound.is_passed(dead, seen.nbytes):
            loose.append(Loose(shard, seen.generation.token, is_empty, seen.nbytes, dead))
    return Looked(tuple(loose), tuple(damaged), all_dead)


def _what_is_wrong(index: ShardIndex | Corruption, object_nbytes: int) -> str:
    """Return in words why a shard cannot be rewritten; empty if it can."""
    if isinstance(index, Corruption):
        return f"its index is damaged: {index}"
    wrong = int(index.invalid(object_nbytes).sum())
    return f"{wrong} of the entries of its index cannot be right" if wrong else ""


def compact_shard(task: CompactTask) -> Compacted:
    options = EngineOptions(
        chunk_order=task.order, commit_attempts=_ATTEMPTS, copy_window_bytes=task.window_bytes, max_memory=task.window_bytes
    )
    engine = Engine(task.place.storage, options)
    can_delete = can_delete_emptied(run_sync(engine.storage.probe()))
    shard = run_sync(current(engine, task.shard))
    if shard is None:
        return Compacted("kept")
    outcome = Compacted("kept")

    def decide(cached: CachedIndex) -> WriteShard | DeleteShard | None:
        nonlocal outcome
        plan, outcome = _plan(task, cached, can_delete)
        return plan

    try:
        run_sync(engine.committer.rewrite(shard, decide))
    except (StaleLayout, NotFound):
        return Compacted("kept")
    except Corruption as exc:
        return Compacted("damaged", reason=str(exc))
    return outcome


def _plan(task: CompactTask, cached: CachedIndex, can_delete: bool) -> tuple[WriteShard | DeleteShard | None, Compacted]:
    index_format: IndexFormat = cached.index_format
    if what := _what_is_wrong(cached.index, cached.object_nbytes):
        return None, Compacted("damaged", reason=what)
    before = cached.object_nbytes
    is_empty = not cached.index.present().any()
    dead = dead_nbytes(index_format, cached.index, before)
    if not (task.bound.is_passed(dead, before) or (is_empty and can_delete)):
        return None, Compacted("kept")
    if is_held(task.held, cached.generation.token):
        return None, Compacted("pinned")
    plan = plan_compaction(index_format, cached.index, before, task.order)
    after = plan.nbytes if isinstance(plan, WriteShard) else 0 if can_delete else index_format.nbytes
    if after >= before:  # a chunk lies on the index, or there is nothing but an index
        return None, Compacted("kept")
    return plan, Compacted("rewritten" if after else "deleted", before, after)


# -- the run -----------------------------------------------------------------------------------------------------------


def compact(
    url: Any,
    *,
    path: str = "",
    pins: Iterable[Pin] = (),
    dead_ratio: float = 0.25,
    dead_bytes: int | None = None,
    chunk_order: ChunkOrder = "C",
    executor: ExecutorLike | None = None,
    workers: int | None = None,
    part: str | Part | None = None,
    dry_run: bool = False,
    retries: int = 2,
    max_memory: int = DEFAULT_MAX_MEMORY,
    only: Iterable[str] | None = None,
    exclusive: bool = False,
    storage_options: dict[str, Any] | None = None,
    locks: Locks = "auto",
    progress: Callable[[Progress], None] | bool | None = None,
) -> CompactReport:
    """Rewrite the shards at and below ``path`` whose dead bytes pass a bound, and delete those that hold no chunk.

    This is safe while shardstore reads and writes, in any process: each shard is replaced on condition that it still is the
    version that was looked at. Readers and writers of other libraries do not compare versions: none of them may run at the same time.

    Args:
        url: the root of the store, as for ``shardstore.open``.
        path: the array or group whose shards are looked at; all by default.
        pins: shards that have to stay unchanged, because offsets into them are held elsewhere. They are left alone, and reported.
        dead_ratio: a shard is rewritten if more than this share of its bytes is dead: neither the index nor part of a chunk.
        dead_bytes: a shard is also rewritten if at least so many bytes are dead.
        chunk_order: ``"C"``, ``"F"`` or ``"morton"``, the order of the chunks in a rewritten shard.
        executor: carries out the tasks, of one shard each: a ``concurrent.futures.Executor``, or the ``distributed.Client`` of a dask
            cluster; threads of this process by default.
        workers: how many tasks run at once.
        part: ``"I/N"``, the share of the shards that this call is for.
        dry_run: only look, and report what would be done.
        retries: how often a task is retried after its storage failed, or its worker was lost.
        max_memory: bytes of chunks that are held at once in each process.
        only: keys of shards, such as those that failed in an earlier run: only these are looked at.
        exclusive: promises that no other program writes; needed if the storage has no compare-and-swap.
        progress: called with a ``Progress`` now and then; or ``True``: it is shown on stderr.

    Raises:
        InvalidInput: an argument cannot be right, or a pin names no chunk and no shard of any array, or one outside of the array's shape
            that is not stored. Nothing was changed.
        NotFound: there is nothing at ``path``.
        Conflict: ``path`` is reached through a link in the middle of a store. Nothing was changed.
        Unsupported: the storage has no compare-and-swap, and ``exclusive`` is not given. Nothing was changed.
        StorageError: the storage cannot be listed.
        ShardStoreError: the executor was lost, with its scheduler or a process; the work done by then stays.
    """
    check_flags(dry_run=dry_run, exclusive=exclusive)
    bound, held = Bound(dead_ratio, dead_bytes), Pins.of(pins)
    check_chunk_order(chunk_order, "chunk_order")
    execution = Execution.of(executor, workers, part, retries, max_memory, only)
    refuse_to_change(run_sync(named_snapshot(url, storage_options)), "compacting")
    place = SharedStorage(open_storage(url, storage_options, locks=locks))
    with reported(progress, compact_step) as say:
        run = _Compaction(place, bound, held, chunk_order, execution, say)
        if not dry_run:
            run_sync(check_can_swap(run.engine.storage, exclusive))
        run.look(path)
        if dry_run:
            run.count_what_would_be()
        else:
            run.compact()
        return run.report(path, dry_run)


class _Compaction(ShardRun):
    """The state of one run."""

    def __init__(
        self, place: SharedStorage, bound: Bound, pins: Pins, order: ChunkOrder, execution: Execution, progress: Callable[[Progress], None]
    ) -> None:
        super().__init__(place, execution, progress)
        self._bound = bound
        self._pins = pins
        self._order = order
        self._loose: list[Loose] = []
        self._dead = self._done_nbytes = self._loose_nbytes = 0
        self._rewritten = self._deleted = self._before = self._after = 0
        self._pinned: list[str] = []
        self._damaged: list[Damage] = []

    def look(self, path: str) -> None:
        self._pins = run_sync(self._pins.resolved(self.engine))
        self.look_at_all(path, partial(look, bound=self._bound), self._looked)

    def _looked(self, found: Looked) -> None:
        self._dead += found.dead_nbytes
        self._loose += found.loose
        self._loose_nbytes += sum(loose.nbytes for loose in found.loose)
        self._damaged += found.damaged

    def count_what_would_be(self) -> None:
        can_delete = can_delete_emptied(self.engine.storage.capabilities)
        for loose in self._loose:
            if is_held(self._pins.at(loose.shard.key), loose.generation):
                self._pinned.append(loose.shard.key)
            elif loose.is_empty and can_delete:
                self._count(Compacted("deleted", loose.nbytes))
            elif loose.dead_nbytes:
                self._count(Compacted("rewritten", loose.nbytes, loose.nbytes - loose.dead_nbytes))

    def compact(self) -> None:
        window = self.execution.window_bytes
        tasks = (
            CompactTask(self.place, loose.shard, loose.nbytes, self._bound, self._order, self._pins.at(loose.shard.key), window)
            for loose in self._loose
        )
        self.work_on_each(compact_shard, tasks, len(self._loose), self._compacted, self._nbytes)

    def _compacted(self, task: CompactTask, outcome: Compacted) -> None:
        if outcome.what == "pinned":
            self._pinned.append(task.shard.key)
        elif outcome.what == "damaged":
            self._damaged.append(Damage(task.shard.path, task.shard.key, outcome.reason))
        else:
            self._count(outcome)

    def _count(self, outcome: Compacted) -> None:
        self._rewritten += outcome.what == "rewritten"
        self._deleted += outcome.what == "deleted"
        self._before += outcome.nbytes_before
        self._after += outcome.nbytes_after

    def _nbytes(self, task: CompactTask) -> tuple[int, int]:
        self._done_nbytes += task.nbytes
        return self._done_nbytes, self._loose_nbytes

    def report(self, path: str, is_dry_run: bool) -> CompactReport:
        return CompactReport(
            url=self.engine.storage.url,
            path=path.strip("/"),
            is_dry_run=is_dry_run,
            shards=self.shards,
            rewritten=self._rewritten,
            deleted=self._deleted,
            nbytes_before=self._before,
            nbytes_after=self._after,
            dead_nbytes=self._dead,
            pinned=FirstItems.of(self._pinned),
            damaged=FirstItems.of(self._damaged),
            failed=FirstItems.of(self.failed, MOST_FAILED),
            unreadable=tuple(node.path for node in self.unreadable),
        )
