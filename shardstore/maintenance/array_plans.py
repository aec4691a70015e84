"""The facts about an array that are needed to work on its objects: small enough to travel with every task."""

from __future__ import annotations

from dataclasses import dataclass

from shardstore.engine.metadata.hierarchy import Node
from shardstore.errors import InvalidInput
from shardstore.format.chunk_coding import ChunkCoding, document_coding
from shardstore.format.chunk_keys import ChunkKeyEncoding
from shardstore.format.json_text import JsonObject, dumps
from shardstore.format.metadata_v3 import ArrayLayout, PlainArray, parse_plain, sizes
from shardstore.format.presentation import present_array
from shardstore.format.store_keys import join
from shardstore.format.v2.documents import array_from_v2
from shardstore.model.chunks import ChunkCoords

_UNTELLING = ("attributes", "dimension_names")  # of how chunks are coded


@dataclass(frozen=True, slots=True)
class ArrayPlan:
    """An array whose objects can be identified: ``layout`` for a sharded one, ``plain`` for any other."""

    path: str
    layout: ArrayLayout | None
    plain: PlainArray | None
    coding: ChunkCoding
    document: bytes = b""
    """The presented document, in Zarr v3, without attributes; empty if the array's codecs have no counterpart there."""
    is_v2: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self._of.shape

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """The shape of a chunk, as presented."""
        return self._of.chunk_shape

    @property
    def _of(self) -> ArrayLayout | PlainArray:
        of = self.layout or self.plain
        assert of is not None
        return of

    @property
    def key_encoding(self) -> ChunkKeyEncoding:
        return self._of.key_encoding

    @property
    def chunks_per_object(self) -> tuple[int, ...]:
        """The number of chunks in an object along each dimension."""
        return self.layout.grid.chunks_per_shard if self.layout is not None else (1,) * len(self.shape)

    @property
    def chunk_grid(self) -> tuple[int, ...]:
        """The number of chunks along each dimension."""
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunk_shape, strict=True))

    @property
    def object_grid(self) -> tuple[int, ...]:
        """The number of objects along each dimension."""
        return tuple(-(-g // p) for g, p in zip(self.chunk_grid, self.chunks_per_object, strict=True))

    def key(self, coords: ChunkCoords) -> str:
        """Return the stored key of the object at ``coords`` of the grid of objects."""
        return join(self.path, self.key_encoding.encode(coords))

    def coords_of(self, relative: str) -> ChunkCoords | None:
        """Return the coordinates of the object that a stored key relative to the array names."""
        return self.key_encoding.decode(relative, len(self.shape))

    def has_key(self, relative: str) -> bool:
        """Return whether a stored key, relative to the array, is that of an object in its grid."""
        coords = self.coords_of(relative)
        return coords is not None and self.holds(coords)

    def holds(self, coords: ChunkCoords) -> bool:
        """Return whether an object lies in the array's grid."""
        return all(c < g for c, g in zip(coords, self.object_grid, strict=True))

    def number(self, coords: ChunkCoords) -> int:
        """Return the C-order number of an object in the grid of objects."""
        number = 0
        for c, g in zip(coords, self.object_grid, strict=True):
            number = number * max(1, g) + c
        return number


def plan_array(node: Node, document: JsonObject | None) -> ArrayPlan | None:
    """Return the plan of a stored node of Zarr v3; ``None`` if it is no array, or its objects cannot be identified."""
    if document is None or (node.layout is None and node.plain is None):
        return None
    presented = present_array(document)
    chunk_shape = node.layout.chunk_shape if node.layout is not None else node.plain.chunk_shape if node.plain is not None else ()
    # Below a transformer that stands on another, chunks are shards of the one above: nothing is known of their bytes.
    coding = ChunkCoding() if presented.get("storage_transformers") else document_coding(presented, chunk_shape)
    return ArrayPlan(node.path, node.layout, node.plain, coding, _telling(presented))


def plan_v2_array(path: str, zarray: JsonObject) -> ArrayPlan | None:
    """Return the plan of a stored array of Zarr v2; ``None`` if its objects cannot be identified."""
    shape = sizes(zarray.get("shape"), 0)
    chunk_shape = sizes(zarray.get("chunks"), 1, None if shape is None else len(shape))
    separator = zarray.get("dimension_separator") or "."
    if shape is None or chunk_shape is None or separator not in (".", "/"):
        return None
    plain = PlainArray(shape, chunk_shape, ChunkKeyEncoding("v2", "/" if separator == "/" else "."))
    try:
        presented = array_from_v2(zarray, None)
    except InvalidInput:
        return ArrayPlan(path, None, plain, ChunkCoding(), is_v2=True)
    return ArrayPlan(path, None, plain, document_coding(presented, chunk_shape), _telling(presented), is_v2=True)


def _telling(presented: JsonObject) -> bytes:
    document = {name: value for name, value in presented.items() if name not in _UNTELLING}
    plain = parse_plain(document)
    return b"" if isinstance(plain, str) else dumps(document)
