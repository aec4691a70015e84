"""A climate dataset with CF conventions: appended year by year, corrected by region from dask workers, by URL alone.

Three years of daily temperature and precipitation on a grid, synthetic but deterministic, packed as 16-bit integers. xarray is told
nothing but a URL that begins with ``sharded::``; ``shardstore.align`` gives its dask chunks borders between shards, so each shard is
committed once. In the end plain xarray reads the shards, without shardstore, and finds what was written.

    python examples/climate.py                               # a temporary directory, removed at the end
    python examples/climate.py s3://bucket/climate.zarr      # any place that fsspec can write to; it stays
    python examples/climate.py --workers 2                   # dask workers in processes of their own (pip install distributed)
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import shardstore
from shardstore.errors import ShardStoreError

FIRST_YEAR, YEARS = 2001, 3
LATITUDES, LONGITUDES = 24, 32
CHUNKS = (30, 8, 8)  # days, latitudes, longitudes
CHUNKS_PER_SHARD = {"tas": (4, 2, 2), "pr": (4, 2, 2), "*": None}  # of 120 days; the coordinates stay as they are
RESOLUTION = 2.0**-6  # of packed values: a power of two, so unpacking gives exactly what was packed

# zarr-python says so of every store; xarray reads the metadata of all variables in one request with it.
warnings.filterwarnings("ignore", "Consolidated metadata is currently not part")

CORRECTED = slice("2002-06-15", "2003-02-10")
CORRECTION = 0.25  # kelvin


def fields(year: int) -> xr.Dataset:
    """One year."""
    time = np.arange(f"{year}-01-01", f"{year + 1}-01-01", dtype="M8[D]").astype("M8[ns]")
    lat = np.linspace(-86.25, 86.25, LATITUDES)
    lon = np.arange(LONGITUDES) * 360.0 / LONGITUDES
    day = ((time - np.datetime64("2001-01-01")) / np.timedelta64(1, "D"))[:, None, None]
    north, east = np.deg2rad(lat)[None, :, None], np.deg2rad(lon)[None, None, :]
    tas = 288 - 45 * np.sin(north) ** 2 - 15 * np.sin(north) * np.cos(2 * np.pi * day / 365.2425) + 4 * np.sin(3 * east + day / 5)
    pr = np.maximum(0, 3 * np.cos(north) ** 4 + 2 * np.sin(2 * east + day / 3) * np.cos(north))
    measured = np.where(np.abs(lat)[None, :, None] < 80, pr, np.nan)  # none near the poles

    def packed(values: Any) -> Any:
        return np.round(values / RESOLUTION) * RESOLUTION

    dims = ("time", "lat", "lon")
    dataset = xr.Dataset(
        {
            "tas": (
                dims,
                packed(tas),
                {"standard_name": "air_temperature", "units": "K", "cell_methods": "time: mean", "long_name": "daily mean temperature"},
            ),
            "pr": (
                dims,
                packed(measured),
                {"standard_name": "lwe_precipitation_rate", "units": "mm day-1", "cell_methods": "time: mean", "long_name": "rain"},
            ),
        },
        coords={
            "time": ("time", time, {"standard_name": "time", "axis": "T"}),
            "lat": ("lat", lat, {"standard_name": "latitude", "units": "degrees_north", "axis": "Y"}),
            "lon": ("lon", lon, {"standard_name": "longitude", "units": "degrees_east", "axis": "X"}),
        },
        attrs={"Conventions": "CF-1.11", "title": "Synthetic daily fields", "source": "examples/climate.py", "institution": "none"},
    )
    for name, offset in (("tas", 273.0), ("pr", 0.0)):
        dataset[name].encoding = {
            "dtype": "int16",
            "scale_factor": RESOLUTION,
            "add_offset": offset,
            "_FillValue": np.int16(-32768),
            "fill_value": -32768,  # what Zarr gives for chunks that were never written: missing, too
            "chunks": CHUNKS,
        }
    dataset["time"].encoding = {"units": "days since 1970-01-01", "calendar": "standard", "dtype": "int64", "chunks": (3653,)}
    return dataset


def write_year_by_year(url: str, options: dict[str, Any]) -> None:
    for year in range(FIRST_YEAR, FIRST_YEAR + YEARS):
        data = fields(year).chunk(time=30, lat=8, lon=16)
        if year == FIRST_YEAR:
            data = shardstore.align(data, url, mode="w", storage_options=options)
            data.to_zarr(url, mode="w", storage_options=options)
        else:
            data = shardstore.align(data, url, append_dim="time", storage_options=options)
            data.to_zarr(url, append_dim="time", storage_options=options)
        print(f"{year}: {data.sizes['time']} days, written in dask chunks of {data['tas'].chunksizes['time']} days")


def correct(url: str, options: dict[str, Any]) -> None:
    """Add to the temperatures of some months, from inside one shard to inside another."""
    part = xr.open_zarr(url, storage_options=options)[["tas"]].sel(time=CORRECTED) + CORRECTION
    part = shardstore.align(part, url, region="auto", storage_options=options)
    print(f"correcting {part.sizes['time']} days in dask chunks of {part['tas'].chunksizes['time']} days")
    # mode "a": the first and the last stored chunk of the region are written in part, each by one task.
    part.to_zarr(url, region="auto", mode="a", storage_options=options)


def expected() -> xr.Dataset:
    years = [fields(year) for year in range(FIRST_YEAR, FIRST_YEAR + YEARS)]
    data: xr.Dataset = xr.concat(years, dim="time", data_vars="all", coords="minimal", compat="override", join="exact")
    data["tas"].loc[{"time": CORRECTED}] += CORRECTION
    return data


def dask_workers(number: int) -> AbstractContextManager[Any]:
    """Where dask computes: threads of this process, or workers of their own."""
    if not number:
        return nullcontext()
    from distributed import Client

    client: AbstractContextManager[Any] = Client(n_workers=number, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0")  # type: ignore[no-untyped-call]  # distributed has no types
    return client


def run(url: str, storage_options: dict[str, Any], workers: int) -> None:
    sharded = f"sharded::{url}"
    protocol = url.partition("://")[0]
    options = {"chunks_per_shard": CHUNKS_PER_SHARD, protocol: storage_options}
    with dask_workers(workers):
        write_year_by_year(sharded, options)
        correct(sharded, options)
        native = xr.open_zarr(url, storage_options=storage_options or None)
        xr.testing.assert_identical(native.load(), expected())
    print(f"plain xarray reads the same from shards of {native['tas'].encoding['shards']}, in chunks of {native['tas'].encoding['chunks']}")
    warmest = native["tas"].mean(("lat", "lon")).idxmax("time")
    print(f"the warmest day was {warmest.dt.strftime('%Y-%m-%d').item()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", help="where to write; default: a temporary directory")
    parser.add_argument("--storage-options", type=json.loads, default={}, metavar="JSON", help="options for the fsspec filesystem")
    parser.add_argument("--workers", type=int, default=0, help="compute in this many processes of dask's")
    arguments = parser.parse_args()
    if arguments.url is not None:
        url = arguments.url if "://" in arguments.url else Path(arguments.url).absolute().as_uri()
        run(url, arguments.storage_options, arguments.workers)
        return
    with tempfile.TemporaryDirectory() as directory:
        run(f"{Path(directory).as_uri()}/climate.zarr", {}, arguments.workers)


if __name__ == "__main__":
    try:
        main()
    except ShardStoreError as error:
        sys.exit(f"climate: {error}")
