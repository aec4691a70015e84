"""Catalogs: they hold, for each store, the one thing that changes, a pointer to its current state file.

::

    get(name)                    where is the state?
    swap(name, before, after)    the commit, a compare-and-swap: of several from ``before``, one succeeds

``StorageCatalog`` keeps each pointer as a small object in any storage that can change one on a condition; ``sql_catalog`` keeps them in a
database. No location of a state file comes twice, so a pointer never comes back to what it was. Specification: Icechunk draft, "Catalog",
with D1 and D2.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from shardstore.errors import Conflict, Corruption, InvalidInput, StorageError, Unsupported, WriteOutcomeUnknown
from shardstore.format.json_text import dumps, loads_object
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL, Condition, Generation, IfGeneration
from shardstore.model.ranges import EVERYTHING
from shardstore.model.words import is_utf8
from shardstore.opening.snapshot_place import MOST_POINTER_NBYTES, POINTER_KEY
from shardstore.storage.base import ConditionFailed, Found, Read, Storage, read_one
from shardstore.storage.requests.outcomes import PROBE_PREFIX
from shardstore.storage.wrappers import CheckedStorage

DEFAULT_NAME = POINTER_KEY.removesuffix(".json")
"""The name of a store's pointer in a catalog of its own."""

_SUFFIX = ".json"
_TRIES = 4
"""Tries of a change that is refused although the pointer is unchanged."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """The place of the current state of a store."""

    location: str
    """The key of the state file, relative to the root of the store. Every state has a key of its own (D4 in docs/design/snapshots.md)."""
    generation: int
    """The generation of the state."""
    store_id: str
    version: Generation | None = field(default=None, compare=False)
    """The version of the object that holds the pointer, where the catalog knows it."""


class PointerMoved(Conflict):
    """Another writer has swapped the pointer first; ``now`` is where it points, ``None`` if the store is gone."""

    def __init__(self, message: str, now: Pointer | None) -> None:
        super().__init__(message)
        self.now = now


class Catalog(Protocol):
    """The pointers of stores, by name."""

    @property
    def url(self) -> str:
        """The catalog's place, for people, without credentials."""
        ...

    async def get(self, name: str) -> Pointer | None:
        """Return the pointer of a store; ``None`` if there is none.

        Raises:
            Corruption: what is there is no pointer.
            StorageError: a request failed.
        """
        ...

    async def check_able(self) -> None:
        """Check that pointers can be swapped here. It is asked before files are stored that a swap is to make known.

        Raises:
            Unsupported: they cannot.
        """
        ...

    async def swap(self, name: str, before: Pointer | None, after: Pointer) -> Pointer:
        """Replace a store's pointer by ``after`` if it is still ``before`` (``None``: if there is none); return it.

        It is durable, and every ``get`` gives it, when this returns. Where ``after`` is there already, that is this caller's success,
        since no other caller has its location: so a read settles a lost answer, and a swap may be asked for again.

        Raises:
            PointerMoved: it is neither now. If an answer was lost, this swap may have been carried out, and later swaps have replaced it:
                the catalog does not know that, but the current state does.
            Unsupported: the catalog cannot do that.
            WriteOutcomeUnknown: the answer was lost, and looking could not settle it.
        """
        ...

    async def delete(self, name: str, before: Pointer) -> None:
        """Remove a store's pointer if it is still ``before``; its files stay. Raises as ``swap``."""
        ...

    def list(self) -> AsyncIterator[str]:
        """Yield the names of all stores."""
        ...


def check_store_name(name: str) -> str:
    """Return the name if a store can have it. Raises ``InvalidInput``."""
    odd = any(character in name for character in "/\\\0@") or not is_utf8(name)
    if not name or name != name.strip() or odd or name.startswith("."):
        raise InvalidInput(
            f"{name!r} cannot be the name of a store: it must not be empty, begin with '.' or a blank, or hold any of / \\ @ or "
            "what UTF-8 cannot hold"
        )
    return name


class StorageCatalog:
    """Pointers as objects of a storage, ``<name>.json``."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._checked: Storage = CheckedStorage(storage)

    def __repr__(self) -> str:
        return f"StorageCatalog({self.storage!r})"

    @property
    def url(self) -> str:
        return self.storage.url

    async def get(self, name: str) -> Pointer | None:
        key = _key_of(name)
        outcome = await read_one(self._checked, Read(key, (EVERYTHING,), most_nbytes=MOST_POINTER_NBYTES))
        if not isinstance(outcome, Found):
            return None
        return pointer_in(outcome, key, self.url)

    async def check_able(self) -> None:
        await self._probed()

    async def swap(self, name: str, before: Pointer | None, after: Pointer) -> Pointer:
        await self._probed()
        key = _key_of(name)
        condition: Condition = IF_ABSENT
        if before is not None:
            version = before.version
            if version is None:
                now = await self.get(name)
                if now == after:
                    return now
                version = _version_of(name, self.url, now, before)
            condition = IfGeneration(version)
        data = dumps({"location": after.location, "generation": after.generation, "id": after.store_id})
        lost: WriteOutcomeUnknown | None = None
        for _ in range(_TRIES):
            try:
                version = await self._checked.write(key, [data], len(data), condition)
            except (ConditionFailed, WriteOutcomeUnknown) as exc:
                now = await self._now(name, exc)
                if now == after:  # carried out, and its answer lost
                    return now
                if now != before:
                    raise moved(name, self.url, now) from exc
                lost = _lost_once(lost, exc)
                # If it is in another version, the object was written again, as a backup that is restored is.
                condition = IF_ABSENT if now is None or now.version is None else IfGeneration(now.version)
            except StorageError as exc:
                if lost is not None:  # the first request may still be carried out
                    raise lost from exc
                raise
            else:
                return Pointer(after.location, after.generation, after.store_id, version)
        raise lost or _refuses(name, self.url)

    async def delete(self, name: str, before: Pointer) -> None:
        able = await self._probed()
        version = before.version
        if version is None or not able.conditional_delete:
            version = _version_of(name, self.url, await self.get(name), before)
        lost: WriteOutcomeUnknown | None = None
        for _ in range(_TRIES):
            # Where DELETE has no conditions, a swap that comes between is lost: the caller removes all files too, and has been asked.
            condition = IfGeneration(version) if able.conditional_delete else UNCONDITIONAL
            try:
                is_done = await self._checked.delete(_key_of(name), condition)
            except (ConditionFailed, WriteOutcomeUnknown) as exc:
                now = await self._now(name, exc)
                if is_gone(now, before) and (lost is not None or isinstance(exc, WriteOutcomeUnknown)):
                    return
                version = _version_of(name, self.url, now, before)
                lost = _lost_once(lost, exc)
            except StorageError as exc:
                if lost is not None:
                    raise lost from exc
                raise
            else:
                # Without conditions, it was there just before, and may be gone by this request, sent twice.
                if not is_done and able.conditional_delete and lost is None:
                    raise moved(name, self.url, None)
                return
        raise lost or _refuses(name, self.url)

    async def list(self) -> AsyncIterator[str]:
        for info in (await self._checked.list_dir("")).objects:
            if info.key.endswith(_SUFFIX) and not info.key.startswith(PROBE_PREFIX):
                yield info.key.removesuffix(_SUFFIX)

    async def _now(self, name: str, failure: Exception) -> Pointer | None:
        """Return the pointer that is there after a request has failed that was to change it. Raises ``WriteOutcomeUnknown``."""
        with suppress(StorageError):
            return await self.get(name)
        try:
            return await self.get(name)  # once more, before the caller gets an error without an answer
        except StorageError as exc:
            raise WriteOutcomeUnknown(
                f"changing the pointer of the store {name!r} in the catalog {self.url} failed: {failure}. It cannot be read to see whether "
                f"that was carried out: {exc}. Look at the store again, or repeat the call"
            ) from failure

    async def _probed(self) -> Capabilities:
        """Return what the storage can do. Raises ``Unsupported`` if that is not enough to swap a pointer."""
        able = await self._checked.probe()
        if not (able.create_if_absent and able.compare_and_swap):
            raise Unsupported(
                f"{self.url} cannot change an object on condition that it is still what was read, so two commits at once could both "
                "succeed: make the store elsewhere, or its catalog (in Python: catalog=StorageCatalog(another place), or in a "
                "database, catalog=SQLCatalog('postgresql+psycopg://…')). No store was made or changed"
            )
        return able


def _version_of(name: str, url: str, now: Pointer | None, before: Pointer) -> Generation:
    """Return the version of the object that holds ``now``. Raises ``PointerMoved`` if that is not ``before``."""
    if now is None or now != before or now.version is None:
        raise moved(name, url, now)
    return now.version


def _key_of(name: str) -> str:
    return f"{check_store_name(name)}{_SUFFIX}"


def pointer_in(found: Found, key: str, url: str) -> Pointer:
    """Return the pointer that was found whole at a key of a catalog. Raises ``Corruption`` if it is none."""
    try:
        document = loads_object(found.buffers[0])
    except Corruption as exc:
        raise Corruption(_no_pointer(key, url)) from exc
    match document:
        case {"location": str() as location, "generation": int() as generation, "id": str() as store_id} if location:
            return Pointer(location, generation, store_id, found.generation)
    raise Corruption(_no_pointer(key, url))


def _no_pointer(key: str, url: str) -> str:
    return f"{key!r} at {url} is no pointer to the state of a versioned store, or is damaged: restore the object"


def _lost_once(lost: WriteOutcomeUnknown | None, failure: Exception) -> WriteOutcomeUnknown | None:
    """Return the first failure of one change that lost its answer, if any has. Raises the second one.

    The change may be sent again while the pointer is what it was: its condition lets one of both be carried out.
    """
    if not isinstance(failure, WriteOutcomeUnknown):
        return lost
    if lost is not None:
        raise failure
    return failure


def _refuses(name: str, url: str) -> StorageError:
    return StorageError(
        f"{url} refuses to change the pointer of the store {name!r} on the condition that it is unchanged: nothing was changed; try again"
    )


def is_gone(now: Pointer | None, before: Pointer) -> bool:
    """Return whether a store that had the pointer ``before`` has been removed: there may be another store in its place."""
    return now is None or now.store_id != before.store_id


def moved(name: str, url: str, now: Pointer | None) -> PointerMoved:
    """Return the error that a pointer is not what it was seen to be."""
    what = "it is gone" if now is None else f"it is at generation {now.generation}"
    return PointerMoved(f"another writer has changed the store {name!r} in the catalog {url} first: {what}", now)
