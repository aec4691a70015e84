"""Any mapping from keys to bytes, for reading: a dictionary, an ``fsspec`` mapper of a filesystem that is not known here, a store of
zarr-python 2.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from shardstore.errors import ReadOnly, StorageError
from shardstore.model.capabilities import Capabilities
from shardstore.model.ranges import resolve
from shardstore.storage.base import (
    ABSENT,
    UNKNOWN_NBYTES,
    DirListing,
    Failed,
    Found,
    ObjectInfo,
    Read,
    ReadOutcome,
    ReadsAndWrites,
    ReadsOnly,
    check_directory,
    direct_children,
)
from shardstore.storage.inferred_versions import unversioned

_IN_MEMORY = (dict,)  # whose values cost nothing to look at


class MappingStorage(ReadsOnly, ReadsAndWrites):
    """The values of ``mapping``, which must not change while it is open: it gives no versions, and no size before a value was read."""

    kind = "mapping"

    def __init__(self, mapping: Mapping[str, Any]) -> None:
        self.mapping = mapping

    def __reduce__(self) -> tuple[type[MappingStorage], tuple[Mapping[str, Any]]]:
        return type(self), (self.mapping,)

    @property
    def url(self) -> str:
        return f"mapping://{type(self.mapping).__name__}"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        return await asyncio.to_thread(lambda: [self._read_one(read) for read in reads])

    def _read_one(self, read: Read) -> ReadOutcome:
        try:
            value = memoryview(self.mapping[read.key]).cast("B")
        except KeyError:
            return ABSENT
        except Exception as exc:  # noqa: BLE001  # whatever a mapping of another library raises
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
        infos = {info.key: info async for info in self.list(prefix)}
        keys, prefixes = direct_children(infos, prefix)
        return DirListing(tuple(infos[key] for key in keys), prefixes)

    def refusal(self, action: str, key: str) -> ReadOnly:
        return ReadOnly(f"{action} {key!r}: a {type(self.mapping).__name__} is only read from")
