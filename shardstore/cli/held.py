"""The options that say which shards have to stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from shardstore.errors import InvalidInput
from shardstore.maintenance.pins import Pin, parse_pins
from shardstore.storage.opening.address import Address

PinsFile = Annotated[
    Path | None,
    typer.Option("--pins", metavar="FILE", help="Keys of shards that somebody holds offsets into, one a line.", show_default=False),
]
PinsOf = Annotated[
    list[str] | None,
    typer.Option("--pins-of", metavar="SET", help="A set of references whose shards stay as they are; repeatable.", show_default=False),
]


@dataclass(frozen=True, slots=True)
class HeldOptions:
    """The options that name shards which somebody holds offsets into."""

    pins: PinsFile = None
    pins_of: PinsOf = None

    def held(self, url: str, options: Mapping[str, Any]) -> list[Pin]:
        """Return all pins, whose keys are from ``url``, the root of the store. Sets of its protocol are opened with its ``options``.

        Raises:
            InvalidInput: a file cannot be read, or holds something else.
            NotFound: there is no such set, or it has no pins.
        """
        found = [] if self.pins is None else _of_file(self.pins)
        for target in self.pins_of or ():
            from shardstore.references.checking import pins  # only for those who give a set

            same = Address.parse(target).protocol == Address.parse(url).protocol
            found += pins(target, store=url, target_options=options if same else None)
        return found


def _of_file(file: Path) -> list[Pin]:
    try:
        return parse_pins(file.read_text())
    except (OSError, UnicodeError) as exc:
        raise InvalidInput(f"--pins {file} cannot be read: {exc}") from exc
