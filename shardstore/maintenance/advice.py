"""Advice on shard shapes for arrays of a store: a survey has the facts, and ``plan.advice`` computes what each shape would cost."""

from __future__ import annotations

from math import prod

from shardstore.engine.options import EngineOptions
from shardstore.errors import Unsupported
from shardstore.format.shard_index import IndexCodecs
from shardstore.maintenance.survey.run import ArraySurvey
from shardstore.model.coalescing import ReadLimits
from shardstore.plan.advice import (
    Access,
    Advice,
    ArrayFacts,
    Candidate,
    ChunksPerShard,
    advise,
    box,
    excess,
    parse_access,
)
from shardstore.plan.policy import ArrayInfo, automatic

__all__ = [
    "Access",
    "Advice",
    "ArrayFacts",
    "Candidate",
    "ChunksPerShard",
    "advise",
    "box",
    "excess",
    "facts_of_array",
    "objects_by_default",
    "parse_access",
    "read_limits",
]

_ASSUMED_ITEM_NBYTES = 16  # of strings and other types without a fixed size


def read_limits(kind: str) -> ReadLimits:
    """Return the limits by which a store on this kind of storage merges reads, with default options."""
    return EngineOptions().read_limits(kind)


def facts_of_array(array: ArraySurvey) -> ArrayFacts:
    """Return the facts that advice on shard shapes depends on. Raises ``Unsupported`` if the chunks cannot be identified."""
    usage = array.usage
    if array.shape is None or array.chunk_shape is None or (usage is not None and usage.possible_chunks is None):
        raise Unsupported(f"the chunks of array {array.path!r} cannot be identified, so it cannot be sharded: {array.reason}")
    item = array.item_nbytes or _ASSUMED_ITEM_NBYTES
    mean = round(usage.chunk_nbytes / usage.chunks) if usage is not None and usage.chunks else prod(array.chunk_shape) * item
    return ArrayFacts(array.shape, array.chunk_shape, item, max(1, mean), IndexCodecs("little", array.index_checksum is not False))


def objects_by_default(array: ArraySurvey) -> int | None:
    """Return how many objects shards of the default size would be; ``None`` if the array would not be sharded."""
    if array.shape is None or array.chunk_shape is None:
        return None
    per_shard = automatic(ArrayInfo("", array.shape, array.chunk_shape, array.item_nbytes or _ASSUMED_ITEM_NBYTES, {}), may_grow=False)
    if per_shard is None:
        return None
    return prod(-(-n // (c * p)) for n, c, p in zip(array.shape, array.chunk_shape, per_shard, strict=True))
