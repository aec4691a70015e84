"""Reads chunks out of shards: first indices, then chunks. That is two rounds of requests for any batch, and one if the indices are cached.

Index and chunks of a shard come from one generation. If it changes in between, the shard is read again; after some
tries a single request gets both its index and its chunks. No shard is read by the layout of an array that was there before: see
``index_cache``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from shardstore.engine.index_cache import (
    CachedIndex,
    IndexCache,
    IndexVersions,
    LayoutProof,
    StaleLayout,
    parse_chunk_version,
    with_fresh_layout,
)
from shardstore.engine.metadata.hierarchy import NEVER, ChunkTarget, Hierarchy, Node, shard_key
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
from shardstore.errors import Conflict, Corruption, InvalidInput, NotFound, ShardStoreError
from shardstore.format.metadata_v3 import ArrayLayout
from shardstore.format.shard_index import Places
from shardstore.model.chunks import ChunkCoords, ChunkLocation
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
    in_its_place,
)
from shardstore.storage.wrappers import Counters
from shardstore.tasks import LONG_AGO, Answered, moment

_PINNED_TRIES = 4
_NO_BYTES = memoryview(b"")
_PREFETCHED_AT_ONCE = 256
_REMEMBERED_ARRAYS = 10_000
_MOST_DEAD_BYTES = 2**20  # of a short shard that is appended to
_COMPRESSED = 2  # shards of so many times the bytes that are read with an index may still come whole: chunks are compressed


@dataclass(slots=True)
class _HeadRead:
    """The first read of a shard: of its index, of more than that, or of the whole shard."""

    shard: ShardRead
    request: ByteRequest
    guard: Guard | None
    is_whole: bool = False
    has_more: bool = False
    since: int | None = None
    """The moment after which a read of the same bytes has to begin that this one may join."""
    index: CachedIndex | ShardStoreError | None = None
    """The index that it gave."""
    is_unproven: bool = False
    """True once it was read without a proof of its layout."""
    ended: int = LONG_AGO
    """The moment at which it was read."""

    @property
    def read(self) -> Read:
        return Read(self.shard.key, (self.request,), None, self.guard)

    @property
    def known_since(self) -> int:
        return self.index.known_since if isinstance(self.index, CachedIndex) else self.ended

    @property
    def may_suffice(self) -> bool:
        """True if the answer may hold all chunks that are wanted, and prove their layout by the time when it was stored."""
        return (self.is_whole or self.has_more) and self.guard is None and self.shard.node.metadata_server_time > NEVER


@dataclass(frozen=True, slots=True)
class _ChunkRead:
    """A read of chunks of one shard by its index."""

    shard: ShardRead
    index: CachedIndex
    wanted: WantedChunks
    coalesced: CoalescedReads
    confirms: bool
    """True if the index was not read for this batch: then this read confirms that other chunks are missing."""

    @property
    def read(self) -> Read:
        return Read(self.shard.key, self.coalesced.requests, self.index.generation)

    @property
    def is_unproven(self) -> bool:
        return not self.index.is_verified

    @property
    def known_since(self) -> int:
        return self.index.known_since


@dataclass(frozen=True, slots=True)
class LoadedHead:
    """The index of a shard, ``None`` if there is no shard, and the bytes that came with it."""

    index: CachedIndex | ShardStoreError | None
    data: memoryview = _NO_BYTES
    is_current: bool = True
    """False if a read that began earlier gave it: then a read of this version has to confirm it."""


@dataclass(eq=False, repr=False)
class Reader:
    """Reads the sharded chunks of one store."""

    _storage: Storage
    _hierarchy: Hierarchy
    _indices: IndexCache
    _proof: LayoutProof
    limits: ReadLimits
    _counters: Counters
    first_bytes_per_batch: int = 2**24
    """The most bytes that are read along with the indices of one batch."""
    useless_attempts: int = 4
    """After so many useless attempts in one array, nothing is read along with its indices any more."""
    _useless: Lru[str, int] = field(default_factory=lambda: Lru(_REMEMBERED_ARRAYS), init=False)
    """By path of array: how many times in a row the bytes that came with an index were of no use."""

    def __post_init__(self) -> None:
        self._versions = IndexVersions(self._storage)

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
        return [head.index for head in await self.load_heads(shards)]

    async def load_heads(self, shards: Sequence[ShardRead], nbytes: int = 0, *, joins: bool = False) -> list[LoadedHead]:
        """Return what ``load_indices`` does, each with the bytes that the request brought: ``nbytes`` of the shard, if it has as many.

        With ``joins``, an index may be that of a read that another caller has begun before.

        Raises:
            StaleLayout: an array turned out to be laid out otherwise.
        """
        loaded = [LoadedHead(None)] * len(shards)
        pending = list(range(len(shards)))
        asked = moment()
        since = LONG_AGO if joins else asked
        for _ in range(_PINNED_TRIES):
            heads = [self._head_read(shards[i], shards[i].layout.index_format.request_with(nbytes), since) for i in pending]
            arrays = [head.shard.node for head in heads if head.guard is None]
            answers = await self._proof.read([head.read for head in heads], arrays, since=[head.since for head in heads])
            outdated: list[int] = []
            older: list[int] = []
            for i, head, (outcome, began, _) in zip(pending, heads, answers, strict=True):
                if not self._take_index(head, outcome):
                    outdated.append(i)
                elif began < asked and not isinstance(head.index, CachedIndex):
                    older.append(i)
                data = outcome.buffers[0] if isinstance(outcome, Found) else _NO_BYTES
                loaded[i] = LoadedHead(head.index, data, began > asked)
            pending, since = outdated + older, asked
            if not pending:
                return loaded
            if outdated:
                await self._proof.confirm(shards[i].node for i in outdated)
        for i in pending:
            loaded[i] = LoadedHead(Conflict(f"the metadata of array {shards[i].node.path!r} kept changing; try again"))
        return loaded

    def small_nbytes(self, layout: ArrayLayout) -> int:
        """Return how many bytes a commit reads with the index, to have all of a small shard, its dead bytes too, by one request.

        Zero: the shard may be longer, or the storage copies what is kept, or no condition would notice that the shard has changed since.
        """
        decoded, capabilities = layout.decoded_shard_nbytes, self._storage.capabilities
        if decoded is None or not capabilities.atomic_commits:
            return 0
        whole = decoded + layout.index_format.nbytes
        is_copied = capabilities.compose and whole >= capabilities.copy_pays_nbytes
        return 0 if is_copied or whole > _COMPRESSED * self.limits.gap_bytes else whole + _MOST_DEAD_BYTES

    async def prefetch(self, path: str, region: Sequence[slice] | None, most_bytes: int) -> int:
        """Load the indices of the shards that hold ``region`` of the array at ``path``, as many as fit into ``most_bytes``: then reading
        a chunk takes one round of requests instead of two.

        ``region`` is in elements, a slice for each dimension; ``None``: the whole array. Returns how many shards there are of those that
        were asked for.

        Raises:
            NotFound: there is no sharded array at ``path``.
            InvalidInput: ``region`` is none of the array's.
            Corruption: an index is damaged.
        """

        async def attempt() -> int:
            node = await self._hierarchy.node(path)
            if node is None or node.layout is None:
                raise NotFound(
                    f"there is no sharded array at {path!r}" if node is None else f"{path!r} is no sharded array: it has no indices"
                )
            shards = islice(_shards_of(node, node.layout, region), most_bytes // max(1, node.layout.grid.nslots * 16))
            found = 0
            while some := list(islice(shards, _PREFETCHED_AT_ONCE)):
                for index in await self.load_indices(some):
                    if isinstance(index, ShardStoreError):
                        raise index
                    found += index is not None
            return found

        return await with_fresh_layout(attempt, f"the metadata of array {path!r} kept changing; try again")

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
            loaded = await self.load_heads(unknown, joins=True) if unknown else []
            await self._proof.read([], [shard.node for shard in shards])
        except StaleLayout:
            return None
        if any(isinstance(head.index, CachedIndex) and not self.is_sure(head.index) for head in loaded):
            return None
        new = ((head.index, head.is_current) for head in loaded)
        return [next(new) if index is None else (index, False) for index in remembered]

    def is_sure(self, index: CachedIndex) -> bool:
        """Return whether the index is known to be decoded by the layout of its shard, or need not be; from any thread."""
        return self._proof.is_sure(index)

    async def chunk_place(self, shard: ShardRead, *, must_prove_layout: bool = False) -> tuple[Generation, ChunkLocation] | None:
        """Return the version of a shard, and where the one chunk that is wanted of it lies there; ``None`` if there is no such chunk.

        With ``must_prove_layout``, the array's document is read after the index, unless the index has a proof.

        Raises:
            Corruption: the index is damaged, or the chunk's entry in it.
            StaleLayout: the array turned out to be laid out otherwise.
        """
        (index,) = await self.load_indices([shard])
        if isinstance(index, ShardStoreError):
            await self._proof.confirm([shard.node])
            raise index
        if must_prove_layout and index is not None and not self.is_sure(index):
            await self._proof.confirm([shard.node])
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

    # -- chunks ----------------------------------------------------------------------------------------------------

    async def read(self, shards: Sequence[ShardRead], count: int) -> list[Value]:
        """Return the values of ``count`` requests that are spread over ``shards``.

        Raises:
            StaleLayout: an array turned out to be laid out otherwise; nothing was returned from it.
        """
        values: list[Value] = [None] * count
        pending = list(shards)
        tries = 0
        asked, since = moment(), LONG_AGO
        while pending:
            tries += 1
            if tries > _PINNED_TRIES:
                await self._settle(pending, values)
                break
            pending, older = await self._try(pending, values, asked, since)
            self._counters.add(retried_reads=len(pending))
            since = moment() if pending else asked
            pending += older
        damaged = [s for s in shards if any(isinstance(values[i], Corruption) for i in s.numbers)]
        if damaged:
            await self._proof.confirm(shard.node for shard in damaged)
        return values

    async def _try(
        self, shards: Sequence[ShardRead], values: list[Value], asked: int, since: int
    ) -> tuple[list[ShardRead], list[ShardRead]]:
        """Make one attempt, of one round or two; return the shards that changed during it, or whose arrays did, and those that have to be
        read again since what a read gave that is older than ``asked`` cannot be confirmed. Indices may come from reads after ``since``.
        """
        heads, known = self._first_reads(shards, values, asked, since)
        # If documents have to be read after the indices in any case, that serves for all that was read before: then these wait for it.
        waits = not all(self._proof.may_come_with_read(head.shard.node) for head in heads)
        first: list[_HeadRead | _ChunkRead] = [head for head in heads if head.may_suffice]
        if not waits:
            first += known
        answers = await self._round([*heads, *known], first)
        changed = self._take(known, answers[len(heads) :], values)
        checked = {one.shard.node.path for one in (*first, *(head for head in heads if head.guard is not None))}
        second: list[_HeadRead | _ChunkRead] = [*known] if waits else []
        chunks: list[_ChunkRead] = []
        outdated: list[ShardRead] = []
        older: list[ShardRead] = []
        for head, (outcome, began, ended) in zip(heads, answers[: len(heads)], strict=True):
            is_old, head.ended = began < asked, ended
            if not self._take_index(head, outcome):
                outdated.append(head.shard)
            elif is_old and not _can_be_confirmed(head):
                older.append(head.shard)
            else:
                second.append(head)
                chunks += self._take_head(head, outcome, values, confirms=is_old)
        if outdated:  # perhaps only in its attributes: then the new document confirms the layout
            await self._proof.confirm(shard.node for shard in outdated)
        answers = await self._round(chunks, second, checked)
        return changed + outdated + self._take(chunks, answers, values), older

    def _first_reads(
        self, shards: Sequence[ShardRead], values: list[Value], asked: int, since: int
    ) -> tuple[list[_HeadRead], list[_ChunkRead]]:
        """Return the reads of the first round: of shards whose indices have to be read, and of chunks by indices that are known.

        Reads of nothing but an index may join those that began after ``since``, all other reads those after ``asked``.
        """
        known: list[_ChunkRead] = []
        unknown: list[ShardRead] = []
        for shard in shards:
            cached = self._indices.get(shard.key, shard.layout.index_format)
            # That a chunk is missing can only be believed of an index that a read confirms.
            places = None if cached is None or shard.wants_everything else cached.index.places(shard.slots, cached.object_nbytes)
            if cached is None or places is None or not makes_a_request(places, shard):
                unknown.append(shard)
            else:
                known += self._chunk_read(shard, cached, places, values, confirms=True)
        self._counters.add(index_hits=len(shards) - len(unknown), index_misses=len(unknown))
        most = self.first_bytes_per_batch // max(1, sum(not shard.wants_everything for shard in unknown))
        heads: list[_HeadRead] = []
        for shard in unknown:
            if shard.wants_everything:
                heads.append(self._head_read(shard, _whole_request(shard), None, is_whole=True))
            else:
                more = self._first_bytes(shard, most)
                request = shard.layout.index_format.request_with(more)
                heads.append(self._head_read(shard, request, max(asked, since) if more else since, has_more=more > 0))
        return heads, known

    def _head_read(
        self, shard: ShardRead, request: ByteRequest, since: int | None, *, is_whole: bool = False, has_more: bool = False
    ) -> _HeadRead:
        return _HeadRead(shard, request, self._proof.guard(shard.node), is_whole, has_more, since)

    async def _round(
        self, reads: Sequence[_HeadRead | _ChunkRead], arrays_of: Sequence[_HeadRead | _ChunkRead], checked: Collection[str] = ()
    ) -> list[Answered[ReadOutcome]]:
        """Carry out reads, and in the same round read the documents that prove what was read before of ``arrays_of``, or that are not
        fresh; not those at the paths ``checked``, which an earlier round of the batch has looked at, unless they have to prove something.
        """
        unproven: dict[str, int] = {}
        for one in arrays_of:
            if one.is_unproven:
                unproven[one.shard.node.path] = max(one.known_since, unproven.get(one.shard.node.path, LONG_AGO))
        arrays = [one.shard.node for one in arrays_of if one.shard.node.path in unproven or one.shard.node.path not in checked]
        since = [one.since if isinstance(one, _HeadRead) else None for one in reads]
        answers = await self._proof.read([one.read for one in reads], arrays, unproven, since)
        for one in arrays_of:
            if one.is_unproven and isinstance(one.index, CachedIndex):
                self._proof.verify(one.shard.node, one.shard.key, one.index)
        return answers

    def _chunk_read(self, shard: ShardRead, index: CachedIndex, places: Places, values: list[Value], *, confirms: bool) -> list[_ChunkRead]:
        """Return the read of the wanted chunks of a shard, in a list; an empty list if none of them exists."""
        wanted = wanted_chunks(shard, index, places, values)
        if not wanted.numbers:
            return []
        if (wanted.ends > wanted.starts).any():
            coalesced = coalesce_all(wanted.starts, wanted.ends, self.limits)
        else:  # versions are asked for, and no bytes: neither are those between the chunks
            start = int(wanted.starts[0])
            coalesced = CoalescedReads.in_one(ByteRange(start, start), wanted.starts, wanted.ends)
        return [_ChunkRead(shard, index, wanted, coalesced, confirms)]

    def _take_index(self, head: _HeadRead, outcome: ReadOutcome) -> bool:
        """Note the index that came, and whether it has a proof. Return ``False`` if the guard says that the array's document changed."""
        if isinstance(outcome, GuardChanged):
            return False
        shard = head.shard
        if head.guard is not None and isinstance(outcome, Found | Absent):
            self._hierarchy.confirmed(shard.node.path, head.guard.generation)
        head.index = self.decode_index(shard, outcome)
        head.is_unproven = not self._proof.came_with_read(shard.node, head.guard, outcome)
        if not head.is_unproven and isinstance(head.index, CachedIndex):
            head.index = self._proof.verify(shard.node, shard.key, head.index)
        return True

    def _take_head(self, head: _HeadRead, outcome: ReadOutcome, values: list[Value], *, confirms: bool) -> list[_ChunkRead]:
        """Store the values that the first answer about a shard settles; return the read of the chunks that did not come with it."""
        shard, index = head.shard, head.index
        if not isinstance(index, CachedIndex) or not isinstance(outcome, Found):
            for i in shard.numbers:
                values[i] = index if isinstance(index, ShardStoreError) else None
            return []
        places = index.index.places(shard.slots, index.object_nbytes)
        data = outcome.buffers[0]
        came_whole = head.is_whole and len(data) == outcome.nbytes
        window = self._window(shard, places, index.object_nbytes, len(data)) if head.has_more else 0 if came_whole else None
        if window is None:
            return self._chunk_read(shard, index, places, values, confirms=confirms)
        self._counters.add(chunks_read=cut(shard, index, places, data, window, values))
        if not came_whole:
            release(values, shard.numbers, len(data))
        return []

    def _first_bytes(self, shard: ShardRead, most: int) -> int:
        """Return how many bytes to read with an index: of small shards more than the index, if that may save a round.

        It saves no round if the document has to be read after it in any case. It is given up for arrays where the bytes never held the
        wanted chunks. Large batches (more than ``most``) do not gain by saving a round.
        """
        limit = self.limits.first_bytes
        if not limit:
            return 0
        decoded = shard.layout.decoded_shard_nbytes
        whole = limit if decoded is None else min(limit, decoded + shard.layout.index_format.nbytes)
        if whole > most or (decoded is not None and decoded > _COMPRESSED * limit):
            return 0
        return (
            limit
            if self._proof.may_come_with_read(shard.node) and (self._useless.peek(shard.node.path) or 0) < self.useless_attempts
            else 0
        )

    def _window(self, shard: ShardRead, places: Places, object_nbytes: int, came_nbytes: int) -> int | None:
        """Return the offset of the bytes that came with the index, if they hold all that is wanted; otherwise ``None``."""
        start = shard.layout.index_format.start_of(came_nbytes, object_nbytes)
        stop = start + came_nbytes
        offsets, nbytes = places.offsets[places.exists], places.nbytes[places.exists]
        if not len(offsets):
            return None
        holds_all = bool(((offsets >= start) & (offsets + nbytes <= stop)).all())
        self._useless.put(shard.node.path, 0 if holds_all else (self._useless.peek(shard.node.path) or 0) + 1)
        return start if holds_all else None

    def _take(self, chunks: Sequence[_ChunkRead], answers: Sequence[Answered[ReadOutcome]], values: list[Value]) -> list[ShardRead]:
        """Store the values of chunks that were read; return the shards that changed."""
        changed: list[ShardRead] = []
        for chunk, outcome in zip(chunks, (read.answer for read in answers), strict=True):
            shard = chunk.shard
            match outcome:
                case Failed(error):
                    for i in shard.numbers if chunk.confirms else chunk.wanted.numbers:
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
        outcomes = await self._storage.read(reads)
        await self._proof.read([], [s.node for s in shards], {s.node.path: moment() for s in shards})
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
        """Return the offset of the first wanted chunk, or that of the index if the index comes first."""
        if not isinstance(index, CachedIndex):
            return 0
        places = index.index.places(shard.slots, index.object_nbytes)
        start_of_index = max(0, index.object_nbytes - shard.layout.index_format.nbytes)
        return int(places.offsets[places.exists].min(initial=start_of_index)) if places.exists.any() else start_of_index


def _can_be_confirmed(head: _HeadRead) -> bool:
    """Return whether a read of what is wanted, by the index that came, shows that the index still holds."""
    index, shard = head.index, head.shard
    return isinstance(index, CachedIndex) and makes_a_request(index.index.places(shard.slots, index.object_nbytes), shard)


def _whole_request(shard: ShardRead) -> ByteRequest:
    """Return the request for a whole shard. If all chunks have one length, it asks for twice the bytes of a full shard at most."""
    index_format = shard.layout.index_format
    if index_format.chunk_nbytes is None:
        return EVERYTHING
    most = index_format.nbytes + 2 * shard.layout.grid.nslots * index_format.chunk_nbytes + _MOST_DEAD_BYTES
    return index_format.request_with(most) if most < 2**62 else EVERYTHING


def _shards_of(node: Node, layout: ArrayLayout, region: Sequence[slice] | None) -> Iterator[ShardRead]:
    if region is None:
        region = [slice(None)] * layout.ndim
    parts: Sequence[object] = region
    if len(parts) != layout.ndim or not all(isinstance(part, slice) and part.step in (None, 1) for part in parts):
        raise InvalidInput(f"region {region!r} is not a slice without step for each of the {layout.ndim} dimensions of array {node.path!r}")
    axes: list[range] = []
    for part, extent, side in zip(region, layout.shape, layout.shard_shape, strict=True):
        start, stop, _ = part.indices(extent)
        axes.append(range(start // side, -(-stop // side)) if stop > start else range(0))
    for coords in _positions(axes):
        yield ShardRead(node, layout, coords, shard_key(node.path, layout, coords))


def _positions(axes: Sequence[range]) -> Iterator[ChunkCoords]:
    """Yield what ``itertools.product`` would, which first makes tuples of the axes, however long they are."""
    if not axes:
        yield ()
        return
    for first in axes[0]:
        for rest in _positions(axes[1:]):
            yield (first, *rest)
