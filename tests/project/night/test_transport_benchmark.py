"""``benchmarks/transport.py`` runs over the server that costs next to nothing, and both transports do all of the work there."""

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
