"""zarr's stores, as far as their classes differ for a storage: which one is inside, where its objects lie, what it is called; and their
keys, page by page. The coroutines run on zarr's loop.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ZipStore

from shardstore.adapters.handle import Face
from shardstore.errors import InvalidInput
from shardstore.model.generation import Generation
from shardstore.model.redaction import redacted
from shardstore.opening.location import Location, StorePlace, location_of
from shardstore.storage.generic.links import is_any
from shardstore.storage.generic.storage import GenericStorage, described
from shardstore.storage.local.storage import LocalStorage

T = TypeVar("T")

REQUESTS_AT_ONCE = 32

ABSENT_ERRORS = (FileNotFoundError, KeyError, NotADirectoryError, IsADirectoryError)
"""The errors of stores by which there is no object; some answer ``None`` instead."""

_ZARR_KEY = re.compile(r"(?:.+/)?(?:zarr\.json|c(?:/[0-9]+)*)")


def unwrapped(store: Store) -> Store:
    """Return the store inside all wrappers."""
    while isinstance(inner := getattr(store, "_store", None), Store):
        store = inner
    return store


def is_icechunk(store: Store) -> bool:
    return any(cls.__module__.partition(".")[0] == "icechunk" for cls in type(store).__mro__)


def check_usable(store: Store) -> None:
    if isinstance(store, Face) or (isinstance(store, FsspecStore) and is_any(store.fs, frozenset({"sharded"}))):
        raise InvalidInput(
            f"the {type(store).__name__} is a shardstore view of a store. Opening it again would shard the chunks twice. Give the URL of "
            "what is below it"
        )
    if isinstance(store, ZipStore) and hasattr(store, "_zf") and not store._is_open and store._zmode in ("w", "x"):
        raise InvalidInput(
            f"the ZipStore of {store.path} was closed; opening it again with mode={store._zmode!r} would erase it: use mode='r'"
        )


def snapshot_of(store: Any) -> Generation | None:
    """Return the version of all objects of a session that cannot be written to. Not called while one is being written to."""
    session = store.session
    return Generation(f"snapshot-{session.snapshot_id}") if session.read_only else None


def described_store(store: Any, snapshot: Generation | None) -> str:
    """Return a URL for people; it differs between stores of this process."""
    if isinstance(store, LocalStore):
        return LocalStorage(str(store.root)).url
    if isinstance(store, ZipStore):
        return f"zip::{LocalStorage(str(store.path)).url}"
    if isinstance(store, FsspecStore):
        return redacted(described(store.fs, store.path))
    if snapshot is not None:
        return f"icechunk://{snapshot.token}"
    holder = store._store_dict if isinstance(store, MemoryStore) else store
    return f"zarr://{type(store).__name__}-{id(holder):x}"


def location_in(store: Any, path: str, *, links: bool) -> Location:
    """Return the location of a path in an unwrapped store, as ``location_of`` does."""
    if isinstance(store, LocalStore):
        return location_of(LocalStorage(str(store.root)), path, links=links)
    if isinstance(store, ZipStore):
        return location_of(LocalStorage(str(store.path)))
    if isinstance(store, FsspecStore):
        return location_of(GenericStorage(store.fs, store.path), path, links=links)
    if isinstance(store, MemoryStore):
        return StorePlace(store._store_dict, path).location(is_known=True)
    return StorePlace(store, path).location(is_known=False)


def is_key_of_v3(key: str) -> bool:
    """Return whether the key is that of a document or, in the default encoding, a chunk of Zarr v3: icechunk takes no other."""
    return _ZARR_KEY.fullmatch(key) is not None


class StoredKeys:
    """The keys below ``base`` that start with ``prefix``, without ``base``. A store that ``lists_nodes_only`` refuses to list the rest."""

    def __init__(self, store: Store, base: str, prefix: str, *, lists_nodes_only: bool) -> None:
        self._store = store
        self._base = base
        self._prefix = base + prefix
        self._lists_nodes_only = lists_nodes_only
        self._keys: AsyncGenerator[str, None] | None = None

    async def page(self, most: int) -> list[str]:
        """Return the next keys, in no order; none if there are no more."""
        if self._keys is None:
            self._keys = self._listed()
        found: list[str] = []
        async for key in self._keys:
            found.append(key.removeprefix(self._base))
            if len(found) == most:
                break
        return found

    async def _listed(self) -> AsyncGenerator[str, None]:
        try:
            await self._store._ensure_open()
            async for key in await self._listing(self._prefix[: self._prefix.rfind("/") + 1]):
                if key.startswith(self._prefix) and not key.endswith("/"):
                    yield key
        except ABSENT_ERRORS:
            return

    async def _listing(self, directory: str) -> AsyncIterator[str]:
        while self._lists_nodes_only and directory and not await self._store.exists(f"{directory}zarr.json"):
            directory = directory[: directory.rstrip("/").rfind("/") + 1]
        return self._store.list_prefix(directory)

    async def close(self) -> None:
        """End the listing."""
        if self._keys is not None:
            await self._keys.aclose()


async def bounded(call: Callable[[str], Coroutine[object, object, T]], keys: Sequence[str]) -> list[T]:
    """Return the results of a call for each key, of which so many run at once."""
    bound = asyncio.Semaphore(REQUESTS_AT_ONCE)

    async def one(key: str) -> T:
        async with bound:
            return await call(key)

    return await asyncio.gather(*(one(key) for key in keys))
