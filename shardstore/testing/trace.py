"""A storage that records every request that it forwards, so that tests can assert their number and their bytes."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from shardstore.model.generation import Condition, Generation
from shardstore.model.ranges import ByteRequest, BytesLike, CopiedRange, Segment
from shardstore.storage.base import DirListing, Found, ObjectInfo, Read, ReadOutcome, Storage
from shardstore.storage.wrappers import KEYS_A_REQUEST, StorageWrapper

__all__ = ["Event", "Summary", "TraceStorage", "summarised"]


@dataclass(frozen=True, slots=True)
class Event:
    """One operation; for a read, one range."""

    op: str
    """The operation: ``read``, ``write``, ``compose``, ``copy``, ``rename_prefix``, ``delete``, ``delete_many``, ``list``, ``list_dir`` or
    ``stat``.
    """
    key: str
    """The key or prefix; for ``delete_many`` the first key, for ``copy`` and ``rename_prefix`` the target."""
    round: int
    """The number of ``read`` calls until this one ended, including itself."""
    range: ByteRequest | None = None
    """The range as it was asked for; only for reads."""
    nbytes: int = 0
    """Bytes that went through: read or written, without those that the storage copied."""
    copied_nbytes: int = 0
    """Bytes that ``compose`` copied; ``copy`` does not say how many it copied."""
    requests: int = 1
    """The number of requests that this takes on an object store."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Sums over events."""

    requests: int
    bytes_read: int
    bytes_written: int
    bytes_copied: int
    rounds: int
    """The number of calls of ``read``."""


def summarised(events: Sequence[Event]) -> Summary:
    """Return the sums over ``events``."""
    return Summary(
        requests=sum(event.requests for event in events),
        bytes_read=sum(event.nbytes for event in events if event.op == "read"),
        bytes_written=sum(event.nbytes for event in events if event.op in ("write", "compose")),
        bytes_copied=sum(event.copied_nbytes for event in events),
        rounds=len({event.round for event in events if event.op == "read"}),
    )


class TracedBlock:
    """The events in a ``with storage.count() as block:``; complete once the block ended."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def summary(self) -> Summary:
        return summarised(self.events)


class TraceStorage(StorageWrapper):
    """Forwards everything to ``inner`` and records it in ``events``. A pickle starts with no events."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.events: list[Event] = []
        self._blocks: list[TracedBlock] = []
        self._rounds = 0
        self._lock = threading.Lock()  # events come on the IO loop, tests ask from theirs

    def __reduce__(self) -> tuple[type[TraceStorage], tuple[Storage]]:
        return type(self), (self.inner,)

    def __repr__(self) -> str:
        return f"TraceStorage({self.inner!r})"

    def reset(self) -> None:
        """Forget all events."""
        with self._lock:
            self.events.clear()
            self._rounds = 0

    def summary(self) -> Summary:
        """Return the sums over all events since the start or ``reset``."""
        with self._lock:
            return summarised(self.events)

    @contextmanager
    def count(self) -> Iterator[TracedBlock]:
        """Record what happens inside a ``with`` block separately, whatever ``reset`` does."""
        block = TracedBlock()
        with self._lock:
            self._blocks.append(block)
        try:
            yield block
        finally:
            with self._lock:
                self._blocks.remove(block)

    def _record(self, *events: Event) -> None:
        with self._lock:
            self.events.extend(events)
            for block in self._blocks:
                block.events.extend(events)

    # -- the protocol --------------------------------------------------------------------------------------------------

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        with self._lock:
            self._rounds += 1
            this_round = self._rounds
        outcomes = await self.inner.read(reads)
        events: list[Event] = []
        for read, outcome in zip(reads, outcomes, strict=True):
            if not read.ranges:
                events.append(Event("read", read.key, this_round))
            for i, asked in enumerate(read.ranges):
                nbytes = len(outcome.buffers[i]) if isinstance(outcome, Found) else 0
                events.append(Event("read", read.key, this_round, asked, nbytes))
        self._record(*events)
        return outcomes

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        sent = 0
        try:
            generation = await self.inner.write(key, body, nbytes, condition)
            sent = nbytes
        finally:
            self._record(Event("write", key, self._rounds, nbytes=sent))
        return generation

    async def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        sent = copied = 0
        try:
            generation = await self.inner.compose(key, source, segments, condition)
            copied = sum(segment.nbytes for segment in segments if isinstance(segment, CopiedRange))
            sent = sum(segment.nbytes for segment in segments) - copied
        finally:
            self._record(Event("compose", key, self._rounds, nbytes=sent, copied_nbytes=copied))
        return generation

    async def copy(self, source: str, target: str) -> Generation | None:
        self._record(Event("copy", target, self._rounds))
        return await self.inner.copy(source, target)

    async def rename_prefix(self, source: str, target: str) -> bool:
        renamed = await self.inner.rename_prefix(source, target)
        if renamed:  # a kind that cannot rename makes no request
            self._record(Event("rename_prefix", target, self._rounds))
        return renamed

    async def delete(self, key: str, condition: Condition) -> bool:
        self._record(Event("delete", key, self._rounds))
        return await self.inner.delete(key, condition)

    async def delete_many(self, keys: Sequence[str]) -> None:
        if keys:
            self._record(Event("delete_many", keys[0], self._rounds, requests=-(-len(keys) // KEYS_A_REQUEST)))
        await self.inner.delete_many(keys)

    async def stat(self, key: str) -> ObjectInfo | None:
        self._record(Event("stat", key, self._rounds))
        return await self.inner.stat(key)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        listed = 0
        try:
            async for info in self.inner.list(prefix):
                listed += 1
                yield info
        finally:
            self._record(Event("list", prefix, self._rounds, requests=max(1, -(-listed // KEYS_A_REQUEST))))

    async def list_dir(self, prefix: str) -> DirListing:
        listing = await self.inner.list_dir(prefix)
        shown = len(listing.objects) + len(listing.prefixes)
        self._record(Event("list_dir", prefix, self._rounds, requests=max(1, -(-shown // KEYS_A_REQUEST))))
        return listing
