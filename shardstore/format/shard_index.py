"""The shard index of ``sharding_indexed``.

::

    index_location "end":    | chunk bytes, gaps allowed ... | index | crc32c |
    index_location "start":  | index | crc32c | chunk bytes, gaps allowed ... |

    index: for each inner chunk of the shard, in row-major (C) order of its position
           | offset: uint64 | nbytes: uint64 |     offset counts from byte 0 of the object
    both 2**64 - 1: the inner chunk is empty. The byte order is that of the index codec ``bytes``; ``crc32c`` is optional.

Where a transposition precedes the sharding, the positions are those in the transposed shard. Decoded, an index is always in the order of
the array's own dimensions.

Specification: sharding codec 1.0, "Binary shard format"; the 2022 storage transformer has the same index, always at
the end, little-endian, without a checksum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from shardstore.errors import Corruption, InvalidInput
from shardstore.format.codecs import CRC32C_NBYTES, Axes, crc32c, inverse, permuted
from shardstore.model.chunks import ChunkLocation
from shardstore.model.ranges import ByteOffset, ByteRange, ByteRequest, BytesLike, ByteSuffix

EMPTY = 2**64 - 1
ENTRY_NBYTES = 16  # two uint64
_KEPT_NBYTES = 2**20  # shorter indices are copied, so that they hold nothing else in memory
_BLOCK_ENTRIES = 2**18
MAX_SLOTS = 2**24  # an index of 256 MiB: a larger one comes from a damaged document, not from a writer

IndexLocation = Literal["start", "end"]


@dataclass(frozen=True, slots=True)
class IndexCodecs:
    """The codecs of the index: ``bytes`` of an endianness, then at most one ``crc32c``."""

    endian: Literal["little", "big"] = "little"
    checksum: bool = True

    @property
    def dtype(self) -> np.dtype[np.uint64]:
        return np.dtype("<u8" if self.endian == "little" else ">u8")

    def nbytes(self, nslots: int) -> int:
        """Return the encoded size of an index of ``nslots`` entries."""
        return nslots * ENTRY_NBYTES + (CRC32C_NBYTES if self.checksum else 0)

    def to_json(self) -> list[dict[str, Any]]:
        codecs: list[dict[str, Any]] = [{"name": "bytes", "configuration": {"endian": self.endian}}]
        return [*codecs, {"name": "crc32c"}] if self.checksum else codecs


def parse_index_codecs(document: Any) -> IndexCodecs | str:
    """Return the index codecs that a configuration names, or the reason in words why they are not supported.

    ``endian`` is accepted as the older name of ``bytes`` (ZEP 2).
    """
    if not isinstance(document, list) or not document:
        return "index_codecs is not a list of codecs"
    named: list[tuple[str, dict[str, Any]]] = []
    for codec in document:
        if isinstance(codec, str):
            codec = {"name": codec}
        if not isinstance(codec, dict) or not isinstance(codec.get("name"), str):
            return "index_codecs holds something that is not a codec"
        configuration = codec.get("configuration") or {}
        if not isinstance(configuration, dict):
            return "a codec of index_codecs has a configuration that is not an object"
        named.append((codec["name"], configuration))
    name, configuration = named[0]
    endian = configuration.get("endian", "little")
    if name not in ("bytes", "endian") or endian not in ("little", "big"):
        return f"index codec {name!r} is not supported"
    match [name for name, _ in named[1:]]:
        case []:
            return IndexCodecs(endian, checksum=False)
        case ["crc32c"]:
            return IndexCodecs(endian, checksum=True)
        case unknown:
            return f"index codecs {unknown!r} are not supported"


class Places(NamedTuple):
    """Places of chunks in one object, ``(n,)`` each. Offsets and lengths mean something only where ``exists``."""

    offsets: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]
    exists: npt.NDArray[np.bool_]
    is_damaged: npt.NDArray[np.bool_]
    """True where the entry cannot be right; ``ShardIndex.location`` says why."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardIndex:
    """One decoded index: ``entries`` is ``(*chunks_per_shard, 2)``, native uint64, read-only; ``[..., 0]`` offsets,
    ``[..., 1]`` lengths."""

    entries: npt.NDArray[np.uint64]
    chunk_nbytes: int | None = None
    """The length that every entry must have, where the array's codecs give all chunks the same; ``None``: any length."""

    @property
    def flat(self) -> npt.NDArray[np.uint64]:
        """The entries as ``(nslots, 2)``, slots in row-major order."""
        return self.entries.reshape(-1, 2)

    @property
    def nbytes(self) -> int:
        return self.entries.nbytes

    def present(self) -> npt.NDArray[np.bool_]:
        """Return ``(nslots,)``: true where an entry is not the empty marker. Half-empty entries count as present (and are corrupt)."""
        return _by_blocks(self.flat, _present)

    def invalid(self, object_nbytes: int, among: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[np.bool_]:
        """Return ``(nslots,)``: true for entries that cannot be right in an object of this size: half empty, wrapping, past its end, or
        not of ``chunk_nbytes``.

        ``among`` are the entries to look at, out of the present ones; by default all. Overlaps, aliases, gaps and any order are valid.
        """
        limit = np.uint64(object_nbytes)
        invalid = ~_by_blocks(self.flat, lambda entries: _fit(entries, limit, self.chunk_nbytes))
        invalid &= self.present() if among is None else among
        return invalid

    def places(self, slots: Sequence[int] | npt.NDArray[np.int64], object_nbytes: int) -> Places:
        """Return the places of the bytes of many slots, as ``location`` does; damage is marked in the result, not raised."""
        return _places(self.flat[np.asarray(slots, dtype=np.intp)], np.uint64(object_nbytes), self.chunk_nbytes)

    def location(self, slot: int, object_nbytes: int) -> ChunkLocation | None:
        """Return the place of a slot's bytes, or ``None`` where it is empty. Raises ``Corruption`` if the entry is half empty, wraps, ends
        past the object, or is not of ``chunk_nbytes``.
        """
        offset, nbytes = self.flat[slot].tolist()
        if offset == nbytes == EMPTY:
            return None
        if EMPTY in (offset, nbytes):
            raise Corruption(f"index entry {slot} is half empty (offset {offset}, nbytes {nbytes})")
        if self.chunk_nbytes is not None and nbytes != self.chunk_nbytes:
            raise Corruption(
                f"index entry {slot} names {nbytes} bytes from {offset}, the array's codecs make {self.chunk_nbytes} of each chunk"
            )
        if offset + nbytes > object_nbytes:
            raise Corruption(f"index entry {slot} names bytes [{offset}, {offset + nbytes}) of an object of {object_nbytes} bytes")
        return ChunkLocation(offset, nbytes)


def places_in(shards: Sequence[tuple[ShardIndex, int, npt.NDArray[np.int64]]]) -> Places:
    """Return ``ShardIndex.places`` for several shards of one array, each with its size in bytes and the slots, one after the other."""
    entries = np.concatenate([index.flat[slots] for index, _, slots in shards])
    sizes = np.array([object_nbytes for _, object_nbytes, _ in shards], dtype=np.uint64)
    (chunk_nbytes,) = {index.chunk_nbytes for index, _, _ in shards}
    return _places(entries, np.repeat(sizes, [len(slots) for *_, slots in shards]), chunk_nbytes)


def _places(entries: npt.NDArray[np.uint64], limit: np.uint64 | npt.NDArray[np.uint64], chunk_nbytes: int | None) -> Places:
    offsets, nbytes = entries[:, 0], entries[:, 1]
    exists = _fit(entries, limit, chunk_nbytes)
    is_damaged = ~exists & ((offsets != EMPTY) | (nbytes != EMPTY))
    return Places(offsets.view(np.int64), nbytes.view(np.int64), exists, is_damaged)


def _fit(entries: npt.NDArray[np.uint64], limit: np.uint64 | npt.NDArray[np.uint64], chunk_nbytes: int | None) -> npt.NDArray[np.bool_]:
    """Return ``(n,)``: true for the ``(n, 2)`` entries that name bytes below ``limit``, as many as a chunk has."""
    offsets, nbytes = entries[:, 0], entries[:, 1]
    # offset <= limit first, so that limit - offset cannot wrap where it counts.
    fit: npt.NDArray[np.bool_] = (offsets <= limit) & (nbytes <= limit - np.minimum(offsets, limit))
    if chunk_nbytes is not None:
        fit &= nbytes == np.uint64(min(chunk_nbytes, EMPTY))  # a shape may multiply to more than 64 bits: no entry is so long
    return fit


def _on(entries: npt.NDArray[np.uint64], limit: np.uint64, start: np.uint64, end: np.uint64) -> npt.NDArray[np.bool_]:
    """Return ``(n,)``: true for the ``(n, 2)`` entries that fit below ``limit`` and name bytes from ``start`` to ``end``."""
    offsets, nbytes = entries[:, 0], entries[:, 1]
    on: npt.NDArray[np.bool_] = _fit(entries, limit, None) & (nbytes > 0) & (offsets < end) & (offsets + nbytes > start)
    return on


def _may_be_kept(data: memoryview) -> bool:
    """Return whether a long index may stay in the memory that it came in: nothing writes to that memory, and it holds little else."""
    owner = data.obj
    is_ours = isinstance(owner, bytes) or (isinstance(owner, np.ndarray) and data.readonly)
    return is_ours and len(data) >= _KEPT_NBYTES and memoryview(owner).nbytes <= len(data) + len(data) // 8


def _by_blocks(flat: npt.NDArray[np.uint64], look: Callable[[npt.NDArray[np.uint64]], npt.NDArray[np.bool_]]) -> npt.NDArray[np.bool_]:
    """Apply ``look`` to ``(n, 2)`` entries in blocks, so that its temporary arrays are short compared with a long index."""
    if len(flat) <= _BLOCK_ENTRIES:
        return look(flat)
    found = np.empty(len(flat), dtype=np.bool_)
    for start in range(0, len(flat), _BLOCK_ENTRIES):
        found[start : start + _BLOCK_ENTRIES] = look(flat[start : start + _BLOCK_ENTRIES])
    return found


def _present(flat: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    present: npt.NDArray[np.bool_] = (flat[:, 0] & flat[:, 1]) != EMPTY  # all bits of both
    return present


@dataclass(frozen=True, slots=True)
class IndexFormat:
    """The place and the encoding of a shard's index."""

    chunks_per_shard: tuple[int, ...]
    codecs: IndexCodecs = IndexCodecs()
    location: IndexLocation = "end"
    axes: Axes | None = None
    """For each dimension of the stored index, the array's dimension that it is, where they are in a different order."""
    chunk_nbytes: int | None = None
    """The length of every encoded chunk, where the array's codecs give all of them the same: an entry of another length is damaged."""

    @property
    def stored_slots(self) -> npt.NDArray[np.intp]:
        """The slot of each stored entry, in the order of the entries: ``(nslots,)``."""
        slots = np.arange(prod(self.chunks_per_shard)).reshape(self.chunks_per_shard)
        return (slots if self.axes is None else slots.transpose(self.axes)).reshape(-1)

    @property
    def nbytes(self) -> int:
        return self.codecs.nbytes(prod(self.chunks_per_shard))

    def request(self) -> ByteRequest:
        """Return the range that holds the index in an object of any size."""
        return ByteRange(0, self.nbytes) if self.location == "start" else ByteSuffix(self.nbytes)

    def request_with(self, nbytes: int) -> ByteRequest:
        """Return the range of ``request``, made at least ``nbytes`` long."""
        nbytes = max(nbytes, self.nbytes)
        return ByteRange(0, nbytes) if self.location == "start" else ByteSuffix(nbytes)

    def request_from(self, offset: int) -> ByteRequest:
        """Return the range that holds the index and everything from ``offset`` on."""
        return ByteOffset(0 if self.location == "start" else offset)

    def start_of(self, nbytes: int, object_nbytes: int) -> int:
        """Return where the bytes begin that a request of ``request_with`` brought."""
        return 0 if self.location == "start" else object_nbytes - nbytes

    def chunks_end(self, object_nbytes: int) -> int:
        """Return where the bytes of chunks end at the latest: at an index at the end, or with the object."""
        return object_nbytes if self.location == "start" else object_nbytes - self.nbytes

    def on_index(self, index: ShardIndex, object_nbytes: int) -> npt.NDArray[np.bool_]:
        """Return ``(nslots,)``: true for entries that fit an object of this size, and name bytes of its index."""
        limit, start = np.uint64(object_nbytes), 0 if self.location == "start" else max(object_nbytes - self.nbytes, 0)
        return _by_blocks(index.flat, lambda entries: _on(entries, limit, np.uint64(start), np.uint64(start + self.nbytes)))

    def slice_from(self, data: memoryview, object_nbytes: int) -> memoryview:
        """Return the index's bytes, from ``data`` that reaches to its end of the object. Raises ``Corruption`` if that is too short."""
        if object_nbytes < self.nbytes or len(data) < self.nbytes:
            raise Corruption(f"the object has {object_nbytes} bytes, its index alone needs {self.nbytes}")
        return data[: self.nbytes] if self.location == "start" else data[len(data) - self.nbytes :]

    def decode(self, data: BytesLike) -> ShardIndex:
        """Decode the index from exactly its encoded bytes. Raises ``Corruption`` if its length or its checksum is wrong."""
        if len(data) != self.nbytes:
            raise Corruption(f"an index of {self.nbytes} bytes was expected, {len(data)} were found")
        view = memoryview(data)
        if self.codecs.checksum:
            view, stored = view[:-CRC32C_NBYTES], bytes(view[-CRC32C_NBYTES:])
            computed = crc32c(view)
            if stored != computed:
                raise Corruption(f"the index's checksum is {stored.hex()} but its bytes give {computed.hex()}")
        flat: npt.NDArray[np.uint64] = np.frombuffer(view, dtype=self.codecs.dtype)
        if self.axes is not None:
            transposed = flat.reshape(*permuted(self.chunks_per_shard, self.axes), 2)
            flat = transposed.transpose(*inverse(self.axes), len(self.axes)).reshape(-1)
        may_be_kept = flat.flags.aligned and _may_be_kept(view)
        entries = flat.astype(np.uint64, copy=not may_be_kept).reshape(*self.chunks_per_shard, 2)
        entries.flags.writeable = False
        return ShardIndex(entries, self.chunk_nbytes)

    def index(self, flat: npt.NDArray[np.uint64]) -> ShardIndex:
        """Return the index of these entries, ``(nslots, 2)``, which must not be changed any more."""
        flat.flags.writeable = False
        return ShardIndex(flat.reshape(*self.chunks_per_shard, 2), self.chunk_nbytes)

    def index_of_new(
        self, slots: npt.NDArray[np.intp], begins: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64] | npt.NDArray[np.uint64]
    ) -> ShardIndex:
        """Return the index of a new shard that holds nothing but the chunks in ``slots`` and this index.

        ``begins`` counts from the first byte of the first chunk, ``sizes`` are in bytes, ``(n,)`` each.
        """
        entries = np.full((prod(self.chunks_per_shard), 2), EMPTY, dtype=np.uint64)
        entries[slots, 0] = (self.nbytes if self.location == "start" else 0) + begins
        entries[slots, 1] = sizes
        return self.index(entries)

    def empty(self) -> ShardIndex:
        """Return the index of a shard that holds no chunk."""
        return self.index(np.full((prod(self.chunks_per_shard), 2), EMPTY, dtype=np.uint64))

    def encode(self, index: ShardIndex) -> bytes:
        """Return the stored bytes of ``index``, checksum included. Raises ``InvalidInput`` if the index has another shape."""
        if index.entries.shape != (*self.chunks_per_shard, 2):
            raise InvalidInput(f"an index of shape {index.entries.shape} does not fit chunks_per_shard {self.chunks_per_shard}")
        entries = index.entries if self.axes is None else index.entries.transpose(*self.axes, len(self.axes))
        data = np.ascontiguousarray(entries, dtype=self.codecs.dtype).reshape(-1).view(np.uint8).data  # without a copy, as a rule
        return b"".join([data, crc32c(data)] if self.codecs.checksum else [data])
