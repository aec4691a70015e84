"""A storage that lets a test act at the moment of an operation: another writer between two requests, say."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import Condition, Generation
from shardstore.model.ranges import BytesLike, Segment
from shardstore.storage.base import DirListing, Found, ObjectInfo, Read, ReadOutcome, ServerTimes
from shardstore.storage.memory import MemoryStorage
from shardstore.storage.wrappers import StorageWrapper
from tests.documents import array_v3

_numbers = itertools.count()

Hook = Callable[[str, str], Awaitable[None]]


def fresh_memory() -> MemoryStorage:
    """A place of its own in the process-wide memory filesystem."""
    return MemoryStorage(f"/engine-test-{next(_numbers)}")


def read_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let hooked storages be such that cannot look at another object in the same step, as servers."""
    monkeypatch.setattr(HookedStorage, "capabilities", replace(fresh_memory().capabilities, guarded_reads=False))


def tell_times(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Let memory tell when it stored what it answers with, by a clock that ticks with every operation."""
    clock = Clock()
    for name in ("write", "compose", "copy"):
        monkeypatch.setattr(MemoryStorage, name, _noting(getattr(MemoryStorage, name), clock))
    read = MemoryStorage.read

    async def read_at_times(self: MemoryStorage, reads: Sequence[Read]) -> list[ReadOutcome]:
        outcomes = await read(self, reads)
        return [clock.told(outcome) for outcome in outcomes]

    monkeypatch.setattr(MemoryStorage, "read", read_at_times)
    return clock


class Clock:
    """What a server knows of times."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stored: dict[Generation, float] = {}

    def tick(self) -> float:
        self.now += 100  # seconds: more than the clocks of a server's machines may differ by
        return self.now

    def told(self, outcome: ReadOutcome) -> ReadOutcome:
        asked = self.tick()
        if not isinstance(outcome, Found) or outcome.generation not in self.stored:
            return outcome
        return replace(outcome, times=ServerTimes(self.stored[outcome.generation], asked))


def _noting(store: Callable[..., Awaitable[Generation]], clock: Clock) -> Callable[..., Awaitable[Generation]]:
    async def noted(self: MemoryStorage, *arguments: Any) -> Generation:
        generation = await store(self, *arguments)
        clock.stored[generation] = clock.tick()
        return generation

    return noted


class HookedStorage(StorageWrapper):
    """Calls ``before(operation, key)`` ahead of every operation, ``after`` behind every one that changes something; notes it in ``seen``,
    and counts the rounds of reads.

    Without ``renames`` it is of a kind that cannot rename prefixes.
    """

    def __init__(self, inner: MemoryStorage) -> None:
        super().__init__(inner)
        self.seen: list[tuple[str, str]] = []
        self.rounds = 0
        self.before: Hook | None = None
        self.after: Hook | None = None
        self.renames = True
        self.capabilities_override: Capabilities | None = None

    async def _note(self, operation: str, key: str) -> None:
        self.seen.append((operation, key))
        if self.before is not None:
            await self.before(operation, key)

    async def _done(self, operation: str, key: str) -> None:
        if self.after is not None:
            await self.after(operation, key)

    def count(self, operation: str, ending: str = "") -> int:
        return sum(1 for op, key in self.seen if op == operation and key.endswith(ending))

    @property
    def capabilities(self) -> Capabilities:
        return self.capabilities_override or self.inner.capabilities

    async def probe(self) -> Capabilities:
        return self.capabilities

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        self.rounds += 1
        for read in reads:
            await self._note("read", read.key)
        return await self.inner.read(reads)

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        await self._note("write", key)
        generation = await self.inner.write(key, body, nbytes, condition)
        await self._done("write", key)
        return generation

    async def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        await self._note("compose", key)
        generation = await self.inner.compose(key, source, segments, condition)
        await self._done("compose", key)
        return generation

    async def copy(self, source: str, target: str) -> Generation | None:
        await self._note("copy", target)
        generation = await self.inner.copy(source, target)
        await self._done("copy", target)
        return generation

    async def rename_prefix(self, source: str, target: str) -> bool:
        if not self.renames:
            return False
        await self._note("rename_prefix", target)
        renamed = await self.inner.rename_prefix(source, target)
        await self._done("rename_prefix", target)
        return renamed

    async def delete(self, key: str, condition: Condition) -> bool:
        await self._note("delete", key)
        deleted = await self.inner.delete(key, condition)
        await self._done("delete", key)
        return deleted

    async def delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            await self._note("delete", key)
        await self.inner.delete_many(keys)
        for key in keys:
            await self._done("delete", key)

    async def stat(self, key: str) -> ObjectInfo | None:
        await self._note("stat", key)
        return await self.inner.stat(key)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        await self._note("list", prefix)
        async for found in self.inner.list(prefix):
            yield found

    async def list_dir(self, prefix: str) -> DirListing:
        await self._note("list_dir", prefix)
        return await self.inner.list_dir(prefix)


# The bytes of a chunk as they are, which zarr decodes, and of which shardstore does not know that all chunks have one length.
AS_THEY_ARE = [{"name": "bytes"}, {"name": "numcodecs.shuffle", "configuration": {"elementsize": 1}}]


def document(shape: tuple[int, ...], chunks: tuple[int, ...], **members: Any) -> bytes:
    """The presented document of a uint8 array whose chunks may have any length."""
    codecs = [{"name": "bytes"}, {"name": "gzip", "configuration": {"level": 1}}]
    return json.dumps(array_v3(shape, chunks, codecs=codecs, attributes={}) | members).encode()
