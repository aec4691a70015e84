"""``xarray/tests/test_backends_datatree.py``: trees of groups, through ``sharded::memory://`` and ``sharded::file://``."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from xarray.tests import conftest as xarray_fixtures
from xarray.tests import test_backends_datatree as suite

from tests.xarray_suite import places

create_test_datatree = xarray_fixtures.create_test_datatree
simple_datatree = xarray_fixtures.simple_datatree
unaligned_datatree_zarr_factory = suite.unaligned_datatree_zarr_factory


@pytest.fixture(scope="module", params=["memory", "file"])
def tmp_path_factory(request: pytest.FixtureRequest) -> Iterator[Any]:
    """In place of pytest's: new directories are URLs."""
    with {"memory": places.memory_url, "file": places.file_url}[request.param]() as top:
        numbers = iter(range(10_000))
        yield SimpleNamespace(mktemp=lambda name: top / f"{name}{next(numbers)}")


@pytest.fixture
def tmp_path(tmp_path_factory: Any) -> places.Url:
    url: places.Url = tmp_path_factory.mktemp("test")
    return url


@pytest.fixture
def tmpdir(tmp_path: places.Url) -> places.Url:
    return tmp_path


class TestDatatree(suite.TestZarrDatatreeIO):
    pass
