"""The storage that an engine presents below another engine: a ``ShardingTransformer`` on top of a ``ShardingTransformer``.

Specification: sharding storage transformer 1.0 (draft), "API implementation": "the next storage transformer in the stack".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from shardstore.engine.actions import Swap, Swapped
from shardstore.errors import ReadOnly
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import Condition, Generation
from shardstore.model.ranges import BytesLike
from shardstore.presented.flavours import Presented
from shardstore.storage.abilities import DocumentsFirst
from shardstore.storage.base import UNKNOWN_NBYTES, DirListing, ObjectInfo, Read, ReadOutcome, ReadsAndWrites, check_directory
from shardstore.storage.requests.writes import check_deletion, failed, joined


class EngineStorage(ReadsAndWrites, DocumentsFirst):
    """The presented values of ``engine`` as a storage: its chunks are objects, which can be read and replaced by their version."""

    def __init__(self, engine: Presented, *, read_only: bool = False) -> None:
        self._engine = engine
        engine.keep_versions()
        self._read_only = read_only

    @property
    def url(self) -> str:
        return f"sharded::{self._engine.storage.url}"

    @property
    def kind(self) -> str:
        return self._engine.storage.kind

    @property
    def capabilities(self) -> Capabilities:
        below = self._engine.storage.capabilities
        return Capabilities(
            pinned_reads=below.pinned_reads,
            create_if_absent=below.atomic_commits,
            compare_and_swap=below.atomic_commits,
            conditional_delete=below.atomic_commits and below.conditional_delete,
            unique_versions=below.unique_versions,
            exactly_once=below.exactly_once,
            durable=below.durable,
            across_machines=below.across_machines,
        )

    async def probe(self) -> Capabilities:
        await self._engine.storage.probe()
        return self.capabilities

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        return await self._engine.read_versions(reads)

    async def _swap(self, key: str, data: bytes | None, condition: Condition) -> Swapped:
        self._check_writable()
        outcome = Swapped()
        (error,) = await self._engine.update_many([(key, Swap(data, condition, outcome))])
        if error is not None:
            raise error
        if not outcome.happened and (outcome.existed or data is not None):
            raise failed(key, self.url)
        return outcome

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        """The version of a document is that of its bytes as they are shown: where they are written otherwise, the next condition on what
        is returned here fails, and the caller has to read it again.
        """
        outcome = await self._swap(key, await joined(body, nbytes, key), condition)
        assert outcome.version is not None
        return outcome.version

    async def delete(self, key: str, condition: Condition) -> bool:
        check_deletion(key, condition)
        return (await self._swap(key, None, condition)).existed

    async def delete_many(self, keys: Sequence[str]) -> None:
        self._check_writable()
        await self._engine.erase_many(keys)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for value in self._engine.list(prefix):
            yield ObjectInfo(value.key, await self._nbytes(value.key, value.nbytes))

    async def list_dir(self, prefix: str) -> DirListing:
        check_directory(prefix)
        listed = await self._engine.list_dir(prefix)
        objects = [ObjectInfo(value.key, await self._nbytes(value.key, value.nbytes)) for value in listed.values]
        return DirListing(tuple(sorted(objects, key=lambda info: info.key)), tuple(sorted(listed.prefixes)))

    async def _nbytes(self, key: str, listed: int | None) -> int:
        nbytes = listed if listed is not None else await self._engine.size(key)
        return UNKNOWN_NBYTES if nbytes is None else nbytes

    def _check_writable(self) -> None:
        if self._read_only:
            raise ReadOnly(f"{self.url} was opened read-only: open it with read_only=False to write")

    async def close(self) -> None:
        """Do nothing: the engine is the user's, and stays open."""
