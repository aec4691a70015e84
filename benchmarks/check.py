"""The bars of the benchmark: ``python benchmarks/check.py RESULTS.json …``. Ends with 1 where one is not held."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bars import other_version, verdicts
from results import Run


def main(given: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", nargs="+", type=Path, help="what runs of benchmarks/bench.py wrote, one for each Python")
    missed = 0
    for path in parser.parse_args(given).results:
        run = Run.load(path)
        print(f"{run.name}; {run.head['scale']}; load {run.head['load_before']:.1f} before, {run.head['load_after']:.1f} after")
        for verdict in verdicts(run):
            print(f"  {verdict.status:12}  {verdict.bar}: {verdict.measured}")
            missed += verdict.status == "NOT HELD"
        print(f"  {other_version(run)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
