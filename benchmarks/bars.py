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
OVER_OBSTORE = "shardstore, obstore"
WITHOUT_KERNEL = "shardstore, without its kernel"
CODECS_ALONE = "codecs alone"
GETS_ALONE = "a GET each"
ICECHUNK = "icechunk"
REQUESTS = "requests alone"
DECODED_REQUESTS = "requests and codecs"
ZARR = "zarr-python"
FUSED = "zarr-python, fused pipeline"
ZARRS = "zarr-python, zarrs pipeline"
TENSORSTORE = "tensorstore"
CACHED = "tensorstore, cache pool"
CREDULOUS = "tensorstore, cache pool, nothing validated"

_REMOTE_READS = (
    "full read",
    "planes",
    "boxes",
    "full read, 128 MiB",
    "planes, small shards",
    "single chunks, cold",
    "single chunks, warm",
    "batches of chunks",
)
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


# -- the table: ratios of contenders that took turns in one process ----------------------------------------------------

TIME, PROCESSOR = "seconds", "cpu_seconds"
_FIGURES = {TIME: "time", PROCESSOR: "processor time"}


@dataclass(frozen=True, slots=True)
class Row:
    """A bound for shardstore over the best of its peers."""

    title: str
    workload: str
    bound: float
    figures: tuple[str, ...] = (TIME, PROCESSOR)
    """Those that the bound is for."""
    storage: str = "local"
    peers: tuple[str, ...] = (TENSORSTORE,)
    face: str = SHARDSTORE
    limit: str = CODECS_ALONE
    limit_figure: str = PROCESSOR
    bounded_by: str = "decoding"

    def ratio(self, run: Run, figure: str, contender: str | None = None) -> float:
        """Of a contender, or of shardstore, over the best of the peers. Raises ``Missing`` where there is no peer."""
        found: list[float] = []
        for peer in self.peers:
            try:
                found.append(run.ratio(self.workload, self.storage, contender or self.face, peer, figure=figure))
            except Missing as missing:
                if peer == self.peers[-1] and not found:
                    raise missing
        return max(found)

    def limit_share(self, run: Run) -> float:
        """Of the time of shardstore, or of its processor time, what the limit takes. Raises ``Missing``."""
        return run.ratio(self.workload, self.storage, self.limit, self.face, figure=self.limit_figure)


def rows(run: Run) -> tuple[Row, ...]:
    """All of them; what a write may take depends on the zstd that the kernel calls."""
    processor = (PROCESSOR,)
    _, zstd = _zstd_of(run)
    far = partial(
        Row,
        figures=(TIME,),
        storage="far s3",
        peers=(TENSORSTORE, CACHED, CREDULOUS, ICECHUNK),
        face=OVER_OBSTORE,
        limit=GETS_ALONE,
        limit_figure=TIME,
        bounded_by="requests",
    )
    written = partial(Row, bounded_by="encoding")
    raw = partial(Row, figures=processor, bounded_by="copying")
    return (
        Row("Planes across the first dimension, zstd", "zstd: planes z", 0.9),
        Row("Planes across the last dimension, zstd", "zstd: planes x", 0.9),
        Row("Boxes, zstd", "zstd: boxes", 0.8),
        Row("Full reads, zstd", "zstd: full read", 0.85),
        Row("Single chunks, zstd", "zstd: single chunks", 0.75),
        Row("Single chunks, zstd, 8 threads", "zstd: single chunks, 8 threads", 1.2),
        Row("Planes across the first dimension, blosc", "blosc: planes z", 0.65, processor),
        Row("Planes across the last dimension, blosc", "blosc: planes x", 0.65, processor),
        Row("Boxes, blosc", "blosc: boxes", 0.65, processor),
        Row("Single chunks, blosc", "blosc: single chunks", 0.65, processor),
        raw("Planes across the first dimension, raw", "raw: planes z", 0.2),
        raw("Planes across the last dimension, raw", "raw: planes x", 0.2),
        raw("Boxes, raw", "raw: boxes", 0.6),
        raw("Single chunks, raw", "raw: single chunks", 0.6),
        Row("Planes across the first dimension, zstd, 512 KiB chunks", "zstd: planes z of 512 KiB chunks", 0.85),
        Row("Planes across the last dimension, zstd, 512 KiB chunks", "zstd: planes x of 512 KiB chunks", 0.85),
        Row("Planes across the first dimension, blosc, 512 KiB chunks", "blosc: planes z of 512 KiB chunks", 0.5),
        Row("Planes across the last dimension, blosc, 512 KiB chunks", "blosc: planes x of 512 KiB chunks", 0.5),
        written(f"Full writes, zstd {zstd}", "zstd: full write", _write_bound(run)),
        written("Full writes, blosc", "blosc: full write", 1.1),
        written("Full writes, raw", "raw: full write", 1.1, bounded_by="copying"),
        far(
            "Random chunks on S3, obstore",
            "random chunks",
            0.7,
            figures=processor,
            storage="s3",
            peers=(CACHED, CREDULOUS),
            limit_figure=PROCESSOR,
        ),
        far("50 random chunks on S3 20 ms away, obstore", "random chunks, far", 1.1),
        far("200 random chunks on S3 20 ms away, by 8 threads, obstore", "random chunks, far, 8 threads", 1.2),
        Row(
            "1,000 arrays opened", "arrays opened", 1.05, (TIME,), peers=(ZARR,), limit=LOOP, limit_figure=TIME, bounded_by="the documents"
        ),
    )


def _zstd_of(run: Run) -> tuple[tuple[int, ...], str]:
    """The version that the kernel encodes with, and its words."""
    kernel = run.head.get("kernel")
    text = str((kernel or {}).get("zstd, encoding", ""))
    return tuple(int(part) for part in text.split(".") if part.isdecimal()), text or "of numcodecs"


def _write_bound(run: Run) -> float:
    return 1.05 if _zstd_of(run)[0] >= (1, 5, 7) else 1.2


def public_rows(run: Run) -> Iterator[Row]:
    """Those of the workloads of zarrs/zarr_benchmarks: first, or nearly, of all that take part."""
    for cell in run.cells:
        if cell["workload"].startswith("public: "):
            yield Row(cell["title"], cell["workload"], 1.05, (TIME,), peers=(TENSORSTORE, FUSED, ZARRS, ZARR))


MOST_LOCK_SHARE = 0.1
LOCK_CODECS = ("zstd", "blosc", "raw", "gzip")


def table_verdicts(run: Run) -> Iterator[Verdict]:
    """Of the bars of all rows, of both figures where only one is bounded, and of the share of Python's lock."""
    for row in (*rows(run), *public_rows(run)):
        figures = " and ".join(_FIGURES[figure] for figure in row.figures)
        bar = f"{row.title}: {figures} ≤ {row.bound:.3g} × {_peers_of(row)}"
        try:
            found = {figure: row.ratio(run, figure) for figure in _FIGURES}
        except Missing as missing:
            yield Verdict(bar, str(missing), "not measured")
            continue
        measured = ", ".join(f"{value:.2f} × {_FIGURES[figure]}" for figure, value in found.items())
        with suppress(Missing):
            measured += f"; {row.bounded_by} {row.limit_share(run):.0%} of the {_FIGURES[row.limit_figure]}"
        yield Verdict(bar, measured, "held" if all(found[figure] <= row.bound for figure in row.figures) else "NOT HELD")
    for codec in LOCK_CODECS:
        bar = f"Full read, {codec}: holds Python's lock ≤ {MOST_LOCK_SHARE:.0%}"
        try:
            share = run.median(f"{codec}: lock", "local", SHARDSTORE, "lock_share")
        except Missing as missing:
            yield Verdict(bar, str(missing), "not measured")
            continue
        measured = f"{share:.1%}"
        with suppress(Missing):
            measured += f" (without the kernel {run.median(f'{codec}: lock', 'local', WITHOUT_KERNEL, 'lock_share'):.0%})"
        yield Verdict(bar, measured, "held" if share <= MOST_LOCK_SHARE else "NOT HELD")


def _peers_of(row: Row) -> str:
    names = dict.fromkeys(name.partition(",")[0] for name in row.peers)
    return names.popitem()[0] if len(names) == 1 else f"the best of {' and '.join(names)}"


# -- other bars --------------------------------------------------------------------------------------------------------


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
    yield from table_verdicts(run)
    yield from _over_latency(run)
    yield from _memory_of_writes(run)
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


def _memory_of_writes(run: Run) -> Iterator[Verdict]:
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
