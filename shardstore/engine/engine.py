"""The engine of one store: every face calls this, on fsspec's IO loop.

All operations take presented keys and many of them at once. Single gets and updates that arrive in the same tick of the
loop are collected into one batch.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from shardstore.engine.appending.documents import GrowingDocuments
from shardstore.engine.appending.line import Line
from shardstore.engine.contention import Contention, Sleep
from shardstore.engine.index_cache import IndexCache, LayoutProof
from shardstore.engine.keyed_store import KeyedStore, weakly
from shardstore.engine.metadata.documents import Documents, stale_consolidated
from shardstore.engine.metadata.hierarchy import ChunkTarget, Hierarchy, LocatedChunks, same_shards
from shardstore.engine.metadata.levels import LevelledDraft, LevelledStorage
from shardstore.engine.metadata.translation import OwnShards, StoredDocument, WrittenV2Arrays
from shardstore.engine.moving import NodeAccess, copy_nodes, move_between
from shardstore.engine.options import V3, EngineOptions
from shardstore.engine.own_shards import ClientView, client_view
from shardstore.engine.pinned import OpenValue
from shardstore.engine.reading.listing import ListedBatch, ListedDir, Listing
from shardstore.engine.reading.read_plan import ChunkSource, Planner, ReadPlan
from shardstore.engine.reading.reader import Reader
from shardstore.engine.reading.shard_chunks import Value
from shardstore.engine.transaction_view import Overlay, OverlayCommit, StoredState, TransactionView
from shardstore.engine.values import KeyRequest, KeyUpdate, Values
from shardstore.engine.version_reader import VersionReader
from shardstore.engine.writing.committer import Committer, Shard
from shardstore.engine.writing.contents import NotMade, ShardContents
from shardstore.engine.writing.erasing import Erasing
from shardstore.engine.writing.writer import Writer
from shardstore.errors import InvalidInput, ShardStoreError, Unsupported
from shardstore.format.json_text import JsonObject
from shardstore.format.metadata_v3 import ArrayLayout
from shardstore.format.store_keys import (
    check_directory,
    check_erased,
    check_key,
    check_keys,
    check_prefix,
    metadata_key,
    metadata_path,
)
from shardstore.model.chunks import ChunkCoords, RemovedChunks
from shardstore.model.ranges import EVERYTHING, ByteRequest, BytesLike, cut
from shardstore.plan.strategies import strategy_of
from shardstore.storage.abilities import BlockingReads, DocumentsFirst, WritesAsMade
from shardstore.storage.base import Read, ReadOutcome, Storage
from shardstore.storage.wrappers import CheckedStorage, Counters, SettledStorage
from shardstore.stored.detect import DetectedStorage
from shardstore.tasks import uninterrupted

logger = logging.getLogger(__name__)


def _flavoured(storage: Storage, options: EngineOptions) -> Storage:
    """Return the storage with the keys and documents of final Zarr v3, whatever format is stored there."""
    if options.stored not in ("auto", "transformer"):
        return storage
    shows_draft = options.present.shows_draft
    return DetectedStorage(
        storage, options.lost_transformers, draft=shows_draft or options.stored == "transformer", with_stored=shows_draft
    )


def _lacking(storage: Storage, options: EngineOptions) -> str | None:
    """Return a message if the strategy needs something that the storage cannot do, else ``None``.

    Only the capabilities that the strategy needs are asked for: a mount may not be there yet.
    """
    strategy = strategy_of(options.strategy)
    if not strategy.needs:
        return None
    capabilities = storage.capabilities
    lacking = [words for name, words in strategy.needs.items() if not getattr(capabilities, name)]
    if not lacking:
        return None
    needs = f"cannot {' or '.join(lacking)}, which strategy={strategy.name!r} needs"
    return f"{storage.url} ({storage.kind}) {needs}: use strategy='rewrite' there"


def _error(outcome: BaseException | None) -> Exception | None:
    if outcome is None or isinstance(outcome, Exception):
        return outcome
    raise outcome


@dataclass(frozen=True, slots=True)
class _Above:
    """Makes an engine upon a storage, which takes one level of sharding off, and returns it as the storage below ``engine``."""

    options: EngineOptions
    below: Callable[[Engine], Storage]
    engine: weakref.ref[Engine]

    def __call__(self, storage: Storage) -> Storage:
        options = replace(
            self.options,
            chunks_per_shard=None,  # arrays are created by the engine above
            stored="codec",
            lost_transformers={},
            present=V3,
            present_level=1,
            strategy="rewrite" if _lacking(storage, self.options) else self.options.strategy,
        )
        made = Engine(storage, options)
        above = self.engine()
        assert above is not None  # it is at work
        above.hierarchy.bring(made.hierarchy)
        return self.below(made)


class Engine(KeyedStore):
    """One store. Not safe to use from several event loops: the faces bring every call to the IO loop.

    ``storage`` holds what is stored. If shards hold shards, the engine takes one level of sharding off; or as many as the options say, if
    it is given ``below``, which returns an engine as the storage below another engine.
    """

    def __init__(
        self,
        storage: Storage,
        options: EngineOptions | None = None,
        *,
        below: Callable[[Engine], Storage] | None = None,
        clock: Callable[[], float] | None = None,
        sleep: Sleep = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        super().__init__()
        clock = clock or time.monotonic
        self.options = options or EngineOptions()
        if (lacking := _lacking(storage, self.options)) is not None:
            raise Unsupported(lacking)
        self.counters = Counters()
        self.storage = _flavoured(CheckedStorage(storage, sleep, self.counters), self.options)

        contention = Contention(self.options.commit_attempts, self.counters, clock, sleep, rng)
        shown, deep_arrays = self._without_levels(below)
        self._shown = shown
        self.hierarchy = Hierarchy(shown, self.options.metadata_ttl, clock, deep_arrays)
        self._indices = IndexCache(self.options.index_cache_bytes)
        limits = self.options.read_limits(storage.kind)
        self._contention = contention
        self._documents = Documents(shown, self.hierarchy, self.options, self._indices.drop_prefix, contention)
        proof = LayoutProof(shown, self.hierarchy, self._indices)
        self._reader = Reader(shown, self.hierarchy, self._indices, proof, limits, self.counters)
        made = storage.ability(WritesAsMade)
        self._committer = Committer(
            shown, self.hierarchy, self._indices, proof, self._reader, self.options, self.counters, contention, made
        )
        self._writer = Writer(self._committer, self.options.commit_concurrency)
        self._v2_arrays = WrittenV2Arrays(self.storage, self.options)
        self._values = Values(shown, self.hierarchy, self._documents, proof, self._reader, self._writer, contention, self._v2_arrays)
        self._planner: Planner | None = None
        if (direct := storage.ability(BlockingReads)) is not None:
            self._planner = Planner(direct, self.hierarchy, self._indices, self._reader, limits, self.counters)
        self._chunks = storage.ability(ChunkSource)
        self._versions = VersionReader(shown, self._values, self._reader)
        self._listing = Listing(shown, self.hierarchy, self._reader)
        self._erasing = Erasing(shown, self.hierarchy, self._indices, self._listing, self._reader, self._writer)
        self._stored = StoredState(shown, self.hierarchy, self._reader, self._values, self._versions, self._listing, self._v2_arrays)
        self._transaction: TransactionView | None = None
        self._committing: TransactionView | None = None
        self._commit_ended = asyncio.Event()
        self._commit_ended.set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.storage.url!r})"

    def _without_levels(self, below: Callable[[Engine], Storage] | None) -> tuple[Storage, Mapping[str, object]]:
        """Return the storage with all levels of sharding taken off but one, and the arrays of which some were taken off."""
        level = self.options.present_level
        if below is None or self.options.present.shows_draft or (level == 1 and not isinstance(self.storage, DetectedStorage)):
            return self.storage, {}
        levelled = LevelledStorage(self.storage, level, _Above(self.options, below, weakref.ref(self)))
        if level == 1 and isinstance(self.storage, DetectedStorage) and not self.storage.is_draft:
            return LevelledDraft(self.storage, levelled), levelled.deep_arrays
        return levelled, levelled.deep_arrays

    # -- values ----------------------------------------------------------------------------------------------------

    @property
    def _is_draft(self) -> bool:
        return isinstance(self.storage, DetectedStorage) and self.storage.is_draft

    @property
    def plans_reads(self) -> bool:
        if self._chunks is not None:
            return self.held is None and self._chunks.plans_reads()
        return (planner := self.planner) is not None and planner.is_of_use

    @property
    def planner(self) -> Planner | None:
        """The planner of reads that any thread carries out; ``None`` if there is none now, as while a transaction is open."""
        return self._planner if self._chunks is None and self.held is None and not self._is_draft else None

    @property
    def keeps_chunks(self) -> bool:
        """True if the storage finds many chunks at once itself, wherever they lie."""
        return self._chunks is not None

    def known_plan(self, keys: Sequence[str]) -> ReadPlan | LocatedChunks | None:
        return None if (planner := self.planner) is None or not planner.is_of_use else planner.known(keys)

    def short_value(self, key: str, request: ByteRequest) -> memoryview | None:
        if (planner := self.planner) is None:
            return None
        if (path := metadata_path(key)) is None:
            return planner.short_value(key, request)
        check_key(key)
        document = self._short_document(planner, path)
        return None if document is None else cut(memoryview(document.presented()), request)

    def _short_document(self, planner: Planner, path: str) -> StoredDocument | None:
        """Return the document of a node as it is now, read in the calling thread; ``None`` if the loop has to be asked for it."""
        shown = self._shown.found if isinstance(self._shown, SettledStorage) else self._shown
        if not isinstance(shown, CheckedStorage) or (before := self.hierarchy.glance(path)) is None:
            return None  # what is stored has to be found out first, or is not what is shown
        found = planner.document(path)
        return None if found is None else self._documents.seen(path, found, before)

    async def plan_read(self, keys: Sequence[str], located: LocatedChunks | None = None) -> ReadPlan | None:
        if not self.plans_reads:
            return None
        check_keys(keys)
        if self._chunks is not None:
            return await self._chunks.plan_read(keys, self.counters)
        return None if (planner := self.planner) is None else await planner.find(keys, located)

    async def get_many(self, requests: Sequence[KeyRequest], located: LocatedChunks | None = None) -> list[Value]:
        """Return values as ``KeyedStore.get_many`` does. ``located`` are their chunks, if ``locate_chunks`` has found them."""
        if (view := self._view) is not None:
            return await view.get_many(requests)
        if self._chunks is not None and (chunks := await self._get_chunks(self._chunks, requests)) is not None:
            return chunks
        return await self._values.get_many(requests, located)

    async def _get_chunks(self, chunks: ChunkSource, requests: Sequence[KeyRequest]) -> list[Value] | None:
        """Return whole chunks of one array; ``None`` if something else is wanted."""
        if len(requests) < 2 or any(request is not EVERYTHING for _, request in requests):
            return None
        keys = [key for key, _ in requests]
        check_keys(keys)
        return await chunks.chunk_values(keys)

    def keep_versions(self) -> None:
        """Keep, from now on, the versions of chunks that commits of this process do not change, because a caller asks for them."""
        self._committer.keeps_versions = True

    async def read_versions(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        return await (self._versions.read(reads) if (view := self._view) is None else view.read_versions(reads))

    @property
    def _view(self) -> TransactionView | None:
        """Return the view of an open transaction, or of one until its commit has ended."""
        return self._transaction or self._committing

    @property
    def held(self) -> Overlay | None:
        """Return what a transaction holds back, until its commit has ended."""
        return None if (view := self._view) is None else view.overlay

    async def update_many(self, updates: Sequence[KeyUpdate]) -> list[Exception | None]:
        """Carry out updates as ``KeyedStore.update_many`` does. They wait while a transaction is being committed, and are no part of it."""
        return await uninterrupted(self._update_many(updates))

    async def _update_many(self, updates: Sequence[KeyUpdate]) -> list[Exception | None]:
        await self._commit_ended.wait()
        return await (self._transaction or self._values).update_many(updates)

    async def replace_shards(
        self, path: str, layout: ArrayLayout, contents: Mapping[ChunkCoords, ShardContents]
    ) -> dict[ChunkCoords, Exception | None]:
        return await uninterrupted(self._replace_shards(path, layout, contents))

    async def _replace_shards(
        self, path: str, layout: ArrayLayout, contents: Mapping[ChunkCoords, ShardContents]
    ) -> dict[ChunkCoords, Exception | None]:
        await self._commit_ended.wait()
        if self.planner is None:
            return {}
        try:
            node = self.hierarchy.known(path)
            if node is None or not self.hierarchy.is_fresh(node):
                node = (await self.hierarchy.load([path]))[path]
        except ShardStoreError:
            return {}  # the usual way meets it too
        now = self.hierarchy.stored_layout(node)
        if node is None or now is None or not same_shards(now, layout):
            return {}
        commits = [self._writer.replace(Shard(node, now, coords), mine) for coords, mine in contents.items()]
        outcomes = zip(contents, await asyncio.gather(*commits, return_exceptions=True), strict=True)
        return {coords: _error(outcome) for coords, outcome in outcomes if not isinstance(outcome, NotMade)}

    async def pin(self, key: str) -> OpenValue | None:
        check_key(key)
        return await (self._view or self._stored).pin(key)

    async def size(self, key: str) -> int | None:
        return await (self._view or self._values).size(check_key(key))

    async def prefetch(self, path: str, region: Sequence[slice] | None) -> int:
        """Load the indices of a region of an array; see ``Reader.prefetch``."""
        return await self._reader.prefetch(path, region, self.options.index_cache_bytes)

    # -- listing ---------------------------------------------------------------------------------------------------

    async def list_batches(self, prefix: str) -> AsyncIterator[ListedBatch]:
        prefix = check_prefix(prefix)
        async for batch in self._listing.batches(prefix) if (view := self._view) is None else view.list_batches(prefix):
            yield batch

    async def list_dir(self, prefix: str, *, approximate: bool = False) -> ListedDir:
        prefix = check_directory(prefix)
        if (view := self._view) is not None:
            return await view.list_dir(prefix)
        return await self._listing.directory(prefix, approximate=approximate)

    # -- erasing ---------------------------------------------------------------------------------------------------

    async def erase_prefix(self, prefix: str) -> None:
        await self.erase_below(prefix, keep_documents=False)

    async def erase_below(self, prefix: str, *, keep_documents: bool) -> None:
        """Erase as ``erase_prefix`` does; with ``keep_documents``, all but the documents of nodes."""
        prefix = check_erased(prefix)
        await self._commit_ended.wait()
        if self._transaction is None:
            await self._erasing.erase_prefix(prefix, keep_documents=keep_documents)
        elif keep_documents:
            await self._transaction.erase_chunks(prefix)
        else:
            await self._transaction.erase_prefix(prefix)

    async def erase_removed(self, path: str, chunk_shape: tuple[int, ...], removed: RemovedChunks) -> bool:
        """Erase the chunks that an array loses when it shrinks; ``chunk_shape`` is that of its chunks to the client.

        Nothing is done for chunks that are not there, and whole shards are removed unread. Carried out even when the call is cancelled.
        Returns ``False``, and does nothing, if there is no array with known keys and chunks of this shape.
        """
        check_key(metadata_key(path))
        await self._commit_ended.wait()
        if self._transaction is not None:
            return await self._transaction.erase_removed(path, chunk_shape, removed)
        return await uninterrupted(self._erasing.erase_removed(path, chunk_shape, removed))

    async def erase_chunks_below(self, prefix: str) -> None:
        """Erase the chunks below a prefix that ends inside the coordinates of a sharded array, and nothing else."""
        await self._commit_ended.wait()
        await self._erasing.erase_chunks(prefix)

    async def check_new(self, key: str, data: BytesLike, own_shards: OwnShards = OwnShards.REFUSED) -> None:
        """Raise what storing the document of a new node would raise where nothing is stored; ask before what is there is erased for it.

        Nothing is stored, and nothing is read: what is there does not matter.

        Raises:
            InvalidInput: it would be refused.
        """
        path = metadata_path(check_key(key))
        if path is not None:
            await self._documents.check_new(path, data, own_shards)
        elif self.options.chunks_per_shard != "auto":  # that warns, and only of what is stored
            await self._v2_arrays.check(key, data, nothing_there=True)

    async def client_view(self, path: str, document: JsonObject, *, for_write: bool, last: ClientView | None) -> ClientView:
        """Return whether a client with this document of the array at ``path`` sees chunks or shards; see ``own_shards.client_view``."""
        check_key(metadata_key(path))
        await self._commit_ended.wait()
        return await client_view(
            path,
            document,
            overlay=self.held,
            hierarchy=self.hierarchy,
            documents=self._documents,
            for_write=for_write,
            last=last,
        )

    # -- whole nodes -----------------------------------------------------------------------------------------------

    @property
    def node_access(self) -> NodeAccess:
        """Return the parts of this engine that ``moving`` needs."""
        return NodeAccess(self.storage, self.hierarchy, self._indices, self._erasing, self.options, self.no_transaction)

    async def copy_prefix(self, source: str, target: str, *, overwrite: bool = False) -> int:
        """Copy everything at or below the path ``source`` as it is stored; see ``moving.copy_nodes``. May be cancelled."""
        return await copy_nodes(self, source, self, target, overwrite=overwrite)

    async def move_prefix(self, source: str, target: str, *, overwrite: bool = False) -> int:
        """Move everything at or below the path ``source`` as it is stored; see ``moving.move_between``. May be cancelled."""
        return await move_between(self, source, self, target, overwrite=overwrite)

    async def stale_consolidated(self, path: str) -> Sequence[str]:
        """Return the groups above ``path`` whose consolidated metadata became stale when ``path`` was copied or moved."""
        return await stale_consolidated(self.storage, path)

    def append_line(self, path: str, dim: str, lease_seconds: float) -> Line:
        """Return the line of those who append along a dimension of the arrays at or below ``path``."""
        return Line(self.storage, self._contention, GrowingDocuments(self.storage, self._contention, path, dim), lease_seconds)

    # -- transactions ----------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Hold back writes from now on, until ``commit`` or ``rollback``.

        Raises:
            InvalidInput: a transaction is open already.
        """
        await self._commit_ended.wait()
        if self._transaction is not None:
            raise InvalidInput(f"a transaction is open already on {self.storage.url}: transactions cannot be nested")
        self._transaction = TransactionView(self._stored, Overlay(self.options.max_memory), weakly(self._update_many))

    @property
    def in_transaction(self) -> bool:
        """Return whether writes are being held back."""
        return self._view is not None

    async def no_transaction(self) -> None:
        """Wait for a commit that is under way.

        Raises:
            InvalidInput: a transaction is open.
        """
        await self._commit_ended.wait()
        if self._transaction is not None:
            raise InvalidInput(
                f"whole nodes cannot be copied or moved while a transaction is open on {self.storage.url}: commit it or roll it back first"
            )

    async def commit(self) -> None:
        """Carry out what was held back: erasures, then chunks with one commit a shard, then metadata.

        When this fails part of it may be stored; the exception's notes say how much. The rest is discarded.
        """
        view = self._ended()
        if view is None:
            raise InvalidInput("there is no open transaction")
        self._committing = view  # still what this process reads
        self._commit_ended.clear()
        try:
            commit = OverlayCommit(
                view.overlay,
                self._values,
                self._documents,
                self.hierarchy,
                self._erasing,
                self._committer,
                self.options,
                documents_first=self.storage.ability(DocumentsFirst) is not None,
            )
            await uninterrupted(commit.run())
        finally:
            self._committing = None
            self._commit_ended.set()
            view.overlay.close()

    def _ended(self) -> TransactionView | None:
        """Let the open transaction, if there is one, take no more updates, and return it."""
        view, self._transaction = self._transaction, None
        if view is not None:
            view.is_open = False
        return view

    async def rollback(self) -> int:
        """Discard what was held back; return the number of its keys."""
        view = self._ended()
        if view is None:
            return 0
        discarded = len(list(view.overlay.held())) + len(view.overlay.erased_prefixes)
        view.overlay.close()
        return discarded

    # -- about -----------------------------------------------------------------------------------------------------

    @property
    def canonical(self) -> Engine:
        """Return the engine under the keys of final Zarr v3: this one. A view has this property too, with its engine."""
        return self

    @property
    def committer(self) -> Committer:
        """Return the committer, for tools that work on stored shards instead of values."""
        return self._committer

    async def is_node(self, path: str) -> bool:
        """Return whether there is a node at ``path``, or an open transaction makes one."""
        key = check_key(metadata_key(path))
        overlay = self.held
        if overlay is not None and overlay.decides(key):
            return overlay.nbytes(key) is not None
        return await self.hierarchy.node(path, fresh=True) is not None

    async def is_inside_array(self, path: str) -> bool:
        """Return whether ``path`` lies among the chunk keys of a sharded array, and so is not the path of a node."""
        within = await self._listing.array_prefix(check_prefix(path.strip("/") + "/"))
        return within is not None and bool(within.rest)

    async def locate_chunks(self, keys: Sequence[str]) -> LocatedChunks | None:
        return None if self.held is not None or self._chunks is not None else await self.hierarchy.locate_together(keys, for_write=False)

    async def shard_groups(self, keys: Sequence[str]) -> Sequence[Sequence[int]]:
        if self.held is not None or self._chunks is not None:
            return [[i] for i in range(len(keys))]
        if (together := await self.locate_chunks(keys)) is not None:
            return [numbers.tolist() for numbers in together.numbers()]
        targets = await self.hierarchy.locate(keys, for_write=False)
        groups: dict[str, list[int]] = {}
        for i, target in enumerate(targets):
            groups.setdefault(target.shard_key if isinstance(target, ChunkTarget) else f"/{target.key}", []).append(i)
        return list(groups.values())

    async def layout(self, path: str) -> ArrayLayout | None:
        """Return the layout of the sharded array at ``path``, or ``None`` if there is no such array."""
        check_key(metadata_key(path))
        node = await self.hierarchy.node(path, fresh=True)
        return None if node is None else node.layout

    async def close(self) -> None:
        """Roll back what is open and let go of the storage."""
        await self.rollback()
        await self.storage.close()
