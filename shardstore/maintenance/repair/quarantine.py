"""The quarantine: the bytes of damaged objects are kept there, each with a note, before anything replaces them; by default next to the
store.

``<key>/<token>`` is the object as it was, ``<key>/<token>.json`` says what was wrong with it and what was done. The token is made from
the version of the object, so storing it again does no harm. Leftovers of
writers that died are removed without a copy: no index has referred to them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from fsspec.spec import AbstractFileSystem

from shardstore._sync import run_sync
from shardstore.engine.writing.plan_writer import PlanWriter
from shardstore.errors import InvalidInput
from shardstore.format.store_keys import join
from shardstore.model.generation import UNCONDITIONAL, Generation
from shardstore.model.ranges import CopiedRange
from shardstore.opening.address import has_host
from shardstore.opening.chains import links_of_url, scheme_of, text_of
from shardstore.opening.location import location_of
from shardstore.opening.open import open_storage
from shardstore.storage.base import Storage
from shardstore.storage.boundaries import check_own
from shardstore.storage.local.directory import LocalFiles
from shardstore.storage.s3.storage import S3Storage
from shardstore.storage.wrappers import innermost

_SUFFIX = ".quarantine"
_HOW = "say quarantine=URL (--quarantine URL) to name a place for the bytes of damaged objects"


def open_quarantine(target: Any, given: Any, storage: Storage, storage_options: Mapping[str, Any] | None) -> Storage:
    """Return the storage at ``given``, by default the place next to ``target``, which ``storage`` is.

    Raises:
        InvalidInput: there is no default place, or the two overlap, by whatever names.
        Conflict: the quarantine is reached through a link in the middle of a store.
    """
    place = _beside(target) if given is None else given
    is_alike = isinstance(place, str) and isinstance(target, str) and place.partition("://")[0] == target.partition("://")[0]
    options = storage_options if is_alike and ("://" in str(place)) == ("://" in str(target)) else None
    quarantine = open_storage(place, options)
    if location_of(storage, links=True).overlaps(location_of(quarantine)):
        raise InvalidInput(f"the quarantine {quarantine.url} and the store {storage.url} overlap: {_HOW} elsewhere")
    run_sync(check_own(quarantine, ""))
    return quarantine


def _beside(target: Any) -> Any:
    if isinstance(target, os.PathLike):
        target = text_of(target)
    if isinstance(target, tuple) and len(target) == 2 and isinstance(target[0], AbstractFileSystem):
        path = str(target[1]).rstrip("/")
        if "/" in path.strip("/"):
            return target[0], path + _SUFFIX
    elif isinstance(target, str) and len(links_of_url(target)) == 1:
        protocol = scheme_of(target)
        separator, path = bool(protocol), target.rstrip("/").removeprefix(f"{protocol}://")
        if path and (not separator or not has_host(protocol) or "/" in path):
            return target.rstrip("/") + _SUFFIX
    # Not every target may be shown: a store of icechunk waits for its writers first.
    named = repr(target) if isinstance(target, str) else f"this {type(target).__name__}"
    raise InvalidInput(f"there is no place next to {named}: {_HOW}")


class Quarantine:
    """The kept objects of one store. On local disks only those can read them who can read them in the store."""

    def __init__(self, storage: Storage, store: Storage) -> None:
        self._storage = storage
        self._store = store

    async def keep(self, plans: PlanWriter, key: str, generation: Generation, nbytes: int, note: Mapping[str, Any]) -> str:
        """Store one version of an object, and a note about it, durably; return the key under which it is kept.

        Raises:
            ConditionFailed: the object is another version now.
        """
        token = hashlib.sha256(f"{nbytes} {generation.token}".encode()).hexdigest()[:16]
        kept = f"{key}/{token}"
        here, there = self._storage.ability(LocalFiles), self._store.ability(LocalFiles)
        if here is not None and there is not None:
            for name in (kept, f"{kept}.json"):
                await here.make_like(name, there, key)
        body = plans.pieces(key, generation, [CopiedRange(0, nbytes)] if nbytes else [])
        await self._storage.write(kept, body, nbytes, UNCONDITIONAL)
        document = {"key": key, "generation": generation.token, "nbytes": nbytes, **note}
        text = json.dumps(document, indent=2).encode()
        await self._storage.write(f"{kept}.json", [text], len(text), UNCONDITIONAL)
        return kept


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The number of leftovers that are old enough, or were until they were removed."""

    files: int = 0
    uploads: int = 0


async def clear_leftovers(storage: Storage, path: str, older_than_hours: float, now: datetime, *, only_count: bool) -> Leftovers:
    """Remove leftovers that are that old; of local files, those in the whole store, and only if ``path`` is empty.

    Raises:
        StorageError: the server does not list unfinished uploads, or failed.
    """
    if (local := storage.ability(LocalFiles)) is not None:
        return Leftovers(files=0 if path else await local.sweep(older_than_hours * 3600, only_count=only_count))
    kind = innermost(storage)
    if not isinstance(kind, S3Storage):
        return Leftovers()
    count = 0
    async for upload in kind.unfinished_uploads(join(path, "")):
        if now - upload.begun >= timedelta(hours=older_than_hours):
            count += 1
            if not only_count:
                await kind.abort_upload(upload)
    return Leftovers(uploads=count)
