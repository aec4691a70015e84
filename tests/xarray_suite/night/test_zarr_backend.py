"""``xarray/tests/test_backends.py``: everything that it asks of a store of Zarr data, asked of shardstore.

By URL, as a program that knows nothing of shardstore would, with the default policy, which shards every array of two dimensions and
more; and by a store that shards all arrays, the smallest coordinates too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
import xarray as xr
import zarr
from xarray.tests import conftest as xarray_fixtures
from xarray.tests import create_test_data
from xarray.tests import test_backends as suite

from shardstore._sync import run_sync
from shardstore.adapters.fsspec.filesystem import ShardedFileSystem
from tests.xarray_suite import places
from tests.xarray_suite.exclusions import EXCLUDED

# Fixtures of theirs, by the names that their tests ask for.
default_zarr_format = suite.default_zarr_format
use_dask = xarray_fixtures.use_dask
time_unit = xarray_fixtures.time_unit


@pytest.fixture
def tmp_store() -> None:
    """Asked for by a test that does not use it."""


class OnMemoryUrl:
    @contextmanager
    def create_zarr_target(self) -> Iterator[Any]:
        with places.memory_url() as target:
            yield target


class OnFileUrl:
    @contextmanager
    def create_zarr_target(self) -> Iterator[Any]:
        with places.file_url() as target:
            yield target


class OnStore:
    """Zarr v2 has no shards, and passes through as it does below a URL."""

    @pytest.fixture(params=[3])
    def default_zarr_format(self, request: pytest.FixtureRequest) -> Iterator[None]:
        with zarr.config.set(default_zarr_format=request.param):
            yield

    @contextmanager
    def create_zarr_target(self) -> Iterator[Any]:
        with places.store() as target:
            yield target


class TestMemoryUrl(OnMemoryUrl, suite.TestZarrDictStore):
    pass


class TestFileUrl(OnFileUrl, suite.TestZarrDirectoryStore):
    pass


class TestStore(OnStore, suite.TestZarrDictStore):
    pass


class TestRegionMemoryUrl(OnMemoryUrl, suite.TestZarrRegionAuto):
    pass


class TestRegionFileUrl(OnFileUrl, suite.TestZarrRegionAuto):
    pass


class TestRegionStore(OnStore, suite.TestZarrRegionAuto):
    pass


class TestWriteEmptyFileUrl(OnFileUrl, suite.TestZarrWriteEmpty):
    """Only what the class adds to the one above. It compares the files, which are the presented ones here."""

    @contextmanager
    def temp_dir(self) -> Iterator[tuple[str, str]]:
        with places.file_url() as url:
            yield "", url

    @pytest.fixture(autouse=True)
    def presented_files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(suite, "os", SimpleNamespace(path=os.path, walk=places.walk))


# What a class has of one that is run above already.
for _name in dir(suite.TestZarrDirectoryStore):
    if _name.startswith("test_"):
        setattr(TestWriteEmptyFileUrl, _name, None)


class TestDataArray(suite.TestDataArrayToZarr):
    @pytest.fixture(params=["memory", "file", "store"])
    def tmp_store(self, request: pytest.FixtureRequest) -> Iterator[Any]:
        make = {"memory": places.memory_url, "file": places.file_url, "store": places.store}[request.param]
        with make() as target:
            yield target


# -- that the suite tests what it is meant to test ---------------------------------------------------------------------------


@pytest.mark.parametrize("make", [places.memory_url, places.file_url, places.store])
def test_what_the_tests_write_is_sharded(make: Any) -> None:
    with make() as target:
        create_test_data().to_zarr(target)
        engine = target.engine if make is places.store else _filesystem(target).engine
        sharded = [name for name in ("var1", "var2", "var3", "dim2") if run_sync(engine.layout(name)) is not None]
        assert sharded == (["var1", "var2", "var3", "dim2"] if make is places.store else ["var1", "var2", "var3"])
        xr.testing.assert_identical(xr.open_zarr(target).load(), create_test_data())


def _filesystem(url: str) -> ShardedFileSystem:
    filesystem, _ = fsspec.url_to_fs(str(url))
    assert isinstance(filesystem, ShardedFileSystem)
    return filesystem


def test_exclusions_exist_and_are_documented() -> None:
    page = (Path(__file__).parents[3] / "docs/evidence/xarray-backend-tests.md").read_text()
    for name, exclusion in EXCLUDED.items():
        assert hasattr(suite.ZarrBase, name)
        assert f"`{name}`" in page
        assert exclusion.reason
