"""Overwrite a target: the old hierarchy stays until it is replaced, object by object, or the new one is complete beside it.

So a run that fails, or reads nothing, has not lost the old hierarchy. Documents that would misread new chunks, objects where a
directory will be, and links to directories are obstacles: they are removed when the first unit that they are in the way of could be read,
and before it is written. So a source that cannot be read costs the target nothing. The same is true of a target that is renewed. The
objects that are not replaced are removed at the end.

What links to directories lead to is not part of the store, and is neither written nor erased. A target that is not to be overwritten
and has such links is refused, and one that is to be and has something mounted in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from shardstore.format.draft2022.keys import canonical_key
from shardstore.format.store_keys import metadata_path
from shardstore.format.v2.keys import document_key, is_document
from shardstore.maintenance.packing.leaving import Leaving, remove
from shardstore.maintenance.packing.places import Places
from shardstore.storage.base import ObjectInfo, Storage
from shardstore.storage.boundaries import check_no_links, check_no_mounts
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.requests.outcomes import PROBE_PREFIX
from shardstore.storage.wrappers import innermost

_DELETED_AT_ONCE = 1000
_LOOKS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Overwritten:
    """The old objects, by their stored keys, each with the key that the new hierarchy would give it, if any."""

    keys: dict[str, str | None] = field(default_factory=dict)
    nbytes: int = 0
    cuts_links: bool = False
    """True if the target is overwritten, even if it holds no object: there may be links to nowhere."""

    @classmethod
    async def of(cls, places: Places, *, as_draft: bool) -> Overwritten:
        """Look up the old objects. Raises ``StorageError`` if a request failed."""
        own = (PROBE_PREFIX, *([] if places.record_inside is None else [places.record_inside]))
        keys: dict[str, str | None] = {}
        nbytes = 0
        async for key, size, _ in places.stored_target.list(""):
            if not key.startswith(own):
                keys[key] = canonical_key(key) if as_draft else key
                nbytes += max(0, size)
        return cls(keys, nbytes, cuts_links=True)

    def __bool__(self) -> bool:
        return bool(self.keys)

    def shown(self) -> set[str]:
        """Return the keys of old objects that the new hierarchy may have too."""
        return {key for key in self.keys.values() if key is not None}

    async def v2_documents(self, storage: Storage) -> list[ObjectInfo]:
        """Return the documents of Zarr v2, which would misread new chunks with keys of v2."""
        found = [await storage.stat(shown) for key, shown in self.keys.items() if key == shown and document_key(key) is not None]
        return [info for info in found if info is not None]

    async def clear_for_documents(self, storage: Storage) -> None:
        """Remove objects without a key in the new hierarchy, now that it is complete beside them: a hierarchy of another format, with its
        root.
        """
        kind = innermost(storage)
        if self.cuts_links and isinstance(kind, LocalStorage):
            await kind.cut_links("")
        await _delete(storage, (key for key, shown in self.keys.items() if shown is None))

    async def clear_up(self, storage: Storage, kept: Collection[str]) -> None:
        """Remove objects that were not replaced: all whose key the new hierarchy does not have, documents first."""
        told = ((key, shown) for key, shown in self.keys.items() if shown is not None)
        leaving = [key for key, shown in told if shown not in kept and not (key != shown and _may_be_of_scalar(shown, kept))]
        await _delete(storage, (key for key in leaving if metadata_path(key) is not None))
        await _delete(storage, (key for key in leaving if metadata_path(key) is None))


def _may_be_of_scalar(shown: str, kept: Collection[str]) -> bool:
    """Return whether an object of the draft may be the chunk of a 0-d array that was just written; only the array's document shows that."""
    return shown.endswith("c/0") and shown.removesuffix("/0") in kept


async def _delete(storage: Storage, keys: Iterable[str]) -> None:
    all_keys = list(keys)
    for start in range(0, len(all_keys), _DELETED_AT_ONCE):
        await storage.delete_many(all_keys[start : start + _DELETED_AT_ONCE])


@dataclass(frozen=True, slots=True)
class Obstacles:
    """Objects of the target, and links to directories, that new objects cannot be written beside."""

    objects: tuple[ObjectInfo, ...] = ()
    links: tuple[str, ...] = ()
    as_draft: bool = False

    def __bool__(self) -> bool:
        return bool(self.objects or self.links)

    def of(self, path: str) -> Obstacles:
        """Return those that are in the way of the node at ``path``: they lie at it, below it, or above it."""
        objects = tuple(info for info in self.objects if _touch(_place_of(info.key), path))
        # In a draft hierarchy the keys of files differ from those that are shown: links lie at the beginning of any.
        return Obstacles(objects, tuple(link for link in self.links if self.as_draft or _touch(link, path)))

    def without(self, others: Iterable[Obstacles]) -> Obstacles:
        """Return those that are none of the ``others``."""
        known = {info.key for other in others for info in other.objects} | {link for other in others for link in other.links}
        objects = tuple(info for info in self.objects if info.key not in known)
        return Obstacles(objects, tuple(link for link in self.links if link not in known))

    async def remove(self, places: Places) -> None:
        """Remove the links themselves, and the objects in the versions that were looked at; what is gone already is no error.

        Raises:
            Conflict: an object was replaced meanwhile.
            StorageError: a request failed.
        """
        kind, storage = innermost(places.stored_target), places.target.storage
        if isinstance(kind, LocalStorage):
            for link in self.links:
                await kind.cut_links(f"{link}/")
        documents = [info for info in self.objects if is_document(info.key)]
        for infos in (documents, [info for info in self.objects if not is_document(info.key)]):
            for start in range(0, len(infos), _LOOKS_AT_ONCE):
                some = infos[start : start + _LOOKS_AT_ONCE]
                there = await asyncio.gather(*(storage.stat(info.key) for info in some))
                left = [info for info, found in zip(some, there, strict=True) if found is not None]
                await remove(storage, Leaving(sorted(left, key=lambda info: metadata_path(info.key) is None)))


def _place_of(key: str) -> str:
    """Return the path of the node whose document ``key`` is; of any other object its key."""
    return key.rpartition("/")[0] if is_document(key) else key


def _touch(one: str, other: str) -> bool:
    """Return whether one path is the other, or lies below it."""
    return not one or not other or f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


async def links_of(places: Places) -> tuple[str, ...]:
    """Return the keys of links to directories, and to nowhere, in a local target."""
    kind = innermost(places.stored_target)
    return tuple(await kind.linked_directories()) if isinstance(kind, LocalStorage) else ()


async def check_target(places: Places, *, overwrite: bool) -> None:
    """Refuse to write through links, and to erase what is mounted in the target.

    Raises:
        Conflict: a directory of the target is a link, which ``overwrite`` removes; or with that, something is mounted there.
    """
    await (check_no_mounts if overwrite else check_no_links)(places.stored_target, "")
