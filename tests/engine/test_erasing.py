"""Erasing by prefix erases what the prefix names, and nothing else, in every spelling of chunk keys."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardstore import InvalidInput, ShardingTransformer
from tests.engine.hooked import document, fresh_memory

ENCODINGS = [(name, separator) for name in ("default", "v2") for separator in ("/", ".")]


def open_array(name: str, separator: str, per_shard: tuple[int, int]) -> ShardingTransformer:
    """A 4 x 4 grid of chunks at ``ct``, each holding its own key; a neighbour, and a stranger below the array."""
    store = ShardingTransformer(fresh_memory(), chunks_per_shard={"ct": per_shard, "*": None})
    store.set("ct/zarr.json", document((4, 4), (1, 1), chunk_key_encoding={"name": name, "configuration": {"separator": separator}}))
    for i, j in itertools.product(range(4), repeat=2):
        key = separator.join((["c"] if name == "default" else []) + [str(i), str(j)])
        store.set(f"ct/{key}", key.encode())
    store.set("ct2/c/0", b"neighbour")
    store.set("ct/notes/1.txt", b"stranger")
    return store


PREFIXES = [
    *("", "ct/", "ct/c/", "ct/0/", "ct/c/0/", "ct/c/1/2/", "ct/c/00/", "ct/1.2/", "ct/c.0/", "ct/c.0.1/", "ct/0.1/", "ct/0/1/"),
    *("ct/notes/", "ct2/", "c/", "ct/c/0/1/2/", "nothing/", "ct/c/9/"),
]


@given(
    st.sampled_from(ENCODINGS), st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 4])), st.sampled_from(PREFIXES), st.booleans()
)
def test_what_does_not_start_with_the_prefix_stays(
    encoding: tuple[str, str], per_shard: tuple[int, int], prefix: str, in_transaction: bool
) -> None:
    store = open_array(*encoding, per_shard)
    before = {key: store.get(key) for key in store.list()}
    assert len(before) == 19
    expected = {key: value for key, value in before.items() if not key.startswith(prefix)}
    if in_transaction:
        with store.transaction():
            store.erase_prefix(prefix)
            assert store.list() == sorted(expected)
    else:
        store.erase_prefix(prefix)
    assert {key: store.get(key) for key in store.list()} == expected


def test_a_prefix_that_cuts_a_name_is_refused() -> None:
    store = open_array("default", "/", (2, 2))
    with pytest.raises(InvalidInput, match="does not end with '/'"):
        store.erase_prefix("ct")
    assert len(store.list()) == 19
