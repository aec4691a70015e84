"""Whole arrays on an S3 server that costs next to nothing, so that what a client costs shows: shardstore by its default transport and by
s3fs, and tensorstore.

``python benchmarks/lean_arrays.py [--rounds N] [--quick] [--json FILE]``. Each turn is in a process of its own, one after the other,
round by round; what is compared are medians of the ratios of a round. Processor time is that of the client's process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
from contenders import S3_ENVIRONMENT, Address, Contender, OpenArray, Place, ShardStore, TensorStore
from counting_s3 import take_counts
from datasets import Form, contents, create
from lean_server import lean_server

CONTENDERS: dict[str, Contender] = {
    "shardstore": ShardStore(transport="auto"),
    "shardstore, s3fs": ShardStore("shardstore, s3fs", transport="fsspec"),
    "tensorstore": TensorStore(),
}
FORM = Form((128, 512, 512), (32, 32, 32), (128, 128, 128))
"""16 shards of 64 chunks."""
FORMS = {"full": FORM, "small": replace(FORM, shape=(128, 128, 256))}
SINGLES, THREADS = 200, 8
LABELS = {"write": "full write", "read": "full read", "singles": f"{SINGLES} random chunks by {THREADS} threads"}

BARS = {("write", "cpu"): 1.5, ("singles", "cpu"): 1.2, ("read", "seconds"): 1.1}
"""The most that shardstore may take, as a multiple of what tensorstore takes."""

Figures = dict[str, dict[str, float]]
"""By workload: seconds, seconds of CPU, and requests."""


def one(contender: str, workload: str, endpoint: str, form: str, prefix: str) -> dict[str, float]:
    """In this process: a workload once, after first requests, to another array, that open a connection."""
    place, shape = Place("bucket/root", endpoint), FORMS[form]
    values = contents(shape)
    grid = [n // c for n, c in zip(shape.shape, shape.chunks, strict=True)]
    corners = np.random.default_rng(1).integers(0, grid, (SINGLES, len(grid)))
    chunks = [tuple(slice(i * c, (i + 1) * c) for i, c in zip(corner, shape.chunks, strict=True)) for corner in corners.tolist()]
    everything = tuple(slice(0, n) for n in shape.shape)

    def write(array: OpenArray) -> None:
        array.write(everything, values)

    def read(array: OpenArray) -> None:
        assert np.array_equal(array.read(everything), values)

    def singles(array: OpenArray) -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(array.read, chunks))

    run: dict[str, Callable[[OpenArray], None]] = {"write": write, "read": read, "singles": singles}
    open_ = CONTENDERS[contender].open
    array = open_(Address(place, f"{prefix}/warm"))
    array.write(chunks[0], values[chunks[0]])
    array.read(chunks[0])
    array = open_(Address(place, f"{prefix}/new"))
    take_counts(endpoint)
    began, cpu = time.perf_counter(), time.process_time()
    run[workload](array)
    found = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}
    return found | {"requests": float(sum(take_counts(endpoint).requests.values()))}


def in_a_process(**argument: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, "--one", json.dumps(argument)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{argument['contender']} failed ({done.returncode}):\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(rounds: int, form: str) -> list[dict[str, Figures]]:
    """Of each round, by contender: the figures."""
    found: list[dict[str, Figures]] = []
    with lean_server(keeps=True) as endpoint:
        store = ShardStore(transport="auto").store(Place("bucket/root", endpoint))
        for number in range(rounds):
            turn = number % len(CONTENDERS)
            taken: dict[str, Figures] = {}
            for contender in [*CONTENDERS][turn:] + [*CONTENDERS][:turn]:
                prefix = f"{number}-{contender.replace(', ', '-')}"
                for name in ("new", "warm"):
                    create("", f"{prefix}/{name}", FORMS[form], store=store)
                taken[contender] = {
                    workload: in_a_process(contender=contender, workload=workload, endpoint=endpoint, form=form, prefix=prefix)
                    for workload in LABELS
                }
            found.append(taken)
            print(f"round {number + 1}", file=sys.stderr)
    return found


def ratio(rounds: list[dict[str, Figures]], workload: str, figure: str, contender: str = "shardstore") -> float:
    return statistics.median(each[contender][workload][figure] / max(each["tensorstore"][workload][figure], 1e-9) for each in rounds)


def table(rounds: list[dict[str, Figures]]) -> str:
    lines = ["| | | seconds | CPU | requests | × tensorstore: seconds | CPU |", "|---|---|--:|--:|--:|--:|--:|"]
    for workload, label in LABELS.items():
        for contender in CONTENDERS:
            medians = {f: statistics.median(each[contender][workload][f] for each in rounds) for f in ("seconds", "cpu", "requests")}
            lines.append(
                f"| {label} | {contender} | {medians['seconds']:.3f} s | {medians['cpu']:.3f} s | {medians['requests']:.0f} "
                f"| {ratio(rounds, workload, 'seconds', contender):.2f} | {ratio(rounds, workload, 'cpu', contender):.2f} |"
            )
    return "\n".join(lines)


def verdicts(rounds: list[dict[str, Figures]]) -> list[str]:
    lines = []
    for (workload, figure), bound in BARS.items():
        measured = ratio(rounds, workload, figure)
        lines.append(
            f"{'held' if measured <= bound else 'NOT HELD'}: {LABELS[workload]}, {figure}: {measured:.2f} × tensorstore, at most {bound}"
        )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="one round, with less")
    parser.add_argument("--json", help="where to write the results")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ.update(S3_ENVIRONMENT)
    if given.one:
        print(json.dumps(one(**json.loads(given.one))))
        return 0
    rounds = 1 if given.quick else given.rounds
    found = measure(rounds, "small" if given.quick else "full")
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"medians of {rounds} rounds; {machine}\n\n{table(found)}\n", *verdicts(found), sep="\n")
    if given.json:
        Path(given.json).write_text(json.dumps({"machine": machine, "rounds": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
