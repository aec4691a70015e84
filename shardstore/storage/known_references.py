"""Storages that know where each chunk lies in which file, as snapshots of versioned stores do: sets of references are made of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardstore.errors import ShardStoreError
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
    checks: Mapping[int, VirtualCheck] = {}  # never changed
    """By number of a file elsewhere, what shows that it is still the one that was referred to."""


class ChunksInFile(NamedTuple):
    """One file in which ``n`` chunks lie."""

    key: str
    """In the storage that the files are in."""
    offset: npt.NDArray[np.int64]
    """``(n,)``: the first byte of each chunk."""


class FileFault(NamedTuple):
    """A file that cannot give the chunks which are said to lie in it."""

    path: str
    """An array that has such chunks."""
    file: str
    """The key of the file in the storage that the files are in, or its URL, without credentials."""
    error: ShardStoreError


class KnowsReferences(ABC):
    """A storage that knows them."""

    @property
    @abstractmethod
    def url(self) -> str: ...

    @property
    @abstractmethod
    def stored_in(self) -> Storage:
        """The storage of the files."""

    @abstractmethod
    async def known_documents(self) -> Mapping[str, JsonObject]:
        """Return the document of each node, by path, as of Zarr v3."""

    @abstractmethod
    async def known_references(self, path: str) -> KnownReferences:
        """Return where the chunks of an array lie. Raises ``ShardStoreError`` if that cannot be read."""

    @abstractmethod
    def file_faults(self, path: str) -> AsyncIterator[FileFault]:
        """Look at each file to which references of the arrays at and below ``path`` lead, by one request: it has to be there, unchanged and
        long enough. One to which nothing may lead is ``InvalidInput``.
        """

    @abstractmethod
    async def file_with(self, keys: Sequence[str]) -> ChunksInFile | None:
        """Return the one file in ``stored_in`` that holds all of these chunks of one array.

        ``None`` if they lie in several files, or elsewhere, or may still be written again.
        """
