"""A census as an image, drawn by matplotlib: the one module that imports it."""

from __future__ import annotations

import os
from math import ceil
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from shardstore.errors import InvalidInput
from shardstore.maintenance.census import ArrayCensus, Census

_CELLS = 512  # a side, at most
_MOST_ARRAYS = 64
_ACROSS = 4
_CANVASES = {".png": FigureCanvasAgg, ".svg": FigureCanvasSVG}


def save_picture(census: Census, path: str | os.PathLike[str], axes: tuple[int, int] | None = None) -> None:
    """Draw one panel for each array, at most 64: dark if all chunks exist, white if none does. The file is ``.png`` or ``.svg``.

    ``axes`` are as ``density`` has them.

    Raises:
        InvalidInput: the name ends otherwise, or the axes are not two.
    """
    canvas = _CANVASES.get(Path(path).suffix.lower())
    if canvas is None:
        raise InvalidInput(f"{os.fspath(path)!r} is not the name of a picture: it has to end with {' or '.join(_CANVASES)}")
    arrays = [array for array in census.arrays if array.possible_chunks][:_MOST_ARRAYS]
    across = min(_ACROSS, max(1, len(arrays)))
    down = max(1, ceil(len(arrays) / across))
    figure = Figure(figsize=(4 * across, 3.6 * down), layout="constrained")
    canvas(figure)  # type: ignore[no-untyped-call,unused-ignore]  # without matplotlib installed it has no type at all
    for number, array in enumerate(arrays):
        _draw(figure, array, (down, across, number + 1), axes)
    # No date: the same census gives the same file.
    figure.savefig(path, metadata={"Date": None} if canvas is FigureCanvasSVG else {"Software": None})


def _draw(figure: Figure, array: ArrayCensus, place: tuple[int, int, int], axes: tuple[int, int] | None) -> None:
    seen = array.density(_CELLS, _CELLS, axes)
    panel = figure.add_subplot(*place)
    extent = (0, seen.chunks[1], seen.chunks[0], 0)
    panel.imshow(seen.cells, cmap="Blues", vmin=0, vmax=1, interpolation="nearest", aspect="auto", extent=extent)
    panel.set_title(f"{array.path or '/'}\n{array.chunks:,} of {array.possible_chunks:,} chunks", fontsize=9)
    down, across = seen.axes
    panel.set_ylabel("" if down is None else f"chunk along axis {down}", fontsize=8)
    panel.set_xlabel("" if across is None else f"chunk along axis {across}", fontsize=8)
    panel.tick_params(labelsize=7)
    if down is None:
        panel.set_yticks([])
