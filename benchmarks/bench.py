"""shardstore beside zarr-python, the zarrs pipeline, tensorstore and the physical limits: time, CPU, requests, bytes and memory.

    python benchmarks/bench.py --json build/bench.json            # everything, some minutes
    python benchmarks/bench.py --scale full --json FILE           # larger, and more rounds
    python benchmarks/bench.py --only planes boxes --storage local
    python benchmarks/check.py FILE...                            # the bars, held or not
    python benchmarks/page.py FILE...                             # docs/evidence/benchmarks.md and benchmark-tables.md

Every turn of a contender is a process of its own, forked from one that has imported the Python packages and done nothing else. A
round is one turn of everybody; rounds follow each other, so what the machine does meanwhile comes to all. What contenders read must
be the same, and what they wrote is read back by plain zarr-python: values that differ are an error of the run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import multiprocessing.connection
import os
import platform
import shlex
import shutil
import statistics
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from contenders import S3_ENVIRONMENT, Place, StorageName
from counting_s3 import counting_s3
from datasets import SCALES, Scale, warm
from latency_http import latency_http
from machine import machine, versions
from process_figures import load_average
from worker import Failed, Figures, Together, Turn, take, take_together
from workloads import WORKLOADS
from workloads.side_by_side import COMPARED
from workloads.workload import Workload

LATENCY_SECONDS = 0.020
STORAGES: tuple[StorageName, ...] = ("local", "latency", "s3", "far s3")
_PACKAGES = ("shardstore", "zarr", "numcodecs", "tensorstore", "zarrs", "icechunk", "fsspec", "s3fs", "obstore", "moto", "numpy")
_TURN_SECONDS = 900.0  # nothing takes as long: it hangs


# -- results -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Entry:
    """What one contender did at one workload."""

    rounds: list[Figures] = field(default_factory=list)
    left_out: str | None = None
    """Why it could not take part."""
    error: str | None = None
    """What it failed with; its rounds are then not to be trusted."""

    def fail(self, failed: Failed) -> None:
        if failed.is_unsupported:
            self.left_out = failed.reason
        else:
            self.error = failed.reason


@dataclass(slots=True)
class Cell:
    """One workload on one storage."""

    workload: str
    title: str
    storage: StorageName
    entries: dict[str, Entry] = field(default_factory=dict)
    is_side_by_side: bool = False
    """Its rounds were turns in one process."""

    def compare(self) -> None:
        """Call it an error of those who read or left other values than most did."""
        sums = {name: {figures.get("checksum") for figures in entry.rounds} - {None} for name, entry in self.entries.items()}
        every = [value for of_one in sums.values() for value in of_one]
        if not every:
            return
        right = statistics.mode(every)
        for name, of_one in sums.items():
            if of_one - {right} and self.entries[name].error is None:
                self.entries[name].error = "WRONG VALUES: what it read, or what it left in the storage, is not what the others did"


# -- processes ---------------------------------------------------------------------------------------------------------


def _serve(pipe: multiprocessing.connection.Connection[Any, Any], turn: Turn | Together) -> None:
    try:
        pipe.send(take(turn) if isinstance(turn, Turn) else take_together(turn))
    except Exception as exc:  # noqa: BLE001 - whatever a library raises is reported
        pipe.send(Failed.by(exc))
    pipe.close()


class Stable:
    """Where new processes come from."""

    def __init__(self) -> None:
        here = str(Path(__file__).parent)
        os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
        os.environ["PYTHONSAFEPATH"] = "1"  # what is measured must not depend on the current directory
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["preloaded"])

    def run(self, turn: Turn | Together) -> Any:
        """Take a turn, or several together, in a new process; the figures, or ``Failed``."""
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, turn), daemon=True)
        process.start()
        theirs.close()
        try:
            if not ours.poll(_TURN_SECONDS):
                return Failed(f"it did not end within {_TURN_SECONDS:.0f} s", False)
            return ours.recv()
        except EOFError:
            process.join(10)
            return Failed(f"its process ended with exit code {process.exitcode}", False)
        finally:
            process.join(5)  # the threads of a library may take their time
            if process.exitcode is None:
                process.kill()
                process.join()
            ours.close()


# -- places ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Ground:
    """A directory of data, and the storages that show it."""

    root: Path
    scale: Scale
    stack: ExitStack
    _places: dict[StorageName, Place] = field(default_factory=dict)

    def place(self, storage: StorageName) -> Place:
        if storage not in self._places:
            self._places[storage] = self._open(storage)
        return self._places[storage]

    def _open(self, storage: StorageName) -> Place:
        if storage == "local":
            return Place(str(self.root))
        if storage == "latency":
            url = self.stack.enter_context(latency_http(self.root, LATENCY_SECONDS))
            return Place(str(self.root), latency_seconds=LATENCY_SECONDS, http_url=url)
        seconds = LATENCY_SECONDS if storage == "far s3" else 0.0
        server = self.stack.enter_context(counting_s3(as_aws=True, seconds=seconds))
        return Place(f"{server.bucket}/{uuid.uuid4().hex}", server.endpoint, server_seconds=seconds)

    def make(self, workload: Workload, storage: StorageName) -> None:
        """The data of a workload, where it is to be read."""

        source = self.root / storage.replace(" ", "-") if "s3" in storage else self.root
        source.mkdir(exist_ok=True)
        before = {path.name for path in source.iterdir()}
        workload.make(source, self.scale, storage)
        new = {path.name for path in source.iterdir()} - before
        for name in sorted(new):
            warm(source / name)
            if "s3" in storage:
                self._upload(source / name, storage)

    def _upload(self, directory: Path, storage: StorageName) -> None:
        import s3fs

        place = self.place(storage)
        s3fs.S3FileSystem(**place.s3_options).put(str(directory), f"{place.path}/{directory.name}", recursive=True)

    def clean(self, storage: StorageName, run_name: str) -> None:
        """Remove what a turn has written."""
        if "s3" not in storage:
            for path in self.root.glob(f"{run_name}*"):
                shutil.rmtree(path)
            return
        import s3fs

        place = self.place(storage)
        fs = s3fs.S3FileSystem(**place.s3_options)
        fs.invalidate_cache()
        for name in (run_name, f"{run_name}-warm-up"):
            if fs.exists(f"{place.path}/{name}"):
                fs.rm(f"{place.path}/{name}", recursive=True)


@contextmanager
def ground(scale: Scale, directory: str | None) -> Iterator[Ground]:
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="shardstore-bench-", dir=directory, ignore_cleanup_errors=True) as root:
        yield Ground(Path(root), scale, stack)
        stack.close()  # servers end before their files do


# -- the run -----------------------------------------------------------------------------------------------------------


def measure(workload: Workload, storage: StorageName, where: Ground, stable: Stable, only: Sequence[str] | None) -> Cell:
    """All rounds of one workload on one storage."""
    cell = Cell(workload.name, workload.title, storage)
    where.make(workload, storage)
    place = where.place(storage)
    for contender in workload.entrants:
        if only is None or contender.name in only:
            cell.entries[contender.name] = Entry(left_out=contender.unavailable(storage))
    turns = workload.turns(where.scale)
    if turns is not None:
        _measure_together(cell, Together(workload.name, _turns_of(cell, *turns), where.scale.name, place, _new_name()), where, stable)
        return cell
    for number in range(workload.rounds(where.scale, storage)):
        for name, entry in cell.entries.items():
            if entry.left_out is not None or entry.error is not None:
                continue
            run_name = _new_name()
            outcome = stable.run(Turn(workload.name, name, where.scale.name, place, run_name))
            where.clean(storage, run_name)
            if isinstance(outcome, Failed):
                entry.fail(outcome)
            else:
                entry.rounds.append(outcome)
            print(f"{storage}, {workload.name}, round {number + 1}: {name}: {_said(outcome)}", file=sys.stderr, flush=True)
    cell.compare()
    return cell


def _new_name() -> str:
    return f"run-{uuid.uuid4().hex[:12]}"


def _turns_of(cell: Cell, turns: int, peer_turns: int) -> dict[str, int]:
    able = [name for name, entry in cell.entries.items() if entry.left_out is None]
    return {name: turns if name in COMPARED or cell.storage != "local" else peer_turns for name in able}


def _measure_together(cell: Cell, together: Together, where: Ground, stable: Stable) -> None:
    cell.is_side_by_side = True
    outcome = stable.run(together) if together.turns else {}
    where.clean(cell.storage, together.run_name)
    for name in together.turns:
        found = outcome if isinstance(outcome, Failed) else outcome[name]
        entry = cell.entries[name]
        if isinstance(found, Failed):
            entry.fail(found)
        else:
            entry.rounds = found
        said = found if isinstance(found, Failed) else {"seconds": statistics.median(each["seconds"] for each in found)}
        print(f"{cell.storage}, {cell.workload}, {together.turns[name]} turns: {name}: {_said(said)}", file=sys.stderr, flush=True)
    cell.compare()


def _said(outcome: Figures | Failed) -> str:
    if isinstance(outcome, Failed):
        return outcome.reason
    units = {name: value for name, value in outcome.items() if name in ("requests", "bytes_read", "bytes_written")}
    return f"{outcome['seconds']:.4f} s, " + ", ".join(f"{name} {value:,}" for name, value in units.items())


def _said_again(arguments: argparse.Namespace) -> list[str]:
    """The arguments that decide what is measured, without the places where it is and is written."""
    storages = [] if arguments.storage == list(STORAGES) else ["--storage", *arguments.storage]
    return [
        *("--scale", arguments.scale),
        *storages,
        *(["--only", *arguments.only] if arguments.only else []),
        *(["--contenders", *arguments.contenders] if arguments.contenders else []),
    ]


def head_of(arguments: Sequence[str], scale: Scale, directory: str | None) -> dict[str, Any]:
    return {
        "machine": machine(directory),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions(_PACKAGES),
        "kernel": _kernel_libraries(),
        "scale": scale.name,
        "sizes": asdict(scale),
        "latency_seconds": LATENCY_SECONDS,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        "command": shlex.join(["python", "benchmarks/bench.py", *arguments]),
        "load_before": load_average(),
    }


def _kernel_libraries() -> dict[str, str] | None:
    """The versions of the libraries whose functions the kernel calls, by codec; ``None`` where there is no kernel."""
    from shardstore.native.kernel import kernel

    found = kernel()
    return None if found is None else {use: text.partition(" in ")[0] for use, text in found.libraries().items() if " in " in text}


_NAMES = f"of {', '.join(WORKLOADS)}".replace("%", "%%")  # argparse fills such signs in


def _arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scale", choices=list(SCALES), default="quick")
    parser.add_argument("--storage", nargs="+", choices=STORAGES, default=list(STORAGES))
    parser.add_argument("--only", nargs="+", metavar="WORKLOAD", choices=list(WORKLOADS), help=_NAMES)
    parser.add_argument("--contenders", nargs="+", metavar="NAME", help="these only")
    parser.add_argument("--directory", metavar="DIR", help="the local disk to use; default: a temporary directory")
    parser.add_argument("--json", metavar="FILE", required=True, help="where to write what was measured")
    return parser.parse_args(given)


def main(given: Sequence[str]) -> int:
    arguments = _arguments(given)
    os.environ.update(S3_ENVIRONMENT)
    scale = SCALES[arguments.scale]
    result: dict[str, Any] = {"head": head_of(_said_again(arguments), scale, arguments.directory), "cells": []}
    stable = Stable()
    target = Path(arguments.json)
    target.parent.mkdir(parents=True, exist_ok=True)
    with ground(scale, arguments.directory) as where:
        for storage in arguments.storage:
            for workload in WORKLOADS.values():
                if storage in workload.storages and workload.name in (arguments.only or WORKLOADS):
                    result["cells"].append(asdict(measure(workload, storage, where, stable, arguments.contenders)))
                    result["head"]["load_after"] = load_average()
                    target.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")  # of a run that is stopped, what it had
    wrong = [(cell["workload"], name) for cell in result["cells"] for name, entry in cell["entries"].items() if _is_wrong(entry)]
    for workload_name, name in wrong:
        print(f"WRONG VALUES: {name} at {workload_name}", file=sys.stderr)
    return 1 if wrong else 0


def _is_wrong(entry: dict[str, Any]) -> bool:
    return bool(entry["error"] and entry["error"].startswith("WRONG VALUES"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
