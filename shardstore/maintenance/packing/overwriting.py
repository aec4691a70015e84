"""Overwrite a target: the old hierarchy stays until it is replaced, object by object, or the new one is complete beside it.

So a run that fails, or reads nothing, has not lost the old hierarchy. Documents that would misread new chunks, and objects where a
directory will be, are removed before anything is written, as in a target that is renewed. The objects that are not replaced are removed
at the end.

Links to directories are removed first: their targets are not part of the store, and are neither written nor erased. A target that is
not to be overwritten and has such links is refused, and one that is to be and has something mounted in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from shardstore.format.draft2022.keys import canonical_key
from shardstore.format.store_keys import metadata_path
from shardstore.format.v2.keys import document_key
from shardstore.maintenance.packing.places import Places
from shardstore.storage.base import Storage
from shardstore.storage.boundaries import check_no_links, check_no_mounts
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.requests.outcomes import PROBE_PREFIX
from shardstore.storage.wrappers import innermost

_DELETED_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Overwritten:
    """The old objects, by their stored keys, each with the key that the new hierarchy would give it, if any."""

    keys: dict[str, str | None] = field(default_factory=dict)
    nbytes: int = 0

    @classmethod
    async def of(cls, places: Places, *, as_draft: bool) -> Overwritten:
        """Look up the old objects. Raises ``StorageError`` where a request failed."""
        own = (PROBE_PREFIX, *([] if places.record_inside is None else [places.record_inside]))
        keys: dict[str, str | None] = {}
        nbytes = 0
        async for key, size, _ in places.stored_target.list(""):
            if not key.startswith(own):
                keys[key] = canonical_key(key) if as_draft else key
                nbytes += max(0, size)
        return cls(keys, nbytes)

    def __bool__(self) -> bool:
        return bool(self.keys)

    def shown(self) -> set[str]:
        """Return the keys of old objects that the new hierarchy may have too."""
        return {key for key in self.keys.values() if key is not None}

    async def clear_the_way(self, storage: Storage) -> None:
        """Remove links to directories, and the documents of Zarr v2, which would misread new chunks with keys of v2."""
        kind = innermost(storage)
        if isinstance(kind, LocalStorage):
            await kind.cut_links("")
        await _delete(storage, (key for key in self.keys if document_key(key) is not None))

    async def clear_for_documents(self, storage: Storage) -> None:
        """Remove objects without a key in the new hierarchy, now that it is complete beside them: a hierarchy of another format, with its
        root.
        """
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


async def check_target(places: Places, *, overwrite: bool) -> None:
    """Refuse to write through links, and to erase what is mounted in the target.

    Raises:
        Conflict: a directory of the target is a link, which ``overwrite`` removes; or with that, something is mounted there.
    """
    await (check_no_mounts if overwrite else check_no_links)(places.stored_target, "")
