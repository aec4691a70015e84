"""``shardstore pack``, ``reshard`` and ``unpack``: move encoded chunks into shards, other shards, or out of shards."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.table import Table

from shardstore.adapters.store_paths import pair_options, snapshot_in
from shardstore.cli.arguments import AsJson, PairOptions
from shardstore.cli.execution import MaxMemory, PartOption, Retries, Scheduler, Workers, cluster, interruptible, parse_bytes
from shardstore.cli.held import HeldOptions
from shardstore.cli.output import complain, print_json, show
from shardstore.errors import Incomplete, InvalidInput
from shardstore.maintenance.packing.pack import DEFAULT_MAX_MEMORY, pack, reshard, unpack
from shardstore.maintenance.packing.report import PackReport, packing_step
from shardstore.model.words import count, plural, shape, size
from shardstore.progress.shown import step_bar
from shardstore.progress.steps import Progress

_SHOWN_FAILURES = 10

_BEFORE_WRITING = ("listing", "checking")

Source = Annotated[str, typer.Argument(metavar="SRC", help="A Zarr hierarchy: a path, URL or chain of URLs.", show_default=False)]
Destination = Annotated[str, typer.Argument(metavar="DST", help="Where the result goes; nothing may be there yet.", show_default=False)]
Shards = Annotated[
    str,
    typer.Option(
        "--chunks-per-shard",
        "-s",
        metavar="N,N,…",
        help="Along each dimension, for arrays of as many; 'auto'; 'none'; or a JSON object from patterns of paths to these.",
    ),
]
StoredFormat = Annotated[str, typer.Option("--stored", metavar="codec|transformer", help="Zarr v3, or a hierarchy of the 2022 draft.")]
Order = Annotated[str, typer.Option("--chunk-order", metavar="C|morton", help="The order of the chunks in a shard.")]
IndexLocationOption = Annotated[str, typer.Option("--index-location", metavar="end|start", help="Where a shard has its index.")]
NoIndexChecksum = Annotated[bool, typer.Option("--no-index-checksum", help="Leave the checksum of the indices out.")]
ChunkChecksums = Annotated[
    bool,
    typer.Option("--chunk-checksums", help="Append the codec crc32c, and its four bytes to each chunk: damage is found by every reader."),
]
Ome = Annotated[bool, typer.Option("--ome", help="Rewrite the metadata of OME-Zarr 0.4 to 0.5, that of Zarr v3.")]
Include = Annotated[
    list[str] | None, typer.Option("--include", metavar="PATTERN", help="Only nodes whose paths match, and what is below; repeatable.")
]
Exclude = Annotated[list[str] | None, typer.Option("--exclude", metavar="PATTERN", help="No nodes whose paths match; repeatable.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Write nothing: show what would be done, and about how many requests it takes.")]
Prices = Annotated[
    list[str] | None,
    typer.Option("--price", metavar="KIND=PRICE", help="Of 1,000 requests of a kind: list, get or put, such as put=0.005; repeatable."),
]
EraseFirst = Annotated[bool, typer.Option("--overwrite", help="Replace what is at DST; what is not replaced goes in the end.")]
OnlyFailed = Annotated[bool, typer.Option("--only-failed", help="Nothing but what failed in the last run.")]
RecordUrl = Annotated[
    str | None,
    typer.Option("--record", metavar="URL", help="Where to keep what is done; by default DST with .pack behind it.", show_default=False),
]
Lost = Annotated[
    str | None,
    typer.Option(
        "--lost-transformers",
        metavar="JSON",
        help="Chunks per shard of arrays of the 2022 draft that have lost them, by path: '{\"a\": [2, 2]}'.",
        show_default=False,
    ),
]
NoSpaceCheck = Annotated[
    bool, typer.Option("--no-space-check", help="Begin also where a local disk does not seem to have as much room as is needed.")
]
NoFsync = Annotated[bool, typer.Option("--no-fsync", help="Do not wait until a local disk has it for good.")]


@dataclass(frozen=True, slots=True)
class ShardOptions:
    """The options about the shards of the target."""

    chunks_per_shard: Shards = "auto"
    stored: StoredFormat = "codec"
    chunk_order: Order = "C"
    index_location: IndexLocationOption = "end"
    no_index_checksum: NoIndexChecksum = False


@dataclass(frozen=True, slots=True)
class MoveOptions:
    """The options of all three commands."""

    chunk_checksums: ChunkChecksums = False
    ome: Ome = False
    include: Include = None
    exclude: Exclude = None
    dry_run: DryRun = False
    price: Prices = None
    overwrite: EraseFirst = False
    only_failed: OnlyFailed = False
    workers: Workers = None
    scheduler: Scheduler = None
    part: PartOption = None
    retries: Retries = 2
    max_memory: MaxMemory = f"{DEFAULT_MAX_MEMORY >> 20}MiB"
    record: RecordUrl = None
    lost_transformers: Lost = None
    no_space_check: NoSpaceCheck = False
    no_fsync: NoFsync = False
    as_json: AsJson = False


def pack_command(
    *,
    source: Source,
    destination: Destination,
    message: Annotated[
        str | None,
        typer.Option("--message", "-m", metavar="TEXT", help="Of the commit, if DST is a branch of a versioned store.", show_default=False),
    ] = None,
    shards: ShardOptions,
    moved: MoveOptions,
    held: HeldOptions,
    storage: PairOptions,
) -> None:
    """Pack a Zarr hierarchy into shards. Chunks are moved unchanged: nothing is decoded or compressed again.

    SRC may be Zarr v2 or v3, sharded or not, of the 2022 draft, a zip file or a set of references. The result is Zarr v3 with
    sharding_indexed. Interrupted or killed, the same command goes on where it was; run again later, it packs what has changed.

    DST may be a branch of a versioned store, URL@main, or a path in it: the result becomes part of it by one commit.

    Examples:

        shardstore pack old.zarr new.zarr

        shardstore pack --dry-run --price put=0.005 --price get=0.0004 s3://bucket/old.zarr s3://bucket/new.zarr

        shardstore pack -s 8,8,8 --chunk-checksums s3://bucket/old.zarr s3://bucket/new.zarr

        shardstore pack --part 3/16 s3://bucket/old.zarr s3://bucket/new.zarr

        shardstore pack old.zarr run.ice@main/old -m "as it was in May"
    """
    _run(pack, source, destination, moved, held, storage, message=message, **_of_shards(shards))


def reshard_command(
    *, source: Source, destination: Destination, shards: ShardOptions, moved: MoveOptions, held: HeldOptions, storage: PairOptions
) -> None:
    """Move the chunks of sharded arrays into other shards. Chunks, and arrays without shards, stay unchanged.

    Examples:

        shardstore reshard -s 16,16,1 data.zarr other.zarr
    """
    _run(reshard, source, destination, moved, held, storage, **_of_shards(shards))


def unpack_command(*, source: Source, destination: Destination, moved: MoveOptions, held: HeldOptions, storage: PairOptions) -> None:
    """Unpack shards: write every chunk as its own object, bytes unchanged.

    Examples:

        shardstore unpack data.zarr plain.zarr
    """
    _run(unpack, source, destination, moved, held, storage)


def _of_shards(given: ShardOptions) -> dict[str, Any]:
    """Return the arguments of ``pack`` and ``reshard`` about shards."""
    return {
        "chunks_per_shard": parse_policy(given.chunks_per_shard),
        "stored": given.stored,
        "chunk_order": given.chunk_order,
        "index_location": given.index_location,
        "index_checksum": not given.no_index_checksum,
    }


def _run(
    function: Callable[..., PackReport],
    source: str,
    destination: str,
    given: MoveOptions,
    held: HeldOptions,
    storage: PairOptions,
    **of_shards: Any,
) -> None:
    source_options, target_options = pair_options(source, destination, storage.parsed(), storage.parsed_target())
    arguments: dict[str, Any] = {
        "chunk_checksums": given.chunk_checksums,
        "ome": given.ome,
        "include": given.include or (),
        "exclude": given.exclude or (),
        "dry_run": given.dry_run,
        "prices": _prices(given.price),
        "overwrite": given.overwrite,
        "pins": held.held(destination, target_options),
        "only_failed": given.only_failed,
        "workers": given.workers,
        "retries": given.retries,
        "max_memory": parse_bytes("--max-memory", given.max_memory),
        "record": given.record,
        "check_space": not given.no_space_check,
        "fsync": not given.no_fsync,
        "storage_options": dict(source_options) or None,
        "target_options": dict(target_options),
    }
    if given.part is not None:
        arguments["part"] = given.part
    if given.lost_transformers is not None:
        arguments["lost_transformers"] = {path: tuple(n) for path, n in _object("--lost-transformers", given.lost_transformers).items()}
    phase = "listing"
    of_branch = snapshot_in(destination, target_options) is not None

    def advice() -> str:
        if of_branch and phase == "finishing":
            return "the commit may have been carried out: look by shardstore snapshots log, and run the same command again if it was not"
        if of_branch:
            return "nothing was committed. Run the same command again, and it begins anew"
        if phase in _BEFORE_WRITING:
            return "nothing was done yet: the source was being listed and compared. Run the same command again"
        return "what is done is recorded: run the same command again, and it goes on from there"

    try:
        with interruptible(advice), cluster(given.scheduler) as executor, step_bar() as bar:

            def progress(found: Progress) -> None:
                nonlocal phase
                phase = found.phase
                bar(packing_step(found))

            report = function(source, destination, executor=executor, progress=progress, **arguments, **of_shards)
    except Incomplete as exc:
        if isinstance(exc.report, PackReport):
            _print(exc.report, given.as_json)
        raise
    _print(report, given.as_json)


# -- arguments ---------------------------------------------------------------------------------------------------------


def parse_policy(text: str) -> Any:
    """Return how many chunks go into a shard, as ``shardstore.pack`` takes it. Raises ``InvalidInput``."""
    if text.lower() in ("auto", "none"):
        return "auto" if text.lower() == "auto" else None
    if text.lstrip().startswith("{"):
        return {pattern: _counts(counts) for pattern, counts in _object("--chunks-per-shard", text).items()}
    return _counts(text)


def _counts(given: Any) -> Any:
    if given is None or (isinstance(given, str) and given.lower() in ("auto", "none")):
        return None if given is None or given.lower() == "none" else "auto"
    parts = given if isinstance(given, list) else str(given).replace("x", ",").split(",")
    try:
        return tuple(int(part) for part in parts)
    except (TypeError, ValueError) as exc:
        raise InvalidInput(f"--chunks-per-shard {given!r}: give a number for each dimension, such as 4,4,4, or 'auto' or 'none'") from exc


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as exc:
        raise InvalidInput(f"{name} is not JSON ({exc})") from exc
    if not isinstance(found, dict):
        raise InvalidInput(f"{name} is a JSON {type(found).__name__}: give an object")
    return found


def _prices(pairs: list[str] | None) -> dict[str, float] | None:
    if not pairs:
        return None
    prices: dict[str, float] = {}
    for pair in pairs:
        kind, _, price = pair.partition("=")
        try:
            prices[kind] = float(price)
        except ValueError as exc:
            raise InvalidInput(f"--price {pair!r} is not of the form put=0.005") from exc
    return prices


# -- what came of it ---------------------------------------------------------------------------------------------------


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
    verb = "become" if report.complete else "would become about" if report.dry_run else "would have become about"
    if not report.complete and not report.dry_run and not report.failed and report.part != "1/1":
        verb = "will become about"  # when the other parts are done
    before = f"{plural(report.objects_before, 'object')} of {size(report.nbytes_before)}"
    lines = [f"{before} {verb} {plural(report.objects_after, 'object')} of {size(report.nbytes_after)}"]
    if report.dry_run:
        requests = report.requests
        price = "" if report.price is None else f": {report.price:,.{2 if report.price >= 1 else 5}f} at the prices given"
        lines.append(f"about {count(requests.lists)} list, {count(requests.gets)} get and {count(requests.puts)} put requests{price}")
        lines.append("nothing was written")
    else:
        lines.append(
            f"{plural(report.done, 'unit')} done, {count(report.skipped)} had been done before, {count(len(report.failed))} failed; "
            f"{plural(report.chunks, 'chunk')} moved, {size(report.written_nbytes)} written"
        )
        if report.copied:
            lines.append(f"{plural(report.copied, 'shard')} of them copied as they are, without reading them")
        lines.append(f"the record of what is done is {report.record}: keep it to go on, or to renew {report.target}")
    lines += report.notes
    for line in lines:
        typer.echo(line)
    _complain_of(report)
    if not report.dry_run and not report.complete:
        who = "other parts, or --only-failed" if report.part != "1/1" else "the same command"
        complain("warning", f"{plural(report.missing, 'unit')} still to be done, by {who}: {report.target} cannot be opened yet")


def _print_for_branch(report: PackReport) -> None:
    """Print what became of a hierarchy that was to be part of a branch: how many objects its chunks are there is the store's affair."""
    arrays = f"{plural(len(report.arrays), 'array')} in {plural(report.objects_before, 'object')} of {size(report.nbytes_before)}"
    if report.snapshot_id is not None:
        typer.echo(f"{plural(report.chunks, 'chunk')} of {arrays} moved; {report.target} is at snapshot {report.snapshot_id}")
    else:
        typer.echo(f"{arrays} {'would become part of' if report.dry_run else 'did not become part of'} {report.target}")
        typer.echo("nothing was written" if report.dry_run else "nothing was committed: the same command begins anew")
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
