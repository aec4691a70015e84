"""zarr-python 2, in an environment of its own, beside what is tested."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def interpreter() -> str:
    """The Python of the environment that ``make test-all`` makes; ``SHARDSTORE_ZARR2`` names it, and then it has to be there."""
    named = os.environ.get("SHARDSTORE_ZARR2")
    path = Path(named or Path(__file__).parents[2] / "build/zarr2/bin/python")
    if not path.exists():
        if named:
            pytest.fail(f"SHARDSTORE_ZARR2 names {named}, which does not exist")
        pytest.skip("zarr-python 2 has an environment of its own, which `make test-all` makes")
    return str(path)
