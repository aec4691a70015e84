"""Plans carried out on bytes in memory, and what the shards that come of them hold."""

from __future__ import annotations

from math import prod

from shardstore.format.shard_index import IndexFormat
from shardstore.model.ranges import CopiedRange, NewBytes, Padding
from shardstore.plan.commits import WriteShard


def sent(segment: NewBytes | Padding) -> bytes:
    return bytes(segment.data) if isinstance(segment, NewBytes) else b"?" * segment.nbytes


def carry_out(plan: WriteShard, old: bytes) -> bytes:
    pieces = [old[s.offset : s.offset + s.nbytes] if isinstance(s, CopiedRange) else sent(s) for s in plan.segments]
    assert sum(map(len, pieces)) == plan.nbytes
    return b"".join(pieces)


def contents(index_format: IndexFormat, shard: bytes) -> dict[int, bytes]:
    index = index_format.decode(index_format.slice_from(memoryview(shard), len(shard)))
    found: dict[int, bytes] = {}
    for slot in range(prod(index_format.chunks_per_shard)):
        where = index.location(slot, len(shard))
        if where is not None:
            found[slot] = shard[where.offset : where.offset + where.nbytes]
    return found
