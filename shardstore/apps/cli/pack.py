"""``shardstore pack``, ``reshard`` and ``unpack``: move encoded chunks into shards, other shards, or out of shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated

import typer
from rich.table import Table

from shardstore.adapters.store_paths import snapshot_in
from shardstore.apps.cli.arguments import AsJson, PairOptions, Shards, Without, argument, parse_policy
from shardstore.apps.cli.execution import HeldOptions, Scheduler, cluster, interruptible
from shardstore.apps.cli.output import complain, print_json, show
from shardstore.errors import Incomplete
from shardstore.maintenance.packing import pack as packing
from shardstore.maintenance.packing.pack import PackOptions
from shardstore.maintenance.packing.run import PackReport, packing_step
from shardstore.model.words import count, plural, shape, size
from shardstore.progress.shown import step_bar
from shardstore.progress.steps import Progress

_SHOWN_FAILURES = 10

_BEFORE_WRITING = ("listing", "checking")

Source = Annotated[str, argument("SRC", "Zarr of any version, a zip file or references, by URL.")]
Destination = Annotated[str, argument("DST", "The place of the result, or a branch of a store, URL@main.")]
_UNPACK = Without(frozenset({"stored", "chunk_order", "index_location", "index_checksum", "message"}))
_RESHARD = Without(frozenset({"message"}))


def pack(
    *,
    source: Source,
    destination: Destination,
    chunks_per_shard: Shards = "auto",
    options: PackOptions,
    scheduler: Scheduler = None,
    held: HeldOptions,
    as_json: AsJson = False,
    storage: PairOptions,
) -> None:
    """Pack a Zarr hierarchy into shards; chunks stay unchanged. After an interruption, the same command continues. Run again later, it
    packs what has changed in SRC.

    Examples:
      shardstore pack old.zarr new.zarr --dry-run --price put=0.005
      shardstore pack s3://bucket/old.zarr s3://bucket/new.zarr -s 8,8,8 --part 3/16
    """
    function = partial(packing.pack, chunks_per_shard=parse_policy(chunks_per_shard))
    _run(function, source, destination, options, scheduler, held, as_json, storage)


def reshard(
    *,
    source: Source,
    destination: Destination,
    chunks_per_shard: Shards = "auto",
    options: Annotated[PackOptions, _RESHARD],
    scheduler: Scheduler = None,
    held: HeldOptions,
    as_json: AsJson = False,
    storage: PairOptions,
) -> None:
    """Move the chunks of sharded arrays into other shards; chunks stay unchanged. So do arrays without shards.

    Examples:
      shardstore reshard -s 16,16,1 data.zarr other.zarr
    """
    function = partial(packing.reshard, chunks_per_shard=parse_policy(chunks_per_shard))
    _run(function, source, destination, options, scheduler, held, as_json, storage)


def unpack(
    *,
    source: Source,
    destination: Destination,
    options: Annotated[PackOptions, _UNPACK],
    scheduler: Scheduler = None,
    held: HeldOptions,
    as_json: AsJson = False,
    storage: PairOptions,
) -> None:
    """Unpack shards: write every chunk as its own object; chunks stay unchanged.

    Examples:
      shardstore unpack data.zarr plain.zarr
    """
    _run(packing.unpack, source, destination, options, scheduler, held, as_json, storage)


def _run(
    function: Callable[..., PackReport],
    source: str,
    destination: str,
    given: PackOptions,
    scheduler: str | None,
    held: HeldOptions,
    as_json: bool,
    storage: PairOptions,
) -> None:
    source_options, target_options = storage.parsed_pair(source, destination)
    pins = held.held(destination, target_options)
    options = replace(given, pins=pins, storage_options=source_options or None, target_options=target_options)
    phase = "listing"
    is_branch = snapshot_in(destination, target_options) is not None

    def advice() -> str:
        if is_branch and phase == "finishing":
            return "the commit may have been stored: check with shardstore snapshots log, and run the same command again if it was not"
        if is_branch:
            return "nothing was committed. The same command starts again from the beginning"
        if phase in _BEFORE_WRITING:
            return "nothing was done yet: the source was being listed and compared. Run the same command again"
        return "finished work is recorded: run the same command again to continue"

    try:
        with interruptible(advice), cluster(scheduler) as executor, step_bar() as bar:

            def progress(found: Progress) -> None:
                nonlocal phase
                phase = found.phase
                bar(packing_step(found))

            report = function(source, destination, executor=executor, progress=progress, **vars(options))
    except Incomplete as exc:
        if isinstance(exc.report, PackReport):
            _print(exc.report, as_json)
        raise
    _print(report, as_json)


# -- the result --------------------------------------------------------------------------------------------------------


def _print(report: PackReport, as_json: bool) -> None:
    if as_json:
        print_json(report.to_json())
        return
    if not report.record:
        _print_for_branch(report)
        return
    table = Table("array", "chunk", "chunks per shard", "objects", "bytes", box=None, pad_edge=False, header_style="bold")
    for array in report.arrays:
        per_shard = "–" if array.chunks_per_shard is None else shape(array.chunks_per_shard)
        objects = f"{count(array.objects_before)} → {count(array.objects_after)}"
        nbytes = f"{size(array.nbytes_before)} → {size(array.nbytes_after)}"
        table.add_row(array.path or "(root)", shape(array.chunk_shape) if array.chunk_shape else "?", per_shard, objects, nbytes)
    show(table)
    before = f"{plural(report.objects_before, 'object')} of {size(report.nbytes_before)}"
    typer.echo(f"{before} {_verb(report)} {plural(report.objects_after, 'object')} of {size(report.nbytes_after)}")
    for line in (*(_estimate(report) if report.dry_run else _work_done(report)), *report.notes):
        typer.echo(line)
    _complain_of(report)
    if not report.dry_run and not report.complete:
        how = "other parts, or --only-failed" if report.part != "1/1" else "the same command"
        complain("warning", f"{plural(report.missing, 'unit')} still to be done, by {how}: {report.target} cannot be opened yet")


def _verb(report: PackReport) -> str:
    if report.complete:
        return "become"
    if report.dry_run:
        return "would become about"
    return "would have become about" if report.failed or report.part == "1/1" else "will become about"  # when the other parts are done


def _estimate(report: PackReport) -> list[str]:
    requests = report.requests
    price = "" if report.price is None else f": {report.price:,.{2 if report.price >= 1 else 5}f} at the prices given"
    return [
        f"about {count(requests.lists)} list, {count(requests.gets)} get and {count(requests.puts)} put requests{price}",
        "nothing was written",
    ]


def _work_done(report: PackReport) -> list[str]:
    units = f"{plural(report.done, 'unit')} done, {count(report.skipped)} had been done before, {count(len(report.failed))} failed"
    lines = [f"{units}; {plural(report.chunks, 'chunk')} moved, {size(report.written_nbytes)} written"]
    if report.copied:
        lines.append(f"{plural(report.copied, 'shard')} of them copied unchanged, without reading them")
    keep = f"keep it: the same command continues from it, or renews {report.target}"
    return [*lines, f"the record of finished work is {report.record}; {keep}"]


def _print_for_branch(report: PackReport) -> None:
    """Print the result of packing into a branch, without the number of objects: the store decides how chunks are stored."""
    arrays = f"{plural(len(report.arrays), 'array')} in {plural(report.objects_before, 'object')} of {size(report.nbytes_before)}"
    if report.snapshot_id is not None:
        typer.echo(f"{plural(report.chunks, 'chunk')} of {arrays} moved; {report.target} is at snapshot {report.snapshot_id}")
    else:
        typer.echo(f"{arrays} {'would become part of' if report.dry_run else 'did not become part of'} {report.target}")
        typer.echo("nothing was written" if report.dry_run else "nothing was committed: the same command starts again from the beginning")
    for note in report.notes:
        typer.echo(note)
    _complain_of(report)


def _complain_of(report: PackReport) -> None:
    outside = sum(array.outside for array in report.arrays)
    if outside:
        complain("warning", f"{plural(outside, 'object')} outside of the arrays' shapes, which no reader sees, left out")
    for failure in report.failed[:_SHOWN_FAILURES]:
        complain("failed", f"{failure}: {failure.error}")
    if len(report.failed) > _SHOWN_FAILURES:
        complain("failed", f"{len(report.failed) - _SHOWN_FAILURES} more: --json names all")
