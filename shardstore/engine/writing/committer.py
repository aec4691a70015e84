"""One commit of one shard: read what has to be known, plan, write on condition, and plan again after a lost race.

A commit is conditional on the version that it was planned from, except where it brings or erases every chunk of the
shard and no request can be late (``Capabilities.exactly_once``). What survives a cancellation, at any await: the old
shard or the new one, whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar
from uuid import uuid4

import numpy as np

from shardstore.engine.actions import (
    Action,
    Swap,
    apply_actions,
    changes_nothing,
    has_swaps,
    needs_old_value,
    needs_old_version,
    refusal,
    work_nbytes,
)
from shardstore.engine.contention import Contention, Outdated, Turn
from shardstore.engine.index_cache import CachedIndex, IndexCache, IndexVersions, LayoutProof, StaleLayout
from shardstore.engine.metadata.hierarchy import Hierarchy, LocatedChunks, Node, shard_key
from shardstore.engine.options import EngineOptions
from shardstore.engine.reading.reader import Reader
from shardstore.engine.reading.shard_chunks import ShardRead, group_located
from shardstore.engine.writing.contents import NothingStored, NotMade, ShardBody, ShardContents
from shardstore.engine.writing.plan_writer import PlanWriter
from shardstore.errors import Conflict, Corruption, NotFound, ShardStoreError, Unsupported, WriteOutcomeUnknown
from shardstore.format.metadata_v3 import ArrayLayout
from shardstore.model.chunks import ChunkCoords
from shardstore.model.coalescing import coalesce
from shardstore.model.generation import UNCONDITIONAL, Condition, Generation, IfGeneration
from shardstore.model.ranges import EVERYTHING, ByteRange, BytesLike, CopiedRange, NewBytes
from shardstore.plan.commits import Commit, CommitPlan, DeleteShard, NothingToDo, Rewrite, WriteShard, plan_empty, with_nonce
from shardstore.plan.strategies import Append, strategy_of
from shardstore.storage.abilities import FileTree, WritesAsMade
from shardstore.storage.base import ConditionFailed, Storage
from shardstore.storage.wrappers import Counters
from shardstore.threads import in_threads

_DAMAGED = Generation("damaged")

T = TypeVar("T")

SlotActions = dict[int, list[Action]]
Refused = dict[int, ShardStoreError]
"""The slots whose actions could not be applied, such as a patch behind the end of the chunk, or of one that cannot be decoded; they stay
unchanged."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of one array, in the array's present layout."""

    node: Node
    layout: ArrayLayout
    coords: ChunkCoords

    @property
    def key(self) -> str:
        return shard_key(self.node.path, self.layout, self.coords)

    def chunk_key(self, slot: int) -> str:
        return shard_key(self.node.path, self.layout, self.layout.grid.coords_of(self.coords, slot))


@dataclass(eq=False, repr=False)
class Committer:
    """Commits to single shards of one store."""

    _storage: Storage
    _hierarchy: Hierarchy
    _indices: IndexCache
    _proof: LayoutProof
    _reader: Reader
    _options: EngineOptions
    _counters: Counters
    _contention: Contention
    _made: WritesAsMade | None = None
    """What writes the objects of whole shards while they are made, if that is the storage of the shards themselves."""
    keeps_versions: bool = field(default=False, init=False)
    """True if chunks keep their versions in commits of this process that do not change them."""
    _created: dict[str, tuple[Shard, Generation]] = field(default_factory=dict, init=False)
    """Shards of arrays whose documents a transaction has yet to write."""
    _doubtful: set[str] = field(default_factory=set, init=False)
    """The keys of those of which it is unknown whether they were written."""
    _warned: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._strategy = strategy_of(self._options.strategy)
        self._plans = PlanWriter(self._storage, self._options.copy_window_bytes, self._options.max_memory)
        self._versions = IndexVersions(self._storage)

    async def commit(self, shard: Shard, actions: SlotActions) -> Refused:
        """Carry out actions on slots of one shard, in one commit; durable on return.

        Raises:
            StaleLayout: the array is laid out otherwise by now; nothing was written.
            NotFound: the array has been deleted; nothing was written.
            Corruption: a chunk that would have to be kept, or the index, is damaged; nothing was written.
            Conflict: other writers replaced the shard first too many times in a row; nothing was written.
        """
        await self._check_capabilities()
        if (need := self._strategy.unsuited(shard.layout.index_format)) is not None:
            raise Unsupported(
                f"shard {shard.key!r} of array {shard.node.path!r} is not written: strategy={self._strategy.name!r} needs {need}. "
                "This array has no such index: open the store with strategy='rewrite'"
            )
        turn = self._contention.turn(shard.key)
        await turn.start()
        refused: Refused = {}
        is_done = False
        swaps = {slot: chain for slot, chain in actions.items() if has_swaps(chain)}
        needs_old = any(map(needs_old_value, actions.values())) or any(map(needs_old_version, swaps.values()))
        if len(actions) == shard.layout.grid.nslots and not needs_old and not self._strategy.plans_from_old:
            updates = _apply(shard, actions, {}, {}, refused)
            is_done = not refused and await self._replace(shard, swaps, updates, turn)
        if not is_done:
            refused = await self._update(shard, actions, swaps, turn)
        turn.won()
        self._counters.add(commits=1, chunks_written=len(actions) - len(refused))
        return refused

    async def make(self, shard: Shard, contents: ShardContents) -> None:
        """Write a shard of which every chunk is given, whatever is there; durable on return.

        Raises:
            NotMade: it has to be written by ``commit``; nothing was stored.
        """
        await self._check_capabilities()
        index_format, storage = shard.layout.index_format, self._made
        is_usual = type(self._strategy) in (Rewrite, Append) and self._strategy.unsuited(index_format) is None
        if storage is None or not is_usual or index_format.location != "end" or not self._storage.capabilities.exactly_once:
            raise NotMade
        turn = self._contention.turn(shard.key)
        await turn.start()
        body = ShardBody(index_format, self._options.chunk_order, contents)
        try:
            generation = await storage.write_made(shard.key, body.write, UNCONDITIONAL)
        except NothingStored:
            await self._empty(shard, UNCONDITIONAL)
        else:
            self._counters.add(requests=1, bytes_written=body.nbytes)
            self._remember(shard, generation, WriteShard((), body.nbytes, body.index), {})
        turn.won()
        self._counters.add(commits=1, chunks_written=shard.layout.grid.nslots)

    async def rewrite(self, shard: Shard, decide: Callable[[CachedIndex], WriteShard | DeleteShard | None]) -> bool:
        """Store the same chunks in another form, as ``decide`` plans it from the shard's index; return whether anything was stored.

        ``decide`` is asked again after a lost race, and may find that nothing is left to do.

        Raises:
            StaleLayout: the array is laid out otherwise by now; nothing was written.
            NotFound: the array has been deleted; nothing was written.
            Corruption: the index is damaged, or ``decide`` found so; nothing was written.
            Conflict: other writers replaced the shard first too many times in a row; nothing was written.
        """
        turn = self._contention.turn(shard.key)
        await turn.start()

        async def attempt() -> bool:
            cached = await self._load(shard, has_lost=turn.has_lost)
            plan = None if cached is None else decide(cached)
            if plan is None:
                return False
            if isinstance(plan, DeleteShard):
                await self._remove(shard, self._condition(cached))
            else:
                await self._execute(shard, cached, plan, {})
            return True

        is_stored = await self._swap(shard, turn, attempt)
        if is_stored:
            turn.won()
            self._counters.add(commits=1)
        return is_stored

    async def replace(self, shard: Shard, generation: Generation, plan: WriteShard | DeleteShard) -> None:
        """Carry out ``plan``, which was made from version ``generation`` of a shard, on condition that this version is still there.

        Raises:
            ConditionFailed: the shard is another version now, or gone; nothing was written.
            StaleLayout: the array is laid out otherwise by now; nothing was written.
            NotFound: the array has been deleted; nothing was written.
        """
        await self._confirm(shard)  # after the shard was read: so that version was of this layout, see ``_load``
        self._indices.drop(shard.key)
        condition = self._storage.capabilities.condition_on(generation)
        if isinstance(plan, DeleteShard):
            await self._remove(shard, condition)
        else:
            self._remember(shard, await self._plans.write(shard.key, generation, plan, condition), plan, {})
        self._counters.add(commits=1)

    async def _swap(self, shard: Shard, turn: Turn, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return what ``Turn.swap`` returns; after a lost race the index is read again."""

        async def one() -> T:
            try:
                return await attempt()
            except ConditionFailed:
                self._indices.drop(shard.key)
                raise
            finally:
                self._plans.forget(shard.key)

        return await turn.swap(f"shard {shard.key!r} of array {shard.node.path!r}", one)

    async def _replace(self, shard: Shard, swaps: SlotActions, updates: dict[int, BytesLike | None], turn: Turn) -> bool:
        """Write a shard of which every chunk is given, whatever is there. Return ``False``, and write nothing, if what is there matters:
        the array is being created.
        """
        plan = self._plan(shard, None, updates)
        if shard.node.is_uncommitted:
            if not isinstance(plan, WriteShard):
                return False
            try:
                await self._write_all(shard, swaps, plan, self._condition(None))
            except ConditionFailed:
                return False
            return True
        capabilities = self._storage.capabilities
        if capabilities.exactly_once or not capabilities.atomic_commits:
            await self._write_all(shard, swaps, plan, UNCONDITIONAL)
            return True
        # Sent without a condition, a request that is late would undo what other clients wrote since.
        filled = self._hierarchy.being_filled
        cached = self._indices.get(shard.key, shard.layout.index_format)
        generation = None if cached is None else cached.generation
        is_known = cached is not None or (isinstance(plan, WriteShard) and shard.node.path in filled)

        async def attempt() -> bool:
            current = generation
            if not is_known or turn.has_lost:
                there = await self._storage.stat(shard.key)
                if there is None and not isinstance(plan, WriteShard):
                    await self._keep_seen(shard.key)
                    return True
                current = None if there is None else there.generation
                (filled.add if there is None else filled.discard)(shard.node.path)
            await self._write_all(shard, swaps, plan, capabilities.condition_on(current))
            return True

        return await self._swap(shard, turn, attempt)

    async def _write_all(self, shard: Shard, swaps: SlotActions, plan: CommitPlan, condition: Condition) -> None:
        """Write all chunks of a shard, or erase all."""
        if isinstance(plan, WriteShard):
            plan = self._unique(shard, plan, condition)
            _note_versions(swaps, self._remember(shard, await self._write_new(shard, plan, condition), plan, {}))
        else:
            await self._empty(shard, condition)

    async def _update(self, shard: Shard, actions: SlotActions, swaps: SlotActions, turn: Turn) -> Refused:
        """Write a shard of which some chunks may stay, by its index: by one that is remembered first, then by one that is read."""
        remembered = self._remembered(shard)

        async def attempt() -> Refused:
            nonlocal remembered
            cached, remembered = remembered, None
            from_cache = cached is not None
            early = await self._early_values(shard, actions)
            if not from_cache:
                cached = await self._load(shard, has_lost=turn.has_lost)
            if cached is not None and shard.node.is_uncommitted and cached.index.present().any():
                raise _not_alone(shard)
            try:
                return await self._update_from(shard, cached, actions, swaps, early, from_cache=from_cache)
            except Corruption as exc:
                self._indices.drop(shard.key)
                if from_cache:
                    raise Outdated from exc
                raise Corruption(
                    f"shard {shard.key!r} of array {shard.node.path!r} cannot be updated, because a chunk that would be kept is damaged: "
                    f"{exc}. Write or erase that chunk first, or in the same batch"
                ) from exc

        return await self._swap(shard, turn, attempt)

    def _remembered(self, shard: Shard) -> CachedIndex | None:
        """Return the index to plan by without a read of it; ``None`` if there is none that can be trusted."""
        if not self._storage.capabilities.atomic_commits or shard.node.is_uncommitted:
            return None  # of an array that is being created there is nothing yet: what is remembered is of one that was there before
        cached = self._indices.get(shard.key, shard.layout.index_format)
        return cached if cached is not None and self._proof.is_sure(cached) else None  # else it is read, and the document after it

    async def _update_from(
        self,
        shard: Shard,
        cached: CachedIndex | None,
        actions: SlotActions,
        swaps: SlotActions,
        early: Mapping[int, BytesLike | None] | None,
        *,
        from_cache: bool,
    ) -> Refused:
        """Write the shard on condition that ``cached`` is its index.

        Raises:
            Outdated: nothing is to be done, which can only be believed of an index that was read now.
        """
        refused: Refused = {}
        updates = await self._resolve(shard, cached, actions, swaps, refused, early)
        plan = self._plan(shard, cached, updates) if updates else NothingToDo()
        if isinstance(plan, NothingToDo):
            if from_cache:
                raise Outdated
            if updates:
                await self._keep_seen(shard.key)
            return refused
        if isinstance(plan, WriteShard):
            plan = self._unique(shard, plan, self._condition(cached))
        carried = self._carried_versions(cached, updates)
        _note_versions(swaps, await self._execute(shard, cached, plan, carried))
        return refused

    def _plan(self, shard: Shard, cached: CachedIndex | None, updates: Mapping[int, BytesLike | None]) -> CommitPlan:
        index, nbytes = (None, 0) if cached is None else (cached.index, cached.object_nbytes)
        options, capabilities = self._options, self._storage.capabilities
        plan = self._strategy.plan(
            Commit(shard.layout.index_format, index, nbytes, updates, options.chunk_order, options.max_dead_fraction, capabilities)
        )
        is_empty = index is not None and not index.present().any()
        return NothingToDo() if is_empty and isinstance(plan, DeleteShard) and self._leaves_emptied else plan

    async def _keep_seen(self, key: str) -> None:
        """Make durable that there is nothing to erase: another client may have erased it, and died before that was flushed."""
        if (tree := self._storage.ability(FileTree)) is not None:
            await tree.keep_seen(key)

    @property
    def _leaves_emptied(self) -> bool:
        """Return whether a shard stays as an object when its last chunk is erased.

        Where requests can be late it stays, for a request to create it that was made before would find no shard, which is its condition,
        and bring erased chunks back. A shard of nothing but an index is as good as none.
        """
        return self._storage.capabilities.compare_and_swap and not self._storage.capabilities.exactly_once

    async def _load(self, shard: Shard, *, has_lost: bool) -> CachedIndex | None:
        """Return the index as it is now, verified, and hold what else came with it of a small shard, until the end of the attempt. If there
        is no shard and a race was just lost, confirm the layout.

        Raises:
            StaleLayout: the array is laid out otherwise.
        """
        read = ShardRead(shard.node, shard.layout, shard.coords, shard.key)
        (head,) = await self._reader.load_heads([read], self._reader.small_nbytes(shard.layout))
        index = head.index
        if isinstance(index, Corruption):
            if shard.node.is_uncommitted:
                raise _not_alone(shard) from index
            await self._confirm(shard)
        if isinstance(index, ShardStoreError):
            raise index
        is_sure = self._proof.is_sure(index) if index is not None else not has_lost
        if not is_sure and not shard.node.is_uncommitted:
            # This version of the shard is of this layout then, and a commit on condition of it cannot change one of an array that was
            # created since.
            await self._confirm(shard)
            if index is not None:
                index = self._proof.verify(shard.node, shard.key, index)
        if index is not None:
            start = index.index_format.start_of(len(head.data), index.object_nbytes)
            self._plans.know(shard.key, index.generation, start, head.data)
        return index

    async def _confirm(self, shard: Shard) -> None:
        """Check that the shard still has the layout that this commit was planned by.

        Raises:
            StaleLayout: it has another one; the keys have to be located again.
            NotFound: the array has been deleted.
        """
        try:
            await self._proof.confirm([shard.node])
        except StaleLayout:
            if self._hierarchy.known(shard.node.path) is None:
                raise NotFound(f"array {shard.node.path!r} was deleted by another client while its chunks were being written") from None
            raise

    async def _resolve(
        self,
        shard: Shard,
        cached: CachedIndex | None,
        actions: SlotActions,
        swaps: SlotActions,
        refused: Refused,
        early: Mapping[int, BytesLike | None] | None,
    ) -> dict[int, BytesLike | None]:
        """Return the new bytes of each slot. Old bytes, of the version of ``cached``, are read if the outcome depends on them, unless they
        were read ``early``.
        """
        wanted = _slots_of_old_values(actions)
        old: dict[int, BytesLike | None] = dict.fromkeys(wanted)
        if early is not None:
            old.update(early)
        elif wanted and cached is not None:
            places = {slot: cached.index.location(slot, cached.object_nbytes) for slot in wanted}
            ranges = {slot: ByteRange(p.offset, p.offset + p.nbytes) for slot, p in places.items() if p is not None}
            if ranges:
                if cached.object_nbytes <= self._reader.small_nbytes(shard.layout):  # what is kept is read too: all by one request
                    (all_bytes,) = await self._plans.read_pinned(shard.key, [ByteRange(0, cached.object_nbytes)], cached.generation)
                    self._plans.know(shard.key, cached.generation, 0, all_bytes)
                reads = coalesce(list(ranges.values()), self._reader.limits)
                found = await self._plans.read_pinned(shard.key, list(reads.requests), cached.generation)
                old.update(zip(ranges, reads.cut(found), strict=True))
        versions: dict[int, Generation] = {}
        for slot, chain in swaps.items():
            if cached is not None and needs_old_version(chain):
                try:
                    where = cached.index.location(slot, cached.object_nbytes)
                except Corruption:
                    versions[slot] = _DAMAGED  # there is something, and no client can have seen it
                    continue
                if where is not None:
                    versions[slot] = cached.version(slot, where)
        slots = list(actions)
        parts = await in_threads(
            len(slots),
            sum(map(work_nbytes, actions.values())),
            lambda start, end: _apply(shard, {slot: actions[slot] for slot in slots[start:end]}, old, versions, refused),
        )
        updates = {slot: value for part in parts for slot, value in part.items()}
        for slot in [slot for slot, chain in swaps.items() if changes_nothing(chain)]:
            updates.pop(slot, None)
        return updates

    async def _early_values(self, shard: Shard, actions: SlotActions) -> dict[int, BytesLike | None] | None:
        """Return the chunks that the outcome depends on as a client reads them, before the index is, where a version may have no name
        that can be asked for: one writer at a time is the rule there. ``None``: they are read of the version that is to be replaced.
        """
        slots = _slots_of_old_values(actions)
        if not slots or self._storage.capabilities.atomic_commits or shard.node.is_uncommitted:
            return None
        numbers = np.zeros(len(slots), np.intp)
        located = LocatedChunks(shard.node, shard.layout, [shard.coords], [shard.key], numbers, np.array(slots, np.int64))
        values = await self._reader.read(group_located(located, [EVERYTHING] * len(slots)), len(slots))
        for value in values:
            if isinstance(value, ShardStoreError):
                raise value
        return {slot: value for slot, value in zip(slots, values, strict=True) if not isinstance(value, ShardStoreError)}

    async def _execute(
        self,
        shard: Shard,
        cached: CachedIndex | None,
        plan: WriteShard | DeleteShard,
        carried: Mapping[int, Generation],
    ) -> CachedIndex | None:
        """Carry out the plan; return the index of the new shard, or ``None`` if the shard was deleted."""
        condition = self._condition(cached)
        if isinstance(plan, DeleteShard):
            await self._empty(shard, condition)
            return None
        if not any(isinstance(segment, CopiedRange) for segment in plan.segments):
            generation = await self._write_new(shard, plan, condition)
        else:
            assert cached is not None  # there is nothing to copy where there is no shard
            generation = await self._plans.write(shard.key, cached.generation, plan, condition)
        return self._remember(shard, generation, plan, carried)

    def _carried_versions(self, cached: CachedIndex | None, updates: Mapping[int, object]) -> dict[int, Generation]:
        """Return the versions of the chunks that a commit keeps, if versions of chunks are asked for."""
        if cached is None or not self.keeps_versions:
            return {}
        slots: list[int] = np.flatnonzero(cached.index.present()).tolist()
        places = {slot: cached.index.location(slot, cached.object_nbytes) for slot in slots if slot not in updates}
        return {slot: cached.version(slot, where) for slot, where in places.items() if where is not None}

    async def _write_new(self, shard: Shard, plan: WriteShard, condition: Condition) -> Generation:
        """Write a shard that keeps no bytes of an old one."""
        body = [segment.data for segment in plan.segments if isinstance(segment, NewBytes)]
        if shard.node.is_uncommitted:
            self._doubtful.add(shard.key)
        try:
            generation = await self._storage.write(shard.key, body, plan.nbytes, condition)
        except ShardStoreError as exc:
            if not isinstance(exc, WriteOutcomeUnknown):
                self._doubtful.discard(shard.key)
            raise
        self._doubtful.discard(shard.key)
        return generation

    async def _empty(self, shard: Shard, condition: Condition) -> None:
        """Leave no chunk in a shard whose last chunks are erased, unless another client has just written one."""
        await (self._swap_in_empty if self._leaves_emptied else self._remove)(shard, condition)

    async def _remove(self, shard: Shard, condition: Condition) -> None:
        """Remove a shard, unless another client has just replaced it."""
        capabilities = self._storage.capabilities
        if capabilities.compare_and_swap and not capabilities.conditional_delete:
            # An unconditional DELETE could remove a chunk written a moment ago.
            await self._swap_in_empty(shard, condition, is_unique=False)
            return
        await self._storage.delete(shard.key, condition)
        self._indices.drop(shard.key)

    async def _swap_in_empty(self, shard: Shard, condition: Condition, *, is_unique: bool = True) -> None:
        plan = plan_empty(shard.layout.index_format)
        if is_unique:
            plan = self._unique(shard, plan, condition)
        body = [segment.data for segment in plan.segments if isinstance(segment, NewBytes)]
        self._remember(shard, await self._storage.write(shard.key, body, plan.nbytes, condition), plan, {})

    def _unique(self, shard: Shard, plan: WriteShard, condition: Condition) -> WriteShard:
        """Return the plan, with a nonce if it replaces a version on a storage where equal bytes are one version: a late request that was
        made for an earlier version with these bytes would find its condition fulfilled.
        """
        if self._storage.capabilities.unique_versions or not isinstance(condition, IfGeneration):
            return plan
        return with_nonce(plan, shard.layout.index_format, uuid4().bytes)

    def _condition(self, cached: CachedIndex | None) -> Condition:
        return self._storage.capabilities.condition_on(None if cached is None else cached.generation)

    # -- the rest --------------------------------------------------------------------------------------------------

    async def _check_capabilities(self) -> None:
        """Warn once, before the first commit, of what this storage cannot promise."""
        capabilities = await self._storage.probe()
        if (capabilities.atomic_commits and capabilities.across_machines) or capabilities.static or self._warned:
            return  # where nothing can be written, the write says so
        if capabilities.atomic_commits:
            message = (
                f"{self._storage.url} lies on a network file system: writers on different machines can lose each other's chunks. Let the "
                "writers of a shard run on one machine, or say locks='cluster' where the file system's locks reach across machines"
            )
        else:
            message = (
                f"{self._storage.url} offers no compare-and-swap: writers that share a shard can lose each other's chunks. "
                "Let one writer at a time write a shard"
            )
        if self._options.require_atomic:
            raise Unsupported(message + ", or open the store without require_atomic=True")
        self._warned = True
        warnings.warn(message, RuntimeWarning, stacklevel=2)

    async def rollback_created_shards(self) -> list[str]:
        """Remove the shards that were written for arrays that could not be created after all, if no other client has replaced them.

        Returns the keys of shards that may be left, each with the reason. A shard is left if it is not known whether it was written, even
        if the same bytes are there: they may be those of another client that creates the same array.
        """
        created, self._created = self._created, {}
        left = [f"{key!r} (whether it was written is not known)" for key in sorted(self._doubtful)]
        self._doubtful.clear()
        for key, (shard, generation) in created.items():
            self._indices.drop(key)
            try:
                await self._remove(shard, IfGeneration(generation))
            except ConditionFailed:
                continue  # another client's by now
            except ShardStoreError as exc:
                left.append(f"{key!r} ({exc})")
        self._created = {}  # an emptied shard is remembered as one that was written
        return left

    def forget_created_shards(self) -> None:
        """Keep what was written of new arrays: they have been created."""
        self._created = {}

    def _remember(self, shard: Shard, generation: Generation, plan: WriteShard, carried: Mapping[int, Generation]) -> CachedIndex:
        index_format = shard.layout.index_format
        generation = self._versions.named(generation, index_format, lambda: index_format.encode(plan.index))
        index = CachedIndex(index_format, generation, plan.nbytes, plan.index, is_verified=True, carried_versions=carried)
        self._indices.put(shard.key, index)
        if shard.node.is_uncommitted:
            self._created[shard.key] = shard, generation
        return index


def _not_alone(shard: Shard) -> Conflict:
    return Conflict(
        f"another client wrote shard {shard.key!r} of array {shard.node.path!r} while a transaction was creating that array. The "
        "shards that the transaction wrote for it were removed again: try again"
    )


def _slots_of_old_values(actions: SlotActions) -> list[int]:
    """Return the slots whose new bytes depend on the old ones."""
    return [slot for slot, chain in actions.items() if needs_old_value(chain)]


def _apply(
    shard: Shard, actions: SlotActions, old: dict[int, BytesLike | None], versions: dict[int, Generation], refused: Refused
) -> dict[int, BytesLike | None]:
    """Return the new bytes of each slot. Slots whose actions cannot be applied are noted in ``refused`` and stay unchanged."""
    updates: dict[int, BytesLike | None] = {}
    nbytes = shard.layout.encoded_chunk_nbytes
    for slot, chain in actions.items():
        try:
            value = apply_actions(chain, old.get(slot), partial(shard.chunk_key, slot), versions.get(slot))
            if value is not None and nbytes is not None and len(value) != nbytes:
                raise refusal(shard.chunk_key(slot), value, nbytes)
            updates[slot] = value
        except ShardStoreError as exc:
            refused[slot] = exc
    return updates


def _note_versions(swaps: SlotActions, index: CachedIndex | None) -> None:
    """Note in the outcome of each swap the version that it stored. If that did not last, it gets a version that no client will see."""
    for slot, chain in swaps.items():
        for action in chain:
            if isinstance(action, Swap) and action.outcome.happened and action.data is not None:
                where = index.index.location(slot, index.object_nbytes) if index is not None and action.outcome.lasted else None
                gone = Generation(f"replaced at once {uuid4().hex}")
                action.outcome.version = gone if where is None or index is None else index.version(slot, where)
