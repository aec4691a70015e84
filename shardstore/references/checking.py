"""Whether the objects that a set refers to are still what they were, and which of them must stay so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardstore._sync import run_sync
from shardstore.engine.engine import Engine
from shardstore.format.references.pins import PinSection
from shardstore.maintenance.pins import Pin, current_tokens, is_held
from shardstore.references.places import find_set, pins_of
from shardstore.storage.base import Storage
from shardstore.storage.opening.open import open_storage


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The state of the objects of a set."""

    target: str
    store: str
    objects: int
    changed: tuple[str, ...]
    """Keys of objects that were replaced since: the set's references into them mean other bytes, or nothing."""
    gone: tuple[str, ...]
    """Keys of objects that are not there any more."""

    @property
    def is_sound(self) -> bool:
        """True if every reference leads to the bytes that it was made of."""
        return not self.changed and not self.gone

    def __repr__(self) -> str:
        return f"<CheckReport of {self.target!r}: {self.objects:,} objects, {len(self.changed):,} changed, {len(self.gone):,} gone>"


def pins(target: Any, *, target_options: Mapping[str, Any] | None = None) -> list[Pin]:
    """Return the objects that a set holds offsets into, for ``compact``, ``repair`` and ``pack``, which leave these as they are.

    Raises:
        NotFound: there is no set, or it does not say what it was made of.
        Corruption: that cannot be read.
        StorageError: a request failed.
    """
    section = pins_of(find_set(target, target_options))
    return [Pin(one.key, one.generation) for one in section.objects.values()]


def check(target: Any, *, storage_options: Mapping[str, Any] | None = None, target_options: Mapping[str, Any] | None = None) -> CheckReport:
    """Compare the objects that a set refers to with the versions that it was made of: one listing of the store; no object is read.

    Args:
        target: the path or URL of the set.
        storage_options: of the filesystem of the store.
        target_options: of the set's filesystem; by default those of the store, if both have the same protocol.

    Raises:
        NotFound: there is no set, or it does not say what it was made of.
        Corruption: that cannot be read.
        StorageError: a request failed.
    """
    place = find_set(target, target_options if target_options is not None else storage_options)
    section = pins_of(place)
    storage = store_of(section, storage_options)
    changed: list[str] = []
    gone: list[str] = []
    now = run_sync(current_tokens(storage, [*section.objects]))
    for key, one in section.objects.items():
        token = now.get(key)
        if token is None:
            gone.append(key)
        elif not is_held(frozenset({one.generation}), token):
            changed.append(key)
    return CheckReport(place.shown, section.origin.store, len(section.objects), tuple(changed), tuple(gone))


def store_of(section: PinSection, options: Mapping[str, Any] | None) -> Storage:
    """Return the store of a set, with the keys of final Zarr v3."""
    return Engine(open_storage(section.origin.store, dict(options or {}) or None)).storage
