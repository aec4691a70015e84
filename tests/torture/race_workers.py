"""What the processes of the race tests do: importable by a spawned child.

Every task writes chunks of an array of one dimension, whose chunks are as long as ``Payload.words``.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from zarr.errors import ContainsArrayError

import shardstore
from shardstore.storage.wrappers import Counters
from tests.torture.crew import Together
from tests.torture.payloads import Payload, Words, joined, parse
from tests.torture.places import Place

FACES = ("mapper", "zarr")
"""Ways to write one chunk; the mapper's bytes are those of an array without compressors."""

Write = Callable[[int, Words], None]


@dataclass(frozen=True, slots=True)
class Done:
    """What one process did."""

    writes: int
    seconds: float
    commits: int
    conflicts: int
    attempts: tuple[int, ...]
    """Of each write in turn: how many times it was tried."""


class Tally:
    """Counts the attempts of the writes of one process."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._counters.reset()
        self._began = time.monotonic()
        self._attempts: list[int] = []

    def write(self, action: Callable[[], None]) -> None:
        before = self._counters.conflicts
        action()
        self._attempts.append(1 + self._counters.conflicts - before)

    def done(self) -> Done:
        seconds = time.monotonic() - self._began
        return Done(len(self._attempts), seconds, self._counters.commits, self._counters.conflicts, tuple(self._attempts))


def create(store: shardstore.ShardedStore, path: str, chunks: int, words: int, compressors: Any = None) -> zarr.Array[Any]:
    """An array of ``chunks`` payloads; raises where there is one."""
    return zarr.create_array(store, name=path, shape=(chunks * words,), chunks=(words,), dtype="<u4", compressors=compressors, fill_value=0)


def opened(place: Place, path: str, face: str, words: int) -> tuple[Counters, Write]:
    """What writes one chunk of an array through one of ``FACES``."""
    if face == "mapper":
        mapper = place.mapper()

        def write_bytes(chunk: int, value: Words) -> None:
            mapper[f"{path}/c/{chunk}"] = value.tobytes()

        return mapper.counters, write_bytes
    store = place.store()
    array = zarr.open_array(store, path=path, mode="r+")

    def write_elements(chunk: int, value: Words) -> None:
        array[chunk * words : (chunk + 1) * words] = value

    return store.counters, write_elements


def write_chunks(place: Place, path: str, words: int, writer: int, versions: int, chunks: Sequence[int], together: Together) -> Done:
    """Write each chunk by itself, ``versions`` times, in an order that is this writer's own."""
    counters, write = opened(place, path, FACES[writer % 2], words)
    order = [(version, chunk) for version in range(versions) for chunk in random.Random(writer).sample(chunks, len(chunks))]
    together.start()
    tally = Tally(counters)
    for version, chunk in order:
        value = Payload(0, 0, chunk, writer, version).words(words)
        tally.write(lambda chunk=chunk, value=value: write(chunk, value))  # type: ignore[misc]
    return tally.done()


def runs_of(writer: int, versions: int, chunks: int, whole: bool) -> list[range]:
    """The chunks that ``write_sets`` assigns in each version."""
    rng = random.Random(writer)
    return [range(chunks) if whole else range(*sorted(rng.sample(range(chunks + 1), 2))) for _ in range(versions)]


def write_sets(place: Place, path: str, words: int, chunks: int, writer: int, versions: int, whole: bool, together: Together) -> Done:
    """Assign all chunks, or runs of them that overlap with those of the others."""
    store = place.store()
    array = zarr.open_array(store, path=path, mode="r+")
    together.start()
    tally = Tally(store.counters)
    for version, run in enumerate(runs_of(writer, versions, chunks, whole)):
        values = joined([Payload(0, 0, chunk, writer, version) for chunk in run], words)

        def assign(run: range = run, values: Words = values) -> None:
            array[run.start * words : run.stop * words] = values

        tally.write(assign)
    return tally.done()


def create_and_write(place: Place, paths: Sequence[str], words: int, chunks: int, writer: int, writers: int, together: Together) -> Done:
    """Create each array, unless another was faster, and write this writer's share of its chunks at once."""
    store = place.store(chunks_per_shard=(chunks,))
    together.start()
    tally = Tally(store.counters)
    for path in paths:
        try:
            array = create(store, path, chunks, words)
        except ContainsArrayError:
            array = zarr.open_array(store, path=path, mode="r+")
        for chunk in range(writer, chunks, writers):
            value = Payload(0, 0, chunk, writer, 0).words(words)

            def assign(array: zarr.Array[Any] = array, chunk: int = chunk, value: Words = value) -> None:
                array[chunk * words : (chunk + 1) * words] = value

            tally.write(assign)
    return tally.done()


# -- erasing ---------------------------------------------------------------------------------------------------------------

# Each shard holds one chunk that erasers set and erase again and again, and one of each writer, which is written once. Until the
# first writer's chunk is there the shard itself comes and goes: that is the moment at which it must not be lost.
#
# Cells of the board: for each eraser and then for each writer, how many shards it has come to.


def toggle(place: Place, path: str, words: int, shards: int, writers: int, eraser: int, erasers: int, together: Together) -> int:
    """Set and erase the first chunk of each shard until all writers have written theirs; how many times."""
    mapper = place.mapper()
    toggles = 0
    together.start()
    for shard in range(shards):
        together.board[eraser] = shard + 1
        chunk = shard * (1 + writers)
        key = f"{path}/c/{chunk}"
        rounds = 0
        while rounds < 2 or together.board[erasers : erasers + writers].min() <= shard:
            together.check()
            mapper[key] = Payload(0, 0, chunk, eraser, rounds).words(words).tobytes()
            mapper.delitems([key])
            rounds += 1
        toggles += rounds
    return toggles


def write_beside(place: Place, path: str, words: int, shards: int, writer: int, writers: int, erasers: int, together: Together) -> Done:
    """Write one chunk of each shard while the first one is set and erased."""
    counters, write = opened(place, path, FACES[writer % 2], words)
    rng = random.Random(writer)
    seconds = 0.002
    together.start()
    tally = Tally(counters)
    for shard in range(shards):
        chunk = shard * (1 + writers) + 1 + writer
        value = Payload(0, 0, chunk, writer, 0).words(words)
        together.wait(lambda shard=shard: bool(together.board[:erasers].min() > shard))  # type: ignore[misc]
        time.sleep(rng.uniform(0, 2 * seconds))  # anywhere in a cycle of the erasers
        began = time.monotonic()
        tally.write(lambda chunk=chunk, value=value: write(chunk, value))  # type: ignore[misc]
        seconds = min(time.monotonic() - began, 1.0)
        together.board[erasers + writer] = shard + 1
    return tally.done()


# -- looking at the result -------------------------------------------------------------------------------------------------


def found(elements: Any, words: int) -> list[Payload | None]:
    """What the chunks of an array say they are."""
    return [parse(chunk) for chunk in np.asarray(elements, np.uint32).reshape(-1, words)]


def summary(kind: str, results: Iterable[Done]) -> str:
    """Of all processes together."""
    done = list(results)
    seconds = max(d.seconds for d in done)
    commits, conflicts = sum(d.commits for d in done), sum(d.conflicts for d in done)
    attempts = [a for d in done for a in d.attempts]
    return (
        f"{kind}: {len(done)} processes, {len(attempts)} writes in {seconds:.1f} s, {commits / seconds:.0f} commits/s, "
        f"{conflicts} conflicts, at most {max(attempts)} attempts of one write"
    )
