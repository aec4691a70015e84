"""A store of zarr-python whose requests are counted and take as long as on a network; the twin of shardstore's ``LatencyStorage``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from counting_s3 import Counts
from zarr.abc.store import Store
from zarr.storage import WrapperStore

if TYPE_CHECKING:
    from zarr.abc.store import ByteRequest
    from zarr.core.buffer import Buffer, BufferPrototype

_CONCURRENCY = 64  # as LatencyStorage; zarr-python itself asks for no more than ten keys at once
_KEYS_A_REQUEST = 1000


class MeteredStore(WrapperStore[Store]):
    """Forwards to ``store``; every request first takes ``seconds``. What coalesces requests above it does so as over any other store."""

    def __init__(self, store: Store, seconds: float, counts: Counts | None = None) -> None:
        super().__init__(store)
        self.seconds = seconds
        self.counts = Counts({"requests": 0}) if counts is None else counts
        self._slots = asyncio.Semaphore(_CONCURRENCY)

    def so_far(self) -> Counts:
        """What was counted until now."""
        return Counts(dict(self.counts.requests), self.counts.bytes_read, self.counts.bytes_written)

    def _with_store(self, store: Store) -> MeteredStore:
        return type(self)(store, self.seconds, self.counts)

    async def _request(self, nbytes_written: int = 0) -> None:
        self.counts.requests["requests"] += 1
        self.counts.bytes_written += nbytes_written
        async with self._slots:
            await asyncio.sleep(self.seconds)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        await self._request()
        value = await self._store.get(key, prototype, byte_range)
        self.counts.bytes_read += 0 if value is None else len(value)
        return value

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        return list(await asyncio.gather(*(self.get(key, prototype, wanted) for key, wanted in key_ranges)))

    async def get_ranges(self, key: str, byte_ranges: Sequence[ByteRequest | None], **options: Any) -> AsyncIterator[Any]:
        """zarr's own merging of ranges (3.2 and newer), over ``get``: a wrapper would hand them to the inner store."""
        given = {name: value for name, value in options.items() if value is not None}
        coalescing: Any = Store
        async for group in coalescing.get_ranges(self, key, byte_ranges, **given):
            yield group

    async def _get_many(
        self, requests: Iterable[tuple[str, BufferPrototype, ByteRequest | None]]
    ) -> AsyncGenerator[tuple[str, Buffer | None], None]:
        async for found in Store._get_many(self, requests):
            yield found

    @property
    def _supports_sync_io(self) -> bool:
        return False  # what is far away is read by coroutines

    async def exists(self, key: str) -> bool:
        await self._request()
        return await self._store.exists(key)

    async def set(self, key: str, value: Buffer) -> None:
        await self._request(len(value))
        await self._store.set(key, value)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        await self._request(len(value))
        await self._store.set_if_not_exists(key, value)

    async def _set_many(self, values: Iterable[tuple[str, Buffer]]) -> None:
        await asyncio.gather(*(self.set(key, value) for key, value in values))

    async def delete(self, key: str) -> None:
        await self._request()
        await self._store.delete(key)

    async def _listed(self, names: AsyncIterator[str]) -> AsyncIterator[str]:
        await self._request()
        number = 0
        async for name in names:
            if number and number % _KEYS_A_REQUEST == 0:
                await self._request()
            number += 1
            yield name

    def list(self) -> AsyncIterator[str]:
        return self._listed(self._store.list())

    def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        return self._listed(self._store.list_prefix(prefix))

    def list_dir(self, prefix: str) -> AsyncIterator[str]:
        return self._listed(self._store.list_dir(prefix))
