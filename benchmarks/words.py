"""Numbers as a reader wants them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """With three digits, in s, ms or µs."""
    if seconds >= 1:
        return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def nbytes_text(nbytes: float) -> str:
    """With three digits, in B, kB, MB or GB of powers of ten."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size * 0.9995:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes:.0f} B"


def count(number: float) -> str:
    return f"{number:,.0f}"


def ratio(value: float) -> str:
    return f"{value:.2f} ×" if value < 10 else f"{value:,.0f} ×"
