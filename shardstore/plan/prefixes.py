"""What a key prefix means for the shards of one array. Prefixes here are relative to the array."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardstore.format.metadata_v3 import ArrayLayout
from shardstore.format.shard_index import ShardIndex
from shardstore.model.chunks import ChunkCoords


@dataclass(frozen=True, slots=True)
class PrefixPlan:
    """``stored_prefix`` starts every shard key that may hold a matching chunk; ``leading`` are the coordinates settled."""

    stored_prefix: str
    leading: ChunkCoords
    covers_whole_shards: bool
    """Every chunk of a shard below ``stored_prefix`` has the settled coordinates."""


def plan_prefix(layout: ArrayLayout, prefix: str) -> PrefixPlan:
    """Translate a prefix of chunk keys into one of shard keys (the draft's ``list_prefix`` and ``erase_prefix``)."""
    encoding, ndim = layout.key_encoding, layout.ndim
    leading = encoding.leading_coords(prefix, ndim)
    per_shard = layout.grid.chunks_per_shard
    shard_leading = tuple(c // n for c, n in zip(leading, per_shard, strict=False))
    whole = all(n == 1 for n in per_shard[: len(leading)])
    # The part of the prefix behind the settled coordinates is a number cut short; only the caller's filter can use it.
    settled_text = encoding.prefix_of(leading, ndim)
    covers = whole and settled_text.startswith(prefix)
    return PrefixPlan(encoding.prefix_of(shard_leading, ndim), leading, covers)


def chunks_of(layout: ArrayLayout, shard_coords: ChunkCoords, index: ShardIndex, leading: ChunkCoords = ()) -> list[ChunkCoords]:
    """The chunks that exist in a shard and lie in the array's grid, in C order; with ``leading``, only those below it.

    Entries outside the array's shape (left by a resize) are kept in the shard and not listed.
    """
    slots = np.flatnonzero(index.present())
    if not layout.ndim:
        return [()] if slots.size else []
    per_shard = layout.grid.chunks_per_shard
    if any(s * n >= g for s, n, g in zip(shard_coords, per_shard, layout.chunk_grid_shape, strict=True)):
        return []  # wholly outside; nor would such coordinates have to fit 64 bits
    inside = np.stack(np.unravel_index(slots, per_shard), axis=1)
    coords = inside + np.array(shard_coords, dtype=np.int64) * np.array(per_shard, dtype=np.int64)
    wanted = (coords < np.array(layout.chunk_grid_shape, dtype=np.int64)).all(axis=1)
    if leading:
        wanted &= (coords[:, : len(leading)] == np.array(leading, dtype=np.int64)).all(axis=1)
    return [tuple(row) for row in coords[wanted].tolist()]
