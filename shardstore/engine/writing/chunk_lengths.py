"""Chunks of arrays whose codecs give all of them one length: nothing of another length is stored as one.

Whoever read it would find the shard's index to contradict the array's codecs, and call the chunk damaged.
"""

from __future__ import annotations

from shardstore.engine.actions import Action, Patch, SetIfMissing, SetValue, Swap
from shardstore.engine.metadata.hierarchy import ChunkTarget
from shardstore.errors import InvalidInput
from shardstore.model.ranges import BytesLike


def refusal_of_update(target: ChunkTarget, action: Action) -> InvalidInput | None:
    """Why an update would store a chunk of a wrong length, where that can be told without looking at what is stored."""
    nbytes = target.layout.encoded_chunk_nbytes
    if nbytes is None:
        return None
    match action:
        case SetValue(data) | SetIfMissing(data) | Swap(data):
            return None if data is None else refusal(target.key, data, nbytes)
        case Patch(start, data) if start + len(data) > nbytes:
            return InvalidInput(
                f"bytes [{start}, {start + len(data)}) of chunk {target.key!r} are not written: the array's codecs make {nbytes} bytes of "
                "each chunk"
            )
        case _:
            return None


def refusal(key: str, data: BytesLike, nbytes: int | None) -> InvalidInput | None:
    """Why these are not all the bytes of a chunk; ``nbytes``: those of every chunk, where all have the same."""
    if nbytes is None or len(data) == nbytes:
        return None
    return InvalidInput(
        f"chunk {key!r} is not written: it would have {len(data)} bytes, and the array's codecs make {nbytes} of each chunk. Write all of "
        "them at once"
    )
