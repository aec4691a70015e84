"""Steps of long work in words, and lines of them now and then, for where no bar can be drawn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shardstore.model.words import size

_SECONDS_A_LINE = 10.0
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


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run that moves or rewrites objects."""

    phase: str
    """The phase: of packing ``"listing"``, ``"checking"``, ``"packing"`` or ``"finishing"``; of compaction and repair ``"looking"`` at the
    indices of all shards, then ``"working"`` on some of them.
    """
    objects: int = 0
    """The number of objects that are done in this phase: of the source, or shards."""
    total_objects: int | None = None
    """The total; ``None`` while the listing goes on."""
    nbytes: int = 0
    total_nbytes: int | None = None
    """The total of bytes; ``None`` if the phase is not counted in bytes."""
    failed: int = 0

    def step(self, actions: Mapping[str, str], noun: str = "objects") -> Step:
        """Return the step that is shown; ``actions`` are words for the phases."""
        nbytes, total = (self.nbytes, self.total_nbytes) if self.total_nbytes else (None, None)
        return Step(actions[self.phase], self.objects, self.total_objects, nbytes, total, self.failed, noun)


Report = Callable[[Step], None]


class Rate:
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


def amount_of(step: Step) -> tuple[int, int | None, int]:
    """Return how much is done, the total, and whether these are objects (0) or bytes (1): bytes where their total is known."""
    if step.nbytes is not None and step.total_nbytes is not None:
        return step.nbytes, step.total_nbytes, 1
    return step.objects, step.total_objects, 0


class Lines:
    """A writer of lines: after a while one when an action begins, and then one every ten seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rate = Rate(clock)
        self._action = ""
        self._last = 0.0
        self._began = clock()
        self._unsaid: Step | None = None
        self._said: Step | None = None

    def __call__(self, step: Step) -> None:
        if step == self._said:
            return  # nothing was done since
        self._unsaid = step
        rate = self._rate.of(step)
        now = self._clock()
        if now - self._began < _QUIET_SECONDS or (step.action == self._action and now - self._last < _SECONDS_A_LINE):
            return
        self._action, self._last = step.action, now
        self._say(step, rate)

    def end(self) -> None:
        """Write a line of the last step, unless it has one."""
        if self._unsaid is not None:
            self._say(self._unsaid, self._rate.of(self._unsaid))

    def _say(self, step: Step, rate: tuple[float, float] | None) -> None:
        self._unsaid, self._said = None, step
        done, total, which = amount_of(step)
        left = f", about {_duration((total - done) / rate[which])} left" if rate and rate[which] and total is not None else ""
        sys.stderr.write(f"{step.action}: {line_of(parts_of(step, rate))}{left}\n")
        sys.stderr.flush()


@dataclass(frozen=True, slots=True)
class LinePart:
    """A part of a line. Where there is no room, parts are dropped in the order of ``given_up``, the least first; those of 0 stay."""

    text: str
    given_up: int = 0


def parts_of(step: Step, rate: tuple[float, float] | None) -> list[LinePart]:
    """Return what a line says of a step, with the rate of objects and bytes."""
    objects = f"{step.objects:,}" if step.total_objects is None else f"{step.objects:,} of {step.total_objects:,}"
    parts = [LinePart(f"{objects} {step.noun}", 3 if step.nbytes is not None else 0)]
    if step.nbytes is not None:
        parts.append(LinePart(size(step.nbytes) if step.total_nbytes is None else f"{size(step.nbytes)} of {size(step.total_nbytes)}", 2))
    if rate and any(rate):
        parts.append(LinePart(f"{rate[0]:,.0f} {step.noun}/s" if step.nbytes is None else f"{size(int(rate[1]))}/s", 1))
    if step.failed:
        parts.append(LinePart(f"{step.failed:,} failed"))
    return parts


def line_of(parts: list[LinePart]) -> str:
    """Return the parts as one line."""
    return ", ".join(part.text for part in parts)


def _duration(seconds: float) -> str:
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
