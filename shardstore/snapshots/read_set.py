"""The parts of its snapshot that a session has read: with ``isolation="serializable"``, a commit that changes them is a conflict.

Chunks that the session has written before it read them are its own. A chunk that is not there was read too: that it was not there.
"""

from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt

from shardstore.format.metadata_v3 import parse_shown
from shardstore.format.snapshots.structure import Node

_MOST_BITS = 1 << 33
"""A bitmap of 1 GiB: arrays with more chunks are remembered chunk by chunk."""


class _ReadChunks:
    """Chunks of one array: a bit each, or, of those that the grid does not have, one by one."""

    def __init__(self, node: Node) -> None:
        plain = parse_shown(node.document)
        counts = () if isinstance(plain, str) else tuple(-(-a // b) for a, b in zip(plain.shape, plain.chunk_shape, strict=True))
        is_small = not isinstance(plain, str) and 0 < prod(counts) <= _MOST_BITS
        self._counts = np.array(counts if is_small else (), dtype=np.uint64)
        self._strides = np.array([prod(counts[axis + 1 :]) for axis in range(len(counts))] if is_small else (), dtype=np.uint64)
        self._bits = np.zeros(-(-prod(counts) // 8) if is_small else 0, dtype=np.uint8)
        self._outside: set[tuple[int, ...]] = set()
        self.is_listed = False

    def add(self, coords: npt.NDArray[np.uint64]) -> None:
        inside = self._inside(coords)
        numbers = coords[inside] @ self._strides if inside.any() else np.zeros(0, dtype=np.uint64)
        np.bitwise_or.at(self._bits, (numbers >> np.uint64(3)).astype(np.intp), np.left_shift(1, numbers & np.uint64(7)).astype(np.uint8))
        self._outside.update(map(tuple, coords[~inside].tolist()))

    def among(self, coords: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Return those of ``(n, ndim)`` chunks that were read."""
        if self.is_listed:
            return coords
        inside = self._inside(coords)
        is_read = (
            np.array([tuple(one) in self._outside for one in coords.tolist()], dtype=np.bool_) if self._outside else np.zeros_like(inside)
        )
        if inside.any():
            numbers = coords[inside] @ self._strides
            bits = self._bits[(numbers >> np.uint64(3)).astype(np.intp)] >> (numbers & np.uint64(7)).astype(np.uint8)
            is_read[inside] |= (bits & 1).astype(np.bool_)
        return coords[is_read]

    def update(self, other: _ReadChunks) -> None:
        """Note everything that is noted in another one of the same array."""
        if np.array_equal(other._counts, self._counts):
            self._bits |= other._bits
        else:  # it has been resized in between
            self.is_listed = True
        self._outside |= other._outside
        self.is_listed |= other.is_listed

    def _inside(self, coords: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        if not len(self._bits) or coords.shape[1] != len(self._counts):
            return np.zeros(len(coords), dtype=np.bool_)
        inside: npt.NDArray[np.bool_] = np.all(coords < self._counts, axis=1)
        return inside


class ReadSet:
    """The nodes and chunks that one session has read."""

    def __init__(self) -> None:
        self.documents: set[str] = set()
        """Paths of nodes whose documents were asked for, whether they are there or not, and of nodes that would have had a chunk."""
        self._nodes: set[int] = set()
        """Nodes whose documents were read, whatever path the session had moved them to."""
        self._found: set[int] = set()
        self._listed: set[str] = set()
        self._chunks: dict[int, _ReadChunks] = {}

    def read_document(self, path: str, node: Node | None) -> None:
        """Note that the document at a path was asked for, which is that of ``node``, if there is one."""
        self.documents.add(path)
        if node is not None:
            self._nodes.add(node.id)

    def read_attributes(self, node: Node) -> None:
        """Note that what is written depends on the document of a node."""
        self._nodes.add(node.id)

    def find(self, node: Node) -> None:
        """Note that a node was found at its path, to be moved or deleted, or to have chunks written."""
        self._found.add(node.id)

    def read_chunks(self, node: Node, coords: npt.NDArray[np.uint64]) -> None:
        """Note that ``(n, ndim)`` chunks were read."""
        self._chunks_of(node).add(coords)

    def list_chunks(self, node: Node) -> None:
        """Note that the chunks of an array were listed."""
        self._chunks_of(node).is_listed = True

    def list_nodes(self, prefix: str) -> None:
        """Note that the nodes below a prefix, which need not be a whole path, were listed."""
        self._listed.add(prefix)

    def update(self, other: ReadSet) -> None:
        """Note everything that is noted in another one."""
        self.documents |= other.documents
        self._nodes |= other._nodes
        self._found |= other._found
        self._listed |= other._listed
        for array, chunks in other._chunks.items():
            known = self._chunks.get(array)
            if known is None:
                self._chunks[array] = chunks
            else:
                known.update(chunks)

    def has_read_document(self, node: int) -> bool:
        """Return whether the document of a node was read."""
        return node in self._nodes

    def has_found(self, node: int) -> bool:
        """Return whether it mattered that a node was at its path."""
        return node in self._found or node in self._chunks

    def chunks_read(self, array: int, coords: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Return those of an array's chunks that were read."""
        known = self._chunks.get(array)
        return coords[:0] if known is None else known.among(coords)

    def has_listed(self, path: str) -> bool:
        """Return whether a listing showed, or would have shown, the node at a path."""
        return any(f"{path}/".startswith(prefix) or prefix.startswith(f"{path}/") for prefix in self._listed)

    def _chunks_of(self, node: Node) -> _ReadChunks:
        known = self._chunks.get(node.id)
        if known is None:
            known = self._chunks[node.id] = _ReadChunks(node)
        return known
