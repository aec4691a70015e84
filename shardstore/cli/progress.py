"""The progress of long work: a bar on a terminal, and a line now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from rich.cells import cell_len
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

from shardstore.cli.output import stderr_console
from shardstore.model.words import size

_SECONDS_A_LINE = 10.0
_LEAST_BAR, _MOST_BAR = 10, 40  # columns
_OTHER_COLUMNS = 1 + 4 + 7 + 5  # of the screen: the spinner, the percentage, the time left, and the gaps between six columns
_SILENT_SECONDS = 4.0
_QUIET_SECONDS = 2.0  # work that takes no longer needs no lines


@dataclass(frozen=True, slots=True)
class Step:
    """One step: the action, and how much of it is done: objects and bytes, with the totals where these are known."""

    action: str
    objects: int
    total_objects: int | None = None
    nbytes: int | None = None
    total_nbytes: int | None = None
    failed: int = 0
    noun: str = "objects"


Report = Callable[[Step], None]


@contextmanager
def step_bar(clock: Callable[[], float] = time.monotonic) -> Iterator[Report]:
    """Show steps on stderr during the block; may be called from any thread."""
    if not sys.stderr.isatty():
        yield _Lines(clock)
        return
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
        rate = _Rate(clock)

        def show(step: Step) -> None:
            done, total, _ = _amount(step)
            room = console.width - _OTHER_COLUMNS - cell_len(step.action)
            said = _fitting(_parts(step, rate.of(step)), room - _LEAST_BAR)
            bar.bar_width = max(_LEAST_BAR, min(_MOST_BAR, room - cell_len(said)))
            progress.update(task, description=step.action, completed=done, total=total, said=said)

        yield show


class ProgressBar(Protocol):
    """A progress bar; may be called from any thread."""

    def __call__(self, done: int, total: int | None = None, nbytes: int | None = None) -> None: ...


@contextmanager
def progress_bar(action: str, noun: str) -> Iterator[ProgressBar]:
    """Show the bar of a single action during the block, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total=None, nbytes=None: None
        return
    with step_bar() as report:
        yield lambda done, total=None, nbytes=None: report(Step(action, done, total, nbytes, noun=noun))


@contextmanager
def said_if_slow(text: str, after_seconds: float = _SILENT_SECONDS) -> Iterator[None]:
    """Print ``text`` on stderr, if that is a terminal, after the block has taken so long."""
    if not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(after_seconds, lambda: stderr_console().print(f"{text} …"))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class _Rate:
    """The rate per second since the present action began."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._action = ""
        self._began = (0.0, 0, 0)

    def of(self, step: Step) -> tuple[float, float] | None:
        """Return objects and bytes per second, or ``None``."""
        now = self._clock()
        if step.action != self._action:
            self._action, self._began = step.action, (now, step.objects, step.nbytes or 0)
        began, objects, nbytes = self._began
        seconds = now - began
        return None if seconds <= 0 else ((step.objects - objects) / seconds, ((step.nbytes or 0) - nbytes) / seconds)


def _amount(step: Step) -> tuple[int, int | None, int]:
    """Return how much is done, the total, and whether these are objects (0) or bytes (1): bytes where their total is known."""
    if step.nbytes is not None and step.total_nbytes is not None:
        return step.nbytes, step.total_nbytes, 1
    return step.objects, step.total_objects, 0


class _Lines:
    """A writer of lines: after a while one when an action begins, and then one every ten seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rate = _Rate(clock)
        self._action = ""
        self._last = 0.0
        self._began = clock()

    def __call__(self, step: Step) -> None:
        rate = self._rate.of(step)
        now = self._clock()
        if now - self._began < _QUIET_SECONDS or (step.action == self._action and now - self._last < _SECONDS_A_LINE):
            return
        self._action, self._last = step.action, now
        done, total, which = _amount(step)
        left = f", about {_duration((total - done) / rate[which])} left" if rate and rate[which] and total is not None else ""
        stderr_console().print(f"{step.action}: {_said(step, rate)}{left}")


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a line. Where there is no room, parts are dropped in the order of ``given_up``, the least first; those of 0 stay."""

    text: str
    given_up: int = 0


def _parts(step: Step, rate: tuple[float, float] | None) -> list[_Part]:
    objects = f"{step.objects:,}" if step.total_objects is None else f"{step.objects:,} of {step.total_objects:,}"
    parts = [_Part(f"{objects} {step.noun}", 3 if step.nbytes is not None else 0)]
    if step.nbytes is not None:
        parts.append(_Part(size(step.nbytes) if step.total_nbytes is None else f"{size(step.nbytes)} of {size(step.total_nbytes)}", 2))
    if rate and any(rate):
        parts.append(_Part(f"{rate[0]:,.0f} {step.noun}/s" if step.nbytes is None else f"{size(int(rate[1]))}/s", 1))
    if step.failed:
        parts.append(_Part(f"{step.failed:,} failed"))
    return parts


def _fitting(parts: list[_Part], width: int) -> str:
    """Return the parts in one line of at most ``width`` columns, as far as enough of them can be dropped."""
    kept = list(parts)
    while cell_len(line := _line(kept)) > width and (loose := [part for part in kept if part.given_up]):
        kept.remove(min(loose, key=lambda part: part.given_up))
    return line


def _line(parts: list[_Part]) -> str:
    return ", ".join(part.text for part in parts)


def _said(step: Step, rate: tuple[float, float] | None) -> str:
    return _line(_parts(step, rate))


def _duration(seconds: float) -> str:
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
