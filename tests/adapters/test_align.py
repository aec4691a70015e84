"""``shardstore.align``: no shard is shared by two dask chunks, whatever the chunks were and wherever the data goes."""

from __future__ import annotations

import subprocess
import sys
import uuid
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st

import shardstore
from shardstore.adapters.tools.align import align
from shardstore.errors import InvalidInput, Unsupported
from shardstore.plan.aligned import Chunks, are_aligned, shard_aligned_chunks

# -- the plan ------------------------------------------------------------------------------------------------------------


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Chunks, tuple[int, ...], tuple[int, ...]]:
    """Chunks of a block, the shard shape, and where in the array the block begins."""
    ndim = draw(st.integers(0, 3))
    lengths = st.lists(st.integers(0, 12), min_size=1, max_size=8).map(tuple)
    chunks = tuple(draw(lengths) for _ in range(ndim))
    shard_shape = tuple(draw(st.integers(1, 15)) for _ in range(ndim))
    start = tuple(draw(st.integers(0, 40)) for _ in range(ndim))
    return chunks, shard_shape, start


def shards_of(chunks: Chunks, shard_shape: tuple[int, ...], start: tuple[int, ...], axis: int) -> list[set[int]]:
    """The shards that each chunk of one dimension touches, counted element by element."""
    ends = list(accumulate(chunks[axis]))
    return [
        {(start[axis] + i) // shard_shape[axis] for i in range(end - length, end)} for length, end in zip(chunks[axis], ends, strict=True)
    ]


@given(blocks(), st.none() | st.integers(1, 500))
def test_no_shard_is_shared(block: tuple[Chunks, tuple[int, ...], tuple[int, ...]], max_elements: int | None) -> None:
    chunks, shard_shape, start = block
    shape = tuple(map(sum, chunks))
    aligned = shard_aligned_chunks(shape, shard_shape, start=start, chunks=chunks, max_elements=max_elements)
    assert tuple(map(sum, aligned)) == shape
    for axis in range(len(shape)):
        touched = shards_of(aligned, shard_shape, start, axis)
        assert sum(map(len, touched)) == len(set().union(*touched))
    shared = any(
        sum(map(len, touched)) != len(set().union(*touched))
        for touched in (shards_of(chunks, shard_shape, start, axis) for axis in range(len(shape)))
    )
    assert are_aligned(chunks, shard_shape, start) or shared or 0 in shape
    if not shared and are_aligned(chunks, shard_shape, start):
        assert aligned == chunks


@given(blocks(), st.integers(1, 500))
def test_chunks_grow_no_further_than_they_must(block: tuple[Chunks, tuple[int, ...], tuple[int, ...]], max_elements: int) -> None:
    chunks, shard_shape, start = block
    shape = tuple(map(sum, chunks))
    aligned = shard_aligned_chunks(shape, shard_shape, start=start, chunks=chunks, max_elements=max_elements)
    largest = prod(max(lengths) for lengths in aligned)
    before = prod(max(lengths) for lengths in chunks)
    single_shards = all(len(shards) <= 1 for axis in range(len(shape)) for shards in shards_of(aligned, shard_shape, start, axis))
    assert largest <= max(max_elements, 2 * before) or single_shards


@given(blocks())
def test_one_chunk_a_shard_by_default(block: tuple[Chunks, tuple[int, ...], tuple[int, ...]]) -> None:
    chunks, shard_shape, start = block
    shape = tuple(map(sum, chunks))
    aligned = shard_aligned_chunks(shape, shard_shape, start=start)
    for axis, n in enumerate(shape):
        touched = shards_of(aligned, shard_shape, start, axis)
        assert sum(aligned[axis]) == n
        assert all(len(shards) == 1 for shards in touched) or n == 0
        assert len(set().union(*touched)) == len(touched) or n == 0


def test_borders_move_to_the_nearest() -> None:
    assert shard_aligned_chunks((100,), (16,), chunks=((30, 30, 30, 10),)) == ((32, 32, 32, 4),)
    assert shard_aligned_chunks((60,), (16,), chunks=((10,) * 6,)) == ((16, 16, 16, 12),)
    assert shard_aligned_chunks((60,), (16,), start=(5,), chunks=((10,) * 6,)) == ((11, 16, 16, 17),)


def test_chunks_that_fit_are_kept() -> None:
    chunks = ((16, 48, 36), (7,))
    assert shard_aligned_chunks((100, 7), (16, 3), chunks=chunks) is chunks
    assert shard_aligned_chunks((20,), (16,), start=(10,), chunks=((6, 14),)) == ((6, 14),)


def test_what_had_to_grow_is_divided_at_shards() -> None:
    """Time steps that become 64 long must not hold 64 times the memory, if shards allow it."""
    chunks: Chunks = ((1,) * 128, (1000,), (1000,))
    aligned = shard_aligned_chunks((128, 1000, 1000), (64, 100, 100), chunks=chunks, max_elements=10**6)
    assert aligned[0] == (64, 64)
    assert max(aligned[1]) * max(aligned[2]) * 64 <= 2 * 10**6
    assert are_aligned(aligned, (64, 100, 100), (0, 0, 0))
    # Chunks that were large by choice, and grow a little as their borders move, stay large.
    assert shard_aligned_chunks((200,), (16,), chunks=((100, 100),), max_elements=16) == ((96, 104),)
    assert shard_aligned_chunks((128, 1000, 1000), (64, 100, 100), chunks=chunks) == ((64, 64), (1000,), (1000,))


@pytest.mark.parametrize(
    "arguments",
    [
        {"shape": (4, 4), "shard_shape": (4,)},
        {"shape": (4,), "shard_shape": (0,)},
        {"shape": (4,), "shard_shape": (2,), "start": (-1,)},
        {"shape": (4,), "shard_shape": (2,), "chunks": ((3,),)},
        {"shape": (4,), "shard_shape": (2,), "chunks": ((4,), (4,))},
    ],
    ids=str,
)
def test_arguments_that_do_not_fit(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        shard_aligned_chunks(**arguments)


# -- xarray and dask -----------------------------------------------------------------------------------------------------

TIME, Y, X = 40, 24, 20
CHUNKS = (2, 4, 5)
PER_SHARD = (4, 2, 2)
SHARD = (8, 8, 10)


def fields(start: int = 0, length: int = TIME, chunks: Any = None) -> xr.Dataset:
    values = np.arange(start * Y * X, (start + length) * Y * X, dtype="f8").reshape(length, Y, X)
    dataset = xr.Dataset(
        {"tas": (("time", "y", "x"), values), "height": ((), 2.0)},
        coords={"time": np.arange(start, start + length) * 6, "y": np.arange(Y) * 0.5, "x": np.arange(X)},
    )
    dataset["tas"].encoding["chunks"] = CHUNKS
    return dataset if chunks is None else dataset.chunk(chunks)


def new_url() -> str:
    return f"memory://align-{uuid.uuid4().hex}"


POLICY = {"tas": PER_SHARD, "*": None}


@pytest.fixture
def url() -> str:
    """A store with an array in shards of ``SHARD`` elements."""
    place = new_url()
    fields().to_zarr(shardstore.open(place, chunks_per_shard=POLICY))
    return place


@pytest.fixture(params=["store", "url", *(pytest.param(name, marks=pytest.mark.gate) for name in ("chain", "zarr group"))])
def target(request: pytest.FixtureRequest, url: str) -> Any:
    """The same store, named in every way that is understood."""
    match request.param:
        case "store":
            return shardstore.open(url)
        case "url":
            return url
        case "chain":
            return f"sharded::{url}"
        case _:
            return zarr.open_group(shardstore.open(url), mode="r+")


def test_a_dataset(target: Any) -> None:
    data = fields(chunks={"time": 3, "y": 24, "x": 7})
    aligned = align(data, target)
    assert isinstance(aligned, xr.Dataset)
    assert aligned["tas"].chunks == ((8, 8, 8, 8, 8), (24,), (10, 10))
    assert data["tas"].chunks == ((3,) * 13 + (1,), (24,), (7, 7, 6))  # what was given is not touched
    xr.testing.assert_identical(aligned.compute(), data.compute())
    assert aligned["height"].chunks is None


def test_a_region(target: Any) -> None:
    data = fields(start=5, length=20, chunks={"time": 5, "y": 24, "x": 20})
    aligned = align(data, target, region={"time": slice(5, 25)})
    assert aligned["tas"].chunks == ((3, 8, 8, 1), (24,), (20,))  # or nearest: 10 -> 8, 15 -> 16, 20 -> 24
    assert align(data, target, region={"time": slice(-35, -15)})["tas"].chunks == aligned["tas"].chunks


@pytest.mark.parametrize("region", ["auto", {"time": "auto"}, {"time": "auto", "x": slice(0, 20)}], ids=str)
def test_an_automatic_region(target: Any, region: Any) -> None:
    data = fields(start=5, length=20, chunks={"time": 5, "y": 24, "x": 20})
    assert align(data, target, region=region)["tas"].chunks == ((3, 8, 8, 1), (24,), (20,))


def test_an_automatic_region_that_is_none(target: Any) -> None:
    data = fields(start=5, length=20, chunks={"time": 5})
    for wrong in (
        data.isel(time=[0, 2, 3]),
        data.isel(time=[0, 2, 1, 3]),
        data.assign_coords(time=data.time + 1),
        data.isel(time=slice(0, 0)),
    ):
        with pytest.raises(InvalidInput, match="time"):
            align(wrong, target, region="auto")
    with pytest.raises(InvalidInput, match="no coordinate 'z'"):
        align(xr.Dataset({"tas": ("z", da.arange(3, chunks=1))}, coords={"z": [1, 2, 3]}), target, region="auto")


def test_a_dimension_without_coordinates_is_written_from_its_beginning(target: Any) -> None:
    data = fields(start=5, length=20, chunks={"time": 5, "x": 7}).drop_vars("x")
    assert align(data, target, region="auto")["tas"].chunks == ((3, 8, 8, 1), (24,), (10, 10))


def test_appending_begins_where_the_stored_array_ends(url: str) -> None:
    store = shardstore.open(url)
    more = fields(start=TIME, length=3)
    more.to_zarr(store, append_dim="time")  # 43 time steps: shards of 8, the last of 3
    data = fields(start=43, length=20, chunks={"time": 5})
    assert align(data, store, append_dim="time")["tas"].chunks == ((5, 8, 7), (24,), (20,))


def test_dimensions_in_another_order(target: Any) -> None:
    data = fields(chunks={"time": 3, "y": 24, "x": 7}).transpose("x", "time", "y")
    assert align(data, target)["tas"].chunks == ((10, 10), (8,) * 5, (24,))


def test_a_data_array(target: Any) -> None:
    data = fields(chunks={"time": 3})["tas"]
    aligned = align(data, target)
    assert isinstance(aligned, xr.DataArray)
    assert aligned.name == "tas"
    assert aligned.chunks == ((8,) * 5, (24,), (20,))
    assert align(data.rename("other"), target, name="tas").chunks == aligned.chunks
    assert align(data.rename("other"), target, name="tas").name == "other"


def test_data_arrays_without_a_name_of_their_own() -> None:
    """xarray stores them under a name of its own."""
    url = new_url()
    x = xr.DataArray(da.arange(30, chunks=10), dims="x").rename(None)
    x.to_zarr(shardstore.open(url, chunks_per_shard=(2,)))
    assert align(x.chunk(x=7), url).chunks == ((20, 10),)
    assert align(x.chunk(x=7), url).name is None


def test_a_group_below() -> None:
    url = new_url()
    fields().to_zarr(shardstore.open(url, chunks_per_shard={"a/b/tas": PER_SHARD, "*": None}), group="a/b")
    data = fields(chunks={"time": 3})
    for store, group in [(url, "a/b"), (f"sharded::{url}", "/a/b/"), (zarr.open_group(shardstore.open(url), path="a"), "b")]:
        assert align(data, store, group=group)["tas"].chunks == ((8,) * 5, (24,), (20,))
        assert align(data, store, group=group, region="auto")["tas"].chunks == ((8,) * 5, (24,), (20,))


def test_natively_sharded_arrays() -> None:
    """Whoever wrote it: the shards are what is stored."""
    url = new_url()
    native = zarr.storage.FsspecStore.from_url(url)
    encoding = {"tas": {"chunks": CHUNKS, "shards": SHARD}}
    fields().to_zarr(native, encoding=encoding)
    assert align(fields(chunks={"time": 3}), url)["tas"].chunks == ((8,) * 5, (24,), (20,))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_arrays_without_shards(zarr_format: Any) -> None:
    url = new_url()
    fields().to_zarr(shardstore.open(url, chunks_per_shard=None), zarr_format=zarr_format)
    assert align(fields(chunks={"time": 3}), url)["tas"].chunks == ((4, 2, 4, 2, 4, 2, 4, 2, 4, 2, 4, 2, 4), (24,), (20,))


def test_variables_that_do_not_exist_keep_their_stored_chunks() -> None:
    """Otherwise xarray would take the dask chunks, which are whole shards now, for the stored ones."""
    store = shardstore.open(new_url(), chunks_per_shard=POLICY)
    data = fields(chunks={"time": 2, "y": 4, "x": 5})
    del data["tas"].encoding["chunks"]
    aligned = align(data, store)
    assert aligned["tas"].chunks == ((8,) * 5, (8,) * 3, (10, 10))
    assert "chunks" not in data["tas"].encoding
    aligned.to_zarr(store)
    assert xr.open_zarr(store)["tas"].encoding["chunks"] == CHUNKS
    assert store.chunks_per_shard("tas") == PER_SHARD
    xr.testing.assert_identical(xr.open_zarr(store).compute(), data.compute())


def test_variables_that_do_not_exist_with_an_encoding() -> None:
    data = fields(chunks={"time": 5})
    assert align(data, chunks_per_shard=PER_SHARD)["tas"].chunks == ((8,) * 5, (24,), (20,))
    assert align(data, new_url(), chunks_per_shard={"tas": (10, 1, 1)})["tas"].chunks == ((20, 20), (24,), (20,))
    assert align(data, chunks_per_shard=lambda info: None)["tas"].chunks == ((6, 4) * 4, (24,), (20,))
    assert align(data)["tas"].chunks == ((40,), (24,), (20,))  # all chunks, of 40 elements each, are one shard
    data["tas"].encoding["chunks"] = 5
    assert align(data, chunks_per_shard=(2, 1, 1))["tas"].encoding["chunks"] == (5, 5, 5)


def test_the_policy_is_told_what_will_be_stored() -> None:
    seen = {}

    def policy(info: Any) -> None:
        seen[info.path] = (info.shape, info.chunk_shape, info.item_nbytes)

    data = xr.Dataset(
        {
            "packed": ("x", da.zeros(10, chunks=5), {}, {"dtype": "i2"}),
            "times": ("x", da.zeros(10, chunks=5, dtype="M8[s]")),
            "letters": ("x", np.full(10, "abc")),
            "objects": ("x", np.full(10, "abc", dtype=object)),
        }
    )
    align(data.chunk(x=5), group="g", chunks_per_shard=policy)
    assert seen == {
        "g/packed": ((10,), (5,), 2),
        "g/times": ((10,), (5,), 8),
        "g/letters": ((10,), (5,), 12),
        "g/objects": ((10,), (5,), None),
    }


def test_overwriting_does_not_look_at_what_is_there(url: str) -> None:
    store = shardstore.open(url, chunks_per_shard=(2, 2, 2))
    data = fields(chunks={"time": 3, "y": 24, "x": 7})
    data["tas"].encoding["chunks"] = (3, 3, 3)
    assert align(data, store, mode="w")["tas"].chunks == ((6,) * 6 + (4,), (24,), (6, 6, 8))


def test_chunks_of_several_sizes_do_not_say_what_to_store() -> None:
    data = xr.Dataset({"v": ("x", da.zeros(10, chunks=((3, 4, 3),)))})
    with pytest.raises(InvalidInput, match="encoding"):
        align(data)


def test_what_is_not_in_dask_chunks_is_left(target: Any) -> None:
    data = fields()
    xr.testing.assert_identical(align(data, target), data)
    assert align(data, target)["tas"].chunks is None


def test_chunks_may_be_limited(url: str) -> None:
    data = fields(chunks={"time": 1, "y": 24, "x": 20})
    assert align(data, url)["tas"].chunks == ((8,) * 5, (24,), (20,))
    one_shard = 8 * 8 * 10 * 8
    assert align(data, url, chunk_bytes=one_shard)["tas"].chunks == ((8,) * 5, (8, 8, 8), (10, 10))
    assert align(data, url, chunk_bytes="5 kiB")["tas"].chunks == ((8,) * 5, (8, 8, 8), (10, 10))
    with dask.config.set({"array.chunk-size": "11kiB"}):
        assert align(data, url)["tas"].chunks == ((8,) * 5, (8, 8, 8), (20,))


# -- dask arrays ---------------------------------------------------------------------------------------------------------


def test_a_dask_array(url: str) -> None:
    data = da.zeros((TIME, Y, X), chunks=(3, 24, 7))
    expected = ((8,) * 5, (24,), (10, 10))
    array = zarr.open_array(shardstore.open(url), path="tas")
    chained = zarr.open_array(f"sharded::{url}", path="tas")
    native = zarr.open_array(zarr.storage.FsspecStore.from_url(url), path="tas")
    for store in (array, chained, native):
        assert align(data, store).chunks == expected
    assert align(data, url, name="tas").chunks == expected
    region = (slice(5, 25), slice(None), slice(0, 7))
    assert align(da.zeros((20, Y, 7), chunks=(5, 24, 3)), array, region=region).chunks == ((3, 8, 8, 1), (24,), (7,))
    assert align(da.zeros((20, Y, X), chunks=(5, 24, 20)), array, append_dim=0).chunks == ((8, 8, 4), (24,), (20,))


def test_a_dask_array_that_does_not_exist() -> None:
    assert align(da.zeros(100, chunks=10), chunks_per_shard=(2,)).chunks == ((20,) * 5,)
    assert align(da.zeros(100, chunks=10), new_url(), name="a", chunks_per_shard=(3,)).chunks == ((30, 30, 30, 10),)
    with pytest.raises(InvalidInput, match="name"):
        align(da.zeros(100, chunks=10), new_url())


def test_unknown_chunks(url: str) -> None:
    data = da.arange(100, chunks=10)
    with pytest.raises(InvalidInput, match="compute_chunk_sizes"):
        align(data[data > 3], zarr.create_array(shardstore.open(new_url()), shape=(100,), chunks=(10,), dtype="i8"))


# -- errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mode": "x"}, "mode 'x'"),
        ({"chunks_per_shard": 0}, "chunks_per_shard"),
        ({"region": {"time": slice(0, 3)}}, "has 3 elements, the data 40"),
        ({"region": {"time": slice(0, 40, 2)}}, "step 2"),
        ({"region": {"z": slice(0, 3)}}, "region"),
        ({"region": {"time": 3}}, "neither a slice"),
        ({"region": slice(0, 3)}, "region"),
        ({"region": {"time": slice(None)}, "append_dim": "time"}, "append_dim"),
        ({"group": "elsewhere", "region": {"time": slice(0, 40)}}, "does not exist"),
    ],
    ids=str,
)
def test_arguments_that_fit_nothing(url: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        align(fields(chunks={"time": 3}), url, **options)


@pytest.mark.parametrize("options", [{"region": (slice(0, 3),)}, {"region": "auto"}, {"append_dim": "time"}, {"append_dim": 3}], ids=str)
def test_arguments_that_fit_no_dask_array(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"region|append_dim"):
        align(da.zeros((TIME, Y, X), chunks=(3, 24, 7)), url, name="tas", **options)


def test_data_that_nothing_is_to_be_done_for() -> None:
    with pytest.raises(InvalidInput, match="ndarray"):
        align(np.zeros(3))
    with pytest.raises(InvalidInput, match="zarr's own stores"):
        align(fields(chunks={"time": 3}), zarr.storage.MemoryStore())
    with pytest.raises(InvalidInput, match="storage_options"):
        align(fields(chunks={"time": 3}), zarr.storage.MemoryStore(), storage_options={"a": 1})


def test_an_array_of_other_dimensions(url: str) -> None:
    with pytest.raises(InvalidInput, match="dimensions"):
        align(fields(chunks={"time": 3}).rename(y="lat"), url)
    with pytest.raises(InvalidInput, match="dimensions"):
        align(da.zeros((3, 3), chunks=2), url, name="tas")


def test_an_array_whose_chunks_cannot_be_told(tmp_path: Path) -> None:
    (tmp_path / "tas").mkdir()
    (tmp_path / "tas" / "zarr.json").write_text(
        '{"zarr_format": 3, "node_type": "array", "shape": [40], "chunk_grid": {"name": "hexagonal"}}'
    )
    with pytest.raises(Unsupported, match="chunk grid is not regular"):
        align(xr.Dataset({"tas": ("time", da.zeros(40, chunks=3))}), tmp_path)


def test_importing_it_imports_neither_xarray_nor_dask() -> None:
    code = "import sys, shardstore.adapters.tools.align; print([m for m in ('xarray', 'dask', 'zarr', 'pandas') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
