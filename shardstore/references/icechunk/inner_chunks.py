"""Chunks inside of the chunks of icechunk: it knows a shard of ``sharding_indexed`` as one chunk, and here its inner chunks are chunks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardstore.errors import InvalidInput
from shardstore.format.json_text import JsonObject
from shardstore.format.metadata_v3 import ArrayLayout, mentions_sharding, parse_layout
from shardstore.format.presentation import present_array
from shardstore.format.shard_index import ShardIndex
from shardstore.references.icechunk.blocks import Coords


@dataclass(frozen=True, slots=True)
class ShownArray:
    """The presented document of an array, with inner chunks, and the layout of its shards; ``None`` if it has none."""

    document: JsonObject
    layout: ArrayLayout | None

    @property
    def chunk_grid(self) -> tuple[int, ...]:
        """The number of presented chunks along each dimension."""
        chunk_shape = self.document["chunk_grid"]["configuration"]["chunk_shape"]
        return tuple(-(-size // chunk) for size, chunk in zip(self.document["shape"], chunk_shape, strict=True))

    @property
    def object_grid(self) -> tuple[int, ...]:
        """The number of chunks along each dimension that icechunk has."""
        if self.layout is None:
            return self.chunk_grid
        return tuple(-(-size // chunk) for size, chunk in zip(self.layout.shape, self.layout.shard_shape, strict=True))

    def has_same_chunks(self, other: ShownArray) -> bool:
        """Return whether the chunks of icechunk have the same coordinates, and what is inside of them is arranged in the same way."""
        mine, theirs = self.document, other.document
        if len(mine["shape"]) != len(theirs["shape"]) or mine["chunk_grid"] != theirs["chunk_grid"]:
            return False
        formats = [None if one.layout is None else one.layout.index_format for one in (self, other)]
        return formats[0] == formats[1]


def shown_array(document: JsonObject, path: str) -> ShownArray:
    """Return how an array of icechunk is shown. Raises ``InvalidInput`` if its chunks are not known."""
    grid = document.get("chunk_grid")
    if not isinstance(grid, dict) or grid.get("name") != "regular":
        raise InvalidInput(f"the chunk grid of array {path!r} is not regular, which a versioned store does not hold: {grid!r}")
    if not mentions_sharding(document.get("codecs")):
        return ShownArray(document, None)
    layout = parse_layout(document)
    if isinstance(layout, str):
        raise InvalidInput(f"the shards of array {path!r} cannot be read chunk by chunk, which a versioned store needs: {layout}")
    shown = present_array(document)
    if mentions_sharding(shown.get("codecs")):
        raise InvalidInput(f"array {path!r} has shards inside of shards, which a versioned store does not hold: write it again in Icechunk")
    return ShownArray(shown, layout)


@dataclass(frozen=True, slots=True, eq=False)
class InnerChunks:
    """The chunks inside of some shards, ``(n,)`` each; ``exists`` is false for those that are empty."""

    coords: Coords
    shard: npt.NDArray[np.intp]
    """The number of each chunk's shard among those that were given."""
    offsets: npt.NDArray[np.uint64]
    """The first byte in the shard."""
    lengths: npt.NDArray[np.uint64]
    exists: npt.NDArray[np.bool_]


def inner_chunks(layout: ArrayLayout, shards: Coords, indices: Mapping[int, ShardIndex], nbytes: npt.NDArray[np.uint64]) -> InnerChunks:
    """Return all positions inside of shards that lie in the array; of a shard without an index all are empty.

    ``nbytes``: the length of each shard, ``(n,)``. Raises ``Corruption`` if an entry of an index cannot be right.
    """
    counts = np.array(layout.index_format.chunks_per_shard, dtype=np.uint64)
    nslots = int(counts.prod())
    slots = np.indices(layout.index_format.chunks_per_shard, dtype=np.uint64).reshape(len(counts), nslots).T
    coords = (shards[:, None, :] * counts + slots[None]).reshape(-1, len(counts))
    entries = np.zeros((len(shards), nslots, 2), dtype=np.uint64)
    exists = np.zeros((len(shards), nslots), dtype=np.bool_)
    for number, index in indices.items():
        places = index.places(np.arange(nslots), int(nbytes[number]))
        for slot in np.flatnonzero(places.is_damaged)[:1].tolist():
            index.location(slot, int(nbytes[number]))  # raises, and says why
        exists[number] = places.exists
        entries[number, :, 0], entries[number, :, 1] = places.offsets, places.nbytes
    inside = np.flatnonzero((coords < np.array(layout.chunk_grid_shape, dtype=np.uint64)).all(axis=1))
    inside = inside[np.lexsort(coords[inside].T[::-1])] if len(counts) else inside
    flat, is_there = entries.reshape(-1, 2)[inside], exists.reshape(-1)[inside]
    return InnerChunks(
        coords[inside],
        (inside // nslots).astype(np.intp),
        np.where(is_there, flat[:, 0], 0).astype(np.uint64),
        np.where(is_there, flat[:, 1], 0).astype(np.uint64),
        is_there,
    )
