"""zarr-python 2.18 reads sets of references to the inner chunks of shards, by the lines that are printed for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore import references
from tests.zarr2.test_packed import by_zarr_2

pytestmark = pytest.mark.filterwarnings("ignore")  # of pandas, about fastparquet

READ = """
import sys
import fsspec, numpy as np, zarr
exec(sys.argv[1])
assert sorted(group) == ["g", "holes", "scalar"], sorted(group)
assert group["holes"].attrs["_ARRAY_DIMENSIONS"] == ["y", "x"]
with np.load(sys.argv[2]) as expected:
    for path, value in expected.items():
        np.testing.assert_array_equal(group[path][...], value)
"""

FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "v2": ("json", {"flavour": "v2"}),
    "dual": ("json", {"flavour": "dual"}),
    "inline": ("json", {"inline_nbytes": 10**6}),
    "compressed": ("json.gz", {}),
    "parquet v2": ("parquet", {"record_size": 5}),
    "parquet dual": ("parquet", {"flavour": "dual"}),
}


@pytest.mark.parametrize("name", FORMS)
def test_references_by_the_printed_line(name: str, tmp_path: Path) -> None:
    store = shardstore.open(tmp_path / "a.zarr", chunks_per_shard={"scalar": None, "*": (2, 2)})
    group = zarr.create_group(store)
    values = np.arange(1, 65, dtype="f8").reshape(8, 8)
    holes = group.create_array("holes", shape=(8, 8), chunks=(2, 2), dtype="f8", fill_value=float("nan"), dimension_names=["y", "x"])
    holes[:3] = values[:3]
    deep = group.create_array("g/h/deep", shape=(8, 8), chunks=(2, 2), dtype=">i4", fill_value=9)
    deep[:, 4:] = values[:, 4:]
    group.create_array("scalar", shape=(), dtype="i2")[...] = 7
    np.savez(tmp_path / "expected.npz", **{"holes": holes[...], "g/h/deep": deep[...], "scalar": np.int16(7)})  # type: ignore[arg-type]
    suffix, options = FORMS[name]
    write = references.write_parquet if suffix == "parquet" else references.write_json
    report = write(tmp_path / "a.zarr", tmp_path / f"refs.{suffix}", **options)
    lines = report.how_to_open.splitlines()
    line = lines[lines.index("# zarr 2") + 1]
    by_zarr_2(READ, line, str(tmp_path / "expected.npz"))
