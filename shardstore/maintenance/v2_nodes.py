"""Nodes of Zarr v2: shardstore passes them through, verification checks them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from shardstore.errors import Corruption
from shardstore.format.chunk_keys import looks_like_chunk_key
from shardstore.format.json_text import JsonObject, loads_object, same_text
from shardstore.format.store_keys import ancestors, join
from shardstore.format.v2.keys import ARRAY_NAME, CONSOLIDATED_NAME, GROUP_NAME, document_key
from shardstore.maintenance.array_plans import ArrayPlan, plan_v2_array
from shardstore.model.chunks import ChunkCoords
from shardstore.model.containers import batched
from shardstore.storage.base import Found, Storage, document_read, unless_failed

_DOCUMENTS_AT_ONCE = 256
_MOST_ABSENT = 100_000


@dataclass(frozen=True, slots=True)
class V2Document:
    """One of ``.zarray``, ``.zgroup``, ``.zattrs`` and ``.zmetadata``; ``None`` if it is no JSON object."""

    path: str
    name: Literal[".zarray", ".zgroup", ".zattrs", ".zmetadata"]
    document: JsonObject | None
    reason: str = ""


class V2Nodes:
    """Arrays by path, read when they are asked for."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._arrays: dict[str, ArrayPlan | None] = {}
        self._absent: set[str] = set()

    def arrays(self) -> list[ArrayPlan]:
        """Return the arrays that have been read, and whose objects can be identified, in the order of their paths."""
        return [plan for _, plan in sorted(self._arrays.items()) if plan is not None]

    async def owners(self, keys: Sequence[str]) -> list[tuple[ArrayPlan, ChunkCoords] | None]:
        """Return the outermost array of Zarr v2 that has an object at each key."""
        cuts = [[(path, rest) for path, rest in ancestors(key) if looks_like_chunk_key(rest)] for key in keys]
        await self.load(path for some in cuts for path, _ in some)
        return [self._owner(some) for some in cuts]

    def _owner(self, cuts: list[tuple[str, str]]) -> tuple[ArrayPlan, ChunkCoords] | None:
        for path, rest in cuts:
            plan = self._arrays.get(path)
            coords = plan.coords_of(rest) if plan is not None else None
            if plan is not None and coords is not None:
                return plan, coords
        return None

    def has_unreadable(self, key: str) -> bool:
        """Return whether an array above ``key`` does not show its objects: then the key may be one of them."""
        return any(path in self._arrays and self._arrays[path] is None for path, _ in ancestors(key))

    async def load(self, paths: Iterable[str]) -> None:
        """Read the arrays at ``paths``, if there are any. Raises ``StorageError`` if a request failed."""
        if len(self._absent) > _MOST_ABSENT:
            self._absent.clear()
        unknown = [path for path in dict.fromkeys(paths) if path not in self._arrays and path not in self._absent]
        for some in batched(unknown, _DOCUMENTS_AT_ONCE):
            for path, read in zip(some, await read_v2(self._storage, [join(path, ARRAY_NAME) for path in some]), strict=True):
                if read is None:
                    self._absent.add(path)
                else:
                    self._arrays[path] = None if read.document is None else plan_v2_array(path, read.document)


async def read_v2(storage: Storage, keys: Sequence[str]) -> list[V2Document | None]:
    """Return the documents at ``keys``, ``None`` if there is none. Raises ``StorageError`` if a request failed."""
    found: list[V2Document | None] = []
    outcomes = await storage.read([document_read(key) for key in keys])
    for key, outcome in zip(keys, outcomes, strict=True):
        outcome = unless_failed(outcome)
        named = document_key(key)
        if not isinstance(outcome, Found) or named is None:
            found.append(None)
            continue
        try:
            document, reason = loads_object(outcome.buffers[0]), ""
        except Corruption as exc:
            document, reason = None, str(exc)
        found.append(V2Document(named.path, named.name, document, reason))  # type: ignore[arg-type]  # a name of v2
    return found


def _says_the_same(own: V2Document, repeated: Any) -> bool:
    if own.name == GROUP_NAME and isinstance(repeated, dict):  # zarr-python 3 repeats more of a group than it stores
        repeated = {name: value for name, value in repeated.items() if name != "consolidated_metadata"}
    return same_text(own.document, repeated)


async def is_stale_v2(storage: Storage, key: str, listed: Iterable[str]) -> bool:
    """Return whether the ``.zmetadata`` at ``key`` differs from the documents that it repeats, or lacks one of
    those that are ``listed``.
    """
    (read,) = await read_v2(storage, [key])
    metadata = None if read is None or read.document is None else read.document.get("metadata")
    if read is None or not isinstance(metadata, dict):
        return False  # gone, or another fault
    names = sorted(metadata)
    prefix = join(read.path, "")
    own = await read_v2(storage, [prefix + name for name in names])
    for name, one in zip(names, own, strict=True):
        if one is None or one.document is None or not _says_the_same(one, metadata[name]):
            return True
    below = (key[len(prefix) :] for key in listed if key.startswith(prefix) and not key.endswith(CONSOLIDATED_NAME))
    return any(name not in metadata for name in below)
