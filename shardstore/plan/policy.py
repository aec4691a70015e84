"""The sharding policy: which arrays get sharded when they are created, and how many chunks go into a shard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import Literal

import numpy as np

from shardstore.errors import InvalidInput
from shardstore.format.json_text import JsonObject
from shardstore.format.metadata_v3 import item_nbytes, parse_shown
from shardstore.format.shard_index import MAX_SLOTS

AUTO_SHARD_NBYTES = 64 * 2**20  # decoded; a few seconds' transfer at most, and few enough objects for a petabyte
AUTO_MAX_CHUNKS = 4096  # an index of 64 KiB
AUTO_SMALL_ARRAY_NBYTES = 16 * 2**10  # coordinates: a shard would only add an index to them
_ASSUMED_ITEM_NBYTES = 16  # of strings and other types without a fixed size


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """What a policy is told of an array that is being created. Shapes are in elements."""

    path: str
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    item_nbytes: int | None
    document: JsonObject


ChunksPerShard = Literal["auto"] | tuple[int, ...] | None
PolicyFunction = Callable[[ArrayInfo], ChunksPerShard]
ShardingPolicy = ChunksPerShard | Mapping[str, ChunksPerShard] | PolicyFunction


def chunks_per_shard(policy: ShardingPolicy, path: str, presented: JsonObject) -> tuple[int, ...] | None:
    """The chunks per shard of a new array, or ``None`` where it is stored as it is.

    A mapping goes from patterns of the path (``fnmatch``; the first that matches counts) to a tuple, ``"auto"`` or
    ``None``; a path that no pattern matches is decided by ``"auto"``.

    Raises:
        InvalidInput: the tuple's rank is not the array's, or its members are not positive integers.
    """
    plain = parse_shown(presented)
    if isinstance(plain, str):
        return None  # passes through whole
    info = ArrayInfo(path, plain.shape, plain.chunk_shape, item_nbytes(presented.get("data_type")), presented)
    decided = _decide(policy, info)
    if decided is None:
        return None
    return automatic(info) if decided == "auto" else _checked(decided, info)


def _decide(policy: ShardingPolicy, info: ArrayInfo) -> ChunksPerShard:
    if isinstance(policy, Mapping):
        return next((decided for pattern, decided in policy.items() if fnmatchcase(info.path, pattern)), "auto")
    if not callable(policy):
        return policy
    try:
        return policy(info)
    except Exception as exc:
        raise InvalidInput(f"the function chunks_per_shard failed for array {info.path!r}: {type(exc).__name__}: {exc}") from exc


def _checked(decided: object, info: ArrayInfo) -> tuple[int, ...]:
    if not isinstance(decided, tuple | list) or not all(_is_count(n) for n in decided):
        raise InvalidInput(f"chunks_per_shard {decided!r} for array {info.path!r} is not a tuple of positive integers, 'auto' or None")
    if len(decided) != len(info.shape):
        raise InvalidInput(
            f"chunks_per_shard {tuple(decided)} has {len(decided)} dimensions, array {info.path!r} has {len(info.shape)}: give one number "
            f"a dimension, or a mapping from path patterns, such as {{{info.path or '*'!r}: 'auto', '*': {tuple(decided)}}}"
        )
    if prod(decided) > MAX_SLOTS:
        raise InvalidInput(f"chunks_per_shard {tuple(decided)} for array {info.path!r} puts more than {MAX_SLOTS} chunks into a shard")
    return tuple(int(n) for n in decided)


def _is_count(n: object) -> bool:
    return isinstance(n, int | np.integer) and not isinstance(n, bool) and int(n) >= 1


def validate_policy(policy: object) -> None:
    """Refuse at open what could never decide anything.

    Raises:
        InvalidInput: it is neither ``"auto"``, ``None``, a tuple of positive integers, a mapping of those, nor callable.
    """
    if isinstance(policy, Mapping):
        for pattern, decided in policy.items():
            if not isinstance(pattern, str) or isinstance(decided, Mapping) or callable(decided):
                raise InvalidInput(f"chunks_per_shard maps {pattern!r} to {decided!r}: a pattern and a tuple, 'auto' or None are needed")
            validate_policy(decided)
        return
    if policy is None or policy == "auto" or callable(policy):
        return
    if isinstance(policy, tuple | list) and all(_is_count(n) for n in policy):
        return
    raise InvalidInput(f"chunks_per_shard {policy!r} is neither 'auto', None, a tuple of positive integers, a mapping nor a function")


def automatic(info: ArrayInfo) -> tuple[int, ...] | None:
    """Chunks per shard for about ``AUTO_SHARD_NBYTES`` decoded bytes, from the chunk's size alone.

    Not from the array's shape: arrays grow, and xarray's ``append_dim`` starts with a single chunk. Dimensions are
    doubled in turn, the last first, so shards are about as many chunks long along each.
    """
    ndim = len(info.shape)
    item = info.item_nbytes or _ASSUMED_ITEM_NBYTES
    if ndim == 0:
        return None
    if ndim == 1 and 0 < info.shape[0] <= info.chunk_shape[0] and info.shape[0] * item <= AUTO_SMALL_ARRAY_NBYTES:
        return None  # a coordinate: one small chunk
    wanted = min(AUTO_SHARD_NBYTES // (prod(info.chunk_shape) * item), AUTO_MAX_CHUNKS)
    counts = [1] * ndim
    dimension = ndim - 1
    while prod(counts) * 2 <= wanted:
        counts[dimension] *= 2
        dimension = (dimension - 1) % ndim
    return tuple(counts) if prod(counts) > 1 else None
