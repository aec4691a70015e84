"""The content of one shard's object by its index: chunks, their bytes, and dead bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardstore.engine.engine import Engine
from shardstore.engine.index_cache import same_shards
from shardstore.engine.writing.committer import Shard
from shardstore.errors import Conflict, Corruption
from shardstore.format.metadata_v3 import ArrayLayout
from shardstore.format.shard_index import IndexFormat, ShardIndex
from shardstore.model.chunks import ChunkCoords
from shardstore.model.generation import Generation
from shardstore.plan.commits import covered_nbytes
from shardstore.storage.base import Found, Read, unless_failed

SHARDS_AT_ONCE = 256


@dataclass(slots=True)
class ShardTally:
    """Sums over the objects of one array; see ``survey.Usage``."""

    objects: int = 0
    objects_outside: int = 0
    stored_nbytes: int = 0
    chunks: int = 0
    chunk_nbytes: int = 0
    chunks_outside: int = 0
    chunk_nbytes_outside: int = 0
    index_nbytes: int = 0
    dead_nbytes: int = 0
    damaged_objects: int = 0
    other_objects: int = 0
    other_nbytes: int = 0

    def add_object(self, nbytes: int, is_inside: bool) -> None:
        if is_inside:
            self.objects += 1
        else:
            self.objects_outside += 1
        self.stored_nbytes += nbytes

    def add_chunk(self, nbytes: int, is_inside: bool) -> None:
        """Add an object that is one chunk."""
        self.add_object(nbytes, is_inside)
        self.add_chunks(int(is_inside), nbytes if is_inside else 0, int(not is_inside), 0 if is_inside else nbytes)

    def add_chunks(self, inside: int, inside_nbytes: int, outside: int, outside_nbytes: int) -> None:
        self.chunks += inside
        self.chunk_nbytes += inside_nbytes
        self.chunks_outside += outside
        self.chunk_nbytes_outside += outside_nbytes


@dataclass(frozen=True, slots=True)
class Damage:
    """A shard whose index cannot be read, or has entries that cannot be right."""

    path: str
    """The path of the array."""
    key: str
    """The key of the shard's object."""
    what: str


@dataclass(frozen=True, slots=True)
class StoredShard:
    """The object of one shard as it was listed; it travels with tasks."""

    path: str
    """The path of the array."""
    layout: ArrayLayout
    coords: ChunkCoords
    key: str


@dataclass(frozen=True, slots=True)
class LookedAt:
    """One version of a shard: its size, and its index or the reason why that cannot be read."""

    generation: Generation
    nbytes: int
    index: ShardIndex | Corruption


async def look_at(engine: Engine, shards: Sequence[StoredShard]) -> list[LookedAt | None]:
    """Return the indices of shards, by one request per shard; ``None`` if the shard no longer exists.
    Raises ``StorageError`` if a request failed.
    """
    looks: list[LookedAt | None] = []
    outcomes = await engine.storage.read([Read(shard.key, (shard.layout.index_format.request(),)) for shard in shards])
    for shard, outcome in zip(shards, outcomes, strict=True):
        outcome = unless_failed(outcome)
        looks.append(_look(shard, outcome) if isinstance(outcome, Found) else None)
    return looks


def _look(shard: StoredShard, found: Found) -> LookedAt:
    index_format = shard.layout.index_format
    try:
        index: ShardIndex | Corruption = index_format.decode(index_format.slice_from(found.buffers[0], found.nbytes))
    except Corruption as exc:
        index = exc
    return LookedAt(found.generation, found.nbytes, index)


async def current(engine: Engine, shard: StoredShard) -> Shard | None:
    """Return the shard with its node as the storage has it now; ``None`` if its array is gone, or has another layout by now."""
    node = await engine.hierarchy.node(shard.path, fresh=True)
    if node is None or node.layout is None or not same_shards(node.layout, shard.layout):
        return None
    return Shard(node, node.layout, shard.coords)


async def check_layout(engine: Engine, shard: StoredShard) -> None:
    """Check, before damage is reported, that the array still has the layout that was read with its metadata.

    Raises:
        Conflict: the layout is another one now, so the shard cannot be understood.
        StorageError: a request failed.
    """
    if await current(engine, shard) is None:
        raise Conflict(f"array {shard.path!r} was changed while its shards were looked at: run it again")


@dataclass(frozen=True, slots=True, eq=False)
class CountedShard:
    """The chunks of one shard that lie in the array's shape."""

    shard: StoredShard
    nbytes: int
    exists: npt.NDArray[np.bool_]
    """For each slot, in C order: ``(slots,)``."""
    lengths: npt.NDArray[np.int64]
    """The encoded bytes of each existing chunk."""


async def survey_shards(
    engine: Engine, shards: Sequence[tuple[StoredShard, ShardTally]], counted: list[CountedShard] | None = None
) -> list[Damage]:
    """Read the indices of ``shards``, one request per shard, and add their content to the tallies; return the damage. With ``counted``
    the chunks of each shard whose index can be read, inside the array's shape, are added to it.

    Raises:
        Conflict: the metadata of an array changed in between, so that its shards cannot be understood.
        StorageError: a request failed.
    """
    damages: list[Damage] = []
    looks = await look_at(engine, [shard for shard, _ in shards])
    for (shard, tally), look in zip(shards, looks, strict=True):
        if look is None:
            continue  # deleted since it was listed
        tally.add_object(look.nbytes, _is_inside(shard))
        if (what := _count(shard, tally, look.nbytes, look.index, counted)) is not None:
            await check_layout(engine, shard)
            tally.damaged_objects += 1
            damages.append(Damage(shard.path, shard.key, what))
    return damages


def _is_inside(shard: StoredShard) -> bool:
    per_shard, grid = shard.layout.grid.chunks_per_shard, shard.layout.chunk_grid_shape
    return all(c * p < g for c, p, g in zip(shard.coords, per_shard, grid, strict=True))


def _count(
    shard: StoredShard, tally: ShardTally, object_nbytes: int, index: ShardIndex | Corruption, counted: list[CountedShard] | None
) -> str | None:
    """Add the content of one shard to its array's tally; return its fault in words, if there is one."""
    index_format = shard.layout.index_format
    tally.index_nbytes += min(index_format.nbytes, object_nbytes)
    if isinstance(index, Corruption):
        return f"its index is damaged: {index}"
    wrong = index.invalid(object_nbytes)
    used = index.present() & ~wrong
    # Entries that fit the object fit int64 as well.
    lengths = index.flat[used, 1].astype(np.int64)
    slots = slots_inside(shard.layout, shard.coords)
    inside = slots[used]
    tally.add_chunks(int(inside.sum()), int(lengths[inside].sum()), int((~inside).sum()), int(lengths[~inside].sum()))
    if counted is not None and _is_inside(shard):
        counted.append(CountedShard(shard, object_nbytes, used & slots, lengths[inside]))
    if wrong.any():
        return entry_fault(index, wrong, object_nbytes)  # what its bytes are is not known, so none of them is called dead
    tally.dead_nbytes += dead_nbytes(index_format, index, object_nbytes)
    return None


def entry_fault(index: ShardIndex, wrong: npt.NDArray[np.bool_], object_nbytes: int) -> str:
    """Return in words the fault of the first entry that ``ShardIndex.invalid`` names, and the number of such entries."""
    slots = np.flatnonzero(wrong)
    try:
        index.location(int(slots[0]), object_nbytes)
    except Corruption as exc:
        more = f", and {len(slots) - 1} more" if len(slots) > 1 else ""
        return f"{exc}{more}"
    raise AssertionError(f"entry {slots[0]} is invalid and has a location")


def slots_inside(layout: ArrayLayout, coords: ChunkCoords) -> npt.NDArray[np.bool_]:
    """Return ``(nslots,)``: true for slots of the shard at ``coords`` of the shard grid whose chunks lie in the array's grid."""
    inside = np.ones((), dtype=np.bool_)
    for c, p, g in zip(coords, layout.grid.chunks_per_shard, layout.chunk_grid_shape, strict=True):
        # Python's own numbers: coordinates of a stray object may exceed 64 bits.
        held = np.arange(p) < max(0, min(p, g - c * p))
        inside = inside[..., np.newaxis] & held
    return inside.reshape(-1)


def dead_nbytes(index_format: IndexFormat, index: ShardIndex, object_nbytes: int) -> int:
    """Return the number of dead bytes of a shard, which neither the index nor a chunk uses; every entry has to fit the object."""
    used = index.flat[index.present()].astype(np.int64)  # entries that fit the object fit int64 as well
    index_start = 0 if index_format.location == "start" else object_nbytes - index_format.nbytes
    offsets, lengths = np.append(used[:, 0], index_start), np.append(used[:, 1], index_format.nbytes)
    return object_nbytes - covered_nbytes(offsets, lengths)
