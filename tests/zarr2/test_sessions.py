"""zarr-python 2 writes through sessions of versioned stores what zarr-python 3 reads from their snapshots."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from shardstore.snapshots import Repository
from tests.zarr2 import interpreter
from tests.zarr2.test_programs import HERE, PROGRAMS

FAILING = {"copying": "zarr.copy_store writes .zattrs before the node, and a versioned store holds nothing without a node; zarr.copy works"}


@pytest.mark.filterwarnings("ignore")  # of data types and codecs that zarr-python 3 knows and no specification does
@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.xfail(reason=FAILING[name], strict=True) if name in FAILING else ()) for name in PROGRAMS),
        "copying_nodes",
    ],
)
def test_program(name: str, tmp_path: Path) -> None:
    root = tmp_path / "run.ice"
    environment = os.environ | {"PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [interpreter(), str(HERE / "session_programs.py"), name, str(root)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    session = Repository.open(root).readonly_session()
    with np.load(f"{root}.npz", allow_pickle=False) as expected:
        assert expected.files
        for path, value in expected.items():
            array: Any = zarr.open_array(session.store, path="" if path == "__root__" else path, mode="r")
            np.testing.assert_array_equal(np.asarray(array[...]), value)
