"""``shardstore census``: counts the chunks that exist."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from shardstore.adapters.tools.verification import census_step, picture_saver
from shardstore.apps.cli.arguments import AsJson, StorageOptions, Url
from shardstore.apps.cli.execution import WorkOptions, check_writable
from shardstore.apps.cli.failures import ExitCode, exit_code, message
from shardstore.apps.cli.output import complain, has_colours, print_json, show
from shardstore.errors import InvalidInput
from shardstore.maintenance.census import ArrayCensus, Census, take_census
from shardstore.maintenance.execution import Execution
from shardstore.model.words import count, plural, shape, size
from shardstore.progress.shown import step_bar

_AXES = re.compile(r"([0-9]{1,2}),([0-9]{1,2})")

# Of a picture in the terminal: half blocks with colours, or shades if there are none.
_COLUMNS = 64
_LINES = 16
_SHADES = " ░▒▓█"
_EMPTY, _FULL = (44, 48, 56), (96, 190, 255)  # red, green, blue


def census(
    *,
    url: Url,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Store the census in this file, for shardstore verify --census.", show_default=False),
    ] = None,
    contents: Annotated[
        bool, typer.Option("--contents", help="Read every object whole and store its digest, not only that of its index.")
    ] = False,
    draw: Annotated[bool, typer.Option("--draw", help="Draw each array in the terminal.")] = False,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE", help="Draw all arrays into a .png or .svg file.", show_default=False)
    ] = None,
    axes: Annotated[
        str | None,
        typer.Option("--axes", metavar="I,J", help="The two axes that pictures show; by default the longest two.", show_default=False),
    ] = None,
    work: WorkOptions,
    as_json: AsJson = False,
    storage: StorageOptions,
) -> None:
    """Count which chunks exist, array by array, as a table, a compact file, and a picture.

    Makes one listing, and one request for the index of each shard. Shards whose index cannot be read are listed; the exit code is 5 then.
    Each part stores a census of its own: give all of them to shardstore verify.

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
    if work.only_failed is not None and output is not None and output.exists():
        raise InvalidInput(f"--output {output} exists, and a census of only what failed would replace it: give another file")
    with work.arguments("nothing was stored; --part I/N counts in smaller pieces") as arguments, step_bar() as bar:
        taken = take_census(
            target.engine.canonical,
            target.path,
            of_contents=contents,
            execution=Execution.of(**arguments),
            progress=lambda objects, nbytes, total: bar(census_step(objects, nbytes, total)),
            shown=str(target),
        )
    if as_json:
        print_json(_document(taken))
    else:
        _show(taken, draw, chosen)
    work.write_failures(taken.failed)
    if output is not None:
        taken.write(output)
    if picture is not None and save is not None:
        save(taken, picture, chosen)
    if taken.damaged:
        sys.stdout.flush()
        shards = plural(len(taken.damaged), "shard")
        complain("error", f"{shards} could not be counted, the first of them {taken.damaged[0]}: its index is damaged")
        raise typer.Exit(ExitCode.CORRUPT)
    if taken.failed:
        sys.stdout.flush()
        objects, first = plural(len(taken.failed), "object"), taken.failed[0]
        complain("error", f"{objects} could not be read and are not in the census, the first of them {first.key}: {message(first.error)}")
        raise typer.Exit(exit_code(first.error))


def _axes(text: str) -> tuple[int, int]:
    match = _AXES.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(f"axes {text!r} are not of the form I,J, such as 0,2")
    return int(match[1]), int(match[2])


def _document(taken: Census) -> dict[str, Any]:
    failed = [{"key": unread.key, "error": str(unread.error)} for unread in taken.failed]
    return {"arrays": [_array_document(array) for array in taken.arrays], "damaged": list(taken.damaged), "failed": failed}


def _array_document(array: ArrayCensus) -> dict[str, Any]:
    shapes = {name: getattr(array, name) for name in ("path", "shape", "chunk_shape", "chunks_per_object", "chunk_grid", "object_grid")}
    counts = {name: getattr(array, name) for name in ("objects", "possible_objects", "chunks", "possible_chunks", "stored_nbytes")}
    return shapes | {"sharded": array.is_sharded} | counts


def _show(taken: Census, draw: bool, axes: tuple[int, int] | None) -> None:
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
