"""Tests of xarray that cannot pass on shardstore, each with its reason; the same tables are in the documentation."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from shardstore.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why a test fails and how. It is run all the same: one that passes after all is an error."""

    reason: str
    raises: type[Exception]
    zarr_format: int
    """Of which the failing parameters are; with the other format, the test passes or xarray skips it."""
    only: str = ""
    """The class of ours in which it fails; none: all."""

    def applies_to(self, item: pytest.Item) -> bool:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        return parameters.get("default_zarr_format") == self.zarr_format and f"::{self.only}" in item.nodeid


_SHARDS = "expects encoding['shards'] after reading: the stored array has them, but through shardstore there are only chunks"

EXCLUDED = {
    "test_shard_encoding": Exclusion(_SHARDS, AssertionError, 3),
}

_IN_SESSIONS = "creates with `shards=`: a versioned store puts chunks into shards by itself, and refuses that"
_PICKLES = "pickles what was read through a writable session, which belongs to one process; read-only sessions can be pickled"

EXCLUDED_IN_SESSIONS = {
    "test_shard_encoding": Exclusion(_IN_SESSIONS, InvalidInput, 3),
    "test_shard_encoding_with_dask": Exclusion(_IN_SESSIONS, InvalidInput, 3),
    "test_pickle": Exclusion(_PICKLES, InvalidInput, 3, "TestSession::"),
    "test_pickle_dataarray": Exclusion(_PICKLES, InvalidInput, 3, "TestSession::"),
}
"""Of ``test_sessions.py``."""
