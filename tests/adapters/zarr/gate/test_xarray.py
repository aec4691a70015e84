"""xarray over shardstore, by a store object and by URL alone; what is written is read again by plain xarray and zarr."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

import shardstore
from shardstore.adapters.tools.align import align
from tests.shards import presented, sharded_arrays
from tests.stored import LocalObjects

PER_SHARD = {"tas": (4, 2, 2), "mask": (2, 2), "*": None}
CHUNKS = {"tas": (3, 4, 5), "mask": (4, 5)}
SHARDS = {"tas": (12, 8, 10), "mask": (8, 10)}


@dataclass
class Place:
    """A directory, and how a program of xarray's names it: by a store or by a URL with options."""

    root: Path
    by_url: bool
    policy: Any = field(default_factory=lambda: dict(PER_SHARD))

    @property
    def options(self) -> dict[str, Any]:
        return {"chunks_per_shard": self.policy, "fsync": False}

    @property
    def target(self) -> Any:
        return f"sharded::{self.root.as_uri()}" if self.by_url else shardstore.open(self.root, **self.options)

    @property
    def kwargs(self) -> dict[str, Any]:
        return {"storage_options": self.options} if self.by_url else {}

    def write(self, data: xr.Dataset | xr.DataArray, **options: Any) -> Any:
        return data.to_zarr(self.target, **self.kwargs, **options)

    def read(self, **options: Any) -> xr.Dataset:
        dataset: xr.Dataset = xr.open_zarr(self.target, **self.kwargs, **options).load()
        return dataset

    def read_natively(self, **options: Any) -> xr.Dataset:
        """As plain xarray does, from the shards."""
        dataset: xr.Dataset = xr.open_zarr(self.root, **options).load()
        return dataset

    def shard_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every sharded array, read past shardstore."""
        layouts = sharded_arrays(LocalObjects(self.root))
        return {
            path: tuple(c * n for c, n in zip(layout.chunk_shape, layout.chunks_per_shard, strict=True)) for path, layout in layouts.items()
        }


@pytest.fixture(params=["store", "url"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(tmp_path / "data.zarr", request.param == "url")


def weather(start: int = 0, days: int = 30) -> xr.Dataset:
    """Days from 2000-01-01 on, packed as 16-bit integers; every value is different and survives packing."""
    shape = (days, 16, 20)
    values = (np.arange(np.prod(shape)).reshape(shape) + start * 320) * 0.5 - 10_000
    dataset = xr.Dataset(
        {"tas": (("time", "lat", "lon"), values, {"units": "K", "long_name": "temperature"})},
        coords={
            "time": (
                "time",
                np.arange(start, start + days).astype("m8[D]").astype("m8[ns]") + np.datetime64("2000-01-01", "ns"),
                {"axis": "T"},
            ),
            "lat": ("lat", np.linspace(-75, 75, 16), {"units": "degrees_north"}),
            "lon": ("lon", np.arange(20) * 18.0, {"units": "degrees_east"}),
            "mask": (("lat", "lon"), np.indices((16, 20)).sum(axis=0) % 3 == 0),
        },
        attrs={"Conventions": "CF-1.11", "history": ["made", "by a test"], "nested": {"a": 1}},
    )
    dataset["tas"].encoding = {
        "dtype": "i4",
        "scale_factor": 0.5,
        "add_offset": -10_000.0,
        "_FillValue": -1,
        "fill_value": -1,
        "chunks": CHUNKS["tas"],
    }
    dataset["time"].encoding = {"units": "hours since 1990-01-01", "calendar": "proleptic_gregorian", "chunks": (365,)}
    dataset["mask"].encoding = {"chunks": CHUNKS["mask"]}
    return dataset


# -- writing and reading --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("consolidated", [True, False, None])
def test_a_dataset_survives(place: Place, consolidated: bool | None) -> None:
    data = weather()
    data["tas"][3, 4, 5] = np.nan
    place.write(data, consolidated=consolidated)
    for read in (place.read(consolidated=consolidated), place.read_natively(consolidated=consolidated)):
        xr.testing.assert_identical(read, data)
    assert place.shard_shapes() == SHARDS


def test_the_encoding_is_that_of_the_chunks(place: Place) -> None:
    place.write(weather())
    encoding = place.read()["tas"].encoding
    assert encoding["chunks"] == CHUNKS["tas"]
    assert encoding["shards"] is None
    assert encoding["dtype"] == np.dtype("i4")
    assert (encoding["scale_factor"], encoding["add_offset"], encoding["_FillValue"]) == (0.5, -10_000.0, -1)
    native = place.read_natively()["tas"].encoding
    assert (native["chunks"], native["shards"]) == (CHUNKS["tas"], SHARDS["tas"])
    times = zarr.open_group(place.root, mode="r")["time"]
    assert isinstance(times, zarr.Array)
    assert times.attrs["units"] == "hours since 1990-01-01"
    assert times[0] == 87_648  # ten years, two or three of them leap years


def test_chunks_are_seen_by_dask(place: Place) -> None:
    place.write(weather())
    opened = xr.open_zarr(place.target, **place.kwargs)["tas"]
    assert opened.chunks == ((3,) * 10, (4,) * 4, (5,) * 4)
    xr.testing.assert_identical(opened.isel(time=slice(5, 7), lon=3).compute(), weather()["tas"].isel(time=slice(5, 7), lon=3))


def test_plain_zarr_and_a_second_reader_see_the_same_chunks(place: Place) -> None:
    """The shards hold, byte for byte, the chunks that zarr-python would have stored one by one."""
    data = weather()
    place.write(data, consolidated=False)
    plain = place.root.parent / "plain.zarr"
    data.to_zarr(plain, consolidated=False)
    shown, expected = presented(LocalObjects(place.root)), presented(LocalObjects(plain))
    assert {key for key in shown if "/c/" in key} == {key for key in expected if "/c/" in key}
    assert all(shown[key] == expected[key] for key in expected if not key.endswith("zarr.json"))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_odd_variables(place: Place, zarr_format: Any) -> None:
    place.policy = lambda info: None if info.document["zarr_format"] == 2 else (2,) * len(info.shape) or None
    data = xr.Dataset(
        {
            "strings": ("x", np.array(["a", "bc", "", "déf"], dtype=object)),
            "letters": ("x", np.array(["a", "bc", "", "déf"])),
            "flags": ("x", [True, False, True, True]),
            "complex": ("x", np.array([1 + 2j, 0, 3, np.inf])),
            "when": ("x", np.array(["2001-01-01", "NaT", "2003-01-01", "1969-12-31"], dtype="M8[ns]")),
            "empty": (("none", "x"), np.zeros((0, 4), dtype="f4")),
            "scalar": ((), 3.5),
            "word": ((), "word"),
            "moment": ((), np.datetime64("2001-02-03", "ns")),
            "big": ("x", np.arange(4, dtype=">i4")),
        },
        coords={"x": list("abcd")},
    )
    for name in ("strings", "flags", "complex", "when"):
        data[name].encoding["chunks"] = (1,)
    data["letters"].encoding["chunks"] = (3,)
    place.write(data, zarr_format=zarr_format)
    xr.testing.assert_equal(place.read(), data)
    xr.testing.assert_equal(place.read_natively(), data)
    assert ("strings" in place.shard_shapes()) == (zarr_format == 3)


def test_a_data_array(place: Place) -> None:
    place.write(weather()["tas"])
    xr.testing.assert_identical(place.read()["tas"], weather()["tas"])


def test_groups(place: Place) -> None:
    place.policy = {"*/tas": (4, 2, 2), "*": None}
    place.write(weather(0, 3), group="model/a")
    place.write(weather(3, 3), group="model/b", mode="a")
    xr.testing.assert_identical(place.read(group="model/a"), weather(0, 3))
    xr.testing.assert_identical(place.read_natively(group="model/b"), weather(3, 3))
    assert set(place.shard_shapes()) == {"model/a/tas", "model/b/tas"}


def test_a_tree(place: Place) -> None:
    place.policy = {"*tas": (4, 2, 2), "*": None}
    tree = xr.DataTree.from_dict({"/": xr.Dataset(attrs={"a": 1}), "/x": weather(0, 3), "/x/y": weather(0, 3)[["tas"]] + 1})
    tree.to_zarr(place.target, **place.kwargs)
    opened = xr.open_datatree(place.target, engine="zarr", **place.kwargs)
    xr.testing.assert_identical(opened.load(), xr.open_datatree(place.root, engine="zarr").load())
    xr.testing.assert_identical(opened["/x"].to_dataset(), weather(0, 3))
    assert set(place.shard_shapes()) == {"x/tas", "x/y/tas"}


# -- appending and regions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("consolidated", [True, False, None])
def test_appending(place: Place, consolidated: bool | None) -> None:
    """Each piece ends inside a chunk and inside a shard."""
    place.write(weather(0, 1), consolidated=consolidated)
    for start, days in [(1, 6), (7, 7), (14, 16)]:
        place.write(weather(start, days), append_dim="time", consolidated=consolidated)
    xr.testing.assert_identical(place.read(consolidated=consolidated), weather(0, 30))
    xr.testing.assert_identical(place.read_natively(consolidated=consolidated), weather(0, 30))
    assert place.shard_shapes() == SHARDS


@pytest.mark.parametrize(
    ("chunks", "shards"),
    [
        ((3, 16, 20), (3 * 1024, 16, 20)),  # a single chunk: a shard is long in time, however short the first piece is
        ((3, 4, 5), (3, 16, 20)),  # several in space and one in time: the shard is one piece, and each piece writes its own
    ],
)
def test_appending_to_what_was_sharded_automatically(chunks: tuple[int, ...], shards: tuple[int, ...], place: Place) -> None:
    place.policy = "auto"
    first = weather(0, 1)
    first["tas"].encoding["chunks"] = chunks
    place.write(first)
    place.write(weather(1, 29), append_dim="time")
    xr.testing.assert_identical(place.read_natively(), weather(0, 30))
    assert place.shard_shapes()["tas"] == shards


@pytest.mark.parametrize("region", [{"time": slice(5, 17), "lon": slice(3, 14)}, "auto", {"time": "auto", "lon": slice(3, 14)}], ids=str)
def test_a_region(place: Place, region: Any) -> None:
    data = weather()
    place.write(data)
    part = data[["tas"]].isel(time=slice(5, 17), lon=slice(3, 14)) + 1
    place.write(part.drop_vars(["mask"]) if region == "auto" else part.drop_vars(["lat", "mask"]), region=region)
    expected = data.copy(deep=True)
    expected["tas"][5:17, :, 3:14] += 1
    xr.testing.assert_identical(place.read(), expected)
    xr.testing.assert_identical(place.read_natively(), expected)


def test_a_region_that_is_erased(place: Place) -> None:
    """Chunks of nothing but the fill value are not stored, nor are shards of such."""
    place.write(weather())
    place.write(xr.full_like(weather()[["tas"]], np.nan).drop_vars(["lat", "lon", "mask"]), region={"time": slice(None)})
    assert np.isnan(place.read()["tas"]).all()
    assert not [p for p in (place.root / "tas" / "c").rglob("*") if p.is_file() and not p.name.startswith(".")]


# -- modes ---------------------------------------------------------------------------------------------------------------


def other() -> xr.Dataset:
    """Of other variables, of the same names with other chunks and types."""
    dataset = xr.Dataset({"tas": (("time", "x"), np.arange(60, dtype="f4").reshape(10, 6)), "new": ("x", np.arange(6))})
    dataset["tas"].encoding["chunks"] = (2, 3)
    return dataset


@pytest.mark.parametrize("policy", [{"tas": (5, 2), "*": None}, None, "auto"], ids=str)
def test_overwriting(place: Place, policy: Any) -> None:
    """With another sharding, other chunks and other variables: nothing of the old store may be taken for something of the new."""
    place.write(weather())
    place.policy = policy
    place.write(other(), mode="w")
    xr.testing.assert_identical(place.read(), other())
    xr.testing.assert_identical(place.read_natively(), other())
    assert not (place.root / "mask").exists()
    assert place.shard_shapes().get("tas") == (None if policy is None else (10, 6))


def test_overwriting_what_was_not_sharded(place: Place) -> None:
    weather().to_zarr(place.root)
    place.write(weather() + 1, mode="w", encoding={"tas": {"chunks": CHUNKS["tas"]}})
    xr.testing.assert_identical(place.read_natively(), weather() + 1)
    assert place.shard_shapes()["tas"] == SHARDS["tas"]


def test_not_overwriting(place: Place) -> None:
    place.write(weather(), mode="w-")
    with pytest.raises((FileExistsError, ValueError)):
        place.write(other(), mode="w-")
    with pytest.raises((FileExistsError, ValueError)):
        place.write(other())
    xr.testing.assert_identical(place.read(), weather())


def test_adding_and_replacing_variables(place: Place) -> None:
    data = weather()
    place.write(data)
    place.write(data[["tas"]].rename(tas="pr") * 2, mode="a", encoding={"pr": {"chunks": (5, 5, 5)}})
    place.write(data[["tas"]] + 7, mode="a")
    expected = data.assign(tas=data["tas"] + 7, pr=data["tas"] * 2)
    xr.testing.assert_equal(place.read(), expected)
    xr.testing.assert_equal(place.read_natively(), expected)


def test_replacing_values_only(place: Place) -> None:
    place.write(weather())
    place.write(weather() + 3, mode="r+")
    xr.testing.assert_equal(place.read_natively()["tas"], weather()["tas"] + 3)
    with pytest.raises(ValueError, match="non-pre-existing"):
        place.write(weather()[["tas"]].rename(tas="pr"), mode="r+")


def test_metadata_first_and_values_later(place: Place) -> None:
    data = weather().drop_vars("mask").chunk(time=12)
    place.write(data, compute=False)
    assert np.isnan(place.read()["tas"]).all()
    for start in range(0, 30, 12):
        region = {"time": slice(start, min(start + 12, 30))}
        place.write(data.isel(region).drop_vars(["lat", "lon"]), region=region)
    xr.testing.assert_identical(place.read_natively(), weather().drop_vars("mask"))


def test_computed_later(place: Place) -> None:
    later = place.write(weather().chunk(time=12), compute=False)
    later.compute()
    xr.testing.assert_identical(place.read_natively(), weather())


# -- what comes from native datasets ------------------------------------------------------------------------------------------


def native(path: Path) -> xr.Dataset:
    """As xarray opens a store that was sharded by zarr-python."""
    weather().to_zarr(path, encoding={"tas": {"chunks": CHUNKS["tas"], "shards": SHARDS["tas"]}})
    opened: xr.Dataset = xr.open_zarr(path)
    assert opened["tas"].encoding["shards"] == SHARDS["tas"]
    return opened


def test_shards_in_the_encoding_are_what_is_stored(place: Place, tmp_path: Path) -> None:
    """And not those of the options."""
    place.policy = {"tas": (1, 1, 1), "*": None}
    data = native(tmp_path / "native.zarr").load()
    place.write(data)
    assert place.shard_shapes()["tas"] == SHARDS["tas"]
    for opened in (place.read(), place.read_natively()):
        xr.testing.assert_identical(opened, weather())
    assert place.read()["tas"].encoding["shards"] is None
    place.write(weather(30, 4), append_dim="time")
    xr.testing.assert_identical(place.read_natively(), weather(0, 34))
    assert place.shard_shapes()["tas"] == SHARDS["tas"]


def test_with_dask_shards_in_the_encoding_have_to_be_aligned(place: Place, tmp_path: Path) -> None:
    """xarray takes them for chunks that no two dask chunks may share."""
    data = native(tmp_path / "native.zarr")
    with pytest.raises(ValueError, match="would overlap multiple Dask chunks"):
        place.write(data)
    place.write(align(data, place.target, mode="w", **place.kwargs), mode="w")
    xr.testing.assert_identical(place.read_natively(), weather())
    assert place.shard_shapes()["tas"] == SHARDS["tas"]


def test_all_encoding_may_be_dropped(place: Place, tmp_path: Path) -> None:
    place.write(native(tmp_path / "native.zarr").drop_encoding().chunk(time=12, lat=8, lon=10))
    xr.testing.assert_equal(place.read_natively(), weather())
    assert place.read()["tas"].encoding["chunks"] == (12, 8, 10)


def test_native_stores_are_opened_at_chunk_level(place: Place) -> None:
    """And what is read so can be written elsewhere: through shardstore no ``shards`` are in the encoding."""
    native(place.root)
    data = place.read()
    assert data["tas"].encoding["shards"] is None
    xr.testing.assert_identical(data, weather())
    copy = Place(place.root.parent / "copy.zarr", place.by_url)
    copy.write(data)
    xr.testing.assert_identical(copy.read_natively(), weather())
    place.write(weather(30, 4), append_dim="time")
    xr.testing.assert_identical(place.read_natively(), weather(0, 34))
    assert place.shard_shapes()["tas"] == SHARDS["tas"]


# -- metadata ------------------------------------------------------------------------------------------------------------


def test_consolidated_metadata_is_that_of_the_shards(place: Place) -> None:
    """Plain readers take the layout of the arrays from there: it has to be the stored one, after an append too."""
    place.write(weather(0, 3), consolidated=True)
    place.write(weather(3, 9), append_dim="time", consolidated=True)
    document = json.loads((place.root / "zarr.json").read_text())
    inside = document["consolidated_metadata"]["metadata"]["tas"]
    assert inside == json.loads((place.root / "tas" / "zarr.json").read_text())
    assert inside["chunk_grid"]["configuration"]["chunk_shape"] == list(SHARDS["tas"])
    assert inside["shape"][0] == 12


def test_attributes_are_updated_without_touching_the_shards(place: Place) -> None:
    place.write(weather())
    before = {p: p.read_bytes() for p in (place.root / "tas" / "c").rglob("*") if p.is_file()}
    group = zarr.open_group(place.target, mode="r+", **place.kwargs)
    group["tas"].attrs["comment"] = "corrected"
    zarr.consolidate_metadata(group.store)
    read = place.read_natively()["tas"]
    assert read.attrs["comment"] == "corrected"
    assert read.encoding["shards"] == SHARDS["tas"]
    assert {p: p.read_bytes() for p in (place.root / "tas" / "c").rglob("*") if p.is_file()} == before


def test_several_stores_at_once(tmp_path: Path) -> None:
    """``open_mfdataset`` over URLs, with a wildcard too."""
    for year in range(3):
        weather(year * 10, 10).to_zarr(f"sharded::{(tmp_path / f'y{year}.zarr').as_uri()}")
    urls = [f"sharded::{(tmp_path / f'y{year}.zarr').as_uri()}" for year in range(3)]
    combined: Callable[..., xr.Dataset] = xr.open_mfdataset
    opened = combined(urls, engine="zarr", data_vars="minimal", coords="minimal", compat="override", join="outer")
    xr.testing.assert_equal(opened.load(), weather(0, 30))


def test_on_s3_by_url(s3_url: tuple[str, dict[str, Any]]) -> None:
    """Options of shardstore stand beside those of the filesystem below, under its protocol."""
    url, s3 = s3_url
    options: dict[str, Any] = {"chunks_per_shard": PER_SHARD, "s3": s3}
    chain = f"sharded::{url}"
    weather(0, 8).to_zarr(chain, storage_options=options)
    more = align(weather(8, 22).chunk(time=5), chain, append_dim="time", storage_options=options)
    assert more["tas"].chunksizes["time"] == (4, 12, 6)
    more.to_zarr(chain, append_dim="time", storage_options=options)
    part = align(weather()[["tas"]].isel(time=slice(5, 17)).chunk(time=1) + 1, chain, region="auto", storage_options=options)
    assert part["tas"].chunksizes["time"] == (7, 5)
    part.drop_vars("mask").to_zarr(chain, region="auto", mode="a", storage_options=options)
    expected = weather()
    expected["tas"][5:17] += 1
    xr.testing.assert_identical(xr.open_zarr(chain, storage_options=options).load(), expected)
    native: xr.Dataset = xr.open_zarr(url, storage_options=s3).load()
    xr.testing.assert_identical(native, expected)
    assert native["tas"].encoding["shards"] == SHARDS["tas"]
