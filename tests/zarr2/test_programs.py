"""zarr-python 2 writes through the v2 view what today's tools read as sharded Zarr v3, and sees what a plain v2 store would hold."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import zarr
from zarr.storage import LocalStore

import shardstore
from tests.zarr2 import interpreter

PROGRAMS = [
    "arrays",
    "compressors",
    "consolidated",
    "copying",
    "dtypes",
    "fancy_indexing",
    "fill_values",
    "groups",
    "moving",
    "ome_zarr",
    "resizing",
    "scalars",
    "structured",
]
OF_EVERY_GATE = ("arrays", "consolidated", "dtypes", "structured")
"""Where a program runs on something else than a view of plain shards."""
SOME = [name if name in OF_EVERY_GATE else pytest.param(name, marks=pytest.mark.night) for name in PROGRAMS]
HERE = Path(__file__).parent


def run(name: str, target: Path) -> dict[str, int]:
    """What a program counted; it compares keys and values with those of a plain store itself."""
    environment = os.environ | {"PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [interpreter(), str(HERE / "programs.py"), name, str(target)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    counted: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return counted


def test_urls_of_the_filesystem(tmp_path: Path) -> None:
    """``sharded::`` in front of a URL, as a mapping of fsspec's and as zarr-python 2 opens it: as through shardstore's own mapping."""
    run("urls", tmp_path / "store")


NOT_SHARDED_BY_PEERS = {"structured"}
"""zarr-python 3.1 cannot read shards of structured elements, its own included: it takes no such fill value for a part of a shard."""


def natively(root: Path, path: str) -> zarr.Array[Any]:
    array = zarr.open_array(LocalStore(root, read_only=True), path=path, mode="r", zarr_format=3)
    assert isinstance(array, zarr.Array)
    return array


@pytest.mark.filterwarnings("ignore")  # of data types and codecs that zarr-python 3 knows and no specification does
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    assert run(name, root)["keys"] > 0
    files = {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}
    assert not [f for f in files if Path(f).name in (".zarray", ".zgroup", ".zattrs", ".zmetadata")]
    assert not [f for f in files if not (f.endswith("zarr.json") or Path(f).name.startswith((".", "c")) or "/c/" in f"/{f}")]
    with np.load(f"{root}.npz", allow_pickle=False) as expected:
        for path, value in expected.items():
            path = "" if path == "__root__" else path
            array: Any = natively(root, path)
            if name in NOT_SHARDED_BY_PEERS:
                array = zarr.open_array(shardstore.open(str(root)), path=path, mode="r")
            np.testing.assert_array_equal(np.asarray(array[...]), value)


def test_tensorstore_reads_it(tmp_path: Path) -> None:
    for name in ("arrays", "ome_zarr"):
        root = tmp_path / name
        run(name, root)
        with np.load(f"{root}.npz") as expected:
            for path, value in expected.items():
                spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{root}/{path}/"}}
                np.testing.assert_array_equal(tensorstore.open(spec).result().read().result(), value)


def test_a_pyramid_is_sharded(tmp_path: Path) -> None:
    root = tmp_path / "store"
    run("ome_zarr", root)
    array = natively(root, "0")
    assert (array.shards, array.chunks) == ((2, 16, 16), (1, 8, 8))
    shards = [p for p in (root / "0" / "c").rglob("*") if p.is_file()]
    assert len(shards) == 1 * 3 * 3
    group = zarr.open_group(LocalStore(root, read_only=True), mode="r", zarr_format=3)
    attributes: Any = dict(group.attrs)
    assert [d["path"] for d in attributes["multiscales"][0]["datasets"]] == ["0", "1", "2"]
