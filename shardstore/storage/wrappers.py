"""Storages that forward everything to another one: the base of all such, one that first finds out which one, and one that
checks answers and counts requests.

The engine puts ``CheckedStorage`` around the storage that it is given. Other wrappers, such as those in ``shardstore.testing``, derive
from ``StorageWrapper``.

Four things that a storage, or a client library, a proxy or a server behind it, can do wrong would otherwise become wrong data:

- A range that comes cut short would be taken for a short value, or for a damaged document.
- ``Changed`` as the answer to a read of *any* version says that the object kept changing. It would be taken for absence, and so for a
  chunk that was never written.
- ``asyncio.CancelledError`` out of a library whose own connection or session was cancelled would be taken for a cancellation
  of the caller, who asked for none, and of everybody whose updates are in the same commit.
- ``NotFound`` says that something is gone which the storage itself reads through, such as an archive or a set of references. Above it would
  be taken for the absence of the key: a storage says that by ``ABSENT`` and ``None``.
"""

from __future__ import annotations

import asyncio
import threading
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import TypeVar

from shardstore.errors import Conflict, NotFound, ShardStoreError, StorageError, WriteOutcomeUnknown
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import Condition, Generation
from shardstore.model.ranges import ByteRange, BytesLike, CopiedRange, Segment, resolve
from shardstore.model.showing import ShownInNotebooks
from shardstore.storage.abilities import DirectAccess, FileTree
from shardstore.storage.base import Abilities, Changed, DirListing, Failed, Found, ObjectInfo, Read, ReadOutcome, Storage

__all__ = ["Counters", "StorageWrapper"]

A = TypeVar("A")
T = TypeVar("T")

Sleep = Callable[[float], Awaitable[object]]

_TRIES = 5
_FIRST_WAIT_SECONDS = 0.005

KEYS_A_REQUEST = 1000  # that a listing returns, or a multiple delete takes, for one request; as on S3


def innermost(storage: Storage) -> Storage:
    """Return the storage inside all wrappers."""
    while isinstance(storage, StorageWrapper):
        storage = storage.inner
    return storage


class StorageWrapper(Abilities):
    """The same place as ``inner``, with the same abilities but ``DirectAccess``; subclasses act on some operations."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def kind(self) -> str:
        return self.inner.kind

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    async def probe(self) -> Capabilities:
        return await self.inner.probe()

    def ability(self, kind: type[A]) -> A | None:
        """Return this wrapper's own ability, or that of the storage inside, unless it would pass by this wrapper."""
        if isinstance(self, kind):
            return self
        return None if issubclass(kind, DirectAccess) else self.inner.ability(kind)

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        return await self.inner.read(reads)

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        return await self.inner.write(key, body, nbytes, condition)

    async def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        return await self.inner.compose(key, source, segments, condition)

    async def copy(self, source: str, target: str) -> Generation | None:
        return await self.inner.copy(source, target)

    async def rename_prefix(self, source: str, target: str) -> bool:
        return await self.inner.rename_prefix(source, target)

    async def delete(self, key: str, condition: Condition) -> bool:
        return await self.inner.delete(key, condition)

    async def delete_many(self, keys: Sequence[str]) -> None:
        await self.inner.delete_many(keys)

    async def stat(self, key: str) -> ObjectInfo | None:
        return await self.inner.stat(key)

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        return self.inner.list(prefix)

    async def list_dir(self, prefix: str) -> DirListing:
        return await self.inner.list_dir(prefix)

    async def close(self) -> None:
        await self.inner.close()


class SettledStorage(StorageWrapper, FileTree):
    """Forwards everything to the storage that shows what is stored in ``inner``, which the first request finds out."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.found: Storage | None = None

    @property
    def capabilities(self) -> Capabilities:
        return (self.found or self.found_meanwhile() or self.inner).capabilities

    async def probe(self) -> Capabilities:
        await self.inner.probe()
        return self.capabilities

    def found_meanwhile(self) -> Storage | None:
        """Return what was found out elsewhere to be stored, if it was."""
        return None

    @abstractmethod
    async def settled(self) -> Storage:
        """Return the storage that everything goes to; ``inner`` for now if it could not be found out."""

    @abstractmethod
    async def first_read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        """Read, and find out what is stored by that as well, if possible."""

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        return await (self.first_read(reads) if self.found is None else self.found.read(reads))

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        return await (await self.settled()).write(key, body, nbytes, condition)

    async def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        return await (await self.settled()).compose(key, source, segments, condition)

    async def copy(self, source: str, target: str) -> Generation | None:
        return await (await self.settled()).copy(source, target)

    async def rename_prefix(self, source: str, target: str) -> bool:
        return await (await self.settled()).rename_prefix(source, target)

    async def delete(self, key: str, condition: Condition) -> bool:
        return await (await self.settled()).delete(key, condition)

    async def delete_many(self, keys: Sequence[str]) -> None:
        await (await self.settled()).delete_many(keys)

    async def stat(self, key: str) -> ObjectInfo | None:
        return await (await self.settled()).stat(key)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for found in (await self.settled()).list(prefix):
            yield found

    async def list_dir(self, prefix: str) -> DirListing:
        return await (await self.settled()).list_dir(prefix)

    async def _file_tree(self) -> FileTree | None:
        return (await self.settled()).ability(FileTree)

    async def cut_links(self, prefix: str) -> None:
        if (tree := await self._file_tree()) is not None:
            await tree.cut_links(prefix)

    async def keep_seen(self, key: str) -> None:
        if (tree := await self._file_tree()) is not None:
            await tree.keep_seen(key)

    async def stored_names(self, name: str) -> tuple[str, ...]:
        tree = await self._file_tree()
        return (name,) if tree is None else await tree.stored_names(name)


@dataclass(slots=True)
class Counters(ShownInNotebooks):
    """Counted since the engine was made, or since ``reset``; ``requests`` as an object store would count them. From any thread."""

    requests: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    chunks_read: int = 0
    chunks_written: int = 0
    commits: int = 0
    conflicts: int = 0
    """Commits that were planned again because another writer had replaced the shard first."""
    retried_reads: int = 0
    """Reads that were repeated because the shard changed in between."""
    index_hits: int = 0
    index_misses: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def __reduce__(self) -> tuple[type[Counters], tuple[int, ...]]:
        return type(self), tuple(self.as_dict().values())  # a lock does not travel

    def add(self, **more: int) -> None:
        """Count so many more of each, by the names above."""
        with self._lock:
            for name, number in more.items():
                setattr(self, name, getattr(self, name) + number)

    def as_dict(self) -> dict[str, int]:
        """Return the numbers by name."""
        return {name: getattr(self, name) for name in _NAMES}

    def reset(self) -> None:
        """Count from 0 again."""
        with self._lock:
            for name in _NAMES:
                setattr(self, name, 0)


_NAMES = tuple(each.name for each in fields(Counters) if not each.name.startswith("_"))


class CheckedStorage(StorageWrapper):
    """Forwards to ``inner``, counts requests and bytes, and checks the answers: reads are as long as was asked for, only reads of one
    version are answered by ``Changed``, only a caller's own cancellation cancels a request, and no error can be taken for absence.

    A range of a read counts as one request, as it does on an object store.
    """

    def __init__(self, inner: Storage, sleep: Sleep = asyncio.sleep, counters: Counters | None = None) -> None:
        super().__init__(inner)
        self._sleep = sleep
        self._counters = counters or Counters()

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_counters": Counters()}  # or each copy would be another storage to ``SharedStorage``

    async def _asked(self, what: str, key: str, request: Awaitable[T], error: type[ShardStoreError] = StorageError) -> T:
        """Return the answer to a request; raise ``error`` if it was cancelled, but not by the caller."""
        try:
            return await request
        except asyncio.CancelledError as exc:
            raise self._unless_cancelled(what, key, error) from exc
        except NotFound as exc:
            if error is WriteOutcomeUnknown:  # what is to be written to is gone
                raise
            raise unreachable(f"{what} {key!r} in {self.url}", exc) from exc

    def _unless_cancelled(self, what: str, key: str, error: type[ShardStoreError]) -> BaseException:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            return asyncio.CancelledError()
        outcome = "it may have been carried out" if error is WriteOutcomeUnknown else "try again"
        return error(f"{what} {key!r} in {self.url} was broken off by the storage's own client: {outcome}")

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        outcomes = await self._read_once(reads)
        wait = _FIRST_WAIT_SECONDS
        for _ in range(_TRIES - 1):
            if (first := _first_changing(reads, outcomes)) is None:
                return outcomes
            await self._sleep(wait)
            wait *= 2
            # With all that follows: what is read last, such as a document, has to be true of what was read before it.
            outcomes[first:] = await self._read_once(reads[first:])
        while (first := _first_changing(reads, outcomes)) is not None:
            outcomes[first] = Failed(Conflict(f"{reads[first].key!r} in {self.url} kept changing while it was being read: try again"))
        return outcomes

    async def _read_once(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        if not reads:
            return []
        self._counters.add(requests=sum(max(1, len(read.ranges)) for read in reads))
        try:
            outcomes = await self._asked("reading", reads[0].key, self.inner.read(reads))
        except StorageError as exc:
            return [Failed(exc)] * len(reads)
        self._counters.add(bytes_read=sum(len(b) for o in outcomes if isinstance(o, Found) for b in o.buffers))
        return [self._whole(read, outcome) for read, outcome in zip(reads, outcomes, strict=True)]

    def _whole(self, read: Read, outcome: ReadOutcome) -> ReadOutcome:
        """Return the outcome, or a failure if it was cut short."""
        if isinstance(outcome, Failed) and isinstance(outcome.error, NotFound):
            error = unreachable(f"reading {read.key!r} in {self.url}", outcome.error)
            error.__cause__ = outcome.error
            return Failed(error)
        if not isinstance(outcome, Found):
            return outcome
        for request, buffer in zip(read.ranges, outcome.buffers, strict=True):
            if isinstance(request, ByteRange) and len(buffer) == request.end - request.start:
                continue
            wanted = resolve(request, outcome.nbytes)
            if len(buffer) != wanted.end - wanted.start:
                return Failed(
                    StorageError(
                        f"reading {read.key!r} in {self.url}: bytes [{wanted.start}, {wanted.end}) of {outcome.nbytes} were asked for, and "
                        f"{len(buffer)} bytes were received: try again"
                    )
                )
        return outcome

    async def stat(self, key: str) -> ObjectInfo | None:
        self._counters.add(requests=1)
        return await self._asked("looking up", key, self.inner.stat(key))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        listed = 0
        try:
            async for info in self.inner.list(prefix):
                if listed % KEYS_A_REQUEST == 0:
                    self._counters.add(requests=1)
                listed += 1
                yield info
            if not listed:
                self._counters.add(requests=1)
        except asyncio.CancelledError as exc:
            raise self._unless_cancelled("listing", prefix, StorageError) from exc
        except NotFound as exc:
            raise unreachable(f"listing {prefix!r} in {self.url}", exc) from exc

    async def list_dir(self, prefix: str) -> DirListing:
        self._counters.add(requests=1)
        return await self._asked("listing", prefix, self.inner.list_dir(prefix))

    # -- changing ------------------------------------------------------------------------------------------------------

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        self._counters.add(requests=1)
        generation = await self._asked("writing", key, self.inner.write(key, body, nbytes, condition), WriteOutcomeUnknown)
        self._counters.add(bytes_written=nbytes)
        return generation

    async def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        self._counters.add(requests=1)
        generation = await self._asked("writing", key, self.inner.compose(key, source, segments, condition), WriteOutcomeUnknown)
        self._counters.add(bytes_written=sum(s.nbytes for s in segments if not isinstance(s, CopiedRange)))
        return generation

    async def copy(self, source: str, target: str) -> Generation | None:
        self._counters.add(requests=1)
        return await self._asked("copying to", target, self.inner.copy(source, target), WriteOutcomeUnknown)

    async def rename_prefix(self, source: str, target: str) -> bool:
        renamed = await self._asked("renaming to", target, self.inner.rename_prefix(source, target), WriteOutcomeUnknown)
        self._counters.add(requests=renamed)  # a kind that cannot rename makes no request
        return renamed

    async def delete(self, key: str, condition: Condition) -> bool:
        self._counters.add(requests=1)
        return await self._asked("deleting", key, self.inner.delete(key, condition), WriteOutcomeUnknown)

    async def delete_many(self, keys: Sequence[str]) -> None:
        self._counters.add(requests=-(-len(keys) // KEYS_A_REQUEST))
        await self._asked("deleting", keys[0] if keys else "", self.inner.delete_many(keys), WriteOutcomeUnknown)


def unreachable(what: str, exc: NotFound) -> StorageError:
    """Return the error to raise, from ``exc``, if something is not there that a storage reads through: no key is absent for that."""
    return StorageError(f"{what} failed, since what it reads through is gone: {exc}. Make that reachable again")


def _first_changing(reads: Sequence[Read], outcomes: Sequence[ReadOutcome]) -> int | None:
    """Return the number of the first read of any version that was answered by ``Changed``."""
    for i, (read, outcome) in enumerate(zip(reads, outcomes, strict=True)):
        if isinstance(outcome, Changed) and read.generation is None:
            return i
    return None
