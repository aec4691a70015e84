"""Keep a set up to date: ``check`` compares it with the objects that it refers to, ``pins`` lists these, so that they are not rewritten,
and ``update`` writes it again as it was written, reading the indices only of shards that have changed since.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fsspec.core import split_protocol

from shardstore._sync import run_sync
from shardstore.errors import InvalidInput, NotFound
from shardstore.format.draft2022.keys import canonical_key
from shardstore.format.json_text import loads_object, same_text
from shardstore.format.references.parquet import METADATA_NAME, decode_metadata, record_name
from shardstore.format.references.pins import PinSection
from shardstore.format.store_keys import join, metadata_key
from shardstore.maintenance.pins import Pin, is_held
from shardstore.model.options import check_flags
from shardstore.opening.open import open_storage
from shardstore.opening.references import LOCAL, canonical
from shardstore.references.batches import ReferencedArray, content, size_of
from shardstore.references.choices import Described, base_of, described
from shardstore.references.opening import open_source
from shardstore.references.places import SetPlace, find_set, open_set, options_of_set, pins_of, read_object
from shardstore.references.report import ReferenceReport
from shardstore.references.sets import OlderSet, PinsByUrl, reference_storage, set_source, store_of
from shardstore.references.stores import StoredArray
from shardstore.references.writing import ParquetForm, Progress, form_of, put
from shardstore.storage.base import Found, ObjectInfo, Storage, document_read, unless_failed
from shardstore.storage.references.storage import ReferenceStorage
from shardstore.stored.detect import DetectedStorage


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
    new: tuple[str, ...] = ()
    """Keys of objects with chunks that the set says nothing about: it shows these as missing. Of a set that was written with
    ``on_error="skip"`` they are not known.
    """
    wrong: tuple[str, ...] = ()
    """Files of a set in Parquet that are gone; and, only if the indices were read, documents that differ, and paths of arrays with
    numbers of chunks in C order whose references differ.
    """

    @property
    def is_sound(self) -> bool:
        """True if every reference leads to the bytes that it was made of, and nothing has come since."""
        return not self.changed and not self.gone and not self.new and not self.wrong

    def __repr__(self) -> str:
        counts = f"{len(self.changed):,} changed, {len(self.gone):,} gone, {len(self.new):,} new"
        return f"<CheckReport of {self.target!r}: {self.objects:,} objects, {counts}>"


def pins(target: Any, *, store: Any = None, target_options: Mapping[str, Any] | None = None) -> list[Pin]:
    """Return the objects that a set holds offsets into, for ``compact``, ``repair`` and ``pack``, which leave these unchanged.

    ``store`` says of which store the objects are meant, by its path or URL, if that is not the one that the set was made of, but one
    above or below it, or if the set was made of other sets.

    Raises:
        InvalidInput: the set was made of other sets, or of a snapshot, and no store is given; or it refers to nothing in the store.
        NotFound: there is no set, or it does not say what it was made of.
        Corruption: the set cannot be read.
        StorageError: a request failed.
    """
    place = find_set(target, target_options)
    section = pins_of(place)
    if store is None:
        if not section.origin.base:
            raise InvalidInput(
                f"the set {place.shown} was made of other sets, or of a snapshot: give the store that the pins are for, store=…"
            )
        return [Pin(key, one.generation) for key, one in section.objects.items()]
    key_of = keys_in(store)
    above = _place_of(_url_of(store_of(place, section))) if section.origin.base else ""
    found: list[Pin] = []
    for key, one in section.objects.items():
        name = key_of(above + key if above else _place_of(key))
        if name is not None:
            found.append(Pin(name, one.generation))
    if section.objects and not found:
        raise InvalidInput(
            f"the set {place.shown} refers to nothing in {store}: its references name, for example, {next(iter(section.objects))!r}"
        )
    return found


def keys_in(store: Any) -> Callable[[str], str | None]:
    """Return a function that gives the key in a store of an object by its ``_place_of``; ``None`` if the object is elsewhere."""
    root = _place_of(_url_of(store))
    return lambda place: place.removeprefix(root) if place.startswith(root) else None


def pins_by_url(objects: Iterable[tuple[str, str | None]], store: Storage) -> list[Pin]:
    """Return the pins for a store of objects given by URL and token, ``None`` for any version; those elsewhere are left out. Raises
    ``StorageError`` if the store cannot be asked whether it has the keys of the 2022 draft.
    """
    key_of = keys_in(store)
    detected = DetectedStorage(store, {})
    (root,) = run_sync(detected.read([document_read(metadata_key(""))]))  # which shows the format too
    root = unless_failed(root)
    found: set[Pin] = set()
    for url, token in objects:
        key = key_of(_place_of(url))
        shown = canonical_key(key) if key is not None and detected.is_draft else key
        if shown is not None:
            found.add(Pin(shown, token))
    return sorted(found, key=lambda pin: (pin.key, pin.generation or ""))


def _url_of(store: Any) -> str:
    """Return the URL of a store, with a slash at its end."""
    storage = open_storage(store)
    try:
        return base_of(storage, "absolute", None, "")
    except InvalidInput:  # a chain, which has none that another program knows
        return storage.url.rstrip("/") + "/"


def _place_of(url: str) -> str:
    """Return a text that is one for all names that a place has by its protocol, and on local files by links."""
    protocol, path = split_protocol(url)
    if (name := canonical(protocol)) != LOCAL:
        return f"{name}://{path}"
    return f"{os.path.realpath(path)}{'/' * path.endswith('/')}"


def check(
    target: Any,
    *,
    indices: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
) -> CheckReport:
    """Compare the objects that a set refers to with the versions that it was made of: one listing of the store; no shard is read.

    Of a set that was made of other sets, or of a snapshot, each object is looked at by one request; of those whose version is not known, or
    which never change, only whether they are there.

    Args:
        target: the path or URL of the set.
        indices: also read the index of each shard, and compare every reference and every document.
        storage_options: of the filesystem of the store.
        target_options: of the set's filesystem; by default those of the store, if both have the same protocol.

    Raises:
        NotFound: there is no set, or it does not say what it was made of.
        Corruption: the set cannot be read.
        StorageError: a request failed.
    """
    check_flags(indices=indices)
    options = options_of_set(target, storage_options, target_options)
    place = find_set(target, options)
    section = pins_of(place)
    changed: list[str] = []
    gone: list[str] = []
    now = _tokens_now(place, section, storage_options, options)
    for key, one in section.objects.items():
        token = now.pop(key, None)
        if token is None:
            gone.append(key)
        elif not is_held(frozenset({one.generation}), token):
            changed.append(key)
    unpinned = [] if section.origin.base else run_sync(_unpinned(reference_storage(place.url, options), section))
    gone += [url for url, is_there in unpinned if not is_there]
    wrong = _files_gone(place)
    if indices and not wrong:
        wrong += _wrong(place, section, storage_options, options)
    # A set that left damaged shards out does not say which.
    new = [] if section.origin.arguments.get("on_error") == "skip" else [*now]
    store = store_of(place, section)
    objects = len(section.objects) + len(unpinned)
    return CheckReport(place.shown, store, objects, tuple(changed), tuple(gone), tuple(new), tuple(wrong))


def _files_gone(place: SetPlace) -> list[str]:
    """Return the files that a set in Parquet says to have, and that are not there."""
    if place.name:
        return []
    files = decode_metadata(run_sync(read_object(place.storage, METADATA_NAME)) or b"{}").files
    if files is None:
        return []
    there = run_sync(place.keys())
    named = (join(path, record_name(number)) for path, runs in files.records.items() for run in runs for number in run)
    return [f"{key} (a file of the set)" for key in named if key not in there]


def _wrong(
    place: SetPlace, section: PinSection, storage_options: Mapping[str, Any] | None, options: Mapping[str, Any] | None
) -> Iterator[str]:
    """Yield the chunks and the documents that a new set would have otherwise."""
    form, choices = form_of(section.origin.arguments)
    now = open_source(store_of(place, section), place, choices, pins=False, options=storage_options, is_new=False)
    references = reference_storage(place.url, options)
    then = {array.path: array for array in set_source(references, lambda path: True, PinsByUrl(keeps_relative=True)).arrays}
    is_filled = section.origin.arguments.get("missing") == "fill"
    renamed = section.origin.arguments.get("root_as")
    for array in now.arrays:
        old = then.pop(array.path or renamed or "", None)
        for chunk in _wrong_chunks(array, old, is_filled=is_filled):
            yield f"{array.path or '(root)'} {chunk}"
    for path in then:
        yield f"{path} (the array)"
    for array in now.arrays:
        array.path = array.path or renamed or ""
    shown = described(now, form.flavour, only_v2_keys=isinstance(form, ParquetForm))
    yield from _wrong_documents(references, shown)


def _wrong_documents(references: ReferenceStorage, shown: Described) -> Iterator[str]:
    keys = {join(path, name): document for path, by_name in shown.documents.items() for name, document in by_name.items()}
    for key, outcome in zip(keys, run_sync(references.read([document_read(key) for key in keys])), strict=True):
        outcome = unless_failed(outcome)
        if not isinstance(outcome, Found) or not same_text(loads_object(outcome.buffers[0]), keys[key]):
            yield f"{key} (the document)"


def _wrong_chunks(now: ReferencedArray, then: ReferencedArray | None, *, is_filled: bool) -> Iterator[int]:
    """Yield the numbers of the chunks whose references differ. ``is_filled``: the set has chunks of the fill value for missing ones."""
    mine = content(now.batches(0, size_of(now)))
    theirs = {} if then is None or then.chunk_grid != now.chunk_grid else content(then.batches(0, size_of(now)))
    for chunk in sorted(mine.keys() | theirs.keys()):
        is_fill = is_filled and chunk not in mine and isinstance(theirs[chunk], bytes)
        if mine.get(chunk) != theirs.get(chunk) and not is_fill:
            yield chunk


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
    """Return the tokens of those objects that exist, by one listing of the store, or one by one if the set was made of other sets."""
    if section.origin.base:
        _, choices = form_of(section.origin.arguments)
        found = open_source(store_of(place, section), place, choices, pins=True, options=storage_options, is_new=False)
        objects = {key: token for array in found.arrays if isinstance(array, StoredArray) for key, token in array.objects().items()}
        return {key: token for key, token in objects.items() if token is not None}
    infos = run_sync(_infos_of(reference_storage(place.url, options), [*section.objects]))
    found_now = zip(section.objects, infos, strict=True)
    return {url: info.generation.token for url, info in found_now if info is not None and info.generation is not None}


async def _unpinned(references: ReferenceStorage, section: PinSection) -> list[tuple[str, bool]]:
    """Return the URLs to which a set refers without a pin, and whether there is an object at each."""
    urls = sorted({url async for url in references.urls() if url is not None and url not in section.objects})
    return [(url, info is not None) for url, info in zip(urls, await _infos_of(references, urls), strict=True)]


async def _infos_of(references: ReferenceStorage, urls: list[str]) -> list[ObjectInfo | None]:
    await references.references()  # a set that is a directory has relative URLs from there
    targets = [references.targets.target(url) for url in urls]
    return list(await asyncio.gather(*(target.storage.stat(target.key) for target in targets)))


def update(
    target: Any,
    source: Any = None,
    *,
    output: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    progress: Progress | bool | None = None,
) -> ReferenceReport:
    """Write a set again with the arguments that it was written with. Only shards that have changed since are read, by one request each;
    all of them where ``missing="fill"`` does not tell which chunks are missing.

    Args:
        target: the path or URL of the set.
        source: the store, if it is not where the set says.
        output: another place for the new set; by default it replaces the old one. One in JSON is replaced in one step; one in Parquet is
            no set until it is whole again. If that is interrupted, the next ``update`` writes all of it.
        storage_options: of the store's filesystem.
        target_options: of the set's filesystem; by default those of the store, if both have the same protocol.
        progress: called now and then with a ``ReferenceProgress``; or ``True``: it is shown on stderr.

    Raises:
        NotFound: there is no set, or it does not say what it was made of: write it again.
        ShardStoreError: as ``write_json`` and ``write_parquet``.
    """
    options = options_of_set(target, storage_options, target_options)
    place = find_set(target, options, or_pins=True)
    section = pins_of(place)
    is_whole = run_sync(place.storage.stat(place.main_key)) is not None
    older = OlderSet(reference_storage(place.url, options), section.objects) if is_whole else None
    form, choices = form_of(section.origin.arguments)
    new = open_set(place.url if output is None else output, options, is_directory=isinstance(form, ParquetForm))
    store = store_of(place, section) if source is None else source
    # Chunks that hold the fill value may stand for missing ones, and that value may have changed.
    reuse = None if isinstance(form, ParquetForm) and form.missing == "fill" else older
    found = open_source(store, new, choices, pins=True, options=storage_options, reuse=reuse, is_new=False)
    return put(found, new, form, choices, overwrite=output is None, progress=progress, has_options=bool(storage_options))
