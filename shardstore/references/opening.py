"""Open what a set is written of: a Zarr hierarchy, or another set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shardstore._sync import run_sync
from shardstore.errors import Conflict, InvalidInput
from shardstore.opening.open import open_storage
from shardstore.opening.snapshot_urls import named_snapshot
from shardstore.references.batches import ReferenceSource
from shardstore.references.choices import Choices, base_of, check_patterns, chosen
from shardstore.references.places import SetPlace, check_apart
from shardstore.references.sets import OlderSet, is_set, known_source, reference_storage, set_source
from shardstore.references.stores import store_source
from shardstore.storage.abilities import NamesLocation
from shardstore.storage.base import Storage
from shardstore.storage.gcs.storage import GCSStorage
from shardstore.storage.known_references import KnowsReferences
from shardstore.storage.references.storage import ReferenceStorage
from shardstore.storage.s3.storage import S3Storage
from shardstore.storage.wrappers import innermost


def open_source(
    source: Any,
    place: SetPlace,
    choices: Choices,
    *,
    pins: bool,
    options: Mapping[str, Any] | None,
    reuse: OlderSet | None = None,
    is_new: bool = True,
) -> ReferenceSource:
    """Return a source for the set at ``place``. Of one that is not new, arrays that were named may be gone.

    Raises:
        InvalidInput: a choice cannot be right, or source and set overlap.
        ShardStoreError: the source cannot be opened, or its metadata cannot be read.
    """
    if is_set(source):
        if choices.urls != "absolute" or choices.base_url is not None:
            raise InvalidInput("urls and base_url are for hierarchies: the references of a set are taken unchanged")
        references, found = open_set_source(source, choices, options)
        check_apart(references, place)
        found.is_pinned = pins
        return found
    storage = open_hierarchy(source, options)
    if (known := storage.ability(KnowsReferences)) is not None:
        check_taken_unchanged(choices)
        check_apart(known.stored_in, place)
        base = base_of(known.stored_in, choices.urls, choices.base_url, place.directory)
        found = known_source(known, base, lambda path: chosen(choices, path) is not None, is_pinned=pins)
        check_patterns(choices, found.array_paths())
        return found
    check_apart(storage, place)
    base = base_of(storage, choices.urls, choices.base_url, place.directory)
    found = store_source(storage, base, lambda path: chosen(choices, path), pinned=pins, on_error=choices.on_error, reuse=reuse)
    if is_new:
        check_patterns(choices, found.array_paths())
    found.is_pinned = pins and choices.base_url is None  # the versions of objects below a base_url are not known
    if choices.urls == "versioned":
        found.suffix_of = _suffixes(storage)
    return found


def open_hierarchy(source: Any, options: Mapping[str, Any] | None) -> Storage:
    """Open a hierarchy, or a snapshot of a versioned store, to whose objects references can lead.

    Raises:
        InvalidInput: it is a store of zarr's that no URL names, so that no other program can read what lies in it.
        ShardStoreError: it cannot be opened.
    """
    snapshot = run_sync(named_snapshot(source, options))
    storage = open_storage(source if snapshot is None else snapshot.below(snapshot.path), dict(options or {}) or None)
    if (of_zarr := storage.ability(NamesLocation)) is None:
        return storage
    if of_zarr.place is None:
        raise InvalidInput(
            f"no reference can lead into {storage.url}: what lies there is reached only through an object of this process. Give the URL "
            "of a hierarchy, or copy this one to a place that has a URL"
        )
    return open_storage(of_zarr.place)


def open_set_source(source: Any, choices: Choices, options: Mapping[str, Any] | None) -> tuple[ReferenceStorage, ReferenceSource]:
    """Return the storage of a set, and the set as a source: its references are taken unchanged.

    Raises:
        InvalidInput: it is no set, or a choice means nothing for one.
        ShardStoreError: the set cannot be opened.
    """
    check_taken_unchanged(choices)
    references = reference_storage(source, options)
    found = set_source(references, lambda path: chosen(choices, path) is not None)
    check_patterns(choices, found.array_paths())
    return references, found


def check_taken_unchanged(choices: Choices) -> None:
    """Refuse choices that mean nothing where references are there already."""
    wanted = [choice for choice in (choices.paths or {}).values() if choice not in (None, "chunks")]
    if choices.inline_nbytes or wanted or choices.urls == "versioned":
        raise InvalidInput(
            "inline_nbytes, 'shards', versioned URLs and flavours by path are for hierarchies: references of sets and snapshots are taken "
            "unchanged"
        )


def _suffixes(storage: Storage) -> Callable[[str, str | None], str]:
    """Return what finds the end of the URL of a version. Raises ``InvalidInput`` if the storage keeps no versions."""
    inner = innermost(storage)
    if isinstance(inner, GCSStorage):
        if not run_sync(inner.keeps_versions()):
            raise InvalidInput(
                f"the bucket of {storage.url} keeps no versions of its objects: let it keep them, or leave out urls='versioned'"
            )
        return lambda key, token: f"#{token}"
    if not isinstance(inner, S3Storage):
        raise InvalidInput(f"urls='versioned' needs a bucket of S3 or Google Cloud Storage that keeps versions, and {storage.url} is none")
    known = run_sync(inner.version_suffixes())

    def suffix(key: str, token: str | None) -> str:
        found = known.get((key, token or ""))
        if found is None:
            raise Conflict(f"the object {key!r} of {storage.url} was replaced while references to it were written: write the set again")
        return found

    return suffix
