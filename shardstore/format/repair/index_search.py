"""Find a shard's index that is not at the end of its object: behind it lie the bytes of an unfinished append, or anything else.

::

    | chunks ... | index | crc32c |  chunks that were being appended, the beginning of their index ...
                 ^ found by its checksum, with every entry before it

A window of random bytes passes for an index of ``n`` entries with a probability of about 2**-32 for the checksum, and 2**-64 at most
for each entry that fits the bytes before it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardstore.errors import Corruption
from shardstore.format.codecs import CRC32C_NBYTES
from shardstore.format.repair.crc_algebra import window_checksums
from shardstore.format.shard_index import EMPTY, ENTRY_NBYTES, IndexFormat, ShardIndex
from shardstore.model.ranges import BytesLike

_FEW = 64  # candidates whose checksums are computed one by one


def last_index(index_format: IndexFormat, data: BytesLike, at: int, *, few: int = _FEW) -> tuple[int, ShardIndex] | None:
    """Return the last index in ``data``, which begins at byte ``at`` of its object: the index's offset in the object, and the index.

    Every entry of it is empty or names bytes before it. The format has a checksum, and the index at the end of a shard.
    """
    bytes_ = np.frombuffer(data, dtype=np.uint8)
    if len(bytes_) < index_format.nbytes:
        return None
    starts = _plausible(index_format, bytes_, at)
    if len(starts) > few:
        starts = starts[_matching(index_format, bytes_, starts)]
    for start in starts[::-1].tolist():
        try:
            index = index_format.decode(bytes_[start : start + index_format.nbytes].tobytes())
        except Corruption:
            continue
        if not index.invalid(at + start).any():
            return at + start, index
    return None


def _plausible(index_format: IndexFormat, data: npt.NDArray[np.uint8], at: int) -> npt.NDArray[np.intp]:
    """Return the positions where an index may begin, judged by its first and its last entry."""
    starts = np.arange(len(data) - index_format.nbytes + 1)
    words = _words(data, index_format.codecs.dtype)
    last = index_format.nbytes - CRC32C_NBYTES - ENTRY_NBYTES
    for entry in {0, last}:
        offsets, lengths = words[starts + entry], words[starts + entry + ENTRY_NBYTES // 2]
        limits = (at + starts).astype(np.uint64)
        is_empty = (offsets == EMPTY) & (lengths == EMPTY)
        fits = (offsets <= limits) & (lengths <= limits - np.minimum(offsets, limits))
        starts = starts[is_empty | fits]
    return starts


def _words(data: npt.NDArray[np.uint8], dtype: np.dtype[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the uint64 that begins at each byte."""
    words = np.empty(len(data) - 7, dtype=np.uint64)
    for first in range(8):
        some = data[first:]
        words[first::8] = some[: len(some) // 8 * 8].view(dtype)
    return words


def _matching(index_format: IndexFormat, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    """Return true for those of ``starts`` where the bytes of an index have the checksum that follows them."""
    covered = index_format.nbytes - CRC32C_NBYTES
    computed = window_checksums(data[: len(data) - CRC32C_NBYTES], covered)[starts]
    stored = np.zeros(len(starts), dtype=np.uint32)
    for byte in range(CRC32C_NBYTES):
        stored |= data[starts + covered + byte].astype(np.uint32) << np.uint32(8 * byte)
    matching: npt.NDArray[np.bool_] = computed == stored
    return matching
