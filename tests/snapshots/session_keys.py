"""Sessions as storages of keys of any kind: suites write keys that a session does not hold, so each is turned into the key of a chunk."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from shardstore.format.store_keys import join
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import UNCONDITIONAL, Condition, Generation, IfGeneration
from shardstore.model.ranges import BytesLike
from shardstore.snapshots import Repository
from shardstore.snapshots.session_storage import SessionStorage
from shardstore.storage.base import DirListing, Found, ObjectInfo, Read, ReadOutcome, ReadsAndWrites, check_directory, direct_children
from shardstore.testing.storage_suite import SyncStorage
from tests.documents import array_v3
from tests.under_array import GRID, RANK, chunk_key, suite_key


def array_document(shape: Sequence[int], chunk_shape: Sequence[int], **members: Any) -> bytes:
    """Return the document of an array of bytes."""
    return json.dumps(array_v3(shape, chunk_shape, **members)).encode()


class Chunks(ABC):
    """How keys are turned into those of chunks."""

    @abstractmethod
    def document(self, key: str) -> tuple[str, bytes]:
        """Return the key and the bytes of the document that has to be there before the chunk of ``key`` is written."""

    @abstractmethod
    def chunk(self, key: str) -> str:
        """Return the key of the chunk."""

    @abstractmethod
    def key(self, chunk: str) -> str | None:
        """Return the key whose chunk it is; ``None`` if it is no chunk."""


class OneArray(Chunks):
    """Each key is a chunk of one large array, one dimension for each level of the key."""

    def __init__(self, path: str) -> None:
        self._path = path

    def document(self, key: str) -> tuple[str, bytes]:
        return join(self._path, "zarr.json"), array_document([GRID] * RANK, [1] * RANK)

    def chunk(self, key: str) -> str:
        # A key that is deeper than the array has dimensions is never written by a suite.
        return join(self._path, chunk_key(key) if key.count("/") < RANK else key)

    def key(self, chunk: str) -> str | None:
        return None if chunk.endswith("zarr.json") else suite_key(chunk[len(join(self._path, "c/")) - 2 :])


class ArrayForEach(Chunks):
    """Each key is the path of an array without dimensions, which has one chunk. The name of documents, which no array can have, is another
    one there.
    """

    def document(self, key: str) -> tuple[str, bytes]:
        return f"{self._path(key)}/zarr.json", array_document([], [])

    def chunk(self, key: str) -> str:
        return f"{self._path(key)}/c"

    def key(self, chunk: str) -> str | None:
        return chunk.removesuffix("/c").replace("zarr~json", "zarr.json") if chunk.endswith("/c") else None

    @staticmethod
    def _path(key: str) -> str:
        return key.replace("zarr.json", "zarr~json")


class SessionOfKeys(ReadsAndWrites):
    """A writable session that holds keys of any kind. ``renew`` commits what was written, and goes on in a new session.

    Versions have other names in each session, so that no name of one session is taken for that of another.
    """

    kind = "snapshot"

    def __init__(self, repo: Repository, chunks: Chunks) -> None:
        self._repo = repo
        self._chunks = chunks
        self._sessions = 0
        self._shown: dict[tuple[str, str], Generation] = {}
        self._stored: dict[tuple[str, Generation], str] = {}
        self._written: dict[str, Generation] = {}
        self._open()

    def _open(self) -> None:
        self.session = self._repo.writable_session()
        self._sessions += 1

    @property
    def below(self) -> SessionStorage:
        return self.session.storage

    def renew(self) -> None:
        """Commit what was written, and go on in a new session; versions keep their names."""
        if not self.session.has_uncommitted_changes:
            return
        self.session.commit("renewed")
        written, self._written = self._written, {}
        self._open()
        below = SyncStorage(self.below)
        for key, shown in written.items():
            info = below.stat(self._chunks.chunk(key))
            if info is not None:
                assert info.generation is not None
                self._name(key, info.generation, shown)

    # -- versions ------------------------------------------------------------------------------------------------------

    def _name(self, key: str, stored: Generation, shown: Generation) -> None:
        before = self._shown.pop((key, stored.token), None)
        if before is not None:  # the same bytes again, as far as what is stored tells
            self._stored.pop((key, before), None)
        self._shown[key, stored.token] = shown
        self._stored[key, shown] = stored.token

    def _show(self, key: str, stored: Generation) -> Generation:
        shown = self._shown.get((key, stored.token))
        if shown is None or stored.token.startswith("w"):
            shown = Generation(f"{self._sessions}:{stored.token}")
            self._name(key, stored, shown)
        return shown

    def _below(self, key: str, shown: Generation) -> Generation:
        return Generation(self._stored.get((key, shown), "none of this session"))

    def _condition(self, key: str, condition: Condition) -> Condition:
        return IfGeneration(self._below(key, condition.generation)) if isinstance(condition, IfGeneration) else condition

    # -- the storage ---------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return self.below.url

    @property
    def capabilities(self) -> Capabilities:
        return self.below.capabilities

    async def probe(self) -> Capabilities:
        return await self.below.probe()

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        asked = [
            replace(
                read,
                key=self._chunks.chunk(read.key),
                generation=None if read.generation is None else self._below(read.key, read.generation),
            )
            for read in reads
        ]
        return [
            replace(outcome, generation=self._show(read.key, outcome.generation)) if isinstance(outcome, Found) else outcome
            for read, outcome in zip(reads, await self.below.read(asked), strict=True)
        ]

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        document, data = self._chunks.document(key)
        if await self.below.stat(document) is None:
            await self.below.write(document, [data], len(data), UNCONDITIONAL)
        stored = await self.below.write(self._chunks.chunk(key), body, nbytes, self._condition(key, condition))
        self._written[key] = self._show(key, stored)
        return self._written[key]

    async def rename_prefix(self, source: str, target: str) -> bool:
        if isinstance(self._chunks, OneArray):
            return await self.below.rename_prefix(*(self._chunks.chunk(path).removesuffix("/0") for path in (source, target)))
        if not [info async for info in self.list(f"{source}/")]:
            return False
        return await self.below.rename_prefix(source, target)

    async def delete(self, key: str, condition: Condition) -> bool:
        return await self.below.delete(self._chunks.chunk(key), self._condition(key, condition))

    async def delete_many(self, keys: Sequence[str]) -> None:
        await self.below.delete_many([self._chunks.chunk(key) for key in keys])

    def _info(self, key: str, info: ObjectInfo) -> ObjectInfo:
        assert info.generation is not None
        return ObjectInfo(key, info.nbytes, self._show(key, info.generation))

    async def stat(self, key: str) -> ObjectInfo | None:
        info = await self.below.stat(self._chunks.chunk(key))
        return None if info is None else self._info(key, info)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        found: list[ObjectInfo] = []
        async for info in self.below.list(""):
            key = self._chunks.key(info.key)
            if key is not None and key.startswith(prefix):
                found.append(self._info(key, info))
        for info in sorted(found):
            yield info

    async def list_dir(self, prefix: str) -> DirListing:
        check_directory(prefix)
        infos = {info.key: info async for info in self.list(prefix)}
        keys, prefixes = direct_children(infos, prefix)
        return DirListing(tuple(infos[key] for key in keys), prefixes)

    async def close(self) -> None:
        await self.below.close()


class RenewingSession(SyncStorage):
    """Calls a session from a test, and renews it before each call that looks: so what is seen was committed, and is read from files."""

    storage: SessionOfKeys

    def read_many(self, *reads: Read) -> list[ReadOutcome]:
        self.storage.renew()
        return super().read_many(*reads)

    def stat(self, key: str) -> ObjectInfo | None:
        self.storage.renew()
        return super().stat(key)

    def infos(self, prefix: str = "") -> list[ObjectInfo]:
        self.storage.renew()
        return super().infos(prefix)
