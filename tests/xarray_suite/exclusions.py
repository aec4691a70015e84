"""Tests of xarray that cannot pass on shardstore, each with its reason; the same table is in the documentation."""

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

    def applies_to(self, item: pytest.Item) -> bool:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        return parameters.get("default_zarr_format") == self.zarr_format


_SHARDS = "encoding['shards'] asks for native shards, which shardstore refuses: it does the sharding"

EXCLUDED = {
    "test_shard_encoding": Exclusion(_SHARDS, InvalidInput, 3),
    "test_shard_encoding_with_dask": Exclusion(_SHARDS, InvalidInput, 3),
}
