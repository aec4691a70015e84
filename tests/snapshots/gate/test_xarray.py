"""xarray on sessions, as a series is written day by day: a commit a day, and each day can be opened again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import xarray as xr
import zarr

import shardstore
from shardstore.errors import ReadOnly
from shardstore.snapshots import Repository, Session
from tests.adapters.zarr.gate.test_xarray import weather

PACK = (4, 2, 2)
"""Of arrays with three dimensions."""


@pytest.fixture(params=["memory", pytest.param("local", marks=pytest.mark.night), "s3"])
def repo(request: pytest.FixtureRequest, tmp_path: Path) -> Repository:
    if request.param == "memory":
        return Repository.create(f"memory://{tmp_path}", pack=PACK)
    if request.param == "local":
        return Repository.create(tmp_path, pack=PACK, fsync=False)
    url, options = request.getfixturevalue("s3_url")
    return Repository.create(url, pack=PACK, storage_options=options)


@contextmanager
def committing(repo: Repository, message: str) -> Iterator[shardstore.ShardedStore]:
    """Give the store of a session that is committed at the end."""
    session = repo.writable_session()
    yield session.store
    session.commit(message)


def opened(session: Session, **options: Any) -> xr.Dataset:
    dataset: xr.Dataset = xr.open_zarr(session.store, **options).load()
    return dataset


@pytest.mark.parametrize("consolidated", [True, False])
def test_days_are_appended_and_each_commit_shows_its_days(repo: Repository, consolidated: bool) -> None:
    with committing(repo, "1 day") as store:
        weather(0, 1).to_zarr(store, mode="w", consolidated=consolidated)
    until = [1]
    for start, days in [(1, 6), (7, 7), (14, 16)]:
        with committing(repo, f"{start + days} days") as store:
            weather(start, days).to_zarr(store, append_dim="time", consolidated=consolidated)
        until.append(start + days)
    sessions = [repo.readonly_session(snapshot_id=info.id) for info in repo.ancestry()][:-1]
    for days, session in zip(reversed(until), sessions, strict=True):
        xr.testing.assert_identical(opened(session, consolidated=consolidated), weather(0, days))


def test_what_is_not_committed_is_seen_by_the_session_alone(repo: Repository) -> None:
    with committing(repo, "data") as store:
        weather().to_zarr(store, mode="w")
    session = repo.writable_session()
    part = (weather()[["tas"]] + 5).isel(time=slice(3, 9)).drop_vars(["lat", "lon", "mask"])
    part.to_zarr(session.store, region={"time": slice(3, 9)})
    changed = weather()
    changed["tas"][3:9] += 5
    xr.testing.assert_identical(opened(session), changed)
    xr.testing.assert_identical(opened(repo.readonly_session()), weather())
    session.discard_changes()
    xr.testing.assert_identical(opened(session), weather())
    assert not session.has_uncommitted_changes


@pytest.mark.parametrize("region", [{"time": slice(5, 17), "lon": slice(3, 14)}, "auto", {"time": "auto", "lon": slice(3, 14)}], ids=str)
def test_a_region(repo: Repository, region: Any) -> None:
    """Which begins and ends inside of chunks."""
    with committing(repo, "data") as store:
        weather().to_zarr(store, mode="w")
    part = weather()[["tas"]].isel(time=slice(5, 17), lon=slice(3, 14)) + 1
    with committing(repo, "region") as store:
        part.drop_vars(["mask"] if region == "auto" else ["lat", "mask"]).to_zarr(store, region=region)
    expected = weather()
    expected["tas"][5:17, :, 3:14] += 1
    xr.testing.assert_identical(opened(repo.readonly_session()), expected)
    newest, before, *_ = repo.ancestry()
    assert newest.message == "region"
    xr.testing.assert_identical(opened(repo.readonly_session(snapshot_id=before.id)), weather())


def test_pieces_of_dask_are_written_at_once(repo: Repository) -> None:
    """Metadata first, then pieces of whole chunks, by threads; the chunks of a cell come in any order."""
    data = weather().drop_vars("mask").chunk(time=3, lat=4, lon=10)
    with committing(repo, "metadata") as store:
        data.to_zarr(store, mode="w", compute=False)
    assert np.isnan(opened(repo.readonly_session())["tas"]).all()
    with committing(repo, "values") as store:
        data.drop_vars(["lat", "lon"]).to_zarr(store, region={"time": slice(None)})
    read = xr.open_zarr(repo.readonly_session().store)
    assert read["tas"].chunks == ((3,) * 10, (4,) * 4, (5,) * 4)
    xr.testing.assert_identical(read.load(), weather().drop_vars("mask"))


def test_attributes_encodings_and_consolidated_metadata_survive(repo: Repository) -> None:
    with committing(repo, "data") as store:
        weather().to_zarr(store, mode="w", consolidated=True)
    with committing(repo, "attributes") as store:
        zarr.open_group(store, mode="r+")["tas"].attrs["comment"] = "corrected"
        zarr.consolidate_metadata(store)
    session = repo.readonly_session()
    read = opened(session, consolidated=True)
    assert (read["tas"].attrs["comment"], read.attrs) == ("corrected", weather().attrs)
    encoding = read["tas"].encoding
    assert (encoding["chunks"], encoding["shards"], encoding["_FillValue"]) == ((3, 4, 5), None, -1)
    root = zarr.open_group(session.store, mode="r")
    assert root.metadata.consolidated_metadata is not None
    assert sorted(root.metadata.consolidated_metadata.metadata) == ["lat", "lon", "mask", "tas", "time"]


def test_variables_are_replaced_and_added(repo: Repository) -> None:
    """Of the same name, with other chunks and another rank: nothing of the old array is taken for something of the new one."""
    with committing(repo, "data") as store:
        weather().to_zarr(store, mode="w")
    other = xr.Dataset({"tas": (("time", "x"), np.arange(60, dtype="f4").reshape(10, 6)), "new": ("x", np.arange(6))})
    with committing(repo, "other") as store:
        other.to_zarr(store, mode="w", encoding={"tas": {"chunks": (2, 3)}})
    with committing(repo, "more") as store:
        (other[["tas"]] * 2).rename(tas="pr").to_zarr(store, mode="a")
    xr.testing.assert_equal(opened(repo.readonly_session()), other.assign(pr=other["tas"] * 2))
    times = [opened(repo.readonly_session(snapshot_id=info.id)) for info in repo.ancestry() if info.message in ("data", "other")]
    xr.testing.assert_equal(times[0], other)
    xr.testing.assert_identical(times[1], weather())


def test_trees_and_groups(repo: Repository) -> None:
    tree = xr.DataTree.from_dict({"/": xr.Dataset(attrs={"a": 1}), "/x": weather(0, 3), "/x/y": weather(0, 3)[["tas"]] + 1})
    session = repo.writable_session()
    tree.to_zarr(session.store, mode="w")
    session.move("x", "runs/x")
    session.commit("tree")
    read = xr.open_datatree(cast("Any", repo.readonly_session().store), engine="zarr", consolidated=False)
    xr.testing.assert_identical(read["/runs/x"].to_dataset(), weather(0, 3))
    xr.testing.assert_equal(read["/runs/x/y"]["tas"].compute(), weather(0, 3)["tas"] + 1)
    assert read.attrs == {"a": 1}


def test_a_read_only_session_refuses_to_be_written(repo: Repository) -> None:
    with committing(repo, "data") as store:
        weather().to_zarr(store, mode="w")
    session = repo.readonly_session()
    for options in ({"mode": "w"}, {"append_dim": "time"}, {"mode": "a"}):
        with pytest.raises((ReadOnly, ValueError), match=r"read-only|read_only"):
            weather(30, 2).to_zarr(session.store, **options)  # type: ignore[call-overload]
    xr.testing.assert_identical(opened(session), weather())
