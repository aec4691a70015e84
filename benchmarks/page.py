"""The pages of results: ``python benchmarks/page.py RESULTS.json … [--output docs/evidence]`` writes two.

``benchmarks.md`` says what was measured, and the main numbers as ratios, with pictures in ``benchmarks/`` beside it;
``benchmark-tables.md`` has every bar and every table. With ``--screen CHECK.json``, and no other results, only what the first page begins
with is written again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bars import APPEND, FUSED, LOCK_CODECS, PROCESSOR, TENSORSTORE, TIME, WITHOUT_KERNEL, ZARR, ZARRS, Row, other_version, rows, verdicts
from plots import draw
from results import PER_OPERATION, SHARDSTORE, Missing, Run
from words import count, duration, nbytes_text, ratio

RESULTS_PAGE = "benchmarks.md"
TABLES_PAGE = "benchmark-tables.md"
PICTURES = "benchmarks"

_STORAGES = {
    "local": "A local disk",
    "latency": "Over 20 ms of latency",
    "s3": "A server of S3 on the same machine",
    "far s3": "A server of S3 whose answers take 20 ms longer",
}
_IN_HEADS = {"local": "local", "latency": "latency", "s3": "S3", "far s3": "far S3"}
_MAIN_PEERS = (ZARR, FUSED, TENSORSTORE)
_OPENING = f"""\
# Benchmarks

How long reading and writing through shardstore takes, compared with zarr-python, tensorstore, icechunk and the limits of the machine. This
page has the main numbers; [Benchmark tables]({TABLES_PAGE}) has all of them. `benchmarks/page.py` writes both pages from the results of
`benchmarks/bench.py`. No number in them is edited by hand.
"""
_SCREEN = """\
## On one screen

Each number is a time divided by that of tensorstore, or of the reference that its line names. At 0.5 it takes half as long; above 1, in
bold, it takes longer. The *bar* is the target that was set for the number of shardstore; "processor" means that it is for processor time.

The *limit* is the time that no program on this machine can avoid, as a percentage of shardstore's time. Its kind is named: the codec calls
for the same chunks with the libraries of numcodecs, the copies of raw chunks, the requests, or reading and parsing the documents. It may be
above 100 %: where only a part of a blosc chunk is needed, only that is decoded, and the kernel may call a newer library.
"""
_SCREEN_METHOD = """\
Arrays are read through zarr, from files in the page cache, with shard indices that shardstore has read before. They are uint16 in chunks of
64 KiB and shards of 4 MiB. An array has 32 MiB, or 128 MiB where planes are read, each by one read. Boxes have 100³ elements. The libraries
take turns in one process, milliseconds apart, in another order in each round. Numbers are medians of the ratios within a round. tensorstore
has no cache pool here, which is its default. On S3 its best configuration is taken, with indices read before.
"""
_LOCK_METHOD = """\
The next table shows for what part of a full read Python's global interpreter lock (GIL) is held. No other thread of Python runs then. A
second thread counts in pure Python on another processor. The lock was held when this thread neither ran nor waited for a processor. The
read has one processor. The time for which the lock was held is divided by the time of a read without the second thread, so it may exceed
100 %.
"""
_PUBLIC_METHOD = """\
Our own code repeats the workloads of the public [zarrs/zarr_benchmarks](https://github.com/zarrs/zarr_benchmarks), with arrays of the same
form: uint16 in chunks of 256³ elements, raw or with zstd, or in shards of 256³ with chunks of 64³ and zstd. *By chunk* reads blocks of 256³
elements, one or eight at once. A *round trip* also writes each block into a new array. Cells are the time with files in the page cache, and
without (cold). The libraries take turns in one process, in another order in each round. Arrays are opened before each turn, so only their
documents are known. The scale `full` has arrays of 1,024³ elements, as in the public benchmark; `quick` has 512³.
"""
_MEASURED = """\
## What was measured

[Packing what exists](../howto/pack.md) has the cost of packing, and [Where the shards lie](../howto/storages.md#transports) that of s3fs,
gcsfs and obstore. [Compared with zarr-python and tensorstore](safety.md) shows whether chunks are lost.

In the tables below, every contender does the same work on the same data. It reads whole arrays, planes, boxes and single chunks, writes
whole arrays and parts of shards, lists chunks and opens a hierarchy. It does so in three places:

- *A local disk.* Files are in the page cache: each turn reads them before it begins.
- *Over 20 ms of latency.* Every request of shardstore and zarr-python waits 20 ms inside the process, in a wrapper of the storage, and
  then goes to local files. At most 64 requests run at once; each library sends as many as it does by default. The wrapper behaves like AWS:
  shardstore merges requests with its default gap for AWS, and each object has the date of the day before.
- *A server of S3 on the same machine.* The server is moto, in a separate process. It answers one request at a time, and was changed to
  honour conditions on uploads of several parts, as AWS does.

A *contender* is a library in one configuration. Each turn of a contender is a new process, forked from one that has only imported the
Python packages. In each round, every contender has one turn. No contender flushes to disk, except those called durable. They have
`fsync=True`, which is the default of shardstore. All contenders must read equal values, and plain zarr-python reads back what they wrote;
other values are an error of the run.
"""
_MAIN_NUMBERS = """\
Each number is the time of a peer divided by the time of shardstore. Above 1 shardstore is faster; below 1, in bold, the peer is faster. It
is the median over the rounds of the ratio within a round. In the rows with `strategy="append"` it is the ratio of the two medians. A dash
means that there is no such measurement.

A *bar* is a target for such a ratio, for a number of requests or for a number of bytes. It is *held* if the measured value reaches it.
"""
_CLOSING = f"""\
## Why a peer is faster

[Benchmark tables]({TABLES_PAGE}) lists every place where a peer is faster by more than 5 %. Profiles of the same work show these reasons:

- tensorstore decodes and encodes in C++, without Python's lock and without objects for each chunk. zarr-python builds some objects for each
  chunk before shardstore is asked to write, or to read from other places than local files.
- In shardstore, a read of a single chunk whose index is not known passes through two event loops and a thread: the caller's loop, that of
  shardstore, and a thread that reads.
- The pipeline of zarrs reads, decodes and encodes in Rust, without Python's lock.
- In an array without shards a chunk is an object of its own, without an index to read and without a shard to guard.

## How to run it again

```sh
make bench-check                          # measures the first tables and checks their bars, in a quarter of an hour
make bench-screen                         # measures the first tables and writes them into the page
make bench                                # everything, half an hour; make bench-full is larger and has more rounds
make bench PYTHON=python3.13              # the same, compared with a newer zarr-python
make bench-page                           # writes these two pages, from the results in build/bench
```

## Limits

- Ratios on one machine differ from those on another. If other work ran during a run, its section says so, and its times are not reliable.
- The scale `quick` has smaller arrays than `full`, and three rounds. It has one round on S3, and for updates of a large shard.
- The latency model has no limit of bandwidth and no slow requests. tensorstore cannot be wrapped. It reads the same files from an HTTP
  server on this machine that waits as long, so its times include the cost of HTTP.
- The S3 server shares the processors with all programs, so requests and bytes are more reliable there than seconds.
- After an unknown index was read, shardstore checks the array's document, because the array might have been created again in another form.
  Usually this request runs together with those for chunks. Where shards are read whole, it is one round more than the requests alone take.
  It is not needed for shards that AWS stored a minute or more before the document was first read.
"""
_TABLES_OPENING = f"""\
# Benchmark tables

Every bar (target) and every table from which the numbers of [Benchmarks]({RESULTS_PAGE}) come. That page says how they were measured.
`benchmarks/page.py` writes this page. No number in it is edited by hand.

- Times are medians. "× shardstore" is the median over the rounds of the ratio within a round; above 1 shardstore is faster.
- *Requests* and bytes are counted by the operating system on a local disk (calls that read and write; memory maps are not seen), by the
  server on S3, and by the wrapper of the storage over latency.
- *Amplification* is bytes moved divided by bytes requested. For reads these are the bytes of the selected values, so compression may bring
  it below 1. For writes they are the bytes of the encoded chunks. *Memory* is the peak of the process minus what it had before.
- *Bytes alone*, *bytes and codecs*, *requests alone* and *requests and codecs* are not libraries but limits. They make the same reads,
  writes and codec calls in minimal plain Python (`benchmarks/leanest.py`), with two threads, without any check, lock or metadata.
- *codecs alone* and *a GET each* are limits too: the calls of the codecs on chunks in memory, in one thread, and bare requests.
- Contenders that could not take part, and those that failed, are named below each table.
"""


def results_page(runs: Sequence[tuple[Run, dict[str, str]]]) -> str:
    """What a reader wants first, of runs with the links to their pictures by storage."""
    newest = max((run for run, _ in runs), key=lambda run: run.zarr_version, default=None)
    lines = [first_part(newest) + _MEASURED, "## Results", "", _MAIN_NUMBERS]
    for run, pictures in runs:
        lines += [f"### {run.name}", "", *_head(run), "", *_main_numbers(run), "", *_missed(run), ""]
        for storage, title in _STORAGES.items():
            if storage in pictures:
                lines += [f"![{title}: seconds of each contender]({pictures[storage]})", ""]
    return "\n".join([*lines, _CLOSING]).rstrip() + "\n"


def first_part(run: Run | None) -> str:
    """The tables of ratios, which ``make bench-check`` measures as well, up to what says how the rest was measured."""
    lines = [_OPENING, _SCREEN, *([_SCREEN_METHOD, _LOCK_METHOD] if run is None else [])]
    if run is not None:
        lines += [*_screen(run), "", _SCREEN_METHOD, *_head(run), "", _LOCK_METHOD, *_locks(run), ""]
    lines += ["## The workloads of zarrs/zarr_benchmarks", "", _PUBLIC_METHOD]
    if run is not None:
        lines += [*_public(run), ""]
    return "\n".join([*lines, ""])


def tables_page(runs: Sequence[Run]) -> str:
    """All that the page of results stands on."""
    lines = [_TABLES_OPENING]
    for run in runs:
        lines += [f"## {run.name}", "", *_head(run), ""]
        lines += ["### Bars", "", "| | bar | measured |", "|---|---|---|"]
        lines += [f"| {verdict.status} | {verdict.bar} | {verdict.measured} |" for verdict in verdicts(run)]
        lines += ["", f"Not among these: {other_version(run)}.", ""]
        lines += ["### Where a peer is faster", "", *_faster_peers(run), ""]
        for storage, title in _STORAGES.items():
            tables = [line for cell in run.cells if cell["storage"] == storage for line in (*_table(run, cell), "")]
            lines += [f"### {title}", "", *tables] if tables else []
    return "\n".join(lines).rstrip() + "\n"


def _head(run: Run) -> list[str]:
    head = run.head
    versions = ", ".join(f"{name} {version}" for name, version in head["versions"].items())
    load = f"{head['load_before']:.1f} before and {head['load_after']:.1f} after, on {head['cores']} processors"
    busy = max(head["load_before"], head["load_after"] - head["cores"]) > head["cores"] / 2  # the run itself is a load
    warning = " **The machine ran other work too: times are too long, and ratios of them less exact.**" if busy else ""
    return [
        f"- {head['machine']}; {head['date']}",
        f"- Python {head['python']}, {versions}",
        f"- scale `{head['scale']}`, as `{head['command']}`",
        f"- load average {load}.{warning}",
    ]


# -- one screen --------------------------------------------------------------------------------------------------------


def _screen(run: Run) -> Iterator[str]:
    """The ratios of the bars, what bounds them, and the same of other peers."""
    others = (ZARRS, FUSED, ZARR)
    yield f"| | shardstore | its processor time | bar | limit | {' | '.join(others)} |"
    yield "|---" * (5 + len(others)) + "|"
    for row in rows(run):
        cells = [_over_reference(run, row, figure, row.face) for figure in (TIME, PROCESSOR)]
        if set(cells) == {"–"}:
            continue
        bar = f"≤ {row.bound:.3g}{'' if TIME in row.figures else ', processor'}"
        reference = "" if row.peers == (TENSORSTORE,) else f", × {_reference(row)}"
        peers = [_over_reference(run, row, TIME, peer) if peer not in row.peers else "1" for peer in others]
        yield f"| {' | '.join([row.title + reference, *cells, bar, _limit(run, row), *peers])} |"


def _reference(row: Row) -> str:
    return "zarr-python" if row.peers == (ZARR,) else "the best of the peers" if len(row.peers) > 2 else "tensorstore with its cache"


def _over_reference(run: Run, row: Row, figure: str, contender: str) -> str:
    try:
        value = row.ratio(run, figure, contender)
    except (Missing, ZeroDivisionError):
        return "–"
    return f"**{value:.2f}**" if value > 1 else f"{value:.2f}"


def _limit(run: Run, row: Row) -> str:
    try:
        return f"{row.bounded_by}, {row.limit_share(run):.0%}"
    except (Missing, ZeroDivisionError):
        return row.bounded_by


def _locks(run: Run) -> Iterator[str]:
    names = (SHARDSTORE, WITHOUT_KERNEL, TENSORSTORE, FUSED, ZARR)
    yield f"| | {' | '.join(names)} |"
    yield "|---" * (1 + len(names)) + "|"
    for codec in LOCK_CODECS:
        cells = [_said(run, f"{codec}: lock", name, "lock_share", "{:.1%}".format) for name in names]
        if set(cells) != {"–"}:
            yield f"| {codec} | {' | '.join(cells)} |"


def _said(run: Run, workload: str, contender: str, figure: str, words: Callable[[float], str]) -> str:
    try:
        return words(run.median(workload, "local", contender, figure))
    except Missing:
        return "–"


def _public(run: Run) -> Iterator[str]:
    names = (SHARDSTORE, TENSORSTORE, ZARRS, FUSED, ZARR)
    yield f"| | {' | '.join(names)} |"
    yield "|---" * (1 + len(names)) + "|"
    for cell in run.cells:
        workload, is_warm = cell["workload"].removesuffix(", warm"), cell["workload"].endswith(", warm")
        if workload.startswith("public: ") and is_warm:
            cells = [
                f"{_said(run, f'{workload}, warm', name, TIME, duration)} (cold {_said(run, f'{workload}, cold', name, TIME, duration)})"
                for name in names
            ]
            yield f"| {cell['title'].removesuffix(', warm')} | {' | '.join(cells)} |"


# -- the main numbers --------------------------------------------------------------------------------------------------


def _main_numbers(run: Run) -> list[str]:
    """One line for each workload, and one for its updates in place."""
    columns = [(peer, storage) for peer in _MAIN_PEERS for storage in _STORAGES if _took_part(run, peer, storage)]
    lines = [f"| | {' | '.join(f'{peer}, {_IN_HEADS[storage]}' for peer, storage in columns)} |", "|---" * (len(columns) + 1) + "|"]
    for workload, title in {cell["workload"]: cell["title"] for cell in run.plain_cells}.items():
        for face, addition in ((SHARDSTORE, ""), (APPEND, ', with `strategy="append"`')):
            cells = [_times_as_long(run, workload, storage, peer, face) for peer, storage in columns]
            if set(cells) - {"–"}:
                lines.append(f"| {title}{addition} | {' | '.join(cells)} |")
    return lines


def _took_part(run: Run, peer: str, storage: str) -> bool:
    entries = [cell["entries"].get(peer) for cell in run.plain_cells if cell["storage"] == storage]
    return any(entry is not None and entry["rounds"] and not entry["error"] for entry in entries)


def _times_as_long(run: Run, workload: str, storage: str, peer: str, face: str) -> str:
    per_operation = workload in PER_OPERATION
    try:
        if face == SHARDSTORE:
            value = run.ratio(workload, storage, peer, face, per_operation=per_operation)
        else:
            mine, other = (run.seconds(workload, storage, name, per_operation=per_operation) for name in (face, peer))
            value = other / mine
    except (Missing, ZeroDivisionError):
        return "–"
    return f"**{ratio(value)}**" if value < 1 else ratio(value)


def _missed(run: Run) -> Iterator[str]:
    """The bars that were not held."""
    judged = [verdict for verdict in verdicts(run) if verdict.status != "not measured"]
    missed = [verdict for verdict in judged if verdict.status == "NOT HELD"]
    yield f"{len(judged) - len(missed)} of {len(judged)} bars were held.{' These were not:' if missed else ''}"
    if missed:
        yield from ("", *(f"- {verdict.bar}: {verdict.measured}" for verdict in missed))


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
    ("tensorstore", "planes"): "it decodes in C++, without objects for each chunk",
    ("tensorstore", "boxes"): "it decodes in C++, without objects for each chunk",
    ("tensorstore", "full write"): "it encodes in C++, without Python's lock and without objects for each chunk",
    ("tensorstore", "single chunks"): "a read of shardstore passes through the caller's event loop, its own, and a thread that reads",
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
    parser.add_argument("results", nargs="*", type=Path, help="what runs of benchmarks/bench.py wrote, one for each Python")
    parser.add_argument("--screen", type=Path, metavar="CHECK.json", help="what benchmarks/check.py wrote: only the first part is written")
    parser.add_argument("--output", type=Path, default=Path("docs/evidence"), help="the directory of both pages")
    arguments = parser.parse_args(given)
    page = arguments.output / RESULTS_PAGE
    if arguments.screen is not None:
        _, marker, rest = page.read_text().partition(_MEASURED)
        page.write_text(first_part(Run.load(arguments.screen)) + marker + rest)
        return 0
    runs = []
    for path in arguments.results:
        run = Run.load(path)
        pictures = {}
        for storage in _STORAGES:
            picture = Path(PICTURES, f"{storage}-zarr-{run.head['versions']['zarr']}.svg")
            if draw(run, storage, arguments.output / picture):
                pictures[storage] = picture.as_posix()
        runs.append((run, pictures))
    page.write_text(results_page(runs))
    (arguments.output / TABLES_PAGE).write_text(tables_page([run for run, _ in runs]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
