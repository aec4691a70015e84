"""Do writers that share a shard lose chunks, or rows that they append, do readers see torn values, and what does a small write cost?

shardstore beside zarr-python's own sharding and tensorstore, for appends also beside xarray and Icechunk, on the same arrays, on this
machine:

    python benchmarks/safety.py                          # everything; some ten minutes
    python benchmarks/safety.py --storage local          # a local disk only
    python benchmarks/safety.py --quick                  # a little of everything, to see that it works
    python benchmarks/safety.py --json FILE --markdown FILE

Each contender runs in processes of its own; rounds are interleaved; nothing is flushed to disk. On S3 the server is moto on
this machine. Bytes of local files are what the kernel counts for the process, those on S3 what the server counts. Times are
not measured.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from appends import APPENDERS, Appender, Appends
from contenders import CONTENDERS, S3_ENVIRONMENT, Contender, Place, StorageName
from counting_s3 import CountingS3, counting_s3
from crew import Crew
from experiments import Amplification, Arena, Experiment, Loss, TornReads
from machine import machine, versions
from report import Report, Result, describe

_PACKAGES = ("shardstore", "zarr", "xarray", "tensorstore", "icechunk", "zarrs", "s3fs", "obstore", "moto")
_NAMES = list(dict.fromkeys([*(each.name for each in CONTENDERS), *(each.name for each in APPENDERS)]))
_EXPERIMENTS = [each.__name__ for each in (Loss, TornReads, Amplification, Appends)]
_QUICK_CONTENDERS = ("zarr-python", "tensorstore", "shardstore")


@dataclass(frozen=True, slots=True)
class Plan:
    """An experiment with the number of its rounds."""

    experiment: Experiment
    rounds: int


# The server on this machine shares its processor with everybody: without a rest, writers would leave readers next to nothing.
_PAUSE_SECONDS: dict[StorageName, float] = {"local": 0.0, "s3": 0.1}


def plans_of(storage: StorageName, trials: int, seconds: float) -> list[Plan]:
    """Everything. ``seconds`` are those of reading, for each contender, over all rounds."""
    return [
        Plan(Loss(writers=4, chunks=64, chunk_nbytes=5000), trials),
        Plan(Loss(writers=8, chunks=400, chunk_nbytes=500), 1),
        Plan(Loss(writers=4, chunks=64, chunk_nbytes=500, are_parts=True), trials),
        Plan(TornReads(writers=2, readers=4, seconds=seconds / 2, pause_seconds=_PAUSE_SECONDS[storage]), 2),
        Plan(Amplification("one by one", 64, 5000), 1),
        Plan(Amplification("together", 64, 5000), 1),
        Plan(Amplification("in a transaction", 64, 5000), 1),
        Plan(Amplification("in one assignment", 64, 5000), 1),
    ]


def append_plans(*, quick: bool) -> list[Plan]:
    return [Plan(Appends(writers=2, appends=4) if quick else Appends(writers=8, appends=25), 1)]


def quick_plans() -> list[Plan]:
    return [
        Plan(Loss(writers=2, chunks=48, chunk_nbytes=500), 2),
        Plan(Loss(writers=2, chunks=48, chunk_nbytes=500, are_parts=True), 2),
        Plan(TornReads(writers=1, readers=1, seconds=0.5, chunks=16, chunk_items=200), 1),
        Plan(Amplification("one by one", 8, 5000), 1),
        Plan(Amplification("in one assignment", 8, 5000), 1),
    ]


# -- running -----------------------------------------------------------------------------------------------------------


@contextmanager
def _place_on(storage: StorageName, directory: str | None) -> Iterator[tuple[Place, CountingS3 | None]]:
    """A new, empty place, removed afterwards."""
    if storage == "local":
        with tempfile.TemporaryDirectory(prefix="shardstore-safety-", dir=directory, ignore_cleanup_errors=True) as path:
            yield Place(path), None
    else:
        with counting_s3() as server:
            yield Place(f"{server.bucket}/{uuid.uuid4().hex}", server.endpoint), server


def run(
    report: Report, storage: StorageName, contenders: Sequence[Contender | Appender], plans: Sequence[Plan], directory: str | None
) -> None:
    """Run all plans on one storage and add what they find to ``report``."""
    with ExitStack() as stack:
        place, server = stack.enter_context(_place_on(storage, directory))
        crews = {each.name: stack.enter_context(Crew()) for each in contenders}
        for number, plan in enumerate(plans):
            results = {each.name: Result(storage, plan.experiment, each.name, []) for each in contenders}
            for turn in range(plan.rounds):
                for contender in contenders:
                    arena = Arena(crews[contender.name], contender, place, f"a{number}-{turn}-{uuid.uuid4().hex[:8]}", server)
                    figures = plan.experiment.measure(arena)
                    results[contender.name].rounds.append(figures)
                    progress = f"{storage}, {type(plan.experiment).__name__}, {contender.name}: {describe(figures)}"
                    print(progress, file=sys.stderr, flush=True)
            report.results.extend(results.values())


# -- the head of the table ---------------------------------------------------------------------------------------------


def head_of(arguments: Sequence[str], directory: str | None) -> dict[str, str]:
    packages = [f"{package} {version}" for package, version in versions(_PACKAGES).items()]
    return {
        "machine": machine(directory),
        "versions": f"Python {platform.python_version()}, {', '.join(packages)}",
        "command": shlex.join(["python", "benchmarks/safety.py", *arguments]),
    }


# -- the command -------------------------------------------------------------------------------------------------------


def _arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--storage", nargs="+", choices=["local", "s3"], help="default: both; with --quick: local")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=_NAMES, help="these contenders")
    parser.add_argument("--experiments", nargs="+", metavar="KIND", choices=_EXPERIMENTS, default=_EXPERIMENTS, help="these of %(choices)s")
    parser.add_argument("--directory", metavar="DIR", help="the local disk to use; default: a temporary directory")
    parser.add_argument("--trials", type=int, default=5, help="of the loss of chunks, for each contender (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of torn reads, for each contender (default: %(default)g)")
    parser.add_argument("--quick", action="store_true", help="a few seconds, three contenders: what it finds means little")
    parser.add_argument("--json", metavar="FILE", help="write everything that was counted")
    parser.add_argument("--markdown", metavar="FILE", help="write the table as Markdown")
    return parser.parse_args(given)


def _able(report: Report, contenders: Sequence[Contender | Appender], storage: StorageName) -> list[Contender | Appender]:
    """Return those that can take part, and note why the rest cannot."""
    reasons = {each.name: each.unavailable(storage) for each in contenders}
    report.left_out |= {f"{name} on {storage}": reason for name, reason in reasons.items() if reason is not None}
    return [each for each in contenders if reasons[each.name] is None]


def main(given: Sequence[str]) -> None:
    arguments = _arguments(given)
    os.environ.update(S3_ENVIRONMENT)
    wanted = arguments.only or (_QUICK_CONTENDERS if arguments.quick else _NAMES)
    report = Report(head_of(given, arguments.directory))
    for storage in arguments.storage or (["local"] if arguments.quick else ["local", "s3"]):
        plans = quick_plans() if arguments.quick else plans_of(storage, arguments.trials, arguments.seconds)
        for contenders, each in ((CONTENDERS, plans), (APPENDERS, append_plans(quick=arguments.quick))):
            chosen = [plan for plan in each if type(plan.experiment).__name__ in arguments.experiments]
            if chosen and (able := _able(report, [one for one in contenders if one.name in wanted], storage)):
                run(report, storage, able, chosen, arguments.directory)
    print(report.as_text(), end="")
    if arguments.json:
        Path(arguments.json).write_text(report.as_json() + "\n")
    if arguments.markdown:
        Path(arguments.markdown).write_text(report.as_markdown())


if __name__ == "__main__":
    main(sys.argv[1:])
