"""Proofs of a shard's lost index, where the rest of it proves what it must have been.

Each function gives an index or ``None``; none of them guesses:

- ``corrected``: one byte is wrong, and the checksum shows which one and its value: exactly one correction is sound.
- ``restored``: several bytes are wrong; the places of the chunks are known, the rest of the index shows which is which, and its
  checksum confirms that this was the index.
- ``contiguous``: all chunks are there, of one known size, so only their order is open, and the rest of the index shows that.
- ``agreeing``: entries that are also in an older index of the same object, whose checksum is right.
- ``claims``: entries that name bytes that no other entry names; the chunk's own checksum has to prove that they are a chunk.

A proved index does not prove that chunks lie where it says: bytes in front of them may have gone missing, or come. The rest says that:

- ``names_missing_bytes``: the object has not all bytes that the index names.
- ``last_chunk_end``: where the last chunk ends. That is where the bytes of chunks end, in all shards that hold no dead bytes there.
- ``erases_only``: the index may be that of a commit that only erased chunks, and so left no bytes behind the index before it.
- ``have_unique_length``: chunks that nothing else in the shard can be taken for, where their own checksum is right.

``last_index`` finds an index that is not at the end of its object: behind it lie the bytes of an unfinished append, or anything else.

::

    | chunks ... | index | crc32c |  chunks that were being appended, the beginning of their index ...
                 ^ found by its checksum, with every entry before it

A window of random bytes passes for an index of ``n`` entries with a probability of about 2**-32 for the checksum, and 2**-64 at most
for each entry that fits the bytes before it.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import numpy.typing as npt

from shardstore.errors import Corruption
from shardstore.format.codecs import CRC32C_NBYTES, crc32c
from shardstore.format.crc_algebra import single_corrections, window_checksums
from shardstore.format.shard_index import EMPTY, ENTRY_NBYTES, IndexFormat, ShardIndex
from shardstore.model.ranges import BytesLike

_MOST_CORRECTED_BYTES = 2**16  # 4,096 entries: the more bytes, the more corrections fit by chance, 255 of 2**32 for each byte
_MOST_ASSIGNED = 2**24  # entries times chunks that are assigned to them: bytes of memory, and a second or two
_FEW = 64  # candidates for an index whose checksums are computed one by one
_ENOUGH_CHECKSUM_BYTES = 3  # that agree: another index has them with a probability of 4 * 2**-24


def without_checksum(index_format: IndexFormat, encoded: bytes) -> ShardIndex:
    """Decode the bytes of an index without comparing its checksum."""
    unchecked = replace(index_format, codecs=replace(index_format.codecs, checksum=False))
    return unchecked.decode(encoded[: unchecked.nbytes])


def is_sound(index_format: IndexFormat, index: ShardIndex, object_nbytes: int) -> bool:
    """Return whether every entry fits the object, and none overlaps another or the index: true for every writer that shares no bytes."""
    if index.invalid(object_nbytes).any():
        return False
    starts, ends = _ranges(index)
    at = 0 if index_format.location == "start" else object_nbytes - index_format.nbytes
    starts, ends = np.append(starts, at), np.append(ends, at + index_format.nbytes)
    starts, ends = starts[ends > starts], ends[ends > starts]
    order = np.argsort(starts, kind="stable")
    return bool((starts[order][1:] >= ends[order][:-1]).all())


def _ranges(index: ShardIndex) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    used = index.flat[index.present()].astype(np.int64)
    return used[:, 0], used[:, 0] + used[:, 1]


# -- proofs ------------------------------------------------------------------------------------------------------------


def corrected(index_format: IndexFormat, encoded: bytes, object_nbytes: int) -> ShardIndex | None:
    """Return the index with its one wrong byte, which may be the checksum's, where exactly one correction gives a sound index."""
    body, stored = encoded[:-CRC32C_NBYTES], encoded[-CRC32C_NBYTES:]
    if not index_format.codecs.checksum or len(body) > _MOST_CORRECTED_BYTES:
        return None
    difference = int.from_bytes(stored, "little") ^ int.from_bytes(crc32c(body), "little")
    corrections = single_corrections(len(body), difference)
    candidates = [body[:at] + bytes([body[at] ^ bits]) + body[at + 1 :] for at, bits in corrections]
    if sum(byte != 0 for byte in difference.to_bytes(4, "little")) == 1:
        candidates.append(body)  # the entries are right, the checksum is not
    found = [index for candidate in candidates if is_sound(index_format, index := without_checksum(index_format, candidate), object_nbytes)]
    return found[0] if len(found) == 1 else None


def restored(
    index_format: IndexFormat,
    left: bytes,
    ranges: npt.NDArray[np.uint64],
    older: ShardIndex | None,
    slot_orders: list[npt.NDArray[np.intp]],
) -> ShardIndex | None:
    """Return the index whose damaged bytes are ``left``, from its beginning on, where its checksum proves it.

    ``ranges``, ``(k, 2)``: the chunks that the index names and ``older`` does not, in the order of their bytes; they belong to slots in
    one of ``slot_orders``. The other slots are as in ``older``, or empty. Of all such indices, the one is taken that agrees with the
    most bytes. It is proved where 3 of the 4 bytes of the checksum are those in ``left``.
    """
    if not index_format.codecs.checksum or len(ranges) > prod(index_format.chunks_per_shard):
        return None
    stored = left[index_format.nbytes - CRC32C_NBYTES :]
    if len(stored) < _ENOUGH_CHECKSUM_BYTES or len(ranges) * prod(index_format.chunks_per_shard) > _MOST_ASSIGNED:
        return None
    damaged = without_checksum(index_format, left.ljust(index_format.nbytes, b"\0"))
    for order in slot_orders:
        index = _assigned(index_format, damaged.flat, ranges, None if older is None else older.flat, order)
        checksum = index_format.encode(index)[-CRC32C_NBYTES:]
        if sum(a == b for a, b in zip(checksum, stored, strict=False)) >= _ENOUGH_CHECKSUM_BYTES:
            return index
    return None


def _assigned(
    index_format: IndexFormat,
    damaged: npt.NDArray[np.uint64],
    ranges: npt.NDArray[np.uint64],
    older: npt.NDArray[np.uint64] | None,
    order: npt.NDArray[np.intp],
) -> ShardIndex:
    """Assign every range to one slot, in this order of slots, so that as many bytes as possible are those of ``damaged``.

    The best score of the first slots with the first ``j`` ranges follows from that of one slot less: the last slot has range ``j``, or
    none.
    """
    entries = np.full_like(damaged, EMPTY)
    if older is not None:
        is_older = _equal_bytes(older, damaged) >= _equal_bytes(entries, damaged)
        entries[is_older] = older[is_older]
    otherwise = _equal_bytes(entries, damaged)
    count = len(ranges)
    scores = np.full(count + 1, -np.inf)
    scores[0] = 0
    takes = np.zeros((len(order), count + 1), dtype=np.bool_)
    for row, slot in enumerate(order.tolist()):
        without = scores + otherwise[slot]
        with_one = np.full(count + 1, -np.inf)
        with_one[1:] = scores[:-1] + _equal_bytes(ranges, damaged[slot])
        takes[row] = with_one > without
        scores = np.maximum(with_one, without)
    at = count
    for row in reversed(range(len(order))):
        if takes[row, at]:
            at -= 1
            entries[order[row]] = ranges[at]
    return index_format.index(entries)


def _equal_bytes(some: npt.NDArray[np.uint64], compared: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return ``(n,)``: how many bytes of each entry, ``(n, 2)``, equal those of the other."""
    differences = np.ascontiguousarray(some ^ compared).view(np.uint8).reshape(len(some), ENTRY_NBYTES)
    return np.asarray((differences == 0).sum(axis=1), dtype=np.int64)


def contiguous(index_format: IndexFormat, chunk_nbytes: int, left: bytes, slot_orders: list[npt.NDArray[np.intp]]) -> ShardIndex | None:
    """Return the index of a full shard of chunks of ``chunk_nbytes`` in one of ``slot_orders``, the one that agrees with ``left``.

    ``left`` is the rest of the index, from its beginning on. At least half of its whole entries have to agree, with one order only.
    """
    counted = [(_agreement(index, index_format, left), index) for index in (_in_order(index_format, chunk_nbytes, o) for o in slot_orders)]
    best, index = max(counted, key=lambda one: one[0])
    if prod(index_format.chunks_per_shard) == 1 and len(left) == index_format.nbytes:
        return index  # there is no other place for the only chunk
    rivals = [other for agreement, other in counted if agreement == best and not np.array_equal(other.entries, index.entries)]
    return index if best >= max(1, -(-(len(left) // ENTRY_NBYTES) // 2)) and not rivals else None


def _in_order(index_format: IndexFormat, chunk_nbytes: int, order: npt.NDArray[np.intp]) -> ShardIndex:
    entries = np.empty((len(order), 2), dtype=np.uint64)
    header = index_format.nbytes if index_format.location == "start" else 0
    entries[order, 0] = header + chunk_nbytes * np.arange(len(order))
    entries[:, 1] = chunk_nbytes
    return index_format.index(entries)


def _agreement(index: ShardIndex, index_format: IndexFormat, left: bytes) -> int:
    count = min(len(left) // ENTRY_NBYTES, len(index.flat))
    found = np.frombuffer(left[: count * ENTRY_NBYTES], dtype=index_format.codecs.dtype).reshape(-1, 2)
    return int((found == index.flat[index_format.stored_slots[:count]]).all(axis=1).sum())


def agreeing(damaged: ShardIndex, older: ShardIndex) -> ShardIndex:
    """Return an index with the entries that both have, all else empty."""
    same = (damaged.flat == older.flat).all(axis=1)
    return only(damaged, same)


def continues(damaged: ShardIndex, older: ShardIndex, older_end: int, index_start: int) -> bool:
    """Return whether ``damaged``, at ``index_start`` at the end of an object, is a whole index that followed on ``older``, which ends at
    ``older_end``, and not the bytes of an unfinished append.

    If so, some chunks were kept, and their entries are in the same slots of both; or all of them were replaced by chunks that fill all
    bytes between the two.
    """
    old = older.present()
    kept = int(((damaged.flat == older.flat).all(axis=1) & old).sum())
    offsets, lengths = damaged.flat[:, 0], damaged.flat[:, 1]
    limit = np.uint64(index_start)
    is_new = (offsets >= older_end) & (offsets <= limit) & (lengths <= limit - np.minimum(offsets, limit)) & (lengths > 0)
    if kept:
        return 2 * (kept + int(is_new.sum())) >= int(old.sum())
    return bool(is_new.any()) and int(lengths[is_new].sum()) == index_start - older_end


def claims(index_format: IndexFormat, damaged: ShardIndex, object_nbytes: int) -> ShardIndex:
    """Return an index with the entries that name bytes of the object outside the index that no other entry names; all else is empty."""
    present = damaged.present() & ~damaged.invalid(object_nbytes)
    present &= ~index_format.on_index(damaged, object_nbytes)
    _, first, counts = np.unique(damaged.flat, axis=0, return_index=True, return_counts=True)
    alone = np.zeros(len(present), dtype=np.bool_)
    alone[first[counts == 1]] = True
    return only(damaged, present & alone)


def names_missing_bytes(index_format: IndexFormat, index: ShardIndex, object_nbytes: int) -> bool:
    """Return whether an entry ends behind the last byte that can be a chunk's: the object was longer, and where is not known."""
    offsets, lengths = index.flat[:, 0], index.flat[:, 1]
    limit = np.uint64(index_format.chunks_end(object_nbytes))
    return bool((_is_range(index) & ((offsets > limit) | (lengths > limit - np.minimum(offsets, limit)))).any())


def last_chunk_end(index_format: IndexFormat, index: ShardIndex) -> int:
    """Return where the last chunk of a sound index ends; where the first one would begin, if there is none."""
    return int(_ranges(index)[1].max(initial=index_format.nbytes if index_format.location == "start" else 0))


def erases_only(index: ShardIndex, older: ShardIndex) -> bool:
    """Return whether ``index`` has the same entries as ``older``, but for some that are empty."""
    same = (index.flat == older.flat).all(axis=1)
    return bool((same | ~index.present()).all() and not same.all())


def have_unique_length(index_format: IndexFormat, index: ShardIndex) -> npt.NDArray[np.bool_]:
    """Return ``(nslots,)``: true for chunks whose length no other chunk has, in a shard that its chunks fill without gaps.

    Such bytes at the place of such a chunk, with a right checksum of their own, are that chunk, wherever bytes have gone missing or come:
    nothing else of this length was in the shard. Where there are gaps, older chunks may lie in them.
    """
    nothing = np.zeros(len(index.flat), dtype=np.bool_)
    present = index.present()
    if not present.any() or not _is_range(index)[present].all():
        return nothing
    places, of_slot = np.unique(index.flat[present], axis=0, return_inverse=True)  # in the order of their bytes
    starts, ends = places[:, 0], places[:, 0] + places[:, 1]
    if int(starts[0]) != (index_format.nbytes if index_format.location == "start" else 0) or (starts[1:] != ends[:-1]).any():
        return nothing
    _, of_place, counts = np.unique(places[:, 1], return_inverse=True, return_counts=True)
    nothing[present] = (counts[of_place] == 1)[of_slot.reshape(-1)]
    return nothing


def _is_range(index: ShardIndex) -> npt.NDArray[np.bool_]:
    """Return ``(nslots,)``: true for entries that are neither empty nor half empty, and do not wrap."""
    offsets, lengths = index.flat[:, 0], index.flat[:, 1]
    is_range: npt.NDArray[np.bool_] = (offsets != EMPTY) & (lengths != EMPTY) & (lengths <= np.uint64(EMPTY) - offsets)
    return is_range


def only(index: ShardIndex, slots: npt.NDArray[np.bool_]) -> ShardIndex:
    """Return the index with only the entries of ``slots``, ``(nslots,)``."""
    entries = np.where(slots[:, np.newaxis], index.flat, np.uint64(EMPTY))
    entries.flags.writeable = False
    return ShardIndex(entries.reshape(index.entries.shape), index.chunk_nbytes)


# -- finding an index ------------------------------------------------------------------------------------------------------


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
