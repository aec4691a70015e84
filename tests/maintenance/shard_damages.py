"""Random histories of shards of every strategy, random damages of them, and what a repair may make of those.

A shard is laid out by the planners of the package itself, and kept as bytes: all its commits are acknowledged. Then it is damaged once.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import google_crc32c

import shardstore
from shardstore.format.shard_index import IndexFormat, ShardIndex
from shardstore.maintenance.repair.run import ShardRepair
from shardstore.model.chunk_orders import ChunkOrder
from shardstore.model.ranges import APPEND_PADDING_NBYTES, CopiedRange, NewBytes, Padding
from shardstore.plan.commits import DeleteShard, WriteShard, plan_rewrite
from shardstore.plan.strategies import plan_append
from tests.engine.hooked import fresh_memory
from tests.maintenance.laid_out import ANY_LENGTH, array_document, put_array
from tests.shards import crc32c
from tests.stored import StorageObjects

CHUNKS = 16
SHARDS_A_STORE = 50
Strategy = Literal["rewrite", "append in place", "append elsewhere"]


@dataclass(frozen=True, slots=True)
class Kind:
    """How shards are laid out and written, and their chunks encoded."""

    strategy: Strategy
    has_chunk_checksums: bool
    has_one_length: bool
    index_location: Literal["end", "start"] = "end"
    has_index_checksum: bool = True
    order: ChunkOrder = "C"

    def document(self) -> dict[str, Any]:
        codecs: list[Any] = [{"name": "bytes"}] if self.has_one_length else list(ANY_LENGTH)
        if self.has_chunk_checksums:
            codecs.append({"name": "crc32c"})
        how: dict[str, Any] = {"index_location": self.index_location, "checksum": self.has_index_checksum, "codecs": codecs}
        return array_document((4 * SHARDS_A_STORE, 16 * 4), (1, 16), (4, 4), **how)

    def index_format(self) -> IndexFormat:
        index_format = IndexFormat((4, 4), location=self.index_location)
        if not self.has_index_checksum:
            index_format = replace(index_format, codecs=replace(index_format.codecs, checksum=False))
        return index_format

    def chunk(self, rng: random.Random) -> bytes:
        body = rng.randbytes(16 if self.has_one_length else rng.randint(5, 300))
        return with_checksum(body) if self.has_chunk_checksums else body


def kinds() -> list[Kind]:
    found: list[Kind] = []
    for has_chunk_checksums in (True, False):
        for has_one_length in (True, False):
            of_chunks = (has_chunk_checksums, has_one_length)
            found += [Kind("append in place", *of_chunks), Kind("append elsewhere", *of_chunks)]
            for checksum in (True, False):
                found += [Kind("rewrite", *of_chunks, "end", checksum), Kind("rewrite", *of_chunks, "start", checksum)]
            found += [Kind("rewrite", *of_chunks, order="F"), Kind("rewrite", *of_chunks, order="morton")]
    return found


def with_checksum(data: bytes) -> bytes:
    return data + struct.pack("<I", crc32c(data))


# -- histories -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class History:
    """What a shard came to by some commits."""

    data: bytes
    index: ShardIndex
    values: dict[int, bytes]
    """The latest acknowledged ones, by slot."""

    def places(self) -> list[tuple[int, int]]:
        """Offset and length of each chunk, in the order of their bytes."""
        return sorted((int(offset), int(nbytes)) for offset, nbytes in self.index.flat[self.index.present()] if nbytes)


def history(kind: Kind, rng: random.Random) -> History:
    index_format = kind.index_format()
    data, index = b"", None
    values: dict[int, bytes] = {}
    for commit in range(rng.randint(1, 4)):
        few = rng.random() < 0.7 and commit
        slots = rng.sample(range(CHUNKS), rng.randint(1, 4)) if few else range(CHUNKS)
        updates = {slot: kind.chunk(rng) if commit == 0 or rng.random() < 0.8 else None for slot in slots}
        if kind.strategy == "rewrite" or index is None:
            plan = plan_rewrite(index_format, index, len(data), updates, kind.order)
        else:
            room = APPEND_PADDING_NBYTES if kind.strategy == "append in place" else None
            plan = plan_append(index_format, index, len(data), updates, kind.order, 0.9, room)
        if isinstance(plan, DeleteShard):
            continue  # the shard stays as it was, and so do the values
        if isinstance(plan, WriteShard):
            data, index = _carried_out(plan, data, rng), plan.index
        values |= {slot: value for slot, value in updates.items() if value is not None}
        for slot in [slot for slot, value in updates.items() if value is None]:
            values.pop(slot, None)
    assert index is not None
    return History(data, index, values)


def _carried_out(plan: WriteShard, old: bytes, rng: random.Random) -> bytes:
    parts: list[bytes] = []
    for segment in plan.segments:
        match segment:
            case CopiedRange(offset, nbytes):
                parts.append(old[offset : offset + nbytes])
            case NewBytes(data):
                parts.append(bytes(data))
            case Padding(nbytes):
                parts.append(rng.randbytes(nbytes) if nbytes > 1 else bytes(nbytes))
    return b"".join(parts)


# -- damages ---------------------------------------------------------------------------------------------------------------

Damage = Callable[[bytes, int, random.Random], bytes]
"""Of a shard whose index begins at this byte."""


def _wrong_bytes(data: bytes, begin: int, end: int, count: int, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for position in rng.sample(range(begin, end), min(count, end - begin)):
        changed[position] ^= rng.randrange(1, 256)
    return bytes(changed)


def _index_end(data: bytes, index_at: int) -> int:
    return len(data) if index_at else min(len(data), 16 * CHUNKS + 4)


def wrong_index_bytes(data: bytes, index_at: int, rng: random.Random) -> bytes:
    return _wrong_bytes(data, index_at, _index_end(data, index_at), rng.choice([1, 2, 3, 4, 16, 64]), rng)


def wrong_low_bytes(data: bytes, index_at: int, rng: random.Random) -> bytes:
    """Entries that name other bytes of the shard."""
    changed = bytearray(data)
    for slot in rng.sample(range(CHUNKS), rng.randint(1, 4)):
        changed[index_at + 16 * slot + rng.choice([0, 1, 8])] = rng.randrange(256)
    return bytes(changed)


def wrong_bytes_anywhere(data: bytes, index_at: int, rng: random.Random) -> bytes:
    return _wrong_bytes(data, 0, len(data), rng.choice([1, 5, 50, 500]), rng)


def filled(data: bytes, index_at: int, rng: random.Random) -> bytes:
    """A range of zeros, of ones, or of anything; often with the index in it."""
    begin = rng.choice([index_at, rng.randrange(len(data))])
    nbytes = min(rng.choice([16, 64, 260, 512]), len(data) - begin)
    filling = rng.choice([bytes(nbytes), b"\xff" * nbytes, rng.randbytes(nbytes)])
    return data[:begin] + filling + data[begin + nbytes :]


def cut(data: bytes, index_at: int, rng: random.Random) -> bytes:
    return data[: -rng.choice([1, 2, 3, 4, 16, 32, 260, rng.randrange(1, len(data))])]


def lengthened(data: bytes, index_at: int, rng: random.Random) -> bytes:
    nbytes = rng.choice([1, 4, 16, 64, 260, 1000])
    return data + rng.choice([bytes(nbytes), rng.randbytes(nbytes), data[:nbytes]])


def shifted(data: bytes, index_at: int, rng: random.Random) -> bytes:
    at, nbytes = rng.choice([index_at, rng.randrange(len(data))]), rng.choice([1, 8, 16, 48])
    return data[:at] + (data[at + nbytes :] if rng.random() < 0.5 else rng.randbytes(nbytes) + data[at:])


def exchanged(data: bytes, index_at: int, rng: random.Random) -> bytes:
    """Two entries at each other's place."""
    one, other = (index_at + 16 * slot for slot in rng.sample(range(CHUNKS), 2))
    changed = bytearray(data)
    changed[one : one + 16], changed[other : other + 16] = data[other : other + 16], data[one : one + 16]
    if rng.random() < 0.5:
        changed[index_at + 16 * CHUNKS :][:4] = rng.randbytes(4)
        return _wrong_bytes(bytes(changed), index_at, _index_end(data, index_at), 4, rng)
    return bytes(changed)


def permuted(data: bytes, index_at: int, rng: random.Random) -> bytes:
    """Several entries at each other's places, or one at several."""
    changed = bytearray(data)
    slots = rng.sample(range(CHUNKS), rng.randint(2, 6))
    for slot in slots:
        other = index_at + 16 * rng.choice(slots)
        changed[index_at + 16 * slot : index_at + 16 * slot + 16] = data[other : other + 16]
    return bytes(changed)


def stale(data: bytes, index_at: int, rng: random.Random) -> bytes:
    """All of the index, part of it, or some of its entries, as an older index in the same shard has it; often some bytes are wrong, too."""
    nbytes = 16 * CHUNKS + 4
    if index_at + nbytes != len(data):
        return wrong_low_bytes(data, index_at, rng)  # the index is at the start, or has no checksum: nothing was appended
    older = [at for at in range(index_at - nbytes + 1) if _has_checksum(data[at : at + nbytes])]
    if not older:
        return wrong_low_bytes(data, index_at, rng)
    changed, at = bytearray(data), rng.choice(older)
    if rng.random() < 0.3:
        changed[index_at:] = data[at : at + nbytes]
        return _wrong_bytes(bytes(changed), index_at, len(data), rng.choice([1, 2, 5]), rng)
    first = rng.randrange(nbytes)
    entries = [(16 * slot, 16 * slot + 16) for slot in rng.sample(range(CHUNKS), rng.randint(1, 6))]
    for begin, end in rng.choice([entries, [(first, rng.randrange(first, nbytes))]]):
        changed[index_at + begin : index_at + end] = data[at + begin : at + end]
    return _wrong_bytes(bytes(changed), index_at + nbytes - 4, index_at + nbytes, rng.choice([0, 2, 4]), rng)


def _has_checksum(data: bytes) -> bool:
    return bool(google_crc32c.value(data[:-4]) == int.from_bytes(data[-4:], "little"))


def wrong_and_of_another_length(data: bytes, index_at: int, rng: random.Random) -> bytes:
    """Few wrong bytes in the index, and bytes behind it, or its last ones gone."""
    changed = _wrong_bytes(data, index_at, _index_end(data, index_at), rng.choice([1, 2, 5]), rng)
    return rng.choice([changed + rng.randbytes(rng.choice([1, 3, 16, 32, 100])), changed[: -rng.choice([1, 2, 3, 16])]])


DAMAGES: list[Damage] = [
    wrong_index_bytes,
    wrong_low_bytes,
    wrong_bytes_anywhere,
    filled,
    cut,
    lengthened,
    shifted,
    exchanged,
    permuted,
    stale,
    wrong_and_of_another_length,
]


# -- damages by whole chunks -----------------------------------------------------------------------------------------------

DamageOfChunks = Callable[[History, random.Random], bytes]


def chunks_lost(made: History, rng: random.Random) -> bytes:
    """The bytes of one chunk are missing, or as many as some chunks that follow each other have."""
    places = made.places()
    first = rng.randrange(len(places))
    some = places[first : first + rng.choice([1, 1, 2, 5, CHUNKS])]
    return _cut_out(made.data, some[0][0], sum(nbytes for _, nbytes in some))


def a_length_lost(made: History, rng: random.Random) -> bytes:
    """As many bytes as a chunk has, or several, are missing anywhere."""
    places = made.places()
    at = rng.choice([rng.choice(places)[0], rng.randrange(len(made.data))])
    return _cut_out(made.data, at, rng.choice(places)[1] * rng.choice([1, 1, 2, 3]))


def chunks_repeated(made: History, rng: random.Random) -> bytes:
    """The bytes of one chunk, or some, are there twice; or they are in front of another one, and the end of the shard is missing."""
    places = made.places()
    first = rng.randrange(len(places))
    some = places[first : first + rng.choice([1, 1, 2, 5])]
    copy = b"".join(made.data[offset : offset + nbytes] for offset, nbytes in some)
    at = rng.choice(places)[0]
    longer = made.data[:at] + copy + made.data[at:]
    return longer if rng.random() < 0.5 else longer[: -len(copy) - rng.choice([0, 1, rng.choice(places)[1]])]


def chunks_swapped(made: History, rng: random.Random) -> bytes:
    """Two chunks of one length are at each other's place; often the bytes of another one are missing, too."""
    places = made.places()
    pairs = [(one, other) for one in places for other in places if one < other and one[1] == other[1]]
    if not pairs:
        return chunks_lost(made, rng)
    (one, nbytes), (other, _) = rng.choice(pairs)
    changed = bytearray(made.data)
    changed[one : one + nbytes], changed[other : other + nbytes] = made.data[other : other + nbytes], made.data[one : one + nbytes]
    return bytes(changed) if rng.random() < 0.3 else _cut_out(bytes(changed), *rng.choice(places))


def _cut_out(data: bytes, at: int, nbytes: int) -> bytes:
    return data[:at] + data[at + nbytes :]


DAMAGES_OF_CHUNKS: list[DamageOfChunks] = [chunks_lost, a_length_lost, chunks_repeated, chunks_swapped]


def damaged_once(kind: Kind, made: History, rng: random.Random) -> bytes:
    index_nbytes = kind.index_format().nbytes
    if rng.random() < 0.7:
        index_at = 0 if kind.index_location == "start" else len(made.data) - index_nbytes
        return rng.choice(DAMAGES)(made.data, index_at, rng)
    damaged = rng.choice(DAMAGES_OF_CHUNKS)(made, rng)
    shows = index_nbytes < len(damaged) != len(made.data)  # nothing else shows that a whole chunk is not in its place
    if rng.random() < 0.7 or not shows:
        return damaged
    index_at = 0 if kind.index_location == "start" else len(damaged) - index_nbytes
    return _wrong_bytes(damaged, index_at, index_at + index_nbytes, rng.choice([1, 1, 2, 8]), rng)


# -- what comes of them ----------------------------------------------------------------------------------------------------


def repaired(count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Damage so many shards and repair them: what was done, and every chunk that is wrong without being named."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    rng = random.Random(seed)
    of_kind = _forever(kinds())
    shards_a_store = min(SHARDS_A_STORE, -(-count // len(kinds())))  # so that few damages are of every kind, too
    while counts["damages"] < count:
        kind = next(of_kind)
        storage = fresh_memory()
        objects = StorageObjects(storage)
        put_array(objects, "a", kind.document())
        before: dict[str, tuple[History, bytes]] = {}
        for number in range(min(shards_a_store, count - counts["damages"])):
            made = history(kind, rng)
            damaged = damaged_once(kind, made, rng)
            before[f"a/c/{number}/0"] = made, damaged
            objects.put(f"a/c/{number}/0", damaged)
            counts["damages"] += 1
        allows = rng.random() < 0.5
        report = shardstore.repair(storage, allow_reverting=allows, quarantine=fresh_memory(), workers=1)
        assert report.failed.count == 0
        view = shardstore.get_mapper(storage)
        for finding in report.findings.first:
            counts[finding.remedy] += 1
            assert allows or finding.remedy != "cut"
            if finding.remedy == "left":
                assert objects.get(finding.key) == before[finding.key][1]
                continue
            wrong += _wrong(kind, *before[finding.key], finding, view, counts)
    return counts, wrong


def _forever(some: list[Kind]) -> Iterator[Kind]:
    while True:
        yield from some


def _wrong(kind: Kind, made: History, damaged: bytes, finding: ShardRepair, view: Any, counts: Counter[str]) -> list[str]:
    number = int(finding.key.split("/")[2])
    named = {*finding.lost, *finding.reverted, *finding.uncertain}
    assert len(named) == finding.lost_count + finding.reverted_count + finding.uncertain_count  # each under one name
    found: list[str] = []
    for slot in range(CHUNKS):
        key = f"a/c/{4 * number + slot // 4}/{slot % 4}"
        given: bytes | None = view.get(key)
        counts["chunks named" if key in named else "chunks vouched for"] += 1
        if given == made.values.get(slot):
            counts["chunks as they were acknowledged"] += 1
            continue
        if given is not None and slot in made.values:
            offset, nbytes = (int(v) for v in made.index.flat[slot])
            is_in_place = len(damaged) == len(made.data)  # else it may be another chunk that lies there now
            if given == damaged[offset : offset + nbytes] and is_in_place and not kind.has_chunk_checksums:
                continue  # the right bytes, damaged themselves: nothing can tell
        if given is not None and kind.has_chunk_checksums and given != with_checksum(given[:-4]):
            continue  # an error for whoever decodes it
        if key not in named:
            found.append(f"{kind} {finding.remedy}: slot {slot}")
    return found
