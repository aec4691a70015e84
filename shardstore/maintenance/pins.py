"""Pins: shards that must stay as they are, because somebody holds offsets into them, such as references and snapshots.

The caller gives all pins to every operation that rewrites shards; an empty set says that nobody holds such offsets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shardstore.engine.engine import Engine
from shardstore.errors import InvalidInput
from shardstore.format.store_keys import check_key
from shardstore.maintenance.survey.nodes import SurveyedNodes
from shardstore.storage.local.versions import may_be_same_bytes

_NAMED = 5  # pins, in one error


@dataclass(frozen=True, slots=True)
class Pin:
    """One held object: ``key`` from the root of the store, and the token of the held version, or ``None`` for any version.

    A slash in front of the key is removed.

    Raises:
        InvalidInput: ``key`` cannot be the key of an object.
    """

    key: str
    generation: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", check_key(str(self.key).removeprefix("/")))


@dataclass(frozen=True)
class Pins:
    """All pins of one run, by key."""

    generations: Mapping[str, frozenset[str | None]]

    @classmethod
    def of(cls, pins: Iterable[Pin]) -> Pins:
        """Return the pins as a set. Raises ``InvalidInput`` if one of them is not a ``Pin``."""
        found: dict[str, set[str | None]] = {}
        for pin in pins:
            if not isinstance(pin, Pin):
                raise InvalidInput(f"{pin!r} is not a pin: give shardstore.maintenance.pins.Pin(key), or Pin(key, generation)")
            found.setdefault(pin.key, set()).add(pin.generation)
        return cls({key: frozenset(tokens) for key, tokens in found.items()})

    async def check(self, engine: Engine) -> None:
        """Check that each pin can hold something: a key that no array has would silently hold nothing.

        Raises:
            InvalidInput: pins name no chunk and no shard of any array.
            StorageError: a request failed.
        """
        nodes = SurveyedNodes(engine)
        keys = sorted(self.generations)
        unknown = []
        for key, (record, coords) in zip(keys, await nodes.owners(keys), strict=True):
            if coords is None and (record is None or record.grid is not None):
                unknown.append(key)
        if unknown:
            shown = ", ".join(map(repr, unknown[:_NAMED])) + (f" and {len(unknown) - _NAMED:,} more" if len(unknown) > _NAMED else "")
            raise InvalidInput(
                f"{len(unknown):,} of {len(keys):,} pins hold nothing: {shown}: no array in {engine.storage.url} has a chunk or shard of"
                " such a key. Keys are those of stored objects, from the root of the store, such as 'ct/c/0/1'"
            )

    def at(self, key: str) -> frozenset[str | None]:
        """Return the held tokens of one object, to travel with a task."""
        return self.generations.get(key, frozenset())


def is_held(tokens: frozenset[str | None], generation: str) -> bool:
    """Return whether pins with these tokens hold this version of their object.

    Pins of local files hold after a new mode, owner or hard link too: these change the token but not the bytes.
    """
    return None in tokens or any(may_be_same_bytes(token, generation) for token in tokens if token is not None)


def parse_pins(text: str) -> list[Pin]:
    """Return the pins in a file, one per line: a key as it is, or a JSON object with ``key`` and, for one version only, ``generation``.

    Raises:
        InvalidInput: a line begins like JSON, but is not such an object.
    """
    return [_parse_line(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]


def _parse_line(number: int, line: str) -> Pin:
    if not line.startswith("{"):
        return _pin(number, line, None)
    try:
        document = json.loads(line)
    except ValueError as exc:
        raise InvalidInput(f"line {number} of the pins begins like JSON but is not ({exc})") from exc
    key, generation = document.get("key"), document.get("generation")
    if not isinstance(key, str) or not key or not isinstance(generation, str | None):
        raise InvalidInput(f'line {number} of the pins is not of the form {{"key": "ct/c/0/1", "generation": "…"}}')
    return _pin(number, key, generation)


def _pin(number: int, key: str, generation: str | None) -> Pin:
    try:
        return Pin(key, generation)
    except InvalidInput as exc:
        raise InvalidInput(f"line {number} of the pins: {exc}") from exc
