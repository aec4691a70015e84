"""The bars: ``python benchmarks/check.py [RESULTS.json …]``. Ends with 1 where one is not held.

Without results it measures what the tables that the page of results begins with need, and prints their bars. For the table of ratios
contenders take turns in one process.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import bench
from bars import Verdict, other_version, table_verdicts, verdicts
from datasets import SCALES
from results import Run
from workloads import BARRED, TABLE


def main(given: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", nargs="*", type=Path, help="what runs of benchmarks/bench.py wrote, one for each Python")
    parser.add_argument("--scale", choices=list(SCALES), default="quick", help="of what is measured")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write what was measured; default: in build/bench")
    arguments = parser.parse_args(given)
    if arguments.results:
        return 1 if sum(_print(path, verdicts) for path in arguments.results) else 0
    began = time.monotonic()
    version = ".".join(platform.python_version_tuple()[:2])
    path = arguments.json or Path("build/bench", f"check-{version}.json")
    chosen = ["--scale", arguments.scale, "--only", *TABLE, "--contenders", *BARRED]
    wrong = bench.main([*chosen, "--json", str(path)])
    missed = _print(path, table_verdicts)
    print(f"  measured in {time.monotonic() - began:.0f} s")
    return 1 if wrong or missed else 0


def _print(path: Path, judge: Callable[[Run], Iterator[Verdict]]) -> int:
    """Print the bars of a run; return how many are not held."""
    run = Run.load(path)
    print(f"{run.name}; {run.head['scale']}; load {run.head['load_before']:.1f} before, {run.head['load_after']:.1f} after")
    missed = 0
    for verdict in judge(run):
        print(f"  {verdict.status:12}  {verdict.bar}: {verdict.measured}")
        missed += verdict.status == "NOT HELD"
    print(f"  {other_version(run)}")
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
