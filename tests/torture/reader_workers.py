"""What the processes of the reader tests do: importable by a spawned child.

Writers write until all readers have ended. Readers look at every byte that they get, through all faces of a store.
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

import shardstore
from shardstore.storage.wrappers import Counters
from tests.torture.crew import Together
from tests.torture.payloads import Payload, Words, WrongValue, joined, parse
from tests.torture.places import Place

FACES = ("zarr", "mapper", "filesystem", "transformer")

WHOLE, PARTS = "whole", "parts"
ARRAYS = (WHOLE, PARTS)
"""``whole`` is only ever assigned as a whole: a selection of it is of one version. ``parts`` is assigned in runs and single chunks."""

Reading = Callable[[str, Sequence[int]], list[Words | None]]
"""Of some chunks of the array at a path, in one operation."""


def decoded(data: bytes | memoryview | None) -> Words | None:
    return None if data is None else np.frombuffer(Zstd().decode(data), "<u4")


def reading(place: Place, face: str, words: int) -> tuple[Counters, Reading]:
    """What reads chunks of arrays of one dimension that are compressed by zstd through one of ``FACES``."""
    match face:
        case "zarr":
            store = place.store()
            arrays = {name: zarr.open_array(store, path=name, mode="r") for name in ARRAYS}

            def by_zarr(name: str, chunks: Sequence[int]) -> list[Words | None]:
                elements = np.concatenate([np.arange(chunk * words, (chunk + 1) * words) for chunk in chunks])
                is_run = list(chunks) == list(range(chunks[0], chunks[-1] + 1))
                array = arrays[name]
                found = array[elements[0] : elements[-1] + 1] if is_run else array.oindex[elements]
                return list(np.asarray(found).reshape(-1, words))

            return store.counters, by_zarr
        case "mapper":
            mapper = place.mapper()

            def by_mapper(name: str, chunks: Sequence[int]) -> list[Words | None]:
                values = mapper.getitems([f"{name}/c/{chunk}" for chunk in chunks])
                return [decoded(_bytes(values[f"{name}/c/{chunk}"])) for chunk in chunks]

            return mapper.counters, by_mapper
        case "filesystem":
            fs = place.filesystem()

            def by_filesystem(name: str, chunks: Sequence[int]) -> list[Words | None]:
                paths = [f"{place.path}/{name}/c/{chunk}" for chunk in chunks]
                if len(paths) > 1:
                    values = fs.cat(paths)
                    return [decoded(values[path]) for path in paths]
                # In two ranges, which are one batch and so of one version. (A file that is open tells when it was replaced.)
                start, end = fs.cat_ranges(paths * 2, [0, 100], [100, None], on_error="raise")
                return [decoded(start + end)]

            return fs.counters, by_filesystem
        case _:
            transformer = shardstore.ShardingTransformer(place.url, storage_options=place.storage_options)

            def by_transformer(name: str, chunks: Sequence[int]) -> list[Words | None]:
                values = transformer.get_partial_values([(f"{name}/c/{chunk}", None) for chunk in chunks])
                return [decoded(value) for value in values]

            return transformer.counters, by_transformer


def _bytes(value: bytes | Exception) -> bytes:
    assert isinstance(value, bytes)
    return value


# -- shards that are rewritten ---------------------------------------------------------------------------------------------

# Cells of the board: for each reader its reads so far, then for each reader whether it has ended.


@dataclass(frozen=True, slots=True)
class Limits:
    """A reader ends when it has read for so long, so often, and has seen so many versions of ``whole``."""

    seconds: float
    reads: int
    versions: int


@dataclass(frozen=True, slots=True)
class Reads:
    """What one reader did."""

    face: str
    reads: int
    chunks: int
    versions: int
    retried: int
    seconds: float
    errors: Counter[str] = field(default_factory=Counter)
    """By type; of readers that may see some."""


class Checker:
    """What one reader has seen, and what it may see therefore."""

    def __init__(self) -> None:
        self._latest: dict[tuple[str, int, int], int] = {}
        self.versions: set[tuple[int, int]] = set()

    def check(self, name: str, chunks: Sequence[int], values: Sequence[Words | None]) -> None:
        """Raises WrongValue: these cannot be the values of these chunks."""
        payloads = [None if value is None else parse(value) for value in values]
        for chunk, payload in zip(chunks, payloads, strict=True):
            if payload is None:
                raise WrongValue(f"chunk {chunk} of {name!r} is missing: it was never erased")
            if (payload.array, payload.chunk) != (ARRAYS.index(name), chunk):
                raise WrongValue(f"{payload} was read as chunk {chunk} of {name!r}")
            key = (name, chunk, payload.writer)
            if payload.version < self._latest.get(key, 0):
                raise WrongValue(f"{payload} was read after version {self._latest[key]}")
            self._latest[key] = payload.version
        if name == WHOLE:
            seen = {(payload.writer, payload.version) for payload in payloads if payload is not None}
            if len(seen) != 1:
                raise WrongValue(f"a selection of one shard is of the versions {sorted(seen)}")
            self.versions |= seen


def read_on(place: Place, words: int, chunks: int, reader: int, readers: int, limits: Limits, together: Together) -> Reads:
    """Read single chunks, runs, sets and whole shards."""
    face = FACES[reader % len(FACES)]
    counters, read = reading(place, face, words)
    rng = random.Random(reader)
    checker = Checker()
    reads = count = 0
    together.start()
    counters.reset()
    began = time.monotonic()
    while time.monotonic() < began + limits.seconds or reads < limits.reads or len(checker.versions) < limits.versions:
        together.check()
        name = rng.choice(ARRAYS)
        first, last = sorted(rng.sample(range(chunks + 1), 2))
        wanted = rng.choice([[first], list(range(first, last)), sorted({first, last - 1}), list(range(chunks))])
        checker.check(name, wanted, read(name, wanted))
        reads += 1
        count += len(wanted)
        together.board[reader] = reads
    seconds = time.monotonic() - began
    together.board[readers + reader] = 1
    return Reads(face, reads, count, len(checker.versions), counters.retried_reads, seconds)


def rewrite(place: Place, words: int, chunks: int, writer: int, readers: int, together: Together) -> int:
    """Assign ``whole`` as a whole, and runs and single chunks of ``parts``, until the readers have ended; how many commits."""
    store = place.store()
    arrays = [zarr.open_array(store, path=name, mode="r+") for name in ARRAYS]
    rng = random.Random(writer)
    together.start()
    store.counters.reset()
    version = 1
    while not together.board[readers : 2 * readers].all():
        together.check()
        first, last = sorted(rng.sample(range(chunks + 1), 2))
        for number, (array, run) in enumerate(zip(arrays, (range(chunks), rng.choice([range(first, last), [first]])), strict=True)):
            values = joined([Payload(number, 0, chunk, writer, version) for chunk in run], words)
            array[run[0] * words : (run[-1] + 1) * words] = values
        version += 1
    return store.counters.commits


# -- shards that are appended to, and readers that know nothing of it -------------------------------------------------------------

# Cells of the board as above.


def read_natively(place: Place, words: int, chunks: int, reader: int, readers: int, limits: Limits, together: Together) -> Reads:
    """Read chunks and runs of ``parts`` by plain zarr-python: an error may come, a wrong value never, nor an older one than before."""
    array = place.native_beside(PARTS)
    rng = random.Random(reader)
    checker = Checker()
    errors: Counter[str] = Counter()
    reads = count = 0
    together.start()
    began = time.monotonic()
    while time.monotonic() < began + limits.seconds or reads < limits.reads:
        together.check()
        first, last = sorted(rng.sample(range(chunks + 1), 2))
        wanted = rng.choice([range(first, first + 1), range(first, last), range(chunks)])
        try:
            found = np.asarray(array[wanted.start * words : wanted.stop * words])
        except Exception as exc:  # noqa: BLE001  # zarr has no class of its own for what it cannot decode
            errors[type(exc).__name__] += 1
        else:
            checker.check(PARTS, wanted, list(found.reshape(-1, words)))
            count += len(wanted)
        reads += 1
    seconds = time.monotonic() - began
    together.board[readers + reader] = 1
    return Reads("native", reads, count, 0, 0, seconds, errors)


def append_on(place: Place, words: int, chunks: int, writer: int, readers: int, together: Together) -> int:
    """Assign runs of ``parts``, never all of it, until the readers have ended; how many commits. No shard is rewritten."""
    store = place.store(max_dead_fraction=0.999)
    array = zarr.open_array(store, path=PARTS, mode="r+")
    rng = random.Random(writer)
    together.start()
    store.counters.reset()
    version = 1
    while not together.board[readers : 2 * readers].all():
        together.check()
        first = rng.randrange(chunks)
        run = range(first, min(chunks, first + rng.choice([1, 1, 2, chunks // 2])))
        array[run.start * words : run.stop * words] = joined([Payload(1, 0, chunk, writer, version) for chunk in run], words)
        version += 1
    return store.counters.commits


def prepare(place: Place, words: int, chunks: int) -> None:
    """Both arrays, of one shard each, with a first version."""
    store = place.store(chunks_per_shard=(chunks,))
    for number, name in enumerate(ARRAYS):
        options: dict[str, Any] = {"compressors": zarr.codecs.ZstdCodec(level=1)}
        array = zarr.create_array(store, name=name, shape=(chunks * words,), chunks=(words,), dtype="<u4", fill_value=0, **options)
        array[...] = joined([Payload(number, 0, chunk, 0, 0) for chunk in range(chunks)], words)
