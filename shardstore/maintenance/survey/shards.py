"""The content of one shard's object by its index: chunks, their bytes, and dead bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardstore.engine.engine import Engine
from shardstore.engine.metadata.hierarchy import Node
from shardstore.engine.reading.reader import same_shards
from shardstore.errors import Conflict, Corruption
from shardstore.format.metadata_v3 import ArrayLayout
from shardstore.format.shard_index import IndexFormat, ShardIndex
from shardstore.format.store_keys import metadata_key
from shardstore.model.chunks import ChunkCoords
from shardstore.storage.base import Failed, Found, Read, ReadOutcome, document_read

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
class SurveyedShard:
    """A stored object that is the shard at ``coords`` of the shard grid."""

    node: Node
    layout: ArrayLayout
    tally: ShardTally
    key: str
    coords: ChunkCoords


@dataclass(frozen=True, slots=True)
class Damage:
    """A shard whose index cannot be read, or has entries that cannot be right."""

    path: str
    """The path of the array."""
    key: str
    """The key of the shard's object."""
    what: str


async def survey_shards(engine: Engine, shards: Sequence[SurveyedShard]) -> list[Damage]:
    """Read the indices of ``shards``, one request per shard, and add their content to the tallies; return the damage.

    Raises:
        Conflict: the metadata of an array changed meanwhile, so that its shards cannot be understood.
        StorageError: a request failed.
    """
    damages: list[Damage] = []
    outcomes = await engine.storage.read([Read(s.key, (s.layout.index_format.request(),)) for s in shards])
    for shard, outcome in zip(shards, outcomes, strict=True):
        if isinstance(outcome, Failed):
            raise outcome.error
        if not isinstance(outcome, Found):
            continue  # deleted since it was listed
        try:
            index = _index(shard.layout.index_format, outcome)
        except Corruption as exc:
            await _confirm_layout(engine, shard)
            shard.tally.add_object(outcome.nbytes, _is_inside(shard))
            shard.tally.index_nbytes += min(shard.layout.index_format.nbytes, outcome.nbytes)
            shard.tally.damaged_objects += 1
            damages.append(Damage(shard.node.path, shard.key, f"its index is damaged: {exc}"))
            continue
        if (what := _count(shard, outcome.nbytes, index)) is not None:
            await _confirm_layout(engine, shard)
            damages.append(Damage(shard.node.path, shard.key, what))
    return damages


def _index(index_format: IndexFormat, outcome: ReadOutcome) -> ShardIndex:
    assert isinstance(outcome, Found)
    return index_format.decode(index_format.slice_from(outcome.buffers[0], outcome.nbytes))


async def _confirm_layout(engine: Engine, shard: SurveyedShard) -> None:
    """Check, before damage is reported, that the array still has the layout that was read with its metadata."""
    path = shard.node.path
    (outcome,) = await engine.storage.read([document_read(metadata_key(path))])
    if isinstance(outcome, Failed):
        raise outcome.error
    if isinstance(outcome, Found):
        node, _ = engine.hierarchy.describe(path, outcome.buffers[0], outcome.generation)
        if node.layout is not None and same_shards(node.layout, shard.layout):
            return
    raise Conflict(f"the metadata of array {path!r} changed while its shards were looked at: run it again")


def _is_inside(shard: SurveyedShard) -> bool:
    per_shard, grid = shard.layout.grid.chunks_per_shard, shard.layout.chunk_grid_shape
    return all(c * p < g for c, p, g in zip(shard.coords, per_shard, grid, strict=True))


def _count(shard: SurveyedShard, object_nbytes: int, index: ShardIndex) -> str | None:
    """Add one shard to its array's tally; return in words the fault of its entries, if there is one."""
    layout, tally = shard.layout, shard.tally
    wrong = index.invalid(object_nbytes)
    used = index.present() & ~wrong
    # Entries that fit the object fit int64 as well.
    lengths = index.flat[used, 1].astype(np.int64)
    inside = slots_inside(shard.layout, shard.coords)[used]
    tally.add_object(object_nbytes, _is_inside(shard))
    tally.index_nbytes += layout.index_format.nbytes
    tally.add_chunks(int(inside.sum()), int(lengths[inside].sum()), int((~inside).sum()), int(lengths[~inside].sum()))
    if not wrong.any():
        tally.dead_nbytes += dead_nbytes(layout.index_format, index, object_nbytes)
        return None
    # What a damaged entry meant to refer to is not known, so nothing of this shard is called dead.
    tally.damaged_objects += 1
    return entry_fault(index, wrong, object_nbytes)


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
    starts = np.append(used[:, 0], index_start)
    ends = np.append(used[:, 0] + used[:, 1], index_start + index_format.nbytes)
    return object_nbytes - covered_nbytes(starts, ends)


def covered_nbytes(starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> int:
    """Return the number of bytes in at least one of the ranges ``[start, end)``."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    before = np.concatenate([starts[:1], ends[:-1]])  # how far the ranges before reach
    return int(np.maximum(0, ends - np.maximum(starts, before)).sum())
