"""Random arrays of zarr-python 2 over the views of Zarr v2 and of the 2022 draft, beside plain stores."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.zarr2 import interpreter

PROGRAM = Path(__file__).parent / "random_arrays.py"


@pytest.mark.parametrize("present", ["v2", "draft"])
def test_random_arrays(present: str) -> None:
    environment = os.environ | {"PYTHONWARNINGS": "ignore", "ZARR_V3_EXPERIMENTAL_API": "1", "ZARR_V3_SHARDING": "1"}
    command = [interpreter(), str(PROGRAM), present, "150"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
