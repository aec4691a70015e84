"""Versioned stores kept for years: a garbage collection beside icechunk's, and a year of commits with hourly expiry and daily collection.

``python benchmarks/snapshot_upkeep.py [--files N] [--kept N] [--commits N] [--rounds N] [--page FILE] [--plot FILE]``. Each collection runs
in a process of its own, on files of its own. The year is one process, whose clock is set on from commit to commit. Ends with 1 if a bar is
not held.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import snapshot_sides as sides
from machine import machine, versions
from snapshot_rows import memory_mib
from snapshot_sides import OURS, PEER

CHUNK = (8, 8, 8)
DAY_SECONDS = 86_400
YEAR_DAYS = 365
KEPT_DAYS = 7
GRACE = timedelta(days=1)
SIDE = 32
"""Chunks along each of two dimensions of the array that changes for a year."""
YEAR_CHUNK = (32, 32)
MOST_MIB = 300


# -- a collection ------------------------------------------------------------------------------------------------------


def make(side: str, place: Path, kept: int, files: int) -> None:
    """Make a repository of ``files`` chunk files, to ``kept`` of which its snapshot refers; the others are of nobody."""
    from shardstore.format.snapshots.file_names import encode_id

    repository = sides.create(side, place)
    session = repository.writable_session("main")
    array = sides.new_array(session, "a", (kept, 1, 1))
    folder = place / ("c" if sides.is_ours(side) else "chunks")
    if sides.is_ours(side):
        refer_to_own_files(session, kept)
        folder.mkdir()
        for number in range(1, kept + 1):
            (folder / encode_id(number.to_bytes(12))).write_bytes(b"x")
    else:
        import numpy as np

        values = np.random.default_rng(0).integers(0, 1 << 16, (1000 * CHUNK[0], *CHUNK[1:]), dtype=sides.DTYPE)
        for start in range(0, kept * CHUNK[0], len(values)):
            end = min(start + len(values), kept * CHUNK[0])
            array[start:end] = values[: end - start]
    session.commit("chunks")
    if sum(1 for _ in os.scandir(folder)) < kept:
        raise RuntimeError(f"{side} stored fewer than {kept} chunk files")
    old = time.time() - 30 * DAY_SECONDS
    for number in range(1 << 40, (1 << 40) + files - kept):
        path = folder / encode_id(number.to_bytes(12))
        path.touch()
        os.utime(path, (old, old))
    os.sync()  # or the first to be measured waits for it


def refer_to_own_files(session: Any, n: int) -> None:
    """Let chunk ``i`` be the first byte of chunk file ``i``."""
    import numpy as np

    from shardstore._sync import run_sync
    from shardstore.format.snapshots.manifest import ChunkRefs

    coords = np.zeros((n, 3), dtype=np.uint64)
    coords[:, 0] = np.arange(n)
    ids = [number.to_bytes(12) for number in range(1, n + 1)]
    ones, zeros = np.ones(n, dtype=np.uint64), np.zeros(n, dtype=np.uint64)
    run_sync(sides._set(session, session._core.array("a"), ChunkRefs(coords, np.arange(n, dtype=np.int32), zeros, ones, ids)))


def collect(side: str, place: Path) -> dict[str, float]:
    """Collect the garbage; return times, memory, and what was removed."""
    sides.import_everything(side)
    repository = sides.opened(side, place)
    before = memory_mib("VmRSS")

    def collected(*, dry_run: bool) -> tuple[int, float, float]:
        cpu, wall = time.process_time(), time.perf_counter()
        if sides.is_ours(side):
            removed = sum(repository.garbage_collect(timedelta(), dry_run=dry_run).removed.values())
        else:
            removed = repository.garbage_collect(datetime.now(UTC) - timedelta(days=1), dry_run=dry_run).chunks_deleted
        return removed, time.perf_counter() - wall, time.process_time() - cpu

    _, looking, _ = collected(dry_run=True)
    removed, seconds, cpu = collected(dry_run=False)
    return {"seconds": seconds, "cpu": cpu, "looking": looking, "mib": memory_mib("VmHWM") - before, "removed": removed}


def in_process(name: str, *arguments: Any) -> dict[str, float]:
    command = [sys.executable, "-W", "ignore", __file__, "--one", json.dumps([name, *arguments])]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name} {arguments} ended with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def collections(place: Path, kept: int, files: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return the medians of all rounds, by side."""
    runs: dict[str, list[dict[str, float]]] = {OURS: [], PEER: []}
    for number in range(rounds):
        for side in (OURS, PEER) if number % 2 == 0 else (PEER, OURS):
            root = place / side
            in_process("make", side, str(root), kept, files)
            runs[side].append(in_process("collect", side, str(root)))
            print(f"collection, {side}: {runs[side][-1]}", file=sys.stderr, flush=True)
            shutil.rmtree(root)
    return {side: {what: statistics.median(run[what] for run in some) for what in some[0]} for side, some in runs.items()}


# -- a year ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Day:
    """What one day was like, in its end."""

    commit_ms: float
    """The median of its commits."""
    open_ms: float
    """Opened and a chunk read, in a new repository object."""
    objects: int
    nbytes: int
    snapshots: int
    collection_ms: float


def year(place: Path, commits: int) -> list[Day]:
    """Commit a chunk again and again; let what is older than a week expire every hour, and collect every day."""
    import numpy as np
    import zarr

    from shardstore.snapshots import Repository

    now = time.time()  # later than that of nobody, since each snapshot is later than the one before
    repository = Repository.create(place, fsync=False)
    repository._store.clock = lambda: now
    shape = tuple(SIDE * n for n in YEAR_CHUNK)
    with repository.transaction(message="everything") as store:
        array = zarr.create_array(store, name="a", shape=shape, chunks=YEAR_CHUNK, dtype="u2", compressors=None)
        array[...] = 1
    step = YEAR_DAYS * DAY_SECONDS / commits
    random = np.random.default_rng(0)
    days: list[Day] = []
    times: list[float] = []
    last = now
    for number in range(commits):
        before, now = now, now + step
        at = tuple(int(one) for one in random.integers(0, SIDE, 2))
        began = time.perf_counter()
        session = repository.writable_session()
        one = zarr.open_array(session.store, path="a", mode="r+")
        one[tuple(slice(c * n, (c + 1) * n) for c, n in zip(at, YEAR_CHUNK, strict=True))] = number % 60_000
        session.commit(f"commit {number}")
        times.append(time.perf_counter() - began)
        if now // 3600 > before // 3600:
            repository.expire_snapshots(datetime.fromtimestamp(now, UTC) - timedelta(days=KEPT_DAYS))
        if now - last >= DAY_SECONDS or number == commits - 1:
            last = now
            began = time.perf_counter()
            repository.garbage_collect(GRACE)
            days.append(_day(place, times, (time.perf_counter() - began) * 1e3))
            times = []
            if len(days) % 30 == 0:
                print(f"day {len(days)}: {days[-1]}", file=sys.stderr, flush=True)
    if not repository.verify().is_sound:
        raise RuntimeError("after a year, the repository is not sound")
    return days


def _day(place: Path, commits: Sequence[float], collection_ms: float) -> Day:
    import zarr

    from shardstore.snapshots import Repository

    opens = []
    for _ in range(3):
        began = time.perf_counter()
        store = Repository.open(place, fsync=False).readonly_session().store
        _ = zarr.open_array(store, path="a", mode="r")[0, 0]
        opens.append(time.perf_counter() - began)
    sizes = [path.stat().st_size for path in place.rglob("*") if path.is_file()]
    snapshots = len(Repository.open(place, fsync=False)._now().state.snapshots)
    return Day(statistics.median(commits) * 1e3, min(opens) * 1e3, len(sizes), sum(sizes), snapshots, collection_ms)


def draw(days: Sequence[Day], path: Path) -> None:
    """Draw the year as an SVG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    shown = [
        ("a commit, ms", [day.commit_ms for day in days]),
        ("opened and a chunk read, ms", [day.open_ms for day in days]),
        ("objects", [float(day.objects) for day in days]),
        ("MiB", [day.nbytes / 2**20 for day in days]),
        ("snapshots", [float(day.snapshots) for day in days]),
        ("a collection, ms", [day.collection_ms for day in days]),
    ]
    with rc_context({"svg.hashsalt": "shardstore", "svg.fonttype": "none"}):
        figure = Figure(figsize=(13.5, 6), layout="constrained")
        for number, (title, values) in enumerate(shown):
            axes = figure.add_subplot(2, 3, number + 1)
            axes.plot(range(1, len(values) + 1), values, color="#0b6e4f", linewidth=1)
            axes.set_ylim(0, max(values) * 1.2)
            axes.set_title(title, fontsize=10)
            axes.set_xlabel("day", fontsize=8)
            axes.tick_params(labelsize=8)
            axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, format="svg", metadata={"Date": None})


# -- the page ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table."""

    what: str
    measured: float
    bar: float
    unit: str
    more: str = ""

    @property
    def is_held(self) -> bool:
        return self.measured <= self.bar

    @property
    def line(self) -> str:
        verdict = "held" if self.is_held else "**not held**"
        return f"| {self.what} | {self.measured:,.2f} {self.unit} | ≤ {self.bar:,.2f} {self.unit} | {verdict} | {self.more} |"


def rows(found: dict[str, dict[str, float]], days: Sequence[Day], files: int) -> list[Row]:
    """Return the table. What is bounded: the last quarter of the year has no more than the second one, but for a tenth."""
    ours, peer = found[OURS], found[PEER]
    quarter = len(days) // 4
    second, last = days[quarter : 2 * quarter], days[-quarter:]
    table = [
        Row(
            f"a collection of {files:,} files, of which {ours['removed']:,.0f} go: time over icechunk's, listing included",
            ours["seconds"] / peer["seconds"],
            1,
            "×",
            f"{ours['seconds']:.1f} s; icechunk {peer['seconds']:.1f} s",
        ),
        Row(
            "… without what a dry run takes, which lists and compares",
            (ours["seconds"] - ours["looking"]) / (peer["seconds"] - peer["looking"]),
            1,
            "×",
            f"dry runs {ours['looking']:.1f} s; icechunk {peer['looking']:.1f} s",
        ),
        Row("… processor time over icechunk's", ours["cpu"] / peer["cpu"], 1, "×", f"{ours['cpu']:.1f} s; icechunk {peer['cpu']:.1f} s"),
        Row("… memory above that after the imports", ours["mib"], MOST_MIB, "MiB", f"icechunk {peer['mib']:,.0f} MiB"),
    ]
    for what, get in (
        ("a commit", lambda day: day.commit_ms),
        ("opened and a chunk read", lambda day: day.open_ms),
        ("a collection", lambda day: day.collection_ms),
        ("objects", lambda day: day.objects),
        ("bytes", lambda day: day.nbytes),
        ("snapshots", lambda day: day.snapshots),
    ):
        before, after = (statistics.median(map(get, some)) for some in (second, last))
        unit = "" if what in ("objects", "bytes", "snapshots") else " ms"
        table.append(Row(f"a year: {what}, last quarter by second", after / before, 1.1, "×", f"{before:,.1f} → {after:,.1f}{unit}"))
    return table


def page(found: dict[str, dict[str, float]], days: Sequence[Day], table: Sequence[Row], given: argparse.Namespace, plot: str) -> str:
    """Return the page."""
    packages = versions(["shardstore", "icechunk", "zarr", "pyarrow", "numpy"])
    return "\n".join(
        [
            "# A versioned store, kept for a year",
            "",
            "Written by `make bench-upkeep`. There are two measurements:",
            "",
            "- A garbage collection, compared with that of Icechunk on the same number of files. Each runs in a process of its own. The",
            f"  table has the medians (rounds: {given.rounds}).",
            f"- A year of {given.commits:,} commits, each of one chunk of {SIDE * SIDE:,}. Every hour, snapshots older than {KEPT_DAYS}",
            "  days expire. Every day, garbage older than a day is collected. The clock is set forward from commit to commit.",
            "",
            f"{machine(given.directory)}; Python {sys.version.partition(' ')[0]}.",
            "",
            "Versions: " + ", ".join(f"{name} {version}" for name, version in packages.items()) + ".",
            "",
            "| what | measured | bar | | more |",
            "|---|--:|--:|---|---|",
            *(row.line for row in table),
            "",
            f"![A year: commits, opening, objects, bytes, snapshots and collections, day by day]({plot})",
            "",
            "The year is bounded if the last quarter has at most a tenth more than the second one. The first quarter is left out: each",
            "changed chunk gets a file of its own, until all chunks have one. (`repack` would put them together again.)",
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--kept", type=int, default=50_000)
    parser.add_argument("--commits", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", help="where to put what is measured")
    parser.add_argument("--page", help="where to write the page")
    parser.add_argument("--plot", help="where to write the picture of the year, an SVG")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        name, side, place, *more = json.loads(given.one)
        if name == "collect":
            print(json.dumps(collect(side, Path(place))))
        else:
            make(side, Path(place), *more)
            print("{}")
        return 0
    with tempfile.TemporaryDirectory(dir=given.directory) as folder:
        days = year(Path(folder) / "year", given.commits)
        found = collections(Path(folder), given.kept, given.files, given.rounds)
    table = rows(found, days, given.files)
    for row in table:
        print(row.line)
    if given.plot:
        draw(days, Path(given.plot))
    if given.page:
        plot = os.path.relpath(given.plot, Path(given.page).parent) if given.plot else ""
        Path(given.page).write_text(page(found, days, table, given, plot))
    return 0 if all(row.is_held for row in table) else 1


if __name__ == "__main__":
    sys.exit(main())
