"""How far a long work has come: a bar on a terminal, and a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

from shardstore.cli.output import size, stderr_console

_SECONDS_A_LINE = 10.0
_QUIET_SECONDS = 2.0  # work that takes no longer needs no lines


@dataclass(frozen=True, slots=True)
class Step:
    """What is being done, and how much of it is: objects and bytes, of so many where that is known."""

    action: str
    objects: int
    total_objects: int | None = None
    nbytes: int | None = None
    total_nbytes: int | None = None
    failed: int = 0
    noun: str = "objects"


Report = Callable[[Step], None]


@contextmanager
def transfer_bar(clock: Callable[[], float] = time.monotonic) -> Iterator[Report]:
    """Shows steps on stderr for the block; may be called from any thread."""
    if not sys.stderr.isatty():
        yield _Lines(clock)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[said]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr_console(), transient=True) as progress:
        task = progress.add_task("", total=None, said="")
        rate = _Rate(clock)

        def show(step: Step) -> None:
            done, total, _ = _amount(step)
            progress.update(task, description=step.action, completed=done, total=total, said=_said(step, rate.of(step)))

        yield show


class _Rate:
    """A second, since the present action began."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._action = ""
        self._began = (0.0, 0, 0)

    def of(self, step: Step) -> tuple[float, float] | None:
        """Objects and bytes."""
        now = self._clock()
        if step.action != self._action:
            self._action, self._began = step.action, (now, step.objects, step.nbytes or 0)
        began, objects, nbytes = self._began
        seconds = now - began
        return None if seconds <= 0 else ((step.objects - objects) / seconds, ((step.nbytes or 0) - nbytes) / seconds)


def _amount(step: Step) -> tuple[int, int | None, int]:
    """How much is done, of how much, and whether that is objects (0) or bytes (1): these where it is known how many there are."""
    if step.nbytes is not None and step.total_nbytes is not None:
        return step.nbytes, step.total_nbytes, 1
    return step.objects, step.total_objects, 0


class _Lines:
    """After a while a line when an action begins, and then every ten seconds."""

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


def _said(step: Step, rate: tuple[float, float] | None) -> str:
    objects = f"{step.objects:,}" if step.total_objects is None else f"{step.objects:,} of {step.total_objects:,}"
    said = [f"{objects} {step.noun}"]
    if step.nbytes is not None:
        said.append(size(step.nbytes) if step.total_nbytes is None else f"{size(step.nbytes)} of {size(step.total_nbytes)}")
    if rate and any(rate):
        said.append(f"{rate[0]:,.0f} {step.noun}/s" if step.nbytes is None else f"{size(int(rate[1]))}/s")
    if step.failed:
        said.append(f"{step.failed:,} failed")
    return ", ".join(said)


def _duration(seconds: float) -> str:
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
