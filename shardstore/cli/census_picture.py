"""A census in the terminal: half blocks with colours, or shades where there are none."""

from __future__ import annotations

from rich.text import Text

from shardstore.cli.output import has_colours
from shardstore.maintenance.census.density import density
from shardstore.maintenance.census.file import ArrayCensus

_COLUMNS = 64
_LINES = 16
_SHADES = " ░▒▓█"
_EMPTY, _FULL = (44, 48, 56), (96, 190, 255)  # red, green, blue


def picture(array: ArrayCensus, axes: tuple[int, int] | None = None) -> list[Text]:
    """Return lines of cells, framed; a cell is brighter the more of its chunks exist."""
    colours = has_colours()
    cells = density(array, _LINES * (2 if colours else 1), _COLUMNS, axes).cells
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
