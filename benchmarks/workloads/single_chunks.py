"""Single chunks at random, through the asynchronous faces: with indices unknown, with indices known, and in batches of 1,000."""

from __future__ import annotations

import asyncio
import gc
import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from contenders import OpenArray, StorageName, Values
from counting_s3 import Counts
from datasets import UNSHARDED as UNSHARDED_SUFFIX
from datasets import Form, Scale, create, make_raw
from field import CACHED, FUSED_PIPELINE, SHARDSTORE, TENSORSTORE, UNSHARDED, ZARR
from leanest import LIMITS

from workloads.workload import Arena, Extra, Task, Workload, checksum, decodes, made, opened, percentile

NAME = "pages"
BATCH = 1000
_COLD_READS = 20

Run = Callable[[], Extra]
CountsNow = Callable[[], Counts | None]
Wanted = tuple[str, tuple[slice, ...]]
"""A chunk's key and its elements."""


def _chunks(form: Form, count: int, seed: int) -> list[Wanted]:
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, form.shape[0] // form.chunks[0], count).tolist()
    return [(f"{NAME}/c/{i}", (slice(i * form.chunks[0], (i + 1) * form.chunks[0]),)) for i in numbers]


@dataclass(frozen=True, slots=True)
class _Singles(Workload):
    """Raw chunks of one array."""

    def make(self, root: Path, scale: Scale, storage: StorageName) -> None:
        made(root, NAME, make_raw, scale.pages)
        # Without shards every chunk is a file: a part of them will do.
        made(root, NAME + UNSHARDED_SUFFIX, _make_unsharded, scale.pages)

    def form(self, arena: Arena) -> Form:
        return scale_of_unsharded(arena.scale.pages) if _is_unsharded(arena) else arena.scale.pages

    def open(self, arena: Arena) -> OpenArray:
        return opened(arena, NAME + (UNSHARDED_SUFFIX if _is_unsharded(arena) else ""))

    def _count(self, arena: Arena) -> int:
        return arena.scale.single_reads if arena.storage == "local" else arena.scale.remote_reads

    def prepare(self, arena: Arena) -> Task:
        loop = asyncio.Runner()
        found: list[Values] = []
        run, counts = self.timed(arena, loop, found)
        is_compared = decodes(arena.contender) and not _is_unsharded(arena)
        nbytes = self.form(arena).chunk_nbytes

        def facts() -> Extra:
            return {"asked_nbytes": len(found) * nbytes, "operations": len(found)}

        return Task(run, lambda: checksum(found) if is_compared else None, counts, facts)

    @abstractmethod
    def timed(self, arena: Arena, loop: asyncio.Runner, found: list[Values]) -> tuple[Run, CountsNow]:
        """What is measured, which adds what it reads to ``found``, and its requests so far."""


def _is_unsharded(arena: Arena) -> bool:
    return bool(getattr(arena.contender, "unsharded", False))


def scale_of_unsharded(form: Form) -> Form:
    return replace(form, shape=(min(form.shape[0], 1000 * form.chunks[0]),))


def _make_unsharded(root: Path, name: str, form: Form) -> None:
    small = scale_of_unsharded(form)
    array = create(root, name, small, sharded=False)
    array[...] = 7


class Cold(_Singles):
    """Each of an array that was just opened."""

    def timed(self, arena: Arena, loop: asyncio.Runner, found: list[Values]) -> tuple[Run, CountsNow]:
        total = Counts({"requests": 0})
        first = self.open(arena)
        loop.run(first.ready())
        loop.run(first.read_chunk(*_chunks(self.form(arena), 1, 2)[0]))  # what is imported and connected is not measured
        counts_inside = first.counts() is not None
        del first
        wanted = _chunks(self.form(arena), _COLD_READS if arena.storage == "local" else min(_COLD_READS, self._count(arena)), 3)

        def run() -> Extra:
            taken: list[float] = []
            cpu = 0.0
            for key, selection in wanted:
                gc.collect()  # what was open before, with what it knew
                again = self.open(arena)
                loop.run(again.ready())
                before = again.counts()
                cpu_began, began = time.process_time(), time.perf_counter()
                found.append(loop.run(again.read_chunk(key, selection)))
                taken.append(time.perf_counter() - began)
                cpu += time.process_time() - cpu_began
                _add(total, before, again.counts())
                del again
            return {"seconds": sum(taken), "cpu_seconds": cpu, "p50_seconds": percentile(taken, 50), "p99_seconds": percentile(taken, 99)}

        return run, lambda: Counts(dict(total.requests), total.bytes_read) if counts_inside else None


def _add(total: Counts, before: Counts | None, after: Counts | None) -> None:
    if before is not None and after is not None:
        total.requests["requests"] += sum(after.requests.values()) - sum(before.requests.values())
        total.bytes_read += after.bytes_read - before.bytes_read


class Warm(_Singles):
    """After every shard has been read from."""

    def timed(self, arena: Arena, loop: asyncio.Runner, found: list[Values]) -> tuple[Run, CountsNow]:
        array, form = self.open(arena), self.form(arena)
        wanted = _chunks(form, self._count(arena), 4)
        loop.run(_one_of_each_shard(array, form))

        async def read_all() -> list[float]:
            taken: list[float] = []
            for key, selection in wanted:
                began = time.perf_counter()
                found.append(await array.read_chunk(key, selection))
                taken.append(time.perf_counter() - began)
            return taken

        def run() -> Extra:
            taken = loop.run(read_all())
            return {"p50_seconds": percentile(taken, 50), "p99_seconds": percentile(taken, 99)}

        return run, array.counts


class Batches(_Singles):
    """After every shard has been read from."""

    def _batches(self, arena: Arena) -> int:
        return arena.scale.batches if arena.storage == "local" else arena.scale.remote_batches

    def timed(self, arena: Arena, loop: asyncio.Runner, found: list[Values]) -> tuple[Run, CountsNow]:
        array, form = self.open(arena), self.form(arena)
        size = min(BATCH, form.shape[0] // form.chunks[0])
        batches = [_chunks(form, size, 5 + number) for number in range(self._batches(arena))]
        loop.run(_one_of_each_shard(array, form))

        async def read_all() -> list[float]:
            taken: list[float] = []
            for batch in batches:
                began = time.perf_counter()
                values = await array.read_chunks(batch)
                taken.append((time.perf_counter() - began) / len(batch))
                found.extend(values)
            return taken

        def run() -> Extra:
            taken = loop.run(read_all())
            return {"p50_seconds": percentile(taken, 50)}

        return run, array.counts


async def _one_of_each_shard(array: OpenArray, form: Form) -> None:
    await array.ready()
    step = form.chunks[0]
    for start in range(0, form.shape[0], form.shards[0]):
        await array.read_chunk(f"{NAME}/c/{start // step}", (slice(start, start + step),))


_ENTRANTS = (*LIMITS, SHARDSTORE, ZARR, FUSED_PIPELINE, UNSHARDED, TENSORSTORE, CACHED)
_EVERYWHERE: tuple[StorageName, ...] = ("local", "latency", "s3")
SINGLE_CHUNKS = (
    Cold("single chunks, cold", "Random single chunks of raw bytes, each of an array that was just opened", _EVERYWHERE, _ENTRANTS),
    Warm("single chunks, warm", "Random single chunks of raw bytes, indices known", _EVERYWHERE, _ENTRANTS),
    Batches("batches of chunks", "Random chunks of raw bytes, 1,000 at once, indices known", _EVERYWHERE, _ENTRANTS),
)
