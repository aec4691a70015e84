"""Compare a set with the objects that it refers to, and list those objects, so that nobody rewrites them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fsspec.core import split_protocol

from shardstore._sync import run_sync
from shardstore.engine.engine import Engine
from shardstore.engine.options import check_flag
from shardstore.errors import InvalidInput, NotFound
from shardstore.format.references.pins import PinSection
from shardstore.maintenance.pins import Pin, current_tokens, is_held
from shardstore.references.batches import content, size_of
from shardstore.references.choices import base_of
from shardstore.references.opening import open_source
from shardstore.references.places import SetPlace, find_set, options_of_set, pins_of
from shardstore.references.sets import PinsByUrl, reference_storage, set_source
from shardstore.references.storing import form_of
from shardstore.storage.opening.open import open_storage
from shardstore.storage.opening.reference_targets import LOCAL, canonical
from shardstore.storage.references.storage import ReferenceStorage


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
    wrong: tuple[str, ...] = ()
    """Paths of arrays, and numbers of chunks in C order, whose references differ from the indices that are there now; only if these were
    read.
    """

    @property
    def is_sound(self) -> bool:
        """True if every reference leads to the bytes that it was made of."""
        return not self.changed and not self.gone and not self.wrong

    def __repr__(self) -> str:
        return f"<CheckReport of {self.target!r}: {self.objects:,} objects, {len(self.changed):,} changed, {len(self.gone):,} gone>"


def pins(target: Any, *, store: Any = None, target_options: Mapping[str, Any] | None = None) -> list[Pin]:
    """Return the objects that a set holds offsets into, for ``compact``, ``repair`` and ``pack``, which leave these as they are.

    Of a set that was made of other sets, ``store`` says of which store the objects are meant: by its path or URL.

    Raises:
        InvalidInput: the set was made of other sets, and no store is given.
        NotFound: there is no set, or it does not say what it was made of.
        Corruption: that cannot be read.
        StorageError: a request failed.
    """
    place = find_set(target, target_options)
    section = pins_of(place)
    base = ""
    if not section.origin.base:
        if store is None:
            raise InvalidInput(f"the set {place.shown} was made of other sets: say which store the pins are for, by store=")
        base = base_of(open_storage(store), "absolute", None, "")
    root = _place_of(base) if base else ""
    found: list[Pin] = []
    for key, one in section.objects.items():
        name = _place_of(key) if base else key
        if name.startswith(root):
            found.append(Pin(name.removeprefix(root), one.generation))
    if section.objects and not found:
        raise InvalidInput(f"the set {place.shown} refers to nothing at {base}: its references name {next(iter(section.objects))!r}, say")
    return found


def _place_of(url: str) -> str:
    """Return a text that is one for all names that a place has by its protocol, and on local files by links."""
    protocol, path = split_protocol(url)
    if (name := canonical(protocol)) != LOCAL:
        return f"{name}://{path}"
    return f"{os.path.realpath(path)}{'/' * path.endswith('/')}"


def check(
    target: Any,
    *,
    deep: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
) -> CheckReport:
    """Compare the objects that a set refers to with the versions that it was made of: one listing of the store; no object is read.

    Args:
        target: the path or URL of the set.
        deep: also read the index of each shard, and compare every reference.
        storage_options: of the filesystem of the store.
        target_options: of the set's filesystem; by default those of the store, if both have the same protocol.

    Raises:
        NotFound: there is no set, or it does not say what it was made of.
        Corruption: that cannot be read.
        StorageError: a request failed.
    """
    check_flag("deep", deep)
    options = options_of_set(target, storage_options, target_options)
    place = find_set(target, options)
    section = pins_of(place)
    changed: list[str] = []
    gone: list[str] = []
    now = _tokens_now(place, section, storage_options, options)
    for key, one in section.objects.items():
        token = now.get(key)
        if token is None:
            gone.append(key)
        elif not is_held(frozenset({one.generation}), token):
            changed.append(key)
    wrong = tuple(_wrong(place, section, storage_options, options)) if deep else ()
    return CheckReport(place.shown, section.origin.store, len(section.objects), tuple(changed), tuple(gone), wrong)


def _wrong(
    place: SetPlace, section: PinSection, storage_options: Mapping[str, Any] | None, options: Mapping[str, Any] | None
) -> Iterator[str]:
    """Yield the chunks whose references are not those that a new set would have."""
    _, choices = form_of(section.origin.arguments)
    now = open_source(section.origin.store, place, choices, pins=False, options=storage_options)
    then = {
        array.path: array
        for array in set_source(reference_storage(place.url, options), lambda path: True, PinsByUrl(keeps_relative=True)).arrays
    }
    is_filled = section.origin.arguments.get("missing") == "fill"
    renamed = section.origin.arguments.get("root_as")
    for array in now.arrays:
        old = then.pop(array.path or renamed or "", None)
        size = size_of(array)
        mine = content(array.batches(0, size))
        theirs = {} if old is None or old.chunk_grid != array.chunk_grid else content(old.batches(0, size))
        for chunk in sorted(mine.keys() | theirs.keys()):
            is_fill = is_filled and chunk not in mine and isinstance(theirs[chunk], bytes)
            if mine.get(chunk) != theirs.get(chunk) and not is_fill:
                yield f"{array.path or '(root)'} {chunk}"
    for path in then:
        yield f"{path} (the array)"


@dataclass(frozen=True, slots=True)
class SetDescription:
    """What a set is, and what it was made of."""

    target: str
    format: str
    flavour: str
    arrays: Mapping[str, tuple[int, ...]]
    """By path, the number of chunks along each dimension of the array."""
    store: str | None
    """The URL of the store; ``None`` if the set does not say."""
    objects: int
    """The number of objects whose versions the set says."""


def describe(target: Any, *, target_options: Mapping[str, Any] | None = None) -> SetDescription:
    """Return the arrays of a set, and what it was made of, from its documents and pins alone.

    Raises:
        NotFound: there is no set.
        Corruption: it cannot be read.
        StorageError: a request failed.
    """
    place = find_set(target, target_options)
    found = set_source(reference_storage(place.url, target_options), lambda path: True)
    try:
        section: PinSection | None = pins_of(place)
    except NotFound:
        section = None
    nodes = [array.node for array in found.arrays] or list(found.groups.values())
    v3, v2 = any(node.v3 is not None for node in nodes), any(node.v2 is not None for node in nodes)
    return SetDescription(
        place.shown,
        "json" if place.name else "parquet",
        "v3" if v3 and not v2 else "v2" if v2 and not v3 else "both",
        {array.path: array.chunk_grid for array in found.arrays},
        None if section is None else section.origin.store,
        0 if section is None else len(section.objects),
    )


def _tokens_now(
    place: SetPlace, section: PinSection, storage_options: Mapping[str, Any] | None, options: Mapping[str, Any] | None
) -> dict[str, str]:
    """Return the tokens of those objects that exist: by one listing of the store, or one by one, if the set was made of other sets."""
    if section.origin.base:
        storage = Engine(open_storage(section.origin.store, dict(storage_options or {}) or None)).storage
        return run_sync(current_tokens(storage, [*section.objects]))
    return run_sync(_tokens_of_urls(reference_storage(place.url, options), [*section.objects]))


async def _tokens_of_urls(references: ReferenceStorage, urls: list[str]) -> dict[str, str]:
    targets = {url: references.targets.target(url) for url in urls}
    infos = await asyncio.gather(*(target.storage.stat(target.key) for target in targets.values()))
    return {
        url: info.generation.token for url, info in zip(targets, infos, strict=True) if info is not None and info.generation is not None
    }
