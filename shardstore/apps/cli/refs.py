"""``shardstore refs``: writes sets of references, checks them and brings them up to date."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, get_args

import typer

from shardstore import references
from shardstore.apps.cli.arguments import AsJson, Overwrite, PairOptions, StorageOptions, argument, flag_of
from shardstore.apps.cli.execution import interruptible
from shardstore.apps.cli.output import ExitCode, complain, print_result
from shardstore.errors import InvalidInput
from shardstore.model.options import DIM, EXCLUDE, INCLUDE, OUTPUT, CommandOption, option
from shardstore.model.words import plural, shape, size
from shardstore.progress.shown import step_bar
from shardstore.references.choices import Flavour
from shardstore.references.keeping import CheckReport
from shardstore.references.places import JSON_SUFFIXES
from shardstore.references.report import ReferenceProgress, ReferenceReport

_MOST_SHOWN = 20  # keys
_NOT_PINNED = "not pinned: replaced objects will not be detected"

MIXED_PROTOCOLS = CommandOption("Allow several protocols in one set; fsspec cannot read it.", group="Expert")
Set = Annotated[str, argument("SET", "A set of references: a file of JSON, or a directory of Parquet.")]
Format = Annotated[
    str | None,
    CommandOption("The format of the set.", "json|parquet", flags=("--format",), group="Shape", default="by the ending"),
]
FlavourOption = Annotated[
    str | None, CommandOption("The documents in the set.", "v2|v3|dual|auto", group="Shape", default="auto; Parquet: v2")
]


@dataclass(frozen=True)
class SetOptions:
    """Options of ``references.write_json`` and ``write_parquet``."""

    inline_nbytes: int = option(0, "Write chunks up to this size into the set.", "BYTES", form="bytes", flags=("--inline",), group="Expert")
    urls: str = option("absolute", "How references name objects.", "absolute|relative|versioned", group="Shape")
    base_url: str | None = option(None, "The URL that references begin with.", "URL", group="Expert", words="SRC")
    pins: bool = option(True, "Do not record the versions of objects.", group="Expert")
    mixed_protocols: bool = option(False, MIXED_PROTOCOLS)


@dataclass(frozen=True)
class JsonOptions:
    """Options of ``references.write_json`` alone."""

    version: int = option(1, "JSON: the version of the format.", "0|1", form="number", flags=("--json-version",), group="Expert")
    templates: bool = option(False, "JSON: write the beginning of all URLs once.", group="Expert")
    generators: bool = option(False, "JSON: write one rule for an array, where there is one.", group="Expert")


@dataclass(frozen=True)
class ParquetOptions:
    """Options of ``references.write_parquet`` alone."""

    record_size: int = option(100_000, "Parquet: chunks in a file.", "N", form="number", group="Expert")
    missing: str = option("null", "Parquet: fill stores missing chunks.", "null|fill", group="Expert")
    root_as: str | None = option(None, "Parquet: the name of an array at the root.", "NAME", group="Expert")


def refs() -> None:
    """Write and update sets of references, for programs that do not know shards. They read every chunk where it is."""


def write(
    *,
    source: Annotated[str, argument("SRC", "A Zarr hierarchy: a path, URL or chain of URLs.")],
    target: Annotated[str, argument("SET", "Where the set goes.")],
    form: Format = None,
    flavour: FlavourOption = None,
    include: Annotated[list[str] | None, INCLUDE] = None,
    exclude: Annotated[list[str] | None, EXCLUDE] = None,
    whole_shards: Annotated[
        list[str] | None, CommandOption("Refer to whole shards of what matches; repeatable.", "PATTERN", group="Selection")
    ] = None,
    options: SetOptions,
    json_options: JsonOptions,
    parquet_options: ParquetOptions,
    skip_damaged: Annotated[bool, CommandOption("Leave out damaged shards, and go on.", group="Selection")] = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    storage: PairOptions,
) -> None:
    """Write references to all chunks of a hierarchy. No data is copied.

    When a shard is rewritten, references into it become wrong. Only shardstore detects that: see shardstore refs check.

    Examples:
      shardstore refs write data.zarr data.refs
      shardstore refs write data.zarr refs.json --exclude 'labels/*' --inline 4096 --urls relative
    """
    kind = _format(form, target)
    own, other = (json_options, parquet_options) if kind == "json" else (parquet_options, json_options)
    if other != type(other)():
        refused = next(flag_of(each) for each in fields(other) if getattr(other, each.name) != each.default)
        raise InvalidInput(f"{refused} cannot be used for a set in {'JSON' if kind == 'json' else 'Parquet'}")
    source_options, target_options = storage.parsed_pair(source, target)
    arguments: dict[str, Any] = vars(options) | vars(own)
    if flavour is not None:
        arguments["flavour"] = _flavour(flavour)
    function: Callable[..., ReferenceReport] = references.write_json if kind == "json" else references.write_parquet
    with _progress("no new set was finished: run the same command again, with --overwrite if a part of it exists") as progress:
        report = function(
            source,
            target,
            paths=_paths(include, exclude, whole_shards),
            overwrite=overwrite,
            on_error="skip" if skip_damaged else "raise",
            storage_options=source_options or None,
            target_options=target_options,
            progress=progress,
            **arguments,
        )
    _show_report(report, as_json)


def check(
    *,
    target: Set,
    indices: Annotated[bool, CommandOption("Read the index of each shard too, and compare every reference.")] = False,
    as_json: AsJson = False,
    storage: PairOptions,
) -> None:
    """Show which objects have changed since a set was written: references into them lead to other bytes. The exit code is 6 then.

    One listing; no data is read. Options are those of the store; give --target-options if the set needs different ones.

    Examples:
      shardstore refs check data.refs
    """
    report = references.check(target, indices=indices, storage_options=storage.parsed() or None, target_options=storage.parsed_target())
    print_result(as_json, asdict(report), *_check_lines(report))
    if not report.is_sound:
        objects = len(report.changed) + len(report.gone) + len(report.new)
        what = f"objects changed, gone or new: {objects:,}" if objects else f"wrong references: {len(report.wrong):,}"
        complain("warning", f"{what}. shardstore refs update {target} brings the set up to date, if it was not made of other sets")
        raise typer.Exit(ExitCode.CONFLICT)


def update(
    *,
    target: Set,
    source: Annotated[str | None, CommandOption("The store, if it has moved.", "URL", default="that of the set")] = None,
    output: Annotated[str | None, replace(OUTPUT, default="SET itself")] = None,
    as_json: AsJson = False,
    storage: PairOptions,
) -> None:
    """Write a set again with the options of the first time. Only the indices of shards that have changed since are read.

    Options are those of the store; give --target-options if the set needs different ones.

    Examples:
      shardstore refs update data.refs
      shardstore refs update s3://bucket/data.json --output s3://bucket/today.json
    """
    with _progress("run the same command again") as progress:
        report = references.update(
            target,
            source,
            output=output,
            storage_options=storage.parsed() or None,
            target_options=storage.parsed_target(),
            progress=progress,
        )
    if not as_json:
        typer.echo(f"{plural(report.index_requests, 'index', 'indices')} read again")
    _show_report(report, as_json)


def combine(
    *,
    sets: Annotated[list[str], argument("SET", "Sets of references, in their order.")],
    target: Annotated[str, OUTPUT],
    dim: Annotated[str | None, DIM] = None,
    form: Format = None,
    flavour: FlavourOption = None,
    mixed_protocols: Annotated[bool, MIXED_PROTOCOLS] = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    storage: PairOptions,
) -> None:
    """Make one set of several: arrays side by side, or one behind the other along a dimension. Nothing is decoded.

    Arrays have to have the same chunks and codecs, and all sets but the last end with a whole chunk. Arrays without the dimension have to
    be the same in all sets, byte for byte; they are read where sets refer to different copies, up to 16 MiB of a set. To combine by the
    values of coordinates, use VirtualiZarr or kerchunk.

    Examples:
      shardstore refs combine monday.json tuesday.json --dim time --output week.refs
    """
    with _progress("no new set was finished: run the same command again, with --overwrite if a part of it exists") as progress:
        report = references.combine(
            sets,
            target,
            dim=dim,
            format="json" if _format(form, target) == "json" else "parquet",
            flavour=None if flavour is None else _flavour(flavour),
            mixed_protocols=mixed_protocols,
            overwrite=overwrite,
            storage_options=storage.parsed() or None,
            target_options=storage.parsed_target(),
            progress=progress,
        )
    _show_report(report, as_json)


def info(*, target: Set, as_json: AsJson = False, storage: StorageOptions) -> None:
    """Show the arrays of a set, and the store that it was made from. References are not counted.

    Examples:
      shardstore refs info data.refs
    """
    found = references.describe(target, target_options=storage.parsed() or None)
    print_result(
        as_json,
        asdict(found),
        f"{found.target}: {found.format}, documents of Zarr {found.flavour}",
        *(f"{path or '(root)'}  {shape(grid)} chunks" for path, grid in found.arrays.items()),
        _NOT_PINNED if found.store is None else f"pinned to {plural(found.objects, 'object')} of {found.store}",
    )


def pins(
    *,
    target: Set,
    store: Annotated[str | None, CommandOption("The store that the keys are of.", "URL", default="that of the set")] = None,
    storage: StorageOptions,
) -> None:
    """Print the objects that a set holds offsets into, a line each, for compact --pins and repair --pins.

    Examples:
      shardstore refs pins data.refs > pinned.txt
    """
    for pin in references.pins(target, store=store, target_options=storage.parsed() or None):
        typer.echo(json.dumps({"key": pin.key, "generation": pin.generation}))


COMMANDS: Mapping[str, Callable[..., None]] = {
    "write": write,
    "check": check,
    "update": update,
    "combine": combine,
    "pins": pins,
    "info": info,
}
"""The commands of the group, by name."""


# -- arguments ---------------------------------------------------------------------------------------------------------


def _format(given: str | None, target: str) -> str:
    if given is None:
        return "json" if target.endswith(JSON_SUFFIXES) else "parquet"
    if given not in ("json", "parquet"):
        raise InvalidInput(f"--format {given} is neither json nor parquet")
    return given


def _flavour(given: str) -> Flavour:
    for flavour in get_args(Flavour):
        if given == flavour:
            return flavour  # type: ignore[no-any-return]  # one of its values
    raise InvalidInput(f"--flavour {given} is not one of {', '.join(get_args(Flavour))}")


def _paths(include: list[str] | None, exclude: list[str] | None, shards: list[str] | None) -> dict[str, Any] | None:
    """Return the choices by pattern, in the order in which they count."""
    if twice := set(exclude or ()) & {*(include or ()), *(shards or ())}:
        raise InvalidInput(f"pattern {min(twice)} is given to --exclude and also to --include or --whole-shards: give it once")
    paths: dict[str, Any] = dict.fromkeys(exclude or ())
    if include and "*" not in include:
        if shards and set(include) != set(shards):
            raise InvalidInput("with --include, each pattern of --whole-shards must be one of --include too; --exclude leaves arrays out")
        paths |= dict.fromkeys(shards or include, "shards" if shards else "chunks") | {"*": None}
    else:
        paths |= dict.fromkeys(shards or (), "shards")
    return paths or None


@contextmanager
def _progress(advice: str) -> Iterator[Callable[[ReferenceProgress], None]]:
    with interruptible(lambda: advice), step_bar() as bar:
        yield lambda found: bar(found.step())


# -- output ------------------------------------------------------------------------------------------------------------


def _show_report(report: ReferenceReport, as_json: bool) -> None:
    counts = f"{plural(report.arrays, 'array')}, {plural(report.references, 'reference')} to {plural(report.targets, 'object')}"
    lines = [f"{counts}, {size(report.nbytes)}"]
    if report.missing:
        lines.append(f"{report.missing:,} chunks do not exist in the source, which is no error: readers see the fill value there")
    lines += [f"{report.inlined:,} chunks are in the set itself"] if report.inlined else []
    lines += [f"documents of Zarr {report.flavour}: {report.why}"]
    lines += [f"left out: {path or '(root)'}: {why}" for path, why in list(report.left_out.items())[:_MOST_SHOWN]]
    if not report.is_pinned:
        lines.append(_NOT_PINNED)
    print_result(as_json, asdict(report), *lines, "", report.how_to_open)


def _check_lines(report: CheckReport) -> Iterator[str]:
    for what, keys in (("changed", report.changed), ("gone", report.gone), ("new", report.new), ("wrong", report.wrong)):
        for key in keys[:_MOST_SHOWN]:
            yield f"{key}: {what}"
        if len(keys) > _MOST_SHOWN:
            yield f"… and {len(keys) - _MOST_SHOWN:,} more {what} (--json)"
    counts = f"{len(report.changed):,} changed, {len(report.gone):,} gone, {len(report.new):,} new"
    yield f"{plural(report.objects, 'object')} of {report.store}: {counts}"
