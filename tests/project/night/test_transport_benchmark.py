"""``benchmarks/transport.py`` and ``lean_arrays.py`` run over a server that costs next to nothing, and all contenders do the work there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_a_quick_run(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "transport.py"), "--quick", "--json", str(result)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(result.read_text())["rounds"]
    assert {server: sorted(rounds[0]["obstore"]) for server, rounds in found.items()} == {
        "a lean S3": ["list", "ranges", "whole", "write"],
        "a lean GCS": ["ranges", "whole"],
    }
    for rounds in found.values():
        for of_transport in rounds[0].values():
            assert all(one["cpu"] > 0 and 0 < one["seconds"] < 100 for one in of_transport.values())


def test_a_quick_run_with_arrays(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "lean_arrays.py"), "--quick", "--json", str(result)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads(result.read_text())["rounds"]
    assert sorted(found) == ["shardstore", "shardstore, s3fs", "tensorstore"]
    for of_contender in found.values():
        assert sorted(of_contender) == ["read", "singles", "write"]
        assert all(one["cpu"] > 0 and one["requests"] > 0 for one in of_contender.values())
    assert found["shardstore"]["read"]["requests"] <= 2 + 4  # both shards, and documents
    assert "tensorstore, at most" in done.stdout
