"""Storages that know where each chunk lies in which file, as snapshots of versioned stores do: sets of references are made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from shardstore.format.json_text import JsonObject
from shardstore.format.snapshots.manifest import VirtualCheck
from shardstore.storage.base import Storage


class KnownReferences(NamedTuple):
    """Where the ``n`` chunks of one array lie that exist."""

    coords: npt.NDArray[np.int64]
    """``(n, ndim)``, ascending."""
    target: npt.NDArray[np.int32]
    """The number of each chunk's file in ``files``; negative for those in ``inline``."""
    offset: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]
    files: Sequence[str]
    """URLs; or keys in the storage that the files are in, if they have no ``://``."""
    inline: Mapping[int, bytes]
    """By row."""
    checks: Mapping[int, VirtualCheck] = {}  # nobody changes it
    """By number of a file elsewhere, what tells that it is still the one that was referred to."""


class ChunksInFile(NamedTuple):
    """One file in which ``n`` chunks lie."""

    key: str
    """In the storage that the files are in."""
    offset: npt.NDArray[np.int64]
    """``(n,)``: the first byte of each chunk."""


@runtime_checkable
class KnowsReferences(Protocol):
    """A storage that knows them."""

    @property
    def url(self) -> str: ...

    @property
    def stored_in(self) -> Storage:
        """The storage of the files."""
        ...

    async def known_documents(self) -> Mapping[str, JsonObject]:
        """Return the document of each node, by path, as of Zarr v3."""
        ...

    async def known_references(self, path: str) -> KnownReferences:
        """Return where the chunks of an array lie. Raises ``ShardStoreError`` if that cannot be read."""
        ...

    async def file_with(self, keys: Sequence[str]) -> ChunksInFile | None:
        """Return the one file in ``stored_in`` that holds all of these chunks of one array.

        ``None`` if they lie in several files, or elsewhere, or may still be written again.
        """
        ...
