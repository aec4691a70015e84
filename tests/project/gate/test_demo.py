"""The demo is the first thing that a new user runs: it has to end well, and to notice when something is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def run_demo(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error::ResourceWarning", str(ROOT / "examples/demo.py"), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240, check=False)


def test_the_demo_compares_bit_for_bit_and_counts(tmp_path: Path) -> None:
    place = tmp_path / "a place with spaces"
    done = run_demo(str(place), "--keep", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("  ok ") == 15
    # Objects are counted, not timed: a chunk each, and 64 of them to a shard.
    assert re.search(r"one object a chunk +730 objects", done.stdout)
    assert re.search(r"shards +35 objects", done.stdout)
    assert len([p for p in place.rglob("*") if p.is_file()]) == 730 + 35


def test_the_demo_fails_where_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    done = run_demo(str(tmp_path / "file" / "x"), cwd=tmp_path)
    assert done.returncode != 0
