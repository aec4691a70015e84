"""Checks of what the engine relies on, whatever the storage below it does.

Three things that a storage, or a client library, a proxy or a server behind it, can do wrong would otherwise become wrong data:

- A range that comes cut short would be taken for a short value, or for a damaged document.
- ``Changed`` as the answer to a read of *any* version says that the object kept changing. It would be taken for absence, and so for a
  chunk that was never written.
- ``asyncio.CancelledError`` out of a library whose own connection or session was cancelled would be taken for a cancellation
  of the caller, who asked for none, and of everybody whose updates are in the same commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from shardstore.errors import Conflict, ShardStoreError, StorageError, WriteOutcomeUnknown
from shardstore.model.generation import Condition, Generation
from shardstore.model.ranges import ByteRange, BytesLike, Segment, resolve
from shardstore.storage.base import Changed, DirListing, Failed, Found, ObjectInfo, Read, ReadOutcome, Storage
from shardstore.storage.wrappers.base import StorageWrapper

T = TypeVar("T")

Sleep = Callable[[float], Awaitable[object]]

_TRIES = 5
_FIRST_WAIT_SECONDS = 0.005


class CheckedStorage(StorageWrapper):
    """Forwards to ``inner``, and checks the answers: reads are as long as was asked for, only reads of one version are answered by
    ``Changed``, and only a caller's own cancellation cancels a request.
    """

    def __init__(self, inner: Storage, sleep: Sleep = asyncio.sleep) -> None:
        super().__init__(inner)
        self._sleep = sleep

    async def _asked(self, what: str, key: str, request: Awaitable[T], error: type[ShardStoreError] = StorageError) -> T:
        """Return the answer to a request; raise ``error`` where it was cancelled by nobody here."""
        try:
            return await request
        except asyncio.CancelledError as exc:
            raise self._unless_cancelled(what, key, error) from exc

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
        try:
            outcomes = await self._asked("reading", reads[0].key, self.inner.read(reads))
        except StorageError as exc:
            return [Failed(exc)] * len(reads)
        return [self._whole(read, outcome) for read, outcome in zip(reads, outcomes, strict=True)]

    def _whole(self, read: Read, outcome: ReadOutcome) -> ReadOutcome:
        """Return the outcome, or a failure where it was cut short."""
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
                        f"{len(buffer)} bytes came: try again"
                    )
                )
        return outcome

    async def stat(self, key: str) -> ObjectInfo | None:
        return await self._asked("looking up", key, self.inner.stat(key))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        try:
            async for info in self.inner.list(prefix):
                yield info
        except asyncio.CancelledError as exc:
            raise self._unless_cancelled("listing", prefix, StorageError) from exc

    async def list_dir(self, prefix: str) -> DirListing:
        return await self._asked("listing", prefix, self.inner.list_dir(prefix))

    # -- changing ------------------------------------------------------------------------------------------------------

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        return await self._asked("writing", key, self.inner.write(key, body, nbytes, condition), WriteOutcomeUnknown)

    async def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        return await self._asked("writing", key, self.inner.compose(key, source, segments, condition), WriteOutcomeUnknown)

    async def copy(self, source: str, target: str) -> Generation | None:
        return await self._asked("copying to", target, self.inner.copy(source, target), WriteOutcomeUnknown)

    async def rename_prefix(self, source: str, target: str) -> bool:
        return await self._asked("renaming to", target, self.inner.rename_prefix(source, target), WriteOutcomeUnknown)

    async def delete(self, key: str, condition: Condition) -> bool:
        return await self._asked("deleting", key, self.inner.delete(key, condition), WriteOutcomeUnknown)

    async def delete_many(self, keys: Sequence[str]) -> None:
        await self._asked("deleting", keys[0] if keys else "", self.inner.delete_many(keys), WriteOutcomeUnknown)


def _first_changing(reads: Sequence[Read], outcomes: Sequence[ReadOutcome]) -> int | None:
    """Return the number of the first read of any version that was answered by ``Changed``."""
    for i, (read, outcome) in enumerate(zip(reads, outcomes, strict=True)):
        if isinstance(outcome, Changed) and read.generation is None:
            return i
    return None
