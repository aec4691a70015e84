"""The files of a versioned store that its snapshots need, directly or through other files; and lists of the files that there are.

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

from shardstore.format.snapshots.file_names import ATTRIBUTES, CHUNKS, ID_NAMES, MANIFESTS, STATES, STRUCTURES, encode_ids, is_own_name
from shardstore.format.snapshots.state import Snapshot
from shardstore.format.snapshots.structure import ManifestFile, Structure
from shardstore.model.containers import batched, gathered
from shardstore.progress.steps import Step
from shardstore.snapshots.files import StoreFiles
from shardstore.storage.base import Storage
from shardstore.storage.requests.outcomes import Bound

T = TypeVar("T")
R = TypeVar("R")

_AT_ONCE = 16
_ROUND = 1024
"""Files whose contents are held at once."""

_NAMES_A_PIECE = 1 << 16

FOLDERS = (STATES, STRUCTURES, ATTRIBUTES, MANIFESTS, CHUNKS)

Progress = Callable[[str, int, int | None], None]
"""Called with what is being done, how much of it has been done, and how much it is in all, if that is known."""


def step_of(noun: str) -> Callable[[str, int, int | None], Step]:
    """Return the function that makes the step that is shown; ``noun`` is what is counted."""
    return lambda what, done, total: Step(what, done, total, noun=noun)


async def for_each(items: Iterable[T], work: Callable[[T], Awaitable[R]], say_done: Callable[[int], None] | None = None) -> list[R]:
    """Return what ``work`` returns for each item, of which 16 are worked on at once; ``say_done`` is called with how many are done."""
    bound = Bound(_AT_ONCE)
    done = 0

    async def one(item: T) -> R:
        nonlocal done
        async with bound.slot():
            found = await work(item)
        done += 1
        if say_done is not None:
            say_done(done)
        return found

    return list(await asyncio.gather(*map(one, items)))


@dataclass(slots=True, eq=False)
class Reachable:
    """The names of files that snapshots need, by kind."""

    files: StoreFiles
    say: Progress
    structures: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    manifests: dict[str, ManifestFile] = field(default_factory=dict)
    _chunks: npt.NDArray[np.bytes_] = field(default_factory=lambda: np.zeros(0, dtype=ID_NAMES))
    _nread: int = 0

    async def add(self, snapshots: Iterable[Snapshot]) -> None:
        """Add what these snapshots need. Raises as ``add_structures``."""
        await self.add_structures(one.structure for one in snapshots)

    async def add_structures(self, structures: Iterable[str]) -> None:
        """Add what the snapshots with these structures need. Raises ``Corruption``: a file that one of them needs is missing or damaged."""
        new = list(dict.fromkeys(one for one in structures if one not in self.structures))
        manifests: dict[str, ManifestFile] = {}
        for some in batched(new, _ROUND):
            for structure in await self._each(some, self.files.structure):
                manifests |= self._take(structure)
            self.structures.update(some)
        unread = [file for name, file in manifests.items() if name not in self.manifests]
        for group in batched(unread, _ROUND):
            found = await self._each(group, self.files.chunk_ids_of)
            self._chunks = np.unique(np.concatenate([self._chunks, *map(encode_ids, found)]))
            self.manifests |= {file.name: file for file in group}

    def _take(self, structure: Structure) -> dict[str, ManifestFile]:
        """Note the files of attributes of a structure, and return its manifests."""
        self.attributes.update(node.attributes.file for node in structure.nodes.values() if node.attributes is not None)
        return {part.file.name: part.file for node in structure.nodes.values() for part in node.manifests}

    async def _each(self, some: Sequence[T], read: Callable[[T], Awaitable[R]]) -> list[R]:
        before = self._nread
        self._nread += len(some)
        return await for_each(some, read, lambda done: self.say("reading structures and manifests", before + done, None))

    def names(self, folder: str) -> npt.NDArray[np.bytes_]:
        """Return the names of the files in one folder, ascending, each once."""
        if folder == CHUNKS:
            return self._chunks
        names = {STRUCTURES: self.structures, ATTRIBUTES: self.attributes, MANIFESTS: self.manifests.keys()}[folder]
        return np.array(sorted(names), dtype=ID_NAMES)

    def has(self, keys: npt.NDArray[np.bytes_]) -> npt.NDArray[np.bool_]:
        """Return which of ``(n,)`` keys, which ascend, are those of files that are needed."""
        known = [np.char.add(folder.encode(), self.names(folder)) for folder in sorted(FOLDERS) if folder != STATES]
        return are_among(keys, np.concatenate(known))


# -- listing -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class FolderListing:
    """The files of one folder that have names such as this store gives, in order of their names."""

    names: npt.NDArray[np.bytes_]
    nbytes: npt.NDArray[np.int64]
    unknown: int
    """The number of files with other names."""


async def list_files(storage: Storage, folder: str, say: Progress) -> FolderListing:
    """Return the files in one of the ``FOLDERS``."""
    kind = np.bytes_ if folder == STATES else ID_NAMES
    names, sizes = [np.zeros(0, dtype=kind)], [np.zeros(0, dtype=np.int64)]
    unknown = total = 0
    async for piece in gathered(storage.list(folder), _NAMES_A_PIECE):
        own = [info for info in piece if is_own_name(folder, info.key[len(folder) :])]
        names.append(np.array([info.key[len(folder) :] for info in own], dtype=kind))
        sizes.append(np.array([info.nbytes for info in own], dtype=np.int64))
        total, unknown = total + len(piece), unknown + len(piece) - len(own)
        if len(piece) == _NAMES_A_PIECE:
            say(f"listing {folder}", total, None)
    found, nbytes = np.concatenate(names), np.concatenate(sizes)
    order = np.argsort(found)
    return FolderListing(found[order], nbytes[order], unknown)


def are_among(names: npt.NDArray[np.bytes_], known: npt.NDArray[np.bytes_]) -> npt.NDArray[np.bool_]:
    """Return which of ``(n,)`` names are among the known ones; both ascend."""
    if not len(known):
        return np.zeros(len(names), dtype=np.bool_)
    found: npt.NDArray[np.bool_] = known[np.minimum(np.searchsorted(known, names), len(known) - 1)] == names
    return found
