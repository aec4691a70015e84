"""Operations on the values of a store by their keys: the few that each kind of store defines, and those that follow from them.

Requests that arrive separately in one tick of the event loop become one batch, as a data loader does.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from shardstore.engine.actions import ERASE, Creation, SetIfMissing
from shardstore.engine.metadata.hierarchy import LocatedChunks
from shardstore.engine.pinned import OpenValue
from shardstore.engine.reading.listing import ListedBatch, ListedDir, ListedValue
from shardstore.engine.reading.read_plan import ReadPlan
from shardstore.engine.reading.shard_chunks import Value
from shardstore.engine.values import KeyRequest, KeyUpdate
from shardstore.engine.writing.contents import ShardContents
from shardstore.format.metadata_v3 import ArrayLayout
from shardstore.format.store_keys import check_key
from shardstore.model.chunks import ChunkCoords
from shardstore.model.ranges import ByteRequest, BytesLike
from shardstore.storage.base import Read, ReadOutcome
from shardstore.tasks import TickBatch, uninterrupted

Request = TypeVar("Request")
Result = TypeVar("Result")


def weakly(
    method: Callable[[Sequence[Request]], Awaitable[Sequence[Result | Exception]]],
) -> Callable[[Sequence[Request]], Awaitable[Sequence[Result | Exception]]]:
    """Return the method without a reference to its store: a store that is not used any more has to be freed at once, with its threads."""
    reference = weakref.WeakMethod(method)

    async def run(requests: Sequence[Request]) -> Sequence[Result | Exception]:
        bound = reference()
        assert bound is not None  # the caller that waits for the batch holds the store
        return await bound(requests)

    return run


class KeyedStore(ABC):
    """Values by key, under the keys of one flavour. Single gets and updates of one tick of the event loop become one batch."""

    def __init__(self) -> None:
        self._gets: TickBatch[KeyRequest, memoryview | None] = TickBatch(weakly(self.get_many))
        self._updates: TickBatch[KeyUpdate, None] = TickBatch(weakly(self.update_many))

    # -- what each kind of store defines -------------------------------------------------------------------------------

    @abstractmethod
    async def get_many(self, requests: Sequence[KeyRequest]) -> list[Value]:
        """Return values in the order of the requests: ``None`` if a value does not exist, the error if it could not be read."""

    @abstractmethod
    async def read_versions(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        """Read values as ``Storage.read`` reads objects: all ranges of one version, or of the one that is asked for."""

    @abstractmethod
    async def update_many(self, updates: Sequence[KeyUpdate]) -> list[Exception | None]:
        """Carry out updates, durable on return unless a transaction is open; return the error of each, or ``None``.

        They are carried out even when the call is cancelled.
        """

    @abstractmethod
    async def size(self, key: str) -> int | None:
        """Return the size of a value in bytes, without reading it; ``None`` where there is none."""

    @abstractmethod
    async def pin(self, key: str) -> OpenValue | None:
        """Return one version of a value, to be read piece by piece; ``None`` where there is none."""

    @abstractmethod
    async def shard_groups(self, keys: Sequence[str]) -> Sequence[Sequence[int]]:
        """Return the numbers of ``keys``, those of one shard together; every other key by itself, in the order of the keys."""

    @abstractmethod
    def list_batches(self, prefix: str) -> AsyncIterator[ListedBatch]:
        """Yield what ``list`` yields, many keys at once: at most a shard's."""

    @abstractmethod
    async def list_dir(self, prefix: str, *, approximate: bool = False) -> ListedDir:
        """Return the keys and prefixes directly below ``prefix``. With ``approximate`` the prefixes may be of chunks that do not exist."""

    @abstractmethod
    async def erase_prefix(self, prefix: str) -> None:
        """Erase everything below a prefix that is ``""`` or ends with ``/``."""

    # -- what some kinds read faster; by default none of it is possible ------------------------------------------------

    @property
    def plans_reads(self) -> bool:
        """Return whether ``plan_read`` is worth asking; from any thread."""
        return False

    def known_plan(self, keys: Sequence[str]) -> ReadPlan | LocatedChunks | None:
        """Return the plan of a read of whole chunks, if it needs nothing that is not known; else what ``plan_read`` can go on from.

        In the calling thread, whichever it is.
        """
        return None

    async def plan_read(self, keys: Sequence[str], located: LocatedChunks | None = None) -> ReadPlan | None:
        """Return the plan of a read of whole chunks; ``None`` if ``get_many`` has to be asked for them."""
        return None

    def short_value(self, key: str, request: ByteRequest) -> memoryview | None:
        """Return a value, or the part that is asked for, if it is short and in memory; in the calling thread, whichever it is.

        ``None`` means: ask ``get``.
        """
        return None

    async def locate_chunks(self, keys: Sequence[str]) -> LocatedChunks | None:
        """Return where chunks of one array are, for ``get_many``; ``None`` if some keys are not, or each has to be looked up by itself.

        Raises:
            ShardStoreError: an array's document cannot be read.
        """
        return None

    async def replace_shards(
        self, path: str, layout: ArrayLayout, contents: Mapping[ChunkCoords, ShardContents]
    ) -> dict[ChunkCoords, Exception | None]:
        """Write whole shards of the array at ``path``, one commit each, durable on return, even when the call is cancelled.

        Returns the error, or ``None``, of each shard that was written, or failed. The chunks of the rest have to be given to
        ``update_many``: the array is not laid out so any more, or its shards cannot be made while they are stored. Nothing of these was
        stored.
        """
        return {}

    # -- what follows --------------------------------------------------------------------------------------------------

    async def get(self, request: KeyRequest) -> memoryview | None:
        """Return one value, or the part of it that is asked for; it is gathered with other requests of the same tick."""
        check_key(request[0])
        return await self._gets.submit(request)

    async def update(self, update: KeyUpdate) -> None:
        """Carry out one update, durable on return, gathered with other updates of the same tick, and even when the call is cancelled."""
        check_key(update[0])
        await uninterrupted(self._updates.submit(update))

    async def create(self, key: str, data: BytesLike) -> bool:
        """Store a value if there is none; otherwise change nothing and return ``False``."""
        creation = Creation()
        await self.update((key, SetIfMissing(data, creation)))
        return creation.happened

    async def erase_many(self, keys: Sequence[str]) -> None:
        """Erase the values of these keys. If some cannot be erased, the rest are, and then the first error is raised."""
        for error in await self.update_many([(key, ERASE) for key in keys]):
            if error is not None:
                raise error

    async def exists(self, key: str) -> bool:
        """Return whether the key has a value; for a chunk, by its shard's index."""
        return await self.size(key) is not None

    async def list(self, prefix: str, *, versions: bool = False) -> AsyncIterator[ListedValue]:
        """Yield every key that starts with ``prefix`` (``""`` or ``"/"``: all), with sizes where the listing knows them; and with
        ``versions``, likewise.
        """
        async for batch in self.list_batches(prefix):
            for value in batch.values(versions=versions):
                yield value

    async def size_prefix(self, prefix: str) -> int:
        """Return the bytes of all values whose keys start with ``prefix``: chunks, documents as presented, other objects."""
        total = 0
        async for value in self.list(prefix):
            nbytes = value.nbytes if value.nbytes is not None else await self.size(value.key)
            total += nbytes or 0
        return total
