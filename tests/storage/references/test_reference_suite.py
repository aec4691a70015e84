"""The contract of storages for sets of references: objects are written elsewhere, and referred to."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from shardstore.model.generation import UNCONDITIONAL, Condition, Generation
from shardstore.model.ranges import BytesLike
from shardstore.storage.memory import MemoryStorage
from shardstore.storage.references.storage import ReferenceStorage
from shardstore.storage.requests.writes import check_deletion
from shardstore.testing.storage_suite import StorageSuite
from tests.storage.references.reference_sets import open_references
from tests.storage.shown_elsewhere import ShownElsewhere

BEFORE, BEHIND = b"before", b"behind it"


class Referred(ShownElsewhere):
    """A set of references that is made anew at each write; the objects are in memory, whole or within others."""

    def __init__(self, form: str) -> None:
        self.form = form
        self.below = MemoryStorage(f"/referred-{uuid.uuid4().hex}")
        self.refs: dict[str, list[Any]] = {}
        self.shown: ReferenceStorage = self._made()

    def _made(self) -> ReferenceStorage:
        return open_references({"version": 1, "refs": self.refs})

    url = "reference://set"
    kind = "references"

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        await self.check(key, condition)
        place = f"{uuid.uuid4().hex} #?%20"

        async def padded() -> AsyncIterator[BytesLike]:
            yield BEFORE
            if isinstance(body, AsyncIterator):
                async for piece in body:
                    yield piece
            else:
                for piece in body:
                    yield piece
            yield BEHIND

        whole = self.form == "whole"
        stored = nbytes if whole else nbytes + len(BEFORE + BEHIND)
        await self.below.write(place, body if whole else padded(), stored, UNCONDITIONAL)
        self.refs = {**self.refs, key: [f"{self.below.url}/{place}", *([] if whole else [len(BEFORE), nbytes])]}
        self.shown = self._made()
        generation = await self.generation_of(key)
        assert generation is not None
        return generation

    async def delete(self, key: str, condition: Condition) -> bool:
        check_deletion(key, condition)
        if key not in self.refs:
            return False
        await self.check(key, condition)
        self.refs = {name: value for name, value in self.refs.items() if name != key}
        self.shown = self._made()
        return True

    async def delete_many(self, keys: Sequence[str]) -> None:
        self.refs = {name: value for name, value in self.refs.items() if name not in keys}
        self.shown = self._made()


@pytest.fixture(params=["whole", "ranges"])
def storage(request: pytest.FixtureRequest) -> Referred:
    return Referred(request.param)


class TestReferenceStorage(StorageSuite):
    pass
