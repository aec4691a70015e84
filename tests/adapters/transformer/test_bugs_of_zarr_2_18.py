"""What zarr-python 2.18's transformer does wrong is right here: each of its known bugs, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardstore import ShardingTransformer
from shardstore.storage.local.storage import LocalStorage
from tests.adapters.transformer.layers import document, layered, two_a_side

X = "data/root/x/"


@pytest.fixture(params=[1, 2], ids=["one layer", "two layers"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ShardingTransformer:
    """Four chunks of unequal lengths in one shard, one that is missing in it, and nothing in the next ones."""
    top, _ = layered(LocalStorage(tmp_path, fsync=False), request.param)
    top.set("meta/root/x.array.json", document((16, 16), (2, 2), compressed=True))
    top.set_partial_values([(f"{X}c0/0", 0, b"first"), (f"{X}c0/1", 0, b"2nd"), (f"{X}c1/0", 0, b"the third")])
    return top


def size(root: Path) -> int:
    return sum(p.stat().st_size for p in (root / "data").rglob("*") if p.is_file() and not p.name.startswith("."))


def test_ranges_past_the_end_of_a_chunk(store: ShardingTransformer) -> None:
    """They leaked the next chunk's bytes, or the index."""
    asked = [(f"{X}c0/0", (3, None)), (f"{X}c0/0", (3, 100)), (f"{X}c0/1", (0, 10**9)), (f"{X}c1/0", (9, None)), (f"{X}c1/0", (50, 5))]
    assert store.get_partial_values(asked) == [b"st", b"st", b"2nd", b"", b""]


def test_suffix_ranges(store: ShardingTransformer) -> None:
    """They read before the chunk, or gave nothing where the length reaches the end."""
    asked = [(f"{X}c0/1", (-2, None)), (f"{X}c0/1", (-2, 2)), (f"{X}c0/1", (-2, 1)), (f"{X}c0/1", (-100, None)), (f"{X}c0/1", (-100, 2))]
    assert store.get_partial_values(asked) == [b"nd", b"nd", b"n", b"2nd", b"2n"]
    assert store.get_partial_values([(f"{X}c1/1", (-2, None)), (f"{X}c6/6", (-2, None))]) == [None, None]


def test_erasing_a_missing_chunk(store: ShardingTransformer) -> None:
    """In a missing shard it was a ``KeyError``, in an existing one none."""
    before = store.list()
    for key in (f"{X}c1/1", f"{X}c7/7", f"{X}nothing", "data/root/nowhere/c0"):
        store.erase(key)
        store.erase_values([key, key])
    assert store.list() == before


def test_shards_shrink(store: ShardingTransformer, tmp_path: Path) -> None:
    """Only the index was rewritten: dead bytes stayed for good."""
    store.set(f"{X}c1/1", b"x" * 10_000)
    large = size(tmp_path)
    store.set(f"{X}c1/1", b"y" * 100)
    smaller = size(tmp_path)
    assert smaller == large - 9_900
    store.erase(f"{X}c1/1")
    assert size(tmp_path) == smaller - 100
    store.erase_values([f"{X}c0/0", f"{X}c0/1", f"{X}c1/0"])
    assert size(tmp_path) == 0


def test_list_dir_without_a_trailing_slash(store: ShardingTransformer) -> None:
    for prefix in ("data", "data/root", "data/root/x", f"{X}c0", f"{X}c1", "meta/root", "nothing"):
        assert store.list_dir(prefix) == store.list_dir(prefix + "/")
    assert store.list_dir(f"{X}c0") == ([f"{X}c0/0", f"{X}c0/1"], [])


def test_foreign_keys_below_an_array(store: ShardingTransformer) -> None:
    """Every listing raised ``ValueError``."""
    foreign = [f"{X}notes.txt", f"{X}cx", f"{X}c/0", f"{X}c1/0.5", f"{X}c-1"]
    for key in foreign:
        store.set(key, key.encode())
    chunks = [f"{X}c0/0", f"{X}c0/1", f"{X}c1/0"]
    assert store.list_prefix(X) == sorted(foreign + chunks)
    keys, prefixes = store.list_dir(X)
    assert keys == sorted(key for key in foreign if key.count("/") == 3)
    assert {f"{X}c/", f"{X}c0/", f"{X}c1/"} <= set(prefixes)
    assert store.list_prefix(f"{X}c1/") == [f"{X}c1/0", f"{X}c1/0.5"]
    assert store.get_partial_values([(key, None) for key in foreign]) == [key.encode() for key in foreign]
    store.erase_prefix(X)
    assert store.list_prefix("data/") == []


def test_c00_is_no_chunk(tmp_path: Path) -> None:
    """It was read and overwritten as chunk 0."""
    store = ShardingTransformer(str(tmp_path), present="draft", chunks_per_shard=two_a_side)
    store.set("meta/root/x.array.json", document((8,), (2,), compressed=True))
    store.set(f"{X}c0", b"zero")
    for key in (f"{X}c00", f"{X}c+0", f"{X}c0/0", f"{X}c 0"):
        assert store.get(key) is None
    store.set(f"{X}c00", b"something else")
    assert (store.get(f"{X}c0"), store.get(f"{X}c00")) == (b"zero", b"something else")
    store.erase(f"{X}c00")
    assert store.get(f"{X}c0") == b"zero"


def test_the_prefix_slash_is_everything(store: ShardingTransformer) -> None:
    """It raised; the draft's own ``list`` is said to be this."""
    assert store.list_prefix("/") == store.list()


def test_keys_need_not_be_ascii(store: ShardingTransformer) -> None:
    store.set("notes/é.txt", b"text")
    assert store.get("notes/é.txt") == b"text"
