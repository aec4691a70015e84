"""Finding the last valid index among bytes of any kind."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from shardstore.format.index_proofs import last_index
from shardstore.format.shard_index import EMPTY, IndexCodecs, IndexFormat, ShardIndex


def an_index(index_format: IndexFormat, limit: int, seed: int) -> ShardIndex:
    """Entries that fit ``limit`` bytes, some of them empty."""
    rng = np.random.default_rng(seed)
    nslots = index_format.chunks_per_shard[0]
    entries = np.full((nslots, 2), EMPTY, dtype=np.uint64)
    for slot in np.flatnonzero(rng.random(nslots) < 0.7):
        start = rng.integers(0, limit + 1)
        entries[slot] = start, rng.integers(0, limit - start + 1)
    return ShardIndex(entries)


@given(st.data())
def test_it_is_found_wherever_it_is(data: st.DataObject) -> None:
    endian: Any = data.draw(st.sampled_from(["little", "big"]))
    index_format = IndexFormat((data.draw(st.integers(1, 9)),), IndexCodecs(endian))
    before, behind, at = (data.draw(st.integers(0, 300)) for _ in range(3))
    noise = data.draw(st.sampled_from(["random", "zeros", "ones", "small"]))
    filler = {
        "random": np.random.default_rng(1).integers(0, 256, before + behind, dtype=np.uint8).tobytes(),
        "zeros": bytes(before + behind),
        "ones": b"\xff" * (before + behind),
        "small": np.arange(before + behind, dtype="<u8").tobytes()[: before + behind],
    }[noise]
    index = an_index(index_format, at + before, data.draw(st.integers(0, 99)))
    found = last_index(index_format, filler[:before] + index_format.encode(index) + filler[before:], at)
    assert found is not None
    assert found[0] == at + before
    assert np.array_equal(found[1].entries, index.entries)
    assert last_index(index_format, filler, at) is None


@pytest.mark.parametrize("few", [0, 10**9], ids=["checksums of all windows", "one by one"])
def test_the_last_of_several_whose_entries_lie_before_it(few: int) -> None:
    index_format = IndexFormat((3,))
    first, second = an_index(index_format, 10, 1), an_index(index_format, 80, 2)
    ahead = ShardIndex(np.array([[0, 10], [170, 60], [0, 1]], dtype=np.uint64))  # in the middle a chunk that lies on it
    assert ahead.invalid(200).any()
    data = (
        bytes(10) + index_format.encode(first) + bytes(20) + index_format.encode(second) + bytes(5) + index_format.encode(ahead) + bytes(9)
    )
    found = last_index(index_format, data, 0, few=few)
    assert found is not None
    assert found[0] == 10 + index_format.nbytes + 20
    assert np.array_equal(found[1].entries, second.entries)


def test_too_few_bytes_hold_none() -> None:
    index_format = IndexFormat((2,))
    assert last_index(index_format, bytes(index_format.nbytes - 1), 0) is None
    assert last_index(index_format, b"", 7) is None
