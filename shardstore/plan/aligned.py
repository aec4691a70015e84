"""Dask chunks whose borders are shard borders, so that every shard is written by one task."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod

from shardstore.errors import InvalidInput

Chunks = tuple[tuple[int, ...], ...]
"""Lengths of consecutive blocks along each dimension, as dask has them; each dimension's add up to its length."""


def shard_aligned_chunks(
    shape: Sequence[int],
    shard_shape: Sequence[int],
    *,
    start: Sequence[int] | None = None,
    chunks: Chunks | None = None,
    max_elements: int | None = None,
) -> Chunks:
    """Return chunks of a block of ``shape`` elements whose inner borders all lie between shards.

    Args:
        shape: of the block that is written.
        shard_shape: in elements.
        start: where the block begins in the stored array; the first chunk is shorter where that is inside a shard.
        chunks: the block's present chunks. Where all their borders fit they are returned unchanged; other borders move to the
            nearest border of shards, so chunks keep about their size and hold one shard at least. ``None``: one shard each.
        max_elements: chunks that had to grow are divided again, down to one shard, while the largest holds more than this and more
            than twice what the largest of ``chunks`` did.

    Raises:
        InvalidInput: ranks differ, a shard has no elements, or ``chunks`` do not add up to ``shape``.
    """
    starts = (0,) * len(shape) if start is None else tuple(start)
    _check(shape, shard_shape, starts, chunks)
    if chunks is None:
        return tuple(
            _lengths(n, range(shard - offset % shard, n, shard)) for n, shard, offset in zip(shape, shard_shape, starts, strict=True)
        )
    if are_aligned(chunks, shard_shape, starts):
        return chunks
    moved = [_moved(lengths, shard, offset) for lengths, shard, offset in zip(chunks, shard_shape, starts, strict=True)]
    if max_elements is not None:
        _divide(moved, shard_shape, starts, max(max_elements, 2 * _largest(chunks)))
    return tuple(moved)


def _check(shape: Sequence[int], shard_shape: Sequence[int], starts: Sequence[int], chunks: Chunks | None) -> None:
    if {len(shard_shape), len(starts), len(shape if chunks is None else chunks)} != {len(shape)}:
        raise InvalidInput(f"shape {tuple(shape)}, shard shape {tuple(shard_shape)}, start {starts} and chunks differ in their dimensions")
    if any(n < 1 for n in shard_shape) or any(n < 0 for n in (*shape, *starts)):
        raise InvalidInput(
            f"shape {tuple(shape)}, shard shape {tuple(shard_shape)} and start {starts} must not be negative, nor shards empty"
        )
    if chunks is not None and any(sum(lengths) != n for lengths, n in zip(chunks, shape, strict=True)):
        raise InvalidInput(f"chunks {chunks} do not add up to the shape {tuple(shape)}")


def are_aligned(chunks: Chunks, shard_shape: Sequence[int], start: Sequence[int]) -> bool:
    """Return whether no shard is shared by two chunks of a block that begins at ``start``, both in elements."""
    return all(
        (offset + border) % shard == 0
        for lengths, shard, offset in zip(chunks, shard_shape, start, strict=True)
        for border in _borders(lengths)
    )


def _borders(lengths: tuple[int, ...]) -> list[int]:
    """Return where one chunk ends and the next begins, the block's own ends left out."""
    total = sum(lengths)
    return [end for end in accumulate(lengths) if 0 < end < total]


def _lengths(n: int, borders: Sequence[int]) -> tuple[int, ...]:
    return tuple(end - begin for begin, end in pairwise((0, *borders, n)))


def _moved(lengths: tuple[int, ...], shard: int, start: int) -> tuple[int, ...]:
    """Return the lengths with every border moved to the nearest one between shards; those that meet there, or at an end, become one."""
    n = sum(lengths)
    nearest = {(start + border + shard // 2) // shard * shard - start for border in _borders(lengths)}
    return _lengths(n, sorted(border for border in nearest if 0 < border < n))


def _largest(chunks: Sequence[tuple[int, ...]]) -> int:
    return prod(max(lengths, default=0) for lengths in chunks)


def _divide(chunks: list[tuple[int, ...]], shard_shape: Sequence[int], start: Sequence[int], max_elements: int) -> None:
    """Halve chunks along the dimension in which they span the most shards, until they are small enough or single shards."""
    while _largest(chunks) > max_elements:
        spans = [_widest(lengths, shard, offset) for lengths, shard, offset in zip(chunks, shard_shape, start, strict=True)]
        widest = max(spans)
        if widest < 2:
            return
        axis = spans.index(widest)
        chunks[axis] = _split(chunks[axis], shard_shape[axis], start[axis], -(-widest // 2))


def _widest(lengths: tuple[int, ...], shard: int, start: int) -> int:
    """Return the most shards that one chunk touches."""
    edges = (0, *_borders(lengths), sum(lengths))
    return max(-(-(start + end) // shard) - (start + begin) // shard for begin, end in pairwise(edges))


def _split(lengths: tuple[int, ...], shard: int, start: int, most: int) -> tuple[int, ...]:
    """Return the same block in chunks of at most ``most`` shards; borders that are there stay."""
    n = sum(lengths)
    edges = (0, *_borders(lengths), n)
    borders: set[int] = set(edges)
    for begin, end in pairwise(edges):
        first = (start + begin) // shard
        borders.update(range((first + most) * shard - start, end, most * shard))
    return _lengths(n, sorted(border for border in borders if 0 < border < n))
