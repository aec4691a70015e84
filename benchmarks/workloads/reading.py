"""Arrays read whole, in planes and in boxes."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from contenders import Selection, StorageName, Values
from datasets import UNSHARDED as UNSHARDED_SUFFIX
from datasets import Form, Scale, make
from field import READERS, UNSHARDED, ZARRS_PIPELINE

from workloads.workload import Arena, Extra, Task, Workload, checksum, decodes, made, opened


@dataclass(frozen=True, slots=True)
class _Reads(Workload):
    """Selections of one array, one after the other, with indices unknown at the start."""

    @abstractmethod
    def form(self, scale: Scale, storage: StorageName) -> tuple[str, Form]:
        """The array's name and form."""

    @abstractmethod
    def selections(self, scale: Scale, form: Form) -> list[Selection]: ...

    def make(self, root: Path, scale: Scale, storage: StorageName) -> None:
        name, form = self.form(scale, storage)
        made(root, name, make, form, unsharded=any(getattr(contender, "unsharded", False) for contender in self.entrants))

    def rounds(self, scale: Scale, storage: StorageName) -> int:
        """Twice as many on a local disk, where a turn takes some tens of milliseconds and one in three was disturbed by something."""
        return scale.rounds[storage] * (2 if storage == "local" else 1)

    def prepare(self, arena: Arena) -> Task:
        name, form = self.form(arena.scale, arena.storage)
        unsharded = getattr(arena.contender, "unsharded", False)
        array = opened(arena, name + (UNSHARDED_SUFFIX if unsharded else ""))
        selections = self.selections(arena.scale, form)
        found: list[Values] = []

        def run() -> None:
            found.extend(array.read(selection) for selection in selections)

        def facts() -> Extra:
            return {"asked_nbytes": sum(values.nbytes for values in found), "operations": len(found)}

        return Task(run, lambda: checksum(found) if decodes(arena.contender) else None, array.counts, facts)


class FullRead(_Reads):
    def form(self, scale: Scale, storage: StorageName) -> tuple[str, Form]:
        return ("volume", scale.volume) if storage == "local" else ("tiles", scale.tiles)

    def selections(self, scale: Scale, form: Form) -> list[Selection]:
        return [tuple(slice(0, n) for n in form.shape)]


class LargeFullRead(FullRead):
    """So large that what happens once a selection matters little."""

    def form(self, scale: Scale, storage: StorageName) -> tuple[str, Form]:
        return "many-tiles", scale.many_tiles


class Planes(_Reads):
    """Along each dimension in turn, each of one element."""

    def form(self, scale: Scale, storage: StorageName) -> tuple[str, Form]:
        return ("volume", scale.volume) if storage == "local" else ("slab", scale.slab)

    def selections(self, scale: Scale, form: Form) -> list[Selection]:
        found: list[Selection] = []
        for share in (0.3, 0.6):
            for axis, n in enumerate(form.shape):
                at = int(n * share)
                found.append(tuple(slice(at, at + 1) if i == axis else slice(0, m) for i, m in enumerate(form.shape)))
        return found


class PlanesOfSmallShards(Planes):
    """Each of which comes whole by one request."""

    def form(self, scale: Scale, storage: StorageName) -> tuple[str, Form]:
        return "tiles", scale.tiles


class Boxes(Planes):
    """At random, three chunks long and aligned to nothing."""

    def selections(self, scale: Scale, form: Form) -> list[Selection]:
        rng = np.random.default_rng(1)
        found: list[Selection] = []
        for number in range(scale.boxes):
            # Every other box lies around a corner where shards meet.
            sizes = [min(3 * c, n) for c, n in zip(form.chunks, form.shape, strict=True)]
            if number % 2:
                starts = [int(rng.integers(0, n - size + 1)) for n, size in zip(form.shape, sizes, strict=True)]
            else:
                corners = [min(s, n) for s, n in zip(form.shards, form.shape, strict=True)]
                starts = [min(max(0, corner - size // 2), n - size) for corner, size, n in zip(corners, sizes, form.shape, strict=True)]
            found.append(tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True)))
        return found


EVERYWHERE: tuple[StorageName, ...] = ("local", "latency", "s3")
_REMOTE_READERS = tuple(contender for contender in READERS if contender not in (UNSHARDED, ZARRS_PIPELINE))
READING = (
    FullRead("full read", "An array read whole, in one selection", EVERYWHERE, READERS),
    LargeFullRead("full read, 128 MiB", "A larger array read whole, in one selection", ("latency",), _REMOTE_READERS),
    Planes("planes", "Planes across shards, along each dimension", EVERYWHERE, READERS),
    PlanesOfSmallShards("planes, small shards", "Planes across small shards, along each dimension", ("latency",), _REMOTE_READERS),
    Boxes("boxes", "Boxes across chunks and shards", EVERYWHERE, READERS),
)
