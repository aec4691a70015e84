"""Arrays written whole, layer by layer, and chunk by chunk."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zarr
from contenders import Place, StorageName, TensorStore, Values, native_store
from datasets import Form, Scale, contents, create
from field import APPEND, DURABLE_APPEND, FUSED_PIPELINE, TENSORSTORE, UPDATERS, WRITERS, ZARR
from leanest import LIMITS
from shard_files import live_nbytes

from workloads.workload import Arena, Extra, Task, Workload, checksum, opened

Boxes = list[tuple[slice, ...]]


def stored_values(place: Place, name: str) -> Values:
    """All of an array, as plain zarr-python reads it without any model in between."""
    with zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"}):
        return np.asarray(zarr.open_array(native_store(without_model(place)), path=name, mode="r")[...])


def without_model(place: Place) -> Place:
    """The same place without delays."""
    return Place(place.path, place.endpoint)


@dataclass(frozen=True, slots=True)
class _Writes(Workload):
    """A new array, filled by assignments one after the other."""

    @abstractmethod
    def form(self, scale: Scale, storage: StorageName) -> Form: ...

    @abstractmethod
    def assignments(self, form: Form) -> Boxes: ...

    def make(self, root: Path, scale: Scale, storage: StorageName) -> None:
        return

    def prepare(self, arena: Arena) -> Task:
        form = self.form(arena.scale, arena.storage)
        values = contents(form)
        sharded = not getattr(arena.contender, "unsharded", False)
        if isinstance(arena.contender, TensorStore) and arena.storage == "latency":
            raise NotImplementedError("its HTTP driver only reads")
        # What is imported, connected and probed before the first write is not measured.
        warm_up = Form(form.shards, form.chunks, form.shards, form.dtype, form.codec)
        for name, of_name in ((f"{arena.run_name}-warm-up", warm_up), (arena.run_name, form)):
            create("", name, of_name, sharded=sharded, store=native_store(without_model(arena.place)))
        first = tuple(slice(0, n) for n in form.shards)
        prepared = opened(arena, f"{arena.run_name}-warm-up")
        prepare_write = getattr(prepared, "prepare_write", None)
        if prepare_write is not None:
            prepare_write(first, values[first])
        prepared.write(first, values[first])
        array = opened(arena, arena.run_name)
        assignments = self.assignments(form)
        prepare_write = getattr(array, "prepare_write", None)
        if prepare_write is not None:
            for box in assignments:
                prepare_write(box, values[box])

        def run() -> None:
            for box in assignments:
                array.write(box, values[box])

        def facts() -> Extra:
            facts: Extra = {"operations": len(assignments), "index_nbytes": form.index_nbytes}
            if arena.place.endpoint is None and sharded:
                facts["asked_nbytes"] = live_nbytes(arena.directory / arena.run_name)
            return facts

        return Task(run, lambda: checksum([stored_values(arena.place, arena.run_name)]), array.counts, facts)


class FullWrite(_Writes):
    """In one assignment."""

    def form(self, scale: Scale, storage: StorageName) -> Form:
        return scale.volume if storage == "local" else scale.tiles

    def assignments(self, form: Form) -> Boxes:
        return [tuple(slice(0, n) for n in form.shape)]


class Layers(_Writes):
    """As many layers as a shard has chunks along its first dimension."""

    def form(self, scale: Scale, storage: StorageName) -> Form:
        return scale.stack

    def assignments(self, form: Form) -> Boxes:
        return list(form.boxes((form.chunks[0], *form.shape[1:])))


class SingleWrites(Layers):
    """All chunks of a shard."""

    def assignments(self, form: Form) -> Boxes:
        return list(form.boxes(form.chunks))


class TallSingleWrites(SingleWrites):
    """What a rewrite costs grows with the shard, what an append costs does not."""

    def form(self, scale: Scale, storage: StorageName) -> Form:
        return scale.tall_stack

    def rounds(self, scale: Scale, storage: StorageName) -> int:
        return scale.update_rounds


_TALL_WRITERS = (*LIMITS, APPEND, DURABLE_APPEND, ZARR, FUSED_PIPELINE, TENSORSTORE)
WRITING = (
    FullWrite("full write", "An array written whole, in one assignment", ("local", "latency", "s3"), WRITERS),
    Layers("layers", "Slices of a shard appended one by one", ("local", "latency", "s3"), UPDATERS),
    SingleWrites("single writes", "Single chunks of a shard of 8 MiB written one by one", ("local",), UPDATERS),
    TallSingleWrites("single writes, 64 MiB", "Single chunks of a shard of 64 MiB written one by one", ("local",), _TALL_WRITERS),
)
