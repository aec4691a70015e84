"""What the processes do that erase arrays and create them again, and read them meanwhile: importable by a spawned child.

One writer has one array and gives it one life after the other: erased, created with other shards, written, written again. The board
says which life has begun and which is complete, so a reader knows what it may see: while no life begins, every chunk, of this life.

Cells of the board: for each array the life that has begun, then for each the life that is complete, then for each reader whether it
has ended.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import zarr
from numcodecs.zstd import Zstd
from zarr.errors import NodeNotFoundError

import shardstore
from shardstore.errors import NotFound, ShardStoreError
from tests.torture.crew import Together
from tests.torture.payloads import Payload, Words, WrongValue, parse
from tests.torture.places import Place

GRID = 4
"""An array has ``GRID`` x ``GRID`` chunks, each of one row of ``WORDS`` elements."""
WORDS = 256


@dataclass(frozen=True, slots=True)
class Life:
    """How an array is created: chunks per shard, or none, and what else."""

    per_shard: tuple[int, int] | None
    location: str = "end"
    dtype: str = "<u4"
    compressed: bool = True
    chunk_rows: int = 1
    """A chunk has so many rows, of ``WORDS`` elements together."""


OTHER_SHARDS = (
    # Those with as many chunks a shard have indices of one size: nothing but the metadata tells them apart.
    Life((1, 4)),
    Life((4, 1)),
    Life((2, 2)),
    Life((1, 1)),
    Life((2, 1)),
    Life((1, 2)),
    Life((4, 4)),
    Life((4, 1), "start"),
    Life((2, 2), "start"),
    Life(None),
)
OTHER_CHUNKS = (
    Life((1, 4)),
    Life((1, 4), dtype=">u4"),
    Life((4, 1), compressed=False),
    Life((4, 1), dtype=">u4", compressed=False),
    Life((1, 4), chunk_rows=2),
    Life((4, 1), chunk_rows=4, dtype="<u8"),
    Life(None, compressed=False),
    Life((1, 4), dtype="<u8", compressed=False),
)


def name_of(array: int) -> str:
    return f"a{array}"


# -- writing ---------------------------------------------------------------------------------------------------------------


def _assign(array: zarr.Array[Any], number: int, life: int, version: int, first: int = 0, last: int = GRID) -> None:
    """Write the rows of chunks from ``first`` to ``last``, exclusive."""
    rows, columns = array.chunks
    chunks = [
        [Payload(number, life, i * GRID + j, number, version).words(WORDS).reshape(rows, columns) for j in range(GRID)]
        for i in range(first, last)
    ]
    array[first * rows : last * rows] = np.block(chunks).astype(array.dtype)


def live(place: Place, lives: Sequence[Life], number: int, arrays: int, readers: int, together: Together) -> int:
    """Give one array one life after the other until the readers have ended; how many."""
    name = name_of(number)
    begun, complete, ended = together.board[:arrays], together.board[arrays : 2 * arrays], together.board[2 * arrays :]
    rng = random.Random(number)
    stores = {life: place.store(chunks_per_shard=life.per_shard, index_location=life.location) for life in lives}
    together.start()
    life = 0
    while not (life > 0 and ended[:readers].all()):
        together.check()
        life += 1
        kind = lives[(life + number) % len(lives)]
        store = stores[kind]
        begun[number] = life
        way = rng.choice(["overwrite", "delete_dir", "rmdir"])
        if life > 1 and way == "delete_dir":
            zarr.open_group(store, mode="r+").__delitem__(name)
        elif life > 1 and way == "rmdir":
            place.mapper().rmdir(name)
        rows, columns = kind.chunk_rows, WORDS // kind.chunk_rows
        array = zarr.create_array(
            store,
            name=name,
            shape=(GRID * rows, GRID * columns),
            chunks=(rows, columns),
            dtype=kind.dtype,
            compressors=zarr.codecs.ZstdCodec(level=1) if kind.compressed else None,
            fill_value=0,
            overwrite=way == "overwrite",
        )
        _assign(array, number, life, 0)
        complete[number] = life
        for version in range(1, rng.randrange(1, 6)):
            first, last = sorted(rng.sample(range(GRID + 1), 2))
            _assign(array, number, life, version, first, last)
        time.sleep(rng.choice([0.0, 0.0, 0.02, 0.1]))  # some lives last
    return life


# -- reading ---------------------------------------------------------------------------------------------------------------

Reading = Callable[[str, Sequence[tuple[int, int]]], list[Words | None]]
"""Of some chunks of the array at a path, in one operation."""


@dataclass(slots=True)
class Seen:
    """What one reader did."""

    face: str
    right: int = 0
    missing: int = 0
    """With a chunk missing, because another life began."""
    errors: Counter[str] = field(default_factory=Counter)
    lives: int = 0
    seconds: float = 0.0

    @property
    def reads(self) -> int:
        return self.right + self.missing + self.errors.total()


def _decoded(data: bytes | memoryview | Exception | None) -> Words | None:
    if isinstance(data, NotFound):
        return None
    if isinstance(data, Exception):
        raise data
    if data is None:
        return None
    try:
        return np.frombuffer(Zstd().decode(data), "<u4")
    except (RuntimeError, ValueError) as exc:
        raise WrongValue(f"{len(data)} bytes that are no chunk: {bytes(data[:24])!r} ... {bytes(data[-24:])!r}") from exc


def _blocks(array: zarr.Array[Any], chunks: Sequence[tuple[int, int]]) -> list[Words | None]:
    """Chunks of an array by zarr: single ones, or the rectangle around all."""
    if len(chunks) == 1:
        return [np.asarray(array.blocks[chunks[0]]).astype(np.uint32).reshape(-1)]
    rows, columns = array.chunks
    i0, i1 = min(i for i, _ in chunks), max(i for i, _ in chunks) + 1
    j0, j1 = min(j for _, j in chunks), max(j for _, j in chunks) + 1
    read = np.asarray(array[i0 * rows : i1 * rows, j0 * columns : j1 * columns]).astype(np.uint32)
    return [read[(i - i0) * rows : (i - i0 + 1) * rows, (j - j0) * columns : (j - j0 + 1) * columns].reshape(-1) for i, j in chunks]


def reading(place: Place, face: str) -> Reading:
    """What reads chunks through a face of a store; zarr's arrays held open from the beginning, or opened for each read."""
    match face:
        case "zarr, held open" | "zarr, opened anew":
            store = place.store()
            held: dict[str, zarr.Array[Any]] = {}

            def by_zarr(name: str, chunks: Sequence[tuple[int, int]]) -> list[Words | None]:
                if name not in held or face == "zarr, opened anew":
                    held[name] = zarr.open_array(store, path=name, mode="r")
                return _blocks(held[name], chunks)

            return by_zarr
        case "mapper":
            mapper = place.mapper()

            def by_mapper(name: str, chunks: Sequence[tuple[int, int]]) -> list[Words | None]:
                keys = [f"{name}/c/{i}/{j}" for i, j in chunks]
                values = mapper.getitems(keys, on_error="return")
                return [_decoded(values[key]) for key in keys]

            return by_mapper
        case "filesystem":
            fs = place.filesystem()

            def by_filesystem(name: str, chunks: Sequence[tuple[int, int]]) -> list[Words | None]:
                paths = [f"{place.path}/{name}/c/{i}/{j}" for i, j in chunks]
                values = fs.cat(paths, on_error="return")
                return [_decoded(values[path]) for path in paths]

            return by_filesystem
        case _:
            transformer = shardstore.ShardingTransformer(place.url, storage_options=place.storage_options)

            def by_transformer(name: str, chunks: Sequence[tuple[int, int]]) -> list[Words | None]:
                return [_decoded(value) for value in transformer.get_partial_values([(f"{name}/c/{i}/{j}", None) for i, j in chunks])]

            return by_transformer


def _check(value: Words | None, number: int, chunk: int, complete: int, begun: int, latest: dict[tuple[int, int], tuple[int, int]]) -> bool:
    """Whether a chunk is there.

    Raises:
        WrongValue: it is not what this chunk can be, between the life that was complete before and the one that had begun after.
    """
    payload = None if value is None else parse(value)
    what = f"chunk {chunk} of {name_of(number)!r}, lives {complete} to {begun}"
    if payload is None:
        if begun == complete:
            raise WrongValue(f"{what}: missing")
        return False
    if (payload.array, payload.chunk) != (number, chunk) or not complete <= payload.incarnation <= begun:
        raise WrongValue(f"{what}: {payload} was read")
    seen = (payload.incarnation, payload.version)
    if seen < latest.get((number, chunk), seen):
        raise WrongValue(f"{what}: {payload} was read after {latest[number, chunk]}")
    latest[number, chunk] = seen
    return True


def _is_there(read: Reading, name: str) -> bool:
    try:
        return all(value is not None and value.any() for value in read(name, [(0, 0)]))
    except (ShardStoreError, NodeNotFoundError):
        return False


@dataclass(frozen=True, slots=True)
class Enough:
    """A reader ends when it has read for so long, has got right values so often, and each array has begun so many lives."""

    seconds: float
    reads: int
    lives: int


def watch(place: Place, face: str, reader: int, arrays: int, enough: Enough, together: Together) -> Seen:
    """Read chunks: right values, missing ones, or a clear error."""
    begun, complete, ended = together.board[:arrays], together.board[arrays : 2 * arrays], together.board[2 * arrays :]
    rng = random.Random(reader)
    latest: dict[tuple[int, int], tuple[int, int]] = {}
    seen = Seen(face)
    together.start()
    together.wait(lambda: bool(complete.min() > 0))
    read = reading(place, face)
    for number in range(arrays):  # where an array is not known at all, its absence may be believed for a moment
        while not _is_there(read, name_of(number)):
            together.check()
    began, first = time.monotonic(), int(begun.min())
    while time.monotonic() < began + enough.seconds or seen.right < enough.reads or begun.min() < first + enough.lives:
        together.check()
        number = rng.randrange(arrays)
        i, j = rng.randrange(GRID), rng.randrange(GRID)
        height, width = rng.choice([(1, 1), (1, 1), (2, 2), (1, GRID), (GRID, GRID)])
        chunks = [(a, b) for a in range(i, min(GRID, i + height)) for b in range(j, min(GRID, j + width))]
        if (height, width) == (GRID, GRID):
            chunks = [(a, b) for a in range(GRID) for b in range(GRID)]
        before = int(complete[number])
        try:
            values = read(name_of(number), chunks)
        except (ShardStoreError, NodeNotFoundError) as exc:
            if int(begun[number]) == before:
                raise
            seen.errors[type(exc).__name__] += 1
            continue
        after = int(begun[number])
        there = [_check(v, number, a * GRID + b, before, after, latest) for (a, b), v in zip(chunks, values, strict=True)]
        if all(there):
            seen.right += 1
        else:
            seen.missing += 1
    seen.seconds = time.monotonic() - began
    seen.lives = int(begun.min()) - first
    ended[reader] = 1
    return seen
