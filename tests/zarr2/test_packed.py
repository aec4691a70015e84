"""What zarr-python 2.18 has written is packed as it is: read natively by today's tools, and to the byte under its own keys."""

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
from tests.maintenance.packing.sources import stored
from tests.zarr2 import interpreter
from tests.zarr2.test_programs import HERE, NOT_SHARDED_BY_PEERS, SOME

WRITE = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np, programs, zarr
store = zarr.DirectoryStore(sys.argv[3])
programs.PROGRAMS[sys.argv[2]](store)
values = {}
def note(path, array):
    if array.dtype != object:
        values[path or "__root__"] = array[...]
node = zarr.open(store, mode="r")
if isinstance(node, zarr.Array):
    note("", node)
else:
    node.visititems(lambda path, item: note(path, item) if isinstance(item, zarr.Array) else None)
np.savez(sys.argv[3] + ".npz", **values)
"""

READ = """
import sys
import numpy as np, shardstore, zarr
node = zarr.open(shardstore.get_mapper(sys.argv[1], present="v2", read_only=True), mode="r")
with np.load(sys.argv[2]) as expected:
    for path, value in expected.items():
        array = node if path == "__root__" else node[path]
        np.testing.assert_array_equal(array[...], value)
"""


def by_zarr_2(program: str, *arguments: str) -> None:
    environment = os.environ | {"PYTHONWARNINGS": "ignore"}
    done = subprocess.run([interpreter(), "-c", program, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def counts(info: Any) -> tuple[int, ...]:
    return tuple(2 + axis % 2 for axis in range(len(info.shape)))


@pytest.mark.filterwarnings("ignore")  # of data types and codecs that zarr-python 3 knows and no specification does
@pytest.mark.parametrize("name", SOME)
def test_packed(name: str, tmp_path: Path) -> None:
    source, target = tmp_path / "old", tmp_path / "new"
    by_zarr_2(WRITE, str(HERE), name, str(source))
    assert shardstore.pack(source, target, chunks_per_shard=counts).complete
    view = shardstore.get_mapper(str(target), present="v2", read_only=True)
    before = stored(source)
    assert sorted(view) == sorted(before)
    for key, data in before.items():
        if key.rpartition("/")[2].startswith(".z"):
            assert json.loads(view[key]) == json.loads(data), key
        else:
            assert view[key] == data, key
    by_zarr_2(READ, str(target), f"{source}.npz")
    with np.load(f"{source}.npz", allow_pickle=False) as expected:
        for path, value in expected.items():
            path = "" if path == "__root__" else path
            store: Any = shardstore.open(target, read_only=True) if name in NOT_SHARDED_BY_PEERS else LocalStore(target, read_only=True)
            array = zarr.open_array(store, path=path, mode="r", zarr_format=3)
            np.testing.assert_array_equal(np.asarray(array[...]), value)
            if name in ("arrays", "ome_zarr") and value.size:
                spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{target}/{path}/"}}
                np.testing.assert_array_equal(tensorstore.open(spec).result().read().result(), value)
