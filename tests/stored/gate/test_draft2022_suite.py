"""The contract of every storage, for the data of a 2022-draft hierarchy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from shardstore.model.generation import Condition, Generation
from shardstore.model.ranges import BytesLike, Segment
from shardstore.storage.base import DirListing, ObjectInfo, Read, ReadOutcome, Storage
from shardstore.storage.wrappers import StorageWrapper
from shardstore.stored.draft2022.storage import DraftStorage
from shardstore.testing.storage_suite import StorageSuite

_DOCUMENT = "zarr.json"  # the suite writes any bytes there


def _inside(key: str) -> str:
    """Below a node, and no document: its bytes are the suite's."""
    return f"s/{key}_" if key.rpartition("/")[2] == _DOCUMENT else f"s/{key}"


def _outside(key: str) -> str:
    key = key.removeprefix("s/")
    return key.removesuffix("_") if key.endswith(f"{_DOCUMENT}_") else key


class AsData(StorageWrapper):
    """All keys as keys of data of one node."""

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        return await self.inner.read(
            [replace(r, key=_inside(r.key), guard=None if r.guard is None else replace(r.guard, key=_inside(r.guard.key))) for r in reads]
        )

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        return await self.inner.write(_inside(key), body, nbytes, condition)

    async def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        return await self.inner.compose(_inside(key), source, segments, condition)

    async def copy(self, source: str, target: str) -> Generation | None:
        return await self.inner.copy(_inside(source), _inside(target))

    async def rename_prefix(self, source: str, target: str) -> bool:
        return await self.inner.rename_prefix(_inside(source), _inside(target))

    async def delete(self, key: str, condition: Condition) -> bool:
        return await self.inner.delete(_inside(key), condition)

    async def delete_many(self, keys: Sequence[str]) -> None:
        await self.inner.delete_many([_inside(key) for key in keys])

    async def stat(self, key: str) -> ObjectInfo | None:
        info = await self.inner.stat(_inside(key))
        return None if info is None else info._replace(key=key)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for info in self.inner.list(f"s/{prefix}"):
            yield info._replace(key=_outside(info.key))

    async def list_dir(self, prefix: str) -> DirListing:
        # Without a slash it names no directory, which the storage itself has to say.
        listed = await self.inner.list_dir(f"s/{prefix}")
        objects = tuple(info._replace(key=_outside(info.key)) for info in listed.objects)
        return DirListing(objects, tuple(below.removeprefix("s/") for below in listed.prefixes))


class TestDraftStorage(StorageSuite):
    @pytest.fixture
    def storage(self, inner: Storage) -> Storage:
        return AsData(DraftStorage(inner))
