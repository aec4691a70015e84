"""The bar of long work on a terminal, drawn by rich, which is an extra; without it, and elsewhere, there are lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

from shardstore.progress.steps import LinePart, Rate, Report, Step, amount_of, line_of, parts_of

_LEAST_BAR, _MOST_BAR = 10, 40  # columns
_OTHER_COLUMNS = 1 + 4 + 7 + 5  # of the screen: the spinner, the percentage, the time left, and the gaps between six columns


def stderr_console() -> Console:
    """Return the console that the bar is drawn on."""
    return Console(file=sys.stderr, highlight=False, markup=False, emoji=False)


@contextmanager
def drawn_bar(clock: Callable[[], float] = time.monotonic) -> Iterator[Report]:
    """Draw steps on stderr, which is a terminal, during the block; may be called from any thread."""
    console = stderr_console()
    bar = BarColumn()
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        bar,
        TaskProgressColumn(),
        TextColumn("{task.fields[said]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None, said="")
        rate = Rate(clock)

        def show(step: Step) -> None:
            done, total, _ = amount_of(step)
            room = console.width - _OTHER_COLUMNS - cell_len(step.action)
            said = _fitting(parts_of(step, rate.of(step)), room - _LEAST_BAR)
            bar.bar_width = max(_LEAST_BAR, min(_MOST_BAR, room - cell_len(said)))
            progress.update(task, description=step.action, completed=done, total=total, said=said)

        yield show


def _fitting(parts: list[LinePart], width: int) -> str:
    """Return the parts in one line of at most ``width`` columns, as far as enough of them can be dropped."""
    kept = list(parts)
    while cell_len(line := line_of(kept)) > width and (loose := [part for part in kept if part.given_up]):
        kept.remove(min(loose, key=lambda part: part.given_up))
    return line
