"""Numbers, bytes and shapes as texts for people."""

from __future__ import annotations

from collections.abc import Sequence

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(nbytes: float) -> str:
    """Return bytes as text for people: ``1.5 MiB``."""
    value, unit = float(nbytes), 0
    while abs(value) >= 1023.95 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{value:.0f} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def count(number: float) -> str:
    """Return a number as text with thousands separated; with one decimal if it is small and not whole."""
    if isinstance(number, int):
        return f"{number:,}"  # also beyond what a float holds
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:,.1f}"


def plural(number: int, noun: str, nouns: str | None = None) -> str:
    """Return a number with its noun: ``1 object``, ``2 objects``."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def row_numbers(start: int, stop: int) -> str:
    """Return rows of an array as text, with the number of the last one: ``rows 113 to 119``."""
    if stop - start < 2:
        return f"row {start}" if stop > start else "no rows"
    return f"rows {start} to {stop - 1}"


def some_of(names: Sequence[str], most: int = 5) -> str:
    """Return the first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def is_utf8(text: str) -> bool:
    """Return whether UTF-8 can hold a text: names of files, and JSON, may hold what it cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    """Return a text of one line, without control characters: what cannot be printed is escaped as Python escapes it."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def shape(sizes: tuple[int, ...] | None) -> str:
    """Return a shape as text: ``64 × 64``, or ``?`` if it is not known."""
    if sizes is None:
        return "?"
    return " × ".join(map(str, sizes)) if sizes else "0-d"
