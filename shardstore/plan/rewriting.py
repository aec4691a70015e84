"""Strategy ``rewrite``, and compaction: a new object that holds the chunks in C or Morton order, and nothing else.

Chunks whose bytes overlap, or are the same bytes, go on sharing them: they are moved together, as one piece. So a shard without updates is
never longer than the shard it was made from, unless a chunk lay on the index.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardstore.format.shard_index import IndexFormat, ShardIndex
from shardstore.model.ranges import BytesLike
from shardstore.plan.commits import (
    ChunkOrder,
    Commit,
    CommitPlan,
    DeleteShard,
    NothingToDo,
    Strategy,
    WriteShard,
    check_kept,
    kept_slots,
    write_anew,
)


@dataclass(frozen=True)
class Rewrite(Strategy):
    """Every commit makes a new object without dead bytes. It needs nothing of the storage or the shards."""

    name: str = "rewrite"

    def plan(self, commit: Commit) -> CommitPlan:
        return plan_rewrite(commit.index_format, commit.old, commit.old_nbytes, commit.updates, commit.order)


def plan_rewrite(
    index_format: IndexFormat,
    old: ShardIndex | None,
    old_nbytes: int,
    updates: Mapping[int, BytesLike | None],
    order: ChunkOrder = "C",
) -> CommitPlan:
    """Plan a commit of ``updates`` (slot to new bytes, or ``None`` to erase) onto ``old`` (``None``: no object).

    Raises:
        Corruption: an entry that would have to be kept cannot be right; a write of that chunk itself goes through.
    """
    kept = kept_slots(index_format, old, old_nbytes, updates)
    if isinstance(kept, DeleteShard | NothingToDo):
        return kept
    return write_anew(index_format, old if old is not None else index_format.empty(), kept, updates, order)


def plan_compaction(index_format: IndexFormat, old: ShardIndex, old_nbytes: int, order: ChunkOrder = "C") -> WriteShard | DeleteShard:
    """Plan a shard with the chunks of ``old`` and nothing else; pieces are in the order of the first of their chunks.

    Raises:
        Corruption: an entry cannot be right.
    """
    present = old.present()
    if not present.any():
        return DeleteShard()
    check_kept(old, old_nbytes, present)
    return write_anew(index_format, old, present, {}, order)
