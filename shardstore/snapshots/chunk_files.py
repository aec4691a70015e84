"""The chunks of a session: gathered into chunk files when they are written, and found in memory, files or manifests when they are read.

Those of one cell of an array go into one file, whatever order they come in. A cell is what a shard would be, so the file of a full cell is
a shard of ``sharding_indexed``, byte for byte. Cells that have all their chunks are stored at once, incomplete ones when memory is short,
the largest first, or at the commit.

::

    full cell       | chunk | chunk | … | index |         a shard
    some chunks     | chunk | chunk |                     with the index too, where that is at most 1 % of the bytes
    few, small ones                                       in the manifest itself
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
import numpy.typing as npt

from shardstore.errors import InvalidInput
from shardstore.format.metadata_v3 import parse_shown
from shardstore.format.shard_index import ENTRY_NBYTES, IndexCodecs, IndexFormat
from shardstore.format.snapshots.file_names import CHUNKS, encode_id
from shardstore.format.snapshots.manifest import GONE, INLINE, ChunkRefs, VirtualCheck, merged
from shardstore.format.snapshots.structure import Node
from shardstore.model.chunks import ChunkCoords, ShardGrid
from shardstore.model.ranges import BytesLike, NewBytes
from shardstore.plan.commits import WriteShard, write_anew
from shardstore.plan.policy import ShardingPolicy, chunks_per_shard
from shardstore.snapshots.files import KnownRefs, StoreFiles
from shardstore.tasks import gather_all

MOST_INLINE_NBYTES = 512
"""A chunk up to this may be stored in the manifest."""
MOST_INLINE_CHUNKS = 8
"""The most of them in one cell: more are better read from a file."""
FILES_AT_ONCE = 16
_INDEX_SHARE = 0.01

FOLDED_AT = 1 << 16
"""The number of stored chunks of an array at which they become references."""
FOLDED_SHARE = 8
"""They are at least the references that there are, divided by this: so each of these is merged a few times only."""

ABSENT, HELD = -3, -4
"""In place of a file's number: nothing is known of the chunk; the session has its bytes, or knows where they are."""


@dataclass(slots=True, eq=False)
class Written:
    """One chunk as a session has written it."""

    serial: int
    """A number that each value of the same chunk has for itself."""
    nbytes: int
    data: bytes | None
    """Its bytes, until they are stored; for ever if they are to be in the manifest."""
    file: bytes | None = None
    """The id of its chunk file, which may be on its way."""
    offset: int = 0


@dataclass(slots=True, eq=False)
class _Cell:
    """Chunks that wait for a chunk file."""

    grid: ShardGrid | None
    """``None``: the array's chunks are not gathered."""
    nchunks: int
    """The chunks of the array that the cell can have."""
    chunks: dict[ChunkCoords, Written] = field(default_factory=dict)
    nbytes: int = 0

    @property
    def is_full(self) -> bool:
        return len(self.chunks) >= self.nchunks


@dataclass(slots=True, eq=False)
class ChunkFile:
    """A chunk file that has been planned, and not stored yet."""

    array: int
    id: bytes
    body: Sequence[BytesLike]
    chunks: Mapping[ChunkCoords, Written]


@dataclass(frozen=True, slots=True)
class Cells:
    """The division of an array's chunks into cells."""

    node: Node
    grid: ShardGrid | None
    chunk_counts: tuple[int, ...]

    def cell_of(self, coords: ChunkCoords) -> ChunkCoords:
        return coords if self.grid is None else self.grid.shard_of(coords)

    def nchunks(self, cell: ChunkCoords) -> int:
        """Return the chunks that a cell has in the array."""
        if self.grid is None:
            return 1
        sizes = zip(cell, self.grid.chunks_per_shard, self.chunk_counts, strict=True)
        return max(1, prod(max(0, min((c + 1) * n, count) - c * n) for c, n, count in sizes))


class ChunkGatherer:
    """The chunks of one session that wait for chunk files. Runs on the IO loop."""

    def __init__(self, files: StoreFiles, policy: ShardingPolicy, max_memory: int) -> None:
        self._files = files
        self._policy = policy
        self._max_memory = max_memory
        self._waiting: dict[tuple[int, ChunkCoords], _Cell] = {}
        self._cells: dict[int, Cells] = {}
        self._held = 0
        self._at_once = asyncio.Semaphore(FILES_AT_ONCE)
        self._storing: set[asyncio.Future[None]] = set()

    def forget_array(self, array: int) -> None:
        """Forget what waits of an array that is gone."""
        for cell in [cell for cell in self._waiting if cell[0] == array]:
            self._held -= self._waiting.pop(cell).nbytes
        self._cells.pop(array, None)

    def renumber(self, array: int, new: int) -> None:
        for id_, cell in [key for key in self._waiting if key[0] == array]:
            self._waiting[new, cell] = self._waiting.pop((id_, cell))
        if (cells := self._cells.pop(array, None)) is not None:
            self._cells[new] = cells

    def forget(self, node: Node, coords: ChunkCoords) -> None:
        """Forget a chunk that has been erased or is written again."""
        cell = node.id, self.cells_of(node).cell_of(coords)
        waiting = self._waiting.get(cell)
        if waiting is not None and (old := waiting.chunks.pop(coords, None)) is not None:
            waiting.nbytes -= old.nbytes
            self._held -= old.nbytes
            if not waiting.chunks:
                del self._waiting[cell]

    async def add(self, node: Node, coords: ChunkCoords, chunk: Written) -> None:
        """Let a chunk wait, after ``forget`` of an earlier value; store what is complete, and what does not fit into memory. Raises
        ``ShardStoreError``: a chunk file could not be stored. Its chunks wait as before.
        """
        cells = self.cells_of(node)
        key = node.id, cells.cell_of(coords)
        waiting = self._put(key, cells, coords, chunk)
        if cells.grid is not None and waiting.is_full and waiting.nbytes > MOST_INLINE_CHUNKS * MOST_INLINE_NBYTES:
            await self._store([key])
        while self._held > self._max_memory and self._waiting:
            await self._store([max(self._waiting, key=lambda one: self._waiting[one].nbytes)])

    def plan(self) -> list[ChunkFile]:
        """Plan files for all chunks that wait; those that go into the manifest stop waiting."""
        return [file for cell in list(self._waiting) if (file := self._planned(cell)) is not None]

    async def store(self, planned: Sequence[ChunkFile]) -> None:
        """Store files. If one of them fails, its chunks wait as before, and the first error is raised when all have ended."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._storing.add(done)
        try:
            await gather_all(*map(self._store_one, planned))
        finally:
            self._storing.discard(done)
            done.set_result(None)

    async def settled(self) -> None:
        """Wait until no file is being stored: then every chunk is stored, or waits."""
        while self._storing:
            await asyncio.wait(list(self._storing))

    def take_back(self, planned: Sequence[ChunkFile]) -> None:
        """Let the chunks of files that are not going to be stored wait as before."""
        for file in planned:
            self._wait_again(file)

    async def _store(self, cells: Sequence[tuple[int, ChunkCoords]]) -> None:
        await self.store([file for cell in cells if (file := self._planned(cell)) is not None])

    async def _store_one(self, file: ChunkFile) -> None:
        try:
            async with self._at_once:
                await self._files.write(CHUNKS + encode_id(file.id), file.body)
        except BaseException:
            self._wait_again(file)
            raise
        for chunk in file.chunks.values():
            chunk.data = None

    def _wait_again(self, file: ChunkFile) -> None:
        cells = self._cells.get(file.array)
        if cells is None:
            return  # the array is gone
        for coords, chunk in file.chunks.items():
            key = file.array, cells.cell_of(coords)
            waiting = self._waiting.get(key)
            if chunk.file == file.id and (waiting is None or coords not in waiting.chunks):
                chunk.file, chunk.offset = None, 0
                self._put(key, cells, coords, chunk)

    def _put(self, key: tuple[int, ChunkCoords], cells: Cells, coords: ChunkCoords, chunk: Written) -> _Cell:
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = _Cell(cells.grid, cells.nchunks(key[1]))
        waiting.chunks[coords] = chunk
        waiting.nbytes += chunk.nbytes
        self._held += chunk.nbytes
        return waiting

    def _planned(self, key: tuple[int, ChunkCoords]) -> ChunkFile | None:
        """Plan the file of a cell, which stops waiting; ``None`` if all of its chunks go into the manifest."""
        waiting = self._waiting.pop(key)
        self._held -= waiting.nbytes
        _leave_to_manifest(waiting)
        if not waiting.chunks:
            return None
        file = self._files.new_id()
        body = _shard_of(waiting, file) if waiting.grid is not None else _one_behind_the_other(waiting, file)
        return ChunkFile(key[0], file, body, waiting.chunks)

    def cells_of(self, node: Node) -> Cells:
        known = self._cells.get(node.id)
        if known is not None and known.node.columns is node.columns:
            return known
        cells = self._cells[node.id] = _cells_of(node, self._policy)
        if known is not None:
            self._regroup(node.id, cells)
        return cells

    def move(self, node: Node, axis: int, by: int) -> None:
        """Let the waiting chunks of an array be those that lie ``by`` chunks further along an axis."""
        self._regroup(node.id, self.cells_of(node), axis, by)

    def _regroup(self, array: int, cells: Cells, axis: int = 0, by: int = 0) -> None:
        """Put the waiting chunks of an array into its current cells: it may have been resized, and be divided otherwise."""
        before = [self._waiting.pop(key) for key in list(self._waiting) if key[0] == array]
        self._held -= sum(cell.nbytes for cell in before)
        for coords, chunk in (item for cell in before for item in cell.chunks.items()):
            now = moved_along(coords, axis, by) if by else coords
            self._put((array, cells.cell_of(now)), cells, now, chunk)


def _cells_of(node: Node, policy: ShardingPolicy) -> Cells:
    document = node.document
    plain = parse_shown(document)
    # Hierarchies have arrays of several ranks: one tuple is for those that it fits.
    fits = isinstance(plain, str) or not isinstance(policy, tuple) or len(policy) == len(plain.shape)
    counts = None if policy is None else chunks_per_shard(policy if fits else "auto", node.path, document)
    if isinstance(plain, str) or counts is None or not counts:
        return Cells(node, None, ())
    chunk_counts = tuple(-(-size // chunk) for size, chunk in zip(plain.shape, plain.chunk_shape, strict=True))
    return Cells(node, ShardGrid(counts), chunk_counts)


def inline_chunks(nbytes: npt.NDArray[np.uint64], *, is_full: bool) -> int:
    """Return how many chunks of a cell go into the manifest, of those of these lengths that are written at once."""
    nsmall = int(np.count_nonzero(nbytes <= MOST_INLINE_NBYTES))
    # A full cell with a large chunk is a shard.
    return 0 if nsmall > MOST_INLINE_CHUNKS or (is_full and nsmall < len(nbytes)) else nsmall


def _leave_to_manifest(cell: _Cell) -> None:
    nbytes = np.array([chunk.nbytes for chunk in cell.chunks.values()], dtype=np.uint64)
    if inline_chunks(nbytes, is_full=cell.grid is not None and cell.is_full):
        for coords in [coords for coords, chunk in cell.chunks.items() if chunk.nbytes <= MOST_INLINE_NBYTES]:
            del cell.chunks[coords]


def _shard_of(cell: _Cell, file: bytes) -> Sequence[BytesLike]:
    """Return the bytes of the shard of a cell, without its index where that would be large; and note where each chunk is."""
    assert cell.grid is not None
    index_format = IndexFormat(cell.grid.chunks_per_shard, IndexCodecs(), "end")
    by_slot = {cell.grid.slot_of(coords): chunk for coords, chunk in cell.chunks.items()}
    empty = index_format.empty()
    plan: WriteShard = write_anew(index_format, empty, empty.present(), {slot: _bytes_of(chunk) for slot, chunk in by_slot.items()}, "C")
    entries = plan.index.flat
    for slot, chunk in by_slot.items():
        chunk.file, chunk.offset = file, int(entries[slot, 0])
    body = [segment.data for segment in plan.segments if isinstance(segment, NewBytes)]
    nbytes = sum(chunk.nbytes for chunk in by_slot.values())
    has_index = cell.is_full or ENTRY_NBYTES * cell.grid.nslots <= _INDEX_SHARE * nbytes
    return body if has_index else body[:-1]


def _one_behind_the_other(cell: _Cell, file: bytes) -> Sequence[BytesLike]:
    body: list[BytesLike] = []
    offset = 0
    for coords in sorted(cell.chunks):
        chunk = cell.chunks[coords]
        chunk.file, chunk.offset = file, offset
        body.append(_bytes_of(chunk))
        offset += chunk.nbytes
    return body


def _bytes_of(chunk: Written) -> bytes:
    if chunk.data is None:
        raise InvalidInput("a chunk that is stored already cannot be stored again")
    return chunk.data


# -- places of chunks --------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class ArrayChanges:
    """The chunks of one array that a session has changed."""

    chunks: dict[ChunkCoords, Written | None] = field(default_factory=dict)
    """``None``: erased."""
    bulk: KnownRefs | None = None
    """References that were given all at once, or folded, behind ``chunks``."""
    next_look: int = 0
    """The number of ``chunks`` at which they are looked at again."""

    def fold(self, ndim: int, folded_at: int) -> None:
        """Keep chunks that are stored as references, which take a tenth of the memory, once there are ``folded_at`` of them."""
        if len(self.chunks) < max(folded_at, self.next_look):
            return
        stored = {coords: one for coords, one in self.chunks.items() if one is not None and one.file is not None and one.data is None}
        self.next_look = len(self.chunks) + folded_at
        known = 0 if self.bulk is None else len(self.bulk.refs)
        if len(stored) < max(folded_at, known // FOLDED_SHARE):
            return
        refs = refs_of_written(stored, ndim)
        self.bulk = KnownRefs(refs if self.bulk is None else merged(self.bulk.refs, refs))
        self.chunks = {coords: one for coords, one in self.chunks.items() if coords not in stored}
        self.next_look = len(self.chunks) + folded_at

    def __bool__(self) -> bool:
        return bool(self.chunks) or self.bulk is not None

    def move(self, axis: int, by: int) -> None:
        """Let all of them be the chunks that lie ``by`` further along an axis."""
        self.chunks = {moved_along(coords, axis, by): chunk for coords, chunk in self.chunks.items()}
        if self.bulk is not None:
            coords = self.bulk.refs.coords.copy()
            coords[:, axis] += np.uint64(by)
            self.bulk = KnownRefs(replace(self.bulk.refs, coords=coords))

    def stored_files(self) -> set[bytes]:
        """Return the ids of the chunk files to which they refer, of those that are stored."""
        found = {one.file for one in self.chunks.values() if one is not None and one.file is not None and one.data is None}
        return found if self.bulk is None else found | {file for file in self.bulk.refs.files if isinstance(file, bytes)}

    def refs(self, ndim: int) -> ChunkRefs:
        """Return all of them as references, erased chunks included."""
        recent = refs_of_written(self.chunks, ndim)
        return recent if self.bulk is None else merged(self.bulk.refs, recent)


def moved_along(coords: ChunkCoords, axis: int, by: int) -> ChunkCoords:
    return *coords[:axis], coords[axis] + by, *coords[axis + 1 :]


def refs_of_written(chunks: Mapping[ChunkCoords, Written | None], ndim: int) -> ChunkRefs:
    ordered = sorted(chunks)
    numbers: dict[bytes | str, int] = {}
    file = np.zeros(len(ordered), dtype=np.int32)
    offset, nbytes = np.zeros(len(ordered), dtype=np.uint64), np.zeros(len(ordered), dtype=np.uint64)
    inline: dict[int, bytes] = {}
    for row, coords in enumerate(ordered):
        chunk = chunks[coords]
        if chunk is None:
            file[row] = GONE
        elif chunk.file is None:
            assert chunk.data is not None  # it waits for no file, or is planned: then it has one
            file[row], inline[row] = INLINE, chunk.data
            nbytes[row] = chunk.nbytes
        else:
            file[row] = numbers.setdefault(chunk.file, len(numbers))
            offset[row], nbytes[row] = chunk.offset, chunk.nbytes
    coords_array = np.array(ordered, dtype=np.uint64).reshape(len(ordered), ndim)
    return ChunkRefs(coords_array, file, offset, nbytes, list(numbers), inline)


@dataclass(slots=True, eq=False)
class ChunkPlaces:
    """The places of ``n`` chunks of one array."""

    file: npt.NDArray[np.int32]
    """``(n,)``: numbers in ``files``, or ``INLINE``, ``HELD``, ``GONE`` or ``ABSENT``."""
    offset: npt.NDArray[np.uint64]
    nbytes: npt.NDArray[np.uint64]
    files: list[bytes | str] = field(default_factory=list)
    checks: dict[int, VirtualCheck] = field(default_factory=dict)
    data: dict[int, bytes] = field(default_factory=dict)
    """The bytes of chunks that are inline or held in memory, by number."""
    serials: dict[int, int] = field(default_factory=dict)
    """The serials of the session's own chunks, by number."""

    @classmethod
    def unknown(cls, n: int) -> ChunkPlaces:
        """Return ``n`` places of which nothing is known yet."""
        return cls(np.full(n, ABSENT, dtype=np.int32), np.zeros(n, dtype=np.uint64), np.zeros(n, dtype=np.uint64))

    @property
    def exists(self) -> npt.NDArray[np.bool_]:
        there: npt.NDArray[np.bool_] = (self.file >= INLINE) | (self.file == HELD)
        return there

    def take(self, known: KnownRefs, numbers: npt.NDArray[np.intp], rows: npt.NDArray[np.intp]) -> None:
        """Note where the chunks of these numbers are, which ``known`` has in these rows."""
        refs = known.refs
        file = refs.file[rows]
        self.file[numbers] = np.where(file >= 0, file + len(self.files), file)
        self.offset[numbers], self.nbytes[numbers] = refs.offset[rows], refs.nbytes[rows]
        self.checks |= {number + len(self.files): check for number, check in refs.checks.items()}
        self.files += refs.files
        for place in np.flatnonzero(file == INLINE).tolist():
            self.data[int(numbers[place])] = refs.inline[int(rows[place])]


# -- versions ----------------------------------------------------------------------------------------------------------


def token_of_written(serial: int) -> str:
    """Return the version of what a session has written."""
    return f"w{serial}"


def token_of_inline(data: bytes) -> str:
    """Return the version of a chunk that is in a manifest."""
    return f"i{hashlib.blake2b(data, digest_size=16).hexdigest()}"


def token_in_file(name: str, offset: int, nbytes: int, check: VirtualCheck | None) -> str:
    """Return the version of a chunk in a file: its place, since chunk files never change; of a virtual file, with what is known of it."""
    return f"{name}:{offset}:{nbytes}" if check is None else f"{name}:{offset}:{nbytes}:{check.etag or ''}:{check.last_modified or ''}"


def file_name(file: bytes | str) -> str:
    """Return the name of a chunk file, or the URI of a virtual one."""
    return encode_id(file) if isinstance(file, bytes) else file
