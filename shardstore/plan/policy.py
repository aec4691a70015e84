"""The sharding policy: which arrays get sharded when they are created, and how many chunks go into a shard."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import Literal

import numpy as np

from shardstore.errors import InvalidInput
from shardstore.format.json_text import JsonObject
from shardstore.format.metadata_v3 import item_nbytes, parse_shown
from shardstore.format.shard_index import ENTRY_NBYTES, MAX_SLOTS

__all__ = ["ArrayInfo"]

AUTO_SHARD_NBYTES = 64 * 2**20  # decoded; a few seconds' transfer at most, and few enough objects for a petabyte
# Smaller chunks count as this large, so a shard has at most 1,024 slots and an index of 16 KiB, which a reader of one chunk can afford.
# Chunks of this size that are compressed less than 80-fold leave the index under 2 % of a full shard: 16 B / (64 KiB / 80).
AUTO_LEAST_CHUNK_NBYTES = 64 * 2**10
AUTO_MAX_CHUNKS = AUTO_SHARD_NBYTES // AUTO_LEAST_CHUNK_NBYTES
AUTO_SMALL_ARRAY_NBYTES = 16 * 2**10  # coordinates: a shard would only add an index to them
_INDEX_SHARE = 0.02  # of the bytes of the chunks that a shard holds
_ASSUMED_RATIO = 4  # decoded to encoded bytes, of chunks that have not been encoded yet
_UNLIMITED = 2**62
_ASSUMED_ITEM_NBYTES = 16  # of strings and other types without a fixed size


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """The facts that a policy is given of an array that is being created. Shapes are in elements."""

    path: str
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    item_nbytes: int | None
    document: JsonObject
    """Its metadata as the client wrote it; that of Zarr v2 (``document["zarr_format"] == 2``) where it would be stored without shards."""


ChunksPerShard = Literal["auto"] | tuple[int, ...] | None
PolicyFunction = Callable[[ArrayInfo], ChunksPerShard]
ShardingPolicy = ChunksPerShard | Mapping[str, ChunksPerShard] | PolicyFunction


def chunks_per_shard(
    policy: ShardingPolicy,
    path: str,
    presented: JsonObject,
    decide: Callable[[ArrayInfo], tuple[int, ...] | None] | None = None,
    *,
    written: JsonObject | None = None,
) -> tuple[int, ...] | None:
    """Return the chunks per shard of a new array, or ``None`` where it is stored without shards.

    ``written``: the document that a function is shown, where that is not ``presented``.

    A mapping goes from patterns of the path (``fnmatch``; the first that matches counts) to a tuple, ``"auto"`` or
    ``None``; a path that no pattern matches is decided by ``"auto"``. What ``"auto"`` means is ``automatic``, or ``decide`` where the
    caller knows more about the array.

    Raises:
        InvalidInput: the tuple's rank is not the array's, or its members are not positive integers.
    """
    plain = parse_shown(presented)
    if isinstance(plain, str):
        return None  # passes through whole
    info = ArrayInfo(path, plain.shape, plain.chunk_shape, item_nbytes(presented.get("data_type")), written or presented)
    decided = _decide(policy, info)
    if decided is None:
        return None
    return (decide or automatic)(info) if decided == "auto" else _checked(decided, info)


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
        n = len(decided)
        raise InvalidInput(
            f"chunks_per_shard {tuple(decided)} has {n} dimensions, array {info.path!r} has {len(info.shape)}: give a function, such as "
            f"lambda info: {tuple(decided)} if len(info.shape) == {n} else 'auto', or a mapping that matches arrays of {n} dimensions "
            f"only: {{'PATTERN': {tuple(decided)}}}; what no pattern matches is 'auto'"
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
    raise InvalidInput(
        f"chunks_per_shard {policy!r} is neither 'auto', None, a tuple of positive integers such as (4, 4), a mapping nor a function"
    )


def automatic(info: ArrayInfo, *, may_grow: bool = True) -> tuple[int, ...] | None:
    """Return the chunks per shard for about ``AUTO_SHARD_NBYTES`` decoded bytes, in a form that the array's chunks can fill.

    Dimensions are doubled in turn, the last first, each until it holds all chunks along it, so shards are about as many chunks long along
    each. A dimension with exactly one chunk stays at one. With ``may_grow``, the array may become longer than it is now:

    - Along a dimension without chunks, or along the only one that has several, a shard may be longer than the array.
    - Where every dimension has exactly one chunk, that is the first one: xarray's ``append_dim`` and zarr's ``append`` begin so.
    - Where several have several chunks, the first one goes on, if it is among them, while the index stays within 2 % of what a shard would
      hold now.

    Without ``may_grow`` no dimension is longer than the array, and an array of a single chunk is not sharded.
    """
    ndim = len(info.shape)
    item = info.item_nbytes or _ASSUMED_ITEM_NBYTES
    if ndim == 0:
        return None
    if ndim == 1 and 0 < info.shape[0] <= info.chunk_shape[0] and info.shape[0] * item <= AUTO_SMALL_ARRAY_NBYTES:
        return None  # a coordinate: one small chunk
    chunk_nbytes = prod(info.chunk_shape) * item
    most = AUTO_SHARD_NBYTES // max(chunk_nbytes, AUTO_LEAST_CHUNK_NBYTES)
    grid = [-(-n // c) for n, c in zip(info.shape, info.chunk_shape, strict=True)]
    may_grow = may_grow or 0 in grid  # of an array without chunks nothing is known yet
    counts = _growing(grid, most, chunk_nbytes) if may_grow else _filled(grid, most)
    return tuple(counts) if prod(counts) > 1 else None


def _growing(grid: Sequence[int], most: int, chunk_nbytes: int) -> list[int]:
    """Return the chunks per shard of an array that may become longer; ``grid``: chunks along each dimension now."""
    several = [axis for axis, n in enumerate(grid) if n != 1] or [0]
    counts = _filled([_UNLIMITED if n == 0 or several == [axis] else n for axis, n in enumerate(grid)], most)
    if len(several) > 1 and several[0] == 0:
        affordable = int(_INDEX_SHARE * prod(counts) * chunk_nbytes / _ASSUMED_RATIO) // ENTRY_NBYTES
        while prod(counts) * 2 <= min(most, affordable) and counts[0] >= grid[0]:
            counts[0] *= 2
    return counts


def _filled(limits: Sequence[int], most: int) -> list[int]:
    """Counts doubled in turn, the last first, none above its limit, with a product of at most ``most``."""
    counts = [1] * len(limits)
    growing = [axis for axis in reversed(range(len(limits))) if limits[axis] > 1]
    while growing:
        axis = growing.pop(0)
        longer = min(2 * counts[axis], limits[axis])
        if prod(counts) // counts[axis] * longer > most:
            break
        counts[axis] = longer
        if longer < limits[axis]:
            growing.append(axis)
    return counts
