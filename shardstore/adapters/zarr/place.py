"""Find the engine behind a zarr store, and where the store's keys are in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zarr.abc.store import Store
from zarr.storage import FsspecStore, WrapperStore

from shardstore.adapters.handle import Face, FilesystemFace

if TYPE_CHECKING:
    from shardstore.presented.flavours import Presented

_OF_ONE_KEY = ("get", "set", "delete")


@dataclass(frozen=True, slots=True)
class Place:
    """The engine behind a zarr store, and the prefix of the store's keys in it: ``""``, or one that ends with ``/``."""

    store: Store
    engine: Presented
    prefix: str

    def key(self, path: str) -> str:
        """The engine's key of a path in the store."""
        return self.prefix + path

    async def ensure_open(self) -> None:
        if not self.store._is_open:
            await self.store._ensure_open()

    def check_writable(self) -> None:
        """Raises where the store, or what is behind it, may not be written."""
        self.store._check_writable()
        if isinstance(self.store, FsspecStore):
            self.store.fs.check_writable()


def place_of(store: object) -> Place | None:
    """The place of a ``ShardedStore``, or of zarr's own store over a ``ShardedFileSystem``; ``None`` for any other.

    Nor has a subclass one that handles keys in its own way.
    """
    if not isinstance(store, Store) or not issubclass(type(store), Store):
        return None  # or it only says that it is one, as mocks do
    if isinstance(store, Face) and store.uses_pipeline:
        return Place(store, store.engine, "")
    if not isinstance(store, FsspecStore) or not handles_keys_as(store, FsspecStore):
        return None
    if isinstance(store.fs, FilesystemFace) and store.fs.uses_pipeline:
        prefix = store.fs.key_of(store.path)
        return Place(store, store.fs.engine, prefix + "/" if prefix else "")
    return None


def place_behind(store: Store) -> Place | None:
    """Return where the keys of a store end up, whoever handles them on the way: through zarr's wrappers, or in a subclass."""
    if not issubclass(type(store), Store):
        return None
    innermost = store
    while isinstance(innermost, WrapperStore):
        innermost = innermost._store
    if isinstance(innermost, Face):
        return Place(store, innermost.engine, "")
    if not isinstance(innermost, FsspecStore) or not isinstance(innermost.fs, FilesystemFace):
        return None
    innermost.fs.settle()
    prefix = innermost.fs.key_of(innermost.path)
    return Place(store, innermost.fs.engine, prefix + "/" if prefix else "")


def handles_keys_as(store: Store, base: type[Store]) -> bool:
    """Return whether ``store`` gets, sets and deletes one key as ``base`` does: what a subclass has changed must not be passed by."""
    return all(getattr(type(store), name) is getattr(base, name) for name in _OF_ONE_KEY)
