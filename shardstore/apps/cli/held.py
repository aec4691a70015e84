"""The options that name pinned shards, which have to stay unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from shardstore.adapters.store_paths import is_versioned_store, options_for
from shardstore.errors import InvalidInput
from shardstore.maintenance.pins import Pin, parse_pins

PinsFile = Annotated[
    Path | None,
    typer.Option("--pins", metavar="FILE", help="A file of keys of pinned shards, one a line: they stay unchanged.", show_default=False),
]
PinsOf = Annotated[
    list[str] | None,
    typer.Option(
        "--pins-of",
        metavar="SET",
        help="A set of references, or a versioned store, whose shards stay unchanged; repeatable.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class HeldOptions:
    """The options that name pinned shards: offsets into them are held elsewhere."""

    pins: PinsFile = None
    pins_of: PinsOf = None

    def held(self, url: str, options: Mapping[str, Any]) -> list[Pin]:
        """Return all pins, whose keys are from ``url``, the root of the store. Sets of its protocol are opened with its ``options``.

        Raises:
            InvalidInput: a file cannot be read, or holds something else; or a set, or versioned store, refers to nothing below ``url``.
            NotFound: there is no such set, or it has no pins.
        """
        found = [] if self.pins is None else _read_pins(self.pins)
        for target in self.pins_of or ():
            found += _pins_of(target, url, options)
        return found


def _pins_of(target: str, url: str, options: Mapping[str, Any]) -> list[Pin]:
    from shardstore.references import pins  # imports much that most commands do not need

    shared = options_for(target, url, options)
    if not is_versioned_store(target, shared):
        return pins(target, store=url, target_options=shared)
    from shardstore.adapters.versioned.repository import Repository

    return Repository.open(target, storage_options=shared).pins(url, storage_options=options)


def _read_pins(file: Path) -> list[Pin]:
    try:
        return parse_pins(file.read_text())
    except (OSError, UnicodeError) as exc:
        raise InvalidInput(f"--pins {file} cannot be read: {exc}") from exc
