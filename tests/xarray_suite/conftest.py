"""What xarray's own configuration of pytest does for its tests, and the exclusions."""

from __future__ import annotations

import pytest

from tests.xarray_suite.exclusions import EXCLUDED, EXCLUDED_IN_SESSIONS

_MARKERS = {
    "flaky": "may fail for reasons of its own",
    "network": "needs a connection to other machines",
    "skip_with_dask_array": "for another implementation of dask arrays",
    "xfail_with_dask_array": "for another implementation of dask arrays",
    "skip_if_param": "skip for these values of the parameters",
}
# xarray runs its tests with its own warnings as errors and all others as warnings; ours are errors here too. Zarr says of what
# xarray stores that other libraries may not read it.
_WARNINGS = (
    "default",
    "error:::xarray.*",
    "error:::shardstore.*",
    "ignore:The data type .* does not have a Zarr V3 specification",
    "ignore:Consolidated metadata is currently not part",
    "ignore:array .* is one of Zarr v2",  # by URL, with the options that are the default
)


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in _MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.nodeid.startswith("tests/xarray_suite/"):
            continue
        # Marks that were added first are applied last, so that the tests' own filters win.
        for rule in reversed(_WARNINGS):
            item.add_marker(pytest.mark.filterwarnings(rule), append=False)
        name = getattr(item, "originalname", item.name)
        excluded = EXCLUDED_IN_SESSIONS if item.nodeid.startswith("tests/xarray_suite/night/test_sessions.py") else EXCLUDED
        if (exclusion := excluded.get(name)) is not None and exclusion.applies_to(item):
            item.add_marker(pytest.mark.xfail(reason=exclusion.reason, raises=exclusion.raises, strict=True))


def pytest_runtest_setup(item: pytest.Item) -> None:
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    for mark in item.iter_markers("skip_if_param"):
        wanted = dict(mark.kwargs)
        reason, condition = wanted.pop("reason"), wanted.pop("condition", True)
        if condition and all(name in parameters and parameters[name] == value for name, value in wanted.items()):
            pytest.skip(reason)
