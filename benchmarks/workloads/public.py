"""The workloads of the public ``zarrs/zarr_benchmarks``, in its shapes: arrays read whole, read by chunk, and copied by chunk."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from contenders import OpenArray, Selection, StorageName, Values, native_store
from datasets import CodecName, Form, Scale, create
from field import FUSED_PIPELINE, SHARDSTORE, TENSORSTORE, ZARR, ZARRS_PIPELINE

from workloads.side_by_side import SideBySide
from workloads.workload import Arena, Task, checksum, made, opened

Work = Literal["read all", "read by chunk", "round trip"]


@dataclass(frozen=True, slots=True)
class Kind:
    """An array: chunks of 256³ elements of two bytes, which are shards of chunks of 64³ if it is sharded."""

    name: str
    codec: CodecName
    is_sharded: bool

    def form(self, scale: Scale) -> Form:
        form = scale.public
        return replace(form, codec=self.codec, chunks=form.chunks if self.is_sharded else form.shards)


KINDS = (Kind("raw", "raw", False), Kind("zstd", "zstd", False), Kind("zstd, sharded", "zstd", True))


def _filled(root: Path, name: str, form: Form) -> None:
    """Smooth values, which compress well: each plane of the first dimension is the one before, shifted."""
    array = create(root, name, form, sharded=form.chunks != form.shards)
    second, third = (np.arange(n, dtype="u4") for n in form.shape[1:])
    plane = second[:, None] ** 2 // 32 + third
    for box in form.boxes((form.shards[0], *form.shape[1:])):
        first = np.arange(box[0].start, box[0].stop, dtype="u4")
        array[box] = (plane + (first**3)[:, None, None]).astype(form.dtype)


def _forget(root: Path) -> None:
    """Take files out of the page cache."""
    os.sync()
    for directory, _, names in os.walk(root):
        for name in names:
            fd = os.open(Path(directory, name), os.O_RDONLY)
            with suppress(AttributeError):  # of systems without such advice
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


@dataclass(frozen=True, slots=True)
class Public(SideBySide):
    """Chunks are those of the grid: whole shards where there are such. Arrays are opened before each turn, so no contender knows an index.
    Cold: the files that are read are not in the page cache.
    """

    work: Work
    kind: Kind
    at_once: int
    is_cold: bool

    def turns(self, scale: Scale) -> tuple[int, int]:
        return scale.public_turns, scale.public_turns

    @property
    def array_name(self) -> str:
        return f"public-{self.kind.name.replace(', ', '-')}"

    def make(self, root: Path, scale: Scale, storage: StorageName) -> None:
        made(root, self.array_name, _filled, self.kind.form(scale))

    def prepare(self, arena: Arena) -> Task:
        form = self.kind.form(arena.scale)
        opened(arena, self.array_name)
        boxes: list[Selection] = [tuple(slice(0, n) for n in form.shape)] if self.work == "read all" else list(form.boxes(form.shards))
        pool = ThreadPoolExecutor(self.at_once)
        arrays: list[OpenArray] = []  # the one that is read, and the one that is written
        written: list[str] = []
        sums: list[int] = []

        def before() -> None:
            sums.clear()
            arrays.clear()  # now nothing is known of them
            if self.work == "round trip":
                for old in written:
                    shutil.rmtree(arena.directory / old)
                written[:] = [f"{arena.run_name}-{uuid.uuid4().hex[:8]}"]
                create("", written[0], form, sharded=self.kind.is_sharded, store=native_store(arena.place))
            arrays[:] = [arena.contender.open(arena.address(name)) for name in (self.array_name, *written)]
            if self.is_cold:
                _forget(arena.directory / self.array_name)

        def one(box: Selection) -> Values:
            values = arrays[0].read(box)
            for target in arrays[1:]:
                target.write(box, values)
            return values

        def run() -> None:
            done: Iterator[Values] = map(one, boxes) if self.at_once == 1 else pool.map(one, boxes)
            sums.extend(int(values[0, 0, 0]) for values in done)  # none is kept

        before()
        run()
        return Task(run, lambda: checksum([repr(sums).encode(), *(target.read(boxes[-1]) for target in arrays[1:])]), before=before)


_PLANS: tuple[tuple[Work, int], ...] = (("read all", 1), ("read by chunk", 1), ("read by chunk", 8), ("round trip", 1), ("round trip", 8))
PUBLIC = tuple(
    Public(
        f"public: {work}, {kind.name}, {at_once} at once, {'cold' if is_cold else 'warm'}",
        f"{work.capitalize()}, {kind.name}, {at_once} at once, {'cold' if is_cold else 'warm'}",
        ("local",),
        (SHARDSTORE, TENSORSTORE, FUSED_PIPELINE, ZARRS_PIPELINE, ZARR),
        work,
        kind,
        at_once,
        is_cold,
    )
    for work, at_once in _PLANS
    for kind in KINDS
    for is_cold in (False, True)
)
