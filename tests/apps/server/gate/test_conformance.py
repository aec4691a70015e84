"""The contract of storages, read over HTTP from ``/stored/``: objects are written into the directory that is served."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from shardstore.apps.server import serve
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import UNCONDITIONAL, Condition, Generation
from shardstore.model.ranges import BytesLike
from shardstore.opening.open import open_storage
from shardstore.storage.base import Storage
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.requests.writes import check_deletion
from shardstore.testing.storage_suite import StorageSuite, SyncStorage
from tests.storage.shown_elsewhere import ShownElsewhere


class OverHTTP(ShownElsewhere):
    """What is read comes over HTTP, and so do versions; what is written goes into the directory."""

    kind = "http"
    capabilities = Capabilities(pinned_reads=True)  # by versions that the server tells; nothing else of this is the server's

    def __init__(self, shown: Storage, below: LocalStorage) -> None:
        self.shown = shown
        self.below = below
        self.url = shown.url

    @property
    def listing(self) -> Storage:
        return self.below

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        await self.check(key, condition)
        await self.below.write(key, body, nbytes, UNCONDITIONAL)
        generation = await self.generation_of(key)
        assert generation is not None
        return generation

    async def delete(self, key: str, condition: Condition) -> bool:
        check_deletion(key, condition)
        if await self.generation_of(key) is None:
            return False
        await self.check(key, condition)
        return await self.below.delete(key, UNCONDITIONAL)

    async def delete_many(self, keys: Sequence[str]) -> None:
        await self.below.delete_many(keys)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[OverHTTP]:
    place = tmp_path / "served"
    place.mkdir()
    (place / "something").write_bytes(b"so that there is something to serve")
    with serve(place, port=0) as serving:
        (place / "something").unlink()
        yield OverHTTP(open_storage(f"{serving.url}stored/", {}), LocalStorage(place))


class TestStoredOverHTTP(StorageSuite):
    def test_versions_are_told(self, s: SyncStorage) -> None:
        s.put("a", b"1")
        assert s.get("a") == b"1"
        assert isinstance(s.storage, OverHTTP)
        assert s.storage.shown.capabilities.pinned_reads  # which it learns from the first answer
