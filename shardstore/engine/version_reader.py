"""Reads values together with their versions. An engine on top of another engine reads through this."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from shardstore.engine.actions import content_version
from shardstore.engine.fresh_layout import StaleLayout, each_with_fresh_layout
from shardstore.engine.index_cache import parse_chunk_version
from shardstore.engine.metadata.hierarchy import ChunkTarget, GoneTarget, MetadataTarget, PlainTarget, Target
from shardstore.engine.reading.reader import Reader
from shardstore.engine.reading.shard_chunks import Value, group_by_shard
from shardstore.engine.values import Values, unreadable
from shardstore.errors import Conflict, NotFound, ShardStoreError
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
        stored: list[tuple[int, Read, bool]] = []
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
                        stored.append((i, inside, True))
                case PlainTarget() if not target.may_read:
                    outcomes[i] = Failed(unreadable(target))
                case PlainTarget():
                    stored.append((i, Read(read.key, read.ranges, read.generation), False))
                case MetadataTarget(_, path):
                    documents.append((i, path))
                case NotFound() | GoneTarget():
                    outcomes[i] = ABSENT
                case ShardStoreError():
                    outcomes[i] = Failed(target)
        again, found, contents = await asyncio.gather(
            self._read_chunks(chunks, reads, outcomes),
            self._storage.read([read for _, read, _ in stored]),
            self._values.read_documents([path for _, path in documents]),
        )
        for (i, _, is_chunk), outcome in zip(stored, found, strict=True):
            outcomes[i] = _of_chunk(reads[i], outcome) if is_chunk else outcome
        # As with other reads: was an array created meanwhile that owns what was no chunk a moment ago?
        plain = [
            i for i, _, is_chunk in stored if not is_chunk and isinstance(outcomes[i], Found) and self._values.may_be_shard(reads[i].key)
        ]
        targets = await self._values.locate_each([reads[i].key for i in plain], for_write=True) if plain else []
        again += [i for i, target in zip(plain, targets, strict=True) if not isinstance(target, PlainTarget)]
        for i, path in documents:
            outcomes[i] = of_content(reads[i], *contents[path])
        return again

    async def _read_chunks(
        self, chunks: Sequence[tuple[int, ChunkTarget]], reads: Sequence[Read], outcomes: list[ReadOutcome]
    ) -> list[int]:
        """Read chunks of any version, each together with its version."""
        wanted = [(i, target, request) for i, target in chunks for request in reads[i].ranges or (_NO_BYTES,)]
        if not wanted:
            return []
        shards = group_by_shard((n, target, request) for n, (_, target, request) in enumerate(wanted))
        for shard in shards:
            shard.versions = {}
        try:
            values = await self._reader.read(shards, len(wanted))
        except StaleLayout:
            return [i for i, _ in chunks]
        except ShardStoreError as exc:
            for i, _ in chunks:
                outcomes[i] = Failed(exc)
            return []
        versions = {n: version for shard in shards for n, version in (shard.versions or {}).items()}
        of_read: dict[int, list[int]] = {}
        for n, (i, _, _) in enumerate(wanted):
            of_read.setdefault(i, []).append(n)
        for i, mine in of_read.items():
            pieces = [values[n] for n in mine]
            error = next((piece for piece in pieces if isinstance(piece, ShardStoreError)), None)
            if error is not None:
                outcomes[i] = Failed(error)
            elif any(piece is None for piece in pieces):
                outcomes[i] = ABSENT
            elif len({versions[n] for n in mine}) > 1:
                outcomes[i] = CHANGED
            else:
                version, nbytes = versions[mine[0]]
                buffers = tuple(piece for piece in pieces if isinstance(piece, memoryview))
                outcomes[i] = Found(version, nbytes, buffers if reads[i].ranges else ())
        return []


def _of_chunk(read: Read, outcome: ReadOutcome) -> ReadOutcome:
    """Return what the read of a shard means for the chunk of the version that was asked for."""
    version = None if read.generation is None else parse_chunk_version(read.generation)
    match outcome:
        case Found(_, _, buffers) if version is not None and read.generation is not None:
            return Found(read.generation, version[2].nbytes, buffers)
        case Failed():
            return outcome
        case _:
            return CHANGED


def of_content(read: Read, value: Value, modified: float | None = None) -> ReadOutcome:
    """Return the outcome of a read of a value that has the version of its content; ``modified`` says when that was stored."""
    if isinstance(value, ShardStoreError):
        return Failed(value)
    if value is None:
        return ABSENT
    version = content_version(value, modified)
    if read.generation is not None and read.generation != version:
        return CHANGED
    return Found(version, len(value), tuple(cut(value, request) for request in read.ranges))
