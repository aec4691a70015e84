"""The wanted chunks of one version of a shard: where they lie by its index, and how they are cut out of the bytes that were read.

A chunk is damaged if its entry in the index cannot be right, or if fewer bytes came than the entry says. Its value is the error then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shardstore.engine.index_cache import CachedIndex
from shardstore.engine.metadata.hierarchy import ChunkTarget, LocatedChunks, Node
from shardstore.errors import Corruption, ShardStoreError
from shardstore.format.metadata_v3 import ArrayLayout
from shardstore.format.shard_index import Places
from shardstore.model.chunks import ChunkCoords, ChunkLocation
from shardstore.model.coalescing import CoalescedReads
from shardstore.model.generation import Generation
from shardstore.model.ranges import EVERYTHING, ByteRange, ByteRequest, resolve

Value = memoryview | None | ShardStoreError
"""The result of one request: its bytes, ``None`` for a chunk that does not exist, or the error."""


@dataclass(slots=True)
class ShardRead:
    """The requests of one batch to one shard, each by its number in the batch, the chunk's slot, and which bytes of it."""

    node: Node
    layout: ArrayLayout
    coords: ChunkCoords
    key: str
    numbers: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    requests: list[ByteRequest] = field(default_factory=list)
    parts: int = 0
    """The number of requests that are not for whole chunks."""
    versions: dict[int, tuple[Generation, int]] | None = None
    """The versions and sizes in bytes of the chunks that were read, by number in the batch; ``None`` if they are not asked for."""

    @property
    def wants_everything(self) -> bool:
        """Return whether every chunk that the array has in this shard is wanted, whole."""
        per_shard, grid = self.layout.grid.chunks_per_shard, self.layout.chunk_grid_shape
        here = 1
        for s, n, g in zip(self.coords, per_shard, grid, strict=True):
            here *= max(0, min(n, g - s * n))
        if here == 0 or len(self.slots) < here:
            return False
        whole = self.slots if not self.parts else [s for s, r in zip(self.slots, self.requests, strict=True) if r == EVERYTHING]
        return len(set(whole)) >= here


def group_located(located: LocatedChunks, requests: Sequence[ByteRequest]) -> list[ShardRead]:
    """Group requests by shard, as ``group_by_shard`` does, for chunks that were located together; one request for each."""
    parts = [i for i, request in enumerate(requests) if request is not EVERYTHING]
    shards: list[ShardRead] = []
    for coords, key, numbers in zip(located.shard_coords, located.shard_keys, located.numbers(), strict=True):
        mine: list[int] = numbers.tolist()
        shard = ShardRead(located.node, located.layout, coords, key, mine, located.slots[numbers].tolist(), [EVERYTHING] * len(mine))
        if parts:
            shard.requests = [requests[i] for i in mine]
            shard.parts = sum(request is not EVERYTHING for request in shard.requests)
        shards.append(shard)
    return shards


def group_by_shard(targets: Iterable[tuple[int, ChunkTarget, ByteRequest]]) -> list[ShardRead]:
    """Group requests, each with its number in the batch, by the shards that they go to."""
    groups: dict[str, ShardRead] = {}
    for i, target, request in targets:
        group = groups.get(target.shard_key)
        if group is None:
            group = groups[target.shard_key] = ShardRead(target.node, target.layout, target.shard_coords, target.shard_key)
        group.numbers.append(i)
        group.slots.append(target.slot)
        group.requests.append(request)
        if request is not EVERYTHING:
            group.parts += 1
    return list(groups.values())


@dataclass(frozen=True, slots=True)
class WantedChunks:
    """The wanted chunks that exist in one version of a shard: ``(n,)`` each, by bytes of the object."""

    numbers: list[int]
    slots: list[int]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]


def index_error(shard: ShardRead, cause: Corruption) -> Corruption:
    error = Corruption(
        f"the index of shard {shard.key!r} of array {shard.node.path!r} is damaged: {cause}. Write or erase all "
        f"{shard.layout.grid.nslots} chunks of the shard, or restore the object"
    )
    error.__cause__ = cause
    return error


def cut(shard: ShardRead, cached: CachedIndex, places: Places, data: memoryview, start: int, values: list[Value]) -> int:
    """Set the wanted ``values`` to slices of ``data``, which begins at byte ``start`` of the object; return the number of chunks."""
    wanted = wanted_chunks(shard, cached, places, values)
    return slice_all(shard, wanted, CoalescedReads.in_one(ByteRange(start, start + len(data)), wanted.starts, wanted.ends), (data,), values)


def release(values: list[Value], numbers: Sequence[int], nbytes: int) -> None:
    """Copy values that are a small part of the buffer of so many bytes in which they lie, so that they do not keep it in memory."""
    mine = [(i, value) for i in numbers if isinstance(value := values[i], memoryview)]
    if sum(len(value) for _, value in mine) * 2 < nbytes:
        for i, value in mine:
            values[i] = memoryview(bytes(value))


def wanted_chunks(shard: ShardRead, cached: CachedIndex, places: Places, values: list[Value]) -> WantedChunks:
    """Return the wanted chunks that exist; set the values of the rest: ``None`` for what is missing, or the error for damage."""
    numbers, slots, starts, nbytes = shard.numbers, shard.slots, places.offsets, places.nbytes
    requests = shard.requests
    if not places.exists.all():
        for at in np.flatnonzero(~places.exists).tolist():
            values[numbers[at]] = _location_error(shard, cached, slots[at]) if places.is_damaged[at] else None
        there: list[int] = np.flatnonzero(places.exists).tolist()
        numbers, slots = [numbers[at] for at in there], [slots[at] for at in there]
        starts, nbytes = starts[there], nbytes[there]
        requests = [requests[at] for at in there] if shard.parts else []
    if shard.versions is not None:
        for number, slot, offset, length in zip(numbers, slots, starts.tolist(), nbytes.tolist(), strict=True):
            shard.versions[number] = cached.version(slot, ChunkLocation(offset, length)), length
    if not shard.parts:
        return WantedChunks(numbers, slots, starts, starts + nbytes)
    inside = [resolve(request, length) for request, length in zip(requests, nbytes.tolist(), strict=True)]
    bounds = np.array([(part.start, part.end) for part in inside], dtype=np.int64).reshape(len(inside), 2)
    return WantedChunks(numbers, slots, starts + bounds[:, 0], starts + bounds[:, 1])


def slice_all(shard: ShardRead, wanted: WantedChunks, coalesced: CoalescedReads, buffers: Sequence[memoryview], values: list[Value]) -> int:
    """Set the wanted ``values`` to slices of the buffers of their requests; return the number of chunks that came whole."""
    pieces = coalesced.cut(buffers)
    for number, piece in zip(wanted.numbers, pieces, strict=True):
        values[number] = piece
    if all(len(buffer) == request.end - request.start for buffer, request in zip(buffers, coalesced.requests, strict=True)):
        return len(pieces)
    cut_short = 0
    for at, (piece, start, end) in enumerate(zip(pieces, wanted.starts.tolist(), wanted.ends.tolist(), strict=True)):
        if len(piece) != end - start:
            cut_short += 1
            what = f"bytes [{start}, {end}) were asked for, {len(piece)} came"
            values[wanted.numbers[at]] = _chunk_error(shard, wanted.slots[at], what, None)
    return len(pieces) - cut_short


def chunk_location(shard: ShardRead, cached: CachedIndex, slot: int) -> ChunkLocation | Corruption | None:
    try:
        return cached.index.location(slot, cached.object_nbytes)
    except Corruption as exc:
        return _chunk_error(shard, slot, str(exc), exc)


def _location_error(shard: ShardRead, cached: CachedIndex, slot: int) -> Corruption:
    error = chunk_location(shard, cached, slot)
    assert isinstance(error, Corruption)
    return error


def _chunk_error(shard: ShardRead, slot: int, what: str, cause: Exception | None) -> Corruption:
    encoded = shard.layout.key_encoding.encode(shard.layout.grid.coords_of(shard.coords, slot))
    error = Corruption(
        f"chunk {encoded!r} of array {shard.node.path!r} in shard {shard.key!r} is damaged: {what}. Write the chunk again, or "
        "restore the shard; the other chunks of the shard are not affected"
    )
    error.__cause__ = cause
    return error


def makes_a_request(places: Places, shard: ShardRead) -> bool:
    """Return whether reading what is wanted by a cached index makes a request, which confirms that the index still holds.

    What is empty, or damaged, is to be confirmed otherwise.
    """
    lengths = places.nbytes[places.exists]
    if not shard.parts:
        return bool(lengths.any())
    requests = [request for request, exists in zip(shard.requests, places.exists.tolist(), strict=True) if exists]
    inside = map(resolve, requests, lengths.tolist())
    return any(part.end > part.start for part in inside)
