"""Writers of different elements of one chunk lose nothing: a part is merged within the commit, with what is there by then."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import ZstdCodec

import shardstore
from shardstore._sync import run_sync
from shardstore.adapters.zarr.chunks import ChunkCodec
from shardstore.errors import Undecodable
from shardstore.storage.memory import MemoryStorage
from shardstore.threads import INLINE_BYTES
from tests.engine.hooked import HookedStorage, fresh_memory

LAYOUTS: dict[str, dict[str, Any]] = {
    "sharded": {"store": {"chunks_per_shard": (2, 2)}},
    "appended to": {"store": {"chunks_per_shard": (2, 2), "strategy": "append"}},
    "not sharded": {"store": {"chunks_per_shard": None}},
    "shards of its own": {"store": {"chunks_per_shard": None}, "array": {"shards": (16, 16)}},
    "draft": {"store": {"chunks_per_shard": (2, 2), "stored": "transformer"}},
}


def two_clients(layout: str, side: int = 8) -> tuple[Any, Any, HookedStorage]:
    """An array as two clients have it that know nothing of each other; of the first one, what it asks the storage for."""
    given = LAYOUTS[layout]
    inner = fresh_memory()
    mine = HookedStorage(inner)
    stores = [shardstore.open(storage, **given["store"]) for storage in (mine, MemoryStorage(inner.path))]
    zarr.create_array(stores[0], shape=(2 * side, 2 * side), chunks=(side, side), dtype="i4", fill_value=0, **given.get("array", {}))
    first, second = (zarr.open_array(store, mode="r+") for store in stores)
    return first, second, mine


def between(mine: HookedStorage, assign: Any) -> None:
    """Let another client assign something once, between what the first one reads and what it writes."""

    async def before(operation: str, key: str) -> None:
        if operation in ("write", "compose", "delete") and not key.endswith("zarr.json"):
            mine.before = None
            await asyncio.to_thread(assign)

    mine.before = before


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("is_new", [True, False])
def test_another_client_writes_elements_of_the_same_chunk_meanwhile(layout: str, is_new: bool) -> None:
    first, second, mine = two_clients(layout)
    expected = np.zeros((16, 16), "i4")
    if not is_new:
        first[...] = expected = np.arange(1, 257, dtype="i4").reshape(16, 16)
    expected[0], expected[1] = 1000, 2000
    between(mine, lambda: second.__setitem__(1, 2000))
    first[0] = 1000
    assert mine.before is None
    np.testing.assert_array_equal(second[...], expected)
    np.testing.assert_array_equal(first[...], expected)


def test_what_another_client_erased_meanwhile_is_not_brought_back() -> None:
    first, second, mine = two_clients("sharded")
    first[...] = 5
    between(mine, lambda: second.__setitem__((slice(None), slice(None)), 0))
    first[0, :4] = 7
    expected = np.zeros((16, 16), "i4")
    expected[0, :4] = 7
    np.testing.assert_array_equal(second[...], expected)


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_part_that_makes_a_chunk_the_fill_value_does_not_erase_what_another_client_wrote(layout: str, is_there: bool) -> None:
    first, second, mine = two_clients(layout)
    if is_there:
        first[0, :8] = 5
    between(mine, lambda: second.__setitem__((1, slice(0, 8)), 6))
    first[0, :8] = 0
    if mine.before is not None:  # where nothing is stored, nothing is erased
        assert not is_there
        second[1, :8] = 6
    assert second[1, 0] == 6
    assert not second[0].any()


@pytest.mark.parametrize("side", [8, int((INLINE_BYTES / 4) ** 0.5) * 2])
@pytest.mark.parametrize("layout", ["sharded", "not sharded"])
def test_codecs_that_need_a_loop(layout: str, side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChunkCodec, "is_sync", lambda self, spec: False)  # as those of other packages may be
    first, second, mine = two_clients(layout, side)
    between(mine, lambda: second.__setitem__(1, 2))
    first[0] = 1
    assert (second[0] == 1).all()
    assert (second[1] == 2).all()


def test_codecs_that_need_the_loop_that_the_engine_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChunkCodec, "is_sync", lambda self, spec: False)
    first, second, _ = two_clients("sharded")
    run_sync(asyncio.wait_for(first._async_array.setitem((0, slice(None)), 1), 30))
    assert (second[0] == 1).all()
    assert not second[1].any()


def test_threads_encode_many_parts() -> None:
    side = int((INLINE_BYTES / 4) ** 0.5) * 2
    first, second, mine = two_clients("sharded", side)
    values = np.random.default_rng(0).integers(0, 9, (2 * side, 2 * side)).astype("i4")
    first[...] = values
    between(mine, lambda: second.__setitem__((slice(None), 1), 2))
    first[:, 0] = 1
    values[:, 0], values[:, 1] = 1, 2
    np.testing.assert_array_equal(second[...], values)


@pytest.mark.parametrize("chunks_per_shard", [(2, 2), None])
def test_a_part_of_a_chunk_that_cannot_be_decoded_is_refused(tmp_path: Path, chunks_per_shard: tuple[int, int] | None) -> None:
    store = shardstore.open(tmp_path, chunks_per_shard=chunks_per_shard, fsync=False)
    array: Any = zarr.create_array(store, shape=(16, 16), chunks=(8, 8), dtype="i4", fill_value=0, compressors=ZstdCodec())
    array[...] = 1
    mapper = shardstore.get_mapper(tmp_path)
    mapper["c/0/1"] = b"this is no frame"
    before = dict(mapper)
    with pytest.raises(Undecodable, match="c/0/1"):
        array[0, 8:12] = 2
    assert dict(mapper) == before
    with pytest.raises(Undecodable, match="c/0/1"):
        array[0] = 2
    assert mapper["c/0/1"] == before["c/0/1"]
    array[:8, 8:] = 3  # a whole chunk replaces it
    assert (array[:8, 8:] == 3).all()
