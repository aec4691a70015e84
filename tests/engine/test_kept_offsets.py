"""The strategy ``keep`` on each kind of storage: a plain reader whose index is one version old reads old values or new ones, no others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import FsspecStore, LocalStore, WrapperStore

import shardstore
from shardstore.plan.strategies import KeepOffsets
from tests.engine.hooked import fresh_memory

CHUNKS, WORDS = 8, 25
NARROW = KeepOffsets(dead_bytes_kept=0)  # dead bytes are used again from the first commits on


class Interrupted(WrapperStore[Any]):
    """A store of zarr-python that lets something happen between the read of an index and that of a chunk."""

    between: Callable[[], None] | None = None
    reads = 0

    async def _count(self, key: str) -> None:
        if "/c/" in key:
            self.reads += 1
            if self.reads == 2 and self.between is not None:
                await asyncio.to_thread(self.between)

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        await self._count(key)
        return await super().get(key, prototype, byte_range)

    async def get_ranges(self, key: str, *arguments: Any, **options: Any) -> Any:  # of newer versions
        await self._count(key)
        async for group in self._store.get_ranges(key, *arguments, **options):
            yield group


@pytest.fixture(params=["local", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, dict[str, Any], Any]:
    """A URL with its options, and a store of zarr-python of the same place."""
    match request.param:
        case "local":
            return str(tmp_path), {}, LocalStore(tmp_path)
        case "memory":
            url = f"memory:/{fresh_memory().path}"
            return url, {}, FsspecStore.from_url(url)
        case _:
            url, options = request.getfixturevalue("s3_url")
            return url, {"storage_options": options}, FsspecStore.from_url(url, storage_options=options)


def written(place: tuple[Any, dict[str, Any], Any], strategy: Any, location: Any, **options: Any) -> zarr.Array[Any]:
    """One shard of raw chunks, the first of which is missing."""
    url, given, _ = place
    store = shardstore.open(url, chunks_per_shard=(CHUNKS,), strategy=strategy, index_location=location, max_dead_fraction=0.3, **given)
    array = zarr.create_array(
        store, name="a", shape=(CHUNKS * WORDS,), chunks=(WORDS,), dtype="i4", compressors=None, fill_value=-1, **options
    )
    array[WORDS:] = np.repeat(np.arange(1, CHUNKS), WORDS)
    return array


def chunk(number: int) -> slice:
    return slice(number * WORDS, (number + 1) * WORDS)


def read_interrupted(place: tuple[Any, dict[str, Any], Any], number: int, between: Callable[[], None]) -> set[int]:
    """Return the values that a plain reader finds in a chunk while something happens between its two requests."""
    array = zarr.open_array(Interrupted(place[2]), path="a", mode="r+")
    store: Any = array.store
    store.reads, store.between = 0, between
    found = np.asarray(array[chunk(number)])
    assert store.reads == 2
    return set(found.tolist())


@pytest.mark.parametrize("location", ["end", "start"])
@pytest.mark.parametrize("strategy", ["rewrite", "keep", NARROW], ids=["rewrite", "keep", "narrow"])
def test_a_chunk_that_is_written_before_others_moves_none(place: Any, strategy: Any, location: str) -> None:
    array = written(place, strategy, location)
    found = read_interrupted(place, 3, lambda: array.__setitem__(chunk(0), 100))
    assert found == ({2} if strategy == "rewrite" else {3})  # the hazard that this is for
    expected = np.repeat([100, *range(1, CHUNKS)], WORDS)
    np.testing.assert_array_equal(zarr.open_array(place[2], path="a", mode="r")[:], expected)


@pytest.mark.parametrize("location", ["end", "start"])
@pytest.mark.parametrize("strategy", ["keep", NARROW], ids=["keep", "narrow"])
def test_whatever_a_commit_changes(place: Any, strategy: Any, location: str) -> None:
    """Parts of chunks, chunks, erased ones, the whole shard: the reader sees what was there before, or after."""
    array = written(place, strategy, location)
    rng = np.random.default_rng(0)
    values = np.asarray(array[:])
    for version in range(100, 125):
        first, last = sorted(rng.choice(CHUNKS + 1, 2, replace=False).tolist())
        part = slice(first * WORDS, last * WORDS)
        if version % 5 == 0:
            part = slice(0, CHUNKS * WORDS)
        elif version % 5 == 1:
            part = slice(first * WORDS, first * WORDS + 3)
        new = values.copy()
        new[part] = -1 if version % 5 == 2 else version
        number = int(rng.integers(CHUNKS))
        if (values[chunk(number)] == -1).all():
            array[part] = new[part]
        else:
            found = read_interrupted(place, number, lambda part=part, new=new: array.__setitem__(part, new[part]))  # type: ignore[misc]
            assert found == set(values[chunk(number)].tolist())
        values = new
        np.testing.assert_array_equal(zarr.open_array(place[2], path="a", mode="r")[:], values)
        np.testing.assert_array_equal(array[:], values)


def test_a_local_file_is_replaced(tmp_path: Path) -> None:
    """Not appended to in place: plain readers would find no index at its end for a moment."""
    array = written((str(tmp_path), {}, None), "keep", "end")
    before = (tmp_path / "a/c/0").stat()
    array[chunk(0)] = 100
    after = (tmp_path / "a/c/0").stat()
    assert after.st_ino != before.st_ino
    assert after.st_size == before.st_size + 4 * WORDS


def test_compact_removes_what_is_dead(tmp_path: Path) -> None:
    array = written((str(tmp_path), {}, None), "keep", "end")
    for version in range(100, 110):
        array[:] = version
    shard = tmp_path / "a/c/0"
    live_nbytes = CHUNKS * (4 * WORDS + 16) + 4
    assert shard.stat().st_size > 10 * 4 * WORDS * CHUNKS
    shardstore.compact(str(tmp_path))
    assert shard.stat().st_size == live_nbytes
    np.testing.assert_array_equal(zarr.open_array(tmp_path, path="a", mode="r")[:], 109)
