"""The options that say which shards have to stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from shardstore._sync import run_sync
from shardstore.errors import InvalidInput
from shardstore.maintenance.pins import Pin, parse_pins
from shardstore.storage.opening.address import Address

PinsFile = Annotated[
    Path | None,
    typer.Option("--pins", metavar="FILE", help="Keys of shards that somebody holds offsets into, one a line.", show_default=False),
]
PinsOf = Annotated[
    list[str] | None,
    typer.Option(
        "--pins-of",
        metavar="SET",
        help="A set of references, or a versioned store, whose shards stay as they are; repeatable.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class HeldOptions:
    """The options that name shards which somebody holds offsets into."""

    pins: PinsFile = None
    pins_of: PinsOf = None

    def held(self, url: str, options: Mapping[str, Any]) -> list[Pin]:
        """Return all pins, whose keys are from ``url``, the root of the store. Sets of its protocol are opened with its ``options``.

        Raises:
            InvalidInput: a file cannot be read, or holds something else; or a set, or versioned store, refers to nothing below ``url``.
            NotFound: there is no such set, or it has no pins.
        """
        found = [] if self.pins is None else _of_file(self.pins)
        for target in self.pins_of or ():
            same = Address.parse(target).protocol == Address.parse(url).protocol
            found += _pins_of(target, url, options if same else None, options)
        return found


def _pins_of(target: str, url: str, options: Mapping[str, Any] | None, of_store: Mapping[str, Any]) -> list[Pin]:
    # Only for those who give one.
    from shardstore.references.checking import pins
    from shardstore.storage.opening.open import open_storage
    from shardstore.storage.opening.snapshot_urls import holds_versioned_store

    if not run_sync(holds_versioned_store(open_storage(target, None if options is None else dict(options)))):
        return pins(target, store=url, target_options=options)
    from shardstore.adapters.versioned.repository import Repository

    return Repository.open(target, storage_options=None if options is None else dict(options)).pins(url, storage_options=of_store)


def _of_file(file: Path) -> list[Pin]:
    try:
        return parse_pins(file.read_text())
    except (OSError, UnicodeError) as exc:
        raise InvalidInput(f"--pins {file} cannot be read: {exc}") from exc
