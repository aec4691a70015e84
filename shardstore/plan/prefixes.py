"""Translate a key prefix into the shards of one array. Prefixes here are relative to the array."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress, product
from math import prod
from operator import add

import numpy as np
import numpy.typing as npt

from shardstore.format.metadata_v3 import ArrayLayout
from shardstore.format.shard_index import ShardIndex
from shardstore.model.chunks import ChunkCoords

_LONG_ROW = 64


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
    """Return the chunks that exist in a shard, in C order; with ``leading``, only those below it.

    Also those outside the array's shape, which a resize leaves: they can be read by their keys, as objects of a plain store can.
    """
    wanted = _wanted(layout, shard_coords, index, leading)
    if not layout.ndim:
        return [()] if wanted.any() else []
    # Added up by Python: coordinates are of any size.
    first = [s * n for s, n in zip(shard_coords, layout.grid.chunks_per_shard, strict=True)]
    return [tuple(map(add, first, slot)) for slot in np.argwhere(wanted).tolist()]


def rows_of(layout: ArrayLayout, shard_coords: ChunkCoords, index: ShardIndex, leading: ChunkCoords) -> list[int]:
    """Return where along the dimension behind ``leading`` chunks exist in a shard, of those below ``leading``; in the array's chunk
    grid.
    """
    axis = len(leading)
    rest = tuple(i for i in range(layout.ndim) if i != axis)
    first = shard_coords[axis] * layout.grid.chunks_per_shard[axis]
    return [first + row for row in np.flatnonzero(_wanted(layout, shard_coords, index, leading).any(axis=rest)).tolist()]


def chunk_keys_of(
    layout: ArrayLayout, shard_coords: ChunkCoords, index: ShardIndex, leading: ChunkCoords = (), before: str = ""
) -> tuple[list[str], list[int]]:
    """Return the keys of the chunks that ``chunks_of`` gives, relative to the array, each behind ``before``, and their sizes in bytes.

    They are made row by row: most of a key's text it shares with its neighbours.
    """
    wanted = _wanted(layout, shard_coords, index, leading)
    nbytes: list[int] = index.entries[..., 1][wanted].tolist()
    encoding = layout.key_encoding
    if not layout.ndim or not nbytes:
        return [before + encoding.encode(())] * len(nbytes), nbytes
    per_shard = layout.grid.chunks_per_shard
    numbers = [[str(s * n + i) for i in range(n)] for s, n in zip(shard_coords, per_shard, strict=True)]
    # The last dimensions, as many as make a row worth while.
    axis = layout.ndim - 1
    while axis and prod(per_shard[axis:]) < _LONG_ROW:
        axis -= 1
    separator = encoding.separator
    ends = [separator.join(parts) for parts in product(*numbers[axis:])]
    rows = wanted.reshape(-1, len(ends))
    before += encoding.prefix_of((), layout.ndim)
    starts = [before + "".join(part + separator for part in parts) for parts in product(*numbers[:axis])]
    keys: list[str] = []
    for start, row, present in zip(starts, rows, np.count_nonzero(rows, axis=1).tolist(), strict=True):
        if present:
            keys += [start + end for end in (ends if present == len(ends) else compress(ends, row.tolist()))]
    return keys, nbytes


def slots_of(layout: ArrayLayout, shard_coords: ChunkCoords, index: ShardIndex, leading: ChunkCoords = ()) -> npt.NDArray[np.intp]:
    """Return the slots of the chunks that ``chunk_keys_of`` gives the keys of, in the same order."""
    return np.flatnonzero(_wanted(layout, shard_coords, index, leading))


def _wanted(layout: ArrayLayout, shard_coords: ChunkCoords, index: ShardIndex, leading: ChunkCoords) -> npt.NDArray[np.bool_]:
    """Return, in the shape ``chunks_per_shard``, the chunks that exist and begin with ``leading``."""
    per_shard = layout.grid.chunks_per_shard
    present = index.present().reshape(per_shard)
    if not leading:
        return present
    wanted = np.zeros(per_shard, dtype=np.bool_)
    slots = tuple(c - s * n for c, s, n in zip(leading, shard_coords, per_shard, strict=False))
    if all(0 <= slot < n for slot, n in zip(slots, per_shard, strict=False)):
        wanted[slots] = present[slots]
    return wanted
