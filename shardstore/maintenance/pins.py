"""What must stay where it is: shards into which somebody holds offsets, such as references and snapshots.

Whoever rewrites shards is told of all pins by the caller; a set without any says that nobody holds such offsets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shardstore.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Pin:
    """One held object: ``key`` from the root of the store; the token of the version that is held, or ``None`` for whichever is there."""

    key: str
    generation: str | None = None


@dataclass(frozen=True)
class Pins:
    """All pins of one run, by key."""

    generations: Mapping[str, frozenset[str | None]]

    @classmethod
    def of(cls, pins: Iterable[Pin]) -> Pins:
        """Raises ``InvalidInput`` where one of them is no ``Pin``."""
        found: dict[str, set[str | None]] = {}
        for pin in pins:
            if not isinstance(pin, Pin):
                raise InvalidInput(f"{pin!r} is no pin: give shardstore.maintenance.pins.Pin(key), or Pin(key, generation)")
            found.setdefault(pin.key, set()).add(pin.generation)
        return cls({key: frozenset(tokens) for key, tokens in found.items()})

    def at(self, key: str) -> frozenset[str | None]:
        """The tokens that are held of one object, to travel with a task."""
        return self.generations.get(key, frozenset())


def is_held(tokens: frozenset[str | None], generation: str) -> bool:
    """Whether pins with these tokens hold this version of their object."""
    return None in tokens or generation in tokens


def parse_pins(text: str) -> list[Pin]:
    """Pins as a file has them, one a line: a key as it is, or a JSON object with ``key`` and, for one version only, ``generation``.

    Raises:
        InvalidInput: a line begins as JSON, and is no such object.
    """
    return [_parse_line(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]


def _parse_line(number: int, line: str) -> Pin:
    if not line.startswith("{"):
        return Pin(line)
    try:
        document = json.loads(line)
    except ValueError as exc:
        raise InvalidInput(f"line {number} of the pins begins as JSON and is none ({exc})") from exc
    key, generation = document.get("key"), document.get("generation")
    if not isinstance(key, str) or not key or not isinstance(generation, str | None):
        raise InvalidInput(f'line {number} of the pins is not of the form {{"key": "ct/c/0/1", "generation": "…"}}')
    return Pin(key, generation)
