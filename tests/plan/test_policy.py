"""The sharding policy."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardstore.errors import InvalidInput
from shardstore.plan.policy import AUTO_MAX_CHUNKS, AUTO_SHARD_NBYTES, ArrayInfo, automatic, chunks_per_shard, validate_policy


def document(shape: tuple[int, ...], chunks: tuple[int, ...], data_type: Any = "uint16") -> dict[str, Any]:
    return {
        "shape": list(shape),
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
        "chunk_key_encoding": {"name": "default"},
        "codecs": [{"name": "bytes"}],
        "zarr_format": 3,
        "node_type": "array",
    }


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


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 300)), min_size=1, max_size=5),
    st.sampled_from([None, 1, 2, 8, 40]),
)
def test_automatic_shards_are_bounded_and_do_not_depend_on_the_shape(dims: list[tuple[int, int]], item: int | None) -> None:
    shape, chunks = tuple(d[0] for d in dims), tuple(d[1] for d in dims)
    big = ArrayInfo("a", tuple(n + 10**5 for n in shape), chunks, item, {})
    decided = automatic(big)
    if decided is not None:
        assert 1 < prod(decided) <= AUTO_MAX_CHUNKS
        assert prod(decided) * prod(chunks) * (item or 16) <= AUTO_SHARD_NBYTES
    if len(dims) > 1:
        assert automatic(ArrayInfo("a", shape, chunks, item, {})) == decided  # arrays grow: xarray starts with one chunk


def test_coordinates_stay_as_they_are() -> None:
    assert chunks_per_shard("auto", "time", document((365,), (365,), "int64")) is None
    assert chunks_per_shard("auto", "x", document((), ())) is None
    # Whatever has, or will have, many chunks is sharded by their size, however short it is now.
    assert chunks_per_shard("auto", "grows", document((0,), (100,), "int64")) == (4096,)
    assert chunks_per_shard("auto", "grown", document((365,), (100,), "int64")) == (4096,)
    assert chunks_per_shard("auto", "long", document((10**6,), (100,), "int64")) == (4096,)


@pytest.mark.parametrize("policy", [(2, 2), (2, 2, 2, 2), lambda info: (1,), {"*": (3,)}])
def test_a_rank_that_does_not_fit(policy: Any) -> None:
    with pytest.raises(InvalidInput, match=r"array 'g/ct' has 3: give one number a dimension"):
        chunks_per_shard(policy, "g/ct", VOLUME)


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
