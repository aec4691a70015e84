"""The sharding policy."""

from __future__ import annotations

import ast
import re
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardstore.errors import InvalidInput
from shardstore.plan.policy import (
    AUTO_LEAST_CHUNK_NBYTES,
    AUTO_MAX_CHUNKS,
    AUTO_SHARD_NBYTES,
    ArrayInfo,
    automatic,
    chunks_per_shard,
    validate_policy,
)
from tests.documents import array_v3


def document(shape: tuple[int, ...], chunks: tuple[int, ...], data_type: Any = "uint16") -> dict[str, Any]:
    return array_v3(shape, chunks, data_type=data_type)


VOLUME = document((1000, 1000, 1000), (32, 32, 32))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("auto", (8, 8, 16)),  # 64 KiB a chunk, 64 MiB a shard
        (None, None),
        ((2, 3, 4), (2, 3, 4)),
        ({"other": (1, 1, 1), "g/*": (2, 2, 2)}, (2, 2, 2)),
        ({"*": None, "g/ct": (2, 2, 2)}, None),
        ({"other": None}, (8, 8, 16)),
        (lambda info: (1, 1, len(info.path)), (1, 1, 4)),
        (lambda info: "auto", (8, 8, 16)),
    ],
)
def test_decisions(policy: Any, expected: tuple[int, ...] | None) -> None:
    assert chunks_per_shard(policy, "g/ct", VOLUME) == expected


def grid_of(info: ArrayInfo) -> tuple[int, ...]:
    return tuple(-(-n // c) for n, c in zip(info.shape, info.chunk_shape, strict=True))


ARRAYS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 300)), min_size=1, max_size=6).flatmap(
    lambda dims: st.builds(
        ArrayInfo,
        st.just("a"),
        st.just(tuple(d[0] for d in dims)),
        st.just(tuple(d[1] for d in dims)),
        st.sampled_from([None, 1, 2, 8, 40]),
        st.just({}),
    )
)


@given(ARRAYS, st.booleans())
def test_automatic_shards_are_bounded_and_one_chunk_stays_one(info: ArrayInfo, may_grow: bool) -> None:
    decided, grid = automatic(info, may_grow=may_grow), grid_of(info)
    if decided is None:
        return
    assert 1 < prod(decided) <= AUTO_MAX_CHUNKS
    assert prod(decided) * prod(info.chunk_shape) * (info.item_nbytes or 16) <= AUTO_SHARD_NBYTES
    if any(n != 1 for n in grid):
        assert all(count == 1 for count, n in zip(decided, grid, strict=True) if n == 1)
    if not may_grow and 0 not in grid:
        assert all(count <= n for count, n in zip(decided, grid, strict=True))


@given(ARRAYS, st.booleans(), st.integers(1, 80))
def test_an_automatic_index_is_at_most_2_percent_of_a_full_shard(info: ArrayInfo, may_grow: bool, ratio: int) -> None:
    """Full by the array's own grid, but along the one dimension that is supposed to grow; ``ratio``: decoded to encoded bytes."""
    decided, grid = automatic(info, may_grow=may_grow), grid_of(info)
    chunk_nbytes = prod(info.chunk_shape) * (info.item_nbytes or 16)
    if decided is None or chunk_nbytes < AUTO_LEAST_CHUNK_NBYTES:
        return
    grows = [axis for axis, n in enumerate(grid) if n != 1] or [0]
    held = prod(count if n == 0 or grows == [axis] else min(count, n) for axis, (count, n) in enumerate(zip(decided, grid, strict=True)))
    if held == prod(decided):
        assert 16 * prod(decided) <= 0.02 * held * chunk_nbytes / ratio
    else:
        assert 16 * prod(decided) <= 0.02 * held * chunk_nbytes / 4


@pytest.mark.parametrize(
    ("shape", "chunks", "item", "created", "packed"),
    [
        ((5000, 45, 90), (1, 45, 90), 4, (1024, 1, 1), (1024, 1, 1)),  # a field per step: shards are long in time only
        ((1, 45, 90), (1, 45, 90), 4, (1024, 1, 1), None),  # its first step, to which others are appended
        ((0, 45, 90), (1, 45, 90), 4, (1024, 1, 1), (1024, 1, 1)),
        ((2, 45, 90), (1, 45, 90), 4, (1024, 1, 1), (2, 1, 1)),
        ((1, 180, 360), (1, 45, 90), 4, (1, 4, 4), (1, 4, 4)),
        ((30, 400, 400), (10, 100, 100), 4, (6, 4, 4), (3, 4, 4)),  # room along the first dimension, as 2 % of index allow
        ((1, 1, 10, 128, 128), (1, 1, 1, 64, 64), 2, (1, 1, 10, 2, 2), (1, 1, 10, 2, 2)),  # a small level of a pyramid
        ((10, 10), (4, 5), 2, (3, 2), (3, 2)),
        ((3, 50), (4, 5), 2, (1, 1024), (1, 10)),
    ],
)
def test_automatic_shards_fit_the_array(shape: Any, chunks: Any, item: int, created: Any, packed: Any) -> None:
    info = ArrayInfo("a", shape, chunks, item, {})
    assert automatic(info) == created
    assert automatic(info, may_grow=False) == packed


def test_coordinates_stay_as_they_are() -> None:
    assert chunks_per_shard("auto", "time", document((365,), (365,), "int64")) is None
    assert chunks_per_shard("auto", "x", document((), ())) is None
    # Whatever has, or will have, many chunks is sharded by their size, however short it is now.
    assert chunks_per_shard("auto", "grows", document((0,), (100,), "int64")) == (1024,)
    assert chunks_per_shard("auto", "grown", document((365,), (100,), "int64")) == (1024,)
    assert chunks_per_shard("auto", "long", document((10**6,), (100,), "int64")) == (1024,)


@pytest.mark.parametrize("policy", [(2, 2), (2, 2, 2, 2), lambda info: (1,), {"*": (3,)}])
def test_a_rank_that_does_not_fit(policy: Any) -> None:
    with pytest.raises(InvalidInput, match=r"array 'g/ct' has 3: give a function"):
        chunks_per_shard(policy, "g/ct", VOLUME)


@pytest.mark.parametrize("given", [(4, 2, 2), {"*": (4, 2, 2)}])
@pytest.mark.parametrize("first", ["time", "lat", "g/plane"])
def test_what_the_error_about_a_rank_suggests_works_for_all_arrays_at_once(given: Any, first: str) -> None:
    arrays = {
        "time": document((3000,), (10,)),
        "lat": document((48,), (12,)),
        "g/plane": document((48, 96), (12, 24)),
        "tas": document((30, 48, 96), (10, 12, 24)),
        "scalar": document((), ()),
    }
    with pytest.raises(InvalidInput) as refused:
        chunks_per_shard(given, first, arrays[first])
    function, mapping = re.findall(r"lambda .*? else 'auto'|\{.*?\}", str(refused.value))
    for policy in (eval(function), ast.literal_eval(mapping.replace("PATTERN", "tas"))):
        validate_policy(policy)
        for path, array in arrays.items():
            decided = chunks_per_shard(policy, path, array)
            assert decided == ((4, 2, 2) if path == "tas" else chunks_per_shard("auto", path, array))


@pytest.mark.parametrize("decided", [(0, 1, 1), (1, -1, 1), (1.5, 1, 1), "big", 7])
def test_a_function_that_decides_nonsense(decided: Any) -> None:
    with pytest.raises(InvalidInput, match="not a tuple of positive integers"):
        chunks_per_shard(lambda info: decided, "a", VOLUME)


def test_too_many_chunks_a_shard() -> None:
    with pytest.raises(InvalidInput, match="more than 16777216"):
        chunks_per_shard((1024, 1024, 1024), "a", VOLUME)


@pytest.mark.parametrize("policy", ["all", 3, (0,), ("2",), {"*": {"x": None}}, {1: None}, (True, 2)])
def test_policies_that_could_never_decide(policy: Any) -> None:
    with pytest.raises(InvalidInput, match="chunks_per_shard"):
        validate_policy(policy)


def test_what_passes_through_is_not_asked_for() -> None:
    irregular = VOLUME | {"chunk_grid": {"name": "rectangular"}}
    assert chunks_per_shard((2, 2, 2), "a", irregular) is None
