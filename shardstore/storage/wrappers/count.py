"""A storage that counts its requests and bytes into the engine's counters, and forwards everything."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from shardstore.model.generation import Condition, Generation
from shardstore.model.ranges import BytesLike, CopiedRange, Segment
from shardstore.storage.base import DirListing, Found, ObjectInfo, Read, ReadOutcome, Storage
from shardstore.storage.wrappers.base import KEYS_A_REQUEST, StorageWrapper


class RequestCounters(Protocol):
    """Counters to which requests and bytes are added."""

    def add(self, *, requests: int = 0, bytes_read: int = 0, bytes_written: int = 0) -> None:
        """Add these numbers to the counters."""


class CountingStorage(StorageWrapper):
    """Forwards to ``inner``; a range of a read counts as one request, as it does on an object store."""

    def __init__(self, inner: Storage, counters: RequestCounters) -> None:
        super().__init__(inner)
        self._counters = counters

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        self._counters.add(requests=sum(max(1, len(read.ranges)) for read in reads))
        outcomes = await self.inner.read(reads)
        self._counters.add(bytes_read=sum(len(b) for o in outcomes if isinstance(o, Found) for b in o.buffers))
        return outcomes

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        self._counters.add(requests=1)
        generation = await self.inner.write(key, body, nbytes, condition)
        self._counters.add(bytes_written=nbytes)
        return generation

    async def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        self._counters.add(requests=1)
        generation = await self.inner.compose(key, source, segments, condition)
        self._counters.add(bytes_written=sum(s.nbytes for s in segments if not isinstance(s, CopiedRange)))
        return generation

    async def copy(self, source: str, target: str) -> Generation | None:
        self._counters.add(requests=1)
        return await self.inner.copy(source, target)

    async def rename_prefix(self, source: str, target: str) -> bool:
        renamed = await self.inner.rename_prefix(source, target)
        self._counters.add(requests=renamed)  # a kind that cannot asks nobody
        return renamed

    async def delete(self, key: str, condition: Condition) -> bool:
        self._counters.add(requests=1)
        return await self.inner.delete(key, condition)

    async def delete_many(self, keys: Sequence[str]) -> None:
        self._counters.add(requests=-(-len(keys) // KEYS_A_REQUEST))
        await self.inner.delete_many(keys)

    async def stat(self, key: str) -> ObjectInfo | None:
        self._counters.add(requests=1)
        return await self.inner.stat(key)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        listed = 0
        async for found in self.inner.list(prefix):
            if listed % KEYS_A_REQUEST == 0:
                self._counters.add(requests=1)
            listed += 1
            yield found
        if not listed:
            self._counters.add(requests=1)

    async def list_dir(self, prefix: str) -> DirListing:
        self._counters.add(requests=1)
        return await self.inner.list_dir(prefix)
