"""What must hold in one run, side by side, and whether it did."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal

from results import SHARDSTORE, Missing, Run

Status = Literal["held", "NOT HELD", "not measured"]

APPEND = "shardstore, append"
MAPPING = "shardstore, mapping"
LOOP = "bytes and codecs"
OBJECTS = "zarr-python's objects alone"
REQUESTS = "requests alone"
DECODED_REQUESTS = "requests and codecs"
ZARR = "zarr-python"
FUSED = "zarr-python, fused pipeline"
TENSORSTORE = "tensorstore"

_READS = ("full read", "planes", "boxes")
_REMOTE_READS = (*_READS, "full read, 128 MiB", "planes, small shards", "single chunks, cold", "single chunks, warm", "batches of chunks")
_FASTER_UPDATES = {
    "layers": {ZARR: 2},
    "single writes": {ZARR: 8},
    "single writes, 64 MiB": {ZARR: 8},
    "scattered updates": {ZARR: 20, TENSORSTORE: 20},
}
_COALESCING_SINCE = (3, 2)  # of zarr-python: from there on it merges the ranges of a shard
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Verdict:
    """One bar, and what was measured."""

    bar: str
    measured: str
    status: Status


def _judge(
    bar: str, unit: str, bound: float, measure: Callable[[], float], *, at_least: bool = False, note: Callable[[], str] | None = None
) -> Verdict:
    """``note``: what has to be known to understand why it is not held."""
    text = f"{bar} {'≥' if at_least else '≤'} {_number(bound)}{unit}"
    try:
        value = measure()
    except Missing as missing:
        return Verdict(text, str(missing), "not measured")
    held = value >= bound if at_least else value <= bound
    measured = f"{_number(value)}{unit}"
    if not held and note is not None:
        with suppress(Missing):
            measured += f" ({note()})"
    return Verdict(text, measured, "held" if held else "NOT HELD")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _at_most(
    run: Run, workload: str, storage: str, other: str, bound: float, me: str = SHARDSTORE, note: Callable[[], str] | None = None
) -> Verdict:
    bar = f"{storage}, {workload}: {me} over {other}"
    return _judge(bar, " ×", bound, lambda: run.ratio(workload, storage, me, other), note=note)


def _with_codecs(run: Run, workload: str) -> str:
    """Of reads over latency: how much of it is decoding."""
    of_limit = run.ratio(workload, "latency", DECODED_REQUESTS, REQUESTS)
    beside = run.ratio(workload, "latency", SHARDSTORE, DECODED_REQUESTS)
    return f"with its codecs the leanest loop takes {_number(of_limit)} ×, and shardstore {_number(beside)} × that"


def _with_objects(run: Run, workload: str) -> str:
    """Of local reads: how much of it is zarr-python's own."""
    mine, loop, objects = (run.median(workload, "local", each, "seconds") for each in (SHARDSTORE, LOOP, OBJECTS))
    return f"{_number(mine / (loop + objects))} × that loop and zarr-python's own {objects * 1e3:.0f} ms together"


def _beyond_requests(run: Run, workload: str, other: str) -> str:
    """Of reads over latency: how much faster than another those could be that do nothing but wait for their requests."""
    return f"the requests alone are {_number(run.ratio(workload, 'latency', other, REQUESTS))} × faster than it"


def _faster(
    run: Run,
    workload: str,
    storage: str,
    other: str,
    bound: float,
    me: str = SHARDSTORE,
    *,
    per_operation: bool = False,
    note: Callable[[], str] | None = None,
) -> Verdict:
    bar = f"{storage}, {workload}: {me} faster than {other},"
    return _judge(bar, " ×", bound, lambda: run.ratio(workload, storage, other, me, per_operation=per_operation), at_least=True, note=note)


def verdicts(run: Run) -> Iterator[Verdict]:
    """Of all bars that are set for the version of zarr-python of a run."""
    yield from _over_latency(run)
    yield from _local_reads(run)
    yield from _full_write(run)
    yield from _single_chunks(run)
    yield from _parts_of_shards(run)
    yield from _update_on_s3(run)
    yield from _listing_and_import(run)


def other_version(run: Run) -> str:
    """Which bars are left to a run with another zarr-python."""
    if run.zarr_version < _COALESCING_SINCE:
        return "the bars beside zarr-python 3.4, and its fused pipeline, belong to a run on a newer Python"
    return "the bars beside zarr-python 3.1 belong to a run on Python 3.11"


def _over_latency(run: Run) -> Iterator[Verdict]:
    for workload in _REMOTE_READS:
        yield _at_most(run, workload, "latency", REQUESTS, 1.25, note=partial(_with_codecs, run, workload))
    for workload in _REMOTE_READS:
        yield _judge(
            f"latency, {workload}: requests beyond indices and merged ranges",
            "",
            0,
            lambda workload=workload: (  # type: ignore[misc]  # the parameter only binds the name
                run.median(workload, "latency", SHARDSTORE, "requests") - run.median(workload, "latency", REQUESTS, "requests")
            ),
        )
    for workload in ("planes", "planes, small shards", "boxes"):
        if run.zarr_version < _COALESCING_SINCE:
            yield _faster(run, workload, "latency", ZARR, 8)
        else:
            for other, bound in ((ZARR, 2), (FUSED, 1.7)):
                yield _faster(run, workload, "latency", other, bound, note=partial(_beyond_requests, run, workload, other))


def _local_reads(run: Run) -> Iterator[Verdict]:
    for workload in _READS:
        yield _at_most(run, workload, "local", LOOP, 1.25, note=partial(_with_objects, run, workload))
        yield _faster(run, workload, "local", ZARR, 2)
        if run.zarr_version >= _COALESCING_SINCE:
            yield _faster(run, workload, "local", FUSED, 1)


def _full_write(run: Run) -> Iterator[Verdict]:
    yield _at_most(run, "full write", "local", LOOP, 1.25)
    yield _faster(run, "full write", "local", ZARR, 1.25)

    def memory() -> float:
        def added(contender: str) -> float:
            peak, base = (run.median("full write", "local", contender, figure) for figure in ("peak_nbytes", "base_nbytes"))
            return max(peak - base, 1.0)

        return added(SHARDSTORE) / added(ZARR)

    yield _judge("local, full write: peak memory over zarr-python's", " ×", 1 / 3, memory)


def _single_chunks(run: Run) -> Iterator[Verdict]:
    def microseconds(workload: str) -> float:
        return run.median(workload, "local", SHARDSTORE, "p50_seconds") * 1e6

    yield _judge("local, single chunks, warm: p50", " µs", 100, lambda: microseconds("single chunks, warm"))
    yield _judge("local, batches of chunks: a chunk", " µs", 10, lambda: microseconds("batches of chunks"))


def _written(run: Run, workload: str) -> float:
    """Over the data and one index a commit."""
    data, commits, index, written = (
        run.median(workload, "local", APPEND, figure) for figure in ("asked_nbytes", "operations", "index_nbytes", "bytes_written")
    )
    return written / (data + commits * index)


def _parts_of_shards(run: Run) -> Iterator[Verdict]:
    for workload, bounds in _FASTER_UPDATES.items():
        yield _judge(
            f"local, {workload}: bytes written over data and one index a commit",
            " ×",
            1.1,
            lambda workload=workload: _written(run, workload),  # type: ignore[misc]  # the parameter only binds the name
        )
        for other, bound in bounds.items():
            yield _faster(run, workload, "local", other, bound, me=APPEND, per_operation=True)


def _update_on_s3(run: Run) -> Iterator[Verdict]:
    for contender in (SHARDSTORE, APPEND):

        def figure(name: str, contender: str = contender) -> float:
            return run.median("1 % update", "s3", contender, name)

        def uploads(figure: Callable[[str], float] = figure) -> float:
            return (figure("bytes_written") - figure("asked_nbytes") - figure("index_nbytes")) / _MIB

        def downloads(figure: Callable[[str], float] = figure) -> float:
            return (figure("bytes_read") - figure("index_nbytes")) / _MIB

        yield _judge(f"s3, 1 % update: {contender}: uploads beyond the new data and an index", " MiB", 10, uploads)
        yield _judge(f"s3, 1 % update: {contender}: downloads beyond an index", " MiB", 10, downloads)


def _listing_and_import(run: Run) -> Iterator[Verdict]:
    def faster_face(other: str) -> float:
        return min(run.ratio("listing", "local", face, other) for face in (SHARDSTORE, MAPPING))

    yield _judge("local, listing: over decoding indices and building strings", " ×", 3, lambda: faster_face(LOOP))
    yield _judge("local, listing: faster than tensorstore,", " ×", 1, lambda: 1 / faster_face(TENSORSTORE), at_least=True)
    names = ("import shardstore", "import fsspec, numpy")
    yield _judge("import shardstore over import fsspec, numpy", " ×", 1.5, lambda: run.ratio("import", "local", *names))
