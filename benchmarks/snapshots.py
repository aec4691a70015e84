"""Versioned stores beside icechunk: commits, opening, references, many writers, and what reading through a snapshot costs.

``python benchmarks/snapshots.py [--rounds N] [--quick] [--page FILE]``. Each measurement runs in a process of its own, shardstore and
icechunk in turn, round by round; what is compared are medians. Ends with 1 if a bar is not held.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import snapshot_reading as reading
import snapshot_rows as rows
import snapshot_sides as sides
from machine import machine, versions
from snapshot_rows import Result
from snapshot_sides import OURS, OURS_FSYNC, PEER, PEER_SPLIT

MOST_RATIO = 1.15
"""What reading through a snapshot may cost, of the plain store."""
TABLES = "## Tables"
"""Everything from this line on in the page is written by this program; what is above, by people."""
KINDS = tuple((branches, processes) for processes in (False, True) for branches in (False, True))


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    side: int = 100
    """Chunks along each dimension of the array of references."""
    small: tuple[int, int, int] = (10, 10, 100)
    """The chunks of the array of 10⁴."""
    chunks: tuple[int, int, int] = (20, 20, 50)
    """Of 4 KiB each, in one commit."""
    commits: int = 5
    """By each writer."""
    writers: int = 16
    manifests: int = 100
    """Of ``side``³ references each, in the largest repository."""
    read_side: int = 512
    """Elements along each dimension of the arrays that are read."""
    rounds: int = 5


QUICK = Scale(20, (5, 5, 8), (10, 10, 8), 2, 3, 3, 64, 1)


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of the table."""

    what: str
    measured: float
    bar: float
    unit: str
    peer: str = ""
    """What icechunk has instead."""
    is_least: bool = False
    is_counted: bool = False
    """It is the same in every run."""
    limit: float | None = None
    """What no program in Python can do better in this run; see ``least``."""

    @property
    def is_held(self) -> bool:
        return self.measured >= self.bar if self.is_least else self.measured <= self.bar

    @property
    def line(self) -> str:
        sign, verdict = "≥" if self.is_least else "≤", "held" if self.is_held else "**not held**"
        if self.limit is not None and not self.is_held:
            verdict += f"; the limit is {_shown(self.limit)}"
        return f"| {self.what} | {_shown(self.measured)} {self.unit} | {sign} {_shown(self.bar)} {self.unit} | {verdict} | {self.peer} |"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"


# -- measuring ---------------------------------------------------------------------------------------------------------


def in_process(name: str, place: Path, side: str, **arguments: Any) -> Result:
    """Run one measurement in a process of its own."""
    command = [sys.executable, "-W", "ignore", __file__, "--one", json.dumps([name, side, str(place), arguments])]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "0"})
    if done.returncode:
        raise RuntimeError(f"{name} of {side} ended with {done.returncode}: {done.stderr[-2000:]}")
    found: Result = json.loads(done.stdout.splitlines()[-1])
    return found


def in_turn(name: str, place: Path, rounds: int, which: Sequence[str], **arguments: Any) -> dict[str, Result]:
    """Run one measurement for each side in turn; return the medians."""
    print(f"{name} {arguments or ''}", file=sys.stderr, flush=True)
    runs: dict[str, list[Result]] = {side: [] for side in which}
    for number in range(rounds):
        for side in which if number % 2 == 0 else reversed(which):
            runs[side].append(in_process(name, place, side, **arguments))
    found = {side: rows.medians(some) for side, some in runs.items()}
    for side, result in found.items():
        print(f"    {side}: " + ", ".join(f"{what} {value:.4g}" for what, value in result.items()), file=sys.stderr, flush=True)
    return found


@dataclass(frozen=True, slots=True)
class Measured:
    """All medians, by measurement and side, and what else the page says."""

    rows: Mapping[str, Mapping[str, Result]]
    counted: Result
    manifest_nbytes: int
    many: int
    many_manifest_nbytes: int
    reads: Sequence[tuple[str, Mapping[str, Result]]]


def measure(scale: Scale, place: Path) -> Measured:
    grid, both = (scale.side,) * 3, (OURS, PEER)
    in_process("make", place, "", grid=grid, small=scale.small)
    manifest_nbytes = sum(path.stat().st_size for path in (place / "ours/m").iterdir())
    counted = in_process("counted", place, OURS)
    found = {
        "open_million": in_turn("open_million", place, scale.rounds, both),
        "set_million": in_turn("set_million", place, scale.rounds, (OURS, OURS_FSYNC, PEER), grid=grid),
        "commit_to_million": in_turn("commit_to_million", place, scale.rounds, (OURS, OURS_FSYNC, PEER, PEER_SPLIT)),
        "commit_to_small_array": in_turn("commit_to_small_array", place, scale.rounds, (OURS, OURS_FSYNC, PEER)),
        "write_small_chunks": in_turn("write_small_chunks", place, scale.rounds, (OURS, OURS_FSYNC, PEER), grid=scale.chunks),
    }
    for branches, processes in KINDS:
        arguments = {"commits": scale.commits, "count": scale.writers, "branches": branches, "processes": processes}
        found[f"writers {branches} {processes}"] = in_turn("writers", place, scale.rounds, both, **arguments)
    found["rename_million"] = in_turn("rename_million", place, scale.rounds, both)
    found["least"] = in_turn("least", place, scale.rounds, (OURS,))
    many = int(in_process("make_many", place, OURS, along=scale.side, manifests=scale.manifests)["references"])
    many_nbytes = sum(path.stat().st_size for path in (place / "many/m").iterdir())
    found["open_many"] = in_turn("open_many", place, scale.rounds, (OURS,))
    print("reading", file=sys.stderr, flush=True)
    reading.make(place, scale.read_side)
    return Measured(found, counted, manifest_nbytes, many, many_nbytes, reading.measure(place, scale.rounds, scale.read_side))


def one(name: str, side: str, place: Path, arguments: dict[str, Any]) -> Result:
    """Do one measurement in this process."""
    arguments = {key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()}
    if name == "make":
        sides.make_million(place, arguments["grid"])
        rows.make_small_arrays(place, arguments["small"])
        return {}
    if name == "make_many":
        return {"references": sides.make_many(place / "many", **arguments)}
    if name == "counted":
        return rows.counted(place)
    return rows.ROWS[name](side, place, **arguments)


# -- the page ----------------------------------------------------------------------------------------------------------


def bars_of(found: Measured, scale: Scale) -> list[Bar]:
    """Return all rows of the table, but those of reading."""
    n = scale.side**3
    at = found.rows
    commit, small, set_, opened = at["commit_to_million"], at["commit_to_small_array"], at["set_million"], at["open_million"]
    packed, rename, many = at["write_small_chunks"], at["rename_million"], at["open_many"]
    least = at["least"][OURS]
    nsmall = scale.small[0] * scale.small[1] * scale.small[2]
    bars = [
        Bar(
            f"one chunk committed to {n:,} references: written",
            commit[OURS]["nbytes"] / 1024,
            64,
            "KiB",
            f"{commit[PEER]['nbytes'] / 1024:,.0f} KiB; {commit[PEER_SPLIT]['nbytes'] / 1024:,.0f} with split manifests",
            is_counted=True,
        ),
        Bar(
            "… processor time",
            commit[OURS]["cpu"] * 1e3,
            80,
            "ms",
            f"{_ms(commit[PEER]['cpu'])}; {_ms(commit[PEER_SPLIT]['cpu'])} with split manifests",
        ),
        Bar(
            f"one chunk committed to an array of {nsmall:,} chunks: time over that of icechunk",
            small[OURS]["seconds"] / small[PEER]["seconds"],
            0.5,
            "×",
            _ms(small[PEER]["seconds"]),
            limit=least["local_seconds"] / small[PEER]["seconds"],
        ),
        Bar(
            f"opened and the first of {n:,} chunks read, cold: processor time",
            opened[OURS]["cpu"] * 1e3,
            60,
            "ms",
            _ms(opened[PEER]["cpu"]),
        ),
        Bar(
            "… requests, by URL@main",
            found.counted["open_requests"],
            6,
            "",
            f"by Repository.open and a session {_shown(found.counted['repository_requests'])}: both read the pointer",
            is_counted=True,
        ),
        Bar("… memory, without that of the imports", opened[OURS]["mib"], 200, "MiB", f"{opened[PEER]['mib']:,.0f} MiB"),
        Bar("a reference in manifests", found.manifest_nbytes / n, 6, "bytes", f"{set_[PEER]['nbytes'] / n:.1f} bytes", is_counted=True),
        Bar(
            f"{n:,} references set and committed: time over that of icechunk",
            set_[OURS]["seconds"] / set_[PEER]["seconds"],
            0.5,
            "×",
            f"{set_[PEER]['seconds']:.2f} s",
        ),
    ]
    for branches, processes in KINDS:
        ours, peer = (at[f"writers {branches} {processes}"][side] for side in (OURS, PEER))
        what = (
            f"{scale.writers} {'processes, local' if processes else 'threads, in memory'}, {'a branch each' if branches else 'one branch'}"
        )
        limit = None if processes else 1 / least["seconds"]
        lost = f", of which {peer['lost']:.0f} of {scale.writers * scale.commits} are lost" if peer["lost"] else ""
        bars.append(
            Bar(f"{what}: commits a second", ours["rate"], peer["rate"], "", f"{peer['rate']:.0f}{lost}", is_least=True, limit=limit)
        )
    chunks = packed[OURS]["chunks"]
    return [
        *bars,
        Bar(
            f"{chunks:,.0f} chunks of 4 KiB, in {packed[OURS]['shards']:.0f} shards, in one commit: objects",
            packed[OURS]["objects"],
            packed[OURS]["shards"] + 4,
            "",
            f"{packed[PEER]['objects']:,.0f}",
            is_counted=True,
        ),
        Bar(f"an array of {n:,} chunks renamed", rename[OURS]["move_seconds"] * 1e3, 30, "ms", _ms(rename[PEER]["move_seconds"])),
        Bar("… and committed", rename[OURS]["seconds"] * 1e3, 30, "ms", _ms(rename[PEER]["seconds"])),
        Bar("… manifests written", rename[OURS]["manifests"], 0, "", f"{rename[PEER]['manifests']:.0f}", is_counted=True),
        Bar(f"opened and the first of {found.many:,} chunks read, cold: memory", many[OURS]["mib"], 400, "MiB"),
    ]


def page(found: Measured, bars: Sequence[Bar], scale: Scale, where: str) -> str:
    """Return the tables."""
    counted, at = found.counted, found.rows["least"][OURS]
    packages = versions(["shardstore", "icechunk", "zarr", "pyarrow", "numpy"])
    lines = [
        TABLES,
        "",
        f"{where}; Python {sys.version.partition(' ')[0]}. Medians of {scale.rounds} rounds.",
        "A *bar* is a target; it is held if the measured value reaches it.",
        "",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in packages.items()) + ".",
        "",
        "| what | measured | bar | | icechunk |",
        "|---|--:|--:|---|---|",
        *(bar.line for bar in bars),
        "",
        (
            "The limit is what would remain if shardstore itself took no time. zarr opens the array and sets the chunk, and pyarrow writes "
            f"the draft's two Parquet files: {_ms(at['seconds'])}, all under one interpreter lock. With five files on disk it is "
            f"{_ms(at['local_seconds'])}. icechunk does its part without the lock, and writes no Parquet."
        ),
        "",
        "### All times",
        "",
        "`writers A B`: if A is True, each writer has its own branch; if B is True, writers are processes on a local disk, else threads.",
        "",
        "| | | processor time | time | more |",
        "|---|---|--:|--:|---|",
    ]
    for name, by_side in found.rows.items():
        for side, result in by_side.items():
            rest = ", ".join(f"{key} {_shown(value)}" for key, value in result.items() if key not in ("cpu", "seconds"))
            lines.append(f"| {name} | {side} | {_ms(result['cpu'])} | {_ms(result['seconds'])} | {rest} |")
    lines += [
        "",
        (
            f"Requests of shardstore at {scale.side**3:,} references: {_shown(counted['repository_requests'])} to open and read the first "
            f"chunk ({counted['open_nbytes']:,.0f} bytes); a commit of one chunk writes {_shown(counted['commit_writes'])} objects "
            f"({counted['commit_nbytes']:,.0f} bytes) and reads {_shown(counted['commit_reads'])}. The {found.many:,} references have "
            f"{found.many_manifest_nbytes / 2**20:,.0f} MiB of manifests, and are opened in "
            f"{_ms(found.rows['open_many'][OURS]['cpu'])} of processor time."
        ),
        "",
        "### Reading through a snapshot",
        "",
        (
            f"The same array, {scale.read_side}³ `uint16`, in the same shards, in a plain store and in a snapshot. "
            f"The bar is {MOST_RATIO} × the time."
        ),
        "",
        "| | plain | snapshot | × | processor time: plain | snapshot | × | |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for name, read in found.reads:
        plain, snapshot, ratio = read["plain"], read["snapshot"], read["ratio"]
        verdict = "held" if ratio["seconds"] <= MOST_RATIO else "**not held**"
        lines.append(
            f"| {name} | {_ms(plain['seconds'])} | {_ms(snapshot['seconds'])} | {ratio['seconds']:.2f} "
            f"| {_ms(plain['cpu'])} | {_ms(snapshot['cpu'])} | {ratio['cpu']:.2f} | {verdict} |"
        )
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="everything small, one round")
    parser.add_argument("--directory", help="where to put what is measured")
    parser.add_argument("--page", help="where to write the tables")
    parser.add_argument("--json", help="where to write the results")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        name, side, place, arguments = json.loads(given.one)
        print(json.dumps(one(name, side, Path(place), arguments)))
        return 0
    scale = QUICK if given.quick else Scale(rounds=given.rounds)
    with tempfile.TemporaryDirectory(dir=given.directory) as folder:
        found = measure(scale, Path(folder))
        bars = bars_of(found, scale)
        text = page(found, bars, scale, machine(folder))
    print(text)
    if given.page:
        path = Path(given.page)
        path.write_text((path.read_text() if path.exists() else "").partition(TABLES)[0] + text)
    if given.json:
        counts = [{"what": bar.what, "measured": bar.measured, "bar": bar.bar, "is_held": bar.is_held} for bar in bars if bar.is_counted]
        results = {"rows": found.rows, "counted": found.counted, "counts": counts, "reads": found.reads}
        Path(given.json).write_text(json.dumps(results, indent=1) + "\n")
    reads_held = all(result["ratio"]["seconds"] <= MOST_RATIO for _, result in found.reads)
    return 0 if reads_held and all(bar.is_held for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
