"""A storage whose objects are written in one place, and read and told by another one: for the contract of storages that only read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import Condition, Generation, IfAbsent, IfGeneration
from shardstore.storage.base import ConditionFailed, DirListing, Found, ObjectInfo, Read, ReadOutcome, ReadsAndWrites, Storage


class ShownElsewhere(ReadsAndWrites):
    """What ``shown`` reads, with its versions; subclasses write, so that it shows what they have written."""

    shown: Storage
    capabilities = Capabilities()

    async def probe(self) -> Capabilities:
        return self.capabilities

    @property
    def listing(self) -> Storage:
        """The storage that lists; its versions are not used."""
        return self.shown

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        return await self.shown.read(reads)

    async def generation_of(self, key: str) -> Generation | None:
        """Return the version of an object, as it is shown."""
        (outcome,) = await self.shown.read([Read(key, ())])
        return outcome.generation if isinstance(outcome, Found) else None

    async def check(self, key: str, condition: Condition) -> None:
        """Raise ``ConditionFailed`` if the condition does not hold for what is shown."""
        found = await self.generation_of(key)
        is_there = isinstance(condition, IfAbsent) and found is not None
        if is_there or (isinstance(condition, IfGeneration) and found != condition.generation):
            raise ConditionFailed(key)

    async def _seen(self, info: ObjectInfo) -> ObjectInfo:
        return info._replace(generation=await self.generation_of(info.key))

    async def stat(self, key: str) -> ObjectInfo | None:
        info = await self.shown.stat(key)
        return None if info is None else await self._seen(info)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for info in self.listing.list(prefix):
            yield await self._seen(info)

    async def list_dir(self, prefix: str) -> DirListing:
        listing = await self.listing.list_dir(prefix)
        return replace(listing, objects=tuple([await self._seen(info) for info in listing.objects]))

    async def close(self) -> None:
        await self.shown.close()
