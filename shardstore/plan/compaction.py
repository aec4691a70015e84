"""A shard without its dead bytes: every chunk as it is, what no chunk refers to left out.

Chunks whose bytes overlap, or are the same bytes, go on sharing them: they are moved together, as one piece. So a compacted shard is
never longer than the shard it was made from, unless a chunk lay on the index.
"""

from __future__ import annotations

from shardstore.format.shard_index import IndexFormat, ShardIndex
from shardstore.plan.commits import ChunkOrder, DeleteShard, WriteShard, check_kept, write_anew


def plan_compaction(index_format: IndexFormat, old: ShardIndex, old_nbytes: int, order: ChunkOrder = "C") -> WriteShard | DeleteShard:
    """The plan that stores the chunks of ``old``, pieces in the order of the first of their chunks, and nothing else.

    Raises:
        Corruption: an entry cannot be right.
    """
    present = old.present()
    if not present.any():
        return DeleteShard()
    check_kept(old, old_nbytes, present)
    return write_anew(index_format, old, present, {}, order)
