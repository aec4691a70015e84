"""The workloads of the public ``zarrs/zarr_benchmarks``, in its shapes: arrays read whole, read by chunk, and copied by chunk."""

from __future__ import annotations

import os
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

from workloads.workload import Arena, Extra, Task, Workload, checksum, made, opened

Work = Literal["read all", "read by chunk", "round trip"]
_ROUNDS = 2


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
class Public(Workload):
    """Chunks are those of the grid: whole shards where there are such. Cold: the files are not in the page cache."""

    work: Work
    kind: Kind
    at_once: int
    is_cold: bool

    def rounds(self, scale: Scale, storage: StorageName) -> int:
        return min(_ROUNDS, scale.rounds[storage])

    @property
    def array_name(self) -> str:
        return f"public-{self.kind.name.replace(', ', '-')}"

    def make(self, root: Path, scale: Scale, storage: StorageName) -> None:
        made(root, self.array_name, _filled, self.kind.form(scale))

    def prepare(self, arena: Arena) -> Task:
        form = self.kind.form(arena.scale)
        array = opened(arena, self.array_name)
        boxes: list[Selection] = [tuple(slice(0, n) for n in form.shape)] if self.work == "read all" else list(form.boxes(form.shards))
        target = self._target(arena, form) if self.work == "round trip" else None
        pool = ThreadPoolExecutor(self.at_once)
        sums: list[int] = []
        if self.is_cold:
            _forget(arena.directory / self.array_name)

        def one(box: Selection) -> Values:
            values = array.read(box)
            if target is not None:
                target.write(box, values)
            return values

        def run() -> None:
            done: Iterator[Values] = map(one, boxes) if self.at_once == 1 else pool.map(one, boxes)
            sums.extend(int(values[0, 0, 0]) for values in done)  # none is kept

        def facts() -> Extra:
            return {"asked_nbytes": form.nbytes, "operations": len(boxes)}

        return Task(run, lambda: checksum([repr(sums).encode(), *([] if target is None else [target.read(boxes[-1])])]), facts=facts)

    def _target(self, arena: Arena, form: Form) -> OpenArray:
        create("", arena.run_name, form, sharded=self.kind.is_sharded, store=native_store(arena.place))
        return arena.contender.open(arena.address(arena.run_name))


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
