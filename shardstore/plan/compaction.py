"""A shard without its dead bytes: every chunk as it is, what no chunk refers to left out.

Chunks whose bytes overlap, or are the same bytes, go on sharing them: they are moved together, as one *piece*. Elsewhere a
piece is one chunk. So a compacted shard is never longer than the shard it was made from, unless a chunk lay on the index.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardstore.errors import Corruption
from shardstore.format.shard_index import EMPTY, IndexFormat, ShardIndex
from shardstore.plan.commits import ChunkOrder, CopyOld, DeleteShard, NewBytes, PlannedSegment, WriteShard, slot_order


def plan_compaction(index_format: IndexFormat, old: ShardIndex, old_nbytes: int, order: ChunkOrder = "C") -> WriteShard | DeleteShard:
    """The plan that stores the chunks of ``old``, pieces in the order of the first of their chunks, and nothing else.

    Raises:
        Corruption: an entry cannot be right.
    """
    slots = slot_order(index_format.chunks_per_shard, order, old.present())
    if not len(slots):
        return DeleteShard()
    if (wrong := np.flatnonzero(old.invalid(old_nbytes))).size:
        old.location(int(wrong[0]), old_nbytes)  # raises, naming the entry
        raise Corruption(f"index entry {wrong[0]} cannot be kept")
    offsets, lengths = (old.flat[slots, column].astype(np.int64) for column in (0, 1))

    # Pieces, in the order of their bytes: a chunk that begins behind all that came before begins a new one.
    by_offset = np.argsort(offsets, kind="stable")
    starts, reached = offsets[by_offset], np.maximum.accumulate((offsets + lengths)[by_offset])
    begins = np.ones(len(slots), dtype=np.bool_)
    begins[1:] = starts[1:] >= reached[:-1]
    firsts = np.flatnonzero(begins)
    piece_starts, piece_ends = starts[firsts], reached[np.append(firsts[1:], len(slots)) - 1]
    piece_of = np.empty(len(slots), dtype=np.intp)
    piece_of[by_offset] = np.cumsum(begins) - 1

    # And in the order in which they are stored.
    _, first_chunk = np.unique(piece_of, return_index=True)
    stored = np.argsort(first_chunk)
    sizes = (piece_ends - piece_starts)[stored]
    header = index_format.nbytes if index_format.location == "start" else 0
    places = np.empty(len(stored), dtype=np.int64)
    places[stored] = header + np.cumsum(sizes) - sizes

    entries = np.full_like(old.flat, EMPTY)
    entries[slots, 0] = places[piece_of] + offsets - piece_starts[piece_of]
    entries[slots, 1] = lengths
    entries.flags.writeable = False
    index = ShardIndex(entries.reshape(old.entries.shape))
    copies = _runs(piece_starts[stored], piece_ends[stored])
    encoded = NewBytes(index_format.encode(index))
    segments: list[PlannedSegment] = [encoded, *copies] if index_format.location == "start" else [*copies, encoded]
    return WriteShard(tuple(segments), int(sizes.sum()) + encoded.nbytes, index)


def _runs(starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> list[CopyOld]:
    """Ranges as copies, those that follow on each other as one."""
    starts, ends = starts[ends > starts], ends[ends > starts]
    if not len(starts):
        return []
    firsts = np.append(0, np.flatnonzero(starts[1:] != ends[:-1]) + 1)
    lasts = np.append(firsts[1:], len(starts)) - 1
    return [CopyOld(start, end - start) for start, end in zip(starts[firsts].tolist(), ends[lasts].tolist(), strict=True)]
