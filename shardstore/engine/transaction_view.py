"""Transactions: what one holds back, the store as its client sees it meanwhile, and the commit."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

from shardstore.engine.actions import ERASE, Action, EraseValue, Patch, SetIfMissing, SetValue, Swap, apply_actions, with_whole
from shardstore.engine.keyed_store import KeyedStore
from shardstore.engine.metadata.documents import Documents, PlannedArray
from shardstore.engine.metadata.hierarchy import ChunkTarget, Hierarchy
from shardstore.engine.metadata.translation import OwnShards, WrittenV2Arrays
from shardstore.engine.options import EngineOptions
from shardstore.engine.pinned import HeldValue, OpenValue, pin
from shardstore.engine.reading.listing import ListedBatch, ListedDir, Listing, directly_below
from shardstore.engine.reading.reader import Reader
from shardstore.engine.reading.shard_chunks import Value
from shardstore.engine.values import KeyRequest, KeyUpdate, Values
from shardstore.engine.version_reader import VersionReader, content_outcome
from shardstore.engine.writing.committer import Committer
from shardstore.engine.writing.erasing import Erasing
from shardstore.errors import InvalidInput, ShardStoreError, StorageError, Unsupported
from shardstore.format.json_text import JsonObject, dumps, parse_object
from shardstore.format.metadata_v3 import is_array, parse_shown
from shardstore.format.presentation import has_chunks_of, present_bytes, update_stored
from shardstore.format.store_keys import check_key, check_node_path, join, metadata_key, metadata_path
from shardstore.model.chunks import RemovedChunks
from shardstore.model.ranges import EVERYTHING, BytesLike, cut
from shardstore.storage.base import Read, ReadOutcome, Storage
from shardstore.tasks import uninterrupted


@dataclass(frozen=True, slots=True)
class Spilled:
    """Bytes in the temporary file."""

    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class HeldKeys:
    """The decisions of a transaction at one moment: the size of each key's value, ``None`` where it is erased, and erased prefixes."""

    sizes: dict[str, int | None]
    erased_prefixes: tuple[str, ...]

    def decides(self, key: str) -> bool:
        return key in self.sizes or any(key.startswith(prefix) for prefix in self.erased_prefixes)


class Overlay:
    """The writes of one open transaction, as a layer over what is stored. Used on one event loop only."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._in_memory = 0
        self._values: dict[str, bytes | Spilled | None] = {}  # None: erased
        self._conditional: set[str] = set()
        self._instead: dict[str, SetValue] = {}
        self._erased_prefixes: list[str] = []
        self._file: IO[bytes] | None = None

    def set(self, key: str, data: BytesLike, *, only_if_missing: bool = False, instead: SetValue | None = None) -> None:
        """Hold a value back. ``only_if_missing``: on condition that there is none, which holds again at the commit.

        ``instead`` is carried out at the commit, if it is given: then ``data`` is only what clients see.

        Raises:
            StorageError: the temporary file cannot take it; what was held back before is still held back.
        """
        kept = self._kept(bytes(data))
        self._forget(key)
        self._values[key] = kept
        if isinstance(kept, bytes):
            self._in_memory += len(kept)
        if only_if_missing:
            self._conditional.add(key)
        if instead is not None:
            self._instead[key] = instead

    def _kept(self, data: bytes) -> bytes | Spilled:
        if self._in_memory + len(data) <= self._memory_bytes:
            return data
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="shardstore-transaction-")  # noqa: SIM115  # closed with the overlay
            offset = self._file.seek(0, 2)
            self._file.write(data)
            self._file.flush()
        except OSError as exc:
            raise StorageError(f"a transaction cannot hold back {len(data)} bytes more in {tempfile.gettempdir()}: {exc}") from exc
        return Spilled(offset, len(data))

    def erase(self, key: str) -> None:
        self._forget(key)
        self._values[key] = None

    def erase_prefix(self, prefix: str) -> None:
        """Erase everything below ``prefix``, stored or held back."""
        for key in [key for key in self._values if key.startswith(prefix)]:
            self._forget(key)
        self._erased_prefixes.append(prefix)

    def _forget(self, key: str) -> None:
        self._conditional.discard(key)
        self._instead.pop(key, None)
        value = self._values.pop(key, None)
        if isinstance(value, bytes):
            self._in_memory -= len(value)

    def decides(self, key: str) -> bool:
        """Return whether the transaction says what the key's value is."""
        return key in self._values or self.erased_below(key)

    def erased_below(self, key: str) -> bool:
        return any(key.startswith(prefix) for prefix in self._erased_prefixes)

    def get(self, key: str) -> bytes | None:
        """Return the value that the transaction gave a key; ``None`` where it erased it."""
        value = self._values.get(key)
        if not isinstance(value, Spilled):
            return value
        assert self._file is not None
        self._file.seek(value.offset)
        return self._file.read(value.nbytes)

    def instead(self, key: str) -> SetValue | None:
        """Return what is carried out at the commit instead of setting the value that clients see."""
        return self._instead.get(key)

    def action(self, key: str) -> SetValue | SetIfMissing | EraseValue:
        """Return what the transaction does to a key, for the commit."""
        if (instead := self._instead.get(key)) is not None:
            return instead
        data = self.get(key)
        if data is None:
            return ERASE
        return SetIfMissing(data) if key in self._conditional else SetValue(data)

    def nbytes(self, key: str) -> int | None:
        value = self._values.get(key)
        return value.nbytes if isinstance(value, Spilled) else None if value is None else len(value)

    def held(self) -> Iterator[str]:
        """Return the keys with a value or an erasure of their own."""
        return iter(list(self._values))

    def snapshot(self) -> HeldKeys:
        return HeldKeys({key: self.nbytes(key) for key in self._values}, tuple(self._erased_prefixes))

    @property
    def erased_prefixes(self) -> list[str]:
        return list(self._erased_prefixes)

    def close(self) -> None:
        self._values.clear()
        if self._file is not None:
            self._file.close()
            self._file = None


@dataclass(frozen=True, slots=True)
class StoredState:
    """The parts of an engine by which a transaction sees what is stored."""

    storage: Storage
    hierarchy: Hierarchy
    reader: Reader
    values: Values
    versions: VersionReader
    listing: Listing
    v2_arrays: WrittenV2Arrays

    async def pin(self, key: str) -> OpenValue | None:
        return await pin(key, self.storage, self.hierarchy, self.reader, self.values)


class TransactionView(KeyedStore):
    """A store under the writes that one open transaction holds back. Keys are checked by the engine, except those of updates.

    ``update_after`` carries out updates that were begun in the transaction and go on after its end: they are no part of it.
    """

    def __init__(
        self,
        below: StoredState,
        overlay: Overlay,
        update_after: Callable[[Sequence[KeyUpdate]], Awaitable[Sequence[Exception | None]]],
    ) -> None:
        super().__init__()
        self._below = below
        self.overlay = overlay
        self._update_after = update_after
        self.is_open = True
        """False as soon as it is committed or rolled back: then it takes no more updates."""

    async def get_many(self, requests: Sequence[KeyRequest]) -> list[Value]:
        values: list[Value] = [None] * len(requests)
        below: list[int] = []
        for i, (key, request) in enumerate(requests):
            if not self.overlay.decides(check_key(key)):
                below.append(i)
            elif (held := self.overlay.get(key)) is not None:
                values[i] = cut(memoryview(held), request)
        for i, value in zip(below, await self._below.values.get_many([requests[i] for i in below]), strict=True):
            values[i] = value
        return values

    async def read_versions(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        overlay = self.overlay
        decided = [overlay.decides(check_key(read.key)) for read in reads]
        # What is held back is looked at first: a commit that ends while the rest is read closes the overlay.
        values = [overlay.get(read.key) if is_held else None for read, is_held in zip(reads, decided, strict=True)]
        below = iter(await self._below.versions.read([read for read, is_held in zip(reads, decided, strict=True) if not is_held]))
        return [
            content_outcome(read, None if value is None else memoryview(value)) if is_held else next(below)
            for read, value, is_held in zip(reads, values, decided, strict=True)
        ]

    async def size(self, key: str) -> int | None:
        return self.overlay.nbytes(key) if self.overlay.decides(key) else await self._below.values.size(key)

    async def pin(self, key: str) -> OpenValue | None:
        if not self.overlay.decides(key):
            return await self._below.pin(key)
        held = self.overlay.get(key)
        return None if held is None else HeldValue(held)

    async def shard_groups(self, keys: Sequence[str]) -> Sequence[Sequence[int]]:
        return [[i] for i in range(len(keys))]

    async def list_batches(self, prefix: str) -> AsyncIterator[ListedBatch]:
        held = self.overlay.snapshot()  # a commit may end while the storage is listed
        async for batch in self._below.listing.batches(prefix):
            yield batch.subset([not held.decides(key) for key in batch.keys])
        sizes = {key: nbytes for key, nbytes in held.sizes.items() if key.startswith(prefix) and nbytes is not None}
        yield ListedBatch(list(sizes), list(sizes.values()))

    async def list_dir(self, prefix: str, *, approximate: bool = False) -> ListedDir:
        return await directly_below(prefix, self.list(prefix))

    # -- updates -------------------------------------------------------------------------------------------------------

    async def update_many(self, updates: Sequence[KeyUpdate]) -> list[Exception | None]:
        if not self.is_open:
            return list(await self._update_after(updates))  # one batch: one commit of each shard
        return [await self._update(key, action) for key, action in await self._with_whole(updates)]

    async def erase_many(self, keys: Sequence[str]) -> None:
        await uninterrupted(super().erase_many(keys))

    async def _with_whole(self, updates: Sequence[KeyUpdate]) -> Sequence[KeyUpdate]:
        """Mark updates that give all bytes of a chunk."""
        numbers = [i for i, (_, action) in enumerate(updates) if isinstance(action, Patch) and action.may_be_whole]
        if not numbers:
            return updates
        targets = await self._below.values.locate_each([check_key(updates[i][0]) for i in numbers], for_write=False)
        chunks = [(i, target) for i, target in zip(numbers, targets, strict=True) if isinstance(target, ChunkTarget)]
        whole = with_whole([(target, updates[i][1]) for i, target in chunks])
        actions = {i: action for (i, _), (_, action) in zip(chunks, whole, strict=True)}
        return [(key, actions.get(i, action)) for i, (key, action) in enumerate(updates)]

    async def _update(self, key: str, action: Action) -> Exception | None:
        try:
            check_key(key)
            if self.is_open:  # else it ended while an earlier update of the same batch was looked at
                await self._check(key, action)
            if self.is_open:
                if isinstance(action, SetValue):
                    self._hold(key, action.data, action.own_shards)
                    return None
                if isinstance(action, EraseValue):
                    self.overlay.erase(key)
                    return None
                (old,) = await self.get_many([(key, EVERYTHING)])
                if self.is_open:
                    if isinstance(old, ShardStoreError):
                        raise old
                    self._hold_result(key, action, old)
                    return None
        except ShardStoreError as exc:
            return exc
        return (await self._update_after([(key, action)]))[0]

    async def _check(self, key: str, action: Action) -> None:
        """Raise the error of an update that a transaction cannot hold back, or that the commit would refuse."""
        if isinstance(action, SetValue) and action.seen_shape is not None:
            (shown,) = await self.get_many([(key, EVERYTHING)])
            action.check_seen(key, shown if isinstance(shown, memoryview) else None)
        if isinstance(action, SetValue | SetIfMissing):
            check_node_path(metadata_path(key) or "")
            await self._below.v2_arrays.check(key, action.data, nothing_there=self.overlay.erased_below(key))
        if isinstance(action, Swap):
            raise Unsupported(f"{key!r} cannot be written on a condition while a transaction is open on {self._below.storage.url}")
        if isinstance(action, Patch) and metadata_path(key) is not None:
            raise InvalidInput(f"the metadata document {key!r} can only be written as a whole")

    def _hold_result(self, key: str, action: Action, old: memoryview | None) -> None:
        """Hold back what an action makes of the value that is there."""
        if isinstance(action, SetIfMissing):
            if action.creation is not None:
                action.creation.happened = old is None
            if old is None:
                # Erased by the transaction itself, nothing of other clients is in the way at the commit.
                self.overlay.set(key, action.data, only_if_missing=not self.overlay.decides(key))
        elif (new := apply_actions([action], old, lambda: key)) is not None:
            self._hold(key, new)
        elif old is not None:
            self.overlay.erase(key)

    def _hold(self, key: str, data: BytesLike, own_shards: OwnShards = OwnShards.REFUSED) -> None:
        """Hold a value back."""
        instead = self.overlay.instead(key)
        if instead is not None or own_shards is not OwnShards.REFUSED:
            data, instead = _held_back(bytes(data), own_shards, instead)
        self.overlay.set(key, data, instead=instead)

    async def erase_prefix(self, prefix: str) -> None:
        self.overlay.erase_prefix(prefix)

    async def erase_chunks(self, prefix: str) -> None:
        """Erase everything below a prefix but the documents of nodes."""
        # By updates, which are carried out even if the transaction has ended while the keys were listed.
        await self.erase_many([value.key async for value in self.list(prefix) if metadata_path(value.key) is None])

    async def erase_removed(self, path: str, chunk_shape: tuple[int, ...], removed: RemovedChunks) -> bool:
        """Erase the chunks that an array loses when it shrinks; see ``Engine.erase_removed``."""
        (data,) = await self.get_many([(metadata_key(path), EVERYTHING)])
        document = parse_object(data) if isinstance(data, memoryview) else None
        array = parse_shown(document) if document is not None and is_array(document) else ""
        if isinstance(array, str) or array.chunk_shape != chunk_shape:
            return False
        encoding, start = array.key_encoding, join(path, "")
        keys = [value.key async for value in self.list(start + encoding.prefix_of((), array.ndim))]
        decoded = ((key, encoding.decode(key[len(start) :], array.ndim)) for key in keys)
        await self.erase_many([key for key, coords in decoded if coords is not None and removed.has(coords)])
        return True


def _held_back(data: bytes, own_shards: OwnShards, before: SetValue | None) -> tuple[bytes, SetValue | None]:
    """Return how clients see a document that a transaction holds back, and what is to be stored instead, if that differs.

    ``before`` is what was to be stored so far, with shards of its own; the same array keeps them.
    """
    if before is not None:
        document, was = _array(data), _array(bytes(before.data))
        if document is not None and was is not None and has_chunks_of(document, was):
            data, own_shards = dumps(update_stored(document, was)), before.own_shards
    if own_shards is OwnShards.REFUSED:
        return data, None
    return present_bytes(data), SetValue(data, own_shards)


def _array(data: bytes) -> JsonObject | None:
    document = parse_object(data)
    return document if document is not None and is_array(document) else None


@dataclass(eq=False, repr=False)
class OverlayCommit:
    """One commit of one overlay: erasures, documents of arrays that get another layout, chunks (one commit a shard), other documents."""

    _overlay: Overlay
    _values: Values
    _documents: Documents
    _hierarchy: Hierarchy
    _erasing: Erasing
    _committer: Committer
    _options: EngineOptions
    documents_first: bool
    _stored: int = field(default=0, init=False)
    _erased: list[str] = field(default_factory=list, init=False)

    async def run(self) -> None:
        """Carry out the commit. Raises the first error, with a note that says what was stored before it."""
        keys = list(self._overlay.held())
        try:
            documents = [key for key in keys if metadata_path(key) is not None]
            planned = await self._plan(documents)  # before anything is changed
            for prefix in self._overlay.erased_prefixes:
                await self._erasing.erase_prefix(prefix)
                self._erased.append(prefix)
            if self.documents_first:
                await self._run_documents_first(keys)
                return
            for array in planned.values():
                await self._documents.check_planned(array)
            await self._write([array for array in planned.values() if array.goes_first])
            last = [array for array in planned.values() if not array.goes_first]
            with self._hierarchy.pending(array.node for array in last):
                await self._commit_values([key for key in keys if metadata_path(key) is None])
            await self._write(last)
            self._committer.forget_created_shards()
            await self._commit_wave([key for key in documents if key not in planned])
        except (Exception, asyncio.CancelledError) as exc:
            if left := await self._committer.rollback_created_shards():
                exc.add_note(
                    "shards of arrays that the transaction was to create may be left, and have to be erased before it is tried again: "
                    + ", ".join(left)
                )
            erased = f"; what lay below {', '.join(map(repr, self._erased))} had been erased" if self._erased else ""
            exc.add_note(
                f"the transaction failed: {self._stored} of {len(keys)} held-back keys were committed (chunks before the metadata of new "
                f"arrays), the rest is discarded{erased}"
            )
            raise

    async def _write(self, arrays: Iterable[PlannedArray]) -> None:
        for array in arrays:
            await self._documents.write_planned(array)
            self._stored += 1

    async def _run_documents_first(self, keys: list[str]) -> None:
        """Write documents first. That is needed if the storage is another engine: it takes a value for a chunk only after its document."""
        are_set = [key for key in keys if metadata_path(key) is not None and self._overlay.get(key) is not None]
        await self._commit_wave(are_set)
        await self._commit_values([key for key in keys if metadata_path(key) is None])
        await self._commit_wave([key for key in keys if metadata_path(key) is not None and key not in set(are_set)])

    async def _plan(self, documents: list[str]) -> dict[str, PlannedArray]:
        """Return the arrays that the transaction creates or changes. A document that would be refused later is refused here."""
        planned: dict[str, PlannedArray] = {}
        for key in documents:
            path, action = metadata_path(key), self._overlay.action(key)
            if path is None or not isinstance(action, SetValue):
                continue  # a condition is looked at when the value is set
            data, erased = bytes(action.data), self._overlay.erased_below(key)
            array = await self._documents.plan_array(path, data, erased_first=erased, own_shards=action.own_shards)
            if array is not None:
                planned[key] = array
            elif b'"consolidated_metadata"' not in data:  # its arrays are there only once this transaction has written them
                await self._documents.check(path, data)
        return planned

    async def _commit_values(self, keys: list[str]) -> None:
        """Commit chunks of one shard together, and no more bytes at once than the memory bound."""
        targets = await self._hierarchy.locate(keys, for_write=True)
        groups: dict[str, list[str]] = {}
        for key, target in zip(keys, targets, strict=True):
            groups.setdefault(target.shard_key if isinstance(target, ChunkTarget) else f"/{key}", []).append(key)
        wave: list[str] = []
        held = 0
        for group in groups.values():
            nbytes = sum(self._overlay.nbytes(key) or 0 for key in group)
            if wave and held + nbytes > self._options.max_memory:
                await self._commit_wave(wave)
                wave, held = [], 0
            wave += group
            held += nbytes
        await self._commit_wave(wave)

    async def _commit_wave(self, keys: list[str]) -> None:
        updates: list[KeyUpdate] = [(key, self._overlay.action(key)) for key in keys]
        errors = await self._values.update_many(updates)
        self._stored += errors.count(None)
        for error in errors:
            if error is not None:
                raise error
