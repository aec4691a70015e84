"""Any mapping from keys to bytes, for reading: a dictionary, an ``fsspec`` mapper of a filesystem that is not known here, a store of
zarr-python 2.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from shardstore.errors import ReadOnly, StorageError
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import Condition, Generation
from shardstore.model.ranges import BytesLike, resolve
from shardstore.storage.base import ABSENT, UNKNOWN_NBYTES, DirListing, Failed, Found, ObjectInfo, Read, ReadOutcome
from shardstore.storage.fallbacks import ReadsAndWrites, check_directory
from shardstore.storage.inferred_versions import unversioned

_IN_MEMORY = (dict,)  # whose values cost nothing to look at


class MappingStorage(ReadsAndWrites):
    """The values of ``mapping``, which nobody may change meanwhile: it gives no versions, and no size before a value was read."""

    def __init__(self, mapping: Mapping[str, Any]) -> None:
        self.mapping = mapping

    def __reduce__(self) -> tuple[type[MappingStorage], tuple[Mapping[str, Any]]]:
        return type(self), (self.mapping,)

    @property
    def url(self) -> str:
        return f"mapping://{type(self.mapping).__name__}"

    @property
    def kind(self) -> str:
        return "mapping"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    async def probe(self) -> Capabilities:
        return self.capabilities

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        return await asyncio.to_thread(lambda: [self._read_one(read) for read in reads])

    def _read_one(self, read: Read) -> ReadOutcome:
        try:
            value = memoryview(self.mapping[read.key]).cast("B")
        except KeyError:
            return ABSENT
        except Exception as exc:  # noqa: BLE001  # whatever a mapping of somebody else's raises
            error = StorageError(f"reading {read.key!r} from a {type(self.mapping).__name__} failed: {type(exc).__name__}: {exc}")
            error.__cause__ = exc
            return Failed(error)
        wanted = [resolve(request, len(value)) for request in read.ranges]
        return Found(unversioned(len(value)), len(value), tuple(value[r.start : r.end] for r in wanted))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        keys = await asyncio.to_thread(lambda: sorted(key for key in self.mapping if key.startswith(prefix)))
        for key in keys:
            size = len(memoryview(self.mapping[key]).cast("B")) if isinstance(self.mapping, _IN_MEMORY) else UNKNOWN_NBYTES
            yield ObjectInfo(key, size)

    async def list_dir(self, prefix: str) -> DirListing:
        check_directory(prefix)
        objects: list[ObjectInfo] = []
        prefixes: dict[str, None] = {}
        async for info in self.list(prefix):
            name, slash, _ = info.key[len(prefix) :].partition("/")
            if slash:
                prefixes[f"{prefix}{name}/"] = None
            else:
                objects.append(info)
        return DirListing(tuple(objects), tuple(prefixes))

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        raise self._read_only(key)

    async def delete(self, key: str, condition: Condition) -> bool:
        raise self._read_only(key)

    async def delete_many(self, keys: Sequence[str]) -> None:
        if keys:
            raise self._read_only(keys[0])

    def _read_only(self, key: str) -> ReadOnly:
        return ReadOnly(f"{key!r} cannot be written or deleted: a {type(self.mapping).__name__} is only read from")

    async def close(self) -> None:
        """Do nothing: no resources are held."""
