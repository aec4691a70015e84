"""Which files of a versioned store its snapshots need, directly or through other files.

::

    state ─► structures ─► manifests ─► chunk files
                       └─► attributes

A file that many snapshots share is read once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from shardstore.format.snapshots.file_names import ATTRIBUTES, CHUNKS, ID_NAMES, MANIFESTS, STRUCTURES, encode_ids
from shardstore.format.snapshots.state import Snapshot
from shardstore.format.snapshots.structure import ManifestFile, Structure
from shardstore.snapshots.files import StoreFiles
from shardstore.storage.requests.bound import Bound

T = TypeVar("T")
R = TypeVar("R")

READ_AT_ONCE = 16
_ROUND = 1024
"""Files whose contents are held at once."""

Done = Callable[[int, int], None]
"""Called with the number of files that have been read, and of those known so far."""


@dataclass(slots=True, eq=False)
class Reachable:
    """The names of files that snapshots need, by kind."""

    files: StoreFiles
    done: Done | None = None
    structures: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    manifests: dict[str, ManifestFile] = field(default_factory=dict)
    _chunks: npt.NDArray[np.bytes_] = field(default_factory=lambda: np.zeros(0, dtype=ID_NAMES))
    _nread: int = 0

    async def add(self, snapshots: Iterable[Snapshot]) -> None:
        """Add what these snapshots need.

        Raises:
            Corruption: a file that one of them needs is missing or damaged.
        """
        new = list(dict.fromkeys(one.structure for one in snapshots if one.structure not in self.structures))
        manifests: dict[str, ManifestFile] = {}
        for some in _groups(new):
            for structure in await self._each(some, self.files.structure):
                manifests |= self._take(structure)
            self.structures.update(some)
        unread = [file for name, file in manifests.items() if name not in self.manifests]
        for group in _groups(unread):
            found = await self._each(group, self.files.chunk_ids_of)
            self._chunks = np.unique(np.concatenate([self._chunks, *map(encode_ids, found)]))
            self.manifests |= {file.name: file for file in group}

    def _take(self, structure: Structure) -> dict[str, ManifestFile]:
        """Note the files of attributes of a structure, and return its manifests."""
        self.attributes.update(node.attributes.file for node in structure.nodes.values() if node.attributes is not None)
        return {part.file.name: part.file for node in structure.nodes.values() for part in node.manifests}

    async def _each(self, some: Sequence[T], read: Callable[[T], Awaitable[R]]) -> list[R]:
        bound = Bound(READ_AT_ONCE)

        async def one(file: T) -> R:
            async with bound.slot():
                found = await read(file)
            self._nread += 1
            if self.done is not None:
                self.done(self._nread, self._nread + len(some))
            return found

        return list(await asyncio.gather(*map(one, some)))

    def names(self, folder: str) -> npt.NDArray[np.bytes_]:
        """Return the names of the files in one folder, ascending, each once."""
        if folder == CHUNKS:
            return self._chunks
        names = {STRUCTURES: self.structures, ATTRIBUTES: self.attributes, MANIFESTS: self.manifests.keys()}[folder]
        return np.array(sorted(names), dtype=ID_NAMES)


def _groups(some: Sequence[T]) -> Iterable[Sequence[T]]:
    for start in range(0, len(some), _ROUND):
        yield some[start : start + _ROUND]
