"""Group findings that say the same: the first of them is shown in full, with the places of the others."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from shardstore.cli.output import count, plural, show, wrapped

T = TypeVar("T")

_KEYS_SHOWN = 8  # of the others; --json has more

# Checksums and numbers are of one finding: what is said around them is the same for all.
_OF_ONE = re.compile(r"\b[0-9a-f]{8}\b|\d+")


def alike(items: Iterable[T], says: Callable[[T], str], apart: Callable[[T], Hashable] = lambda item: None) -> list[tuple[T, list[T]]]:
    """Return the first of each group of items that are equal except for numbers and checksums, with the others of the group, in order.

    Items with different ``apart`` are in different groups.
    """
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault((apart(item), _OF_ONE.sub("0", says(item))), []).append(item)
    return [(group[0], group[1:]) for group in groups.values()]


def show_others(keys: Sequence[str], margin: str) -> None:
    """Print how many others there are, and the keys of some; nothing where there are none.

    A repeated key is that of an object with several findings.
    """
    if not keys:
        return
    objects = list(dict.fromkeys(keys))
    where = f", in {plural(len(objects), 'object')}" if len(objects) < len(keys) else ""
    named = ", ".join(objects[:_KEYS_SHOWN])
    rest = f" and {count(len(objects) - _KEYS_SHOWN)} others" if len(objects) > _KEYS_SHOWN else ""
    show(wrapped(margin, f"and {plural(len(keys), 'more', 'more')} like this{where}: {named}{rest}"))
