"""The results as pictures: one SVG a storage and run, with a bar for each contender at each workload."""

from __future__ import annotations

from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure
from results import PER_OPERATION, Run
from words import duration

_COLUMNS = 3
_COLOURS = {"shardstore": "#0b6e4f", "limit": "#9aa0a6", "zarr-python": "#d1783a", "tensorstore": "#3b6fb6", "import": "#d1783a"}
_LIMITS = ("bytes alone", "bytes and codecs", "requests alone", "requests and codecs")


def draw(run: Run, storage: str, path: Path) -> bool:
    """Write the picture of a storage; ``False`` where nothing was measured on it."""
    cells = [cell for cell in run.plain_cells if cell["storage"] == storage]
    measured = [(cell, names) for cell in cells if (names := _measured(cell))]
    if not measured:
        return False
    rows = -(-len(measured) // _COLUMNS)
    height = max(len(names) for _, names in measured) * 0.24 + 0.9
    figure = Figure(figsize=(13.5, rows * height), layout="constrained")
    for number, (cell, names) in enumerate(measured):
        axes = figure.add_subplot(rows, _COLUMNS, number + 1)
        workload = cell["workload"]
        seconds = [run.seconds(workload, storage, name, per_operation=workload in PER_OPERATION) for name in names]
        bars = axes.barh(names, seconds, color=[_colour(name) for name in names])
        axes.bar_label(bars, [duration(value) for value in seconds], padding=3, fontsize=8)
        axes.invert_yaxis()
        axes.set_title(f"{workload}, each" if workload in PER_OPERATION else workload, fontsize=10)
        axes.tick_params(labelsize=8)
        axes.set_xlim(0, max(seconds) * 1.25)
        axes.set_xticks([])
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Neither dates nor random ids: the same results give the same file. Letters stay text.
    with rc_context({"svg.hashsalt": "shardstore", "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata={"Date": None})
    return True


def _measured(cell: dict[str, dict[str, dict[str, object]]]) -> list[str]:
    return [name for name, entry in cell["entries"].items() if entry["rounds"] and not entry["error"]]


def _colour(name: str) -> str:
    if name in _LIMITS:
        return _COLOURS["limit"]
    first = name.partition(",")[0].removeprefix("import ")
    return _COLOURS.get(first, _COLOURS["import"])
