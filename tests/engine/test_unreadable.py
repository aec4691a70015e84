"""Below metadata that cannot be read, what looks like a chunk may be a shard: it is neither returned nor replaced."""

from __future__ import annotations

import pytest

from shardstore import Corruption, ShardingTransformer
from shardstore._sync import run_sync
from shardstore.model.generation import UNCONDITIONAL
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import Found, Read
from shardstore.storage.memory import MemoryStorage
from tests.engine.hooked import document, fresh_memory

WHOLE = document((8,), (1,))


def write(place: MemoryStorage, key: str, data: bytes) -> None:
    run_sync(place.write(key, [data], len(data), UNCONDITIONAL))


def stored(place: MemoryStorage, key: str) -> bytes:
    (outcome,) = run_sync(place.read([Read(key, (EVERYTHING,))]))
    assert isinstance(outcome, Found)
    return bytes(outcome.buffers[0])


@pytest.mark.parametrize(
    "damaged", [WHOLE[:40], b"{}", b'  {"zarr_format": 3, "node_type": "else"}'], ids=["cut off", "empty", "of no node"]
)
def test_below_damaged_metadata_nothing_is_read_or_written(damaged: bytes) -> None:
    place = fresh_memory()
    first = ShardingTransformer(place, chunks_per_shard=(4,))
    first.set("a/zarr.json", WHOLE)
    first.set("a/c/0", b"x")
    document_before, shard = stored(place, "a/zarr.json"), stored(place, "a/c/0")
    write(place, "a/zarr.json", damaged)
    client = ShardingTransformer(place)
    with pytest.raises(Corruption, match=r"'a/c/0' cannot be read.*'a/zarr.json'.*Restore the metadata"):
        client.get("a/c/0")
    for key in ("a/c/0", "a/c/1"):
        with pytest.raises(Corruption, match=rf"'{key}' is not written.*'a/zarr.json'.*Restore the metadata"):
            client.set(key, b"y")
    assert stored(place, "a/c/0") == shard
    write(place, "a/zarr.json", document_before)
    assert ShardingTransformer(place).get("a/c/0") == b"x"


def test_below_an_empty_document_nothing_is_read_or_replaced() -> None:
    place = fresh_memory()
    write(place, "a/zarr.json", b"")
    write(place, "a/c/0", b"whatever")
    client = ShardingTransformer(place)
    with pytest.raises(Corruption, match="'a/c/0' cannot be read"):
        client.get("a/c/0")
    with pytest.raises(Corruption, match="'a/c/0' is not written"):
        client.set("a/c/0", b"y")
    assert stored(place, "a/c/0") == b"whatever"


@pytest.mark.parametrize("foreign", [b"bar", b"\x01\x02"])
def test_what_never_was_metadata_hides_nothing_but_protects_what_is_there(foreign: bytes) -> None:
    place = fresh_memory()
    write(place, "a/zarr.json", foreign)
    write(place, "a/c/0", b"whatever")
    client = ShardingTransformer(place)
    assert client.get("a/c/0") == b"whatever"
    with pytest.raises(Corruption, match="'a/c/0' is not written"):
        client.set("a/c/0", b"y")
    client.set("a/c/1", b"z")
    assert (stored(place, "a/c/0"), stored(place, "a/c/1")) == (b"whatever", b"z")
