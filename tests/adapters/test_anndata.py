"""anndata with its defaults: it asks for shards itself, of every array that can have any."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore

import shardstore

if tuple(sys.version_info) < (3, 12):  # as mypy, which checks for 3.11, does not understand it
    pytest.skip("anndata 0.13, which asks for shards by default, needs Python 3.12", allow_module_level=True)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own, and those of what it imports
    import anndata
    import pandas as pd
    import scipy.sparse

pytestmark = [pytest.mark.filterwarnings("default", "error:::shardstore.*")]


def cells() -> Any:
    rng = np.random.default_rng(0)
    kinds = pd.Categorical(rng.choice(["a", "b"], 400))
    observed = pd.DataFrame({"kind": kinds, "n": rng.integers(0, 9, 400)}, index=[f"c{i}" for i in range(400)])
    data = anndata.AnnData(rng.random((400, 30)).astype("f4"), obs=observed)
    data.layers["counts"] = scipy.sparse.random(400, 30, density=0.1, format="csr", random_state=0)
    data.obsm["place"] = rng.random((400, 2))
    data.uns["colours"] = np.array(["red", "blue"])
    return data


@pytest.mark.parametrize("by", ["store", "url"])
def test_what_is_written_is_read_back_and_has_the_shards_that_anndata_chose(by: str, tmp_path: Path) -> None:
    assert anndata.settings.auto_shard_zarr_v3
    data, root = cells(), tmp_path / "cells.zarr"
    url = f"sharded::{root.as_uri()}"
    data.write_zarr(shardstore.open(str(root), fsync=False) if by == "store" else url)
    for source in (url, shardstore.open(str(root)), LocalStore(root)):
        read = anndata.read_zarr(source)
        np.testing.assert_array_equal(read.X, data.X)
        np.testing.assert_array_equal(read.layers["counts"].toarray(), data.layers["counts"].toarray())
        np.testing.assert_array_equal(read.obsm["place"], data.obsm["place"])
        assert read.obs.astype(str).equals(data.obs.astype(str))
    plain = tmp_path / "plain.zarr"
    data.write_zarr(plain)
    assert zarr.open_array(plain, path="X").shards is not None
    for path in plain.rglob("X/zarr.json"):
        assert (root / path.relative_to(plain)).read_bytes() == path.read_bytes()


def test_a_part_is_written_anew_and_read_lazily(tmp_path: Path) -> None:
    data, store = cells(), shardstore.open(str(tmp_path), fsync=False)
    data.write_zarr(store)
    group = zarr.open_group(store, use_consolidated=False)  # as anndata wants it
    anndata.io.write_elem(group, "X", data.X * 2)
    anndata.io.write_elem(group["obsm"], "place", data.obsm["place"] + 1)
    again = anndata.read_zarr(shardstore.open(str(tmp_path)))
    np.testing.assert_array_equal(again.X, data.X * 2)
    np.testing.assert_array_equal(again.obsm["place"], data.obsm["place"] + 1)
    sparse = anndata.io.sparse_dataset(zarr.open_group(store)["layers/counts"])
    np.testing.assert_array_equal(sparse[10:20].toarray(), data.layers["counts"][10:20].toarray())
