"""Many runs, one seed after the other, on all processors: ``python -m tests.simulation --help``.

Of a seed that fails, a smaller run that fails too is sought: fewer operations, fewer kinds of faults, fewer clients. What is printed is the
command that makes it again, with all that happened.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import Literal, get_args

from shardstore.plan.strategies import STRATEGIES
from tests.simulation.appends import Appending
from tests.simulation.histories import CLIENTS, FAULTS, OPERATIONS, Limits, Result, Run
from tests.simulation.packings import Packing
from tests.simulation.world import Kind

_SEEDS_AT_ONCE = 20

Form = Literal["chunks", "packing", "appends"]
_FORMS: dict[Form, type[Run]] = {"chunks": Run, "packing": Packing, "appends": Appending}


@dataclass
class Totals:
    """What many runs were."""

    histories: int = 0
    operations: int = 0
    exchanges: int = 0
    kills: int = 0
    pauses: int = 0
    virtual_seconds: float = 0.0
    unchecked: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    failed: list[Result] = field(default_factory=list)

    def add(self, result: Result) -> None:
        self.histories += 1
        self.operations += result.operations
        self.exchanges += result.exchanges
        self.kills += result.kills
        self.pauses += result.pauses
        self.virtual_seconds += result.virtual_seconds
        self.unchecked += result.unchecked
        self.faults += result.faults
        self.outcomes += result.outcomes
        if result.violation is not None:
            self.failed.append(result)

    def line(self, seconds: float) -> str:
        faults = ", ".join(f"{name} {count:,}" for name, count in sorted(self.faults.items()))
        return (
            f"{self.histories:,} histories in {seconds:.0f} s ({self.histories / max(seconds, 1e-9):.1f} a second): {self.operations:,} "
            f"operations, {self.exchanges:,} requests, {self.kills:,} kills, {self.pauses:,} pauses, "
            f"{self.virtual_seconds / 86400:.1f} days of virtual time; faults: {faults}; "
            f"{self.unchecked} chunks not checked, {len(self.failed)} failed"
        )


def run(seed: int, kind: Kind, limits: Limits | None = None, *, keeps_trace: bool = False) -> Result:
    """Make and check one run, of the form that the seed has. Nothing can be appended where nothing is conditional."""
    form = Run if kind == "bare" and form_of(seed) == "appends" else _FORMS[form_of(seed)]
    return form(seed, kind, limits or Limits(), keeps_trace=keeps_trace).go()


def form_of(seed: int) -> Form:
    """Return what the run of a seed is: of clients that share arrays, of drivers that pack, or of clients that append."""
    drawn = random.Random(f"form {seed}").random()
    return "packing" if drawn < 0.12 else "appends" if drawn < 0.25 else "chunks"


def runs(seeds: Sequence[int], kind: Kind, limits: Limits) -> list[Result]:
    """Make and check the runs of some seeds, in this process, without a word of what its clients log."""
    logging.disable(logging.CRITICAL)
    return [run(seed, kind, limits) for seed in seeds]


def campaign(seeds: Iterator[int], kinds: Sequence[Kind], seconds: float, workers: int, *, limits: Limits, most_failed: int = 1) -> Totals:
    """Make the runs of seeds until they end, the time is over, or so many have failed."""
    totals = Totals()
    ends = time.monotonic() + seconds

    def batches() -> Iterator[tuple[list[int], Kind]]:
        number = 0
        while time.monotonic() < ends and len(totals.failed) < most_failed and (some := list(islice(seeds, _SEEDS_AT_ONCE))):
            yield some, kinds[number % len(kinds)]
            number += 1

    if workers == 1:
        for some, kind in batches():
            for result in runs(some, kind, limits):
                totals.add(result)
        return totals
    with ProcessPoolExecutor(workers) as pool:
        waiting = [pool.submit(runs, *batch, limits) for batch in islice(batches(), 2 * workers)]
        more = batches()
        while waiting:
            for result in waiting.pop(0).result():
                totals.add(result)
            if (batch := next(more, None)) is not None:
                waiting.append(pool.submit(runs, *batch, limits))
    return totals


def shrunk(seed: int, kind: Kind, limits: Limits | None = None) -> Limits:
    """Return the smallest run of a failing seed that was found to fail too."""
    best = limits or Limits()

    def fails(limits: Limits) -> bool:
        return run(seed, kind, limits).violation is not None

    for name in FAULTS:
        if name not in best.without and fails(smaller := replace(best, without=(*best.without, name))):
            best = smaller
    for change in ({"kills": False}, {"operators": False}, {"changes": False}, {"clients": 2}, {"clients": 1}):
        if fails(smaller := replace(best, **change)):
            best = smaller
    low, high = 0, best.clients * OPERATIONS
    while low + 1 < high:  # not every smaller number fails: one that does is what is sought
        middle = (low + high) // 2
        low, high = (low, middle) if fails(replace(best, operations=middle)) else (middle, high)
    return replace(best, operations=high)


def _limits(given: argparse.Namespace) -> Limits:
    without = tuple(name for name in given.without.split(",") if name)
    return Limits(
        given.operations, given.clients, without, not given.no_kills, not given.no_changes, not given.no_operators, given.strategy
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; return its exit code: 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--world", choices=[*get_args(Kind), "mixed"], default="mixed", help="the kind of storage")
    parser.add_argument("--form", choices=get_args(Form), help="only seeds of this form; by default all")
    parser.add_argument("--seeds", type=int, default=200, help="how many (default: %(default)s)")
    parser.add_argument("--first", type=int, help="the first seed; by default one that depends on the time")
    parser.add_argument("--seconds", type=float, default=86400.0, help="stop after so long")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, help="one run, with all that happens in it")
    parser.add_argument("--operations", type=int, default=CLIENTS * OPERATIONS, help="of a run: at most so many")
    parser.add_argument("--clients", type=int, default=CLIENTS, help="of a run")
    parser.add_argument("--without", default="", metavar="FAULT,…", help=f"none of these faults: {', '.join(FAULTS)}")
    parser.add_argument("--digests", action="store_true", help="print a digest of what happens in each run, to compare machines or Pythons")
    parser.add_argument("--no-kills", action="store_true", help="nobody is killed or paused")
    parser.add_argument("--no-changes", action="store_true", help="the array is not resized, created again or moved")
    parser.add_argument("--no-operators", action="store_true", help="nobody compacts, repairs or verifies meanwhile")
    parser.add_argument("--strategy", choices=list(STRATEGIES), help="of all clients; by default each draws one")
    given = parser.parse_args(arguments)
    kinds: list[Kind] = list(get_args(Kind)) if given.world == "mixed" else [given.world]
    if given.seed is not None:
        result = run(given.seed, kinds[0], _limits(given), keeps_trace=True)
        print("\n".join(result.lines))
        print(f"trace {result.digest}; {result.violation or 'no promise was broken'}")
        return result.violation is not None
    first = int(time.time() * 1000) if given.first is None else given.first
    seeds = islice((seed for seed in count(first) if given.form in (None, form_of(seed))), given.seeds)
    if given.digests:
        logging.disable(logging.CRITICAL)
        for seed in seeds:
            print(*(f"{kind} {seed} {run(seed, kind, _limits(given)).digest}" for kind in kinds), sep="\n")
        return 0
    began = time.monotonic()
    limits = _limits(given)
    totals = campaign(seeds, kinds, given.seconds, given.workers, limits=limits)
    print(f"seeds from {first}: {totals.line(time.monotonic() - began)}")
    for result in totals.failed:
        smaller = shrunk(result.seed, result.kind, limits)
        print(f"\nseed {result.seed} of {result.kind}: {result.violation}\n\nsmaller: --world {result.kind} --seed {result.seed} {smaller}")
    return bool(totals.failed)


if __name__ == "__main__":
    sys.exit(main())
