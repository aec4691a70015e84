"""``xarray/tests/test_backends.py`` on sessions of versioned stores: on what was written, and on what is committed after each save and
opened in a read-only session.

Zarr v2 is written into sessions by ``session.mapping("v2")``, which is for zarr-python 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import xarray as xr
import zarr
from xarray.tests import conftest as xarray_fixtures
from xarray.tests import create_test_data
from xarray.tests import test_backends as suite

from tests.xarray_suite import places
from tests.xarray_suite.exclusions import EXCLUDED_IN_SESSIONS

# Fixtures of theirs, by the names that their tests ask for.
use_dask = xarray_fixtures.use_dask
time_unit = xarray_fixtures.time_unit


@pytest.fixture
def tmp_store() -> None:
    """Asked for by a test that does not use it."""


@pytest.fixture(params=[3])
def default_zarr_format(request: pytest.FixtureRequest) -> Iterator[None]:
    with zarr.config.set(default_zarr_format=request.param):
        yield


class OnSession:
    @contextmanager
    def create_zarr_target(self) -> Iterator[Any]:
        with places.session() as target:
            yield target


class OnCommittedSession:
    @contextmanager
    def create_zarr_target(self) -> Iterator[Any]:
        with places.committed_session() as target:
            yield target


class TestSession(OnSession, suite.TestZarrDictStore):
    pass


class TestCommittedSession(OnCommittedSession, suite.TestZarrDictStore):
    def save(self, dataset: Any, store_target: Any, **kwargs: Any) -> Any:  # type: ignore[override]  # as theirs
        saved = super().save(dataset, store_target, **kwargs)  # type: ignore[no-untyped-call]  # as xarray's tests are
        if isinstance(store_target, places.CommittedStore):  # some write files
            store_target.commit()
        return saved

    @contextmanager
    def open(self, path: Any, **kwargs: Any) -> Iterator[xr.Dataset]:
        with super().open(path.committed() if isinstance(path, places.CommittedStore) else path, **kwargs) as opened:
            yield opened


class TestRegionSession(OnSession, suite.TestZarrRegionAuto):
    pass


class TestRegionCommittedSession(OnCommittedSession, suite.TestZarrRegionAuto):
    def save(self, target: Any, ds: xr.Dataset, **kwargs: Any) -> None:
        super().save(target, ds, **kwargs)  # type: ignore[no-untyped-call]  # as above
        target.commit()


class TestDataArray(suite.TestDataArrayToZarr):
    @pytest.fixture
    def tmp_store(self) -> Iterator[Any]:
        with places.session() as target:
            yield target


def test_exclusions_exist_and_are_documented() -> None:
    page = (Path(__file__).parents[3] / "docs/evidence/xarray-backend-tests.md").read_text().split("## Excluded in sessions\n")[1]
    for name, exclusion in EXCLUDED_IN_SESSIONS.items():
        assert hasattr(suite.ZarrBase, name)
        assert f"| `{name}` | {exclusion.reason}" in page


def test_what_the_tests_write_is_committed() -> None:
    with places.committed_session() as target:
        create_test_data().to_zarr(target)
        xr.testing.assert_identical(xr.open_zarr(target.committed()).load(), create_test_data())
        assert [info.message for info in target.repository.ancestry()] == ["what was written", "Repository initialized"]
