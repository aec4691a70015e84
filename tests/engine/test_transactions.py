"""Transactions: held back, readable meanwhile, one commit a shard, chunks before metadata, or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from shardstore import InvalidInput, ShardingTransformer
from tests.engine.hooked import HookedStorage, document, fresh_memory


def open_hooked(**options: Any) -> tuple[HookedStorage, ShardingTransformer, ShardingTransformer]:
    storage = HookedStorage(fresh_memory())
    mine = ShardingTransformer(storage, **({"chunks_per_shard": (4,)} | options))
    return storage, mine, ShardingTransformer(storage.inner, chunks_per_shard=(4,))


@pytest.mark.parametrize("max_memory", [10, 10**6])  # with and without a spill to a temporary file
def test_one_commit_a_shard_and_chunks_before_metadata(max_memory: int) -> None:
    storage, mine, other = open_hooked(max_memory=max_memory)
    with mine.transaction():
        mine.set("a/zarr.json", document((16,), (1,)))
        for i in range(8):
            mine.set(f"a/c/{i}", b"%d" % i * 3)
        mine.set("a/c/3", b"again")
        mine.set_partial_values([("a/c/3", 5, b"!")])
        mine.erase("a/c/0")
        assert mine.get("a/c/3") == b"again!"
        assert mine.get("a/c/0") is None
        assert mine.get_partial_values([("a/c/7", (1, 1)), ("a/c/9", None)]) == [b"7", None]
        assert mine.list() == sorted(["a/zarr.json", *(f"a/c/{i}" for i in range(1, 8))])
        assert mine.list_dir("a/") == (["a/zarr.json"], ["a/c/"])
        assert other.list() == []
        assert storage.count("write") == 0
    writes = [key for op, key in storage.seen if op in ("write", "compose")]
    if max_memory > 100:
        assert sorted(writes[:-1]) == ["a/c/0", "a/c/1"]
    assert writes[-1] == "a/zarr.json"
    assert other.get("a/c/3") == b"again!"
    assert other.get("a/c/0") is None
    assert other.get("a/c/7") == b"777"


def test_an_exception_discards_everything_and_says_how_much() -> None:
    _, mine, _ = open_hooked()
    mine.set("a/zarr.json", document((16,), (1,)))
    mine.set("a/c/0", b"old")

    def change() -> None:
        with mine.transaction():
            mine.set("a/c/0", b"new")
            mine.erase_prefix("a/c/")
            mine.set("a/c/1", b"new")
            raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        change()
    assert "rolled back" in caught.value.__notes__[0]
    assert (mine.get("a/c/0"), mine.get("a/c/1")) == (b"old", None)


def test_erased_prefixes_go_first() -> None:
    _, mine, other = open_hooked()
    mine.set("a/zarr.json", document((16,), (1,)))
    mine.set("a/c/0", b"old")
    mine.set("b", b"stays")
    with mine.transaction():
        mine.erase_prefix("a/")
        assert mine.get("a/c/0") is None
        assert mine.list() == ["b"]
        mine.set("a/zarr.json", document((8,), (2,)))
        mine.set("a/c/1", b"new")
        assert other.get("a/c/0") == b"old"
    assert other.list() == ["a/c/1", "a/zarr.json", "b"]
    assert other.get("a/c/1") == b"new"


def test_what_would_be_refused_is_refused_before_a_chunk_is_written() -> None:
    storage, mine, other = open_hooked()
    mine.set("a/zarr.json", document((16,), (1,)))
    mine.set("a/c/0", b"old")
    storage.seen.clear()

    def change() -> None:
        with mine.transaction():
            mine.set("a/c/1", b"new")
            mine.set("a/zarr.json", document((16,), (2,)))

    with pytest.raises(InvalidInput, match="cannot change while it has chunks") as caught:
        change()
    assert "0 of 2 held-back keys were committed" in caught.value.__notes__[0]
    assert storage.count("write") == storage.count("compose") == 0
    assert other.get("a/c/1") is None


def test_they_do_not_nest_and_need_a_writable_store() -> None:
    _, mine, _ = open_hooked()
    with mine.transaction(), pytest.raises(InvalidInput, match="do not nest"), mine.transaction():
        pytest.fail("the inner block must not be entered")
    with pytest.raises(InvalidInput, match="read-only"):
        ShardingTransformer(fresh_memory(), read_only=True).transaction()
