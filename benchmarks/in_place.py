"""What would a small write gain if it overwrote the old bytes of its chunk, and what would readers and a crash then find?

    python benchmarks/in_place.py                # some five minutes
    python benchmarks/in_place.py --quick        # a little of everything, to see that it works

The way to write in place is made here, of the package's own parts, and exists nowhere else; docs/design/decisions/ has the reasons. It
takes the lock, compares the version, overwrites chunk and index where they are, and draws a new version, as the strategy ``append`` does.
Times are medians of rounds in which each way writes one chunk of its own shard of 64 chunks, the ways in another order each round. Readers
and the writer of the second part are processes of their own that use the system's calls alone.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from machine import machine, versions
from words import duration, nbytes_text, ratio

import shardstore
from shardstore.errors import ShardStoreError
from shardstore.model.generation import Condition, Generation
from shardstore.model.ranges import CopiedRange, NewBytes, Segment
from shardstore.plan.commits import Commit, CommitPlan, Strategy, WriteShard, plan_rewrite
from shardstore.storage.base import ConditionFailed
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.local.versions import generation_of, stamp, version_of

CHUNKS = 64
PAGE_NBYTES = 4096
CODECS = {"zstd": zarr.codecs.ZstdCodec(level=3), "blosc": zarr.codecs.BloscCodec(cname="lz4"), "gzip": zarr.codecs.GzipCodec(level=1)}


# -- the way that the package does not have ----------------------------------------------------------------------------


@dataclass(frozen=True)
class InPlace(Strategy):
    """New bytes over the old ones, where they fit, and the new index over the old one. Breaks the rule for strategies."""

    name: str = "in place"

    def plan(self, commit: Commit) -> CommitPlan:
        old, updates = commit.old, sorted(commit.updates.items())
        if old is None or any(data is None or not 0 < len(data) <= old.flat[slot, 1] for slot, data in updates):
            return plan_rewrite(commit.index_format, old, commit.old_nbytes, commit.updates, commit.order)
        entries = old.flat.copy()
        new: list[tuple[int, Any]] = []
        for slot, data in updates:
            entries[slot, 1] = len(data)  # type: ignore[arg-type]  # none is None
            new.append((int(entries[slot, 0]), data))
        index = commit.index_format.index(entries)
        new.append((commit.old_nbytes - commit.index_format.nbytes, commit.index_format.encode(index)))
        segments: list[Segment] = []
        position = 0
        for offset, data in sorted(new, key=lambda one: one[0]):
            if offset > position:
                segments.append(CopiedRange(position, offset - position))
            segments.append(NewBytes(data))
            position = offset + len(data)
        return WriteShard(tuple(segments), commit.old_nbytes, index)


class InPlaceStorage(LocalStorage):
    """Files of which ranges are overwritten, if the rest stays where it is."""

    def _compose(self, path: str, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        position, new = 0, []
        for segment in segments:
            if isinstance(segment, NewBytes):
                new.append((position, segment.data))
            elif not (isinstance(segment, CopiedRange) and segment.offset == position):
                return super()._compose(path, key, source, segments, condition)
            position += segment.nbytes
        fd = os.open(path, os.O_RDWR)
        try:
            with self._rules.locked(path):
                if version_of(fd, os.fstat(fd)).generation != source:
                    raise ConditionFailed(f"{key!r} is not the version to change")
                for offset, data in new:
                    os.pwrite(fd, data, offset)
                if self.fsync:
                    os.fdatasync(fd)
                status = stamp(fd)
                if self.fsync:
                    os.fsync(fd)
                return generation_of(status, fd)
        finally:
            os.close(fd)


# -- how long a small write takes --------------------------------------------------------------------------------------


def _array(root: Path, way: str, fsync: bool, chunk_nbytes: int) -> Any:
    storage = (InPlaceStorage if way == "in place" else LocalStorage)(root, fsync=fsync)
    strategy: Any = InPlace() if way == "in place" else way
    store = shardstore.open(storage, strategy=strategy, chunks_per_shard=(CHUNKS,))
    array = zarr.create_array(store, shape=(CHUNKS * chunk_nbytes,), chunks=(chunk_nbytes,), dtype="u1", compressors=None, fill_value=0)
    array[...] = np.random.default_rng(1).integers(1, 255, CHUNKS * chunk_nbytes, dtype="u1")
    return array


def times(directory: Path, chunk_nbytes: int, fsync: bool, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each assignment of one chunk, by way."""
    rng = random.Random(chunk_nbytes)
    with tempfile.TemporaryDirectory(dir=directory) as root:
        arrays = {way: _array(Path(root, way), way, fsync, chunk_nbytes) for way in ("rewrite", "append", "in place")}
        found: dict[str, list[float]] = {way: [] for way in arrays}
        os.sync()
        for number in range(rounds + 2):
            for way in rng.sample(sorted(arrays), len(arrays)):
                slot = rng.randrange(CHUNKS)
                values = np.full(chunk_nbytes, 1 + number % 250, dtype="u1")
                begin = time.perf_counter()
                arrays[way][slot * chunk_nbytes : (slot + 1) * chunk_nbytes] = values
                took = time.perf_counter() - begin
                if number >= 2:
                    found[way].append(took)
        index_nbytes = 16 * CHUNKS + 4
        assert Path(root, "in place", "c", "0").stat().st_size == CHUNKS * chunk_nbytes + index_nbytes
    return found


# -- what readers see --------------------------------------------------------------------------------------------------


def _write_for_ever(path: str, chunk_nbytes: int) -> None:
    """Overwrite chunks 0 and 1, as one commit would, with bytes of one value each time; and draw a version."""
    fd = os.open(path, os.O_RDWR)
    number = 0
    while True:
        number += 1
        data = bytes([1 + number % 250]) * chunk_nbytes
        os.pwrite(fd, data, 0)
        os.pwrite(fd, data, chunk_nbytes)
        stamp(fd)


def _look(path: str, chunk_nbytes: int, seconds: float, results: Any) -> None:
    """Read chunk 0, and chunks 0 and 1, by an index that was read long ago, as often as possible."""
    seen: Counter[str] = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        fd = os.open(path, os.O_RDONLY)  # as a reader of this package does: one descriptor, and its times before and after
        before = os.fstat(fd)
        data = [os.pread(fd, chunk_nbytes, 0), os.pread(fd, chunk_nbytes, chunk_nbytes)]
        after = os.fstat(fd)
        os.close(fd)
        same = (before.st_mtime_ns, before.st_ctime_ns) == (after.st_mtime_ns, after.st_ctime_ns)
        seen["reads"] += 1
        torn = any(chunk[:1] * chunk_nbytes != chunk for chunk in data)
        mixed = not torn and data[0] != data[1]
        for name, is_so in (("torn", torn), ("mixed", mixed)):
            seen[name] += is_so
            seen[f"{name}, times equal"] += is_so and same
        seen["times equal"] += same
    results.put(seen)


def readers(directory: Path, chunk_nbytes: int, seconds: float) -> Counter[str]:
    context = multiprocessing.get_context("spawn")
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        file.write(b"\1" * (CHUNKS * chunk_nbytes))
        file.flush()
        results: Any = context.Queue()
        writer = context.Process(target=_write_for_ever, args=(file.name, chunk_nbytes), daemon=True)
        looking = [context.Process(target=_look, args=(file.name, chunk_nbytes, seconds, results)) for _ in range(2)]
        for process in (writer, *looking):
            process.start()
        total: Counter[str] = sum((results.get() for _ in looking), Counter())
        writer.kill()
        for process in (writer, *looking):
            process.join()
    return total


# -- what a crash leaves -----------------------------------------------------------------------------------------------


def _outcome(store: Any, chunk: slice, old: int, new: int) -> str:
    """Read a chunk whose values all were ``old`` and should become ``new``."""
    try:
        values = set(np.asarray(zarr.open_array(store, mode="r")[chunk]).tolist())
    except (ShardStoreError, ValueError, RuntimeError, OSError):
        return "an error"
    return {frozenset({old}): "old", frozenset({new}): "new"}.get(frozenset(values), "a mixture")


def _outcomes(root: str, chunk: slice, old: int, new: int) -> dict[str, str]:
    return {"zarr-python": _outcome(root, chunk, old, new), "shardstore": _outcome(shardstore.open(root), chunk, old, new)}


def lost_power(directory: Path, states: int) -> Counter[tuple[str, str]]:
    """Keep any of the pages of a chunk of 64 KiB without compression that was overwritten, as a loss of power may, and read the chunk.

    The index stays as it is, since the chunk keeps its length.
    """
    nbytes, slot, rng, seen = 64 << 10, 3, random.Random(7), Counter[tuple[str, str]]()
    with tempfile.TemporaryDirectory(dir=directory) as root:
        _array(Path(root), "rewrite", False, nbytes)[...] = 1
        path = Path(root, "c", "0")
        old = path.read_bytes()
        for _ in range(states):
            state = bytearray(old)
            for page in range(slot * nbytes, (slot + 1) * nbytes, PAGE_NBYTES):
                if rng.random() < 0.5:
                    state[page : page + PAGE_NBYTES] = b"\2" * PAGE_NBYTES
            path.write_bytes(state)
            seen.update(_outcomes(root, slice(slot * nbytes, (slot + 1) * nbytes), 1, 2).items())
    return seen


def died_between(directory: Path, codec: Any, deaths: int) -> Counter[tuple[str, str]]:
    """Overwrite the chunk by a shorter one, as a writer does that dies before it has written the index, and read the chunk."""
    nbytes, seen = 4096, Counter[tuple[str, str]]()
    rng = np.random.default_rng(5)
    for _ in range(deaths):
        with tempfile.TemporaryDirectory(dir=directory) as root:
            store = shardstore.open(root, chunks_per_shard=(CHUNKS,))
            how: dict[str, Any] = {"shape": (CHUNKS * nbytes,), "chunks": (nbytes,), "dtype": "u1", "fill_value": 0}
            array: Any = zarr.create_array(store, compressors=codec, **how)
            path = Path(root, "c", "0")
            array[:nbytes] = 2
            new = path.read_bytes()[: -16 * CHUNKS - 4]  # all but the index
            array[:nbytes] = rng.integers(1, 200, nbytes).astype("u1")
            old = path.read_bytes()
            assert len(new) < len(old) - 16 * CHUNKS - 4
            path.write_bytes(new + old[len(new) :])
            seen.update(_outcomes(root, slice(0, nbytes), 1, 2).items())
    return seen


def half_an_index(directory: Path) -> Counter[tuple[str, str]]:
    """Read all chunks of a shard whose index lies across the end of a page, where only the first page got its new bytes."""
    seen: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory(dir=directory) as root:
        _array(Path(root), "rewrite", False, 1000)[...] = 1
        path = Path(root, "c", "0")
        state = bytearray(path.read_bytes())
        state[-4 - 16 * CHUNKS + 8] -= 1  # the length of the first chunk
        path.write_bytes(state)
        for slot in range(CHUNKS):
            seen.update(_outcomes(root, slice(slot * 1000, (slot + 1) * 1000), 1, 1).items())
    return seen


# -- the program -------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    rounds, seconds, states = (3, 0.3, 5) if options.quick else (131, 10.0, 300)
    print(machine(str(options.directory)), versions(("shardstore", "zarr")))
    print(f"median of {rounds} assignments of one chunk of a shard of {CHUNKS}; in brackets: mean")
    for chunk_nbytes in (64 << 10, 1 << 20):
        for fsync in (False, True):
            found = times(options.directory, chunk_nbytes, fsync, rounds)
            medians = {way: statistics.median(took) for way, took in found.items()}
            shown = ", ".join(f"{way} {duration(medians[way])} ({duration(statistics.mean(took))})" for way, took in found.items())
            against = ", ".join(f"{way} {ratio(medians[way] / medians['in place'])}" for way in ("rewrite", "append"))
            print(f"{nbytes_text(chunk_nbytes)}, {'with' if fsync else 'without'} fsync: {shown}; against in place: {against}")
    for chunk_nbytes in (64 << 10, 1 << 20):
        print(f"2 readers of 2 chunks of {nbytes_text(chunk_nbytes)}:", dict(readers(options.directory, chunk_nbytes, seconds)))
    print("loss of power, any pages of a chunk:", dict(lost_power(options.directory, states)))
    for name, codec in CODECS.items():
        print(f"death before the index, {name}:", dict(died_between(options.directory, codec, states)))
    print("half an index:", dict(half_an_index(options.directory)))


if __name__ == "__main__":
    main()
