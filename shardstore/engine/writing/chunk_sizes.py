"""Checks of updates against the size of a chunk: no chunk of a wrong length is stored, and an update with all bytes needs no read.

If the codecs of an array give all chunks one length, every reader takes a chunk of another length for damaged.
"""

from __future__ import annotations

from collections import Counter

from shardstore.engine.actions import Action, Patch, SetIfMissing, SetValue, Swap
from shardstore.engine.metadata.hierarchy import ChunkTarget
from shardstore.errors import InvalidInput
from shardstore.model.ranges import BytesLike


def refusal_of_update(target: ChunkTarget, action: Action) -> InvalidInput | None:
    """Return the error if an update would store a chunk of a wrong length, whatever is stored; else ``None``."""
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
    """Return the error if these are not all the bytes of a chunk; ``nbytes`` is the length of every chunk, if all have the same."""
    if nbytes is None or len(data) == nbytes:
        return None
    return InvalidInput(
        f"chunk {key!r} is not written: it would have {len(data)} bytes, and the array's codecs make {nbytes} of each chunk. Write all of "
        "them at once"
    )


def with_whole(updates: list[tuple[ChunkTarget, Action]]) -> list[tuple[ChunkTarget, Action]]:
    """Return the updates, with patches that give all bytes of a chunk as ``SetValue``, which reads nothing.

    A patch gives all bytes if every chunk of the array has its size, or, as the draft has it, if every chunk of the shard is given from its
    first byte. Specification: sharding storage transformer 1.0 (draft), ``set_partial_values``.
    """
    if not any(isinstance(action, Patch) and action.may_be_whole for _, action in updates):
        return updates
    given = _given_from_start(updates)

    def whole(target: ChunkTarget, action: Action) -> Action:
        if not (isinstance(action, Patch) and action.may_be_whole and target.slot in given.get(target.shard_key, ())):
            return action
        nbytes = target.layout.encoded_chunk_nbytes
        is_shard_given = len(given[target.shard_key]) == target.layout.grid.nslots
        is_whole = is_shard_given if nbytes is None else len(action.data) >= nbytes
        return SetValue(action.data) if is_whole else action

    return [(target, whole(target, action)) for target, action in updates]


def _given_from_start(updates: list[tuple[ChunkTarget, Action]]) -> dict[str, set[int]]:
    """Return, by key of shard, the slots whose only update gives bytes from the first one on."""
    counts = Counter((target.shard_key, target.slot) for target, _ in updates)
    given: dict[str, set[int]] = {}
    for target, action in updates:
        is_first = isinstance(action, Patch) and action.may_be_whole and action.start == 0 and len(action.data) > 0
        if counts[target.shard_key, target.slot] == 1 and (is_first or isinstance(action, SetValue)):
            given.setdefault(target.shard_key, set()).add(target.slot)
    return given
