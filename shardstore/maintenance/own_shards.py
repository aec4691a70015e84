"""The shards that a store has itself, and not through a link in the middle of it: only these are repaired and compacted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from shardstore._sync import run_sync
from shardstore.engine.engine import Engine
from shardstore.maintenance.shard_work import FailedShard
from shardstore.maintenance.stored_shards import StoredShard
from shardstore.storage.boundaries import is_reached_through, links_above

_SHARDS_AT_ONCE = 1000


def own_shards(engine: Engine, shards: Iterable[StoredShard], failed: list[FailedShard]) -> Iterator[StoredShard]:
    """Yield the shards that are reached through no link; the others are added to ``failed``. From a thread that is not the IO loop's."""
    remaining = iter(shards)
    while some := list(islice(remaining, _SHARDS_AT_ONCE)):
        for shard, link in zip(some, run_sync(links_above(engine.storage, [shard.key for shard in some])), strict=True):
            if link is None:
                yield shard
            else:
                failed.append(FailedShard(shard.path, shard.key, is_reached_through(link, shard.key, engine.storage)))
