"""Tests of xarray that cannot pass on shardstore, each with its reason; the same table is in the documentation."""

from __future__ import annotations

from dataclasses import dataclass

import pytest


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why a test fails and how. It is run all the same: one that passes after all is an error."""

    reason: str
    raises: type[Exception]
    zarr_format: int
    """Of which the failing parameters are; with the other format, the test passes or xarray skips it."""

    def applies_to(self, item: pytest.Item) -> bool:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        return parameters.get("default_zarr_format") == self.zarr_format


_SHARDS = "reads back encoding['shards']: what is stored has them, but through shardstore there are only chunks"

EXCLUDED = {
    "test_shard_encoding": Exclusion(_SHARDS, AssertionError, 3),
}
