"""Reads chunks out of shards: first indices, then chunks. That is two rounds of requests for any batch, and one if the indices are cached.

Index and chunks of a shard come from one generation. If it changes in between, the shard is read again; after some
tries a single request gets both its index and its chunks. If the index was read just now, the array's document is read again in the
round of the chunks, so that the shard is not read by the layout of an array that was there before. Where the shard was stored before the
last check of the document, its layout is already proven.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from shardstore.engine.fresh_layout import StaleLayout
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
from shardstore.errors import Conflict, Corruption, ShardStoreError
from shardstore.format.metadata_v3 import ArrayLayout
from shardstore.format.shard_index import Places
from shardstore.format.store_keys import join, metadata_key
from shardstore.model.chunks import ChunkLocation
from shardstore.model.coalescing import CoalescedReads, ReadLimits, coalesce_all
from shardstore.model.containers import Lru
from shardstore.model.generation import Generation
from shardstore.model.ranges import EVERYTHING, ByteRange, ByteRequest, resolve
from shardstore.storage.base import (
    Absent,
    Changed,
    Failed,
    Found,
    Guard,
    GuardChanged,
    Read,
    ReadOutcome,
    Storage,
    document_read,
    in_its_place,
)
from shardstore.storage.wrappers import Counters

_PINNED_TRIES = 4
_REMEMBERED_ARRAYS = 10_000
_MOST_DEAD_BYTES = 2**20  # of a short shard that is appended to
_COMPRESSED = 2  # shards of so many times the bytes that are read with an index may still come whole: chunks are compressed


@dataclass(frozen=True, slots=True)
class _HeadRequest:
    """The first request of a shard: for its index, for more than that, or for the whole shard."""

    shard: ShardRead
    request: ByteRequest
    is_whole: bool
    has_more: bool

    @property
    def may_suffice(self) -> bool:
        """True if the answer may hold all chunks that are wanted, and prove their layout."""
        return (self.is_whole or self.has_more) and self.shard.node.metadata_server_time > NEVER


@dataclass(frozen=True, slots=True)
class _HeadRead:
    """The answer to the first request of a shard."""

    shard: ShardRead
    outcome: ReadOutcome
    index: CachedIndex | ShardStoreError | None
    is_sure: bool
    """True if the layout of the shard is already proven, and the array's document need not be read again."""


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
class _NextRound:
    """The work that the first round leaves to the second."""

    chunks: list[_ChunkRead] = field(default_factory=list)
    """Chunks to be read by indices that have just come."""
    heads: list[_HeadRead] = field(default_factory=list)
    """The answers about shards that were not read whole."""
    whole: list[_HeadRead] = field(default_factory=list)
    """Shards that were read whole, and whose arrays' documents are still to be checked."""
    came: list[_ChunkRead] = field(default_factory=list)
    """Chunks that were read, and whose arrays' documents are still to be checked."""
    checked: set[str] = field(default_factory=set)
    """Paths of arrays whose documents were checked in this round, unless they were fresh."""
    again: list[ShardRead] = field(default_factory=list)
    """Shards that changed, or whose arrays did: they have to be read again."""


class Reader:
    """Reads the sharded chunks of one store."""

    def __init__(self, storage: Storage, hierarchy: Hierarchy, indices: IndexCache, limits: ReadLimits, counters: Counters) -> None:
        self._storage = storage
        self._hierarchy = hierarchy
        self._indices = indices
        self._limits = limits
        self._counters = counters
        self.first_bytes_per_batch = 2**24
        """The most bytes that are read along with the indices of one batch."""
        self.useless_attempts = 4
        """After so many useless attempts in one array, nothing is read along with its indices any more."""
        self._versions = IndexVersions(storage)
        self._useless: Lru[str, int] = Lru(
            _REMEMBERED_ARRAYS
        )  # by path of array: how many times in a row the bytes that came with an index were of no use

    def shard_read(self, read: Read, target: ChunkTarget) -> Read | None:
        """Return the read of a shard that does the read of a chunk of some version; ``None`` if that is the version of something else."""
        if read.generation is None:
            return None
        cached = self._indices.get(target.shard_key, target.layout.index_format)
        try:
            where = None if cached is None else cached.index.location(target.slot, cached.object_nbytes)
        except Corruption:  # reading the present chunk will raise it
            return None
        if cached is not None and where is not None and cached.version(target.slot, where) == read.generation:
            shard = cached.generation
        elif (version := parse_chunk_version(read.generation)) is not None and version[1] == target.slot:
            shard, _, where = version
        else:
            return None
        inside = [resolve(request, where.nbytes) for request in read.ranges]
        return Read(target.shard_key, tuple(ByteRange(where.offset + r.start, where.offset + r.end) for r in inside), shard)

    # -- indices ---------------------------------------------------------------------------------------------------

    async def load_indices(self, shards: Sequence[ShardRead]) -> list[CachedIndex | ShardStoreError | None]:
        """Return the current index of each shard, by one request a shard; ``None`` if there is no shard.

        Raises:
            StaleLayout: an array turned out to be laid out otherwise.
        """
        indices: list[CachedIndex | ShardStoreError | None] = [None] * len(shards)
        pending = list(range(len(shards)))
        for _ in range(_PINNED_TRIES):
            asked = [shards[i] for i in pending]
            first, _ = await self._read_first(asked, [s.layout.index_format.request() for s in asked], with_metadata=asked)
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
        """Return the verified index of each shard, ``None`` if there is no shard, and whether it was read just now.

        If it was not, a read of its version has to confirm it. The arrays are fresh. Returns ``None`` instead of a list if an index
        cannot be verified.

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
        """Return whether the index is known to be decoded by the layout of its shard, or need not be; from any thread."""
        return index.is_verified or self._hierarchy.never_checks

    async def chunk_place(self, shard: ShardRead, *, must_prove_layout: bool = False) -> tuple[Generation, ChunkLocation] | None:
        """Return the version of a shard, and where the one chunk that is wanted of it lies there; ``None`` if there is no such chunk.

        With ``must_prove_layout``, the array's document is read after the index, unless the index is verified.

        Raises:
            Corruption: the index is damaged, or the chunk's entry in it.
            StaleLayout: the array turned out to be laid out otherwise.
        """
        (index,) = await self.load_indices([shard])
        if isinstance(index, ShardStoreError):
            await self._confirm_layouts([shard])
            raise index
        if must_prove_layout and index is not None and not index.is_verified and not self._hierarchy.never_checks:
            await self._confirm_layouts([shard])
        (slot,) = shard.slots
        where = None if index is None else chunk_location(shard, index, slot)
        if isinstance(where, ShardStoreError):
            raise where
        return None if where is None or index is None else (index.generation, where)

    def decode_index(self, shard: ShardRead, outcome: ReadOutcome) -> CachedIndex | ShardStoreError | None:
        """Return the index that a read of it gave, and remember it."""
        match outcome:
            case Failed(error):
                return error
            case Found(_, _, (data,)):
                return self._remember(shard, generation_of=outcome, data=data)
            case Absent(is_directory=True):
                self._indices.drop(shard.key)
                return in_its_place(shard.key, "a directory")
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
    ) -> list[ReadOutcome]:
        """Read in one round, together with documents that have to be checked.

        These are the documents of arrays that were not checked for a while, or whose paths are in ``unsure``. With ``after``, documents are
        read after the round if any of them is ``unsure``: then they verify what was read in it.
        """
        if self._hierarchy.never_checks:
            unsure = ()
        unsure = {path for path in unsure if not self._hierarchy.is_pending(path)}
        stale = {s.node.path: s.node for s in shards if s.node.path in unsure or not self._fresh(s.node)}
        documents = [document_read(metadata_key(path)) for path in stale]
        if after and not unsure.isdisjoint(stale):
            outcomes = [*await self._storage.read(reads), *await self._storage.read(documents)]
        else:
            outcomes = await self._storage.read([*reads, *documents]) if reads or documents else []
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
        """Read the documents of the shards' arrays again, because the layout may be stale: before damage is reported, for example.

        Raises:
            StaleLayout: it was.
        """
        nodes = {s.node.path: s.node for s in shards}
        outcomes = await self._storage.read([document_read(metadata_key(path)) for path in nodes])
        self._check_layouts(nodes, outcomes)

    # -- chunks ----------------------------------------------------------------------------------------------------

    async def read(self, shards: Sequence[ShardRead], count: int) -> list[Value]:
        """Return the values of ``count`` requests that are spread over ``shards``.

        Raises:
            StaleLayout: an array turned out to be laid out otherwise; nothing was returned from it.
        """
        values: list[Value] = [None] * count
        pending = list(shards)
        tries = 0
        while pending:
            tries += 1
            if tries > _PINNED_TRIES:
                await self._settle(pending, values)
                break
            pending = await self._try(pending, values)
            self._counters.add(retried_reads=len(pending))
        damaged = [s for s in shards if any(isinstance(values[i], Corruption) for i in s.numbers)]
        if damaged:
            await self._confirm_layouts(damaged)
        return values

    async def _try(self, shards: Sequence[ShardRead], values: list[Value]) -> list[ShardRead]:
        """Make one attempt, of one round or two; return the shards that changed during it."""
        known: list[_ChunkRead] = []
        unknown: list[ShardRead] = []
        for shard in shards:
            cached = self._indices.get(shard.key, shard.layout.index_format)
            # That a chunk is missing can only be believed of an index that a read confirms.
            places = None if cached is None or shard.wants_everything else cached.index.places(shard.slots, cached.object_nbytes)
            if cached is None or places is None or not makes_a_request(places, shard):
                unknown.append(shard)
            else:
                known += self._chunk_read(shard, cached, places, values)
        self._counters.add(index_hits=len(shards) - len(unknown), index_misses=len(unknown))
        work = await self._first_round(unknown, known, values)
        if work.chunks or work.heads or work.whole or work.came:
            work.again += await self._second_round(work, values)
        for one in work.whole:
            index = self._indices.get(one.shard.key, one.shard.layout.index_format)
            if index is not None and isinstance(one.index, CachedIndex) and index.generation == one.index.generation:
                self._indices.verify(one.shard.key, index)
        return work.again

    def _chunk_read(self, shard: ShardRead, index: CachedIndex, places: Places, values: list[Value]) -> list[_ChunkRead]:
        """Return the read of the wanted chunks of a shard, in a list; an empty list if none of them exists."""
        wanted = wanted_chunks(shard, index, places, values)
        if not wanted.numbers:
            return []
        if (wanted.ends > wanted.starts).any():
            coalesced = coalesce_all(wanted.starts, wanted.ends, self._limits)
        else:  # versions are asked for, and no bytes: neither are those between the chunks
            start = int(wanted.starts[0])
            coalesced = CoalescedReads.in_one(ByteRange(start, start), wanted.starts, wanted.ends)
        return [_ChunkRead(shard, index, wanted, coalesced)]

    async def _read_first(
        self,
        shards: Sequence[ShardRead],
        requests: Sequence[ByteRequest],
        *,
        with_metadata: Sequence[ShardRead] = (),
        unsure: Collection[str] = (),
        also: Sequence[Read] = (),
    ) -> tuple[list[_HeadRead], list[ReadOutcome]]:
        """Read each shard by one request that holds its index, and ``also`` in the same round; return the answers, and those of ``also``.

        If the storage has guarded reads, they check the array's document as well. Otherwise the documents are read in the same round: those
        of ``with_metadata`` whose arrays were not checked for a while, or are ``unsure``.
        """
        guards = [self._guard(shard) for shard in shards]
        reads = [Read(s.key, (r,), None, guard) for s, r, guard in zip(shards, requests, guards, strict=True)]
        guarded = {s.key for s, guard in zip(shards, guards, strict=True) if guard is not None}
        outcomes = await self._read_with_metadata([s for s in with_metadata if s.key not in guarded], [*reads, *also], unsure)
        outcomes, more = outcomes[: len(reads)], outcomes[len(reads) :]
        for shard, guard, outcome in zip(shards, guards, outcomes, strict=True):
            if guard is not None and isinstance(outcome, Found | Absent):
                self._hierarchy.confirmed(shard.node.path, guard.generation)
        return [self._head(s, outcome, guard) for s, outcome, guard in zip(shards, outcomes, guards, strict=True)], more

    def _head(self, shard: ShardRead, outcome: ReadOutcome, guard: Guard | None) -> _HeadRead:
        index = None if isinstance(outcome, GuardChanged) else self.decode_index(shard, outcome)
        is_sure = guard is not None or self._predates_check(shard, outcome)
        if is_sure and isinstance(index, CachedIndex):
            index = self._indices.verify(shard.key, index)
        return _HeadRead(shard, outcome, index, is_sure)

    def _predates_check(self, shard: ShardRead, outcome: ReadOutcome) -> bool:
        """Return whether the document, as it was known before the read or was seen since, proves the layout of the shard that was read."""
        now = self._hierarchy.known(shard.node.path)
        renewed = (
            now is not None and now.layout is not None and same_shards(now.layout, shard.layout) and now.predates_metadata_check(outcome)
        )
        return renewed or shard.node.predates_metadata_check(outcome)

    def _guard(self, shard: ShardRead) -> Guard | None:
        """Return the guard for the index of ``shard``: the array's document. ``None`` if the storage has no guarded reads."""
        node = self._hierarchy.known(shard.node.path)
        if node is None or not self._storage.capabilities.guarded_reads or self._hierarchy.is_pending(node.path):
            return None
        if node.layout is None or not same_shards(node.layout, shard.layout):
            return None  # another read has just learnt better; this one has to find out
        return Guard(metadata_key(node.path), node.generation)

    async def _first_round(self, shards: list[ShardRead], known: list[_ChunkRead], values: list[Value]) -> _NextRound:
        """Read the indices of ``shards``, some of these shards whole, and the chunks by indices that are ``known``."""
        requests = self._head_requests(shards)
        # Documents are read with what may need no second round. If a second round is certain, they are read in that.
        settles = all(self._may_be_sure(shard) for shard in shards)
        settled = known if settles else []
        checked = [*(one.shard for one in requests if one.may_suffice), *(chunk.shard for chunk in settled)]
        heads, came = await self._read_first(
            shards,
            [one.request for one in requests],
            with_metadata=checked,
            unsure={chunk.shard.node.path for chunk in settled if not chunk.index.is_verified},
            also=[chunk.read for chunk in known],
        )
        work = _NextRound(came=[] if settles else known, checked={shard.node.path for shard in checked})
        if self._storage.capabilities.guarded_reads:
            work.checked |= {shard.node.path for shard in shards}
        self._verify(settled)
        work.again += self._take(known, came, (), values)
        outdated: list[ShardRead] = []
        for request, head in zip(requests, heads, strict=True):
            if isinstance(head.outcome, GuardChanged):
                outdated.append(head.shard)
            else:
                self._take_head(request, head, work, values)
        if outdated:  # perhaps only in its attributes: then the new document confirms the layout
            await self._confirm_layouts(outdated)
        work.again += outdated
        return work

    def _head_requests(self, shards: Sequence[ShardRead]) -> list[_HeadRequest]:
        """Return the first request of each shard whose index is to be read."""
        most = self.first_bytes_per_batch // max(1, sum(not shard.wants_everything for shard in shards))
        requests: list[_HeadRequest] = []
        for shard in shards:
            if shard.wants_everything:
                requests.append(_HeadRequest(shard, _whole_request(shard), is_whole=True, has_more=False))
            else:
                more = self._first_bytes(shard, most)
                request = shard.layout.index_format.request_with(more)
                requests.append(_HeadRequest(shard, request, is_whole=False, has_more=more > 0))
        return requests

    def _take_head(self, request: _HeadRequest, head: _HeadRead, work: _NextRound, values: list[Value]) -> None:
        """Store the values that the first answer about a shard settles; note the rest in ``work``."""
        shard, index = head.shard, head.index
        is_whole = request.is_whole and _came_whole(head.outcome)
        if not is_whole:
            work.heads.append(head)
        if not isinstance(index, CachedIndex) or not isinstance(head.outcome, Found):
            _set_all(shard, index, values)
            is_settled = is_whole
        else:
            places = index.index.places(shard.slots, index.object_nbytes)
            data = head.outcome.buffers[0]
            window = self._window(shard, places, index.object_nbytes, len(data)) if request.has_more else 0 if is_whole else None
            is_settled = window is not None
            if window is None:
                work.chunks += self._chunk_read(shard, index, places, values)
            else:
                self._counters.add(chunks_read=cut(shard, index, places, data, window, values))
                if not is_whole:
                    release(values, shard.numbers, len(data))
        if is_settled and not head.is_sure:
            work.whole.append(head)

    def _may_be_sure(self, shard: ShardRead) -> bool:
        """Return whether the first round may already prove that a shard is of the layout in its array's document."""
        return shard.node.metadata_server_time > NEVER or self._hierarchy.never_checks or self._storage.capabilities.guarded_reads

    def _first_bytes(self, shard: ShardRead, most: int) -> int:
        """Return how many bytes to read with an index: of small shards more than the index, if that may save a round.

        It saves no round if the document has to be checked after it in any case. It is given up for arrays where the bytes never held the
        wanted chunks. Large batches (more than ``most``) do not gain by saving a round.
        """
        limit = self._limits.first_bytes
        if not limit:
            return 0
        decoded = shard.layout.decoded_shard_nbytes
        whole = limit if decoded is None else min(limit, decoded + shard.layout.index_format.nbytes)
        if whole > most or (decoded is not None and decoded > _COMPRESSED * limit):
            return 0
        return limit if self._may_be_sure(shard) and (self._useless.peek(shard.node.path) or 0) < self.useless_attempts else 0

    def _window(self, shard: ShardRead, places: Places, object_nbytes: int, came_nbytes: int) -> int | None:
        """Return the offset of the bytes that came with the index, if they hold all that is wanted; otherwise ``None``."""
        start = 0 if shard.layout.index_format.location == "start" else object_nbytes - came_nbytes
        stop = start + came_nbytes
        offsets, nbytes = places.offsets[places.exists], places.nbytes[places.exists]
        if not len(offsets):
            return None
        holds_all = bool(((offsets >= start) & (offsets + nbytes <= stop)).all())
        self._useless.put(shard.node.path, 0 if holds_all else (self._useless.peek(shard.node.path) or 0) + 1)
        return start if holds_all else None

    async def _second_round(self, work: _NextRound, values: list[Value]) -> list[ShardRead]:
        """Read chunks by new indices, and the documents still to be checked. Return the shards that changed.

        Documents are checked of arrays whose indices are not verified, of shards in which a chunk is missing, and of those that were read
        whole.
        """
        by_index = [*work.came, *work.chunks]
        unverified = [chunk.shard for chunk in by_index if not chunk.index.is_verified]
        missing = [one.shard for one in work.heads if not one.is_sure]  # it may be by an old layout only
        whole = [one.shard for one in work.whole]
        concerned = [*(chunk.shard for chunk in by_index), *(one.shard for one in work.heads), *whole]
        unsure = {shard.node.path for shard in (*unverified, *missing, *whole)}
        concerned = [shard for shard in concerned if shard.node.path in unsure or shard.node.path not in work.checked]
        outcomes = await self._read_with_metadata(concerned, [chunk.read for chunk in work.chunks], unsure)
        self._verify(by_index)
        return self._take(work.chunks, outcomes, {one.shard.key for one in work.heads}, values)

    def _verify(self, chunks: Sequence[_ChunkRead]) -> None:
        for chunk in chunks:
            if not chunk.index.is_verified and not self._hierarchy.is_pending(chunk.shard.node.path):
                self._indices.verify(chunk.shard.key, chunk.index)

    def _take(
        self, chunks: Sequence[_ChunkRead], outcomes: Sequence[ReadOutcome], just_asked: Collection[str], values: list[Value]
    ) -> list[ShardRead]:
        """Store the values of chunks that were read; return the shards that changed. ``just_asked`` are those whose indices are new."""
        changed: list[ShardRead] = []
        for chunk, outcome in zip(chunks, outcomes, strict=True):
            shard = chunk.shard
            match outcome:
                case Failed(error):
                    # This read would also have confirmed that other chunks of the shard are missing.
                    for i in chunk.wanted.numbers if shard.key in just_asked else shard.numbers:
                        values[i] = error
                case Absent() | Changed():
                    # Rewritten, or perhaps of another array by now: its layout is checked again with its new index.
                    self._indices.drop(shard.key)
                    self._hierarchy.distrust(shard.node.path)
                    changed.append(shard)
                case Found():
                    self._counters.add(chunks_read=slice_all(shard, chunk.wanted, chunk.coalesced, outcome.buffers, values))
        return changed

    async def _settle(self, shards: Sequence[ShardRead], values: list[Value]) -> None:
        """Read each shard by one request, from its first wanted chunk to its end: chunks and index of the version that is there."""
        indices = await self.load_indices(shards)
        offsets = [self._first_offset(shard, index) for shard, index in zip(shards, indices, strict=True)]
        moved = await self._settle_from(shards, offsets, values)
        if moved:  # its chunks lie further to the beginning now: then the whole object
            await self._settle_from(moved, [0] * len(moved), values)

    async def _settle_from(self, shards: Sequence[ShardRead], offsets: Sequence[int], values: list[Value]) -> list[ShardRead]:
        """Read each shard from an offset on; return the shards of which something before that is wanted."""
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
                _set_all(shard, index, values)
            elif self._first_offset(shard, index) < start:
                left.append(shard)
            else:
                places = index.index.places(shard.slots, index.object_nbytes)
                self._counters.add(chunks_read=cut(shard, index, places, outcome.buffers[0], start, values))
        return left

    def _first_offset(self, shard: ShardRead, index: CachedIndex | ShardStoreError | None) -> int:
        """Return the offset of the first wanted chunk, or that of the index if the index comes first."""
        if not isinstance(index, CachedIndex):
            return 0
        places = index.index.places(shard.slots, index.object_nbytes)
        start_of_index = max(0, index.object_nbytes - shard.layout.index_format.nbytes)
        return int(places.offsets[places.exists].min(initial=start_of_index)) if places.exists.any() else start_of_index


def _set_all(shard: ShardRead, index: CachedIndex | ShardStoreError | None, values: list[Value]) -> None:
    """Store one value for all chunks that are wanted of a shard whose bytes are not there: the error, or that there are none."""
    for i in shard.numbers:
        values[i] = index if isinstance(index, ShardStoreError) else None


def _whole_request(shard: ShardRead) -> ByteRequest:
    """Return the request for a whole shard. If all chunks have one length, it asks for twice the bytes of a full shard at most."""
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
