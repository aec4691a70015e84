"""Keys of a Zarr v2 hierarchy, and the keys of final Zarr v3 with the same meaning.

::

    presented (v2)                                  canonical (v3)
    x/.zarray  x/.zgroup  x/.zattrs  x/.zmetadata   x/zarr.json    four documents, or parts, of one
    .zarray    .zgroup    .zattrs    .zmetadata     zarr.json      (the node at the root)
    0.1        separator "."                        c.0.1
    0/1        separator "/"                        c/0/1
    5          1-d                                  c.5 or c/5     as the separator says
    0          0-d                                  c              (v2 has no key without a number)

Documents are recognised by their last segment. A chunk key cannot be recognised by itself: ``0/0`` may be a chunk of the array at the
root or of ``0``, and ``5`` a chunk or a node. So the functions on chunks take keys relative to an array that the caller has found, with
the rank and the ``ChunkKeyEncoding`` of its v3 document. That is always ``default`` where this package wrote it: the keys of stored
shards all start with ``c``, which no v2 reader asks for. For a v3 array with the encoding ``v2``, written by another program, both keys
are the same. Specification: Zarr v2, "Storage keys", "Chunk keys".
"""

from __future__ import annotations

from dataclasses import dataclass

from shardstore.format.chunk_keys import ChunkKeyEncoding
from shardstore.format.store_keys import is_path, metadata_path

ARRAY_NAME, GROUP_NAME, ATTRIBUTES_NAME = ".zarray", ".zgroup", ".zattrs"
CONSOLIDATED_NAME = ".zmetadata"
DOCUMENT_NAMES = (ARRAY_NAME, GROUP_NAME, ATTRIBUTES_NAME, CONSOLIDATED_NAME)


@dataclass(frozen=True, slots=True)
class V2DocumentKey:
    """The document of v2 that a key names: that of the node at ``path`` (``""`` is the root) called ``name``."""

    path: str
    name: str


def is_document(key: str) -> bool:
    """Return whether ``key`` is that of a document, in either format."""
    return metadata_path(key) is not None or key.rpartition("/")[2] in DOCUMENT_NAMES


def document_key(key: str) -> V2DocumentKey | None:
    """Return the document that a v2 key names, or ``None`` where it names no document, or is at a path that no node can have."""
    path, slash, name = key.rpartition("/")
    if name not in DOCUMENT_NAMES or (slash and not is_path(path)):
        return None
    return V2DocumentKey(path, name)


def canonical_chunk_key(key: str, encoding: ChunkKeyEncoding, ndim: int) -> str | None:
    """Return the canonical key of a chunk from its v2 key, both relative to the array; ``None`` where it is no chunk key.

    Parsing is strict: ASCII digits without sign and leading zeros, the array's separator, exactly its rank.
    """
    coords = _v2(encoding).decode(key, ndim)
    return None if coords is None else encoding.encode(coords)


def v2_chunk_key(canonical: str, encoding: ChunkKeyEncoding, ndim: int) -> str | None:
    """Return the v2 key of a chunk from its canonical key, both relative to the array; ``None`` where it is no chunk key."""
    coords = encoding.decode(canonical, ndim)
    return None if coords is None else _v2(encoding).encode(coords)


def canonical_chunk_prefix(prefix: str, encoding: ChunkKeyEncoding, ndim: int) -> str:
    """Return the canonical prefix below which every chunk lies whose v2 key starts with ``prefix``, relative to the array.

    Other keys lie below it too, of the array or not: filter by ``v2_chunk_key``. ``0/1`` gives ``c/0/``, as ``1`` may continue as
    ``12``; the prefix is the longest that ends with a whole coordinate.
    """
    return encoding.prefix_of(_v2(encoding).leading_coords(prefix, ndim), ndim)


def _v2(encoding: ChunkKeyEncoding) -> ChunkKeyEncoding:
    return ChunkKeyEncoding("v2", encoding.separator)
