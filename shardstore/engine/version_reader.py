"""Reads values together with their versions. An engine on top of another engine reads through this."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from shardstore.engine.actions import content_version
from shardstore.engine.index_cache import StaleLayout, each_with_fresh_layout, parse_chunk_version
from shardstore.engine.metadata.hierarchy import ChunkTarget, MetadataTarget, PlainTarget, Target
from shardstore.engine.reading.reader import Reader
from shardstore.engine.reading.shard_chunks import Value, group_by_shard
from shardstore.engine.values import Values, unreadable
from shardstore.errors import Conflict, NotFound, ShardStoreError
from shardstore.model.generation import Generation
from shardstore.model.ranges import ByteRange, cut
from shardstore.storage.base import ABSENT, CHANGED, Failed, Found, Read, ReadOutcome, Storage

_NO_BYTES = ByteRange(0, 0)


@dataclass(eq=False, repr=False)
class VersionReader:
    """Reads the values of one store together with their versions."""

    _storage: Storage
    _values: Values
    _reader: Reader

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        """Read presented values as ``Storage.read`` reads objects: all ranges of one version, or of the one that is asked for.

        Two rounds of requests where only chunks are read: indices, then chunks; one where their versions are given.
        """
        outcomes: list[ReadOutcome] = [ABSENT] * len(reads)

        async def attempt(pending: list[int]) -> list[int]:
            targets = await self._values.locate_each([reads[i].key for i in pending], for_write=True)
            return await self._read_located(pending, targets, reads, outcomes)

        for i in await each_with_fresh_layout(range(len(reads)), attempt):
            outcomes[i] = Failed(Conflict(f"the metadata that decides where {reads[i].key!r} lies kept changing; try again"))
        return outcomes

    async def _read_located(
        self, numbers: Sequence[int], targets: Sequence[Target | ShardStoreError], reads: Sequence[Read], outcomes: list[ReadOutcome]
    ) -> list[int]:
        """Read what was located; return the numbers of the reads that have to be located again."""
        chunks: list[tuple[int, ChunkTarget]] = []
        of_shards: list[tuple[int, Read]] = []  # chunks of a version that is given
        plain: list[int] = []
        documents: list[tuple[int, str]] = []
        for i, target in zip(numbers, targets, strict=True):
            read = reads[i]
            match target:
                case ChunkTarget() if read.generation is None:
                    chunks.append((i, target))
                case ChunkTarget():
                    if (inside := self._reader.shard_read(read, target)) is None:
                        outcomes[i] = CHANGED
                    else:
                        of_shards.append((i, inside))
                case PlainTarget(may_read=True):
                    plain.append(i)
                case MetadataTarget(_, path):
                    documents.append((i, path))
                case _:
                    outcomes[i] = _outcome_without_read(target)
        again, found, contents = await asyncio.gather(
            self._read_chunks(chunks, reads, outcomes),
            self._storage.read(
                [*(read for _, read in of_shards), *(Read(reads[i].key, reads[i].ranges, reads[i].generation) for i in plain)]
            ),
            self._values.read_documents([path for _, path in documents]),
        )
        for (i, _), outcome in zip(of_shards, found, strict=False):
            outcomes[i] = _chunk_outcome(reads[i], outcome)
        for i, outcome in zip(plain, found[len(of_shards) :], strict=True):
            outcomes[i] = outcome
        for i, path in documents:
            outcomes[i] = content_outcome(reads[i], *contents[path])
        return again + await self._values.owned_now([(i, reads[i].key) for i in plain if isinstance(outcomes[i], Found)])

    async def _read_chunks(
        self, chunks: Sequence[tuple[int, ChunkTarget]], reads: Sequence[Read], outcomes: list[ReadOutcome]
    ) -> list[int]:
        """Read chunks of any version, each together with its version."""
        wanted = [(i, target, request) for i, target in chunks for request in reads[i].ranges or (_NO_BYTES,)]
        if not wanted:
            return []
        shards = group_by_shard((n, target, request) for n, (_, target, request) in enumerate(wanted))
        versions: dict[int, tuple[Generation, int]] = {}
        for shard in shards:
            shard.versions = versions
        try:
            values = await self._reader.read(shards, len(wanted))
        except StaleLayout:
            return [i for i, _ in chunks]
        except ShardStoreError as exc:
            for i, _ in chunks:
                outcomes[i] = Failed(exc)
            return []
        start = 0
        for i, _ in chunks:
            end = start + max(1, len(reads[i].ranges))
            outcomes[i] = _outcome(reads[i], values[start:end], [versions.get(n) for n in range(start, end)])
            start = end
        return []


def _outcome_without_read(target: Target | ShardStoreError) -> ReadOutcome:
    """Return the outcome for what need not be read."""
    match target:
        case PlainTarget():
            return Failed(unreadable(target))
        case ShardStoreError() if not isinstance(target, NotFound):
            return Failed(target)
        case _:
            return ABSENT


def _outcome(read: Read, pieces: Sequence[Value], versions: Sequence[tuple[Generation, int] | None]) -> ReadOutcome:
    """Return the outcome of a read of a chunk, given the bytes of each range, and the version and size of the chunk that each is of."""
    buffers: list[memoryview] = []
    for piece in pieces:
        if isinstance(piece, ShardStoreError):
            return Failed(piece)
        if piece is not None:
            buffers.append(piece)
    if len(buffers) < len(pieces):
        return ABSENT
    assert versions[0] is not None  # a chunk that was read has a version
    if any(version != versions[0] for version in versions):
        return CHANGED
    version, nbytes = versions[0]
    return Found(version, nbytes, tuple(buffers) if read.ranges else ())


def _chunk_outcome(read: Read, outcome: ReadOutcome) -> ReadOutcome:
    """Return what the read of a shard means for the chunk of the version that was asked for."""
    version = None if read.generation is None else parse_chunk_version(read.generation)
    match outcome:
        case Found(_, _, buffers) if version is not None and read.generation is not None:
            return Found(read.generation, version[2].nbytes, buffers)
        case Failed():
            return outcome
        case _:
            return CHANGED


def content_outcome(read: Read, value: Value, modified: float | None = None) -> ReadOutcome:
    """Return the outcome of a read of a value that has the version of its content; ``modified`` says when that was stored."""
    if isinstance(value, ShardStoreError):
        return Failed(value)
    if value is None:
        return ABSENT
    version = content_version(value, modified)
    if read.generation is not None and read.generation != version:
        return CHANGED
    return Found(version, len(value), tuple(cut(value, request) for request in read.ranges))
