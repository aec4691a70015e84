"""A large shard, of which single chunks, or a hundredth, are replaced."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from contenders import Place, StorageName, TensorStore
from datasets import Form, Scale, contents, make_raw
from field import APPEND, DURABLE_APPEND, UPDATERS, is_limit

from workloads.workload import Arena, Extra, Task, Workload, checksum, made, opened
from workloads.writing import stored_values

NAME = "block"


def copy_array(place: Place, source: str, target: str) -> None:
    """Another array of the same objects, which only the storage itself copies."""
    if place.endpoint is None:
        shutil.copytree(Path(place.path, source), Path(place.path, target))
        return
    import s3fs

    fs = s3fs.S3FileSystem(**place.s3_options)
    for path in fs.find(f"{place.path}/{source}"):
        bucket, _, key = path.partition("/")
        new = key.replace(f"/{source}/", f"/{target}/")
        fs.call_s3("copy_object", Bucket=bucket, Key=new, CopySource={"Bucket": bucket, "Key": key})


@dataclass(frozen=True, slots=True)
class _Updates(Workload):
    """A copy of one shard is changed."""

    def make(self, root: Path, scale: Scale, storage: StorageName) -> None:
        made(root, NAME, make_raw, scale.block)

    def rounds(self, scale: Scale, storage: StorageName) -> int:
        return scale.update_rounds

    def _facts(self, form: Form, chunks: int, commits: int) -> Extra:
        return {
            "asked_nbytes": chunks * form.chunk_nbytes,
            "operations": commits,
            "index_nbytes": form.index_nbytes,
            "shard_nbytes": form.nbytes + form.index_nbytes,
        }


class Scattered(_Updates):
    """Single chunks far apart, one by one. Those who rewrite the shard for each do fewer of them."""

    def prepare(self, arena: Arena) -> Task:
        form, scale = arena.scale.block, arena.scale
        copy_array(arena.place, NAME, arena.run_name)
        array = opened(arena, arena.run_name)
        rewrites = arena.contender not in (APPEND, DURABLE_APPEND) and not is_limit(arena.contender.name)
        chunks = np.random.default_rng(6).permutation(form.chunks_per_shard)[: scale.updates].tolist()
        done = chunks[: scale.slow_updates] if rewrites else chunks
        step = form.chunks[0]
        boxes = [slice(i * step, (i + 1) * step) for i in done]
        values = [_values(form, i) for i in done]
        if (prepare_write := getattr(array, "prepare_write", None)) is not None:
            for box, value in zip(boxes, values, strict=True):
                prepare_write((box,), value)

        def run() -> None:
            for box, value in zip(boxes, values, strict=True):
                array.write((box,), value)

        def facts() -> Extra:
            return self._facts(form, len(done), len(done))

        return Task(run, lambda: _check(arena, form, done), array.counts, facts)


class Hundredth(_Updates):
    """One assignment of neighbouring chunks in the middle."""

    def prepare(self, arena: Arena) -> Task:
        form = arena.scale.block
        if isinstance(arena.contender, TensorStore) and arena.storage == "latency":
            raise NotImplementedError("its HTTP driver only reads")
        copy_array(arena.place, NAME, arena.run_name)
        array = opened(arena, arena.run_name)
        count = max(1, form.chunks_per_shard // 100)
        first = form.chunks_per_shard // 2
        done = list(range(first, first + count))
        values = np.concatenate([_values(form, i) for i in done])
        box = slice(first * form.chunks[0], (first + count) * form.chunks[0])
        if (prepare_write := getattr(array, "prepare_write", None)) is not None:
            prepare_write((box,), values)

        def run() -> None:
            array.write((box,), values)

        return Task(run, lambda: _check(arena, form, done), array.counts, lambda: self._facts(form, count, 1))


def _values(form: Form, chunk: int) -> npt.NDArray[Any]:
    return np.full(form.chunks, 1 + chunk % 60_000, form.dtype)


def _check(arena: Arena, form: Form, done: list[int]) -> int:
    """The checksum of what is stored with the old chunks put back, which all contenders must share.

    Raises:
        ValueError: a chunk that was replaced is not what was written.
    """
    stored = stored_values(arena.place, arena.run_name)
    old = contents(form)
    for chunk in done:
        box = slice(chunk * form.chunks[0], (chunk + 1) * form.chunks[0])
        if not np.array_equal(stored[box], _values(form, chunk)):
            raise ValueError(f"chunk {chunk} was replaced, and is not stored")
        stored[box] = old[box]
    return checksum([stored])


UPDATES = (
    Scattered("scattered updates", "Single chunks of a shard of 256 MiB replaced, one by one", ("local",), UPDATERS),
    Hundredth(
        "1 % update",
        "A hundredth of a shard of 256 MiB replaced, in one assignment",
        ("local", "s3"),
        tuple(each for each in UPDATERS if each != DURABLE_APPEND),
    ),
)
