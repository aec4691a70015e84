"""``shardstore verify`` and ``census``: check that stored data are sound, and count the chunks that exist."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from shardstore.adapters.store_paths import StorePath, resolve
from shardstore.adapters.tools.verification import census_step, decoder, picture_saver, verify_step
from shardstore.apps.cli.arguments import AsJson, Explain, PairOptions, StorageOptions, Url
from shardstore.apps.cli.execution import WorkOptions, check_writable, unfinished_pack
from shardstore.apps.cli.output import ExitCode, alike, complain, end, exit_code, has_colours, message, print_json, show, show_more, wrapped
from shardstore.errors import InvalidInput, NotFound
from shardstore.maintenance.census import ArrayCensus, Census, merged, read_census, take_census
from shardstore.maintenance.execution import Execution
from shardstore.maintenance.verify.findings import Detectable, Finding
from shardstore.maintenance.verify.run import ArrayVerified, Copy, VerifyReport, verify_engine
from shardstore.model.options import OUTPUT, CommandOption
from shardstore.model.words import count, plural, shape, size

_ARRAYS_NAMED = 8


def verify(
    *,
    url: Url,
    deep: Annotated[bool, CommandOption("Decode every chunk.")] = False,
    against: Annotated[str | None, CommandOption("Compare with another copy, chunk by chunk.", "URL")] = None,
    census: Annotated[
        list[Path] | None,
        CommandOption("Compare with a census, or with all its parts; repeatable.", "FILE"),
    ] = None,
    explain: Explain = False,
    work: WorkOptions,
    as_json: AsJson = False,
    storage: PairOptions,
) -> None:
    """Check that stored data is sound: metadata, indices, bounds and checksums. Writes nothing.

    Chunks are read if they have checksums, or with --deep. The verdict comes first; --explain adds which damage can be found, and which
    cannot. Errors make readers fail or see wrong values: the exit code is 5 then. Notes are about what harms no reader.

    Examples:
      shardstore verify data.zarr
      shardstore verify --deep s3://bucket/data.zarr/ct -o anon=true
      shardstore verify packed.zarr --against s3://bucket/original.zarr
      shardstore verify data.zarr --census monday.census
      shardstore verify --json s3://bucket/data.zarr --part 3/16
    """
    expected = merged([read_census(file) for file in census]) if census else None
    target = storage.resolve(url)
    _check_complete(target)
    copy = None
    if against is not None:
        there = resolve(against, storage.parsed_pair(url, against)[1])
        copy = Copy(there.engine.canonical, there.path)
    advice = "nothing was changed, and the findings so far are not shown; --part I/N verifies in smaller pieces"
    with work.running(advice, verify_step) as (arguments, progress):
        report = verify_engine(
            target.engine.canonical,
            target.path,
            execution=Execution.of(**arguments),
            decoder=decoder() if deep else None,
            census=expected,
            against=copy,
            progress=progress,
            shown=str(target),
        )
    if as_json:
        print_json(report.to_json())
    else:
        _show_verified(str(target), report, explain=explain)
    work.write_failures(report.unread)
    sys.stdout.flush()
    if report.unread:
        first = report.unread[0]
        complain("error", f"{plural(len(report.unread), 'object')} could not be read, the first of them {first.key}: {first.error}")
    if report.errors:
        end(ExitCode.CORRUPT, f"{plural(report.errors, 'error was', 'errors were')} found")
    if report.unread:
        raise typer.Exit(exit_code(report.unread[0].error))


# -- for people --------------------------------------------------------------------------------------------------------


def _check_complete(target: StorePath) -> None:
    """Raise ``NotFound`` if a pack into the place has not ended: its objects belong to no node yet, and are not to be removed."""
    if not target.has_root and (why := unfinished_pack(target)) is not None:
        raise NotFound(f"{target} is not complete: {why}")


def _verdict(where: str, report: VerifyReport) -> Text:
    amounts = f"{plural(report.errors, 'error')}, {plural(report.notes, 'note')}"
    if report.errors:
        return Text.assemble((where, "bold"), ": ", ("damaged", "bold red"), f": {amounts}")
    if report.unread:
        unread = f"{plural(len(report.unread), 'object')} could not be read"
        return Text.assemble((where, "bold"), ": ", (unread, "bold red"), f": {amounts}")
    return Text.assemble((where, "bold"), ": ", ("sound", "bold green") if report.arrays else "no array was found", f": {amounts}")


def _show_verified(where: str, report: VerifyReport, *, explain: bool) -> None:
    arrays, objects = plural(len(report.arrays), "array"), plural(report.objects, "object")
    show(_verdict(where, report), Text(f"{arrays}, {objects}, {size(report.nbytes_read)} read"))
    errors = [finding for finding in report.findings if finding.severity == "error"]
    notes = [finding for finding in report.findings if finding.severity == "note"]
    if errors or notes:
        show("")
    _show_findings("error  ", "bold red", errors, report.errors)
    _show_findings("note   ", "yellow", notes, report.notes)
    if report.arrays:
        show("", *map(_array, report.arrays))
    if explain:
        _show_detectable(report)
    elif report.arrays:
        show("", Text("--explain shows which damage this can find, and which it cannot"))


def _show_detectable(report: VerifyReport) -> None:
    for arrays_alike in _by_detectable(report.arrays):
        show("", wrapped("in ", _named(arrays_alike, report.arrays), "dim"))
        for label, sentences in (("detects", arrays_alike[0].detectable.found), ("cannot detect", arrays_alike[0].detectable.missed)):
            for sentence in sentences:
                show(wrapped(f"{label}  ", sentence, "dim", indent=2))


def _show_findings(label: str, style: str, findings: Sequence[Finding], total: int) -> None:
    for first, more in alike(findings, lambda finding: finding.what, lambda finding: (finding.path, finding.kind)):
        show(wrapped(label, _said(first), style))
        show_more([other.key or other.path or "/" for other in more], " " * len(label))
    if len(findings) < total:
        show(f"{' ' * len(label)}and {count(total - len(findings))} more, which are not listed")


def _by_detectable(arrays: Sequence[ArrayVerified]) -> list[list[ArrayVerified]]:
    groups: dict[Detectable, list[ArrayVerified]] = {}
    for array in arrays:
        groups.setdefault(array.detectable, []).append(array)
    return list(groups.values())


def _named(some: Sequence[ArrayVerified], arrays: Sequence[ArrayVerified]) -> str:
    if len(some) == len(arrays) > 1:
        return "all arrays"
    named = [array.path or "/" for array in some[:_ARRAYS_NAMED]]
    return ", ".join(named) + (f" and {count(len(some) - len(named))} more" if len(some) > len(named) else "")


def _array(array: ArrayVerified) -> Text:
    looked_at = f"{plural(array.objects, 'object')}, {plural(array.chunks, 'chunk')}"
    return Text.assemble((array.path or "/", "bold cyan"), f"  {looked_at}, {plural(array.errors, 'error')}")


def _said(finding: Finding) -> str:
    return f"{finding.kind}  {finding.key or finding.path or '/'}: {finding.what}. {finding.remedy[:1].upper()}{finding.remedy[1:]}"


_AXES = re.compile(r"([0-9]{1,2}),([0-9]{1,2})")

# Of a picture in the terminal: half blocks with colours, or shades if there are none.
_COLUMNS = 64
_LINES = 16
_SHADES = " ░▒▓█"
_EMPTY, _FULL = (44, 48, 56), (96, 190, 255)  # red, green, blue


def census(
    *,
    url: Url,
    output: Annotated[Path | None, OUTPUT] = None,
    contents: Annotated[bool, CommandOption("Read objects whole, for digests of all their bytes.")] = False,
    draw: Annotated[bool, CommandOption("Draw each array in the terminal.")] = False,
    picture: Annotated[Path | None, CommandOption("Draw all arrays into a .png or .svg file.", "FILE")] = None,
    axes: Annotated[str | None, CommandOption("The two axes that pictures show.", "I,J", default="the longest two")] = None,
    work: WorkOptions,
    as_json: AsJson = False,
    storage: StorageOptions,
) -> None:
    """Count which chunks exist, array by array. The result is a table, a compact file, or a picture.

    Makes one listing, and one request for the index of each shard. The exit code is 5 if an index cannot be read. Each part stores a census
    of its own: give all of them to shardstore verify --census.

    Examples:
      shardstore census data.zarr
      shardstore census s3://bucket/data.zarr --output monday.census
      shardstore census s3://bucket/data.zarr --part 3/16 --output 3.census
      shardstore census data.zarr/ct --draw --picture ct.png --axes 0,2
    """
    chosen = None if axes is None else _axes(axes)
    save = None if picture is None else picture_saver()
    target = storage.resolve(url)
    for name, file in (("--output", output), ("--picture", picture)):
        check_writable(name, file)
    if work.failed_from is not None and output is not None and output.exists():
        raise InvalidInput(f"--output {output} exists, and a census of only what failed would replace it: give another file")
    with work.running("nothing was stored; --part I/N counts in smaller pieces", census_step) as (arguments, progress):
        taken = take_census(
            target.engine.canonical,
            target.path,
            of_contents=contents,
            execution=Execution.of(**arguments),
            progress=progress,
            shown=str(target),
        )
    if as_json:
        print_json(_census_document(taken))
    else:
        _show_census(taken, draw, chosen)
    work.write_failures(taken.failed)
    if output is not None:
        taken.write(output)
    if picture is not None and save is not None:
        save(taken, picture, chosen)
    if taken.damaged:
        shards = plural(len(taken.damaged), "shard")
        end(ExitCode.CORRUPT, f"{shards} could not be counted, the first of them {taken.damaged[0]}: its index is damaged")
    if taken.failed:
        objects, first = plural(len(taken.failed), "object"), taken.failed[0]
        missing = f"{objects} could not be read and are not in the census"
        end(exit_code(first.error), f"{missing}, the first of them {first.key}: {message(first.error)}")


def _axes(text: str) -> tuple[int, int]:
    match = _AXES.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(f"axes {text!r} are not of the form I,J, such as 0,2")
    return int(match[1]), int(match[2])


def _census_document(taken: Census) -> dict[str, Any]:
    failed = [{"key": unread.key, "error": str(unread.error)} for unread in taken.failed]
    return {"arrays": [_array_document(array) for array in taken.arrays], "damaged": list(taken.damaged), "failed": failed}


def _array_document(array: ArrayCensus) -> dict[str, Any]:
    shapes = {name: getattr(array, name) for name in ("path", "shape", "chunk_shape", "chunks_per_object", "chunk_grid", "object_grid")}
    counts = {name: getattr(array, name) for name in ("objects", "possible_objects", "chunks", "possible_chunks", "stored_nbytes")}
    return shapes | {"sharded": array.is_sharded} | counts


def _show_census(taken: Census, draw: bool, axes: tuple[int, int] | None) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("array", style="bold cyan")
    for name in ("grid of chunks", "chunks", "of", "", "objects", "of ", "bytes"):
        table.add_column(name, justify="right")
    for array in taken.arrays:
        share = f"{array.chunks / array.possible_chunks:.1%}" if array.possible_chunks else ""
        numbers = (count(n) for n in (array.chunks, array.possible_chunks))
        objects = (count(n) for n in (array.objects, array.possible_objects))
        table.add_row(array.path or "/", shape(array.chunk_grid), *numbers, share, *objects, size(array.stored_nbytes))
    show(table)
    for array in taken.arrays if draw else ():
        if lines := _picture(array, axes):
            show("", Text(array.path or "/", "bold cyan"), *lines)


def _picture(array: ArrayCensus, axes: tuple[int, int] | None) -> list[Text]:
    """Return lines of cells, framed; a cell is brighter the more of its chunks exist."""
    colours = has_colours()
    cells = array.density(_LINES * (2 if colours else 1), _COLUMNS, axes).cells
    rows = cells.tolist()
    width = len(rows[0]) if rows else 0
    if not width:
        return []
    lines = [Text("┌" + "─" * width + "┐", "dim")]
    step = 2 if colours else 1
    for top in range(0, len(rows), step):
        line = Text("│", "dim")
        for column in range(width):
            if not colours:
                line.append(_shade(rows[top][column]), "none")
            elif top + 1 < len(rows):
                line.append("▀", f"{_colour(rows[top][column])} on {_colour(rows[top + 1][column])}")
            else:
                line.append("▀", _colour(rows[top][column]))
        lines.append(line.append("│", "dim"))
    return [*lines, Text("└" + "─" * width + "┘", "dim")]


def _shade(share: float) -> str:
    """Return the shade of a share of chunks: any existing chunk is visible, and only a complete cell is full."""
    if share in (0.0, 1.0):
        return _SHADES[int(share) * (len(_SHADES) - 1)]
    return _SHADES[1 + min(len(_SHADES) - 3, int(share * (len(_SHADES) - 2)))]


def _colour(share: float) -> str:
    if 0 < share < 0.15:
        share = 0.15
    red, green, blue = (round(low + (high - low) * share) for low, high in zip(_EMPTY, _FULL, strict=True))
    return f"#{red:02x}{green:02x}{blue:02x}"
