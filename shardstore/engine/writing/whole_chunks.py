"""Which updates give all bytes of a chunk, so that nothing that is stored has to be read."""

from __future__ import annotations

from collections import Counter

from shardstore.engine.actions import Action, Patch, SetValue
from shardstore.engine.metadata.hierarchy import ChunkTarget


def with_whole(updates: list[tuple[ChunkTarget, Action]]) -> list[tuple[ChunkTarget, Action]]:
    """Updates that give all bytes of a chunk need nothing of what is stored.

    They do where every chunk of the array has their size, and, as the draft has it, where every chunk of the shard is given from its
    first byte. Specification: sharding storage transformer 1.0 (draft), ``set_partial_values``.
    """
    if not any(isinstance(action, Patch) and action.may_be_whole for _, action in updates):
        return updates
    of_chunk = Counter((target.shard_key, target.slot) for target, _ in updates)
    given: dict[str, set[int]] = {}
    for target, action in updates:
        is_first = isinstance(action, Patch) and action.may_be_whole and action.start == 0 and len(action.data) > 0
        if of_chunk[target.shard_key, target.slot] == 1 and (is_first or isinstance(action, SetValue)):
            given.setdefault(target.shard_key, set()).add(target.slot)

    def whole(target: ChunkTarget, action: Action) -> Action:
        if not (isinstance(action, Patch) and action.may_be_whole and target.slot in given.get(target.shard_key, ())):
            return action
        nbytes = target.layout.encoded_chunk_nbytes
        is_shard_given = len(given[target.shard_key]) == target.layout.grid.nslots
        is_whole = is_shard_given if nbytes is None else len(action.data) >= nbytes
        return SetValue(action.data) if is_whole else action

    return [(target, whole(target, action)) for target, action in updates]
