"""A storage whose requests take as long as on a network, for tests and benchmarks of waiting times."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from shardstore.model.generation import Condition, Generation
from shardstore.model.ranges import BytesLike, CopiedRange, Segment
from shardstore.storage.base import DirListing, Found, ObjectInfo, Read, ReadOutcome, Storage
from shardstore.storage.requests.outcomes import Bound
from shardstore.storage.wrappers import KEYS_A_REQUEST, Sleep, StorageWrapper

__all__ = ["LatencyStorage"]


class LatencyStorage(StorageWrapper):
    """Forwards to ``inner``; every request first takes ``seconds``, and its bytes their time at ``bandwidth`` bytes a second.

    At most ``concurrency`` requests run at once; each of them has the whole bandwidth. ``sleep`` is called for each.
    """

    def __init__(
        self, inner: Storage, seconds: float, bandwidth: float | None = None, concurrency: int = 64, sleep: Sleep = asyncio.sleep
    ) -> None:
        super().__init__(inner)
        self.seconds = seconds
        self.bandwidth = bandwidth
        self.sleep = sleep
        self._bound = Bound(concurrency)

    def __reduce__(self) -> tuple[type[LatencyStorage], tuple[Storage, float, float | None, int, Sleep]]:
        return type(self), (self.inner, self.seconds, self.bandwidth, self._bound.limit, self.sleep)

    def __repr__(self) -> str:
        return f"LatencyStorage({self.inner!r}, {self.seconds}, {self.bandwidth})"

    async def _request(self, nbytes: int = 0) -> None:
        async with self._bound.slot():
            await self.sleep(self.seconds + (nbytes / self.bandwidth if self.bandwidth else 0.0))

    async def _requests(self, sizes: Sequence[int]) -> None:
        await asyncio.gather(*(self._request(nbytes) for nbytes in sizes))

    # -- the protocol --------------------------------------------------------------------------------------------------

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        outcomes = await self.inner.read(reads)
        sizes: list[int] = []
        for read, outcome in zip(reads, outcomes, strict=True):
            lengths = [len(buffer) for buffer in outcome.buffers] if isinstance(outcome, Found) else [0] * len(read.ranges)
            sizes += lengths or [0]
        await self._requests(sizes)
        return outcomes

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        await self._request(nbytes)
        return await self.inner.write(key, body, nbytes, condition)

    async def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        await self._request(sum(segment.nbytes for segment in segments if not isinstance(segment, CopiedRange)))
        return await self.inner.compose(key, source, segments, condition)

    async def copy(self, source: str, target: str) -> Generation | None:
        await self._request()
        return await self.inner.copy(source, target)

    async def rename_prefix(self, source: str, target: str) -> bool:
        renamed = await self.inner.rename_prefix(source, target)
        if renamed:  # a kind that cannot rename makes no request
            await self._request()
        return renamed

    async def delete(self, key: str, condition: Condition) -> bool:
        await self._request()
        return await self.inner.delete(key, condition)

    async def delete_many(self, keys: Sequence[str]) -> None:
        await self._requests([0] * -(-len(keys) // KEYS_A_REQUEST))
        await self.inner.delete_many(keys)

    async def stat(self, key: str) -> ObjectInfo | None:
        await self._request()
        return await self.inner.stat(key)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        await self._request()
        listed = 0
        async for info in self.inner.list(prefix):
            if listed and listed % KEYS_A_REQUEST == 0:
                await self._request()
            listed += 1
            yield info

    async def list_dir(self, prefix: str) -> DirListing:
        await self._request()
        return await self.inner.list_dir(prefix)
