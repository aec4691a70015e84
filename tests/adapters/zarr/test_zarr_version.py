"""A program that has imported zarr-python 2, which has none of the modules that the face for zarr-python is made for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

OVER_URLS = """
import sys
import fsspec, zarr
import shardstore
from shardstore.adapters.tools.align import array_of_zarr, is_zarr

keys = fsspec.get_mapper(f"sharded::file://{sys.argv[1]}", sharded={"fsync": False})
keys["some/file"] = b"1"
assert keys["some/file"] == b"1" and list(keys) == ["some/file"]
assert keys.fs.async_impl
assert not is_zarr(keys) and array_of_zarr(keys) is None
print(sorted(name for name in sys.modules if name.startswith("shardstore.adapters.zarr.")))
"""

INFO = "import sys; from shardstore.apps.cli.app import app; app(['info', '--runtime', '--json'])"


@pytest.fixture
def with_zarr2(tmp_path: Path) -> str:
    """A place for packages with a zarr-python 2 of which only the version is real."""
    (tmp_path / "packages/zarr").mkdir(parents=True)
    (tmp_path / "packages/zarr/__init__.py").write_text("__version__ = '2.18.7'\n\nclass Array: ...\n\nclass Group: ...\n")
    (tmp_path / "packages/zarr-2.18.7.dist-info").mkdir()
    (tmp_path / "packages/zarr-2.18.7.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: zarr\nVersion: 2.18.7\n")
    return str(tmp_path / "packages")


def run(program: str, packages: str, root: Path) -> str:
    code = f"import sys; sys.path.insert(0, {packages!r})\n{program}"
    done = subprocess.run([sys.executable, "-c", code, str(root)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.gate
def test_the_filesystem_leaves_zarr2_alone(with_zarr2: str, tmp_path: Path) -> None:
    assert run(OVER_URLS, with_zarr2, tmp_path / "data.zarr").strip() == "[]"


@pytest.mark.gate
def test_info_says_that_there_is_no_pipeline(with_zarr2: str, tmp_path: Path) -> None:
    assert json.loads(run(INFO, with_zarr2, tmp_path))["runtime"]["pipeline"] is None
