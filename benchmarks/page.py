"""The page of results: ``python benchmarks/page.py RESULTS.json … [--output docs/evidence/benchmarks.md]``, with its pictures beside it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bars import other_version, verdicts
from plots import draw
from results import PER_OPERATION, SHARDSTORE, Missing, Run
from words import count, duration, nbytes_text, ratio

_STORAGES = {
    "local": "A local disk",
    "latency": "Over 20 ms of latency",
    "s3": "A server of S3 on the same machine",
}
_OPENING = """\
# Benchmarks

This page is written by `benchmarks/page.py` from what runs of `benchmarks/bench.py` measured. Nothing in it is edited by hand. To
repeat it:

```sh
make bench                                # some minutes; make bench-full is larger and has more rounds
make bench PYTHON=python3.13              # the same beside a newer zarr-python
```

## How it is measured

- Every turn of a contender is a process of its own, forked from one that has imported the Python packages and done nothing else.
  Rounds are interleaved: one turn of everybody, then the next. Times are medians; "× shardstore" is the median over the rounds of the
  ratio within a round, above 1 where shardstore is faster.
- Nobody flushes to disk, but for the contenders called durable, which are `fsync=True`, shardstore's default. Files are in the page
  cache: each turn reads them before it begins.
- What contenders read must be equal, and what they wrote is read back by plain zarr-python: other values are an error of the run.
- *Requests* and bytes are the kernel's on a local disk (calls that read and write; memory maps are not seen), the server's on S3, and
  those of the model over latency. *Amplification* is bytes moved over bytes asked for: of reads the values selected, which compression
  may bring below 1, of writes the encoded chunks. *Memory* is what the peak adds to what the process had before.
- *Over 20 ms of latency* every request of shardstore and zarr-python waits 20 ms inside the process, in a wrapper of the storage, and
  then goes to local files: at most 64 at once, each library asking for as many as it does by default. tensorstore cannot be wrapped: it
  reads the same files from an HTTP server on this machine that waits as long, so it pays for HTTP besides. The model passes for AWS:
  requests of shardstore are merged with the gap that is its default there, and the model tells when it stored each object, a day before,
  as AWS does.
- *S3* is moto in a process of its own, one request at a time, made to honour conditions on uploads of several parts as AWS does: it
  shares the processors with everybody, so requests and bytes mean more than seconds there.
- *Bytes alone*, *bytes and codecs*, *requests alone* and *requests and codecs* are no libraries but limits: the same reads, writes and
  codec calls in the leanest plain Python (`benchmarks/leanest.py`), with two threads, without any check, lock or metadata.
- What was read of shards whose index was not known counts only when the array's document has been looked at behind it: between the two
  the array might have been made anew in another form. That goes along with the chunks. Where shards are read whole it is one round more
  than *requests alone* take, but for shards that AWS stored a minute or more before the document was looked at first.
- *zarr-python's objects alone* is one more limit: the same selections with a codec pipeline that does nothing. What is left is what
  zarr-python does for each chunk before shardstore, or any other store, is asked.
- What could not take part is named below each table, and so is what failed.
"""


def page(runs: Sequence[tuple[Run, dict[str, str]]]) -> str:
    """The whole page, of runs with the links to their pictures by storage."""
    lines = [_OPENING]
    for run, pictures in runs:
        lines += [f"## {run.name}", "", *_head(run), ""]
        lines += ["### Bars", "", "| | bar | measured |", "|---|---|---|"]
        lines += [f"| {verdict.status} | {verdict.bar} | {verdict.measured} |" for verdict in verdicts(run)]
        lines += ["", f"Not among these: {other_version(run)}.", ""]
        lines += ["### Where a peer is faster", "", *_faster_peers(run), ""]
        for storage, title in _STORAGES.items():
            if storage in pictures:
                lines += [f"### {title}", "", f"![Seconds of each contender]({pictures[storage]})", ""]
                for cell in run.cells:
                    if cell["storage"] == storage:
                        lines += [*_table(run, cell), ""]
    return "\n".join(lines).rstrip() + "\n"


def _head(run: Run) -> list[str]:
    head = run.head
    versions = ", ".join(f"{name} {version}" for name, version in head["versions"].items())
    load = f"{head['load_before']:.1f} before and {head['load_after']:.1f} after, on {head['cores']} processors"
    busy = max(head["load_before"], head["load_after"] - head["cores"]) > head["cores"] / 2  # the run itself is a load
    warning = " **The machine was busy with other work: times, and ratios of them, are not to be trusted.**" if busy else ""
    return [
        f"- {head['machine']}; {head['date']}",
        f"- Python {head['python']}, {versions}",
        f"- scale `{head['scale']}`, as `{head['command']}`",
        f"- load average {load}.{warning}",
    ]


# -- one workload ------------------------------------------------------------------------------------------------------


def _table(run: Run, cell: dict[str, Any]) -> list[str]:
    workload, storage = cell["workload"], cell["storage"]
    lines = [f"#### {cell['title']}", ""]
    rows = []
    notes = []
    for name, entry in cell["entries"].items():
        if entry["error"]:
            notes.append(f"- {name} **failed**: `{_one_line(entry['error'])}`")
        elif entry["left_out"]:
            if "limit of other storages" not in entry["left_out"]:
                notes.append(f"- {name} is left out: {entry['left_out']}")
        elif entry["rounds"]:
            rows.append(f"| {' | '.join([name, *_cells(run, workload, storage, name)])} |")
    if rows:
        lines += ["| | time | × shardstore | CPU | requests | read | written | amplification | memory |", "|---" * 9 + "|", *rows]
    return [*lines, *([""] if rows and notes else []), *notes]


def _one_line(text: str) -> str:
    return " ".join(text.replace("`", "'").split())[:160]


def _cells(run: Run, workload: str, storage: str, name: str) -> list[str]:
    def said(figure: str, words: Any) -> str:
        try:
            return str(words(run.median(workload, storage, name, figure)))
        except Missing:
            return "–"

    try:
        per_operation = workload in PER_OPERATION
        beside = ratio(run.ratio(workload, storage, name, SHARDSTORE, per_operation=per_operation)) if name != SHARDSTORE else "1"
    except Missing:
        beside = "–"
    time = said("seconds", duration)
    if workload in ("single chunks, cold", "single chunks, warm"):
        time += f"; p50 {said('p50_seconds', duration)}"
    elif workload == "batches of chunks":
        time += f"; {said('p50_seconds', duration)} a chunk"
    elif workload in PER_OPERATION:
        time += f" for {said('operations', count)}"
    return [
        time,
        beside,
        said("cpu_seconds", duration),
        said("requests", count),
        said("bytes_read", nbytes_text),
        said("bytes_written", nbytes_text),
        _amplification(run, workload, storage, name),
        _memory(run, workload, storage, name),
    ]


def _amplification(run: Run, workload: str, storage: str, name: str) -> str:
    try:
        moved = max(run.median(workload, storage, name, "bytes_read"), run.median(workload, storage, name, "bytes_written"))
        asked = run.median(workload, storage, name, "asked_nbytes")
    except Missing:
        return "–"
    return ratio(moved / asked) if asked else "–"


def _memory(run: Run, workload: str, storage: str, name: str) -> str:
    try:
        peak, base = (run.median(workload, storage, name, figure) for figure in ("peak_nbytes", "base_nbytes"))
    except Missing:
        return "–"
    return nbytes_text(max(peak - base, 0))


# -- the honest word ---------------------------------------------------------------------------------------------------

# What profiles of shardstore show of the same work; no word where none was taken.
_WHY = {
    ("tensorstore", "full read"): "it decodes in C++ into the array, without Python's lock and without objects for each chunk",
    ("tensorstore", "planes"): "it decodes in C++; before shardstore is asked, zarr-python builds some objects for each chunk",
    ("tensorstore", "boxes"): "it decodes in C++; before shardstore is asked, zarr-python builds some objects for each chunk",
    ("tensorstore", "full write"): "it encodes in C++, without Python's lock and without objects for each chunk",
    ("tensorstore", "single chunks"): "a read of shardstore crosses from the caller's event loop to its own, and to a thread that reads",
    ("zarr-python, zarrs pipeline", ""): "it reads, decodes and encodes in Rust, without Python's lock",
    ("zarr-python, unsharded", ""): "a chunk is an object of its own, without an index to read and without a shard to guard",
}


def _faster_peers(run: Run) -> Iterator[str]:
    found = False
    for cell in run.cells:
        for name in cell["entries"]:
            if not name.startswith(("zarr-python", "tensorstore")):
                continue
            try:
                factor = run.ratio(cell["workload"], cell["storage"], SHARDSTORE, name, per_operation=cell["workload"] in PER_OPERATION)
            except (Missing, ZeroDivisionError):
                continue
            if factor > 1.05:
                found = True
                yield f"- {cell['storage']}, {cell['workload']}: {name} by {ratio(factor)}{_why(name, cell['workload'])}"
    if not found:
        yield "Nowhere in this run."


def _why(name: str, workload: str) -> str:
    for (peer, work), reason in _WHY.items():
        if name.startswith(peer) and workload.startswith(work):
            return f": {reason}"
    return ""


# -- the command -------------------------------------------------------------------------------------------------------


def main(given: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", nargs="+", type=Path, help="what runs of benchmarks/bench.py wrote, one for each Python")
    parser.add_argument("--output", type=Path, default=Path("docs/evidence/benchmarks.md"))
    arguments = parser.parse_args(given)
    runs = []
    for path in arguments.results:
        run = Run.load(path)
        pictures = {}
        for storage in _STORAGES:
            picture = Path("benchmarks", f"{storage}-zarr-{run.head['versions']['zarr']}.svg")
            if draw(run, storage, arguments.output.parent / picture):
                pictures[storage] = picture.as_posix()
        runs.append((run, pictures))
    arguments.output.write_text(page(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
