"""The input of all writers of reference sets: arrays with their documents, and batches of references to their chunks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardstore.errors import Corruption
from shardstore.format.json_text import JsonObject, loads_object
from shardstore.format.references.documents import DocumentFlavour, NodeDocuments, node_documents
from shardstore.format.references.parquet import ReferenceRows
from shardstore.format.references.pins import PinnedObject, object_url
from shardstore.format.snapshots.manifest import VirtualCheck
from shardstore.model.containers import batched
from shardstore.storage.base import Found, Storage, document_read, unless_failed

_DOCUMENTS_AT_ONCE = 256


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
    checks: Sequence[VirtualCheck | None] = ()
    """What the source noted of the objects at ``rows.targets`` when it referred to them; empty if nothing."""


class Shards(NamedTuple):
    """The shards of an array."""

    chunks_per_shard: tuple[int, ...]
    url: Callable[[Sequence[str]], str]
    """Returns the URL of a shard from its coordinates as text."""


class ReferencedArray(ABC):
    """An array of a source; ``chunk_grid`` is the number of chunks along each dimension."""

    flavour: DocumentFlavour | None = None
    """The flavour of its documents, if it has one of its own."""

    def __init__(self, path: str, node: NodeDocuments, chunk_grid: tuple[int, ...]) -> None:
        self.path = path
        self.node = node
        self.chunk_grid = chunk_grid

    @property
    def shards(self) -> Shards | None:
        """Its shards, if its objects are shards whose chunks are no shards themselves."""
        return None

    @abstractmethod
    def batches(self, start: int, stop: int) -> Iterator[ReferenceBatch]:
        """Yield references that include all those of chunks ``start`` (inclusive) to ``stop`` (exclusive), in a fixed order.

        Raises:
            Corruption: a shard is damaged.
            StorageError: a request failed.
        """

    def window(self, start: int, most: int) -> range:
        """Return the next chunks to look at, from ``start`` on: those before it do not exist. They are at most ``most``, and end where
        another range can begin without reading anything twice, if that is possible; none if no more chunks exist.
        """
        return range(start, min(prod(self.chunk_grid), start + most))


@dataclass(slots=True)
class ReferenceSource:
    """All that a set is written of."""

    url: str
    groups: dict[str, NodeDocuments]
    """By path, the groups that have a document."""
    arrays: list[ReferencedArray]
    base_url: str = ""
    """The beginning of all URLs, in front of keys; empty if the source is a set, whose URLs are taken unchanged."""
    is_pinned: bool = True
    """True if the set is to say which versions of objects it was made of: these URLs lead to the objects that are looked at."""
    pins: dict[str, PinnedObject] = field(default_factory=dict)
    """By key, or by URL if the source is a set, the objects as they were when they were referred to; filled as batches are taken."""
    left_out: dict[str, str] = field(default_factory=dict)
    """By path or key, what is not in the set, and the reason in words."""
    impossible: dict[str, str] = field(default_factory=dict)
    """By path, arrays that cannot be referred to, and the reason in words."""
    index_requests: int = 0
    """The number of indices that were read so far."""
    storage: Storage | None = None
    """The storage that has these keys, if the source is a store."""
    stored_key: Callable[[str], str] = str
    """Returns the stored key of an object, from its key in the store."""
    suffix_of: Callable[[str, str | None], str] = lambda key, token: ""
    """Returns what comes behind the URL of a version of an object, from its stored key and token."""

    def add(self, nodes: Mapping[str, NodeDocuments], array_of: Callable[[str, NodeDocuments], ReferencedArray | str | None]) -> None:
        """Add nodes by path. ``array_of`` returns an array; ``None``: it is to be left out; or the reason in words why it is impossible."""
        for path, node in nodes.items():
            if not node.is_array:
                self.groups[path] = node
            elif (found := array_of(path, node)) is None:
                self.left_out[path] = "as was asked for"
            elif isinstance(found, str):
                self.impossible[path] = found
            else:
                self.arrays.append(found)
        self.arrays.sort(key=lambda array: array.path)

    def array_paths(self) -> list[str]:
        """Return the paths of all arrays that were found, those that are left out too."""
        return [*(array.path for array in self.arrays), *self.left_out, *self.impossible]

    def url_of(self, key: str, token: str | None = None) -> str:
        """Return the URL of the object at a key of the store."""
        stored = self.stored_key(key)
        return f"{object_url(self.base_url, stored)}{self.suffix_of(stored, token)}"


async def read_nodes(storage: Storage, keys: Sequence[str]) -> dict[str, NodeDocuments]:
    """Return the nodes that the documents at these keys describe, by path.

    Raises:
        Corruption: one of them cannot be read.
        StorageError: a request failed.
    """
    found: dict[str, dict[str, JsonObject]] = {}
    for some in batched(keys, _DOCUMENTS_AT_ONCE):
        for key, outcome in zip(some, await storage.read([document_read(key) for key in some]), strict=True):
            outcome = unless_failed(outcome)
            path, _, name = key.rpartition("/")
            if not isinstance(outcome, Found):
                continue
            try:
                found.setdefault(path, {})[name] = loads_object(outcome.buffers[0])
            except Corruption as exc:
                raise Corruption(f"{key!r} in {storage.url} cannot be read: {exc}") from exc
    return {path: node for path, by_name in found.items() if (node := node_documents(by_name)) is not None}


def size_of(array: ReferencedArray) -> int:
    """Return the number of chunks in the grid."""
    return prod(array.chunk_grid)


def content(batches: Iterable[ReferenceBatch]) -> dict[int, bytes | tuple[str, int, int]]:
    """Return references by the numbers of their chunks: bytes, or URL, offset and length."""
    found: dict[int, bytes | tuple[str, int, int]] = {}
    for chunks, rows, *_ in batches:
        for row, chunk in enumerate(chunks.tolist()):
            if row in rows.inline:
                found[chunk] = rows.inline[row]
            else:
                found[chunk] = rows.targets[int(rows.target[row])], int(rows.offset[row]), int(rows.nbytes[row])
    return found
