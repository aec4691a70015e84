"""Reading chunks out of shards: indices, then chunks; two rounds for any batch, one where the indices are cached.

Index and chunks of a shard come from one generation. Where it changes in between, the shard is read again; after some
tries a single request that holds both its index and its chunks settles the matter. The array's document is read again beside
the chunks where the index was read just now, so that the shard is not read by the layout of an array that was there before. A shard
that is older than the last look at the document needs no other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from shardstore.engine.index_cache import CachedIndex, IndexCache, IndexVersions, parse_chunk_version
from shardstore.engine.metadata.hierarchy import NEVER, ChunkTarget, Hierarchy, Node
from shardstore.engine.reading.shard_chunks import (
    ShardRead,
    Value,
    WantedChunks,
    chunk_location,
    cut,
    index_error,
    makes_a_request,
    release,
    slice_all,
    wanted_chunks,
)
from shardstore.engine.stale_layout import StaleLayout
from shardstore.errors import Conflict, Corruption, ShardStoreError
from shardstore.format.metadata_v3 import ArrayLayout
from shardstore.format.shard_index import Places
from shardstore.format.store_keys import join, metadata_key
from shardstore.model.chunks import ChunkLocation
from shardstore.model.generation import Generation
from shardstore.model.ranges import EVERYTHING, ByteRange, ByteRequest, resolve
from shardstore.plan.reads import CoalescedReads, ReadLimits, coalesce_all
from shardstore.storage.base import Absent, Changed, Failed, Found, Guard, GuardChanged, Read, ReadOutcome, Storage, document_read
from shardstore.storage.wrappers import Counters

_PINNED_TRIES = 4
_REMEMBERED_ARRAYS = 10_000
_MOST_DEAD_BYTES = 2**20  # of a short shard that is appended to
_COMPRESSED = 2  # shards of so many times the bytes that are asked for with an index may come whole, or half


@dataclass(frozen=True, slots=True)
class _First:
    """The first answer about a shard."""

    shard: ShardRead
    outcome: ReadOutcome
    index: CachedIndex | ShardStoreError | None
    is_sure: bool
    """It is known to be what the array's document says, without another look at that."""


@dataclass(frozen=True, slots=True)
class _ChunkRead:
    """A read of chunks of one shard by its index."""

    shard: ShardRead
    index: CachedIndex
    wanted: WantedChunks
    coalesced: CoalescedReads

    @property
    def read(self) -> Read:
        return Read(self.shard.key, self.coalesced.requests, self.index.generation)


@dataclass(slots=True)
class _Left:
    """The work that one round leaves to the next."""

    chunks: list[_ChunkRead] = field(default_factory=list)
    """Chunks to be read by indices that have just come."""
    firsts: list[_First] = field(default_factory=list)
    """The first answers about shards that were not asked for whole."""
    whole: list[_First] = field(default_factory=list)
    """Shards that came whole, and whose arrays have yet to be looked at."""
    came: list[_ChunkRead] = field(default_factory=list)
    """Chunks whose arrays have yet to be looked at."""
    checked: set[str] = field(default_factory=set)
    """Paths of arrays that have been looked at in this round where they were not fresh."""
    again: list[ShardRead] = field(default_factory=list)
    """Shards that have changed, or whose arrays have."""


@dataclass(slots=True)
class _Others:
    """Reads of other objects that go along with the first round."""

    reads: Sequence[Read]
    outcomes: list[ReadOutcome] | None = None


class Reader:
    """Reads of sharded chunks for one store."""

    def __init__(self, storage: Storage, hierarchy: Hierarchy, indices: IndexCache, limits: ReadLimits, counters: Counters) -> None:
        self._storage = storage
        self._hierarchy = hierarchy
        self._indices = indices
        self._limits = limits
        self._counters = counters
        self.first_bytes_per_batch = 2**24
        """The bytes that are asked for with the indices of one batch at most."""
        self.useless_attempts = 4
        """After so many, of one array, nothing is asked for with its indices any more."""
        self._versions = IndexVersions(storage)
        self._useless: dict[str, int] = {}  # by path of array: how many times in a row what came with an index was of no use

    def shard_read(self, read: Read, target: ChunkTarget) -> Read | None:
        """The read of a shard's version for that of a chunk's; ``None`` where it is the version of something else."""
        if read.generation is None:
            return None
        cached = self._indices.get(target.shard_key, target.layout.index_format)
        try:
            where = None if cached is None else cached.index.location(target.slot, cached.object_nbytes)
        except Corruption:  # reading the chunk as it is now will tell
            return None
        if cached is not None and where is not None and cached.version(target.slot, where) == read.generation:
            shard = cached.generation
        elif (version := parse_chunk_version(read.generation)) is not None:
            shard, where = version
        else:
            return None
        inside = [resolve(request, where.nbytes) for request in read.ranges]
        return Read(target.shard_key, tuple(ByteRange(where.offset + r.start, where.offset + r.end) for r in inside), shard)

    # -- indices ---------------------------------------------------------------------------------------------------

    async def load_indices(self, shards: Sequence[ShardRead]) -> list[CachedIndex | ShardStoreError | None]:
        """The current index of each shard, one request a shard; ``None`` where there is no shard.

        Raises:
            StaleLayout: an array turned out to be laid out otherwise.
        """
        indices: list[CachedIndex | ShardStoreError | None] = [None] * len(shards)
        pending = list(range(len(shards)))
        for _ in range(_PINNED_TRIES):
            asked = [shards[i] for i in pending]
            first = await self._read_first(asked, [s.layout.index_format.request() for s in asked], with_metadata=asked)
            for i, one in zip(pending, first, strict=True):
                indices[i] = one.index
            pending = [i for i, one in zip(pending, first, strict=True) if isinstance(one.outcome, GuardChanged)]
            if not pending:
                return indices
            await self._confirm_layouts([shards[i] for i in pending])
        for i in pending:
            indices[i] = Conflict(f"the metadata of array {shards[i].node.path!r} kept changing; try again")
        return indices

    async def verified_indices(self, shards: Sequence[ShardRead]) -> list[tuple[CachedIndex | ShardStoreError | None, bool]] | None:
        """The verified index of each shard, ``None`` where there is none, and whether it was read just now: else a read of its version has
        to confirm it. The arrays are fresh. ``None`` instead of a list where that is not so.

        Raises:
            ShardStoreError: of an array's document.
        """
        trusts = self._hierarchy.never_checks
        remembered = [self._indices.peek(shard.key, shard.layout.index_format, unverified=trusts) for shard in shards]
        unknown = [shard for shard, index in zip(shards, remembered, strict=True) if index is None]
        self._counters.add(index_hits=len(shards) - len(unknown), index_misses=len(unknown))
        try:
            loaded = await self.load_indices(unknown) if unknown else []
            await self._read_with_metadata(shards, [])
        except StaleLayout:
            return None
        if any(isinstance(index, CachedIndex) and not self.is_sure(index) for index in loaded):
            return None
        new = iter(loaded)
        return [(next(new), True) if index is None else (index, False) for index in remembered]

    def is_sure(self, index: CachedIndex) -> bool:
        """Return whether the index was read by the layout that its shard was written by, as far as is asked for; from any thread."""
        return index.is_verified or self._hierarchy.never_checks

    async def chunk_place(self, shard: ShardRead, *, surely: bool = False) -> tuple[Generation, ChunkLocation] | None:
        """Return where the one chunk that is wanted of a shard lies, as the shard's index has it now; ``None``: there is none.

        ``surely`` reads the array's document after the index, where that has not been verified.

        Raises:
            Corruption: the index is damaged, or the chunk's entry in it.
            StaleLayout: the array turned out to be laid out otherwise.
        """
        (index,) = await self.load_indices([shard])
        if isinstance(index, ShardStoreError):
            await self._confirm_layouts([shard])
            raise index
        if surely and index is not None and not index.is_verified and not self._hierarchy.never_checks:
            await self._confirm_layouts([shard])
        (slot,) = shard.slots
        where = None if index is None else chunk_location(shard, index, slot)
        if isinstance(where, ShardStoreError):
            raise where
        return None if where is None or index is None else (index.generation, where)

    def decode_index(self, shard: ShardRead, outcome: ReadOutcome) -> CachedIndex | ShardStoreError | None:
        """The index that a read of it gave; remembered."""
        match outcome:
            case Failed(error):
                return error
            case Found(_, _, (data,)):
                return self._remember(shard, generation_of=outcome, data=data)
            case _:
                self._indices.drop(shard.key)
                return None

    def _remember(self, shard: ShardRead, generation_of: Found, data: memoryview) -> CachedIndex | ShardStoreError:
        index_format = shard.layout.index_format
        try:
            encoded = index_format.slice_from(data, generation_of.nbytes)
            index = index_format.decode(encoded)
        except Corruption as exc:
            self._indices.drop(shard.key)
            return index_error(shard, exc)
        generation = self._versions.named(generation_of.generation, index_format, lambda: encoded)
        known = self._indices.get(shard.key, index_format)
        carried = known.carried_versions if known is not None and known.generation == generation else {}
        cached = CachedIndex(index_format, generation, generation_of.nbytes, index, carried_versions=carried)
        self._indices.put(shard.key, cached)
        return cached

    async def _read_with_metadata(
        self,
        shards: Sequence[ShardRead],
        reads: Sequence[Read],
        unsure: Collection[str] = (),
        *,
        after: bool = False,
        others: _Others | None = None,
    ) -> list[ReadOutcome]:
        """One round; beside it the metadata of arrays that was not checked for a while, or is ``unsure``, is checked again, and ``others``
        are read that have not been.

        With ``after`` the unsure is read behind the round: then it verifies what was read in it.
        """
        if self._hierarchy.never_checks:
            unsure = ()
        unsure = {path for path in unsure if not self._hierarchy.is_pending(path)}
        stale = {s.node.path: s.node for s in shards if s.node.path in unsure or not self._fresh(s.node)}
        documents = [document_read(metadata_key(path)) for path in stale]
        if after and not unsure.isdisjoint(stale):
            outcomes = [*await self._storage.read(reads), *await self._storage.read(documents)]
        else:
            more = others.reads if others is not None and others.outcomes is None else ()
            outcomes = await self._storage.read([*reads, *more, *documents]) if reads or more or documents else []
            if others is not None and more and outcomes:
                others.outcomes = outcomes[len(reads) : len(reads) + len(more)]
                del outcomes[len(reads) : len(reads) + len(more)]
        self._check_layouts(stale, outcomes[len(reads) :])
        return outcomes[: len(reads)]

    def _fresh(self, node: Node) -> bool:
        known = self._hierarchy.known(node.path)
        return known is not None and known.layout == node.layout and self._hierarchy.is_fresh(known)

    def _check_layouts(self, expected: dict[str, Node], outcomes: Sequence[ReadOutcome]) -> None:
        changed = False
        for (path, before), outcome in zip(expected.items(), outcomes, strict=True):
            now = self._hierarchy.learn(path, outcome)
            if now is None or now.layout is None or not same_shards(now.layout, before.layout):
                self._indices.drop_prefix(join(path, ""))
                changed = True
        if changed:
            raise StaleLayout

    async def _confirm_layouts(self, shards: Sequence[ShardRead]) -> None:
        """Before damage is reported: was it the layout that was out of date?"""
        nodes = {s.node.path: s.node for s in shards}
        outcomes = await self._storage.read([document_read(metadata_key(path)) for path in nodes])
        self._check_layouts(nodes, outcomes)

    # -- chunks ----------------------------------------------------------------------------------------------------

    async def read(self, shards: Sequence[ShardRead], count: int) -> list[Value]:
        """The values of ``count`` requests that are spread over ``shards``. Raises as ``read_with``."""
        return (await self.read_with(shards, count, ()))[0]

    async def read_with(self, shards: Sequence[ShardRead], count: int, others: Sequence[Read]) -> tuple[list[Value], list[ReadOutcome]]:
        """The values of ``count`` requests that are spread over ``shards``; and ``others``, which are read in the first round of these.

        Raises:
            StaleLayout: an array turned out to be laid out otherwise; nothing was returned from it.
        """
        beside = _Others(others)
        values = await self._read(shards, count, beside)
        if beside.outcomes is None:
            beside.outcomes = await self._storage.read(others) if others else []
        return values, beside.outcomes

    async def _read(self, shards: Sequence[ShardRead], count: int, others: _Others) -> list[Value]:
        values: list[Value] = [None] * count
        pending = list(shards)
        tries = 0
        while pending:
            tries += 1
            if tries > _PINNED_TRIES:
                await self._settle(pending, values)
                break
            pending = await self._try(pending, values, others)
            self._counters.add(retried_reads=len(pending))
        damaged = [s for s in shards if any(isinstance(values[i], Corruption) for i in s.numbers)]
        if damaged:
            await self._confirm_layouts(damaged)
        return values

    async def _try(self, shards: Sequence[ShardRead], values: list[Value], others: _Others) -> list[ShardRead]:
        """One attempt of two rounds, or one; the shards that changed meanwhile are left."""
        known: list[_ChunkRead] = []
        unknown: list[ShardRead] = []
        for shard in shards:
            cached = self._indices.get(shard.key, shard.layout.index_format)
            # Whether a chunk is missing can only be believed of an index that a read confirms.
            places = None if cached is None or shard.wants_everything else cached.index.places(shard.slots, cached.object_nbytes)
            if cached is None or places is None or not makes_a_request(places, shard):
                unknown.append(shard)
            else:
                known += self._chunk_read(shard, cached, places, values)
        self._counters.add(index_hits=len(shards) - len(unknown), index_misses=len(unknown))
        left = await self._first_round(unknown, known, values, others)
        if left.chunks or left.firsts or left.whole or left.came:
            left.again += await self._second_round(left, values)
        for one in left.whole:
            index = self._indices.get(one.shard.key, one.shard.layout.index_format)
            if index is not None and isinstance(one.index, CachedIndex) and index.generation == one.index.generation:
                self._indices.verify(one.shard.key, index)
        return left.again

    def _chunk_read(self, shard: ShardRead, index: CachedIndex, places: Places, values: list[Value]) -> list[_ChunkRead]:
        """The read of what is wanted of a shard; none where nothing of it exists."""
        wanted = wanted_chunks(shard, index, places, values)
        return [_ChunkRead(shard, index, wanted, coalesce_all(wanted.starts, wanted.ends, self._limits))] if wanted.numbers else []

    async def _read_first(
        self,
        shards: Sequence[ShardRead],
        requests: Sequence[ByteRequest],
        *,
        with_metadata: Sequence[ShardRead] = (),
        unsure: Collection[str] = (),
        others: _Others | None = None,
    ) -> list[_First]:
        """One request of each shard that its index comes with. The metadata is checked in the same step where the storage can do that.

        Elsewhere it is read in the same round: of ``with_metadata``, where the array was not checked for a while, or is ``unsure``.
        """
        guards = [self._guard(shard) for shard in shards]
        reads = [Read(s.key, (r,), None, guard) for s, r, guard in zip(shards, requests, guards, strict=True)]
        guarded = {s.key for s, guard in zip(shards, guards, strict=True) if guard is not None}
        outcomes = await self._read_with_metadata([s for s in with_metadata if s.key not in guarded], reads, unsure, others=others)
        for shard, guard, outcome in zip(shards, guards, outcomes, strict=True):
            if guard is not None and isinstance(outcome, Found | Absent):
                self._hierarchy.confirmed(shard.node.path, guard.generation)
        return [self._first(s, outcome, guard) for s, outcome, guard in zip(shards, outcomes, guards, strict=True)]

    def _first(self, shard: ShardRead, outcome: ReadOutcome, guard: Guard | None) -> _First:
        index = None if isinstance(outcome, GuardChanged) else self.decode_index(shard, outcome)
        is_sure = guard is not None or self._predates_check(shard, outcome)
        if is_sure and isinstance(index, CachedIndex):
            index = self._indices.verify(shard.key, index)
        return _First(shard, outcome, index, is_sure)

    def _predates_check(self, shard: ShardRead, outcome: ReadOutcome) -> bool:
        """Return whether the document, as it was known before the read or seen since, tells what was read."""
        now = self._hierarchy.known(shard.node.path)
        renewed = (
            now is not None and now.layout is not None and same_shards(now.layout, shard.layout) and now.predates_metadata_check(outcome)
        )
        return renewed or shard.node.predates_metadata_check(outcome)

    def _guard(self, shard: ShardRead) -> Guard | None:
        """The document without which the index of ``shard`` means nothing, where the storage checks that in the same step."""
        node = self._hierarchy.known(shard.node.path)
        if node is None or not self._storage.capabilities.guarded_reads or self._hierarchy.is_pending(node.path):
            return None
        if node.layout is None or not same_shards(node.layout, shard.layout):
            return None  # another read has just learnt better; this one has to find out
        return Guard(metadata_key(node.path), node.generation)

    async def _first_round(self, shards: list[ShardRead], known: list[_ChunkRead], values: list[Value], others: _Others) -> _Left:
        """Indices of shards, and shards that come whole; and chunks of those whose indices are known."""
        whole = [s.wants_everything for s in shards]
        most = self.first_bytes_per_batch // max(1, whole.count(False))
        more = [0 if w else self._first_bytes(s, most) for s, w in zip(shards, whole, strict=True)]
        requests = [_whole_request(s) if w else s.layout.index_format.request_with(n) for s, w, n in zip(shards, whole, more, strict=True)]
        # Documents go along with what may need no other round; if there is one surely, they are read in that.
        settles = all(self._may_be_sure(shard) for shard in shards)
        alone = [s for s, w, n in zip(shards, whole, more, strict=True) if (w or n) and s.node.metadata_server_time > NEVER]
        along = _Others([*(chunk.read for chunk in known), *(others.reads if others.outcomes is None else ())])
        checked = [*alone, *(chunk.shard for chunk in known if settles)]
        firsts = await self._read_first(
            shards,
            requests,
            with_metadata=checked,
            unsure={chunk.shard.node.path for chunk in known if settles and not chunk.index.is_verified},
            others=along,
        )
        left = _Left(came=[] if settles else known, checked={shard.node.path for shard in checked})
        if self._storage.capabilities.guarded_reads:
            left.checked |= {shard.node.path for shard in shards}
        if settles:
            self._verify(known)
        came = along.outcomes or []
        if others.outcomes is None and others.reads and came:
            others.outcomes = came[len(known) :]
        left.again += self._take(known, came[: len(known)], (), values)
        outdated: list[ShardRead] = []
        for first, is_whole, has_more in zip(firsts, whole, more, strict=True):
            shard = first.shard
            if isinstance(first.outcome, GuardChanged):
                outdated.append(shard)
                continue
            index = first.index
            is_whole = is_whole and _came_whole(first.outcome)
            window = 0 if is_whole else None
            if not is_whole:
                left.firsts.append(first)
            if not isinstance(index, CachedIndex) or not isinstance(first.outcome, Found):
                for i in shard.numbers:
                    values[i] = index if isinstance(index, ShardStoreError) else None
            else:
                places = index.index.places(shard.slots, index.object_nbytes)
                data = first.outcome.buffers[0]
                if has_more:
                    window = self._window(shard, places, index.object_nbytes, len(data))
                if window is None:
                    left.chunks += self._chunk_read(shard, index, places, values)
                else:
                    self._counters.add(chunks_read=cut(shard, index, places, data, window, values))
                    if not is_whole:
                        release(values, shard.numbers, len(data))
            if window is not None and not first.is_sure:
                left.whole.append(first)
        if outdated:  # perhaps only in its attributes: then the new document confirms the layout
            await self._confirm_layouts(outdated)
        left.again += outdated
        return left

    def _may_be_sure(self, shard: ShardRead) -> bool:
        """Return whether it may turn out at once that a shard is what its array's document says."""
        return shard.node.metadata_server_time > NEVER or self._hierarchy.never_checks or self._storage.capabilities.guarded_reads

    def _first_bytes(self, shard: ShardRead, most: int) -> int:
        """Return how much to ask for with an index: more than that of small shards, where it may save a round.

        It saves none where the document has to be looked at behind it in any case. Of arrays in whose shards it never held what was
        wanted it is not tried for ever; nor in batches where it would be more than ``most``, which rounds matter little to.
        """
        limit = self._limits.first_bytes
        if not limit:
            return 0
        decoded = shard.layout.decoded_shard_nbytes
        whole = limit if decoded is None else min(limit, decoded + shard.layout.index_format.nbytes)
        if whole > most or (decoded is not None and decoded > _COMPRESSED * limit):
            return 0
        return limit if self._may_be_sure(shard) and self._useless.get(shard.node.path, 0) < self.useless_attempts else 0

    def _window(self, shard: ShardRead, places: Places, object_nbytes: int, came_nbytes: int) -> int | None:
        """Return where in the object that begins which came with the index, if it holds everything that is wanted; else ``None``."""
        start = 0 if shard.layout.index_format.location == "start" else object_nbytes - came_nbytes
        stop = start + came_nbytes
        offsets, nbytes = places.offsets[places.exists], places.nbytes[places.exists]
        if not len(offsets):
            return None
        holds_all = bool(((offsets >= start) & (offsets + nbytes <= stop)).all())
        if len(self._useless) >= _REMEMBERED_ARRAYS:
            self._useless.clear()
        self._useless[shard.node.path] = 0 if holds_all else self._useless.get(shard.node.path, 0) + 1
        return start if holds_all else None

    async def _second_round(self, left: _Left, values: list[Value]) -> list[ShardRead]:
        """Chunks by indices that have just come; beside them the metadata of arrays whose indices are not verified, of shards of which
        something is missing, and of those that came whole. The shards that have changed.
        """
        by_index = [*left.came, *left.chunks]
        unverified = [chunk.shard for chunk in by_index if not chunk.index.is_verified]
        missing = [one.shard for one in left.firsts if not one.is_sure]  # it may be by an old layout only
        whole = [one.shard for one in left.whole]
        concerned = [*(chunk.shard for chunk in by_index), *(one.shard for one in left.firsts), *whole]
        unsure = {shard.node.path for shard in (*unverified, *missing, *whole)}
        concerned = [shard for shard in concerned if shard.node.path in unsure or shard.node.path not in left.checked]
        outcomes = await self._read_with_metadata(concerned, [chunk.read for chunk in left.chunks], unsure)
        self._verify(by_index)
        return self._take(left.chunks, outcomes, {one.shard.key for one in left.firsts}, values)

    def _verify(self, chunks: Sequence[_ChunkRead]) -> None:
        for chunk in chunks:
            if not chunk.index.is_verified and not self._hierarchy.is_pending(chunk.shard.node.path):
                self._indices.verify(chunk.shard.key, chunk.index)

    def _take(
        self, chunks: Sequence[_ChunkRead], outcomes: Sequence[ReadOutcome], just_asked: Collection[str], values: list[Value]
    ) -> list[ShardRead]:
        """The values of chunks that were read, and those of them whose shards have changed. ``just_asked``: the indices of these were."""
        changed: list[ShardRead] = []
        for chunk, outcome in zip(chunks, outcomes, strict=True):
            shard = chunk.shard
            match outcome:
                case Failed(error):
                    # That others are missing would have been confirmed by this read.
                    for i in chunk.wanted.numbers if shard.key in just_asked else shard.numbers:
                        values[i] = error
                case Absent() | Changed():
                    # Rewritten, or perhaps of another array by now: its layout is checked again beside its new index.
                    self._indices.drop(shard.key)
                    self._hierarchy.distrust(shard.node.path)
                    changed.append(shard)
                case Found():
                    self._counters.add(chunks_read=slice_all(shard, chunk.wanted, chunk.coalesced, outcome.buffers, values))
        return changed

    async def _settle(self, shards: Sequence[ShardRead], values: list[Value]) -> None:
        """One request a shard from its first wanted chunk to its end: chunks and index of whichever version is there."""
        indices = await self.load_indices(shards)
        offsets = [self._first_offset(shard, index) for shard, index in zip(shards, indices, strict=True)]
        moved = await self._settle_from(shards, offsets, values)
        if moved:  # towards the beginning meanwhile: then the whole object
            await self._settle_from(moved, [0] * len(moved), values)

    async def _settle_from(self, shards: Sequence[ShardRead], offsets: Sequence[int], values: list[Value]) -> list[ShardRead]:
        """Read each shard from an offset on; those are left of which more is wanted than lies there."""
        left: list[ShardRead] = []
        reads = [Read(s.key, (s.layout.index_format.request_from(o),)) for s, o in zip(shards, offsets, strict=True)]
        outcomes = await self._read_with_metadata(shards, reads, {s.node.path for s in shards}, after=True)
        for shard, outcome in zip(shards, outcomes, strict=True):
            start = outcome.nbytes - len(outcome.buffers[0]) if isinstance(outcome, Found) else 0
            if isinstance(outcome, Found) and 0 < start > outcome.nbytes - shard.layout.index_format.nbytes:
                left.append(shard)  # not even the whole index
                continue
            index = self.decode_index(shard, outcome)
            if not isinstance(index, CachedIndex) or not isinstance(outcome, Found):
                for i in shard.numbers:
                    values[i] = index if isinstance(index, ShardStoreError) else None
            elif self._first_offset(shard, index) < start:
                left.append(shard)
            else:
                places = index.index.places(shard.slots, index.object_nbytes)
                self._counters.add(chunks_read=cut(shard, index, places, outcome.buffers[0], start, values))
        return left

    def _first_offset(self, shard: ShardRead, index: CachedIndex | ShardStoreError | None) -> int:
        """Return where the wanted chunks begin, or the index where that comes first and nothing is wanted before it."""
        if not isinstance(index, CachedIndex):
            return 0
        places = index.index.places(shard.slots, index.object_nbytes)
        start_of_index = max(0, index.object_nbytes - shard.layout.index_format.nbytes)
        return int(places.offsets[places.exists].min(initial=start_of_index)) if places.exists.any() else start_of_index


def _whole_request(shard: ShardRead) -> ByteRequest:
    """All of a shard; where its chunks have one length, no more than a shard has whose bytes are half dead."""
    index_format = shard.layout.index_format
    if index_format.chunk_nbytes is None:
        return EVERYTHING
    most = index_format.nbytes + 2 * shard.layout.grid.nslots * index_format.chunk_nbytes + _MOST_DEAD_BYTES
    return index_format.request_with(most) if most < 2**62 else EVERYTHING


def _came_whole(outcome: ReadOutcome) -> bool:
    return not isinstance(outcome, Found) or len(outcome.buffers[0]) == outcome.nbytes


def same_shards(now: ArrayLayout, before: ArrayLayout | None) -> bool:
    """Return whether chunks lie where they lay; the array's shape may have changed."""
    return before is not None and (now.chunk_shape, now.key_encoding, now.index_format) == (
        before.chunk_shape,
        before.key_encoding,
        before.index_format,
    )
