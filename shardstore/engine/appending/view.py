"""A place in which the arrays of an append are as long as they will be, to store the rows of one reservation through."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardstore.engine.appending.line import Place, read_record
from shardstore.errors import InvalidInput
from shardstore.format.v2.keys import is_document
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import Condition, Generation, Unconditional
from shardstore.model.ranges import BytesLike, Segment, cut
from shardstore.storage.base import ABSENT, ConditionFailed, DirListing, Found, ObjectInfo, Read, ReadOutcome, Storage, direct_children
from shardstore.storage.wrappers import StorageWrapper
from shardstore.tasks import Joined, moment


class GrownView(StorageWrapper):
    """``inner`` with longer arrays, whose documents are in memory; nothing but their chunks can be changed.

    Each write of a shard or chunk is on condition of the version that was read, and asks the record in between whether ``place`` still
    stands: ``ReservationMoved`` if not.
    """

    def __init__(self, inner: Storage, documents: Mapping[str, bytes], record_key: str, place: Place) -> None:
        super().__init__(inner)
        self._documents = dict(documents)
        self._record_key = record_key
        self._place = place
        self._questions: Joined[None] = Joined()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_questions": Joined()}

    @property
    def capabilities(self) -> Capabilities:
        # As where requests can be late: so whole shards are stored on condition too. And the documents are no objects that could guard.
        return replace(self.inner.capabilities, exactly_once=False, guarded_reads=False)

    async def probe(self) -> Capabilities:
        await self.inner.probe()
        return self.capabilities

    async def _ask(self) -> None:
        """Ask the record after this call, once for all writes that wait at the same time."""
        await self._questions.get(self._record_key, self._question, moment(), patiently=True)

    async def _question(self) -> None:
        record, _ = await read_record(self.inner, self._record_key)
        self._place.check(self._record_key, record)

    # -- reading: documents in memory, and no other documents ----------------------------------------------------------

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        stored = [read for read in reads if not is_document(read.key)]
        outcomes = iter(await self.inner.read(stored) if stored else [])
        return [self._document(read) if is_document(read.key) else next(outcomes) for read in reads]

    def _document(self, read: Read) -> ReadOutcome:
        data = self._documents.get(read.key)
        if data is None:
            return ABSENT
        return Found(_OF_DOCUMENTS, len(data), tuple(cut(memoryview(data), wanted) for wanted in read.ranges))

    async def stat(self, key: str) -> ObjectInfo | None:
        if not is_document(key):
            return await self.inner.stat(key)
        data = self._documents.get(key)
        return None if data is None else ObjectInfo(key, len(data), _OF_DOCUMENTS)

    async def list_dir(self, prefix: str) -> DirListing:
        """Return the documents, and the directories that have some: nothing else has to be found here."""
        keys, prefixes = direct_children((key for key in self._documents if key.startswith(prefix)), prefix)
        return DirListing(tuple(ObjectInfo(key, len(self._documents[key]), _OF_DOCUMENTS) for key in keys), prefixes)

    # -- writing: chunks, behind the fence -----------------------------------------------------------------------------

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        self._check_chunk(key)
        if not isinstance(condition, Unconditional):
            await self._ask()
            return await self.inner.write(key, body, nbytes, condition)
        assert not isinstance(body, AsyncIterator)  # which could not be sent again: objects that are written whatever is there come whole
        while True:  # as long as the place stands, only late writes of those before can come between
            there = await self.inner.stat(key)
            await self._ask()
            condition = self.inner.capabilities.condition_on(None if there is None else there.generation)
            try:
                return await self.inner.write(key, body, nbytes, condition)
            except ConditionFailed:
                continue

    async def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        self._check_chunk(key)
        await self._ask()
        return await self.inner.compose(key, source, segments, condition)

    async def delete(self, key: str, condition: Condition) -> bool:
        raise self._refusal(key)

    async def delete_many(self, keys: Sequence[str]) -> None:
        if keys:
            raise self._refusal(keys[0])

    async def copy(self, source: str, target: str) -> Generation | None:
        raise self._refusal(target)

    async def rename_prefix(self, source: str, target: str) -> bool:
        raise self._refusal(target)

    def _check_chunk(self, key: str) -> None:
        if is_document(key):
            raise self._refusal(key)

    def _refusal(self, key: str) -> InvalidInput:
        return InvalidInput(f"{key!r} is not changed: an append to {self.url} stores the chunks of its rows, and nothing else")


_OF_DOCUMENTS = Generation("as long as it will be")
