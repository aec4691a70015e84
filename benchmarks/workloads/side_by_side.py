"""Selections, writes, requests and openings of contenders that take turns in one process: what ratios of times are taken from.

The turns follow each other within milliseconds, so whatever else the machine does, it does to all. Each has opened its array and read from
it before; a tensorstore without a cache pool reads an index again each time, which is its default.
"""

from __future__ import annotations

import shutil
import uuid
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import zarr
from contenders import IN_ICECHUNK, Contender, OpenArray, Selection, StorageName, Values, native_store
from datasets import CodecName, Form, Scale, contents, create, make
from field import (
    CACHED,
    CREDULOUS,
    FUSED_PIPELINE,
    ICECHUNK,
    OVER_OBSTORE,
    SHARDSTORE,
    TENSORSTORE,
    ZARR,
    ZARRS_PIPELINE,
)
from leanest import CODECS_ALONE, GETS_ALONE, LIMITS

from workloads.hierarchy import Hierarchy
from workloads.workload import Arena, Task, Workload, checksum, decodes, made, opened

Choose = Callable[[np.random.Generator, Form], list[Selection]]
_ArrayName = Literal["cube", "sheets", "coarse_sheets"]
"""A form of the scale."""
CODECS: tuple[CodecName, ...] = ("zstd", "blosc", "raw")


@dataclass(frozen=True, slots=True)
class SideBySide(Workload):
    """Some turns of each, in one process."""

    def turns(self, scale: Scale) -> tuple[int, int]:
        return scale.turns, scale.peer_turns


# -- a local array -----------------------------------------------------------------------------------------------------


def _plane(axis: int) -> Choose:
    def choose(rng: np.random.Generator, form: Form) -> list[Selection]:
        def plane(at: int) -> Selection:
            return tuple(slice(at, at + 1) if i == axis else slice(0, n) for i, n in enumerate(form.shape))

        return [plane(at) for at in rng.integers(0, form.shape[axis], 1).tolist()]

    return choose


def _boxes(rng: np.random.Generator, form: Form) -> list[Selection]:
    """About three chunks long in each direction, aligned to nothing."""
    sizes = [3 * c + c // 8 for c in form.chunks]
    starts = [int(rng.integers(0, n - size + 1)) for n, size in zip(form.shape, sizes, strict=True)] if _fits(sizes, form) else [0, 0, 0]
    return [tuple(slice(start, min(start + size, n)) for start, size, n in zip(starts, sizes, form.shape, strict=True))]


def _fits(sizes: list[int], form: Form) -> bool:
    return all(size <= n for size, n in zip(sizes, form.shape, strict=True))


def _everything(_: np.random.Generator, form: Form) -> list[Selection]:
    return [tuple(slice(0, n) for n in form.shape)]


def _singles(count: int) -> Choose:
    def choose(rng: np.random.Generator, form: Form) -> list[Selection]:
        corners = [rng.integers(0, n // c, count) * c for n, c in zip(form.shape, form.chunks, strict=True)]
        return [tuple(slice(int(at[i]), int(at[i]) + c) for at, c in zip(corners, form.chunks, strict=True)) for i in range(count)]

    return choose


@dataclass(frozen=True, slots=True)
class Selections(SideBySide):
    """Of an array whose indices are known."""

    codec: CodecName
    choose: Choose
    array: _ArrayName = "cube"
    threads: int = 1

    def form(self, scale: Scale) -> Form:
        form: Form = getattr(scale, self.array)
        return replace(form, codec=self.codec)

    @property
    def array_name(self) -> str:
        return f"{self.array}-{self.codec}"

    def make(self, root: Path, scale: Scale, storage: StorageName) -> None:
        made(root, self.array_name, make_smooth, self.form(scale))

    def prepare(self, arena: Arena) -> Task:
        form = self.form(arena.scale)
        array = opened(arena, self.array_name)
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        wanted: list[Selection] = []
        found: list[Values] = []
        prepare_read = getattr(array, "prepare_read", None)
        pool = ThreadPoolExecutor(self.threads) if self.threads > 1 else None

        def before() -> None:
            found.clear()
            wanted[:] = self.choose(rng, form)
            if prepare_read is not None:
                prepare_read(wanted)

        def run() -> None:
            found.extend(map(array.read, wanted) if pool is None else pool.map(array.read, wanted))

        before()
        run()
        return Task(run, lambda: checksum(found) if decodes(arena.contender) else None, before=before)


def make_smooth(root: Path, name: str, form: Form) -> None:
    """The same values with each codec."""
    create(root, name, form)[...] = contents(replace(form, codec="zstd"))


@dataclass(frozen=True, slots=True)
class Written(SideBySide):
    """A new array each time, in one assignment."""

    codec: CodecName

    def turns(self, scale: Scale) -> tuple[int, int]:
        return scale.turns, max(1, scale.peer_turns // 2)

    def prepare(self, arena: Arena) -> Task:
        form = replace(arena.scale.cube, codec=self.codec)
        values = contents(replace(form, codec="zstd"))
        everything = tuple(slice(0, n) for n in form.shape)
        arrays: list[tuple[str, OpenArray]] = []

        def before() -> None:
            for old, _ in arrays:
                shutil.rmtree(arena.directory / old)
            arrays.clear()
            name = f"{arena.run_name}-{uuid.uuid4().hex[:8]}"
            create("", name, form, store=native_store(arena.place))
            arrays.append((name, arena.contender.open(arena.address(name))))
            prepare_write = getattr(arrays[-1][1], "prepare_write", None)
            if prepare_write is not None:
                prepare_write(everything, values)

        def run() -> None:
            arrays[-1][1].write(everything, values)

        def stored() -> int | None:
            if not decodes(arena.contender):
                return None
            return checksum([np.asarray(zarr.open_array(native_store(arena.place), path=arrays[-1][0], mode="r")[...])])

        before()
        run()
        return Task(run, stored, before=before)


# -- others ------------------------------------------------------------------------------------------------------------


class Opened(Hierarchy):
    """By a new store each time."""

    def turns(self, scale: Scale) -> tuple[int, int]:
        return max(1, scale.turns // 4), max(1, scale.peer_turns // 3)

    def prepare(self, arena: Arena) -> Task:
        tasks: list[Task] = []

        def before() -> None:
            tasks[:] = [Hierarchy.prepare(self, arena)]

        before()
        tasks[0].run()
        return Task(lambda: tasks[0].run(), lambda: tasks[0].checksum(), before=before)


@dataclass(frozen=True, slots=True)
class RandomChunks(SideBySide):
    """Of an array on S3 whose indices are known, each once: what was read is in a cache pool."""

    count: int
    threads: int = 1

    NAME = "distant"

    def turns(self, scale: Scale) -> tuple[int, int]:
        turns = max(1, scale.turns // (8 if "far s3" in self.storages else 3))
        return turns, turns

    def make(self, root: Path, scale: Scale, storage: StorageName) -> None:
        made(root, self.NAME, make, scale.distant)
        path = root / (self.NAME + IN_ICECHUNK)
        if ICECHUNK.unavailable(storage) is None and not path.exists():
            make_icechunk(path, scale.distant)

    def prepare(self, arena: Arena) -> Task:
        form, array = arena.scale.distant, opened(arena, self.NAME)
        boxes = list(form.boxes(form.chunks))
        firsts = [box for box in boxes if all(part.start % s == 0 for part, s in zip(box, form.shards, strict=True))]
        for box in firsts:
            array.read(box)
        rest = [box for box in boxes if box not in firsts]
        order = [rest[i] for i in np.random.default_rng(len(rest)).permutation(len(rest))]
        count = min(self.count, len(rest) // 2)
        position = [0]
        found: list[Values] = []
        pool = ThreadPoolExecutor(self.threads)
        list(pool.map(array.read, firsts[: self.threads]))  # connections are made before the clock starts

        def before() -> None:
            found.clear()
            position[0] += count
            if position[0] + count > len(order):
                position[0] = 0

        def run() -> None:
            wanted = islice(order, position[0], position[0] + count)
            found.extend(map(array.read, wanted) if self.threads == 1 else pool.map(array.read, wanted))

        return Task(run, lambda: checksum(found) if decodes(arena.contender) else None, before=before)


def make_icechunk(path: Path, form: Form) -> None:
    """The same values in a repository, without shards."""
    import icechunk

    icechunk.set_logs_filter("error")
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(path)))
    session = repository.writable_session("main")
    create("", "", form, sharded=False, store=session.store)[...] = contents(form)
    session.commit("an array")


# -- all of them -------------------------------------------------------------------------------------------------------

_READERS: tuple[Contender, ...] = (SHARDSTORE, TENSORSTORE, CODECS_ALONE, FUSED_PIPELINE, ZARRS_PIPELINE, ZARR)
COMPARED = ("shardstore", "shardstore, obstore", "tensorstore", "codecs alone")
"""The contenders of local reads and writes that take all turns."""
_HERE: tuple[StorageName, ...] = ("local",)
_FAR = (OVER_OBSTORE, SHARDSTORE, TENSORSTORE, CACHED, CREDULOUS, ICECHUNK, GETS_ALONE)


def _reads(codec: CodecName) -> list[Workload]:
    shapes: tuple[tuple[str, str, Choose, _ArrayName, int], ...] = (
        ("planes z", "A plane across the first dimension of 128 MiB, 256 chunks of 64 KiB", _plane(0), "sheets", 1),
        ("planes x", "A plane across the last dimension of 128 MiB, 128 chunks of 64 KiB", _plane(2), "sheets", 1),
        ("boxes", "Boxes of 100³ elements, 64 KiB chunks", _boxes, "cube", 1),
        ("full read", "An array of 32 MiB read whole, 64 KiB chunks", _everything, "cube", 1),
        ("single chunks", "40 single chunks of 64 KiB", _singles(40), "cube", 1),
        ("single chunks, 8 threads", "160 single chunks of 64 KiB, by 8 threads", _singles(160), "cube", 8),
        (
            "planes z of 512 KiB chunks",
            "A plane across the first dimension of 128 MiB, 64 chunks of 512 KiB",
            _plane(0),
            "coarse_sheets",
            1,
        ),
        ("planes x of 512 KiB chunks", "A plane across the last dimension of 128 MiB, 32 chunks of 512 KiB", _plane(2), "coarse_sheets", 1),
    )
    return [
        Selections(f"{codec}: {name}", f"{title}, {codec}", _HERE, _READERS, codec, choose, array, threads)
        for name, title, choose, array, threads in shapes
    ]


SIDE_BY_SIDE: tuple[Workload, ...] = (
    *(workload for codec in CODECS for workload in _reads(codec)),
    *(Written(f"{codec}: full write", f"An array of 32 MiB written whole, {codec}", _HERE, _READERS, codec) for codec in CODECS),
    Opened(
        "arrays opened", "A hierarchy of 1,000 arrays opened, by a new store each time", _HERE, (SHARDSTORE, ZARR, TENSORSTORE, LIMITS[1])
    ),
    RandomChunks("random chunks", "50 random chunks of 64 KiB on S3, indices known", ("s3",), _FAR, 50),
    RandomChunks("random chunks, far", "50 random chunks of 64 KiB on S3 20 ms away, indices known", ("far s3",), _FAR, 50),
    RandomChunks("random chunks, far, 8 threads", "200 random chunks of 64 KiB on S3 20 ms away, by 8 threads", ("far s3",), _FAR, 200, 8),
)
