"""``benchmarks/in_place.py`` overwrites bytes where it says so, and a quick run of it ends."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def test_chunk_and_index_are_overwritten_in_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    array = importlib.import_module("in_place")._array(tmp_path, "in place", False, 100)
    shard = tmp_path / "c/0"
    before, old = shard.stat(), shard.read_bytes()
    expected = array[...]
    array[300:400] = expected[300:400] = 7
    after, new = shard.stat(), shard.read_bytes()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    assert after.st_mtime_ns != before.st_mtime_ns
    assert new == old[:300] + b"\7" * 100 + old[400:]
    np.testing.assert_array_equal(array[...], expected)


def test_a_quick_run(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "in_place.py"), "--quick", "--directory", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "loss of power, any pages of a chunk: {('zarr-python', 'a mixture'): 5, ('shardstore', 'a mixture'): 5}" in done.stdout
    assert "half an index: {('zarr-python', 'an error'): 64, ('shardstore', 'an error'): 64}" in done.stdout
    assert not list(tmp_path.iterdir())
