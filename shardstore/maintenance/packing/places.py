"""The places where a run reads, writes and keeps its record."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from fsspec.implementations.memory import MemoryFileSystem
from fsspec.mapping import FSMap
from fsspec.spec import AbstractFileSystem

from shardstore._sync import run_sync
from shardstore.engine.engine import Engine
from shardstore.errors import Conflict, InvalidInput
from shardstore.maintenance.execution import SharedStorage
from shardstore.maintenance.packing.record import INSIDE, SUFFIX, Record
from shardstore.model.redaction import redacted
from shardstore.opening.address import Address
from shardstore.opening.chains import text_of
from shardstore.opening.location import Location, location_of, why_not_apart
from shardstore.opening.made_versions import options_of_new, with_versions
from shardstore.opening.open import open_storage
from shardstore.opening.options import protocol_of
from shardstore.opening.snapshot_place import NewHierarchy, SnapshotPlace
from shardstore.opening.snapshot_urls import named_snapshot
from shardstore.plan.policy import ShardingPolicy
from shardstore.presented.view import View
from shardstore.storage.abilities import RestrictsKeys
from shardstore.storage.base import ObjectInfo, Storage
from shardstore.storage.boundaries import check_own
from shardstore.storage.generic.storage import GenericStorage
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.mapping import MappingStorage
from shardstore.storage.requests.outcomes import PROBE_PREFIX
from shardstore.storage.wrappers import CheckedStorage
from shardstore.stored.detect import DetectedStorage
from shardstore.stored.draft2022.storage import DraftStorage


@dataclass(frozen=True, slots=True)
class Places:
    """The source and the target with the keys of final Zarr v3, and the record."""

    source: SharedStorage
    target: SharedStorage
    stored_target: Storage
    """The target with its stored keys."""
    record: Record
    record_inside: str | None
    """The prefix of the record, if it lies in the target."""
    hierarchy: NewHierarchy | None = None
    """The target, if it becomes part of a branch of a versioned store: no reader sees it before."""

    async def target_objects(self) -> AsyncIterator[ObjectInfo]:
        """Yield the objects of the target, with their stored keys, that are not a run's own: neither of a probe nor of the record."""
        own = (PROBE_PREFIX, *([] if self.record_inside is None else [self.record_inside]))
        async for info in self.stored_target.list(""):
            if not info.key.startswith(own):
                yield info

    @property
    def shown_source(self) -> str:
        return redacted(self.source.storage.url)

    @property
    def shown_target(self) -> str:
        return redacted(self.stored_target.url)


def open_branch(
    source: Any,
    place: SnapshotPlace,
    *,
    policy: ShardingPolicy,
    max_memory: int,
    storage_options: dict[str, Any] | None,
    lost_transformers: Mapping[str, tuple[int, ...]] | None,
    overwrite: bool,
) -> Places:
    """Open the storages that a run into a branch of a versioned store needs.

    Raises:
        InvalidInput: an argument names no storage, or the files of the versioned store are in the source.
        ReadOnly: the name in the target is not that of a branch.
        Conflict: there is something at its path, and ``overwrite`` is false.
        Unsupported, StorageError: as ``open_storage`` does.
    """
    inner = _source(source, storage_options)
    new = place.new_hierarchy(policy, max_memory)
    if new.takes_place_of is not None and not overwrite:
        raise Conflict(
            f"there is something at {redacted(new.storage.url)} already ({new.takes_place_of}): choose another path in the branch, or "
            "overwrite it, which leaves it in the snapshots before. Nothing was written"
        )
    if inner.kind != new.storage.kind:  # files of a versioned store are never altered, so one snapshot may become part of another
        _check_not_within(
            ("the source", inner.url, location_of(inner, links=True)), ("the versioned store", new.files.url, location_of(new.files))
        )
    target = _checked(new.storage)
    record = Record(_in_memory(), "", target=redacted(target.url))
    return Places(SharedStorage(_detected(source, inner, lost_transformers)), SharedStorage(target), target, record, None, new)


def open_places(
    source: Any,
    target: Any,
    record: Any,
    *,
    storage_options: dict[str, Any] | None,
    target_options: dict[str, Any] | None,
    lost_transformers: Mapping[str, tuple[int, ...]] | None,
    as_draft: bool,
    fsync: bool,
    overwrite: bool,
) -> Places:
    """Open the storages that a run needs.

    Raises:
        InvalidInput: an argument names no storage, two of source, target and record overlap, or, with ``overwrite``, that cannot be known.
        Conflict: the target or the record is reached through a link in the middle of a store.
        Unsupported, StorageError: as ``open_storage`` does.
    """
    inner = _source(source, storage_options)
    written = open_storage(target, target_options, fsync=fsync)
    kept, prefix = _record(target, record, written, target_options, fsync)
    _check_apart(inner, written, kept, overwrite)
    settled = _detected(source, inner, lost_transformers)
    shown = DraftStorage(_checked(written)) if as_draft else _checked(written)
    made = Record(_checked(kept), prefix, target=redacted(written.url))
    return Places(SharedStorage(settled), SharedStorage(shown), _checked(written), made, prefix if kept is written else None)


def _source(source: Any, options: dict[str, Any] | None) -> Storage:
    if isinstance(engine := getattr(source, "engine", None), Engine | View):
        engine.hierarchy.distrust_all()  # a mapping of ours: another client may have changed what its engine remembers
    return MappingStorage(source) if _is_mapping(source) else _opened(source, options)


def _detected(source: Any, inner: Storage, lost_transformers: Mapping[str, tuple[int, ...]] | None) -> Storage:
    return run_sync(DetectedStorage(_checked(with_versions(inner, is_new=isinstance(source, str))), lost_transformers or {}).settled())


def _opened(source: Any, options: dict[str, Any] | None) -> Storage:
    """Return the storage of a source, which may be a snapshot of a versioned store."""
    place = run_sync(named_snapshot(source, options))
    return open_storage(source, options_of_new(source, options)) if place is None else place.below(place.path).open()


def _check_apart(source: Storage, target: Storage, record: Storage, overwrite: bool) -> None:
    """Check that nothing is written, or erased, where something else is read or kept, or through a link in the middle of a store.

    Raises:
        InvalidInput: it would be, or with ``overwrite`` that cannot be known.
        Conflict: it would be through a link.
    """
    roles = [("the source", source), ("the target", target)]
    if record is not target:
        roles.append(("the record", record))
    found = [(role, storage.url, location_of(storage, links=storage is source)) for role, storage in roles]
    for i, one in enumerate(found):
        for other in found[i + 1 :]:
            _check_not_within(one, other)
    doubt = why_not_apart([(f"{role} {redacted(url)}", location) for role, url, location in found]) if overwrite else None
    if doubt is not None:
        raise InvalidInput(
            f"{doubt}, so data that is still to be read might be overwritten: choose a target where nothing is, or name "
            "the place by its URL. Nothing was changed"
        )
    for storage in (target, record):
        run_sync(check_own(storage, ""))


def _check_not_within(one: tuple[str, str, Location], other: tuple[str, str, Location]) -> None:
    """Raise ``InvalidInput`` if two places overlap; each with what it is, and its URL."""
    (role, url, location), (other_role, other_url, other_location) = one, other
    if location.overlaps(other_location):
        raise InvalidInput(
            f"{role} {redacted(url)} and {other_role} {redacted(other_url)} overlap: one is the other, lies in it, or is read from "
            f"what lies in it. {other_role.capitalize()} has to be another place; nothing was changed"
        )


def _checked(storage: Storage) -> Storage:
    """Return the storage with checks of its answers; this package's own reads of files need none."""
    return CheckedStorage(storage) if storage.ability(LocalStorage) is None else storage


def _is_mapping(source: Any) -> bool:
    return isinstance(source, Mapping) and not isinstance(source, FSMap)


def _in_memory() -> Storage:
    """Return a storage of its own in memory, for the record of one run."""
    return GenericStorage(MemoryFileSystem(global_store=False, skip_instance_cache=True), "")


def _record(target: Any, record: Any, written: Storage, options: dict[str, Any] | None, fsync: bool) -> tuple[Storage, str]:
    """Return the storage of the record, and its prefix there: as it was asked for, next to the target, inside where nothing can be next to
    it, or in memory, for this run, where it cannot be inside.
    """
    if record is not None:
        takes_options = isinstance(record, str | os.PathLike) and protocol_of(record) == protocol_of(target)
        return open_storage(record, options if takes_options else None, fsync=fsync), ""
    if (local := written.ability(LocalStorage)) is not None:
        return LocalStorage(local.root + SUFFIX, fsync=fsync, locks=local.locks), ""
    if (restricted := written.ability(RestrictsKeys)) is not None:
        if not restricted.keeps_records:
            return _in_memory(), ""
        place = restricted.beside(SUFFIX)
        return (written, INSIDE) if place is None else (place, "")
    if isinstance(target, str | os.PathLike):
        beside = Address.parse(text_of(target)).beside(SUFFIX)
        if beside is not None:
            return open_storage(beside, options, fsync=fsync), ""
    if isinstance(target, tuple) and isinstance(target[0], AbstractFileSystem) and str(target[1]).strip("/"):
        return open_storage((target[0], str(target[1]).rstrip("/") + SUFFIX), fsync=fsync), ""
    return written, INSIDE
