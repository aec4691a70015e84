"""What writers of reference sets take: arrays with their documents, and batches of references to their chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from shardstore.format.references.documents import DocumentFlavour, NodeDocuments
from shardstore.format.references.parquet import ReferenceRows
from shardstore.format.references.pins import PinnedObject
from shardstore.storage.base import Storage


class ReferredObject(NamedTuple):
    """An object as it was when it was referred to: its key in the source's store, the token of its version if it is known, and its size."""

    key: str
    token: str | None
    nbytes: int


class ReferenceBatch(NamedTuple):
    """References to some chunks of one array."""

    chunks: npt.NDArray[np.int64]
    """The numbers of the chunks in C order of the array's grid of chunks, ``(n,)``, in any order."""
    rows: ReferenceRows
    """Their references; none of them is missing."""
    objects: Sequence[ReferredObject] = ()
    """The objects at ``rows.targets``; empty if they are not in the source's store."""


class ReferencedArray(Protocol):
    """An array of a source."""

    path: str

    @property
    def node(self) -> NodeDocuments: ...

    @property
    def flavour(self) -> DocumentFlavour | None:
        """The flavour of its documents, if it differs from that of the others."""
        ...

    @property
    def chunk_grid(self) -> tuple[int, ...]:
        """The number of chunks along each dimension."""
        ...

    @property
    def chunks_per_shard(self) -> tuple[int, ...] | None:
        """The number of chunks in a shard along each dimension, if its objects are shards whose chunks are no shards themselves."""
        ...

    def shard_url(self, coords: Sequence[str]) -> str:
        """Return the URL of a shard, from its coordinates as text; only if ``chunks_per_shard`` is there."""
        ...

    def batches(self, start: int, stop: int) -> Iterator[ReferenceBatch]:
        """Yield references that include all those of chunks ``start`` (inclusive) to ``stop`` (exclusive), in a fixed order.

        Raises:
            Corruption: a shard is damaged.
            StorageError: a request failed.
        """
        ...

    def boundaries(self) -> Iterator[int]:
        """Yield, in ascending order, numbers of chunks at which a range may end so that nothing is read twice; the last is the size."""
        ...


@dataclass(slots=True)
class ReferenceSource:
    """All that a set is written of."""

    url: str
    groups: dict[str, NodeDocuments]
    """By path, the groups that have a document."""
    arrays: list[ReferencedArray]
    base: str = ""
    """The beginning of all URLs in front of the keys of ``pins``; empty if the URLs lead elsewhere."""
    pins: dict[str, PinnedObject] = field(default_factory=dict)
    """By key, the objects as they were when they were referred to; filled as batches are taken."""
    left_out: dict[str, str] = field(default_factory=dict)
    """By path or key, what is not in the set, and the reason in words."""
    impossible: dict[str, str] = field(default_factory=dict)
    """By path, arrays that cannot be referred to, and the reason in words."""
    url_of: Callable[[str], str] = str
    """Returns the URL of the object at a key of the store."""
    storage: Storage | None = None
    """The storage that has these keys, if the source is a store."""


def size_of(array: ReferencedArray) -> int:
    """Return the number of chunks in the grid."""
    return prod(array.chunk_grid)


def strides(chunk_grid: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Return how far apart the numbers of neighbouring chunks are along each dimension, ``(ndim,)``."""
    return np.array([prod(chunk_grid[i + 1 :]) for i in range(len(chunk_grid))], dtype=np.int64)
