"""Durations, as options of functions and of commands take them."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from shardstore.errors import InvalidInput

Duration: TypeAlias = timedelta | str | float
"""A ``timedelta``, or a text such as ``"7d"``, ``"12h"``, ``"90min"`` or ``"0.5s"``. The only numbers are 0 and ``math.inf``, which need no
unit.
"""

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_TEXT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)", re.ASCII)


def seconds_of(name: str, given: object) -> float:
    """Return a duration in seconds; ``name`` is the option's, for the message.

    Raises:
        InvalidInput: it is no duration, or is negative.
    """
    seconds = _seconds(given)
    if not seconds >= 0:
        how = "a number with its unit" if name.startswith("-") else "a timedelta, or a text"
        raise InvalidInput(f"{name} {given!r} is not a duration: give {how}, such as {'30s, 12h or 7d' if name[0] == '-' else repr('12h')}")
    return seconds


def timedelta_of(name: str, given: object) -> timedelta:
    """Return a duration that has an end. Raises ``InvalidInput`` as ``seconds_of`` does, or if it is too long for a ``timedelta``."""
    seconds = seconds_of(name, given)
    try:
        return timedelta(seconds=seconds)
    except OverflowError as exc:
        raise InvalidInput(f"{name} {given!r} is longer than a time can be: give a shorter one, such as 7d") from exc


def time_before(name: str, given: object) -> datetime:
    """Return the time that is so long before now. Raises ``InvalidInput`` as ``timedelta_of`` does, or if there is no such time."""
    try:
        return datetime.now(UTC) - timedelta_of(name, given)
    except OverflowError as exc:
        raise InvalidInput(f"{name} {given!r} is longer ago than a time can be: give a shorter one, such as 30d") from exc


def is_duration(text: str) -> bool:
    """Return whether a text is a duration."""
    return _seconds(text) >= 0


def _seconds(given: object) -> float:
    """Return the seconds; NaN for what is no duration."""
    if isinstance(given, timedelta):
        return given.total_seconds()
    if isinstance(given, str):
        text = given.strip().lower()
        found = _TEXT.fullmatch(text)
        if found is not None and found[2] in _UNITS:
            return float(found[1]) * _UNITS[found[2]]
        return {"0": 0.0, "inf": math.inf}.get(text, math.nan)
    is_number = isinstance(given, int | float) and not isinstance(given, bool) and given in (0, math.inf)
    return float(given) if is_number else math.nan  # type: ignore[arg-type]  # a number
